"""What is done about workers that are late: they are skipped, started afresh, or their task is given to another."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Backup", "Late", "Restart", "Skip", "backup_due", "chosen"]


def _check(name: str, value: Any, least: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not value >= least:
        raise ValueError(f"{name} must be a number of at least {least:g}, got {value!r}")


@dataclass(frozen=True)
class Skip:
    """Whoever is late is left to its task, and fed the newest round's as soon as it is free; the default.

    Where a round needs a worker that is still at work for an earlier one, it waits three times as long as its usual
    answer takes, and `patience` at least; then it starts it afresh.

    Parameters
    ----------
    patience : float
        Seconds; infinity never starts anybody afresh.
    """

    patience: float = 1.0

    def __post_init__(self) -> None:
        _check("patience", self.patience, 0.0)


@dataclass(frozen=True)
class Restart:
    """Whoever is late when a round ends is started afresh at once: no machine works on what nobody waits for.

    Its state is gone, which is put back when it is next needed. For tasks that hang; a machine that is slow stays slow.
    """

    patience: float = 0.0


@dataclass(frozen=True)
class Backup:
    """The task of whoever is late is given to an idle worker as well, and the first answer counts: for uncoded jobs.

    The baseline of MapReduce; with a code the others' answers do the same. Backups begin when half of the tasks are
    done, for those that have taken `after` times as long as the median of these. Where liars are looked for (codes with
    `adversaries`, majorities of copies) it does as `Skip`: a liar would answer for others, too.

    Parameters
    ----------
    after : float
        At least 1.
    patience : float
        As in `Skip`.

    Examples
    --------
    >>> import anyk
    >>> with anyk.ThreadWorkers(5) as workers:  # the fifth is to spare
    ...     slow = {2: anyk.Slow(1)}
    ...     code = anyk.UncodedCode(4, 4)
    ...     result = anyk.map(abs, [-1.0, 2, -3, 4], code=code, workers=workers, late=anyk.Backup(), faults=slow)
    >>> [float(value) for value in result.value], sorted(result.run.backups)
    ([1.0, 2.0, 3.0, 4.0], [2])
    """

    after: float = 1.5
    patience: float = 1.0

    def __post_init__(self) -> None:
        _check("after", self.after, 1.0)
        _check("patience", self.patience, 0.0)


Late = Skip | Restart | Backup


def chosen(late: Late | None, liars: bool) -> Late:
    """The policy; where liars are looked for nobody stands in for others: a liar would have more votes than one."""
    if late is None:
        return Skip()
    return Skip(late.patience) if liars and isinstance(late, Backup) else late


_LEAST = 0.02  # seconds that a task may take, at least, before it is given to another


def backup_due(late: Late, tasks: int, answers: list[float]) -> float:
    """Seconds into the round from which backups begin, given when the answers came; infinity for never."""
    if not isinstance(late, Backup) or 2 * len(answers) < tasks:
        return math.inf
    return max(late.after * sorted(answers)[(len(answers) - 1) // 2], _LEAST)
