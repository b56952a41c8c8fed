"""The default engine: one local process per worker, no server.

Messages travel over Unix sockets, large arrays through shared memory that is written once and read in place.
"""

from __future__ import annotations

import array
import contextlib
import functools
import os
import pickle
import selectors
import socket
import sys
import time
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import reply, wire
from .packing import REMEMBERED, Ref, numbers, packed_task, pickled
from .reply import malformed
from .segments import LARGE, Segment, aligned, capacity
from .workers import SLICE, Event, Layout, WorkersBase, whole
from .zygote import Zygote

__all__ = ["LocalWorkers"]

_HEAVY = ("numpy", "scipy", "scipy.linalg", "scipy.integrate", "torch", "sklearn", "pandas", "numba", "jax")
_CLOEXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
_DESCRIPTORS = 4  # open files for each worker: its socket, its two segments, and one more when they grow
_SPARE = 4  # shared segments that are kept for the next large value


class _Ref(Ref):
    """Its large buffers lie in one shared segment for all workers: (segment, offset, bytes) each."""

    def __init__(self, number: int, packed: bytes, table: list[tuple[int, int, int]], segment: Segment | None) -> None:
        super().__init__(number, packed, table)
        self.segment = segment


@dataclass
class _Worker:
    """The master's view of one process."""

    pid: int
    sock: socket.socket
    known: set[int] = field(default_factory=set)  # published values it holds
    mapped: set[int] = field(default_factory=set)  # numbers of the segments that it has mapped
    inbox: Segment | None = None
    outboxes: dict[int, Segment] = field(default_factory=dict)
    received: bytearray = field(default_factory=bytearray)
    descriptors: list[int] = field(default_factory=list)
    unsent: bytearray = field(default_factory=bytearray)
    token: Any = None
    sequence: int = 0  # of the task in flight; 0 when idle
    holds: list[Any] = field(default_factory=list)  # what must stay as it is while the task runs
    lost: bool = False


