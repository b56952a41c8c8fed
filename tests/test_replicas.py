"""Replicas agree: common streams, common parameters; and where they do not, the error says so and accuses nobody."""

from __future__ import annotations

import functools
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import anyk
from anyk.errors import TooFewResponders
from anyk.locate import locate
from anyk.torch import CodedGradient

cloudpickle.register_pickle_by_value(sys.modules[__name__])

Array = NDArray[Any]
N = 8
RING = anyk.cyclic_placement(N, N, 6)
CODE = anyk.NullSpaceCode(RING, stragglers=2, adversaries=1)
GROUPS = anyk.GroupCode(N, N, replicas=4, stragglers=1, adversaries=1)
PAIRS = anyk.GroupCode(N, N, replicas=2, stragglers=1)
CODES = {"ring": CODE, "nobody lies": anyk.NullSpaceCode(RING, 3), "groups": GROUPS, "pairs": PAIRS}
DATA = np.random.default_rng(0).standard_normal((N, 7))


@pytest.fixture(scope="module")
def local() -> Iterator[anyk.LocalWorkers]:
    with anyk.LocalWorkers(N, preload=("torch",)) as workers:
        yield workers


@pytest.fixture(scope="module", params=["threads", "local", "simulated"])
def engine(request: pytest.FixtureRequest, local: anyk.LocalWorkers) -> Iterator[Any]:
    if request.param == "local":
        yield local
    else:
        with (anyk.ThreadWorkers if request.param == "threads" else anyk.SimulatedWorkers)(N) as workers:
            yield workers


# -- streams ----------------------------------------------------------------------------------------------------------


def noisy(row: Array, scale: float = 1.0, *, rng: np.random.Generator) -> Array:
    return row + scale * rng.standard_normal(row.shape) + rng.random()


def expected(streams: np.random.Generator) -> Array:
    return np.sum([noisy(row, rng=rng) for row, rng in zip(DATA, streams.spawn(N), strict=True)], axis=0)


@pytest.mark.parametrize("code", CODES.values(), ids=CODES)
def test_an_integer_gives_the_same_streams_whoever_answers(engine: Any, code: anyk.GradientCode) -> None:
    for worker in (0, 3, 7):
        faults = {worker: anyk.Raise()}
        result = anyk.sum(noisy, DATA, code, engine, anyk.Sufficient() | anyk.All(), rng=5, faults=faults)
        assert (result.run.liars, worker in result.run.responders) == ((), False)
        np.testing.assert_allclose(result.value, expected(np.random.default_rng(5)), rtol=1e-9)


@given(
    seed=st.integers(0, 1 << 130),
    kind=st.sampled_from([np.random.PCG64, np.random.Philox, np.random.SFC64, np.random.MT19937]),
    lost=st.sets(st.integers(0, N - 1), max_size=2),
)
@settings(max_examples=30, deadline=None)
def test_a_generator_goes_on_from_call_to_call(seed: int, kind: Any, lost: set[int]) -> None:
    mine, theirs = np.random.Generator(kind(seed)), np.random.Generator(kind(seed))
    faults = dict.fromkeys(lost, anyk.Raise())
    seen = set()
    with anyk.SimulatedWorkers(N) as workers:
        for _ in range(3):
            value = anyk.sum(noisy, DATA, CODE, workers, anyk.All(), rng=mine, faults=faults).value
            np.testing.assert_allclose(value, expected(theirs.spawn(1)[0]), rtol=1e-9)
            seen.add(value[0])
    assert len(seen) == 3


def test_every_partition_and_every_seed_has_a_stream_of_its_own() -> None:
    drawn = []
    with anyk.ThreadWorkers(N) as workers:
        for seed in (0, np.int64(1), 2):
            fn = lambda k, *, rng: np.eye(N)[k] * rng.random()  # noqa: E731
            drawn += anyk.sum(fn, range(N), CODE, workers, rng=seed).value.tolist()
    assert len({round(value, 9) for value in drawn}) == 3 * N


def test_who_stands_in_for_another_draws_the_same() -> None:
    code = anyk.CyclicCode(5, 1)
    slow = anyk.Trace(np.array([1.0, 1.0, 1.0, 500.0, 500.0, 1.0, 1.0, 1.0]))
    with anyk.SimulatedWorkers(N, slow) as workers:
        result = anyk.sum(noisy, DATA[:5], code, workers, anyk.All(), rng=3, late=anyk.Backup())
    streams = np.random.default_rng(3).spawn(5)
    assert set(result.run.backups) == {3, 4}
    np.testing.assert_allclose(
        result.value, np.sum([noisy(r, rng=s) for r, s in zip(DATA[:5], streams, strict=True)], 0)
    )


