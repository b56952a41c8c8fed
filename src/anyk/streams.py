"""Random streams of partitions: the same on every worker that holds a partition, whoever answers."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["Seeds", "of_partition", "of_round"]

Seeds = tuple[type[np.random.BitGenerator], Any, tuple[int, ...], int]  # plain, to be sent and digested


def of_round(rng: int | np.random.Generator) -> Seeds:
    """Seeds for one round: always the same from an integer, new ones at each call from a generator, which spawns them.

    Raises
    ------
    TypeError, ValueError
        If it is neither an integer of at least 0 nor a generator that can spawn.

    Examples
    --------
    >>> generator = np.random.default_rng(5)
    >>> of_round(5) == of_round(5), of_round(generator) == of_round(generator)
    (True, False)
    """
    kind: type[np.random.BitGenerator] = np.random.PCG64
    if isinstance(rng, np.random.Generator):
        kind = type(rng.bit_generator)
        sequence: Any = rng.spawn(1)[0].bit_generator.seed_seq
    elif isinstance(rng, int | np.integer) and not isinstance(rng, bool):
        if rng < 0:
            raise ValueError(f"rng must be at least 0, got {rng}")
        sequence = np.random.SeedSequence(int(rng))
    else:
        raise TypeError(f"rng must be an integer or a numpy.random.Generator, got {rng!r}")
    return kind, sequence.entropy, tuple(sequence.spawn_key), sequence.pool_size


def of_partition(seeds: Seeds, partition: int) -> np.random.Generator:
    """The stream of one partition, at its start: the one that ``spawn`` of the round's own generator gives it.

    Examples
    --------
    >>> here = of_partition(of_round(5), partition=2).random()
    >>> here == np.random.default_rng(5).spawn(3)[2].random()
    True
    """
    kind, entropy, key, pool_size = seeds
    return np.random.Generator(kind(np.random.SeedSequence(entropy, spawn_key=(*key, partition), pool_size=pool_size)))
