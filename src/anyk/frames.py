"""Frames: n unit vectors in m dimensions, as the rows of an (n, m) matrix; how far apart they are, and power sets.

A harmonic frame has the rows (s^z_1, ..., s^z_m) / sqrt(m) for n points s of the unit circle. Its `powers` z decide how
loud decoding is; with uniform points the correlation of workers i and j depends on i - j alone:
c_d = (1/m) sum_z exp(2 pi i z d / n).
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .difference_sets import check_sizes, residues_of, whole_numbers

__all__ = [
    "coherence",
    "distance_bound",
    "evenness",
    "harmonic_rows",
    "is_equiangular",
    "nonuniform_samples",
    "optimized_powers",
    "random_powers",
    "real_harmonic_rows",
    "singular_responders",
    "welch_bound",
]

Array = NDArray[np.float64]
Powers = NDArray[np.int64]

_RESTARTS, _STEPS = 8, 300  # of a search for powers without a time limit


def _sizes(n: int, m: int) -> tuple[int, int]:
    n, m = check_sizes(n, m)
    if m > n:
        raise ValueError(f"m = {m} powers modulo n = {n} cannot be distinct")
    return n, m


# -- rows -------------------------------------------------------------------------------------------------------------


def harmonic_rows(n: int, powers: ArrayLike, samples: ArrayLike | None = None) -> NDArray[np.complex128]:
    """Rows of a harmonic frame, (n, m), unit norm: paper 3, Definitions 1 to 4.

    Parameters
    ----------
    n : int
    powers : (m,) int
    samples : (n,) complex, optional
        Points of the unit circle; default exp(2 pi i j / n).
    """
    z = np.asarray(powers, dtype=np.int64)
    if samples is None:
        turns = np.outer(np.arange(n), z % n) % n / n  # whole turns taken off exactly
    else:
        turns = np.outer(np.angle(np.asarray(samples)) / (2 * np.pi), z)
    return np.asarray(np.exp(2j * np.pi * turns) / math.sqrt(len(z)))


def real_harmonic_rows(n: int, powers: ArrayLike) -> Array:
    """The same frame for powers closed under negation modulo n, turned into a real one: cosines and sines.

    For z and -z the two columns become sqrt(2/m) cos(2 pi z j / n) and sqrt(2/m) sin(2 pi z j / n); all inner products
    of rows stay what they are.

    Raises
    ------
    ValueError
        If a power lacks its negative.
    """
    z = np.asarray(powers, dtype=np.int64) % n
    alone = sorted(set(z.tolist()) - set((-z % n).tolist()))
    if alone:
        raise ValueError(
            f"a real frame needs powers closed under negation modulo {n}: the negatives of {alone[:8]} are missing "
            "(random_powers and optimized_powers give such powers with real=True)"
        )
    columns = []
    for power in sorted(set(np.minimum(z, -z % n).tolist())):
        turns = np.arange(n) * power % n / n
        if 2 * power % n == 0:
            columns.append(np.cos(2 * np.pi * turns))
        else:
            columns += [math.sqrt(2) * np.cos(2 * np.pi * turns), math.sqrt(2) * np.sin(2 * np.pi * turns)]
    return np.stack(columns, axis=1) / math.sqrt(len(z))


def nonuniform_samples(
    n: int, periods: int, grid: int, *, pattern: Sequence[int] | None = None, rng: int | np.random.Generator = 0
) -> NDArray[np.complex128]:
    """Points of the circle that repeat a pattern: paper 3, Definition 3, b `periods` with r points in each's `grid`.

    Parameters
    ----------
    n : int
        Points; a multiple of `periods`.
    periods, grid : int
        The points are among the ``periods * grid`` roots of unity.
    pattern : (n / periods,) int, optional
        Distinct places in 0 .. grid - 1; drawn from `rng` by default.
    rng : int or numpy.random.Generator

    Returns
    -------
    (n,) complex128

    Examples
    --------
    >>> nonuniform_samples(4, periods=2, grid=4, pattern=[0, 1]).round(3)
    array([ 1.   +0.j   ,  0.707+0.707j, -1.   +0.j   , -0.707-0.707j])
    """
    if periods < 1 or grid < 1 or n < 1 or n % periods:
        raise ValueError(f"n must be a positive multiple of periods, got n={n}, periods={periods}, grid={grid}")
    size = n // periods
    if pattern is None:
        if size > grid:
            raise ValueError(f"a grid of {grid} points has no room for {size} points in each of {periods} periods")
        places = np.sort(np.random.default_rng(rng).permutation(grid)[:size])
    else:
        places = whole_numbers("pattern", pattern)
        if len(places) != size or len(set(places.tolist())) != size or not ((places >= 0) & (places < grid)).all():
            raise ValueError(f"pattern must hold {size} distinct places in 0..{grid - 1}, got {pattern!r}")
    exponents = (places + grid * np.arange(periods)[:, None]).ravel()
    return np.asarray(np.exp(2j * np.pi * (exponents / (periods * grid))))


# -- correlations -----------------------------------------------------------------------------------------------------


def welch_bound(n: int, m: int) -> float:
    """The least coherence of n unit vectors in m dimensions: sqrt((n - m) / (m (n - 1))).

    >>> round(welch_bound(103, 51), 6)
    0.099981
    """
    n, m = _sizes(n, m)
    return math.sqrt((n - m) / (m * (n - 1))) if n > 1 else 0.0


def coherence(frame: ArrayLike) -> float:
    """The largest absolute correlation of two different rows, each scaled to unit norm.

    Parameters
    ----------
    frame : (n, m) array
        Such as ``code.generator``; no row may be zero.
    """
    correlations = _correlations(frame)
    return float(correlations.max(initial=0.0))


def _correlations(frame: ArrayLike) -> Array:
    """Absolute inner products of different rows, (n (n - 1) / 2,)."""
    rows = np.asarray(frame)
    if rows.ndim != 2:
        raise ValueError(f"a frame is an (n, m) matrix with a vector in each row, got shape {rows.shape}")
    norms = np.linalg.norm(rows, axis=1)
    if not (norms > 0).all():
        raise ValueError(f"row {int(np.flatnonzero(~(norms > 0))[0])} of the frame is zero or not finite")
    unit = rows / norms[:, None]
    return np.asarray(np.abs(unit @ unit.conj().T)[np.triu_indices(len(unit), 1)])


def is_equiangular(frame: ArrayLike, tolerance: float = 1e-9) -> bool:
    """Whether the rows, scaled to unit norm, are an equiangular tight frame: every correlation is the Welch bound.

    Parameters
    ----------
    frame : (n, m) array
    tolerance : float
        Absolute, on correlations.

    Examples
    --------
    >>> is_equiangular(harmonic_rows(7, [1, 2, 4])), is_equiangular(harmonic_rows(7, [0, 1, 2]))
    (True, False)
    """
    correlations = _correlations(frame)
    n, m = np.shape(frame)
    return bool(m <= n and (np.abs(correlations - welch_bound(n, m)) <= tolerance).all())


# -- survivors that leave no answer -----------------------------------------------------------------------------------


def distance_bound(n: int, powers: ArrayLike) -> int:
    """A d such that the rows of any n - d + 1 uniform samples have full rank: d - 1 workers may always be missing.

    The larger of two: the BCH bound (a run of d - 1 residues that are no powers, in steps prime to n), which gives
    n - m + 1 for consecutive powers; and Meshulam's uncertainty principle, which gives n - m + 1 for prime n whatever
    the powers (Chebotarev). For composite n and scattered powers it is far below what most survivors need.

    >>> distance_bound(13, [0, 1, 3, 9]), distance_bound(12, [0, 1, 2, 3]), distance_bound(12, [0, 1, 4, 6])
    (10, 9, 6)
    """
    z = residues_of(n, powers)
    m = len(z)
    divisors = [d for d in range(1, n + 1) if n % d == 0]
    below = max(d for d in divisors if d <= m)
    above = min((d for d in divisors if d > m), default=n)
    best = -(-n * (below + above - m) // (below * above)) if m < n else 1
    if best >= n - m + 1:
        return n - m + 1
    absent = np.ones(n, dtype=bool)
    absent[z] = False
    for step in range(1, n // 2 + 1):
        if math.gcd(step, n) == 1:
            turned = absent[np.arange(n) * step % n]
            present = np.flatnonzero(~turned)
            best = max(best, int(np.diff(np.append(present, present[0] + n)).max()))
    return best


def singular_responders(n: int, powers: ArrayLike, responders: int) -> NDArray[np.int64] | None:
    """`responders` uniform samples whose rows are linearly dependent, if unions of cosets hold such: for composite n.

    On c cosets of the subgroup of order h, powers that are equal modulo h are only c equations apart: with more than c
    such powers the rows of all c h samples, and of any fewer, lack full rank. None for prime n, where there are no such
    samples, and where this construction yields none.

    Examples
    --------
    >>> singular_responders(12, [0, 4, 8, 1], 4)
    array([0, 1, 6, 7])
    """
    z = residues_of(n, powers)
    if isinstance(responders, bool) or not len(z) <= responders <= n:
        raise ValueError(f"responders must lie in {len(z)}..{n} (powers .. samples), got {responders}")
    for order in range(2, n):
        if n % order == 0:
            cosets = math.ceil(responders / order)
            if np.bincount(z % order).max() > cosets:
                step = n // order
                return np.sort((np.arange(order)[:, None] * step + np.arange(cosets)).T.ravel()[:responders])
    return None


# -- power sets -------------------------------------------------------------------------------------------------------


def random_powers(n: int, m: int, rng: int | np.random.Generator = 0, *, real: bool = False) -> Powers:
    """m distinct residues modulo n, rising; each set equally likely, among those closed under negation if `real`.

    >>> random_powers(20, 5, rng=1).tolist(), random_powers(20, 5, rng=1, real=True).tolist()
    ([1, 7, 10, 16, 18], [0, 1, 8, 12, 19])
    """
    n, m = _sizes(n, m)
    generator = np.random.default_rng(rng)
    if not real:
        return np.sort(generator.permutation(n)[:m]).astype(np.int64)
    own = generator.permutation([0, n // 2] if n % 2 == 0 and n > 1 else [0])  # residues that are their own negatives
    pairs = generator.permutation(np.arange(1, (n + 1) // 2))
    if m % 2 == 0 and len(own) == 2 and (m // 2 > len(pairs) or generator.random() < _share_of_both(n, m)):
        alone = own
    else:
        alone = own[: m % 2]
    chosen = pairs[: (m - len(alone)) // 2]
    return np.sort(np.concatenate([alone, chosen, -chosen % n])).astype(np.int64)


def _share_of_both(n: int, m: int) -> float:
    """Share of the symmetric sets of even size that hold 0 and n/2."""
    pairs, half = n // 2 - 1, m // 2
    with_both, without = math.comb(pairs, half - 1), math.comb(pairs, half)
    return with_both / (with_both + without)


def optimized_powers(
    n: int,
    m: int,
    rng: int | np.random.Generator = 0,
    *,
    real: bool = False,
    responders: int | None = None,
    seconds: float | None = None,
) -> Powers:
    """Powers of a harmonic frame that decodes more quietly than random ones do.

    Over random survivors the mean of tr W^-1, W their Gram matrix, follows from the moments of W, and the first of them
    that depends on the powers is the sum of the fourth powers of the correlations. That is n/m^4 times the sum of
    squares of how often each difference comes up, so the search is one for a set whose differences are as even as
    possible: a difference set, where there is one. It exchanges residues, the best exchange at a time, without going
    back at once (tabu search).

    Parameters
    ----------
    n, m : int
        Workers and blocks.
    rng : int or numpy.random.Generator
    real : bool
        Closed under negation, for a real frame.
    responders : int, optional
        k: answers that will be there. Power sets that some k answers are known to leave singular (composite n) are
        passed over. Default m.
    seconds : float, optional
        Search that long; without it a fixed number of steps, so that equal seeds give equal powers.

    Returns
    -------
    (m,) int64, rising

    Examples
    --------
    >>> optimized_powers(13, 4, rng=0).tolist()  # a difference set
    [0, 1, 8, 10]
    """
    n, m = _sizes(n, m)
    if responders is not None and not m <= responders <= n:
        raise ValueError(f"responders must lie in {m}..{n} (powers .. workers), got {responders}")
    generator = np.random.default_rng(rng)
    if m == n or m == 1:
        return np.arange(m, dtype=np.int64)
    if seconds is not None and not 0 <= seconds < math.inf:
        raise ValueError(f"seconds must be a finite number of at least 0, got {seconds!r}")
    end = math.inf if seconds is None else time.monotonic() + seconds
    perfect = m * (m - 1) % (n - 1) == 0
    least = m * (m - 1) * m * (m - 1) / (n - 1)
    best: tuple[tuple[bool, float], Powers] | None = None
    restart = 0
    while True:
        powers = random_powers(n, m, generator, real=real)
        steps = _STEPS if seconds is not None or n <= 500 else max(20, _STEPS * 500 // n)
        for found, score in _even_out(n, powers, steps, generator, real, end):
            singular = singular_responders(n, found, responders or m) is not None
            if best is None or (singular, score) < best[0]:
                best = (singular, score), found
        restart += 1
        over = restart >= _RESTARTS if seconds is None else time.monotonic() >= end
        if over or (perfect and best is not None and best[0] == (False, least)):
            break
    assert best is not None
    return np.sort(best[1])


def _even_out(
    n: int, powers: Powers, steps: int, rng: np.random.Generator, real: bool, end: float
) -> list[tuple[Powers, float]]:
    """Tabu search from `powers`; the sets on its way that were better than all before, with their sums of squares."""
    inside = np.zeros(n, dtype=bool)
    inside[powers] = True
    tabu = np.zeros(n, dtype=np.int64)  # step until which a residue may not come back
    best = math.inf
    found: list[tuple[Powers, float]] = []
    own = {0, n // 2} if n % 2 == 0 else {0}
    for step in range(steps):
        if time.monotonic() > end:
            break
        members = np.flatnonzero(inside)
        if real:
            pairs = [z for z in members.tolist() if z not in own and z <= n - z]
            if not pairs:
                return [*found, (members, evenness(inside))]
            out = int(rng.choice(pairs))
            gone = [out, n - out]
        else:
            out = int(rng.choice(members))
            gone = [out]
        inside[gone] = False
        scores = _scores_of_pairs(inside) if real else _scores(inside)
        scores[inside] = math.inf
        if real:
            scores[list(own)] = math.inf
            scores[n // 2 + 1 :] = math.inf
        scores[tabu > step] = math.inf
        scores[out] = math.inf if step % 3 else scores[out]
        into = int(scores.argmin())
        if not math.isfinite(scores[into]):
            into = out
        tabu[out] = step + 1 + int(rng.integers(0, max(2, len(members) // 5)))
        inside[[into, (-into) % n] if real else [into]] = True
        if scores[into] < best - 0.5:
            best = float(round(scores[into]))
            found.append((np.flatnonzero(inside), best))
    return found[-4:] or [(np.flatnonzero(inside), evenness(inside))]


def _differences(inside: NDArray[np.bool_]) -> Array:
    """How often each non-zero residue is a difference; 0 at zero."""
    spectrum = np.abs(np.fft.rfft(inside.astype(np.float64))) ** 2
    counts = np.fft.irfft(spectrum, len(inside)).round()
    counts[0] = 0
    return np.asarray(counts)


def evenness(inside: NDArray[np.bool_]) -> float:
    """Sum of squares of `_differences`: n/m^4 of it is the sum of fourth powers of the correlations."""
    return float((_differences(inside) ** 2).sum())


def _scores(inside: NDArray[np.bool_]) -> Array:
    """`evenness` of the set with each residue added, for all residues at once, by convolutions."""
    n, size = len(inside), int(inside.sum())
    counts = _differences(inside)
    spectrum = np.fft.rfft(inside.astype(np.float64))
    mixed = np.fft.irfft(np.fft.rfft(counts) * spectrum, n)
    sums = np.fft.irfft(spectrum**2, n)
    doubled = sums[2 * np.arange(n) % n]
    # v adds the differences v - x and x - v: the squares grow by 2 r (p + q) + (p + q)^2
    return np.asarray((counts**2).sum() + 4 * mixed + 2 * size + 2 * doubled)


def _scores_of_pairs(inside: NDArray[np.bool_]) -> Array:
    """The same with both v and -v added, where 2 v is not 0, to a set closed under negation."""
    n, size = len(inside), int(inside.sum())
    counts = _differences(inside)
    spectrum = np.fft.rfft(inside.astype(np.float64))
    mixed = np.fft.irfft(np.fft.rfft(counts) * spectrum, n)
    sums = np.fft.irfft(spectrum**2, n)
    v = np.arange(n)
    # The differences v - x and v + x come up twice each with both signs, 2 v and -2 v once: r (p + q), (p + q)^2.
    grown = 8 * mixed + 4 * counts[2 * v % n] + 8 * size + 8 * sums[2 * v % n] + 8 * inside[3 * v % n]
    return np.asarray((counts**2).sum() + grown + np.where(4 * v % n == 0, 4, 2))
