"""Gradient codes from a null space: the optimum of the universal polynomial, well conditioned, for any placement."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import cho_factor, cho_solve

from ..blocks import one_blas_thread
from ..placement import chunks_for
from .base import Matrix
from .gradient import Component, GradientCode

__all__ = ["NullSpaceCode"]

_SWEEPS = 20  # alternations of a fit; half as many where one takes long
_LONG = 500  # workers
_DAMPING = 0.3
_PROBES = 400  # random straggler sets, beside contiguous ones, on which draws are scored
_DIRECT = 2000  # workers up to which the fit factorises a dense matrix


class _Batch(NamedTuple):
    """Partitions with equally many holders."""

    partitions: NDArray[np.intp]  # (p,)
    holders: NDArray[np.intp]  # (p, size)
    bases: Matrix  # (p, size, size - checks): orthonormal, null space of the checks on the holders


class _Draw(NamedTuple):
    coefficients: Any
    component: Component


@dataclass(frozen=True, eq=False, repr=False)
class NullSpaceCode(GradientCode):
    """Exact sums for any placement, with messages of d/(r-s-2a) numbers and little noise amplification.

    All messages lie in the null space of checks H, s + 2a of them at random frequencies, so that any N - s - 2a honest
    answers determine the others. Partition k, held by A_k, is encoded by the vectors of null(H[:, A_k]) that a common
    reader L maps to the unit vectors; L is fitted so that it is close to orthogonal on all of these spaces at once
    (alternating between it and the nearest orthogonal factors), which keeps the coefficients of all partitions alike
    and the noise low. Of several draws the one with the smallest amplification over random and contiguous straggler
    sets is kept.

    Parameters
    ----------
    placement : (workers, partitions) bool
    stragglers, adversaries : int
        Recovery is exact with any so many workers missing, and any so many others lying.
    rng : int or numpy.random.Generator
        Seed of the draws: equal seeds give equal codes.

    Raises
    ------
    PlacementError
        If r <= s + 2a.

    Examples
    --------
    >>> import anyk
    >>> code = NullSpaceCode(anyk.cyclic_placement(10, 10, 7), stragglers=2, adversaries=1)
    >>> gradients = np.arange(90.0).reshape(10, 9)
    >>> messages = code.encode(gradients)
    >>> messages.shape, code.chunks
    ((10, 3), 3)
    >>> responders = [0, 1, 2, 4, 5, 6, 8, 9]
    >>> total = code.decoder(responders) @ messages[responders]
    >>> np.round(total.ravel(), 6)
    array([405., 415., 425., 435., 445., 455., 465., 475., 485.])
    """

    placement: NDArray[np.bool_]
    stragglers: int = 0
    adversaries: int = 0
    rng: int = 0

    def __post_init__(self) -> None:
        self._check_placement()
        chunks_for(self.replicas, self.stragglers, self.adversaries)

    def _coefficients(self) -> Any:
        return self._best.coefficients

    @cached_property
    def components(self) -> tuple[Component, ...]:
        """One: all workers share the checks."""
        return (self._best.component,)

    @cached_property
    def _best(self) -> _Draw:
        """Draw, fit, score, keep the best."""
        rng = np.random.default_rng(self.rng)
        count, n = self.stragglers + 2 * self.adversaries, self.workers
        random, contiguous = self._probes(rng)
        sweeps = _SWEEPS if n <= _LONG else _SWEEPS // 2
        best: tuple[float, _Draw] | None = None
        with one_blas_thread():
            for _ in range(int(np.clip(30_000 // (n * max(count, 1)), 1, 16))):
                draw = self._draw(harmonic_checks(count, n, rng), rng, sweeps)
                # The worst of many random sets is a matter of luck; the ninth decile tells how bad others will be.
                score = np.quantile(_amplifications(draw.component, random), 0.9)
                score += _amplifications(draw.component, contiguous).max() / 20
                if best is None or score < best[0]:
                    best = float(score), draw
        assert best is not None
        return best[1]

    def _probes(self, rng: np.random.Generator) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Sets of workers that may be missing once the liars have been dropped: random and contiguous ones."""
        n, size = len(self.active), self.stragglers + self.adversaries
        random = rng.random((_PROBES, n)).argsort(axis=1)[:, :size]
        contiguous = (np.arange(0, n, 1 + n // _PROBES)[:, None] + np.arange(size)) % n
        return random, contiguous

    def _draw(self, checks: Matrix, rng: np.random.Generator, sweeps: int) -> _Draw:
        n, m = self.workers, self.chunks
        batches = self._batches(checks)
        reader = _fit(batches, rng.standard_normal((m, n)) / np.sqrt(n), sweeps)
        rows, columns, values = [], [], []
        for batch in batches:
            # V pinv(L V): the least vectors of the null space that L maps to the unit vectors.
            mapped = _read(reader, batch)
            vectors = batch.bases @ np.linalg.pinv(mapped)
            shape = vectors.shape
            rows.append(np.broadcast_to(batch.holders[:, :, None], shape).ravel())
            columns.append(np.broadcast_to((batch.partitions[:, None] * m + np.arange(m))[:, None], shape).ravel())
            values.append(vectors.ravel())
        place = (np.concatenate(rows), np.concatenate(columns))
        matrix = sparse.csr_array((np.concatenate(values), place), shape=(n, self.partitions * m))
        scale = np.sqrt(np.asarray(matrix.multiply(matrix).sum(axis=1)).ravel())
        scale[scale == 0] = 1.0
        unit = sparse.csr_array(matrix.multiply(1 / scale[:, None]))
        # Workers that hold nothing send nothing and are never missing.
        busy = np.array(self.active)
        component = Component.of(busy, (checks * scale)[:, busy], (reader * scale)[:, busy])
        return _Draw(unit, component)

    def _batches(self, checks: Matrix) -> list[_Batch]:
        copies = self.placement.sum(axis=0)
        holders = np.nonzero(self.placement.T)[1]  # partition after partition
        starts = np.r_[0, np.cumsum(copies)[:-1]]
        batches = []
        for size in np.unique(copies):
            partitions = np.flatnonzero(copies == size)
            who = holders[starts[partitions][:, None] + np.arange(size)]
            full = np.linalg.qr(checks[:, who].transpose(1, 2, 0), mode="complete")[0]
            batches.append(_Batch(partitions, who, full[:, :, len(checks) :]))
        return batches


def harmonic_checks(count: int, workers: int, rng: np.random.Generator) -> Matrix:
    """Rows cos(2 pi f n / p) and sin(2 pi f n / p) at random frequencies f, and ones if `count` is odd.

    All columns are equally long, and since the grid p is prime no minor of full size is zero (Chebotarev): whoever is
    missing, messages of others determine theirs.
    """
    grid = max(workers, count + 1)
    while any(grid % divisor == 0 for divisor in range(2, math.isqrt(grid) + 1)):
        grid += 1
    frequencies = rng.choice(np.arange(1, (grid + 1) // 2), count // 2, replace=False)
    angles = 2 * np.pi * (frequencies[:, None] * np.arange(workers) % grid) / grid
    ones = np.full((count % 2, workers), math.sqrt(0.5))
    return np.concatenate([np.cos(angles), np.sin(angles), ones])


def _read(reader: Matrix, batch: _Batch) -> Matrix:
    """L V for each partition: (p, m, size - checks)."""
    return np.asarray(reader.T[batch.holders].transpose(0, 2, 1) @ batch.bases)


def _fit(batches: list[_Batch], reader: Matrix, sweeps: int) -> Matrix:
    """A reader close to orthogonal on all the null spaces: argmin sum_k ||L V_k - Q_k||^2 + damping ||L||^2.

    Q_k, with orthonormal rows, is the nearest to the present L V_k; both are improved in turn.
    """
    n = reader.shape[1]
    rows, columns, values = [], [], []
    for batch in batches:
        squares = batch.bases @ batch.bases.transpose(0, 2, 1)
        rows.append(np.broadcast_to(batch.holders[:, :, None], squares.shape).ravel())
        columns.append(np.broadcast_to(batch.holders[:, None, :], squares.shape).ravel())
        values.append(squares.ravel())
    normal = sparse.csr_array(
        (np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))), shape=(n, n)
    ) + _DAMPING * sparse.eye_array(n, format="csr")
    factor = cho_factor(normal.toarray()) if n <= _DIRECT else None
    spread = [
        sparse.csr_array((np.ones(b.holders.size), (b.holders.ravel(), np.arange(b.holders.size))), (n, b.holders.size))
        for b in batches
    ]
    for _ in range(sweeps):
        wanted = np.zeros((n, len(reader)))
        for batch, scatter in zip(batches, spread, strict=True):
            u, _, vt = np.linalg.svd(_read(reader, batch), full_matrices=False)
            pulled = batch.bases @ (u @ vt).transpose(0, 2, 1)
            wanted += scatter @ pulled.reshape(-1, len(reader))
        reader = (cho_solve(factor, wanted) if factor is not None else _conjugate(normal, wanted, reader.T)).T
    return np.ascontiguousarray(reader)


def _conjugate(matrix: Any, right: Matrix, guess: Matrix, steps: int = 6) -> Matrix:
    """A few conjugate-gradient steps for all columns at once; the outer iteration forgives what is left."""
    x = guess.copy()
    residual = right - matrix @ x
    direction, square = residual, (residual**2).sum(axis=0)
    for _ in range(steps):
        image = matrix @ direction
        step = square / np.maximum((direction * image).sum(axis=0), 1e-300)
        x = x + step * direction
        residual = residual - step * image
        new = (residual**2).sum(axis=0)
        direction, square = residual + new / np.maximum(square, 1e-300) * direction, new
    return x


def _amplifications(component: Component, probes: NDArray[np.intp]) -> NDArray[np.float64]:
    """The largest row norm of the weights without the members in each row of `probes`."""
    wanted = component.reader[:, probes].transpose(1, 0, 2)
    x = wanted @ np.linalg.pinv(component.checks[:, probes].transpose(1, 0, 2))
    squares = (component.reader**2).sum(axis=1) + (x**2).sum(axis=2)  # reader and checks are orthogonal
    return np.asarray(np.sqrt(squares.max(axis=1)))
