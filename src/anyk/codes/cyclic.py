"""Gradient codes on a ring, one partition per worker: random checks (Tandon et al.), roots of unity (Raviv et al.)."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import PlacementError
from ..placement import as_placement, cyclic_placement
from .gradient import GradientCode

__all__ = ["CyclicCode", "CyclicMDSCode"]


def _check_ring(code: Any) -> None:
    value = code.workers
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"workers must be an integer, got {value!r}")
    if value < 1:
        raise PlacementError(f"workers must be at least 1, got {value}")
    code._check_counts()
    if code.stragglers >= value:
        raise PlacementError(f"{code.stragglers} stragglers leave none of {value} workers")


@dataclass(frozen=True, eq=False, repr=False)
class CyclicCode(GradientCode):
    """s + 1 partitions per worker on a ring, whole gradients as messages: Tandon et al., arXiv 1612.03301, Algorithm 2.

    Parameters
    ----------
    workers : int
        Also the number of partitions.
    stragglers : int
    rng : int
        Seed of the random checks.

    Examples
    --------
    >>> code = CyclicCode(workers=6, stragglers=2)
    >>> int(code.placement.sum()), code.threshold, code.decoder([0, 2, 3, 5]).residual < 1e-10
    (18, 4, True)
    """

    workers: int = field()
    stragglers: int = 0
    rng: int = 0

    adversaries = 0

    def __post_init__(self) -> None:
        _check_ring(self)

    @cached_property
    def placement(self) -> NDArray[np.bool_]:  # type: ignore[override]
        """Worker n holds partitions n .. n + s."""
        return as_placement(cyclic_placement(self.workers, self.workers, self.stragglers + 1))

    @cached_property
    def chunks(self) -> int:
        """1: whole gradients."""
        return 1

    def _coefficients(self) -> Any:
        n, s = self.workers, self.stragglers
        checks = np.random.default_rng(self.rng).standard_normal((s, n))
        checks -= checks.mean(axis=1, keepdims=True)  # constants pass, and the sum is one
        out = np.zeros((n, n))
        for worker in range(n):
            rest = (worker + 1 + np.arange(s)) % n
            out[worker, worker] = 1
            out[worker, rest] = -np.linalg.solve(checks[:, rest], checks[:, worker])
        return out


@dataclass(frozen=True, eq=False, repr=False)
class CyclicMDSCode(GradientCode):
    """The same from a cyclic MDS code, without randomness: Raviv et al., arXiv 1707.03858.

    Row n is the shortest codeword, moved on by n, of the cyclic code whose check polynomial has s consecutive roots of
    unity. They are taken around -1; where N + s is odd they come in conjugate pairs and the code is real, otherwise
    messages are complex, twice the traffic.

    Parameters
    ----------
    workers : int
        Also the number of partitions.
    stragglers : int

    Examples
    --------
    >>> code = CyclicMDSCode(workers=5, stragglers=2)
    >>> code.generator[0].round(3)
    array([0.276, 0.447, 0.276, 0.   , 0.   ])
    """

    workers: int = field()
    stragglers: int = 0

    adversaries = 0

    def __post_init__(self) -> None:
        _check_ring(self)

    @cached_property
    def placement(self) -> NDArray[np.bool_]:  # type: ignore[override]
        """Worker n holds partitions n .. n + s."""
        return as_placement(cyclic_placement(self.workers, self.workers, self.stragglers + 1))

    @cached_property
    def chunks(self) -> int:
        """1: whole gradients."""
        return 1

    def _coefficients(self) -> Any:
        n, s = self.workers, self.stragglers
        powers = np.arange(s) + (n + 1 - s) // 2
        codeword = np.polynomial.polynomial.polyfromroots(np.exp(2j * np.pi * powers / n))
        if (n + s) % 2:
            codeword = codeword.real
        codeword = codeword / codeword.sum()
        out = np.zeros((n, n), codeword.dtype)
        for worker in range(n):
            out[worker, (worker + np.arange(s + 1)) % n] = codeword
        return out
