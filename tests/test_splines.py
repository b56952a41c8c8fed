"""Splines as matrices, against SciPy's and against refits; spline codes, against paper 1's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.interpolate import make_interp_spline, make_smoothing_spline

import anyk
from anyk.interpolation import floater_hormann_matrix
from anyk.points import Nodes, chebyshev_first, chebyshev_second, with_parities
from anyk.splines import SMOOTHING, SmoothingSplines, evident, leave_one_out, natural_matrix, spline_matrix
from anyk.testing import check_code

DEGREES = st.sampled_from([1, 3, 5, 7])


@st.composite
def some_nodes(draw: Any, least: int = 1) -> Nodes:
    """Chebyshev nodes of which any are missing."""
    count = draw(st.integers(least, 40))
    family: Callable[[int], Nodes] = draw(st.sampled_from([chebyshev_first, chebyshev_second]))
    kept = draw(st.sets(st.integers(0, count - 1), min_size=least))
    return family(count).take(np.array(sorted(kept), dtype=np.intp))


def angles(nodes: Nodes) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.pi * nodes.numerators / nodes.denominator


@given(some_nodes(), DEGREES, st.integers(1, 30))
@settings(deadline=None)
def test_interpolation(nodes: Nodes, degree: int, count: int) -> None:
    """Rows sum to one; nodes are hit; constants are recovered."""
    points = chebyshev_first(count)
    matrix = spline_matrix(points, nodes, degree)
    assert matrix.shape == (count, len(nodes))
    assert np.allclose(matrix.sum(axis=1), 1, rtol=0, atol=1e-12 * np.abs(matrix).sum(axis=1).max())
    assert np.array_equal(spline_matrix(nodes, nodes, degree), np.eye(len(nodes)))


@pytest.mark.parametrize("degree", [3, 5])
@pytest.mark.parametrize("keep", [range(30), [0, 3, 4, 5, 11, 12, 20, 21, 22, 23, 28], range(5, 17)])
def test_interpolation_is_scipys(degree: int, keep: Any) -> None:
    """Periodic over the circle, through the nodes and their mirror images."""
    nodes = chebyshev_second(30).take(np.array(keep, dtype=np.intp))
    theta = angles(nodes)
    circle = np.unique(np.concatenate([theta, -theta]))
    circle = circle[circle > -np.pi]
    closed = np.append(circle, circle[0] + 2 * np.pi)
    fn = lambda t: np.exp(np.cos(t)) + np.cos(3 * t)  # noqa: E731
    values = fn(closed)
    values[-1] = values[0]
    spline = make_interp_spline(closed, values, k=degree, bc_type="periodic")
    points = chebyshev_first(9)
    at = closed[0] + np.mod(angles(points) - closed[0], 2 * np.pi)
    assert np.allclose(spline_matrix(points, nodes, degree) @ fn(theta), spline(at), rtol=0, atol=1e-11)


@pytest.mark.parametrize("degree", [1, 3, 5, 7])
@pytest.mark.parametrize("keep", [range(30), [0, 3, 4, 5, 11, 12, 20, 21, 22, 23, 28], range(5, 8), [4, 29]])
def test_leave_one_out_is_refitting(degree: int, keep: Any) -> None:
    nodes = chebyshev_second(30).take(np.array(keep, dtype=np.intp))
    count = len(nodes)
    values = np.random.default_rng(0).standard_normal((count, 2))
    errors = np.empty_like(values)
    for index in range(count):
        others = np.delete(np.arange(count), index)
        row = spline_matrix(nodes.take(np.array([index])), nodes.take(others), degree)
        errors[index] = values[index] - (row @ values[others])[0]
    assert np.allclose(leave_one_out(nodes, values, degree), errors, rtol=0, atol=1e-12 * np.abs(errors).max())


@pytest.mark.parametrize("weight", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("angle", [True, False])
def test_leave_one_out_of_smoothing_is_refitting(weight: float, angle: bool) -> None:
    nodes, values = chebyshev_second(20), np.random.default_rng(0).standard_normal((20, 2))
    splines, matrix = SmoothingSplines(nodes, angle=angle), spline_matrix if angle else natural_matrix
    found = splines.leave_one_out(weight, values)
    for index in range(1, 19):
        others = np.delete(np.arange(20), index)
        rest = SmoothingSplines(nodes.take(others), angle=angle)
        same = weight * splines.unit / rest.unit  # the weight is in units of the spacing
        row = matrix(nodes.take(np.array([index])), nodes.take(others)) @ rest.smoother(same)
        assert np.allclose(found[index], values[index] - (row @ values[others])[0], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("weight", [1e-3, 1.0, 1e3])
def test_natural_smoothing_is_scipys(weight: float) -> None:
    nodes, values = chebyshev_second(25), np.random.default_rng(1).standard_normal(25)
    splines = SmoothingSplines(nodes, angle=False)
    theirs = make_smoothing_spline(nodes.values[::-1], values[::-1], lam=weight * splines.unit)
    assert np.allclose(splines.smoother(weight) @ values, theirs(nodes.values), rtol=1e-7, atol=1e-9)
    points = chebyshev_first(7)
    ours = natural_matrix(points, nodes) @ splines.smoother(weight) @ values
    assert np.allclose(ours, theirs(points.values), rtol=1e-7, atol=1e-9)


@given(some_nodes(), st.floats(1e-3, 1e6))
@settings(deadline=None)
def test_smoothing_keeps_constants(nodes: Nodes, weight: float) -> None:
    for angle in (True, False):
        smoother = SmoothingSplines(nodes, angle=angle).smoother(weight)
        assert np.allclose(smoother.sum(axis=1), 1, rtol=0, atol=1e-6)


def test_what_is_evident() -> None:
    nodes, rng = chebyshev_second(60), np.random.default_rng(0)
    smooth, rough = np.exp(nodes.values)[:, None], np.sign(nodes.values - 0.1)[:, None]
    noisy = smooth + 0.3 * rng.standard_normal((60, 1))
    assert evident(nodes, smooth, (3, 5), SMOOTHING) == (5, 0.0)
    assert evident(nodes, rough, (3, 5), ()) == (3, 0.0)
    assert evident(nodes, noisy, (3, 5), SMOOTHING)[1] > 0
    assert evident(chebyshev_second(5), noisy[:5], (3, 5), SMOOTHING) == (3, 0.0)  # too few to tell
    assert evident(nodes, np.full((60, 1), np.nan), (3, 5), SMOOTHING) == (3, 0.0)
    assert evident(nodes, np.zeros((60, 1)), (3, 5), SMOOTHING)[0] in (3, 5)


@given(st.integers(1, 12), st.integers(0, 30))
@settings(deadline=None)
def test_parities_lie_between_the_data(data: int, parities: int) -> None:
    nodes = with_parities(data, parities)
    first = chebyshev_first(data)
    assert np.array_equal(nodes.numerators[:data] * first.denominator, first.numerators * nodes.denominator)
    assert len(np.unique(nodes.numerators)) == data + parities
    assert 0 <= nodes.numerators.min() <= nodes.numerators.max() <= nodes.denominator
    if data > 1:
        inside = np.searchsorted(nodes.numerators[:data], nodes.numerators[data:])
        counts = np.bincount(inside, minlength=data)[1:data]
        assert counts.sum() == parities
        assert counts.max() - counts.min() <= 1


@pytest.mark.parametrize(
    "code",
    [
        anyk.SplineCode(1, 1),
        anyk.SplineCode(3, 3),
        anyk.SplineCode(12, 4),
        anyk.SplineCode(30, 10, degree=5, encoder="berrut"),
        anyk.SplineCode(30, 10, degree=3, smoothing=1.0),
        anyk.SplineCode(9, 4, degree=7, smoothing=0, systematic=True),
        anyk.SplineCode(12, 8, systematic=True),
        anyk.SplineCode(5, 1, systematic=True),
    ],
    ids=repr,
)
def test_laws(code: anyk.SplineCode) -> None:
    check_code(code)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"degree": 4}, "degree must be 3, 5, 7 or 'auto', got 4"),
        ({"encoder": "lagrange"}, "encoder must be 'spline' or 'berrut'"),
        ({"smoothing": -1.0}, "smoothing must be 'auto' or a number of at least 0"),
        ({"smoothing": float("nan")}, "smoothing must be 'auto' or a number of at least 0"),
        ({"smoothing": "much"}, "smoothing must be 'auto' or a number of at least 0"),
    ],
)
def test_refused(options: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        anyk.SplineCode(9, 3, **options)


@pytest.mark.parametrize("missing", [0, 1, 3])
def test_raw_blocks_are_exact(missing: int) -> None:
    """Of a systematic layout, whoever else answers and however noisy they are."""
    code = anyk.SplineCode(30, 8, systematic=True)
    rng = np.random.default_rng(missing)
    blocks = rng.uniform(-1, 1, (8, 5))
    assert np.array_equal(code.encode(blocks)[:8], blocks)
    replies = np.floor(5 * code.encode(blocks)) + rng.standard_normal((30, 5))
    asked = np.sort(rng.permutation(30)[missing:])
    value = code.decoder(asked, list(replies[asked])) @ replies[asked]
    raw = [worker for worker in asked if worker < 8]
    assert np.array_equal(value[raw], replies[raw])


def median_error(code: Any, fn: Any, blocks: Any, stragglers: int, trials: int = 21) -> float:
    replies, truth, errors = fn(code.encode(blocks)), fn(blocks), []
    for trial in range(trials):
        rng = np.random.default_rng(trial)
        asked = np.sort(rng.choice(code.workers, code.workers - stragglers, replace=False))
        estimate = code.decoder(asked, list(replies[asked])) @ replies[asked]
        errors.append(np.linalg.norm(estimate - truth) / np.linalg.norm(truth))
    return float(np.median(errors))


def wave(x: Any) -> Any:
    return x * np.sin(x)


@pytest.mark.parametrize(
    ("n", "stragglers", "reach", "fn", "gain"),
    [
        (500, 100, 1.0, lambda x: np.polynomial.chebyshev.chebval(x, 0.8 ** np.arange(26)), 1000),
        (500, 200, 1.0, lambda x: np.polynomial.chebyshev.chebval(x, 0.8 ** np.arange(26)), 100),
        (250, 100, 1.0, wave, 50),
        (60, 20, 12.0, wave, 15),
    ],
)
def test_gains_over_paper_1(n: int, stragglers: int, reach: float, fn: Any, gain: float) -> None:
    """Settings of figures 2, 5 and 4 with one function each; benchmarks/accuracy.py has many."""
    x = np.linspace(reach, -reach, 20)
    ours = median_error(anyk.SplineCode(n + 1, 20), fn, x, stragglers)
    assert gain * ours <= median_error(anyk.BerrutCode(n + 1, 20), fn, x, stragglers)


def test_smoothing_pays_for_noisy_workers() -> None:
    code, plain = anyk.SplineCode(101, 20), anyk.SplineCode(101, 20, degree=3, smoothing=0)
    x = np.linspace(1, -1, 20)[:, None]
    truth, errors = np.exp(x), []
    for trial in range(20):
        rng = np.random.default_rng(trial)
        replies = np.exp(code.encode(x)) + 0.3 * rng.standard_normal((101, 1))
        errors.append(
            [np.linalg.norm(each.decoder(range(101), list(replies)) @ replies - truth) for each in (code, plain)]
        )
    smoothed, interpolated = np.median(errors, axis=0)
    assert smoothed < 0.6 * interpolated


def test_a_round() -> None:
    x = np.linspace(-1, 1, 10)
    with anyk.ThreadWorkers(40) as workers:
        for systematic in (False, True):
            code = anyk.SplineCode(40, 10, systematic=systematic)
            result = anyk.map(np.exp, x, code=code, workers=workers, faults={3: anyk.Raise()}, stop=anyk.All())
            assert 3 in result.run.failed
            assert np.abs(result.value - np.exp(x)).max() < 1e-4


@pytest.mark.parametrize(
    "code",
    [
        anyk.FloaterHormannCode(1, 1),
        anyk.FloaterHormannCode(12, 5),
        anyk.FloaterHormannCode(12, 5, degree=3),
        anyk.FloaterHormannCode(6, 3, degree=9),
        anyk.BSplineCode(1, 1),
        anyk.BSplineCode(2, 2),
        anyk.BSplineCode(12, 5),
        anyk.LearningTheoreticCode(2, 2),
        anyk.LearningTheoreticCode(12, 5),
        anyk.LearningTheoreticCode(12, 5, encoder_smoothing=0.1, smoothing=0.1),
    ],
    ids=repr,
)
def test_laws_of_other_curves(code: Any) -> None:
    check_code(code)


@pytest.mark.parametrize("degree", [0, 1, 2, 3])
def test_floater_hormann_weights(degree: int) -> None:
    """Against the formula, product by product; polynomials of the degree are reproduced."""
    nodes = chebyshev_second(9).take(np.array([0, 1, 3, 4, 7, 8]))
    x, count = nodes.values, len(nodes)
    weights = np.zeros(count)
    for i in range(count):
        for k in range(max(0, i - degree), min(i, count - 1 - degree) + 1):
            weights[i] += np.prod([1 / abs(x[i] - x[j]) for j in range(k, k + degree + 1) if j != i])
        weights[i] *= (-1) ** i
    points = chebyshev_first(6)
    rows = weights / (points.values[:, None] - x)
    expected = rows / rows.sum(axis=1, keepdims=True)
    matrix = floater_hormann_matrix(points, nodes, degree)
    assert np.allclose(matrix, expected, rtol=0, atol=1e-13)
    for power in range(degree + 1):
        assert np.allclose(matrix @ x**power, points.values**power, rtol=0, atol=1e-12)


def test_degree_zero_is_berruts() -> None:
    assert np.allclose(
        anyk.FloaterHormannCode(15, 6, degree=0).generator, anyk.BerrutCode(15, 6).generator, rtol=0, atol=1e-15
    )


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: anyk.FloaterHormannCode(9, 3, degree=-1), "degree must be an integer of at least 0"),
        (lambda: anyk.LearningTheoreticCode(9, 3, encoder_smoothing=-1.0), "encoder_smoothing must be a number"),
        (lambda: anyk.LearningTheoreticCode(9, 3, smoothing=float("inf")), "smoothing must be 'auto' or a number"),
    ],
)
def test_other_curves_refuse(make: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make()
