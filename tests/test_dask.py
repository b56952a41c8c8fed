"""Dask workers: the laws of engines, real kills, clusters started by hand."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import anyk
from anyk.engine_laws import check_workers
from anyk.errors import TooFewResponders, TooFewWorkers, WorkersClosed
from clusters import BIN, free_port, processes, wait_until

pytest.importorskip("distributed")
from distributed import Client

from anyk.runtime.dask import TUNED, DaskWorkers, start_cluster

pytestmark = [
    pytest.mark.timeout(300),
    # Dask's own: sockets and loops that it leaves to the garbage collector, mostly of processes that were killed.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*:UserWarning:distributed"),
]
N = 4


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A new one for each test: a nanny whose process is killed while it starts may give up, which is Dask's own."""
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    with start_cluster(N) as started:
        yield started


@pytest.fixture
def client(cluster: Any) -> Iterator[Client]:
    with Client(cluster, direct_to_workers=True) as connected:
        connected.wait_for_workers(N)
        yield connected


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
    """Of workers that are there, perhaps with a late answer on its way."""
    for worker in range(len(workers)):
        workers.submit(worker, "pid", pid)
    return [int(event.value) for _, event in sorted(answers(workers, "pid", len(workers)).items())]


def test_laws(client: Client) -> None:
    check_workers(lambda n: DaskWorkers(client, n), processes=True, huge=True)


def test_laws_with_restarted_processes(client: Client) -> None:
    check_workers(lambda n: DaskWorkers(client, n, restart="process"), processes=True)


def test_laws_with_several_on_each(client: Client) -> None:
    check_workers(lambda n: DaskWorkers(client, n, per_worker=2), processes=True)


def test_laws_past_the_scheduler_and_through_it(cluster: Any) -> None:
    with Client(cluster) as proxied:
        check_workers(lambda n: DaskWorkers(proxied, n), processes=True)


def test_rounds_while_workers_die(client: Client) -> None:
    blocks = np.arange(12.0).reshape(2, 6)
    code = anyk.RepetitionCode(N, 2)
    with DaskWorkers(client) as workers:
        victims = pids(workers)
        for step in range(15):
            if step % 4 == 1:
                os.kill(victims.pop(), signal.SIGKILL)
            result = anyk.map(np.negative, blocks, code=code, workers=workers)
            assert np.array_equal(result.value, -blocks)


def test_a_killed_worker_comes_back_under_another_address(client: Client) -> None:
    with DaskWorkers(client) as workers:
        before = pids(workers)
        os.kill(before[1], signal.SIGKILL)
        kinds: list[str] = []
        while "joined" not in kinds:
            kinds += [event.kind for event in workers.poll(30) if event.worker == 1]
        assert kinds[0] == "lost"
        after = pids(workers)
        assert after[1] != before[1]
        assert [a == b for a, b in zip(before, after, strict=True)].count(True) == N - 1


def test_names(client: Client) -> None:
    address = client.scheduler.address
    result = anyk.map(lambda x: x + 1, [1.0, 2.0], workers=f"dask://{address}", stop=anyk.All())
    assert len(result.run.workers) == N  # all that there are
    assert np.abs(np.asarray(result.value) - [2, 3]).max() < 0.5
    parts = np.arange(12.0).reshape(4, 3)
    total = anyk.sum(np.square, parts, workers=f"dask://{address.removeprefix('tcp://')}")
    assert np.allclose(total.value, (parts**2).sum(axis=0))
    with anyk.CodedOperator(np.eye(6), anyk.SystematicMDSCode(4, 3), f"dask://{address}") as operator:
        assert np.allclose(operator @ np.arange(6.0), np.arange(6.0))
    product = anyk.matmul(np.eye(6), np.ones((6, 2)), anyk.PolynomialCode(4, 2, 1), f"dask://{address}")
    assert np.allclose(product.value, 1)


def test_a_cluster_of_our_own_ends_with_its_workers() -> None:
    with anyk.connect("dask://", 2) as workers:
        mine = pids(workers)
        assert len(set(mine)) == 2

    def gone(process: int) -> bool:
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return True
        return False

    wait_until(lambda: all(map(gone, mine)))
    with pytest.raises(WorkersClosed):
        workers.poll(0)


