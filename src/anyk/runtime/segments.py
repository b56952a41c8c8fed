"""Anonymous shared memory (Linux memfd): it has no name, so nothing can be left behind in /dev/shm after a crash.

A segment is a file descriptor that travels over a Unix socket. It is sealed against resizing, so that the other side
cannot make reading it fail. Fresh pages cost more than copying into them; segments are therefore kept and reused.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["LARGE", "Segment", "available", "capacity"]

LARGE = 1 << 16  # bytes; smaller payloads travel inside the message
_SEALS = getattr(fcntl, "F_SEAL_SHRINK", 2) | getattr(fcntl, "F_SEAL_GROW", 4)


def available() -> bool:
    """Whether this system has sealed anonymous shared memory."""
    return hasattr(os, "memfd_create")


def capacity(size: int) -> int:
    """A size to reserve: the next power of two; pages that are not touched take no memory."""
    return int(max(1 << 20, 1 << (size - 1).bit_length()))


class Segment:
    """A mapped piece of shared memory.

    Attributes
    ----------
    fd : int
        Owned; closed with the segment.
    size : int
    number : int
        Its name between the two processes.
    """

    fd = -1  # also where the constructor is interrupted

    def __init__(self, fd: int, size: int, number: int = 0, *, readonly: bool = False) -> None:
        self.fd = -1  # not ours to close until it is mapped
        self.number = number
        self.size = size
        self._map = mmap.mmap(fd, size, access=mmap.ACCESS_READ if readonly else mmap.ACCESS_WRITE)
        self.view = memoryview(self._map)
        self.address = 0 if readonly else int(np.frombuffer(self._map, np.uint8).ctypes.data)
        self.fd = fd

    @classmethod
    def create(cls, size: int, number: int = 0) -> Segment:
        """A new segment; OSError where there is none to be had."""
        if not available():
            raise OSError("no anonymous shared memory on this system")
        fd = os.memfd_create("anyk", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, size)
            fcntl.fcntl(fd, getattr(fcntl, "F_ADD_SEALS", 1033), _SEALS)
            return cls(fd, size, number)
        except BaseException:
            os.close(fd)
            raise

    @classmethod
    def received(cls, fd: int) -> Segment:
        """A segment that another process made; ValueError unless it is sealed against resizing."""
        try:
            seals = fcntl.fcntl(fd, getattr(fcntl, "F_GET_SEALS", 1034))
            size = os.fstat(fd).st_size
            if seals & _SEALS != _SEALS or size == 0:
                raise ValueError("the shared memory is not sealed")
            segment = cls(fd, size)
        except BaseException:
            os.close(fd)
            raise
        segment.close()  # mapped: the descriptor has done its work
        return segment

    def offset_of(self, array: NDArray[Any] | memoryview) -> int | None:
        """Where an array lies inside this segment, or None if it lies elsewhere."""
        start = int(np.frombuffer(array, np.uint8).ctypes.data) - self.address
        return start if start >= 0 and start + array.nbytes <= self.size else None

    def close(self) -> None:
        """Close the descriptor; the mapping lives on as long as an array uses it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __del__(self) -> None:
        self.close()


def aligned(offset: int) -> int:
    """The next multiple of a cache line."""
    return (offset + 63) & ~63
