"""Approximate gradient codes: sparse graphs between workers and partitions, decoded by least squares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import PlacementError
from ..placement import as_placement, random_placement
from .base import Matrix
from .gradient import GradientCode

__all__ = ["GraphCode"]


@dataclass(frozen=True, eq=False, repr=False)
class GraphCode(GradientCode):
    """Plain sums over a sparse random graph: whole gradients as messages, an approximate total from any answers.

    Parameters
    ----------
    workers, partitions : int
    replicas : int
        Copies of a partition (on average, for ``"bernoulli"``); for ``"edges"`` it is fixed by the other two.
    stragglers : int
        How many answers not to wait for.
    graph : {"regular", "bernoulli", "edges"}
        Each partition on `replicas` random workers with equal loads, an expander with high probability; each on each
        with probability replicas / workers (arXiv 1711.06771); or workers as the edges of a random regular graph on the
        partitions, two each (Glasgow and Wootters).
    weights : {"least-squares", "fixed"}
        How to decode: optimally for the responders, or each answer by workers / (responders * replicas).
    rng : int

    Examples
    --------
    >>> code = GraphCode(workers=20, partitions=20, replicas=3, stragglers=4)
    >>> code.decoder(range(16)).residual ** 2 / 20 < 0.2
    True
    """

    workers: int = field()
    partitions: int = field()
    replicas: int = 3
    stragglers: int = 0
    graph: Literal["regular", "bernoulli", "edges"] = "regular"
    weights: Literal["least-squares", "fixed"] = "least-squares"
    rng: int = 0

    adversaries = 0

    def __post_init__(self) -> None:
        self._check_counts()
        if self.graph not in ("regular", "bernoulli", "edges"):
            raise ValueError(f"graph must be 'regular', 'bernoulli' or 'edges', got {self.graph!r}")
        if self.weights not in ("least-squares", "fixed"):
            raise ValueError(f"weights must be 'least-squares' or 'fixed', got {self.weights!r}")
        if self.graph == "edges" and (self.partitions < 2 or 2 * self.workers < self.partitions):
            raise PlacementError(f"{self.workers} edges cannot touch {self.partitions} partitions")
        if self.stragglers >= self.workers:
            raise PlacementError(f"{self.stragglers} stragglers leave none of {self.workers} workers")
        _ = self.placement

    @property
    def approximate(self) -> bool:
        """The sum is approximate, unless the answers happen to determine it."""
        return True

    @cached_property
    def placement(self) -> NDArray[np.bool_]:  # type: ignore[override]
        """The graph."""
        n, k, rng = self.workers, self.partitions, np.random.default_rng(self.rng)
        if self.graph == "regular":
            return as_placement(random_placement(n, k, self.replicas, rng))
        if self.graph == "edges":
            # A random regular multigraph by pairing stubs; a loop hands its second end on to the next partition.
            ends = np.resize(np.arange(k), 2 * n)
            first, second = rng.permutation(ends).reshape(2, n)
            second = np.where(first == second, (second + 1) % k, second)
            matrix = np.zeros((n, k), np.bool_)
            matrix[np.arange(n), first] = matrix[np.arange(n), second] = True
        else:
            matrix = rng.random((n, k)) < self.replicas / n
        for partition in np.flatnonzero(~matrix.any(axis=0)):
            matrix[rng.integers(n), partition] = True
        return as_placement(matrix)

    @cached_property
    def chunks(self) -> int:
        """1: whole sums."""
        return 1

    def _coefficients(self) -> Any:
        return self.placement.astype(np.float64)

    def _decode(self, responders: NDArray[np.intp], replies: Sequence[Any] | None) -> Matrix:
        if self.weights == "least-squares":
            return super()._decode(responders, replies)
        copies = self.placement.sum() / self.partitions
        return np.full((1, len(responders)), self.workers / (len(responders) * copies))
