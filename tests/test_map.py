"""The verb: the same values on every engine, for blocks of every kind, and a clear word for every bad input."""

from __future__ import annotations

import functools
import os
import re
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import array_api_strict
import numpy as np
import optree
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import anyk
from anyk.errors import (
    AnykError,
    ApproximationWarning,
    BlocksError,
    DisagreeingReplies,
    NotPicklable,
    UnsafeDecode,
    WorkersClosed,
)

# whatever else the tests have imported (torch, say) is not loaded again for each set of workers
Local = functools.partial(anyk.LocalWorkers, preload=())
N = 8
X = np.linspace(0.0, 1.0, 4)
COPIES = anyk.RepetitionCode(N, 4)


@pytest.fixture(scope="module")
def local() -> Iterator[anyk.LocalWorkers]:
    with anyk.LocalWorkers(N) as workers:
        yield workers


@pytest.fixture(scope="module", params=["local", "threads", "simulated", "wrapped"])
def engine(request: pytest.FixtureRequest, local: anyk.LocalWorkers) -> Iterator[Any]:
    if request.param == "local":
        yield local
    elif request.param == "wrapped":
        yield anyk.FaultyWorkers(local, {})
    else:
        make = {"threads": anyk.ThreadWorkers, "simulated": anyk.SimulatedWorkers}[request.param]
        with make(N) as workers:
            yield workers


def leaves(tree: Any) -> list[np.ndarray[Any, Any]]:
    return [np.asarray(leaf) for leaf in optree.tree_leaves(tree)]


def same(got: Any, expected: Any, rounding: float = 0.0) -> None:
    assert optree.tree_structure(got) == optree.tree_structure(expected)
    for a, b in zip(optree.tree_leaves(got), optree.tree_leaves(expected), strict=True):
        assert type(a) is type(b)
        a, b = np.asarray(a), np.asarray(b)
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, rtol=rounding, atol=rounding * max(1.0, np.abs(b).max(initial=0.0)))


# -- the same value as without workers --------------------------------------------------------------------------------


def without_workers(fn: Callable[[Any], Any], blocks: Any, code: Any, responders: tuple[int, ...]) -> Any:
    coded = code.encode(blocks)
    replies = [fn(optree.tree_map(lambda leaf, w=worker: leaf[w], coded)) for worker in responders]
    return code.decoder(responders) @ replies


@pytest.mark.parametrize(
    "code",
    [
        anyk.BerrutCode(N, 4),
        anyk.BerrutCode(N, 4, nodes="equidistant"),
        anyk.BerrutCode(N, 1),
        anyk.LagrangeCode(N, 4, degree=2),
        anyk.LagrangeCode(N, 1, degree=2),
        COPIES,
        anyk.UncodedCode(N, N),
        anyk.UncodedCode(N, 3),
    ],
    ids=repr,
)
def test_every_engine_gives_what_the_code_gives(engine: Any, code: Any) -> None:
    blocks = np.random.default_rng(1).standard_normal((code.blocks, 5, 3))
    result = anyk.map(lambda x: x @ x.T + 1, blocks, code=code, workers=engine, stop=anyk.All(), order=None)
    assert result.run.responders == code.active
    same(result.value, without_workers(lambda x: x @ x.T + 1, blocks, code, code.active), 1e-13)
    assert result.code is code
    assert result.order is None


def test_large_blocks_of_several_leaves(engine: Any) -> None:
    rng = np.random.default_rng(2)
    blocks = {"a": rng.standard_normal((4, 30_000)), "b": (rng.standard_normal((4, 9)).astype(np.float32),)}
    code = anyk.BerrutCode(N, 4)

    def fn(block: Any) -> Any:
        return [block["a"] * 2, {"norm": np.linalg.norm(block["b"][0]), "b": block["b"][0][:4]}]

    for _ in range(3):
        result = anyk.map(fn, blocks, code=code, workers=engine, stop=anyk.All(), order=None)
        same(result.value, without_workers(fn, blocks, code, code.active), 1e-5)


DTYPES = [np.float16, np.float32, np.float64, np.complex64, np.complex128, np.int8, np.int64, np.uint16, np.bool_]


