"""What happens in a round, as plain records that progress bars, logs and plots subscribe to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from .trace import Trace

__all__ = ["Listeners", "RoundEvent", "Run", "Traffic"]


@dataclass(frozen=True, slots=True)
class RoundEvent:
    """One thing that happened.

    Attributes
    ----------
    kind : {"started", "submitted", "answered", "failed", "late", "restarted", "ended"}
        ``"late"``: the answer to an earlier round came and was dropped.
    round : int
        Counts from 0 in the life of the workers.
    seconds : float
        Since the start of the round, on the workers' clock.
    worker : int or None
    detail : Any
        The number of workers (started), the reason (failed), the seconds that the worker spent by its own clock
        (answered, late; None where the engine does not tell), the round's `Run` (ended).
    clock : float
        The same moment as a reading of the workers' clock, which goes on from round to round.
    """

    kind: Literal["started", "submitted", "answered", "failed", "late", "restarted", "ended"]
    round: int
    seconds: float
    worker: int | None = None
    detail: Any = None
    clock: float = 0.0


class Traffic(NamedTuple):
    """Numbers (array entries, whatever their dtype) that a round moved.

    Attributes
    ----------
    sent : int
        To all workers, for this round alone.
    received : int
        In the valid replies.
    placed : int
        To all workers, to stay there: partitions, in the round that placed them.
    """

    sent: int = 0
    received: int = 0
    placed: int = 0


@dataclass
class Run:
    """The record of one round.

    Attributes
    ----------
    round : int
    workers : tuple of int
        Workers that had something to do.
    responders : tuple of int
        Workers whose replies were used, sorted.
    liars : tuple of int
        Workers whose replies cannot be true: they contradict the others, are not finite, or differ in shape from the
        majority (these two are among the `failed` as well).
    stragglers : tuple of int
        Workers that were still at work when the round stopped; their replies will be dropped.
    skipped : tuple of int
        Workers that were busy with an earlier round all the time.
    failed : dict of int to str
        Workers whose function raised, that were lost, or whose reply was refused (NaN, another shape, ...), and why.
    started : float
        When the round began, on the workers' clock.
    seconds : float
        From the start of the round to its stop; encoding lies within it, decoding does not.
    encode_seconds, decode_seconds : float
        Time of the master.
    answered_at : dict of int to float
        Seconds after the start at which each valid or refused reply arrived.
    fed_at : dict of int to float
        Seconds after the start at which workers that had been busy or lost were given their task; the others were at 0.
    failed_at : dict of int to float
        Seconds after the start at which each of `failed` was lost or its reply arrived.
    worker_seconds : dict of int to float
        Time that each worker spent on its task, by its own clock.
    stopped_by : str
        The stop rule.
    traffic : Traffic
        Numbers sent each way.
    backups : dict of int to int
        Tasks, named by their workers, that others answered for them.
    machine_seconds : float
        Time that all workers together were at work for this round, up to its stop.
    wasted_seconds : float
        Time that they were at work for earlier rounds after these had stopped, as far as it has ended in this one.
    """

    round: int = 0
    workers: tuple[int, ...] = ()
    responders: tuple[int, ...] = ()
    liars: tuple[int, ...] = ()
    stragglers: tuple[int, ...] = ()
    skipped: tuple[int, ...] = ()
    failed: dict[int, str] = field(default_factory=dict)
    started: float = 0.0
    seconds: float = 0.0
    encode_seconds: float = 0.0
    decode_seconds: float = 0.0
    answered_at: dict[int, float] = field(default_factory=dict)
    fed_at: dict[int, float] = field(default_factory=dict)
    failed_at: dict[int, float] = field(default_factory=dict)
    worker_seconds: dict[int, float] = field(default_factory=dict)
    stopped_by: str = ""
    traffic: Traffic = field(default_factory=Traffic)
    backups: dict[int, int] = field(default_factory=dict)
    machine_seconds: float = 0.0
    wasted_seconds: float = 0.0

    def save_trace(self, path: str | Path) -> None:
        """Write the latencies of this round as a trace of one, for `Trace.load`; `Recorder` keeps many rounds."""
        Trace.of([self]).save(path)


class Listeners:
    """Several listeners as one, for ``on_event``.

    All of them hear every event, even if one raises; then the first error is raised.

    Examples
    --------
    >>> import anyk
    >>> kinds, recorder = [], anyk.Recorder()
    >>> with anyk.SimulatedWorkers(2) as workers:
    ...     both = anyk.Listeners(recorder, lambda event: kinds.append(event.kind))
    ...     result = anyk.map(abs, [0.5], workers=workers, stop=anyk.FirstK(1), on_event=both)
    >>> kinds, len(recorder)
    (['started', 'submitted', 'submitted', 'answered', 'ended'], 1)
    """

    def __init__(self, *each: Callable[[RoundEvent], None]) -> None:
        for listener in each:
            if not callable(listener):
                raise TypeError(f"listeners must be callable, got {listener!r}")
        self.each = each

    @property
    def draws(self) -> bool:
        """Whether one of them draws on the terminal, so that rounds draw no progress bar."""
        return any(getattr(listener, "draws", False) for listener in self.each)

    def __call__(self, event: RoundEvent) -> None:
        """Tell all of them."""
        first: BaseException | None = None
        for listener in self.each:
            try:
                listener(event)
            except BaseException as error:
                first = first if first is not None else error
        if first is not None:
            raise first
