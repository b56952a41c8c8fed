"""Sums of partial results: right on every engine, for results of every kind, whoever is late, dies or lies."""

from __future__ import annotations

import functools
import itertools
import math
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import optree
import pytest
import torch
from numpy.typing import NDArray

import anyk
from anyk.codes.polynomial_of_sum import matrix_polynomial
from anyk.errors import ApproximationWarning, BlocksError, DisagreeingReplies, NotPicklable

Array = NDArray[Any]
Local = functools.partial(anyk.LocalWorkers, preload=())
N = 8
CODE = anyk.NullSpaceCode(anyk.cyclic_placement(N, N, 6), stragglers=2, adversaries=1)  # two chunks
DATA = np.random.default_rng(0).standard_normal((N, 7))
SQUARES = (DATA**2).sum(axis=0)
HUNG = {0: anyk.Hang(), 1: anyk.Hang()}


@pytest.fixture(scope="module")
def local() -> Iterator[anyk.LocalWorkers]:
    with Local(N) as workers:
        yield workers


@pytest.fixture(scope="module", params=["threads", "local", "simulated", "executors", "wrapped"])
def engine(request: pytest.FixtureRequest, local: anyk.LocalWorkers) -> Iterator[Any]:
    if request.param == "local":
        yield local
    elif request.param == "wrapped":
        yield anyk.FaultyWorkers(local, {})
    elif request.param == "executors":
        pools = [ThreadPoolExecutor(1) for _ in range(N)]
        with anyk.ExecutorWorkers(pools) as workers:
            yield workers
        for pool in pools:
            pool.shutdown()
    else:
        with (anyk.ThreadWorkers if request.param == "threads" else anyk.SimulatedWorkers)(N) as workers:
            yield workers


def in_turn(n: int = N) -> anyk.SimulatedWorkers:
    """Worker k answers after k + 1 seconds."""
    return anyk.SimulatedWorkers(n, anyk.Trace(np.arange(1.0, n + 1)))


def close(got: Any, expected: Any, rounding: float = 1e-12) -> None:
    assert optree.tree_structure(got) == optree.tree_structure(expected)
    for a, b in zip(optree.tree_leaves(got), optree.tree_leaves(expected), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, rtol=rounding, atol=rounding * max(1.0, np.abs(b).max(initial=0.0)))


# -- the sum ----------------------------------------------------------------------------------------------------------

RESULTS: dict[str, tuple[Callable[[Any], Any], type]] = {
    "array": (lambda p: p, np.ndarray),
    "matrix": (lambda p: np.outer(p, p), np.ndarray),
    "number": (lambda p: float(p @ p), np.ndarray),
    "NumPy number": (lambda p: p @ p, np.ndarray),
    "one entry": (lambda p: p[:1], np.ndarray),
    "nothing": (lambda p: p[:0], np.ndarray),
    "dict": (lambda p: {"b": p[:2], "a": np.outer(p, p)}, dict),
    "nested": (lambda p: [p, {"x": (p[:3], 2 * p[0])}, [p[1:]]], list),
    "mixed precision": (lambda p: {"double": p, "single": p[:4].astype(np.float32)}, dict),
    "single": (lambda p: p.astype(np.float32), np.ndarray),
    "half": (lambda p: p.astype(np.float16), np.ndarray),
    "integers": (lambda p: np.round(100 * p).astype(np.int32), np.ndarray),
    "booleans": (lambda p: p > 0, np.ndarray),
    "count": (lambda p: int((p > 0).sum()), np.ndarray),
    "complex": (lambda p: p * (1 + 2j), np.ndarray),
    "complex single": (lambda p: (p * (1 + 2j)).astype(np.complex64), np.ndarray),
}
EPS = {"single": 1e-6, "mixed precision": 1e-6, "complex single": 1e-6, "half": 2e-3}


def summed(fn: Callable[[Any], Any], partitions: Any) -> Any:
    """By NumPy, in double precision, as what anyk.sum should return."""
    values = [optree.tree_map(np.asarray, fn(partition)) for partition in partitions]
    return optree.tree_map(
        lambda *each: np.asarray(np.sum(np.asarray(each, np.result_type(*each, np.float64)), axis=0)).astype(
            each[0].dtype if each[0].dtype.kind in "fc" else np.float64
        ),
        *values,
    )


@pytest.mark.parametrize("kind", RESULTS)
def test_results_of_every_kind_on_every_engine(engine: Any, kind: str) -> None:
    fn, container = RESULTS[kind]
    result = anyk.sum(fn, DATA, CODE, engine, faults={5: anyk.Corrupt("negate")}, stop=anyk.All())
    close(result.value, summed(fn, DATA), EPS.get(kind, 1e-12))
    assert isinstance(result.value, container)
    assert result.run.liars == (() if kind == "nothing" else (5,))
    assert result.code is CODE


