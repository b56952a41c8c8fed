"""Engines side by side: anyk's own share of a round over the engine's bare first-k loop, and jobs with stragglers."""

from __future__ import annotations

import json
import multiprocessing
import multiprocessing.connection
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import anyk

Rows = list[dict[str, Any]]
BLOCKS = np.arange(2.0).reshape(1, 2)
FIRST = 12
BARE = 11  # the tag of messages without anyk


def first_round(workers: Any, n: int) -> Callable[[], None]:
    """A whole round of `anyk.map`, until the first 12 of 16 have answered."""
    code, stop = anyk.RepetitionCode(n, 1), anyk.FirstK(min(FIRST, n - 1))

    def run() -> None:
        anyk.map(np.negative, BLOCKS, code=code, workers=workers, stop=stop)

    return run


def compared(ours: Callable[[], None], bare: Callable[[], None], repeats: int) -> dict[str, float]:
    """Medians, in turn, and the median of pairwise ratios."""
    for _ in range(3):
        ours()
        bare()

    def seconds(call: Callable[[], None]) -> float:
        begun = time.perf_counter()
        call()
        return time.perf_counter() - begun

    return summary([(seconds(ours), seconds(bare)) for _ in range(repeats)])


def summary(pairs: list[tuple[float, float]]) -> dict[str, float]:
    return {
        "ours_ms": 1e3 * statistics.median(a for a, _ in pairs),
        "bare_ms": 1e3 * statistics.median(b for _, b in pairs),
        "ratio": statistics.median(a / b for a, b in pairs),
    }


def echo(connection: Any) -> None:
    while True:
        x = connection.recv()
        connection.send(-x)


def local(n: int, repeats: int) -> dict[str, float]:
    """Against bare multiprocessing pipes: send to all, take the first 12, and the rest before the next round."""
    pipes = [multiprocessing.Pipe() for _ in range(n)]
    processes = [multiprocessing.Process(target=echo, args=(theirs,), daemon=True) for _, theirs in pipes]
    for process in processes:
        process.start()
    ends = [ours for ours, _ in pipes]
    coded = anyk.RepetitionCode(n, 1).encode(BLOCKS)
    late: list[Any] = []

    def bare() -> None:
        while late:
            for end in multiprocessing.connection.wait(late):
                end.recv()
                late.remove(end)
        for end, x in zip(ends, coded, strict=True):
            end.send(x)
        waiting, got = list(ends), []
        while len(got) < min(FIRST, n - 1):
            for end in multiprocessing.connection.wait(waiting):
                got.append(end.recv())
                waiting.remove(end)
        late.extend(waiting)

    with anyk.LocalWorkers(n) as workers:
        row = compared(first_round(workers, n), bare, repeats)
    for process in processes:
        process.kill()
    return row


class Doer:
    """A bare actor."""

    def do(self, x: Any) -> Any:
        return -x


