"""Measure what the project promises, as ratios within one run; `--tiny` only checks that everything runs.

python benchmarks/run.py [NAME ...] [--tiny] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import multiprocessing.connection
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import accuracy
import engines
import gradients
import linear
import numpy as np
import scale
import soak

import anyk

Rows = list[dict[str, Any]]


def seconds(call: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def paired(ours: Callable[[], Any], bare: Callable[[], Any], repeats: int, rest: float = 0.0) -> dict[str, float]:
    """Medians of both, taken in turn, and the median of the pairwise ratios.

    After a product OpenBLAS keeps a core busy for some 50 ms, waiting for the next; `rest` keeps that out of the other.
    """
    ours()
    bare()

    def rested(call: Callable[[], Any]) -> float:
        time.sleep(rest)
        return seconds(call)

    pairs = [(rested(ours), rested(bare)) for _ in range(repeats)]
    return {
        "ours_ms": 1e3 * statistics.median(a for a, _ in pairs),
        "bare_ms": 1e3 * statistics.median(b for _, b in pairs),
        "ratio": statistics.median(a / b for a, b in pairs),
    }


def coding(tiny: bool) -> Rows:
    """Encoding and decoding against a bare BLAS product of the same matrices: at most 1.15."""
    columns, repeats, rest = (1000, 2, 0.0) if tiny else (1_000_000, 15, 0.15)
    code = anyk.BerrutCode(workers=30, blocks=20)
    decoder = code.decoder(range(3, 27))
    rows = []
    for dtype in (np.float32, np.float64):
        rng = np.random.default_rng(0)
        blocks = rng.standard_normal((20, columns)).astype(dtype)
        replies = rng.standard_normal((24, columns)).astype(dtype)
        g, d = code.generator.astype(dtype), decoder.matrix.astype(dtype)
        pieces, separate = list(blocks), [reply.copy() for reply in replies]
        rows += [
            {"what": "encode", "dtype": dtype.__name__}
            | paired(lambda x=blocks: code.encode(x), lambda x=blocks, g=g: g @ x, repeats, rest),
            {"what": "decode", "dtype": dtype.__name__}
            | paired(lambda y=replies: decoder @ y, lambda y=replies, d=d: d @ y, repeats, rest),
            {"what": "encode a list of blocks", "dtype": dtype.__name__}
            | paired(lambda x=pieces: code.encode(x), lambda x=blocks, g=g: g @ x, repeats, rest),
            {"what": "decode a list of replies", "dtype": dtype.__name__}
            | paired(lambda y=separate: decoder @ y, lambda y=replies, d=d: d @ y, repeats, rest),
        ]
    return rows


def decoders(tiny: bool) -> Rows:
    """Building a decoder at 1,000 workers and 100 blocks: under 20 ms; then from the cache."""
    workers, blocks = (50, 5) if tiny else (1000, 100)
    rng = np.random.default_rng(0)
    rows = []
    for code, count in (
        (anyk.BerrutCode(workers, blocks), int(0.8 * workers)),
        (anyk.LagrangeCode(workers, blocks), int(0.8 * workers)),
        (anyk.LagrangeCode(workers, blocks), blocks),
        (anyk.RepetitionCode(workers, blocks), workers - 1),
    ):
        _ = code.generator
        sets = [rng.choice(workers, count, replace=False) for _ in range(3 if tiny else 15)]
        build = [seconds(lambda s=s, code=code: code.decoder(s)) for s in sets]
        again = [seconds(lambda s=s, code=code: code.decoder(s)) for s in sets]
        rows.append(
            {
                "code": type(code).__name__,
                "workers": workers,
                "blocks": blocks,
                "responders": count,
                "build_ms": 1e3 * statistics.median(build),
                "worst_ms": 1e3 * max(build),
                "cached_ms": 1e3 * statistics.median(again),
            }
        )
    return rows


def _pipe_worker(connection: Any) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    state: dict[str, Any] = {}
    while (task := connection.recv()) is not None:
        fn, args = task
        connection.send(fn(state, *args))


def add_one(state: dict[str, Any], x: Any) -> Any:
    return x + 1


def first(state: dict[str, Any], x: Any) -> Any:
    return float(x[0])


def make(state: dict[str, Any], n: int) -> Any:
    if state.get("n") != n:
        state["n"], state["made"] = n, np.ones(n)
    return state["made"]


class Pipes:
    """The same messages through bare pipes of the standard library, for comparison."""

    def __init__(self, n: int) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["numpy"])
        self.ends, self.processes = [], []
        for _ in range(n):
            ours, theirs = context.Pipe()
            process = context.Process(target=_pipe_worker, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self.ends.append(ours)
            self.processes.append(process)

    def tasks(self, fn: Any, arg: Any, count: int) -> None:
        """`count` tasks, one in flight per worker."""
        n, sent, got = len(self.ends), 0, 0
        for end in self.ends[: min(n, count)]:
            end.send((fn, (arg,)))
            sent += 1
        while got < count:
            for end in multiprocessing.connection.wait(self.ends):
                end.recv()
                got += 1
                if sent < count:
                    end.send((fn, (arg,)))
                    sent += 1

    def close(self) -> None:
        for end in self.ends:
            end.send(None)
        for process in self.processes:
            process.join()


def engine_tasks(workers: anyk.Workers, fn: Any, arg: Any, count: int) -> None:
    """`count` tasks, one in flight per worker, through the engine alone."""
    n, sent, got = len(workers), 0, 0
    job = workers.publish(fn)
    for worker in range(min(n, count)):
        workers.submit(worker, (0, worker), job, arg)
        sent += 1
    while got < count:
        for event in workers.poll(None):
            if event.kind == "joined":
                continue
            assert event.kind == "ok", event
            got += 1
            if sent < count:
                workers.submit(event.worker, (0, event.worker), job, arg)
                sent += 1


def rounds(tiny: bool) -> Rows:
    """Rounds of trivial tasks against bare pipes between the same number of processes: at most 2."""
    n, repeats = (3, 3) if tiny else (16, 300)
    pipes = Pipes(n)
    code = anyk.UncodedCode(n, n)
    x = np.arange(float(n))
    try:
        with anyk.LocalWorkers(n) as workers:
            rows = [
                {"what": f"{4 * n} tasks on {n} workers, engine"}
                | paired(
                    lambda: engine_tasks(workers, add_one, 1.0, 4 * n),
                    lambda: pipes.tasks(add_one, 1.0, 4 * n),
                    repeats,
                ),
                {"what": f"{n} tasks on {n} workers, engine"}
                | paired(lambda: engine_tasks(workers, add_one, 1.0, n), lambda: pipes.tasks(add_one, 1.0, n), repeats),
                {"what": f"anyk.map over {n} workers, whole round"}
                | paired(
                    lambda: anyk.map(abs, x, code=code, workers=workers), lambda: pipes.tasks(add_one, 1.0, n), repeats
                ),
            ]
            return rows
    finally:
        pipes.close()


def transport(tiny: bool) -> Rows:
    """Arrays to and from 4 workers at once, against plain memory copies of as many bytes: at least half the speed."""
    rows = []
    for megabytes in (0.1,) if tiny else (10, 100):
        count = int(megabytes * 1e6 / 8)
        array = np.ones(count)
        targets = [np.empty_like(array) for _ in range(4)]

        def copies(array: Any = array, targets: Any = targets) -> None:
            for target in targets:
                np.copyto(target, array)

        repeats = 3 if tiny else 15
        with anyk.LocalWorkers(4) as workers:
            to = paired(lambda w=workers, a=array: engine_tasks(w, first, a, 4), copies, repeats)
            back = paired(lambda w=workers, c=count: engine_tasks(w, make, c, 4), copies, repeats)
            shared = paired(lambda w=workers, a=array: broadcast(w, a), copies, repeats)
        for what, timing in (("to workers", to), ("back", back), ("broadcast", shared)):
            rows.append(
                {
                    "what": f"4 x {megabytes} MB {what}",
                    "GB/s": 4 * array.nbytes / timing["ours_ms"] / 1e6,
                    "copy GB/s": 4 * array.nbytes / timing["bare_ms"] / 1e6,
                    "speed of a copy": 1 / timing["ratio"],
                }
            )
    return rows


def broadcast(workers: anyk.Workers, array: Any) -> None:
    """One array to all workers."""
    shared = workers.publish(array)
    for worker in range(len(workers)):
        workers.submit(worker, (0, worker), first, shared)
    got = 0
    while got < len(workers):
        got += sum(event.kind == "ok" for event in workers.poll(None))


def start(tiny: bool) -> Rows:
    """From nothing to the first answer of each of 16 workers: under 2 s."""
    n, repeats = (2, 1) if tiny else (16, 7)

    def once() -> None:
        with anyk.LocalWorkers(n) as workers:
            engine_tasks(workers, add_one, 1.0, n)

    times = [seconds(once) for _ in range(repeats)]
    return [
        {"what": f"start, one round, stop, {n} workers", "median_s": statistics.median(times), "worst_s": max(times)}
    ]


def stragglers(tiny: bool) -> Rows:
    """30 workers of which 6 sleep 2 s: FirstK(24) returns within 0.2 s of the 24th answer; the next at once."""
    n, slow, k, sleep = (5, 1, 4, 0.2) if tiny else (30, 6, 24, 2.0)
    x = np.linspace(0, 1, 4 if tiny else 20)
    faults = {worker: anyk.Slow(sleep) for worker in np.random.default_rng(0).choice(n, slow, replace=False).tolist()}
    code, rows = anyk.BerrutCode(n, len(x)), []
    with anyk.LocalWorkers(n) as workers:
        anyk.map(np.cos, x, code=code, workers=workers, stop=anyk.All())
        for name, now in (("with stragglers", faults), ("the next, stragglers still busy", None)):
            begun = time.perf_counter()
            result = anyk.map(np.cos, x, code=code, workers=workers, stop=anyk.FirstK(k), faults=now)
            whole = time.perf_counter() - begun
            last = max(result.run.answered_at.values())
            rows.append({"round": name, "24th answer_s": last, "returned_s": whole, "after it_s": whole - last})
    return rows


def simulated(tiny: bool) -> Rows:
    """10,000 simulated workers, 100 blocks: a round in under 5 s."""
    n, blocks = (100, 10) if tiny else (10_000, 100)
    x = np.linspace(-1, 1, blocks)
    with anyk.SimulatedWorkers(n, latency=anyk.ShiftedExponential()) as workers:
        times = [seconds(lambda: anyk.map(np.tanh, x, workers=workers)) for _ in range(3)]
    return [{"workers": n, "blocks": blocks, "worst of 3 rounds_s": max(times)}]


BENCHMARKS = {
    each.__name__: each
    for each in (
        *(coding, decoders, rounds, transport, start, stragglers, simulated),
        *(gradients.amplification, gradients.weights, gradients.coded_round),
        *(linear.operator, linear.solver, scale.scale),
        *(engines.engines, engines.job, soak.soak, accuracy.papers, accuracy.varied),
    )
}


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return "-" if value != value else f"{value:.3g}"
    return str(value)


def table(rows: Rows) -> str:
    """GitHub-flavoured Markdown."""
    heads = list(rows[0])
    cells = [[_cell(row[head]) for head in heads] for row in rows]
    lines = [heads, ["---"] * len(heads), *cells]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[*BENCHMARKS, []], help="default: all")
    parser.add_argument("--tiny", action="store_true", help="smoke run")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    found = {name: BENCHMARKS[name](options.tiny) for name in options.names or BENCHMARKS}
    for name, rows in found.items():
        print(f"\n### {name}\n\n{BENCHMARKS[name].__doc__}\n\n{table(rows)}", flush=True)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
