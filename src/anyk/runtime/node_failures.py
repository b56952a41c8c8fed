"""Workers that share a machine, and fail with it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .censored import Censored
from .chain import Chain, checked, rates
from .latency import Distribution, Latency, ShiftedExponential
from .markov import log_chances
from .trace import Trace
from .workers import whole

__all__ = ["NodeFailures"]

_SWEEPS, _GAIN = 300, 1e-8


@dataclass(frozen=True)
class NodeFailures:
    """Neighbouring workers are on one node, and never answer while it is down.

    A node that is repaired comes back with empty workers: simulated ones that were at work when it failed are free
    again.

    Parameters
    ----------
    latency : Latency
        Of workers on nodes that are up.
    node_size : int
        Workers 0 .. node_size-1 are on the first node, and so on; the last may be smaller.
    rate : float
        Chance that a node which is up is down in the next round.
    repair : float
        Chance that one which is down is up in the next round: failures last 1 / repair rounds on average.
    seed : int
        Of what is down when, which starts in the stationary distribution.

    Examples
    --------
    >>> import anyk
    >>> model = NodeFailures(anyk.ShiftedExponential(), node_size=4, rate=0.01, repair=0.19)
    >>> round(model.down_share, 3)
    0.05
    """

    latency: Latency
    node_size: int
    rate: float
    repair: float
    seed: int = 0

    def __post_init__(self) -> None:
        whole(self.node_size)
        checked(rate=self.rate, repair=self.repair)

    @cached_property
    def _chain(self) -> Chain:
        return Chain(self.rate, self.repair, self.seed)

    @property
    def down_share(self) -> float:
        """Share of the nodes that are down in any round: rate / (rate + repair)."""
        return self._chain.share

    def is_down(self, workers: int, round: int) -> NDArray[np.bool_]:
        """Which workers are on a node that is down in that round, (workers,)."""
        nodes = -(-workers // self.node_size)
        return np.repeat(self._chain.state(nodes, round), self.node_size)[:workers]

    def back(self, workers: int, round: int) -> NDArray[np.bool_]:
        """Who can be given a task again, whatever had become of the last."""
        return ~self.is_down(workers, round)

    def draw(self, rng: np.random.Generator, workers: int, round: int) -> NDArray[np.float64]:
        """Latencies, infinite on nodes that are down."""
        return np.where(self.is_down(workers, round), np.inf, self.latency.draw(rng, workers, round))

    @classmethod
    def fit(
        cls, trace: Trace, node_size: int | None = None, latency: type[Distribution] = ShiftedExponential
    ) -> NodeFailures:
        """Maximum likelihood by expectation maximisation.

        Parameters
        ----------
        trace : Trace
        node_size : int, optional
            Default: the most likely divisor of the number of workers.
        latency : type of `Distribution`
            Of workers on nodes that are up.
        """
        trace.sample().require_positive(cls.__name__)
        divisors = [size for size in range(1, trace.workers + 1) if trace.workers % size == 0]
        sizes = divisors if node_size is None else [whole(node_size)]
        found = [_maximise(cls(latency.fit(trace), size, 0.05, 0.5), trace, latency) for size in sizes]
        return max(found, key=lambda each: each[0])[1]

    def log_likelihood(self, trace: Trace) -> float:
        """Of the trace, the nodes' states unknown."""
        return self._chain.smooth(_seen(self, trace))[0]


def _seen(model: NodeFailures, trace: Trace) -> NDArray[np.float64]:
    """Of each node: up, its workers answer as usual; down, none of them does."""
    up = np.maximum(log_chances(model.latency, trace), -1e5)
    down = np.where(trace.known, -1e5, 0.0)
    starts = np.arange(0, trace.workers, model.node_size)
    return np.stack([np.add.reduceat(each, starts, axis=1) for each in (up, down)], axis=2)


def _maximise(model: NodeFailures, trace: Trace, kind: type[Distribution]) -> tuple[float, NodeFailures]:
    known, bounds = trace.known, trace.bounds
    censored, before = bounds > 0, -np.inf
    for _ in range(_SWEEPS):
        likelihood, down, counts = model._chain.smooth(_seen(model, trace))
        if likelihood - before < _GAIN * abs(likelihood):
            break
        before = likelihood
        up = 1 - np.repeat(down, model.node_size, axis=1)[:, : trace.workers]
        sample = Censored.of(trace.seconds[known], bounds[censored], None, up[censored])
        rate, repair = rates(counts)
        changes: dict[str, Any] = {"latency": kind.fit_sample(sample), "rate": rate, "repair": repair}
        model = replace(model, **changes)
    return likelihood, model