@pytest.mark.parametrize("make", [anyk.ThreadWorkers, lambda n: anyk.LocalWorkers(n, preload=["torch"])])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tensors(make: Any, dtype: torch.dtype) -> None:
    parts = torch.arange(12, dtype=dtype).reshape(4, 3)
    with make(4) as workers:
        for partitions in (parts, list(parts), {"x": parts}):
            fn = lambda p: {"w": torch.outer(p, p), "loss": p.sum()}  # noqa: E731
            if isinstance(partitions, dict):
                fn = lambda p: {"w": torch.outer(p["x"], p["x"]), "loss": p["x"].sum()}  # noqa: E731
            value = anyk.sum(fn, partitions, anyk.CyclicCode(4, 1), workers).value
            assert isinstance(value["w"], torch.Tensor)
            assert value["w"].dtype == value["loss"].dtype == dtype
            assert torch.allclose(value["w"], torch.einsum("ki,kj->ij", parts, parts), rtol=1e-5)
            assert torch.allclose(value["loss"], parts.sum(), rtol=1e-5)


@pytest.mark.parametrize(
    "partitions",
    [
        DATA,
        list(DATA),
        (DATA,),
        {"x": DATA},
        {"x": DATA[:, :3], "y": (DATA[:, 3:],)},
        [{"any": "thing", "x": row} for row in DATA],
        range(N),
    ],
    ids=["array", "list", "tuple", "dict", "tree", "objects", "range"],
)
def test_partitions_of_every_kind(local: anyk.LocalWorkers, partitions: Any) -> None:
    def fn(part: Any) -> Any:
        if isinstance(part, int):
            return np.full(3, float(part))
        return sum(np.sum(leaf**2) for leaf in optree.tree_leaves(part) if not isinstance(leaf, str))

    expected = np.full(3, 28.0) if isinstance(partitions, range) else np.asarray(SQUARES.sum())
    close(anyk.sum(fn, partitions, CODE, local).value, expected)


RING = anyk.cyclic_placement(N, N, 6)
CODES = [
    CODE,
    anyk.NullSpaceCode(anyk.random_placement(N, 13, 5, 1), 2, 1),
    anyk.NullSpaceCode(anyk.placement_by_speed([0, 1, 1, 2, 2, 1, 1, 1], partitions=6, replicas=4), 2),
    anyk.GroupCode(N, 5, 4, 1, 1),
    anyk.GroupCode(N, 9, 4, 1),
    anyk.FractionalRepetitionCode(N, 8, 1, 1),
    anyk.UniversalPolynomialCode(RING, 2, 1),
    anyk.UniversalPolynomialCode(RING, 2, 1, nodes="circle"),
    anyk.CyclicCode(N, 2),
    anyk.CyclicMDSCode(N, 2),
    anyk.CyclicMDSCode(N, 3),
    anyk.GraphCode(N, 10, 3, 2),
    anyk.GraphCode(N, 10, 3, 2, weights="fixed"),
    anyk.BerrutGradientCode(anyk.cyclic_placement(N, N, 7), 2, 1),
    anyk.IgnoreStragglersCode(N, 11, 2),
]


@pytest.mark.parametrize("code", CODES, ids=lambda code: repr(code)[:60])
@pytest.mark.parametrize("d", [1, 2, 7])
@pytest.mark.filterwarnings("ignore::anyk.errors.ApproximationWarning")
def test_every_code_gives_what_its_matrices_say(code: anyk.GradientCode, d: int) -> None:
    data = np.random.default_rng(d).standard_normal((code.partitions, d))
    messages = code.encode(data)
    with in_turn() as workers:
        for stop in (None, anyk.All()):
            result = anyk.sum(lambda p: p, data, code, workers, stop)
            who = result.run.responders
            assert len(who) == (N if stop is not None else code.threshold) - (N - len(code.active)) * (stop is not None)
            chunks = code.decoder(who).matrix @ messages[list(who)]
            np.testing.assert_allclose(result.value, chunks.real.ravel()[:d], atol=1e-12)
            if not code.approximate:
                np.testing.assert_allclose(result.value, data.sum(axis=0), atol=1e-9)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_lower_precision_is_rounded_once(dtype: str) -> None:
    code = anyk.NullSpaceCode(anyk.cyclic_placement(20, 20, 10), 4, 1)
    data = np.random.default_rng(1).standard_normal((20, 4000)).astype(dtype)
    truth = data.astype(np.float64).sum(axis=0)
    with anyk.ThreadWorkers(20) as workers:
        value = anyk.sum(lambda p: p, data, code, workers).value
    assert value.dtype == dtype
    off = np.linalg.norm(value.astype(np.float64) - truth) / np.linalg.norm(truth)
    assert off < float(np.finfo(dtype).eps)


