"""Codes: the shared laws, the papers' settings, and the edges."""

import itertools
import pickle
import threading
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import anyk
from anyk import BerrutCode, DataCode, LagrangeCode, RepetitionCode, TooFewResponders, UncodedCode
from anyk.codes.base import least_squares_decoder
from anyk.errors import DisagreeingReplies
from anyk.testing import check_code

FAMILIES = ["chebyshev", "equidistant", "equidistant-closed", "approxifer"]
steady = settings(derandomize=True, deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])

CODES = [
    *(
        BerrutCode(workers, blocks, nodes)
        for workers, blocks in [(30, 8), (7, 7), (5, 1), (1, 1)]
        for nodes in FAMILIES
    ),
    *(BerrutCode(workers, 30) for workers in (301, 701)),
    *(UncodedCode(workers, blocks) for workers, blocks in [(4, 3), (5, 5), (1, 1), (6, 1)]),
    *(RepetitionCode(workers, blocks) for workers, blocks in [(12, 4), (13, 5), (5, 5), (1, 1), (6, 1)]),
    RepetitionCode(12, 4, combine="majority"),
    *(LagrangeCode(workers, blocks) for workers, blocks in [(12, 5), (5, 5), (1, 1), (6, 1)]),
    *(LagrangeCode(workers, 4, degree) for workers, degree in [(10, 3), (15, 3), (5, 3), (40, 12)]),
    *(LagrangeCode(workers, 4, 3, "least-squares") for workers in (5, 10, 15)),
    LagrangeCode(501, 20, 25),
]


@pytest.mark.parametrize("code", CODES, ids=repr)
def test_laws(code):
    check_code(code)


@st.composite
def codes(draw):
    workers = draw(st.integers(1, 24))
    blocks = draw(st.integers(1, workers))
    kind = draw(st.sampled_from(["berrut", "uncoded", "repetition", "lagrange", "least-squares"]))
    if kind == "berrut":
        return BerrutCode(workers, blocks, draw(st.sampled_from(FAMILIES)))
    if kind == "uncoded":
        return UncodedCode(workers, blocks)
    if kind == "repetition":
        return RepetitionCode(workers, blocks)
    return LagrangeCode(workers, blocks, draw(st.integers(1, 5)), "raise" if kind == "lagrange" else kind)


@given(codes(), st.integers(0, 2**32))
@steady
def test_laws_for_any_code(code, seed):
    check_code(code, rng=seed, trials=4)


# Laws catch what they are for -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Broken(DataCode):
    """Two copies of each block, and one fault of choice."""

    workers: int = 8
    blocks: int = 4
    fault: str = "none"
    extra: list[int] = field(default_factory=list, hash=False)

    @property
    def threshold(self):
        return 3 if self.fault == "threshold" else 7

    @property
    def exact_for(self):
        return "everything" if self.fault == "promise" else "any"

    def sufficient(self, responders):
        return len({worker % 4 for worker in responders}) == 4 and self.fault != "sufficient"

    def _generator(self):
        matrix = np.eye(4)[np.arange(8) % 4]
        if self.fault == "shape":
            return matrix[:5]
        if self.fault == "nan":
            matrix[2, 0] = np.nan
        return matrix.astype(np.float32) if self.fault == "dtype" else matrix

    def _decode(self, responders, replies):
        matrix = self.generator[responders].T.copy()
        count = matrix.sum(axis=1, keepdims=True)
        if (count == 0).any():
            if self.fault == "silent":
                return matrix
            raise TooFewResponders("a block is missing")
        if self.fault == "wrong":
            return matrix[::-1] / count[::-1]
        if self.fault == "doubled":
            return matrix
        return matrix / count

    def decoder(self, responders, replies=None):
        made = super().decoder(sorted(responders) if self.fault in ("columns", "order") else responders, replies)
        if self.fault == "columns":
            return replace(made, responders=tuple(responders))
        if self.fault == "writeable":
            return replace(made, matrix=made.matrix.copy())
        if self.fault == "figures":
            made.__dict__["residual"] = 0.5
        return made

    def encode(self, blocks):
        coded = super().encode(blocks)
        return coded.astype(np.float64) if self.fault == "promotes" else coded + (self.fault == "shifted")

    def __reduce__(self):
        return (Broken, () if self.fault == "pickle" else (self.workers, self.blocks, self.fault, self.extra))


