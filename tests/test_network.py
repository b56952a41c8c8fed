"""Faults over the wire: links that are cut, slow or lossy, full disks, no memory, killed masters and schedulers.

Every result of every round that returns is compared with the truth; a round may fail with an error of anyk's only.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import resource
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import anyk
from anyk.errors import AnykError, TooFewResponders, TooFewWorkers
from anyk.runtime.events import RoundEvent, Run
from clusters import BIN, free_port, listening, processes, wait_until
from network import Link, fill, free, link, little_memory, memory_is_limited, tiny_disk, why_not

pytest.importorskip("distributed")
import dask
from distributed import Client

from anyk.runtime.dask import TUNED, DaskWorkers

pytestmark = [
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
    pytest.mark.timeout(120),
    # Dask's own: sockets and loops that it leaves to the garbage collector, mostly of processes that were killed.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*:UserWarning:distributed"),
]
N = 4
BRISK = {"distributed.comm.timeouts.tcp": "11s", "distributed.comm.timeouts.connect": "6s"}  # least; 30 s by default
MATRIX = np.arange(48.0).reshape(8, 6) % 7
BLOCKS = np.arange(60_000.0).reshape(2, 30_000) % 11  # some 200 packets to each worker
PARTS = [np.arange(12.0).reshape(3, 4) + part for part in range(N)]


class Rounds:
    """Rounds of all kinds, no two with the same answer; all that return are compared with the truth."""

    def __init__(self, workers: anyk.Workers) -> None:
        self.workers, self.step, self.late = workers, 0, 0
        self.operator = anyk.CodedOperator(MATRIX, anyk.SystematicMDSCode(N, 3), workers, on_event=self._hear)

    def _hear(self, event: RoundEvent) -> None:
        self.late += event.kind == "late"

    def map(self, task: Callable[[], Any] | None = None, **options: Any) -> Run:
        """Any two of four workers do; each calls `task` first."""
        self.step += 1
        factor = float(self.step)

        def scaled(block: Any) -> Any:
            if task is not None:
                task()
            return factor * block

        options.setdefault("on_event", self._hear)
        result = anyk.map(scaled, BLOCKS, code=anyk.LagrangeCode(N, 2), workers=self.workers, **options)
        assert np.allclose(result.value, factor * BLOCKS, rtol=1e-9, atol=1e-9)
        return result.run

    def every_kind(self, times: int = 1) -> None:
        """As many maps, sums and products, which bear the loss of one worker."""
        for _ in range(times):
            self.map()
            power = self.step
            total = anyk.sum(
                lambda part, shift: (part + shift) ** 2, PARTS, workers=self.workers, args=(power,), on_event=self._hear
            )
            assert np.allclose(total.value, sum((part + power) ** 2 for part in PARTS), rtol=1e-9)
            vector = np.arange(6.0) + power
            assert np.allclose(self.operator @ vector, MATRIX @ vector, rtol=1e-9, atol=1e-9)

    def answering(self) -> tuple[int, ...]:
        """Who answers, when all who are alive are waited for."""
        return self.map(stop=anyk.All()).responders

    def until_all_answer(self) -> None:
        wait_until(lambda: len(self.answering()) == N)

    def until_all_are_back(self) -> None:
        """The same where meanwhile so many are missing that rounds fail."""

        def back() -> bool:
            with contextlib.suppress(TooFewResponders):
                return len(self.answering()) == N
            return False

        wait_until(back)


def devour(victim: int) -> Callable[[], None]:
    """A task that takes memory without end, in one process."""

    def task() -> None:
        if os.getpid() == victim:
            np.ones(1 << 30)  # 8 GB

    return task


class Cluster:
    """A Dask scheduler here, and workers behind links, all started by their command lines."""

    def __init__(self, start: Any, links: list[Link], folder: Path) -> None:
        self.start, self.links, self.folder = start, links, folder
        self.port = free_port()
        self.address = f"tcp://127.0.0.1:{self.port}"
        self.environment = {
            "DASK_" + key.replace(".", "__").replace("-", "_").upper(): str(value)
            for key, value in (TUNED | BRISK).items()
        }
        self.scheduler = self.schedule()

    def schedule(self) -> subprocess.Popen[bytes]:
        """Start a scheduler."""
        command = [BIN / "dask", "scheduler", "--port", self.port, "--no-dashboard"]
        started: subprocess.Popen[bytes] = self.start(*command, env=self.environment, cwd=self.folder)
        wait_until(lambda: listening(self.port))
        return started

    def worker(self, index: int, directory: Path | None = None, **options: Any) -> subprocess.Popen[bytes]:
        """Start a worker, with its nanny, behind a link."""
        link = self.links[index]
        command = [
            BIN / "dask", "worker", f"tcp://{link.here}:{self.port}", "--host", link.there, "--nthreads", 1,
            "--memory-limit", 0, "--no-dashboard", "--local-directory", directory or self.folder / str(index),
        ]  # fmt: skip
        started: subprocess.Popen[bytes] = self.start(*link.inside(*command), env=self.environment, **options)
        return started

    def workers(self) -> list[subprocess.Popen[bytes]]:
        """Start one behind each link."""
        return [self.worker(index) for index in range(len(self.links))]


@contextlib.contextmanager
def behind_links(folder: Path) -> Iterator[Cluster]:
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    with contextlib.ExitStack() as stack:
        stack.enter_context(dask.config.set(TUNED | BRISK))
        links = [stack.enter_context(link()) for _ in range(N)]
        yield Cluster(stack.enter_context(processes()), links, folder)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A scheduler, and links that are whole; no worker as yet."""
    with behind_links(tmp_path) as one:
        yield one


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The same for many tests, with workers; for faults that pass."""
    with behind_links(tmp_path_factory.mktemp("lasting")) as one:
        one.workers()
        yield one


@pytest.fixture
def shared(lasting: Cluster) -> Cluster:
    """That, with its links healed whatever the last test did."""
    for each in lasting.links:
        each.heal()
    return lasting


@contextlib.contextmanager
def dask_rounds(cluster: Cluster, timeout: float = 30) -> Iterator[tuple[Rounds, list[int]]]:
    """Rounds with the workers of a cluster, and which of them runs behind each link."""
    with Client(cluster.address, timeout=timeout, direct_to_workers=True) as client:
        client.wait_for_workers(N, timeout=60)
        with DaskWorkers(client) as workers:
            rounds = Rounds(workers)
            rounds.every_kind()
            addresses = [str(member.address) for member in workers._crew._members]
            places = [f"//{one.there}:" for one in cluster.links]
            yield rounds, [next(i for i, address in enumerate(addresses) if place in address) for place in places]


def cut_at_first_answer(rounds: Rounds, broken: Any, victims: list[int], **options: Any) -> Run:
    """A round in the middle of which a link is cut."""
    cuts: list[None] = []

    def cut(event: RoundEvent) -> None:
        if event.kind == "answered" and event.worker not in victims and not cuts:
            cuts.append(broken.cut())

    return rounds.map(faults=dict.fromkeys(victims, anyk.Slow(1.0)), on_event=cut, **options)


def test_a_link_is_cut(cluster: Cluster) -> None:
    """In mid-round, and stays so: nothing is lost. The Dask worker ends; another one takes its place."""
    started = cluster.workers()
    with dask_rounds(cluster) as (rounds, behind):
        run = cut_at_first_answer(rounds, cluster.links[1], [behind[1]])
        assert behind[1] not in run.responders
        rounds.every_kind(3)
        run = rounds.map(stop=anyk.All())  # this waits until Dask notices, after its timeout
        assert len(run.responders) == N - 1
        assert run.failed[behind[1]].startswith("lost: ")
        rounds.every_kind(3)
        assert started[1].wait(60) is not None  # it does not look for the scheduler any more
        cluster.links[1].heal()
        cluster.worker(1)
        rounds.until_all_answer()
        rounds.every_kind(3)


def test_a_link_is_cut_and_healed(shared: Cluster) -> None:
    """The reply that was sent into the cut link arrives in a later round, and counts for none."""
    with dask_rounds(shared) as (rounds, behind):
        run = cut_at_first_answer(rounds, shared.links[1], [behind[1]])
        assert behind[1] not in run.responders
        time.sleep(1.5)
        before, rounds.late = rounds.step, 0
        shared.links[1].heal()
        while not rounds.late and rounds.step < before + 500:
            assert behind[1] not in rounds.map().responders or rounds.late
            time.sleep(0.05)
        assert rounds.late
        rounds.until_all_answer()
        rounds.every_kind(3)


def test_all_links_are_cut_and_healed(shared: Cluster) -> None:
    with dask_rounds(shared) as (rounds, _):
        for one in shared.links:
            one.cut()
        timer = threading.Timer(1.5, lambda: [one.heal() for one in shared.links])
        timer.start()
        rounds.every_kind()
        timer.join()
        rounds.until_all_answer()
        rounds.every_kind(3)


def test_links_are_slow(shared: Cluster) -> None:
    """300 ms each way: of one, then of all."""
    with dask_rounds(shared) as (rounds, _):
        shared.links[0].delay(0.3)
        rounds.every_kind(3)
        rounds.until_all_answer()
        for one in shared.links:
            one.delay(0.3)
        rounds.every_kind()
        rounds.until_all_answer()


def test_links_lose_packets(shared: Cluster) -> None:
    """5 % each way, of all."""
    with dask_rounds(shared) as (rounds, _):
        for seed, one in enumerate(shared.links):
            one.lose(0.05, seed)
        rounds.every_kind(10)
        rounds.until_all_answer()
        assert all(one.counts()[1] > 10 for one in shared.links)
        for one in shared.links:
            one.heal()
        rounds.until_all_answer()


def look_at(rounds: Rounds, worker: int, look: Callable[..., Any]) -> Any:
    """What `look` returns on a worker."""
    rounds.until_all_answer()  # nobody is at work after that
    rounds.workers.submit(worker, "look", look)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        for event in rounds.workers.poll(1.0):
            if event.token == "look" and event.kind == "ok":
                return event.value
    raise AssertionError("waited in vain")


def pid_of(rounds: Rounds, worker: int) -> int:
    """Of a worker's process."""
    return int(look_at(rounds, worker, lambda state: os.getpid()))


