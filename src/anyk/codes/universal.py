"""Paper 2, section III: one polynomial that every worker can evaluate at its own node from what it holds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.polynomial.chebyshev import chebvander
from numpy.typing import ArrayLike, NDArray

from ..errors import PlacementError
from ..placement import chunks_for
from .base import Matrix
from .gradient import Component, GradientCode, check_rounding, null_checks

__all__ = ["UniversalPolynomialCode", "berrut_weights", "interleaved", "universal_coefficients"]


def universal_coefficients(placement: ArrayLike, alpha: ArrayLike, beta: ArrayLike) -> NDArray[Any]:
    """Coefficients of paper 2, section III: (workers, partitions, chunks), exactly zero where nothing is held.

    Worker n multiplies chunk j of partition k by
    ``prod_{l does not hold k} (alpha_n - alpha_l) / (beta_j - alpha_l) * prod_{l != j} (alpha_n - beta_l) / (beta_j -
    beta_l)``.

    Parameters
    ----------
    placement : (workers, partitions) bool
    alpha : (workers,) distinct real or complex nodes
    beta : (chunks,) distinct nodes, none of them in `alpha`

    Examples
    --------
    >>> universal_coefficients([[1, 0], [1, 1], [0, 1]], alpha=[-1, 0, 1], beta=[0.5])[..., 0]
    array([[4.        , 0.        ],
           [2.        , 0.66666667],
           [0.        , 1.33333333]])
    """
    held = np.asarray(placement, dtype=np.bool_)
    a, b = np.asarray(alpha), np.asarray(beta)
    out = np.zeros((*held.shape, len(b)), np.result_type(a, b, np.float64))
    others = ~np.eye(len(b), dtype=np.bool_)
    own = np.stack(
        [np.prod((a[:, None] - b[others[j]]) / (b[j] - b[others[j]]), axis=1) for j in range(len(b))], axis=1
    )
    for k in range(held.shape[1]):
        holders, rest = np.flatnonzero(held[:, k]), np.flatnonzero(~held[:, k])
        ratios = (a[holders, None, None] - a[rest]) / (b[:, None] - a[rest])
        out[holders, k] = np.prod(ratios, axis=2) * own[holders]
    return out


def interleaved(workers: int) -> NDArray[np.intp]:
    """Which node each worker takes: steps of about 0.38 of the way round, so that neighbours lie far apart."""
    stride = max(1, round(0.382 * workers))
    while math.gcd(stride, workers) > 1:
        stride += 1
    return np.arange(workers) * stride % workers


def data_nodes(chunks: int, alpha: NDArray[Any]) -> NDArray[np.float64]:
    """Chebyshev points drawn in a little, moved on until none comes near a worker's node."""
    for shift in np.linspace(0, 0.4 / chunks, 41):
        beta = 0.98 * np.cos(np.pi * ((2 * np.arange(chunks) + 1) / (2 * chunks) + shift / 2))
        if np.abs(beta[:, None] - alpha).min() > 0.1 / len(alpha) ** 2:
            break
    return np.asarray(beta)


def berrut_weights(alpha: NDArray[Any], beta: NDArray[Any]) -> Matrix:
    """Berrut's interpolant through distinct real nodes `alpha`, in any order, evaluated at `beta`: (beta, alpha)."""
    place = np.argsort(np.argsort(-alpha))
    rows = np.where(place % 2 == 0, 1.0, -1.0) / (beta[:, None] - alpha)
    return np.asarray(rows / rows.sum(axis=1, keepdims=True))


