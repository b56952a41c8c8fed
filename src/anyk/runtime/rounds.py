"""The one gather loop.

It owns what no engine has to know: at most one task in flight per worker (one that is busy with an earlier round is
fed the newest round's task as soon as it is free), (round, worker, serial) tokens and the dropping of late replies,
stop rules, the screening of replies, and the restart of lost workers.
"""

from __future__ import annotations

import itertools
import math
import threading
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import blocks as _blocks
from ..errors import DisagreeingReplies, RoundError, TaskFailed, TooFewResponders, TooManyErrors
from .events import RoundEvent, Run
from .faults import Fault, FaultyWorkers, run_faulty
from .late import Backup, Late, Restart, Skip, backup_due
from .noise import Noise, run_noisy
from .stop import Deadline, FirstK, Progress, StopRule
from .workers import Event, Failure, Workers

__all__ = ["Reply", "alone", "gather"]

# The tasks of these workers, to be run by those to whom the mapping assigns them, or by themselves.
Send = Callable[[Sequence[int], Mapping[int, int]], Iterator[tuple[int, Any, tuple[Any, ...]]]]


@dataclass
class _Ledger:
    """What the core remembers of an engine from round to round."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    running: bool = False
    serial: Iterator[int] = field(default_factory=itertools.count)
    busy: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    lost: dict[int, str] = field(default_factory=dict)
    since: dict[int, float] = field(default_factory=dict)  # when those that are busy began, on the workers' clock


_ledgers: weakref.WeakKeyDictionary[Any, _Ledger] = weakref.WeakKeyDictionary()
_rounds: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()  # wrapped workers count their own
_ledgers_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Reply:
    """A valid reply: the leaves as NumPy arrays (perhaps views of a worker's memory), and their structure."""

    native: list[Any]
    arrays: list[NDArray[Any]]
    spec: Any

    @property
    def signature(self) -> tuple[Any, ...]:
        """Equal for replies that can be combined."""
        return (self.spec, *((array.shape, array.dtype.str) for array in self.arrays))

    def copied(self) -> Reply:
        """The same in memory of its own."""
        return Reply(self.native, [array.copy() for array in self.arrays], self.spec)

    def value(self) -> Any:
        """The reply as an own copy in the worker's library."""
        import optree

        leaves = [_blocks.from_numpy(a.copy(), like) for a, like in zip(self.arrays, self.native, strict=True)]
        return optree.tree_unflatten(self.spec, leaves)


_LEAF = _blocks.flatten(0.0)[1]


_LISTED = 4  # failures told in an error's text
_PATIENCE = 1.0  # seconds that another answer may take, at least, where replies contradict one another
_SKIP = Skip()
_LONGEST = 3600.0  # seconds to wait at once; clocks overflow on much longer ones


def _unfit(reason: str) -> Failure:
    return Failure("TypeError", reason, f"TypeError: {reason}")


def _screen(value: Any, allow_nan: bool) -> Reply | Failure | str:
    """A reply; or the function's failure, where it returns what cannot be combined; or why this is an erasure."""
    if value is None:
        return _unfit("returned None")
    native, spec = ([value], _LEAF) if type(value) is np.ndarray else _blocks.flatten(value)
    if any(leaf is None for leaf in native):
        return _unfit("returned None inside a container")
    try:
        arrays = [_blocks.to_numpy(leaf) for leaf in native]
    except TypeError as error:
        return _unfit(f"returned something else than numbers: {error}")
    if not arrays:
        return _unfit("returned an empty container")
    if not allow_nan:
        for array in arrays:
            if not _blocks.finite(array):
                bad = int(array.size - np.isfinite(array).sum())
                return f"returned {bad} non-finite value{'s' if bad > 1 else ''} (NaN or inf) of {array.size}"
    return Reply(native, arrays, spec)


class _Disjoint(Collection[int]):
    """Two sets as one, as they are at any time: with thousands of workers a union for each event would take long."""

    def __init__(self, left: set[int], right: set[int]) -> None:
        self.left, self.right = left, right

    def __len__(self) -> int:
        return len(self.left) + len(self.right)

    def __iter__(self) -> Iterator[int]:
        return itertools.chain(self.left, self.right)

    def __contains__(self, worker: object) -> bool:
        return worker in self.left or worker in self.right


class _Round:
    """One round in progress."""

    def __init__(
        self,
        workers: Workers,
        ledger: _Ledger,
        who: Sequence[int],
        send: Send,
        faults: Mapping[int, Fault],
        allow_nan: bool,
        notify: Callable[[RoundEvent], None] | None,
        noise: Noise | None,
        late: Late,
        inspect: Callable[[Reply], Reply | str] | None,
    ) -> None:
        self.workers, self.ledger, self.who, self.send = workers, ledger, who, send
        self.faults, self.allow_nan, self.notify = faults, allow_nan, notify
        self.noise, self.policy, self.inspect = noise, late, inspect
        self.number = _rounds.get(workers, 0)
        self.serial = next(ledger.serial)
        self.start = workers.time()
        self.pending: set[int] = set()
        self.arrived: deque[Event] = deque()  # in the same breath as the reply that met the rule, and not yet looked at
        self.waiting: set[int] = set()  # busy with an earlier round
        self.begun = False  # everybody who was free has been given a task
        self.relieved_at = 0.0
        self.patient = False  # the engine cannot start workers afresh
        self.standing_in: dict[int, int] = {}  # whose task a worker runs beside, or after, its own
        self.began: dict[int, float] = {}  # seconds into the round at which each worker was fed
        self.died: list[int] = []  # over this round's task
        self.revived: set[int] = set()
        self.groups: dict[tuple[Any, ...], dict[int, Reply]] = {}
        self.best: dict[int, Reply] = {}
        self.failures: dict[int, Failure] = {}
        self.run = Run(round=self.number, workers=tuple(who))

    def elapsed(self) -> float:
        return self.workers.time() - self.start

    def tell(self, kind: Any, worker: int | None = None, detail: Any = None) -> None:
        if self.notify is not None:
            now = self.workers.time()
            self.notify(RoundEvent(kind, self.number, now - self.start, worker, detail, now))

    def fail(self, worker: int, reason: str, failure: Failure | None = None) -> None:
        self.run.failed[worker] = reason
        self.run.failed_at[worker] = self.run.answered_at.get(worker, self.elapsed())
        if failure is not None:
            self.failures[worker] = failure
        self.tell("failed", worker, reason)

    def restart(self, worker: int) -> bool:
        """Start a worker afresh, whether it is lost or at work; its state is gone."""
        if self.workers.drop(worker, restart=True):
            self.ledger.lost.pop(worker, None)
            self.free(worker)
            self.tell("restarted", worker)
            return True
        return False

    def free(self, worker: int) -> bool:
        """It is no longer at what is not waited for; whether it was. The time that it took is written down."""
        if self.ledger.busy.pop(worker, None) is None:
            return False
        now = self.workers.time()
        spent = now - self.ledger.since.pop(worker, now)
        if worker in self.began:
            self.run.machine_seconds += spent
        else:
            self.run.wasted_seconds += spent
        return True

    def begin(self, stop: StopRule, sufficient: Callable[[Collection[int]], bool]) -> None:
        """Hear what came since the last round, then feed everybody who is free.

        Workers that are still at work for an earlier round are needed when those who are free cannot meet the rule.
        What they are working on will be dropped, and perhaps they hang: then they are started afresh.
        """
        while events := self.workers.poll(0):
            self.hear(deque(events))
        free = []
        for worker in self.who:
            if worker in self.ledger.busy:
                self.waiting.add(worker)
            elif worker in self.ledger.lost and not self.restart(worker):
                self.fail(worker, f"lost: {self.ledger.lost[worker]}")
            else:
                free.append(worker)
        if self.waiting and not stop.possible(Progress((), set(free), 0.0, sufficient)):
            free = sorted(free + self.relieve(lambda who: stop.possible(Progress((), {*free, *who}, 0.0, sufficient))))
        self.start = self.run.started = self.workers.time()
        self.tell("started", detail=len(self.who))
        self.submit(free)
        self.begun = True

    def abandon(self) -> None:
        """Start everybody afresh who is at work, as far as the engine can; no listener is told, it may raise again."""
        for worker in list(self.ledger.busy):
            if self.workers.drop(worker, restart=True):
                self.ledger.busy.pop(worker, None)
                self.ledger.since.pop(worker, None)

    def cut_off(self) -> None:
        """Start everybody afresh who is still at work."""
        for worker in sorted(self.ledger.busy):
            self.restart(worker)

    def relieve(self, enough: Callable[[list[int]], bool]) -> list[int]:
        """Start some of those afresh who are still at work for an earlier round, until there are enough of them.

        The others may become free by themselves: each start costs milliseconds.
        """
        relieved: list[int] = []
        for worker in sorted(self.waiting):
            if relieved and enough(relieved):
                break
            if self.restart(worker):
                relieved.append(worker)
        self.waiting.difference_update(relieved)
        self.patient = not relieved
        self.relieved_at = self.elapsed()
        return relieved

    def revive(self, stop: StopRule, sufficient: Callable[[Collection[int]], bool]) -> bool:
        """Give workers that died in this round their task once more, where the rule is not met without them.

        They may have been killed while they were idle, which shows only now. One that dies again is given up: its task
        may be what kills it.
        """
        gone = [worker for worker in self.died if worker not in self.revived]
        with_them = Progress(self.best.keys(), {*self.pending, *self.waiting, *gone}, self.elapsed(), sufficient)
        if not gone or not stop.possible(with_them):
            return False
        back = [worker for worker in gone if self.restart(worker)]
        self.revived.update(back)
        for worker in back:
            del self.run.failed[worker], self.run.failed_at[worker]
        self.submit(back)
        return bool(back)

    def patience(self) -> float:
        """Seconds into the round after which workers that are behind, and so needed here, are started afresh."""
        if not self.waiting or self.patient:
            return math.inf
        answers = sorted(self.run.answered_at.values())
        least = self.policy.patience
        usual = max(least, 3 * answers[len(answers) // 2]) if answers else max(least, 60 * _PATIENCE)
        return self.relieved_at + usual

    def another_try(self) -> float:
        """Seconds into the round after which those that died get their task once more: those awaited may be hanging."""
        answers = sorted(self.run.answered_at.values())
        if not answers or self.revived.issuperset(self.died):
            return math.inf
        return max(self.policy.patience, _PATIENCE, 3 * answers[len(answers) // 2])

    def submit(self, tasks: Sequence[int], by: Mapping[int, int] = MappingProxyType({})) -> None:
        """Run these workers' tasks, by themselves or by those who stand in for them."""
        for task, fn, args in self.send(tasks, by):
            worker = by.get(task, task)
            if self.noise is not None:
                fn, args = run_noisy, (self.noise, (self.noise.seed, self.number, task), fn, *args)
            if worker in self.faults:
                fn, args = run_faulty, (self.faults[worker], fn, *args)
            token = (self.number, worker, self.serial)
            now = self.workers.time()
            self.ledger.busy[worker], self.ledger.since[worker] = token, now
            try:
                self.workers.submit(worker, token, fn, *args)
            except Exception:
                del self.ledger.busy[worker], self.ledger.since[worker]
                raise
            self.began[worker] = now - self.start
            self.pending.add(task)
            if self.begun:
                self.run.fed_at[worker] = self.elapsed()
            self.tell("submitted", worker)

    def back_up(self) -> bool:
        """Give the tasks of those who are late to idle workers; whether there were both."""
        covered = set(self.standing_in.values())
        late = [task for task in sorted(self.pending) if task not in covered]
        occupied = {*self.pending, *self.waiting, *self.ledger.busy, *self.ledger.lost, *self.run.failed}
        idle = [worker for worker in range(len(self.workers)) if worker not in occupied]
        by = dict(zip(late, idle, strict=False))
        for task, worker in by.items():
            self.standing_in[worker] = task
            for group in self.groups.values():  # what it has answered so far lies where the next answer will
                for answered in group:
                    if self.run.backups.get(answered, answered) == worker:
                        group[answered] = group[answered].copied()
        self.submit(list(by), by)
        return bool(by)

    def hear(self, events: deque[Event]) -> None:
        """Take note of events that come too late, all of them even if a listener raises."""
        try:
            while events:
                self.late(events.popleft())
        finally:
            if events:
                self.hear(events)

    def late(self, event: Event) -> bool:
        """Take note of an event that belongs to no task of this round; whether the worker became free by it."""
        worker = event.worker
        if event.kind == "lost":
            self.free(worker)
            self.ledger.lost[worker] = str(event.value)
            return True
        if event.kind == "joined":
            if event.token is not None:  # what it has been given since is in its hands
                return False
            self.ledger.lost.pop(worker, None)
            return self.free(worker)  # somebody has dropped it while it was at work
        if worker in self.ledger.busy and self.ledger.busy[worker] == event.token:
            self.free(worker)
            self.tell("late", worker, event.seconds)
            return True
        return False

    def handle(self, event: Event) -> None:
        worker = event.worker
        task = self.standing_in.get(worker, worker)
        mine = event.token == (self.number, worker, self.serial)
        if task not in self.pending or not (mine or event.kind in ("lost", "joined")):
            if self.late(event) and worker in self.waiting:
                self.waiting.discard(worker)
                if worker not in self.ledger.lost or self.restart(worker):
                    self.submit([worker])
                else:
                    self.fail(worker, f"lost: {self.ledger.lost[worker]}")
            return
        if event.kind == "joined" and mine:
            return
        self.occupied(worker)
        if event.kind in ("lost", "joined", "error") and self.covered(worker, task):
            if event.kind == "lost":
                self.ledger.lost[worker] = str(event.value)
            return  # another runs this task, too
        self.pending.discard(task)
        if event.kind == "joined":
            self.fail(task, "lost: the worker was dropped while at work")
            return
        if event.kind == "lost":
            self.ledger.lost[worker] = str(event.value)
            self.died.append(task)
            self.fail(task, f"lost: {event.value}")
            return
        self.run.answered_at[task] = self.elapsed()
        if event.seconds is not None:
            self.run.worker_seconds[task] = event.seconds
        if event.kind == "error":
            self.fail(task, f"raised {event.value.type}: {event.value.message}", event.value)
            return
        reply = _screen(event.value, self.allow_nan)
        if self.inspect is not None and isinstance(reply, Reply):
            reply = self.inspect(reply)
        if isinstance(reply, Failure):
            self.fail(task, reply.message, reply)
            return
        if isinstance(reply, str):
            self.fail(task, reply)
            return
        if worker != task:
            self.run.backups[task] = worker
        group = self.groups.setdefault(reply.signature, {})
        group[task] = reply
        if len(group) > len(self.best):
            self.best = group
        self.tell("answered", task, event.seconds)

    def occupied(self, worker: int) -> None:
        """Write down how long it was at work for this round; it is no more."""
        self.ledger.busy.pop(worker, None)
        self.ledger.since.pop(worker, None)
        if worker in self.began:
            self.run.machine_seconds += self.elapsed() - self.began[worker]

    def covered(self, worker: int, task: int) -> bool:
        """Whether another worker is at this task, too; `worker` is not any more."""
        if worker != task:
            del self.standing_in[worker]
            return task in self.ledger.busy
        return task in self.standing_in.values()

    def wait(self, stop: StopRule, sufficient: Callable[[Collection[int]], bool]) -> bool:
        """Gather until the rule is met (True) or can no longer be met (False)."""
        pending = _Disjoint(self.pending, self.waiting)
        while True:
            elapsed = self.elapsed() if pending else math.inf  # nobody is left to wait for
            progress = Progress(self.best.keys(), pending, elapsed, sufficient)
            if stop.met(progress):
                return True
            if not self.arrived:
                if not pending or not stop.possible(progress):
                    if self.revive(stop, sufficient):
                        continue
                    return False
                if elapsed >= self.patience():
                    self.submit(self.relieve(partial(self.would_do, stop, sufficient)))
                    continue
                again = self.another_try() if self.died else math.inf
                if elapsed >= again and self.revive(stop, sufficient):
                    continue
                if elapsed >= (backup := self.backup_due()) and self.back_up():
                    continue
                due = [
                    at - elapsed for at in (*stop.wakeups(), self.patience(), backup, again) if elapsed < at < math.inf
                ]
                self.arrived.extend(self.workers.poll(min(*due, _LONGEST) if due else None))
            if self.arrived:
                self.handle(self.arrived.popleft())

    def backup_due(self) -> float:
        """Seconds into the round at which late tasks are given to others."""
        if not isinstance(self.policy, Backup):
            return math.inf
        return backup_due(self.policy, len(self.who), list(self.run.answered_at.values()))

    def would_do(self, stop: StopRule, sufficient: Callable[[Collection[int]], bool], more: Collection[int]) -> bool:
        """Whether the rule were met if these answered, too."""
        return stop.met(Progress([*self.best, *more], self.pending, self.elapsed(), sufficient))

    def another(self, stop: StopRule, sufficient: Callable[[Collection[int]], bool]) -> bool:
        """Wait for one more reply than the rule asked for; False if none comes in as much time as one may take.

        That is three times as long as the latest took, at least a second, and never past a deadline of the rule's own.
        """
        before = len(self.best)
        limit = self.elapsed() + max(_PATIENCE, 3 * max(self.run.answered_at.values(), default=0.0))
        for at in stop.wakeups():
            if stop.met(Progress((), self.pending, at, lambda _: False)):
                limit = min(limit, at)
        if limit > self.elapsed():
            self.wait(FirstK(before + 1) | Deadline(limit), sufficient)
        return len(self.best) > before

    def finish(self, stop: StopRule) -> str | None:
        """Settle the record; the minority whose replies look different has failed. A tie is returned, in words."""
        self.run.seconds = self.elapsed()
        self.run.responders = tuple(sorted(self.best))
        self.run.stragglers = tuple(sorted(self.pending))
        self.run.skipped = tuple(sorted(self.waiting))
        self.run.stopped_by = repr(stop)
        for worker in self.ledger.busy.keys() & self.began.keys():
            self.run.machine_seconds += self.run.seconds - self.began[worker]
            self.ledger.since[worker] = self.workers.time()  # from here on its work is wasted
        rivals = [group for group in self.groups.values() if len(group) == len(self.best)]
        for group in self.groups.values() if len(rivals) == 1 else ():
            usual = next(iter(self.best.values()))
            for worker, reply in group.items() if group is not self.best else ():
                if worker in self.run.failed:
                    continue
                self.fail(
                    worker,
                    f"returned {_blocks.describe(reply.spec, reply.arrays)} where the majority returned "
                    f"{_blocks.describe(usual.spec, usual.arrays)}",
                )
        if len(rivals) < 2:
            return None
        shapes = " against ".join(
            f"{_blocks.describe(one.spec, one.arrays)} from workers {_some(group)}"
            for group in rivals
            for one in [next(iter(group.values()))]
        )
        return f"the workers' replies do not agree and neither is the majority: {shapes}"


def _some(workers: Iterable[int], most: int = 8) -> str:
    listed = sorted(workers)
    return ", ".join(map(str, listed[:most])) + (", ..." if len(listed) > most else "")


def shortfall(run: Run, arrived: dict[int, Any], failures: Mapping[int, Failure], why: str) -> Exception:
    """The error for a round that did not bring enough, with the worker's own traceback where a function raised."""
    counts = [f"{len(run.responders)} of {len(run.workers)} workers answered"]
    for word, who in (("still at work", run.stragglers), ("busy with an earlier round", run.skipped)):
        if who:
            counts.append(f"{len(who)} {word} ({_some(who)})")
    if run.failed:
        counts.append(f"{len(run.failed)} failed ({_some(run.failed)})")
    summary = f"{why}: {', '.join(counts)} after {run.seconds:.3g} s"
    if failures:
        first = min(failures)
        return TaskFailed(
            f"the function failed on worker {first}: {failures[first].type}: {failures[first].message}\n{summary}\n"
            f"--- traceback of worker {first} ---\n{failures[first].traceback}",
            first,
            failures[first].traceback,
            arrived,
            run,
        )
    reasons = "".join(f"\n  worker {worker} {run.failed[worker]}" for worker in sorted(run.failed)[:_LISTED])
    if len(run.failed) > _LISTED:
        reasons += f"\n  and {len(run.failed) - _LISTED} more"
    return TooFewResponders(summary + reasons, arrived, run)


def _ledger_of(workers: Workers) -> _Ledger:
    """The core's memory of the engine: one for all that wrap it."""
    while isinstance(workers, FaultyWorkers):
        workers = workers.workers
    with _ledgers_lock:
        return _ledgers.setdefault(workers, _Ledger())


@contextmanager
def alone(workers: Workers) -> Iterator[None]:
    """Hold these workers while a round is prepared and run; other threads wait.

    Raises
    ------
    RuntimeError
        If this very thread is in the middle of a round with them (in a callback, say).
    """
    ledger = _ledger_of(workers)
    with ledger.lock:
        if ledger.running:
            raise RuntimeError("these workers are in the middle of a round: a callback cannot start another with them")
        ledger.running = True
        try:
            yield
        finally:
            ledger.running = False


def gather(
    workers: Workers,
    who: Sequence[int],
    send: Send,
    stop: StopRule,
    sufficient: Callable[[Collection[int]], bool],
    *,
    faults: Mapping[int, Fault] | None = None,
    allow_nan: bool = False,
    notify: Callable[[RoundEvent], None] | None = None,
    noise: Noise | None = None,
    late: Late = _SKIP,
    inspect: Callable[[Reply], Reply | str] | None = None,
    use: Callable[[dict[int, Reply], Run, Callable[[str], Exception]], Any],
) -> Any:
    """Run one round, inside `alone(workers)`, and hand the replies to `use` while they are still valid.

    Parameters
    ----------
    workers : Workers
    who : indices of the workers that have something to do
    send : callable
        ``send(tasks, by)`` yields (task, fn, args) for each: a task is named by the worker whose it is, and runs there,
        or on the worker to whom the mapping `by` gives it. Called again when a busy worker becomes free.
    stop : StopRule
    sufficient : callable
        Whether a collection of responders can be decoded.
    faults : mapping worker -> fault, for this round
    allow_nan : bool
        Accept replies with NaN or infinity.
    notify : callable, optional
        Receives every `RoundEvent`.
    noise : Noise, optional
        What the workers do to their replies.
    late : Skip, Restart or Backup
        What is done about workers that are late.
    inspect : callable, optional
        What is to be kept of a reply, or why it is refused.
    use : callable
        ``use(replies, run, error)`` makes the result; ``error(why)`` builds the exception for replies that do not do.

    Raises
    ------
    TooFewResponders, TaskFailed, DisagreeingReplies
    """
    current = _Round(workers, _ledger_of(workers), who, send, faults or {}, allow_nan, notify, noise, late, inspect)
    _rounds[workers] = current.number + 1
    arrived: dict[int, Reply] = {}

    def copies() -> dict[int, Any]:
        return {worker: reply.value() for worker, reply in arrived.items()}

    def error(why: str) -> Exception:
        return shortfall(current.run, copies(), current.failures, why)

    try:
        try:
            current.begin(stop, sufficient)
            met = current.wait(stop, sufficient)
            while True:
                rivals = current.finish(stop)
                arrived = {worker: current.best[worker] for worker in sorted(current.best)}
                if rivals:
                    raise DisagreeingReplies(rivals, copies(), current.run)
                if not met:
                    raise error(f"{stop!r} cannot be met")
                try:
                    return use(arrived, current.run, error)
                except TooManyErrors:  # more replies may tell who lies
                    if not current.another(stop, sufficient):
                        raise
        finally:
            current.hear(current.arrived)
            if isinstance(late, Restart):
                current.cut_off()
    except RoundError as failure:
        if failure.run is None:
            failure.run, failure.arrived = current.run, copies()
        raise
    except BaseException as reason:
        if not isinstance(reason, Exception):  # Ctrl-C, perhaps in the middle of sending or reading: trust nobody
            current.abandon()
        raise
    finally:
        current.tell("ended", detail=current.run)
