"""Cyclic difference sets: m residues modulo n whose differences meet every non-zero residue equally often.

Read as powers of a harmonic frame they make it equiangular (paper 3, Lemma 2). Residues are rising, from 0.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "check_sizes",
    "difference_family",
    "difference_set",
    "is_difference_set",
    "is_prime",
    "next_prime",
    "residues_of",
    "whole_numbers",
]

_NEAR = 250  # how far off a set may be that an error names
_LARGEST = 1 << 22  # field elements that are gone through to make a Singer set


def check_sizes(n: int, m: int) -> tuple[int, int]:
    """n and m as integers, refused unless positive."""
    for name, value in (("n", n), ("m", m)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
            raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
    return int(n), int(m)


def whole_numbers(name: str, values: object) -> NDArray[np.int64]:
    """A non-empty sequence of integers, checked."""
    array = np.asarray(values)
    if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "iu":
        raise ValueError(f"{name} must be a non-empty sequence of integers, got {values!r}")
    return array.astype(np.int64)


def residues_of(n: int, values: object) -> NDArray[np.int64]:
    """The distinct residues modulo n, rising."""
    n, _ = check_sizes(n, 1)
    return np.unique(whole_numbers("residues", values) % n)


def is_difference_set(n: int, residues: object) -> bool:
    """Whether every non-zero residue modulo n is equally often a difference of two of these.

    >>> is_difference_set(7, [1, 2, 4]), is_difference_set(7, [1, 2, 3])
    (True, False)
    """
    members = residues_of(n, residues)
    if n == 1 or len(members) < 2:
        return len(members) <= 1
    counts = np.bincount((members[:, None] - members).ravel() % n, minlength=n)[1:]
    return bool((counts == counts[0]).all())


def difference_set(n: int, m: int) -> NDArray[np.int64]:
    """A cyclic difference set of m residues modulo n, where one is known.

    The families are those of all known parameters: quadratic residues (n a prime, 3 modulo 4), Singer's hyperplanes
    (n = (q^(d+1) - 1) / (q - 1) points, q a prime power), products of twin primes, biquadratic and octic residues
    without and with zero, single residues, and the complements of all of them.

    Parameters
    ----------
    n : int
        Modulus: the number of workers.
    m : int
        How many residues: the number of blocks.

    Returns
    -------
    (m,) int64, rising

    Raises
    ------
    ValueError
        Where none can exist, or none is known; says which, and names the nearest that there is.

    References
    ----------
    Xia, Zhou and Giannakis, Achieving the Welch bound with difference sets, 2005; Baumert, Cyclic difference sets,
    1971.

    Examples
    --------
    >>> difference_set(13, 4)
    array([0, 1, 3, 9])
    """
    n, m = check_sizes(n, m)
    if m > n:
        raise ValueError(f"{m} residues modulo {n} cannot be distinct")
    make = _known(n, m)
    if make is None and m < n:
        make = _complement(n, m)
    if make is not None:
        return make()
    if n > 1 and m * (m - 1) % (n - 1):
        why = f"there is none: each of {n - 1} differences would come up {m * (m - 1)}/{n - 1} times"
    else:
        why = "none is known: not of quadratic, biquadratic or octic residues, Singer's, or of twin primes"
    raise ValueError(
        f"no difference set of {m} residues modulo {n}: {why}. {_nearest(n, m)}optimized_powers({n}, {m}) comes close"
    )


def difference_family(n: int, m: int) -> str | None:
    """The name of the family that `difference_set` takes; None where none is known.

    >>> difference_family(103, 51), difference_family(100, 50)
    ('quadratic residues', None)
    """
    for size, prefix in ((m, ""), (n - m, "complement of ")):
        for name, make in _FAMILIES.items():
            if size >= 1 and make(n, size) is not None:
                return prefix + name
    return None


def _known(n: int, m: int) -> Callable[[], NDArray[np.int64]] | None:
    return next((make for family in _FAMILIES.values() if (make := family(n, m)) is not None), None)


def _complement(n: int, m: int) -> Callable[[], NDArray[np.int64]] | None:
    make = _known(n, n - m)
    return None if make is None else lambda: np.setdiff1d(np.arange(n), make())


def _nearest(n: int, m: int) -> str:
    """The nearest known parameters with no fewer blocks, in words."""
    found = [
        (abs(v - n) / n + abs(k - m) / m, v, k)
        for v in range(max(n * 4 // 5, n - _NEAR, 2), min(n * 5 // 4, n + _NEAR) + 2)
        for k in range(m, min(v - 1, m * 5 // 4, m + _NEAR) + 2)
        if k * (k - 1) % (v - 1) == 0 and 1 < k < v - 1 and (_known(v, k) or _known(v, v - k))
    ]
    return f"The nearest known has {min(found)[2]} modulo {min(found)[1]}; " if found else ""


# -- families: each tells from (n, m) whether it has such a set, and how to make it -----------------------------------

_Family = Callable[[], NDArray[np.int64]] | None


def _single(n: int, m: int) -> _Family:
    """One residue, or all of them."""
    return (lambda: np.arange(m)) if m in (1, n) else None


def _quadratic(n: int, m: int) -> _Family:
    if n % 4 != 3 or 2 * m + 1 != n or not is_prime(n):
        return None
    return lambda: power_residues(n, 2)


def _singer(n: int, m: int) -> _Family:
    """Points of a projective space on a hyperplane."""
    if m < 2 or (n - 1) % m:
        return None
    q = (n - 1) // m  # a hyperplane of (n - 1) / q points
    points = q * q + q + 1
    while points < n:
        points = points * q + 1
    if points != n or n * (q - 1) > _LARGEST or len(prime_factors(q)) != 1:
        return None
    return lambda: _hyperplane(q, n)


def _twin_primes(n: int, m: int) -> _Family:
    p = math.isqrt(n + 1) - 1
    if p * (p + 2) != n or 2 * m + 1 != n or not (is_prime(p) and is_prime(p + 2)):
        return None

    def make() -> NDArray[np.int64]:
        signs = np.zeros((2, n), dtype=np.int64)
        for row, prime in zip(signs, (p, p + 2), strict=True):
            kind = np.full(prime, -1)
            kind[0] = 0
            kind[power_residues(prime, 2)] = 1
            row[:] = kind[np.arange(n) % prime]
        return np.flatnonzero((signs[0] * signs[1] == 1) | (signs[1] == 0))

    return make


def _residues(power: int, shape: Callable[[int], bool], zero: bool) -> Callable[[int, int], _Family]:
    """Residues of a power modulo a prime of some shape, perhaps with zero."""

    def family(n: int, m: int) -> _Family:
        if (n - 1) % power or m != (n - 1) // power + zero or not shape(n) or not is_prime(n):
            return None
        if zero:
            return lambda: np.concatenate([[0], power_residues(n, power)])
        return lambda: power_residues(n, power)

    return family


def _odd_square(value: int, times: int) -> bool:
    """Whether value = times * x^2 with x odd."""
    root = math.isqrt(max(value, 0) // times)
    return value > 0 and times * root * root == value and root % 2 == 1


def _even_square(value: int, times: int) -> bool:
    root = math.isqrt(max(value, 0) // times)
    return value >= 0 and times * root * root == value and root % 2 == 0


_FAMILIES: dict[str, Callable[[int, int], _Family]] = {
    "single residues": _single,
    "quadratic residues": _quadratic,
    "Singer": _singer,
    "twin primes": _twin_primes,
    "biquadratic residues": _residues(4, lambda n: _odd_square(n - 1, 4), False),
    "biquadratic residues and zero": _residues(4, lambda n: _odd_square(n - 9, 4), True),
    "octic residues": _residues(8, lambda n: _odd_square(n - 1, 8) and _odd_square(n - 9, 64), False),
    "octic residues and zero": _residues(8, lambda n: _odd_square(n - 49, 8) and _even_square(n - 441, 64), True),
}


# -- arithmetic -------------------------------------------------------------------------------------------------------


def is_prime(n: int) -> bool:
    """Trial division; moduli are numbers of workers."""
    return n > 1 and all(n % p for p in range(2, math.isqrt(n) + 1))


def next_prime(least: int) -> int:
    """The first prime from `least` on."""
    while not is_prime(least):
        least += 1
    return least


def power_residues(n: int, power: int) -> NDArray[np.int64]:
    """Non-zero residues x^power modulo the prime n, rising; n below 2^31."""
    x = np.arange(1, n, dtype=np.int64)
    result = np.ones_like(x)
    for _ in range(power):
        result = result * x % n
    return np.unique(result)


def prime_factors(n: int) -> list[int]:
    """Distinct ones."""
    found, p = [], 2
    while p * p <= n:
        if n % p == 0:
            found.append(p)
            while n % p == 0:
                n //= p
        p += 1
    return found + [n] * (n > 1)


def _hyperplane(q: int, n: int) -> NDArray[np.int64]:
    """{i < n : alpha^i lies in a hyperplane}, alpha a primitive element of the field over GF(q) with n (q-1) units.

    L(alpha^i) for a linear form L over the prime field is a shift-register sequence; alpha^i lies in the GF(q)-space
    on which L vanishes together with its multiples where L(alpha^(i + n j)) = 0 for all powers alpha^(n j) of GF(q).
    """
    p = prime_factors(q)[0]
    e = round(math.log(q, p))
    degree = round(math.log(n * (q - 1) + 1, p))
    taps = _primitive(p, degree)
    sequence = np.zeros(n * e, dtype=np.int64)
    register = [0] * (degree - 1) + [1]
    for index in range(len(sequence)):
        sequence[index] = register[0]
        register = [*register[1:], sum(c * x for c, x in zip(taps, register, strict=True)) % p]
    return np.flatnonzero((sequence.reshape(e, n) == 0).all(axis=0))


def _primitive(p: int, degree: int) -> list[int]:
    """c with x^degree = c_0 + c_1 x + ... a polynomial over GF(p) whose root generates the units of GF(p^degree)."""
    units = p**degree - 1
    tests = [units // factor for factor in prime_factors(units)]
    one = [1] + [0] * (degree - 1)
    for weight in itertools.count():  # few non-zero coefficients first: they are quick to find
        for rest in itertools.product(range(p), repeat=min(weight, degree - 1)):
            for first in range(1, p):
                taps = [first, *rest, *[0] * (degree - 1 - len(rest))]
                if _root_to(units, taps, p) == one and all(_root_to(t, taps, p) != one for t in tests):
                    return taps
    raise AssertionError  # there always is one


def _root_to(exponent: int, taps: list[int], p: int) -> list[int]:
    """The root of the polynomial to a power, as coefficients."""
    degree = len(taps)

    def times_root(a: list[int]) -> list[int]:
        return [(c * a[-1] + low) % p for c, low in zip(taps, [0, *a[:-1]], strict=True)]

    def times(a: list[int], b: list[int]) -> list[int]:
        total = [0] * degree
        for factor in b:
            total = [(t + factor * x) % p for t, x in zip(total, a, strict=True)]
            a = times_root(a)
        return total

    result = [1] + [0] * (degree - 1)
    for bit in bin(exponent)[2:]:
        result = times(result, result)
        if bit == "1":
            result = times_root(result)
    return result
