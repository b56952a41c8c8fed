"""Workers of a Dask cluster: one actor each, called directly, past the scheduler's queue.

A task submitted to the scheduler takes some four milliseconds of its time; a call of an actor goes to its worker and
comes back in one. Tasks and replies are bytes of our own making; Dask moves them.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import TooFewWorkers
from . import reply
from .faults import Crashed
from .packing import Desk, Outbox
from .workers import SLICE, Event, WorkersBase, whole

try:
    import dask
    from distributed import Client, LocalCluster
except ImportError as error:
    raise ImportError("Dask workers need distributed: pip install 'anyk[dask]'") from error

__all__ = ["DaskWorkers", "start_cluster"]

TUNED = {
    # What keeps dozens of idle processes from eating the cores.
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "1s",
    "distributed.admin.system-monitor.interval": "10s",
    "distributed.admin.system-monitor.gil.enabled": False,
}
_JOIN = 30.0  # seconds that workers may take to be there at first
_BACK = 10.0  # seconds that another may take to be there in the place of one that was lost
_NOTICE = 0.5  # seconds that the scheduler may take to notice a death
_GRACE = 5.0  # seconds that restarts may take when the workers are closed
_OVER = ("closing", "closed")  # what becomes of a client that was closed, or did not find its scheduler again
_GONE = "the Dask client is closed, or has lost its scheduler for good"


class _Host:
    """On the Dask worker: a desk, and a thread that runs its tasks so that the worker's event loop stays free."""

    def __init__(self) -> None:
        self._desk = Desk()
        self._tasks: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._serve, daemon=True, name="anyk").start()

    def _serve(self) -> None:
        while (task := self._tasks.get()) is not None:
            loop, answer, message, buffers = task
            parts = None
            with contextlib.suppress(Crashed):
                parts = self._desk.run(message, buffers)
            with contextlib.suppress(RuntimeError):  # the loop has been closed: nobody listens any more
                loop.call_soon_threadsafe(_settle, answer, parts)
            if parts is None:
                return
            del task, answer, parts

    async def run(self, message: bytes, *buffers: Any) -> list[Any]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[tuple[bytes, list[NDArray[Any]]] | None] = loop.create_future()
        self._tasks.put((loop, answer, message, [memoryview(buffer) for buffer in buffers]))
        if (parts := await answer) is None:
            raise RuntimeError("the worker crashed")
        header, arrays = parts
        return [header, *(_bytes_of(array) for array in arrays)]

    def __del__(self) -> None:
        self._tasks.put(None)


def _settle(answer: asyncio.Future[Any], value: Any) -> None:
    if not answer.done():
        answer.set_result(value)


