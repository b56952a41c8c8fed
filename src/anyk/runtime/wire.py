"""Frames between the master and its local processes, over Unix sockets.

A frame is ``magic, kind, number of descriptors, sequence, length`` and then `length` bytes; descriptors of shared
memory ride beside the first byte of the frame that names them. Towards a worker go pickles: a worker trusts its master.
Towards the master go replies, their buffers inside the frame or in shared memory.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .reply import MAX_REPLY, MAX_TEXT, Malformed
from .segments import LARGE, Segment, aligned

__all__ = ["HEADER", "cut", "frame", "join_reply", "parse_header", "split_reply"]

HEADER = struct.Struct("<4sBBHQQ")
LENGTH = struct.Struct("<I")
_REPLY = struct.Struct("<Iq")  # bytes of the header, number of the segment that holds the buffers (-1: they follow)
MAGIC = b"ANYK"
HELLO, TASK, REPLY = range(3)


def frame(kind: int, sequence: int, payload: bytes, descriptors: int = 0) -> bytes:
    """A whole frame."""
    return HEADER.pack(MAGIC, kind, descriptors, 0, sequence, len(payload)) + payload


def parse_header(data: bytes | bytearray | memoryview) -> tuple[int, int, int, int]:
    """Kind, number of descriptors, sequence and length; `Malformed` unless it is a header."""
    if len(data) < HEADER.size:
        raise Malformed("a frame is longer")
    magic, kind, descriptors, zero, sequence, length = HEADER.unpack_from(data)
    if magic != MAGIC or kind > REPLY or zero != 0 or length > MAX_REPLY + MAX_TEXT:
        raise Malformed("not a frame")
    return kind, descriptors, sequence, length


def join_reply(
    header: bytes, arrays: Sequence[NDArray[Any]], place: Callable[[int], tuple[int, Segment] | None]
) -> bytes:
    """The payload of a reply's frame; `place(nbytes)` finds room in shared memory, or returns None."""
    offsets, total = _offsets([array.nbytes for array in arrays])
    placed = place(total) if total >= LARGE else None
    if placed is None:
        inline = b"".join(array.tobytes().ljust(aligned(array.nbytes), b"\0") for array in arrays)
        return _REPLY.pack(len(header), -1) + header + inline
    number, segment = placed
    for array, offset in zip(arrays, offsets, strict=True):
        if array.size:
            np.frombuffer(segment.view, array.dtype, array.size, offset).reshape(array.shape)[...] = array
    return _REPLY.pack(len(header), number) + header


def split_reply(payload: memoryview, segment: Callable[[int], Segment]) -> tuple[memoryview, memoryview]:
    """The header, and what holds the buffers."""
    if len(payload) < _REPLY.size:
        raise Malformed("a reply is longer")
    length, number = _REPLY.unpack_from(payload)
    if length > MAX_TEXT or _REPLY.size + length > len(payload):
        raise Malformed("its header is too long")
    header, rest = payload[_REPLY.size : _REPLY.size + length], payload[_REPLY.size + length :]
    if number == -1:
        return header, rest
    if rest:
        raise Malformed("something follows its header, and its arrays lie elsewhere")
    try:
        return header, segment(number).view
    except KeyError:
        raise Malformed("no such segment") from None


def cut(buffer: memoryview, sizes: Sequence[int], *, whole: bool = False) -> list[memoryview]:
    """The buffers of a reply, out of what holds them; with `whole` there must be nothing else."""
    offsets, total = _offsets(sizes)
    if total > len(buffer):
        raise Malformed("an array reaches beyond its buffer")
    if whole and total < len(buffer):
        raise Malformed("something follows its arrays")
    return [buffer[offset : offset + size] for offset, size in zip(offsets, sizes, strict=True)]


def _offsets(sizes: Sequence[int]) -> tuple[list[int], int]:
    offsets, total = [], 0
    for size in sizes:
        offsets.append(total)
        total = aligned(total + size)
    return offsets, total
