"""Figures 1 to 5 of paper 1 against an independent computation; oracle_bacc.py makes the values of figure 2."""

from __future__ import annotations

import numpy as np
import pytest

import anyk
from anyk.reproduce import FIGURES, Table, bacc

# Means and medians at this scale scatter by about 5 %: 3 % between functions, 3 % to 5 % between straggler sets, which
# all functions share. Tolerances are four times that.
FUNCTIONS, TRIALS = 1200, 40


def pick(table: Table, **wanted: object) -> dict[str, object]:
    """The one row with these entries."""
    found = [row for row in table.rows if all(row[key] == value for key, value in wanted.items())]
    assert len(found) == 1, (wanted, len(found))
    return found[0]


@pytest.fixture(scope="module")
def fig2() -> Table:
    return bacc.fig2(seed=1, trials=TRIALS, functions=FUNCTIONS)


STRAGGLERS = (0, 100, 200, 300, 400)
SORTED = {  # means and medians
    (500, 20, 25): ((5.20e-3, 7.31e-3, 1.16e-2, 2.18e-2, 5.36e-2), (4.21e-3, 5.76e-3, 8.74e-3, 1.62e-2, 3.94e-2)),
    (700, 20, 35): ((4.38e-3, 5.40e-3, 7.18e-3, 1.07e-2, 1.58e-2), (3.34e-3, 4.06e-3, 5.33e-3, 7.59e-3, 1.12e-2)),
    (700, 30, 35): ((3.51e-3, 5.60e-3, 8.44e-3, 1.27e-2, 1.97e-2), (2.86e-3, 4.38e-3, 6.45e-3, 9.55e-3, 1.50e-2)),
    (500, 30, 25): ((4.27e-3, 8.31e-3, 1.45e-2, 2.71e-2, 6.70e-2), (3.71e-3, 6.65e-3, 1.12e-2, 2.09e-2, 5.13e-2)),
}
AS_DRAWN = {  # medians; the means have no use, they are dominated by a few functions
    (500, 20, 25): (3.62e-3, 0.168, 0.398, 0.944, 2.88),
    (700, 20, 35): (2.66e-3, 0.471, 1.10, 2.33, 3.78),
    (700, 30, 35): (2.16e-3, 1.96, 6.56, 13.9, 29.8),
    (500, 30, 25): (3.16e-3, 0.516, 1.74, 4.33, 7.84),
}


@pytest.mark.parametrize("setting", SORTED)
def test_figure_2_sorted(fig2: Table, setting: tuple[int, int, int]) -> None:
    n, k, degree = setting
    for s, mean, median in zip(STRAGGLERS, *SORTED[setting], strict=True):
        row = pick(fig2, N=n, K=k, degree=degree, order="sorted", s=s)
        assert row["mean"] == pytest.approx(mean, rel=0.2), s
        assert row["median"] == pytest.approx(median, rel=0.2), s


@pytest.mark.parametrize("setting", AS_DRAWN)
def test_figure_2_as_drawn_is_useless_in_the_mean_and_poor_in_the_median(
    fig2: Table, setting: tuple[int, int, int]
) -> None:
    n, k, degree = setting
    for s, expected in zip(STRAGGLERS, AS_DRAWN[setting], strict=True):
        row = pick(fig2, N=n, K=k, degree=degree, order="as drawn", s=s)
        if s == 0:
            assert row["median"] == pytest.approx(expected, rel=0.2)
        else:
            assert row["mean"] > 10
            assert expected / 2 < row["median"] < expected * 2, s


def test_lagrange_thresholds_of_figure_2(fig2: Table) -> None:
    for (n, k, degree), threshold in zip(SORTED, (476, 666, 1016, 726), strict=True):
        for s in (0, 100, 400):
            row = pick(fig2, N=n, K=k, degree=degree, order="sorted", s=s)
            assert row["Lagrange threshold"] == threshold
            assert row["Lagrange decodes"] == (n + 1 - s >= threshold)


def test_figure_3_depends_on_what_equidistant_means() -> None:
    table = bacc.fig3(seed=1, trials=TRIALS, functions=FUNCTIONS)

    def mean(nodes: str, s: int) -> float:
        return float(pick(table, nodes=nodes, s=s)["mean"])  # type: ignore[arg-type]

    assert mean("chebyshev", 100) == pytest.approx(7.5e-3, rel=0.2)
    assert 4 < mean("equidistant", 100) / mean("chebyshev", 100) < 12
    assert 0.6 < mean("equidistant-closed", 100) / mean("chebyshev", 100) < 1.7
    assert mean("equidistant-closed", 0) == pytest.approx(2.12e-3, rel=0.12)


