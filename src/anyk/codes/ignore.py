"""No code: every partition on one worker, and the sum of those that answered, scaled up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import PlacementError
from ..placement import as_placement, cyclic_placement
from .base import Matrix
from .gradient import GradientCode

__all__ = ["IgnoreStragglersCode"]


@dataclass(frozen=True, eq=False, repr=False)
class IgnoreStragglersCode(GradientCode):
    """Ignore whoever is late and scale up the rest: right on average where partitions are alike, biased where not.

    With no stragglers it is the plain distributed sum that waits for all.

    Parameters
    ----------
    workers, partitions : int
        At least as many partitions as workers, dealt out evenly in runs.
    stragglers : int

    Examples
    --------
    >>> code = IgnoreStragglersCode(workers=4, partitions=4, stragglers=1)
    >>> code.decoder([0, 1, 3]).matrix.round(3)
    array([[1.333, 1.333, 1.333]])
    """

    workers: int = field()
    partitions: int = field()
    stragglers: int = 0

    adversaries = 0

    def __post_init__(self) -> None:
        self._check_counts()
        if self.partitions < self.workers:
            raise PlacementError(f"{self.partitions} partitions leave some of {self.workers} workers idle")
        if self.stragglers >= self.workers:
            raise PlacementError(f"{self.stragglers} stragglers leave none of {self.workers} workers")
        _ = self.placement

    @property
    def approximate(self) -> bool:
        """With stragglers the sum is an estimate."""
        return self.stragglers > 0

    @cached_property
    def placement(self) -> NDArray[np.bool_]:  # type: ignore[override]
        """One copy of everything."""
        return as_placement(cyclic_placement(self.workers, self.partitions, 1))

    @cached_property
    def chunks(self) -> int:
        """1: whole sums."""
        return 1

    def _coefficients(self) -> Any:
        return self.placement.astype(np.float64)

    def _decode(self, responders: NDArray[np.intp], replies: Sequence[Any] | None) -> Matrix:
        covered = int(self.placement[responders].sum())
        return np.full((1, len(responders)), self.partitions / max(covered, 1))
