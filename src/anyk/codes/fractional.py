"""Fractional repetition: groups of s + 1 workers that all send the same sum (Tandon et al., arXiv 1612.03301)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import PlacementError
from ..placement import as_placement, fractional_repetition_placement
from .base import Matrix
from .gradient import Component, GradientCode, null_checks

__all__ = ["FractionalRepetitionCode"]


@dataclass(frozen=True, eq=False, repr=False)
class FractionalRepetitionCode(GradientCode):
    """Groups of s + 2a + 1 workers send the plain sum of their partitions, whole: one honest answer a group is enough.

    With fewer answers the sums of silent groups are missing (ErasureHead, arXiv 1901.09671). `GroupCode` sends as much
    less as there are more replicas than stragglers.

    Parameters
    ----------
    workers, partitions : int
    stragglers, adversaries : int

    Examples
    --------
    >>> code = FractionalRepetitionCode(workers=6, partitions=6, stragglers=2)
    >>> code.generator[0], code.sufficient([1, 5]), code.decoder([1, 5]).residual < 1e-12
    (array([1., 1., 1., 0., 0., 0.]), True, True)
    """

    workers: int = field()
    partitions: int = field()
    stragglers: int = 0
    adversaries: int = 0

    def __post_init__(self) -> None:
        self._check_counts()
        if self.stragglers + 2 * self.adversaries >= self.workers:
            raise PlacementError(
                f"{self.stragglers} stragglers and {self.adversaries} adversaries are too many for {self.workers}"
                " workers"
            )
        _ = self.placement

    @cached_property
    def placement(self) -> NDArray[np.bool_]:  # type: ignore[override]
        """Groups of neighbours."""
        copies = self.stragglers + 2 * self.adversaries + 1
        return as_placement(fractional_repetition_placement(self.workers, self.partitions, copies))

    @cached_property
    def chunks(self) -> int:
        """1: whole sums."""
        return 1

    def _coefficients(self) -> Any:
        return self.placement.astype(np.float64)

    @cached_property
    def components(self) -> tuple[Component, ...]:
        """One for each group: all send the same."""
        first = self.placement.argmax(axis=1)  # workers of a group begin with the same partition
        parts = []
        for start in np.unique(first):
            members = np.flatnonzero(first == start)
            ones = np.ones((len(members), 1))
            parts.append(Component.of(members, null_checks(ones), np.linalg.pinv(ones)))
        return tuple(parts)

    def sufficient(self, responders: Iterable[int], exposed: Iterable[int] = ()) -> bool:
        """Whether every group has answered, with enough to outvote the adversaries."""
        present, known = set(responders), set(exposed)
        groups = [frozenset(part.members.tolist()) for part in self.components]
        return all(
            len(present & group) > 2 * self.adversaries - min(self.adversaries, len(known & group)) for group in groups
        )

    def _decode(self, responders: NDArray[np.intp], replies: Sequence[Any] | None) -> Matrix:
        present = np.zeros(self.workers)
        present[responders] = 1
        weights = np.zeros((1, self.workers))
        for part in self.components:
            weights[0, part.members] = present[part.members] / max(present[part.members].sum(), 1)
        return np.ascontiguousarray(weights[:, responders])
