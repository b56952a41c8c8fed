"""Floater and Hormann's rational interpolants as a code (BRI, arXiv 2509.09435)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..interpolation import floater_hormann_matrix
from .base import Matrix
from .curve import CurveCode

__all__ = ["FloaterHormannCode"]


@dataclass(frozen=True)
class FloaterHormannCode(CurveCode):
    """Blends of polynomials of a small degree through neighbouring nodes, on both sides; degree 0 is `BerrutCode`.

    Parameters
    ----------
    workers : int
    blocks : int
        At most `workers`.
    degree : int
        At least 0. From 2 on errors grow quickly where many random workers are missing.

    Examples
    --------
    >>> import numpy as np
    >>> code, x = FloaterHormannCode(workers=60, blocks=4), np.linspace(0, 1, 4)
    >>> decoder = code.decoder(range(0, 60, 2))
    >>> bool(np.abs(decoder @ np.exp(code.encode(x)[::2]) - np.exp(x)).max() < 0.01)
    True
    """

    workers: int
    blocks: int
    degree: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.degree, bool) or not isinstance(self.degree, int) or self.degree < 0:
            raise ValueError(f"degree must be an integer of at least 0, got {self.degree!r}")

    def _generator(self) -> Matrix:
        return floater_hormann_matrix(self.worker_nodes, self.data_nodes, self.degree)

    def _decode(self, responders: NDArray[np.intp], replies: Sequence[Any] | None) -> Matrix:
        return floater_hormann_matrix(self.data_nodes, self.worker_nodes.take(responders), self.degree)
