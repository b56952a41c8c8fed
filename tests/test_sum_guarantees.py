"""What docs/guarantees.md says of `anyk.sum`: no wrong sum without a word, no waiting for ever."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import anyk
from anyk.errors import ApproximationWarning, UnsafeDecode
from anyk.runtime.stop import StopRule
from anyk.runtime.workers import Event

PARTS = [np.random.default_rng(k).standard_normal(12) for k in range(6)]
TRUTH = np.sum(PARTS, axis=0)
CODE = anyk.NullSpaceCode(anyk.cyclic_placement(6, 6, 4), stragglers=1, adversaries=1)


def same(x: np.ndarray) -> np.ndarray:
    return x


def total(code: anyk.GradientCode = CODE, parts: object = PARTS, **options: object) -> anyk.Result:
    with anyk.ThreadWorkers(code.workers) as workers:
        return anyk.sum(same, parts, code, workers, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("stop", [anyk.All(), anyk.Deadline(5.0)], ids=repr)
def test_nobody_answering_is_an_error_that_carries_the_traceback(stop: StopRule) -> None:
    with pytest.raises(anyk.TaskFailed, match="injected fault"):
        total(stop=stop, faults=dict.fromkeys(range(6), anyk.Raise()))


@pytest.mark.parametrize(
    ("stop", "gone"), [(anyk.FirstK(3), ()), (anyk.All(), (0, 1, 2))], ids=["first three", "three failed"]
)
def test_answers_too_few_to_expose_liars_are_not_taken_without_a_warning(stop: StopRule, gone: tuple[int, ...]) -> None:
    with pytest.warns(ApproximationWarning, match="none of them may lie"):
        found = total(stop=stop, faults=dict.fromkeys(gone, anyk.Raise()))
    assert np.abs(found.value - TRUTH).max() < 1e-12


def test_an_exact_code_that_fails_numerically_says_so() -> None:
    code = anyk.CyclicMDSCode(101, 40)
    parts = [np.random.default_rng(k).standard_normal(3) for k in range(101)]
    refused = 0
    for start in (20, 50):
        faults = {worker: anyk.Raise() for worker in range(start, start + 40)}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                found = total(code, parts, faults=faults).value
            except UnsafeDecode:
                refused += 1
                continue
        off = np.linalg.norm(found - np.sum(parts, axis=0)) / np.linalg.norm(np.sum(parts, axis=0))
        assert off < 1e-5 or any(isinstance(each.message, ApproximationWarning) for each in caught)
    assert refused


def test_coarse_approximate_sums_warn() -> None:
    code = anyk.GraphCode(12, 12, 2)
    parts = [np.ones(3)] * 12
    with pytest.warns(ApproximationWarning, match="off by about"):
        total(code, parts, stop=anyk.FirstK(1))


def test_contradicting_replies_wait_for_another_only_so_long() -> None:
    faults = {0: anyk.Corrupt("noise", 5.0), 1: anyk.Corrupt("noise", 7.0, seed=1), 2: anyk.Hang()}
    with pytest.raises(anyk.TooManyErrors), anyk.LocalWorkers(6) as workers:
        anyk.sum(np.asarray, PARTS, CODE, workers, faults=faults)


def test_the_next_reply_resolves_a_contradiction() -> None:
    code = anyk.NullSpaceCode(anyk.cyclic_placement(8, 8, 5), stragglers=2, adversaries=1)
    parts = [np.random.default_rng(k).standard_normal(5) for k in range(8)]
    faults = {0: anyk.Corrupt("nan"), 1: anyk.Corrupt("noise", 7.0), 7: anyk.Slow(1.0)}
    found = total(code, parts, faults=faults)
    assert np.abs(found.value - np.sum(parts, axis=0)).max() < 1e-11
    assert found.run.liars == (0, 1)


class InOneBreath(anyk.ThreadWorkers):
    """All answers of a round are heard at once, those of the given workers last."""

    def __init__(self, n: int, last: tuple[int, ...]) -> None:
        super().__init__(n)
        self.last = last

    def poll(self, timeout: float | None) -> list[Event]:
        events = super().poll(timeout)
        while timeout != 0 and 0 < len(events) < len(self):
            events += super().poll(None)
        return sorted(events, key=lambda event: event.worker in self.last)


def test_an_answer_heard_together_with_the_one_that_met_the_rule_resolves_a_contradiction_too() -> None:
    code = anyk.NullSpaceCode(anyk.cyclic_placement(8, 8, 5), stragglers=1, adversaries=1)
    faults = {5: anyk.Corrupt("nan"), 2: anyk.Corrupt("scale", 2.0)}
    with InOneBreath(8, last=(0,)) as workers:
        for _ in range(2):
            total = anyk.sum(np.square, np.arange(24.0).reshape(8, 3), code, workers, faults=faults)
            np.testing.assert_allclose(total.value, (np.arange(24.0).reshape(8, 3) ** 2).sum(axis=0))
            assert total.run.liars == (2, 5)


def test_half_precision_overflow_accuses_nobody_and_is_not_returned() -> None:
    code = anyk.GroupCode(12, 12, 6, 1, 1)
    parts = [np.full(4, 8000, np.float16)] * 12
    with pytest.raises(UnsafeDecode, match="exceeds the range of float16"):
        total(code, parts)
    small = total(code, [np.full(4, 0.5, np.float16)] * 12)
    assert small.run.liars == ()
    assert small.value.dtype == np.float16
    assert small.value.tolist() == [6.0] * 4


def test_idle_workers_do_not_count() -> None:
    placement = np.zeros((8, 6), bool)
    placement[:6] = anyk.cyclic_placement(6, 6, 3)
    code = anyk.NullSpaceCode(placement, stragglers=1)
    assert not code.sufficient([0, 1, 2, 6, 7])
    assert code.sufficient([0, 1, 2, 3, 4])


def test_the_default_code_is_built_once() -> None:
    with anyk.ThreadWorkers(4) as workers:
        first = anyk.sum(same, PARTS, workers=workers)
        second = anyk.sum(same, PARTS, workers=workers)
    assert first.code is second.code


def test_rounding_is_judged_by_the_sizes_of_messages() -> None:
    """The polynomial's messages differ in size by orders of magnitude: float32 loses more than their number tells."""
    code = anyk.UniversalPolynomialCode(anyk.cyclic_placement(40, 40, 8), stragglers=4)
    rng = np.random.default_rng(0)
    parts = [rng.standard_normal(8).astype(np.float32) for _ in range(40)]
    truth = np.sum(parts, axis=0, dtype=np.float64)
    for _ in range(20):
        gone = rng.choice(40, 4, replace=False)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = total(code, parts, faults={int(worker): anyk.Raise() for worker in gone}).value
        off = np.linalg.norm(found - truth) / np.linalg.norm(truth)
        assert off < 3e-3 or any(isinstance(each.message, ApproximationWarning) for each in caught)
