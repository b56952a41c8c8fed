"""Interpolation matrices: against mpmath, SciPy and the vectors of an independent script."""

import itertools
import json
from pathlib import Path

import mpmath as mp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.interpolate import BarycentricInterpolator

from anyk import BerrutCode, error_bound, lebesgue_bound, lebesgue_constant, lebesgue_function
from anyk.interpolation import berrut_matrix, chebyshev_basis, lagrange_matrix
from anyk.points import chebyshev_first, chebyshev_second, equidistant_closed, half_open_chebyshev

VECTORS = Path(__file__).parents[2] / "shared" / "expected" / "vectors.json"
steady = settings(derandomize=True, deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])


def vectors(kind):
    if not VECTORS.exists():
        return [pytest.param(None, marks=pytest.mark.skip(reason="the file of vectors is not here"))]
    cases = json.loads(VECTORS.read_text())["cases"]
    return [
        pytest.param(case, id=f"{case.get('workers', case.get('n'))}-{case['blocks']}-{len(case['responders'])}")
        for case in cases
        if case["kind"] == kind
    ]


def assert_matches(actual, rows):
    exact = np.array([[float(v) for v in row] for row in rows])
    assert actual.shape == exact.shape
    np.testing.assert_allclose(actual, exact, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("case", vectors("berrut"))
def test_berrut_vectors(case):
    code = BerrutCode(case["workers"], case["blocks"])
    assert_matches(code.generator, case["encoder"])
    assert_matches(code.decoder(case["responders"]).matrix, case["decoder"])


@pytest.mark.parametrize("case", vectors("interpolation"))
def test_lagrange_vectors(case):
    nodes = chebyshev_first(case["n"]).take(np.array(case["responders"]))
    assert case["threshold"] == (case["blocks"] - 1) * case["degree"] + 1
    assert_matches(lagrange_matrix(chebyshev_first(case["blocks"]), nodes), case["matrix"])


def berrut_by_mpmath(points, nodes):
    rows = []
    for x in points:
        hit = [k for k, node in enumerate(nodes) if abs(x - node) < mp.mpf(10) ** -40]
        terms = [mp.mpf(k in hit) if hit else (-1) ** k / (x - node) for k, node in enumerate(nodes)]
        rows.append([float(term / mp.fsum(terms)) for term in terms])
    return np.array(rows)


@given(st.integers(2, 30), st.data())
@steady
def test_berrut_matrix_agrees_with_mpmath_for_any_responders(workers, data):
    blocks = data.draw(st.integers(1, workers), label="blocks")
    present = sorted(data.draw(st.sets(st.integers(0, workers - 1), min_size=1), label="responders"))
    with mp.workdps(60):
        alphas = [mp.cos((2 * j + 1) * mp.pi / (2 * blocks)) for j in range(blocks)]
        zs = [mp.cos(i * mp.pi / (workers - 1)) for i in range(workers)]
        encoder = berrut_by_mpmath(zs, alphas)
        decoder = berrut_by_mpmath(alphas, [zs[i] for i in present])
    code = BerrutCode(workers, blocks)
    np.testing.assert_allclose(code.generator, encoder, rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(code.decoder(present).matrix, decoder, rtol=1e-13, atol=1e-15)


def test_signs_count_positions_among_the_responders_not_workers():
    """With the workers' own signs the interpolant has poles; two neighbours of equal sign would show it."""
    nodes = chebyshev_second(11).take(np.array([0, 2, 4, 6]))
    row = berrut_matrix(chebyshev_first(1), nodes)[0]
    raw = np.array([1, -1, 1, -1]) / (0 - nodes.values)
    np.testing.assert_allclose(row, raw / raw.sum(), rtol=1e-14)


@pytest.mark.parametrize("n", [2, 5, 20, 61])
def test_lagrange_matrix_agrees_with_scipy(n):
    nodes, at = chebyshev_first(n), equidistant_closed(23)
    values = np.random.default_rng(n).standard_normal(n)
    expected = BarycentricInterpolator(nodes.values, values)(at.values)
    np.testing.assert_allclose(lagrange_matrix(at, nodes) @ values, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(("n", "drop"), [(30, 5), (60, 3)])
def test_lagrange_matrix_agrees_with_mpmath_when_nodes_are_missing(n, drop):
    rng = np.random.default_rng(n)
    kept = np.sort(rng.choice(n, n - drop, replace=False))
    with mp.workdps(60):
        z = [mp.cos((2 * int(i) + 1) * mp.pi / (2 * n)) for i in kept]
        exact = [[mp.fprod((mp.mpf(0) - t) / (z[k] - t) for m, t in enumerate(z) if m != k) for k in range(len(z))]]
        expected = np.array([[float(v) for v in row] for row in exact])
    got = lagrange_matrix(chebyshev_first(1), chebyshev_first(n).take(kept))
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-14 * np.abs(expected).max())


def test_lagrange_matrix_of_a_thousand_nodes_neither_overflows_nor_underflows():
    matrix = lagrange_matrix(chebyshev_first(30), chebyshev_first(1000))
    assert np.isfinite(matrix).all()
    values = np.cos(5 * chebyshev_first(1000).values)
    np.testing.assert_allclose(matrix @ values, np.cos(5 * chebyshev_first(30).values), atol=1e-13)


@given(st.sampled_from([berrut_matrix, lagrange_matrix]), st.integers(1, 80), st.integers(1, 80))
@steady
def test_rows_sum_to_one_and_hits_are_unit_rows(matrix_of, many, few):
    for nodes in (chebyshev_second(many), half_open_chebyshev(many), chebyshev_first(many)):
        matrix = matrix_of(chebyshev_first(few), nodes)
        assert np.isfinite(matrix).all()
        np.testing.assert_allclose(matrix.sum(axis=1), 1, atol=2e-14 * np.abs(matrix).sum(axis=1).max())
        np.testing.assert_array_equal(matrix_of(nodes, nodes), np.eye(many))


def test_chebyshev_basis():
    nodes = chebyshev_first(9)
    angles = np.arccos(nodes.values)
    np.testing.assert_allclose(chebyshev_basis(nodes, 5), np.cos(angles[:, None] * np.arange(6)), atol=1e-14)


# Lebesgue function and constant ---------------------------------------------------------------------------------------


def worst_on_grid(nodes, per_gap=300):
    """Brute force with none of the library's code: the weights cancel, only distances and signs remain."""
    z = np.sort(nodes)
    x = (z[:-1, None] + np.diff(z)[:, None] * (np.arange(per_gap) + 0.5) / per_gap).ravel()
    signs = (-1.0) ** np.arange(len(z))
    distance = x[:, None] - z
    return float(((1 / np.abs(distance)).sum(axis=1) / np.abs((signs / distance).sum(axis=1))).max())


def cosines(n, missing=()):
    return np.delete(np.cos(np.arange(n + 1) * np.pi / n), list(missing))


@pytest.mark.parametrize(
    ("n", "s", "worst"),
    [(20, 0, 2.93429), (10, 1, None), (10, 2, 5.89232), (10, 3, 10.42884), (15, 3, 8.20967)],
)
def test_lebesgue_constants_over_all_straggler_sets(n, s, worst):
    """10.42884 and 8.20967 are maxima; a coarse grid of the function sees only 10.396 and 8.195."""
    ours = brute = 0.0
    for missing in itertools.combinations(range(n + 1), s):
        nodes = cosines(n, missing)
        constant, grid = lebesgue_constant(nodes), worst_on_grid(nodes)
        assert constant >= grid * (1 - 1e-12)
        assert constant <= grid * (1 + 3e-4)
        assert constant <= lebesgue_bound(n + 1, s)
        ours, brute = max(ours, constant), max(brute, grid)
    if worst is not None:
        assert ours == pytest.approx(worst, abs=6e-6)
        assert brute == pytest.approx(worst, rel=1e-4)


def test_lebesgue_maximum_to_ten_digits_by_mpmath():
    """N = 10 without workers 6, 7, 8, where the grid of a first study missed the top."""
    with mp.workdps(30):
        nodes = sorted(mp.cos(i * mp.pi / 10) for i in range(11) if i not in (6, 7, 8))

        def negative(x):
            total = mp.fsum((-1) ** k / (x - node) for k, node in enumerate(nodes))
            return mp.fsum(1 / abs(x - node) for node in nodes) / abs(total)

        left, right = nodes[1], nodes[2]
        assert [float(left), float(right)] == pytest.approx(
            [float(mp.cos(9 * mp.pi / 10)), float(mp.cos(5 * mp.pi / 10))], abs=1e-15
        )
        grid = [left + (right - left) * k / 200 for k in range(1, 200)]
        top = max(grid, key=negative)
        low, high = top - (right - left) / 200, top + (right - left) / 200
        for _ in range(60):
            a, b = (2 * low + high) / 3, (low + 2 * high) / 3
            low, high = (low, b) if negative(a) > negative(b) else (a, high)
        exact = float(negative(low))
    assert exact == pytest.approx(10.42884, abs=5e-6)
    assert lebesgue_constant(cosines(10, (6, 7, 8))) == pytest.approx(exact, rel=1e-10)


def test_lebesgue_bound():
    assert lebesgue_bound(21, 0) == pytest.approx((3 * np.pi**2 / 4 + 1) * (1 + np.pi**2 * np.log(20)), rel=1e-14)
    assert round(lebesgue_bound(21, 0)) == 257
    assert lebesgue_constant(cosines(20)) < 257


@given(st.integers(2, 60), st.data())
@steady
def test_lebesgue_bound_is_never_violated(n, data):
    s = data.draw(st.integers(0, n - 1), label="stragglers")
    contiguous = data.draw(st.booleans(), label="contiguous")
    if contiguous:
        start = data.draw(st.integers(0, n + 1 - s), label="start")
        missing = range(start, start + s)
    else:
        missing = data.draw(st.permutations(range(n + 1)), label="order")[:s]
    constant = lebesgue_constant(cosines(n, missing))
    assert constant >= 1 - 1e-13
    assert constant <= lebesgue_bound(n + 1, s)


def test_lebesgue_function_shape_and_nodes():
    nodes = cosines(6)
    np.testing.assert_allclose(lebesgue_function(nodes, nodes), 1)
    assert lebesgue_function(np.zeros((2, 3)) + 0.1, nodes).shape == (2, 3)
    assert lebesgue_function(0.1, nodes).shape == ()
    assert lebesgue_constant([0.3]) == 1.0
    assert lebesgue_constant(nodes) == pytest.approx(lebesgue_constant(nodes[::-1]), rel=1e-14)


# Paper 1's error bound ------------------------------------------------------------------------------------------------

_T = np.linspace(-1, 1, 4001)
FUNCTIONS = {
    "cos 3z": (lambda z: np.cos(3 * z), 3.0, 9.0),
    "exp": (np.exp, np.e, np.e),
    "z sin 4z": (
        lambda z: z * np.sin(4 * z),
        float(np.abs(np.sin(4 * _T) + 4 * _T * np.cos(4 * _T)).max()) * 1.001,
        float(np.abs(8 * np.cos(4 * _T) - 16 * _T * np.sin(4 * _T)).max()) * 1.001,
    ),
    "cubic": (lambda z: z**3 - z, 2.0, 6.0),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(("n", "s"), [(10, 0), (11, 3), (20, 5), (60, 20), (100, 10), (500, 50)])
def test_error_bound_is_never_violated(name, n, s):
    g, first, second = FUNCTIONS[name]
    bound = error_bound(n + 1, s, second_derivative=second, first_derivative=first)
    rng = np.random.default_rng(n + s)
    x = np.cos(np.linspace(0.001, np.pi - 0.001, 1500))
    for trial in range(12):
        missing = rng.choice(n + 1, s, replace=False) if trial else np.arange(3, 3 + s)
        z = cosines(n, missing)
        weights = (-1.0) ** np.arange(len(z)) / (x[:, None] - z)
        worst = np.abs((weights @ g(z)) / weights.sum(axis=1) - g(x)).max()
        assert worst <= bound
        if (n, s, name) == (100, 10, "cos 3z"):
            assert worst < 0.2  # far below the bound of 1,500


def test_error_bound_formula():
    ratio = 11 * 13 * np.pi**2 / 4
    assert error_bound(101, 10, 9.0, 3.0) == pytest.approx(
        2 * (1 + ratio) * np.sin(11 * np.pi / 200) * (9 + 3), rel=1e-14
    )
    assert error_bound(100, 10, 9.0, 3.0) == pytest.approx(2 * (1 + ratio) * np.sin(11 * np.pi / 198) * 9, rel=1e-14)
    assert 1.4e3 < error_bound(101, 10, 9.0, 3.0) < 1.6e3


@pytest.mark.parametrize("stragglers", [-1, 20, 21])
@pytest.mark.parametrize("bound", [lebesgue_bound, lambda workers, s: error_bound(workers, s, 1.0)])
def test_bounds_refuse_impossible_stragglers(bound, stragglers):
    with pytest.raises(ValueError, match=r"stragglers must lie in 0\.\.19"):
        bound(21, stragglers)
