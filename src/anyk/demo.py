"""The main job on real data: a classifier and a physics sweep on 30 processes, some of them slow, hung or killed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .codes import BerrutCode, RepetitionCode, UncodedCode
from .codes.base import DataCode
from .errors import TooFewResponders
from .mapping import map as coded_map
from .ordering import path_order
from .plots import curves, save, timeline
from .runtime import All, Crash, Deadline, FirstK, Hang, LocalWorkers, Slow, Sufficient
from .runtime.events import Run
from .runtime.faults import Fault
from .runtime.stop import StopRule

__all__ = ["faults_for", "run_demo", "sweep"]

WORKERS, BLOCKS, FASTEST = 30, 15, 24
Array = NDArray[Any]
Echo = Callable[[str], None]


def sweep(viscosity: float) -> Array:
    """A van der Pol oscillator for one damping parameter: 200 samples of its position; solved by SciPy."""
    from scipy.integrate import solve_ivp

    mu = float(viscosity)
    times = np.linspace(0, 6, 200)
    solution = solve_ivp(
        lambda t, y: [y[1], mu * (1 - y[0] ** 2) * y[1] - y[0]],
        (0, 6),
        [2.0, 0.0],
        t_eval=times,
        rtol=1e-12,
        atol=1e-12,
    )
    return np.asarray(solution.y[0])


def _digits(seed: int) -> tuple[Callable[[Array], Array], Array, Array]:
    """A classifier trained on scikit-learn's digits, and held-out images (blocks, images, 64) with their labels.

    The images lie along a short path and neighbours go into the same place of different blocks, so that a coded batch
    mixes images that look alike.
    """
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
    from sklearn.neural_network import MLPClassifier

    x, y = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(x / 16.0, y, test_size=600, random_state=seed, stratify=y)
    model = MLPClassifier((64,), max_iter=200, tol=1e-3, random_state=seed).fit(x_train, y_train)
    weights = list(zip(model.coefs_, model.intercepts_, strict=True))

    def logits(images: Array) -> Array:
        hidden = images
        for layer, (coefficients, intercept) in enumerate(weights):
            hidden = hidden @ coefficients + intercept
            if layer < len(weights) - 1:
                hidden = np.maximum(hidden, 0)
        return np.asarray(hidden)

    order = path_order(x_test)
    groups = len(order) // BLOCKS
    index = order[: groups * BLOCKS].reshape(groups, BLOCKS).T
    return logits, x_test[index], y_test[index]


def faults_for(seed: int) -> dict[int, Fault]:
    """Three slow workers, one that hangs and one that is killed in mid-task: the same for every competitor."""
    chosen = np.random.default_rng(seed).choice(WORKERS, 5, replace=False).tolist()
    kinds: list[Fault] = [Slow(2.0), Slow(2.5), Slow(3.0), Hang(), Crash(after=0.05)]
    return dict(zip(chosen, kinds, strict=True))


def _compete(
    workers: LocalWorkers,
    fn: Callable[[Any], Any],
    blocks: Any,
    code: DataCode,
    stop: StopRule,
    faults: dict[int, Fault],
) -> tuple[Any, float, int, Run]:
    """One competitor: value, seconds and workers waited for. What is missing at the end is worked on again."""
    begun = time.perf_counter()
    try:
        result = coded_map(fn, blocks, code=code, workers=workers, stop=stop, faults=faults)
        return result.value, time.perf_counter() - begun, len(result.run.responders), result.run
    except TooFewResponders as short:
        run: Run = short.run
        have = {worker % code.blocks: reply for worker, reply in short.arrived.items()}
        missing = [block for block in range(code.blocks) if block not in have]
        # The hung worker is still busy; put the missing blocks on workers that answered.
        for worker in (*run.stragglers, *run.skipped):
            workers.drop(worker)
        again = coded_map(fn, blocks[missing], code=UncodedCode(len(missing), len(missing)), workers=workers)
        value = np.stack([have[b] if b in have else again.value[missing.index(b)] for b in range(code.blocks)])
        return value, time.perf_counter() - begun, len(run.responders) + len(missing), run


def run_demo(output: Path | str, seed: int = 0, echo: Echo = lambda line: None) -> list[dict[str, Any]]:
    """Run all competitors on both jobs and write timeline.png, error_vs_responders.png and demo.json.

    Parameters
    ----------
    output : directory, created if need be
    seed : int
        For the split of the data, the training and the choice of the faulty workers.
    echo : callable
        Receives a line of text now and then.

    Returns
    -------
    list of records: job, method, how many of the workers in use were faulty, seconds, workers waited for, relative
    error, and for the classifier agreement with the uncoded model and accuracy.
    """
    folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    echo("training a classifier on scikit-learn's digits ...")
    logits, images, labels = _digits(seed)
    parameters = np.linspace(0.5, 1.5, BLOCKS)
    jobs: dict[str, tuple[Callable[[Any], Any], Array]] = {
        "van der Pol sweep": (sweep, parameters),
        "digits classifier": (logits, images),
    }
    competitors: dict[str, tuple[DataCode, StopRule]] = {
        "wait for all (rerun after 5 s)": (UncodedCode(WORKERS, BLOCKS), Sufficient() | Deadline(5.0)),
        "repetition, 2 copies": (RepetitionCode(WORKERS, BLOCKS), Sufficient() | Deadline(5.0)),
        f"Berrut code, first {FASTEST}": (BerrutCode(WORKERS, BLOCKS), FirstK(FASTEST)),
    }
    records: list[dict[str, Any]] = []
    faults = faults_for(seed)
    with LocalWorkers(WORKERS, preload=["anyk.demo", "scipy.integrate"]) as workers:
        truths = {job: np.stack([fn(block) for block in blocks]) for job, (fn, blocks) in jobs.items()}
        for job, (fn, blocks) in jobs.items():
            truth = truths[job]
            for method, (code, stop) in competitors.items():
                echo(f"{job}: {method} ...")
                value, seconds, waited, run = _compete(workers, fn, blocks, code, stop, faults)
                record: dict[str, Any] = {
                    "job": job,
                    "method": method,
                    "faulty_workers": f"{len(set(faults).intersection(code.active))} of {len(code.active)}",
                    "seconds": seconds,
                    "workers_waited_for": waited,
                    "relative_error": float(np.linalg.norm(value - truth) / np.linalg.norm(truth)),
                    "agreement": None,
                    "accuracy": None,
                }
                if fn is logits:
                    answers = value.argmax(axis=-1)
                    record["agreement"] = float((answers == truth.argmax(axis=-1)).mean())
                    record["accuracy"] = float((answers == labels).mean())
                records.append(record)
                for worker in (*run.stragglers, *run.skipped):  # a clean start for the next competitor
                    workers.drop(worker)
                if isinstance(code, BerrutCode) and fn is sweep:
                    title = f"{len(run.responders)} of {WORKERS} processes answered in time; the rest were not needed"
                    save(timeline(run, title=title), folder / "timeline.png")
        save(_error_curves(workers, jobs, truths, seed), folder / "error_vs_responders.png")
    (folder / "demo.json").write_text(json.dumps({"seed": seed, "records": records}, indent=1))
    return records


def _error_curves(
    workers: LocalWorkers,
    jobs: dict[str, tuple[Callable[[Any], Any], Array]],
    truths: dict[str, Array],
    seed: int,
) -> Any:
    """Median error against the number of responders, from one full round of each job."""
    rng = np.random.default_rng(seed)
    lines = {}
    for job, (fn, blocks) in jobs.items():
        truth = truths[job]
        code = BerrutCode(WORKERS, BLOCKS)
        coded = code.encode(blocks)  # the blocks lie along a path already
        replies = coded_map(fn, coded, code=UncodedCode(WORKERS, WORKERS), workers=workers, stop=All()).value
        counts = list(range(4, WORKERS + 1, 2))
        errors = []
        for count in counts:
            sets = [np.sort(rng.choice(WORKERS, count, replace=False)).tolist() for _ in range(40)]
            errors.append(
                np.median([np.linalg.norm(code.decoder(s) @ replies[s] - truth) for s in sets]) / np.linalg.norm(truth)
            )
        lines[job] = (counts, errors)
    return curves(
        lines, xlabel=f"workers that answered, of {WORKERS}", ylabel="relative error (median of 40 sets)",
        title=f"Berrut's code, {BLOCKS} blocks: more answers, smaller error",
    )  # fmt: skip
