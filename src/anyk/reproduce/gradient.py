"""Paper 2's trade-off and its approximate codes, and training on coded gradients (papers 1 and 2)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..codes import (
    BerrutCode,
    BerrutGradientCode,
    CyclicCode,
    FractionalRepetitionCode,
    GradientCode,
    GraphCode,
    GroupCode,
    IgnoreStragglersCode,
    NullSpaceCode,
    UniversalPolynomialCode,
)
from ..codes.base import DataCode
from ..codes.gradient import join_chunks
from ..errors import ApproximationWarning
from ..locate import locate
from ..placement import Placement, cyclic_placement, minimum_communication
from ..runtime import FirstK, LocalWorkers, ShiftedExponential, SimulatedWorkers, Slow, Workers
from ..training import Network, Training, partition_samples
from .table import Table

__all__ = ["FIGURES", "gradient_approximation", "gradient_tradeoff", "training"]


def irregular_placement(workers: int, partitions: int, replicas: int, rng: np.random.Generator) -> Placement:
    """Each partition on at least `replicas` random workers, and up to a quarter of the rest more."""
    matrix = np.zeros((workers, partitions), np.bool_)
    for partition in range(partitions):
        copies = replicas + int(rng.integers(0, (workers - replicas) // 4 + 1)) * (partition > 0)
        matrix[rng.choice(workers, copies, replace=False), partition] = True
    return matrix


def gradient_tradeoff(seed: int = 0, trials: int = 20) -> Table:
    """Theorem 1: numbers per message against stragglers and adversaries, each checked by decoding with liars."""
    rng = np.random.default_rng(seed)
    n, d, rows = 20, 2520, []
    for r, a in ((6, 0), (6, 1), (10, 0), (10, 2), (14, 0), (14, 3)):
        placement = irregular_placement(n, 30, r, rng)
        for s in range(0, r - 2 * a, 1 if r < 10 else 2):
            code = NullSpaceCode(placement, stragglers=s, adversaries=a)
            worst, found, length = 0.0, 0, 0
            for _ in range(trials):
                gradients = rng.standard_normal((30, d))
                messages = code.encode(gradients)
                length = messages.shape[1]
                responders = np.sort(rng.permutation(n)[: n - s])
                liars = rng.choice(responders, a, replace=False)
                messages[liars] += rng.standard_normal((a, length))
                located = locate(code, messages[responders], responders)
                found += located == sorted(liars.tolist())
                honest = [worker for worker in responders.tolist() if worker not in located]
                total = join_chunks(code.decoder(honest) @ messages[honest], d)
                truth = gradients.sum(axis=0)
                worst = max(worst, float(np.linalg.norm(total - truth) / np.linalg.norm(truth)))
            rows.append(
                {
                    "r": r,
                    "a": a,
                    "s": s,
                    "message / gradient": length / d,
                    "1/(r-s-2a)": minimum_communication(placement, d, s, a) / d,
                    "worst error": worst,
                    "liars located": found / trials,
                }
            )
    return Table(
        "gradient-tradeoff",
        "Message length against stragglers: irregular random placements, 20 workers, 30 partitions",
        rows,
        (f"Each point decoded {trials} times from random responders, a of them lying.",),
        x="s",
        y="message / gradient",
        by=("r", "a"),
    )


def gradient_approximation(seed: int = 0, trials: int = 200) -> Table:
    """Section V: error of approximate sums against stragglers, its codes and the literature's."""
    n, rows = 60, []
    wide = cyclic_placement(20, 20, 18)
    narrow = cyclic_placement(20, 20, 5)
    cases: list[tuple[str, Callable[[int], GradientCode], tuple[int, ...]]] = [
        ("fractional, r=3", lambda s: FractionalRepetitionCode(n, n, 2), (6, 12, 18, 30)),
        ("random regular, r=3", lambda s: GraphCode(n, n, 3, s, rng=seed), (6, 12, 18, 30)),
        ("Bernoulli, r=3", lambda s: GraphCode(n, n, 3, s, graph="bernoulli", rng=seed), (6, 12, 18, 30)),
        ("graph, 3-regular", lambda s: GraphCode(n, 40, 3, s, graph="edges", rng=seed), (6, 12, 18, 30)),
        ("random regular, r=3, fixed", lambda s: GraphCode(n, n, 3, s, weights="fixed", rng=seed), (6, 12, 18, 30)),
        ("ignore, r=1", lambda s: IgnoreStragglersCode(n, n, s), (6, 12, 18, 30)),
    ]
    for name, placement in (("r=18 of 20", wide), ("r=5 of 20", narrow)):
        for decoder in ("least-squares", "berrut"):
            cases += [
                (
                    f"universal, {name}, {decoder}",
                    lambda s, p=placement, w=decoder: UniversalPolynomialCode(p, s, chunks=1, decoder=w),  # type: ignore[misc]
                    (2, 4, 6, 10),
                ),
                (
                    f"Berrut, {name}, {decoder}",
                    lambda s, p=placement, w=decoder: BerrutGradientCode(p, 1, s, decoder=w),  # type: ignore[misc]
                    (2, 4, 6, 10),
                ),
            ]
    for name, make, stragglers in cases:
        for s in stragglers:
            code, rng = make(s), np.random.default_rng(seed)
            errors = np.empty(trials)
            for trial in range(trials):
                responders = np.sort(rng.permutation(code.workers)[: code.workers - s])
                errors[trial] = code.decoder(responders).residual ** 2 / code.partitions / code.chunks
            rows.append({"code": name, "s": s, "mean": float(errors.mean()), "median": float(np.median(errors))})
    return Table(
        "gradient-approximation",
        "Approximate sums: mean square error for unlike gradients, over that of sending nothing",
        rows,
        (
            "Known without data: ||D G - T||^2 / K. More than 1 is worse than sending nothing.",
            "N = 60 for the graphs, 20 for section V's codes; graph, 3-regular: 60 edges between 40 partitions.",
        ),
        x="s",
        y="median",
        by=("code",),
    )


