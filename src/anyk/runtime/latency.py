"""How long simulated workers take: models that draw one latency per worker and round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Deterministic", "Latency", "LogNormal", "Pareto", "ShiftedExponential", "Trace"]


class Latency(Protocol):
    """A latency model."""

    def draw(self, rng: np.random.Generator, workers: int, round: int) -> NDArray[np.float64]:
        """Latencies in seconds of all workers in one round, shape (workers,); infinity never answers."""
        ...


@dataclass(frozen=True)
class Deterministic:
    """Every worker takes `seconds`."""

    seconds: float = 1.0

    def draw(self, rng: np.random.Generator, workers: int, round: int) -> NDArray[np.float64]:
        """The same for all."""
        return np.full(workers, float(self.seconds))


@dataclass(frozen=True)
class ShiftedExponential:
    """`shift` seconds plus an exponential of mean `scale` seconds, the field's usual model (Lee et al., 2018)."""

    shift: float = 1.0
    scale: float = 1.0

    def draw(self, rng: np.random.Generator, workers: int, round: int) -> NDArray[np.float64]:
        """Independent draws."""
        return self.shift + rng.exponential(self.scale, workers)


@dataclass(frozen=True)
class Pareto:
    """Heavy tail: P(T > t) = (scale / t)^shape for t >= scale seconds."""

    scale: float = 1.0
    shape: float = 2.0

    def draw(self, rng: np.random.Generator, workers: int, round: int) -> NDArray[np.float64]:
        """Independent draws."""
        return self.scale * (1 + rng.pareto(self.shape, workers))


@dataclass(frozen=True)
class LogNormal:
    """exp of a normal: `median` seconds, `sigma` the standard deviation of the logarithm."""

    median: float = 1.0
    sigma: float = 0.5

    def draw(self, rng: np.random.Generator, workers: int, round: int) -> NDArray[np.float64]:
        """Independent draws."""
        return self.median * np.exp(self.sigma * rng.standard_normal(workers))


class Trace:
    """Recorded latencies, replayed: row r serves round r, and after the last row the first comes again.

    Parameters
    ----------
    seconds : (rounds, workers) or (workers,) array
        Infinity or NaN for a worker that never answered.
    """

    def __init__(self, seconds: ArrayLike) -> None:
        self.seconds = np.atleast_2d(np.asarray(seconds, dtype=np.float64))
        if self.seconds.ndim != 2 or self.seconds.size == 0 or (self.seconds < 0).any():
            raise ValueError("seconds must be a non-empty (rounds, workers) array of non-negative numbers")

    def draw(self, rng: np.random.Generator, workers: int, round: int) -> NDArray[np.float64]:
        """The recorded row."""
        row = self.seconds[round % len(self.seconds)]
        if len(row) != workers:
            raise ValueError(f"the trace has {len(row)} workers, the simulation {workers}")
        return np.where(np.isnan(row), np.inf, row)