@st.composite
def trees(draw: st.DrawFn) -> tuple[Any, int]:
    """Blocks as a tree of arrays with a leading axis, of any structure, shapes and dtypes."""
    count = draw(st.integers(1, 5))
    rng = np.random.default_rng(draw(st.integers(0, 1000)))

    def leaf(shape: tuple[int, ...], dtype: Any, layout: str) -> Any:
        values = (10 * rng.standard_normal((count, *shape))).astype(np.complex128)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            array = np.abs(values.real).astype(dtype) if np.dtype(dtype).kind in "biu" else values.astype(dtype)
        if layout == "fortran":
            return np.asfortranarray(array)
        if layout == "strided":
            return np.repeat(array, 2, axis=0)[::2]
        if layout == "swapped":
            return array.astype(array.dtype.newbyteorder())
        array.flags.writeable = layout != "read-only"
        return array

    arrays = st.builds(
        leaf,
        st.lists(st.integers(0, 3), max_size=3).map(tuple),
        st.sampled_from(DTYPES),
        st.sampled_from(["plain", "fortran", "strided", "read-only", "swapped"]),
    )
    inner = st.recursive(
        arrays,
        lambda children: (
            st.lists(children, min_size=1, max_size=3)
            | st.lists(children, min_size=1, max_size=3).map(tuple)
            | st.dictionaries(st.sampled_from("abc"), children, min_size=1, max_size=3)
        ),
        max_leaves=4,
    )
    return draw(arrays | st.tuples(inner, arrays) | st.dictionaries(st.sampled_from("xyz"), inner, min_size=1)), count


@settings(max_examples=60, deadline=None)
@given(trees(), st.booleans(), st.booleans())
def test_any_tree_of_any_arrays(local: anyk.LocalWorkers, tree: tuple[Any, int], listed: bool, coded: bool) -> None:
    blocks, count = tree
    code: Any = anyk.BerrutCode(N, count) if coded else anyk.UncodedCode(N, count)
    given_: Any = blocks
    if listed:
        given_ = [optree.tree_map(lambda leaf, i=index: leaf[i], blocks) for index in range(count)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ApproximationWarning)
        result = anyk.map(
            lambda x: {"same": x, "more": [1.5]},
            given_, code=code, workers=local, stop=anyk.All(), order=None, allow_empty=True,
        )  # fmt: skip
    value = optree.tree_map(lambda *rows: np.stack(rows), *result.value) if listed else result.value
    assert isinstance(result.value, list) == listed
    expected = optree.tree_map(
        lambda a: a.astype(np.float64 if a.dtype.kind in "biu" else a.dtype.newbyteorder("=")), blocks
    )
    assert optree.tree_structure(value["same"]) == optree.tree_structure(expected)
    for got, want in zip(leaves(value["same"]), leaves(expected), strict=True):
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        if not coded:
            assert np.array_equal(got, want)
    if coded:
        decoded = code.decoder(code.active) @ code.encode(blocks)
        for got, want in zip(leaves(value["same"]), leaves(decoded), strict=True):
            scale = 64 * float(np.finfo(want.dtype).eps)
            np.testing.assert_allclose(got, want, rtol=scale, atol=scale * 200)
    assert np.allclose(value["more"][0], 1.5)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "complex128", "int32", "bool"])
@pytest.mark.parametrize("size", [3, 40_000])
def test_torch_blocks(engine: Any, dtype: str, size: int) -> None:
    blocks = (torch.arange(4 * size).reshape(4, size) % 2).to(getattr(torch, dtype))
    seen = []
    if not isinstance(engine, anyk.LocalWorkers | anyk.FaultyWorkers):
        fn: Any = lambda x: (seen.append(type(x)), x)[1]  # noqa: E731
    else:
        fn = lambda x: torch.clone(x)  # noqa: E731  raises for anything else
    value = anyk.map(fn, blocks, code=COPIES, workers=engine, stop=anyk.All()).value
    assert all(kind is torch.Tensor for kind in seen)
    assert isinstance(value, torch.Tensor)
    assert value.dtype == (blocks.dtype if dtype not in ("int32", "bool") else torch.float64)
    assert torch.equal(value, blocks.to(value.dtype))