def test_laws_hold_without_a_fault():
    check_code(Broken())


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("shape", r"generator must have shape \(8, 4\), not \(5, 4\)"),
        ("nan", "generator must be finite"),
        ("dtype", "generator must be float64 or complex128"),
        ("promise", "exact_for must be one of"),
        ("threshold", "reach the threshold 3 but do not suffice"),
        ("sufficient", "does not suffice, so it must raise TooFewResponders|reach the threshold 7"),
        ("silent", "does not suffice, so it must raise TooFewResponders"),
        ("wrong", "should recover 'any' functions exactly"),
        ("doubled", "miss the sum one"),
        ("columns", "columns do not follow the responders"),
        ("order", "names the responders"),
        ("writeable", "decoders must be read-only"),
        ("figures", "residual is 0.5"),
        ("promotes", "encode turned float16 into float64"),
        ("shifted", "encode is not generator @ blocks"),
        ("pickle", "not equal to what copy.copy makes of it"),
    ],
)
def test_each_law_catches_its_fault(fault, message):
    with pytest.raises(AssertionError, match=message):
        check_code(Broken(fault=fault))


def test_check_code_with_a_function_of_ones_own():
    check_code(RepetitionCode(9, 3), function=lambda block: np.exp(block).sum())
    with pytest.raises(AssertionError, match="exactly"):
        check_code(LagrangeCode(9, 3), function=np.exp)
    with pytest.raises(TypeError, match="gradient and product codes, got int"):
        check_code(3)  # type: ignore[arg-type]


# Construction ---------------------------------------------------------------------------------------------------------

KINDS = [BerrutCode, UncodedCode, RepetitionCode, LagrangeCode]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("workers", "blocks", "error", "message"),
    [
        (4, 5, ValueError, "5 blocks need at least as many workers, got workers=4: use more workers or group"),
        (0, 0, ValueError, "workers must be at least 1, got 0"),
        (3, 0, ValueError, "blocks must be at least 1, got 0"),
        (-3, 1, ValueError, "workers must be at least 1, got -3"),
        (4.0, 2, TypeError, "workers must be an integer, got 4.0"),
        (4, "2", TypeError, "blocks must be an integer, got '2'"),
        (True, True, TypeError, "workers must be an integer, got True"),
        (None, 2, TypeError, "workers must be an integer, got None"),
    ],
)
def test_impossible_sizes(kind, workers, blocks, error, message):
    with pytest.raises(error, match=message):
        kind(workers, blocks)


@pytest.mark.parametrize("kind", KINDS)
def test_numpy_integers_become_plain_ones(kind):
    code = kind(np.int64(6), np.uint8(3))
    assert code == kind(6, 3)
    assert type(code.workers) is int
    assert type(code.blocks) is int


def test_wrong_options():
    with pytest.raises(ValueError, match=r"nodes must be one of chebyshev, .*, got 'cheb'"):
        BerrutCode(5, 2, nodes="cheb")  # type: ignore[arg-type]
    for degree in (0, -1, 1.5, True, None):
        with pytest.raises(ValueError, match="degree must be an integer of at least 1"):
            LagrangeCode(5, 2, degree)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="below_threshold must be 'raise' or 'least-squares'"):
        LagrangeCode(5, 2, below_threshold="guess")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="combine must be 'mean' or 'majority'"):
        RepetitionCode(5, 2, combine="median")  # type: ignore[arg-type]
    for tolerance in (-1.0, float("nan")):
        with pytest.raises(ValueError, match="tolerance must be at least 0"):
            RepetitionCode(5, 2, tolerance=tolerance)


# Decoders -------------------------------------------------------------------------------------------------------------


@given(codes(), st.data())
@steady
def test_arrival_order_changes_columns_only(code, data):
    order = data.draw(st.permutations(range(code.workers)))
    arrived = order[: data.draw(st.integers(1, code.workers))]
    try:
        plain = code.decoder(sorted(arrived)).matrix
    except TooFewResponders:
        with pytest.raises(TooFewResponders):
            code.decoder(arrived)
        return
    decoder = code.decoder(iter(arrived))
    assert decoder.responders == tuple(arrived)
    np.testing.assert_array_equal(decoder.matrix[:, np.argsort(arrived)], plain)