def test_figure_4() -> None:
    table = bacc.fig4(seed=1, trials=3000)
    assert pick(table, order="sorted", s=0)["mean"] == pytest.approx(0.0392, rel=0.01)
    row = pick(table, order="sorted", s=20)
    assert row["mean"] == pytest.approx(0.128, rel=0.06)
    assert row["median"] == pytest.approx(0.111, rel=0.06)
    assert row["p90"] == pytest.approx(0.212, rel=0.1)
    # One shuffle, as the expected 1.10 was, against the mean over many: useless either way.
    assert 1.0 < pick(table, order="shuffled", s=20)["mean"] < 1.6
    assert pick(table, order="signs by worker", s=20)["mean"] > 1.5


FIG5 = [
    (250, 20, 0, 3.3e-3, 5.4e-3),
    (250, 20, 100, 1.06e-2, 4.4e-2),
    (250, 20, 200, 5.5e-2, 0.36),
    (300, 20, 100, 7.5e-3, 2.5e-2),
    (250, 30, 100, 1.2e-2, 8.2e-2),
    (300, 30, 100, 8.1e-3, 4.5e-2),
]


def test_figure_5() -> None:
    table = bacc.fig5(seed=1, trials=250, draws=100)
    for n, k, s, in_order, as_drawn in FIG5:
        assert pick(table, N=n, K=k, order="sorted", s=s)["mean"] == pytest.approx(in_order, rel=0.2), (n, k, s)
        assert pick(table, N=n, K=k, order="as drawn", s=s)["mean"] == pytest.approx(as_drawn, rel=0.25), (n, k, s)
    for order in ("sorted", "as drawn"):
        assert pick(table, N=300, K=30, order=order, s=0)["mean"] < 1e-14

    def mean(n: int, k: int) -> float:
        return float(pick(table, N=n, K=k, order="sorted", s=100)["mean"])  # type: ignore[arg-type]

    assert mean(300, 20) < mean(250, 20) < mean(250, 30)  # more workers better, more blocks worse


def test_an_odd_number_of_answers_is_better_than_an_even_one() -> None:
    code = anyk.BerrutCode(251, 20)
    rng = np.random.default_rng(0)
    points = np.sort(rng.uniform(-1, 1, (300, 20)), axis=1)
    functions = [bacc._x_sin_x] * len(points)
    means = {s: bacc.errors(code, points, functions, s, 20, rng).mean() for s in range(18, 28)}
    even_n, odd_n = [means[s] for s in range(18, 28, 2)], [means[s] for s in range(19, 28, 2)]
    assert np.mean(even_n) == pytest.approx(4.4e-3, rel=0.15)  # N - s even: an odd number of answers
    assert np.mean(odd_n) == pytest.approx(6.7e-3, rel=0.15)
    assert max(even_n) < min(odd_n)


def test_figure_1_constants() -> None:
    table = bacc.fig1(seed=1, trials=60)
    assert pick(table, N=20, s=0, z=0.0)["constant, mean"] == pytest.approx(2.93, abs=0.005)
    for n, s, mean, gap in ((20, 5, 4.96, 14.1), (50, 10, 6.66, 18.8), (100, 10, 7.65, 25.6)):
        row = pick(table, N=n, s=s, z=0.0)
        assert row["constant, mean"] == pytest.approx(mean, rel=0.08)
        assert row["constant, gap in the middle"] == pytest.approx(gap, rel=0.01)
        assert row["constant, max"] < anyk.lebesgue_bound(n + 1, s)
    assert min(row["Lebesgue function"] for row in table.rows) > 1 - 1e-12  # type: ignore[type-var]


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_a_pure_function_of_its_seed_and_can_be_drawn(name: str, tmp_path: object) -> None:
    scale = {"trials": 2} | ({"functions": 3} if name in ("bacc-fig2", "bacc-fig3") else {})
    scale |= {"real": 0} if name == "training" else {}
    table = FIGURES[name](7, **scale)
    assert table.rows == FIGURES[name](7, **scale).rows
    assert table.rows != FIGURES[name](8, **scale).rows
    assert len({tuple(row) for row in table.rows}) == 1
    drawn = [line for axes in table.plot().figure.axes for line in axes.get_lines()]
    assert len(drawn) == len(table.curves())
