"""Smoothing splines on both sides (LeTCC, arXiv 2406.00300; NeRCC, arXiv 2402.04377)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..splines import SMOOTHING, SmoothingSplines, natural_matrix
from .base import Matrix
from .curve import CurveCode
from .spline import check_smoothing, values_of

__all__ = ["LearningTheoreticCode"]


@dataclass(frozen=True)
class LearningTheoreticCode(CurveCode):
    """Natural cubic smoothing splines in z through the blocks and through the answers.

    Parameters
    ----------
    workers : int
    blocks : int
        At most `workers`.
    encoder_smoothing : float
        Weight of the integral of the squared second derivative, in units of the blocks' mean spacing cubed; 0
        interpolates.
    smoothing : float or "auto"
        The same for the decoder; ``"auto"``: the weight with the least error in leave-one-out on the replies.

    Examples
    --------
    >>> import numpy as np
    >>> code, x = LearningTheoreticCode(workers=60, blocks=4), np.linspace(0, 1, 4)
    >>> decoder = code.decoder(range(0, 60, 2))
    >>> bool(np.abs(decoder @ np.exp(code.encode(x)[::2]) - np.exp(x)).max() < 1e-3)
    True
    """

    workers: int
    blocks: int
    encoder_smoothing: float = 0.0
    smoothing: float | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_smoothing("encoder_smoothing", self.encoder_smoothing)
        if self.smoothing != "auto":
            check_smoothing("smoothing", self.smoothing, "'auto' or ")

    def _generator(self) -> Matrix:
        smoother = SmoothingSplines(self.data_nodes, angle=False).smoother(self.encoder_smoothing)
        return natural_matrix(self.worker_nodes, self.data_nodes) @ smoother

    @property
    def _looks_at_replies(self) -> bool:  # type: ignore[override]
        return self.smoothing == "auto"

    def _decode(self, responders: NDArray[np.intp], replies: Sequence[Any] | None) -> Matrix:
        nodes = self.worker_nodes.take(responders)
        splines = SmoothingSplines(nodes, angle=False)
        weight = 0.0 if self.smoothing == "auto" else self.smoothing
        if self.smoothing == "auto" and replies is not None and len(nodes) > 2:
            values = values_of(replies)
            weight = min(SMOOTHING, key=lambda each: float((splines.leave_one_out(each, values) ** 2).sum()))
        return natural_matrix(self.data_nodes, nodes) @ splines.smoother(weight)
