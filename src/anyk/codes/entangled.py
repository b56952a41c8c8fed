"""Entangled polynomial codes for matrix products: any cut of both operands, threshold p m n + m - 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from .base import BelowThreshold, Matrix
from .frame import unit_rows
from .product import ProductCode, check_basis, power_points

__all__ = ["EntangledPolynomialCode"]


@dataclass(frozen=True)
class EntangledPolynomialCode(ProductCode):
    """Entangled polynomial codes (Yu, Maddah-Ali and Avestimehr, ISIT 2018): between polynomial and MatDot codes.

    A is cut into p x m blocks, B into m x n. Worker w multiplies sum A_ij s^(j + m i) by sum B_jl s^(m-1-j + p m l);
    block C_il of the product is the coefficient of s^(m-1 + m i + p m l), and any p m n + m - 1 values determine them
    all. With m = 1 this is a polynomial code, with p = n = 1 a MatDot code, which have real bases of their own.

    Parameters
    ----------
    workers : int
    p, m, n : int
        Rows of blocks of A, blocks along the inner axis, columns of blocks of B.
    basis : {"circle", "monomial"}
        Roots of unity, complex: real operands make a real product (`anyk.matmul`) at four times the work and twice the
        traffic. Or Chebyshev points, whose powers lose all digits from some 20 coefficients on.
    below_threshold : {"raise", "least-squares"}

    Examples
    --------
    >>> code = EntangledPolynomialCode(workers=11, p=2, m=2, n=2)
    >>> code.threshold
    9
    """

    workers: int
    p: int
    m: int
    n: int
    basis: Literal["circle", "monomial"] = "circle"
    below_threshold: BelowThreshold = "raise"

    def __post_init__(self) -> None:
        check_basis(self.basis, "circle", "monomial")
        self._check_splits(p=self.p, m=self.m, n=self.n)

    @property
    def splits(self) -> tuple[int, int, int]:
        """(p, m, n)."""
        return self.p, self.m, self.n

    @property
    def threshold(self) -> int:
        """p m n + m - 1."""
        return self.p * self.m * self.n + self.m - 1

    def _build(self) -> tuple[Matrix, Matrix, Matrix, Matrix]:
        p, m, n = self.splits
        powers = power_points(self.basis, self.workers)[:, None] ** np.arange(self.threshold)
        i, j, k = np.arange(p)[:, None], np.arange(m), np.arange(n)
        left = powers[:, (j + m * i).ravel()]
        right = powers[:, (m - 1 - j[:, None] + p * m * k).ravel()]
        sizes = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
        target = np.zeros((p * n, self.threshold))
        target[np.arange(p * n), (m - 1 + m * i + p * m * k).ravel()] = 1.0
        return unit_rows(left), unit_rows(right), powers / sizes[:, None], target
