"""Latencies of which some are only known to be longer than something."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Censored"]

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Censored:
    """A weighted, right-censored sample: some latencies were seen, of others it is known that they were longer.

    Attributes
    ----------
    seconds : (m,) array
        Latencies that were seen.
    bounds : (c,) array
        Waited so long in vain: the latency is longer.
    weights, bound_weights : arrays as long as these, optional
        How often each counts; once unless told otherwise.

    Examples
    --------
    >>> Censored.of([1.0, 2.0], bounds=[3.0]).quantile(0.5)
    2.0
    """

    seconds: Array
    bounds: Array
    weights: Array
    bound_weights: Array

    @classmethod
    def of(
        cls,
        seconds: Array | list[float],
        bounds: Array | list[float] = (),  # type: ignore[assignment]
        weights: Array | None = None,
        bound_weights: Array | None = None,
    ) -> Censored:
        """From arrays of any kind; what has no weight is left out."""
        t, c = np.asarray(seconds, dtype=np.float64).ravel(), np.asarray(bounds, dtype=np.float64).ravel()
        w = np.ones_like(t) if weights is None else np.asarray(weights, dtype=np.float64).ravel()
        v = np.ones_like(c) if bound_weights is None else np.asarray(bound_weights, dtype=np.float64).ravel()
        return cls(t[w > 0], c[v > 0], w[w > 0], v[v > 0])

    def __len__(self) -> int:
        return len(self.seconds) + len(self.bounds)

    def require_positive(self, what: str) -> None:
        """Refuse samples from which no model can be fitted.

        Raises
        ------
        ValueError
            Without answers that took any time.
        """
        if not len(self.seconds) or not (self.seconds > 0).all():
            raise ValueError(f"{what} is fitted to latencies above zero, of which at least some were seen")

    def quantile(self, share: float) -> float:
        """The time by which that share has answered, by Kaplan and Meier's estimate; infinity where it never did.

        Those that were given up count as at work until then, not as having answered, nor as never answering.
        """
        if not len(self):
            return float("nan")
        times = np.concatenate([self.seconds, self.bounds])
        answered = np.concatenate([self.weights, np.zeros(len(self.bounds))])
        all_weights = np.concatenate([self.weights, self.bound_weights])
        order = np.lexsort((answered == 0, times))  # at equal times answers come before those who are given up
        at_risk = all_weights[order][::-1].cumsum()[::-1]
        surviving = np.cumprod(1 - answered[order] / at_risk)
        reached = np.flatnonzero((surviving <= 1 - share + 1e-12) & (answered[order] > 0))
        return float(times[order][reached[0]]) if len(reached) else float("inf")