def test_the_sum_of_contributions_that_cancel_accuses_nobody() -> None:
    centred = DATA - DATA.mean(axis=0)
    for code in (anyk.GroupCode(5, N, 5, 1, 1), anyk.NullSpaceCode(np.ones((5, N)), 1, 1)):
        with anyk.ThreadWorkers(5) as workers:
            result = anyk.sum(lambda p: p, centred, code, workers, stop=anyk.All())
        assert result.run.liars == ()
        np.testing.assert_allclose(result.value, np.zeros(7), atol=1e-14)


def test_a_polynomial_of_the_sum_with_liars(engine: Any) -> None:
    code = anyk.PolynomialOfSumCode(anyk.cyclic_placement(N, N, 7), [1, 0, 0.5], stragglers=2, adversaries=1)
    parts = np.random.default_rng(2).standard_normal((N, 3, 3)) / 3
    expected = matrix_polynomial(code.polynomial, parts.sum(axis=0))
    for how in ("negate", "noise", "nan", "shape"):
        result = anyk.sum(lambda p: p, parts, code, engine, stop=anyk.All(), faults={3: anyk.Corrupt(how)})
        assert result.run.liars == (3,)
        close(result.value, expected, 1e-9)
    with pytest.raises(anyk.TaskFailed, match="one square matrix for every partition"):
        anyk.sum(lambda p: p[0], parts, code, engine)


def test_without_stragglers_some_are_ignored_and_the_rest_scaled_up() -> None:
    code = anyk.IgnoreStragglersCode(N, N, stragglers=2)
    with in_turn() as workers:
        result = anyk.sum(lambda p: p, DATA, code, workers)
    assert result.run.responders == (0, 1, 2, 3, 4, 5)
    close(result.value, DATA[:6].sum(axis=0) * N / 6)
    with in_turn() as workers:
        close(anyk.sum(lambda p: p, DATA, anyk.IgnoreStragglersCode(N, N), workers).value, DATA.sum(axis=0))


# -- workers and codes by default -------------------------------------------------------------------------------------


def test_the_default_code_has_two_copies() -> None:
    with anyk.ThreadWorkers(N) as workers:
        result = anyk.sum(np.square, DATA, workers=workers)
    assert result.code == anyk.GroupCode(N, N, 2, stragglers=1)
    close(result.value, SQUARES)
    with anyk.ThreadWorkers(1) as workers:
        close(anyk.sum(np.square, DATA, workers=workers, faults={0: anyk.Slow(0.01)}).value, SQUARES)


def test_workers_as_a_number_and_by_default() -> None:
    result = anyk.sum(lambda p: p**2, DATA[:3], workers=np.int64(5))
    close(result.value, (DATA[:3] ** 2).sum(axis=0))
    assert result.run.workers == tuple(range(5))
    assert anyk.sum(lambda p: p**2, DATA[:3], stop=anyk.All()).run.responders == (0, 1, 2)


def test_more_workers_than_the_code_needs(engine: Any) -> None:
    code = anyk.CyclicCode(5, 2)
    result = anyk.sum(lambda p: p, DATA[:5], code, engine, stop=anyk.All())
    assert result.run.workers == (0, 1, 2, 3, 4)
    close(result.value, DATA[:5].sum(axis=0))


# -- partitions stay where they are -----------------------------------------------------------------------------------


def test_partitions_are_sent_once_and_parameters_in_every_round(engine: Any) -> None:
    rounds = 200 if isinstance(engine, anyk.ThreadWorkers) else 20
    data = DATA.copy()
    messages = math.ceil(7 / CODE.chunks)
    for step in range(rounds):
        scale = np.full(7, float(step))
        result = anyk.sum(lambda p, a, b: p * a + b, data, CODE, engine, anyk.All(), (scale, 0.5))
        close(result.value, data.sum(axis=0) * step + 0.5 * N)
        placed = N * 6 * 7 if step == 0 else 0  # six copies of eight partitions of seven numbers
        assert result.run.traffic == (N * 8, N * messages, placed)


@pytest.mark.parametrize("hung", [0, 2])
def test_traffic_counts_who_answered(hung: int) -> None:
    faults = dict(itertools.islice(HUNG.items(), hung))
    with in_turn() as workers:
        stop = anyk.FirstK(N - hung)
        traffic = anyk.sum(np.square, DATA, CODE, workers, stop, faults=faults).run.traffic
    assert traffic == (0, (N - hung) * 4, N * 6 * 7)


def test_a_new_list_of_the_same_partitions_is_not_sent_again(engine: Any) -> None:
    parts = list(DATA.copy())
    placed = [
        anyk.sum(lambda p: p, each, CODE, engine, anyk.All()).run.traffic.placed
        for each in (parts, list(parts), parts[:], [row.copy() for row in parts], parts)
    ]
    assert placed == [N * 6 * 7, 0, 0, N * 6 * 7, 0]


