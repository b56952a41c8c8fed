"""Who holds which partition: boolean matrices, workers x partitions, as plain NumPy arrays.

Any placement will do for a gradient code; what it costs is decided by the partition with the fewest copies
(paper 2, Theorem 1), which is what `replication` and `minimum_communication` say.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import PlacementError

__all__ = [
    "as_placement",
    "chunks_for",
    "cyclic_placement",
    "fractional_repetition_placement",
    "minimum_communication",
    "placement_by_speed",
    "random_placement",
    "replication",
]

Placement = NDArray[np.bool_]


def as_placement(placement: Any) -> Placement:
    """A read-only boolean copy of a placement, checked.

    Raises
    ------
    PlacementError
        If it is not a matrix of zeros and ones with at least one worker for every partition.
    """
    matrix = np.asarray(placement)
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise PlacementError(f"a placement is a matrix, workers x partitions, got shape {matrix.shape}")
    if matrix.dtype != np.bool_ and not (matrix.dtype.kind in "iuf" and np.isin(matrix, (0, 1)).all()):
        raise PlacementError("a placement holds booleans (or zeros and ones): whether a worker holds a partition")
    matrix = matrix.astype(np.bool_)
    orphans = np.flatnonzero(~matrix.any(axis=0))
    if len(orphans):
        named = ", ".join(map(str, orphans[:8])) + (", ..." if len(orphans) > 8 else "")
        raise PlacementError(f"no worker holds partition{'s' if len(orphans) > 1 else ''} {named}")
    matrix.flags.writeable = False
    return matrix


def replication(placement: ArrayLike) -> int:
    """r: how many workers hold the partition that the fewest hold (paper 2, equation 4).

    Examples
    --------
    >>> replication(cyclic_placement(workers=10, partitions=10, replicas=5))
    5
    """
    return int(as_placement(placement).sum(axis=0).min())


def _copies(workers: int, partitions: int, replicas: int) -> tuple[int, int, int]:
    sizes = {"workers": workers, "partitions": partitions, "replicas": replicas}
    for name, value in sizes.items():
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise TypeError(f"{name} must be an integer, got {value!r}")
        if value < 1:
            raise PlacementError(f"{name} must be at least 1, got {value}")
    if replicas > workers:
        raise PlacementError(f"{replicas} replicas of a partition need as many workers, got workers={workers}")
    return int(workers), int(partitions), int(replicas)


def cyclic_placement(workers: int, partitions: int, replicas: int) -> Placement:
    """Each partition on `replicas` neighbouring workers, the neighbourhoods evenly around a ring.

    Returns
    -------
    (workers, partitions) bool

    Examples
    --------
    >>> cyclic_placement(workers=4, partitions=4, replicas=2).astype(int)
    array([[1, 1, 0, 0],
           [0, 1, 1, 0],
           [0, 0, 1, 1],
           [1, 0, 0, 1]])
    """
    workers, partitions, replicas = _copies(workers, partitions, replicas)
    matrix = np.zeros((workers, partitions), np.bool_)
    first = np.arange(partitions) * workers // partitions
    for step in range(replicas):
        matrix[(first - step) % workers, np.arange(partitions)] = True
    return matrix


def fractional_repetition_placement(workers: int, partitions: int, replicas: int) -> Placement:
    """Groups of at least `replicas` workers; all workers of a group hold the same partitions.

    Where `replicas` does not divide the workers some groups are larger.

    Examples
    --------
    >>> fractional_repetition_placement(workers=5, partitions=4, replicas=2).astype(int)
    array([[1, 1, 0, 0],
           [1, 1, 0, 0],
           [1, 1, 0, 0],
           [0, 0, 1, 1],
           [0, 0, 1, 1]])
    """
    workers, partitions, replicas = _copies(workers, partitions, replicas)
    groups = min(workers // replicas, partitions)
    matrix = np.zeros((workers, partitions), np.bool_)
    shares = np.array_split(np.arange(partitions), groups)
    for members, share in zip(np.array_split(np.arange(workers), groups), shares, strict=True):
        matrix[np.ix_(members, share)] = True
    return matrix


def random_placement(workers: int, partitions: int, replicas: int, rng: int | np.random.Generator = 0) -> Placement:
    """Each partition on `replicas` workers drawn at random among the least loaded, so that loads differ by one at most.

    Examples
    --------
    >>> placement = random_placement(workers=10, partitions=30, replicas=4, rng=1)
    >>> sorted(set(placement.sum(axis=1).tolist())), sorted(set(placement.sum(axis=0).tolist()))
    ([12], [4])
    """
    workers, partitions, replicas = _copies(workers, partitions, replicas)
    generator = np.random.default_rng(rng)
    matrix = np.zeros((workers, partitions), np.bool_)
    load = np.zeros(workers)
    for partition in range(partitions):
        chosen = np.lexsort((generator.random(workers), load))[:replicas]
        matrix[chosen, partition] = True
        load[chosen] += 1
    return matrix


def placement_by_speed(speeds: ArrayLike, partitions: int, replicas: int, memory: ArrayLike | None = None) -> Placement:
    """Loads in proportion to the workers' speeds, so that all take about equally long.

    Parameters
    ----------
    speeds : (workers,) array
        Partitions per second, in any unit; 0 for a worker that shall hold nothing.
    partitions, replicas : int
        Every partition is held by exactly `replicas` workers.
    memory : (workers,) array of int, optional
        The most partitions that each worker can hold.

    Returns
    -------
    (workers, partitions) bool

    Raises
    ------
    PlacementError
        If the workers cannot hold `partitions` x `replicas` copies.

    Notes
    -----
    Worker after worker takes the next partitions around a ring, as many as its load: no worker holds one twice, since
    no load exceeds `partitions`, and every partition is passed `replicas` times.

    Examples
    --------
    >>> placement_by_speed([1, 1, 2, 4], partitions=6, replicas=2).sum(axis=1)
    array([2, 1, 3, 6])
    """
    pace = np.asarray(speeds, dtype=np.float64)
    if pace.ndim != 1 or not len(pace) or not np.isfinite(pace).all() or (pace < 0).any():
        raise PlacementError(f"speeds must be a row of finite numbers, none negative, got {speeds!r}")
    workers, partitions, replicas = _copies(len(pace), partitions, replicas)
    most = np.full(workers, partitions, dtype=np.float64)
    if memory is not None:
        room = np.asarray(memory)
        if room.shape != (workers,) or not (room >= 0).all():
            raise PlacementError(f"memory must hold one number of partitions for each of {workers} workers")
        most = np.minimum(most, np.floor(room))
    most[pace == 0] = 0
    wanted = partitions * replicas
    if most.sum() < wanted:
        raise PlacementError(
            f"{partitions} partitions in {replicas} copies are {wanted} places, but the workers that are not idle have "
            f"room for {int(most.sum())}: use fewer replicas, or more workers or memory"
        )
    pace = pace / pace.max()
    load = np.zeros(workers)
    while load.sum() < wanted - 1e-9:  # what does not fit on the full ones is shared among the others
        open_ = load < most
        extra = (wanted - load.sum()) * pace[open_] / pace[open_].sum()
        load[open_] = np.minimum(load[open_] + extra, most[open_])
    whole = np.floor(load + 1e-9)
    behind = np.where(whole < most, load - whole, -np.inf)
    for worker in np.argsort(-behind, kind="stable")[: round(wanted - whole.sum())]:
        whole[worker] += 1
    ends = np.cumsum(whole).astype(int)
    matrix = np.zeros((workers, partitions), np.bool_)
    for worker, (start, stop) in enumerate(zip(np.r_[0, ends[:-1]], ends, strict=True)):
        matrix[worker, np.arange(start, stop) % partitions] = True
    return matrix


def minimum_communication(placement: ArrayLike, d: int, stragglers: int = 0, adversaries: int = 0) -> float:
    """C* = d / (r - s - 2a): the fewest numbers that a worker must send for an exact sum (paper 2, Theorem 1).

    Parameters
    ----------
    placement : (workers, partitions) bool
    d : int
        Entries of a partial gradient.
    stragglers, adversaries : int
        Up to so many workers do not answer, and up to so many others lie.

    Raises
    ------
    PlacementError
        If no message length suffices, because r <= s + 2a.

    Examples
    --------
    >>> minimum_communication(cyclic_placement(10, 10, 7), d=1200, stragglers=2, adversaries=1)
    400.0
    """
    return d / chunks_for(replication(placement), stragglers, adversaries)


def chunks_for(replicas: int, stragglers: int, adversaries: int) -> int:
    """m = r - s - 2a: into how many chunks a gradient can be cut, of which each worker sends only one's size.

    Raises
    ------
    PlacementError
        If r <= s + 2a, naming what would fit.
    """
    for name, value in (("stragglers", stragglers), ("adversaries", adversaries)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise TypeError(f"{name} must be an integer, got {value!r}")
        if value < 0:
            raise PlacementError(f"{name} must be at least 0, got {value}")
    chunks = int(replicas - stragglers - 2 * adversaries)
    if chunks >= 1:
        return chunks
    need = stragglers + 2 * adversaries + 1
    options = [f"at least {need} replicas of every partition"]
    if replicas > 2 * adversaries:
        options.append(f"stragglers={replicas - 2 * adversaries - 1}")
    if adversaries and replicas > stragglers:
        options.append(f"adversaries={(replicas - stragglers - 1) // 2}")
    raise PlacementError(
        f"{replicas} replicas of a partition cannot make up for {stragglers} stragglers and {adversaries} adversaries: "
        f"exact recovery needs r > s + 2a. What would fit: {', or '.join(options)}; or an approximate sum (a code with "
        "chunks=..., or a stop rule that takes fewer answers)"
    )
