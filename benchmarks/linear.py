"""Linear algebra on workers: products at memory bandwidth, and a solver among stragglers; called by run.py."""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import cg

import anyk

Rows = list[dict[str, Any]]


def operator(tiny: bool) -> Rows:
    """A dense product when nobody straggles, 16 workers: at most 1.3 times the same split without a code."""
    shape, repeats = ((160, 100), 2) if tiny else ((12000, 8000), 25)
    rng = np.random.default_rng(0)
    matrix, x = rng.standard_normal(shape), rng.standard_normal(shape[1])
    codes: list[anyk.DataCode] = [
        anyk.SystematicMDSCode(16, 14),
        anyk.SystematicMDSCode(16, 12),
        anyk.GaussianFrameCode(16, 12),
    ]
    rows = []
    with anyk.LocalWorkers(16) as workers:
        plain = anyk.CodedOperator(matrix, anyk.UncodedCode(16, 16), workers)
        for code in codes:
            coded = anyk.CodedOperator(matrix, code, workers)
            times = []
            for _ in range(repeats + 1):
                each = []
                for call in (coded.matvec, plain.matvec, matrix.dot):
                    time.sleep(0.0 if tiny else 0.2)  # OpenBLAS keeps cores busy for a while after a product, waiting
                    begun = time.perf_counter()
                    call(x)
                    each.append(time.perf_counter() - begun)
                times.append(each)
            a, b, c = np.array(times[1:]).T
            rows.append(
                {
                    "code": f"{type(code).__name__}({code.workers}, {code.blocks})",
                    "matrix_MB": matrix.nbytes / 1e6,
                    "coded_ms": 1e3 * statistics.median(a),
                    "uncoded_ms": 1e3 * statistics.median(b),
                    "local_ms": 1e3 * statistics.median(c),
                    "ratio": float(np.median(a / b)),
                    "of local": float(np.median(a / c)),
                }
            )
    return rows


def solver(tiny: bool) -> Rows:
    """cg on a sparse Poisson matrix, 16 workers, 4 random stragglers a round: time a round, over waiting for all."""
    side, delays = (12, (0.01,)) if tiny else (100, (0.05, 0.1, 0.2, 0.5))
    line = sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(side, side))
    one = sparse.eye_array(side)
    matrix = sparse.csr_array(sparse.kron(line, one) + sparse.kron(one, line))
    b = np.random.default_rng(0).standard_normal(side * side)
    alone, iterations = _solve(matrix, b)
    rows = []
    for delay in delays:
        waiting = _round(matrix, b, anyk.UncodedCode(16, 16), delay, 3 if tiny else 25)[0]
        for blocks in (12, 8):
            seconds, x, count = _round(matrix, b, anyk.SystematicMDSCode(16, blocks), delay, None)
            rows.append(
                {
                    "delay_s": delay,
                    "blocks": blocks,
                    "iterations": count,
                    "scipy alone": iterations,
                    "difference": float(np.linalg.norm(x - alone) / np.linalg.norm(alone)) or 1e-17,
                    "round_ms": 1e3 * seconds,
                    "waiting_ms": 1e3 * waiting,
                    "ratio": seconds / waiting,
                }
            )
    return rows


def _solve(operator: Any, b: Any, most: int | None = None) -> tuple[Any, int]:
    count = [0]

    def note(_: Any) -> None:
        count[0] += 1

    return cg(operator, b, rtol=1e-10, maxiter=most, callback=note)[0], count[0]


def _round(matrix: Any, b: Any, code: anyk.DataCode, delay: float, most: int | None) -> tuple[float, Any, int]:
    """Seconds an iteration takes, the solution, and the number of iterations."""
    rng = np.random.default_rng(0)
    table = {(int(w), r): anyk.Slow(delay) for r in range(600) for w in rng.choice(16, 4, replace=False)}
    with anyk.LocalWorkers(16) as workers:
        coded = anyk.CodedOperator(matrix, code, anyk.FaultyWorkers(workers, table))
        begun = time.perf_counter()
        x, count = _solve(coded, b, most)
        return (time.perf_counter() - begun) / count, x, count
