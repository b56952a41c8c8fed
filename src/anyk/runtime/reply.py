"""What a worker answers: a small typed header (JSON) and one raw buffer for each array.

A reply is parsed, never unpickled: whoever sends it can make it wrong, and nothing else. Anything that does not follow
the format is malformed, which is a failure of that worker alone.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import blocks as _blocks
from .workers import Event, Failure

__all__ = ["Header", "Malformed", "assemble", "encode", "encode_failure", "event", "malformed", "parse"]

MAX_TEXT = 1 << 24  # bytes of a header
MAX_REPLY = 1 << 36  # bytes of all buffers together
_compact = json.JSONEncoder(separators=(",", ":")).encode
_DEEPEST = 64  # containers inside one another
_LIBRARIES = ("torch", "array_api_strict", "jax.numpy", "cupy")  # replies arrive in these if the master uses them

_DTYPES = {np.dtype(name).str: np.dtype(name) for name in (
    "?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16",
)} | {np.dtype(kind).str: np.dtype(kind) for kind in (np.longdouble, np.clongdouble)}  # fmt: skip


class Malformed(ValueError):
    """A reply that does not follow the format."""


@dataclass(frozen=True, slots=True)
class Header:
    """A parsed header.

    Attributes
    ----------
    spec : Any
        The structure: a number for a leaf, in the order of their coming, ``[kind, children]`` for a container.
    leaves : list of (library, dtype, shape)
    sizes : list of int
        Bytes of each leaf's buffer.
    seconds : float
        Time that the worker spent.
    """

    spec: Any
    leaves: list[tuple[str, np.dtype[Any], tuple[int, ...]]]
    sizes: list[int]
    seconds: float


def malformed(error: Malformed) -> Failure:
    """What is said of a worker whose reply is."""
    return Failure("Malformed", f"the reply is malformed: {error}", f"Malformed: {error}")


def event(token: Any, worker: int, parts: Any) -> Event:
    """What a worker's message says, for engines that move the header and the buffers as objects with bytes.

    Parameters
    ----------
    parts : sequence
        The header, and then the buffer of each array; whatever else it is makes the reply malformed.
    """
    try:
        try:
            header, *buffers = [memoryview(part).cast("B") for part in parts]
        except (TypeError, ValueError) as error:
            raise Malformed(f"its parts are no bytes: {error}") from None
        parsed = parse(header)
        if isinstance(parsed, Header):
            return Event(token, worker, "ok", assemble(parsed, buffers), parsed.seconds)
        return Event(token, worker, "error", *parsed)
    except Malformed as error:
        return Event(token, worker, "error", malformed(error))


# -- on the worker ----------------------------------------------------------------------------------------------------


def _describe(value: Any, leaves: list[Any]) -> Any:
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


def encode(value: Any, seconds: float) -> tuple[bytes, list[NDArray[Any]]]:
    """The header, and the arrays whose bytes (in C order) are the buffers.

    Raises
    ------
    TypeError
        Where the value is no tree of arrays and numbers.
    """
    native: list[Any] = []
    spec = _describe(value, native)
    arrays: list[NDArray[Any]] = []
    for leaf in native:
        try:
            array = _blocks.raw_numpy(leaf)
        except TypeError as error:
            raise TypeError(
                f"the function must return arrays, numbers, or dicts, lists and tuples of them: {error}"
            ) from None
        if not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))
        if array.dtype.str not in _DTYPES:
            raise TypeError(f"the function returned an array of {array.dtype}, which is no number")
        arrays.append(array)
    listed = [[_blocks.library(leaf), a.dtype.str, list(a.shape)] for leaf, a in zip(native, arrays, strict=True)]
    return _dump(["ok", spec, listed, seconds]), arrays


def encode_failure(failure: Failure, seconds: float) -> bytes:
    """The header of a failure, which has no buffers."""
    texts = [text[-(MAX_TEXT // 32) :] for text in (failure.type, failure.message, failure.traceback)]
    return _dump(["error", *texts, seconds])


def _dump(header: Any) -> bytes:
    return _compact(header).encode()


# -- on the master ----------------------------------------------------------------------------------------------------


def parse(data: bytes | bytearray | memoryview) -> Header | tuple[Failure, float]:
    """The header of a reply, or a failure and the time that it took.

    Raises
    ------
    Malformed
        Whatever is wrong with it.
    """
    if len(data) > MAX_TEXT:
        raise Malformed(f"its header has {len(data)} bytes")
    text = bytes(data)
    time = _TIME.search(text) if len(text) <= _SHORT else None
    if time is None:
        return _parse(text)
    known = _parsed(text[: time.start()] + b",0]")
    if isinstance(known, Header):
        return Header(known.spec, known.leaves, known.sizes, _seconds(float(time[1])))
    return known[0], _seconds(float(time[1]))


def _parse(text: bytes) -> Header | tuple[Failure, float]:
    try:
        header = json.loads(str(text, "utf-8"))
        if type(header) is not list or not header:
            raise Malformed("its header is no list")
        kind, *rest = header
        if kind == "error":
            *texts, seconds = rest
            if len(texts) != 3 or not all(type(text) is str for text in texts):
                raise Malformed("a failure has three texts")
            texts = [text.encode("utf-8", "backslashreplace").decode() for text in texts]  # lone surrogates print badly
            return Failure(*texts), _seconds(seconds)
        if kind != "ok":
            raise Malformed("its header is of no known kind")
        spec, listed, seconds = rest
        if type(listed) is not list:
            raise Malformed("its leaves are no list")
        leaves = [_layout(*leaf) for leaf in listed]
        if _check(spec, 0, 0) != len(leaves):
            raise Malformed("its structure does not hold its leaves")
    except Malformed:
        raise
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise Malformed(f"{type(error).__name__}: {error}") from error
    sizes = [math.prod(shape) * dtype.itemsize for _, dtype, shape in leaves]
    if sum(sizes) > MAX_REPLY:
        raise Malformed(f"it has {sum(sizes)} bytes")
    return Header(spec, leaves, sizes, _seconds(seconds))


_parsed = lru_cache(256)(_parse)  # headers differ from round to round in their last number, the time, only
_TIME = re.compile(rb",((?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\]\Z")
_SHORT = 512  # bytes of a header that is remembered


def _seconds(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value <= sys.float_info.max:  # integers may be beyond it
        raise Malformed("its time is no number of seconds")
    return float(value)


def _layout(library: Any, dtype: Any, shape: Any) -> tuple[str, np.dtype[Any], tuple[int, ...]]:
    if type(library) is not str or type(dtype) is not str or dtype not in _DTYPES:
        raise Malformed("no such dtype")
    if (
        type(shape) is not list
        or len(shape) > 32
        or not all(type(side) is int and 0 <= side < 1 << 48 for side in shape)
    ):
        raise Malformed("no such shape")
    return library, _DTYPES[dtype], tuple(shape)


def _check(spec: Any, expected: int, depth: int) -> int:
    """How many leaves there are up to the end of this part: they come in order, each once."""
    if type(spec) is int:
        if spec != expected:
            raise Malformed("its leaves are out of order")
        return expected + 1
    if depth > _DEEPEST or type(spec) is not list:
        raise Malformed("no such structure")
    kind, children = spec
    if type(children) is not list:
        raise Malformed("no such structure")
    if kind == "d":
        keys = [key for key, _ in children]
        if not all(type(key) in (str, int) for key in keys) or len(set(keys)) < len(keys):
            raise Malformed("its keys are no distinct strings and integers")
        children = [child for _, child in children]
    elif kind not in ("l", "t"):
        raise Malformed("no such container")
    for child in children:
        expected = _check(child, expected, depth + 1)
    return expected


def assemble(header: Header, buffers: Sequence[memoryview]) -> Any:
    """The value; arrays are read-only views of the buffers.

    Raises
    ------
    Malformed
        If the buffers are not those of the header.
    """
    if [buffer.nbytes for buffer in buffers] != header.sizes:
        raise Malformed("its buffers have other sizes than its header says")
    try:
        arrays = [_leaf(buffer, *leaf) for buffer, leaf in zip(buffers, header.leaves, strict=True)]
    except Malformed:
        raise
    except Exception as error:  # libraries have limits of their own: huge shapes of empty arrays, dtypes they lack
        raise Malformed(str(error)) from error
    return _rebuild(header.spec, arrays)


def _leaf(buffer: memoryview, library: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
    array = np.frombuffer(buffer, dtype).reshape(shape) if buffer.nbytes else np.empty(shape, dtype)
    if dtype == np.bool_ and array.view(np.uint8).max(initial=0) > 1:  # what libraries make of such is undefined
        raise Malformed("a truth value is neither 0 nor 1")
    if array.flags.writeable:
        array.flags.writeable = False
    if library in _LIBRARIES and library in sys.modules:  # a worker does not choose what is imported or called here
        return _blocks.in_library(array.copy(), library)  # most have no read-only arrays
    return array


def _rebuild(spec: Any, arrays: list[Any]) -> Any:
    if type(spec) is int:
        return arrays[spec]
    kind, children = spec
    if kind == "d":
        return {key: _rebuild(child, arrays) for key, child in children}
    items = [_rebuild(child, arrays) for child in children]
    return items if kind == "l" else tuple(items)
