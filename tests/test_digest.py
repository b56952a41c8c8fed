"""A digest is the same on both sides of a pickle, and another one as soon as a number changes."""

from __future__ import annotations

import collections
import pickle
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from anyk.digest import digest

DTYPES = ["?", "i1", "u2", "i4", "i8", "f2", "f4", "f8", ">f8", "c8", "c16", "S3", "U2", "M8[s]"]


def travelled(value: Any) -> list[Any]:
    """As the engines send it."""
    buffers: list[pickle.PickleBuffer] = []
    packed = cloudpickle.dumps(value, 5, buffer_callback=buffers.append)
    apart = [memoryview(bytes(buffer.raw())) for buffer in buffers]
    return [pickle.loads(packed, buffers=apart), cloudpickle.loads(cloudpickle.dumps(value))]


@st.composite
def arrays(draw: st.DrawFn) -> NDArray[Any]:
    """Of any layout."""
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, max_side=5) | st.just((0, 3)))
    array = draw(hnp.arrays(draw(st.sampled_from(DTYPES)), shape))
    array = np.asarray(array).transpose(draw(st.permutations(range(array.ndim))))
    for axis in range(array.ndim):
        step = draw(st.sampled_from([1, 1, 2, -1]))
        array = array[(slice(None),) * axis + (slice(None, None, step),)]
    return np.asfortranarray(array) if draw(st.booleans()) else array


PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.complex_numbers() | st.text() | st.binary()
KEYS = st.text(max_size=3) | st.integers(-5, 5)
TREES = st.recursive(
    PLAIN | arrays(),
    lambda inner: st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple) | st.dictionaries(KEYS, inner),
    max_leaves=8,
)


@given(tree=TREES)
@settings(max_examples=300, deadline=None)
def test_what_travels_keeps_its_digest(tree: Any) -> None:
    for copy in travelled(tree):
        assert digest(copy) == digest(tree)
    assert digest([tree]) != digest(tree)


@given(size=st.integers(1, 1 << 19), place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
@settings(max_examples=60, deadline=None)
def test_one_bit_anywhere_in_an_array_of_any_size(size: int, place: float, bit: int) -> None:
    data = np.arange(size, dtype=np.uint8)
    before = digest(data)
    data[int(place * size)] ^= 1 << bit
    assert digest(data) != before


@given(seed=st.integers(0, 1000), rows=st.integers(1, 2000), columns=st.sampled_from([1, 7, 256, 512]))
@settings(max_examples=60, deadline=None)
def test_entries_that_change_places(seed: int, rows: int, columns: int) -> None:
    rng = np.random.default_rng(seed)
    data = rng.standard_normal((rows, columns))
    one, other = rng.integers(0, data.size, 2)
    changed = data.copy()
    changed.flat[[one, other]] = changed.flat[[other, one]]
    assert (digest(changed) == digest(data)) == (one == other)
    assert rows == 1 or digest(data[::-1]) != digest(data)
    assert digest(data.astype(np.float32)) != digest(data)


Pair = collections.namedtuple("Pair", "x y")

DIFFERENT = [
    [], (), {}, None, 0, False, 0.0, -0.0, 0j, "", b"", "0", b"0", [0], (0,), [[0]], [0, []], {0: 0}, {"0": 0}, [None],
    {"a": 1, "b": 2}, {"b": 2, "a": 1}, {"ab": 1}, ["a", "b"], ["ab"], 1 << 20000, -(1 << 20000), float("nan"),
    np.zeros(0), np.zeros(1), np.zeros((1, 1)), np.zeros(1, np.float32), np.zeros(1, np.int64), np.zeros((0, 2)),
    np.zeros(()), torch.zeros(1, dtype=torch.bfloat16), torch.ones(1, dtype=torch.bfloat16), torch.zeros(2),
]  # fmt: skip


def test_no_two_of_these_look_alike() -> None:
    seen = [digest(value) for value in DIFFERENT]
    assert len(set(seen)) == len(seen)
    assert all(digest(copy) == told for value, told in zip(DIFFERENT, seen, strict=True) for copy in travelled(value))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6.0).reshape(2, 3).T,
        torch.arange(6, dtype=torch.bfloat16),
        torch.tensor(3.0),
        torch.zeros(0, 4),
        torch.ones(3, dtype=torch.bool),
        torch.tensor([1 + 2j]).conj(),
        torch.nn.Parameter(torch.ones(2)),
        torch.eye(3).to_sparse(),
    ],
    ids=lambda tensor: f"{tensor.dtype} {tuple(tensor.shape)} {tensor.layout}",
)
def test_tensors(tensor: Any) -> None:
    assert digest(pickle.loads(pickle.dumps(tensor))) == digest(tensor)
    if tensor.layout == torch.strided and tensor.numel():
        assert digest(tensor) != digest(torch.zeros_like(tensor))


class Thing:
    def __array__(self) -> Any:
        raise RuntimeError("not now")


@pytest.mark.parametrize(
    "thing",
    [Thing(), object(), {1, 2}, print, np.array([object()]), np.zeros(1, [("a", "i1"), ("b", "f8")]), np.longdouble(1)],
    ids=["own class", "object", "set", "function", "objects", "records", "long double"],
)
def test_other_things_are_counted_not_looked_at(thing: Any) -> None:
    assert digest([thing, 1.0]) == digest([thing, 1.0])
    assert digest([thing, 1.0]) != digest([thing, 2.0])
    assert digest([thing]) != digest([thing, thing])
    assert digest(object()) == digest(object())
    assert digest(Pair(1, thing)) == digest((1, thing))
    assert digest(collections.OrderedDict(a=thing)) == digest({"a": thing})
