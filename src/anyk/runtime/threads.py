"""Workers that are threads of this process: for functions that release the GIL, and for tests."""

from __future__ import annotations

import math
import queue
import threading
import time
from typing import Any

from .faults import Crashed
from .workers import SLICE, Event, Failure, WorkersBase, whole

__all__ = ["ThreadWorkers"]


class _Thread:
    """One daemon thread with its own queue; a thread that is given up is simply no longer listened to."""

    def __init__(self, worker: int, outbox: queue.SimpleQueue[tuple[_Thread, Event]]) -> None:
        self.worker = worker
        self.outbox = outbox
        self.inbox: queue.SimpleQueue[tuple[Any, Any, tuple[Any, ...]] | None] = queue.SimpleQueue()
        self.token: Any = None  # of the task in flight
        self.alive = True
        threading.Thread(target=self.serve, name=f"anyk-worker-{worker}", daemon=True).start()

    def say(self, token: Any, kind: Any, value: Any = None, seconds: float | None = None) -> None:
        self.outbox.put((self, Event(token, self.worker, kind, value, seconds)))

    def serve(self) -> None:
        state: dict[str, Any] = {}
        while (task := self.inbox.get()) is not None:
            token, fn, args = task
            start = time.monotonic()
            try:
                value = fn(state, *args)
            except Crashed:
                self.say(token, "lost", "the worker crashed")
                return
            except BaseException as error:
                self.say(token, "error", Failure.of(error), time.monotonic() - start)
            else:
                self.say(token, "ok", value, time.monotonic() - start)
            del task, fn, args


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
        self._outbox: queue.SimpleQueue[tuple[_Thread, Event]] = queue.SimpleQueue()
        self._threads = [_Thread(worker, self._outbox) for worker in range(whole(n))]

    def __len__(self) -> int:
        return len(self._threads)

    def submit(self, worker: int, token: Any, fn: Any, *args: Any) -> None:
        """Start a task."""
        self._check_open()
        thread = self._threads[worker]
        if thread.alive:
            thread.token = token
            thread.inbox.put((token, fn, args))
        else:
            thread.say(token, "lost", "the worker is gone")

    def poll(self, timeout: float | None) -> list[Event]:
        """Events so far, or the first to come."""
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        events: list[Event] = []
        while True:
            self._check_open()  # another thread may close it meanwhile
            wait = 0.0 if events else min(max(deadline - time.monotonic(), 0.0), SLICE)
            try:
                thread, event = self._outbox.get(block=wait > 0, timeout=wait)
            except queue.Empty:
                if events or time.monotonic() >= deadline:
                    return events
                continue
            events += self._heard(thread, event)

    def _heard(self, thread: _Thread, event: Event) -> list[Event]:
        if thread is not self._threads[thread.worker]:
            return []
        if event.kind == "joined":
            return [Event(thread.token, event.worker, "joined")]
        if event.kind == "lost":
            thread.alive = False
        elif not thread.alive:
            return []
        thread.token = None
        return [event]

    def drop(self, worker: int, restart: bool = True) -> bool:
        """Abandon the thread; with `restart`, another takes its place and its state is empty."""
        self._check_open()
        thread = self._threads[worker]
        thread.alive = False
        thread.inbox.put(None)
        if restart:
            self._threads[worker] = _Thread(worker, self._outbox)
            self._threads[worker].say(None, "joined")
        else:
            thread.say(thread.token, "lost", "the worker was dropped")
        return True

    def close(self) -> None:
        """Tell all threads to end once their task does."""
        if not self._closed:
            self._closed = True
            for thread in self._threads:
                thread.inbox.put(None)
