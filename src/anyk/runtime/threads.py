"""Workers that are threads of this process: for functions that release the GIL, and for tests."""

from __future__ import annotations

import queue
import threading
import time
from typing import Any

from ..errors import WorkersClosed
from .faults import Crashed
from .workers import Event, Failure, WorkersBase

__all__ = ["ThreadWorkers"]


class _Thread:
    """One daemon thread with its own queue; a thread that is given up is simply no longer listened to."""

    def __init__(self, worker: int, outbox: queue.SimpleQueue[tuple[_Thread, Event]]) -> None:
        self.worker = worker
        self.outbox = outbox
        self.inbox: queue.SimpleQueue[tuple[Any, Any, tuple[Any, ...]] | None] = queue.SimpleQueue()
        self.alive = True
        threading.Thread(target=self.serve, name=f"anyk-worker-{worker}", daemon=True).start()

    def serve(self) -> None:
        state: dict[str, Any] = {}
        while (task := self.inbox.get()) is not None:
            token, fn, args = task
            start = time.monotonic()
            try:
                event = Event(token, self.worker, "ok", fn(state, *args), time.monotonic() - start)
            except Crashed:
                self.outbox.put((self, Event(token, self.worker, "lost", "the worker crashed")))
                return
            except BaseException as error:
                event = Event(token, self.worker, "error", Failure.of(error), time.monotonic() - start)
            self.outbox.put((self, event))


class ThreadWorkers(WorkersBase):
    """`n` daemon threads, each with a state of its own.

    They start in no time and copy nothing. A thread cannot be stopped: `drop` abandons it (its reply is ignored) and
    starts another in its place. Pure Python functions share one interpreter lock; use `LocalWorkers` for those.

    Examples
    --------
    >>> import anyk
    >>> with ThreadWorkers(4) as workers:
    ...     anyk.map(lambda x: x + 1, [1.0, 2.0], code=anyk.RepetitionCode(4, 2), workers=workers).value
    [np.float64(2.0), np.float64(3.0)]
    """

    def __init__(self, n: int) -> None:
        if n < 1:
            raise ValueError(f"n must be at least 1, got {n}")
        self._outbox: queue.SimpleQueue[tuple[_Thread, Event]] = queue.SimpleQueue()
        self._threads = [_Thread(worker, self._outbox) for worker in range(n)]
        self._closed = False

    def __len__(self) -> int:
        return len(self._threads)

    def submit(self, worker: int, token: Any, fn: Any, *args: Any) -> None:
        """Start a task."""
        if self._closed:
            raise WorkersClosed("these workers have been closed")
        thread = self._threads[worker]
        thread.inbox.put((token, fn, args))

    def poll(self, timeout: float | None) -> list[Event]:
        """Events so far, or the first to come."""
        if self._closed:
            raise WorkersClosed("these workers have been closed")
        deadline = None if timeout is None else time.monotonic() + timeout
        events: list[Event] = []
        while True:
            wait = 0.0 if events else None if deadline is None else max(deadline - time.monotonic(), 0.0)
            try:
                thread, event = self._outbox.get(block=wait != 0.0, timeout=wait)
            except queue.Empty:
                if events or (deadline is not None and time.monotonic() >= deadline):
                    return events
                continue
            if thread is self._threads[thread.worker] and thread.alive:
                thread.alive = event.kind != "lost"
                events.append(event)

    def drop(self, worker: int, restart: bool = True) -> bool:
        """Abandon the thread; with `restart`, another takes its place and its state is empty."""
        thread = self._threads[worker]
        thread.alive = False
        thread.inbox.put(None)
        if restart:
            self._threads[worker] = _Thread(worker, self._outbox)
        return True

    def close(self) -> None:
        """Tell all threads to end once their task does."""
        if not self._closed:
            self._closed = True
            for thread in self._threads:
                thread.inbox.put(None)