def _make_room(descriptors: int) -> None:
    """Raise the soft limit of open files, as far as the hard one allows, where so many more would come near it."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = descriptors + 256
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _preload(names: Iterable[str] | None) -> list[str]:
    return [name for name in _HEAVY if name in sys.modules] if names is None else list(names)


def _or_closed(method: Any) -> Any:
    """What fails because another thread has closed the workers meanwhile says so."""

    @functools.wraps(method)
    def guarded(self: LocalWorkers, *args: Any, **options: Any) -> Any:
        try:
            return method(self, *args, **options)
        except (OSError, ValueError, RuntimeError, KeyError):
            self._check_open()
            raise

    return guarded


class LocalWorkers(WorkersBase):
    """`n` local processes, one worker each; use as a context manager, or `close` it.

    Start-up takes a fraction of a second, however many there are. A worker that is killed or crashes is reported as
    lost and started afresh before the next round. Works in scripts without an ``if __name__ == "__main__"`` guard and
    in notebooks; functions travel by cloudpickle. POSIX only.

    Parameters
    ----------
    n : int
        Number of workers.
    preload : iterable of module names, optional
        Imported once, before the workers are forked. Default: NumPy, SciPy, torch, scikit-learn and a few others, as
        far as this process has imported them.
    threads : int
        BLAS and OpenMP threads of each worker.

    Raises
    ------
    NotPicklable
        By `submit` and `publish`, when a function cannot travel.

    Examples
    --------
    >>> import anyk
    >>> with LocalWorkers(3) as workers:
    ...     result = anyk.map(lambda x: x**2, [1.0, 2.0], code=anyk.LagrangeCode(3, 2, degree=2), workers=workers)
    >>> np.round(result.value, 6)
    array([1., 4.])
    """

    def __init__(self, n: int, *, preload: Iterable[str] | None = None, threads: int = 1) -> None:
        n = whole(n)
        if sys.platform == "win32":
            raise OSError("LocalWorkers needs POSIX processes; use ThreadWorkers or ExecutorWorkers on Windows")
        if isinstance(preload, str):
            raise TypeError(f"preload must be a list of module names, got {preload!r}")
        self._setup = (_preload(preload), int(threads))
        _make_room(_DESCRIPTORS * n)
        self._zygote = Zygote(*self._setup)
        self._selector = selectors.DefaultSelector()
        self._events: list[Event] = []
        self._refs: list[_Ref] = []  # most recent last
        self._free: list[Segment] = []
        self._forgotten: set[int] = set()  # published values that nobody refers to any more
        self._retired: set[int] = set()  # segments that will not be used again
        self._workers: list[_Worker] = []
        try:
            self._workers += [self._start(index) for index in range(n)]
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self._workers)

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return [each.pid for each in self._workers]

    def _start(self, index: int) -> _Worker:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                pid = self._fork(theirs)
            ours.setblocking(False)
            self._selector.register(ours, selectors.EVENT_READ, index)
        except BaseException:
            ours.close()  # a worker that is there already ends by itself
            raise
        return _Worker(pid, ours)

    def _fork(self, end: socket.socket) -> int:
        try:
            return self._zygote.fork(end)
        except (OSError, RuntimeError, ValueError):
            self._check_open()  # another thread may have closed it meanwhile: start nothing anew
            self._zygote.close()
            self._zygote = Zygote(*self._setup)
            return self._zygote.fork(end)

    # -- towards the workers ------------------------------------------------------------------------------------------

    @_or_closed
    def publish(self, value: Any) -> Any:
        """One copy of `value` for all workers; its large arrays are written once, and workers read them in place.

        Publishing an equal small value again (the same function, say) gives the same reference: nothing is sent.
        """
        self._check_open()
        buffers: list[pickle.PickleBuffer] = []
        packed = pickled(value, buffers)
        if not buffers:
            for ref in self._refs:
                if ref.segment is None and ref.packed == packed:
                    self._refs.remove(ref)
                    self._refs.append(ref)
                    return ref
        segment, table = None, []
        number = next(numbers)
        if buffers:
            size = sum(aligned(buffer.raw().nbytes) for buffer in buffers)
            try:
                segment = self._shared(size)
            except OSError:
                packed = pickled(value, None)
            else:
                table = _copy_in(buffers, segment)
        ref = _Ref(number, packed, table, segment)
        weakref.finalize(ref, _retire, weakref.ref(self), number, segment)
        if not buffers:
            self._refs = [*self._refs[-REMEMBERED + 1 :], ref]
        return ref

    def _shared(self, size: int) -> Segment:
        for segment in self._free:
            if size <= segment.size <= 4 * capacity(size):
                self._free.remove(segment)
                return segment
        return Segment.create(capacity(size), next(numbers))

    @_or_closed
    def allocate(self, worker: int, layouts: Sequence[Layout]) -> list[NDArray[Any]]:
        """Arrays in the worker's shared memory where they are large: filled by the caller, read in place."""
        self._check_open()
        each = self._workers[worker]
        kinds = [(shape, np.dtype(dtype)) for shape, dtype in layouts]
        sizes = [int(np.prod(shape, dtype=np.int64)) * dtype.itemsize for shape, dtype in kinds]
        segment = self._inbox(each, sum(map(aligned, sizes))) if max(sizes, default=0) >= LARGE else None
        if segment is None:
            return [np.empty(shape, dtype) for shape, dtype in kinds]
        arrays, offset = [], 0
        for (shape, dtype), size in zip(kinds, sizes, strict=True):
            arrays.append(np.frombuffer(segment.view, dtype, size // max(dtype.itemsize, 1), offset).reshape(shape))
            offset += aligned(size)
        return arrays

    def _inbox(self, each: _Worker, size: int) -> Segment | None:
        if each.inbox is None or each.inbox.size < size:
            try:
                larger = Segment.create(capacity(size), next(numbers))
            except OSError:
                return None
            if each.inbox is not None:
                self._retired.add(each.inbox.number)
            each.inbox = larger
        return each.inbox

    @_or_closed
    def submit(self, worker: int, token: Any, fn: Any, *args: Any) -> None:
        """Send a task to an idle worker."""
        self._check_open()
        each = self._workers[worker]
        if each.sequence:
            raise RuntimeError(f"worker {worker} is busy: one task at a time")
        if each.lost:
            self._events.append(Event(token, worker, "lost", "the worker is gone"))
            return
        buffers: list[pickle.PickleBuffer] = []
        packed = packed_task(fn, args, buffers)
        table: list[tuple[int, int, int]] = []
        if buffers:
            located = self._locate(each, buffers)
            if located is None:
                packed = packed_task(fn, args, None)
            else:
                table = located
        refs = [value for value in (fn, *args) if isinstance(value, _Ref)]
        segments = [ref.segment for ref in refs if ref.segment is not None]
        if table and each.inbox is not None:
            segments.append(each.inbox)
        fresh = {segment.number: segment for segment in segments if segment.number not in each.mapped}
        opened = [(number, segment.size, segment is not each.inbox) for number, segment in fresh.items()]
        descriptors = [segment.fd for segment in fresh.values()]
        closed = list(each.mapped & self._retired)
        each.mapped = (each.mapped | fresh.keys()) - self._retired
        defined = [(ref.number, ref.packed, ref.buffers) for ref in refs if ref.number not in each.known]
        forgotten = list(each.known & self._forgotten)
        each.known = (each.known | {ref.number for ref in refs}) - self._forgotten
        each.token, each.sequence, each.holds = token, next(numbers), [refs, args]
        news = (opened, closed, defined, forgotten, table)
        prefix = pickle.dumps(news, 5) if any(news) else b""
        payload = wire.LENGTH.pack(len(prefix)) + prefix + packed
        self._send(worker, wire.frame(wire.TASK, each.sequence, payload, len(descriptors)), descriptors)
        if each.inbox is not None and each.inbox.number in fresh:
            each.inbox.close()  # both sides have it mapped

    def _locate(self, each: _Worker, buffers: list[pickle.PickleBuffer]) -> list[tuple[int, int, int]] | None:
        """Where the buffers lie in the worker's inbox; they are copied there unless they were allocated there."""
        views = [buffer.raw() for buffer in buffers]
        if each.inbox is not None:
            offsets = [each.inbox.offset_of(view) for view in views]
            placed = [
                (each.inbox.number, offset, view.nbytes)
                for offset, view in zip(offsets, views, strict=True)
                if offset is not None
            ]
            if len(placed) == len(views):
                return placed
            if placed:  # some lie there already: copying others in might overwrite them
                return None
        segment = self._inbox(each, sum(aligned(view.nbytes) for view in views))
        return None if segment is None else _copy_in(buffers, segment)

    def _send(self, index: int, message: bytes, descriptors: list[int]) -> None:
        each = self._workers[index]
        try:
            if descriptors:
                ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
                sent = each.sock.sendmsg([message], ancillary)
            else:
                sent = each.sock.send(message)
        except BlockingIOError:
            sent = 0
        except OSError:
            return  # the worker is gone: reading from its socket will tell
        if sent < len(message):
            if sent == 0 and descriptors:
                raise RuntimeError(f"worker {index} does not read its socket")
            each.unsent += message[sent:]
            self._selector.modify(each.sock, selectors.EVENT_READ | selectors.EVENT_WRITE, index)

    def _flush(self, index: int) -> None:
        each = self._workers[index]
        with contextlib.suppress(BlockingIOError, OSError):
            sent = each.sock.send(each.unsent)
            del each.unsent[:sent]
        if not each.unsent:
            self._selector.modify(each.sock, selectors.EVENT_READ, index)

    # -- from the workers ---------------------------------------------------------------------------------------------

    @_or_closed
    def poll(self, timeout: float | None) -> list[Event]:
        """Events that arrived, waiting up to `timeout` seconds for the first."""
        deadline = None if timeout is None else time.monotonic() + timeout
        wait = 0.0 if self._events else timeout
        while True:
            self._check_open()  # another thread may close it meanwhile
            ready = self._selector.select(SLICE if wait is None else min(wait, SLICE))
            for key, mask in ready:
                if mask & selectors.EVENT_WRITE:
                    self._flush(key.data)
                if mask & selectors.EVENT_READ:
                    self._read(key.data)
            if self._events:
                events, self._events = self._events, []
                return events
            if deadline is not None:
                wait = deadline - time.monotonic()
                if wait <= 0:
                    return []

    def _read(self, index: int) -> None:
        each = self._workers[index]
        try:
            while True:
                data, ancillary, *_ = each.sock.recvmsg(1 << 18, socket.CMSG_SPACE(4 * 4), _CLOEXEC)
                for level, kind, packed in ancillary:
                    if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                        each.descriptors.extend(array.array("i", packed[: len(packed) // 4 * 4]))
                if not data:
                    self._lost(index, None)
                    return
                each.received += data
                if len(data) < 1 << 18:
                    break
        except BlockingIOError:
            pass
        except OSError:
            self._lost(index, None)
            return
        try:
            while len(each.received) >= wire.HEADER.size:
                kind, descriptors, sequence, length = wire.parse_header(each.received)
                if len(each.received) < wire.HEADER.size + length:
                    return
                payload = bytes(each.received[wire.HEADER.size : wire.HEADER.size + length])
                del each.received[: wire.HEADER.size + length]
                for _ in range(descriptors):
                    number = max(each.outboxes, default=0) + 1
                    if not each.descriptors:
                        raise reply.Malformed("its shared memory did not arrive; too many open files?")
                    each.outboxes = {number: Segment.received(each.descriptors.pop(0))}
                self._frame(index, kind, sequence, memoryview(payload))
        except (ValueError, IndexError, OSError) as error:  # it no longer speaks our language: do not listen any more
            self._lost(index, f"sent something that is not a reply ({error})")

    def _frame(self, index: int, kind: int, sequence: int, payload: memoryview) -> None:
        each = self._workers[index]
        if kind == wire.HELLO:
            self._events.append(Event(each.token, index, "joined"))
            return
        if sequence != each.sequence or not sequence:
            raise reply.Malformed("it answers a task that it does not have")
        token = each.token
        each.token, each.sequence, each.holds = None, 0, []
        try:
            header, buffer = wire.split_reply(payload, each.outboxes.__getitem__)
            parsed = reply.parse(header)
            if isinstance(parsed, reply.Header):
                value = reply.assemble(parsed, wire.cut(buffer, parsed.sizes, whole=buffer.obj is payload.obj))
                event = Event(token, index, "ok", value, parsed.seconds)
            else:
                event = Event(token, index, "error", *parsed)
        except reply.Malformed as error:
            event = Event(token, index, "error", malformed(error))
        self._events.append(event)

    def _lost(self, index: int, reason: str | None) -> None:
        each = self._workers[index]
        if each.lost:
            return
        token = self._bury(each)
        if reason is None:
            reason = self._zygote.epitaph(each.pid)
        else:
            self._kill(each.pid)
        self._events.append(Event(token, index, "lost", f"process {each.pid} {reason}"))

    def _bury(self, each: _Worker) -> Any:
        """Stop listening to a process; the token of the task that it had."""
        each.lost = True
        self._selector.unregister(each.sock)
        each.sock.close()
        for descriptor in each.descriptors:
            os.close(descriptor)
        each.descriptors.clear()
        token, each.token, each.sequence, each.holds = each.token, None, 0, []
        return token

    def _kill(self, pid: int) -> None:
        with contextlib.suppress(OSError, RuntimeError):
            self._zygote.kill(pid)

    # -- life and death -----------------------------------------------------------------------------------------------

    @_or_closed
    def drop(self, worker: int, restart: bool = True) -> bool:
        """Kill the process, whatever it is doing; with `restart`, start another with an empty state."""
        self._check_open()
        each = self._workers[worker]
        self._events = [event for event in self._events if event.worker != worker]
        token = None
        if not each.lost:
            token = self._bury(each)
            self._kill(each.pid)
        if restart:
            self._workers[worker] = self._start(worker)
            if self._closed:  # by another thread, which may not have seen this one
                self._workers[worker].sock.close()
                self._check_open()
        else:
            self._events.append(Event(token, worker, "lost", "the worker was dropped"))
        return True

    def close(self) -> None:
        """Kill all processes and free the shared memory. Idempotent."""
        if self._closed or self._foreign:
            return
        self._closed = True  # first, for a round in another thread
        for each in self._workers:
            if not each.lost:
                self._bury(each)
        self._selector.close()
        self._zygote.close()
        self._refs.clear()
        self._free.clear()

    def __del__(self) -> None:
        if hasattr(self, "_workers"):  # not where the constructor refused its arguments
            self.close()


def _retire(owner: weakref.ref[LocalWorkers], number: int, segment: Segment | None) -> None:
    workers = owner()
    if workers is not None and not workers._closed:
        workers._forgotten.add(number)
        if segment is not None and len(workers._free) < _SPARE:
            workers._free.append(segment)
        elif segment is not None:
            workers._retired.add(segment.number)


def _copy_in(buffers: list[pickle.PickleBuffer], segment: Segment) -> list[tuple[int, int, int]]:
    table, offset = [], 0
    for buffer in buffers:
        view = buffer.raw()
        np.frombuffer(segment.view, np.uint8, view.nbytes, offset)[...] = np.frombuffer(view, np.uint8)
        table.append((segment.number, offset, view.nbytes))
        offset += aligned(view.nbytes)
    return table
