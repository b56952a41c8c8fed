"""Faults are data: each does what it says on every engine, tables are reproducible, wrapping changes nothing else."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import anyk
from anyk.runtime.faults import Crashed

# whatever else the tests have imported (torch, say) is not loaded again for each set of workers
Local = functools.partial(anyk.LocalWorkers, preload=())
N = 8
X = np.linspace(1.0, 2.0, 4)
COPIES = anyk.RepetitionCode(N, 4)


@pytest.fixture(params=["local", "threads", "simulated"])
def engine(request: pytest.FixtureRequest) -> Iterator[Any]:
    make = {"local": Local, "threads": anyk.ThreadWorkers, "simulated": anyk.SimulatedWorkers}
    with make[request.param](N) as workers:
        yield workers


def run(workers: Any, stop: Any = None, **keywords: Any) -> anyk.Result:
    return anyk.map(lambda x: x, X, code=COPIES, workers=workers, stop=stop or anyk.All(), **keywords)


def test_faults_of_one_call_last_for_that_call(engine: Any) -> None:
    faults: dict[int, Any] = {0: anyk.Crash(), 1: anyk.Raise("no"), 2: anyk.Corrupt("nan"), 3: anyk.Slow(0.1)}
    result = run(engine, faults=faults)
    assert set(result.run.failed) == {0, 1, 2}
    assert result.run.failed[0].startswith("lost")
    assert np.allclose(result.value, X)
    assert run(engine).run.responders == tuple(range(N))
    assert run(engine, faults={}).run.responders == tuple(range(N))


def test_crash_after_a_while(engine: Any) -> None:
    assert list(run(engine, faults={5: anyk.Crash(after=0.1)}).run.failed) == [5]
    assert run(engine).run.responders == tuple(range(N))


def test_every_corruption(engine: Any) -> None:
    code = anyk.UncodedCode(4, 4)
    expected: dict[Any, Any] = {
        "scale": 3.0 * X, "negate": -X, "zero": 0 * X, "noise": None, np.sqrt: np.sqrt(X),
    }  # fmt: skip
    for how, value in expected.items():
        faults: dict[int, Any] = dict.fromkeys(range(4), anyk.Corrupt(how, scale=3.0, seed=1))
        got = anyk.map(lambda x: x, X, code=code, workers=engine, faults=faults).value
        if value is None:
            again = anyk.map(lambda x: x, X, code=code, workers=engine, faults=faults).value
            assert np.array_equal(got, again)
            assert not np.allclose(got, X)
        else:
            assert np.allclose(got, value)
    tree = anyk.map(lambda x: {"a": x, "b": (x, 2)}, X, code=code, workers=engine,
                    faults=dict.fromkeys(range(4), anyk.Corrupt("negate"))).value  # fmt: skip
    assert np.allclose(tree["b"][0], -X)
    assert np.allclose(tree["b"][1], -2)


@pytest.mark.parametrize("how", ["noise", "scale", "negate", "zero", "nan", "inf", "shape", "dtype"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.complex64, np.complex128, np.int32, np.bool_])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0,)])
def test_corruptions_of_every_kind_of_array(how: str, dtype: Any, shape: tuple[int, ...]) -> None:
    reply = np.ones(shape, dtype)
    spoiled = np.asarray(anyk.Corrupt(how).run(lambda: reply))
    assert spoiled.dtype.kind in "fciub"
    if how != "shape":
        assert spoiled.shape == shape
    if how in ("noise", "scale", "nan", "inf"):
        assert spoiled.dtype == np.result_type(dtype, np.float16)
    assert np.array_equal(reply, np.ones(shape, dtype))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: anyk.Slow(-1), "seconds must be"),
        (lambda: anyk.Slow("1"), "seconds must be"),
        (lambda: anyk.Slow(float("inf")), "seconds must be"),
        (lambda: anyk.Slow(float("nan")), "seconds must be"),
        (lambda: anyk.Crash(-1), "after must be"),
        (lambda: anyk.Corrupt("loudly"), "how must be one of noise"),
        (lambda: anyk.random_faults(3, 3, {anyk.Hang(): 1.5}), "probabilities"),
        (lambda: anyk.random_faults(3, 3, {anyk.Hang(): 0.5, anyk.Crash(): 0.6}), "sum to at most 1"),
        (lambda: anyk.FaultyWorkers(anyk.SimulatedWorkers(3), {(3, 0): anyk.Hang()}), "no worker 3"),
        (lambda: anyk.FaultyWorkers(anyk.SimulatedWorkers(3), {(0, -1): anyk.Hang()}), "round -1"),
    ],
)
def test_faults_are_checked(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_a_table_holds_faults() -> None:
    with pytest.raises(TypeError, match="the table must hold faults"):
        anyk.FaultyWorkers(anyk.SimulatedWorkers(3), {(0, 0): anyk.Crash})  # type: ignore[dict-item]


def test_a_crash_in_the_callers_own_process_is_not_a_kill() -> None:
    with pytest.raises(Crashed):
        anyk.Crash().run(lambda: None)


def test_a_table_is_followed_round_by_round(engine: Any) -> None:
    table: dict[tuple[int, int], Any] = {(1, 0): anyk.Raise("a"), (2, 1): anyk.Corrupt("nan"), (3, 3): anyk.Crash()}
    workers = anyk.FaultyWorkers(engine, table)
    failed = [list(run(workers).run.failed) for _ in range(5)]
    assert failed == [[1], [2], [], [3], []]
    assert workers.injected == [(1, 0, table[1, 0]), (2, 1, table[2, 1]), (3, 3, table[3, 3])]


def test_wrapped_and_bare_workers_can_be_mixed(engine: Any) -> None:
    assert run(engine, anyk.FirstK(7), faults={5: anyk.Hang()}).run.stragglers == (5,)
    wrapped = anyk.FaultyWorkers(engine, {(2, 0): anyk.Raise("first round of the wrapper")})
    result = run(wrapped, anyk.FirstK(6))
    assert result.run.round == 0
    assert result.run.skipped == (5,)
    assert list(result.run.failed) == [2] or result.run.stragglers == (2,)
    assert [(worker, round) for worker, round, _ in wrapped.injected] == [(2, 0)]
    assert engine.drop(5)
    assert run(engine).run.responders == tuple(range(N))
    twice = anyk.FaultyWorkers(anyk.FaultyWorkers(engine, {}), {(0, 0): anyk.Crash()})
    assert list(run(twice).run.failed) == [0]
    assert run(engine).run.responders == tuple(range(N))


def test_random_tables_are_reproducible_and_follow_their_rates() -> None:
    rates: dict[Any, float] = {anyk.Slow(0.5): 0.2, anyk.Crash(): 0.05, anyk.Corrupt("negate"): 0.1}
    table = anyk.random_faults(50, 400, rates, seed=7)
    assert table == anyk.random_faults(50, 400, rates, seed=7)
    assert table != anyk.random_faults(50, 400, rates, seed=8)
    assert table == anyk.random_faults(50, 400, rates, seed=np.random.default_rng(7))
    for fault, rate in rates.items():
        count = sum(each == fault for each in table.values())
        assert abs(count / 20_000 - rate) < 5 * np.sqrt(rate / 20_000)
    assert len({worker for worker, _ in table}) == 50
    assert anyk.random_faults(5, 5, {}, seed=1) == {}
    assert len(anyk.random_faults(5, 5, {anyk.Hang(): 1.0})) == 25


def test_a_random_table_gives_the_same_rounds_on_every_engine() -> None:
    table = anyk.random_faults(N, 6, {anyk.Raise("x"): 0.1, anyk.Corrupt("inf"): 0.1, anyk.Crash(): 0.1}, seed=3)
    story = []
    for make in (Local, anyk.ThreadWorkers, anyk.SimulatedWorkers):
        with anyk.FaultyWorkers(make(N), table) as workers:
            rounds = []
            for _ in range(6):
                try:
                    rounds.append(sorted(run(workers).run.failed))
                except (anyk.TooFewResponders, anyk.TaskFailed) as error:
                    rounds.append(sorted(error.run.failed))
            story.append((rounds, workers.injected))
    assert story[0] == story[1] == story[2]
    assert sum(map(len, story[0][0])) == len(table)
