"""Difference sets, frames and power sets, and the laws of their eigenvalues."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import cumulative_trapezoid, quad

from anyk import (
    Manova,
    MarchenkoPastur,
    coherence,
    difference_set,
    frames,
    is_difference_set,
    is_equiangular,
    nonuniform_samples,
    optimized_powers,
    random_powers,
    singular_responders,
    welch_bound,
)
from anyk.difference_sets import difference_family
from anyk.frames import distance_bound, harmonic_rows, real_harmonic_rows
from anyk.spectra import lower_bound

steady = settings(derandomize=True, deadline=None, max_examples=60)
SMALL = [(n, m) for n in range(1, 15) for m in range(1, n + 1)]


# Difference sets ------------------------------------------------------------------------------------------------------


def counts_of_differences(n, residues):
    """How often each of 1 .. n-1 is a difference, by the definition."""
    counts = [0] * n
    for x, y in itertools.permutations(residues, 2):
        counts[(x - y) % n] += 1
    return counts[1:]


def test_every_known_set_is_one():
    seen = set()
    for n in range(1, 131):
        for m in range(1, n + 1):
            family = difference_family(n, m)
            if family is None:
                continue
            seen.add(family)
            found = difference_set(n, m)
            assert found.dtype == np.int64
            assert len(found) == m
            assert (np.diff(found) > 0).all()
            assert 0 <= found[0] <= found[-1] < n
            assert is_difference_set(n, found), (n, m)
            assert len(set(counts_of_differences(n, found.tolist()))) <= 1, (n, m)
    assert {family.removeprefix("complement of ") for family in seen} >= {
        "single residues",
        "quadratic residues",
        "Singer",
        "twin primes",
        "biquadratic residues",
        "biquadratic residues and zero",
    }


def test_octic_residues():
    assert difference_family(26041, 3256) == "octic residues and zero"
    assert is_difference_set(26041, difference_set(26041, 3256))


@pytest.mark.parametrize(
    ("n", "m", "times"),
    [
        (7, 3, 1),
        (13, 4, 1),
        (21, 5, 1),
        (15, 7, 3),
        (35, 17, 8),
        (37, 9, 2),
        (109, 28, 7),
        (73, 9, 1),
        (103, 51, 25),
        (57, 8, 1),
    ],
)
def test_named_sets_and_complements(n, m, times):
    assert set(counts_of_differences(n, difference_set(n, m).tolist())) == {times}
    assert set(counts_of_differences(n, difference_set(n, n - m).tolist())) == {n - 2 * m + times}
    assert is_equiangular(harmonic_rows(n, difference_set(n, m)))
    assert is_equiangular(harmonic_rows(n, difference_set(n, n - m)))
    assert not is_equiangular(harmonic_rows(n, np.arange(m)))


@given(st.integers(2, 12), st.data())
@steady
def test_is_difference_set_counts_right(n, data):
    residues = data.draw(st.sets(st.integers(0, n - 1), min_size=1))
    assert is_difference_set(n, sorted(residues)) == (len(set(counts_of_differences(n, residues))) <= 1)


@pytest.mark.parametrize(
    ("n", "m", "message"),
    [
        (
            100,
            50,
            r"of 50 residues modulo 100: there is none: each of 99 differences would come up 2450/99 times\. The",
        ),
        (
            10,
            4,
            r"there is none.*12/9 times\. The nearest known has 4 modulo 13; optimized_powers\(10, 4\) comes close",
        ),
        (16, 6, r"none is known.*The nearest known has 7 modulo 15"),
        (5, 7, "7 residues modulo 5 cannot be distinct"),
        (0, 1, "n must be an integer of at least 1, got 0"),
        (7, True, "m must be an integer of at least 1, got True"),
        (7, 3.0, r"m must be an integer of at least 1, got 3\.0"),
    ],
)
def test_impossible_difference_sets(n, m, message):
    with pytest.raises(ValueError, match=message):
        difference_set(n, m)


# Rows and correlations ------------------------------------------------------------------------------------------------


def test_welch_bound_is_met_by_a_difference_set():
    reached = coherence(harmonic_rows(103, difference_set(103, 51)))
    assert round(reached, 6) == 0.099981
    assert reached == pytest.approx(welch_bound(103, 51), abs=1e-12)


@given(st.integers(2, 12), st.data())
@steady
def test_no_frame_goes_below_the_welch_bound(n, data):
    m = data.draw(st.integers(1, n))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    frame = rng.standard_normal((n, m)) + 1j * rng.standard_normal((n, m)) * data.draw(st.booleans())
    assert coherence(frame) >= welch_bound(n, m) - 1e-12
    assert coherence(harmonic_rows(n, random_powers(n, m, rng=rng))) >= welch_bound(n, m) - 1e-12
    assert coherence(frame * rng.uniform(1, 9, (n, 1))) == pytest.approx(coherence(frame))


@given(st.integers(1, 30), st.data())
@steady
def test_real_rows_have_the_correlations_of_complex_ones(n, data):
    m = data.draw(st.integers(1, n).filter(lambda m: m % 2 or n > 1))
    powers = random_powers(n, m, rng=data.draw(st.integers(0, 99)), real=True)
    if len(powers) < m:
        return
    real, rows = real_harmonic_rows(n, powers), harmonic_rows(n, powers)
    assert real.dtype == np.float64
    np.testing.assert_allclose(np.linalg.norm(real, axis=1), 1, rtol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, rtol=1e-12)
    np.testing.assert_allclose(np.abs(real @ real.T), np.abs(rows @ rows.conj().T), atol=1e-12)
    np.testing.assert_allclose(real.T @ real, np.eye(m) * n / m, atol=1e-10)  # tight


def test_harmonic_rows_at_samples():
    powers = [0, 1, 5]
    samples = np.exp(2j * np.pi * np.arange(8) / 8)
    np.testing.assert_allclose(harmonic_rows(8, powers, samples), harmonic_rows(8, powers), atol=1e-13)
    np.testing.assert_allclose(harmonic_rows(8, powers)[3], samples[3] ** np.array(powers) / math.sqrt(3), atol=1e-13)


@given(st.integers(1, 6), st.integers(1, 6), st.data())
@steady
def test_nonuniform_samples_repeat_a_pattern(periods, grid, data):
    size = data.draw(st.integers(1, grid))
    points = nonuniform_samples(periods * size, periods, grid, rng=data.draw(st.integers(0, 9)))
    assert points.shape == (periods * size,)
    np.testing.assert_allclose(np.abs(points), 1, rtol=1e-12)
    assert len(np.unique(points.round(9))) == len(points)
    np.testing.assert_allclose(points ** (periods * grid), 1, atol=1e-10)
    turn = np.exp(2j * np.pi / periods)
    np.testing.assert_allclose(points[size:], points[:-size] * turn if periods > 1 else [], atol=1e-12)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nonuniform_samples(6, 4, 2), "n must be a positive multiple of periods, got n=6, periods=4"),
        (lambda: nonuniform_samples(6, 2, 2), "a grid of 2 points has no room for 3 points in each of 2 periods"),
        (lambda: nonuniform_samples(4, 2, 4, pattern=[0, 4]), r"pattern must hold 2 distinct places in 0\.\.3, got"),
        (lambda: nonuniform_samples(4, 2, 4, pattern=[1, 1]), r"pattern must hold 2 distinct places in 0\.\.3, got"),
        (
            lambda: real_harmonic_rows(12, [0, 1]),
            r"closed under negation modulo 12: the negatives of \[1\] are missing",
        ),
        (lambda: coherence(np.zeros((3, 2))), "row 0 of the frame is zero or not finite"),
        (lambda: coherence([[1, 0], [np.nan, 1]]), "row 1 of the frame is zero or not finite"),
        (lambda: coherence(np.ones(3)), r"\(n, m\) matrix with a vector in each row, got shape \(3,\)"),
        (lambda: welch_bound(5, 6), "m = 6 powers modulo n = 5 cannot be distinct"),
        (lambda: random_powers(3, 5), "m = 5 powers modulo n = 3 cannot be distinct"),
        (lambda: random_powers(True, 1), "n must be an integer of at least 1, got True"),
        (lambda: optimized_powers(9, 4, seconds=math.nan), "seconds must be a finite number of at least 0, got nan"),
        (lambda: optimized_powers(9, 4, seconds=-1), "seconds must be a finite number of at least 0, got -1"),
        (lambda: lower_bound(5, 70), "responders must be at least blocks, and these at least 1, got 5 and 70"),
        (lambda: optimized_powers(4, 0), "m must be an integer of at least 1, got 0"),
        (
            lambda: optimized_powers(10, 4, responders=3),
            r"responders must lie in 4\.\.10 \(powers \.\. workers\), got 3",
        ),
        (lambda: nonuniform_samples(4, 2, 4, pattern=[0, 1.5]), "pattern must be a non-empty sequence of integers"),
        (
            lambda: singular_responders(12, [0, 4, 8], 2),
            r"responders must lie in 3\.\.12 \(powers \.\. samples\), got 2",
        ),
        (lambda: singular_responders(12, [0, 4, 8], 13), r"responders must lie in 3\.\.12 .* got 13"),
        (lambda: is_difference_set(0, [0]), "n must be an integer of at least 1, got 0"),
        (
            lambda: is_difference_set(7, [1, 2, 4.5]),
            r"residues must be a non-empty sequence of integers, got \[1, 2, 4\.5",
        ),
        (lambda: is_difference_set(7, []), r"residues must be a non-empty sequence of integers, got \[\]"),
        (lambda: distance_bound(5, []), r"residues must be a non-empty sequence of integers, got \[\]"),
        (lambda: distance_bound(0, [0]), "n must be an integer of at least 1, got 0"),
        (lambda: is_equiangular(np.ones(3)), r"\(n, m\) matrix with a vector in each row, got shape \(3,\)"),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# Power sets -----------------------------------------------------------------------------------------------------------


def symmetric(n, powers):
    return set((-powers % n).tolist()) == set(powers.tolist())


def evenness(n, powers):
    """Sum of the fourth powers of the correlations."""
    return float((np.abs(harmonic_rows(n, powers) @ harmonic_rows(n, powers)[0].conj())[1:] ** 4).sum())


@pytest.mark.parametrize(("n", "m"), SMALL)
def test_random_powers(n, m):
    for seed in range(6):
        for real in (False, True):
            powers = random_powers(n, m, rng=seed, real=real)
            assert powers.dtype == np.int64
            assert len(powers) == m
            assert (np.diff(powers) > 0).all()
            assert 0 <= powers[0] <= powers[-1] < n
            assert not real or symmetric(n, powers)
            np.testing.assert_array_equal(powers, random_powers(n, m, rng=seed, real=real))


@pytest.mark.parametrize("real", [False, True])
def test_random_powers_are_uniform(real):
    n, m, rng = 8, 4, np.random.default_rng(5)
    every = [c for c in itertools.combinations(range(n), m) if not real or symmetric(n, np.array(c))]
    drawn = [tuple(random_powers(n, m, rng=rng, real=real).tolist()) for _ in range(100 * len(every))]
    counts = np.array([drawn.count(c) for c in every])
    assert counts.sum() == len(drawn)
    assert ((counts - 100) ** 2 / 100).sum() < len(every) + 4 * math.sqrt(2 * len(every))  # chi square


@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize(
    ("n", "m"), [(1, 1), (2, 1), (2, 2), (5, 4), (6, 3), (7, 3), (8, 2), (12, 5), (13, 4), (20, 10), (31, 6), (64, 32)]
)
def test_optimized_powers_are_more_even_than_random_ones(n, m, real):
    powers = optimized_powers(n, m, rng=3, real=real)
    assert len(powers) == m
    assert (np.diff(powers) > 0).all()
    assert 0 <= powers[0] <= powers[-1] < n
    assert not real or symmetric(n, powers)
    np.testing.assert_array_equal(powers, optimized_powers(n, m, rng=3, real=real))
    draws = [random_powers(n, m, rng=seed, real=real) for seed in range(50)]
    # sets that some m responders are known to leave singular are passed over
    regular = [draw for draw in draws if singular_responders(n, draw, m) is None]
    fair = draws if singular_responders(n, powers, m) is not None or len(regular) == 50 else regular
    for draw in fair:
        assert evenness(n, powers) <= evenness(n, draw) + 1e-9


def test_optimized_powers_find_a_difference_set():
    for n, m in [(7, 3), (13, 4), (21, 5), (31, 6)]:
        assert is_difference_set(n, optimized_powers(n, m, rng=1))


# Ranks ----------------------------------------------------------------------------------------------------------------


def least_singular_values(n, powers, size):
    subsets = np.array(list(itertools.combinations(range(n), size)))
    return np.linalg.svd(harmonic_rows(n, powers)[subsets], compute_uv=False)[:, -1]


@pytest.mark.parametrize("n", range(1, 13))
def test_distance_bound(n):
    rng = np.random.default_rng(n)
    for m in range(1, n + 1):
        for _ in range(3):
            powers = random_powers(n, m, rng=rng)
            distance = distance_bound(n, powers)
            assert 1 <= distance <= n - m + 1
            assert least_singular_values(n, powers, n - distance + 1).min() > 1e-9, powers
        assert distance_bound(n, np.arange(m) + 3) == n - m + 1
        if n in (2, 3, 5, 7, 11):
            assert distance == n - m + 1


@pytest.mark.parametrize("n", [4, 6, 9, 12, 16, 30, 60])
def test_singular_responders_are_singular(n):
    found = 0
    for seed in range(30):
        rng = np.random.default_rng(seed)
        m = int(rng.integers(2, n))
        size = int(rng.integers(m, n))
        powers = random_powers(n, m, rng=rng)
        who = singular_responders(n, powers, size)
        if who is None:
            continue
        found += 1
        assert len(set(who.tolist())) == size
        assert 0 <= who.min() <= who.max() < n
        assert np.linalg.matrix_rank(harmonic_rows(n, powers)[who], tol=1e-9) < m
        assert size < n - distance_bound(n, powers) + 1
    assert found


def test_distance_bound_of_exact_quotients():
    for n, m in (
        (273, 91),
        (279, 93),
        (315, 105),
        (351, 117),
    ):  # the quotient of floats lies above
        powers = np.arange(0, n, 3)
        assert distance_bound(n, powers) == 3
        who = [i for i in range(n) if i % m != 7]  # without all copies of one row
        assert np.linalg.matrix_rank(harmonic_rows(n, powers)[who]) == m - 1


def test_scores_of_pairs_are_evenness():
    rng = np.random.default_rng(0)
    for _ in range(100):
        n = int(rng.integers(5, 40))
        inside = np.zeros(n, bool)
        inside[random_powers(n, int(rng.integers(1, n // 2 + 1)), rng, real=True)] = True
        scores = frames._scores_of_pairs(inside)
        for v in range(1, (n + 1) // 2):
            if not inside[v]:
                more = inside.copy()
                more[[v, n - v]] = True
                assert scores[v] == pytest.approx(frames.evenness(more))


def test_singular_responders_of_primes_and_named():
    np.testing.assert_array_equal(singular_responders(12, [0, 4, 8, 1], 4), [0, 1, 6, 7])
    for n in (2, 3, 13, 31):
        for m in range(1, n):
            assert all(singular_responders(n, random_powers(n, m, rng=m), size) is None for size in range(m, n + 1))
    assert singular_responders(60, np.arange(20), 20) is None


# Spectra --------------------------------------------------------------------------------------------------------------

LAWS = [
    *(Manova(gamma, beta) for gamma in (0.2, 0.5, 0.8) for beta in (0.4, 0.9, 1.15) if gamma * beta < 1),
    *(Manova(gamma, beta) for gamma, beta in [(0.5, 1.4), (0.5, 1.8), (0.2, 4.5), (1 / 3, 2.1), (0.9, 1.05)]),
    *(MarchenkoPastur(beta) for beta in (0.3, 0.9, 1.4, 5.0)),
]


def mean_of(law, function):
    """By substitution of x = low + (high - low) sin(t)^2, which tames the edges."""
    low, high = law.edges

    def integrand(t):
        x = low + (high - low) * math.sin(t) ** 2
        return function(x) * float(law.density(x)) * (high - low) * math.sin(2 * t)

    bulk = quad(integrand, 0, math.pi / 2, epsabs=1e-11, limit=200)[0]
    return bulk + sum(function(x) * share for x, share in law.atoms.items())


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_laws_are_laws(law):
    low, high = law.edges
    assert 0 <= low < high
    assert mean_of(law, lambda x: 1.0) == pytest.approx(1, abs=1e-8)
    assert mean_of(law, lambda x: x) == pytest.approx(law.beta, abs=1e-8)
    if law.beta > 1:
        assert 0 not in law.atoms
        assert mean_of(law, lambda x: 1 / x) == pytest.approx(law.amplification, rel=1e-8)
        assert law.amplification >= lower_bound(1000, 1000 / law.beta) - 1e-12
    else:
        assert law.amplification == math.inf
        assert law.atoms[0.0] == pytest.approx(1 - law.beta)
    outside = law.density([low * 0.99 - 1e-9, high * 1.01])
    np.testing.assert_array_equal(outside, 0)
    assert (law.density(np.linspace(low, high, 9)[1:-1]) > 0).all()


def test_edges_and_limits():
    assert MarchenkoPastur(4).edges == pytest.approx((1, 9))
    assert Manova(0.5, 1.0).edges == pytest.approx((0, 2))
    assert Manova(0.5, 2.0).amplification == pytest.approx(0.5)  # all answer: m/n
    assert Manova(0.5, 2.0).atoms == {2.0: 1.0}
    assert Manova(1e-9, 1.4).amplification == pytest.approx(MarchenkoPastur(1.4).amplification)
    assert lower_bound(responders=70, blocks=50) == pytest.approx(5 / 7)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Manova(0, 1), r"gamma = blocks / workers must lie in \(0, 1\], got 0"),
        (lambda: Manova(1.1, 0.5), r"gamma = blocks / workers must lie in \(0, 1\], got 1\.1"),
        (lambda: Manova(0.5, 2.1), r"beta = .* must lie in \(0, 1/gamma\].*got 2\.1 for gamma = 0\.5"),
        (lambda: Manova(0.5, float("nan")), "beta"),
        (lambda: MarchenkoPastur(0), "beta = responders / blocks must be positive, got 0"),
        (lambda: MarchenkoPastur(float("inf")), "beta = responders / blocks must be positive, got inf"),
    ],
)
def test_impossible_laws(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def distance_to(law, values):
    """Kolmogorov's, of values to the bulk of a law."""
    low, high = law.edges
    t = np.linspace(0, np.pi / 2, 4001)
    x = low + (high - low) * np.sin(t) ** 2
    below = cumulative_trapezoid(law.density(x) * (high - low) * np.sin(2 * t), t, initial=0)
    at = np.interp(np.sort(values), x, below / below[-1])
    steps = np.arange(len(values) + 1) / len(values)
    return max(np.abs(at - steps[1:]).max(), np.abs(at - steps[:-1]).max())


