"""Faults as data: what goes wrong is a table, (worker, round) -> fault, deterministic under a seed."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import optree
from numpy.typing import NDArray

from .workers import Event, Layout, Workers

__all__ = [
    "Corrupt",
    "Crash",
    "Crashed",
    "Fault",
    "FaultyWorkers",
    "Hang",
    "Raise",
    "Slow",
    "random_faults",
    "run_faulty",
]

dedicated_process = False  # set in a process that serves one worker and may be killed for it


class Crashed(BaseException):
    """A worker that shares the caller's process pretends to have died."""


def _check_seconds(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not 0 <= value < np.inf:
        raise ValueError(f"{name} must be a finite number of seconds, at least 0, got {value!r}")


@dataclass(frozen=True)
class Slow:
    """The worker starts `seconds` late."""

    seconds: float

    def __post_init__(self) -> None:
        _check_seconds("seconds", self.seconds)

    def run(self, call: Callable[[], Any]) -> Any:
        """Sleep, then work."""
        time.sleep(self.seconds)
        return call()


@dataclass(frozen=True)
class Crash:
    """The worker is killed (SIGKILL) `after` seconds; in a thread it disappears instead."""

    after: float = 0.0

    def __post_init__(self) -> None:
        _check_seconds("after", self.after)

    def run(self, call: Callable[[], Any]) -> Any:
        """Die."""
        time.sleep(self.after)
        if dedicated_process:
            os.kill(os.getpid(), signal.SIGKILL)
        raise Crashed


@dataclass(frozen=True)
class Hang:
    """The worker never answers."""

    def run(self, call: Callable[[], Any]) -> Any:
        """Wait for ever, without burning a core."""
        threading.Event().wait()


@dataclass(frozen=True)
class Raise:
    """The worker's function raises RuntimeError(`message`)."""

    message: str = "injected fault"

    def run(self, call: Callable[[], Any]) -> Any:
        """Raise."""
        raise RuntimeError(self.message)


@dataclass(frozen=True)
class Corrupt:
    """The worker answers, but wrongly.

    Parameters
    ----------
    how : str or callable
        ``"noise"`` adds normal noise of standard deviation `scale` times the reply's own root mean square,
        ``"scale"`` multiplies by `scale`, ``"negate"``, ``"zero"``, ``"nan"``, ``"inf"``, ``"none"`` (returns None),
        ``"shape"`` (one row too many), ``"dtype"`` (complex); or a function of each array of the reply.
    scale : float
    seed : int
        For ``"noise"``.
    """

    how: str | Callable[[Any], Any] = "noise"
    scale: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not callable(self.how) and self.how not in _CORRUPTIONS:
            raise ValueError(f"how must be one of {', '.join(_CORRUPTIONS)} or a function, got {self.how!r}")

    def run(self, call: Callable[[], Any]) -> Any:
        """Work, then spoil every array of the reply."""
        value = call()
        if self.how == "none":
            return None
        if not isinstance(self.how, str):
            return optree.tree_map(self.how, value)
        how, rng = _CORRUPTIONS[self.how], np.random.default_rng(self.seed)
        return optree.tree_map(lambda leaf: how(np.asarray(leaf), self.scale, rng), value)


def _noise(y: NDArray[Any], scale: float, rng: np.random.Generator) -> NDArray[Any]:
    size = float(np.linalg.norm(y) / np.sqrt(max(y.size, 1))) or 1.0
    return np.asarray(y + (scale * size * rng.standard_normal(y.shape))).astype(np.result_type(y, np.float16))


_CORRUPTIONS: dict[str, Callable[..., Any]] = {
    "noise": _noise,
    "scale": lambda y, scale, rng: (y * scale).astype(np.result_type(y, np.float16)),
    "negate": lambda y, scale, rng: -(y.astype(np.float64) if y.dtype.kind in "bu" else y),
    "zero": lambda y, scale, rng: np.zeros_like(y),
    "nan": lambda y, scale, rng: np.full_like(y, np.nan, dtype=np.result_type(y, np.float16)),
    "inf": lambda y, scale, rng: np.full_like(y, np.inf, dtype=np.result_type(y, np.float16)),
    "none": lambda y, scale, rng: None,
    "shape": lambda y, scale, rng: np.concatenate([np.atleast_1d(y), np.atleast_1d(y)[:1]]),
    "dtype": lambda y, scale, rng: y.astype(np.complex128 if y.dtype != np.complex128 else np.complex64),
}

Fault = Slow | Crash | Hang | Raise | Corrupt


def run_faulty(state: dict[str, Any], fault: Fault, fn: Callable[..., Any], *args: Any) -> Any:
    """The task that stands in for ``fn(state, *args)`` on a faulty worker."""
    return fault.run(lambda: fn(state, *args))


def random_faults(
    workers: int, rounds: int, rates: Mapping[Fault, float], *, seed: int | np.random.Generator = 0
) -> dict[tuple[int, int], Fault]:
    """A table for `FaultyWorkers`: in each round each worker suffers each fault with its probability, at most one.

    Examples
    --------
    >>> table = random_faults(10, 100, {Slow(0.5): 0.2, Crash(): 0.01}, seed=1)
    >>> all(worker < 10 and round < 100 for worker, round in table)
    True
    """
    if any(not 0 <= rate <= 1 for rate in rates.values()) or sum(rates.values()) > 1:
        raise ValueError(f"rates must be probabilities that sum to at most 1, got {list(rates.values())}")
    faults = list(rates)
    edges = np.cumsum(list(rates.values()))
    drawn = np.searchsorted(edges, np.random.default_rng(seed).random((rounds, workers)), side="right")
    return {
        (int(worker), int(round)): faults[drawn[round, worker]] for round, worker in np.argwhere(drawn < len(faults))
    }


class FaultyWorkers:
    """Workers that go wrong as a table says; wraps any `Workers`.

    Parameters
    ----------
    workers : Workers
    table : mapping (worker, round) -> fault
        Rounds count from 0 in the life of this object. See `random_faults` for a seeded random table.

    Attributes
    ----------
    injected : list of (worker, round, fault)
        What has been inflicted so far.
    """

    def __init__(self, workers: Workers, table: Mapping[tuple[int, int], Fault]) -> None:
        for (worker, round), fault in table.items():
            if not isinstance(fault, Fault):
                raise TypeError(f"the table must hold faults such as Slow(0.5), got {fault!r}")
            if not 0 <= worker < len(workers) or round < 0:
                raise ValueError(f"no worker {worker} or round {round} among {len(workers)} workers, rounds from 0")
        self.workers = workers
        self.table = dict(table)
        self.injected: list[tuple[int, int, Fault]] = []

    def __len__(self) -> int:
        return len(self.workers)

    def submit(self, worker: int, token: Any, fn: Any, *args: Any) -> None:
        """Pass the task on, wrapped in the fault that the table has for this worker and round."""
        fault = self.table.get((worker, token[0]))
        if fault is None:
            self.workers.submit(worker, token, fn, *args)
        else:
            self.injected.append((worker, token[0], fault))
            self.workers.submit(worker, token, run_faulty, fault, fn, *args)

    def poll(self, timeout: float | None) -> list[Event]:
        """As the wrapped workers."""
        return self.workers.poll(timeout)

    def publish(self, value: Any) -> Any:
        """As the wrapped workers."""
        return self.workers.publish(value)

    def allocate(self, worker: int, layouts: Sequence[Layout]) -> list[NDArray[Any]]:
        """As the wrapped workers."""
        return self.workers.allocate(worker, layouts)

    def drop(self, worker: int, restart: bool = True) -> bool:
        """As the wrapped workers."""
        return self.workers.drop(worker, restart)

    def time(self) -> float:
        """As the wrapped workers."""
        return self.workers.time()

    def close(self) -> None:
        """Close the wrapped workers."""
        self.workers.close()

    def __enter__(self) -> FaultyWorkers:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
