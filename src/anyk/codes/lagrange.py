"""Lagrange coded computing over the reals, in barycentric form at Chebyshev nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import TooFewResponders
from ..interpolation import chebyshev_basis, lagrange_matrix
from ..points import Nodes, chebyshev_first
from .base import BelowThreshold, DataCode, Exactness, Matrix, check_below_threshold, least_squares_decoder

__all__ = ["LagrangeCode"]


@dataclass(frozen=True)
class LagrangeCode(DataCode):
    """Lagrange coded computing (Yu et al., AISTATS 2019): exact for polynomials f of a stated total degree.

    Worker i works on u(z_i), u the polynomial of degree K-1 through the blocks; f(u(z)) is a polynomial of degree
    (K-1) deg f, so any (K-1) deg f + 1 answers determine it. At the threshold the answers are interpolated; above it
    a polynomial of that degree is fitted to all of them by least squares, which amplifies noise less.

    Parameters
    ----------
    workers, blocks : int
    degree : int
        Total degree of f as a polynomial; 1 for linear maps.
    below_threshold : {"raise", "least-squares"}
        What `decoder` does with fewer answers: raise `TooFewResponders`, or pass the smoothest polynomial of the known
        degree through them, which is approximate, and exact for constants.

    Examples
    --------
    >>> code = LagrangeCode(workers=501, blocks=20, degree=25)
    >>> code.threshold
    476
    """

    workers: int
    blocks: int
    degree: int = 1
    below_threshold: BelowThreshold = "raise"

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.degree, bool) or not isinstance(self.degree, int | np.integer) or self.degree < 1:
            raise ValueError(f"degree must be an integer of at least 1, got {self.degree!r}")
        check_below_threshold(self.below_threshold)

    @property
    def data_nodes(self) -> Nodes:
        """Chebyshev points of the first kind, one per block."""
        return chebyshev_first(self.blocks)

    @property
    def worker_nodes(self) -> Nodes:
        """Chebyshev points of the first kind, one per worker."""
        return chebyshev_first(self.workers)

    @property
    def threshold(self) -> int:
        """(K-1) degree + 1; it may exceed `workers`, and then nothing can be decoded exactly."""
        return (self.blocks - 1) * self.degree + 1

    @property
    def exact_for(self) -> Exactness:
        """Polynomials of total degree up to `degree`."""
        return "linear" if self.degree == 1 else "polynomial"

    def sufficient(self, responders: Any) -> bool:
        """As many as the threshold; any at all where least squares was asked for and the threshold is out of reach."""
        count = len(responders if isinstance(responders, Set) else set(responders))  # asked after every answer
        if self.below_threshold == "least-squares":
            return count >= min(self.threshold, self.workers)
        return count >= self.threshold

    def approximates(self, responders: Iterable[int]) -> bool:
        """Below the threshold it does."""
        return len(set(responders)) < self.threshold

    def _generator(self) -> Matrix:
        return lagrange_matrix(self.worker_nodes, self.data_nodes)

    def _decode(self, responders: NDArray[np.intp], replies: Sequence[Any] | None) -> Matrix:
        count, need = len(responders), self.threshold
        nodes = self.worker_nodes.take(responders)
        if count == need:
            return lagrange_matrix(self.data_nodes, nodes)
        if count < need and self.below_threshold == "raise":
            raise TooFewResponders(
                f"{count} responders are fewer than the threshold {need} = (blocks - 1) * degree + 1 of {self!r}: "
                "wait for more, or pass below_threshold='least-squares' for an approximate answer"
            )
        at_nodes, at_data = chebyshev_basis(nodes, need - 1), chebyshev_basis(self.data_nodes, need - 1)
        if count >= need:
            return least_squares_decoder(at_nodes, at_data)
        # Chebyshev polynomials of high degree look like low ones on few nodes: without a price on the degree, half of
        # a constant would be read as a wiggle that vanishes at the data nodes.
        price = (1.0 + np.arange(need)) ** 2
        matrix = least_squares_decoder(at_nodes / price, at_data / price)
        return np.asarray(matrix / matrix.sum(axis=1, keepdims=True))
