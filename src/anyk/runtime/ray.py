"""Workers on a Ray cluster: one actor each; large arrays go through Ray's object store and are read in place."""

from __future__ import annotations

import contextlib
import math
import os
import time
from contextlib import ExitStack
from typing import Any

import numpy as np

from ..errors import TooFewWorkers
from . import faults, reply
from .packing import Desk, Outbox
from .workers import SLICE, Event, WorkersBase, whole

try:
    import ray
    from ray.util.placement_group import PlacementGroup
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
except ImportError as error:
    raise ImportError("Ray workers need ray: pip install 'anyk[ray]'") from error

__all__ = ["RayWorkers"]

_JOIN = 60.0  # seconds that starting all actors may take
_BACK = 20.0  # seconds that an actor may take to be there in the place of one that was lost


class _Host:
    """The actor: a desk in a process of its own."""

    def __init__(self) -> None:
        faults.dedicated_process = True
        self._desk = Desk()

    def there(self) -> None:
        """Answer."""

    def run(self, message: bytes, *buffers: Any) -> list[Any]:
        """Run a task; the reply's header, and the bytes of each array for the object store."""
        header, arrays = self._desk.run(message, [memoryview(buffer) for buffer in buffers])
        return [header, *(np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays)]


class RayWorkers(WorkersBase):
    """`n` Ray actors, each with its state in its own process.

    Connects to the Ray that this process is connected to, or else starts one on this machine, which ends with the
    workers. Published values and large arguments are put into Ray's object store and read in place there: they are
    read-only, so a function that changes its argument must copy it first. ``anyk`` must be installed on all nodes.
    Workers that are lost with their node, while the others have no room for them, come back as soon as there is some.

    Parameters
    ----------
    n : int, PlacementGroup or None
        How many; or one for each bundle of a placement group; or, by default, as many as the cluster has room for.
    cpus : float
        What each of them occupies, in Ray's accounts.

    Raises
    ------
    TooFewWorkers
        If the cluster has no room for them, or they are not there within a minute.

    Examples
    --------
    >>> import anyk
    >>> with RayWorkers(3) as workers:  # doctest: +SKIP
    ...     result = anyk.map(np.negative, [1.0, 2.0], code=anyk.LagrangeCode(3, 2), workers=workers)
    """

    def __init__(self, n: int | PlacementGroup | None = None, *, cpus: float = 1.0) -> None:
        if isinstance(cpus, bool) or not isinstance(cpus, int | float) or not 0 <= cpus < math.inf:
            raise ValueError(f"cpus must be a number of at least 0, got {cpus!r}")
        group = n if isinstance(n, PlacementGroup) else None
        wanted = None if n is None else whole(group.bundle_count if group is not None else n)
        self._owned = ExitStack()
        self._actors: list[Any] = []
        self._flying: dict[Any, tuple[int, int, bool]] = {}  # what is awaited: worker, life, whether a task
        self._vacant: dict[int, float] = {}  # whose actor is not there yet, and until when it is waited for
        self._group, self._cpus = group, float(cpus)
        self._looked, self._left = -math.inf, 0.0
        try:
            if not ray.is_initialized():
                room = max(os.cpu_count() or 1, math.ceil((wanted or 0) * cpus))
                ray.init(num_cpus=room, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
                self._owned.callback(ray.shutdown)
            count = self._room(wanted, cpus, group)
            self._lives, self._lost, self._tokens = [0] * count, [False] * count, [None] * count
            self._events: list[Event] = []
            self._outbox = Outbox(count, lambda buffer: ray.put(np.frombuffer(buffer, np.uint8)))
            self._options = [_options(cpus, group, index) for index in range(count)]
            self._actors = [self._hire(index) for index in range(count)]
            self._muster()
        except BaseException:
            self.close()
            raise

    @classmethod
    def connect(cls, address: str | None, n: int | None, **options: Any) -> RayWorkers:
        """Workers on the cluster at `address` ("auto": this machine's), or on one that is started here."""
        if address is None or ray.is_initialized():
            return cls(n, **options)
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        try:
            workers = cls(n, **options)
        except BaseException:
            ray.shutdown()
            raise
        workers._owned.callback(ray.shutdown)
        return workers

    @staticmethod
    def _room(wanted: int | None, cpus: float, group: PlacementGroup | None) -> int:
        if group is not None:
            if not group.wait(_JOIN):
                raise TooFewWorkers(f"the placement group of {wanted} bundles was not placed within {_JOIN:.0f} s")
            return wanted or 0
        total = float(ray.cluster_resources().get("CPU", 0.0))
        count = wanted if wanted is not None else int(total // cpus) if cpus else os.cpu_count() or 1
        if count < 1 or count * cpus > total:
            raise TooFewWorkers(
                f"the Ray cluster has {total:g} CPUs: too few for {count} workers of {cpus:g} each; pass cpus= less"
            )
        return count

    def _hire(self, worker: int) -> Any:
        return ray.remote(**self._options[worker])(_Host).remote()

    def _muster(self) -> None:
        try:
            ray.get([actor.there.remote() for actor in self._actors], timeout=_JOIN)
        except ray.exceptions.GetTimeoutError as error:
            raise TooFewWorkers(
                f"{len(self)} Ray actors were not all there after {_JOIN:.0f} s: other jobs may hold the CPUs"
            ) from error
        except ray.exceptions.RayError as error:
            raise TooFewWorkers(f"Ray actors cannot be started: {error}") from error

    def __len__(self) -> int:
        return len(self._lives)

    def publish(self, value: Any) -> Any:
        """One copy of `value` in the object store."""
        self._check_open()
        return self._outbox.publish(value)

    def submit(self, worker: int, token: Any, fn: Any, *args: Any) -> None:
        """Call the worker's actor."""
        self._check_open()
        if self._lost[worker]:
            self._events.append(Event(token, worker, "lost", "the worker is gone"))
            return
        message, shared, own = self._outbox.pack(worker, fn, args)
        self._tokens[worker] = token
        buffers = [np.frombuffer(buffer, np.uint8) for buffer in own]
        called = self._actors[worker].run.remote(message, *shared, *buffers)
        self._flying[called] = worker, self._lives[worker], True

    def poll(self, timeout: float | None) -> list[Event]:
        """Events so far, or the first to come."""
        end = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            self._check_open()  # another thread may close it meanwhile
            events, self._events = self._events, []
            wait = 0.0 if events else min(max(end - time.monotonic(), 0.0), SLICE)
            if self._flying:
                flying = list(self._flying)
                ready, others = ray.wait(flying, num_returns=1, timeout=wait)  # ready: all of it has come here
                if ready and others:
                    ready += ray.wait(others, num_returns=len(others), timeout=0)[0]
                for answer in ready:
                    events += self._heard(answer)
            elif wait:
                time.sleep(wait)
            events += self._overdue()
            if events or time.monotonic() >= end:
                return events

    def _overdue(self) -> list[Event]:
        """Losses of those for whom there is no room."""
        now = time.monotonic()
        events = []
        for worker in [worker for worker, end in self._vacant.items() if end < now]:
            self._flying = {call: whose for call, whose in self._flying.items() if whose[0] != worker}
            self._kill(worker)  # in Ray's queue it would take the room of the next one that is started afresh
            self._vacant[worker] = math.inf
            self._outbox.renew(worker)
            token, self._tokens[worker], self._lost[worker] = self._tokens[worker], None, True
            events.append(Event(token, worker, "lost", f"no Ray node had room for another within {_BACK:.0f} s"))
        return events

    def _spare(self) -> bool:
        """Whether there is room for one more, by a look at Ray's accounts at most once a second."""
        now = time.monotonic()
        if now >= self._looked + 1.0:
            self._looked = now
            if self._group is not None:
                placed = ray.util.placement_group_table(self._group).get("state") == "CREATED"
                self._left = float(len(self)) if placed else 0.0
            else:
                free = float(ray.available_resources().get("CPU", 0.0))
                self._left = free // self._cpus if self._cpus else math.inf
        self._left -= 1
        return self._left >= 0

    def _replace(self, worker: int) -> None:
        self._kill(worker)
        self._actors[worker] = self._hire(worker)
        self._flying[self._actors[worker].there.remote()] = worker, self._lives[worker], False
        self._vacant[worker] = time.monotonic() + _BACK

    def _kill(self, worker: int) -> None:
        self._vacant.pop(worker, None)
        with contextlib.suppress(Exception):  # it is gone already
            ray.kill(self._actors[worker], no_restart=True)

    def _heard(self, answer: Any) -> list[Event]:
        worker, life, task = self._flying.pop(answer)
        if life != self._lives[worker]:
            return []
        try:
            parts = ray.get(answer)
        except Exception as error:
            self._vacant.pop(worker, None)
            if self._lost[worker]:
                return []
            token, self._tokens[worker], self._lost[worker] = self._tokens[worker], None, True
            return [Event(token, worker, "lost", _reason(error))]
        if not task:
            self._vacant.pop(worker, None)
            return [Event(self._tokens[worker], worker, "joined")]
        token, self._tokens[worker] = self._tokens[worker], None
        return [reply.event(token, worker, parts)]

    def drop(self, worker: int, restart: bool = True) -> bool:
        """Kill the actor's process; with `restart`, start another. False where another was waited for in vain."""
        self._check_open()
        if restart and self._vacant.get(worker) == math.inf and not self._spare():
            return False
        self._lives[worker] += 1
        token, self._tokens[worker], self._lost[worker] = self._tokens[worker], None, not restart
        self._outbox.renew(worker)
        self._events = [event for event in self._events if event.worker != worker]
        if restart:
            self._replace(worker)
        else:
            self._kill(worker)
            self._events.append(Event(token, worker, "lost", "the worker was dropped"))
        return True

    def close(self) -> None:
        """Kill the actors; a Ray that was started here ends. Idempotent."""
        if self._closed or self._foreign:
            return
        self._closed = True
        self._flying.clear()
        for actor in self._actors:
            with contextlib.suppress(Exception):
                ray.kill(actor, no_restart=True)
        self._actors.clear()
        self._owned.close()


def _options(cpus: float, group: PlacementGroup | None, bundle: int) -> dict[str, Any]:
    options: dict[str, Any] = {"num_cpus": cpus, "max_restarts": 0, "max_task_retries": 0}
    if group is not None:
        options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)
    return options


def _reason(error: Exception) -> str:
    """The first line; Ray tells long stories."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"
