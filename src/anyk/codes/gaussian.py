"""Gaussian frames."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from .base import BelowThreshold, Matrix, seed_of
from .frame import FrameCode, unit_rows

__all__ = ["GaussianFrameCode"]


@dataclass(frozen=True)
class GaussianFrameCode(FrameCode):
    """Rows drawn from a normal distribution and scaled to unit norm: any m are independent with probability one.

    The noise amplification is about 1/(beta - 1), beta = k/m (Marchenko and Pastur; paper 3, equation (9)): for many
    workers per block as good as any, near the number of workers about twice a harmonic frame's.

    Parameters
    ----------
    workers, blocks : int
    rng : int or numpy.random.Generator
        Seed: equal seeds give equal codes.
    field : {"real", "complex"}
    below_threshold : {"raise", "least-squares"}

    Examples
    --------
    >>> code = GaussianFrameCode(workers=9, blocks=4, rng=1)
    >>> x = np.arange(8.0).reshape(4, 2)
    >>> bool(np.allclose(code.decoder([8, 1, 3, 2]) @ code.encode(x)[[8, 1, 3, 2]], x))
    True
    """

    workers: int
    blocks: int
    rng: int | np.random.Generator = 0
    field: Literal["real", "complex"] = "real"
    below_threshold: BelowThreshold = "raise"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.field not in ("real", "complex"):
            raise ValueError(f"field must be 'real' or 'complex', got {self.field!r}")
        object.__setattr__(self, "rng", seed_of(self.rng))

    def _generator(self) -> Matrix:
        rng = np.random.default_rng(self.rng)
        rows: Matrix = rng.standard_normal((self.workers, self.blocks))
        if self.field == "complex":
            rows = rows + 1j * rng.standard_normal(rows.shape)
        return unit_rows(rows)
