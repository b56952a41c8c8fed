"""Systematic MDS codes: the blocks as they are, and mixtures beside them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..difference_sets import next_prime
from ..frames import optimized_powers, real_harmonic_rows
from .base import BelowThreshold, Matrix, seed_of
from .frame import FrameCode, unit_rows

__all__ = ["SystematicMDSCode"]

_DRAWS, _PROBES = 8, 40


@dataclass(frozen=True)
class SystematicMDSCode(FrameCode):
    """Workers 0 .. blocks - 1 get the blocks as they are, the others well-conditioned mixtures: any m answers suffice.

    Sparse blocks stay sparse on the first workers, and when they answer nothing has to be decoded. A block that is
    missing is read off the mixtures, which must tell any few blocks apart: their columns are a real harmonic frame (of
    prime length, so that no full set is dependent), turned at random; of several turns the quietest is kept.

    Parameters
    ----------
    workers, blocks : int
    rng : int or numpy.random.Generator
        Seed: equal seeds give equal codes.
    below_threshold : {"raise", "least-squares"}

    Examples
    --------
    >>> code = SystematicMDSCode(workers=6, blocks=4)
    >>> code.generator[:4].tolist() == np.eye(4).tolist()
    True
    >>> x = np.arange(4.0)
    >>> bool(np.allclose(code.decoder([5, 2, 4, 0]) @ code.encode(x)[[5, 2, 4, 0]], x))
    True
    """

    workers: int
    blocks: int
    rng: int | np.random.Generator = 0
    below_threshold: BelowThreshold = "raise"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "rng", seed_of(self.rng))

    def _generator(self) -> Matrix:
        extra = self.workers - self.blocks
        if extra == 0:
            return np.eye(self.blocks)
        rng = np.random.default_rng(self.rng)
        columns = self._columns(extra, rng)
        missing = [rng.permutation(self.blocks)[: min(extra, self.blocks)] for _ in range(_PROBES if extra > 1 else 1)]
        best: tuple[float, Matrix] | None = None
        for _ in range(_DRAWS if self.workers <= 300 else 1):
            turn = np.linalg.qr(rng.standard_normal((extra, extra)))[0]
            parity = unit_rows(turn @ columns)
            half = rng.permutation(extra)[: max(1, extra // 2)]  # some of the mixtures may be missing, too
            probes = [parity[:, who] for who in missing] + [parity[np.ix_(half, who[: len(half)])] for who in missing]
            score = float(np.median([np.linalg.norm(1 / np.linalg.svd(each, compute_uv=False)) for each in probes]))
            if best is None or score < best[0]:
                best = score, parity
        assert best is not None
        return np.vstack([np.eye(self.blocks), best[1]])

    def _columns(self, extra: int, rng: np.random.Generator) -> Matrix:
        """(extra, blocks): a vector for each block, in as many dimensions as there are mixtures."""
        length = next_prime(self.blocks)
        if extra > min(length, 200):
            return rng.standard_normal((extra, self.blocks))
        powers = optimized_powers(length, extra, rng, real=True)
        return real_harmonic_rows(length, powers)[: self.blocks].T
