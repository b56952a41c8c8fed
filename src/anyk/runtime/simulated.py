"""Workers on a virtual clock: thousands of them, no waiting, the same code path and results as real ones."""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .faults import Crash, Crashed, Hang, Slow, run_faulty
from .latency import Latency, ShiftedExponential
from .workers import Event, Failure, WorkersBase, whole

__all__ = ["SimulatedWorkers"]

_BYTES_KEPT = 1 << 24  # of draws; a worker more rounds behind than these hold, two at least, gets fresh ones


class SimulatedWorkers(WorkersBase):
    """`n` workers whose latencies are drawn from a model; functions really run, but only when an answer is waited for.

    Parameters
    ----------
    n : int
    latency : Latency
        For example `Deterministic`, `ShiftedExponential` (default), `Pareto`, `LogNormal`, `Markov`, `NodeFailures` or
        a recorded `Trace`. A model may have a method ``back(workers, round)``: who is free again at the start of a
        round though its earlier task was never answered.
    slowness : (n,) array, optional
        Factors on each worker's latencies: 2 is half as fast.
    seed : int or numpy.random.Generator

    Examples
    --------
    >>> import anyk
    >>> workers = SimulatedWorkers(1000, latency=anyk.Pareto(shape=1.5), seed=1)
    >>> result = anyk.map(np.tanh, np.linspace(-1, 1, 10), workers=workers, stop=anyk.FirstK(900))
    >>> len(result.run.responders), result.run.seconds < 60
    (900, True)
    """

    def __init__(
        self,
        n: int,
        latency: Latency | None = None,
        *,
        slowness: ArrayLike | None = None,
        seed: int | np.random.Generator = 0,
    ) -> None:
        self._n = n = whole(n)
        self._latency = latency if latency is not None else ShiftedExponential()
        self._slowness = np.ones(n) if slowness is None else np.asarray(slowness, dtype=np.float64)
        if self._slowness.shape != (n,) or not (self._slowness > 0).all():
            raise ValueError(f"slowness must hold {n} positive factors")
        self._rng = np.random.default_rng(seed)
        self._states: list[dict[str, Any]] = [{} for _ in range(n)]
        self._tasks = [0] * n  # tasks that each worker has been given: its own count, where nobody counts rounds
        self._begun = -1  # the latest round
        self._silent: set[int] = set()  # drawn never to answer
        self._drawn: dict[int, NDArray[np.float64]] = {}
        self._queue: list[tuple[Any, ...]] = []
        self._generation = [0] * n
        self._flying: dict[int, Any] = {}  # tokens of the tasks in flight
        self._lost: set[int] = set()
        self._events: list[Event] = []  # of no time
        self._sequence = 0
        self._clock = 0.0

    _foreign = False  # it holds nothing that a fork would share

    def __len__(self) -> int:
        return self._n

    def time(self) -> float:
        """The virtual clock."""
        return self._clock

    def submit(self, worker: int, token: Any, fn: Any, *args: Any) -> None:
        """Schedule a task; a fault bends its latency instead of sleeping."""
        self._check_open()
        if worker in self._lost:
            self._events.append(Event(token, worker, "lost", "the worker is gone"))
            return
        self._flying[worker] = token
        seconds = self._draw(worker, token)
        if seconds == np.inf:
            self._silent.add(worker)
        fn, args, seconds = _bend(fn, args, seconds)
        if np.isfinite(seconds):
            self._sequence += 1
            entry = (self._clock + seconds, self._sequence, self._generation[worker], worker, token, fn, args, seconds)
            heapq.heappush(self._queue, entry)

    def _draw(self, worker: int, token: Any) -> float:
        """The worker's latency in this round, which the third part of the core's tokens counts."""
        if isinstance(token, tuple) and len(token) == 3 and isinstance(token[2], int):
            round = token[2]
            if round > self._begun:
                self._begin(round)
        else:
            round = self._tasks[worker]
            self._tasks[worker] += 1
        if round not in self._drawn:
            self._drawn[round] = self._latency.draw(self._rng, self._n, round) * self._slowness
            if len(self._drawn) > max(2, _BYTES_KEPT // (8 * self._n)):
                self._drawn.pop(min(self._drawn))
        return float(self._drawn[round][worker])

    def _begin(self, round: int) -> None:
        """Those whose silence is over are there again, empty."""
        self._begun = round
        back = getattr(self._latency, "back", None)
        if back is None or not self._silent:
            return
        free = back(self._n, round)
        for worker in sorted(worker for worker in self._silent if free[worker] and worker in self._flying):
            self.drop(worker)

    def poll(self, timeout: float | None) -> list[Event]:
        """Advance the clock to the next answer, by at most `timeout`."""
        self._check_open()
        if self._events:
            events, self._events = self._events, []
            return [
                Event(self._flying.get(event.worker), event.worker, "joined") if event.kind == "joined" else event
                for event in events
            ]
        limit = np.inf if timeout is None else self._clock + timeout
        if timeout and limit == self._clock:  # too short for the clock's precision, but time must go on
            limit = float(np.nextafter(self._clock, np.inf))
        while self._queue and self._queue[0][0] <= limit:
            entry = heapq.heappop(self._queue)
            at, _, generation, worker, token, fn, args, seconds = entry
            if generation != self._generation[worker]:
                continue
            self._clock = max(self._clock, at)
            try:
                event = Event(token, worker, "ok", fn(self._states[worker], *args), seconds)
            except Crashed:
                self._lost.add(worker)
                event = Event(token, worker, "lost", "the worker crashed")
            except KeyboardInterrupt:  # the caller's, not the function's: it will be asked again
                heapq.heappush(self._queue, entry)
                raise
            except BaseException as error:
                event = Event(token, worker, "error", Failure.of(error), seconds)
            self._flying.pop(worker, None)
            return [event]
        if timeout is None:
            raise RuntimeError("no simulated worker will ever answer: all that are asked hang; add a Deadline")
        self._clock = limit
        return []

    def drop(self, worker: int, restart: bool = True) -> bool:
        """Forget the worker's task and state."""
        self._check_open()
        self._generation[worker] += 1
        self._silent.discard(worker)
        self._states[worker] = {}
        token = self._flying.pop(worker, None)
        self._events = [event for event in self._events if event.worker != worker]
        if restart:
            self._lost.discard(worker)
            self._events.append(Event(None, worker, "joined"))
        else:
            self._lost.add(worker)
            self._events.append(Event(token, worker, "lost", "the worker was dropped"))
        return True

    def close(self) -> None:
        """Nothing runs."""
        self._closed = True
        self._queue.clear()


def _bend(fn: Any, args: tuple[Any, ...], seconds: float) -> tuple[Any, tuple[Any, ...], float]:
    """A task, perhaps in several faults, as its fault changes its latency; the others stay wrapped around it."""
    if fn is not run_faulty:
        return fn, args, seconds
    fault, inner, *rest = args
    inner, rest_args, seconds = _bend(inner, tuple(rest), seconds)
    if isinstance(fault, Slow):
        return inner, rest_args, seconds + fault.seconds
    if isinstance(fault, Hang):
        return inner, rest_args, np.inf
    if isinstance(fault, Crash):
        return _crash, (), min(seconds, fault.after)
    return run_faulty, (fault, inner, *rest_args), seconds


def _crash(state: dict[str, Any], *args: Any) -> Any:
    raise Crashed
