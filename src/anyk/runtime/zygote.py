"""The process that makes workers: it has loaded the libraries, runs no threads, and forks on request.

A fork from here starts a worker in milliseconds, is safe (the caller's own threads and BLAS stay out of it) and never
imports the caller's main module, so that scripts need no ``if __name__ == "__main__"``. It is also the guardian: when
its control socket closes, for whatever reason, it kills all workers and ends.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Iterable
from typing import Any, TextIO

__all__ = ["Zygote", "main"]

_FORK, _KILL = "fork", "kill"
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS",
                     "VECLIB_MAXIMUM_THREADS", "BLIS_NUM_THREADS")  # fmt: skip


def _die_with(parent: int) -> None:
    """Ask Linux to kill this process when its parent ends, should the parent be killed itself."""
    if sys.platform == "linux":
        with contextlib.suppress(Exception):
            import ctypes

            ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != parent:  # it was quicker
        os._exit(1)


def main(fd: int, preload: Iterable[str]) -> None:
    """Run the zygote on its control socket."""
    zygote = os.getpid()
    control = socket.socket(fileno=fd)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in preload:
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    from .worker import serve

    alive: set[int] = set()

    def reap(*_: Any) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                alive.discard(pid)
                with contextlib.suppress(OSError):
                    control.sendall(f"exit {pid} {status}\n".encode())

    signal.signal(signal.SIGCHLD, reap)
    try:
        while True:
            data, descriptors, *_ = socket.recv_fds(control, 1 << 16, 1)
            if not data:
                break
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
            request = json.loads(data)
            if request[0] == _FORK:
                pid = os.fork()
                if pid == 0:
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
                    _die_with(zygote)
                    control.close()
                    sys.path[:] = request[1]
                    with contextlib.suppress(OSError):
                        os.chdir(request[2])
                    os.set_inheritable(descriptors[0], False)  # programs that a task starts must not keep it open
                    serve(socket.socket(fileno=descriptors[0]))
                os.close(descriptors[0])
                alive.add(pid)
                control.sendall(f"pid {pid}\n".encode())
            elif request[1] in alive:
                os.kill(request[1], signal.SIGKILL)
                control.sendall(b"killed\n")
            else:
                control.sendall(b"killed\n")
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    finally:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for pid in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in alive:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        os._exit(0)


class Zygote:
    """The master's handle.

    Parameters
    ----------
    preload : names of modules to import before forking
    threads : int
        BLAS and OpenMP threads of each worker.
    """

    def __init__(self, preload: Iterable[str], threads: int) -> None:
        ours, theirs = socket.socketpair()
        environment = os.environ | dict.fromkeys(_THREAD_VARIABLES, str(threads))
        call = f"main({theirs.fileno()}, {list(preload)!r})"
        code = f"import sys; sys.path[:] = {sys.path!r}; from anyk.runtime.zygote import main; {call}"
        self._process = subprocess.Popen(
            [sys.executable, "-c", code],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,  # Ctrl-C is for the master, which then ends the workers
        )
        theirs.close()
        self._control = ours
        self._lines = ours.makefile("r")
        self._exits: dict[int, int] = {}
        self.close = weakref.finalize(self, _close, ours, self._lines, self._process, os.getpid())

    def fork(self, end: socket.socket) -> int:
        """Start a worker on its end of a socket pair; its process id."""
        request = json.dumps([_FORK, sys.path, os.getcwd()]).encode()
        sent = socket.send_fds(self._control, [request], [end.fileno()])
        if sent < len(request):
            raise RuntimeError("the request to start a worker did not fit its socket")
        return int(self._answer("pid"))

    def kill(self, pid: int) -> None:
        """Kill a worker; nothing happens if it is gone already."""
        self._control.sendall(json.dumps([_KILL, pid]).encode())
        self._answer("killed")

    def _answer(self, kind: str) -> str:
        while True:
            word, *rest = (self._lines.readline() or "end").split()
            if word == "exit":
                self._exits[int(rest[0])] = int(rest[1])
            elif word == kind:
                return rest[0] if rest else ""
            else:
                raise RuntimeError(
                    f"the process that starts workers has ended (status {self._process.poll()}); see its messages above"
                )

    def epitaph(self, pid: int) -> str:
        """How a worker ended."""
        for _ in range(50):
            try:
                self.kill(pid)
            except (OSError, RuntimeError):  # this process has ended, and its children with it
                break
            if pid in self._exits:
                code = os.waitstatus_to_exitcode(self._exits.pop(pid))
                return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
            time.sleep(0.002)
        return "is gone"


def _close(control: socket.socket, lines: TextIO, process: subprocess.Popen[bytes], owner: int) -> None:
    if os.getpid() != owner:  # a fork of the master must not end the master's workers
        return
    with contextlib.suppress(OSError):
        control.shutdown(socket.SHUT_RDWR)
    lines.close()
    control.close()
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
