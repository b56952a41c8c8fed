"""Recorded latencies: who took how long in which round, as a file and as a latency model that replays them."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .censored import Censored
from .faults import Crash, Fault, Raise

if TYPE_CHECKING:
    from .events import Run

__all__ = ["Trace", "TracedRound", "latencies"]

_FORMAT, _VERSION = "anyk-trace", 1
_ROUNDING = 1e-12  # of a clock's reading, in differences of them
Array = NDArray[np.float64]


@dataclass(frozen=True)
class TracedRound:
    """What a trace keeps of a round beside the latencies.

    Attributes
    ----------
    round : int
    started : float
        Seconds, on the workers' clock.
    seconds : float
        From the start to the stop.
    stopped_by : str
        The stop rule.
    used : tuple of int
        Workers whose replies were used.
    failed : dict of int to str
        Who failed, and why.
    fed : dict of int to float
        Who had been busy or lost at the start, and when they were given their task.
    """

    round: int
    started: float = 0.0
    seconds: float = 0.0
    stopped_by: str = ""
    used: tuple[int, ...] = ()
    failed: dict[int, str] = field(default_factory=dict)
    fed: dict[int, float] = field(default_factory=dict)

    @classmethod
    def of(cls, run: Run) -> TracedRound:
        """The same from a run."""
        return cls(
            run.round, run.started, run.seconds, run.stopped_by, run.responders, dict(run.failed), dict(run.fed_at)
        )


class Trace:
    """Recorded latencies, replayed: row r serves round r, and after the last row the first comes again.

    Parameters
    ----------
    seconds : (rounds, workers) or (workers,) array
        From a task's start to its answer. NaN where none was seen, infinity where none will ever come; in a replay
        neither answers.
    at_least : array of the same shape, optional
        How long was waited in vain where `seconds` is NaN: the latency is longer than that. 0: nothing is known.
    rounds : sequence of TracedRound, optional
        What else was recorded of each round.

    Examples
    --------
    >>> import anyk, os, tempfile
    >>> recorder = anyk.Recorder()
    >>> with anyk.SimulatedWorkers(4, anyk.Pareto(), seed=1) as workers:
    ...     for _ in range(3):
    ...         result = anyk.map(np.tanh, [0.1, 0.2], workers=workers, stop=anyk.FirstK(3), on_event=recorder)
    >>> path = os.path.join(tempfile.mkdtemp(), "rounds.jsonl")
    >>> recorder.save(path)
    >>> with anyk.SimulatedWorkers(4, anyk.Trace.load(path)) as workers:
    ...     for _ in range(3):
    ...         again = anyk.map(np.tanh, [0.1, 0.2], workers=workers, stop=anyk.FirstK(3))
    >>> again.run.answered_at == result.run.answered_at
    True
    """

    def __init__(
        self, seconds: ArrayLike, at_least: ArrayLike | None = None, rounds: Sequence[TracedRound] = ()
    ) -> None:
        self.seconds: Array = np.atleast_2d(np.asarray(seconds, dtype=np.float64))
        if self.seconds.ndim != 2 or self.seconds.size == 0 or (self.seconds < 0).any():
            raise ValueError("seconds must be a non-empty (rounds, workers) array of non-negative numbers")
        bounds = np.zeros_like(self.seconds) if at_least is None else np.atleast_2d(np.asarray(at_least, np.float64))
        if bounds.shape != self.seconds.shape or not ((bounds >= 0).all() and np.isfinite(bounds).all()):
            raise ValueError(f"at_least must hold finite non-negative numbers of shape {self.seconds.shape}")
        self.at_least: Array = np.where(np.isnan(self.seconds), bounds, 0.0)
        self.rounds = tuple(rounds)
        if self.rounds and len(self.rounds) != len(self.seconds):
            raise ValueError(f"rounds must be as many as there are rows, {len(self.seconds)}, got {len(self.rounds)}")

    def __len__(self) -> int:
        return len(self.seconds)

    def __repr__(self) -> str:
        return f"Trace(<{len(self.seconds)} rounds x {self.workers} workers>)"

    @property
    def workers(self) -> int:
        """Number of workers."""
        return int(self.seconds.shape[1])

    @classmethod
    def of(cls, runs: Iterable[Run]) -> Trace:
        """The trace of rounds with the same workers, without what was heard of stragglers later."""
        runs = list(runs)
        workers = 1 + max((worker for run in runs for worker in run.workers), default=-1)
        if not workers:
            raise ValueError("runs must hold at least one round with a worker")
        rows = [latencies(run, workers) for run in runs]
        return cls([row for row, _ in rows], [least for _, least in rows], [TracedRound.of(run) for run in runs])

    # -- replay -------------------------------------------------------------------------------------------------------

    def draw(self, rng: np.random.Generator, workers: int, round: int) -> Array:
        """The recorded row."""
        row = self.seconds[round % len(self.seconds)]
        if len(row) != workers:
            raise ValueError(f"the trace has {len(row)} workers, the simulation {workers}")
        return np.where(np.isnan(row), np.inf, row)

    def back(self, workers: int, round: int) -> NDArray[np.bool_]:
        """Who was free when the recorded round began, whatever had become of their earlier tasks."""
        row = round % len(self.seconds)
        if not self.rounds:
            return np.zeros(workers, np.bool_)
        free: NDArray[np.bool_] = ~np.isnan(self.seconds[row]) | (self.at_least[row] > 0)
        free[[worker for worker, seconds in self.rounds[row].fed.items() if seconds > 0]] = False
        return free

    def faults(self) -> dict[tuple[int, int], Fault]:
        """The recorded failures as a table for `FaultyWorkers`, so that they are replayed, too."""
        table: dict[tuple[int, int], Fault] = {}
        for row, each in enumerate(self.rounds):
            for worker, reason in each.failed.items():
                if np.isfinite(self.seconds[row, worker]):
                    table[worker, row] = Raise(reason)
                elif self.at_least[row, worker] > 0:
                    table[worker, row] = Crash(float(self.at_least[row, worker]))
        return table

    # -- figures ------------------------------------------------------------------------------------------------------

    @property
    def known(self) -> NDArray[np.bool_]:
        """Where an answer was seen, (rounds, workers)."""
        return np.isfinite(self.seconds)

    @property
    def bounds(self) -> Array:
        """How long was waited where no answer was seen, 0 where nothing is known, (rounds, workers).

        Nobody can wait for ever: of those that never answer it is known that they took longer than the slowest answer.
        """
        never = np.isinf(self.seconds)
        longest = max(self.seconds[self.known].max(initial=0.0), self.at_least.max(initial=0.0))
        return np.where(never, longest, self.at_least)

    def sample(self, worker: int | None = None) -> Censored:
        """All latencies, or those of one worker, regardless of when."""
        which = slice(None) if worker is None else slice(worker, worker + 1)
        seconds, bounds = self.seconds[:, which], self.bounds[:, which]
        return Censored.of(seconds[np.isfinite(seconds)], bounds[bounds > 0])

    def persistence(self, lag: int = 1) -> float:
        """Correlation of a worker's slowness with its own `lag` rounds later: 0 where it is drawn anew every time.

        Of the logarithms, relative to each round's median. Stragglers count with the time that they were waited for.
        NaN where there is nothing to compare.
        """
        if lag < 1:
            raise ValueError(f"lag must be at least 1, got {lag}")
        times = np.where(self.known, self.seconds, self.bounds)
        logs = np.full(times.shape, np.nan)
        np.log(times, out=logs, where=times > 0)
        busy = ~np.isnan(logs).all(axis=1)
        logs[busy] -= np.nanmedian(logs[busy], axis=1, keepdims=True)
        now, later = logs[:-lag].ravel(), logs[lag:].ravel()
        both = ~(np.isnan(now) | np.isnan(later))
        if both.sum() < 2 or not (np.ptp(now[both]) and np.ptp(later[both])):
            return float("nan")
        return float(np.corrcoef(now[both], later[both])[0, 1])

    # -- files --------------------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write JSON lines: a head, then a line for each round; only the owner may read the file.

        A line has, among others, ``seconds``, a list with null for every worker that was not seen to answer;
        ``silent``, who was waited for in vain and how long; ``used``, ``failed`` with the reasons, ``started`` and
        ``stop``.
        """
        unfinished = Path(f"{path}.part")
        # A crash must not take the last trace with it.
        with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write(json.dumps({"format": _FORMAT, "version": _VERSION, "workers": self.workers}) + "\n")
            for row in range(len(self.seconds)):
                file.write(json.dumps(self._line(row), allow_nan=False) + "\n")
        unfinished.replace(path)

    def _line(self, row: int) -> dict[str, Any]:
        each = self.rounds[row] if self.rounds else TracedRound(row)
        seconds, bounds = self.seconds[row], self.at_least[row]
        line: dict[str, Any] = {
            "round": each.round,
            "started": each.started,
            "stopped": each.seconds,
            "stop": each.stopped_by,
            "seconds": [value if math.isfinite(value) else None for value in seconds.tolist()],
            "silent": {str(worker): float(bounds[worker]) for worker in np.flatnonzero(bounds).tolist()},
            "never": np.flatnonzero(np.isinf(seconds)).tolist(),
            "fed": {str(worker): value for worker, value in each.fed.items()},
            "used": list(each.used),
            "failed": {str(worker): why for worker, why in each.failed.items()},
        }
        return {key: value for key, value in line.items() if value or key not in ("silent", "never", "fed", "failed")}

    @classmethod
    def load(cls, path: str | Path) -> Trace:
        """Read what `save` wrote.

        Raises
        ------
        ValueError
            With the number of the line that is not as it must be.
        """
        workers, rows = 0, []
        with Path(path).open("rb") as file:
            for number, raw in enumerate(file, 1):
                try:
                    record = json.loads(raw, parse_constant=_refuse)
                    if number == 1:
                        workers = _head(record)
                    else:
                        rows.append(_row(record, workers))
                except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
                    why = f"there is no {error}" if isinstance(error, KeyError) else str(error)
                    raise ValueError(f"{path}, line {number}: not a trace of anyk: {why}") from None
        if not rows:
            raise ValueError(f"{path}, line {2 if workers else 1}: not a trace of anyk: there are no rounds")
        seconds, bounds, rounds = zip(*rows, strict=True)
        return cls(np.array(seconds), np.array(bounds), rounds)


