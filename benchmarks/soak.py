"""Rounds by the thousand while workers are killed, stopped, hung, slowed, restarted and made to lie.

python benchmarks/soak.py {local,dask,ray,mpi} [--rounds 2000] [--workers 16] [--seed 0]

Each answer is compared with the truth. A round whose code survives what befell it must succeed; one that was given more
must say so by name. A round that takes more than a minute (two on clusters, whose processes take long to start) ends
the run with everybody's traceback.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import gc
import json
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import anyk
import anyk.errors

Rows = list[dict[str, Any]]
SOON = 0.02  # seconds until blows fall
HANG = 60.0  # seconds that no round takes
SEDATE = (None, None, anyk.Skip(0.5), anyk.Backup())  # where starting a process takes seconds
SLACK = {"child processes": 0, "open files": 8, "segments": 8, "threads": 4, "memory_MB": 48}  # that is no growth
EACH = {"open files": 2, "segments": 4}  # of each worker: its shared memory, once it has been needed
LIES = [anyk.Corrupt(how, scale=7.0, seed=3) for how in ("noise", "scale", "negate", "zero")]
ODD = [anyk.Corrupt(how) for how in ("nan", "inf", "none", "shape", "dtype")]  # seen for what they are


@dataclass
class Engine:
    """Workers, and what may be done to them."""

    workers: Any
    pids: Callable[[], list[int]]
    restarts: bool = True  # else nobody may hang or crash, since nobody comes back
    mortal: int = 10**9  # how many may be killed
    pause: float = 0.2  # seconds that one is stopped, at most
    longest: float = HANG
    rate: float = 0.7  # share of rounds with blows to processes
    quick: bool = True  # what was killed is there again at once, and nothing else runs here
    policies: tuple[Any, ...] = (None, anyk.Skip(0.05), anyk.Skip(0.05), anyk.Restart(), anyk.Backup(patience=0.05))


@dataclass
class Soak:
    engine: Engine
    seed: int
    counts: Counter[str] = field(default_factory=Counter)
    timers: list[threading.Timer] = field(default_factory=list)
    dead: int = 0  # for good
    carried: int = 0  # blows of the round before

    def __post_init__(self) -> None:
        self.rng, self.n = random.Random(self.seed), len(self.engine.workers)
        self.numbers, self.shared = np.random.default_rng(self.seed), set(os.listdir("/dev/shm"))
        n = self.n
        self.square = anyk.LagrangeCode(n, n // 4 + 1, degree=2)
        self.copies = anyk.RepetitionCode(n, n // 4)
        self.majority = anyk.RepetitionCode(n, n // 4, combine="majority")
        self.smooth = anyk.BerrutCode(n, n // 4)
        self.total = anyk.NullSpaceCode(anyk.cyclic_placement(n, n, 6), stragglers=2, adversaries=1)
        self.rows = anyk.SystematicMDSCode(n, n - 4)
        self.matrix = self.numbers.standard_normal((6 * n + 1, 40))
        self.data = self.numbers.standard_normal((n, 50))
        self.operator = anyk.CodedOperator(self.matrix, self.rows, self.engine.workers)

    # -- what happens to workers --------------------------------------------------------------------------------------

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        timer = threading.Timer(seconds, call)
        timer.daemon = True
        timer.start()
        self.timers.append(timer)

    def signalling(self, pid: int, kind: signal.Signals) -> Callable[[], None]:
        """To that very process: none that has its number later."""
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)

            def send() -> None:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(kind)

            return send
        return lambda: None

    def strike(self, most: int) -> int:
        """Kill, stop or restart some processes, now or soon; how many."""
        rng, engine, struck = self.rng, self.engine, 0
        if rng.random() > engine.rate:
            return 0
        pids = engine.pids()
        for pid in rng.sample(pids, min(len(pids), most, rng.choice((0, 1, 1, 2)))):
            how, soon = rng.random(), rng.choice((0.0, rng.uniform(0.0, SOON)))
            if how < 0.5 and engine.mortal > 0:
                engine.mortal -= 1
                self.dead += not engine.restarts
                self.counts["killed"] += 1
                self.later(soon, self.signalling(pid, signal.SIGKILL))
            elif how < 0.8:
                self.counts["stopped"] += 1
                self.later(soon, self.signalling(pid, signal.SIGSTOP))
                self.later(soon + rng.uniform(0, engine.pause), self.signalling(pid, signal.SIGCONT))
            elif engine.workers.drop(rng.randrange(self.n)):
                self.counts["dropped"] += 1
            struck += 1
        return struck

    def faults(self, count: int, certain: bool = False) -> dict[int, Any]:
        """For so many workers; `certain` are those that bring no answer, whatever comes."""
        chosen: dict[int, Any] = {}
        for worker in self.rng.sample(range(self.n), count):
            kinds: list[Any] = [anyk.Raise(), self.rng.choice(ODD)]
            if self.engine.restarts and self.rng.random() < self.engine.rate:
                kinds += [anyk.Crash(self.rng.choice((0.0, 0.005)))]
                # A cluster may still lack others: then whoever hangs is waited for, for ever.
                kinds += [anyk.Hang()] if self.engine.quick or certain else []
            if not certain:
                kinds += [anyk.Slow(self.rng.uniform(0, 0.2))]
            chosen[worker] = self.rng.choice(kinds)
        return chosen

    # -- rounds -------------------------------------------------------------------------------------------------------

    def lagrange(self) -> None:
        self.map_round(self.square, np.square, self.n - self.square.threshold, over=True)

    def repetition(self) -> None:
        self.map_round(self.copies, np.tanh, 3)

    def berrut(self) -> None:
        self.map_round(self.smooth, np.tanh, self.n - math.ceil(0.8 * self.n))

    def vote(self) -> None:
        """One copy lies, and one may be missing."""
        if self.dead:
            return self.repetition()
        self.counts["lied"] += 1
        liar = {self.rng.randrange(self.n): self.rng.choice(LIES)}
        return self.map_round(self.majority, np.tanh, 1, stop=anyk.FirstK(self.n - 1), liars=liar)

    def map_round(self, code: Any, fn: Any, spare: int, stop: Any = None, **options: Any) -> None:
        blocks = self.numbers.standard_normal((code.blocks, self.rng.choice((3, 3, 20_000))))
        call = partial(anyk.map, fn, blocks, code=code, workers=self.engine.workers)
        result = self.attempt(call, spare, stop, **options)
        if result is None:
            return
        truth = fn(blocks)
        if code.approximate:  # what its decoder makes of answers that are right
            coded = code.generator @ (blocks if result.order is None else blocks[result.order])
            truth = result.decoder.matrix @ fn(coded)[list(result.run.responders)]
        self.compare(result.value, truth)

    def sum(self) -> None:
        """As many liars as the code is for, or one more; or too few answers."""
        count = self.rng.choice((0, 1, 1, 1, 2))
        liars = {worker: self.rng.choice(LIES) for worker in self.rng.sample(range(self.n), count)}
        self.counts["lied"] += count
        call = partial(anyk.sum, np.square, self.data, self.total, self.engine.workers)
        result = self.attempt(call, 2, liars=liars, doubtful=count > 1)
        if result is not None:
            self.compare(result.value, (self.data**2).sum(axis=0))

    def product(self) -> None:
        """By an operator that stays, or by one made for two products."""
        x, y = self.numbers.standard_normal(self.matrix.shape[1]), self.numbers.standard_normal(self.matrix.shape[0])

        def kept(**options: Any) -> Any:
            return self.operator @ x

        def made(late: Any, **options: Any) -> Any:
            with anyk.CodedOperator(self.matrix, self.rows, self.engine.workers, patience=0.05, **options) as operator:
                return np.concatenate([operator @ x, operator.rmatvec(y)])

        if self.rng.random() < 0.5:
            found, truth = self.attempt(kept, 4, faulty=False), self.matrix @ x
        else:
            found, truth = self.attempt(made, 4, over=True), np.concatenate([self.matrix @ x, self.matrix.T @ y])
        if found is not None:
            self.compare(found, truth)

    def attempt(
        self,
        call: Callable[..., Any],
        spare: int,
        stop: Any = None,
        *,
        liars: dict[int, Any] | None = None,
        faulty: bool = True,
        over: bool = False,
        doubtful: bool = False,
    ) -> Any:
        """A round in which `spare` workers may fail, or one more where `over` allows that; None if it was refused."""
        over = over and self.rng.random() < 0.1
        room = max(0, spare - self.dead - self.carried)  # who was killed at a round's end may be missed in the next
        struck = self.carried = 0 if over else self.strike(room)
        room -= struck
        faults = (
            self.faults(spare + 1, certain=True) if over else self.faults(self.rng.randint(0, room) if faulty else 0)
        )
        faults |= liars or {}
        self.counts["hung"] += sum(isinstance(fault, anyk.Hang) for fault in faults.values())
        self.counts["crashed"] += sum(isinstance(fault, anyk.Crash) for fault in faults.values())
        late = self.rng.choice(self.engine.policies)
        if over:
            late = None if isinstance(late, anyk.Backup) else late  # others would do what those who hang do not
            stop = anyk.Sufficient() | anyk.Deadline(1.0)  # those who hang are waited for otherwise
        try:
            result = call(stop=stop, faults=faults, late=late)
        except anyk.errors.RoundError as error:
            doubtful = doubtful or self.dead > spare
            missed = (
                error.run.stragglers or error.run.skipped or any("lost" in why for why in error.run.failed.values())
            )
            recovering = not self.engine.quick and bool(missed)
            if not (over or doubtful or recovering):
                raise AssertionError(
                    f"refused, with {faults} and {struck} struck, {spare} to spare: {error}"
                ) from error
            self.counts["refused" if over or doubtful else "refused while processes restarted"] += 1
            return None
        finally:
            for timer in self.timers:
                if timer.interval <= SOON:
                    timer.join()
        assert not over, f"{spare + 1} workers failed, {faults}, and nobody said so"
        return result

    def compare(self, found: Any, truth: Any) -> None:
        error = float(np.linalg.norm(np.asarray(found) - truth) / np.linalg.norm(truth))
        if not error < 1e-8:
            raise AssertionError(f"a wrong answer was returned, off by {error:.2e} of its size")
        self.counts["compared"] += 1

    # -- all of it ----------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Everybody is there and idle."""
        for timer in self.timers:
            timer.join()
        self.timers.clear()
        code, late = anyk.RepetitionCode(self.n, 1), anyk.Skip(0.05 if self.engine.quick else 5.0)
        done, end = 0, time.monotonic() + HANG
        while done < 2:
            faulthandler.dump_traceback_later(2 * self.engine.longest, exit=True)
            try:
                stop = anyk.FirstK(self.n - self.dead)
                anyk.map(np.negative, np.ones((1, 2)), code=code, workers=self.engine.workers, stop=stop, late=late)
                done += 1
            except anyk.TooFewResponders:
                if self.engine.quick or time.monotonic() > end:
                    raise
                time.sleep(5.0)  # each try starts those afresh who are still at work for the one before

    def figures(self) -> dict[str, float]:
        """What may leak."""
        self.settle()
        gc.collect()
        me = psutil.Process()
        links = [os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
        return {
            "child processes": len(me.children(recursive=True)),
            "open files": me.num_fds(),
            "segments": sum("memfd:anyk" in link for link in links) + maps().count("memfd:anyk"),
            "new in /dev/shm": len(set(os.listdir("/dev/shm")) - self.shared),
            "threads": me.num_threads(),
            "memory_MB": me.memory_info().rss / 1e6,
        }

    def run(self, rounds: int) -> Rows:
        kinds = [self.lagrange, self.repetition, self.berrut, self.vote, self.sum, self.sum, self.product]
        faulthandler.dump_traceback_later(self.engine.longest, exit=True)
        before = self.figures()
        early, begun = before, time.monotonic()
        for index in range(rounds):
            faulthandler.dump_traceback_later(self.engine.longest, exit=True)
            kind = self.rng.choice(kinds)
            try:
                kind()
            except BaseException:
                print(f"round {index}, {kind.__name__}, seed {self.seed}, so far {dict(self.counts)}", file=sys.stderr)
                raise
            self.timers = [timer for timer in self.timers if timer.is_alive()]
            if index + 1 == max(1, rounds // 10):
                faulthandler.dump_traceback_later(self.engine.longest, exit=True)
                early = self.figures()
        self.counts["seconds"] = round(time.monotonic() - begun)
        faulthandler.dump_traceback_later(self.engine.longest, exit=True)
        after = self.figures()
        faulthandler.cancel_dump_traceback_later()
        rows = [
            {"what": what, "before": before[what], "after 10 %": early[what], "after": after[what]} for what in after
        ]
        for row in rows:
            what = row["what"]
            if self.engine.quick and what in SLACK:  # other programs make files in /dev/shm, too
                most = max(row["before"] + EACH.get(what, 0) * self.n, row["after 10 %"]) + SLACK[what]
                assert row["after"] <= most, f"{row} exceeds {most}"
        return rows


def maps() -> str:
    return Path("/proc/self/maps").read_text()


# -- engines ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def local(n: int) -> Iterator[Engine]:
    with anyk.LocalWorkers(n) as workers:
        yield Engine(workers, lambda: workers.pids)


@contextlib.contextmanager
def dask(n: int) -> Iterator[Engine]:
    from distributed import Client

    from anyk.runtime.dask import DaskWorkers, start_cluster

    with ExitStack() as stack:
        cluster = stack.enter_context(start_cluster(n))
        client = stack.enter_context(Client(cluster, direct_to_workers=True))
        workers = stack.enter_context(DaskWorkers(client, n))
        nannies = cluster.workers
        yield Engine(
            workers,
            lambda: [each.pid for each in nannies.values() if each.pid],
            longest=2 * HANG,
            rate=0.3,
            quick=False,
            policies=SEDATE,
        )


@contextlib.contextmanager
def ray(n: int) -> Iterator[Engine]:
    from anyk.runtime.ray import RayWorkers

    def pids() -> list[int]:
        found = []
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if (child.cmdline() or [""])[0].startswith("ray::_Host"):
                    found.append(child.pid)
        return found

    with RayWorkers(n) as workers:
        yield Engine(workers, pids, longest=2 * HANG, rate=0.3, quick=False, policies=SEDATE)


@contextlib.contextmanager
def mpi(n: int) -> Iterator[Engine]:
    """On rank 0, under mpiexec with ULFM: ranks do not come back, so only two are killed."""
    from anyk.runtime.mpi import MPIWorkers

    with MPIWorkers() as workers:
        pids: dict[int, int] = {}
        for worker in range(n):
            workers.submit(worker, worker, eval("lambda state: __import__('os').getpid()"))
        while len(pids) < n:
            pids |= {event.worker: int(event.value) for event in workers.poll(None)}
        alive = lambda: [pid for pid in pids.values() if psutil.pid_exists(pid)]  # noqa: E731
        yield Engine(
            workers,
            alive,
            restarts=False,
            mortal=2,
            longest=2 * HANG,
            rate=0.3,
            quick=False,
            policies=(None, anyk.Skip(math.inf)),
        )


def soak_one(name: str, rounds: int, n: int, seed: int) -> dict[str, Any]:
    warnings.simplefilter("ignore", anyk.errors.ApproximationWarning)
    with globals()[name](n) as engine:
        one = Soak(engine, seed)
        rows = one.run(rounds)
    left = len(psutil.Process().children(recursive=True))
    assert left == 0 or not engine.quick, f"{left} processes outlive their workers"
    return {"engine": name, "rounds": rounds, "workers": n, "seed": seed, "counts": dict(one.counts), "figures": rows}


def under_mpi(name: str, rounds: int, n: int, seed: int) -> dict[str, Any]:
    """The same on rank 0 of a job that is started here."""
    environment = os.environ | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    command = [Path(sys.executable).parent / "mpiexec", "--with-ft", "ulfm", "--map-by", "slot:OVERSUBSCRIBE"]
    command += ["--bind-to", "none", "-n", n + 1, sys.executable, "-m", "anyk.runtime.mpi", __file__, name]
    command += ["--rounds", rounds, "--workers", n, "--seed", seed, "--inside", "--json"]
    done = subprocess.run(list(map(str, command)), env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"mpiexec ended with status {done.returncode}: {done.stdout[-2000:]}")
    return last(done.stdout)


def last(output: str) -> dict[str, Any]:
    """The JSON among what clusters print, too."""
    return dict(json.loads([line for line in output.splitlines() if line.startswith("{")][-1]))


def soak(tiny: bool) -> Rows:
    """Workers killed, stopped, hung, slowed, restarted and lying: no hang, no leak, no wrong answer. Figures before,
    after a tenth, and after."""
    plan = [("local", 20, 8)] if tiny else [("local", 2000, 16), ("dask", 200, 8), ("ray", 200, 8), ("mpi", 200, 16)]
    found: dict[str, dict[str, Any]] = {}
    for name, rounds, n in plan:
        command = [sys.executable, __file__, name, "--rounds", str(rounds), "--workers", str(n), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr)
        found[name] = told(last(done.stdout))
    return [{"what": what, **{name: each[what] for name, each in found.items()}} for what in next(iter(found.values()))]


def told(found: dict[str, Any]) -> dict[str, Any]:
    """One column of a table."""
    counts = ("compared", "refused", "refused while processes restarted")
    blows = ("killed", "stopped", "dropped", "hung", "crashed", "lied")
    column = {"rounds": found["rounds"], "workers": found["workers"]}
    column |= {each: found["counts"].get(each, 0) for each in (*counts, *blows, "seconds")}
    for each in found["figures"]:
        column[each["what"]] = ", ".join(f"{each[when]:.0f}" for when in ("before", "after 10 %", "after"))
    return column


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("engine", choices=["local", "dask", "ray", "mpi"])
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    job = under_mpi if given.engine == "mpi" and not given.inside else soak_one
    found = job(given.engine, given.rounds, given.workers, given.seed)
    if given.json:
        print(json.dumps(found), flush=True)
        return
    from run import table

    print(found["counts"], table(found["figures"]), sep="\n")


if __name__ == "__main__":
    main()
