"""Gradient codes: the shared laws, independent oracles, accuracy at size, and the papers' numbers."""

import itertools
import json
import pickle
import warnings
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import mpmath as mp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anyk import (
    BerrutGradientCode,
    CyclicCode,
    CyclicMDSCode,
    FractionalRepetitionCode,
    GradientCode,
    GraphCode,
    GroupCode,
    IgnoreStragglersCode,
    NullSpaceCode,
    PlacementError,
    PolynomialOfSumCode,
    TooFewResponders,
    UniversalPolynomialCode,
    cyclic_placement,
    minimum_communication,
    placement_by_speed,
    random_placement,
)
from anyk.codes.gradient import Component, join_chunks, split_chunks
from anyk.codes.polynomial_of_sum import matrix_polynomial
from anyk.codes.universal import universal_coefficients
from anyk.errors import ApproximationWarning, UnsafeDecode
from anyk.testing import check_code

VECTORS = Path(__file__).parents[2] / "shared" / "expected" / "vectors.json"
steady = settings(derandomize=True, deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])

IDLE = placement_by_speed([0, 1, 1, 2, 2, 0], partitions=6, replicas=3)  # two workers hold nothing
RING = cyclic_placement(10, 10, 5)
CODES = [
    NullSpaceCode(cyclic_placement(12, 12, 6), 2, 1),
    NullSpaceCode(cyclic_placement(10, 23, 5), 4),
    NullSpaceCode(random_placement(14, 9, 7, 1), 1, 2),
    NullSpaceCode([[1]]),
    NullSpaceCode(np.ones((4, 1)), 3),
    NullSpaceCode(np.ones((5, 3)), 0, 2),
    NullSpaceCode(cyclic_placement(6, 6, 3)),
    NullSpaceCode(IDLE, 1),
    NullSpaceCode(random_placement(24, 30, 9, 2), 2, 3, rng=4),
    GroupCode(12, 12, 6, 2, 1),
    GroupCode(13, 20, 4, 1, 1),
    GroupCode(10, 10, 5, 4),
    GroupCode(12, 30, 4, 2, speeds=np.arange(1, 13)),
    GroupCode(9, 9, 3, 1, sizes=(5, 4)),
    GroupCode(1, 1, 1),
    GroupCode(5, 12, 2),
    GroupCode(40, 40, 20, 4, 3),
    *(
        UniversalPolynomialCode(placement, s, a, nodes)
        for nodes in ("interleaved", "literal", "circle")
        for placement, s, a in [(RING, 3, 0), (cyclic_placement(9, 9, 6), 1, 1), (IDLE, 1, 0), ([[1]], 0, 0)]
    ),
    UniversalPolynomialCode(RING, 3, chunks=4),
    UniversalPolynomialCode(RING, 3, chunks=8),
    UniversalPolynomialCode(RING, 3, decoder="berrut"),
    UniversalPolynomialCode(IDLE, 1, decoder="berrut"),
    UniversalPolynomialCode(cyclic_placement(20, 20, 6), 3, nodes="literal"),
    UniversalPolynomialCode(cyclic_placement(30, 30, 6), 3, nodes="literal"),
    UniversalPolynomialCode(cyclic_placement(50, 50, 10), 5, nodes="literal"),
    BerrutGradientCode(cyclic_placement(20, 20, 18), None, 2),
    BerrutGradientCode(cyclic_placement(20, 20, 18), 4, decoder="berrut"),
    BerrutGradientCode(random_placement(10, 7, 4), 3),
    BerrutGradientCode(IDLE, 1),
    PolynomialOfSumCode(cyclic_placement(12, 12, 10), [0, 0, 0, 1], 2, 1),
    PolynomialOfSumCode(cyclic_placement(20, 20, 17), [1, 2, -1, 0.5, 0.1], 3, 2),
    PolynomialOfSumCode(random_placement(9, 4, 8), [1, 0, 2], 1, 1),
    PolynomialOfSumCode(cyclic_placement(8, 8, 5), [1, 1], 2),
    PolynomialOfSumCode(np.vstack([np.zeros((1, 2)), np.ones((3, 2))]), [1, 0, 1], 1),
    PolynomialOfSumCode([[1]], [3.0]),
    *(CyclicCode(n, s) for n, s in [(1, 0), (6, 2), (12, 11), (17, 4), (30, 5)]),
    *(CyclicMDSCode(n, s) for n, s in [(1, 0), (6, 2), (5, 2), (13, 4), (12, 11), (30, 6)]),
    *(FractionalRepetitionCode(*sizes) for sizes in [(6, 6, 2), (7, 5, 1, 1), (10, 3, 0, 2), (1, 1)]),
    *(
        GraphCode(20, 20, 3, 4, graph, weights)
        for graph in ("regular", "bernoulli", "edges")
        for weights in ("least-squares", "fixed")
    ),
    GraphCode(10, 4, 1, graph="bernoulli"),
    *(IgnoreStragglersCode(*sizes) for sizes in [(4, 4, 1), (4, 4), (5, 12, 2), (1, 3)]),
]


@pytest.mark.parametrize("code", CODES, ids=repr)
def test_laws(code):
    check_code(code, trials=6)


