"""Blocks and replies as matrices: trees of arrays of any library in, the same kind of trees out.

The rules, stated once:

- A **list** on the top level enumerates blocks, each an array or a tree. An **array** enumerates blocks along its
  leading axis, and so do all the arrays inside a **dict or tuple** on the top level. Below the top level lists, too,
  are containers.
- All blocks have one structure, and each leaf one shape and dtype.
- float16/32/64, complex64/128 (and NumPy's long doubles) keep their dtype; **integers and booleans become float64**.
  float16 is combined in float32 and rounded once at the end.
- Weights are float64 (or complex128) and are cast to the data's precision when applied.
"""

from __future__ import annotations

import functools
import importlib
import math
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import array_api_compat
import numpy as np
import optree
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from .errors import BlocksError
from .ordering import FEATURES

__all__ = ["Blocks", "Leaf", "as_matrix", "combine", "describe", "from_numpy", "split", "stack", "to_numpy"]

Array = NDArray[Any]
_THREADS = min(4, os.cpu_count() or 1)
_SLICE_WIDTH = 4096  # entries of a block that are gathered at once, at least
_SCRATCH_BYTES = 1 << 20  # a slice of all blocks that stays in cache while it is combined


def raw_numpy(leaf: Any) -> Array:
    """One leaf as a NumPy array of its own dtype, without a copy where its library allows that.

    Raises
    ------
    TypeError
        If the leaf is not a numeric array or number.
    """
    if type(leaf) is np.ndarray:
        array = leaf
    elif isinstance(leaf, np.ma.MaskedArray) and np.ma.is_masked(leaf):
        raise TypeError(
            "some entries of a masked array are masked, and coding would use what lies below: fill them first"
        )
    elif array_api_compat.is_torch_array(leaf):
        if leaf.layout != sys.modules["torch"].strided:
            raise TypeError(f"expected dense tensors, got one of layout {leaf.layout}: call to_dense() first")
        try:
            array = leaf.detach().cpu().resolve_conj().resolve_neg().numpy()
        except TypeError as error:  # bfloat16 and the 8-bit floats have no NumPy counterpart
            raise TypeError(f"{leaf.dtype} has no NumPy counterpart: convert it to float16 or float32 first") from error
    elif isinstance(leaf, np.ndarray | np.generic | bool | int | float | complex):
        array = np.asarray(leaf)
    elif hasattr(leaf, "__dlpack__"):
        try:
            array = np.from_dlpack(leaf)
        except (TypeError, ValueError, BufferError, RuntimeError):
            array = np.asarray(array_api_compat.to_device(leaf, "cpu"))
    elif hasattr(leaf, "__array__"):
        array = np.asarray(leaf)
    else:
        raise TypeError(f"expected arrays, numbers, or dicts, lists and tuples of them, got {type(leaf).__name__}")
    if array.dtype.kind not in "biufc":
        raise TypeError(f"expected real or complex numbers, got an array of dtype {array.dtype}")
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return np.asarray(array)


def to_numpy(leaf: Any) -> Array:
    """`raw_numpy`, with integers and booleans promoted to float64."""
    array = raw_numpy(leaf)
    if array.dtype.kind not in "biu":
        return array
    if array.dtype.itemsize == 8 and array.size and max(-int(array.min()), int(array.max())) > 1 << 53:
        raise TypeError("integers beyond 2**53 would be rounded on their way to float64: convert or scale them first")
    return array.astype(np.float64)


def finite(array: Array) -> bool:
    """Whether all entries are."""
    if array.size < 64:
        return bool(np.isfinite(array).all())
    with np.errstate(over="ignore", invalid="ignore"):
        total = np.add.reduce(array, axis=None)  # one fast pass; only a total that is not finite needs a closer look
    return bool(np.isfinite(total)) or bool(np.isfinite(array).all())


