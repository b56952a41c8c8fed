"""Replies: what is accepted is what was written; what is not is malformed, whatever the bytes; nothing is executed."""

from __future__ import annotations

import importlib.util
import json
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anyk.runtime import reply, wire
from anyk.runtime.packing import Desk, Outbox
from anyk.runtime.workers import Failure

FUZZER = Path(__file__).parents[1] / "benchmarks" / "fuzz_reply.py"
REPLIES = [
    {"a": [np.arange(6.0).reshape(2, 3), 1.0], "b": (np.zeros(0, np.float32), {"c": np.array([True])}), 3: ()},
    [1, 2.5, 1j, np.float16(3)],
    np.arange(50, dtype=np.int16),
    {"1": 1, 1: 2.0},
]
DTYPES = sorted(reply._DTYPES)


def payload_of(value: Any, seconds: float = 0.5) -> bytes:
    return wire.join_reply(*reply.encode(value, seconds), lambda nbytes: None)


def read(payload: bytes) -> Any:
    """What the master makes of these bytes: a value and seconds, a failure and seconds, or Malformed."""
    header, buffer = wire.split_reply(memoryview(payload), {}.__getitem__)
    parsed = reply.parse(header)
    if not isinstance(parsed, reply.Header):
        return parsed
    return reply.assemble(parsed, wire.cut(buffer, parsed.sizes, whole=True)), parsed.seconds


def same(a: Any, b: Any) -> bool:
    """Whether two trees of arrays are one: structure, keys and their kinds, dtypes, shapes, bytes."""
    if isinstance(a, dict | list | tuple):
        if type(a) is not type(b) or len(a) != len(b):
            return False
        if isinstance(a, dict):
            kinds = [[(type(key), key) for key in each] for each in (a, b)]
            return kinds[0] == kinds[1] and all(same(a[key], b[key]) for key in a)
        return all(map(same, a, b))
    a, b = np.asarray(a), np.asarray(b)
    return (a.shape, a.dtype, a.tobytes()) == (b.shape, b.dtype, b.tobytes())


def check(payload: bytes) -> bool:
    """Malformed, or accepted: and then it is what an honest worker would have sent for this value."""
    try:
        value, seconds = read(payload)
    except reply.Malformed:
        return False
    assert 0 <= seconds < np.inf
    if isinstance(value, Failure):
        assert all(isinstance(text, str) for text in (value.type, value.message, value.traceback))
        again = reply.parse(reply.encode_failure(value, seconds))
        assert again == (value, seconds)
        str(value).encode()
    else:
        again, same_seconds = read(payload_of(value, seconds))
        assert same(again, value)
        assert same_seconds == seconds
    return True


LEAVES = st.builds(
    lambda dtype, shape, seed: (
        np.frombuffer(np.random.default_rng(seed).bytes(int(np.prod(shape)) * np.dtype(dtype).itemsize), dtype).reshape(
            shape
        )
        if dtype != "|b1"
        else np.random.default_rng(seed).random(shape) < 0.5
    ),
    st.sampled_from([name for name in DTYPES if np.dtype(name).itemsize <= 16]),
    st.lists(st.integers(0, 4), max_size=3).map(tuple),
    st.integers(0, 99),
)
TREES = st.recursive(
    LEAVES | st.floats(allow_nan=False) | st.integers(-9, 9) | st.booleans(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.integers(-3, 3), inner, max_size=3)
    ),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(TREES, st.floats(0, 1e6))
def test_replies_survive_the_wire(tree: Any, seconds: float) -> None:
    value, took = read(payload_of(tree, seconds))
    assert same(value, tree)
    assert took == seconds


