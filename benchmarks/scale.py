"""Rounds of 100,000 simulated workers, each in a fresh process: seconds, and peak memory with the libraries."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from typing import Any

import numpy as np

import anyk

Rows = list[dict[str, Any]]


def one_map(workers: int, blocks: int) -> float:
    """One round of BerrutCode; the error."""
    x = np.linspace(-1, 1, blocks)
    with anyk.SimulatedWorkers(workers, anyk.ShiftedExponential()) as engine:
        result = anyk.map(np.tanh, x, code=anyk.BerrutCode(workers, blocks), workers=engine)
    return float(np.abs(result.value - np.tanh(x)).max())


def sums_of_groups(groups: int, workers: int) -> float:
    """A sum over groups of workers that each hold eight partitions, four stragglers a group; the relative error."""
    code = anyk.NullSpaceCode(anyk.cyclic_placement(workers, workers, min(8, workers)), stragglers=min(4, workers - 1))
    data = np.random.default_rng(0).standard_normal((groups, workers, 16))
    total = 0.0
    for group in range(groups):  # one code serves them all: the whole is block diagonal
        with anyk.SimulatedWorkers(workers, anyk.ShiftedExponential(), seed=group) as engine:
            total = total + anyk.sum(np.square, data[group], code, engine).value
    truth = (data**2).sum(axis=(0, 1))
    return float(np.abs(total / truth - 1).max())


def scale(tiny: bool) -> Rows:
    """100,000 simulated workers, one round each: under 60 s and 4 GiB."""
    cases = [
        ("map, 100 blocks, BerrutCode", one_map, (10, 10) if tiny else (10_000, 100)),
        ("map, 100 blocks, BerrutCode", one_map, (100, 10) if tiny else (100_000, 100)),
        ("sums of 100 groups, NullSpaceCode", sums_of_groups, (2, 10) if tiny else (100, 1000)),
    ]
    return [measured(what, job.__name__, sizes) for what, job, sizes in cases]


def measured(what: str, job: str, sizes: tuple[int, int]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, __file__, job, *map(str, sizes)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    workers = sizes[0] if job == "one_map" else sizes[0] * sizes[1]
    return {"what": what, "workers": workers, **json.loads(done.stdout)}


if __name__ == "__main__":
    begun = time.perf_counter()
    error = globals()[sys.argv[1]](*map(int, sys.argv[2:]))
    unit = 2**30 if sys.platform == "darwin" else 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
    print(json.dumps({"seconds": time.perf_counter() - begun, "peak_GiB": peak, "error": error}))
