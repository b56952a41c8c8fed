"""Section V of paper 2 with rational functions on both sides: bounded coefficients, approximate sums, any traffic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..interpolation import berrut_matrix
from ..points import Nodes, chebyshev_second
from .base import Matrix
from .gradient import GradientCode
from .universal import check_decoding, interleaved, resolve_chunks

__all__ = ["BerrutGradientCode"]

_FINE = 1009  # data nodes move by this fraction of their spacing, so that none meets a worker's node


@dataclass(frozen=True, eq=False, repr=False, init=False)
class BerrutGradientCode(GradientCode):
    """Approximate sums with messages as short as you like and small coefficients.

    Partition k's basis function for chunk j is Berrut's interpolant through the data nodes and the nodes of the workers
    that do not hold k: one at beta_j, zero at the others. It is meant for placements with many copies (r close to N),
    where it is smooth. With few copies, compare its residual with that of replication.

    Parameters
    ----------
    placement : (workers, partitions) bool
    chunks : int, optional
        A message has 1/chunks of a gradient's entries. Default: r - s - 2a.
    stragglers, adversaries : int
        What the default number of chunks, and the threshold, are derived from.
    decoder : {"least-squares", "berrut"}
        Berrut's interpolant over the responders is the literature's; least squares is never worse.

    Examples
    --------
    >>> import anyk
    >>> code = BerrutGradientCode(anyk.cyclic_placement(20, 20, 18), chunks=1, stragglers=2)
    >>> code.decoder(range(2, 20)).residual < 1e-3 * 20
    True
    """

    placement: NDArray[np.bool_]
    chunks: int = field()
    stragglers: int
    adversaries: int
    decoding: Literal["least-squares", "berrut"]

    def __init__(
        self,
        placement: ArrayLike,
        chunks: int | None = None,
        stragglers: int = 0,
        adversaries: int = 0,
        decoder: str = "least-squares",
        decoding: str | None = None,  # the field, so that dataclasses.replace works: `decoder` is a method
    ) -> None:
        for name, value in {"placement": placement, "stragglers": stragglers, "adversaries": adversaries}.items():
            object.__setattr__(self, name, value)
        self._check_placement()
        if decoding is not None and decoder not in ("least-squares", decoding):
            raise TypeError(f"decoder={decoder!r} and decoding={decoding!r} are one thing under two names")
        object.__setattr__(self, "decoding", decoder if decoding is None else decoding)
        object.__setattr__(self, "chunks", resolve_chunks(self, chunks))
        check_decoding(self.decoding)

    @property
    def approximate(self) -> bool:
        """The sum is approximate, whoever answers."""
        return True

    @cached_property
    def _nodes(self) -> tuple[Nodes, Nodes, NDArray[np.intp]]:
        """Workers' nodes and data nodes on one denominator, both falling, and each worker's place among the former."""
        alpha, m = chebyshev_second(self.workers), self.chunks
        common = math.lcm(alpha.denominator, 2 * m * _FINE)
        beta = ((2 * np.arange(m) + 1) * _FINE + 1) * (common // (2 * m * _FINE))
        return (
            Nodes(alpha.numerators * (common // alpha.denominator), common),
            Nodes(beta, common),
            interleaved(self.workers),
        )

    def _coefficients(self) -> Any:
        alpha, beta, place = self._nodes
        out = np.zeros((self.workers, self.partitions, self.chunks))
        for k in range(self.partitions):
            holders, rest = np.flatnonzero(self.placement[:, k]), np.flatnonzero(~self.placement[:, k])
            numerators = np.concatenate([beta.numerators, alpha.numerators[place[rest]]])
            order = np.argsort(numerators)
            matrix = berrut_matrix(alpha.take(place[holders]), Nodes(numerators[order], alpha.denominator))
            out[holders, k] = matrix[:, np.argsort(order)[: self.chunks]]
        return out.reshape(self.workers, -1)

    def _decode(self, responders: NDArray[np.intp], replies: Sequence[Any] | None) -> Matrix:
        if self.decoding == "least-squares":
            return super()._decode(responders, replies)
        alpha, beta, place = self._nodes
        order = np.argsort(place[responders])
        matrix = np.empty((self.chunks, len(responders)))
        matrix[:, order] = berrut_matrix(beta, alpha.take(place[responders][order]))
        return matrix