def test_other_torch_tensors(engine: Any) -> None:
    base = torch.arange(24.0).reshape(6, 4)
    for blocks in (base.T, torch.nn.Parameter(base[:4]), (base[:4] + 1j).conj(), base[::2][[0, 1, 2, 0]]):
        value = anyk.map(lambda x: x, blocks, code=COPIES, workers=engine, stop=anyk.All()).value
        assert torch.equal(value, blocks.detach().resolve_conj())
    with pytest.raises(BlocksError, match=r"bfloat16.*convert"):
        anyk.map(lambda x: x, base.to(torch.bfloat16)[:4], code=COPIES, workers=engine)


@pytest.mark.parametrize("size", [3, 40_000])
def test_array_api_blocks(engine: Any, size: int) -> None:
    xp = array_api_strict
    blocks = xp.reshape(xp.arange(4 * size, dtype=xp.float32), (4, size))
    value = anyk.map(lambda x: xp.add(x, x), blocks, code=COPIES, workers=engine, stop=anyk.All()).value
    assert type(value) is type(blocks)
    assert value.dtype == xp.float32
    assert np.array_equal(np.asarray(value), 2 * np.asarray(blocks))


def test_scalar_blocks_and_scalar_outputs(engine: Any) -> None:
    for blocks in (X, [float(x) for x in X], [np.float32(x) for x in X], (X, X), {"x": X}):
        result = anyk.map(lambda x: 1.0, blocks, code=COPIES, workers=engine, stop=anyk.All())
        assert np.array_equal(result.value, np.ones(4))
    result = anyk.map(lambda x: (float(x) * 2, {"big": x > 0.5, "n": 3}), X, code=COPIES, workers=engine)
    same(result.value, (2 * X, {"big": (X > 0.5).astype(float), "n": np.full(4, 3.0)}))


def test_order_is_undone(engine: Any) -> None:
    blocks = np.array([3.0, -1.0, 0.5, 2.0])
    for order in ("auto", "path", None, [3, 1, 0, 2], np.array([1, 0, 2, 3])):
        code = anyk.LagrangeCode(N, 4)
        result = anyk.map(lambda x: 2 * x, blocks, code=code, workers=engine, order=order)
        same(result.value, 2 * blocks, 1e-12)
    assert np.array_equal(result.order, [1, 0, 2, 3])
    result = anyk.map(lambda x: x, blocks, code=anyk.BerrutCode(N, 4), workers=engine, stop=anyk.All())
    assert np.array_equal(result.order, [1, 2, 3, 0])


def test_workers_as_a_number_and_by_default() -> None:
    assert anyk.map(lambda x: 2 * x, [3.0], workers=1).value == [6.0]
    assert anyk.map(lambda x: 2 * x, X, workers=np.int64(5), stop=anyk.All()).run.responders == tuple(range(5))
    assert anyk.map(lambda x: 2 * x, X, stop=anyk.All()).run.responders == tuple(range(6))  # two more than blocks
    result = anyk.map(lambda x: x, X, code=anyk.UncodedCode(4, 4))
    assert np.array_equal(result.value, X)


def test_more_workers_than_the_code_needs(engine: Any) -> None:
    result = anyk.map(lambda x: x, X, code=anyk.UncodedCode(4, 4), workers=engine)
    assert result.run.workers == result.run.responders == (0, 1, 2, 3)
    result = anyk.map(lambda x: x, X, code=anyk.UncodedCode(N, 4), workers=engine, stop=anyk.All())
    assert result.run.workers == (0, 1, 2, 3)  # the others have nothing to do


# -- bad input --------------------------------------------------------------------------------------------------------