def without_memory(rounds: Rounds, victim: int) -> None:
    """A limit that makes the task fail, which its worker survives; one at which the kernel kills the process."""
    before = pid_of(rounds, victim)
    limits = resource.prlimit(before, resource.RLIMIT_AS)
    resource.prlimit(before, resource.RLIMIT_AS, (4 << 30, limits[1]))
    run = rounds.map(devour(before), stop=anyk.All())
    assert "MemoryError" in run.failed[victim]
    resource.prlimit(before, resource.RLIMIT_AS, limits)
    assert pid_of(rounds, victim) == before
    with contextlib.ExitStack() as stack:
        if memory_is_limited():
            stack.enter_context(little_memory([before], 600))
            run = rounds.map(devour(before), stop=anyk.All())
        else:
            run = rounds.map(
                lambda: os.kill(before, signal.SIGKILL) if os.getpid() == before else None, stop=anyk.All()
            )
        assert run.failed[victim].startswith("lost: ")
        rounds.every_kind(3)
    assert pid_of(rounds, victim) != before
    rounds.every_kind(3)


def test_no_memory(shared: Cluster) -> None:
    with dask_rounds(shared) as (rounds, behind):
        without_memory(rounds, behind[3])


def test_no_memory_for_local_workers() -> None:
    with anyk.LocalWorkers(N) as workers:
        rounds = Rounds(workers)
        rounds.every_kind()
        without_memory(rounds, 3)