def test_two_sets_of_partitions_on_the_same_workers(engine: Any) -> None:
    one, other = DATA.copy(), 2 * DATA[:, :3]
    for step in range(6):
        data = (one, other)[step % 2]
        result = anyk.sum(lambda p: p, data, CODE, engine, anyk.All())
        close(result.value, data.sum(axis=0))
        assert (result.run.traffic.placed > 0) == (step < 2)


def test_many_sets_of_partitions_one_after_the_other(local: anyk.LocalWorkers) -> None:
    sets = [DATA + shift for shift in range(7)]
    for data in (*sets, *sets):
        close(anyk.sum(lambda p: p, data, CODE, local, anyk.All()).value, data.sum(axis=0))


def test_a_list_whose_elements_are_replaced(local: anyk.LocalWorkers) -> None:
    parts = [np.full(3, 1.0) for _ in range(N)]
    for step in range(20):  # a new array takes the place of the old one in memory, perhaps
        close(anyk.sum(lambda p: p, parts, CODE, local, anyk.All()).value, np.full(3, float(N + step)))
        value = parts[0][0]
        del parts[0]
        parts.insert(0, np.full(3, value + 1))


def test_the_same_arrays_in_another_structure(engine: Any) -> None:
    data = DATA.copy()
    close(anyk.sum(lambda p: p, data, CODE, engine).value, data.sum(axis=0))
    close(anyk.sum(lambda p: p["x"], {"x": data}, CODE, engine).value, data.sum(axis=0))
    close(anyk.sum(lambda p: p["y"], {"y": data}, CODE, engine).value, data.sum(axis=0))
    close(anyk.sum(lambda p: p[0], (data,), CODE, engine).value, data.sum(axis=0))


def test_several_codes_and_functions_over_the_same_partitions(engine: Any) -> None:
    data = DATA.copy()
    codes = [CODE, anyk.GroupCode(N, N, 4, 1, 1), anyk.CyclicCode(N, 3)]
    for step, code in enumerate([*codes, *codes]):
        result = anyk.sum([np.square, np.abs, np.sign][step % 3], data, code, engine, anyk.All())
        close(result.value, [data**2, np.abs(data), np.sign(data)][step % 3].sum(axis=0))
        assert step < 3 or result.run.traffic.placed == 0


# -- stragglers and the dead ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [anyk.Slow(0.4), anyk.Raise(), anyk.Crash(), anyk.Corrupt("nan")], ids=repr)
def test_as_many_faults_as_the_code_is_for(engine: Any, fault: Any) -> None:
    code = anyk.NullSpaceCode(RING, stragglers=2)
    for _ in range(2):
        result = anyk.sum(np.square, DATA, code, engine, faults={2: fault, 6: fault})
        close(result.value, SQUARES)
        if isinstance(engine, anyk.ExecutorWorkers) and isinstance(fault, anyk.Crash):
            pytest.skip("an executor that died stays dead: test_executors has its own")


def test_a_worker_killed_between_rounds_gets_its_partitions_again(local: anyk.LocalWorkers) -> None:
    data = DATA.copy()
    anyk.sum(np.square, data, CODE, local, anyk.All())
    os.kill(local.pids[3], signal.SIGKILL)
    placed = 0
    for _ in range(3):  # the death is noticed in the first round or in its middle
        result = anyk.sum(np.square, data, CODE, local, anyk.All())
        close(result.value, SQUARES)
        placed += result.run.traffic.placed
    assert result.run.responders == tuple(range(N))
    assert placed == 6 * 7


@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("when", ["started", "submitted", "answered"])
def test_workers_killed_or_stopped_during_the_round(kind: signal.Signals, when: str) -> None:
    with Local(N) as workers:
        anyk.sum(np.square, DATA, CODE, workers, anyk.All())
        pids, hit = workers.pids, []

        def strike(event: anyk.RoundEvent) -> None:
            if event.kind == when and not hit:
                for victim in (2, 5):
                    os.kill(pids[victim], kind)
                    hit.append(victim)

        result = anyk.sum(np.square, DATA, CODE, workers, on_event=strike)
        close(result.value, SQUARES)
        assert hit == [2, 5]
        for _ in range(2):
            close(anyk.sum(np.square, DATA, CODE, workers).value, SQUARES)
        if kind == signal.SIGSTOP and when == "started":  # so that they cannot have answered
            faults = {0: anyk.Raise(), 1: anyk.Raise()}  # now both are needed, and started afresh
            result = anyk.sum(np.square, DATA, CODE, workers, faults=faults)
            close(result.value, SQUARES)
            assert result.run.responders == (2, 3, 4, 5, 6, 7)


@pytest.mark.parametrize("make", [anyk.ThreadWorkers, anyk.SimulatedWorkers, Local])
def test_a_worker_replaced_in_the_middle_of_a_round(make: Any) -> None:
    with make(N) as workers:

        def replace(event: anyk.RoundEvent) -> None:
            if event.kind == "submitted" and event.worker == 4:
                workers.drop(4)

        faults = {4: anyk.Hang()}
        result = anyk.sum(np.square, DATA, CODE, workers, anyk.All(), on_event=replace, faults=faults)
        close(result.value, SQUARES)
        assert "dropped" in result.run.failed[4]
        result = anyk.sum(np.square, DATA, CODE, workers, anyk.All())
        close(result.value, SQUARES)
        assert result.run.responders == tuple(range(N))


