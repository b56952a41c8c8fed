"""How long simulated workers take: models that draw one latency per worker and round, and are fitted to traces."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import erfcx, log_ndtr

from .censored import Censored
from .trace import Trace

__all__ = ["Deterministic", "Distribution", "Latency", "LogNormal", "Pareto", "ShiftedExponential"]

Array = NDArray[np.float64]


class Latency(Protocol):
    """A latency model."""

    def draw(self, rng: np.random.Generator, workers: int, round: int) -> Array:
        """Latencies in seconds of all workers in one round, shape (workers,); infinity never answers."""
        ...


@runtime_checkable
class Distribution(Latency, Protocol):
    """A latency model that draws independently, and whose parameters can be fitted."""

    def log_density(self, seconds: Array) -> Array:
        """Logarithm of the probability density."""
        ...

    def log_survival(self, seconds: Array) -> Array:
        """Logarithm of the probability to take longer."""
        ...

    @classmethod
    def fit(cls, trace: Trace) -> Self:
        """The parameters of greatest likelihood; of workers that were given up it is known that they took longer."""
        ...

    @classmethod
    def fit_sample(cls, sample: Censored) -> Self:
        """The same for weighted latencies."""
        ...


@dataclass(frozen=True)
class Deterministic:
    """Every worker takes `seconds`."""

    seconds: float = 1.0

    def draw(self, rng: np.random.Generator, workers: int, round: int) -> Array:
        """The same for all."""
        return np.full(workers, float(self.seconds))


@dataclass(frozen=True)
class ShiftedExponential:
    """`shift` seconds plus an exponential of mean `scale` seconds, the field's usual model (Lee et al., 2018)."""

    shift: float = 1.0
    scale: float = 1.0

    def draw(self, rng: np.random.Generator, workers: int, round: int) -> Array:
        """Independent draws."""
        return self.shift + rng.exponential(self.scale, workers)

    def log_density(self, seconds: Array) -> Array:
        """Logarithm of the probability density."""
        z = (seconds - self.shift) / self.scale
        return np.where(z >= 0, -z - math.log(self.scale), -np.inf)

    def log_survival(self, seconds: Array) -> Array:
        """Logarithm of the probability to take longer."""
        return -np.maximum((seconds - self.shift) / self.scale, 0.0)

    @classmethod
    def fit(cls, trace: Trace) -> Self:
        """Maximum likelihood; of workers that were given up it is known that they took longer."""
        return cls.fit_sample(trace.sample())

    @classmethod
    def fit_sample(cls, sample: Censored) -> Self:
        """The shift is the least answer; the scale, all time spent beyond it over the number of answers."""
        sample.require_positive(cls.__name__)
        shift = float(sample.seconds.min())
        beyond = sample.weights @ (sample.seconds - shift)
        beyond += sample.bound_weights @ np.maximum(sample.bounds - shift, 0.0)
        return cls(shift, _spread(float(beyond / sample.weights.sum()), shift))


@dataclass(frozen=True)
class Pareto:
    """Heavy tail: P(T > t) = (scale / t)^shape for t >= scale seconds."""

    scale: float = 1.0
    shape: float = 2.0

    def draw(self, rng: np.random.Generator, workers: int, round: int) -> Array:
        """Independent draws."""
        return self.scale * (1 + rng.pareto(self.shape, workers))

    def log_density(self, seconds: Array) -> Array:
        """Logarithm of the probability density."""
        inside = seconds >= self.scale
        logs = np.log(np.where(inside, seconds, self.scale))
        heights = math.log(self.shape) + self.shape * math.log(self.scale) - (self.shape + 1) * logs
        return np.where(inside, heights, -np.inf)

    def log_survival(self, seconds: Array) -> Array:
        """Logarithm of the probability to take longer."""
        return -self.shape * np.log(np.maximum(seconds, self.scale) / self.scale)

    @classmethod
    def fit(cls, trace: Trace) -> Self:
        """Maximum likelihood; of workers that were given up it is known that they took longer."""
        return cls.fit_sample(trace.sample())

    @classmethod
    def fit_sample(cls, sample: Censored) -> Self:
        """Hill's estimate: the scale is the least answer; the shape, answers over the sum of all logarithms."""
        sample.require_positive(cls.__name__)
        scale = float(sample.seconds.min())
        logs = sample.weights @ np.log(sample.seconds / scale)
        logs += sample.bound_weights @ np.log(np.maximum(sample.bounds, scale) / scale)
        return cls(scale, 1 / _spread(float(logs / sample.weights.sum()), 1.0))


