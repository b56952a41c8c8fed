"""Paper 2, section IV: a matrix polynomial of the sum, h(sum_k G_k), from workers that apply h to what they hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.polynomial.chebyshev import chebvander
from numpy.typing import ArrayLike, NDArray

from ..errors import PlacementError, TooFewResponders, UnsafeDecode
from .base import Exactness, Matrix
from .gradient import Component, GradientCode, check_rounding, null_checks
from .universal import universal_coefficients

__all__ = ["PolynomialOfSumCode", "matrix_polynomial"]

_STRIDES = 32  # ways of dealing nodes out to workers that are tried


def matrix_polynomial(coefficients: Sequence[float], x: NDArray[Any]) -> NDArray[Any]:
    """c_0 I + c_1 X + c_2 X^2 + ..., by Horner's rule, for square matrices (..., n, n).

    Examples
    --------
    >>> matrix_polynomial([1, 0, 2], np.array([[0.0, 1.0], [0.0, 0.0]]))
    array([[1., 0.],
           [0., 1.]])
    """
    identity = np.eye(x.shape[-1], dtype=x.dtype)
    value = coefficients[-1] * np.broadcast_to(identity, x.shape)
    for coefficient in coefficients[-2::-1]:
        value = value @ x + coefficient * identity
    return np.asarray(value)


@dataclass(frozen=True, eq=False, repr=False)
class PolynomialOfSumCode(GradientCode):
    """h(G_1 + ... + G_K) for a matrix polynomial h and square matrices G_k: paper 2, Theorem 2.

    Worker n sends h(f(alpha_n)), one matrix, where f(alpha_n) combines what it holds and f(beta) is the sum; h(f(x)) is
    a polynomial of degree deg h (N - r).

    Parameters
    ----------
    placement : (workers, partitions) bool
    polynomial : sequence of float, or numpy.polynomial.Polynomial
        Coefficients c_0, c_1, ... of h, lowest first.
    stragglers, adversaries : int

    Raises
    ------
    PlacementError
        If r < N - floor((N - 2a - s - 1) / deg h), naming how many replicas it takes.

    Examples
    --------
    >>> import anyk
    >>> code = PolynomialOfSumCode(anyk.cyclic_placement(12, 12, 10), [0, 0, 0, 1], stragglers=2, adversaries=1)
    >>> parts = np.arange(48.0).reshape(12, 2, 2) / 100
    >>> messages = code.encode(parts)
    >>> cube = np.linalg.matrix_power(parts.sum(axis=0), 3)
    >>> bool(np.allclose(code.decoder(range(2, 12)) @ messages[2:], cube))
    True
    """

    placement: NDArray[np.bool_]
    polynomial: tuple[float, ...]
    stragglers: int = 0
    adversaries: int = 0

    def __post_init__(self) -> None:
        self._check_placement()
        given: Any = self.polynomial
        if hasattr(given, "convert"):  # numpy.polynomial's, in whatever basis
            given = given.convert(kind=np.polynomial.Polynomial).coef
        values = tuple(float(c) for c in given)
        while len(values) > 1 and values[-1] == 0:
            values = values[:-1]
        if not values or not np.isfinite(values).all():
            raise ValueError(f"polynomial must hold finite coefficients, lowest first, got {self.polynomial!r}")
        object.__setattr__(self, "polynomial", values)
        workers = len(self.active)
        spare = workers - 2 * self.adversaries - self.stragglers - 1
        needed = workers - max(spare, 0) // max(self.degree, 1)
        if spare < 0 or self.replicas < max(needed, 1):
            raise PlacementError(
                f"a polynomial of degree {self.degree} of a sum over {workers} workers with {self.stragglers} "
                f"stragglers and {self.adversaries} adversaries needs {needed} replicas of every partition, got "
                f"{self.replicas}" + (": and fewer stragglers or adversaries than workers" if spare < 0 else "")
            )

    @property
    def degree(self) -> int:
        """Degree of h."""
        return len(self.polynomial) - 1

    @cached_property
    def chunks(self) -> int:
        """1: matrices are multiplied, so they travel whole."""
        return 1

    @property
    def exact_for(self) -> Exactness:
        """The polynomial that was given."""
        return "polynomial"

    @property
    def alpha(self) -> NDArray[np.float64]:
        """The workers' nodes: Chebyshev points in long strides."""
        return self._nodes[0]

    @property
    def beta(self) -> NDArray[np.float64]:
        """Where f is the sum: midway between two workers' nodes."""
        return self._nodes[1]

    @cached_property
    def _nodes(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The nodes that make the largest row of coefficients smallest: what h raises to a power in the messages."""
        n = self.workers
        busy = np.array(self.active)
        held = self.placement[busy]
        absent = (~held).astype(np.float64)
        beta = np.cos(np.pi * np.arange(1, n) / n) if n > 1 else np.ones(1)
        best: tuple[float, NDArray[np.float64], NDArray[np.float64]] | None = None
        for stride in [step for step in range(1, max(n // 2, 1) + 1) if math.gcd(step, n) == 1][:_STRIDES]:
            alpha = np.cos(np.pi * (2 * (np.arange(n) * stride % n) + 1) / (2 * n))
            gaps = np.abs(alpha[busy, None] - alpha[busy]) + np.eye(len(busy))
            above = np.where(held, np.log(gaps) @ absent, -np.inf)
            below = np.log(np.abs(beta[:, None] - alpha[busy])) @ absent
            most = above.max(axis=0)
            rows = (np.exp(2 * (above - most)) @ np.exp(2 * np.minimum(most - below, 300)).T).max(axis=0)
            if best is None or rows.min() < best[0]:
                best = float(rows.min()), alpha, beta[[rows.argmin()]]
        assert best is not None
        return best[1:]

    def _coefficients(self) -> Any:
        busy = np.array(self.active)
        out = np.zeros((self.workers, self.partitions))
        out[busy] = universal_coefficients(self.placement[busy], self.alpha[busy], self.beta)[:, :, 0]
        return out

    @cached_property
    def components(self) -> tuple[Component, ...]:
        """One: messages are values of a polynomial of degree deg h (N - r)."""
        busy = np.array(self.active)
        top = max(self.degree, 1) * (len(busy) - self.replicas)
        basis = chebvander(self.alpha[busy], top)
        reader = chebvander(self.beta, top) @ np.linalg.pinv(basis)
        return (Component.of(busy, null_checks(basis), reader),)

    def encode(self, gradients: ArrayLike) -> NDArray[Any]:
        """All messages, (workers, n, n), of square matrices, (partitions, n, n)."""
        array = np.asarray(gradients)
        if array.ndim != 3 or len(array) != self.partitions or array.shape[1] != array.shape[2]:
            raise ValueError(f"gradients must have shape ({self.partitions}, n, n), got {array.shape}")
        mixed = np.tensordot(self.coefficients.toarray(), array, axes=1)
        return matrix_polynomial(self.polynomial, mixed).astype(array.dtype if array.dtype.kind in "fc" else np.float64)

    def _decode(self, responders: NDArray[np.intp], replies: Sequence[Any] | None) -> Matrix:
        weights = self._exact_weights(responders)
        if weights is None:  # least squares would be right for the identity only
            needed = max(self.degree, 1) * (len(self.active) - self.replicas) + 1
            count = len(np.intersect1d(responders, self.active))
            if count >= needed:
                raise UnsafeDecode(f"{self!r}: rounding in float64 leaves no exact weights for these {count} answers")
            raise TooFewResponders(f"{self!r} needs {needed} answers, got {count}")
        matrix = np.ascontiguousarray(weights[:, responders])
        check_rounding(self, matrix, responders)
        return matrix
