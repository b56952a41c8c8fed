"""Clusters for tests: started as a user starts them, by command lines, and ended whatever happens."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BIN = Path(sys.executable).parent
MPICH = BIN.parent / "mpich"


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def processes() -> Iterator[Any]:
    """``start(arguments...)`` runs a command in a session of its own; all are killed at the end."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"} | options.pop("env", {})
        process = subprocess.Popen(
            [str(argument) for argument in arguments],
            env=environment,
            start_new_session=True,
            stdout=options.pop("stdout", subprocess.DEVNULL),
            stderr=options.pop("stderr", subprocess.DEVNULL),
            **options,
        )
        started.append(process)
        return process

    try:
        yield start
    finally:
        for process in started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        for process in started:
            process.wait()
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()


def wait_until(condition: Any, seconds: float = 60.0) -> None:
    """Until `condition()` holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def listening(port: int, host: str = "127.0.0.1") -> bool:
    """Whether somebody answers there."""
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == 0


def mpiexec(
    script: Path | str,
    *arguments: Any,
    n: int = 5,
    kind: str = "openmpi",
    options: tuple[str, ...] = (),
    timeout: float = 100.0,
) -> subprocess.CompletedProcess[str]:
    """A script under ``mpiexec -n`` of Open MPI or MPICH, with rank 0 in command."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    if kind == "openmpi":
        environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        environment["MPI4PY_MPIABI"] = "openmpi"
        command = [str(BIN / "mpiexec"), "--map-by", "slot:OVERSUBSCRIBE", "--bind-to", "none"]
    else:
        environment |= {"MPI4PY_MPIABI": "mpich", "LD_LIBRARY_PATH": str(MPICH / "lib")}
        command = [str(MPICH / "bin" / "mpiexec")]
    command += [*options, "-n", str(n), sys.executable, "-m", "anyk.runtime.mpi", str(script), *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout, check=False)
