"""Polynomial codes for matrix products: outer products of blocks, threshold p n."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..difference_sets import next_prime
from ..frames import evenness
from ..interpolation import chebyshev_basis
from ..points import chebyshev_first
from .base import BelowThreshold, Matrix, seed_of
from .frame import unit_rows
from .product import ProductCode, check_basis, cosines, kron_rows, power_points

__all__ = ["KhatriRaoCode", "OuterProductCode", "PolynomialCode"]

_DRAWS = 200


class OuterProductCode(ProductCode):
    """All p n products of a block of A and one of B, each an unknown of its own."""

    p: int
    n: int

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

    @abstractmethod
    def _operands(self) -> tuple[Matrix, Matrix]:
        """U and V, up to the lengths of their rows."""


@dataclass(frozen=True)
class PolynomialCode(OuterProductCode):
    """Polynomial codes (Yu, Maddah-Ali and Avestimehr, NIPS 2017): A in p rows, B in n columns, any p n answers.

    Worker w multiplies A(s_w) = sum_i A_i s_w^i by B(s_w) = sum_l B_l s_w^(p l). In the monomial basis over the reals
    that fails from some 20 blocks on; the bases differ in what replaces the powers:

    - ``"harmonic"``: cosines and sines at frequencies whose sums do not meet modulo a prime. The replies form a real
      harmonic frame with scattered powers, so that paper 3's remedy works for products, too: the worst sets of
      responders found cost 10^7 times less than in the Chebyshev basis (docs/figures.md).
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
        check_basis(self.basis, "harmonic", "chebyshev", "circle", "monomial")
        self._check_splits(p=self.p, n=self.n)

    def _operands(self) -> tuple[Matrix, Matrix]:
        w, p, n = self.workers, self.p, self.n
        if self.basis == "harmonic":
            prime = next_prime(max(w, p * n, 3))  # 2 is its own half
            inner, outer = separated_frequencies(prime, p, n, np.random.default_rng(self.rng))
            turns = np.arange(w) / prime
            return cosines(turns, inner), cosines(turns, outer)
        if self.basis == "chebyshev":
            basis = chebyshev_basis(chebyshev_first(w), max(p - 1, p * (n - 1)))
            return basis[:, :p], basis[:, : p * n : p]
        points = power_points(self.basis, w)
        return points[:, None] ** np.arange(p), points[:, None] ** (p * np.arange(n))


@dataclass(frozen=True)
class KhatriRaoCode(OuterProductCode):
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

    def _operands(self) -> tuple[Matrix, Matrix]:
        rng = np.random.default_rng(self.rng)
        return rng.standard_normal((self.workers, self.p)), rng.standard_normal((self.workers, self.n))


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
        start = p if n % 2 else (p + 1) // 2
        outer = [0.0] * (n % 2) + [start + float(shares[: k + 1].sum()) + k * p for k in range(half)]
        sums = _sums(inner, outer, prime)
        if len(set(sums)) < p * n:
            continue
        score = evenness(np.isin(np.arange(prime), sums))
        if best is None or score < best[0]:
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
