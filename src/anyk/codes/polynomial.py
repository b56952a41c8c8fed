"""Polynomial codes for matrix products: outer products of blocks, threshold p n."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..difference_sets import is_prime
from ..interpolation import chebyshev_basis
from ..points import chebyshev_first
from .base import Matrix, seed_of
from .frame import BelowThreshold, unit_rows
from .product import ProductCode, kron_rows

__all__ = ["KhatriRaoCode", "PolynomialCode"]

_DRAWS = 200


@dataclass(frozen=True)
class PolynomialCode(ProductCode):
    """Polynomial codes (Yu, Maddah-Ali and Avestimehr, NIPS 2017): A in p rows, B in n columns, any p n answers.

    Worker w multiplies A(s_w) = sum_i A_i s_w^i by B(s_w) = sum_l B_l s_w^(p l). In the monomial basis over the reals
    that fails from some 20 blocks on; the bases differ in what replaces the powers:

    - ``"harmonic"``: cosines and sines at frequencies whose sums do not meet modulo a prime. The replies form a real
      harmonic frame with scattered powers, so that paper 3's remedy works for products, too: the worst sets of
      responders found cost 10^9 times less than in the Chebyshev basis (docs/figures.md).
    - ``"chebyshev"``: T_i and T_(p l) at Chebyshev points (arXiv 1903.08326).
    - ``"circle"``: powers at roots of unity; complex.
    - ``"monomial"``: the literature's, at Chebyshev points.

    Parameters
    ----------
    workers : int
    p, n : int
        Rows of blocks that A is cut into, columns that B is cut into.
    basis : {"harmonic", "chebyshev", "circle", "monomial"}
    rng : int or numpy.random.Generator
        Seed of the search for frequencies.
    below_threshold : {"raise", "least-squares"}

    Examples
    --------
    >>> code = PolynomialCode(workers=8, p=2, n=3)
    >>> a, b = np.arange(4.0).reshape(2, 1, 2), np.arange(6.0).reshape(3, 2, 1)
    >>> left, right = code.encode(a, b)
    >>> np.round(code.decoder([7, 2, 3, 0, 5, 4]) @ (left @ right)[[7, 2, 3, 0, 5, 4]], 9).ravel()
    array([ 1.,  3.,  5.,  3., 13., 23.])
    """

    workers: int
    p: int
    n: int
    basis: Literal["harmonic", "chebyshev", "circle", "monomial"] = "harmonic"
    rng: int | np.random.Generator = 0
    below_threshold: BelowThreshold = "raise"

    def __post_init__(self) -> None:
        object.__setattr__(self, "rng", seed_of(self.rng))
        if self.basis not in ("harmonic", "chebyshev", "circle", "monomial"):
            raise ValueError(f"basis must be harmonic, chebyshev, circle or monomial, got {self.basis!r}")
        self._check_splits(p=self.p, n=self.n)

    @property
    def splits(self) -> tuple[int, int, int]:
        """(p, 1, n)."""
        return self.p, 1, self.n

    @property
    def threshold(self) -> int:
        """p n."""
        return self.p * self.n

    def _build(self) -> tuple[Matrix, Matrix, Matrix, Matrix]:
        left, right = (unit_rows(rows) for rows in self._operands())
        return left, right, kron_rows(left, right), np.eye(self.p * self.n)

    def _operands(self) -> tuple[Matrix, Matrix]:
        w, p, n = self.workers, self.p, self.n
        if self.basis == "harmonic":
            prime = _prime_from(max(w, p * n))
            inner, outer = separated_frequencies(prime, p, n, np.random.default_rng(self.rng))
            turns = np.arange(w) / prime
            return _cosines(turns, inner), _cosines(turns, outer)
        if self.basis == "chebyshev":
            basis = chebyshev_basis(chebyshev_first(w), max(p - 1, p * (n - 1)))
            return basis[:, :p], basis[:, : p * n : p]
        if self.basis == "circle":
            points = np.exp(2j * np.pi * np.arange(w) / w)
        else:
            points = chebyshev_first(w + w % 2).values[:w]
        return points[:, None] ** np.arange(p), points[:, None] ** (p * np.arange(n))


@dataclass(frozen=True)
class KhatriRaoCode(ProductCode):
    """Random Khatri-Rao products (arXiv 1907.05965): normal U and V, any p n answers with probability one.

    Parameters
    ----------
    workers, p, n : int
        As in `PolynomialCode`.
    rng : int or numpy.random.Generator
        Seed: equal seeds give equal codes.
    below_threshold : {"raise", "least-squares"}

    Examples
    --------
    >>> code = KhatriRaoCode(workers=8, p=2, n=3, rng=1)
    >>> code.threshold, code.decoder(range(6)).residual < 1e-12
    (6, True)
    """

    workers: int
    p: int
    n: int
    rng: int | np.random.Generator = 0
    below_threshold: BelowThreshold = "raise"

    def __post_init__(self) -> None:
        object.__setattr__(self, "rng", seed_of(self.rng))
        self._check_splits(p=self.p, n=self.n)

    @property
    def splits(self) -> tuple[int, int, int]:
        """(p, 1, n)."""
        return self.p, 1, self.n

    @property
    def threshold(self) -> int:
        """p n."""
        return self.p * self.n

    def _build(self) -> tuple[Matrix, Matrix, Matrix, Matrix]:
        rng = np.random.default_rng(self.rng)
        left = unit_rows(rng.standard_normal((self.workers, self.p)))
        right = unit_rows(rng.standard_normal((self.workers, self.n)))
        return left, right, kron_rows(left, right), np.eye(self.p * self.n)


def _prime_from(least: int) -> int:
    """The first prime from max(least, 3) on: 2 is its own half."""
    prime = max(least, 3)
    while not is_prime(prime):
        prime += 1
    return prime


def _cosines(turns: NDArray[np.float64], frequencies: list[float]) -> Matrix:
    """sqrt(2) cos and sin of 2 pi f t for each positive frequency, 1 for zero."""
    columns = []
    for f in frequencies:
        angle = 2 * np.pi * f * turns
        columns += [np.ones_like(turns)] if f == 0 else [math.sqrt(2) * np.cos(angle), math.sqrt(2) * np.sin(angle)]
    return np.stack(columns, axis=1)


def separated_frequencies(prime: int, p: int, n: int, rng: np.random.Generator) -> tuple[list[float], list[float]]:
    """Non-negative frequencies e and f such that all +-e +-f are distinct modulo the prime and as even as found.

    E is an interval of p frequencies around zero, in steps of one (halves where p is even: 1/2 stands for its residue);
    F has p between neighbours or more, and how the slack is dealt out is drawn, many times; the draw whose sums have
    the most even differences is kept, as in `anyk.optimized_powers`.
    """
    inner = [0.0] * (p % 2) + [k + (0.5 if p % 2 == 0 else 1.0) for k in range(p // 2)]
    slack, half = prime - p * n, n // 2
    best: tuple[float, list[float]] | None = None
    for _ in range(_DRAWS if half else 1):
        # n odd: a block around 0. n even: the inner gap and the one across half the circle hold slack of their own.
        shares = rng.multinomial(slack // 2, np.full(half + 1, 1 / (half + 1))) if half else np.zeros(1, dtype=int)
        start = p if n % 2 else p / 2
        outer = [0.0] * (n % 2) + [start + float(shares[: k + 1].sum()) + k * p for k in range(half)]
        if p % 2 == 0 or n % 2:
            outer = [float(math.floor(f)) if n % 2 else f for f in outer]
        else:  # p odd, n even: p/2 is no whole number, and all must be residues alike
            outer = [f + 0.5 for f in outer]
        sums = _sums(inner, outer, prime)
        if len(set(sums)) < p * n:
            continue
        inside = np.zeros(prime)
        inside[sums] = 1
        differences = np.fft.irfft(np.abs(np.fft.rfft(inside)) ** 2, prime)
        score = float((differences[1:] ** 2).sum())
        if best is None or score < best[0] - 1e-6:
            best = score, outer
    if best is None:
        raise AssertionError(f"no frequencies for p={p}, n={n} modulo {prime}")
    return inner, best[1]


def _sums(inner: list[float], outer: list[float], prime: int) -> list[int]:
    """All +-e +-f as residues, halves by the inverse of 2."""
    halves = [
        int(2 * (a * e + b * f)) for e in inner for f in outer for a in {1, -1 if e else 1} for b in {1, -1 if f else 1}
    ]
    return [h * (prime + 1) // 2 % prime for h in halves]
