"""Laws of the eigenvalues of F_S F_S*, the m x m Gram matrix of k surviving unit vectors out of n, for large m.

In the notation of paper 3, gamma = m/n and beta = k/m; the eigenvalues have the mean beta. The mean of their inverses
is the noise amplification of the pseudo-inverse; no frame has less than 1/beta (Lemma 1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Manova", "MarchenkoPastur", "lower_bound"]


def lower_bound(responders: int, blocks: int) -> float:
    """m/k, which no code with unit-norm rows goes below (paper 3, Lemma 1).

    >>> lower_bound(responders=70, blocks=50)
    0.7142857142857143
    """
    if not 1 <= blocks <= responders:
        raise ValueError(f"responders must be at least blocks, and these at least 1, got {responders} and {blocks}")
    return blocks / responders


@dataclass(frozen=True)
class MarchenkoPastur:
    """Gaussian frames: equations (9) and (10), for the m x m matrix.

    Parameters
    ----------
    beta : float
        k/m, above 0.

    Examples
    --------
    >>> MarchenkoPastur(1.6).amplification
    1.6666666666666665
    """

    beta: float

    def __post_init__(self) -> None:
        if not 0 < self.beta < math.inf:
            raise ValueError(f"beta = responders / blocks must be positive, got {self.beta!r}")

    @property
    def edges(self) -> tuple[float, float]:
        """Least and largest eigenvalue: (sqrt(beta) -+ 1)^2."""
        root = math.sqrt(self.beta)
        return (root - 1) ** 2, (root + 1) ** 2

    @property
    def atoms(self) -> dict[float, float]:
        """Eigenvalues with a share of their own, and that share: 0 where k < m."""
        return {0.0: 1 - self.beta} if self.beta < 1 else {}

    @property
    def amplification(self) -> float:
        """Mean of 1/x, 1 / (beta - 1); infinite at the threshold and below."""
        return 1 / (self.beta - 1) if self.beta > 1 else math.inf

    def density(self, x: ArrayLike) -> NDArray[np.float64]:
        """The density at x, beside the atoms."""
        at, (low, high) = np.asarray(x, dtype=np.float64), self.edges
        return _bulk(at, low, high, 2 * np.pi * at)


@dataclass(frozen=True)
class Manova:
    """Equiangular, random harmonic and Haar-random frames: equations (11) and (12), for the m x m matrix.

    Parameters
    ----------
    gamma : float
        m/n, in 0 .. 1.
    beta : float
        k/m, above 0 and at most 1/gamma.

    Examples
    --------
    >>> Manova(0.5, 1.4).amplification
    1.2500000000000002
    """

    gamma: float
    beta: float

    def __post_init__(self) -> None:
        if not 0 < self.gamma <= 1:
            raise ValueError(f"gamma = blocks / workers must lie in (0, 1], got {self.gamma!r}")
        if not 0 < self.beta <= (1 + 1e-12) / self.gamma:
            raise ValueError(
                f"beta = responders / blocks must lie in (0, 1/gamma], since no more than all workers answer: got "
                f"{self.beta!r} for gamma = {self.gamma!r}"
            )

    @property
    def edges(self) -> tuple[float, float]:
        """Ends of the bulk: (sqrt((1 - gamma) beta) -+ sqrt(1 - gamma beta))^2."""
        a, b = math.sqrt((1 - self.gamma) * self.beta), math.sqrt(max(1 - self.gamma * self.beta, 0.0))
        return (a - b) ** 2, (a + b) ** 2

    @property
    def atoms(self) -> dict[float, float]:
        """Eigenvalues with a share of their own, and that share.

        0 where k < m, and 1/gamma where fewer than m workers are missing: their vectors leave directions untouched.
        """
        shares = {0.0: 1 - self.beta, 1 / self.gamma: 1 + self.beta - 1 / self.gamma}
        return {value: min(share, 1.0) for value, share in shares.items() if share > 1e-12}

    @property
    def amplification(self) -> float:
        """Mean of 1/x, (1 - gamma) / (beta - 1); exact for Haar-random complex frames of any size."""
        if self.beta * self.gamma >= 1 - 1e-12:  # nobody is missing
            return self.gamma
        return (1 - self.gamma) / (self.beta - 1) if self.beta > 1 else math.inf

    def density(self, x: ArrayLike) -> NDArray[np.float64]:
        """The density at x, beside the atoms."""
        at, (low, high) = np.asarray(x, dtype=np.float64), self.edges
        return _bulk(at, low, high, 2 * np.pi * at * (1 - self.gamma * at))


def _bulk(x: NDArray[np.float64], low: float, high: float, scale: NDArray[np.float64]) -> NDArray[np.float64]:
    inside = (x > low) & (x < high)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(inside, np.sqrt(np.clip((x - low) * (high - x), 0, None)) / scale, 0.0)