_SLOWER = 10.0  # how much slower a straggler is
_STRAGGLERS = 4


def _digits() -> tuple[NDArray[Any], ...]:
    try:
        from sklearn.datasets import load_digits
    except ImportError as missing:
        raise ImportError(f"{missing}: pip install 'anyk[demo]'") from None
    x, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    x, labels = x[order] / 16, labels[order]
    return x[:1400], labels[:1400], x[1400:], labels[1400:]


def _strategies() -> list[tuple[str, GradientCode | DataCode, Any]]:
    """Name, code, stop rule; 20 workers, 4 stragglers."""
    n, s = 20, _STRAGGLERS
    return [
        ("wait for all", IgnoreStragglersCode(n, n, 0), None),
        ("ignore stragglers", IgnoreStragglersCode(n, n, s), FirstK(n - s)),
        ("fractional repetition", FractionalRepetitionCode(n, n, s), None),
        ("cyclic", CyclicCode(n, s), None),
        ("null space", NullSpaceCode(cyclic_placement(n, n, s + 1), s), None),
        ("groups, one liar", GroupCode(n, n, replicas=10, stragglers=s, adversaries=1), None),
        ("BACC", BerrutCode(n, 10), FirstK(n - s)),
    ]


def _load(code: GradientCode | DataCode) -> float:
    """Work of a worker in a round, in twentieths of the data."""
    return 20 / code.blocks if isinstance(code, DataCode) else float(code.placement.sum(axis=1).max())


def _faults(persistent: bool, seconds: float, seed: int) -> Iterator[Mapping[int, Slow]]:
    rng = np.random.default_rng(seed)
    while True:
        chosen = np.arange(_STRAGGLERS) if persistent else rng.choice(20, _STRAGGLERS, replace=False)
        yield {int(worker): Slow(seconds) for worker in chosen}