def test_named_replies_and_failures() -> None:
    for tree in REPLIES:
        assert same(read(payload_of(tree))[0], tree)
    failure = Failure("a", "b" * 10**7, "\ud800")
    read_back, seconds = reply.parse(reply.encode_failure(failure, 0.25))
    assert seconds == 0.25
    assert read_back.message == "b" * (reply.MAX_TEXT // 32)  # its end: long texts are cut
    assert read_back.traceback == "\\ud800"


def test_odd_arrays() -> None:
    big = np.arange(5, dtype=">f8")
    assert same(read(payload_of(big))[0], big.astype("<f8"))
    for bad in (np.array(["a"]), np.array([1], "M8[s]"), np.array([None]), {1.5: 1}, {True: 1}, None, [None], "text"):
        with pytest.raises(TypeError):
            reply.encode(bad, 0.0)


@settings(max_examples=500, deadline=None)
@given(st.sampled_from(REPLIES), st.lists(st.tuples(st.integers(0, 10_000), st.binary(max_size=4)), max_size=4))
def test_mutated_replies(tree: Any, changes: list[tuple[int, bytes]]) -> None:
    payload = bytearray(payload_of(tree))
    for place, new in changes:
        place %= len(payload) + 1
        payload[place : place + len(new)] = new
    check(bytes(payload))
    check(bytes(payload[: changes[0][0] % len(payload)]) if changes else b"")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from([0, 1, -1, 2**63, 10**400, "d", "l", "t"])
    | st.sampled_from(["<f8", "<c16", "numpy", "torch", "os", "|O", "<M8[s]"]) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=20,
)  # fmt: skip
SPECS = st.recursive(
    st.integers(-1, 4) | st.just(True),
    lambda inner: st.tuples(
        st.sampled_from("dltx"), st.lists(inner | st.tuples(st.text(max_size=1), inner), max_size=3)
    ),
    max_leaves=6,
)


LAYOUTS = st.tuples(
    JSON | st.just("numpy"), JSON | st.sampled_from(DTYPES), JSON | st.lists(st.integers(-1, 5), max_size=3)
)


@settings(max_examples=500, deadline=None)
@given(
    st.sampled_from(["ok", "error", "no", 1, None]),
    SPECS | JSON,
    st.lists(LAYOUTS, max_size=3),
    st.floats(-1, 9) | JSON,
    st.binary(max_size=128),
)
def test_forged_headers(kind: Any, spec: Any, leaves: list[Any], seconds: Any, buffer: bytes) -> None:
    for header in ([kind, spec, leaves, seconds], [kind, "a", "b", spec, seconds]):
        text = json.dumps(header).encode()
        check(wire._REPLY.pack(len(text), -1) + text + buffer)
        check(text)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=80))
def test_arbitrary_bytes(data: bytes) -> None:
    check(data)
    try:
        wire.parse_header(data)
    except reply.Malformed:
        return


@pytest.mark.parametrize(
    ("header", "why"),
    [
        (b"[" * 100_000, "RecursionError"),
        (b'["ok",' + b'["l",[' * 70 + b"0" + b"]]" * 70 + b',[["numpy","<f8",[]]],0]', "no such structure"),
        (b'["ok",0,[["numpy","<f8",[1000000,1000000]]],0]', "bytes"),
        (b'["ok",0,[["numpy","<f8",[0,%d]]],0]' % 2**62, "no such shape"),
        (b'["ok",["l",[0,0]],[["numpy","<f8",[]]],0]', "out of order"),
        (b'["ok",["l",[]],[["numpy","<f8",[]]],0]', "does not hold its leaves"),
        (b'["ok",["d",[["a",0],["a",1]]],[["numpy","<f8",[]],["numpy","<f8",[]]],0]', "distinct"),
        (b'["ok",0,[["numpy","<f8",[]]],NaN]', "time"),
        (b'["ok",0,[["numpy","<f8",[]]],1e999]', "time"),
        (b'["ok",0,[["numpy","<f8",[]]],-1]', "time"),
        (b'["ok",0,[["numpy","<f8",[]]],1%s]' % (b"0" * 400), "time"),
        (b'["ok",["l",[]],"",0]', "leaves are no list"),
        (b'["ok",["l",[]],{},0]', "leaves are no list"),
        (b'["ok",0,[["numpy","|O",[]]],0]', "dtype"),
        (b'["ok",0,[["numpy","<f8",[-1]]],0]', "shape"),
        (b'["ok",true,[["numpy","<f8",[]]],0]', "structure"),
        (b'{"ok":1}', "no list"),
        (b"[]", "no list"),
        (b"1" * 5000, "ValueError"),
        (b"\xff\xfe[\x000\x00]\x00", "UnicodeDecodeError"),
        (b" " * (reply.MAX_TEXT + 1), "bytes"),
    ],
)
def test_malformed_headers(header: bytes, why: str) -> None:
    with pytest.raises(reply.Malformed, match=why):
        reply.parse(header)


def test_huge_empty_arrays_are_malformed() -> None:
    header = reply.parse(b'["ok",0,[["numpy","<f8",[0,%d,%d,%d]]],0]' % (2**40, 2**40, 2**40))
    assert isinstance(header, reply.Header)
    with pytest.raises(reply.Malformed):
        reply.assemble(header, [memoryview(b"")])


