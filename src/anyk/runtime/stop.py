"""When to stop waiting: rules that combine with ``|`` (whichever comes first) and ``&`` (both)."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Set
from dataclasses import dataclass

import numpy as np

__all__ = ["All", "Deadline", "FirstK", "Progress", "StopRule", "Sufficient"]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a round has come.

    Attributes
    ----------
    responders : collection of int
        Workers with a valid reply.
    pending : collection of int
        Workers that may still answer.
    elapsed : float
        Seconds since the round began.
    sufficient : callable
        Whether a collection of workers can be decoded.
    """

    responders: Collection[int]
    pending: Collection[int]
    elapsed: float
    sufficient: Callable[[Collection[int]], bool]


class StopRule(ABC):
    """A stop rule; when it can no longer be met the round ends with an error."""

    @abstractmethod
    def met(self, progress: Progress) -> bool:
        """Whether the round is over."""

    def possible(self, progress: Progress) -> bool:
        """Whether the rule can still be met."""
        return True

    def wakeups(self) -> tuple[float, ...]:
        """Seconds after the start at which the rule wants to be asked even if nothing arrives."""
        return ()

    def check(self, workers: int) -> None:  # noqa: B027  most rules can be met with any number
        """Raise ValueError if the rule can never be met with that many workers."""

    def __or__(self, other: StopRule) -> StopRule:
        if not isinstance(other, StopRule):
            return NotImplemented
        return _Combined(self, other, any)

    def __and__(self, other: StopRule) -> StopRule:
        if not isinstance(other, StopRule):
            return NotImplemented
        return _Combined(self, other, all)


@dataclass(frozen=True)
class FirstK(StopRule):
    """Stop at the k-th valid reply.

    Examples
    --------
    >>> FirstK(24) | Deadline(2.5)
    FirstK(k=24) | Deadline(seconds=2.5)
    """

    k: int

    def __post_init__(self) -> None:
        if isinstance(self.k, bool) or not isinstance(self.k, int | np.integer) or self.k < 1:
            raise ValueError(f"k must be an integer of at least 1, got {self.k!r}")

    def met(self, progress: Progress) -> bool:
        """At least k replies."""
        return len(progress.responders) >= self.k

    def possible(self, progress: Progress) -> bool:
        """At least k replies if all that are pending answer."""
        return len(progress.responders) + len(progress.pending) >= self.k

    def check(self, workers: int) -> None:
        """Refuse k > n."""
        if self.k > workers:
            raise ValueError(f"FirstK({self.k}) can never be met: only {workers} workers have something to do")


@dataclass(frozen=True)
class Deadline(StopRule):
    """Stop `seconds` after the start of the round, with whatever has arrived."""

    seconds: float

    def __post_init__(self) -> None:
        number = isinstance(self.seconds, int | float | np.number) and not isinstance(self.seconds, bool)
        if not number or not self.seconds >= 0:
            raise ValueError(f"seconds must be a number of at least 0, got {self.seconds!r}")

    def met(self, progress: Progress) -> bool:
        """The time is over."""
        return progress.elapsed >= self.seconds

    def wakeups(self) -> tuple[float, ...]:
        """The deadline itself."""
        return (self.seconds,)


@dataclass(frozen=True)
class All(StopRule):
    """Stop when nobody is left who may answer: every worker answered, failed or was lost."""

    def met(self, progress: Progress) -> bool:
        """Nobody is pending."""
        return not progress.pending


class _Either(Set[int]):
    """Those who have answered or may, not copied: asked for after every answer of thousands of workers."""

    def __init__(self, responders: Collection[int], pending: Collection[int]) -> None:
        self.responders, self.pending = responders, pending

    def __len__(self) -> int:
        return len(self.responders) + len(self.pending)

    def __iter__(self) -> Iterator[int]:
        return itertools.chain(self.responders, self.pending)

    def __contains__(self, worker: object) -> bool:
        return worker in self.responders or worker in self.pending


@dataclass(frozen=True)
class Sufficient(StopRule):
    """Stop at the first set of replies that the code can decode."""

    def met(self, progress: Progress) -> bool:
        """The responders suffice."""
        return progress.sufficient(progress.responders)

    def possible(self, progress: Progress) -> bool:
        """They would if all that are pending answered."""
        return progress.sufficient(_Either(progress.responders, progress.pending))


@dataclass(frozen=True, repr=False)
class _Combined(StopRule):
    """Two rules, of which one (`any`) or both (`all`) must be met."""

    left: StopRule
    right: StopRule
    how: Callable[[Iterable[bool]], bool]

    def met(self, progress: Progress) -> bool:
        return self.how(rule.met(progress) for rule in (self.left, self.right))

    def possible(self, progress: Progress) -> bool:
        return self.how(rule.possible(progress) for rule in (self.left, self.right))

    def wakeups(self) -> tuple[float, ...]:
        return self.left.wakeups() + self.right.wakeups()

    def check(self, workers: int) -> None:
        self.left.check(workers)
        self.right.check(workers)

    def __repr__(self) -> str:
        if self.how is any:
            return f"{self.left!r} | {self.right!r}"
        loose = (isinstance(rule, _Combined) and rule.how is any for rule in (self.left, self.right))
        return " & ".join(
            f"({r!r})" if inner else repr(r) for r, inner in zip((self.left, self.right), loose, strict=True)
        )
