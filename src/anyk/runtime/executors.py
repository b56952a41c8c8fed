"""Bring your own executors: a list of one-worker `concurrent.futures.Executor` objects."""

from __future__ import annotations

import os
import queue
import time
import uuid
from collections.abc import Iterable
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from typing import Any

import cloudpickle

from ..errors import NotPicklable, WorkersClosed
from . import faults
from .faults import Crashed
from .workers import Event, Failure, WorkersBase

__all__ = ["ExecutorWorkers"]

_states: dict[str, dict[str, Any]] = {}  # of the workers that live in this process


def _run(key: str, master: int, packed: bytes) -> tuple[str, Any, float]:
    start = time.monotonic()
    faults.dedicated_process = os.getpid() != master
    try:
        fn, args = cloudpickle.loads(packed)
        value = fn(_states.setdefault(key, {}), *args)
    except Crashed:
        return "lost", "the worker crashed", 0.0
    except BaseException as error:
        return "error", Failure.of(error), time.monotonic() - start
    return "ok", value, time.monotonic() - start


class ExecutorWorkers(WorkersBase):
    """Workers behind executors that you own, one each: process pools of one, threads of one, loky, Dask's, MPI's.

    A task cannot be stopped here (`drop` returns False) and nothing is shared: values travel as the executor sends
    them. An executor whose process dies is a lost worker for good. `close` leaves your executors running.

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
        self._closed = False

    def __len__(self) -> int:
        return len(self._executors)

    def submit(self, worker: int, token: Any, fn: Any, *args: Any) -> None:
        """Start a task."""
        if self._closed:
            raise WorkersClosed("these workers have been closed")
        if worker in self._lost:
            self._events.put(Event(token, worker, "lost", self._lost[worker]))
            return
        try:
            packed = cloudpickle.dumps((fn, args))
        except Exception as error:
            raise NotPicklable(
                f"the task cannot be pickled ({error}); pass data as blocks, open files inside"
            ) from error
        try:
            future = self._executors[worker].submit(_run, self._names[worker], os.getpid(), packed)
        except (BrokenExecutor, RuntimeError) as error:
            self._events.put(Event(token, worker, "lost", str(error) or type(error).__name__))
            return
        future.add_done_callback(lambda done: self._events.put(_event(done, token, worker)))

    def poll(self, timeout: float | None) -> list[Event]:
        """Events so far, or the first to come."""
        if self._closed:
            raise WorkersClosed("these workers have been closed")
        events: list[Event] = []
        try:
            events.append(self._events.get(block=timeout is None or timeout > 0, timeout=timeout))
            while True:
                events.append(self._events.get_nowait())
        except queue.Empty:
            self._lost |= {event.worker: str(event.value) for event in events if event.kind == "lost"}
            return events

    def drop(self, worker: int, restart: bool = True) -> bool:
        """An executor cannot stop a running task."""
        if self._closed:
            raise WorkersClosed("these workers have been closed")
        return False

    def close(self) -> None:
        """Stop listening."""
        self._closed = True
        for name in self._names:
            _states.pop(name, None)


def _event(future: Future[Any], token: Any, worker: int) -> Event:
    try:
        kind, value, seconds = future.result()
    except (BrokenExecutor, CancelledError) as error:
        return Event(token, worker, "lost", str(error) or type(error).__name__)
    except BaseException as error:  # a reply that could not be sent, for one
        return Event(token, worker, "error", Failure.of(error))
    return Event(token, worker, kind, value, seconds)
