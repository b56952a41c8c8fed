"""A digest of parameters: equal on master and worker as long as both mean the same numbers."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from typing import Any

import array_api_compat
import numpy as np
from numpy.typing import NDArray

from . import blocks as _blocks

__all__ = ["digest"]

_WHOLE = 1 << 14  # bytes that are hashed one by one
_ROW, _ROWS = 1 << 12, 1 << 8  # bytes of a row, rows of a block
_EXACT = np.dtype("f8").itemsize  # of a real number; longer ones have padding, which copies need not keep


def digest(value: Any) -> str:
    """128 bits, in hexadecimal, of the arrays, numbers and strings in dicts, lists and tuples.

    BLAKE2b of all that is small and of sums over large arrays (see `_fold`): against mistakes, not against malice.
    What has been pickled and loaded has the same digest. Objects of other kinds are counted, not looked at.

    Examples
    --------
    >>> weights = [np.zeros(3), 0.5]
    >>> before = digest(weights)
    >>> weights[0] += 1
    >>> before == digest([np.zeros(3), 0.5]), before == digest(weights)
    (True, False)
    """
    hasher = hashlib.blake2b(digest_size=16)
    _feed(hasher.update, value)
    return hasher.hexdigest()


def _feed(update: Callable[[Any], None], value: Any) -> None:
    """Every part says its kind and length first, so that no two structures read alike."""
    kind = type(value)
    if kind is np.ndarray:
        _feed_array(update, value)
    elif isinstance(value, dict):
        update(b"d%d;" % len(value))
        for key, child in value.items():
            _feed(update, key)
            _feed(update, child)
    elif isinstance(value, list | tuple):
        update(b"%c%d;" % (b"l" if isinstance(value, list) else b"t", len(value)))
        for child in value:
            _feed(update, child)
    elif kind in (bool, int, float, complex, str, bytes, bytearray, type(None)):
        text = _text(value)
        update(b"%s%d;" % (kind.__name__.encode(), len(text)))
        update(text)
    else:
        _feed_array(update, value)


def _text(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    return (hex(value) if type(value) is int else repr(value)).encode()  # decimals of huge integers are refused


def _feed_array(update: Callable[[Any], None], value: Any) -> None:
    try:
        name, array = _array(value)
    except Exception:  # no array
        update(b"?;")
        return
    turned = array.flags.f_contiguous and not array.flags.c_contiguous  # pickles keep that, and nothing is copied
    update(f"{name}{array.shape}{'F' if turned else 'C'};".encode())
    sound = array.dtype.kind in "biufcmMSU" and array.dtype.itemsize // (1 + (array.dtype.kind == "c")) <= _EXACT
    if array.nbytes and (sound or array.dtype.kind in "SU"):
        _fold(update, np.ascontiguousarray(array.T if turned else array).reshape(-1).view(np.uint8))


def _fold(update: Callable[[Any], None], data: NDArray[np.uint8]) -> None:
    """Small data as they are, and sums over the rows and the columns of every megabyte of large ones.

    Integers modulo 2^64, whatever the numbers are: ten times as fast as hashing all, and no accident leaves all of
    the sums as they were.
    """
    if data.nbytes > _WHOLE:
        words = data[: data.nbytes // _ROW * _ROW].view(np.uint64).reshape(-1, _ROW // 8)
        for start in range(0, len(words), _ROWS):
            block = words[start : start + _ROWS]
            update(np.add.reduce(block, axis=0))
            update(np.add.reduce(block, axis=1))
        data = data[words.nbytes :]
    update(data)


def _array(value: Any) -> tuple[str, NDArray[Any]]:
    """What its numbers are, and its bytes."""
    if array_api_compat.is_torch_array(value):  # NumPy has not all of its dtypes
        host = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
        return f"{value.dtype}{tuple(value.shape)}", host.reshape(-1).view(sys.modules["torch"].uint8).numpy()
    array = np.asarray(value) if isinstance(value, np.ndarray | np.generic) else _blocks.raw_numpy(value)
    if not array.dtype.isnative:  # pickles may swap bytes
        array = array.astype(array.dtype.newbyteorder("="), order="A")
    return array.dtype.str, array