@dataclass(frozen=True)
class LogNormal:
    """exp of a normal: `median` seconds, `sigma` the standard deviation of the logarithm."""

    median: float = 1.0
    sigma: float = 0.5

    def draw(self, rng: np.random.Generator, workers: int, round: int) -> Array:
        """Independent draws."""
        return self.median * np.exp(self.sigma * rng.standard_normal(workers))

    def log_density(self, seconds: Array) -> Array:
        """Logarithm of the probability density."""
        with np.errstate(divide="ignore"):
            logs = np.log(seconds)
        z = (logs - math.log(self.median)) / self.sigma
        heights = -0.5 * z**2 - logs - math.log(self.sigma * math.sqrt(2 * math.pi))
        return np.where(np.isfinite(logs), heights, -np.inf)

    def log_survival(self, seconds: Array) -> Array:
        """Logarithm of the probability to take longer."""
        with np.errstate(divide="ignore"):
            return np.asarray(log_ndtr(-(np.log(seconds) - math.log(self.median)) / self.sigma))

    @classmethod
    def fit(cls, trace: Trace) -> Self:
        """Maximum likelihood; of workers that were given up it is known that they took longer."""
        return cls.fit_sample(trace.sample())

    @classmethod
    def fit_sample(cls, sample: Censored) -> Self:
        """Mean and deviation of the logarithms; with censored ones, the maximum of Tobin's likelihood."""
        sample.require_positive(cls.__name__)
        logs, w = np.log(sample.seconds), sample.weights
        mean = float(np.average(logs, weights=w))
        sigma = _spread(float(np.sqrt(np.average((logs - mean) ** 2, weights=w))), 1.0)
        bounds, v = np.log(sample.bounds[sample.bounds > 0]), sample.bound_weights[sample.bounds > 0]
        if not len(bounds):
            return cls(math.exp(mean), sigma)
        count, first, second = float(w.sum()), float(w @ (logs - mean)), float(w @ (logs - mean) ** 2)

        def loss(parameters: Array) -> tuple[float, Array]:
            """Minus the likelihood and its gradient; in (mean, 1) / sigma it is convex (Olsen, 1978)."""
            shift, precision = float(parameters[0]), math.exp(float(parameters[1]))
            z = precision * (bounds - mean) - shift
            hazard = math.sqrt(2 / math.pi) / erfcx(z / math.sqrt(2))
            square = precision**2 * second - 2 * precision * shift * first + count * shift**2
            value = 0.5 * square - count * math.log(precision) - float(v @ log_ndtr(-z))
            by_shift = count * shift - precision * first - float(v @ hazard)
            by_precision = (
                precision * second - shift * first - count / precision + float(v @ (hazard * (bounds - mean)))
            )
            return value / count, np.array([by_shift, by_precision * precision]) / count

        found = minimize(loss, np.array([0.0, -math.log(sigma)]), jac=True, method="BFGS", options={"gtol": 1e-8})
        precision = math.exp(float(found.x[1]))
        return cls(math.exp(mean + float(found.x[0]) / precision), 1 / precision)


def _spread(value: float, unit: float) -> float:
    """A scale above zero, also for latencies that are all alike."""
    return max(value, 1e-9 * unit)
