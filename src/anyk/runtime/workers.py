"""The narrow waist of the runtime: a completion queue over addressed workers."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..errors import WorkersClosed

__all__ = ["Event", "Failure", "Layout", "Task", "Workers", "WorkersBase", "whole"]

_OURS = ("/anyk/runtime/", "/anyk/mapping.py", "/anyk/summing.py", "/anyk/training.py", "/anyk/torch.py")
Task = Callable[..., Any]
Layout = tuple[tuple[int, ...], DTypeLike]


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception on a worker, as text: nothing that a worker sends is ever executed.

    Attributes
    ----------
    type : str
        Name of the exception's class.
    message : str
    traceback : str
        The worker's own traceback.
    """

    type: str
    message: str
    traceback: str

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Describe an exception; frames above the user's function are left out."""
        frames = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if not any(part in frame.filename.replace("\\", "/") for part in _OURS)
        ]
        try:
            message = str(error)
        except Exception:
            message = "<an exception that cannot be printed>"
        lines = traceback.format_exception_only(type(error), error)
        head = ["Traceback (most recent call last):\n", *traceback.format_list(frames)] if frames else []
        return cls(type(error).__name__, message, "".join(head + lines).rstrip())


@dataclass(frozen=True, slots=True)
class Event:
    """What a worker has to say.

    Attributes
    ----------
    token : Any
        The task's token as it was submitted; None where no task was in flight.
    worker : int
    kind : {"ok", "error", "lost", "joined"}
        ``"ok"``: `value` is the reply, valid until that worker's next task. ``"error"``: `value` is a `Failure`.
        ``"lost"``: the worker is gone, with its state; `value` says why. ``"joined"``: it is there (again), and
        `token` is that of the task that it has been given since, or None: any earlier one will not be answered.
    value : Any
    seconds : float or None
        Time that the worker spent on the task, by its own clock.
    """

    token: Any
    worker: int
    kind: Literal["ok", "error", "lost", "joined"]
    value: Any = None
    seconds: float | None = None


@runtime_checkable
class Workers(Protocol):
    """What an engine must offer; the rest (rounds, stop rules, late replies, screening) is the core's.

    At most one task is in flight per worker: the core never submits to a busy one. Tasks are functions
    ``fn(state, *args)`` with `state` a private dict that lives on the worker.
    """

    def __len__(self) -> int:
        """Number of workers; they are addressed 0 .. n-1."""
        ...

    def submit(self, worker: int, token: Any, fn: Any, *args: Any) -> None:
        """Start ``fn(state, *args)`` on that worker and return at once; for a lost worker a ``"lost"`` event follows.

        Arrays among the arguments may be views of shared memory that last until that worker's next task.
        """
        ...

    def poll(self, timeout: float | None) -> list[Event]:
        """Events that arrived, waiting up to `timeout` seconds (None: for ever) for the first."""
        ...

    def publish(self, value: Any) -> Any:
        """One copy of `value` for all workers; pass what is returned as `fn` or as a direct argument of `submit`."""
        ...

    def allocate(self, worker: int, layouts: Sequence[Layout]) -> list[NDArray[Any]]:
        """Uninitialised arrays to fill and pass to that worker's next `submit`; moved without a copy if possible."""
        ...

    def drop(self, worker: int, restart: bool = True) -> bool:
        """Make a worker go away, whatever it is doing; False where the engine cannot.

        With `restart` it is started afresh, and a ``"joined"`` event follows; otherwise a ``"lost"`` event does.
        """
        ...

    def time(self) -> float:
        """The clock, in seconds, on which deadlines are read."""
        ...

    def close(self) -> None:
        """Stop all workers. Idempotent."""
        ...


def whole(n: Any) -> int:
    """A number of workers, checked."""
    if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1:
        raise ValueError(f"n must be an integer of at least 1, got {n!r}")
    return int(n)


def is_workers(value: Any) -> bool:
    """Whether it has the methods of `Workers`; those of anyk are known without a look at each of them."""
    return isinstance(value, (WorkersBase, Workers))


SLICE = 0.5  # seconds between a waiting engine's looks at whether another thread has closed it


class WorkersBase:
    """The few methods that most engines share."""

    _closed = False
    _owner: int

    def __new__(cls, *args: Any, **options: Any) -> Any:
        """Remember whose they are: a fork of the caller must not speak to them, since it would share every socket."""
        self = super().__new__(cls)
        self._owner = os.getpid()
        return self

    @property
    def _foreign(self) -> bool:
        """Whether this is a fork of the process that they belong to."""
        return self._owner != os.getpid()

    def _check_open(self) -> None:
        if self._foreign:
            raise WorkersClosed(f"these workers belong to process {self._owner}, of which this is a fork: start others")
        if self._closed:
            raise WorkersClosed("these workers have been closed")

    def publish(self, value: Any) -> Any:
        """In one process a value is its own reference."""
        return value

    def allocate(self, worker: int, layouts: Sequence[Layout]) -> list[NDArray[Any]]:
        """Ordinary arrays."""
        return [np.empty(shape, dtype) for shape, dtype in layouts]

    def time(self) -> float:
        """The monotonic clock."""
        return time.monotonic()

    def close(self) -> None:
        """Nothing to stop."""

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
