"""No code at all: one worker per block, wait for each of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import TooFewResponders
from .base import DataCode, Exactness, Matrix

__all__ = ["UncodedCode"]


@dataclass(frozen=True)
class UncodedCode(DataCode):
    """Block j goes to worker j as it is; workers beyond the number of blocks stay idle.

    Parameters
    ----------
    workers, blocks : int

    Examples
    --------
    >>> UncodedCode(workers=4, blocks=3).generator
    array([[1., 0., 0.],
           [0., 1., 0.],
           [0., 0., 1.],
           [0., 0., 0.]])
    """

    workers: int
    blocks: int

    @property
    def threshold(self) -> int:
        """All of the workers that have a block."""
        return self.blocks

    @property
    def exact_for(self) -> Exactness:
        """Any function."""
        return "any"

    def sufficient(self, responders: Iterable[int]) -> bool:
        """Whether every block has answered."""
        return len({worker for worker in responders if worker < self.blocks}) == self.blocks

    def _generator(self) -> Matrix:
        return np.eye(self.workers, self.blocks)

    def _decode(self, responders: NDArray[np.intp], replies: Sequence[Any] | None) -> Matrix:
        missing = sorted(set(range(self.blocks)) - set(responders.tolist()))
        if missing:
            raise TooFewResponders(
                f"no answer for block{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing[:8]))}"
                f"{', ...' if len(missing) > 8 else ''}: without a code every one of the {self.blocks} must answer"
            )
        return np.ascontiguousarray(self.generator[responders].T)
