"""Frame codes: data codes for linear functions, rows of unit norm, decoded by the pseudo-inverse (paper 3).

worker n returns y_n = f(sum_j G[n, j] X_j) + noise; any m rows of G that have full rank give f(X_1) .. f(X_m), more of
them give it more quietly. `Decoder.noise_amplification` is then the paper's (1/m) tr((F_S F_S*)^-1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import TooFewResponders, UnsafeDecode
from .base import BelowThreshold, Code, DataCode, Exactness, Matrix, check_below_threshold, least_squares_decoder

__all__ = ["FrameCode", "checked_least_squares", "unit_rows"]

_INEXACT, _REFUSE = 1e-6, 0.1  # residual of a decoder that should be exact
_SINGULAR = 1e-8


def unit_rows(matrix: Matrix) -> Matrix:
    """Each row divided by its norm."""
    return np.asarray(matrix / np.linalg.norm(matrix, axis=1, keepdims=True))


def checked_least_squares(code: Code, responders: NDArray[np.intp], promised: bool) -> Matrix:
    """T pinv(G_S); where exactness is `promised`, caution or refuse as the residual tells what rounding ate."""
    rows = code._rows(responders.tolist())
    matrix = least_squares_decoder(rows, code.target, 1e-15 if promised else _SINGULAR)
    if promised:
        off = matrix @ rows - code.target
        residual = float(np.linalg.norm(off))
        if residual > _INEXACT:  # the largest of any direction, however many others there are
            residual = float(np.linalg.norm(off, 2))
        figures = f"{code!r}, {len(responders)} responders: residual {residual:.1e} where exact algebra has none"
        if not residual < _REFUSE:
            raise UnsafeDecode(
                f"the system of these responders is beyond float64 ({figures}): wait for more workers, or use a code "
                "with a smaller noise amplification"
            )
        if residual > _INEXACT:
            code._cautions[tuple(responders.tolist())] = f"rounding has spoilt the decoder ({figures})"
    return matrix


class FrameCode(DataCode):
    """A linear data code of unit-norm rows of which any `threshold` are independent."""

    below_threshold: BelowThreshold = "raise"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_below_threshold(self.below_threshold)

    @property
    def threshold(self) -> int:
        """As many as there are blocks."""
        return self.blocks

    @property
    def exact_for(self) -> Exactness:
        """Linear functions: f(a x + b y) = a f(x) + b f(y), so f(0) = 0."""
        return "linear"

    def sufficient(self, responders: Iterable[int]) -> bool:
        """Whether their rows have full rank; any `threshold` have, and fewer than `blocks` have not."""
        distinct = responders if isinstance(responders, Set) else set(responders)  # asked after every answer
        if len(distinct) >= self.threshold:
            return True
        return len(distinct) >= self.blocks and self._full_rank(tuple(sorted(distinct)))

    @cached_property
    def _full_rank(self) -> Callable[[tuple[int, ...]], bool]:
        """Kept for some sets, since one round asks several times: to stop, to decode and to judge the answer."""
        generator = self.generator

        @lru_cache(maxsize=256)
        def known(who: tuple[int, ...]) -> bool:
            values = np.linalg.svd(generator[list(who)], compute_uv=False)
            return bool(values[-1] > _SINGULAR * values[0])

        return known

    def approximates(self, responders: Iterable[int]) -> bool:
        """Without full rank it does."""
        return not self.sufficient(responders)

    def _decode(self, responders: NDArray[np.intp], replies: Sequence[Any] | None) -> Matrix:
        count = len(responders)
        enough = self.sufficient(responders.tolist())
        if not enough and self.below_threshold == "raise":
            why = (
                f"are fewer than the {self.blocks} blocks of"
                if count < self.blocks
                else f"have linearly dependent rows of rank below {self.blocks} in"
            )
            raise TooFewResponders(
                f"{count} responders {why} {self!r}: wait for more, or pass below_threshold='least-squares' for the "
                "least-squares estimate"
            )
        return checked_least_squares(self, responders, enough)
