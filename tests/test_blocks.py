"""Blocks: trees of arrays of any library in, the same kind of trees out."""

from collections import OrderedDict, namedtuple

import array_api_strict as xp
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anyk import blocks as B
from anyk.errors import BlocksError
from anyk.interpolation import berrut_matrix
from anyk.points import chebyshev_first, chebyshev_second

steady = settings(derandomize=True, deadline=None, max_examples=80, suppress_health_check=[HealthCheck.too_slow])
M = berrut_matrix(chebyshev_second(5), chebyshev_first(3))  # (5, 3)
X = np.random.default_rng(0).standard_normal((3, 4, 2))
EXPECTED = np.tensordot(M, X, axes=1)


def read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


LAYOUTS = {
    "plain": lambda x: x,
    "read-only": read_only,
    "Fortran": np.asfortranarray,
    "transposed": lambda x: np.ascontiguousarray(x.T).T,
    "strided": lambda x: np.repeat(x, 2, axis=2)[:, :, ::2],
    "reversed": lambda x: np.ascontiguousarray(x[::-1, :, ::-1])[::-1, :, ::-1],
    "byte-swapped": lambda x: x.astype(x.dtype.newbyteorder()),
    "broadcast": lambda x: np.broadcast_to(x, (1, *x.shape))[0],
    "sliced": lambda x: np.pad(x, 1)[1:-1, 1:-1, 1:-1],
    "subclass": lambda x: np.ma.masked_array(x),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("listed", [False, True])
def test_numpy_layouts(layout, dtype, listed):
    x = LAYOUTS[layout](X.astype(dtype))
    before = np.array(x)
    got = B.combine(M, list(x) if listed else x)
    assert type(got) is np.ndarray
    assert got.dtype == np.dtype(dtype)
    assert got.dtype.isnative
    np.testing.assert_allclose(got, EXPECTED, atol=8 * np.finfo(dtype).eps)
    np.testing.assert_array_equal(np.array(x), before)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int64", "uint64", ">i4"])
def test_integers_and_booleans_become_float64(dtype):
    x = np.arange(12).reshape(3, 4).astype(dtype)
    for blocks in (x, list(x)):
        got = B.combine(M, blocks)
        assert got.dtype == np.float64
        np.testing.assert_allclose(got, M @ x.astype(float), atol=1e-14)
    assert B.combine(M, torch.arange(3)).dtype == torch.float64
    assert B.combine(M, xp.asarray([True, False, True])).dtype == xp.float64


def test_long_doubles_keep_their_precision():
    x = np.array([[1], [1], [1]], dtype=np.longdouble) + np.finfo(np.longdouble).eps
    assert B.combine(np.eye(3), x).dtype == np.longdouble
    np.testing.assert_array_equal(B.combine(np.eye(3), x), x)


def test_float16_is_rounded_once():
    """Summing 2,000 halves in float16 would stop at 1,024 or so."""
    x = np.full((2000, 1), 0.5, np.float16)
    assert B.combine(np.ones((1, 2000)), x).tolist() == [[1000.0]]
    assert B.combine(np.ones((1, 2000)), list(x)).tolist() == [[1000.0]]


def test_complex_weights_make_real_blocks_complex():
    got = B.combine(1j * M, X.astype(np.float32))
    assert got.dtype == np.complex64
    np.testing.assert_allclose(got, 1j * EXPECTED, atol=1e-6)
    assert B.combine(1j * M, X).dtype == np.complex128
    assert B.combine(1j * M, X.astype(np.float16)).dtype == np.complex64


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.complex64])
def test_torch(dtype, listed):
    x = torch.from_numpy(X).to(dtype)
    got = B.combine(M, list(x) if listed else x)
    assert isinstance(got, torch.Tensor)
    assert got.dtype == dtype
    np.testing.assert_allclose(
        got.to(torch.complex128).numpy(), EXPECTED, atol=1e-2 if dtype == torch.float16 else 1e-6
    )