def test_refused_responders():
    code = BerrutCode(5, 2)
    with pytest.raises(TooFewResponders, match=r"BerrutCode\(.*there are no responders"):
        code.decoder([])
    with pytest.raises(ValueError, match=r"responders are repeated: \[1, 3, 3\]"):
        code.decoder([3, 1, 3])
    with pytest.raises(ValueError, match=r"responders must lie in 0\.\.4, got \[0, 5\]"):
        code.decoder([5, 0])
    with pytest.raises(ValueError, match=r"responders must lie in 0\.\.4, got \[-1, 0\]"):
        code.decoder([-1, 0])
    with pytest.raises(ValueError, match="expected 2, got 3"):
        code.decoder([0, 1]) @ np.zeros(3)
    with pytest.raises(ValueError, match="expected 2, got 3"):
        code.encode(np.zeros((3, 4)))


def test_decoder_reads_a_mapping_by_worker():
    code = BerrutCode(9, 3)
    replies = {worker: np.array([worker, worker**2.0]) for worker in range(9)}
    responders = [7, 2, 4]
    expected = code.decoder(responders).matrix @ np.stack([replies[worker] for worker in responders])
    np.testing.assert_allclose(code.decoder(responders) @ replies, expected, rtol=1e-14)


def test_cache_is_bounded_and_its_matrices_read_only():
    code = BerrutCode(12, 3)
    first = code.decoder([0, 1, 2, 3]).matrix
    for subset in itertools.islice(itertools.combinations(range(12), 5), 300):
        code.decoder(subset)
    assert len(code._decoders[1]) <= 128
    np.testing.assert_array_equal(code.decoder([0, 1, 2, 3]).matrix, first)
    with pytest.raises(ValueError, match="read-only"):
        first[0, 0] = 1
    with pytest.raises(ValueError, match="read-only"):
        code.decoder([3, 2, 1, 0]).matrix[0, 0] = 1
    with pytest.raises(ValueError, match="read-only"):
        code.generator[0, 0] = 1


def test_decoders_may_be_made_by_many_threads():
    code = LagrangeCode(40, 5, 3)
    subsets = list(itertools.islice(itertools.combinations(range(40), 13), 200))
    expected = [LagrangeCode(40, 5, 3).decoder(subset).matrix for subset in subsets[:20]]
    failures: list[BaseException] = []

    def work():
        try:
            for _ in range(3):
                for subset, matrix in zip(subsets, expected, strict=False):
                    np.testing.assert_array_equal(code.decoder(subset).matrix, matrix)
                for subset in subsets[20:]:
                    code.decoder(subset)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_code_that_was_used_travels_light():
    code = BerrutCode(500, 100)
    assert code.decoder(range(400)).residual > 0
    assert len(pickle.dumps(code)) < 500
    assert pickle.loads(pickle.dumps(code)) == code


# Berrut ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("workers", "blocks"), [(301, 30), (701, 30)])
@pytest.mark.parametrize("stragglers", [0, 1, 100])
def test_collisions_give_unit_rows_and_no_nan(workers, blocks, stragglers):
    code = BerrutCode(workers, blocks)
    hits = {(i, j) for i in range(workers) for j in range(blocks) if (workers - 1) * (2 * j + 1) == 2 * blocks * i}
    assert len(hits) == {301: 30, 701: 10}[workers]
    assert np.isfinite(code.generator).all()
    np.testing.assert_allclose(code.generator.sum(axis=1), 1, rtol=0, atol=1e-14)
    responders = np.sort(np.random.default_rng(stragglers).choice(workers, workers - stragglers, replace=False))
    matrix = code.decoder(responders).matrix
    assert np.isfinite(matrix).all()
    np.testing.assert_allclose(matrix.sum(axis=1), 1, rtol=0, atol=1e-14)
    for i, j in hits:
        np.testing.assert_array_equal(code.generator[i], np.eye(blocks)[j])
        if i in responders:
            np.testing.assert_array_equal(matrix[j], (responders == i).astype(float))


