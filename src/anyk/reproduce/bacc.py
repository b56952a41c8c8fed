"""Figures 1 to 5 of Berrut approximated coded computing (paper 1).

The paper's N counts workers from 0, so there are N + 1 of them; K blocks; s stragglers drawn uniformly. The relative
error is ||estimate - truth|| / ||truth|| over the K values of one function and one straggler set. The paper does not
say in which order the K points are taken: both orders are shown, and means beside medians.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..codes import BerrutCode, LagrangeCode
from ..codes.berrut import NodeFamily
from ..interpolation import lebesgue_constant, lebesgue_function
from ..points import chebyshev_second
from .table import Table

__all__ = ["FIGURES", "fig1", "fig2", "fig3", "fig4", "fig5"]

Array = NDArray[np.float64]
Curve = Callable[[Array], Array]


def _survivors(workers: int, stragglers: int, rng: np.random.Generator) -> NDArray[np.intp]:
    return np.sort(rng.choice(workers, workers - stragglers, replace=False))


def errors(
    code: BerrutCode, points: Array, functions: list[Curve], stragglers: int, trials: int, rng: np.random.Generator
) -> Array:
    """Relative errors, shape (trials, functions); row f of `points` holds the K inputs of function f."""
    coded = code.generator @ points.T
    replies = np.stack([f(column) for f, column in zip(functions, coded.T, strict=True)], axis=1)
    truth = np.stack([f(row) for f, row in zip(functions, points, strict=True)], axis=1)
    size = np.linalg.norm(truth, axis=0)
    found = np.empty((trials, len(functions)))
    for trial in range(trials):
        responders = _survivors(code.workers, stragglers, rng)
        found[trial] = np.linalg.norm(code.decoder(responders).matrix @ replies[responders] - truth, axis=0) / size
    return found


def _x_sin_x(x: Array) -> Array:
    return np.asarray(x * np.sin(x))


def _polynomials(degree: int, count: int, rng: np.random.Generator) -> list[Curve]:
    """Polynomials with coefficients uniform in [-10, 10]."""
    return [np.polynomial.Polynomial(rng.uniform(-10, 10, degree + 1)) for _ in range(count)]


def _points(functions: int, blocks: int, order: str, rng: np.random.Generator) -> Array:
    """The inputs of each function, uniform in [-1, 1]: (functions, blocks), each row "sorted" or "as drawn"."""
    points = rng.uniform(-1, 1, (functions, blocks))
    return np.sort(points, axis=1) if order == "sorted" else points


def _summary(values: Array) -> dict[str, float]:
    return {"mean": float(values.mean()), "median": float(np.median(values))}


def fig1(seed: int = 0, trials: int = 100) -> Table:
    """Fig. 1: the Lebesgue function of the responders' nodes, for several N and s."""
    rng = np.random.default_rng(seed)
    x = np.linspace(-1, 1, 401)
    rows = []
    for n, s in ((20, 0), (20, 5), (50, 10), (100, 10)):
        nodes = chebyshev_second(n + 1).values
        kept = nodes[_survivors(n + 1, s, rng)]
        constants = [lebesgue_constant(nodes[_survivors(n + 1, s, rng)]) for _ in range(trials if s else 1)]
        gap = nodes[np.r_[0 : (n + 1) // 2 - s // 2, (n + 1) // 2 - s // 2 + s : n + 1]]
        shared: dict[str, Any] = {
            "N": n,
            "s": s,
            "constant, mean": float(np.mean(constants)),
            "constant, max": float(np.max(constants)),
            "constant, gap in the middle": lebesgue_constant(gap),
        }
        values = lebesgue_function(x, kept)
        rows += [shared | {"z": float(z), "Lebesgue function": float(v)} for z, v in zip(x, values, strict=True)]
    return Table(
        "bacc-fig1",
        "Lebesgue function of Berrut's interpolant over the responders",
        rows,
        ("One random straggler set a curve; the constants are over all sets drawn.",),
        x="z",
        y="Lebesgue function",
        hidden=("z", "Lebesgue function"),
        by=("N", "s"),
        apart=True,
    )


_FIG2 = ((500, 20, 25), (700, 20, 35), (700, 30, 35), (500, 30, 25))


def fig2(seed: int = 0, trials: int = 100, functions: int = 100) -> Table:
    """Fig. 2: random polynomials of degree 25 and 35; Lagrange codes need their threshold, Berrut's any number."""
    rows = []
    for n, k, degree in _FIG2:
        code = BerrutCode(n + 1, k)
        threshold = LagrangeCode(n + 1, k, degree).threshold
        for order in ("sorted", "as drawn"):
            rng = np.random.default_rng(seed)
            polynomials = _polynomials(degree, functions, rng)
            points = _points(functions, k, order, rng)
            for s in (0, 100, 200, 300, 400):
                found = errors(code, points, polynomials, s, trials if s else 1, rng)
                rows.append(
                    {"N": n, "K": k, "degree": degree, "order": order, "s": s, **_summary(found),
                     "Lagrange threshold": threshold, "Lagrange decodes": n + 1 - s >= threshold}
                )  # fmt: skip
    return Table(
        "bacc-fig2",
        "Random polynomials: relative error against stragglers",
        rows,
        ("As drawn, the curve through the blocks overshoots [-1, 1], where |x|^25 is huge.",),
        x="s",
        y="median",
        by=("N", "K", "degree", "order"),
        dashed="as drawn",
    )


def fig3(seed: int = 0, trials: int = 100, functions: int = 100) -> Table:
    """Fig. 3: Chebyshev against equidistant nodes, (N, K, degree) = (500, 20, 25), sorted."""
    rows = []
    families: tuple[NodeFamily, ...] = ("chebyshev", "equidistant", "equidistant-closed")
    for nodes in families:
        rng = np.random.default_rng(seed)
        code = BerrutCode(501, 20, nodes)
        polynomials = _polynomials(25, functions, rng)
        points = _points(functions, 20, "sorted", rng)
        for s in (0, 50, 100, 200, 300, 400):
            found = errors(code, points, polynomials, s, trials if s else 1, rng)
            rows.append({"nodes": nodes, "s": s, **_summary(found)})
    return Table(
        "bacc-fig3",
        "Chebyshev against equidistant nodes",
        rows,
        ("The advantage depends on which equidistant data nodes are meant: with the ends among them there is none.",),
        x="s",
        y="mean",
        by=("nodes",),
    )


def fig4(seed: int = 0, trials: int = 1000) -> Table:
    """Fig. 4: x sin x on [-12, 12], K = 20, N = 60."""
    rng = np.random.default_rng(seed)
    code = BerrutCode(61, 20)
    inputs = -12 + 24 * np.arange(20) / 19
    rows = []
    for s in (0, 5, 10, 15, 20, 25, 30):
        found = errors(code, inputs[None], [_x_sin_x], s, trials if s else 1, rng)
        rows.append({"order": "sorted", "s": s, **_summary(found), "p90": float(np.quantile(found, 0.9))})
    shuffled = np.concatenate(
        [errors(code, rng.permutation(inputs)[None], [_x_sin_x], 20, 1, rng) for _ in range(trials)]
    )
    rows.append({"order": "shuffled", "s": 20, **_summary(shuffled), "p90": float(np.quantile(shuffled, 0.9))})
    wrong = _worker_index_signs(code, inputs, 20, trials, rng)
    rows.append({"order": "signs by worker", "s": 20, **_summary(wrong), "p90": float(np.quantile(wrong, 0.9))})
    return Table(
        "bacc-fig4",
        "x sin x on [-12, 12]: K = 20, N = 60",
        rows,
        ("'signs by worker' keeps the sign of a worker's own index: poles, and the guarantee is lost.",),
        x="s",
        y="mean",
        by=("order",),
    )


def _worker_index_signs(code: BerrutCode, inputs: Array, s: int, trials: int, rng: np.random.Generator) -> Array:
    """What goes wrong when the decoder's signs are not counted over the responders."""
    replies, truth = _x_sin_x(code.generator @ inputs), _x_sin_x(inputs)
    z, alpha = code.worker_nodes.values, code.data_nodes.values
    found = np.empty(trials)
    for trial in range(trials):
        responders = _survivors(code.workers, s, rng)
        rows = (-1.0) ** responders / (alpha[:, None] - z[responders])
        estimate = rows @ replies[responders] / rows.sum(axis=1)
        found[trial] = np.linalg.norm(estimate - truth) / np.linalg.norm(truth)
    return found


def fig5(seed: int = 0, trials: int = 300, draws: int = 50) -> Table:
    """Fig. 5: x sin x, X uniform in [-1, 1], N in {250, 300}, K in {20, 30}."""
    rows = []
    for n, k in ((250, 20), (300, 20), (250, 30), (300, 30)):
        code = BerrutCode(n + 1, k)
        for order in ("sorted", "as drawn"):
            rng = np.random.default_rng(seed)
            points = _points(draws, k, order, rng)
            for s in (0, 50, 100, 150, 200):
                found = errors(code, points, [_x_sin_x] * draws, s, trials if s else 1, rng)
                rows.append({"N": n, "K": k, "order": order, "s": s, **_summary(found)})
    return Table(
        "bacc-fig5",
        "x sin x on [-1, 1]: relative error against stragglers",
        rows,
        ("(N, K) = (300, 30), s = 0 is exact: every data node is a worker's node.",),
        x="s",
        y="mean",
        by=("N", "K", "order"),
        dashed="as drawn",
    )


FIGURES: dict[str, Callable[..., Table]] = {f"bacc-fig{i}": f for i, f in enumerate((fig1, fig2, fig3, fig4, fig5), 1)}
