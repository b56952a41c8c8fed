"""Broken networks, disks and memories for tests, on Linux as root: namespaces behind links that can be cut or slowed.

A link is a process of its own that forwards packets between a TUN device here and another in a network namespace that
it has made. The namespace has no name and the devices are not persistent: with the process, all of it is gone.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import heapq
import itertools
import os
import random
import select
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_CLONE_NEWNET, _TUNSETIFF, _IFF_TUN_NO_PI = 0x40000000, 0x400454CA, 0x1001
_numbers = itertools.count(os.getpid() * 16)
_MEMORY = Path("/sys/fs/cgroup/memory")  # version 1
_UNIFIED = Path("/sys/fs/cgroup")  # version 2


class Link:
    """A network namespace with one link to the host; `here` and `there` are its ends' addresses."""

    def __init__(self, process: subprocess.Popen[str], here: str, there: str) -> None:
        self._process, self.here, self.there = process, here, there

    def inside(self, *command: Any) -> list[str]:
        """The command that runs `command` in the namespace."""
        return ["nsenter", f"--net=/proc/{self._process.pid}/ns/net", *map(str, command)]

    def _tell(self, *words: Any) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the forwarder is gone"
        return answer

    def cut(self) -> None:
        """From now on no packet passes, either way, and nobody is told."""
        self._tell("loss", 1, 0)

    def heal(self) -> None:
        """All packets pass, at once."""
        self._tell("loss", 0, 0)
        self._tell("delay", 0)

    def delay(self, seconds: float) -> None:
        """Every packet takes so long, either way."""
        self._tell("delay", seconds)

    def lose(self, share: float, seed: int) -> None:
        """This share of the packets is lost, at random."""
        self._tell("loss", share, seed)

    def counts(self) -> tuple[int, int]:
        """Packets that have passed, and that were lost."""
        passed, lost = self._tell("counts").split()
        return int(passed), int(lost)


@contextlib.contextmanager
def link() -> Iterator[Link]:
    """A namespace with a link to the host, until the end of the block or of this process."""
    number = next(_numbers) % (250 * 250)
    here, there = (f"10.{201 + number % 4}.{number // 250}.{number % 250 // 4 * 4 + end}" for end in (1, 2))
    process = subprocess.Popen(
        [sys.executable, "-S", "-E", __file__, f"anyk{number}", here, there],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield Link(process, here, there)
    finally:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def tiny_disk(folder: Path, kilobytes: int = 256) -> Iterator[Path]:
    """A file system of a few kilobytes, mounted on a new folder."""
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k,nr_inodes=64", "anyk-test", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def fill(folder: Path) -> None:
    """Leave not a byte on the disk, and no room for one file more."""
    with contextlib.suppress(OSError), (folder / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(b"\0" * 4096)
    with contextlib.suppress(OSError):
        for number in itertools.count():
            (folder / f"filler{number}").touch()


def free(folder: Path) -> None:
    """Undo `fill`."""
    for file in folder.glob("filler*"):
        file.unlink()


@contextlib.contextmanager
def little_memory(pids: list[int], megabytes: int) -> Iterator[Path]:
    """A control group in which the kernel kills processes that take more than so much together; these move there."""
    version_1 = (_MEMORY / "cgroup.procs").exists()
    group = (_MEMORY if version_1 else _UNIFIED) / f"anyk-{os.getpid()}-{next(_numbers)}"
    group.mkdir()
    try:
        (group / ("memory.limit_in_bytes" if version_1 else "memory.max")).write_text(str(megabytes << 20))
        for pid in pids:
            (group / "cgroup.procs").write_text(str(pid))
        yield group
    finally:
        root = group.parent / "cgroup.procs"
        for _ in range(100):
            with contextlib.suppress(OSError):
                for pid in (group / "cgroup.procs").read_text().split():
                    root.write_text(pid)
            try:
                group.rmdir()
            except OSError:  # a process is still on its way out
                time.sleep(0.05)
            else:
                break


def why_not() -> str | None:
    """Why there can be no links here; None where there can."""
    if sys.platform != "linux":
        return "network namespaces are Linux's"
    if os.geteuid():
        return "network namespaces need root"
    try:
        with link():
            return None
    except (OSError, AssertionError) as error:
        return f"no network namespaces or no /dev/net/tun: {error}"


def memory_is_limited() -> bool:
    """Whether `little_memory` works here."""
    try:
        with little_memory([], 64):
            return True
    except OSError:
        return False


# -- the forwarder ----------------------------------------------------------------------------------------------------


def _tun(name: str, address: str, peer: str) -> int:
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN_NO_PI))
    for command in (
        f"ip addr add {address} peer {peer} dev {name}",
        f"ip link set {name} up txqueuelen 5000",
    ):
        subprocess.run(command.split(), check=True)
    return device


def _forward(name: str, here: str, there: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    ours = _tun(name, here, there)
    if libc.unshare(_CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "unshare")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    theirs = _tun(name, there, here)
    across = {ours: theirs, theirs: ours}
    share, delay, passed, lost = 0.0, 0.0, 0, 0
    chance = random.Random(0)
    due: list[tuple[float, int, int, bytes]] = []
    order = itertools.count()
    print("ready", flush=True)
    while True:
        wait = max(0.0, due[0][0] - time.monotonic()) if due else None
        ready, _, _ = select.select([ours, theirs, 0], [], [], wait)
        if 0 in ready:
            words = os.read(0, 1000).decode().split()  # one line at a time: each is answered
            if not words:
                return  # the test is gone
            if words[0] == "loss":
                share, chance = float(words[1]), random.Random(int(words[2]))
            elif words[0] == "delay":
                delay = float(words[1])
            print(passed, lost, flush=True)
        for device in (ours, theirs):
            if device not in ready:
                continue
            with contextlib.suppress(BlockingIOError):
                for _ in range(64):
                    packet = os.read(device, 65536)
                    if share and chance.random() < share:
                        lost += 1
                    else:
                        heapq.heappush(due, (time.monotonic() + delay, next(order), across[device], packet))
        now = time.monotonic()
        while due and due[0][0] <= now:
            _, _, device, packet = heapq.heappop(due)
            passed += 1
            with contextlib.suppress(OSError):  # a full queue, or a packet that the kernel does not like: lost
                os.write(device, packet)


if __name__ == "__main__":
    _forward(*sys.argv[1:])