@pytest.mark.parametrize("kind", ["random", "gaussian"])
def test_eigenvalues_of_survivors_follow_their_law(kind):
    n, m, k, values = 100, 50, 70, []
    laws = [Manova(m / n, k / m), MarchenkoPastur(k / m)]
    law, other = laws if kind == "random" else laws[::-1]
    for seed in range(40):
        rng = np.random.default_rng(seed)
        if kind == "random":
            rows = harmonic_rows(n, random_powers(n, m, rng=rng))
        else:
            rows = (rng.standard_normal((n, m)) + 1j * rng.standard_normal((n, m))) / math.sqrt(2 * m)
        rows = rows[rng.permutation(n)[:k]]
        values.append(np.linalg.eigvalsh(rows.conj().T @ rows))
    each = np.concatenate(values)
    assert each.mean() == pytest.approx(k / m, rel=0.02)
    low, high = law.edges
    bulk = each
    for value, share in law.atoms.items():
        bulk = bulk[np.abs(bulk - value) > 1e-9]
        assert len(each) - len(bulk) == round(share * len(each))
    assert ((bulk > low * 0.6) & (bulk < high * 1.15)).all()
    assert ((bulk > low - 0.02) & (bulk < high + 0.05)).mean() > 0.97
    assert distance_to(law, bulk) < 0.03
    assert distance_to(other, bulk) > 0.1
