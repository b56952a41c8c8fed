"""What the master sends to other processes: pickles, with large buffers apart, and values that are sent once.

A `Ref` stands for a published value; among a task's arguments it travels as a number. An `Outbox` remembers which
worker holds which; on the other side a `Desk` keeps them, and the worker's state, and runs tasks.
"""

from __future__ import annotations

import itertools
import pickle
import struct
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from ..errors import NotPicklable
from . import reply
from .faults import Crashed
from .segments import LARGE
from .workers import Failure

__all__ = ["Desk", "Outbox", "Ref", "packed_task", "pickled", "unpacked_task"]

numbers = itertools.count(1)  # of everything in this process, so that two sets of workers cannot mix theirs up
REMEMBERED = 8  # small published values that are kept for the case that they are published again
_TABLE = struct.Struct("<I")
_PLAIN = (int, float, complex, str, bytes, bool, type(None))
_here = threading.local()


class Ref:
    """A published value: pickled once, its large buffers apart."""

    def __init__(self, number: int, packed: bytes, buffers: Sequence[Any]) -> None:
        self.number = number
        self.packed = packed
        self.buffers = buffers

    def __reduce__(self) -> tuple[Any, ...]:
        return resolve, (self.number,)


def resolve(number: int) -> Any:
    """On a worker: the published value of that number."""
    return _here.desk.resolve(number)


def pickled(value: Any, buffers: list[pickle.PickleBuffer] | None) -> bytes:
    """Pickle with large buffers out of band; cloudpickle for anything that plain pickle might only name.

    Raises
    ------
    NotPicklable
    """
    try:
        return bytes(cloudpickle.dumps(value, 5, buffer_callback=_apart(buffers)))
    except Exception as error:
        raise NotPicklable(
            f"the function cannot be sent to another process: {error}. It captures something that only lives here "
            "(a lock, an open file, a socket, a generator): create that inside the function, or use ThreadWorkers"
        ) from error


def _apart(buffers: list[pickle.PickleBuffer] | None) -> Callable[[pickle.PickleBuffer], bool] | None:
    """Pickle's callback that keeps large buffers apart, in this list."""
    if buffers is None:
        return None

    def inside(buffer: pickle.PickleBuffer) -> bool:
        if buffer.raw().nbytes < LARGE:
            return True
        buffers.append(buffer)
        return False

    return inside


def packed_task(fn: Any, args: tuple[Any, ...], buffers: list[pickle.PickleBuffer] | None) -> bytes:
    """A task, for `unpacked_task`; ours, over numbers, small arrays and references, are spared most of pickle's work.

    Raises
    ------
    NotPicklable
    """
    if not (isinstance(fn, Ref) or getattr(fn, "__module__", "").startswith("anyk.")):
        return pickled((fn, args, ()), buffers)
    rest, arrays = list(args), []
    for index, arg in enumerate(args):
        if type(arg) is np.ndarray and arg.dtype.kind in "biufc":
            if arg.nbytes < LARGE and arg.flags.c_contiguous:
                arrays.append((index, arg.dtype.str, arg.shape, arg.tobytes()))
                rest[index] = None
        elif not (isinstance(arg, Ref) or type(arg) in _PLAIN):
            return pickled((fn, args, ()), buffers)
    return pickle.dumps((fn, rest, arrays), 5, buffer_callback=_apart(buffers))


def unpacked_task(task: Any) -> tuple[Any, tuple[Any, ...]]:
    """The function and its arguments, of what has been unpickled."""
    fn, args, arrays = task
    if arrays:
        for index, dtype, shape, data in arrays:
            args[index] = np.frombuffer(bytearray(data), dtype).reshape(shape)
    return fn, tuple(args)