def test_an_executor_that_dies() -> None:
    pools = [ThreadPoolExecutor(1) for _ in range(N)]
    with anyk.ExecutorWorkers(pools) as workers:
        close(anyk.sum(np.square, DATA, CODE, workers, faults={7: anyk.Crash()}).value, SQUARES)
        pools[6].shutdown()
        result = anyk.sum(np.square, DATA, CODE, workers, anyk.All())
        close(result.value, SQUARES)
        assert result.run.responders == (0, 1, 2, 3, 4, 5)
    for pool in pools:
        pool.shutdown()


def test_another_worker_hangs_in_every_round() -> None:
    with anyk.ThreadWorkers(N) as workers:
        for step in range(7):
            result = anyk.sum(np.square, DATA, CODE, workers, faults={step: anyk.Hang()})
            close(result.value, SQUARES)


def test_hundreds_of_rounds_with_random_faults() -> None:
    rng = np.random.default_rng(3)
    table: dict[tuple[int, int], Any] = {}
    kinds = [anyk.Hang(), anyk.Raise(), anyk.Slow(100), anyk.Crash()]
    lies = [anyk.Corrupt(how) for how in ("noise", "scale", "negate", "zero", "nan", "inf", "none", "shape", "dtype")]
    expected = []
    for step in range(300):
        late, later, liar = (int(worker) for worker in rng.permutation(N)[:3])
        table[late, step], table[later, step] = (kinds[kind] for kind in rng.integers(4, size=2))
        lie = lies[int(rng.integers(len(lies)))]
        table[liar, step] = anyk.Corrupt("scale", 1.5) if lie.how == "scale" else lie
        expected.append(liar)
    with anyk.SimulatedWorkers(N) as inner:
        workers = anyk.FaultyWorkers(inner, table)
        for liar in expected:
            result = anyk.sum(np.square, DATA, CODE, workers)
            close(result.value, SQUARES)
            assert result.run.liars == (liar,)


# -- liars ------------------------------------------------------------------------------------------------------------

CHANGING: list[Any] = [
    *("noise", "negate", "zero", "nan", "inf", "shape", "dtype"),
    lambda y: 1.7 * y,
    lambda y: y + 1e-6,
    lambda y: 1e12 * np.ones_like(y),
    lambda y: np.full_like(y, 1e300),
    lambda y: np.where(np.arange(y.size).reshape(y.shape) == 1, y + 1, y),
    lambda y: y.astype(np.float32),
    lambda y: {"a": y},
]


def test_a_liar_that_changes_its_attack_in_every_round(engine: Any) -> None:
    for step in range(30):
        how, liar = CHANGING[step % len(CHANGING)], 5 * step % N
        result = anyk.sum(np.square, DATA, CODE, engine, anyk.All(), faults={liar: anyk.Corrupt(how)})
        close(result.value, SQUARES, 1e-11)
        assert result.run.liars == (liar,)
        assert liar not in result.run.responders


@pytest.mark.parametrize("how", ["nan", "inf", "shape", "dtype"])
def test_a_reply_that_cannot_be_true_is_among_the_liars_and_the_failed(engine: Any, how: str) -> None:
    run = anyk.sum(np.square, DATA, CODE, engine, anyk.All(), faults={3: anyk.Corrupt(how)}).run
    assert run.liars == (3,)
    assert list(run.failed) == [3]
    assert run.responders == (0, 1, 2, 4, 5, 6, 7)


@pytest.mark.parametrize("how", ["nan", "none", "shape", "dtype", "negate", lambda y: y.astype(np.float32)])
def test_a_liar_of_any_kind_leaves_room_for_all_stragglers(how: Any) -> None:
    with in_turn() as workers:
        result = anyk.sum(np.square, DATA, CODE, workers, faults=HUNG | {2: anyk.Corrupt(how)})
    close(result.value, SQUARES)
    assert result.run.liars == (2,)
    assert result.run.responders == (3, 4, 5, 6, 7)


def test_a_liar_and_a_reply_that_is_none_in_every_group() -> None:
    code = anyk.GroupCode(12, 6, 6, 1, 1)
    faults = {0: anyk.Corrupt("nan"), 6: anyk.Corrupt("zero"), 5: anyk.Hang(), 11: anyk.Hang()}
    with in_turn(12) as workers:
        result = anyk.sum(np.square, DATA[:6], code, workers, faults=faults)
    close(result.value, (DATA[:6] ** 2).sum(axis=0))
    assert result.run.liars == (0, 6)


