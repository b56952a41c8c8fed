"""Stop rules: what each means, alone and combined, and that slow workers hold up nobody."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import anyk
from anyk.runtime.stop import Progress

# whatever else the tests have imported (torch, say) is not loaded again for each set of workers
Local = functools.partial(anyk.LocalWorkers, preload=())
N = 8
X = np.linspace(0.0, 1.0, 4)
COPIES = anyk.RepetitionCode(N, 4)  # workers w and w + 4 hold block w


@pytest.fixture(params=["local", "threads", "simulated"])
def engine(request: pytest.FixtureRequest) -> Iterator[Any]:
    make = {
        "local": Local,
        "threads": anyk.ThreadWorkers,
        "simulated": lambda n: anyk.SimulatedWorkers(n, anyk.Deterministic(0.01)),
    }[request.param]
    with make(N) as workers:
        yield workers


def progress(responders: int, pending: int, elapsed: float) -> Progress:
    everybody = range(responders + pending)
    return Progress(everybody[:responders], everybody[responders:], elapsed, lambda who: len(list(who)) >= 3)


def test_rules_alone() -> None:
    assert anyk.FirstK(2).met(progress(2, 5, 0))
    assert not anyk.FirstK(3).met(progress(2, 5, 0))
    assert anyk.FirstK(3).possible(progress(2, 1, 0))
    assert not anyk.FirstK(4).possible(progress(2, 1, 0))
    assert anyk.Deadline(1.0).met(progress(0, 9, 1.0))
    assert not anyk.Deadline(1.0).met(progress(9, 1, 0.9))
    assert anyk.All().met(progress(0, 0, 0))
    assert not anyk.All().met(progress(9, 1, 1e9))
    assert anyk.Sufficient().met(progress(3, 0, 0))
    assert not anyk.Sufficient().met(progress(2, 1, 0))
    assert anyk.Sufficient().possible(progress(2, 1, 0))
    assert not anyk.Sufficient().possible(progress(2, 0, 0))


RULES = st.recursive(
    st.sampled_from([anyk.FirstK(1), anyk.FirstK(4), anyk.Deadline(0.0), anyk.Deadline(2.0), anyk.All(),
                     anyk.Sufficient()]),
    lambda inner: st.tuples(inner, inner, st.booleans()).map(lambda t: t[0] | t[1] if t[2] else t[0] & t[1]),
    max_leaves=4,
)  # fmt: skip


@given(RULES, RULES, st.integers(0, 6), st.integers(0, 6), st.floats(0, 3))
def test_combined_rules_are_logic(a: Any, b: Any, responders: int, pending: int, elapsed: float) -> None:
    state = progress(responders, pending, elapsed)
    assert (a | b).met(state) == (a.met(state) or b.met(state))
    assert (a & b).met(state) == (a.met(state) and b.met(state))
    assert (a | b).possible(state) == (a.possible(state) or b.possible(state))
    assert (a & b).possible(state) == (a.possible(state) and b.possible(state))
    assert set((a & b).wakeups()) == set((a | b).wakeups()) == set(a.wakeups()) | set(b.wakeups())
    if a.met(state):
        assert a.possible(state)
    for rule in (a | b, a & b):
        rebuilt = eval(repr(rule), {"__builtins__": {}}, vars(anyk))
        assert rebuilt.met(state) == rule.met(state)
        assert rebuilt.possible(state) == rule.possible(state)


@pytest.mark.parametrize("k", [0, -1, 2.5, "3", True, None])
def test_the_count_is_checked(k: Any) -> None:
    with pytest.raises(ValueError, match="k must be an integer of at least 1"):
        anyk.FirstK(k)


@pytest.mark.parametrize("seconds", [-1, float("nan"), "1", None, True])
def test_the_deadline_is_checked(seconds: Any) -> None:
    with pytest.raises(ValueError, match="seconds must be a number of at least 0"):
        anyk.Deadline(seconds)


def run(engine: Any, stop: Any, *hang: int, fn: Any = lambda x: x, **keywords: Any) -> anyk.Result:
    faults = dict.fromkeys(hang, anyk.Hang())
    return anyk.map(fn, X, code=COPIES, workers=engine, stop=stop, faults=faults, **keywords)


def test_first_k_uses_exactly_k(engine: Any) -> None:
    for k in (6, 7, 5):
        code = anyk.LagrangeCode(N, 4)
        result = anyk.map(lambda x: x, X, code=code, workers=engine, stop=anyk.FirstK(k))
        assert len(result.run.responders) == k
        assert len(result.run.stragglers) + len(result.run.skipped) == N - k
        assert np.allclose(result.value, X)


def test_all_waits_for_the_slow(engine: Any) -> None:
    result = run(engine, anyk.All())
    assert result.run.responders == tuple(range(N))
    result = anyk.map(lambda x: x, X, code=COPIES, workers=engine, stop=anyk.All(), faults={3: anyk.Slow(0.3)})
    assert result.run.responders == tuple(range(N))
    everybody = dict.fromkeys(range(N), anyk.Slow(0.2))
    result = anyk.map(lambda x: x, X, code=COPIES, workers=engine, faults=everybody)
    assert np.allclose(result.value, X)


def test_a_deadline_keeps_what_came(engine: Any) -> None:
    result = run(engine, anyk.Deadline(1.0), 1, 2, 3)
    assert result.run.responders == (0, 4, 5, 6, 7)
    assert result.run.stragglers == (1, 2, 3)
    assert result.run.seconds >= 1.0
    assert np.allclose(result.value, X)


@pytest.mark.parametrize("rule", [
    anyk.Deadline(600), anyk.FirstK(8) | anyk.Deadline(600), anyk.FirstK(6) & anyk.Deadline(600),
    anyk.Sufficient() & anyk.Deadline(600), anyk.All() & anyk.Deadline(600), anyk.FirstK(8) | anyk.All(),
], ids=repr)  # fmt: skip
def test_nobody_is_left_to_wait_for(engine: Any, rule: Any) -> None:
    """All have answered or failed: a deadline far away changes nothing any more."""
    result = anyk.map(lambda x: x, X, code=COPIES, workers=engine, stop=rule, faults={7: anyk.Raise()})
    assert result.run.responders == tuple(range(7))
    assert result.run.seconds < 600
    assert np.allclose(result.value, X)
    assert result.run.stopped_by == repr(rule)


def test_what_can_no_longer_be_met_ends_at_once(engine: Any) -> None:
    faults: dict[int, Any] = {0: anyk.Hang(), 1: anyk.Raise("one"), 2: anyk.Raise("two"), 3: anyk.Corrupt("nan")}
    with pytest.raises(anyk.TaskFailed, match=r"FirstK\(k=6\) cannot be met") as caught:
        anyk.map(lambda x: x, X, code=COPIES, workers=engine, stop=anyk.FirstK(6), faults=faults)
    assert caught.value.worker in (1, 2)
    assert set(caught.value.arrived) <= {4, 5, 6, 7}
    assert engine.drop(0)
    with pytest.raises(anyk.TaskFailed):  # both hold block 1
        anyk.map(lambda x: x, X, code=COPIES, workers=engine, stop=anyk.Sufficient(),
                 faults={1: anyk.Raise(), 5: anyk.Raise()})  # fmt: skip


def test_a_hung_worker_is_skipped_and_a_slow_one_fed_when_free(engine: Any) -> None:
    first = run(engine, anyk.FirstK(7), 2)
    assert first.run.stragglers == (2,)
    second = run(engine, anyk.FirstK(7), fn=lambda x: x + 1)
    assert second.run.skipped == (2,)
    assert np.allclose(second.value, X + 1)
    assert engine.drop(2)
    assert run(engine, anyk.All()).run.responders == tuple(range(N))
    third = anyk.map(lambda x: x, X, code=COPIES, workers=engine, stop=anyk.FirstK(7), faults={2: anyk.Slow(0.4)})
    assert third.run.stragglers == (2,)
    events: list[Any] = []
    fourth = run(engine, anyk.All(), fn=lambda x: x + 2, on_event=events.append)
    assert [(event.kind, event.worker) for event in events if event.kind == "late"] == [("late", 2)]
    assert fourth.run.responders == tuple(range(N))
    assert np.allclose(fourth.value, X + 2)  # not the late reply
    kinds = [event.kind for event in events if event.worker == 2]
    assert kinds == ["late", "submitted", "answered"]


def test_a_worker_dropped_in_the_middle_of_a_round_is_lost(engine: Any) -> None:
    def drop(event: Any) -> None:
        if event.kind == "answered" and not dropped:
            dropped.append(engine.drop(2))

    dropped: list[bool] = []
    result = run(engine, anyk.All(), 2, on_event=drop)
    assert dropped == [True]
    assert list(result.run.failed) == [2]
    assert "dropped" in result.run.failed[2]
    assert run(engine, anyk.All()).run.responders == tuple(range(N))


def test_many_rounds_of_random_hangs(engine: Any) -> None:
    rng = np.random.default_rng(0)
    for step in range(20):
        hung = {int(w) for w in rng.choice(4, rng.integers(0, 3), replace=False)}
        result = run(engine, anyk.Sufficient(), *hung, fn=lambda x, s=step: x + s)
        assert np.allclose(result.value, X + step)
        for worker in {*result.run.stragglers, *result.run.skipped} & {0, 1, 2, 3}:
            engine.drop(worker)