NAN_BLOCK = np.array([[1.0, 2.0], [3.0, np.nan], [5.0, 6.0]])
BAD: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "no blocks": (lambda: {"blocks": []}, BlocksError, "there are none"),
    "no rows": (lambda: {"blocks": np.zeros((0, 3))}, BlocksError, "there are none"),
    "no arrays": (lambda: {"blocks": {}}, BlocksError, "there are none"),
    "unequal shapes": (lambda: {"blocks": [np.ones(2), np.ones(3)]}, BlocksError, "block 1 is float64"),
    "unequal dtypes": (lambda: {"blocks": [np.ones(2), np.ones(2, np.float32)]}, BlocksError, "block 1 is float32"),
    "unequal trees": (lambda: {"blocks": [(1.0, 2.0), (1.0,)]}, BlocksError, "block 1 is"),
    "unequal axes": (lambda: {"blocks": {"a": np.ones(2), "b": np.ones(3)}}, BlocksError, "leading axes"),
    "a scalar": (lambda: {"blocks": 3.0}, BlocksError, "leading axis"),
    "None": (lambda: {"blocks": None}, BlocksError, "NoneType"),
    "None within": (lambda: {"blocks": [1.0, None]}, BlocksError, "block 1"),
    "text": (lambda: {"blocks": "abc"}, BlocksError, "str"),
    "objects": (lambda: {"blocks": np.array([{}, {}])}, BlocksError, "object"),
    "dates": (lambda: {"blocks": np.array(["2020-01-01"], "M8[D]")}, BlocksError, "datetime64"),
    "a generator": (lambda: {"blocks": (x for x in X)}, BlocksError, "list first"),
    "NaN": (lambda: {"blocks": NAN_BLOCK}, BlocksError, r"block 1 holds 1 non-finite value .*allow_nan=True"),
    "infinity": (lambda: {"blocks": [1.0, -np.inf]}, BlocksError, "block 1"),
    "empty": (lambda: {"blocks": np.zeros((4, 0))}, BlocksError, "allow_empty=True"),
    "not a function": (lambda: {"fn": 3}, TypeError, "fn must be callable"),
    "K > N": (lambda: {"workers": 3}, ValueError, "4 blocks need at least as many workers"),
    "K > N, named": (lambda: {"code": anyk.BerrutCode(3, 4)}, ValueError, "4 blocks need"),
    "too many by default": (lambda: {"blocks": np.ones(200)}, ValueError, "pass workers="),
    "k > N": (lambda: {"workers": 6, "stop": anyk.FirstK(7)}, ValueError, "only 6 workers"),
    "k > N, combined": (lambda: {"workers": 6, "stop": anyk.FirstK(7) | anyk.All()}, ValueError, "only 6 workers"),
    "code of other blocks": (lambda: {"code": anyk.BerrutCode(8, 3)}, ValueError, "is for 3 blocks, got 4"),
    "too few workers": (lambda: {"code": COPIES, "workers": 7}, ValueError, "needs 8 workers, got 7"),
    "no workers": (lambda: {"workers": 0}, ValueError, "at least"),
    "workers as text": (lambda: {"workers": "8"}, ValueError, "workers='8' is no engine: use local://16"),
    "workers as float": (lambda: {"workers": 8.0}, TypeError, "workers must be a number, Workers"),
    "workers as bool": (lambda: {"workers": True}, TypeError, "workers must be a number, Workers"),
    "workers as class": (lambda: {"workers": anyk.LocalWorkers}, TypeError, "workers must be a number, Workers"),
    "code as text": (lambda: {"code": "berrut"}, TypeError, "code must be a data code"),
    "code as class": (lambda: {"code": anyk.BerrutCode}, TypeError, "code must be a data code"),
    "stop as number": (lambda: {"workers": 6, "stop": 5}, TypeError, "stop must be a stop rule"),
    "stop as class": (lambda: {"workers": 6, "stop": anyk.All}, TypeError, "stop must be a stop rule"),
    "order as text": (lambda: {"workers": 6, "order": "best"}, ValueError, "order must be"),
    "order too short": (lambda: {"workers": 6, "order": [0, 1]}, ValueError, r"permutation of 0\.\.3"),
    "order twice": (lambda: {"workers": 6, "order": [0, 1, 1, 2]}, ValueError, "permutation"),
    "faults as list": (lambda: {"workers": 6, "faults": [anyk.Hang()]}, TypeError, "faults must be a mapping"),
    "fault as text": (lambda: {"workers": 6, "faults": {1: "slow"}}, TypeError, "faults must map"),
    "fault as class": (lambda: {"workers": 6, "faults": {1: anyk.Crash}}, TypeError, "faults must map"),
    "fault of nobody": (lambda: {"workers": 6, "faults": {6: anyk.Crash()}}, ValueError, r"workers 0\.\.5"),
    "fault of a name": (lambda: {"workers": 6, "faults": {"a": anyk.Crash()}}, TypeError, "faults must map"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case: str) -> None:
    before = threading.active_count()
    make, kind, message = BAD[case]
    with pytest.raises(kind, match=message):
        anyk.map(**({"fn": lambda x: x, "blocks": X} | make()))
    assert threading.active_count() == before