def _bytes_of(array: NDArray[Any]) -> NDArray[np.uint8]:
    """Its bytes in C order, without a copy where they lie so already."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def start_cluster(n: int) -> LocalCluster:
    """A cluster of `n` single-threaded processes on this machine, with `TUNED` settings and no dashboard."""
    with dask.config.set(TUNED):
        return LocalCluster(n_workers=n, threads_per_worker=1, memory_limit=0, dashboard_address=None, host="127.0.0.1")


class DaskWorkers(WorkersBase):
    """One worker for each worker of a Dask cluster, or several.

    Each is a Dask actor. Functions, blocks and replies travel between client and workers as bytes; ``anyk`` must be
    installed on the workers. A Dask worker that goes away takes its anyk workers with it (``"lost"``); as soon as
    there is another in its place, under whatever address, they are there again, without their state.

    Parameters
    ----------
    client : distributed.Client
        Connected, and not asynchronous; it stays yours. With ``Client(..., direct_to_workers=True)``, where the workers
        can be reached from here, calls do not pass the scheduler, which halves the time of a round.
    n : int, optional
        How many workers; waits for as many. Default: those that are there, times `per_worker`.
    per_worker : int
        How many of them on each Dask worker: a thread each.
    restart : {"actor", "process"}
        What `drop` does to a straggler. ``"actor"`` leaves it to itself and starts another actor beside it, whose work
        shares the process; ``"process"`` has its nanny restart the process, with whatever else runs there.

    Raises
    ------
    TooFewWorkers
        If there are fewer than `n` within half a minute.

    Notes
    -----
    On machines with many workers Dask's profiler and event-loop ticks eat the cores: start schedulers and workers with
    the settings `anyk.runtime.dask.TUNED` in their configuration.

    Examples
    --------
    >>> import anyk
    >>> from distributed import Client
    >>> with start_cluster(3) as cluster, Client(cluster) as client, DaskWorkers(client) as workers:
    ...     result = anyk.map(np.negative, [1.0, 2.0], code=anyk.LagrangeCode(3, 2), workers=workers)
    >>> np.round(result.value, 9)
    array([-1., -2.])
    """

    def __init__(
        self,
        client: Client,
        n: int | None = None,
        *,
        per_worker: int = 1,
        restart: Literal["actor", "process"] = "actor",
    ) -> None:
        if not isinstance(client, Client):
            raise TypeError(f"client must be a distributed.Client, got {client!r}")
        if client.asynchronous:
            raise ValueError("client must not be asynchronous: anyk waits for answers")
        if restart not in ("actor", "process"):
            raise ValueError(f"restart must be 'actor' or 'process', got {restart!r}")
        if restart == "process" and per_worker != 1:
            raise ValueError("restart='process' would end all that share a process: it goes with per_worker=1")
        self._owned = ExitStack()
        each = whole(per_worker)
        wanted = None if n is None else whole(n)
        if client.status in _OVER:
            raise TooFewWorkers(f"{_GONE}: make another")
        if wanted is not None:
            _wait_for(client, -(-wanted // each))
        count = wanted if wanted is not None else each * _present(client)
        if count == 0:
            raise TooFewWorkers("the Dask cluster has no workers: start some, or pass n= to wait for them")
        self._inbox: queue.SimpleQueue[tuple[int, int, str, Any]] = queue.SimpleQueue()
        self._client, self._over = client, False
        self._outbox = Outbox(count)
        self._lives = [0] * count  # incarnations; what comes from an earlier one is stale
        self._tokens: list[Any] = [None] * count
        self._lost = [False] * count
        self._events: list[Event] = []
        self._crew = _Crew(client, count, each, restart, self._inbox)
        try:
            self._crew.start()
            self._muster()
        except BaseException:
            self.close()
            raise

    @classmethod
    def connect(cls, address: str | None, n: int | None, **options: Any) -> DaskWorkers:
        """Workers of the scheduler at `address`, or of a cluster of `n` that is started here and ends with them."""
        with ExitStack() as stack:
            if address is None:
                cluster = stack.enter_context(start_cluster(n or 1))
                client = stack.enter_context(Client(cluster, direct_to_workers=True))
                options = {"restart": "process", **options}
            else:
                try:
                    client = stack.enter_context(Client(address, timeout=_JOIN))
                except OSError as error:
                    raise TooFewWorkers(f"no Dask scheduler answers at {address}: {error}") from error
            workers = cls(client, n, **options)
            workers._owned = stack.pop_all()
            return workers

    def _muster(self) -> None:
        """Wait until everybody is there; what goes wrong now is the caller's to know."""
        there: set[int] = set()
        end, reason = time.monotonic() + _JOIN, ""
        while len(there) < len(self):
            try:
                worker, _, kind, value = self._inbox.get(timeout=max(0.0, min(end - time.monotonic(), SLICE)))
            except queue.Empty:
                if time.monotonic() < end and self._client.status not in _OVER:
                    continue
                raise TooFewWorkers(
                    f"{len(there)} of {len(self)} workers were there after {_JOIN:.0f} s{reason}"
                ) from None
            if kind == "refused":
                raise TooFewWorkers(f"worker {worker} could not be started: {value}")
            if kind == "joined":
                there.add(worker)
            else:  # a Dask worker went away; there may be another
                there.discard(worker)
                reason = f"; worker {worker}: {value}"

    def __len__(self) -> int:
        return len(self._lives)

    def publish(self, value: Any) -> Any:
        """A reference; the value goes to each worker when it is first needed there."""
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
        buffers = [np.frombuffer(buffer, np.uint8) for buffer in (*shared, *own)]
        self._crew.call(worker, self._lives[worker], message, buffers)

    def poll(self, timeout: float | None) -> list[Event]:
        """Events so far, or the first to come."""
        end = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            self._check_open()  # another thread may close it meanwhile
            events, self._events = self._events, []
            wait = 0.0 if events else min(max(end - time.monotonic(), 0.0), SLICE)
            with contextlib.suppress(queue.Empty):
                events += self._heard(*self._inbox.get(block=wait > 0, timeout=wait or None))
                while True:
                    events += self._heard(*self._inbox.get_nowait())
            if self._client.status in _OVER and not self._over:  # its event loop will say nothing more
                self._over, self._lost = True, [True] * len(self)
                events += [Event(token, worker, "lost", _GONE) for worker, token in enumerate(self._tokens)]
                self._tokens = [None] * len(self)
            if events or time.monotonic() >= end:
                return events

    def _heard(self, worker: int, life: int, kind: str, value: Any) -> list[Event]:
        if life != self._lives[worker]:
            return []
        if kind == "joined":
            self._lost[worker] = False
            return [Event(self._tokens[worker], worker, "joined")]
        if self._lost[worker]:
            return []
        token, self._tokens[worker] = self._tokens[worker], None
        if kind in ("lost", "refused"):
            self._lost[worker] = True
            self._outbox.renew(worker)
            return [Event(token, worker, "lost", value)]
        return [reply.event(token, worker, value)]

    def drop(self, worker: int, restart: bool = True) -> bool:
        """Leave the actor to itself, or have its process restarted; False where nothing can take a lost one's place."""
        self._check_open()
        if restart and self._client.status in _OVER:
            return False
        if restart and self._lost[worker] and not self._crew.replaceable():
            return False
        self._lives[worker] += 1
        token, self._tokens[worker] = self._tokens[worker], None
        self._lost[worker] = not restart
        self._outbox.renew(worker)
        self._events = [event for event in self._events if event.worker != worker]
        self._crew.renew(worker, self._lives[worker], restart)
        if not restart:
            self._events.append(Event(token, worker, "lost", "the worker was dropped"))
        return True

    def close(self) -> None:
        """Release the actors; a cluster that was started here ends. Idempotent."""
        if self._closed or self._foreign:
            return
        self._closed = True
        if hasattr(self, "_crew"):
            self._crew.close()
        self._owned.close()