@pytest.mark.parametrize("function", [np.tanh, np.sign, lambda x: 1 / (x - 0.1234), lambda x: np.floor(5 * x)])
def test_300_and_30_without_stragglers_is_exact_for_any_function(function):
    code = BerrutCode(301, 30)
    x = np.random.default_rng(0).uniform(-1, 1, (30, 3))
    np.testing.assert_allclose(code.decoder(range(301)) @ function(code.encode(x)), function(x), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("nodes", FAMILIES)
@given(st.integers(1, 60), st.data())
@steady
def test_every_family_is_finite_with_unit_row_sums_and_no_poles(nodes, workers, data):
    blocks = data.draw(st.integers(1, workers))
    responders = data.draw(st.sets(st.integers(0, workers - 1), min_size=1))
    code = BerrutCode(workers, blocks, nodes)
    for matrix in (code.generator, code.decoder(responders).matrix):
        assert np.isfinite(matrix).all()
        scale = np.abs(matrix).sum(axis=1).max()
        np.testing.assert_allclose(matrix.sum(axis=1), 1, rtol=0, atol=1e-14 * scale)


@pytest.mark.parametrize("nodes", FAMILIES)
def test_one_answer_is_repeated_for_every_block(nodes):
    code = BerrutCode(9, 4, nodes)
    for worker in range(9):
        np.testing.assert_array_equal(code.decoder([worker]).matrix, np.ones((4, 1)))


@pytest.mark.parametrize("nodes", FAMILIES)
def test_a_single_block_is_recovered_by_anybody(nodes):
    code = BerrutCode(6, 1, nodes)
    np.testing.assert_array_equal(code.generator, np.ones((6, 1)))
    for size in range(1, 7):
        for subset in itertools.combinations(range(6), size):
            assert code.decoder(subset).residual < 1e-14
    lone = BerrutCode(1, 1, nodes)
    assert lone.generator.tolist() == lone.decoder([0]).matrix.tolist() == [[1.0]]


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ("chebyshev", np.cos(np.arange(5) * np.pi / 4)),
        ("approxifer", np.cos(np.arange(5) * np.pi / 5)),
        ("equidistant", np.linspace(1, -1, 5)),
        ("equidistant-closed", np.linspace(1, -1, 5)),
    ],
)
def test_worker_nodes(nodes, expected):
    np.testing.assert_allclose(BerrutCode(5, 3, nodes).worker_nodes.values, expected, atol=1e-15)


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ("chebyshev", np.cos((2 * np.arange(3) + 1) * np.pi / 6)),
        ("approxifer", np.cos((2 * np.arange(3) + 1) * np.pi / 6)),
        ("equidistant", [0.5, 0, -0.5]),
        ("equidistant-closed", [1, 0, -1]),
    ],
)
def test_data_nodes(nodes, expected):
    np.testing.assert_allclose(BerrutCode(5, 3, nodes).data_nodes.values, expected, atol=1e-15)


def relative_errors(code, function, blocks, responders, trials, rng):
    replies, exact = function(code.encode(blocks)), function(blocks)
    errors = []
    for _ in range(trials):
        subset = rng.choice(code.workers, responders, replace=False)
        errors.append(np.linalg.norm(code.decoder(subset) @ replies[subset] - exact) / np.linalg.norm(exact))
    return np.array(errors)


def test_at_fixed_parity_more_answers_are_better_on_average_and_odd_sets_beat_even_ones():
    """x sin x, 251 workers, 20 sorted blocks: 4.4e-3 with an odd number of answers, 6.7e-3 with an even one."""
    rng = np.random.default_rng(1)
    code = BerrutCode(251, 20)
    mean = {}
    for answers in (231, 230, 151, 150, 91, 90):
        samples = [
            relative_errors(code, lambda x: x * np.sin(x), np.sort(rng.uniform(-1, 1, 20)), answers, 10, rng).mean()
            for _ in range(20)
        ]
        mean[answers] = np.mean(samples)
    assert mean[231] == pytest.approx(4.4e-3, rel=0.35)
    assert mean[230] == pytest.approx(6.7e-3, rel=0.35)
    assert mean[231] < mean[151] < mean[91]
    assert mean[230] < mean[150] < mean[90]
    assert mean[231] < mean[230]


def test_figure_4_of_paper_1():
    """x sin x on 20 points of [-12, 12], 61 workers, 20 of them missing: 0.128 on average; none missing: 0.0392."""
    x = -12 + 24 * np.arange(20) / 19
    code = BerrutCode(61, 20)
    rng = np.random.default_rng(0)
    assert relative_errors(code, lambda v: v * np.sin(v), x, 61, 1, rng)[0] == pytest.approx(0.0392, abs=5e-5)
    assert relative_errors(code, lambda v: v * np.sin(v), x, 41, 600, rng).mean() == pytest.approx(0.128, rel=0.1)