def test_nan_and_empty_blocks_on_request(engine: Any) -> None:
    value = anyk.map(lambda x: x, NAN_BLOCK, code=anyk.UncodedCode(3, 3), workers=engine, allow_nan=True).value
    assert np.array_equal(value, NAN_BLOCK, equal_nan=True)
    value = anyk.map(lambda x: x, NAN_BLOCK, code=anyk.BerrutCode(N, 3), workers=engine, allow_nan=True).value
    assert np.isnan(value[:, 1]).all()
    assert np.isfinite(value[:, 0]).all()
    for shape in ((4, 0), (4, 3, 0), (1, 0)):
        value = anyk.map(lambda x: x, np.zeros(shape), workers=engine, allow_empty=True, stop=anyk.All()).value
        assert value.shape == shape
    value = anyk.map(lambda x: x.sum(), np.zeros((4, 0)), workers=engine, allow_empty=True, stop=anyk.All()).value
    assert np.array_equal(value, np.zeros(4))


def test_what_cannot_travel_says_how_to_mend_it(local: anyk.LocalWorkers) -> None:
    lock = threading.Lock()
    with pytest.raises(NotPicklable, match=r"lock.*create that inside the function, or use ThreadWorkers"):
        anyk.map(lambda x: x * lock.locked(), X, code=COPIES, workers=local)
    with pytest.raises(NotPicklable):
        anyk.map(lambda x: x, X, code=COPIES, workers=local, faults={3: anyk.Corrupt(lambda y: y * lock.locked())})
    result = anyk.map(lambda x: x, X, code=COPIES, workers=local, stop=anyk.All())
    assert result.run.responders == tuple(range(N))


def test_a_function_that_raises_everywhere(engine: Any) -> None:
    with pytest.raises(anyk.TaskFailed, match="worker 0: ZeroDivisionError") as caught:
        anyk.map(lambda x: 1 / 0, X, code=COPIES, workers=engine, stop=anyk.All())
    assert caught.value.worker == 0
    assert "<lambda>" in caught.value.traceback_text
    assert "_evaluate" not in caught.value.traceback_text  # ours are not shown
    assert "ZeroDivisionError" in caught.value.traceback_text
    assert set(caught.value.run.failed) == set(range(N))
    assert caught.value.arrived == {}
    with pytest.raises(anyk.TaskFailed, match="positional argument"):
        anyk.map(lambda x, y: x, X, code=COPIES, workers=engine, stop=anyk.All())


def test_a_function_that_raises_on_one_worker(engine: Any) -> None:
    keywords: dict[str, Any] = {"workers": engine, "stop": anyk.All(), "faults": {2: anyk.Raise("just here")}}
    result = anyk.map(lambda x: x, X, code=COPIES, **keywords)
    assert np.array_equal(result.value, X)
    assert result.run.failed == {2: "raised RuntimeError: just here"}
    with pytest.raises(anyk.TaskFailed, match="worker 2: RuntimeError: just here") as caught:
        anyk.map(lambda x: x, X, code=anyk.UncodedCode(4, 4), **keywords)
    assert caught.value.worker == 2
    assert {worker: float(value) for worker, value in caught.value.arrived.items()} == {0: X[0], 1: X[1], 3: X[3]}


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("nan", r"returned 3 non-finite values \(NaN or inf\) of 3"),
        ("inf", "returned 3 non-finite values"),
        ("none", "returned None"),
        ("shape", r"returned float64\[4\] where the majority returned float64\[3\]"),
        ("dtype", r"returned complex128\[3\] where the majority"),
        (lambda y: {"a": y}, "where the majority returned"),
        (lambda y: y.astype(np.float32), r"returned float32\[3\] where"),
        (lambda y: "text", r"something else than numbers|must return arrays"),
        (lambda y: [y, None], "None inside a container|returned None"),
        (lambda y: np.array(["a"]), "dtype <U1"),
        (lambda y: (), "empty container"),
    ],
)
def test_one_reply_that_does_not_fit(engine: Any, how: Any, reason: str) -> None:
    blocks = np.arange(12.0).reshape(4, 3)
    result = anyk.map(lambda x: x, blocks, code=COPIES, workers=engine, stop=anyk.All(), faults={5: anyk.Corrupt(how)})
    assert np.array_equal(result.value, blocks)
    assert list(result.run.failed) == [5]
    assert re.search(reason, result.run.failed[5]), result.run.failed[5]
    assert 5 not in result.run.responders