@st.composite
def irregular(draw, most=14):
    """A placement with unequal copies and idle workers, and counts that r > s + 2a allows."""
    workers, partitions = draw(st.integers(1, most)), draw(st.integers(1, 2 * most))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    least = draw(st.integers(1, workers))
    placement = np.zeros((workers, partitions), np.bool_)
    for partition in range(partitions):
        copies = least if partition == 0 else rng.integers(least, workers + 1)
        placement[rng.permutation(workers)[:copies], partition] = True
    adversaries = draw(st.integers(0, (least - 1) // 2))
    return placement, draw(st.integers(0, least - 1 - 2 * adversaries)), adversaries


@given(irregular(), st.sampled_from(["null space", "interleaved", "circle"]), st.integers(0, 99))
@steady
def test_laws_for_any_placement(sizes, kind, seed):
    code = NullSpaceCode(*sizes) if kind == "null space" else UniversalPolynomialCode(*sizes, nodes=kind)
    check_code(code, rng=seed, trials=2)


@given(irregular(), st.integers(1, 5), st.integers(0, 99))
@steady
def test_laws_of_approximate_codes_for_any_placement(sizes, chunks, seed):
    check_code(UniversalPolynomialCode(*sizes, chunks=chunks), rng=seed, trials=2)
    check_code(BerrutGradientCode(sizes[0], chunks, *sizes[1:]), rng=seed, trials=2)


# Laws catch what they are for -----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False)
class Broken(GradientCode):
    """Two groups of three that send the same sums, and one fault of choice."""

    stragglers: int = 2
    fault: str = "none"
    extra: str = field(default="", hash=False)

    adversaries = 0

    @cached_property
    def placement(self):
        matrix = np.kron(np.eye(2), np.ones((3, 2))).astype(bool)
        matrix.flags.writeable = self.fault == "placement"
        return matrix

    @property
    def chunks(self):
        return 2 if self.fault == "chunks" else 1

    @property
    def threshold(self):
        return 1 if self.fault == "threshold" else 4

    def _coefficients(self):
        matrix = np.kron(np.eye(2), np.ones((3, 2)))
        if self.fault == "foreign":
            matrix[0, 3] = 1e-300
        if self.fault == "unequal":
            matrix[0, :2] = 1, 2
        return np.repeat(matrix, 2, axis=1) if self.fault == "chunks" else matrix

    @cached_property
    def target(self):
        matrix = np.tile(np.eye(self.chunks), 4) * (1 + (self.fault == "target"))
        matrix.flags.writeable = self.fault == "writeable"
        return matrix

    @property
    def components(self):
        checks = np.kron(np.eye(2), [[1, -1, 0], [1, 1, -2]]) / np.sqrt([[2], [6], [2], [6]])
        reader = np.full((1, 6), 1 / 3)
        if self.fault == "checks":
            checks = np.roll(checks, 1, axis=1)
        if self.fault == "reader":
            reader = reader * 2
        if self.fault == "reader leans":
            reader = reader + 0.1 * checks[:1]
        if self.fault == "few checks":
            checks = checks[:1]
        if self.fault == "scaled checks":
            checks = 2 * checks
        part = Component(np.arange(6), checks, reader)
        return (part, part) if self.fault == "members" else (part,)

    def sufficient(self, responders):
        size = len(set(responders))
        return size in (4, 6) if self.fault == "shrinking" else size >= 4

    def approximates(self, responders):
        return self.fault == "approximates" or super().approximates(responders)

    def _decode(self, responders, replies):
        matrix = np.zeros((1, len(responders)))
        for group in (responders < 3, responders >= 3):
            matrix[:, group] = 1 / max(group.sum(), 1)
            if self.fault == "loud" and group.sum() > 2:
                matrix[:, group] = [[1, 1, -1]]
        if self.fault == "refuses" and len(responders) < 6:
            raise TooFewResponders("not all")
        if self.fault == "wrong" and len(responders) == 4:
            return matrix * 1.001
        return matrix

    def encode(self, gradients):
        messages = super().encode(gradients)
        if self.fault == "promotes":
            return messages.astype(np.float64)
        return messages + (self.fault == "shifted")

    def share(self, worker):
        held, coefficients = super().share(worker)
        return held[::-1] if self.fault == "share" else held, coefficients

    def __repr__(self):
        return "Broken()" if self.fault != "repr" else "Broken\n"

    def __reduce__(self):
        return (Broken, () if self.fault == "pickle" else (self.stragglers, self.fault, self.extra))


def test_laws_hold_without_a_fault():
    check_code(Broken())


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("placement", "placement must be read-only"),
        ("chunks", "2 chunks are more than r - s - 2a = 1"),
        ("threshold", "reach the threshold 1 without sufficing"),
        ("foreign", "generator must be zero where the placement says nothing is held"),
        ("unequal", "messages must obey the checks"),
        ("target", "target must be ones over the partitions, chunk by chunk"),
        ("writeable", "target must be read-only"),
        ("checks", "orthogonal to the checks|messages must obey the checks"),
        ("reader", "the readers must read the sum off all messages"),
        ("reader leans", "the reader must be orthogonal to the checks"),
        ("few checks", r"s \+ 2a = 2 checks are needed"),
        ("scaled checks", "checks of a component must be orthonormal"),
        ("members", "every active worker must belong to exactly one component"),
        ("shrinking", "suffices, but not with"),
        ("approximates", r"approximates\(.*\) is True, but the residual is"),
        ("loud", "noise amplification rises from"),
        ("refuses", "should suffice but cannot be decoded"),
        ("wrong", "suffices, but the sum is only approximate"),
        ("promotes", "encode turned float16 into float64"),
        ("shifted", "encode is not generator @ chunks"),
        ("share", r"share\(0\) must be what the placement and the generator say"),
        ("repr", "repr must be one line"),
        ("pickle", "not equal to what copy.copy makes of it"),
    ],
)
def test_each_law_catches_its_fault(fault, message):
    with pytest.raises(AssertionError, match=message):
        check_code(Broken(fault=fault))