def test_one_liar_too_many_may_be_found_with_more_answers() -> None:
    faults = {0: anyk.Corrupt("nan"), 1: anyk.Corrupt("scale", 3.0)}
    with in_turn() as workers:
        result = anyk.sum(np.square, DATA, CODE, workers, faults=faults)
    close(result.value, SQUARES)
    assert result.run.liars == (0, 1)
    assert len(result.run.responders) > CODE.threshold - 2


@pytest.mark.parametrize("others", [{}, {7: anyk.Raise()}, {6: anyk.Raise(), 7: anyk.Raise()}], ids=len)
def test_two_liars_where_one_is_expected_are_refused(engine: Any, others: dict[int, Any]) -> None:
    faults = {1: anyk.Corrupt("scale", 3.0), 2: anyk.Corrupt("negate")} | others
    with pytest.raises(anyk.TooManyErrors, match="contradict one another") as caught:
        anyk.sum(np.square, DATA, CODE, engine, anyk.All(), faults=faults)
    assert set(caught.value.arrived) == set(range(N)) - set(others)
    assert caught.value.run.responders == tuple(caught.value.arrived)


@pytest.mark.parametrize("make", [anyk.ThreadWorkers, anyk.SimulatedWorkers, Local])
def test_two_liars_are_refused_even_if_the_rest_never_answer(make: Any) -> None:
    faults = {1: anyk.Corrupt("scale", 3.0), 2: anyk.Corrupt("negate"), 6: anyk.Hang(), 7: anyk.Hang()}
    with make(N) as workers, pytest.raises(anyk.TooManyErrors, match="contradict one another") as caught:
        anyk.sum(np.square, DATA, CODE, workers, faults=faults)
    assert set(caught.value.arrived) == set(range(6))


def test_a_deadline_ends_the_wait_for_further_answers() -> None:
    faults = {0: anyk.Corrupt("scale", 3.0), 1: anyk.Corrupt("negate"), 7: anyk.Slow(1000)}
    with in_turn() as workers:
        with pytest.raises(anyk.TooManyErrors):
            anyk.sum(np.square, DATA, CODE, workers, anyk.Sufficient() | anyk.Deadline(50), faults=faults)
        assert workers.time() <= 50


@pytest.mark.parametrize("adversaries", [0, 1])
def test_results_that_differ_between_replicas_are_refused_with_a_hint(engine: Any, adversaries: int) -> None:
    code = anyk.NullSpaceCode(RING, 2, adversaries)
    with pytest.raises(anyk.TooManyErrors, match="without a common seed"):
        anyk.sum(lambda p: p + np.random.default_rng().random(7), DATA, code, engine, anyk.All())
    value = anyk.sum(lambda p, seed: p + np.random.default_rng(seed).random(7), DATA, code, engine, args=(1,)).value
    close(value, DATA.sum(axis=0) + N * np.random.default_rng(1).random(7))


def test_tolerance_lets_small_differences_pass() -> None:
    fn = lambda p: p * (1 + 1e-9 * np.random.default_rng().random(7))  # noqa: E731
    with anyk.ThreadWorkers(N) as workers:
        with pytest.raises(anyk.TooManyErrors, match="unlike hardware"):
            anyk.sum(fn, DATA, CODE, workers, anyk.All())
        result = anyk.sum(fn, DATA, CODE, workers, anyk.All(), tolerance=1e-6, faults={4: anyk.Corrupt("scale", 1.1)})
    assert result.run.liars == (4,)
    close(result.value, DATA.sum(axis=0), 1e-6)


# -- when to stop -----------------------------------------------------------------------------------------------------


def test_the_first_sufficient_answers_are_enough() -> None:
    with in_turn() as workers:
        result = anyk.sum(np.square, DATA, CODE, workers)
    assert result.run.responders == tuple(range(6))
    assert result.run.stragglers == (6, 7)
    assert result.run.seconds == 6.0
    code = anyk.GroupCode(N, N, 4, 2, 0)
    with in_turn() as workers:  # two of each group of four
        result = anyk.sum(np.square, DATA, code, workers, faults={0: anyk.Slow(90), 3: anyk.Slow(90), 4: anyk.Hang()})
    close(result.value, SQUARES)
    assert result.run.responders == (1, 2, 5, 6)
    assert len(result.run.responders) < code.threshold


@pytest.mark.parametrize("stop", [anyk.FirstK(3), anyk.Deadline(3.5)], ids=repr)
def test_fewer_answers_than_an_exact_sum_needs_warn_with_what_is_missed(stop: Any) -> None:
    with (
        in_turn() as workers,
        pytest.warns(ApproximationWarning, match=r"3 .*off by about 0\.\d+ of the sum") as caught,
    ):
        result = anyk.sum(np.square, DATA, CODE, workers, stop)
    assert caught[0].filename == __file__
    assert result.run.responders == (0, 1, 2)
    off = float(np.linalg.norm(result.value - SQUARES) / np.linalg.norm(SQUARES))
    assert 0.01 < off < 2
    assert result.decoder.residual > 0.1