@pytest.mark.parametrize(("library", "dtype"), [("torch", np.longdouble), ("array_api_strict", np.float16)])
def test_dtypes_that_a_library_lacks_are_malformed(library: str, dtype: Any) -> None:
    pytest.importorskip(library)
    header = reply.parse(json.dumps(["ok", 0, [[library, np.dtype(dtype).str, [3]]], 0]).encode())
    assert isinstance(header, reply.Header)
    with pytest.raises(reply.Malformed):
        reply.assemble(header, [memoryview(bytes(header.sizes[0]))])


def test_truth_values_are_0_or_1() -> None:
    header = reply.parse(b'["ok",0,[["numpy","|b1",[2]]],0]')
    assert isinstance(header, reply.Header)
    assert reply.assemble(header, [memoryview(b"\x01\x00")]).tolist() == [True, False]
    with pytest.raises(reply.Malformed, match="truth"):
        reply.assemble(header, [memoryview(b"\x01\x02")])


def test_buffers_of_other_sizes_are_malformed() -> None:
    header = reply.parse(reply.encode([np.arange(3.0), 1.0], 0.0)[0])
    assert isinstance(header, reply.Header)
    for buffers in ([], [memoryview(bytes(24))], [memoryview(bytes(24)), memoryview(bytes(7))]):
        with pytest.raises(reply.Malformed, match="other sizes"):
            reply.assemble(header, buffers)


def test_nothing_follows_the_arrays() -> None:
    payload = payload_of([np.arange(3.0), 1.0])
    assert check(payload)
    for more in (b"\0", b"\0" * 64):
        with pytest.raises(reply.Malformed, match="something follows its arrays"):
            read(payload + more)


def test_a_pickle_is_never_loaded() -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return pytest.fail, ("a reply was unpickled",)

    data = pickle.dumps(Bomb())
    for payload in (data, wire._REPLY.pack(len(data), -1) + data):
        assert not check(payload)


def test_the_fuzzer_finds_nothing_in_some_thousand_inputs() -> None:
    """Without coverage: as it mutates replies, judged by rules of its own."""
    spec = importlib.util.spec_from_file_location("fuzz_reply", FUZZER)
    assert spec is not None
    assert spec.loader is not None
    fuzzer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fuzzer)
    rng, corpus = random.Random(0), fuzzer.seeds()
    for _ in range(5000):
        data = fuzzer.mutate(rng.choice(corpus), rng, lambda part: fuzzer.scrambled(part, rng))
        fuzzer.one_input(data)
        if rng.random() < 0.1:
            corpus.append(data)
    assert all(fuzzer.counts[each] for each in ("accepted", "failures", "malformed", "frames")), fuzzer.counts


# -- towards the workers ----------------------------------------------------------------------------------------------


def test_published_values_travel_once() -> None:
    outbox, desk = Outbox(2), Desk()
    big = np.arange(100_000.0)
    ref, fn = (
        outbox.publish(big),
        outbox.publish(lambda state, x, y: {"sum": x.sum() + y, "seen": state.setdefault("n", 0)}),
    )
    message, shared, own = outbox.pack(0, fn, (ref, 2.0))
    assert [buffer.nbytes for buffer in shared] == [big.nbytes]
    assert own == []
    header, arrays = desk.run(message, shared)
    parsed = reply.parse(header)
    assert isinstance(parsed, reply.Header)
    assert float(arrays[0]) == big.sum() + 2
    again, shared, own = outbox.pack(0, fn, (ref, np.ones(50_000)))
    assert shared == []
    assert [buffer.nbytes for buffer in own] == [400_000]
    assert len(again) < 1000
    assert len(outbox.pack(1, fn, (ref, 0.0))[1]) == 1  # the other worker does not have it yet
    outbox.renew(0)
    assert len(outbox.pack(0, fn, (ref, 0.0))[1]) == 1
    number = ref.number
    del ref
    message, shared, own = outbox.pack(0, fn, (1.0, 2.0))
    header, _ = desk.run(message, [])
    assert isinstance(reply.parse(header), tuple)  # 1.0 has no sum
    assert number not in desk._packed
    assert number not in desk._values


def test_forgotten_values_do_not_pile_up() -> None:
    outbox = Outbox(1)
    for step in range(2000):
        outbox.pack(0, outbox.publish(float(step)), ())
    assert len(outbox._forgotten) < 300


def test_a_desk_answers_whatever_happens() -> None:
    desk = Desk()
    for message in (b"", b"\x05\0\0\0garbage", b"\xff" * 20):
        failure, seconds = reply.parse(desk.run(message, [])[0])  # type: ignore[misc]
        assert isinstance(failure, Failure)
        assert seconds >= 0