def test_without_rng_the_function_gets_none(engine: Any) -> None:
    value = anyk.sum(lambda p, **more: p * len(more), DATA, CODE, engine).value
    np.testing.assert_array_equal(value, np.zeros(7))


@pytest.mark.parametrize("rng", [-1, True, 0.5, "seed", np.random.RandomState(0)])
def test_what_is_no_source_of_streams(rng: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="rng must be"):
        anyk.sum(noisy, DATA, CODE, 8, rng=rng)


# -- parameters -------------------------------------------------------------------------------------------------------


class Behind(anyk.FaultyWorkers):
    """Some workers never get past the parameters of the first round."""

    def __init__(self, workers: Any, who: set[int]) -> None:
        super().__init__(workers, {})
        self.who, self.first = who, None

    def submit(self, worker: int, token: Any, fn: Any, *args: Any) -> None:
        if fn.__name__ == "_message":
            job, share, parameters, *held = args
            self.first = parameters if self.first is None else self.first
            args = (job, share, self.first if worker in self.who else parameters, *held)
        super().submit(worker, token, fn, *args)


def scaled(row: Array, weights: dict[str, Any]) -> Array:
    return row * weights["w"][0] + weights["b"]


@pytest.mark.parametrize("size", [1, 20_000])  # small ones travel inside of messages, large ones beside them
def test_a_worker_with_old_parameters_is_an_erasure(engine: Any, size: int) -> None:
    workers = Behind(engine, {2, 5})
    for step in range(4):
        weights = {"w": np.full(size, 1.0 + step), "b": 0.5}
        result = anyk.sum(scaled, DATA, CODE, workers, anyk.All(), (weights,))
        np.testing.assert_allclose(result.value, DATA.sum(axis=0) * (1 + step) + 0.5 * N)
        assert set(result.run.failed) == (workers.who if step else set())
        assert not step or result.run.responders == (0, 1, 3, 4, 6, 7)
        assert all(reason.startswith("computed with other parameters") for reason in result.run.failed.values())
        assert result.run.liars == ()


@pytest.mark.parametrize("who", [range(N), range(1, N)], ids=["all", "most"])
def test_a_majority_with_old_parameters_is_none(engine: Any, who: range) -> None:
    workers = Behind(engine, set(who))
    anyk.sum(scaled, DATA, CODE, workers, args=({"w": np.ones(3), "b": 1},))
    with pytest.raises(TooFewResponders, match="computed with other parameters") as caught:
        anyk.sum(scaled, DATA, CODE, workers, args=({"w": np.ones(3), "b": 2},))
    assert set(caught.value.run.failed) <= set(who)


def test_old_streams_are_old_parameters() -> None:
    generator = np.random.default_rng(1)
    with anyk.ThreadWorkers(N) as threads:
        workers = Behind(threads, {4})
        for step in range(3):
            run = anyk.sum(noisy, DATA, CODE, workers, anyk.All(), rng=generator).run
            assert (set(run.failed), run.liars) == ({4} if step else set(), ())


def test_a_liar_beside_one_with_old_parameters(engine: Any) -> None:
    workers = Behind(engine, {0})
    for step, how in enumerate(["negate", "noise", "scale", "zero", "nan", "inf", "shape", "dtype"]):
        faults = {3: anyk.Corrupt(how, 2.0)}
        weights = {"w": np.ones(3), "b": float(step)}
        result = anyk.sum(scaled, DATA, CODE, workers, anyk.All(), (weights,), faults=faults)
        np.testing.assert_allclose(result.value, DATA.sum(axis=0) + N * step)
        assert result.run.liars == (3,)
        assert (0 in result.run.failed) == (step > 0)


def shifting(row: Array, weights: Array) -> Array:
    weights += 1
    return row * weights[0]


def test_parameters_that_are_changed_in_place_are_found(engine: Any) -> None:
    with pytest.raises(TooFewResponders, match="changes its arguments in place"):
        anyk.sum(shifting, DATA, CODE, engine, args=(np.ones(3),))
    with pytest.raises(TooFewResponders, match="changes its arguments in place"):
        anyk.sum(lambda p, memo: memo.append(1) or p, DATA, CODE, engine, args=([],))
    # What was spoilt is sent again, also where an equal value was sent before.
    result = anyk.sum(lambda p, w: p * w[0], DATA, CODE, engine, anyk.All(), (np.ones(3),))
    np.testing.assert_allclose(result.value, DATA.sum(axis=0))
    assert result.run.failed == {}