def test_answers_that_leave_no_room_for_liars_warn() -> None:
    with in_turn() as workers, pytest.warns(ApproximationWarning, match="not for finding 1 liars"):
        close(anyk.sum(np.square, DATA, CODE, workers, anyk.FirstK(4)).value, SQUARES)


def test_a_rule_that_cannot_be_met() -> None:
    with in_turn() as workers:
        with pytest.raises(anyk.TooFewResponders, match=r"FirstK\(k=7\) cannot be met: 6 of 8") as caught:
            anyk.sum(np.square, DATA, CODE, workers, anyk.FirstK(7), faults={6: anyk.Crash(9), 7: anyk.Crash(9)})
        assert set(caught.value.arrived) == set(range(6))
        with pytest.raises(anyk.TooFewResponders, match="nobody answered"):
            anyk.sum(np.square, DATA, CODE, workers, anyk.Deadline(0.5))


# -- functions that fail ----------------------------------------------------------------------------------------------


def test_a_function_that_raises(engine: Any) -> None:
    with pytest.raises(anyk.TaskFailed, match="ZeroDivisionError") as caught:
        anyk.sum(lambda p: 1 / 0, DATA, CODE, engine)
    assert caught.value.worker in range(N)
    assert "<lambda>" in caught.value.traceback_text
    close(anyk.sum(np.square, DATA, CODE, engine).value, SQUARES)


def test_a_partition_that_its_holders_cannot_compute() -> None:
    def fn(part: Any) -> Any:
        if part[0] == DATA[0, 0]:
            raise ValueError("bad partition")
        return part

    with anyk.ThreadWorkers(N) as workers, pytest.raises(anyk.TaskFailed, match="bad partition") as caught:
        anyk.sum(fn, DATA, CODE, workers)
    assert CODE.placement[caught.value.worker, 0]


@pytest.mark.parametrize(
    ("fn", "text"),
    [
        (lambda p: p[: 3 + (p[0] > 0)], r"float64\[[34]\] for one partition and float64\[[34]\] for another"),
        (lambda p: p.astype("f" if p[0] > 0 else "d"), r"float(32|64)\[7\] for one partition and float(32|64)"),
        (lambda p: {"a" if p[0] > 0 else "b": p}, "for another"),
        (lambda p: None, "got None or nothing"),
        (lambda p: {"a": p, "b": None}, "got None or nothing"),
        (lambda p: [], "got None or nothing"),
        (lambda p: "text", "str"),
        (lambda: None, "positional argument"),
    ],
)
def test_results_that_cannot_be_summed(engine: Any, fn: Any, text: str) -> None:
    with pytest.raises(anyk.TaskFailed, match=text):
        anyk.sum(fn, DATA, CODE, engine)


def test_not_finite_everywhere(engine: Any) -> None:
    with pytest.raises(anyk.TooFewResponders, match="non-finite"):
        anyk.sum(lambda p: p * np.nan, DATA, CODE, engine)


def test_what_cannot_travel(local: anyk.LocalWorkers) -> None:
    lock = threading.Lock()
    with pytest.raises(NotPicklable):
        anyk.sum(lambda p: p * lock.locked(), DATA, CODE, local)
    with pytest.raises(NotPicklable):
        anyk.sum(lambda p: p, [lock] * N, CODE, local)
    with pytest.raises(NotPicklable):
        anyk.sum(lambda p, a: p, DATA, CODE, local, args=(lock,))
    close(anyk.sum(np.square, DATA, CODE, local, anyk.All()).value, SQUARES)


# -- bad input --------------------------------------------------------------------------------------------------------

BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no partitions": ({"partitions": []}, BlocksError, "there are none"),
    "an empty array": ({"partitions": np.zeros((0, 3))}, BlocksError, "there are none"),
    "too few partitions": ({"partitions": DATA[:7]}, BlocksError, r"is for 8, got 7"),
    "too many partitions": ({"partitions": [*DATA, DATA[0]]}, BlocksError, r"is for 8, got 9"),
    "a generator": ({"partitions": (row for row in DATA)}, BlocksError, "list first"),
    "text": ({"partitions": "abcdefgh"}, BlocksError, "must be a list"),
    "None": ({"partitions": None}, BlocksError, "must be a list"),
    "a scalar array": ({"partitions": np.ones(())}, BlocksError, "leading axis"),
    "a tuple of numbers": ({"partitions": tuple(range(8))}, BlocksError, "leading axis"),
    "unequal axes": ({"partitions": {"a": np.ones(8), "b": np.ones(9)}}, BlocksError, r"\[8, 9\]"),
    "args as list": ({"args": [1]}, TypeError, "args must be a tuple"),
    "args as array": ({"args": DATA}, TypeError, "args must be a tuple"),
    "a data code": ({"code": anyk.BerrutCode(8, 8)}, TypeError, "code must be a gradient code"),
    "code as class": ({"code": anyk.NullSpaceCode}, TypeError, "code must be a gradient code"),
    "fn": ({"fn": 3}, TypeError, "fn must be callable"),
    "too few workers": ({"workers": 7}, ValueError, "needs 8 workers, got 7"),
    "no workers": ({"workers": 0}, ValueError, "needs 8 workers, got 0"),
    "workers as text": ({"workers": "8"}, ValueError, "workers='8' is no engine"),
    "too many unasked": ({"code": None, "partitions": np.ones(200)}, ValueError, "200 processes: pass workers="),
    "stop": ({"stop": 5}, TypeError, "stop must be a stop rule"),
    "k > n": ({"stop": anyk.FirstK(9)}, ValueError, "only 8 workers"),
    "faults as list": ({"faults": [anyk.Hang()]}, TypeError, "faults must be a mapping"),
    "fault of nobody": ({"faults": {8: anyk.Crash()}}, ValueError, r"workers 0\.\.7"),
    "fault as text": ({"faults": {1: "slow"}}, TypeError, "faults must map"),
    "tolerance": ({"tolerance": 0.0}, ValueError, "tolerance must be a positive number"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case: str) -> None:
    before = threading.active_count()
    options, kind, text = BAD[case]
    with pytest.raises(kind, match=text):
        anyk.sum(**({"fn": np.square, "partitions": DATA, "code": CODE} | options))
    assert threading.active_count() == before


# -- events -----------------------------------------------------------------------------------------------------------


def test_events_tell_the_story_in_order(engine: Any) -> None:
    events: list[anyk.RoundEvent] = []
    faults = {1: anyk.Raise("x"), 2: anyk.Corrupt("nan"), 3: anyk.Corrupt("shape")}
    code = anyk.NullSpaceCode(RING, 1, 2)
    run = anyk.sum(np.square, DATA, code, engine, anyk.All(), faults=faults, on_event=events.append).run
    events = [event for event in events if event.kind != "late"]  # what earlier rounds have left
    kinds = [event.kind for event in events]
    assert (kinds[0], kinds[-1]) == ("started", "ended")
    assert kinds.count("submitted") == N
    assert {event.worker for event in events if event.kind == "answered"} == set(run.responders) | {3}
    assert {event.worker: event.detail for event in events if event.kind == "failed"} == run.failed
    assert run.liars == (2, 3)
    assert [event.seconds for event in events] == sorted(event.seconds for event in events)
    assert {event.round for event in events} == {run.round}


def test_a_callback_cannot_start_another_round_with_the_same_workers(engine: Any) -> None:
    def again(event: anyk.RoundEvent) -> None:
        if event.kind == "answered":
            anyk.sum(np.square, DATA, CODE, engine)

    with pytest.raises(RuntimeError, match="in the middle of a round"):
        anyk.sum(np.square, DATA, CODE, engine, on_event=again)
    with pytest.raises(RuntimeError, match="in the middle of a round"):
        anyk.map(lambda x: x, [1.0], code=anyk.RepetitionCode(N, 1), workers=engine, on_event=again)
    close(anyk.sum(np.square, DATA, CODE, engine).value, SQUARES)


def test_progress_goes_to_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    with anyk.ThreadWorkers(N) as workers:
        anyk.sum(np.square, DATA, CODE, workers, anyk.All(), progress=True)
        assert f"{N}/{N}" in capfd.readouterr().err
        anyk.sum(np.square, DATA, CODE, workers, anyk.All())
    assert capfd.readouterr() == ("", "")


def test_several_threads_share_workers(engine: Any) -> None:
    values: dict[int, Any] = {}

    def work(shift: int) -> None:
        for _ in range(5):
            values[shift] = anyk.sum(lambda p, a: p + a, DATA, CODE, engine, args=(shift,)).value

    threads = [threading.Thread(target=work, args=(shift,)) for shift in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(values) == [0, 1, 2, 3]
    for shift, value in values.items():
        close(value, (DATA + shift).sum(axis=0))


def test_a_round_and_a_map_on_the_same_workers(engine: Any) -> None:
    for _ in range(3):
        close(anyk.sum(np.square, DATA, CODE, engine).value, SQUARES)
        blocks = np.arange(4.0)
        value = anyk.map(lambda x: 2 * x, blocks, code=anyk.RepetitionCode(N, 4), workers=engine).value
        assert np.array_equal(value, 2 * blocks)


def test_replies_without_a_majority() -> None:
    faults = {worker: anyk.Corrupt("shape") for worker in range(4)}
    with anyk.ThreadWorkers(N) as workers, pytest.raises(DisagreeingReplies, match="neither is the majority"):
        anyk.sum(np.square, DATA, CODE, workers, anyk.All(), faults=faults)