def test_what_is_refused(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    refusals: list[tuple[Callable[[], Any], type[Exception], str]] = [
        (lambda: DaskWorkers("tcp://127.0.0.1:8786"), TypeError, "client must be a distributed.Client"),  # type: ignore[arg-type]
        (lambda: DaskWorkers(client, restart="never"), ValueError, "restart must be"),  # type: ignore[arg-type]
        (lambda: DaskWorkers(client, restart="process", per_worker=2), ValueError, "goes with per_worker=1"),
        (lambda: DaskWorkers(client, 0), ValueError, "at least 1"),
    ]
    for make, error, message in refusals:
        with pytest.raises(error, match=message):
            make()
    monkeypatch.setattr("anyk.runtime.dask._JOIN", 0.2)
    with pytest.raises(TooFewWorkers, match="5 Dask workers are needed, and there are fewer"):
        DaskWorkers(client, N + 1)
    with pytest.raises(TooFewWorkers, match=r"no Dask scheduler answers at tcp://127\.0\.0\.1:1"):
        anyk.map(abs, [1.0], workers="dask://127.0.0.1:1")


def test_a_hostile_worker_cannot_forge_more_than_its_own_reply(client: Client) -> None:
    def forge(state: dict[str, Any], parts: Any) -> Any:
        from anyk.runtime import packing

        packing.Desk.run = lambda self, message, buffers: parts  # type: ignore[method-assign,assignment,return-value]
        return 1.0

    with DaskWorkers(client, 2, restart="process") as workers:
        forgeries: list[Any] = [(b"[1,2]", []), (b'["ok",0,[["numpy","<f8",[9]]],0]', [np.zeros(3)]), (b"\xff", [])]
        for forged in forgeries:
            workers.submit(0, "first", forge, forged)
            assert answers(workers, "first")[0].kind == "ok"
            workers.submit(0, "second", pid)
            event = answers(workers, "second")[0]
            assert (event.kind, event.value.type) == ("error", "Malformed"), forged
            workers.drop(0)
            workers.submit(0, "third", pid)
            assert answers(workers, "third")[0].kind == "ok"


def test_a_cluster_started_by_hand(tmp_path: Any) -> None:
    """``dask scheduler`` and three ``dask worker``: one is killed, one with its nanny; another is started."""
    port = free_port()
    address = f"tcp://127.0.0.1:{port}"
    settings = {"DASK_" + key.replace(".", "__").replace("-", "_").upper(): str(value) for key, value in TUNED.items()}
    with processes() as start:
        start(BIN / "dask", *f"scheduler --host 127.0.0.1 --port {port} --no-dashboard".split(), env=settings)
        options = f"--nworkers 1 --nthreads 1 --memory-limit 0 --no-dashboard --local-directory {tmp_path}".split()
        hosts = [start(BIN / "dask", "worker", address, *options, env=settings) for _ in range(3)]
        with Client(address, timeout=60) as connected:
            connected.wait_for_workers(3, timeout=60)
            code = anyk.RepetitionCode(3, 1)
            with DaskWorkers(connected) as workers:
                for victim in pids(workers)[:1]:
                    os.kill(victim, signal.SIGKILL)  # its nanny lives
                for _ in range(3):
                    assert np.array_equal(anyk.map(np.negative, [3.0], code=code, workers=workers).value, [-3.0])
                os.killpg(hosts[1].pid, signal.SIGKILL)  # and its nanny
                for _ in range(3):
                    assert np.array_equal(anyk.map(np.negative, [3.0], code=code, workers=workers).value, [-3.0])
                wait_until(lambda: len(connected.scheduler_info(n_workers=-1)["workers"]) == 2)
                start(BIN / "dask", "worker", address, *options, env=settings)  # another takes its place

                def answering() -> int:
                    return len(anyk.map(abs, [3.0], code=code, workers=workers, stop=anyk.All()).run.responders)

                wait_until(lambda: answering() == 3)


def test_a_client_that_is_closed_under_its_workers(cluster: Any) -> None:
    """With its event loop, where that is its own, and in the middle of a round: named errors, and nobody hangs."""
    code = anyk.RepetitionCode(N, 1)
    with Client(cluster.scheduler_address) as own, Client(cluster) as shared:
        for client in (own, shared):
            workers = DaskWorkers(client)

            def close(event: Any, client: Client = client) -> None:
                if event.kind == "answered":
                    client.close()

            faults = dict.fromkeys(range(1, N), anyk.Hang())
            with pytest.raises(TooFewResponders, match="the Dask client is closed"):
                anyk.map(
                    np.negative, [1.0], code=code, workers=workers, stop=anyk.FirstK(N), faults=faults, on_event=close
                )
            for _ in range(2):
                with pytest.raises(TooFewResponders, match="the Dask client is closed"):
                    anyk.map(np.negative, [1.0], code=code, workers=workers)
            workers.close()
            with pytest.raises(TooFewWorkers, match="the Dask client is closed"):
                DaskWorkers(client)
