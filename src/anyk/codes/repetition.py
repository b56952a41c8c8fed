"""Plain repetition: the honest competitor of every code."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .. import blocks as _blocks
from ..errors import DisagreeingReplies, TooFewResponders
from .base import DataCode, Exactness, Matrix

__all__ = ["RepetitionCode"]


@dataclass(frozen=True)
class RepetitionCode(DataCode):
    """Every block is worked on by several workers: exact for any f as long as one copy of each block answers.

    Worker n takes block n mod K. With workers = r K + q, the first q blocks have r + 1 copies and the others r.

    Parameters
    ----------
    workers, blocks : int
    combine : {"mean", "majority"}
        How copies that answered are combined. ``"majority"`` compares them (`tolerance` relative to their size), keeps
        the largest group that agrees and raises `DisagreeingReplies` when two groups are equally large.
    tolerance : float
        Relative distance up to which copies count as equal under ``"majority"``.

    Examples
    --------
    >>> code = RepetitionCode(workers=6, blocks=3)
    >>> code.threshold
    5
    >>> code.decoder([0, 3, 4, 5]).matrix
    array([[0.5, 0.5, 0. , 0. ],
           [0. , 0. , 1. , 0. ],
           [0. , 0. , 0. , 1. ]])
    """

    workers: int
    blocks: int
    combine: Literal["mean", "majority"] = "mean"
    tolerance: float = 1e-6

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.combine not in ("mean", "majority"):
            raise ValueError(f"combine must be 'mean' or 'majority', got {self.combine!r}")
        if not self.tolerance >= 0:
            raise ValueError(f"tolerance must be at least 0, got {self.tolerance!r}")

    @property
    def threshold(self) -> int:
        """workers - copies + 1: however the missing ones are chosen, every block has an answer left."""
        return self.workers - self.workers // self.blocks + 1

    @property
    def exact_for(self) -> Exactness:
        """Any function."""
        return "any"

    @property
    def _looks_at_replies(self) -> bool:  # type: ignore[override]
        return self.combine == "majority"

    def sufficient(self, responders: Iterable[int]) -> bool:
        """Whether every block has an answer; often long before the worst-case `threshold`."""
        missing = set(range(self.blocks))
        for worker in responders:  # seldom many of them: asked after every answer
            missing.discard(worker % self.blocks)
            if not missing:
                return True
        return False

    def _generator(self) -> Matrix:
        return np.eye(self.blocks)[np.arange(self.workers) % self.blocks]

    def _decode(self, responders: NDArray[np.intp], replies: Sequence[Any] | None) -> Matrix:
        matrix = np.ascontiguousarray(self.generator[responders].T)
        missing = np.flatnonzero(matrix.sum(axis=1) == 0)
        if len(missing):
            raise TooFewResponders(
                f"no copy of block{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing[:8]))}"
                f"{', ...' if len(missing) > 8 else ''} answered ({len(responders)} responders, "
                f"threshold {self.threshold} of {self!r})"
            )
        if replies is not None:
            for block, row in enumerate(matrix):
                copies = np.flatnonzero(row)
                row[copies] = self._majority([replies[copy] for copy in copies.tolist()], block)
        return np.asarray(matrix / matrix.sum(axis=1, keepdims=True))

    def _majority(self, copies: list[Any], block: int) -> NDArray[np.float64]:
        rows = _blocks.as_matrix(copies)
        rows = rows.astype(np.result_type(rows, np.float64))
        finite = np.abs(rows[np.isfinite(rows)])
        scale = finite.max() if finite.size and finite.max() > 0 else 1.0  # squares must not overflow
        rows = rows / scale
        equal = ((rows[:, None] == rows[None]) | (np.isnan(rows[:, None]) & np.isnan(rows[None]))).all(axis=2)
        with np.errstate(invalid="ignore"):
            distance = np.linalg.norm(rows[:, None] - rows[None], axis=2)
        size = np.linalg.norm(rows, axis=1)
        near = distance <= self.tolerance * np.maximum(size[:, None], size[None])
        agrees = equal | (np.isfinite(distance) & near)
        votes = agrees.sum(axis=1)
        winners = agrees[votes.argmax()]
        rivals = (votes == votes.max()) & ~winners
        if rivals.any():
            raise DisagreeingReplies(
                f"the {len(copies)} copies of block {block} disagree and no group of them is the largest: "
                f"{votes.max()} against {votes.max()}; wait for more copies, or use combine='mean'"
            )
        return np.asarray(winners, dtype=np.float64)