def latencies(run: Run, workers: int) -> tuple[Array, Array]:
    """Seconds that each worker took for its task of a round, and how long was waited for those that did not answer."""
    seconds, at_least = np.full(workers, np.nan), np.zeros(workers)
    for worker, at in run.answered_at.items():
        if worker in run.backups:  # another answered for it
            at_least[worker] = max(at - run.fed_at.get(worker, 0.0), 0.0)
            continue
        passed = max(at - run.fed_at.get(worker, 0.0), 0.0)
        own = run.worker_seconds.get(worker, passed)
        # On a virtual clock both are the same but for rounding, and a replay takes the exact one.
        seconds[worker] = own if abs(own - passed) <= _ROUNDING * (run.started + at) else passed
    for worker in run.stragglers:
        at_least[worker] = max(run.seconds - run.fed_at.get(worker, 0.0), 0.0)
    for worker, at in run.failed_at.items():
        if worker not in run.answered_at:  # lost
            at_least[worker] = max(at - run.fed_at.get(worker, 0.0), 0.0)
    return seconds, at_least


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON number")


def _head(record: Any) -> int:
    if not isinstance(record, dict) or record.get("format") != _FORMAT:
        raise ValueError(f'it must begin with {{"format": "{_FORMAT}", ...}}')
    if record.get("version") != _VERSION:
        raise ValueError(f"version {record.get('version')!r} is not {_VERSION}, the one that this anyk reads")
    workers = record.get("workers")
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise ValueError(f"workers must be a positive integer, got {workers!r}")
    return workers