def coded_dtype(matrix: Array, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype of blocks of `dtype` combined by `matrix`: complex where the matrix is."""
    return np.result_type(dtype, np.complex64) if np.iscomplexobj(matrix) else dtype


def library(leaf: Any) -> str:
    """The name of the library that a leaf belongs to: ``"numpy"``, ``"torch"`` or an importable module."""
    if isinstance(leaf, np.ndarray | np.generic | bool | int | float | complex):
        return "numpy"
    if array_api_compat.is_torch_array(leaf):
        return "torch"
    if array_api_compat.is_array_api_obj(leaf):
        return str(array_api_compat.array_namespace(leaf).__name__)
    return "numpy"


def in_library(array: Array, name: str) -> Any:
    """`array` in the named library, on its default device; imports it, so `name` must be trusted."""
    if name == "numpy":
        return array
    module = importlib.import_module(name)
    return module.from_numpy(array) if name == "torch" else module.asarray(array)


def from_numpy(array: Array, like: Any) -> Any:
    """`array` in the library and on the device of `like`."""
    if like is None or isinstance(like, np.ndarray | np.generic | bool | int | float | complex):
        return array
    if array_api_compat.is_torch_array(like):
        torch = sys.modules["torch"]
        return torch.from_numpy(np.ascontiguousarray(array) if array.flags.writeable else array.copy()).to(like.device)
    if array_api_compat.is_array_api_obj(like):
        xp = array_api_compat.array_namespace(like)
        return xp.asarray(array, device=array_api_compat.device(like))
    return array


@dataclass(frozen=True, eq=False)
class Leaf:
    """One leaf of K blocks.

    Attributes
    ----------
    rows : (K, M) array, or K arrays (M,)
        The leaf of each block, flattened; NumPy.
    shape : tuple of int
        Its shape in one block.
    dtype : numpy dtype
    like : Any
        An array of the caller's library, for `from_numpy`.
    """

    rows: Array | Sequence[Array]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    like: Any

    @property
    def size(self) -> int:
        """Entries per block, M."""
        return math.prod(self.shape)


@dataclass(frozen=True, eq=False)
class Blocks:
    """K blocks of one structure.

    Attributes
    ----------
    count : int
        K.
    leaves : list of Leaf
    spec : optree.PyTreeSpec
        The structure of one block.
    listed : bool
        Whether they came as a list.
    """

    count: int
    leaves: list[Leaf]
    spec: Any
    listed: bool

    def restore(self, matrices: Sequence[Array]) -> Any:
        """A tree of arrays (count', *shape) from one (count', M) matrix per leaf, in the caller's libraries."""
        leaves = [
            from_numpy(matrix.reshape(len(matrix), *leaf.shape), leaf.like)
            for matrix, leaf in zip(matrices, self.leaves, strict=True)
        ]
        return optree.tree_unflatten(self.spec, leaves)

    def require_finite(self, noun: str) -> None:
        """Raise `BlocksError` naming the first block that holds NaN or infinity."""
        for leaf in self.leaves:
            for index, row in enumerate(leaf.rows):
                if not finite(row):
                    bad = int((~np.isfinite(row)).sum())
                    raise BlocksError(
                        f"{noun}: block {index} holds {bad} non-finite value{'s' if bad > 1 else ''} (NaN or inf), "
                        "which coding would spread to every worker; clean it, or pass allow_nan=True"
                    )

    def require_entries(self, noun: str) -> None:
        """Raise `BlocksError` if the blocks have no entries at all."""
        if all(leaf.size == 0 for leaf in self.leaves):
            shapes = ", ".join(str(leaf.shape) for leaf in self.leaves) or "an empty tree"
            raise BlocksError(f"{noun}: every block is empty ({shapes}); pass allow_empty=True if that is meant")


def describe(spec: Any, leaves: Sequence[Any]) -> str:
    """The structure, shapes and dtypes of a block in a few words, for messages."""
    kinds = [f"{leaf.dtype.name}{list(leaf.shape)}" for leaf in leaves]
    return kinds[0] if optree.treespec_is_leaf(spec) and kinds else f"{spec} of {', '.join(kinds)}"


def flatten(tree: Any) -> tuple[list[Any], Any]:
    """Leaves and structure of one block or reply; None is a leaf, so that it is found and refused."""
    leaves, spec = optree.tree_flatten(tree, none_is_leaf=True)
    return leaves, spec


def _where(noun: str, error: Exception, index: int | None = None) -> BlocksError:
    return BlocksError(f"{noun}{'' if index is None else f', block {index}'}: {error}")


def stack(replies: Sequence[Any], noun: str = "replies") -> Blocks:
    """Blocks from a list with one array or tree each; nothing is copied."""
    if len(replies) == 0:
        raise BlocksError(f"{noun}: there are none")
    columns: list[list[Array]] = []
    first: list[Any] = []
    spec: Any = None
    for index, reply in enumerate(replies):
        native, this = flatten(reply)
        try:
            arrays = [to_numpy(leaf) for leaf in native]
        except TypeError as error:
            raise _where(noun, error, index) from error
        if index == 0:
            first, spec, columns = native, this, [[array] for array in arrays]
            continue
        same = this == spec and all(
            array.shape == column[0].shape and array.dtype == column[0].dtype
            for array, column in zip(arrays, columns, strict=True)
        )
        if not same:
            raise BlocksError(
                f"{noun}: block {index} is {describe(this, arrays)} but block 0 is "
                f"{describe(spec, [column[0] for column in columns])}; all must be equal (a list enumerates blocks: "
                "put the arrays of one block into a tuple or dict)"
            )
        for array, column in zip(arrays, columns, strict=True):
            column.append(array)
    leaves = [
        Leaf([array.reshape(-1) for array in column], column[0].shape, column[0].dtype, like)
        for column, like in zip(columns, first, strict=True)
    ]
    return Blocks(len(replies), leaves, spec, listed=True)


def split(blocks: Any, noun: str = "blocks") -> Blocks:
    """K equal blocks from what a user hands over; see the rules on top of this module.

    Raises
    ------
    BlocksError
        If there are none, or they are unequal or not numeric.
    """
    if isinstance(blocks, list):
        return stack(blocks, noun)
    if isinstance(blocks, Iterator):
        raise BlocksError(f"{noun}: got a {type(blocks).__name__}; put the blocks into a list first")
    native, spec = flatten(blocks)
    try:
        arrays = [to_numpy(leaf) for leaf in native]
    except TypeError as error:
        raise _where(noun, error) from error
    if not arrays:
        raise BlocksError(f"{noun}: there are none")
    if any(array.ndim == 0 for array in arrays):
        raise BlocksError(
            f"{noun}: every array needs a leading axis that enumerates the blocks, got a scalar; "
            "put separate blocks into a list"
        )
    counts = {len(array) for array in arrays}
    if len(counts) > 1:
        raise BlocksError(
            f"{noun}: the leading axes enumerate the blocks and must be equally long, got "
            f"{', '.join(str(array.shape) for array in arrays)}"
        )
    count = counts.pop()
    if count == 0:
        raise BlocksError(f"{noun}: there are none (the leading axis has length 0)")
    leaves = [
        Leaf(array.reshape(count, int(np.prod(array.shape[1:], dtype=np.int64))), array.shape[1:], array.dtype, like)
        for array, like in zip(arrays, native, strict=True)
    ]
    return Blocks(count, leaves, spec, listed=False)


def apply(matrix: Array, leaf: Leaf, outs: Sequence[Array] | Array, *, double: bool = False) -> None:
    """Write row i of ``matrix @ leaf.rows`` to ``outs[i]``, a one-dimensional array (of shared memory, say).

    One BLAS product where everything is contiguous, otherwise slices of all blocks that stay in cache. Where every
    row of the matrix selects a single block, blocks are copied: exact, and no NaN of one reaches another. With `double`
    lower precisions are combined in float64 and rounded once, as `outs` are written.
    """
    if len(matrix) == 0 or leaf.size == 0:
        return
    support = matrix != 0
    if (support.sum(axis=1) == 1).all() and (matrix.sum(axis=1) == 1).all():
        for out, index in zip(outs, matrix.argmax(axis=1), strict=True):
            out[...] = leaf.rows[index]
        return
    if not support.all() and not all(finite(row) for row in leaf.rows):
        _apply_by_support(matrix, support, leaf, outs, double)
        return
    half = leaf.dtype == np.float16
    working = np.dtype(np.float32) if half else leaf.dtype
    if double:
        working = np.result_type(leaf.dtype, np.float64)
    weights = matrix.astype(coded_dtype(matrix, working))
    if (
        isinstance(outs, np.ndarray)
        and isinstance(leaf.rows, np.ndarray)
        and outs.dtype == weights.dtype == leaf.rows.dtype
    ):
        np.matmul(weights, leaf.rows, out=outs)
        return
    # Gathering a slice beats handing BLAS a strided view of it, whose rows collide in the cache. Few rows at a
    # time, so that each slice is long enough to be read at full speed.
    width = max(_SLICE_WIDTH, _SCRATCH_BYTES // (len(leaf.rows) * working.itemsize))
    height = max(8, _SCRATCH_BYTES // (width * working.itemsize))

    def part(begin: int, end: int) -> None:
        gathered = np.empty((min(height, len(leaf.rows)), min(width, end - begin)), working)
        results = np.empty((2, len(matrix), gathered.shape[1]), weights.dtype)
        for start in range(begin, end, width):
            stop = min(start + width, end)
            total, more = results[:, :, : stop - start]
            for first in range(0, len(leaf.rows), height):
                rows = leaf.rows[first : first + height]
                here = gathered[: len(rows), : stop - start]
                for row, source in zip(here, rows, strict=True):
                    row[...] = source[start:stop]
                np.matmul(weights[:, first : first + height], here, out=more if first else total)
                if first:
                    total += more
            for out, row in zip(outs, total, strict=True):
                out[start:stop] = row

    if leaf.size < 4 * width:
        part(0, leaf.size)
        return
    # Copying takes as long as multiplying: threads of our own do both, and BLAS uses none, to keep out of their way.
    edges = [leaf.size * index // _THREADS for index in range(_THREADS + 1)]
    with one_blas_thread(), ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(part, edges[:-1], edges[1:]))


@functools.cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()


def one_blas_thread() -> Any:
    """A context in which BLAS works without threads of its own, as small products are best served."""
    return _blas().limit(limits=1, user_api="blas")


def _apply_by_support(matrix: Array, support: Array, leaf: Leaf, outs: Sequence[Array] | Array, double: bool) -> None:
    """Rows that use the same blocks together, others left out: 0 * NaN is NaN, and a block not used must not matter."""
    patterns, which = np.unique(support, axis=0, return_inverse=True)
    for index, pattern in enumerate(patterns):
        rows, columns = np.flatnonzero(which.ravel() == index), np.flatnonzero(pattern)
        part = Leaf([leaf.rows[column] for column in columns.tolist()], leaf.shape, leaf.dtype, leaf.like)
        targets = [outs[row] for row in rows.tolist()]
        if len(columns):
            apply(matrix[np.ix_(rows, columns)], part, targets, double=double)
        else:
            for target in targets:
                target[...] = 0


def _applied(matrix: Array, leaf: Leaf, double: bool = False) -> Array:
    if matrix.shape[1] != len(leaf.rows):
        raise BlocksError(f"a matrix of {matrix.shape[1]} columns cannot combine {len(leaf.rows)} blocks")
    out = np.empty((len(matrix), leaf.size), coded_dtype(matrix, leaf.dtype))
    apply(matrix, leaf, out, double=double)
    return out


def combine(matrix: Array, blocks: Any, noun: str = "blocks", *, double: bool = False) -> Any:
    """``matrix`` applied across the blocks: a tree of arrays (rows of matrix, ...) in the caller's library."""
    parts = blocks if isinstance(blocks, Blocks) else split(blocks, noun)
    if parts.count != matrix.shape[1]:
        raise BlocksError(f"{noun}: expected {matrix.shape[1]}, got {parts.count}")
    return parts.restore([_applied(matrix, leaf, double) for leaf in parts.leaves])


def as_matrix(replies: Sequence[Any]) -> Array:
    """Replies (K arrays or trees) as one (K, total) matrix, for comparing them."""
    return features(stack(replies), most=None)


def features(blocks: Blocks, most: int | None = FEATURES) -> Array:
    """What an ordering looks at, (K, features): all leaves side by side, or about `most` entries drawn of them."""
    total = sum(leaf.size for leaf in blocks.leaves)
    drawn = None if most is None or total <= most else np.unique(np.random.default_rng(0).integers(0, total, most))
    columns, offset = [], 0
    for leaf in blocks.leaves:
        rows = leaf.rows
        if drawn is not None:
            here = drawn[(drawn >= offset) & (drawn < offset + leaf.size)] - offset
            rows = [row[here] for row in leaf.rows]
        columns.append(np.reshape(np.asarray(rows), (blocks.count, -1 if leaf.size else 0)))
        offset += leaf.size
    return np.concatenate(columns, axis=1)


def unstack(tree: Any, count: int) -> list[Any]:
    """A tree of arrays (count, ...) as a list of `count` trees."""
    leaves, spec = flatten(tree)
    return [optree.tree_unflatten(spec, [leaf[index] for leaf in leaves]) for index in range(count)]