def test_torch_with_gradients_views_and_lazy_conjugates():
    x = torch.from_numpy(X)
    for odd in (x.clone().requires_grad_(), x.permute(2, 1, 0).contiguous().permute(2, 1, 0)):
        np.testing.assert_allclose(B.combine(M, odd).numpy(), EXPECTED, atol=1e-14)
    z = torch.complex(x, -2 * x)
    np.testing.assert_allclose(B.combine(M, z.conj()).numpy(), (1 + 2j) * EXPECTED, atol=1e-14)
    np.testing.assert_allclose(B.combine(M, z.conj().imag).numpy(), 2 * EXPECTED, atol=1e-14)
    assert isinstance(B.combine(M, torch.nn.Parameter(x)), torch.Tensor)


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("device", ["CPU_DEVICE", "device1"])
def test_strict_arrays(device, listed):
    device = xp.Device(device)
    x = xp.asarray(X, device=device)
    got = B.combine(M, [x[k, ...] for k in range(3)] if listed else x)
    assert type(got) is type(x)
    assert got.dtype == xp.float64
    assert got.device == device
    np.testing.assert_allclose(np.asarray(xp.asarray(got, device=xp.Device("CPU_DEVICE"))), EXPECTED, atol=1e-14)


Pair = namedtuple("Pair", ["weight", "bias"])


def test_trees_along_the_leading_axis():
    tree = {"b": X, "a": (X[:, 0], [X[:, 1], torch.from_numpy(X)]), "named": Pair(X[:, :, 0], xp.asarray(X))}
    got = B.combine(M, tree)
    assert list(got) == ["b", "a", "named"]
    assert type(got["a"]) is tuple
    assert type(got["a"][1]) is list
    assert type(got["named"]) is Pair
    np.testing.assert_allclose(got["b"], EXPECTED, atol=1e-14)
    np.testing.assert_allclose(got["a"][0], EXPECTED[:, 0], atol=1e-14)
    np.testing.assert_allclose(got["a"][1][0], EXPECTED[:, 1], atol=1e-14)
    np.testing.assert_allclose(got["a"][1][1].numpy(), EXPECTED, atol=1e-14)
    np.testing.assert_allclose(got["named"].weight, EXPECTED[:, :, 0], atol=1e-14)
    assert isinstance(got["named"].bias, type(xp.asarray(X)))


def test_lists_of_trees():
    trees = [OrderedDict(w=X[k], b=(X[k, 0], [X[k, 1, 1], 1.0])) for k in range(3)]
    got = B.combine(M, trees)
    assert type(got) is OrderedDict
    np.testing.assert_allclose(got["w"], EXPECTED, atol=1e-14)
    np.testing.assert_allclose(got["b"][1][0], EXPECTED[:, 1, 1], atol=1e-14)
    np.testing.assert_allclose(got["b"][1][1], np.ones(5), atol=1e-14)


def test_a_list_enumerates_blocks_and_a_tuple_does_not():
    assert B.split([np.ones(2), np.ones(2), np.ones(2)]).count == 3
    assert B.split((np.ones(2), np.ones(2), np.ones(2))).count == 2
    assert B.split([[1.0, 2.0], [3.0, 4.0]]).leaves[1].rows == [[2.0], [4.0]]


def test_zero_dimensional_blocks():
    for blocks in (
        np.array([1.0, 2.0, 4.0]),
        [1.0, 2.0, 4.0],
        [1, 2.0, np.float64(4)],
        list(np.array([1.0, 2.0, 4.0])),
    ):
        got = B.combine(M, blocks)
        assert got.shape == (5,)
        np.testing.assert_allclose(got, M @ [1, 2, 4], atol=1e-14)
    assert B.combine(M, [torch.tensor(1.0)] * 3).shape == (5,)


def test_blocks_without_entries():
    for blocks in (np.zeros((3, 0, 2)), [np.zeros((0, 2))] * 3):
        parts = B.split(blocks)
        assert B.combine(M, parts).shape == (5, 0, 2)
        with pytest.raises(BlocksError, match=r"blocks: every block is empty \(\(0, 2\)\); pass allow_empty=True"):
            parts.require_entries("blocks")
    with pytest.raises(BlocksError, match="every block is empty"):
        B.split([{}, {}]).require_entries("blocks")
    B.split({"a": np.zeros((3, 0)), "b": np.zeros((3, 1))}).require_entries("blocks")