def test_large_parameters_cannot_be_changed_in_place(local: anyk.LocalWorkers) -> None:
    with pytest.raises(anyk.TaskFailed, match="read-only"):
        anyk.sum(shifting, DATA, CODE, local, args=(np.ones(20_000),))


def model() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))


X, Y = torch.randn(40, 6, generator=torch.Generator().manual_seed(1)), torch.arange(40) % 3
CE = torch.nn.CrossEntropyLoss()


@pytest.mark.parametrize("make", [anyk.ThreadWorkers, functools.partial(anyk.LocalWorkers, preload=("torch",))])
def test_training_with_a_replica_that_is_behind(make: Any) -> None:
    coded, plain = model(), model()
    with make(N) as engine:
        gradient = CodedGradient(coded, CE, CODE, Behind(engine, {6}))
        for step in range(4):
            result = gradient.backward(X, Y, stop=anyk.All())
            CE(plain(X), Y).backward()
            assert set(result.run.failed) == ({6} if step else set())
            with torch.no_grad():
                for ours, theirs in zip(coded.parameters(), plain.parameters(), strict=True):
                    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)
                    for p in (ours, theirs):
                        p -= 0.1 * p.grad
                        p.grad = None


def test_a_reply_without_a_digest_is_a_lie() -> None:
    class Bare(anyk.FaultyWorkers):
        def submit(self, worker: int, token: Any, fn: Any, *args: Any) -> None:
            bare = (lambda *given: next(iter(fn(*given).values()))) if worker == 1 else fn
            super().submit(worker, token, bare, *args)

    with anyk.ThreadWorkers(N) as threads:
        result = anyk.sum(np.square, DATA, CODE, Bare(threads, {}), anyk.All())
    assert result.run.liars == (1,)
    assert result.run.failed == {1: "returned no digest of its parameters"}


# -- disagreement -----------------------------------------------------------------------------------------------------

SUSPECTS = r"(?s)replicas disagree in \d of \d group.*dropout.*batch statistics.*non-deterministic kernels"


class Net(torch.nn.Module):
    """With dropout in training, and running statistics of batches."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.drop = torch.nn.Linear(7, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.3)

    def forward(self, x: Any) -> Any:
        return self.drop(self.norm(self.first(x)))


_nets: dict[int, Net] = {}


def replica() -> Net:
    """Each worker's own, which goes its own way."""
    return _nets.setdefault(threading.get_ident(), Net())


def dropped(row: Array) -> Array:
    net = Net().train()
    torch.manual_seed(int(np.random.default_rng().integers(1 << 60)))
    with torch.no_grad():
        return net(torch.as_tensor(row).float().reshape(1, 7).repeat(4, 1)).double().numpy()


def tracked(row: Array) -> Array:
    net = replica()
    with torch.no_grad():
        x = torch.as_tensor(np.stack([row, row**2, np.sin(row)])).float()
        net.train()(x)
        return net.eval()(x).double().numpy()


def own(row: Array) -> Array:
    return row * (np.random.default_rng().random(7) < 0.5)


@pytest.mark.parametrize("code", CODES.values(), ids=CODES)
@pytest.mark.parametrize("fn", [dropped, own])
def test_dropout_of_each_workers_own(engine: Any, code: anyk.GradientCode, fn: Callable[[Array], Array]) -> None:
    with pytest.raises(anyk.ReplicasDisagree, match=SUSPECTS) as caught:
        anyk.sum(fn, DATA, code, engine, anyk.All())
    assert caught.value.run.liars == ()
    assert set(caught.value.arrived) == set(range(N))
    groups = len(code.components)
    assert f"in {groups} of {groups} group" in str(caught.value)


def test_running_statistics_of_each_workers_own(local: anyk.LocalWorkers) -> None:
    with anyk.ThreadWorkers(N) as threads:
        for engine in (local, threads):
            with pytest.raises(anyk.ReplicasDisagree, match=SUSPECTS):
                anyk.sum(tracked, DATA, CODE, engine, anyk.All())