def training(seed: int = 0, trials: int = 120, real: int = 20) -> Table:
    """Time to accuracy of a network on digits, ways to cope with stragglers side by side.

    Parameters
    ----------
    seed : int
    trials : int
        Rounds of training on the virtual clock.
    real : int
        Rounds on local processes, where four workers sleep; 0 for none.
    """
    x, labels, test_x, test_labels = _digits()
    network = Network((64, 32, 10))
    targets = np.eye(10)[labels]
    rows: list[dict[str, Any]] = []

    def run(
        name: str, code: Any, stop: Any, skew: str, persistent: bool, workers: Workers, delay: float, rounds: int
    ) -> Any:
        count = code.blocks if isinstance(code, DataCode) else code.partitions
        parts = partition_samples(labels, count, skew, seed)  # type: ignore[arg-type]
        job = Training(network, x, labels, parts, code, workers, rate=0.3, momentum=0.9, batch=0, seed=seed)
        clock, losses, accuracies, times = 0.0, [], [], []
        late = _faults(persistent, delay, seed)
        for _ in range(rounds):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ApproximationWarning)  # how coarse it is, is what the table tells
                clock += job.step(stop, next(late)).run.seconds
            losses.append(network.gradient(x, targets, job.weights)[0])
            accuracies.append(network.accuracy(test_x, test_labels, job.weights))
            times.append(clock)
        return np.array(times), np.array(losses), np.array(accuracies)

    for engine, rounds in (("virtual clock", trials), ("processes", real)):
        for skew in ("iid", "by-class"):
            for persistent in (False, True):
                if not rounds:
                    continue
                target: tuple[float, float, float] | None = None
                for name, code, stop in _strategies():
                    load = _load(code)
                    if engine == "processes":
                        workers: Any = LocalWorkers(20)
                        delay = 0.1
                    else:
                        latency = ShiftedExponential(shift=0.05 + 0.05 * load, scale=0.2)
                        workers = SimulatedWorkers(20, latency=latency, seed=seed)
                        delay = _SLOWER * (0.05 + 0.05 + 0.2)
                    with workers:
                        times, losses, accuracies = run(name, code, stop, skew, persistent, workers, delay, rounds)
                    if target is None:
                        target = float(accuracies[-1]) - 0.002, float(losses[-1]) * 1.01, float(times[-1])
                    reached = np.flatnonzero(accuracies >= target[0])
                    learned = np.flatnonzero(losses <= target[1])
                    drawn = engine == "virtual clock" and skew == "by-class" and persistent
                    points = zip(times, 1 - accuracies, strict=True) if drawn else [(None, None)]
                    summary = {
                        "clock": engine,
                        "partitions": skew,
                        "stragglers": "persistent" if persistent else "random",
                        "strategy": name,
                        "accuracy": float(accuracies[-1]),
                        "loss": float(losses[-1]),
                        "seconds": float(times[-1]),
                        "of wait for all": float(times[-1]) / target[2],
                        "seconds to accuracy": float(times[reached[0]]) if len(reached) else math.nan,
                        "seconds to loss": float(times[learned[0]]) if len(learned) else math.nan,
                        "work": load,
                    }
                    rows += [summary | {"time": at, "test error": error} for at, error in points]
    return Table(
        "training",
        f"Digits, network 64-32-10, 20 workers, 4 stragglers, {trials} rounds",
        rows,
        (
            "To accuracy: within 0.2 points of where waiting for all ends; to loss: within 1 % of it. '-': never.",
            "Virtual clock: a task takes 0.05 + 0.05 work + exponential(0.2) s, stragglers 3 s more; processes: 0.1 s.",
            "Persistent stragglers are neighbours, like a slow rack: by class, they hold two of the ten classes.",
            "Work: twentieths of the data that a worker goes through in a round.",
            "Picture: by class, persistent stragglers, virtual seconds.",
        ),
        x="time",
        y="test error",
        by=("strategy",),
        hidden=("time", "test error"),
    )


FIGURES: dict[str, Callable[..., Table]] = {
    "gradient-tradeoff": gradient_tradeoff,
    "gradient-approximation": gradient_approximation,
    "training": training,
}
