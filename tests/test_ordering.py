"""Short paths through blocks: brute force, local optimality, and odd input."""

import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anyk import path_order
from anyk.ordering import path_length

steady = settings(derandomize=True, deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])


def length(rows, order):
    rows = np.asarray(rows, dtype=float)[list(order)]
    return sum(float(np.sqrt(((a - b) ** 2).sum())) for a, b in itertools.pairwise(rows))


@given(st.integers(1, 40), st.integers(0, 5), st.integers(0, 10**6), st.sampled_from(["f2", "f4", "f8", "c16", "i4"]))
@steady
def test_a_permutation_no_longer_than_the_order_given(count, features, seed, dtype):
    rng = np.random.default_rng(seed)
    blocks = (10 * rng.standard_normal((count, features))).astype(dtype)
    order = path_order(blocks)
    assert sorted(order.tolist()) == list(range(count))
    assert order.dtype == np.intp
    np.testing.assert_array_equal(order, path_order(blocks))
    pairs = np.concatenate([blocks.real, blocks.imag], axis=1).astype(float)
    assert path_length(blocks, order) == pytest.approx(length(pairs, order), rel=1e-12)
    if features:
        nearest = [0]
        while len(nearest) < count:
            left = [k for k in range(count) if k not in nearest]
            nearest.append(min(left, key=lambda k: np.linalg.norm(pairs[k] - pairs[nearest[-1]])))
        assert length(pairs, order) <= 1.25 * length(pairs, nearest) + 1e-9


@given(st.integers(2, 7), st.integers(1, 3), st.integers(0, 10**6))
@steady
def test_close_to_the_shortest_path_of_all(count, features, seed):
    blocks = np.random.default_rng(seed).standard_normal((count, features))
    best = min(length(blocks, order) for order in itertools.permutations(range(count)))
    assert length(blocks, path_order(blocks)) <= 1.2 * best + 1e-9


@given(st.integers(3, 25), st.integers(0, 10**6))
@steady
def test_no_reversal_of_a_segment_shortens_the_path(count, seed):
    blocks = np.random.default_rng(seed).standard_normal((count, 2))
    order = path_order(blocks).tolist()
    shortest = length(blocks, order)
    for i, j in itertools.combinations(range(count + 1), 2):
        assert length(blocks, order[:i] + order[i:j][::-1] + order[j:]) >= shortest - 1e-9


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30))
@steady
def test_scalars_are_sorted(values):
    np.testing.assert_array_equal(np.array(values)[path_order(values)], np.sort(values))
    np.testing.assert_array_equal(path_order(np.array(values)[:, None, None]), path_order(values))


def test_a_shuffled_curve_is_found_again():
    t = np.linspace(0, 4, 200)
    curve = np.stack([np.cos(3 * t), np.sin(3 * t), t], axis=1)
    shuffled = np.random.default_rng(0).permutation(200)
    order = shuffled[path_order(curve[shuffled])]
    assert order.tolist() in (list(range(200)), list(range(200))[::-1])


@pytest.mark.parametrize("shift", [0.0, 1e6, -1e9])
def test_an_offset_common_to_all_blocks_does_not_matter(shift):
    line = np.array([[3.0, 0.0], [0.0, 0.0], [1.0, 0.0], [2.0, 0.0]]) + shift
    assert path_order(line).tolist() in ([1, 2, 3, 0], [0, 3, 2, 1])


@pytest.mark.parametrize("scale", [1e-300, 1e-9, 1e9, 1e307])
def test_neither_does_their_size(scale):
    line = np.array([[3.0, 3.0], [-3.0, -3.0], [1.0, 1.0], [2.0, 2.0]]) * scale
    assert path_order(line).tolist() in ([1, 2, 3, 0], [0, 3, 2, 1])


def test_non_finite_entries_are_survived():
    for odd in (np.nan, np.inf, -np.inf):
        blocks = np.array([[odd, odd], [1, 2], [3, 4], [odd, 0], [2, 3]])
        assert sorted(path_order(blocks).tolist()) == [0, 1, 2, 3, 4]


def test_equal_blocks_and_few_blocks():
    assert sorted(path_order(np.ones((6, 3))).tolist()) == list(range(6))
    assert path_order(np.zeros((6, 3))).tolist() != []
    assert path_order(np.ones((1, 3))).tolist() == [0]
    assert path_order(np.eye(2)).tolist() == [0, 1]
    assert path_order([]).tolist() == path_order(np.zeros((0, 4))).tolist() == []
    assert path_order(np.zeros((4, 0))).tolist() == [0, 1, 2, 3]


def test_very_wide_blocks_are_compared_on_a_subset_of_their_entries():
    rng = np.random.default_rng(0)
    places = np.array([4, 0, 3, 1, 2])
    blocks = places[:, None] * np.ones(70_000) + 0.01 * rng.standard_normal((5, 70_000))
    assert places[path_order(blocks)].tolist() in ([0, 1, 2, 3, 4], [4, 3, 2, 1, 0])
    assert path_length(blocks[:2]) == pytest.approx(np.linalg.norm(blocks[0] - blocks[1]), rel=1e-12)


def test_path_length():
    assert path_length([[0, 0], [3, 4], [3, 5]]) == 6
    assert path_length([[0, 0], [3, 4], [3, 5]], [1, 0, 2]) == pytest.approx(5 + np.sqrt(34))
    assert path_length([3j, 4]) == pytest.approx(5)
    assert path_length([1.0]) == path_length([]) == 0


@pytest.mark.parametrize("function", [path_order, path_length])
def test_a_scalar_is_no_list_of_blocks(function):
    with pytest.raises(ValueError, match="expected blocks along a leading axis, got a scalar"):
        function(3.0)