# Lagrange -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workers", "blocks", "degree", "threshold"),
    [(501, 20, 25, 476), (701, 20, 35, 666), (701, 30, 35, 1016), (501, 30, 25, 726)],
)
def test_thresholds_of_paper_1(workers, blocks, degree, threshold):
    code = LagrangeCode(workers, blocks, degree)
    assert code.threshold == threshold
    if threshold > workers:
        with pytest.raises(TooFewResponders, match=f"fewer than the threshold {threshold}"):
            code.decoder(range(workers))
        assert not code.sufficient(range(workers))
    else:
        assert code.sufficient(range(threshold))
        assert not code.sufficient(range(threshold - 1))


def test_berrut_answers_where_lagrange_cannot():
    """(700,30,35), 400 stragglers: Lagrange needs 1016 of 701; Berrut is off by about 1.8e-2 with 301 answers."""
    rng = np.random.default_rng(3)
    errors = []
    for _ in range(20):
        coefficients = rng.uniform(-10, 10, 36)
        x = np.sort(rng.uniform(-1, 1, 30))
        code = BerrutCode(701, 30)
        errors.append(relative_errors(code, lambda v, c=coefficients: np.polyval(c, v), x, 301, 5, rng).mean())
    assert 0.005 < np.mean(errors) < 0.05


def test_exact_at_the_threshold_and_quieter_above_it():
    code = LagrangeCode(60, 10, 5)
    rng = np.random.default_rng(0)
    x = np.sort(rng.uniform(-1, 1, 10))
    f = np.polynomial.Polynomial(rng.uniform(-1, 1, 6))
    replies = f(code.encode(x))
    noise = []
    for answers in (46, 50, 55, 60):
        subset = np.sort(rng.choice(60, answers, replace=False)) if answers < 60 else np.arange(60)
        decoder = code.decoder(subset)
        error = np.abs(decoder @ replies[subset] - f(x)).max()
        assert error < 1e-12 * decoder.lebesgue_constant * max(1, np.abs(replies).max())
        noise.append(decoder.noise_amplification)
    assert noise[-1] < 1 < noise[0]


def test_least_squares_below_the_threshold_keeps_constants_and_smooth_functions():
    """A minimum-norm fit without a price on the degree loses half of a constant, or all of it."""
    rng = np.random.default_rng(0)
    x = np.sort(rng.uniform(-1, 1, 12))
    code = LagrangeCode(20, 12, 5, below_threshold="least-squares")
    assert code.threshold == 56
    for answers, worst in ((20, 0.06), (18, 0.3), (14, 0.5), (1, np.inf)):
        subset = np.sort(rng.choice(20, answers, replace=False))
        decoder = code.decoder(subset)
        np.testing.assert_allclose(decoder @ np.full(answers, 7.0), 7.0, rtol=1e-12)
        error = np.abs(decoder @ np.cos(code.encode(x))[subset] - np.cos(x)).max()
        assert error < worst


def test_linear_maps_need_no_degree():
    code = LagrangeCode(9, 4)
    assert code.exact_for == "linear"
    assert LagrangeCode(9, 3, 2).exact_for == "polynomial"
    rng = np.random.default_rng(0)
    blocks, operator = rng.standard_normal((4, 6)), rng.standard_normal((6, 2))
    replies = code.encode(blocks) @ operator
    for subset in itertools.combinations(range(9), 4):
        decoder = code.decoder(subset)
        error = np.abs(decoder @ replies[list(subset)] - blocks @ operator).max()
        assert error < 1e-13 * max(1, decoder.lebesgue_constant)


# Repetition and none --------------------------------------------------------------------------------------------------


@given(st.integers(1, 10), st.data())
@steady
def test_sufficient_sets_of_repetition_by_brute_force(workers, data):
    blocks = data.draw(st.integers(1, workers))
    code = RepetitionCode(workers, blocks)
    holders = [{n for n in range(workers) if n % blocks == block} for block in range(blocks)]
    for size in range(1, workers + 1):
        fine = []
        for subset in itertools.combinations(range(workers), size):
            covered = all(holder & set(subset) for holder in holders)
            assert code.sufficient(subset) == covered
            fine.append(covered)
        assert all(fine) == (size >= code.threshold)


