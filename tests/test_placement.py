"""Placements: who holds which partition."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anyk import (
    PlacementError,
    cyclic_placement,
    fractional_repetition_placement,
    minimum_communication,
    placement_by_speed,
    random_placement,
    replication,
)
from anyk.placement import as_placement, chunks_for

steady = settings(derandomize=True, deadline=None, max_examples=80, suppress_health_check=[HealthCheck.too_slow])
PLACEMENTS = [cyclic_placement, fractional_repetition_placement, random_placement]


@st.composite
def shapes(draw):
    workers = draw(st.integers(1, 25))
    return workers, draw(st.integers(1, 40)), draw(st.integers(1, workers))


@pytest.mark.parametrize("place", PLACEMENTS)
@given(shapes())
@steady
def test_every_placement_has_its_shape_and_copies(place, shape):
    workers, partitions, replicas = shape
    matrix = place(*shape)
    assert matrix.shape == (workers, partitions)
    assert matrix.dtype == np.bool_
    copies = matrix.sum(axis=0)
    if place is fractional_repetition_placement:
        assert copies.min() >= replicas
        assert partitions < workers // replicas or copies.max() < 2 * replicas
    else:
        assert (copies == replicas).all()
        assert replication(matrix) == replicas


@given(shapes())
@steady
def test_loads_of_a_cyclic_placement_differ_by_one_at_most(shape):
    assert np.ptp(cyclic_placement(*shape).sum(axis=1)) <= 1


@pytest.mark.parametrize(("workers", "partitions", "replicas"), [(10, 10, 4), (7, 21, 3), (5, 5, 5)])
def test_a_cyclic_placement_is_a_ring(workers, partitions, replicas):
    matrix = cyclic_placement(workers, partitions, replicas)
    for partition in range(partitions):
        last = partition * workers // partitions
        ring = {(last - step) % workers for step in range(replicas)}
        assert set(np.flatnonzero(matrix[:, partition]).tolist()) == ring
    assert (np.roll(matrix, (1, partitions // workers), (0, 1)) == matrix).all()


@given(shapes())
@steady
def test_workers_of_a_group_hold_the_same(shape):
    workers, partitions, replicas = shape
    matrix = fractional_repetition_placement(*shape)
    rows, sizes = np.unique(matrix, axis=0, return_counts=True)
    assert len(rows) == min(workers // replicas, partitions)
    assert (rows.sum(axis=0) == 1).all()
    assert np.ptp(sizes) <= 1
    assert np.ptp(rows.sum(axis=1)) <= 1


@given(shapes(), st.integers(0, 9))
@steady
def test_random_loads_differ_by_one_at_most(shape, seed):
    matrix = random_placement(*shape, rng=seed)
    assert np.ptp(matrix.sum(axis=1)) <= 1
    np.testing.assert_array_equal(matrix, random_placement(*shape, rng=np.random.default_rng(seed)))


def test_random_placements_differ_from_seed_to_seed_and_use_all_pairs():
    drawn = [random_placement(8, 16, 3, rng=seed) for seed in range(40)]
    assert len({matrix.tobytes() for matrix in drawn}) == 40
    together = sum(matrix.astype(int) @ matrix.T for matrix in drawn)
    assert (together > 0).all()


# Speeds ---------------------------------------------------------------------------------------------------------------


def fair_loads(speeds, most, wanted):
    """min(most, level * speed) with the level that makes them add up, by bisection."""
    low, high = 0.0, wanted / min(speed for speed in speeds if speed > 0)
    for _ in range(200):
        level = (low + high) / 2
        low, high = (level, high) if np.minimum(most, level * speeds).sum() < wanted else (low, level)
    return np.minimum(most, high * speeds)


@given(st.data())
@steady
def test_loads_are_in_proportion_to_speeds_within_one(data):
    speeds = np.array(data.draw(st.lists(st.floats(0.1, 10), min_size=1, max_size=20)))
    replicas = data.draw(st.integers(1, len(speeds)))
    partitions = data.draw(st.integers(1, 60))
    matrix = placement_by_speed(speeds, partitions, replicas)
    assert (matrix.sum(axis=0) == replicas).all()
    fair = fair_loads(speeds, np.full(len(speeds), partitions), partitions * replicas)
    assert (np.abs(matrix.sum(axis=1) - fair) < 1 + 1e-6).all()


@pytest.mark.parametrize(
    ("speeds", "partitions", "replicas", "loads"),
    [
        ([1, 1, 2, 4], 8, 1, [1, 1, 2, 4]),
        ([1, 1, 2, 4], 16, 2, [4, 4, 8, 16]),
        ([1, 1, 1, 100], 6, 2, [2, 2, 2, 6]),
        ([3, 0, 3], 5, 2, [5, 0, 5]),
        ([1e-9, 1, 1], 4, 2, [0, 4, 4]),
        ([1e308, 1e308, 1e308], 6, 1, [2, 2, 2]),
        ([5.0], 3, 1, [3]),
    ],
)
def test_loads_by_speed(speeds, partitions, replicas, loads):
    matrix = placement_by_speed(speeds, partitions, replicas)
    assert matrix.sum(axis=1).tolist() == loads
    assert (matrix.sum(axis=0) == replicas).all()


@given(st.data())
@steady
def test_memory_caps_the_loads(data):
    workers = data.draw(st.integers(1, 12))
    numbers = {"min_size": workers, "max_size": workers}
    speeds = data.draw(st.lists(st.integers(0, 9), **numbers))
    memory = np.array(data.draw(st.lists(st.integers(0, 30), **numbers)))
    partitions, replicas = data.draw(st.integers(1, 30)), data.draw(st.integers(1, workers))
    room = np.where(np.array(speeds) > 0, np.minimum(memory, partitions), 0).sum()
    if room < partitions * replicas:
        with pytest.raises(PlacementError, match=rf"are {partitions * replicas} places, .* room for {room}: use fewer"):
            placement_by_speed(speeds, partitions, replicas, memory)
        return
    matrix = placement_by_speed(speeds, partitions, replicas, memory)
    assert (matrix.sum(axis=0) == replicas).all()
    assert (matrix.sum(axis=1) <= memory).all()
    assert not matrix[np.array(speeds) == 0].any()
    fair = fair_loads(np.array(speeds), np.minimum(memory, partitions), partitions * replicas)
    assert (np.abs(matrix.sum(axis=1) - fair) < 1 + 1e-6).all()


@pytest.mark.parametrize("speeds", [[], [[1.0, 2.0]], [1, -1], [1, np.nan], [1, np.inf]])
def test_impossible_speeds_are_refused(speeds):
    with pytest.raises(PlacementError, match="speeds must be a row of finite numbers, none negative, got"):
        placement_by_speed(speeds, 3, 1)


@pytest.mark.parametrize("memory", [[3, 3, 3], [3, -1], [3, np.nan], 3])
def test_impossible_memory_is_refused(memory):
    with pytest.raises(PlacementError, match="memory must hold one number of partitions for each of 2 workers"):
        placement_by_speed([1, 1], 3, 1, memory)


# What counts as a placement -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.uint64, np.int64, np.float32, np.float64])
def test_zeros_and_ones_of_any_dtype_are_a_placement(dtype):
    given_ = np.array([[1, 0], [1, 1]], dtype=dtype)
    matrix = as_placement(given_)
    assert matrix.dtype == np.bool_
    assert not matrix.flags.writeable
    np.testing.assert_array_equal(matrix, [[True, False], [True, True]])
    given_[:] = 0  # a copy was taken
    assert matrix.sum() == 3


@pytest.mark.parametrize("value", [0.5, 2, -1, np.nan])
def test_other_numbers_are_refused(value):
    with pytest.raises(PlacementError, match="a placement holds booleans"):
        as_placement([[1, 0], [value, 1]])


@pytest.mark.parametrize("entries", [[["1", "0"]], [[1j, 1]], [[None, True]]])
def test_what_is_no_number_is_refused(entries):
    with pytest.raises(PlacementError, match="a placement holds booleans"):
        as_placement(entries)


@pytest.mark.parametrize("shape", [(), (3,), (2, 2, 2), (0, 3), (3, 0)])
def test_what_is_no_matrix_is_refused(shape):
    with pytest.raises(PlacementError, match=r"a placement is a matrix, workers x partitions, got shape"):
        as_placement(np.ones(shape))


def test_partitions_without_a_holder_are_named():
    with pytest.raises(PlacementError, match=r"no worker holds partition 1$"):
        as_placement([[1, 0, 1]])
    with pytest.raises(PlacementError, match=r"no worker holds partitions 0, 2$"):
        as_placement([[0, 1, 0], [0, 1, 0]])
    with pytest.raises(PlacementError, match=r"no worker holds partitions 0, 1, 2, 3, 4, 5, 6, 7, \.\.\.$"):
        as_placement(np.zeros((2, 12)))


@pytest.mark.parametrize("place", PLACEMENTS)
def test_impossible_sizes_are_refused(place):
    with pytest.raises(PlacementError, match="5 replicas of a partition need as many workers, got workers=4"):
        place(4, 4, 5)
    for sizes, name in [((0, 4, 1), "workers"), ((4, 0, 1), "partitions"), ((4, 4, 0), "replicas")]:
        with pytest.raises(PlacementError, match=f"{name} must be at least 1, got 0"):
            place(*sizes)
    for sizes, name in [((4.0, 4, 1), "workers"), ((4, "4", 1), "partitions"), ((4, 4, True), "replicas")]:
        with pytest.raises(TypeError, match=f"{name} must be an integer, got"):
            place(*sizes)


# What a placement costs -----------------------------------------------------------------------------------------------


def test_the_rarest_partition_decides():
    assert replication([[1, 1, 0], [1, 0, 0], [1, 1, 1]]) == 1
    assert replication([[1, 1], [1, 0], [1, 1]]) == 2


@pytest.mark.parametrize(("r", "s", "a", "chunks"), [(7, 2, 1, 3), (7, 0, 0, 7), (5, 4, 0, 1), (9, 0, 4, 1)])
def test_minimum_communication_is_d_over_r_minus_s_minus_2a(r, s, a, chunks):
    assert chunks_for(r, s, a) == chunks
    for place in (cyclic_placement, random_placement):
        assert minimum_communication(place(12, 18, r), 1200, s, a) == 1200 / chunks
    irregular = cyclic_placement(12, 18, r)
    irregular[:, ::2] = True
    assert minimum_communication(irregular, 1200, s, a) == 1200 / chunks


@pytest.mark.parametrize(
    ("r", "s", "a", "fits"),
    [
        (3, 3, 0, r"at least 4 replicas of every partition, or stragglers=2; or an approximate sum"),
        (7, 3, 2, r"at least 8 replicas of every partition, or stragglers=2, or adversaries=1; or"),
        (4, 0, 2, r"at least 5 replicas of every partition, or adversaries=1; or"),
        (4, 5, 3, r"at least 12 replicas of every partition; or"),
    ],
)
def test_too_few_replicas_say_what_would_fit(r, s, a, fits):
    with pytest.raises(PlacementError, match=rf"needs r > s \+ 2a\. What would fit: {fits}"):
        minimum_communication(cyclic_placement(8, 8, r), 10, s, a)
    assert chunks_for(s + 2 * a + 1, s, a) == 1


def test_counts_of_stragglers_and_adversaries_are_checked():
    with pytest.raises(PlacementError, match="stragglers must be at least 0, got -1"):
        chunks_for(3, -1, 0)
    with pytest.raises(TypeError, match=r"adversaries must be an integer, got 0\.5"):
        chunks_for(3, 0, 0.5)
