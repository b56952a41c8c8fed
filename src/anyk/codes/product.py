"""Product codes: both operands of a matrix product are coded, so that each worker multiplies two coded blocks.

::

    A is cut into p x m blocks A_ij, B into m x n blocks B_jl; the product has the blocks C_il = sum_j A_ij B_jl
    worker w returns      y_w = ( sum_ij U[w, ij] A_ij ) ( sum_jl V[w, jl] B_jl )
    the master recovers   C_il  =  sum_{w in S} D_S[il, w] y_w

A concrete code gives the operands' encoders U (`left`) and V (`right`), and the replies as a linear code: `generator`
holds the replies in terms of some unknowns, `target` the blocks of C in terms of the same.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..blocks import coded_dtype
from ..errors import TooFewResponders
from ..points import chebyshev_first, nonzero, roots_of_unity
from .base import BelowThreshold, Code, Exactness, Matrix, check_below_threshold
from .frame import checked_least_squares

__all__ = ["ProductCode", "check_basis", "cosines", "kron_rows", "power_points"]


def kron_rows(left: Matrix, right: Matrix) -> Matrix:
    """Row-wise Kronecker (Khatri-Rao) product, (workers, a b)."""
    return np.asarray((left[:, :, None] * right[:, None, :]).reshape(len(left), -1))


def cosines(turns: NDArray[np.float64], frequencies: Iterable[float]) -> Matrix:
    """sqrt(2) cos and sin of 2 pi f t for each positive frequency, 1 for zero: orthonormal over whole turns."""
    columns = []
    for f in frequencies:
        angle = 2 * np.pi * f * turns
        columns += [np.ones_like(turns)] if f == 0 else [math.sqrt(2) * np.cos(angle), math.sqrt(2) * np.sin(angle)]
    return np.stack(columns, axis=1)


def check_basis(basis: Any, *known: str) -> None:
    """Refuse an unknown name."""
    if basis not in known:
        raise ValueError(f"basis must be {', '.join(known[:-1])} or {known[-1]}, got {basis!r}")


def power_points(basis: str, workers: int) -> NDArray[Any]:
    """Where the powers of the bases "circle" and "monomial" are taken."""
    return roots_of_unity(workers) if basis == "circle" else nonzero(chebyshev_first, workers)


def _encoded(encoder: Matrix, blocks: NDArray[Any]) -> NDArray[Any]:
    """In the blocks' own floating dtype."""
    kept = blocks if blocks.dtype.kind in "fc" else blocks.astype(np.float64)
    return np.tensordot(encoder, kept, axes=1).astype(coded_dtype(encoder, kept.dtype), copy=False)


class ProductCode(Code):
    """A code for A B; A is cut into p x m blocks, B into m x n."""

    below_threshold: BelowThreshold = "raise"

    def _check_splits(self, **splits: Any) -> None:
        for name, value in {"workers": self.workers, **splits}.items():
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
                raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
            object.__setattr__(self, name, int(value))
        check_below_threshold(self.below_threshold)
        if self.workers < self.threshold and self.below_threshold == "raise":
            raise ValueError(
                f"{self!r} needs {self.threshold} answers and has {self.workers} workers: use more of them, or fewer "
                "blocks"
            )

    @property
    @abstractmethod
    def splits(self) -> tuple[int, int, int]:
        """(p, m, n)."""

    @cached_property
    def left(self) -> Matrix:
        """U, (workers, p m): the encoder of A's blocks, row by row; read-only."""
        return self._matrices[0]

    @cached_property
    def right(self) -> Matrix:
        """V, (workers, m n): the encoder of B's blocks, row by row; read-only."""
        return self._matrices[1]

    @cached_property
    def generator(self) -> Matrix:
        """Replies in terms of the code's unknowns (combinations of products of blocks), (workers, unknowns)."""
        return self._matrices[2]

    @cached_property
    def target(self) -> Matrix:
        """The p n blocks of the product, row by row, in terms of the unknowns."""
        return self._matrices[3]

    @cached_property
    def _matrices(self) -> tuple[Matrix, Matrix, Matrix, Matrix]:
        matrices = self._build()
        for matrix in matrices:
            matrix.flags.writeable = False
        return matrices

    @abstractmethod
    def _build(self) -> tuple[Matrix, Matrix, Matrix, Matrix]:
        """U, V, generator and target."""

    @property
    def exact_for(self) -> Exactness:
        """Products of matrices, and any other bilinear function of two blocks."""
        return "bilinear"

    def sufficient(self, responders: Iterable[int]) -> bool:
        """At least `threshold`."""
        return len(set(responders)) >= self.threshold

    def approximates(self, responders: Iterable[int]) -> bool:
        """Below the threshold it does."""
        return len(set(responders)) < self.threshold

    def encode(self, a: Any, b: Any) -> tuple[NDArray[Any], NDArray[Any]]:
        """The coded operands of all workers, without any workers involved.

        Parameters
        ----------
        a : (p m, r, s) array
            Blocks of A, row by row.
        b : (m n, s, t) array
            Blocks of B, row by row.

        Returns
        -------
        (workers, r, s) and (workers, s, t) arrays
        """
        a, b = np.asarray(a), np.asarray(b)
        for name, blocks, matrix in (("a", a, self.left), ("b", b, self.right)):
            if blocks.ndim < 1 or len(blocks) != matrix.shape[1]:
                raise ValueError(f"{name} must hold {matrix.shape[1]} blocks along its first axis, got {blocks.shape}")
        return _encoded(self.left, a), _encoded(self.right, b)

    def _decode(self, responders: NDArray[np.intp], replies: Sequence[Any] | None) -> Matrix:
        count, enough = len(responders), len(responders) >= self.threshold
        if not enough and self.below_threshold == "raise":
            raise TooFewResponders(
                f"{count} responders are fewer than the threshold {self.threshold} of {self!r}: wait for more, or pass "
                "below_threshold='least-squares' for an approximate product"
            )
        return checked_least_squares(self, responders, enough)