def test_check_code_takes_no_function_for_a_gradient_code():
    with pytest.raises(TypeError, match="function= is for data codes"):
        check_code(CyclicCode(4, 1), function=np.tanh)


# Independent oracles --------------------------------------------------------------------------------------------------


def vectors():
    if not VECTORS.exists():
        return [pytest.param(None, marks=pytest.mark.skip(reason="the file of vectors is not here"))]
    cases = [case for case in json.loads(VECTORS.read_text())["cases"] if case["kind"] == "universal"]
    return [pytest.param(case, id=f"{case['workers']}x{case['partitions']}") for case in cases]


@pytest.mark.parametrize("case", vectors())
def test_universal_vectors(case):
    alpha, beta = (np.array([float(v) for v in case[name]]) for name in ("alpha", "beta"))
    expected = np.array([[[float(v) for v in row] for row in worker] for worker in case["coefficients"]])
    actual = universal_coefficients(case["placement"], alpha, beta)
    scale = np.abs(expected).max()
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-14 * scale)
    assert not actual[np.array(case["placement"]) == 0].any()
    gradients = np.array(case["gradients"])
    messages = actual.reshape(case["workers"], -1) @ gradients.ravel()
    np.testing.assert_allclose(messages, [float(v) for v in case["messages"]], rtol=1e-11, atol=1e-12 * scale)
    np.testing.assert_array_equal(gradients.sum(axis=0), case["sums"])
    # The library's own code for this placement is as short, and gives these sums from any N - s - 2a answers.
    code = UniversalPolynomialCode(case["placement"], case["stragglers"], case["adversaries"])
    assert code.chunks == case["chunks"]
    sent = code.encode(gradients)
    least = case["workers"] - case["stragglers"] - 2 * case["adversaries"]
    for responders in itertools.islice(itertools.combinations(range(case["workers"]), least), 0, None, 7):
        total = code.decoder(responders) @ sent[list(responders)]
        np.testing.assert_allclose(total.ravel(), case["sums"], rtol=1e-8, atol=1e-8)


def test_universal_coefficients_are_those_of_the_paper():
    """mpmath, from the polynomial itself: f(beta_j) = g_k[j], and each part vanishes where it is not held."""
    placement = random_placement(7, 5, 4, rng=3)
    alpha, beta = np.linspace(-1, 1, 7) ** 3 + 2, np.array([0.5, 0.75])
    got = universal_coefficients(placement, alpha, beta)
    with mp.workdps(40):
        for k, j in itertools.product(range(5), range(2)):
            zeros = [mp.mpf(a) for a, held in zip(alpha, placement[:, k], strict=True) if not held]
            zeros += [mp.mpf(b) for b in np.delete(beta, j)]

            def polynomial(x, zeros=zeros, j=j):
                return mp.fprod((x - zero) / (mp.mpf(beta[j]) - zero) for zero in zeros)

            assert polynomial(mp.mpf(beta[j])) == 1
            exact = [float(polynomial(mp.mpf(a))) for a in alpha]
            np.testing.assert_allclose(got[:, k, j], exact, rtol=1e-12, atol=0)


LEAST_SQUARES = [
    NullSpaceCode(random_placement(7, 9, 4, 2), 1, 1),
    NullSpaceCode(cyclic_placement(8, 8, 5), 2),
    UniversalPolynomialCode(cyclic_placement(8, 8, 5), 3),
    UniversalPolynomialCode(random_placement(7, 5, 4, 1), 2, nodes="circle"),
    UniversalPolynomialCode(cyclic_placement(7, 7, 3), 1, chunks=3),
    GroupCode(8, 8, 4, 2),
    GroupCode(7, 5, 3, 1),
    CyclicCode(8, 3),
    CyclicMDSCode(8, 2),
    CyclicMDSCode(7, 2),
    FractionalRepetitionCode(8, 8, 3),
    GraphCode(8, 8, 3),
    GraphCode(8, 6, graph="edges"),
    GraphCode(8, 8, 2, graph="bernoulli"),
    BerrutGradientCode(cyclic_placement(8, 8, 7), 2),
    IgnoreStragglersCode(6, 6, 0),
]


@pytest.mark.parametrize("code", LEAST_SQUARES, ids=repr)
def test_all_sets_of_answers_decode_as_dense_least_squares_does(code):
    """By brute force over every set: the least residual and, among the weights that reach it, the least noise."""
    generator, target = code.generator, np.tile(np.eye(code.chunks), code.partitions)
    for size in range(1, code.workers + 1):
        for responders in itertools.combinations(range(code.workers), size):
            if isinstance(code, IgnoreStragglersCode) and size < code.workers:
                continue
            rows = generator[list(responders)]
            best = target @ np.linalg.pinv(rows, rcond=1e-10)
            matrix = code.decoder(responders).matrix
            off, least = (np.linalg.norm(d @ rows - target) for d in (matrix, best))
            assert off <= least + 1e-8
            if least < 1e-9:
                assert np.linalg.norm(matrix) <= np.linalg.norm(best) * (1 + 1e-6)


