"""Polynomial codes in the basis of powers, and in that of Chebyshev polynomials."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..interpolation import chebyshev_basis
from ..points import chebyshev_first, equidistant_closed, nonzero, roots_of_unity
from .base import BelowThreshold, Matrix
from .frame import FrameCode, unit_rows

__all__ = ["ChebyshevCode", "VandermondeCode"]

_POINTS = ("chebyshev", "equidistant", "circle")


@dataclass(frozen=True)
class VandermondeCode(FrameCode):
    """Reed-Solomon codes over the real or complex numbers: rows (1, s, s^2, ...), scaled to unit norm.

    The literature's MDS code, here to be measured: at real points its systems lose all digits from some 20 blocks on
    (`UnsafeDecode`). `ChebyshevCode` spans the same polynomials with a better basis.

    Parameters
    ----------
    workers, blocks : int
    points : {"chebyshev", "equidistant", "circle"} or (workers,) array
        Distinct points, none of them zero; ``"circle"`` is complex.
    below_threshold : {"raise", "least-squares"}

    Examples
    --------
    >>> VandermondeCode(workers=4, blocks=3, points=[1, 2, 3, -1]).generator.round(3)
    array([[ 0.577,  0.577,  0.577],
           [ 0.218,  0.436,  0.873],
           [ 0.105,  0.314,  0.943],
           [ 0.577, -0.577,  0.577]])
    """

    workers: int
    blocks: int
    points: str | Sequence[complex] | NDArray[Any] = "chebyshev"
    below_threshold: BelowThreshold = "raise"

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.points, str):
            if self.points not in _POINTS:
                raise ValueError(f"points must be one of {', '.join(_POINTS)} or an array, got {self.points!r}")
            return
        points = np.asarray(self.points)
        if points.shape != (self.workers,) or points.dtype.kind not in "iufc" or not np.isfinite(points).all():
            raise ValueError(f"points must be {self.workers} finite numbers, got {self.points!r}")
        if len(np.unique(points)) < self.workers or (points == 0).any():
            raise ValueError("points must be distinct and none of them zero")
        object.__setattr__(self, "points", tuple(points.astype(np.result_type(points, np.float64)).tolist()))

    def _generator(self) -> Matrix:
        n = self.workers
        if isinstance(self.points, str):
            real = {"chebyshev": chebyshev_first, "equidistant": equidistant_closed}
            at: Any = roots_of_unity(n) if self.points == "circle" else nonzero(real[self.points], n)
        else:
            at = np.asarray(self.points)
        largest = np.maximum(np.abs(at), 1.0)  # far points would overflow: scale each row beforehand
        exponents = np.arange(self.blocks)
        with np.errstate(under="ignore"):
            rows = (at / largest)[:, None] ** exponents * largest[:, None] ** (exponents - exponents[-1])
        return unit_rows(rows)


@dataclass(frozen=True)
class ChebyshevCode(FrameCode):
    """Orthogonal polynomials: rows (T_0, T_1, ...) at Chebyshev points of the first kind (arXiv 1903.08326).

    Parameters
    ----------
    workers, blocks : int
    below_threshold : {"raise", "least-squares"}

    Examples
    --------
    >>> code = ChebyshevCode(workers=50, blocks=40)
    >>> code.decoder(range(50)).condition < 3
    True
    """

    workers: int
    blocks: int
    below_threshold: BelowThreshold = "raise"

    def _generator(self) -> Matrix:
        return unit_rows(chebyshev_basis(chebyshev_first(self.workers), self.blocks - 1))
