"""Groups of workers that hold the same partitions, with a short code over the chunks of each group's sum."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Sequence, Set, Sized
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from ..errors import PlacementError
from ..placement import chunks_for
from .base import Matrix
from .gradient import Component, GradientCode, null_checks
from .nullspace import harmonic_checks

__all__ = ["GroupCode", "group_matrix"]

_DRAWS, _SETS = 60, 600


@functools.lru_cache(maxsize=256)
def group_matrix(size: int, chunks: int, missing: int, seed: int) -> Matrix:
    """An MDS code over the reals, (size, chunks) with unit rows: any `chunks` rows determine the chunks.

    The best of harmonic and normal draws: smallest noise amplification with the worst `missing` rows left out. One
    chunk needs no code: all send the same.
    """
    if chunks == 1:
        return np.ones((size, 1))
    rng = np.random.default_rng([seed, size, chunks, missing])
    left = size - missing
    if math.comb(size, left) <= _SETS:
        sets = np.array(list(itertools.combinations(range(size), left)))
    else:
        sets = np.sort(rng.random((_SETS, size)).argsort(axis=1)[:, :left], axis=1)
    best: tuple[float, Matrix] | None = None
    for draw in range(_DRAWS):
        matrix = harmonic_checks(chunks, size, rng).T if draw % 2 else rng.standard_normal((size, chunks))
        matrix = matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
        worst = float(np.linalg.norm(np.linalg.pinv(matrix[sets]), axis=2).max())
        if best is None or worst < best[0]:
            best = worst, matrix
    assert best is not None
    best[1].flags.writeable = False
    return best[1]


@dataclass(frozen=True, eq=False, repr=False)
class GroupCode(GradientCode):
    """Exact sums where the placement is free: shorter to compute, quieter and safer than any code over all workers.

    Workers form groups of `replicas` or a few more. All workers of a group hold the same partitions and send
    combinations of the chunks of the group's own sum. Any `stragglers` workers may be missing and any `adversaries`
    lying in *every* group. Messages have d/(r-s-2a) numbers, and noise amplification does not grow with the number of
    workers.

    Parameters
    ----------
    workers, partitions : int
    replicas : int
        r, the least size of a group.
    stragglers, adversaries : int
    speeds : sequence of float, optional
        Workers of like speed share a group, and groups hold partitions in proportion to their speed.
    sizes : sequence of int, optional
        Sizes of the groups, each at least `replicas`, in the order of the workers (of rising speed,
        with `speeds`). Default: as equal as possible.
    rng : int
        Seed of the draws of the code within a group.

    Raises
    ------
    PlacementError
        If r <= s + 2a, or the sizes do not add up.

    Examples
    --------
    >>> code = GroupCode(workers=12, partitions=12, replicas=6, stragglers=2, adversaries=1)
    >>> code.chunks, [len(group) for group in code.groups]
    (2, [6, 6])
    >>> messages = code.encode(np.arange(48.0).reshape(12, 4))
    >>> total = code.decoder([1, 2, 4, 5, 6, 7, 8, 9]) @ messages[[1, 2, 4, 5, 6, 7, 8, 9]]
    >>> np.round(total.ravel(), 9)
    array([264., 276., 288., 300.])
    """

    workers: int = field()
    partitions: int = field()
    replicas: int = field()
    stragglers: int = 0
    adversaries: int = 0
    speeds: tuple[float, ...] | None = None
    sizes: tuple[int, ...] | None = None
    rng: int = 0

    def __post_init__(self) -> None:
        for name in ("workers", "partitions", "replicas"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | np.integer):
                raise TypeError(f"{name} must be an integer, got {value!r}")
            if value < 1:
                raise PlacementError(f"{name} must be at least 1, got {value}")
            object.__setattr__(self, name, int(value))
        self._check_counts()
        chunks_for(self.replicas, self.stragglers, self.adversaries)
        if self.replicas > self.workers:
            raise PlacementError(f"groups of {self.replicas} need as many workers, got {self.workers}")
        for name in ("speeds", "sizes"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, tuple(np.asarray(getattr(self, name)).tolist()))
        if self.sizes is not None and not all(isinstance(size, int) for size in self.sizes):
            raise TypeError(f"sizes must be integers, got {self.sizes}")
        if self.speeds is not None and (
            len(self.speeds) != self.workers or not all(0 < speed < math.inf for speed in self.speeds)
        ):
            raise PlacementError(f"speeds must hold one positive number for each of {self.workers} workers")
        if self.sizes is not None and (sum(self.sizes) != self.workers or min(self.sizes) < self.replicas):
            raise PlacementError(
                f"sizes must be at least replicas={self.replicas} and add up to {self.workers}, got {self.sizes}"
            )
        if self.sizes is not None and len(self.sizes) > self.partitions:
            raise PlacementError(f"{len(self.sizes)} groups need as many partitions, got {self.partitions}")

    @cached_property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The workers of each group."""
        order = np.arange(self.workers) if self.speeds is None else np.argsort(self.speeds, kind="stable")
        if self.sizes is None:
            parts = np.array_split(order, min(self.workers // self.replicas, self.partitions))
        else:
            parts = np.split(order, np.cumsum(self.sizes)[:-1])
        return tuple(tuple(sorted(part.tolist())) for part in parts)

    @cached_property
    def shares(self) -> tuple[tuple[int, ...], ...]:
        """The partitions of each group."""
        weight = np.ones(len(self.groups))
        if self.speeds is not None:
            speeds = np.array(self.speeds)
            weight = np.array([np.median(speeds[list(group)]) for group in self.groups])
        free = self.partitions - len(weight)  # each group has one at least
        exact = free * weight / weight.sum()
        count = 1 + np.floor(exact).astype(int)
        count[np.argsort(-(exact % 1), kind="stable")[: self.partitions - count.sum()]] += 1
        return tuple(tuple(part.tolist()) for part in np.split(np.arange(self.partitions), np.cumsum(count)[:-1]))

    @cached_property
    def placement(self) -> NDArray[np.bool_]:  # type: ignore[override]
        """Who holds which partition."""
        matrix = np.zeros((self.workers, self.partitions), np.bool_)
        for group, share in zip(self.groups, self.shares, strict=True):
            matrix[np.ix_(group, share)] = True
        matrix.flags.writeable = False
        return matrix

    def _matrix(self, group: Sequence[int]) -> Matrix:
        return group_matrix(len(group), self.chunks, self.stragglers + self.adversaries, self.rng)

    def _coefficients(self) -> Any:
        m = self.chunks
        rows, columns, values = [], [], []
        for group, share in zip(self.groups, self.shares, strict=True):
            where = (np.array(share)[:, None] * m + np.arange(m)).ravel()
            rows.append(np.repeat(group, len(where)))
            columns.append(np.tile(where, len(group)))
            values.append(np.tile(self._matrix(group), len(share)).ravel())
        place = (np.concatenate(rows), np.concatenate(columns))
        return sparse.csr_array((np.concatenate(values), place), shape=(self.workers, self.partitions * m))

    @cached_property
    def components(self) -> tuple[Component, ...]:
        """One for each group."""
        parts = []
        for group in self.groups:
            matrix = self._matrix(group)
            parts.append(Component.of(group, null_checks(matrix), np.linalg.pinv(matrix)))
        return tuple(parts)

    def sufficient(self, responders: Iterable[int], exposed: Iterable[int] = ()) -> bool:
        """Whether enough of every group have answered; often long before the worst-case `threshold`."""
        if (
            isinstance(responders, Sized) and len(responders) < len(self.groups) * self.chunks
        ):  # asked after every answer
            return False
        needed = self.chunks + 2 * self.adversaries - np.minimum(self.adversaries, self._counts(exposed))
        return bool((self._counts(responders) >= needed).all())

    def _counts(self, workers: Iterable[int]) -> NDArray[np.intp]:
        """How many of them are in each group."""
        distinct = workers if isinstance(workers, Set) else set(workers)
        who = np.fromiter(distinct, np.intp, len(distinct))
        group = self._group_of[who[(who >= 0) & (who < self.workers)]]
        return np.bincount(group[group >= 0], minlength=len(self.groups))

    @cached_property
    def _group_of(self) -> NDArray[np.intp]:
        """The group of each worker, -1 for none."""
        found = np.full(self.workers, -1, np.intp)
        for index, group in enumerate(self.groups):
            found[list(group)] = index
        return found

    def approximates(self, responders: Iterable[int]) -> bool:
        """Whether some group has fewer answers than chunks."""
        present = set(responders)
        return any(len(present.intersection(group)) < self.chunks for group in self.groups)

    def _decode(self, responders: NDArray[np.intp], replies: Sequence[Any] | None) -> Matrix:
        present = np.zeros(self.workers, np.bool_)
        present[responders] = True
        total = np.zeros((self.chunks, self.workers))
        for component, group in zip(self.components, self.groups, strict=True):
            here = present[component.members]
            weights = component.weights(np.flatnonzero(~here))
            if weights is None:  # too few of this group: as much of its chunks as their messages tell
                weights = np.zeros((self.chunks, len(group)))
                weights[:, here] = np.linalg.pinv(self._matrix(group)[here])
            total[:, component.members] = weights
        return np.ascontiguousarray(total[:, responders])
