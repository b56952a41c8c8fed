"""What gradient codes promise, measured; run by benchmarks/run.py."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import statistics
import time
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

import anyk
from anyk.training import Network, Training, _partial, partition_samples

Rows = list[dict[str, Any]]


def straggler_sets(n: int, missing: int, count: int, rng: np.random.Generator) -> list[Any]:
    """Who answers: `count` random sets, and those that miss neighbours."""
    gone = [rng.choice(n, missing, replace=False) for _ in range(count)]
    gone += [(first + np.arange(missing)) % n for first in range(0, n, max(1, n // count))]
    return [np.setdiff1d(np.arange(n), each) for each in gone]


def amplification(tiny: bool) -> Rows:
    """Largest row norm of the decoding matrix and error of a sum, over random and contiguous straggler sets."""
    count = 5 if tiny else 200
    cases = [
        (20, 6, 3, 0, "cyclic"),
        (50, 10, 5, 0, "cyclic"),
        (50, 11, 10, 0, "cyclic"),
        (100, 12, 6, 2, "cyclic"),
        (100, 12, 6, 2, "random"),
        (400, 20, 10, 0, "random"),
        (1000, 16, 8, 0, "cyclic"),
        (10_000, 16, 8, 0, "cyclic"),
    ]
    rows = []
    for n, r, s, a, kind in cases[: 2 if tiny else None]:
        place = anyk.cyclic_placement if kind == "cyclic" else anyk.random_placement
        begun = time.perf_counter()
        code: anyk.GradientCode = anyk.NullSpaceCode(place(n, n, r), s, a)
        _ = code.components
        rows.append(measured(code, f"{n}, {r}, {s}, {a}, {kind}", count, time.perf_counter() - begun))
    for n, r, s, a in ((100, 20, 4, 3), (1000, 20, 4, 3), (100, 10, 5, 0))[: 1 if tiny else None]:
        begun = time.perf_counter()
        code = anyk.GroupCode(n, n, r, s, a)
        _ = code.components
        rows.append(measured(code, f"{n}, {r}, {s}, {a}, groups", count, time.perf_counter() - begun))
    return rows


def measured(code: anyk.GradientCode, name: str, count: int, build: float) -> dict[str, Any]:
    rng = np.random.default_rng(7)
    n, missing = code.workers, code.stragglers + code.adversaries
    gradients = rng.standard_normal((code.partitions, 4 * code.chunks))
    truth, messages = gradients.sum(axis=0), code.encode(gradients)
    single = messages.astype(np.float32).astype(np.float64)
    loud, double, float32 = [], [], []
    for responders in straggler_sets(n, missing, count if n < 10_000 else 10, rng):
        matrix = code._decode(responders, None)
        loud.append(float(np.linalg.norm(matrix, axis=1).max()))
        for found, sent in ((double, messages), (float32, single)):
            total = (matrix @ sent[responders]).ravel()
            found.append(float(np.linalg.norm(total - truth) / np.linalg.norm(truth)))
    return {
        "N=K, r, s, a, placement": name,
        "code": type(code).__name__,
        "build_s": build,
        "amplification, median": statistics.median(loud),
        "worst": max(loud),
        "worst error": max(double),
        "with float32 messages": max(float32),
    }


def weights(tiny: bool) -> Rows:
    """Decoding weights for a responder set not seen before (under 2 ms), and applying them against a bare product."""
    rows = []
    for n, r, s in ((30, 8, 3),) if tiny else ((100, 12, 4), (1000, 16, 8)):
        code = anyk.NullSpaceCode(anyk.cyclic_placement(n, n, r), s)
        _ = code.components
        rng = np.random.default_rng(0)
        sets = [np.sort(rng.permutation(n)[: n - s]) for _ in range(5 if tiny else 50)]
        spent = []
        for responders in sets:
            begun = time.perf_counter()
            code.decoder(responders)
            spent.append(time.perf_counter() - begun)
        width = 1000 if tiny else 40_000_000 // n
        decoder = code.decoder(sets[0])
        for dtype in (np.float64, np.float32):
            replies = rng.standard_normal((n - s, width)).astype(dtype)
            separate = [row.copy() for row in replies]
            leaf = anyk.blocks.Leaf(separate, (width,), np.dtype(dtype), separate[0])
            out, plain = np.empty((code.chunks, width)), np.empty((code.chunks, width), dtype)
            weights = decoder.matrix.astype(dtype)
            spent_on: dict[str, list[float]] = {"bare": [], "array": [], "list": []}
            ways = {
                "bare": lambda w=weights, r=replies, o=plain: np.matmul(w, r, out=o),
                "array": lambda d=decoder, r=replies: d @ r,
                "list": lambda d=decoder, f=leaf, o=out: anyk.blocks.apply(d.matrix, f, o, double=True),
            }
            for _ in range(3 if tiny else 9):
                for name, way in ways.items():
                    begun = time.perf_counter()
                    way()
                    spent_on[name].append(time.perf_counter() - begun)
                    time.sleep(0 if tiny else 0.1)  # BLAS threads spin for a while
            bare = spent_on["bare"]
            rows.append(
                {
                    "workers": n,
                    "chunks": code.chunks,
                    "weights_ms": 1e3 * statistics.median(spent),
                    "messages": np.dtype(dtype).name,
                    "bare_ms": 1e3 * statistics.median(bare),
                    "speed, one array": statistics.median(b / o for b, o in zip(bare, spent_on["array"], strict=True)),
                    "speed, separate": statistics.median(b / o for b, o in zip(bare, spent_on["list"], strict=True)),
                }
            )
    return rows


def _gradient_worker(connection: Any, partitions: Any, network: Network) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    idle = np.random.default_rng()
    with threadpool_limits(1):
        while (args := connection.recv()) is not None:
            total: Any = 0.0
            for partition in partitions:
                value = _partial(partition, network, *args, rng=idle)
                total = total + np.concatenate([g.ravel() for g in value["gradient"]])
            connection.send(total)


def coded_round(tiny: bool) -> Rows:
    """A round of coded gradients on processes against the same gradients through bare pipes: at most 1.3."""
    sizes = [(200, (64, 32, 10)), (2000, (64, 256, 10)), (2000, (64, 2048, 10))]
    return [_coded_round(*size, *((3, 2, 3) if tiny else (8, 4, 60))) for size in sizes[: 1 if tiny else None]]


def _coded_round(samples: int, layers: tuple[int, ...], n: int, copies: int, repeats: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    network = Network(layers)
    x, labels = rng.standard_normal((samples, 64)), rng.integers(0, 10, samples)
    code = anyk.NullSpaceCode(anyk.cyclic_placement(n, n, copies), stragglers=0, adversaries=0)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["numpy", "scipy.sparse", "anyk"])
    with anyk.LocalWorkers(n) as workers:
        job = Training(network, x, labels, partition_samples(labels, n), code, workers)
        ends, processes = [], []
        for worker in range(n):
            ours, theirs = context.Pipe()
            held = [job._parts[k] for k in np.flatnonzero(code.placement[worker])]
            process = context.Process(target=_gradient_worker, args=(theirs, held, network), daemon=True)
            process.start()
            ends.append(ours)
            processes.append(process)

        def bare() -> Any:
            for end in ends:
                end.send((job.weights, 0))
            return np.sum([end.recv() for end in ends], axis=0)

        def coded() -> Any:
            return anyk.sum(_partial, job._parts, code, workers, args=(network, job.weights, 0), rng=0)

        bare()
        coded()
        pairs = []
        for _ in range(repeats):
            begun = time.perf_counter()
            coded()
            middle = time.perf_counter()
            bare()
            pairs.append((middle - begun, time.perf_counter() - middle))
        for end in ends:
            end.send(None)
        for process in processes:
            process.join()
    return {
        "samples": samples,
        "parameters": sum(w.size for w in job.weights),
        "workers": n,
        "copies": copies,
        "coded_ms": 1e3 * statistics.median(a for a, _ in pairs),
        "bare_ms": 1e3 * statistics.median(b for _, b in pairs),
        "ratio": statistics.median(a / b for a, b in pairs),
    }
