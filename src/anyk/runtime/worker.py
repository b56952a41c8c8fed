"""The loop that a worker process runs: read a task, run it, write the reply."""

from __future__ import annotations

import array
import os
import pickle
import random
import socket
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from . import faults, wire
from .packing import Desk, unpacked_task
from .segments import Segment, capacity

__all__ = ["serve"]


class _Frames:
    """The frames that come through a socket, with the descriptors beside them; small ones in one call each."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.buffer = bytearray(1 << 16)

    def more(self, view: memoryview, descriptors: list[int]) -> int:
        got, ancillary, *_ = self.sock.recvmsg_into([view], socket.CMSG_SPACE(4 * 16))
        for level, kind, packed in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                descriptors.extend(array.array("i", packed[: len(packed) // 4 * 4]))
        if got == 0:
            raise EOFError
        return got

    def next(self, descriptors: list[int]) -> tuple[int, bytearray]:
        """Its sequence and what it holds; the master sends no other before it has been answered."""
        size, view = wire.HEADER.size, memoryview(self.buffer)
        had = 0
        while had < size:
            had += self.more(view[had:], descriptors)
        _, _, sequence, length = wire.parse_header(view[:size])
        data = bytearray(length)
        data[: had - size] = view[size:had]
        rest = memoryview(data)[had - size :]
        while rest:
            rest = rest[self.more(rest, descriptors) :]
        return sequence, data


class _Server:
    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.frames = _Frames(sock)
        self.desk = Desk()
        self.segments: dict[int, Segment] = {}
        self.outbox: Segment | None = None
        self.outbox_number = 0
        self.announce: list[int] = []

    def place(self, nbytes: int) -> tuple[int, Segment] | None:
        """The outgoing segment, made larger when a reply needs it."""
        if self.outbox is None or self.outbox.size < nbytes:
            try:
                self.outbox = Segment.create(capacity(nbytes))
            except OSError:
                return None
            self.outbox_number += 1
            self.announce = [self.outbox.fd]
        return self.outbox_number, self.outbox

    def load(self, packed: bytes | memoryview, table: Sequence[tuple[int, int, int]]) -> Any:
        """Unpickle what the master sent; large buffers lie in shared memory."""
        return pickle.loads(packed, buffers=[self.segments[n].view[o : o + size] for n, o, size in table])

    def unpack(self, data: bytearray, descriptors: list[int]) -> Any:
        """The task, after the news that come with it: segments, and published values."""
        view = memoryview(data)[wire.LENGTH.size :]
        (length,) = wire.LENGTH.unpack_from(data)
        opened, closed, defined, forgotten, table = pickle.loads(view[:length]) if length else ((), (), (), (), ())
        for number in closed:
            self.segments.pop(number).close()
        for number, size, readonly in opened:
            self.segments[number] = Segment(descriptors.pop(0), size, number, readonly=readonly)
        for number, value, buffers in defined:
            self.desk.define(number, partial(self.load, value, buffers))
        self.desk.forget(forgotten)
        return unpacked_task(self.load(view[length:], table))

    def run(self) -> None:
        self.sock.sendall(wire.frame(wire.HELLO, 0, b""))
        while True:
            descriptors: list[int] = []
            try:
                sequence, data = self.frames.next(descriptors)
            except EOFError:
                return
            payload = wire.join_reply(*self.desk.work(partial(self.unpack, data, descriptors)), self.place)
            message = wire.frame(wire.REPLY, sequence, payload, len(self.announce))
            if self.announce:
                sent = socket.send_fds(self.sock, [message], self.announce)
                self.announce = []
                self.sock.sendall(memoryview(message)[sent:])
            else:
                self.sock.sendall(message)


def serve(sock: socket.socket) -> None:
    """Serve until the master closes its end."""
    faults.dedicated_process = True
    random.seed()
    np.random.seed()  # noqa: NPY002  forked siblings would share one legacy stream
    try:
        _Server(sock).run()
    except (BrokenPipeError, ConnectionResetError):
        pass
    finally:
        os._exit(0)
