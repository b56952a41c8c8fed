"""Figures of codes over responder sets: brute force, and known values."""

import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anyk import BerrutCode, LagrangeCode, RepetitionCode, UncodedCode
from anyk.analysis import Figures, Spread, compare, figures, sample_responders

steady = settings(derandomize=True, deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])


@given(st.integers(1, 20), st.data())
@steady
def test_samples_are_sets_of_workers(workers, data):
    blocks = data.draw(st.integers(1, workers))
    code = data.draw(st.sampled_from([UncodedCode, RepetitionCode]))(workers, blocks)
    size = data.draw(st.integers(1, code.workers))
    sets = sample_responders(code, size, 7, data.draw(st.integers(0, 99)))
    assert sets.shape == (7, size)
    assert (np.diff(sets, axis=1) > 0).all()
    assert set(sets.ravel().tolist()) <= set(range(code.workers))


def test_samples_are_drawn_evenly_and_deterministically():
    code = RepetitionCode(6, 3)
    sets = sample_responders(code, 2, 15_000, 0)
    names, counts = np.unique(sets, axis=0, return_counts=True)
    assert len(names) == 15
    assert np.abs(counts - 1000).max() < 150
    np.testing.assert_array_equal(sets, sample_responders(code, 2, 15_000, np.random.default_rng(0)))
    rng = np.random.default_rng(0)
    assert not np.array_equal(sample_responders(code, 2, 50, rng), sample_responders(code, 2, 50, rng))


@pytest.mark.parametrize("size", [0, -1, 6])
@pytest.mark.parametrize("ask", [lambda code, size: sample_responders(code, size, 5, 0), figures])
def test_impossible_sizes_are_refused(ask, size):
    with pytest.raises(ValueError, match=r"responders must lie in 1\.\.5 .*UncodedCode.*got"):
        ask(UncodedCode(5, 3), size)


def test_trials_must_be_positive():
    with pytest.raises(ValueError, match="trials must be at least 1, got 0"):
        figures(UncodedCode(5, 3), 3, trials=0)
    with pytest.raises(ValueError, match="trials must be at least 1, got -1"):
        sample_responders(UncodedCode(5, 3), 3, -1, 0)


@pytest.mark.parametrize(
    ("code", "size"),
    [(BerrutCode(8, 3), 5), (RepetitionCode(8, 3), 6), (LagrangeCode(8, 3), 4), (LagrangeCode(8, 3), 2)],
)
def test_all_sets_are_tried_where_they_are_few(code, size):
    table = figures(code, size, trials=70)
    rows, failures = [], 0
    for subset in itertools.combinations(range(8), size):
        if not code.sufficient(subset):
            failures += 1
            continue
        d = code.decoder(subset).matrix
        values = np.linalg.svd(d)[1]
        rows.append(
            [
                np.linalg.norm(d @ code.generator[list(subset)] - np.eye(3)),
                (d**2).sum() / 3,
                np.abs(d).sum(axis=1).max(),
                values[0] / values[values > 1e-13 * values[0]][-1],
            ]
        )
    assert table.sets == math.comb(8, size)
    assert table.failures == pytest.approx(failures / table.sets)
    names = ("residual", "noise_amplification", "lebesgue_constant", "condition")
    for k, name in enumerate(names):
        spread = getattr(table, name)
        if not rows:
            assert math.isnan(spread.mean)
            assert math.isnan(spread.median)
            assert math.isnan(spread.worst)
            continue
        column = np.array(rows)[:, k]
        expected = (column.mean(), np.median(column), column.max())
        assert (spread.mean, spread.median, spread.worst) == pytest.approx(expected, rel=1e-9, abs=1e-14)


def test_samples_are_used_where_sets_are_many():
    code = BerrutCode(40, 6)
    table = figures(code, 30, trials=25, seed=3)
    assert table.sets == 25
    residuals = [code.decoder(subset).residual for subset in sample_responders(code, 30, 25, 3)]
    assert table.residual.worst == max(residuals)
    assert table.residual.mean == pytest.approx(np.mean(residuals))
    assert table == figures(code, 30, trials=25, seed=3)
    assert table != figures(code, 30, trials=25, seed=4)


def test_the_record():
    table = figures(RepetitionCode(7, 3), 5)
    assert (table.workers, table.blocks, table.responders, table.threshold) == (7, 3, 5, 6)
    assert table.code == "RepetitionCode(workers=7, blocks=3, combine='mean', tolerance=1e-06)"
    assert (table.exact_for, table.traffic, table.load) == ("any", 1.0, 1.0)
    record = table.as_dict()
    assert record["residual_worst"] == 0.0
    assert record["failures"] == pytest.approx(2 / 21)
    assert len(record) == 10 + 4 * 3
    assert json.loads(json.dumps(record)) == record
    with pytest.raises(AttributeError):
        table.failures = 0.0  # type: ignore[misc]


def test_load_counts_the_blocks_behind_a_coded_one():
    assert figures(UncodedCode(8, 2), 2).load == 0.25
    assert figures(BerrutCode(10, 4), 5).load == 4.0
    assert figures(BerrutCode(301, 30), 301).load == pytest.approx((30 + 271 * 30) / 301)


def test_exact_codes_have_no_residual_and_repetition_no_noise():
    table = figures(LagrangeCode(30, 8), 20)
    assert table.residual.worst < 1e-10
    assert figures(RepetitionCode(12, 4), 12).noise_amplification.worst == pytest.approx(1 / 3)


def test_compare_keeps_the_order():
    codes = [BerrutCode(12, 4), RepetitionCode(12, 4), LagrangeCode(12, 4)]
    rows = compare(iter(codes), responders=9, trials=220)
    assert rows == [figures(code, 9, trials=220) for code in codes]
    assert [row.failures for row in rows] == pytest.approx([0, 4 / 220, 0])
    assert all(isinstance(row, Figures) for row in rows)
    assert compare([], 3) == []


def test_spread():
    assert Spread.of([1.0, 2.0, 6.0]) == Spread(3.0, 2.0, 6.0)
    assert math.isnan(Spread.of([]).worst)