def test_none_everywhere_and_nan_everywhere(engine: Any) -> None:
    with pytest.raises(anyk.TaskFailed, match="returned None"):
        anyk.map(lambda x: None, X, code=COPIES, workers=engine, stop=anyk.All())
    with pytest.raises(anyk.TaskFailed, match="returned None"):
        anyk.map(lambda x: None, X, workers=engine)
    with pytest.raises(anyk.TooFewResponders, match="non-finite"):
        anyk.map(lambda x: x * np.nan, X, workers=engine)
    assert np.isnan(anyk.map(lambda x: x * np.nan, X, workers=engine, allow_nan=True).value).all()


def test_replies_without_a_majority(engine: Any) -> None:
    faults = {worker: anyk.Corrupt("shape") for worker in range(4)}
    with pytest.raises(
        DisagreeingReplies, match=r"float64\[4\] from workers 0, 1, 2, 3 against|against float64\[4\]"
    ) as caught:
        anyk.map(lambda x: x, np.ones((4, 3)), code=COPIES, workers=engine, stop=anyk.All(), faults=faults)
    assert len(caught.value.arrived) == 4
    assert caught.value.run.workers == tuple(range(N))


def test_too_few_before_the_deadline_keeps_what_arrived(engine: Any) -> None:
    faults = {worker: anyk.Hang() for worker in (1, 3)}
    with _like(engine, 4) as workers:
        with pytest.raises(anyk.TooFewResponders) as caught:
            anyk.map(
                lambda x: {"y": 2 * x}, X, code=anyk.UncodedCode(4, 4), workers=workers,
                stop=anyk.Deadline(5 if isinstance(engine, anyk.SimulatedWorkers) else 0.5), faults=faults,
            )  # fmt: skip
        assert {w: float(v["y"]) for w, v in caught.value.arrived.items()} in ({0: 0.0, 2: 2 * X[2]}, {0: 0.0}, {})
        assert caught.value.run.stragglers[-1] == 3
        assert "still at work" in str(caught.value)


def _like(engine: Any, n: int) -> Any:
    return Local(n) if isinstance(engine, anyk.FaultyWorkers | anyk.LocalWorkers) else type(engine)(n)


def test_rounding_that_would_spoil_the_answer_is_refused() -> None:
    with anyk.SimulatedWorkers(60) as workers, pytest.raises(UnsafeDecode, match="wait for more workers"):
        anyk.map(lambda x: x, np.ones((30, 2), np.float16), code=anyk.LagrangeCode(60, 30), workers=workers,
                 faults={worker: anyk.Hang() for worker in range(30)})  # fmt: skip


def test_a_coarse_answer_warns_where_it_was_asked_for() -> None:
    with anyk.ThreadWorkers(N) as workers, pytest.warns(ApproximationWarning, match="1 answers for 4 blocks") as caught:
        anyk.map(lambda x: x, X, workers=workers, stop=anyk.FirstK(1))
    assert caught[0].filename == __file__


def test_closed_workers(engine: Any) -> None:
    with _like(engine, N) as workers:
        pass
    with pytest.raises(WorkersClosed):
        anyk.map(lambda x: x, X, workers=workers)


# -- a worker killed before, during and after its reply ---------------------------------------------------------------


def suicide(when: str) -> Callable[[Any], Any]:
    def fn(x: Any) -> Any:
        if x[0] == 2.0 and when != "never":  # the block of workers 2 and 6
            try:
                open(when, "x").close()  # one of the two only, even if they come at the same moment
            except FileExistsError:
                return x
            os.kill(os.getpid(), signal.SIGKILL)
        return x

    return fn


