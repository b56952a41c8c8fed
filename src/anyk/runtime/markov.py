"""Workers that stay slow for a while."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from .censored import Censored
from .chain import Chain, checked, rates
from .latency import Distribution, Latency, LogNormal
from .trace import Trace

__all__ = ["Markov"]

_SWEEPS, _GAIN = 300, 1e-7  # at most; relative gain of the likelihood at which to stop


@dataclass(frozen=True)
class Markov:
    """Each worker is fast or slow, and stays so from round to round but for a chance of changing.

    Parameters
    ----------
    fast, slow : Latency
        How long it takes in either state.
    to_slow, to_fast : float
        Chance that a fast worker is slow in the next round, and the reverse.
    seed : int
        Of who is slow when, which starts in the stationary distribution; the latencies themselves are drawn by the
        workers.

    Examples
    --------
    >>> import anyk
    >>> model = Markov(anyk.LogNormal(1.0, 0.1), anyk.LogNormal(8.0, 0.1), to_slow=0.05, to_fast=0.2)
    >>> round(model.slow_share, 3), model.slow_rounds
    (0.2, 5.0)
    """

    fast: Latency
    slow: Latency
    to_slow: float
    to_fast: float
    seed: int = 0

    def __post_init__(self) -> None:
        checked(to_slow=self.to_slow, to_fast=self.to_fast)

    @cached_property
    def _chain(self) -> Chain:
        return Chain(self.to_slow, self.to_fast, self.seed)

    @property
    def slow_share(self) -> float:
        """Share of the workers that are slow in any round: to_slow / (to_slow + to_fast)."""
        return self._chain.share

    @property
    def slow_rounds(self) -> float:
        """Rounds that a worker stays slow, on average: 1 / to_fast."""
        return 1 / self.to_fast

    def correlation(self, lag: int = 1) -> float:
        """Of being slow with being slow `lag` rounds later: (1 - to_slow - to_fast)^lag."""
        return float((1 - self.to_slow - self.to_fast) ** lag)

    def is_slow(self, workers: int, round: int) -> NDArray[np.bool_]:
        """Who is slow in that round, (workers,)."""
        return self._chain.state(workers, round)

    def draw(self, rng: np.random.Generator, workers: int, round: int) -> NDArray[np.float64]:
        """Independent draws in each worker's state."""
        fast, slow = self.fast.draw(rng, workers, round), self.slow.draw(rng, workers, round)
        return np.where(self.is_slow(workers, round), slow, fast)

    @classmethod
    def fit(cls, trace: Trace, fast: type[Distribution] = LogNormal, slow: type[Distribution] = LogNormal) -> Markov:
        """Maximum likelihood by expectation maximisation (Baum and Welch), from several starts.

        Stragglers that were given up took longer than they were waited for. Where a worker had no task nothing is
        known, but its state goes on.

        Parameters
        ----------
        trace : Trace
        fast, slow : types of `Distribution`
            Latencies in either state. A distribution with a sharp lower end cannot move that end once fitted:
            `LogNormal` finds its place from farther away.
        """
        sample = trace.sample()
        sample.require_positive(cls.__name__)
        best: tuple[float, Markov] | None = None
        for share in (0.5, 0.75, 0.9, 0.97):
            cut = sample.quantile(share)
            above = trace.known & (trace.seconds > cut) | ~trace.known & (trace.bounds > cut)
            if not (above & trace.known).any() or not (~above & trace.known).any():
                continue
            start = cls(*_emissions(trace, above.astype(np.float64), fast, slow), 0.1, 0.1)
            found = _maximise(start, trace, fast, slow)
            if best is None or found[0] > best[0]:
                best = found
        if best is None:
            raise ValueError("Markov is fitted to latencies that differ")
        return best[1]

    def log_likelihood(self, trace: Trace) -> float:
        """Of the trace, each worker's states unknown."""
        return self._chain.smooth(_seen(self, trace))[0]


def _emissions(
    trace: Trace, slow_share: NDArray[np.float64], fast: type[Distribution], slow: type[Distribution]
) -> tuple[Distribution, Distribution]:
    known, bounds = trace.known, trace.bounds
    censored = bounds > 0
    models = [
        kind.fit_sample(Censored.of(trace.seconds[known], bounds[censored], weight[known], weight[censored]))
        for kind, weight in ((fast, 1 - slow_share), (slow, slow_share))
    ]
    return models[0], models[1]


def log_chances(model: Latency, trace: Trace) -> NDArray[np.float64]:
    """Logarithm of the likelihood of each cell, (rounds, workers); 0 where nothing is known."""
    if not isinstance(model, Distribution):
        raise TypeError(f"{model!r} has no likelihood: use LogNormal, ShiftedExponential or Pareto")
    known, bounds = trace.known, trace.bounds
    found = np.zeros(trace.seconds.shape)
    found[known] = model.log_density(trace.seconds[known])
    found[bounds > 0] = model.log_survival(bounds[bounds > 0])
    return found


def _seen(model: Markov, trace: Trace) -> NDArray[np.float64]:
    both = [log_chances(each, trace) for each in (model.fast, model.slow)]
    return np.stack([np.maximum(each, -1e5) for each in both], axis=2)  # impossible, and yet a number


def _maximise(model: Markov, trace: Trace, fast: type[Distribution], slow: type[Distribution]) -> tuple[float, Markov]:
    before = -np.inf
    for _ in range(_SWEEPS):
        likelihood, smoothed, counts = model._chain.smooth(_seen(model, trace))
        if likelihood - before < _GAIN * abs(likelihood):
            break
        before = likelihood
        try:
            emissions = _emissions(trace, smoothed, fast, slow)
        except ValueError:  # nobody is left in one of the states
            break
        model = replace(model, **dict(zip(("fast", "slow"), emissions, strict=True)), **_steps(counts))  # type: ignore[arg-type]
    return likelihood, model


def _steps(counts: NDArray[np.float64]) -> dict[str, float]:
    to_slow, to_fast = rates(counts)
    return {"to_slow": to_slow, "to_fast": to_fast}
