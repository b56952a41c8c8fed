"""Spline codes: approximate codes whose curves are splines in the angle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .. import blocks as _blocks
from ..interpolation import berrut_matrix
from ..points import Nodes, coincidences, with_parities
from ..splines import SMOOTHING, SmoothingSplines, evident, spline_matrix
from .base import Matrix
from .curve import CurveCode

__all__ = ["SplineCode"]


@dataclass(frozen=True)
class SplineCode(CurveCode):
    """Any function, approximately, from any non-empty set of answers; more closely than `BerrutCode`.

    Worker i works on u(z_i), where u is a spline through the blocks at the data nodes, in the angle arccos(z); the
    master passes another through the answers and reads it off at the data nodes. Both are even about the ends of the
    interval, so they stay sound where the end workers are missing. Nodes are paper 1's, equations (19) and (20).

    Parameters
    ----------
    workers : int
    blocks : int
        At most `workers`.
    degree : {3, 5, 7, "auto"}
        Of the decoding spline. Quintic ones are another ten times closer on smooth functions, and worse on rough ones:
        ``"auto"`` takes cubic ones, unless leave-one-out on the replies shows beyond two standard errors that quintic
        ones predict them better.
    encoder : {"spline", "berrut"}
        The curve through the blocks: a cubic spline, or paper 1's rational interpolant.
    smoothing : "auto" or float
        Weight of the integral of the squared second derivative, in units of the responders' mean spacing cubed; 0
        interpolates. ``"auto"`` interpolates unless leave-one-out shows likewise that a smoother curve predicts the
        replies better, as it does for noisy workers and rough functions; answers at a block's own node are taken as
        they are even then. Smoothing splines are cubic.
    systematic : bool
        The first `blocks` workers compute the raw blocks; the others lie in between and stand in for the missing.

    Notes
    -----
    Not exact even for f = identity, but for the raw blocks of a systematic layout. Errors fall as the order of the
    blocks gets smoother: see `anyk.path_order`.

    Examples
    --------
    >>> import numpy as np
    >>> from anyk import BerrutCode
    >>> x = np.linspace(0, 1, 4)
    >>> for code in BerrutCode(workers=60, blocks=4), SplineCode(workers=60, blocks=4):
    ...     decoder = code.decoder(range(0, 60, 2))
    ...     print(f"{np.abs(decoder @ np.exp(code.encode(x)[::2]) - np.exp(x)).max():.0e}")
    1e-02
    4e-05
    """

    workers: int
    blocks: int
    degree: Literal[3, 5, 7, "auto"] = "auto"
    encoder: Literal["spline", "berrut"] = "spline"
    smoothing: float | Literal["auto"] = "auto"
    systematic: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.degree not in (3, 5, 7, "auto"):
            raise ValueError(f"degree must be 3, 5, 7 or 'auto', got {self.degree!r}")
        if self.encoder not in ("spline", "berrut"):
            raise ValueError(f"encoder must be 'spline' or 'berrut', got {self.encoder!r}")
        if self.smoothing != "auto":
            check_smoothing("smoothing", self.smoothing, "'auto' or ")

    @property
    def worker_nodes(self) -> Nodes:
        """The nodes at which the workers evaluate; in falling order unless the layout is systematic."""
        if self.systematic:
            return with_parities(self.blocks, self.workers - self.blocks)
        return super().worker_nodes

    def _generator(self) -> Matrix:
        matrix = berrut_matrix if self.encoder == "berrut" else spline_matrix
        return matrix(self.worker_nodes, self.data_nodes)

    @property
    def _looks_at_replies(self) -> bool:  # type: ignore[override]
        return self.smoothing == "auto" or (self.degree == "auto" and self.smoothing == 0)

    def _decode(self, responders: NDArray[np.intp], replies: Sequence[Any] | None) -> Matrix:
        nodes = self.worker_nodes.take(responders)
        falling = np.argsort(nodes.numerators)
        nodes = nodes.take(falling)
        degree = 3 if self.degree == "auto" else int(self.degree)
        weight = 0.0 if self.smoothing == "auto" else self.smoothing
        if replies is not None and self._looks_at_replies:
            degrees = (3, 5) if self.degree == "auto" and not weight else (degree,)
            weights = SMOOTHING if self.smoothing == "auto" else ()
            degree, weight = evident(nodes, values_of([replies[p] for p in falling.tolist()]), degrees, weights)
        if weight:
            matrix = spline_matrix(self.data_nodes, nodes) @ SmoothingSplines(nodes).smoother(weight)
            if self.smoothing == "auto":  # an answer at a block's own node is that block's, perhaps to the last bit
                hits = coincidences(self.data_nodes, nodes)
                matrix[hits.any(axis=1)] = hits[hits.any(axis=1)]
        else:
            matrix = spline_matrix(self.data_nodes, nodes, degree)
        out = np.empty_like(matrix)
        out[:, falling] = matrix
        return out


def check_smoothing(name: str, value: Any, else_: str = "") -> None:
    """Refuse what is no weight."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < np.inf:
        raise ValueError(f"{name} must be {else_}a number of at least 0, got {value!r}")


def values_of(replies: Sequence[Any]) -> NDArray[np.float64]:
    """What leave-one-out looks at: some of the entries of each reply, (replies, columns), float64."""
    entries = _blocks.features(_blocks.stack(replies), most=_LOOKED_AT)
    parts = [entries.real, entries.imag] if np.iscomplexobj(entries) else [entries]
    return np.concatenate([part.astype(np.float64) for part in parts], axis=1)


_LOOKED_AT = 64