@dataclass(frozen=True, eq=False, repr=False, init=False)
class UniversalPolynomialCode(GradientCode):
    """The code of paper 2, section III, literally: optimal messages of d/(r-s-2a) numbers for any placement.

    Worker n sends f(alpha_n), where f is a polynomial of degree N - r + m - 1 with f(beta_j) = sum_k g_k[j], and each
    partition's part of it vanishes at the nodes of the workers that do not hold it. Over the reals it runs out of
    digits between 30 and 50 workers; `NullSpaceCode` is as short and does not.

    Parameters
    ----------
    placement : (workers, partitions) bool
    stragglers, adversaries : int
    nodes : {"interleaved", "literal", "circle"}
        Chebyshev points of the first kind dealt out in long strides, or in the workers' order; or roots of unity in
        long strides (messages are complex, twice the traffic).
    chunks : int, optional
        More chunks than r - s - 2a make messages shorter than exact recovery allows (section V, case 1): the sum is
        then approximate unless at least N - r + chunks answer. Default: r - s - 2a.
    decoder : {"least-squares", "berrut"}
        How to decode; Berrut's interpolant at beta is section V's own, and far coarser (docs/design.md).

    Raises
    ------
    PlacementError
        If r <= s + 2a and no `chunks` are given.
    UnsafeDecode
        By `decoder`, where rounding alone would cost a tenth of the answer.

    Warns
    -----
    ApproximationWarning
        By `decoder`, where rounding in float64 costs more than 1e-6 of the answer.

    Examples
    --------
    >>> import anyk
    >>> code = UniversalPolynomialCode(anyk.cyclic_placement(8, 8, 5), stragglers=3)
    >>> messages = code.encode(np.arange(8.0).reshape(8, 1) + [[1, 2, 3]])
    >>> np.round(code.decoder([0, 2, 3, 6, 7]) @ messages[[0, 2, 3, 6, 7]], 9).ravel()[:3]
    array([36., 44., 52.])
    """

    placement: NDArray[np.bool_]
    stragglers: int
    adversaries: int
    nodes: Literal["interleaved", "literal", "circle"]
    chunks: int = field()
    decoding: Literal["least-squares", "berrut"]

    def __init__(
        self,
        placement: ArrayLike,
        stragglers: int = 0,
        adversaries: int = 0,
        nodes: str = "interleaved",
        chunks: int | None = None,
        decoder: str = "least-squares",
        decoding: str | None = None,  # the field, so that dataclasses.replace works: `decoder` is a method
    ) -> None:
        fields = {"placement": placement, "stragglers": stragglers, "adversaries": adversaries, "nodes": nodes}
        for name, value in fields.items():
            object.__setattr__(self, name, value)
        self._check_placement()
        if decoding is not None and decoder not in ("least-squares", decoding):
            raise TypeError(f"decoder={decoder!r} and decoding={decoding!r} are one thing under two names")
        object.__setattr__(self, "decoding", decoder if decoding is None else decoding)
        object.__setattr__(self, "chunks", resolve_chunks(self, chunks))
        if self.nodes not in ("interleaved", "literal", "circle"):
            raise ValueError(f"nodes must be 'interleaved', 'literal' or 'circle', got {nodes!r}")
        check_decoding(self.decoding)
        if self.decoding == "berrut" and self.nodes == "circle":
            raise ValueError("Berrut's interpolant needs real nodes: nodes='circle' cannot be decoded with 'berrut'")

    @property
    def approximate(self) -> bool:
        """The sum is approximate with more chunks than exact recovery allows, and by Berrut's interpolant."""
        return self.decoding == "berrut" or self.chunks > self.replicas - self.stragglers - 2 * self.adversaries

    @cached_property
    def alpha(self) -> NDArray[Any]:
        """The workers' nodes, (workers,)."""
        n = self.workers
        places = np.arange(n) if self.nodes == "literal" else interleaved(n)
        if self.nodes == "circle":
            return np.asarray(np.exp(2j * np.pi * places / n))
        return np.asarray(np.cos(np.pi * (2 * places + 1) / (2 * n)))

    @cached_property
    def beta(self) -> NDArray[Any]:
        """Where the polynomial takes the chunks of the sum, (chunks,)."""
        if self.nodes == "circle":  # between the workers' nodes, evenly
            places = np.floor(np.arange(self.chunks) * self.workers / self.chunks) + 0.5
            return np.asarray(np.exp(2j * np.pi * places / self.workers))
        return data_nodes(self.chunks, self.alpha)

    def _coefficients(self) -> Any:
        busy = np.array(self.active)  # a worker that holds nothing would be a zero of every partition's polynomial
        out = np.zeros((self.workers, self.partitions * self.chunks), self.alpha.dtype)
        out[busy] = universal_coefficients(self.placement[busy], self.alpha[busy], self.beta).reshape(len(busy), -1)
        return out

    @cached_property
    def components(self) -> tuple[Component, ...]:
        """One: messages are values of a polynomial with N - r + m coefficients."""
        busy = np.array(self.active)
        size = len(busy) - self.replicas + self.chunks
        if size > len(busy):  # too many chunks for any exact recovery
            return super().components
        circle = self.nodes == "circle"
        basis = np.vander(self.alpha[busy], size) if circle else chebvander(self.alpha[busy], size - 1)
        at_beta = np.vander(self.beta, size) if circle else chebvander(self.beta, size - 1)
        reader = at_beta @ np.linalg.pinv(basis)
        return (Component.of(busy, null_checks(basis), reader),)

    def _decode(self, responders: NDArray[np.intp], replies: Sequence[Any] | None) -> Matrix:
        if self.decoding == "berrut":
            matrix = np.zeros((self.chunks, len(responders)))
            busy = np.isin(responders, self.active)
            if busy.any():
                matrix[:, busy] = berrut_weights(self.alpha[responders[busy]], self.beta)
            return matrix
        matrix = super()._decode(responders, replies)
        busy = np.intersect1d(responders, self.active)
        if len(busy) >= len(self.active) - self.replicas + self.chunks:  # exact but for rounding
            check_rounding(self, matrix, responders)
        return matrix


def resolve_chunks(code: GradientCode, chunks: int | None) -> int:
    """The number of chunks: as given, or the most that exact recovery allows."""
    if chunks is None:
        return chunks_for(code.replicas, code.stragglers, code.adversaries)
    if isinstance(chunks, bool) or not isinstance(chunks, int | np.integer):
        raise TypeError(f"chunks must be an integer, got {chunks!r}")
    if chunks < 1:
        raise PlacementError(f"chunks must be at least 1, got {chunks}")
    return int(chunks)


def check_decoding(decoding: str) -> None:
    """Refuse decoders that do not exist."""
    if decoding not in ("least-squares", "berrut"):
        raise ValueError(f"decoder must be 'least-squares' or 'berrut', got {decoding!r}")