@pytest.mark.parametrize("chunks", [1, 2, 3, 7])
def test_chunks_are_cut_and_joined(chunks):
    array = np.arange(24.0).reshape(2, 2, 6)
    pieces = split_chunks(array, chunks)
    assert pieces.shape == (2, 2, chunks, -(-6 // chunks))
    assert pieces.sum() == array.sum()
    np.testing.assert_array_equal(join_chunks(pieces, 6), array)


# The null-space code holds for any placement --------------------------------------------------------------------------


def relative_error(code, missing, messages, total):
    responders = np.setdiff1d(np.arange(code.workers), missing)
    found = join_chunks(code.decoder(responders).matrix @ messages[responders], len(total))
    return np.linalg.norm(found - total) / np.linalg.norm(total)


def noisiest(code, sets):
    """By exchanges, one member for another, from the noisiest of these sets; from the component, for speed."""
    (part,) = code.components
    n, size = len(part.members), len(sets[0])

    def noise(chosen):
        chosen = np.array(chosen)
        inverse = np.linalg.pinv(part.checks[:, chosen].transpose(1, 0, 2))
        return np.linalg.norm(part.reader[:, chosen].transpose(1, 0, 2) @ inverse, axis=(1, 2))

    best = np.array(sets[int(noise(sets).argmax())])
    while size:
        tried = [
            np.where(np.arange(size) == place, other, best)
            for place in range(size)
            for other in np.setdiff1d(np.arange(n), best)
        ]
        if not tried:
            break
        levels = noise([best, *tried])
        if levels.argmax() == 0:
            break
        best = tried[int(levels.argmax()) - 1]
    return best


def missing_sets(workers, size, rng, count=20):
    contiguous = (np.arange(workers)[:, None] + np.arange(size)) % workers
    return np.concatenate([rng.random((count, workers)).argsort(axis=1)[:, :size], contiguous])


def irregular_placements(rng, count, most=40):
    for number in range(count):
        n = most if number % 10 == 0 else int(rng.integers(3, most + 1) * rng.uniform(0.2, 1)) + 3
        n, partitions = min(n, most), int(rng.integers(1, 2 * n))
        r = int(rng.integers(1, n + 1))
        placement = np.zeros((n, partitions), np.bool_)
        for k in range(partitions):
            copies = r if k == 0 or rng.random() < 0.3 else rng.integers(r, n + 1)
            placement[rng.permutation(n)[:copies], k] = True
        a = int(rng.integers(0, (r + 1) // 2)) if rng.random() < 0.5 else 0
        yield placement, int(rng.integers(0, r - 2 * a)), a


@pytest.mark.parametrize("seed", range(4))
def test_the_null_space_code_is_exact_for_any_placement(seed):
    """200 irregular placements, N up to 40; s stragglers and a liars dropped: random, contiguous, worst found."""
    rng = np.random.default_rng(seed)
    for placement, s, a in irregular_placements(rng, 50):
        code = NullSpaceCode(placement, s, a)
        r = placement.sum(axis=0).min()
        d = 3 * (r - s - 2 * a)
        gradients = rng.standard_normal((code.partitions, d))
        messages, total = code.encode(gradients), gradients.sum(axis=0)
        assert messages.shape == (code.workers, d // (r - s - 2 * a))
        assert messages.shape[1] == minimum_communication(placement, d, s, a)
        active = np.array(code.active)  # nobody waits for workers that hold nothing
        sets = missing_sets(len(active), s + a, rng)
        sets = [*sets, noisiest(code, sets)]
        worst = max(relative_error(code, active[missing], messages, total) for missing in sets)
        assert worst < 1e-9, (code, worst)


@pytest.mark.parametrize(
    ("n", "r", "s", "a", "bar"), [(100, 12, 6, 2, 1e-10), (400, 20, 10, 0, 1e-7), (1000, 16, 8, 0, 1e-9)]
)
def test_the_null_space_code_is_exact_at_size(n, r, s, a, bar):
    code = NullSpaceCode(cyclic_placement(n, n, r), s, a)
    rng = np.random.default_rng(n)
    gradients = rng.standard_normal((n, 8 * code.chunks))
    messages, total = code.encode(gradients), gradients.sum(axis=0)
    sets = missing_sets(n, s + a, rng, count=300)
    sets = np.concatenate([sets[:300], sets[300 :: max(1, n // 100)]])
    assert max(relative_error(code, missing, messages, total) for missing in sets) < bar


def test_ten_thousand_workers_stay_sparse():
    n = 10_000
    code = NullSpaceCode(cyclic_placement(n, n, 16), stragglers=8)
    stored = code.coefficients
    assert stored.nnz == n * 16 * 8
    assert stored.data.nbytes + stored.indices.nbytes + stored.indptr.nbytes < 32e6
    assert code.generator is stored
    rng = np.random.default_rng(0)
    gradients = rng.standard_normal((n, 16))
    messages, total = code.encode(gradients), gradients.sum(axis=0)
    assert messages.shape == (n, 2)
    sets = [*(rng.permutation(n)[:8] for _ in range(10)), (np.arange(8) - 4) % n]
    assert max(relative_error(code, missing, messages, total) for missing in sets) < 1e-9
    assert code.decoder(np.setdiff1d(np.arange(n), sets[0])).residual < 1e-9


@pytest.mark.parametrize(("n", "bar", "share"), [(50, 1e-5, 0.25), (100, 1e-4, 0.75)])
def test_messages_in_single_precision(n, bar, share):
    """r = s + 1 = 11. The worst of 200 straggler sets has a heavy tail: it is below the bar in so many batches."""
    code = NullSpaceCode(cyclic_placement(n, n, 11), stragglers=10)
    rng = np.random.default_rng(0)
    gradients = rng.standard_normal((n, 16))
    messages, total = code.encode(gradients).astype(np.float32).astype(np.float64), gradients.sum(axis=0)
    sets = rng.random((4000, n)).argsort(axis=1)[:, :10]
    errors = np.array([relative_error(code, missing, messages, total) for missing in sets])
    assert np.median(errors) < bar / 50
    assert np.quantile(errors, 0.99) < bar
    assert np.mean(errors.reshape(-1, 200).max(axis=1) < bar) >= share


# Groups ---------------------------------------------------------------------------------------------------------------


def test_groups_of_a_thousand_workers_are_exact_with_the_worst_missing_everywhere():
    code = GroupCode(1000, 1000, replicas=20, stragglers=4, adversaries=3)
    assert code.chunks == 10
    assert len(code.groups) == 50
    matrix = code.generator[list(code.groups[0]), :10]

    def worst(size):
        """Of all sets of that many of a group, the one without which its chunks are noisiest."""
        level, found = 0.0, ()
        sets = np.array(list(itertools.combinations(range(20), size)))
        for some in np.array_split(sets, -(-len(sets) // 8000)):
            keep = np.ones((len(some), 20), np.bool_)
            np.put_along_axis(keep, some, False, axis=1)
            rows = matrix[np.nonzero(keep)[1].reshape(len(some), -1)]
            norms = np.linalg.norm(np.linalg.inv(rows.transpose(0, 2, 1) @ rows), axis=(1, 2))  # ||pinv||^2, about
            if norms.max() > level:
                level, found = norms.max(), some[norms.argmax()]
        return found

    rng = np.random.default_rng(0)
    gradients = rng.standard_normal((1000, 40))
    exact, total = code.encode(gradients), gradients.sum(axis=0)
    single = exact.astype(np.float32).astype(np.float64)
    four, seven = worst(4), worst(7)
    for positions, bar, single_bar in [(four, 1e-14, 1e-7), (seven, 2e-14, 4e-7)]:
        missing = np.concatenate([np.array(group)[positions] for group in code.groups])
        assert relative_error(code, missing, exact, total) < bar
        assert relative_error(code, missing, single, total) < single_bar
    for _ in range(20):  # the worst four, and three liars in each group
        others = np.setdiff1d(np.arange(20), four)
        missing = [[*np.array(g)[four], *np.array(g)[rng.permutation(others)[:3]]] for g in code.groups]
        assert relative_error(code, np.concatenate(missing), exact, total) < 1e-14
        assert relative_error(code, np.concatenate(missing), single, total) < 2e-7


def test_groups_follow_speeds():
    speeds = [1, 4, 1, 4, 1, 4, 1, 4, 4]
    code = GroupCode(9, 30, replicas=4, stragglers=1, speeds=speeds)
    assert code.groups == ((0, 1, 2, 4, 6), (3, 5, 7, 8))
    assert [len(share) for share in code.shares] == [7, 23]
    equal = GroupCode(9, 30, replicas=4, stragglers=1)
    assert [len(share) for share in equal.shares] == [15, 15]


def test_a_group_with_too_few_answers_spoils_only_its_own_share():
    code = GroupCode(12, 12, replicas=4, stragglers=2)
    responders = [0, 1, 2, 3, 4, 8, 9]  # one of the second group's four
    decoder = code.decoder(responders)
    off = decoder.matrix @ code.generator[responders] - code.target
    assert np.abs(off[:, 4 * 2 : 8 * 2]).max() > 0.1
    assert np.abs(np.delete(off, np.s_[4 * 2 : 8 * 2], axis=1)).max() < 1e-12
    assert not code.sufficient(responders)
    assert code.sufficient([*responders, 5])


# Theorem 2 ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "a", "s", "degree", "r"), [(12, 1, 2, 3, 10), (20, 2, 3, 4, 17)])
@pytest.mark.parametrize("place", [cyclic_placement, random_placement])
def test_a_polynomial_of_a_sum_needs_as_many_replicas_as_theorem_2_says(n, a, s, degree, r, place):
    rng = np.random.default_rng(n)
    polynomial = [0.3, -1, 0.5, 1, 0.2][: degree + 1]
    code = PolynomialOfSumCode(place(n, n, r), polynomial, s, a)
    parts = rng.standard_normal((n, 4, 4))
    messages = code.encode(parts)
    expected = sum(c * np.linalg.matrix_power(parts.sum(axis=0), p) for p, c in enumerate(polynomial))
    for missing in missing_sets(n, s, rng, count=300):
        responders = np.setdiff1d(np.arange(n), missing)
        found = (code.decoder(responders) @ messages[responders])[0]
        assert np.linalg.norm(found - expected) < 1e-9 * np.linalg.norm(expected)
    with pytest.raises(PlacementError, match=rf"needs {r} replicas of every partition, got {r - 1}"):
        PolynomialOfSumCode(place(n, n, r - 1), polynomial, s, a)
    with pytest.raises(TooFewResponders, match=rf"needs {degree * (n - r) + 1} answers, got {degree * (n - r)}"):
        code.decoder(range(degree * (n - r)))
    with pytest.raises(PlacementError, match="fewer stragglers or adversaries than workers"):
        PolynomialOfSumCode(place(n, n, n), polynomial, n, a)


def test_a_polynomial_may_be_numpys():
    code = PolynomialOfSumCode(np.ones((3, 2)), np.polynomial.Chebyshev([0, 0, 1]))
    assert code.polynomial == (-1.0, 0.0, 2.0)
    assert PolynomialOfSumCode(np.ones((3, 2)), [1, 2, 0, 0]).degree == 1
    for wrong in ([], [np.nan]):
        with pytest.raises(ValueError, match="polynomial must hold finite coefficients"):
            PolynomialOfSumCode(np.ones((3, 2)), wrong)
    x = np.array([[1.0, 2.0], [0.0, 3.0]])
    np.testing.assert_allclose(matrix_polynomial([1, -2, 0, 1], x), np.eye(2) - 2 * x + x @ x @ x)


@pytest.mark.parametrize("shape", [(12, 3), (12, 2, 3), (11, 3, 3)])
def test_a_polynomial_takes_square_matrices_only(shape):
    code = PolynomialOfSumCode(cyclic_placement(12, 12, 10), [0, 1, 1], 2, 1)
    with pytest.raises(ValueError, match=r"gradients must have shape \(12, n, n\), got"):
        code.encode(np.ones(shape))


# Too few replicas, too many digits ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [NullSpaceCode, UniversalPolynomialCode])
@pytest.mark.parametrize(
    ("r", "s", "a", "fits"),
    [(3, 3, 0, "at least 4 replicas of every partition, or stragglers=2"), (4, 0, 2, "at least 5 .*adversaries=1")],
)
def test_too_few_replicas_are_refused_with_what_would_fit(kind, r, s, a, fits):
    with pytest.raises(PlacementError, match=rf"needs r > s \+ 2a\. What would fit: {fits}"):
        kind(cyclic_placement(8, 8, r), s, a)
    with pytest.raises(PlacementError, match=rf"needs r > s \+ 2a\. What would fit: {fits}"):
        GroupCode(8, 8, r, s, a)
    with pytest.raises(PlacementError, match="needs r > s"):
        BerrutGradientCode(cyclic_placement(8, 8, r), None, s, a)
    assert BerrutGradientCode(cyclic_placement(8, 8, r), 2, s, a).chunks == 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GroupCode(4, 4, 5), "groups of 5 need as many workers, got 4"),
        (lambda: GroupCode(4, 4, 0), "replicas must be at least 1, got 0"),
        (lambda: GroupCode(9, 9, 4, sizes=(4, 4)), r"sizes must be at least replicas=4 and add up to 9, got \(4, 4\)"),
        (lambda: GroupCode(8, 1, 4, sizes=(4, 4)), "2 groups need as many partitions, got 1"),
        (lambda: GroupCode(4, 4, 2, speeds=(1, 2, 3)), "speeds must hold one positive number for each of 4 workers"),
        (lambda: CyclicCode(4, 4), "4 stragglers leave none of 4 workers"),
        (lambda: CyclicMDSCode(0, 0), "workers must be at least 1, got 0"),
        (lambda: CyclicCode(4, -1), "stragglers must be at least 0, got -1"),
        (lambda: FractionalRepetitionCode(5, 5, 1, 2), "1 stragglers and 2 adversaries are too many for 5 workers"),
        (lambda: GraphCode(4, 4, 2, stragglers=4), "4 stragglers leave none of 4 workers"),
        (lambda: GraphCode(4, 9, graph="edges"), "4 edges cannot touch 9 partitions"),
        (lambda: IgnoreStragglersCode(4, 3), "3 partitions leave some of 4 workers idle"),
        (lambda: IgnoreStragglersCode(4, 4, 4), "4 stragglers leave none of 4 workers"),
        (lambda: UniversalPolynomialCode(RING, chunks=0), "chunks must be at least 1, got 0"),
        (lambda: NullSpaceCode([[1, 0]]), "no worker holds partition 1"),
    ],
)
def test_impossible_codes_are_refused(make, message):
    with pytest.raises(PlacementError, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: UniversalPolynomialCode(RING, nodes="chebyshev"), ValueError, "nodes must be 'interleaved'"),
        (lambda: UniversalPolynomialCode(RING, decoder="qr"), ValueError, "decoder must be 'least-squares'"),
        (lambda: UniversalPolynomialCode(RING, nodes="circle", decoder="berrut"), ValueError, "needs real nodes"),
        (lambda: UniversalPolynomialCode(RING, chunks=1.5), TypeError, r"chunks must be an integer, got 1\.5"),
        (lambda: BerrutGradientCode(RING, 1, decoder="qr"), ValueError, "decoder must be 'least-squares'"),
        (lambda: GraphCode(4, 4, graph="tree"), ValueError, "graph must be 'regular', 'bernoulli' or 'edges'"),
        (lambda: GraphCode(4, 4, weights="best"), ValueError, "weights must be 'least-squares' or 'fixed'"),
        (lambda: NullSpaceCode(RING, 1.0), TypeError, r"stragglers must be an integer, got 1\.0"),
        (lambda: NullSpaceCode(RING, rng="x"), TypeError, r"rng must be an integer or a numpy\.random\.Generator"),
        (lambda: CyclicCode(4, 1, rng=None), TypeError, r"rng must be an integer or a numpy\.random\.Generator"),
        (lambda: CyclicCode(4.0, 1), TypeError, r"workers must be an integer, got 4\.0"),
        (lambda: GroupCode(True, 1, 1), TypeError, "workers must be an integer, got True"),
    ],
)
def test_wrong_arguments_are_named(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_what_rounding_would_spoil_is_refused_with_figures():
    code = UniversalPolynomialCode(cyclic_placement(50, 50, 10), 5, nodes="literal")
    for start in (0, 3, 20):
        figures = r"costs \d\.\de[+-]\d+ of the sum with 45 of 50 workers: noise is amplified \d\.\de\+\d\d times"
        with pytest.raises(UnsafeDecode, match=figures):
            code.decoder(np.delete(np.arange(50), np.arange(start, start + 5)))


def test_what_rounding_does_spoil_is_said_with_figures():
    code = UniversalPolynomialCode(cyclic_placement(30, 30, 6), 3, nodes="literal")
    for start in (0, 10, 27):
        with pytest.warns(ApproximationWarning, match=r"costs \d\.\de-0\d of the sum with 27 of 30 workers.*NullSpace"):
            code.decoder(np.delete(np.arange(30), np.arange(start, start + 3)))


@pytest.mark.parametrize("nodes", ["interleaved", "circle"])
def test_interleaved_nodes_keep_their_digits(nodes):
    code = UniversalPolynomialCode(cyclic_placement(30, 30, 6), 3, nodes=nodes)
    rng = np.random.default_rng(0)
    gradients = rng.standard_normal((30, 6))
    messages, total = code.encode(gradients), gradients.sum(axis=0)
    for missing in missing_sets(30, 3, rng):
        assert relative_error(code, missing, messages, total) < 1e-8


# Section V: approximate sums ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [BerrutGradientCode, UniversalPolynomialCode])
@pytest.mark.parametrize(
    ("placement", "chunks"),
    [
        (cyclic_placement(20, 20, 18), 1),
        (cyclic_placement(20, 20, 5), 2),
        (random_placement(20, 30, 16, 1), 8),
        (cyclic_placement(50, 50, 47), 5),
    ],
)
def test_least_squares_is_never_worse_than_berruts_interpolant(kind, placement, chunks):
    least, berrut = (kind(placement, chunks=chunks, decoder=decoder) for decoder in ("least-squares", "berrut"))
    rng = np.random.default_rng(0)
    n = len(placement)
    residuals = []
    for size in rng.integers(1, n + 1, 60):
        responders = rng.permutation(n)[:size]
        residuals.append([code.decoder(responders).residual for code in (least, berrut)])
    here, there = np.transpose(residuals)
    assert (here <= there * (1 + 1e-9)).all()
    assert here.mean() < 0.95 * there.mean()


def test_berrut_sums_get_better_with_more_answers():
    code = BerrutGradientCode(cyclic_placement(50, 50, 47), chunks=1)
    rng = np.random.default_rng(0)
    medians = [
        np.median([code.decoder(rng.permutation(50)[:size]).residual for _ in range(40)])
        for size in (10, 20, 30, 40, 50)
    ]
    assert medians == sorted(medians, reverse=True)
    assert medians[-1] < 1e-3 * medians[0]
    assert np.abs(code.generator).max() < 3


def test_nearly_dependent_messages_do_not_make_weights_explode():
    """Found here: weights of 1e12, and a residual forty times the least, from checks that held only nearly."""
    code = BerrutGradientCode(cyclic_placement(50, 50, 47), chunks=1)
    rng = np.random.default_rng(0)
    for size in (40, 45) * 50:
        responders = rng.permutation(50)[:size]
        decoder = code.decoder(responders)
        rows = code.generator[responders]
        least = np.linalg.norm(code.target @ np.linalg.pinv(rows, rcond=1e-10) @ rows - code.target)
        assert decoder.residual <= least * (1 + 1e-6)
        assert decoder.lebesgue_constant < 1e9


# Codes with known values ----------------------------------------------------------------------------------------------


def normalised_errors(make, s, codes, sets):
    rng = np.random.default_rng(s)
    made = [make(seed) for seed in range(codes)]
    return np.array(
        [
            [code.decoder(rng.permutation(60)[: 60 - s]).residual ** 2 / code.partitions for _ in range(sets)]
            for code in made
        ]
    )


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda seed: GraphCode(60, 40, graph="edges", rng=seed), [0.0, 0.008, 0.030, 0.132]),
        (lambda seed: GraphCode(60, 60, 3, rng=seed), [0.006, 0.024, 0.054, 0.175]),
        # Partitions that the coins left to nobody, one in twenty, are given to somebody: less than the paper's error.
        (lambda seed: GraphCode(60, 60, 3, graph="bernoulli", rng=seed), [0.053, 0.093, 0.140, 0.264]),
        (lambda seed: GraphCode(60, 60, 3, weights="fixed", rng=seed), [0.035, 0.078, 0.14, 0.32]),
    ],
    ids=["edges", "regular", "bernoulli", "fixed"],
)
def test_errors_of_graph_codes(make, expected):
    """60 workers, three copies, 6, 12, 18 and 30 stragglers at random; values of independent simulations."""
    for s, value in zip((6, 12, 18, 30), expected, strict=True):
        errors = normalised_errors(make, s, codes=20, sets=12)
        sampling = 4 * errors.mean(axis=1).std(ddof=1) / np.sqrt(len(errors))
        assert errors.mean() == pytest.approx(value, abs=0.003 + sampling)


def test_errors_of_fractional_repetition_are_its_silent_groups():
    code = FractionalRepetitionCode(60, 60, 2)
    rng = np.random.default_rng(0)
    for s in (6, 12, 18, 30):
        errors = []
        for _ in range(400):
            responders = rng.permutation(60)[: 60 - s]
            silent = 20 - len(set((responders // 3).tolist()))
            residual = code.decoder(responders).residual
            assert residual**2 == pytest.approx(3 * silent, abs=1e-9)
            errors.append(residual**2 / 60)
        expected = s * (s - 1) * (s - 2) / (60 * 59 * 58)
        assert np.mean(errors) == pytest.approx(expected, abs=4 * np.std(errors) / 20 + 1e-3)


@pytest.mark.parametrize("s", [6, 12, 18, 30])
def test_ignoring_stragglers_costs_s_of_the_others(s):
    code = IgnoreStragglersCode(60, 60, s)
    errors = normalised_errors(lambda seed: code, s, codes=1, sets=5)
    np.testing.assert_allclose(errors, s / (60 - s), rtol=1e-12)


def test_ignoring_scales_by_the_partitions_that_arrived():
    code = IgnoreStragglersCode(3, 7, 1)
    assert code.placement.sum(axis=1).tolist() == [3, 2, 2]
    assert code.decoder([0, 2]).matrix.tolist() == [[7 / 5, 7 / 5]]
    assert code.decoder([1]).matrix.tolist() == [[7 / 2]]


@pytest.mark.parametrize(("n", "s"), [(8, 2), (30, 5)])
def test_tandons_code_has_the_cyclic_support_and_exact_sums(n, s):
    code = CyclicCode(n, s)
    assert (code.placement.sum(axis=1) == s + 1).all()
    assert (code.generator.diagonal() == 1).all()
    rng = np.random.default_rng(0)
    for missing in missing_sets(n, s, rng, count=100):
        assert code.decoder(np.setdiff1d(np.arange(n), missing)).residual < 1e-6
    assert np.linalg.matrix_rank(code.generator, tol=1e-8) == n - s


@pytest.mark.parametrize(("n", "s"), [(7, 2), (9, 4), (10, 3), (11, 2), (8, 2), (9, 3), (12, 4)])
def test_ravivs_code_is_a_cyclic_mds_code(n, s):
    code = CyclicMDSCode(n, s)
    rows = code.generator
    assert np.iscomplexobj(rows) == ((n + s) % 2 == 0)
    for worker in range(n):
        np.testing.assert_allclose(rows[worker], np.roll(rows[0], worker), atol=1e-15)
    np.testing.assert_allclose(rows.sum(axis=1), 1, atol=1e-12)
    spectrum = np.abs(np.fft.fft(rows[0]))
    assert (spectrum < 1e-10).sum() == s  # s roots of unity are its zeros, and they are consecutive
    zeros = np.sort(np.flatnonzero(spectrum < 1e-10))
    assert (np.diff(zeros) == 1).all()
    for missing in itertools.combinations(range(n), s):
        assert code.decoder(np.setdiff1d(np.arange(n), missing)).residual < 1e-9


def test_edges_give_every_worker_two_partitions():
    code = GraphCode(60, 40, graph="edges", rng=5)
    assert (code.placement.sum(axis=1) == 2).all()
    assert code.placement.sum() == 120
    assert abs(code.placement.sum(axis=0) - 3).max() <= 3


# Values ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda rng: NullSpaceCode(cyclic_placement(9, 9, 5), 2, rng=rng),
        lambda rng: CyclicCode(9, 3, rng=rng),
        lambda rng: GroupCode(12, 12, 6, 2, rng=rng),
        lambda rng: GraphCode(12, 12, 3, rng=rng),
        lambda rng: GraphCode(12, 12, 3, graph="bernoulli", rng=rng),
        lambda rng: GraphCode(12, 8, graph="edges", rng=rng),
    ],
)
def test_equal_seeds_give_equal_codes_and_others_others(make):
    one, same, other = make(3), make(3), make(4)
    assert one == same
    assert hash(one) == hash(same)
    np.testing.assert_array_equal(one.generator, same.generator)
    assert one != other
    assert not np.array_equal(one.generator, other.generator)
    drawn, again = make(np.random.default_rng(3)), make(np.random.default_rng(3))
    assert drawn == again
    np.testing.assert_array_equal(drawn.generator, pickle.loads(pickle.dumps(again)).generator)


def test_codes_of_other_placements_and_types_differ():
    code = NullSpaceCode(cyclic_placement(6, 6, 3))
    assert code == NullSpaceCode(cyclic_placement(6, 6, 3).astype(float))
    assert code != NullSpaceCode(cyclic_placement(6, 6, 4))
    assert code != UniversalPolynomialCode(cyclic_placement(6, 6, 3))
    assert code != NullSpaceCode(cyclic_placement(6, 6, 3), 1)
    assert CyclicCode(6, 2) != CyclicMDSCode(6, 2)


def test_a_code_can_be_changed_in_one_field():
    code = UniversalPolynomialCode(RING, 3, chunks=4, decoder="berrut")
    changed = replace(code, stragglers=1)
    assert (changed.stragglers, changed.chunks, changed.decoding) == (1, 4, "berrut")
    assert replace(CyclicCode(6, 2), workers=9).placement.shape == (9, 9)


def test_long_fields_are_cut_short_when_written():
    code = GroupCode(100, 100, 5, 2, speeds=range(1, 101))
    assert repr(code) == (
        "GroupCode(workers=100, partitions=100, replicas=5, stragglers=2, adversaries=0, speeds=(1, ... 100 in all), "
        "sizes=None, rng=0)"
    )
    assert repr(NullSpaceCode(RING, 2)) == (
        "NullSpaceCode(<10 workers x 10 partitions, r=5>, stragglers=2, adversaries=0, rng=0)"
    )


def test_workers_that_hold_nothing_are_not_waited_for():
    """Found by the laws: with an idle worker one straggler was one too many."""
    for code in (NullSpaceCode(IDLE, 1), UniversalPolynomialCode(IDLE, 1), PolynomialOfSumCode(IDLE, [0, 1], 1)):
        assert code.active == (1, 2, 3, 4)
        assert code.threshold == 3
        for responders in itertools.combinations(code.active, 3):
            assert code.sufficient(responders)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                assert code.decoder(responders).residual < 1e-9


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.int16, np.int64, np.uint8])
def test_integers_are_summed_in_double_precision(dtype):
    """Found by the laws: 8-bit integers became messages in half precision."""
    gradients = np.ones((10, 6), dtype)
    assert NullSpaceCode(RING, 2).encode(gradients).dtype == np.float64


@pytest.mark.parametrize("shape", [(10,), (9, 3), (10, 3, 3)])
def test_gradients_of_another_shape_are_refused(shape):
    with pytest.raises(ValueError, match=r"gradients must have shape \(10, d\), got"):
        NullSpaceCode(RING, 2).encode(np.ones(shape))