def _row(record: Any, workers: int) -> tuple[Array, Array, TracedRound]:
    """A line's latencies, their bounds, and the rest."""
    if not isinstance(record, dict):
        raise ValueError("a round must be a JSON object")
    listed = record["seconds"]
    if not isinstance(listed, list) or len(listed) != workers:
        raise ValueError(f"seconds must be a list of {workers} numbers or nulls")
    seconds = np.array([np.nan if value is None else _number(value, "seconds") for value in listed])
    at_least = np.zeros(workers)
    for worker, value in _by_worker(record, "silent", workers).items():
        at_least[worker] = _number(value, "silent")
    seconds[list(_workers(record.get("never", []), "never", workers))] = np.inf
    number = record.get("round", 0)
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise ValueError(f"round must be an integer of at least 0, got {number!r}")
    started = record.get("started", 0.0)
    if isinstance(started, bool) or not isinstance(started, int | float):
        raise ValueError(f"started must be a number, got {started!r}")
    return seconds, at_least, TracedRound(
        number,
        float(started),
        _number(record.get("stopped", 0.0), "stopped"),
        str(record.get("stop", "")),
        _workers(record.get("used", []), "used", workers),
        {worker: str(why) for worker, why in _by_worker(record, "failed", workers).items()},
        {worker: _number(value, "fed") for worker, value in _by_worker(record, "fed", workers).items()},
    )  # fmt: skip


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= float(value) < math.inf:
        raise ValueError(f"{name} must hold finite numbers of at least 0, got {value!r:.40}")
    return float(value)


def _workers(value: Any, name: str, workers: int) -> tuple[int, ...]:
    if not isinstance(value, list) or any(
        isinstance(each, bool) or not isinstance(each, int) or not 0 <= each < workers for each in value
    ):
        raise ValueError(f"{name} must list workers, 0..{workers - 1}")
    return tuple(value)


def _by_worker(record: Mapping[str, Any], name: str, workers: int) -> dict[int, Any]:
    value = record.get(name, {})
    if not isinstance(value, dict) or any(
        not key.isascii() or not key.isdigit() or int(key) >= workers for key in value
    ):
        raise ValueError(f"{name} must map workers, 0..{workers - 1}, to something")
    return {int(key): each for key, each in value.items()}