def test_killed_before_during_and_after(local: anyk.LocalWorkers, tmp_path: Any) -> None:
    blocks = np.arange(4.0)[:, None] * np.ones((1, 20_000))
    keywords: dict[str, Any] = {"code": COPIES, "workers": local, "stop": anyk.All()}
    os.kill(local.pids[2], signal.SIGKILL)  # before
    time.sleep(0.05)
    result = anyk.map(lambda x: x, blocks, **keywords)
    assert np.array_equal(result.value, blocks)
    anyk.map(lambda x: x, blocks, **keywords)  # had the kill come in the middle, it is back by now
    result = anyk.map(suicide(str(tmp_path / "once")), blocks, **keywords)  # during
    assert np.array_equal(result.value, blocks)
    assert len(result.run.failed) == 1
    ((victim, reason),) = result.run.failed.items()
    assert victim in (2, 6)
    assert "SIGKILL" in reason
    result = anyk.map(lambda x: x, blocks, **keywords)
    assert result.run.responders == tuple(range(N))
    for pid in local.pids[:4]:  # after
        os.kill(pid, signal.SIGKILL)
    assert np.array_equal(result.value, blocks)
    result = anyk.map(lambda x: x, blocks, **keywords)
    assert np.array_equal(result.value, blocks)


def test_all_workers_killed_at_once(local: anyk.LocalWorkers) -> None:
    with pytest.raises(anyk.TooFewResponders, match="SIGKILL"):
        anyk.map(lambda x: os.kill(os.getpid(), signal.SIGKILL), X, code=COPIES, workers=local)
    assert anyk.map(lambda x: x, X, code=COPIES, workers=local, stop=anyk.All()).run.responders == tuple(range(N))


def test_a_death_that_the_round_cannot_do_without(local: anyk.LocalWorkers, tmp_path: Any) -> None:
    blocks = np.arange(float(N))[:, None]
    code = anyk.UncodedCode(N, N)
    result = anyk.map(suicide(str(tmp_path / "once")), blocks, code=code, workers=local)
    assert np.array_equal(result.value, blocks)  # the victim got its task once more
    assert not result.run.failed
    attempts = tmp_path / "attempts"

    def poisoned(x: Any) -> Any:
        if x[0] == 3:
            with open(attempts, "a") as file:
                file.write("x")
            os.kill(os.getpid(), signal.SIGKILL)
        return x

    with pytest.raises(anyk.TooFewResponders, match=r"worker 3 lost: .*SIGKILL") as caught:
        anyk.map(poisoned, blocks, code=code, workers=local)
    assert attempts.read_text() == "xx"  # once more, and no more than once
    assert set(caught.value.run.failed) == {3}


# -- many rounds, threads, interruptions ------------------------------------------------------------------------------


