"""Harmonic frames: polynomial codes sampled on the unit circle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..frames import distance_bound, harmonic_rows, real_harmonic_rows
from .base import BelowThreshold, Matrix
from .frame import FrameCode

__all__ = ["HarmonicFrameCode"]


@dataclass(frozen=True, repr=False)
class HarmonicFrameCode(FrameCode):
    """Polynomial codes on the circle: worker i gets sum_j X_j s_i^(z_j) / sqrt(m) (paper 3, Definitions 1 to 4).

    Consecutive powers at uniform samples are the Reed-Solomon low-pass, which amplifies noise without bound as workers
    go missing; scattered ones (`random_powers`, `optimized_powers`) come close to equiangular frames, and a
    `difference_set` is one. Complex, unless `real`: complex replies are twice the traffic, and real blocks come back
    real from `anyk.map`.

    Parameters
    ----------
    workers : int
        n.
    powers : sequence of int
        The z_j, distinct (modulo n at uniform samples); one for each block.
    samples : (n,) complex, optional
        The s_i, distinct points of the unit circle; default exp(2 pi i j / n). See `nonuniform_samples`.
    real : bool
        Cosines and sines instead, for powers closed under negation modulo n: the same correlations and amplification.
    below_threshold : {"raise", "least-squares"}
        What fewer answers than needed yield: `TooFewResponders`, or the least-squares estimate.

    Raises
    ------
    ValueError
        For powers or samples that coincide, samples off the circle, or powers that are not closed for `real`.

    Examples
    --------
    >>> import anyk
    >>> code = HarmonicFrameCode(workers=103, powers=anyk.difference_set(103, 51))
    >>> round(anyk.coherence(code.generator), 6), code.threshold
    (0.099981, 51)
    >>> round(code.decoder(range(103)).noise_amplification, 6), round(51 / 103, 6)
    (0.495146, 0.495146)
    """

    workers: int
    powers: Sequence[int] | NDArray[np.int64]
    samples: Sequence[complex] | NDArray[np.complex128] | None = None
    real: bool = False
    below_threshold: BelowThreshold = "raise"

    def __post_init__(self) -> None:
        listed = np.asarray(self.powers)
        if listed.ndim != 1 or listed.size == 0 or listed.dtype.kind not in "iu":
            raise ValueError(f"powers must be a non-empty sequence of integers, got {self.powers!r}")
        object.__setattr__(self, "powers", tuple(listed.tolist()))
        object.__setattr__(self, "real", bool(self.real))
        super().__post_init__()
        uniform = self.samples is None
        distinct = {z % self.workers for z in self.powers} if uniform else set(self.powers)
        if len(distinct) < len(self.powers):
            raise ValueError(
                f"powers must be distinct{f' modulo the {self.workers} workers' if uniform else ''}, got {self.powers}"
            )
        if self.samples is not None:
            points = np.asarray(self.samples, dtype=np.complex128)
            if self.real:
                raise ValueError("a real harmonic frame has uniform samples: leave samples out")
            if points.shape != (self.workers,) or not np.allclose(np.abs(points), 1, rtol=0, atol=1e-9):
                raise ValueError(
                    f"samples must be {self.workers} points of the unit circle, such as exp(2j pi t); got shape "
                    f"{points.shape}, moduli {np.abs(points).min(initial=1):.3g} to {np.abs(points).max(initial=1):.3g}"
                    " (VandermondeCode takes points anywhere)"
                )
            if len(np.unique(np.round(points, 12))) < self.workers:
                raise ValueError("samples must be distinct")
            object.__setattr__(self, "samples", tuple(points.tolist()))
            self._check_columns(points)
        if self.real:
            real_harmonic_rows(self.workers, self.powers)  # says which powers lack their negatives

    def _check_columns(self, points: NDArray[np.complex128]) -> None:
        """Powers that are distinct may agree at all the samples."""
        columns = harmonic_rows(self.workers, self.powers, points)
        alike = np.abs(columns.conj().T @ columns) * len(self.powers) / self.workers > 1 - 1e-12
        pairs = np.argwhere(np.triu(alike, 1))
        if len(pairs):
            first, second = (self.powers[index] for index in pairs[0])
            raise ValueError(f"powers {first} and {second} agree, up to a factor, at all of these samples")

    @property
    def blocks(self) -> int:  # type: ignore[override]
        """m, the number of powers."""
        return len(self.powers)

    def __repr__(self) -> str:
        few = len(self.powers) <= 8
        powers = self.powers if few else f"({', '.join(map(str, self.powers[:4]))}, ... {len(self.powers)} in all)"
        samples = "" if self.samples is None else ", samples=..."
        real = ", real=True" if self.real else ""
        below = "" if self.below_threshold == "raise" else f", below_threshold={self.below_threshold!r}"
        return f"HarmonicFrameCode(workers={self.workers}, powers={powers}{samples}{real}{below})"

    @cached_property
    def threshold(self) -> int:
        """Any so many answers suffice for certain.

        m for a prime number of workers and for consecutive powers. For composite numbers some larger sets are singular
        (`anyk.frames.singular_responders`) and this is what uncertainty principles guarantee; most sets of m answers
        suffice all the same, and `sufficient` tells which.
        """
        if self.samples is None:
            return self.workers - distance_bound(self.workers, self.powers) + 1
        steps = np.diff(self.powers)
        return self.blocks if len(steps) == 0 or ((steps == steps[0]).all() and abs(steps[0]) == 1) else self.workers

    def _generator(self) -> Matrix:
        if self.real:
            return real_harmonic_rows(self.workers, self.powers)
        return harmonic_rows(self.workers, self.powers, self.samples)