def test_a_full_disk(cluster: Cluster, tmp_path: Path) -> None:
    """With nowhere to write a log to: a worker that runs does not mind, nor does its nanny when it starts another."""
    with tiny_disk(tmp_path / "disk") as disk, open("/dev/full", "wb") as full:
        cluster.worker(0, disk, stdout=full, stderr=full)
        for index in range(1, N):
            cluster.worker(index)
        with dask_rounds(cluster) as (rounds, behind):
            fill(disk)
            rounds.every_kind(3)
            before = pid_of(rounds, behind[0])
            os.kill(before, signal.SIGKILL)  # what it leaves is removed, and there is room for its successor's
            rounds.every_kind(3)
            assert pid_of(rounds, behind[0]) != before
            rounds.every_kind(3)


def test_a_disk_that_is_full_from_the_start(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Dask worker does not come up; whoever needs it is told, and the others serve."""
    with tiny_disk(tmp_path / "disk") as disk:
        fill(disk)
        full = cluster.worker(0, disk, stderr=subprocess.PIPE)
        assert b"No space left on device" in full.communicate(timeout=60)[1]
        assert full.returncode != 0
        for index in range(1, N):
            cluster.worker(index)
        with Client(cluster.address, timeout=30) as client:
            client.wait_for_workers(N - 1, timeout=60)
            with monkeypatch.context() as patched:
                patched.setattr("anyk.runtime.dask._JOIN", 1.0)
                with pytest.raises(TooFewWorkers, match="4 Dask workers are needed, and there are fewer"):
                    DaskWorkers(client, N)
            with DaskWorkers(client) as workers:
                result = anyk.map(np.negative, [3.0], code=anyk.RepetitionCode(N - 1, 1), workers=workers)
                assert np.array_equal(result.value, [-3.0])
        free(disk)
        cluster.worker(0, disk)
        with dask_rounds(cluster) as (rounds, _):
            rounds.until_all_answer()


TRAINING = """
import sys
from pathlib import Path

import numpy as np

import anyk
from anyk.training import Network, Training, partition_samples

where, checkpoint, rounds = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
rng = np.random.default_rng(5)
x = rng.standard_normal((400, 6))
labels = (x @ rng.standard_normal((6, 3))).argmax(axis=1)
code = anyk.GroupCode(workers=4, partitions=4, replicas=2, stragglers=1)
with anyk.connect(where, 4) as workers:
    parts = partition_samples(labels, 4)
    training = Training(Network((6, 8, 3)), x, labels, parts, code, workers, rate=0.2, batch=20, seed=3)
    if checkpoint.exists():
        training.load(checkpoint)
    print("start", training.round, flush=True)
    while training.round < rounds:
        training.step(stop=anyk.All())
        training.save(checkpoint)
        print("round", training.round, flush=True)
"""
ROUNDS = 30


def train(where: str, folder: Path, kills: list[int]) -> tuple[dict[str, Any], list[int]]:
    """The last checkpoint of a training that is killed shortly after these rounds, and where it began each time."""
    folder.mkdir()
    script, checkpoint = folder / "train.py", folder / "weights.npz"
    script.write_text(TRAINING)
    begins = []
    chance = random.Random(len(kills))
    for kill in [*kills, None]:
        master = subprocess.Popen(
            [sys.executable, script, where, checkpoint, str(ROUNDS)], stdout=subprocess.PIPE, text=True
        )
        with master:
            assert master.stdout is not None
            try:
                for line in master.stdout:
                    word, number = line.split()
                    if word == "start":
                        begins.append(int(number))
                    elif int(number) == kill:
                        time.sleep(chance.random() * 0.02)
                        break
            finally:
                if kill is not None:
                    master.kill()
        assert master.returncode == (0 if kill is None else -signal.SIGKILL)
    with np.load(checkpoint) as saved:
        return {name: saved[name] for name in saved.files}, begins


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The last checkpoint of a training of which nobody was killed."""
    return train("local://4", tmp_path_factory.mktemp("undisturbed") / "training", [])[0]


@pytest.mark.parametrize("engine", ["local", "dask"])
def test_a_master_is_killed(
    engine: str, tmp_path: Path, undisturbed: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    """With SIGKILL, twice: the weights are those of a training without disturbance, to the last bit."""
    where = "local://4" if engine == "local" else f"dask://127.0.0.1:{request.getfixturevalue('shared').port}"
    weights, begins = train(where, tmp_path / "training", [7, 20])
    assert begins[0] == 0
    assert all(begin >= kill for begin, kill in zip(begins[1:], [7, 20], strict=True))
    assert begins[-1] < ROUNDS
    assert weights.keys() == undisturbed.keys()
    assert all(np.array_equal(weights[name], undisturbed[name]) for name in weights)


def test_the_scheduler_is_killed(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """In mid-round: rounds fail by their name when Dask gives up; nothing is wrong, nothing hangs."""
    cluster.workers()
    with dask_rounds(cluster, timeout=6) as (rounds, behind):

        def kill(event: RoundEvent) -> None:
            if event.kind == "answered":
                cluster.scheduler.kill()

        with contextlib.suppress(AnykError):  # those that have answered may suffice
            rounds.map(faults={behind[0]: anyk.Slow(1.0)}, on_event=kill, stop=anyk.All())
        failed: list[AnykError] = []
        while len(failed) < 5:
            try:
                rounds.every_kind()
            except AnykError as error:
                failed.append(error)
        assert all(isinstance(error, TooFewResponders) for error in failed)
        assert "the Dask client is closed, or has lost its scheduler" in str(failed[-1])
        with pytest.raises(TooFewWorkers, match="the Dask client is closed, or has lost its scheduler"):
            DaskWorkers(rounds.workers._client)  # type: ignore[attr-defined]
    monkeypatch.setattr("anyk.runtime.dask._JOIN", 1.0)
    with pytest.raises(TooFewWorkers, match="no Dask scheduler answers"):
        anyk.map(abs, [1.0], workers=f"dask://127.0.0.1:{cluster.port}")


def test_the_scheduler_is_killed_and_started_again(cluster: Cluster) -> None:
    """Within the client's timeout, with new workers: the same `DaskWorkers` serve again."""
    started = cluster.workers()
    with dask_rounds(cluster, timeout=60) as (rounds, _):
        cluster.scheduler.kill()
        cluster.scheduler.wait()
        for process in started:  # they would end by themselves, after a while
            os.killpg(process.pid, signal.SIGKILL)
        cluster.schedule()
        cluster.workers()
        rounds.until_all_are_back()
        rounds.every_kind(3)


RAY = """
import sys

import ray

import anyk.runtime.ray
from anyk.errors import TooFewResponders
from test_network import N, Rounds, cut_at_first_answer, look_at, without_memory

anyk.runtime.ray._BACK = 5.0


class Link:
    def cut(self):
        print("cut", flush=True)


def main(here, port):
    ray.init(f"{here}:{port}", log_to_driver=False, logging_level="ERROR", _node_ip_address=here)
    with anyk.RayWorkers(N) as workers:
        rounds = Rounds(workers)
        rounds.every_kind()
        without_memory(rounds, 0)
        mine = ray.get_runtime_context().get_node_id()

        def at_home(state):
            return float(ray.get_runtime_context().get_node_id() == mine)

        far = [worker for worker in range(N) if not look_at(rounds, worker, at_home)]
        assert len(far) == 2, far
        run = cut_at_first_answer(rounds, Link(), far)
        assert not set(run.responders) & set(far), run
        for _ in range(20):
            rounds.map()
        assert not set(rounds.answering()) & set(far)  # this waits until Ray notices
        rounds.map()
        try:
            rounds.every_kind()
        except TooFewResponders as error:
            assert "no Ray node had room" in str(error), error
        else:
            raise AssertionError("sums and products do not bear the loss of two")
        print("heal", flush=True)
        rounds.until_all_are_back()
        rounds.every_kind(3)


main(*sys.argv[1:])
"""


def test_ray_behind_a_link(tmp_path: Path) -> None:
    """Two nodes, of two workers each. One worker runs out of memory; then the second node's link is cut in mid-round.

    The two that are left go on with what two can do, until another node takes the place of the second.
    The driver is a process of its own: Ray keeps its settings for as long as its process lives.
    """
    pytest.importorskip("ray")
    folder, port = tempfile.mkdtemp(prefix="anyk"), free_port()  # its sockets need a short path
    script, mark = tmp_path / "driver.py", secrets.token_hex(32)
    script.write_text(RAY)
    environment = os.environ | {
        "RAY_health_check_initial_delay_ms": "1000",
        "RAY_health_check_timeout_ms": "2000",
        "RAY_health_check_period_ms": "500",
        "RAY_health_check_failure_threshold": "3",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": mark,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "OMP_NUM_THREADS": "1",
    }

    def run(*command: Any) -> None:
        done = subprocess.run(
            [str(word) for word in command], env=environment, capture_output=True, text=True, timeout=90, check=False
        )
        assert done.returncode == 0, done.stderr

    with link() as broken, (tmp_path / "errors").open("w+") as errors:
        head = f"start --head --port {port} --node-ip-address {broken.here} --temp-dir {folder} --num-cpus 2"
        node = f"start --address {broken.here}:{port} --node-ip-address {broken.there} --num-cpus 2"
        there = broken.inside(BIN / "ray", *node.split())
        try:
            run(BIN / "ray", *head.split(), "--include-dashboard", "false")
            run(*there)
            driver = subprocess.Popen(
                [sys.executable, script, broken.here, str(port)],
                env=environment, stdout=subprocess.PIPE, stderr=errors, text=True,
            )  # fmt: skip
            with driver:
                assert driver.stdout is not None
                for line in driver.stdout:  # of Ray, too
                    if line == "cut\n":
                        broken.cut()
                    elif line == "heal\n":
                        broken.heal()
                        run(*there)
            errors.seek(0)
            assert driver.returncode == 0, errors.read()
        finally:
            end_marked(mark)
            shutil.rmtree(folder, ignore_errors=True)


def end_marked(mark: str) -> None:
    """Kill all processes that have it in their environment, and all that these have started."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if mark in process.environ().values():
                for each in (
                    *process.children(recursive=True),
                    process,
                ):  # Ray's lose their environment with their name
                    each.kill()
