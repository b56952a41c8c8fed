"""Virtual time: latency models, tens of thousands of workers, and the same answers as real ones."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

import anyk
from anyk.runtime.latency import Latency

# whatever else the tests have imported (torch, say) is not loaded again for each set of workers
Local = functools.partial(anyk.LocalWorkers, preload=())
X = np.linspace(0.0, 1.0, 4)


@pytest.mark.parametrize(
    ("model", "mean", "least"),
    [
        (anyk.Deterministic(2.0), 2.0, 2.0),
        (anyk.ShiftedExponential(1.0, 0.5), 1.5, 1.0),
        (anyk.Pareto(2.0, 3.0), 3.0, 2.0),
        (anyk.LogNormal(2.0, 0.5), 2.0 * np.exp(0.125), 0.0),
        (anyk.Trace([[1.0, 3.0] * 5000]), 2.0, 1.0),
    ],
)
def test_latency_models_have_their_means(model: Latency, mean: float, least: float) -> None:
    drawn = model.draw(np.random.default_rng(0), 10_000, 0)
    assert drawn.shape == (10_000,)
    assert drawn.min() >= least
    assert abs(drawn.mean() - mean) < 0.06 * mean


def test_pareto_tail_and_median_of_the_lognormal() -> None:
    rng = np.random.default_rng(1)
    pareto = anyk.Pareto(1.0, 2.0).draw(rng, 100_000, 0)
    for t in (1.5, 2.0, 5.0):
        assert abs((pareto > t).mean() - t**-2) < 0.01
    assert abs(np.median(anyk.LogNormal(3.0, 1.0).draw(rng, 100_000, 0)) - 3.0) < 0.1


def test_a_trace_is_replayed_and_starts_again() -> None:
    trace = anyk.Trace([[1.0, 2.0, np.nan], [3.0, np.inf, 1.0]])
    with anyk.SimulatedWorkers(3, trace) as workers:
        code = anyk.RepetitionCode(3, 1)
        rounds = [anyk.map(lambda x: x, [1.0], code=code, workers=workers, stop=anyk.FirstK(k)).run for k in (2, 1)]
    assert rounds[0].answered_at == {0: 1.0, 1: 2.0}
    assert rounds[0].stragglers == (2,)
    assert rounds[1].skipped == (2,)
    with pytest.raises(ValueError, match="the trace has 3 workers"):
        anyk.map(lambda x: x, [1.0], code=anyk.RepetitionCode(2, 1), workers=anyk.SimulatedWorkers(2, trace))


@pytest.mark.parametrize("bad", [[], [[]], [-1.0], np.ones((2, 2, 2))])
def test_traces_are_checked(bad: Any) -> None:
    with pytest.raises(ValueError, match="seconds must be"):
        anyk.Trace(bad)


@pytest.mark.parametrize("slowness", [[1.0], [1.0, 0.0, 1.0], [1.0, -1.0, 1.0], np.ones((3, 1))])
def test_slowness_is_checked(slowness: Any) -> None:
    with pytest.raises(ValueError, match="slowness must hold 3 positive factors"):
        anyk.SimulatedWorkers(3, slowness=slowness)


def test_times_are_exact() -> None:
    with anyk.SimulatedWorkers(3, anyk.Deterministic(2.0), slowness=[1.0, 2.0, 3.0]) as workers:
        code = anyk.RepetitionCode(3, 1)
        run = anyk.map(lambda x: x, [1.0], code=code, workers=workers, stop=anyk.All(),
                       faults={0: anyk.Slow(3.5)}).run  # fmt: skip
        assert run.answered_at == {1: 4.0, 0: 5.5, 2: 6.0}
        assert run.worker_seconds == {1: 4.0, 0: 5.5, 2: 6.0}
        assert run.seconds == 6.0
        assert workers.time() == 6.0
        run = anyk.map(lambda x: x, [1.0], code=code, workers=workers, stop=anyk.Deadline(4.5)).run
        assert run.responders == (0, 1)
        assert run.seconds == 4.5
        assert workers.time() == 10.5
        run = anyk.map(lambda x: x, [1.0], code=code, workers=workers, stop=anyk.All()).run  # 2 is 4.5 into its 6
        assert run.answered_at == {0: 2.0, 1: 4.0, 2: 7.5}


def test_the_same_seed_is_the_same_story() -> None:
    def story(seed: Any) -> list[Any]:
        with anyk.SimulatedWorkers(40, anyk.LogNormal(), seed=seed) as workers:
            rounds = [anyk.map(np.tanh, X, workers=workers) for _ in range(4)]
        return [(r.run.responders, r.run.seconds, r.value.tolist()) for r in rounds]

    assert story(5) == story(5) == story(np.random.default_rng(5))
    assert story(5) != story(6)


def test_latencies_do_not_depend_on_the_order_of_submission() -> None:
    drawn = []
    for order in (range(5), reversed(range(5))):
        with anyk.SimulatedWorkers(5, seed=3) as workers:
            for worker in order:
                workers.submit(worker, worker, lambda state: 0.0)
            events = [event for _ in range(5) for event in workers.poll(None)]
            drawn.append({event.worker: event.seconds for event in events})
    assert drawn[0] == drawn[1]


def test_hanging_for_ever_is_an_error_on_a_virtual_clock() -> None:
    with (
        anyk.SimulatedWorkers(4) as workers,
        pytest.raises(RuntimeError, match=r"no simulated worker will ever answer.*Deadline"),
    ):
        anyk.map(lambda x: x, X, code=anyk.UncodedCode(4, 4), workers=workers, faults={1: anyk.Hang()})


@pytest.mark.parametrize("start", [0.1, 1e3, 1e9, 1e15])
def test_deadlines_end_however_late_it_is(start: float) -> None:
    with anyk.SimulatedWorkers(4, anyk.Deterministic(start / 3)) as workers:
        anyk.map(lambda x: x, X, code=anyk.UncodedCode(4, 4), workers=workers, stop=anyk.All())
        for seconds in (1e-9, 0.1, 0.7, 30.0):
            with pytest.raises(anyk.TooFewResponders):
                anyk.map(lambda x: x, X, code=anyk.UncodedCode(4, 4), workers=workers, stop=anyk.Deadline(seconds),
                         faults=dict.fromkeys(range(4), anyk.Hang()))  # fmt: skip
            for worker in range(4):
                workers.drop(worker)


def test_ten_thousand_workers() -> None:
    blocks = np.random.default_rng(0).standard_normal((100, 10)).cumsum(axis=0)
    with anyk.SimulatedWorkers(10_000, anyk.Pareto(shape=1.5), seed=1) as workers:
        for _ in range(2):
            result = anyk.map(np.tanh, blocks, workers=workers, stop=anyk.FirstK(9000))
            assert len(result.run.responders) == 9000
            assert np.abs(result.value - np.tanh(blocks)).max() < 0.1
        result = anyk.map(np.tanh, blocks, workers=workers, stop=anyk.Deadline(30.0))
        assert len(result.run.responders) > 9000


class Counting(set):
    """Counts how often somebody walks through it."""

    walks = 0

    def __iter__(self) -> Any:
        Counting.walks += 1
        return super().__iter__()


@pytest.mark.parametrize(
    "code",
    [
        anyk.BerrutCode(2000, 10),
        anyk.LagrangeCode(2000, 10),
        anyk.HarmonicFrameCode(2000, range(10)),
        anyk.NullSpaceCode(anyk.cyclic_placement(200, 200, 8), stragglers=4),
        anyk.GroupCode(200, 200, replicas=4, stragglers=2),
    ],
)
def test_asking_after_every_answer_walks_through_nobody(code: Any) -> None:
    """Too few answers are told from their number alone: rounds of thousands of workers would be quadratic."""
    Counting.walks = 0
    few = Counting(range(min(code.workers, 9)))
    if not isinstance(code, anyk.BerrutCode):
        assert not code.sufficient(few)
    assert Counting.walks == 0
    assert code.sufficient(range(code.workers))
    assert not code.sufficient([0] * code.workers) or isinstance(code, anyk.BerrutCode)


def test_a_round_of_groups_with_thousands_of_workers() -> None:
    """Scaled down from benchmarks/scale.py: the sums of groups that share one code add up to the whole."""
    code = anyk.NullSpaceCode(anyk.cyclic_placement(100, 100, 8), stragglers=4)
    data = np.random.default_rng(0).standard_normal((20, 100, 3))
    total = np.zeros(3)
    for group in range(20):
        with anyk.SimulatedWorkers(100, anyk.Pareto(), seed=group) as workers:
            result = anyk.sum(np.square, data[group], code, workers)
        assert len(result.run.responders) == 96
        total += result.value
    assert np.allclose(total, (data**2).sum(axis=(0, 1)), rtol=1e-9)


def test_the_same_value_as_real_workers() -> None:
    blocks = np.random.default_rng(0).standard_normal((6, 7))
    code = anyk.BerrutCode(12, 6)
    faults: dict[int, Any] = {3: anyk.Raise(), 7: anyk.Corrupt("nan"), 9: anyk.Corrupt("scale", 2.0)}
    values = []
    for make in (anyk.SimulatedWorkers, anyk.ThreadWorkers, Local):
        with make(12) as workers:
            values.append(anyk.map(np.sin, blocks, code=code, workers=workers, stop=anyk.All(), faults=faults).value)
    assert np.array_equal(values[0], values[1])
    assert np.array_equal(values[0], values[2])