def _wait_for(client: Client, count: int) -> None:
    try:
        client.wait_for_workers(count, timeout=_JOIN)
    except TimeoutError as error:
        raise TooFewWorkers(f"{count} Dask workers are needed, and there are fewer after {_JOIN:.0f} s") from error
    except OSError as error:
        raise TooFewWorkers(f"the Dask scheduler does not answer: {error}") from error


def _present(client: Client) -> int:
    """How many Dask workers there are."""
    try:
        return len(client.scheduler_info(n_workers=-1)["workers"])
    except OSError as error:
        raise TooFewWorkers(f"the Dask scheduler does not answer: {error}") from error


class _Member:
    """One anyk worker, as the event loop knows it."""

    def __init__(self) -> None:
        self.life = 0
        self.turn = 0  # rises with every loss; calls of an earlier turn are void
        self.address: str | None = None
        self.identity = ""  # of the Dask worker, which tells it from another at the same address
        self.hired: asyncio.Task[Any] | None = None


class _Crew:
    """The actors, on the client's event loop; speaks to the caller's thread through a queue."""

    def __init__(
        self, client: Client, count: int, each: int, restart: str, inbox: queue.SimpleQueue[tuple[int, int, str, Any]]
    ) -> None:
        self._client, self._each, self._restart, self._inbox = client, each, restart, inbox
        self._members = [_Member() for _ in range(count)]
        self._dask: dict[str, Any] = {}  # the Dask workers that there are, by address
        self._leaving: dict[str, str] = {}  # Dask workers, and their identities, about to be restarted or perhaps dead
        self._expected: list[float] = []  # until when nannies' workers may come back
        self._vacant: dict[int, float] = {}  # members without a Dask worker, and until when their tasks wait for one
        self._tasks: set[asyncio.Task[Any]] = set()
        self._restarting: set[asyncio.Task[Any]] = set()
        self._watcher: asyncio.Task[Any] | None = None
        self._changed: asyncio.Event | None = None
        self._over = False

    # -- from the caller's thread -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Hire everybody."""
        self._client.loop.add_callback(self._begin)

    def call(self, worker: int, life: int, message: bytes, buffers: list[Any]) -> None:
        """Run a task; its parts, or a loss, will be in the queue."""
        self._client.loop.add_callback(self._spawn, self._called, worker, life, message, buffers)

    def renew(self, worker: int, life: int, again: bool) -> None:
        """Forget a worker's actor and task, and hire another if asked to."""
        self._client.loop.add_callback(self._renew, worker, life, again)

    def replaceable(self) -> bool:
        """Whether there is, or will be, a Dask worker to spare for one that was lost."""
        answer: Future[bool] = Future()

        def look() -> None:  # on the loop, after all that it has been told
            now = time.monotonic()
            found = self._room() is not None or bool(self._leaving)
            answer.set_result(found or any(end > now for end in self._expected))

        self._client.loop.add_callback(look)
        while True:
            with contextlib.suppress(TimeoutError):
                return answer.result(SLICE)
            if self._client.status in _OVER:  # its loop may have stopped
                return False

    def close(self) -> None:
        """Release all actors; restarts that have begun are waited for, since others may come to that process."""
        done = threading.Event()
        if not self._client.loop.asyncio_loop.is_running():
            return

        async def end() -> None:
            self._over = True
            for task in (*self._tasks - self._restarting, self._watcher):
                if task is not None:
                    task.cancel()
            for member in self._members:
                self._release(member)
            if self._restarting:
                await asyncio.wait(self._restarting, timeout=_GRACE)
            done.set()

        self._client.loop.add_callback(end)
        done.wait(2 * _GRACE)

    # -- on the event loop --------------------------------------------------------------------------------------------

    def _spawn(self, function: Callable[..., Any], *args: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.ensure_future(function(*args))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _say(self, worker: int, kind: str, value: Any = None) -> None:
        self._inbox.put((worker, self._members[worker].life, kind, value))

    def _begin(self) -> None:
        self._changed = asyncio.Event()
        self._vacant = dict.fromkeys(range(len(self._members)), math.inf)
        self._watcher = asyncio.ensure_future(self._watch())

    async def _watch(self) -> None:
        """Keep the list of Dask workers, lose members whose worker is gone, and place those that are vacant."""
        assert self._changed is not None
        while not self._over:  # asyncio.wait_for may swallow a cancellation
            with contextlib.suppress(Exception):  # the client looks for its scheduler, as long as its timeout allows
                self._update((await self._client.scheduler.identity(n_workers=-1))["workers"])
            if self._client.status in _OVER:  # `poll` has noticed
                return
            self._fill()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), 0.1 if self._vacant else 1.0)
            self._changed.clear()

    def _update(self, there: dict[str, Any]) -> None:
        now = time.monotonic()
        self._expected = [end for end in self._expected if end > now]
        for address, info in self._dask.items():
            if address not in there and info.get("nanny"):
                self._expected.append(now + _BACK)
        for address in there:
            if address not in self._dask and self._expected:
                self._expected.pop(0)
        self._leaving = {a: i for a, i in self._leaving.items() if a in there and str(there[a].get("id")) == i}
        self._dask = there
        for worker, member in enumerate(self._members):
            if member.address is None:
                continue
            if member.address not in there:
                self._lose(worker, f"the Dask worker {member.address} has left")
            elif str(there[member.address].get("id")) != member.identity:
                self._lose(worker, f"the Dask worker {member.address} was restarted")

    def _room(self) -> str | None:
        """A Dask worker with room for another anyk worker, the emptiest."""
        load = dict.fromkeys((address for address in self._dask if address not in self._leaving), 0)
        for member in self._members:
            if member.address in load:
                load[member.address] += 1
        address = min(load, key=load.__getitem__, default=None)
        return address if address is not None and load[address] < self._each else None

    def _fill(self) -> None:
        now = time.monotonic()
        for worker in list(self._vacant):
            address = self._room()
            if address is not None:
                self._hire(worker, address)
            elif self._vacant[worker] < now:
                self._vacant[worker] = math.inf
                self._members[worker].turn += 1
                self._say(worker, "lost", f"no Dask worker took its place within {_BACK:.0f} s")

    def _hire(self, worker: int, address: str) -> None:
        member = self._members[worker]
        self._vacant.pop(worker, None)
        member.address, member.identity = address, str(self._dask[address].get("id"))
        member.hired = self._spawn(self._hired, worker, member.life, address)

    async def _hired(self, worker: int, life: int, address: str) -> Any:
        """The actor, and the future that keeps it alive; None where that failed."""
        try:
            future = self._client.submit(
                _Host, actor=True, workers=[address], allow_other_workers=False, pure=False, retries=0
            )
            actor = await future
        except Exception as error:
            if self._members[worker].life == life:
                kind = "lost" if isinstance(error, OSError) else "refused"
                self._lose(worker, f"no actor on {address}: {type(error).__name__}: {error}", kind)
            return None
        if self._members[worker].life == life:
            self._say(worker, "joined")
        return actor, future

    async def _called(self, worker: int, life: int, message: bytes, buffers: list[Any]) -> None:
        member = self._members[worker]
        turn = member.turn
        try:
            while member.turn == turn and member.hired is None and worker in self._vacant:
                await asyncio.sleep(0.02)
            if member.turn != turn or member.life != life or member.hired is None:
                return
            if (hired := await asyncio.shield(member.hired)) is None:
                return
            actor, _ = hired
            parts = await actor.run(message, *buffers)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            if member.turn == turn:
                if isinstance(error, OSError) and member.address is not None:
                    self._spawn(self._suspected, member.address)
                self._lose(worker, f"{type(error).__name__}: {error}")
        else:
            if member.turn == turn:
                self._inbox.put((worker, life, "parts", parts))

    def _release(self, member: _Member) -> None:
        if member.hired is not None and not member.hired.done():
            member.hired.cancel()
        member.hired = None  # with it go the actor and its future, and Dask deletes the actor

    def _lose(self, worker: int, reason: str, kind: str = "lost") -> None:
        if self._client.status in _OVER:
            return  # `poll` says so, of all
        member = self._members[worker]
        self._release(member)
        member.address = None
        member.turn += 1
        self._vacant[worker] = math.inf  # it comes back as soon as there is room
        self._say(worker, kind, reason)
        assert self._changed is not None
        self._changed.set()

    def _renew(self, worker: int, life: int, again: bool) -> None:
        member = self._members[worker]
        address, member.address, member.life, member.turn = member.address, None, life, member.turn + 1
        self._release(member)
        self._vacant.pop(worker, None)
        if not again:
            return
        if address is not None and self._restart == "process" and self._dask.get(address, {}).get("nanny"):
            self._vacant[worker] = time.monotonic() + _BACK
            self._leaving[address] = str(self._dask[address].get("id"))
            restarting = self._spawn(self._restarted, address)
            self._restarting.add(restarting)
            restarting.add_done_callback(self._restarting.discard)
        elif address is not None and address in self._dask:
            self._hire(worker, address)
        else:
            self._vacant[worker] = time.monotonic() + _BACK
        assert self._changed is not None
        self._changed.set()

    async def _suspected(self, address: str) -> None:
        """Hire nobody at an address that does not answer until the scheduler, too, has noticed, or keeps to it."""
        self._leaving[address] = str(self._dask.get(address, {}).get("id"))
        await asyncio.sleep(_NOTICE)
        self._leaving.pop(address, None)
        assert self._changed is not None
        self._changed.set()

    async def _restarted(self, address: str) -> None:
        with contextlib.suppress(Exception):  # the watcher will see what came of it
            await self._client.restart_workers([address], timeout=_JOIN, raise_for_error=False)
        self._leaving.pop(address, None)
        assert self._changed is not None
        self._changed.set()
