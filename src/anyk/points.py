"""Nodes of evaluation codes, kept as exact fractions so that coincidences are found by integer arithmetic.

A set of nodes is given by integer `numerators`, one common `denominator` and the `curve` that maps the fraction
p = numerator / denominator in [0, 1] to the node x(p) in [-1, 1]:

- ``"cosine"``: x = cos(pi p), the Chebyshev families;
- ``"line"``: x = 1 - 2 p, equally spaced nodes.

Both curves fall with p, so numerators in rising order give nodes in falling order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Nodes",
    "chebyshev_first",
    "chebyshev_second",
    "coincidences",
    "differences",
    "equidistant_closed",
    "equidistant_open",
    "half_open_chebyshev",
    "nonzero",
    "roots_of_unity",
    "with_parities",
]


@dataclass(frozen=True, eq=False)
class Nodes:
    """Distinct nodes in [-1, 1], in falling order.

    Attributes
    ----------
    numerators : (n,) int64
    denominator : int
    curve : "cosine" or "line"
    """

    numerators: NDArray[np.int64]
    denominator: int
    curve: Literal["cosine", "line"] = "cosine"

    @property
    def values(self) -> NDArray[np.float64]:
        """The nodes themselves, shape (n,)."""
        if self.curve == "line":
            return np.asarray((self.denominator - 2 * self.numerators) / self.denominator)
        # sin of the distance to the middle is odd there, so the nodes are symmetric to the last bit.
        return np.sin(np.pi * (self.denominator - 2 * self.numerators) / (2 * self.denominator))

    def __len__(self) -> int:
        return len(self.numerators)

    def take(self, index: NDArray[np.intp]) -> Nodes:
        """The nodes at `index`, in that order."""
        return Nodes(self.numerators[index], self.denominator, self.curve)


def chebyshev_first(n: int) -> Nodes:
    """Chebyshev points of the first kind, cos((2j+1) pi / 2n): paper 1, equation (19).

    >>> chebyshev_first(2).values
    array([ 0.70710678, -0.70710678])
    """
    return Nodes(2 * np.arange(n) + 1, 2 * n)


def chebyshev_second(n: int) -> Nodes:
    """The n Chebyshev points of the second kind, cos(i pi / (n-1)): paper 1, equation (20) with N = n-1.

    >>> chebyshev_second(3).values
    array([ 1.,  0., -1.])
    """
    return Nodes(np.arange(n), max(n - 1, 1))


def half_open_chebyshev(n: int) -> Nodes:
    """cos(i pi / n) for i < n, with no node at -1: the choice of ApproxIFER (arXiv 2109.09868)."""
    return Nodes(np.arange(n), n)


def with_parities(data: int, parities: int) -> Nodes:
    """The `data` Chebyshev points of the first kind, then `parities` more nodes spread over the gaps between them.

    A gap with several of them is cut into equal parts of its angle. In the order of workers, so not monotone.

    >>> with_parities(2, 1).values.round(3)
    array([ 0.707, -0.707,  0.   ])
    """
    gaps = max(data - 1, 1)
    where = (2 * np.arange(parities) + 1) * gaps // (2 * max(parities, 1))  # as even as may be
    counts = np.bincount(where, minlength=gaps) if data > 1 else np.array([parities])
    parts = math.lcm(*(counts + 1).tolist())
    own = (2 * np.arange(data) + 1) * parts
    width = 2 * parts if data > 1 else parts
    more = [
        own[gap] + width * (1 + np.arange(count)) // (count + 1) for gap, count in enumerate(counts.tolist()) if count
    ]
    return Nodes(np.concatenate([own, *more]).astype(np.int64), 2 * data * parts)


def equidistant_closed(n: int) -> Nodes:
    """Equally spaced nodes that include both ends; a single node lies at 0."""
    if n == 1:
        return equidistant_open(1)
    return Nodes(np.arange(n), n - 1, "line")


def equidistant_open(n: int) -> Nodes:
    """Equally spaced nodes 1 - 2(j+1)/(n+1), without the ends."""
    return Nodes(np.arange(n) + 1, n + 1, "line")


def nonzero(family: Callable[[int], Nodes], n: int) -> NDArray[np.float64]:
    """n nodes of a symmetric family without the one at zero: those of the next even number.

    >>> nonzero(equidistant_closed, 3)
    array([ 1.        ,  0.33333333, -0.33333333])
    """
    return family(n + n % 2).values[:n]


def roots_of_unity(n: int) -> NDArray[np.complex128]:
    """exp(2 pi i j / n), from 1 around the circle."""
    return np.asarray(np.exp(2j * np.pi * np.arange(n) / n))


def coincidences(a: Nodes, b: Nodes) -> NDArray[np.bool_]:
    """Which node of `a` equals which node of `b`, shape (len(a), len(b)): exactly on one curve, else by floats."""
    if a.curve != b.curve:
        return np.equal(a.values[:, None], b.values[None, :])
    return np.equal(a.numerators[:, None] * b.denominator, b.numerators[None, :] * a.denominator)


def differences(a: Nodes, b: Nodes) -> NDArray[np.float64]:
    """a_i - b_j to full relative accuracy, shape (len(a), len(b)); across two curves as floats subtract.

    Subtracting the rounded nodes would lose the digits that the leading ones share; the product form
    cos A - cos B = 2 sin((A+B)/2) sin((B-A)/2) keeps them.
    """
    if a.curve != b.curve:
        return np.subtract.outer(a.values, b.values)
    common = math.lcm(a.denominator, b.denominator)
    p = a.numerators[:, None] * (common // a.denominator)
    q = b.numerators[None, :] * (common // b.denominator)
    if a.curve == "line":
        return np.asarray(2.0 * (q - p) / common)
    # sin is taken of the nearer of the sum and its mirror image: near pi the argument itself has lost digits.
    total = np.minimum(p + q, 2 * common - (p + q))
    if common < total.size:  # few distinct angles: look their sines up
        sines = np.sin(np.pi / (2 * common) * np.arange(common + 1))
        return np.asarray(2.0 * sines[total] * np.copysign(sines[np.abs(q - p)], q - p))
    half = np.pi / (2 * common)
    return np.asarray(2.0 * np.sin(half * total) * np.sin(half * (q - p)))