def dask(n: int, repeats: int) -> dict[str, float]:
    """Against bare actors called directly, and tasks submitted to the scheduler."""
    from distributed import Client, as_completed, wait

    from anyk.runtime.dask import DaskWorkers, start_cluster

    with start_cluster(n) as cluster, Client(cluster, direct_to_workers=True) as client:
        addresses = list(client.scheduler_info(n_workers=-1)["workers"])
        made = [client.submit(Doer, actor=True, workers=[each], pure=False) for each in addresses]
        actors = [future.result() for future in made]
        coded = anyk.RepetitionCode(n, 1).encode(BLOCKS)

        def bare() -> None:
            calls = [actor.do(x) for actor, x in zip(actors, coded, strict=True)]
            while sum(call.done() for call in calls) < min(FIRST, n - 1):
                time.sleep(1e-4)
            for call in calls:
                call.result()

        def submitted() -> None:
            futures = [
                client.submit(np.negative, x, workers=[each], pure=False, allow_other_workers=False)
                for each, x in zip(addresses, coded, strict=True)
            ]
            for count, _ in enumerate(as_completed(futures, with_results=True), 1):
                if count == min(FIRST, n - 1):
                    break
            wait(futures)

        with DaskWorkers(client) as workers:
            ours = first_round(workers, n)
            row = compared(ours, bare, repeats)
            row["over submitted tasks"] = compared(ours, submitted, max(2, repeats // 3))["ratio"]
    return row


def ray(n: int, repeats: int) -> dict[str, float]:
    """Against bare actors and `ray.wait`."""
    import ray as bare_ray

    from anyk.runtime.ray import RayWorkers

    bare_ray.init(num_cpus=2 * n, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    kind = bare_ray.remote(num_cpus=1)(Doer)
    actors = [kind.remote() for _ in range(n)]
    coded = anyk.RepetitionCode(n, 1).encode(BLOCKS)

    def bare() -> None:
        waiting, got = [actor.do.remote(x) for actor, x in zip(actors, coded, strict=True)], 0
        while waiting and got < min(FIRST, n - 1):
            ready, waiting = bare_ray.wait(waiting, num_returns=1)
            more, waiting = bare_ray.wait(waiting, num_returns=max(len(waiting), 1), timeout=0) if waiting else ([], [])
            bare_ray.get(ready + more)
            got += len(ready) + len(more)
        bare_ray.get(waiting)

    with RayWorkers(n) as workers:
        row = compared(first_round(workers, n), bare, repeats)
    bare_ray.shutdown()
    return row


def mpi(n: int, repeats: int) -> dict[str, float]:
    """Under Open MPI's mpiexec, against the same frames sent and received bare, with the same naps in between."""
    folder = Path(sys.executable).parent
    environment = os.environ | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    command = [folder / "mpiexec", "--map-by", "slot:OVERSUBSCRIBE", "--bind-to", "none", "-n", n + 1]
    command += [sys.executable, __file__, n, repeats]
    done = subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def serve_bare(state: Any) -> float:
    """On a rank: echo bare messages until told otherwise."""
    from mpi4py import MPI

    from anyk.runtime.mpi import _naps

    comm, status = MPI.COMM_WORLD, MPI.Status()
    while True:
        for nap in _naps():
            message = comm.Improbe(0, BARE, status)
            if message is not None:
                break
            time.sleep(nap)
        x = np.empty(2)
        message.Recv(x)
        if np.isnan(x[0]):
            return 0.0
        comm.Send(-x, 0, BARE)


def under_mpi(n: int, repeats: int) -> None:
    """Blocks of ten rounds, in turn; a bare block is a task of ours."""
    from mpi4py import MPI

    from anyk.runtime.mpi import MPIWorkers, _naps, command

    comm, status, late = MPI.COMM_WORLD, MPI.Status(), set[int]()
    coded = anyk.RepetitionCode(n, 1).encode(BLOCKS)
    x = np.empty(2)

    def hear(waiting: set[int]) -> int:
        """How many have answered."""
        before = len(waiting)
        while (message := comm.Improbe(MPI.ANY_SOURCE, BARE, status)) is not None:
            message.Recv(x)
            waiting.discard(status.Get_source())
        return before - len(waiting)

    def bare_round() -> None:
        naps = _naps()
        while late:
            if not hear(late):
                time.sleep(next(naps))
        for rank in range(1, n + 1):
            comm.Send(coded[rank - 1], rank, BARE)
        waiting, naps = set(range(1, n + 1)), _naps()
        while n - len(waiting) < min(FIRST, n - 1):
            if not hear(waiting):
                time.sleep(next(naps))
        late.update(waiting)

    def timed(call: Callable[[], None]) -> float:
        call()
        begun = time.perf_counter()
        for _ in range(10):
            call()
        return (time.perf_counter() - begun) / 10

    def run() -> None:
        pairs = []
        with MPIWorkers() as workers:
            ours = first_round(workers, n)
            serving = workers.publish(serve_bare)
            for _ in range(max(2, repeats // 10)):
                mine = timed(ours)
                while any(not event.token for event in workers.poll(0.05)):
                    pass
                for worker in range(n):
                    workers.submit(worker, "bare", serving)
                pairs.append((mine, timed(bare_round)))
                while late:
                    hear(late)
                for rank in range(1, n + 1):
                    comm.Send(np.full(2, np.nan), rank, BARE)
                answered = 0
                while answered < n:
                    answered += sum(event.token == "bare" for event in workers.poll(1.0))
        print(json.dumps(summary(pairs)), flush=True)

    command(run)


def engines(tiny: bool) -> Rows:
    """anyk's own share of a round, over the engine's bare first-k loop on 16 workers."""
    n, repeats = (3, 2) if tiny else (16, 200)
    rows = []
    for measure, count in ((local, repeats), (mpi, repeats), (ray, repeats), (dask, repeats // 2)):
        rows.append({"engine": measure.__name__, "workers": n, **measure(n, max(2, count))})
    return rows


def job(tiny: bool) -> Rows:
    """4 of 20 workers always take ten times as long: a job of 50 rounds, by policy; every result is checked.

    A worker sleeps in proportion to its rows or partitions, so that a code pays for what it adds: an MDS code gives
    each a sixteenth of the rows instead of a twentieth, a gradient code five partitions instead of one.
    """
    rounds, unit = (3, 0.01) if tiny else (50, 0.05)
    n, slow = 20, 4
    data = np.random.default_rng(0).standard_normal((800, 30))
    parts = data.reshape(n, 40, 30)
    # By value: workers cannot import this module.
    rows_of = eval(f"lambda x: (__import__('time').sleep({unit} * len(x) / 40), 3 * x)[1]")
    square = eval(f"lambda x: (__import__('time').sleep({unit}), (x**2).sum(axis=0))[1]")

    def mapped(code: Any, late: Any) -> Callable[[Any], Any]:
        blocks = data.reshape(code.blocks, -1, 30)
        faults = {worker: anyk.Slow(9 * unit * len(blocks[0]) / 40) for worker in range(slow)}

        def round(workers: Any) -> Any:
            result = anyk.map(rows_of, blocks, code=code, workers=workers, faults=faults, late=late)
            assert np.allclose(result.value.reshape(data.shape), 3 * data)
            return result

        return round

    def summed(code: Any, late: Any) -> Callable[[Any], Any]:
        held = int(code.placement.sum(axis=1).max())
        faults = {worker: anyk.Slow(9 * unit * held) for worker in range(slow)}

        def round(workers: Any) -> Any:
            result = anyk.sum(square, list(parts), code, workers, faults=faults, late=late)
            assert np.allclose(result.value, (data**2).sum(axis=0))
            return result

        return round

    single = anyk.GroupCode(n, n, replicas=1, stragglers=0)
    group = anyk.GroupCode(n, n, replicas=slow + 1, stragglers=slow)
    jobs: dict[str, tuple[str, Callable[[Any], Any]]] = {
        "map, uncoded, wait for all": ("map", mapped(anyk.UncodedCode(n, n), None)),
        "map, uncoded, backups": ("map", mapped(anyk.UncodedCode(n, n), anyk.Backup())),
        "map, MDS code": ("map", mapped(anyk.SystematicMDSCode(n, n - slow), None)),
        "map, MDS code, restarts": ("map", mapped(anyk.SystematicMDSCode(n, n - slow), anyk.Restart())),
        "sum, uncoded, wait for all": ("sum", summed(single, None)),
        "sum, uncoded, backups": ("sum", summed(single, anyk.Backup())),
        "sum, group code": ("sum", summed(group, None)),
    }
    rows: Rows = []
    for name, (kind, round) in jobs.items():
        with anyk.LocalWorkers(n) as workers:
            round(workers)
            begun, machine = time.perf_counter(), 0.0
            for _ in range(rounds):
                run = round(workers).run
                machine += run.machine_seconds + run.wasted_seconds
            spent = time.perf_counter() - begun
        rows.append({"job": name, "rounds": rounds, "seconds": spent, "machine seconds": machine})
        first = next(row for row in rows if row["job"].startswith(kind))
        rows[-1]["of waiting for all"] = spent / first["seconds"]
    return rows


if __name__ == "__main__":
    under_mpi(int(sys.argv[1]), int(sys.argv[2]))
