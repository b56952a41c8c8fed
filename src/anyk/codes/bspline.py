"""Berrut's encoder and cubic splines in z as the decoder (BSCC, arXiv 2601.10616)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..interpolation import berrut_matrix
from ..splines import natural_matrix
from .base import Matrix
from .curve import CurveCode

__all__ = ["BSplineCode"]


@dataclass(frozen=True)
class BSplineCode(CurveCode):
    """`BerrutCode` with natural cubic splines through the answers, straight lines beyond the outermost of them.

    Parameters
    ----------
    workers : int
    blocks : int
        At most `workers`.

    Examples
    --------
    >>> import numpy as np
    >>> code, x = BSplineCode(workers=60, blocks=4), np.linspace(0, 1, 4)
    >>> decoder = code.decoder(range(0, 60, 2))
    >>> bool(np.abs(decoder @ np.exp(code.encode(x)[::2]) - np.exp(x)).max() < 1e-3)
    True
    """

    workers: int
    blocks: int

    def _generator(self) -> Matrix:
        return berrut_matrix(self.worker_nodes, self.data_nodes)

    def _decode(self, responders: NDArray[np.intp], replies: Sequence[Any] | None) -> Matrix:
        return natural_matrix(self.data_nodes, self.worker_nodes.take(responders))
