"""MatDot codes for matrix products: inner products of blocks, threshold 2m - 1."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..interpolation import chebyshev_basis
from ..points import chebyshev_first
from .base import BelowThreshold, Matrix
from .product import ProductCode, check_basis, cosines, power_points

__all__ = ["MatDotCode"]


@dataclass(frozen=True)
class MatDotCode(ProductCode):
    """MatDot codes (Dutta et al., arXiv 1801.10292): A in m columns of blocks, B in m rows, any 2m - 1 answers.

    The fewest answers at the price of large replies: every worker returns a matrix as large as the product. Whatever
    the basis, the replies are values of a polynomial with 2m - 1 coefficients, and gaps among the responders cost what
    extrapolation costs: a gap of a fifth of the circle costs some ten digits at 60 workers, m = 25.

    - ``"harmonic"``: orthonormal cosines and sines on the circle of half angles: as mild as the circle, and real.
    - ``"chebyshev"``: orthonormal Chebyshev polynomials (arXiv 1903.08326).
    - ``"circle"``: powers of roots of unity; complex.
    - ``"monomial"``: the literature's, at Chebyshev points.

    Parameters
    ----------
    workers : int
    m : int
        Blocks along the inner axis.
    basis : {"harmonic", "chebyshev", "circle", "monomial"}
    below_threshold : {"raise", "least-squares"}

    Examples
    --------
    >>> code = MatDotCode(workers=8, m=3)
    >>> a, b = np.arange(3.0).reshape(3, 1, 1), np.arange(3.0, 6.0).reshape(3, 1, 1)
    >>> left, right = code.encode(a, b)
    >>> np.round(code.decoder([7, 2, 3, 0, 5]) @ (left @ right)[[7, 2, 3, 0, 5]], 9).ravel()
    array([14.])
    """

    workers: int
    m: int
    basis: Literal["harmonic", "chebyshev", "circle", "monomial"] = "harmonic"
    below_threshold: BelowThreshold = "raise"

    def __post_init__(self) -> None:
        check_basis(self.basis, "harmonic", "chebyshev", "circle", "monomial")
        self._check_splits(m=self.m)

    @property
    def splits(self) -> tuple[int, int, int]:
        """(1, m, 1)."""
        return 1, self.m, 1

    @property
    def threshold(self) -> int:
        """2m - 1."""
        return 2 * self.m - 1

    def _build(self) -> tuple[Matrix, Matrix, Matrix, Matrix]:
        w, m = self.workers, self.m
        target = np.zeros((1, 2 * m - 1))
        target[0, 0 if self.basis in ("harmonic", "chebyshev") else m - 1] = 1.0
        if self.basis == "harmonic":
            # The m functions have half-integer or integer frequencies below m/2; products have integer ones below m,
            # and by orthonormality their means over the circle are the inner products.
            turns = np.arange(w) / w
            rows = cosines(turns, np.arange((m - 1) / 2, -0.25, -1.0)) / math.sqrt(m)
            return rows, rows.copy(), cosines(turns, np.arange(0.0, m)) / m, target
        if self.basis == "chebyshev":
            # Orthonormal for the measure whose Gauss points are Chebyshev's: the mean of T_0 is 1, of the others 0.
            all_rows = chebyshev_basis(chebyshev_first(w), 2 * m - 2)
            rows = all_rows[:, :m] * np.where(np.arange(m) == 0, 1.0, math.sqrt(2)) / math.sqrt(m)
            return rows, rows.copy(), all_rows / m, target
        powers = power_points(self.basis, w)[:, None] ** np.arange(2 * m - 1)
        return powers[:, :m].copy(), powers[:, m - 1 :: -1].copy(), powers, target