class Unseeded(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = model()

    def forward(self, x: Any) -> Any:
        return self.inner(x * torch.as_tensor(np.random.default_rng().random(6) < 0.5))


@pytest.mark.parametrize("code", CODES.values(), ids=CODES)
def test_training_with_draws_from_elsewhere(code: anyk.GradientCode) -> None:
    with anyk.ThreadWorkers(N) as workers, pytest.raises(anyk.ReplicasDisagree, match=SUSPECTS):
        CodedGradient(Unseeded(), CE, code, workers).backward(X, Y, stop=anyk.All())


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("code", CODES.values(), ids=CODES)
def test_kernels_that_round_differently_disturb_nobody(code: anyk.GradientCode, dtype: Any) -> None:
    def fn(row: Array) -> Array:
        order = np.random.default_rng().permutation(7)  # the order in which a kernel happens to add up
        return np.add.accumulate(np.outer(row, row).astype(dtype)[order], axis=0)[-1]

    with anyk.ThreadWorkers(N) as workers:
        for _ in range(10):
            result = anyk.sum(fn, DATA, code, workers, anyk.All())
            assert result.run.liars == ()
            np.testing.assert_allclose(result.value, (DATA.sum(1)[:, None] * DATA).sum(0), rtol=1e-4, atol=1e-4)


WIDE = anyk.NullSpaceCode(anyk.cyclic_placement(12, 12, 8), stragglers=2, adversaries=2)  # six checks
LOCATED = {
    **CODES,
    "wide": WIDE,
    "polynomial": anyk.UniversalPolynomialCode(RING, 2, 1),
    "cyclic": anyk.CyclicCode(9, 3),
}


@pytest.mark.parametrize("name", LOCATED)
@given(seed=st.integers(0, 10_000), size=st.floats(-4, 1), d=st.sampled_from([6, 40, 300]))
@settings(max_examples=20, deadline=None)
def test_noise_everywhere_is_no_lie(name: str, seed: int, size: float, d: int) -> None:
    code, rng = LOCATED[name], np.random.default_rng(seed)
    messages = code.encode(rng.standard_normal((code.partitions, d * code.chunks)))
    messages = messages * (1 + 10**size * rng.standard_normal(messages.shape))
    with pytest.raises(anyk.ReplicasDisagree, match=SUSPECTS):
        locate(code, messages, range(code.workers))


@pytest.mark.parametrize("name", LOCATED)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@given(seed=st.integers(0, 10_000), d=st.sampled_from([1, 6, 300]))
@settings(max_examples=20, deadline=None)
def test_rounding_everywhere_is_no_disagreement(name: str, dtype: Any, seed: int, d: int) -> None:
    code, rng = LOCATED[name], np.random.default_rng(seed)
    messages = code.encode(rng.standard_normal((code.partitions, d * code.chunks)))
    messages = messages * (1 + np.finfo(dtype).eps * rng.uniform(-2, 2, messages.shape))
    messages = messages.astype(np.result_type(dtype, np.complex64) if np.iscomplexobj(messages) else dtype)
    assert locate(code, messages, range(code.workers)) == []


@pytest.mark.parametrize("name", ["ring", "groups", "pairs", "wide", "polynomial", "cyclic"])
@given(seed=st.integers(0, 10_000), size=st.floats(-2, 2))
@settings(max_examples=20, deadline=None)
def test_one_liar_more_is_no_disagreement(name: str, seed: int, size: float) -> None:
    code, rng = LOCATED[name], np.random.default_rng(seed)
    messages = code.encode(rng.standard_normal((code.partitions, 20 * code.chunks)))
    members = code.components[int(rng.integers(len(code.components)))].members
    liars = rng.choice(members, code.adversaries + 1, replace=False)
    messages[liars] += 10**size * rng.standard_normal(messages[liars].shape)
    with pytest.raises(anyk.TooManyErrors, match="contradict one another") as caught:
        locate(code, messages, range(code.workers))
    assert type(caught.value) is anyk.TooManyErrors


def test_a_single_check_leaves_both_possible() -> None:
    code = anyk.NullSpaceCode(RING, 1)
    messages = code.encode(np.random.default_rng(1).standard_normal((N, 10)))
    messages[3] *= 2
    with pytest.raises(anyk.ReplicasDisagree, match="or one of them is wrong, which a single check cannot tell"):
        locate(code, messages, range(N))
    code = anyk.NullSpaceCode(RING, 0, 1)  # two checks, and two liars at most: as before
    messages = code.encode(np.random.default_rng(1).standard_normal((N, 10)))
    messages[[3, 4]] *= np.array([[2], [3]])
    with pytest.raises(anyk.TooManyErrors, match="no 1 of them explain it") as caught:
        locate(code, messages, range(N))
    assert type(caught.value) is anyk.TooManyErrors


def test_the_error_travels() -> None:
    error = anyk.ReplicasDisagree("replicas disagree", {1: np.ones(2)})
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), list(again.arrived)) == (anyk.ReplicasDisagree, "replicas disagree", [1])
    assert isinstance(again, ArithmeticError)
