"""Approximate codes side by side: median errors on the settings of paper 1, and on thirty varied functions."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

import anyk

Array = NDArray[np.float64]
Rows = list[dict[str, Any]]
Function = Callable[[Array], Array]


def codes(workers: int, blocks: int) -> dict[str, Any]:
    return {
        "Berrut": anyk.BerrutCode(workers, blocks),
        "spline": anyk.SplineCode(workers, blocks),
        "spline, cubic": anyk.SplineCode(workers, blocks, degree=3, smoothing=0),
        "spline, quintic": anyk.SplineCode(workers, blocks, degree=5, smoothing=0),
    }


def error(code: Any, fn: Function, blocks: Array, stragglers: int, rng: np.random.Generator) -> float:
    """||estimate - truth|| / ||truth|| without some random workers."""
    replies, truth = fn(code.encode(blocks)), fn(blocks)
    asked = np.sort(rng.choice(code.workers, code.workers - stragglers, replace=False))
    estimate = code.decoder(asked, list(replies[asked])) @ replies[asked]
    return float(np.linalg.norm(estimate - truth) / np.linalg.norm(truth))


def polynomial(degree: int) -> Callable[[np.random.Generator], Function]:
    return lambda rng: (lambda c: lambda x: np.polynomial.polynomial.polyval(x, c))(rng.standard_normal(degree + 1))


def papers(tiny: bool) -> Rows:
    """Paper 1's settings, inputs sorted, against its code: at least 1,000 times (Fig. 2), 50 (Fig. 5), 15 (Fig. 4)."""
    wave = lambda rng: lambda x: x * np.sin(x)  # noqa: E731
    settings = [
        ("Fig. 2, degree 25", 500, 20, polynomial(25), 1.0, (0, 100, 200, 300)),
        ("Fig. 4, x sin x to 12", 60, 20, wave, 12.0, (0, 10, 20)),
        ("Fig. 5, x sin x", 250, 20, wave, 1.0, (50, 100, 200)),
    ]
    rows: Rows = []
    for name, n, k, family, reach, missing in settings:
        for s in missing:
            found: dict[str, list[float]] = {}
            for trial in range(3 if tiny else 100):
                rng = np.random.default_rng([trial, s])
                fn, x = family(rng), np.sort(rng.uniform(-reach, reach, k))[::-1].copy()
                if reach > 1:
                    x = np.linspace(reach, -reach, k)
                for label, code in codes(n + 1, k).items():
                    found.setdefault(label, []).append(error(code, fn, x, s, np.random.default_rng([trial, s])))
            medians = {label: float(np.median(errors)) for label, errors in found.items()}
            rows.append({"setting": name, "s": s, **medians, "gain": medians["Berrut"] / medians["spline"]})
    return rows


def network(inputs: int, hidden: int, bend: Function, seed: int, gain: float = 1.0) -> Function:
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((inputs, hidden)) * gain / np.sqrt(inputs), rng.standard_normal((hidden, 3))
    return lambda x: bend(x @ a + 0.3) @ b


def relu(x: Array) -> Array:
    return np.maximum(x, 0.0)


FUNCTIONS: dict[str, tuple[int, Function]] = {  # inputs of a block, function
    "exp": (1, np.exp),
    "sin 3x": (1, lambda x: np.sin(3 * x)),
    "sin 10x": (1, lambda x: np.sin(10 * x)),
    "sin 30x": (1, lambda x: np.sin(30 * x)),
    "Runge": (1, lambda x: 1 / (1 + 25 * x**2)),
    "tanh 10x": (1, lambda x: np.tanh(10 * x)),
    "logistic 40x": (1, lambda x: 1 / (1 + np.exp(-40 * x))),
    "|x|": (1, np.abs),
    "|x|^(1/2)": (1, lambda x: np.sqrt(np.abs(x))),
    "ReLU": (1, relu),
    "sign": (1, lambda x: np.sign(x) + 0.1),
    "step at .3": (1, lambda x: 1.0 + (x > 0.3)),
    "floor 4x": (1, lambda x: np.floor(4 * x) + 0.5),
    "sawtooth": (1, lambda x: np.mod(3 * x, 1.0)),
    "x^3": (1, lambda x: x**3),
    "x^12": (1, lambda x: x**12),
    "chirp": (1, lambda x: np.sin(20 * x**2)),
    "spike": (1, lambda x: 0.1 + np.exp(-((x - 0.2) ** 2) / 1e-3)),
    "log": (1, lambda x: np.log(3 + x)),
    "noise": (1, lambda x: np.cos(1e4 * x)),
    "Weierstrass": (1, lambda x: sum(0.6**i * np.cos(3**i * x) for i in range(8))),
    "tanh net, 2": (2, network(2, 16, np.tanh, 0)),
    "tanh net, 16": (16, network(16, 32, np.tanh, 1)),
    "tanh net, 64, steep": (64, network(64, 32, np.tanh, 2, 4.0)),
    "ReLU net, 2": (2, network(2, 16, relu, 3)),
    "ReLU net, 16": (16, network(16, 32, relu, 4)),
    "ReLU net, 64": (64, network(64, 64, relu, 5)),
    "softmax net": (16, lambda x: (lambda e: e / e.sum(axis=1, keepdims=True))(np.exp(network(16, 16, relu, 6)(x)))),
    "quadratic form": (16, lambda x: (x @ np.random.default_rng(7).standard_normal((16, 4))) ** 2),
    "norm": (16, lambda x: np.linalg.norm(x, axis=1, keepdims=True)),
}


def varied(tiny: bool) -> Rows:
    """Thirty functions, rough ones included, K = 20 along a path: the spline code over Berrut's, in the median."""
    k, rows = (6 if tiny else 20), []
    for ratio, missing in itertools.product((1.2, 2, 5, 10), (0.0, 0.1, 0.3)):
        n = round(k * ratio)
        ours, theirs = anyk.SplineCode(n + 1, k), anyk.BerrutCode(n + 1, k)
        gains = {}
        for name, (inputs, fn) in FUNCTIONS.items():
            pairs = []
            for trial in range(3 if tiny else 20):
                rng = np.random.default_rng([trial, len(name)])
                x = rng.uniform(-1, 1, (k, inputs))
                x = x[anyk.path_order(x)]
                s = round(missing * n)
                pairs.append([error(code, fn, x, s, np.random.default_rng([trial, s])) for code in (ours, theirs)])
            medians = np.median(pairs, axis=0)
            gains[name] = float((medians[0] + 1e-15) / (medians[1] + 1e-15))
        worst = max(gains, key=lambda name: gains[name])
        rows.append({
            "N/K": ratio, "s/N": str(missing), "geometric mean": float(np.exp(np.mean(np.log(list(gains.values()))))),
            "worst": gains[worst], "worst on": worst, "above 1.05": sum(gain > 1.05 for gain in gains.values()),
        })  # fmt: skip
    return rows


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for row in [*papers(False), *varied(False)]:
        print(
            {key: value if isinstance(value, str) else float(f"{value:.3g}") for key, value in row.items()}, flush=True
        )
