"""A Markov chain with two states, walked by many independent members."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

__all__ = ["Chain"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Chain:
    """State 0 is left for 1 with probability `leave` in each round, 1 for 0 with probability `back`.

    It starts in the stationary distribution. The walk is a function of the seed, the number of members and the round:
    whoever shares a chain sees the same walk.

    Examples
    --------
    >>> chain = Chain(leave=0.1, back=0.3)
    >>> round(chain.share, 12)
    0.25
    """

    leave: float
    back: float
    seed: int = 0
    _latest: dict[int, tuple[int, NDArray[np.bool_]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def share(self) -> float:
        """Of the rounds that are spent in state 1: leave / (leave + back)."""
        return self.leave / (self.leave + self.back)

    def state(self, members: int, round: int) -> NDArray[np.bool_]:
        """Who is in state 1 in that round, (members,)."""
        at, state = self._latest.get(members, (round + 1, None))
        if at > round or state is None:
            at, state = 0, self._uniform(members, 0) < self.share
        while at < round:
            at += 1
            drawn = self._uniform(members, at)
            state = np.where(state, drawn >= self.back, drawn < self.leave)
        self._latest[members] = at, state
        return state

    def _uniform(self, members: int, round: int) -> Array:
        return np.random.default_rng([self.seed, round]).random(members)

    def smooth(self, log_likelihood: Array) -> tuple[float, Array, Array]:
        """Forwards and backwards over what was seen.

        Parameters
        ----------
        log_likelihood : (rounds, members, 2)
            Of what was seen of a member in a round, in each state.

        Returns
        -------
        float
            Logarithm of the likelihood of it all.
        (rounds, members) array
            Probability of state 1.
        (2, 2) array
            Expected number of steps from one state to the other.
        """
        rounds = len(log_likelihood)
        peak = log_likelihood.max(axis=2)
        seen = np.exp(log_likelihood - peak[:, :, None])
        steps = np.array([[1 - self.leave, self.leave], [self.back, 1 - self.back]])
        forward, scale = np.empty_like(seen), np.empty_like(peak)
        ahead = np.broadcast_to([1 - self.share, self.share], seen.shape[1:])
        for r in range(rounds):
            forward[r] = ahead * seen[r]
            scale[r] = forward[r].sum(axis=1)
            forward[r] /= scale[r][:, None]
            ahead = forward[r] @ steps
        behind, counts = np.ones(seen.shape[1:]), np.zeros((2, 2))
        smoothed = np.empty_like(peak)
        for r in reversed(range(rounds)):
            smoothed[r] = forward[r, :, 1] * behind[:, 1]
            weighed = seen[r] * behind / scale[r][:, None]
            if r:
                counts += (forward[r - 1].T @ weighed) * steps
            behind = weighed @ steps.T
        return float((np.log(scale) + peak).sum()), smoothed, counts


def checked(**probabilities: float) -> None:
    """Refuse what is no probability, or is zero."""
    for name, value in probabilities.items():
        if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not 0 < value <= 1:
            raise ValueError(f"{name} must be a probability above 0, got {value!r}")


def rates(counts: Array) -> tuple[float, float]:
    """The chances of leaving either state that make such steps most likely, kept off 0 and 1."""
    totals = counts.sum(axis=1)
    leave, back = (float(counts[s, 1 - s] / totals[s]) if totals[s] > 0 else 0.5 for s in (0, 1))
    return float(np.clip(leave, 1e-9, 1.0)), float(np.clip(back, 1e-9, 1.0))
