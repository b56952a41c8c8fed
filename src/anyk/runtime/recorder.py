"""A listener that keeps the latencies of many rounds, stragglers' late answers included."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .events import RoundEvent, Run
from .trace import Trace, TracedRound, latencies

__all__ = ["Recorder"]


class Recorder:
    """Pass it as ``on_event`` to every round of one set of workers, and `save` what it heard.

    A straggler that is given up after t seconds took longer than t. If its answer is heard in a later round the trace
    gets the true latency: the seconds that the worker spent by its own clock where the engine tells them, but no less
    than it was waited for and no more than passed until the answer was heard.

    Examples
    --------
    >>> import anyk
    >>> recorder = anyk.Recorder()
    >>> with anyk.SimulatedWorkers(3, anyk.Trace([1.0, 2.0, 9.0])) as workers:
    ...     for _ in range(6):
    ...         result = anyk.map(np.tanh, [0.5], workers=workers, stop=anyk.FirstK(2), on_event=recorder)
    >>> recorder.trace.seconds[0]
    array([1., 2., 9.])
    """

    def __init__(self) -> None:
        self._seconds: list[NDArray[np.float64]] = []
        self._at_least: list[NDArray[np.float64]] = []
        self._rounds: list[TracedRound] = []
        self._flying: dict[int, tuple[int, float]] = {}  # straggler -> its row, and when it was given the task
        self._early: dict[int, tuple[float, float | None]] = {}  # heard late, but before the round has ended

    def __len__(self) -> int:
        return len(self._rounds)

    def __call__(self, event: RoundEvent) -> None:
        """Take note."""
        if event.kind == "started":
            if self._rounds and event.round <= self._rounds[-1].round:  # other workers
                self._flying.clear()
            for worker in self._flying:
                self._wait(worker, event.clock)
        elif event.kind == "late" and event.worker is not None:
            if event.worker in self._flying:
                self._hear(event.worker, event.clock, event.detail)
            else:
                self._early[event.worker] = event.clock, event.detail
        elif event.kind == "restarted" and event.worker in self._flying:
            self._wait(event.worker, event.clock)
            del self._flying[event.worker]
        elif event.kind == "ended" and isinstance(event.detail, Run):
            self._end(event.detail)

    def _end(self, run: Run) -> None:
        row = len(self._rounds)
        for worker in set(self._flying).intersection(run.workers).difference(run.skipped):
            del self._flying[worker]  # it has died over its old task, and was given this round's
        seconds, at_least = latencies(run, 1 + max(run.workers, default=-1))
        self._seconds.append(seconds)
        self._at_least.append(at_least)
        self._rounds.append(TracedRound.of(run))
        self._flying.update({worker: (row, run.started + run.fed_at.get(worker, 0.0)) for worker in run.stragglers})
        for worker, (clock, own) in self._early.items():
            if worker in self._flying:
                self._hear(worker, clock, own)
        self._early.clear()

    def _wait(self, worker: int, clock: float) -> None:
        row, begun = self._flying[worker]
        self._at_least[row][worker] = max(self._at_least[row][worker], clock - begun)

    def _hear(self, worker: int, clock: float, own: float | None) -> None:
        row, begun = self._flying.pop(worker)
        slack = 1e-12 * abs(clock)  # rounding of the clock's readings
        least, most = self._at_least[row][worker] - slack, clock - begun + slack
        self._seconds[row][worker] = max(least, 0.0, most if own is None else min(own, most))

    @property
    def trace(self) -> Trace:
        """What was heard so far.

        Raises
        ------
        ValueError
            Before the first round.
        """
        workers = max(map(len, self._seconds), default=0)
        if not workers:
            raise ValueError("no round has been recorded: pass the recorder as on_event")
        seconds = [np.pad(row, (0, workers - len(row)), constant_values=np.nan) for row in self._seconds]
        return Trace(seconds, [np.pad(row, (0, workers - len(row))) for row in self._at_least], self._rounds)

    def save(self, path: str | Path) -> None:
        """Write the `trace`, for `Trace.load`."""
        self.trace.save(path)
