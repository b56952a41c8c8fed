"""MPI workers: scripts under mpiexec, with Open MPI and MPICH; dead ranks under ULFM; clean ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clusters import BIN, MPICH, mpiexec

pytest.importorskip("mpi4py")
pytestmark = pytest.mark.timeout(300)
KINDS = [
    pytest.param("openmpi", marks=pytest.mark.skipif(not (BIN / "mpiexec").exists(), reason="no Open MPI here")),
    pytest.param("mpich", marks=pytest.mark.skipif(not (MPICH / "bin" / "mpiexec").exists(), reason="no MPICH here")),
]


def script(folder: Path, text: str) -> Path:
    path = folder / "script.py"
    path.write_text("import numpy as np\nimport anyk\nfrom anyk.runtime.mpi import MPIWorkers\n\n" + text)
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_laws(kind: str, tmp_path: Path) -> None:
    path = script(
        tmp_path,
        """
from anyk.engine_laws import check_workers

check_workers(lambda n: MPIWorkers(n=n), processes=True, huge=True, mortal=False)
print("lawful")
""",
    )
    done = mpiexec(path, n=7, kind=kind)
    assert "lawful" in done.stdout, done.stderr
    assert done.returncode == 0


@pytest.mark.parametrize("kind", KINDS)
def test_verbs_names_and_arguments(kind: str, tmp_path: Path) -> None:
    path = script(
        tmp_path,
        """
import sys

assert __name__ == "__main__" and sys.argv[1:] == ["one", "two"]
result = anyk.map(lambda x: x + 1, [1.0, 2.0], workers="mpi://", stop=anyk.All())
assert result.run.responders == (0, 1, 2, 3)
parts = np.arange(12.0).reshape(4, 3)
with anyk.connect("mpi://") as workers:
    for _ in range(3):
        assert np.allclose(anyk.sum(np.square, parts, workers=workers).value, (parts**2).sum(axis=0))
    operator = anyk.CodedOperator(np.eye(6), anyk.SystematicMDSCode(4, 3), workers, faults={1: anyk.Slow(0.3)})
    for _ in range(5):
        assert np.allclose(operator @ np.arange(6.0), np.arange(6.0))
    big = anyk.map(lambda x: x * 2, np.ones((2, 2_000_000)), code=anyk.RepetitionCode(4, 2), workers=workers)
    assert (big.value == 2).all()
print("fine")
""",
    )
    done = mpiexec(path, "one", "two", kind=kind)
    assert "fine" in done.stdout, done.stderr
    assert done.returncode == 0


def test_more_than_two_gigabytes(tmp_path: Path) -> None:
    """A message beyond what 31 bits count: there and back."""
    path = script(
        tmp_path,
        """
size = (1 << 31) + (1 << 20)
workers = MPIWorkers(n=1)
ends = lambda state, a: {"ends": np.array([a[0], a[-1], a[1 << 30]]), "same": a}
workers.submit(0, "big", ends, np.ones(size, np.uint8))
(event,) = workers.poll(120)
assert event.kind == "ok", event
assert event.value["same"].size == size and (event.value["ends"] == 1).all() and event.value["same"][-1] == 1
print("fine")
""",
    )
    done = mpiexec(path, n=2, timeout=200)
    assert "fine" in done.stdout, done.stderr


def test_dead_ranks_under_ulfm(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        """
import os, signal, time

workers = MPIWorkers()
for worker in range(len(workers)):
    workers.submit(worker, worker, lambda state: os.getpid())
pids = {}
while len(pids) < len(workers):
    pids |= {event.worker: int(event.value) for event in workers.poll(None)}
workers.submit(0, "busy", lambda state: time.sleep(60))
time.sleep(0.1)
os.kill(pids[0], signal.SIGKILL)
(event,) = workers.poll(30)
assert (event.kind, event.worker, event.token) == ("lost", 0, "busy"), event
assert not workers.drop(0)
os.kill(pids[1], signal.SIGKILL)
code = anyk.RepetitionCode(len(workers), 2)
for _ in range(20):
    result = anyk.map(np.negative, [1.0, 2.0], code=code, workers=workers)
    assert np.array_equal(result.value, [-1, -2])
assert set(result.run.failed) <= {0, 1} and all(reason.startswith("lost") for reason in result.run.failed.values())
try:
    anyk.map(np.negative, [1.0], code=anyk.UncodedCode(1, 1), workers=workers)
except anyk.TooFewResponders as error:
    print("refused", error)
""",
    )
    done = mpiexec(path, n=7, options=("--with-ft", "ulfm"))
    assert "refused" in done.stdout, done.stderr
    assert done.returncode == 0


def test_without_ulfm_mpi_ends_the_job(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        """
code, faults = anyk.RepetitionCode(2, 1), {0: anyk.Crash()}
anyk.map(np.negative, [1.0], code=code, workers=MPIWorkers(), faults=faults, stop=anyk.All())
print("not reached")
""",
    )
    done = mpiexec(path, n=3)
    assert done.returncode != 0
    assert "not reached" not in done.stdout


@pytest.mark.parametrize(("end", "status"), [("raise SystemExit(7)", 7), ("raise ValueError('mine')", 1), ("1", 0)])
def test_status(end: str, status: int, tmp_path: Path) -> None:
    done = mpiexec(script(tmp_path, end), n=3)
    assert done.returncode == status, done.stderr
    assert ("ValueError: mine" in done.stderr) == ("mine" in end)


def test_hung_ranks_do_not_hold_up_the_end(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        """
import anyk.runtime.mpi

anyk.runtime.mpi._GRACE = 0.5
workers = MPIWorkers()
result = anyk.map(np.negative, [1.0], code=anyk.RepetitionCode(3, 1), workers=workers, faults={1: anyk.Hang()})
assert np.array_equal(result.value, [-1])
raise SystemExit(3)
""",
    )
    done = mpiexec(path, n=4)
    assert done.returncode != 0  # 3, where mpiexec itself survives MPI_Abort
    assert "ranks [2] are still at work: ending the MPI job" in done.stderr


def test_outside_mpiexec(tmp_path: Path) -> None:
    path = script(tmp_path, "MPIWorkers()")
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=60, check=False)
    assert "mpiexec -n 9 python -m anyk.runtime.mpi script.py starts eight" in done.stderr


def test_command_line(tmp_path: Path) -> None:
    np.save(tmp_path / "blocks.npy", np.arange(6.0).reshape(2, 3))
    arguments = ["map", "numpy:negative", tmp_path / "blocks.npy", "-o", tmp_path / "out.npy", "--workers", 4]
    options: Any = [*arguments, "--code", "lagrange", "--engine", "mpi"]
    done = mpiexec("-m", "anyk", *options)
    assert done.returncode == 0, done.stderr
    assert np.allclose(np.load(tmp_path / "out.npy"), -np.arange(6.0).reshape(2, 3))
