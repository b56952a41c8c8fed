"""Figures of codes over responder sets: brute force, and known values."""

import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anyk import (
    BerrutCode,
    CyclicCode,
    CyclicMDSCode,
    FractionalRepetitionCode,
    GraphCode,
    GroupCode,
    IgnoreStragglersCode,
    LagrangeCode,
    NullSpaceCode,
    PolynomialOfSumCode,
    RepetitionCode,
    UncodedCode,
    UniversalPolynomialCode,
    cyclic_placement,
)
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
    assert len(record) == 10 + 4 * 4
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
    assert Spread.of([1.0, 2.0, 6.0]) == Spread(3.0, 2.0, 6.0, math.log10(12.0) / 3)
    assert math.isnan(Spread.of([]).worst)


# Gradient codes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "size"),
    [
        (NullSpaceCode(cyclic_placement(8, 12, 5), 2, 1), 6),
        (GroupCode(8, 8, 4, 2), 5),
        (CyclicMDSCode(8, 2), 6),
        (UniversalPolynomialCode(cyclic_placement(8, 8, 5), 3, nodes="circle"), 6),
        (FractionalRepetitionCode(8, 8, 1), 5),
        (GraphCode(8, 8, 2, graph="bernoulli", rng=1), 1),
    ],
)
def test_figures_of_gradient_codes(code, size):
    table = figures(code, size, trials=70)
    rows = []
    for subset in itertools.combinations(range(8), size):
        d = code.decoder(subset).matrix
        ones = np.tile(np.eye(code.chunks), code.partitions)
        off = np.linalg.norm(d @ code.generator[list(subset)] - ones)
        rows.append([off, (np.abs(d) ** 2).sum() / code.chunks, np.abs(d).sum(axis=1).max()])
    for k, name in enumerate(("residual", "noise_amplification", "lebesgue_constant")):
        spread, column = getattr(table, name), np.array(rows)[:, k]
        expected = (column.mean(), np.median(column), column.max())
        assert (spread.mean, spread.median, spread.worst) == pytest.approx(expected, rel=1e-9, abs=1e-12)
    inexact = np.mean([row[0] > 1e-6 for row in rows])
    assert table.failures == pytest.approx(0 if code.approximate else inexact)
    assert table.condition.worst >= 1
    assert table.blocks == code.partitions
    assert json.loads(json.dumps(table.as_dict())) == table.as_dict()


def test_traffic_and_load_of_gradient_codes():
    tables = compare(
        [
            NullSpaceCode(cyclic_placement(12, 12, 6), 2, 1),
            GroupCode(12, 24, 6, 2, 1),
            CyclicCode(12, 3),
            CyclicMDSCode(12, 4),
            FractionalRepetitionCode(12, 12, 2),
            IgnoreStragglersCode(12, 24, 2),
            PolynomialOfSumCode(cyclic_placement(12, 12, 10), [0, 0, 0, 1], 2, 1),
        ],
        responders=10,
        trials=66,
    )
    # A message in gradients, and partitions held: by each worker, on average; a complex number counts twice.
    assert [table.traffic for table in tables] == [1 / 2, 1 / 2, 1, 2, 1, 1, 1]
    assert [table.load for table in tables] == [6, 12, 4, 5, 3, 2, 10]
    assert [table.blocks for table in tables] == [12, 24, 12, 12, 12, 24, 12]
    assert [table.exact_for for table in tables] == ["linear"] * 5 + ["nothing", "polynomial"]
    worst = [table.residual.worst for table in tables]
    assert max(worst[:5] + worst[6:]) < 1e-6
    assert worst[5] == pytest.approx(math.sqrt(24 * 2 / 10))


def test_sparse_generators_have_figures():
    code = NullSpaceCode(cyclic_placement(2049, 2049, 12), 8)
    assert not isinstance(code.generator, np.ndarray)
    table = figures(code, 2041, trials=3)
    assert (table.load, table.traffic, table.blocks) == (12.0, 0.25, 2049)
    assert table.residual.worst < 1e-6


def test_what_rounding_would_spoil_counts_as_a_failure():
    code = UniversalPolynomialCode(cyclic_placement(50, 50, 10), 5, nodes="literal")
    table = figures(code, 45, trials=20)
    assert table.failures == 1.0
    assert math.isnan(table.residual.worst)


def test_what_rounding_does_spoil_is_in_the_figures_without_warnings():
    code = UniversalPolynomialCode(cyclic_placement(30, 30, 6), 3, nodes="literal")
    table = figures(code, 27, trials=20)
    assert table.failures == 0.0
    assert 1e-8 < table.residual.median < 1e-2


def test_too_few_answers_for_a_polynomial_count_as_a_failure():
    code = PolynomialOfSumCode(cyclic_placement(12, 12, 10), [0, 0, 0, 1], 2, 1)
    assert figures(code, 6, trials=20).failures == 1.0
    assert figures(code, 7, trials=20).failures == 0.0


def test_answers_that_say_nothing_have_figures():
    """Workers without a partition: weights of zero, whose condition was an error."""
    placement = np.zeros((4, 2), bool)
    placement[:2] = True
    table = figures(NullSpaceCode(placement, 1), 2)
    assert table.sets == 6
    assert table.residual.worst == pytest.approx(math.sqrt(2))
    assert table.condition.worst == 1.0
    assert table.noise_amplification.mean == pytest.approx((1 + 4 * 2 + 0) / 6)