@pytest.mark.parametrize("listed", [False, True])
def test_wide_blocks_are_combined_slice_by_slice(listed):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 400_001), dtype=np.float32)
    expected = M @ x.astype(np.float64)
    np.testing.assert_allclose(B.combine(M, list(x) if listed else x), expected, atol=1e-5)
    leaf = B.split(x[:, ::2]).leaves[0]
    outs = [np.empty(leaf.size, np.float32) for _ in range(5)]
    B.apply(M, leaf, outs)
    np.testing.assert_allclose(np.stack(outs), expected[:, ::2], atol=1e-5)


def test_selecting_blocks_copies_them_exactly_and_spreads_no_nan():
    x = np.array([[1.0, np.nan], [3.0, 1e-320], [np.inf, 5.0]])
    got = B.combine(np.eye(3)[[2, 0, 1, 1]], x)
    np.testing.assert_array_equal(got, x[[2, 0, 1, 1]])
    assert not np.shares_memory(got, x)
    assert B.combine(np.eye(3)[[1]] * 2, np.ones((3, 1))).tolist() == [[2.0]]


@given(
    st.integers(1, 5),
    st.integers(1, 6),
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from(["f2", "f4", "f8", "c8", "c16", "i2", "?"]),
    st.sampled_from(sorted(LAYOUTS)),
    st.booleans(),
    st.integers(0, 10**6),
)
@steady
def test_combine_is_a_tensor_product(rows, count, shape, dtype, layout, listed, seed):
    rng = np.random.default_rng(seed)
    matrix = rng.uniform(-1, 1, (rows, count))
    x = (2 * rng.uniform(-1, 1, (count, *shape))).astype(dtype)
    laid = x
    if x.ndim == 3 and layout != "subclass":
        laid = LAYOUTS[layout](x)
    got = B.combine(matrix, list(laid) if listed else laid)
    wide = x.astype(complex if x.dtype.kind == "c" else float)
    assert got.shape == (rows, *shape)
    eps = np.finfo(got.dtype).eps
    np.testing.assert_allclose(got, np.tensordot(matrix, wide, axes=1), atol=8 * count * eps)


# Refusals -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        (None, "blocks: expected arrays, numbers, or dicts, lists and tuples of them, got NoneType"),
        ([None, None], "blocks, block 0: expected arrays, .* got NoneType"),
        ([{"a": 1.0}, {"a": None}], "blocks, block 1: expected arrays, .* got NoneType"),
        ("text", "blocks: expected arrays, .* got str"),
        (["a", "b"], "blocks, block 0: expected arrays, .* got str"),
        ([b"a", b"b"], "got bytes"),
        ({1, 2}, "got set"),
        (range(3), "got range"),
        (np.array(["a", "b"]), "expected real or complex numbers, got an array of dtype <U1"),
        (np.array([None, 1]), "got an array of dtype object"),
        (np.array(["2020-01-01"], dtype="M8[D]"), r"got an array of dtype datetime64\[D\]"),
        ([2**70, 1], "got an array of dtype object"),
        ((k for k in [1, 2]), "blocks: got a generator; put the blocks into a list first"),
        (iter([1, 2]), "blocks: got a list_iterator; put the blocks into a list first"),
        (map(float, [1, 2]), "blocks: got a map; put the blocks into a list first"),
        ([], "blocks: there are none"),
        ({}, "blocks: there are none"),
        ((), "blocks: there are none"),
        (np.zeros((0, 3)), r"blocks: there are none \(the leading axis has length 0\)"),
        (3.0, "every array needs a leading axis that enumerates the blocks, got a scalar"),
        (np.array(3.0), "every array needs a leading axis"),
        ({"a": np.zeros((3, 2)), "b": np.zeros(4)}, r"must be equally long, got \(3, 2\), \(4,\)"),
        ([np.zeros(3), np.zeros(4)], r"block 1 is float64\[4\] but block 0 is float64\[3\]"),
        ([np.zeros(3), np.zeros(3), np.zeros((1, 3))], r"block 2 is float64\[1, 3\] but block 0 is float64\[3\]"),
        ([np.zeros(3), np.zeros(3, "f4")], r"block 1 is float32\[3\] but block 0 is float64\[3\]"),
        ([{"a": 1.0, "b": 2.0}, {"a": 1.0}], "block 1 is PyTreeSpec.* but block 0 is PyTreeSpec"),
        ([[1.0, 2.0], [3.0]], "all must be equal .a list enumerates blocks: put the arrays of one block into a tuple"),
        (np.ma.masked_array(np.ones((3, 2)), mask=np.eye(3, 2)), "entries of a masked array are masked"),
        (torch.zeros(3, 2, dtype=torch.bfloat16), "bfloat16 has no NumPy counterpart: convert it to float16"),
        (torch.eye(3).to_sparse(), "expected dense tensors, got one of layout torch.sparse_coo"),
        (object(), "got object"),
    ],
    ids=lambda value: None if isinstance(value, str) else type(value).__name__,
)
def test_refused_blocks(blocks, message):
    with pytest.raises(BlocksError, match=message):
        B.split(blocks)


