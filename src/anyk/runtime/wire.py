"""What travels between the master and its processes.

Towards a worker go pickles: a worker trusts its master. Towards the master go **replies**, a small typed header (JSON)
plus raw buffers; a reply is parsed, never unpickled, and anything malformed is an error of that worker alone.

A frame is ``magic, kind, number of descriptors, sequence, length`` and then `length` bytes; descriptors of shared
memory ride beside the first byte of the frame that names them.
"""

from __future__ import annotations

import json
import math
import struct
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import blocks as _blocks
from .segments import LARGE, Segment, aligned
from .workers import Failure

__all__ = [
    "HEADER",
    "Malformed",
    "decode_failure",
    "decode_reply",
    "encode_failure",
    "encode_reply",
    "frame",
    "parse_header",
]

HEADER = struct.Struct("<4sBBHQQ")
LENGTH = struct.Struct("<I")
MAGIC = b"ANYK"
HELLO, TASK, REPLY, FAILURE = range(4)
_LIBRARIES = ("torch", "array_api_strict", "jax.numpy", "cupy")  # replies arrive in these if the master uses them
MAX_FRAME = 1 << 36  # bytes of a frame
MAX_TEXT = 1 << 24  # bytes of a reply's header or a traceback

_DTYPES = {np.dtype(name).str: np.dtype(name) for name in (
    "?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16",
)} | {np.dtype(kind).str: np.dtype(kind) for kind in (np.longdouble, np.clongdouble)}  # fmt: skip


class Malformed(ValueError):
    """A reply that does not follow the format."""


def frame(kind: int, sequence: int, payload: bytes, descriptors: int = 0) -> bytes:
    """A whole frame."""
    return HEADER.pack(MAGIC, kind, descriptors, 0, sequence, len(payload)) + payload


def parse_header(data: bytes | bytearray | memoryview) -> tuple[int, int, int, int]:
    """Kind, number of descriptors, sequence and length; `Malformed` unless it is a header."""
    if len(data) < HEADER.size:
        raise Malformed("a frame is longer")
    magic, kind, descriptors, zero, sequence, length = HEADER.unpack_from(data)
    if magic != MAGIC or kind > FAILURE or zero != 0 or length > MAX_FRAME:
        raise Malformed("not a frame")
    return kind, descriptors, sequence, length


def _describe(value: Any, leaves: list[Any]) -> Any:
    """The structure of a reply as JSON: an index for a leaf, [kind, children] for a container."""
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str | int) or isinstance(key, bool):
                raise TypeError(f"the keys of a returned dict must be strings or integers, got {key!r}")
        return ["d", [[key, _describe(child, leaves)] for key, child in value.items()]]
    if isinstance(value, list | tuple):
        return ["l" if isinstance(value, list) else "t", [_describe(child, leaves) for child in value]]
    if value is None:
        raise TypeError("the function returned None" if not leaves else "the function returned None inside a container")
    leaves.append(value)
    return len(leaves) - 1


def encode_reply(value: Any, seconds: float, place: Callable[[int], tuple[int, Segment] | None]) -> tuple[bytes, int]:
    """The payload of a reply frame.

    `place(nbytes)` returns a shared segment and its number, or None to send the buffers along. Returns the payload and
    the number of bytes that went to shared memory. TypeError where the value is no tree of arrays.
    """
    native: list[Any] = []
    spec = _describe(value, native)
    arrays: list[NDArray[Any]] = []
    for leaf in native:
        try:
            arrays.append(_blocks.raw_numpy(leaf))
        except TypeError as error:
            raise TypeError(
                f"the function must return arrays, numbers, or dicts, lists and tuples of them: {error}"
            ) from None
    offsets, total = [], 0
    for array in arrays:
        offsets.append(total)
        total = aligned(total + array.nbytes)
    placed = place(total) if total >= LARGE else None
    number = -1
    inline = b""
    if placed is not None:
        number, segment = placed
        for array, offset in zip(arrays, offsets, strict=True):
            np.frombuffer(segment.view, array.dtype, array.size, offset).reshape(array.shape)[...] = array
    else:
        inline = b"".join(array.tobytes().ljust(aligned(array.nbytes), b"\0") for array in arrays)
    header = json.dumps(
        [spec, [[_blocks.library(leaf), a.dtype.str, list(a.shape), o]
                for leaf, a, o in zip(native, arrays, offsets, strict=True)], number, seconds],
        separators=(",", ":"),
    ).encode()  # fmt: skip
    return LENGTH.pack(len(header)) + header + inline, total if placed is not None else 0


def decode_reply(payload: memoryview, segment: Callable[[int], Segment]) -> tuple[Any, float]:
    """The value and the worker's seconds; arrays are read-only views of the payload or of shared memory.

    Raises
    ------
    Malformed
        Whatever is wrong with it.
    """
    try:
        (length,) = LENGTH.unpack_from(payload)
        if length > MAX_TEXT or 4 + length > len(payload):
            raise Malformed("the header is too long")
        spec, leaves, number, seconds = json.loads(str(payload[4 : 4 + length], "utf-8"))
        buffer = payload[4 + length :] if number == -1 else segment(number).view
        arrays = [_leaf(buffer, *leaf) for leaf in leaves]
        return _rebuild(spec, arrays), float(seconds)
    except Malformed:
        raise
    except (
        ValueError, TypeError, KeyError, IndexError, OverflowError, RecursionError, RuntimeError, struct.error
    ) as error:  # fmt: skip
        raise Malformed(f"{type(error).__name__}: {error}") from error


def _leaf(buffer: memoryview, library: str, dtype: str, shape: list[int], offset: int) -> Any:
    kind = _DTYPES[dtype]
    if not all(type(side) is int and side >= 0 for side in (*shape, offset)) or len(shape) > 64:
        raise Malformed("a shape or offset is not a natural number")
    count = math.prod(shape)
    if offset + count * kind.itemsize > len(buffer):
        raise Malformed("an array reaches beyond its buffer")
    if count == 0:
        buffer, offset = memoryview(bytes(kind.itemsize)), 0
    array = np.frombuffer(buffer, kind, max(count, 1), offset)[:count].reshape(shape)
    if array.flags.writeable:
        array.flags.writeable = False
    if library in _LIBRARIES and library in sys.modules:  # a worker does not choose what is imported or called here
        return _blocks.in_library(array.copy(), library)  # most have no read-only arrays
    return array


def _rebuild(spec: Any, arrays: list[Any]) -> Any:
    if type(spec) is int:
        if not 0 <= spec < len(arrays):
            raise Malformed("no such leaf")
        return arrays[spec]
    kind, children = spec
    if kind == "d":
        return {_key(key): _rebuild(child, arrays) for key, child in children}
    if kind not in ("l", "t"):
        raise Malformed("no such container")
    items = [_rebuild(child, arrays) for child in children]
    return items if kind == "l" else tuple(items)


def _key(key: Any) -> str | int:
    if not isinstance(key, str | int):
        raise Malformed("a key is neither a string nor an integer")
    return key


def encode_failure(failure: Failure, seconds: float) -> bytes:
    """The payload of a failure frame."""
    texts = [failure.type, failure.message, failure.traceback]
    return json.dumps([*(text[-(MAX_TEXT // 16) :] for text in texts), seconds]).encode()


def decode_failure(payload: memoryview) -> tuple[Failure, float]:
    """The failure and the worker's seconds."""
    try:
        if len(payload) > MAX_TEXT:
            raise Malformed("the text is too long")
        kind, message, text, seconds = json.loads(bytes(payload))
        return Failure(str(kind), str(message), str(text)), float(seconds)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise Malformed(str(error)) from error
