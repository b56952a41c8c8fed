"""Short paths through blocks.

An approximate code draws a curve through the blocks in their given order; a curve that zig-zags cannot be followed by
any decoder. Visiting similar blocks one after another costs nothing at run time and can gain orders of magnitude.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["path_length", "path_order"]

FEATURES = 65_536  # columns that are enough to tell blocks apart; more only cost time


def _distances(blocks: NDArray[np.float64]) -> NDArray[np.float64]:
    centred = blocks - blocks.mean(axis=0)
    norms = np.einsum("ij,ij->i", centred, centred)
    squared = norms[:, None] + norms[None, :] - 2 * centred @ centred.T
    return np.asarray(np.sqrt(np.maximum(squared, 0)))


def _real_rows(blocks: ArrayLike, most: int | None = None) -> NDArray[np.float64]:
    """The blocks as rows of float64, complex entries as pairs; of more than `most` columns a fixed random subset."""
    array = np.asarray(blocks)
    if array.ndim == 0:
        raise ValueError(f"expected blocks along a leading axis, got a scalar: {array}")
    rows = array.reshape(len(array), int(np.prod(array.shape[1:], dtype=np.int64)))
    if most is not None and rows.shape[1] > most:
        rows = rows[:, np.sort(np.random.default_rng(0).choice(rows.shape[1], most, replace=False))]
    if np.iscomplexobj(rows):
        rows = np.concatenate([rows.real, rows.imag], axis=1)
    return np.asarray(rows, dtype=np.float64)


def path_length(blocks: ArrayLike, order: ArrayLike | None = None) -> float:
    """Length of the open path that visits the rows of `blocks` (K, features) in `order`."""
    rows = _real_rows(blocks)
    if order is not None:
        rows = rows[np.asarray(order)]
    return float(np.linalg.norm(np.diff(rows, axis=0), axis=1).sum())


def path_order(blocks: ArrayLike) -> NDArray[np.intp]:
    """A permutation of the blocks along a short open path.

    Scalars are sorted. Otherwise the best nearest-neighbour path from a few starts is shortened by 2-opt, always
    the best move first, until none helps (4 K moves at most): O(K^2) a move, a fraction of a second for 300 blocks.

    Parameters
    ----------
    blocks : (K, ...) real or complex
        Complex entries count as pairs of reals. Beyond 65,536 features a fixed random subset of them is compared.

    Returns
    -------
    (K,) integer permutation; ``blocks[path_order(blocks)]`` lies along the path.

    Examples
    --------
    >>> path_order([0.3, -1.0, 0.9])
    array([1, 0, 2])
    """
    rows = np.nan_to_num(_real_rows(blocks, FEATURES))
    count = len(rows)
    if rows.shape[1] == 1:
        return np.argsort(rows[:, 0], kind="stable")
    if count < 3 or rows.shape[1] == 0:
        return np.arange(count)
    scale = np.abs(rows).max()
    if scale > 0:
        rows = rows / scale
    distance = _distances(rows)
    starts = {int(distance.sum(axis=1).argmax()), int(rows.sum(axis=1).argmin()), int(rows.sum(axis=1).argmax())}
    paths = [_nearest_neighbours(distance, start) for start in sorted(starts)]
    best = min(paths, key=lambda path: float(distance[path[:-1], path[1:]].sum()))
    return _two_opt(best, distance, moves=4 * count)


def _nearest_neighbours(distance: NDArray[np.float64], start: int) -> NDArray[np.intp]:
    left = distance.copy()
    path = [start]
    for _ in range(len(distance) - 1):
        left[:, path[-1]] = np.inf
        path.append(int(left[path[-1]].argmin()))
    return np.array(path, dtype=np.intp)


def _two_opt(path: NDArray[np.intp], distance: NDArray[np.float64], moves: int) -> NDArray[np.intp]:
    """Reverse segments of the open path while that shortens it; a dummy end at distance 0 opens the tour."""
    count = len(path)
    padded = np.zeros((count + 1, count + 1))
    padded[:count, :count] = distance
    tour = np.append(path, count)
    for _ in range(moves):
        following = np.roll(tour, -1)
        here = padded[tour, following]
        change = padded[np.ix_(tour, tour)] + padded[np.ix_(following, following)] - here[:, None] - here[None, :]
        np.fill_diagonal(change, 0.0)
        i, j = divmod(int(change.argmin()), count + 1)
        if change[i, j] > -1e-12:
            break
        i, j = min(i, j), max(i, j)
        tour[i + 1 : j + 1] = tour[i + 1 : j + 1][::-1]
    cut = int(np.flatnonzero(tour == count)[0])
    return np.roll(tour, -cut)[1:].astype(np.intp)