def test_refusals_carry_the_callers_noun():
    with pytest.raises(BlocksError, match="replies, block 1"):
        B.split([1.0, "x"], "replies")
    with pytest.raises(BlocksError, match="replies: expected 3, got 2"):
        B.combine(M, np.ones((2, 2)), "replies")
    with pytest.raises(BlocksError, match="replies: there are none"):
        B.stack([])


@pytest.mark.parametrize(
    ("bad", "count"), [([np.nan], "1 non-finite value "), ([np.inf, -np.inf], "2 non-finite values ")]
)
@pytest.mark.parametrize("listed", [False, True])
def test_non_finite_blocks_are_named(bad, count, listed):
    x = X.copy()
    x[1].flat[: len(bad)] = bad
    parts = B.split({"fine": X, "odd": x} if not listed else [{"fine": X[k], "odd": x[k]} for k in range(3)])
    with pytest.raises(BlocksError, match=f"inputs: block 1 holds {count}.*pass allow_nan=True"):
        parts.require_finite("inputs")
    B.split(X).require_finite("inputs")


def test_an_unmasked_masked_array_is_an_array():
    np.testing.assert_allclose(B.combine(M, np.ma.masked_array(X, mask=np.zeros_like(X, bool))), EXPECTED, atol=1e-14)


# The rest -------------------------------------------------------------------------------------------------------------


def test_as_matrix_features_and_unstack():
    trees = [{"a": X[k], "b": torch.ones(3) * k} for k in range(3)]
    expected = np.concatenate([X.reshape(3, 8), np.arange(3.0)[:, None] * np.ones(3)], axis=1)
    np.testing.assert_array_equal(B.as_matrix(trees), expected)
    np.testing.assert_array_equal(B.features(B.split(trees)), expected)
    back = B.unstack({"a": X, "b": torch.ones(3, 2)}, 3)
    assert len(back) == 3
    np.testing.assert_array_equal(back[2]["a"], X[2])
    assert torch.equal(back[0]["b"], torch.ones(2))


@pytest.mark.parametrize(
    ("leaf", "name"),
    [(1, "numpy"), (X, "numpy"), (np.float32(1), "numpy"), (torch.ones(1), "torch"), (xp.ones(1), "array_api_strict")],
)
def test_libraries(leaf, name):
    assert B.library(leaf) == name
    back = B.in_library(np.arange(3.0), name)
    assert B.library(back) == name
    np.testing.assert_array_equal(B.to_numpy(back), np.arange(3.0))


def test_a_read_only_array_goes_to_torch_as_a_copy():
    x = read_only(np.arange(3.0))
    tensor = B.from_numpy(x, torch.ones(1))
    tensor += 1
    np.testing.assert_array_equal(x, np.arange(3.0))


def test_plain_arrays_are_not_copied():
    assert B.to_numpy(X) is X
    assert np.shares_memory(B.split(X).leaves[0].rows, X)
    tensor = torch.ones(4)
    assert np.shares_memory(B.to_numpy(tensor), tensor.numpy())
