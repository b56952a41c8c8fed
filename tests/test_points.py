"""Nodes: against mpmath, and coincidences by the papers' own arithmetic."""

import mpmath as mp
import numpy as np
import pytest

from anyk import points
from anyk.points import Nodes

COUNTS = [1, 2, 3, 4, 7, 20, 61, 300]
FAMILIES = {
    points.chebyshev_first: lambda n, i: mp.cos((2 * i + 1) * mp.pi / (2 * n)),
    points.chebyshev_second: lambda n, i: mp.cos(i * mp.pi / max(n - 1, 1)),
    points.half_open_chebyshev: lambda n, i: mp.cos(i * mp.pi / n),
    points.equidistant_closed: lambda n, i: 1 - mp.mpf(2 * i) / (n - 1) if n > 1 else mp.mpf(0),
    points.equidistant_open: lambda n, i: 1 - mp.mpf(2 * (i + 1)) / (n + 1),
}


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
@pytest.mark.parametrize("n", COUNTS)
def test_values_agree_with_mpmath(family, n):
    with mp.workdps(40):
        exact = [FAMILIES[family](n, i) for i in range(n)]
    values = family(n).values
    assert values.shape == (n,)
    assert values.dtype == np.float64
    np.testing.assert_allclose(values, np.array(exact, dtype=float), rtol=0, atol=2.3e-16)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
@pytest.mark.parametrize("n", COUNTS)
def test_nodes_fall_and_lie_in_the_interval(family, n):
    values = family(n).values
    assert (np.diff(values) < 0).all()
    assert np.abs(values).max() <= 1


@pytest.mark.parametrize(
    "family", [points.chebyshev_first, points.chebyshev_second, points.equidistant_closed, points.equidistant_open]
)
@pytest.mark.parametrize("n", [2, 3, 20, 61, 300])
def test_symmetric_families_are_symmetric_to_the_last_bit(family, n):
    values = family(n).values
    np.testing.assert_array_equal(values, -values[::-1])


def test_take_keeps_the_order_asked_for():
    nodes = points.chebyshev_second(7)
    index = np.array([5, 0, 3])
    np.testing.assert_array_equal(nodes.take(index).values, nodes.values[index])
    assert len(nodes.take(index)) == 3


@pytest.mark.parametrize(
    ("n", "blocks", "hits"), [(300, 30, 30), (700, 30, 10), (500, 30, 10), (20, 10, 10), (10, 5, 5), (500, 20, 0)]
)
def test_coincidences_of_the_papers_own_settings(n, blocks, hits):
    """alpha_j = z_i iff N (2j+1) = 2 K i; the counts are those of the formula, by hand."""
    found = points.coincidences(points.chebyshev_second(n + 1), points.chebyshev_first(blocks))
    brute = {(i, j) for i in range(n + 1) for j in range(blocks) if n * (2 * j + 1) == 2 * blocks * i}
    assert {(int(i), int(j)) for i, j in np.argwhere(found)} == brute
    assert len(brute) == hits


def test_coincidences_are_found_where_floats_miss_them():
    workers, data = points.chebyshev_second(301), points.chebyshev_first(30)
    by_floats = workers.values[:, None] == data.values[None, :]
    exact = points.coincidences(workers, data)
    assert exact.sum() == 30
    assert not (by_floats & ~exact).any()
    assert by_floats.sum() < 30


def test_coincidences_across_curves():
    hits = points.coincidences(points.chebyshev_second(3), points.equidistant_closed(5))
    assert np.argwhere(hits).tolist() == [[0, 0], [1, 2], [2, 4]]


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (points.chebyshev_second(501), points.chebyshev_first(20)),
        (points.chebyshev_second(1001), points.chebyshev_second(1001)),
        (points.half_open_chebyshev(97), points.chebyshev_first(90)),
        (points.equidistant_closed(100), points.equidistant_open(7)),
        (points.chebyshev_first(3), points.chebyshev_second(997)),
    ],
)
def test_differences_keep_every_digit(a, b):
    """Also where subtracting the nodes would lose half of them, near the ends."""

    def at(nodes: Nodes, index: int) -> mp.mpf:
        p = mp.mpf(int(nodes.numerators[index])) / nodes.denominator
        return 1 - 2 * p if nodes.curve == "line" else mp.cos(mp.pi * p)

    got = points.differences(a, b)
    assert got.shape == (len(a), len(b))
    rng = np.random.default_rng(0)
    ends = [(i, j) for i in (0, 1, len(a) - 2, len(a) - 1) for j in (0, 1, len(b) - 2, len(b) - 1)]
    inside = list(zip(rng.integers(0, len(a), 300), rng.integers(0, len(b), 300), strict=True))
    hits = points.coincidences(a, b)
    with mp.workdps(40):
        for i, j in ends + inside:
            if hits[i, j]:
                assert got[i, j] == 0
                continue
            exact = at(a, int(i)) - at(b, int(j))
            assert abs(got[i, j] / float(exact) - 1) < 1e-15, (i, j)


def test_differences_across_curves_are_plain():
    a, b = points.chebyshev_first(4), points.equidistant_open(3)
    np.testing.assert_array_equal(points.differences(a, b), a.values[:, None] - b.values[None, :])