def test_missing_blocks_are_named():
    with pytest.raises(TooFewResponders, match="no copy of block 1 answered"):
        RepetitionCode(6, 3).decoder([0, 2, 3, 5])
    with pytest.raises(TooFewResponders, match="no copy of blocks 1, 2 answered"):
        RepetitionCode(6, 3).decoder([0, 3])
    with pytest.raises(TooFewResponders, match=r"no answer for blocks 0, 1, 2, 3, 4, 5, 6, 7, \.\.\.: without a code"):
        UncodedCode(20, 12).decoder([11, 19])


def test_idle_workers_are_not_active():
    assert UncodedCode(5, 3).active == (0, 1, 2)
    assert RepetitionCode(5, 3).active == (0, 1, 2, 3, 4)
    decoder = UncodedCode(5, 3).decoder([4, 2, 0, 1])
    np.testing.assert_array_equal(decoder @ np.array([9.0, 2.0, 0.0, 1.0]), [0, 1, 2])


def test_majority():
    code = RepetitionCode(6, 2, combine="majority")
    good = {worker: np.array([1.0, 2.0]) * (1 + worker % 2) for worker in range(6)}
    lied = good | {2: np.array([50.0, -3.0])}
    decoder = code.decoder(range(6), lied)
    np.testing.assert_allclose(decoder @ lied, [[1, 2], [2, 4]])
    assert decoder.matrix[0].tolist() == [0.5, 0, 0, 0, 0.5, 0]
    listed = code.decoder([5, 2, 0, 1, 4, 3], [lied[worker] for worker in [5, 2, 0, 1, 4, 3]])
    np.testing.assert_allclose(listed @ lied, [[1, 2], [2, 4]])
    with pytest.raises(DisagreeingReplies, match="copies of block 0 disagree"):
        code.decoder([0, 2, 1], lied)
    # What was seen in one round must not be remembered for the next.
    np.testing.assert_allclose(code.decoder(range(6), good) @ good, [[1, 2], [2, 4]])


# Least squares --------------------------------------------------------------------------------------------------------


@given(st.integers(1, 12), st.integers(1, 12), st.booleans(), st.integers(0, 10**6))
@steady
def test_least_squares_decoder_is_the_pseudo_inverse(rows, columns, is_complex, seed):
    rng = np.random.default_rng(seed)
    generator = rng.standard_normal((rows, columns)) + 1j * is_complex * rng.standard_normal((rows, columns))
    generator = generator if is_complex else generator.real
    target = rng.standard_normal((3, columns))
    inverse = np.linalg.pinv(generator)
    tolerance = 1e-11 * np.linalg.cond(generator)
    np.testing.assert_allclose(least_squares_decoder(generator, target), target @ inverse, rtol=0, atol=tolerance)


def test_least_squares_decoder_of_a_rank_deficient_generator():
    generator = np.array([[1.0, 1.0], [1.0, 1.0], [2.0, 2.0]])
    expected = np.eye(2) @ np.linalg.pinv(generator)
    np.testing.assert_allclose(least_squares_decoder(generator, np.eye(2)), expected, atol=1e-14)


# Trees, libraries and dtypes through encode and decode ----------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "complex128", "int32", "bool", ">f8"])
def test_dtypes_through_a_round_trip(kind, dtype):
    code = kind(9, 3)
    x = np.arange(12).reshape(3, 4).astype(dtype)
    kept = np.dtype("float64") if x.dtype.kind in "biu" else x.dtype.newbyteorder("=")
    coded = code.encode(x)
    back = code.decoder(range(9)) @ coded
    assert coded.dtype == back.dtype == kept
    assert back.dtype.isnative
    if not code.approximate:
        np.testing.assert_allclose(back, x.astype(kept), atol=50 * np.finfo(kept).eps * 11)


def test_trees_of_several_libraries():
    torch = pytest.importorskip("torch")
    code = RepetitionCode(6, 3)
    tree = {"a": torch.arange(6.0).reshape(3, 2), "b": (np.arange(3, dtype=np.float32), np.ones((3, 2, 2)))}
    coded = code.encode(tree)
    assert isinstance(coded["a"], torch.Tensor)
    assert coded["a"].shape == (6, 2)
    assert coded["b"][0].dtype == np.float32
    back = code.decoder(range(6)) @ coded
    assert torch.equal(back["a"], tree["a"])
    np.testing.assert_allclose(back["b"][0], tree["b"][0])


def test_public_names():
    assert {"BerrutCode", "LagrangeCode", "RepetitionCode", "UncodedCode"} <= set(anyk.__all__)
