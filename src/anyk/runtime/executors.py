"""Bring your own executors: a list of one-worker `concurrent.futures.Executor` objects."""

from __future__ import annotations

import itertools
import math
import os
import queue
import time
import uuid
import weakref
from collections.abc import Iterable
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from dataclasses import dataclass
from typing import Any

import cloudpickle

from ..errors import NotPicklable
from . import faults
from .faults import Crashed
from .workers import SLICE, Event, Failure, WorkersBase

__all__ = ["ExecutorWorkers"]

_states: dict[str, dict[str, Any]] = {}  # of the workers that live in this process
_values: dict[str, dict[int, Any]] = {}  # published values that they hold
_numbers = itertools.count()


class _Published:
    """A value that a worker keeps once it has it."""

    def __init__(self, value: Any) -> None:
        self.number, self.value = next(_numbers), value


@dataclass(frozen=True, slots=True)
class _Held:
    """Stands for a published value in a task."""

    number: int


def _run(key: str, master: int, packed: bytes) -> tuple[str, Any, float]:
    start = time.monotonic()
    faults.dedicated_process = os.getpid() != master
    try:
        fn, args, news, gone = cloudpickle.loads(packed)
        held = _values.setdefault(key, {})
        held.update(news)
        for number in gone:
            held.pop(number, None)
        fn, *args = (held[each.number] if isinstance(each, _Held) else each for each in (fn, *args))
        value = fn(_states.setdefault(key, {}), *args)
    except Crashed:
        return "lost", "the worker crashed", 0.0
    except BaseException as error:
        return "error", Failure.of(error), time.monotonic() - start
    return "ok", value, time.monotonic() - start


class ExecutorWorkers(WorkersBase):
    """Workers behind executors that you own, one each: process pools of one, threads of one, loky, Dask's, MPI's.

    A task cannot be stopped here (`drop` returns False) and nothing is shared: values travel as the executor sends
    them, published ones once to each worker. An executor whose process dies is a lost worker for good. `close`
    leaves your executors running.

    Parameters
    ----------
    executors : iterable of concurrent.futures.Executor
        Each with a single worker, or state would not stay where it was put.
    """

    def __init__(self, executors: Iterable[Executor]) -> None:
        self._executors = list(executors)
        if not self._executors:
            raise ValueError("at least one executor is needed")
        self._names = [f"{uuid.uuid4().hex}-{worker}" for worker in range(len(self._executors))]
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._lost: dict[int, str] = {}
        self._known: list[set[int]] = [set() for _ in self._executors]
        self._gone: set[int] = set()  # published values that nobody refers to any more

    def publish(self, value: Any) -> Any:
        """A reference; the value travels to a worker with the first task that refers to it."""
        self._check_open()
        ref = _Published(value)
        weakref.finalize(ref, self._gone.add, ref.number)
        return ref

    def __len__(self) -> int:
        return len(self._executors)

    def submit(self, worker: int, token: Any, fn: Any, *args: Any) -> None:
        """Start a task."""
        self._check_open()
        if worker in self._lost:
            self._events.put(Event(token, worker, "lost", self._lost[worker]))
            return
        refs = [each for each in (fn, *args) if isinstance(each, _Published)]
        known = self._known[worker]
        news = {ref.number: ref.value for ref in refs if ref.number not in known}
        gone = known & self._gone
        task, *rest = (_Held(each.number) if isinstance(each, _Published) else each for each in (fn, *args))
        try:
            packed = cloudpickle.dumps((task, rest, news, gone))
        except Exception as error:
            raise NotPicklable(
                f"the task cannot be pickled ({error}); pass data as blocks, open files inside"
            ) from error
        try:
            future = self._executors[worker].submit(_run, self._names[worker], os.getpid(), packed)
        except (BrokenExecutor, RuntimeError) as error:
            self._events.put(Event(token, worker, "lost", str(error) or type(error).__name__))
            return
        self._known[worker] = (known | news.keys()) - gone
        future.add_done_callback(lambda done: self._events.put(_event(done, token, worker)))

    def poll(self, timeout: float | None) -> list[Event]:
        """Events so far, or the first to come."""
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        events: list[Event] = []
        while True:
            self._check_open()  # another thread may close it meanwhile
            wait = 0.0 if events else min(max(deadline - time.monotonic(), 0.0), SLICE)
            try:
                events.append(self._events.get(block=wait > 0, timeout=wait))
            except queue.Empty:
                if events or time.monotonic() >= deadline:
                    self._lost |= {event.worker: str(event.value) for event in events if event.kind == "lost"}
                    return events

    def drop(self, worker: int, restart: bool = True) -> bool:
        """An executor cannot stop a running task."""
        self._check_open()
        return False

    def close(self) -> None:
        """Stop listening."""
        self._closed = True
        for name in self._names:
            _states.pop(name, None)
            _values.pop(name, None)


def _event(future: Future[Any], token: Any, worker: int) -> Event:
    try:
        kind, value, seconds = future.result()
    except (BrokenExecutor, CancelledError) as error:
        return Event(token, worker, "lost", str(error) or type(error).__name__)
    except BaseException as error:  # a reply that could not be sent, for one
        return Event(token, worker, "error", Failure.of(error))
    return Event(token, worker, kind, value, seconds)
