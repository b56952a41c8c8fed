"""Ray workers: the laws of engines, real kills, placement groups, a cluster started by hand."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anyk
from anyk.engine_laws import check_workers
from anyk.errors import TooFewWorkers, WorkersClosed
from clusters import BIN, free_port

pytest.importorskip("ray")
import ray

from anyk.runtime.ray import RayWorkers

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]
N = 4


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


def pid_task() -> Callable[..., Any]:
    """A function that travels by value: workers cannot import this module."""
    return lambda state: os.getpid()


pid = pid_task()


def answers(workers: anyk.Workers, token: str, count: int = 1) -> dict[int, Any]:
    """The events of `count` tasks with this token, by worker."""
    events: dict[int, Any] = {}
    end = time.monotonic() + 60
    while len(events) < count:
        assert time.monotonic() < end
        events |= {
            event.worker: event for event in workers.poll(1.0) if event.token == token and event.kind != "joined"
        }
    return events


def pids(workers: anyk.Workers) -> list[int]:
    for worker in range(len(workers)):
        workers.submit(worker, "pid", pid)
    return [int(event.value) for _, event in sorted(answers(workers, "pid", len(workers)).items())]


def test_laws() -> None:
    check_workers(lambda n: RayWorkers(n), processes=True, huge=True)


def test_rounds_while_workers_die() -> None:
    blocks = np.arange(12.0).reshape(2, 6)
    code = anyk.RepetitionCode(N, 2)
    with RayWorkers(N) as workers:
        victims = pids(workers)
        for step in range(15):
            if step % 4 == 1:
                os.kill(victims.pop(), signal.SIGKILL)
            result = anyk.map(np.negative, blocks, code=code, workers=workers)
            assert np.array_equal(result.value, -blocks)


def test_large_values_are_read_in_place() -> None:
    shared = np.arange(1_000_000.0)

    def look(state: dict[str, Any], a: Any, b: Any) -> Any:
        return {
            "owns": np.array([a.flags.owndata, b.flags.owndata]),
            "writeable": a.flags.writeable,
            "sum": a.sum() + b.sum(),
        }

    with RayWorkers(2) as workers:
        ref = workers.publish(shared)
        workers.submit(0, "look", look, ref, -shared)
        value = answers(workers, "look")[0].value
        assert not value["owns"].any()
        assert not value["writeable"]
        assert float(value["sum"]) == 0


def test_names_and_verbs() -> None:
    result = anyk.map(lambda x: x + 1, [1.0, 2.0], workers="ray://auto", code=anyk.LagrangeCode(3, 2))
    assert np.allclose(result.value, [2, 3])
    assert ray.is_initialized()  # it was not ours to end
    parts = np.arange(12.0).reshape(4, 3)
    with RayWorkers(4) as workers:
        for _ in range(2):
            assert np.allclose(anyk.sum(np.square, parts, workers=workers).value, (parts**2).sum(axis=0))
        operator = anyk.CodedOperator(np.eye(6), anyk.SystematicMDSCode(4, 3), workers)
        assert np.allclose(operator @ np.arange(6.0), np.arange(6.0))


def test_placement_groups() -> None:
    from ray.util import placement_group, remove_placement_group

    group = placement_group([{"CPU": 1}] * 3)
    with RayWorkers(group) as workers:
        assert len(set(pids(workers))) == 3
    remove_placement_group(group)


def test_what_is_refused() -> None:
    refusals: list[tuple[Callable[[], Any], type[Exception], str]] = [
        (lambda: RayWorkers(0), ValueError, "at least 1"),
        (lambda: RayWorkers(2, cpus=-1), ValueError, "cpus must be a number of at least 0, got -1"),
        (lambda: RayWorkers(9), TooFewWorkers, "the Ray cluster has 8 CPUs: too few for 9 workers of 1 each"),
    ]
    for make, error, message in refusals:
        with pytest.raises(error, match=message):
            make()
    with RayWorkers(9, cpus=0.5) as workers:
        assert len(workers) == 9
    with pytest.raises(WorkersClosed):
        workers.submit(0, 0, pid)


def test_a_hostile_worker_cannot_forge_more_than_its_own_reply() -> None:
    def forge(state: dict[str, Any], parts: Any) -> Any:
        from anyk.runtime import packing

        packing.Desk.run = lambda self, message, buffers: parts  # type: ignore[method-assign,assignment,return-value]
        return 1.0

    with RayWorkers(1) as workers:
        forgeries: list[Any] = [(b"[1,2]", []), (b'["ok",0,[["numpy","<f8",[9]]],0]', [np.zeros(3)]), ("text", [])]
        for forged in forgeries:
            workers.submit(0, "first", forge, forged)
            assert answers(workers, "first")[0].kind == "ok"
            workers.submit(0, "second", pid)
            event = answers(workers, "second")[0]
            assert (event.kind, event.value.type) == ("error", "Malformed"), forged
            workers.drop(0)
            workers.submit(0, "third", pid)
            assert answers(workers, "third")[0].kind == "ok"


def test_a_cluster_started_by_hand(tmp_path: Path) -> None:
    """``ray start --head``, a script that connects to it, ``ray stop``; in processes of their own."""
    port, folder = free_port(), tempfile.mkdtemp(prefix="anyk")  # its sockets need a short path
    script = tmp_path / "script.py"
    script.write_text(
        """
import os, signal, sys
import numpy as np
import anyk

with anyk.connect("ray://auto", 3) as workers:
    pids = []
    anyk.map(lambda x: x, [1.0], code=anyk.RepetitionCode(3, 1), workers=workers)
    for step in range(4):
        result = anyk.map(lambda x: -x, [1.0, 2.0], code=anyk.LagrangeCode(3, 2), workers=workers)
        assert np.allclose(result.value, [-1, -2])
print("fine", len(workers))
"""
    )
    environment = os.environ | {"RAY_ADDRESS": f"127.0.0.1:{port}", "OMP_NUM_THREADS": "1"}
    head = f"start --head --port {port} --num-cpus 4 --include-dashboard false --temp-dir {folder}"
    started = subprocess.run([BIN / "ray", *head.split()], capture_output=True, text=True, timeout=120, check=False)
    assert started.returncode == 0, started.stderr
    try:
        done = subprocess.run(
            [sys.executable, script], env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert "fine 3" in done.stdout, done.stderr
    finally:
        import psutil

        for process in psutil.process_iter(["cmdline"]):
            if any(folder in part for part in process.info["cmdline"] or ()):
                process.kill()
        shutil.rmtree(folder, ignore_errors=True)