def test_several_threads_share_workers(engine: Any) -> None:
    values: dict[int, Any] = {}

    def work(shift: int) -> None:
        for _ in range(5):
            values[shift] = anyk.map(lambda x: x + shift, X, code=COPIES, workers=engine).value

    threads = [threading.Thread(target=work, args=(shift,)) for shift in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(values) == [0, 1, 2, 3]
    for shift, value in values.items():
        assert np.array_equal(value, X + shift)


def test_a_callback_cannot_start_a_round_with_the_same_workers(engine: Any) -> None:
    def again(event: anyk.runtime.events.RoundEvent) -> None:
        if event.kind == "answered":
            anyk.map(lambda x: x, X, code=COPIES, workers=engine)

    with pytest.raises(RuntimeError, match="in the middle of a round"):
        anyk.map(lambda x: x, X, code=COPIES, workers=engine, on_event=again)
    assert anyk.map(lambda x: x, X, code=COPIES, workers=engine, stop=anyk.All()).run.responders == tuple(range(N))


@pytest.mark.parametrize("kind", ["started", "submitted", "answered", "failed", "ended"])
@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_a_round_that_is_interrupted_costs_no_worker(engine: Any, kind: str, error: type[BaseException]) -> None:
    def interrupt(event: anyk.runtime.events.RoundEvent) -> None:
        if event.kind == kind:
            raise error

    with pytest.raises(error):
        anyk.map(lambda x: x, X, code=COPIES, workers=engine, on_event=interrupt, faults={0: anyk.Raise()},
                 stop=anyk.All())  # fmt: skip
    for _ in range(2):
        result = anyk.map(lambda x: x + 1, X, code=COPIES, workers=engine, stop=anyk.All())
        assert result.run.responders == tuple(range(N))
        assert np.array_equal(result.value, X + 1)


def test_ctrl_c_while_waiting(local: anyk.LocalWorkers) -> None:
    main = threading.main_thread().ident
    assert main is not None
    timer = threading.Timer(0.2, signal.pthread_kill, (main, signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        anyk.map(lambda x: x, X, code=COPIES, workers=local, stop=anyk.All(), faults={1: anyk.Slow(1.0)})
    result = anyk.map(lambda x: x, X, code=COPIES, workers=local, stop=anyk.All())
    assert result.run.responders == tuple(range(N))


def test_ctrl_c_in_a_simulated_function_loses_no_task() -> None:
    interrupts = iter([True])

    def fn(x: Any) -> Any:
        if next(interrupts, False):
            raise KeyboardInterrupt
        return x

    with anyk.SimulatedWorkers(N) as workers:
        with pytest.raises(KeyboardInterrupt):
            anyk.map(fn, X, code=COPIES, workers=workers, stop=anyk.All())
        result = anyk.map(fn, X, code=COPIES, workers=workers, stop=anyk.All())
        assert result.run.responders == tuple(range(N))


def test_executors_that_could_not_be_sent_a_task_are_free_again() -> None:
    from concurrent.futures import ThreadPoolExecutor

    executors = [ThreadPoolExecutor(1) for _ in range(4)]
    with anyk.ExecutorWorkers(executors) as workers:
        lock = threading.Lock()
        with pytest.raises(NotPicklable, match="cannot be pickled"):
            anyk.map(lambda x: lock, X, code=anyk.UncodedCode(4, 4), workers=workers)
        result = anyk.map(lambda x: x, X, code=anyk.UncodedCode(4, 4), workers=workers)
        assert np.array_equal(result.value, X)
    for executor in executors:
        executor.shutdown()


# -- events and progress ----------------------------------------------------------------------------------------------


def test_events_tell_the_whole_story(engine: Any) -> None:
    events: list[Any] = []
    result = anyk.map(lambda x: x, X, code=COPIES, workers=engine, stop=anyk.All(), on_event=events.append,
                      faults={1: anyk.Raise("x"), 2: anyk.Corrupt("nan")})  # fmt: skip
    kinds = [event.kind for event in events]
    assert kinds[0] == "started"
    assert kinds[-1] == "ended"
    assert kinds.count("submitted") == N
    assert sorted(event.worker for event in events if event.kind == "answered") == list(result.run.responders)
    assert {event.worker: event.detail for event in events if event.kind == "failed"} == result.run.failed
    assert all(event.round == result.run.round for event in events)
    assert [event.seconds for event in events] == sorted(event.seconds for event in events)
    assert set(result.run.answered_at) == set(range(N))
    assert result.run.stopped_by == "All()"
    assert result.run.stragglers == result.run.skipped == ()


def test_progress_goes_to_stderr(engine: Any, capfd: pytest.CaptureFixture[str]) -> None:
    anyk.map(lambda x: x, X, code=COPIES, workers=engine, stop=anyk.All(), progress=True)
    out, errors = capfd.readouterr()
    assert out == ""
    assert "answered" in errors
    assert f"{N}/{N}" in errors
    anyk.map(lambda x: x, X, code=COPIES, workers=engine, stop=anyk.All())
    anyk.map(lambda x: x, X, code=COPIES, workers=engine, stop=anyk.All(), progress=False)
    assert capfd.readouterr() == ("", "")


def threads_at_rest() -> int:
    """Threads, once those that were told to end (of an engine closed or a worker replaced) have had time to."""
    count, since = threading.active_count(), time.monotonic()
    while time.monotonic() - since < 0.5:
        time.sleep(0.01)
        if threading.active_count() != count:
            count, since = threading.active_count(), time.monotonic()
    return count


def test_progress_is_put_away_after_an_error(engine: Any, capfd: pytest.CaptureFixture[str]) -> None:
    before = threads_at_rest()
    faults = {worker: anyk.Corrupt("shape") for worker in range(4)}
    with pytest.raises(AnykError):
        anyk.map(lambda x: x, X, code=COPIES, workers=engine, stop=anyk.All(), progress=True, faults=faults)
    with pytest.raises(anyk.TaskFailed):
        anyk.map(lambda x: 1 / 0, X, code=COPIES, workers=engine, stop=anyk.All(), progress=True)

    def interrupt(event: Any) -> None:
        if event.kind == "answered":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        anyk.map(lambda x: x, X, code=COPIES, workers=engine, progress=True, on_event=interrupt)
    assert threads_at_rest() == before
    capfd.readouterr()
    anyk.map(lambda x: x, X, code=COPIES, workers=engine, stop=anyk.All())