class Outbox:
    """The master's side, for engines that move bytes.

    Parameters
    ----------
    n : int
        Workers.
    keep : callable, optional
        What to do with each large buffer of a published value, such as putting it into an object store; what it returns
        is handed out in its place.
    """

    def __init__(self, n: int, keep: Callable[[memoryview], Any] | None = None) -> None:
        self._known: list[set[int]] = [set() for _ in range(n)]
        self._forgotten: set[int] = set()
        self._small: list[Ref] = []  # most recent last
        self._keep = keep if keep is not None else lambda buffer: buffer

    def publish(self, value: Any) -> Ref:
        """A reference; to an earlier one where an equal small value was published lately."""
        buffers: list[pickle.PickleBuffer] = []
        packed = pickled(value, buffers)
        if not buffers:
            for ref in self._small:
                if ref.packed == packed:
                    self._small.remove(ref)
                    self._small.append(ref)
                    return ref
        ref = Ref(next(numbers), packed, [self._keep(buffer.raw()) for buffer in buffers])
        weakref.finalize(ref, self._forgotten.add, ref.number).atexit = False
        if not buffers:
            self._small = [*self._small[-REMEMBERED + 1 :], ref]
        return ref

    def pack(self, worker: int, fn: Any, args: tuple[Any, ...]) -> tuple[bytes, list[Any], list[Any]]:
        """A task for that worker: the message, the buffers of values that are new to it, and the task's own.

        The latter are memoryviews of the arguments; neither may change before they have been sent.
        """
        buffers: list[pickle.PickleBuffer] = []
        task = packed_task(fn, args, buffers)
        known = self._known[worker]
        refs = {value.number: value for value in (fn, *args) if isinstance(value, Ref)}
        new = [ref for number, ref in refs.items() if number not in known]
        forgotten = list(known & self._forgotten)
        known.update(refs)
        known.difference_update(self._forgotten)
        if len(self._forgotten) > 256:
            self._forgotten.intersection_update(set().union(*self._known))
        news = b""
        if forgotten or new:
            news = pickle.dumps((forgotten, [(ref.number, ref.packed, len(ref.buffers)) for ref in new]), 5)
        shared = [buffer for ref in new for buffer in ref.buffers]
        return _TABLE.pack(len(news)) + news + task, shared, [buffer.raw() for buffer in buffers]

    def renew(self, worker: int) -> None:
        """It has been started afresh and holds nothing."""
        self._known[worker] = set()


class Desk:
    """A worker's side: its state, the values that were published to it, and how it runs a task."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {}
        self._values: dict[int, Any] = {}
        self._packed: dict[int, Callable[[], Any]] = {}  # not yet needed, or its module could not be imported so far

    def define(self, number: int, load: Callable[[], Any]) -> None:
        """Take a published value, to be unpickled when it is first needed."""
        self._packed[number] = load

    def forget(self, many: Sequence[int]) -> None:
        """Drop values that nobody refers to any more."""
        for number in many:
            self._values.pop(number, None)
            self._packed.pop(number, None)

    def resolve(self, number: int) -> Any:
        """A published value."""
        if number not in self._values:
            self._values[number] = self._packed[number]()
            del self._packed[number]
        return self._values[number]

    def work(self, load: Callable[[], tuple[Any, tuple[Any, ...]]]) -> tuple[bytes, list[NDArray[Any]]]:
        """Run the task that `load` yields; the reply, whatever happens, except for `Crashed`, which is not survived."""
        start = time.monotonic()
        _here.desk = self
        try:
            fn, args = load()
            value = fn(self.state, *args)
            return reply.encode(value, time.monotonic() - start)
        except Crashed:
            raise
        except BaseException as error:
            return reply.encode_failure(Failure.of(error), time.monotonic() - start), []
        finally:
            for stream in (sys.stdout, sys.stderr):
                try:
                    stream.flush()
                except Exception:  # the user's function may have closed it, or nobody reads it
                    continue

    def run(self, message: bytes, buffers: Sequence[Any]) -> tuple[bytes, list[NDArray[Any]]]:
        """Run a task that an `Outbox` has packed."""

        def load() -> tuple[Any, tuple[Any, ...]]:
            view, used = memoryview(message), 0
            (length,) = _TABLE.unpack_from(view)
            forgotten, defined = pickle.loads(view[_TABLE.size : _TABLE.size + length]) if length else ((), ())
            self.forget(forgotten)
            for number, packed, count in defined:
                self.define(number, _Loader(packed, buffers[used : used + count]))
                used += count
            return unpacked_task(pickle.loads(view[_TABLE.size + length :], buffers=buffers[used:]))

        return self.work(load)


class _Loader:
    def __init__(self, packed: bytes, buffers: Sequence[Any]) -> None:
        self.packed, self.buffers = packed, buffers

    def __call__(self) -> Any:
        return pickle.loads(self.packed, buffers=self.buffers)
