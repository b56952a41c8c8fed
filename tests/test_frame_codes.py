"""Frame codes: the shared laws, how loud they are, and replies of finite precision."""

import gc
import json
import math
import weakref
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import anyk
from anyk import (
    AdditiveNoise,
    ChebyshevCode,
    GaussianFrameCode,
    HarmonicFrameCode,
    Manova,
    Quantized,
    RelativeNoise,
    SystematicMDSCode,
    TooFewResponders,
    VandermondeCode,
    difference_set,
    nonuniform_samples,
    optimized_powers,
    random_powers,
    singular_responders,
)
from anyk.errors import ApproximationWarning, UnsafeDecode
from anyk.testing import check_code

VECTORS = Path(__file__).parents[2] / "shared" / "expected" / "vectors.json"
steady = settings(derandomize=True, deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])


def survivors(n, k, count, seed=0):
    """(count, k) seeded sets of k of n workers."""
    rng = np.random.default_rng(seed)
    return np.array([np.sort(rng.permutation(n)[:k]) for _ in range(count)])


def amplifications(generator, sets):
    """Mean of the inverse eigenvalues of the Gram matrix of each set."""
    rows = generator[sets]
    return (1 / np.linalg.eigvalsh(rows.conj().swapaxes(1, 2) @ rows)).mean(axis=1)


# Laws -----------------------------------------------------------------------------------------------------------------

CODES = [
    *(HarmonicFrameCode(n, difference_set(n, m)) for n, m in [(7, 3), (13, 4), (31, 15), (13, 9)]),
    *(HarmonicFrameCode(n, random_powers(n, m, rng=n)) for n, m in [(12, 5), (24, 8), (20, 19), (6, 6), (1, 1)]),
    *(
        HarmonicFrameCode(n, random_powers(n, m, rng=n, real=True), real=True)
        for n, m in [(12, 6), (13, 5), (24, 8), (1, 1)]
    ),
    HarmonicFrameCode(12, [0, 4, 8, 1], below_threshold="least-squares"),
    HarmonicFrameCode(12, [-2, -1, 0, 1, 2], nonuniform_samples(12, 4, 5, rng=1)),
    HarmonicFrameCode(12, [-7, 1, 2, 9], nonuniform_samples(12, 4, 5, rng=1)),
    *(kind(n, m) for kind in (GaussianFrameCode, ChebyshevCode, SystematicMDSCode) for n, m in [(30, 20), (5, 5)]),
    *(kind(n, 1) for kind in (GaussianFrameCode, ChebyshevCode, SystematicMDSCode, VandermondeCode) for n in (1, 4)),
    GaussianFrameCode(12, 5, rng=np.random.default_rng(3), field="complex", below_threshold="least-squares"),
    SystematicMDSCode(9, 2, below_threshold="least-squares"),
    SystematicMDSCode(60, 50, rng=4),
    ChebyshevCode(60, 50, below_threshold="least-squares"),
    *(VandermondeCode(13, 7, points) for points in ("chebyshev", "equidistant", "circle")),
    VandermondeCode(60, 50, "circle"),
    VandermondeCode(60, 50),  # UnsafeDecode is an answer
    VandermondeCode(4, 3, [1, 2, 3j, -1], below_threshold="least-squares"),
    VandermondeCode(3, 3, [1e200, -1, 1e-3]),
]


@pytest.mark.parametrize("code", CODES, ids=repr)
def test_laws(code):
    check_code(code)
    np.testing.assert_allclose(np.linalg.norm(code.generator, axis=1), 1, rtol=1e-12)


@st.composite
def codes(draw):
    n = draw(st.integers(1, 20))
    m = draw(st.integers(1, n))
    seed, below = draw(st.integers(0, 99)), draw(st.sampled_from(["raise", "least-squares"]))
    kind = draw(st.sampled_from(["harmonic", "real", "samples", "gaussian", "vandermonde", "chebyshev", "systematic"]))
    if kind in ("harmonic", "real"):
        real = kind == "real"
        return HarmonicFrameCode(n, random_powers(n, m, seed, real=real), real=real, below_threshold=below)
    if kind == "samples":
        return HarmonicFrameCode(n, np.arange(m) + seed, nonuniform_samples(n, 1, 2 * n, rng=seed), False, below)
    if kind == "gaussian":
        return GaussianFrameCode(n, m, seed, draw(st.sampled_from(["real", "complex"])), below)
    if kind == "vandermonde":
        return VandermondeCode(min(n, 12), min(m, 12), draw(st.sampled_from(["chebyshev", "circle"])), below)
    return ChebyshevCode(n, m, below) if kind == "chebyshev" else SystematicMDSCode(n, m, seed, below)


@given(codes(), st.integers(0, 2**32))
@steady
def test_laws_for_any_code(code, seed):
    check_code(code, rng=seed, trials=3)


@given(codes(), st.integers(0, 99))
@steady
def test_no_code_is_quieter_than_the_lower_bound(code, seed):
    rng = np.random.default_rng(seed)
    who = rng.permutation(code.workers)[: rng.integers(code.blocks, code.workers + 1)].tolist()
    if code.sufficient(who):
        assert code.decoder(who).noise_amplification >= code.blocks / len(who) * (1 - 1e-12)


@given(codes(), st.integers(0, 99))
@steady
def test_sufficient_means_full_rank(code, seed):
    rng = np.random.default_rng(seed)
    who = rng.permutation(code.workers)[: rng.integers(1, code.workers + 1)].tolist()
    values = np.linalg.svd(code.generator[who], compute_uv=False)
    full = len(who) >= code.blocks and values[-1] > 1e-11 * values[0]
    assert code.sufficient(who) == full
    assert code.approximates(who) != full


def test_systematic_code_is_systematic():
    code = SystematicMDSCode(14, 10, rng=2)
    np.testing.assert_array_equal(code.generator[:10], np.eye(10))
    np.testing.assert_array_equal(code.decoder(range(10)).matrix, np.eye(10))
    assert code == SystematicMDSCode(14, 10, rng=2)
    assert not np.array_equal(code.generator, SystematicMDSCode(14, 10, rng=3).generator)


def test_chebyshev_stays_sound_where_powers_do_not():
    with pytest.raises(UnsafeDecode, match=r"beyond float64 \(VandermondeCode\(workers=60, blocks=50"):
        VandermondeCode(60, 50).decoder(range(60))
    assert ChebyshevCode(60, 50).decoder(range(60)).condition < 3
    assert VandermondeCode(60, 50, "circle").decoder(range(60)).condition < 3


# Amplification --------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not VECTORS.exists(), reason="no shared vectors beside this checkout")
def test_amplification_in_high_precision():
    cases = [case for case in json.loads(VECTORS.read_text())["cases"] if case["kind"] == "frame"]
    assert cases
    for case in cases:
        decoder = HarmonicFrameCode(case["n"], case["powers"]).decoder(case["responders"])
        assert decoder.noise_amplification == pytest.approx(float(case["noise_amplification"]), rel=1e-11)
        least = anyk.spectra.lower_bound(len(case["responders"]), len(case["powers"]))
        assert least == pytest.approx(float(case["lower_bound"]), rel=1e-15)


@pytest.mark.parametrize(
    ("share", "redundancy", "harmonic", "gaussian", "consecutive"),
    [
        (0.9, 2, 0.621, 1.235, None),
        (0.8, 2, 0.821, 1.636, 0.85),
        (0.7, 2, 1.215, 2.44, 2.3),
        (0.7, 3, 0.601, 0.909, None),
        (0.6, 3, 0.821, 1.245, None),
    ],
)
def test_table_of_fifty_blocks(share, redundancy, harmonic, gaussian, consecutive):
    m, n = 50, 50 * redundancy
    sets = survivors(n, round(share * n), 40)

    def measured(code):
        return [code.decoder(who).noise_amplification for who in sets]

    scattered = HarmonicFrameCode(n, random_powers(n, m, rng=0))
    assert np.mean(measured(scattered)) == pytest.approx(harmonic, rel=0.06)
    assert np.mean(measured(GaussianFrameCode(n, m, field="complex"))) == pytest.approx(gaussian, rel=0.06)
    np.testing.assert_allclose(measured(scattered), amplifications(scattered.generator, sets), rtol=1e-9)
    if consecutive:
        assert np.median(measured(HarmonicFrameCode(n, range(m)))) == pytest.approx(consecutive, rel=0.25)


# Random harmonic frames of m blocks are quieter than the law, by a few per cent near the threshold: as m grows, less.
@pytest.mark.parametrize(
    ("m", "redundancy", "share"),
    [(200, 1.535, 0.7), (100, 1.5, 0.8), (50, 1.5, 0.9), (100, 2, 0.6), *((50, 2, share) for share in (0.7, 0.8, 0.9))]
    + [(50, redundancy, share) for redundancy in (3, 5) for share in (0.6, 0.7, 0.8, 0.9)],
)
def test_random_powers_follow_manova(m, redundancy, share):
    n = round(m * redundancy)  # 307 workers are a prime number: of 300 some 210 may be singular
    k = round(share * n)
    each = [amplifications(HarmonicFrameCode(n, random_powers(n, m, seed)).generator, survivors(n, k, 12, seed))
            for seed in range(20)]  # fmt: skip
    assert np.mean(each) == pytest.approx(Manova(m / n, k / m).amplification, rel=0.03)


def test_optimized_powers_are_quieter():
    n, m, held_out = 100, 50, survivors(100, 70, 4000, seed=12345)
    code = HarmonicFrameCode(n, optimized_powers(n, m, rng=0))
    real = HarmonicFrameCode(n, optimized_powers(n, m, rng=0, real=True), real=True)
    assert real.generator.dtype == np.float64
    found = amplifications(code.generator, held_out)
    assert round(found.mean(), 3) <= 1.222
    pooled = np.concatenate(
        [amplifications(HarmonicFrameCode(n, random_powers(n, m, rng=s)).generator, held_out[:200]) for s in range(20)]
    )
    assert found.mean() < pooled.mean()
    assert np.percentile(found[:400], 99) < np.percentile(pooled, 99)
    assert np.mean(amplifications(real.generator, held_out[:400])) == pytest.approx(found[:400].mean(), rel=0.05)


def test_real_frames_are_as_loud_as_complex_ones():
    powers = random_powers(30, 12, rng=1, real=True)
    pair = [HarmonicFrameCode(30, powers, real=real) for real in (False, True)]
    for who in survivors(30, 20, 20):
        loud = [code.decoder(who).noise_amplification for code in pair]
        assert loud[1] == pytest.approx(loud[0], rel=1e-9)


# Too few --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda below: HarmonicFrameCode(13, difference_set(13, 4), below_threshold=below),
        lambda below: HarmonicFrameCode(12, [1, 2, 10, 11], real=True, below_threshold=below),
        lambda below: GaussianFrameCode(9, 4, field="complex", below_threshold=below),
        lambda below: VandermondeCode(9, 4, below_threshold=below),
        lambda below: ChebyshevCode(9, 4, below_threshold=below),
        lambda below: SystematicMDSCode(9, 4, below_threshold=below),
    ],
)
def test_fewer_answers_than_blocks(make):
    with pytest.raises(TooFewResponders, match=r"3 responders are fewer than the 4 blocks of .*'least-squares'"):
        make("raise").decoder([6, 0, 5])
    code = make("least-squares")
    decoder = code.decoder([6, 0, 5])
    np.testing.assert_allclose(decoder.matrix, np.linalg.pinv(code.generator[[6, 0, 5]]), atol=1e-12)
    assert code.approximates([6, 0, 5])
    x = np.arange(8.0).reshape(4, 2)
    with anyk.ThreadWorkers(code.workers) as workers, pytest.warns(ApproximationWarning, match="3 answers for 4"):
        result = anyk.map(
            np.negative,
            x,
            code=code,
            workers=workers,
            stop=anyk.All(),
            faults={i: anyk.Raise() for i in range(3, code.workers)},
        )
    expected = -np.linalg.pinv(code.generator[:3]) @ (code.generator[:3] @ x)
    np.testing.assert_allclose(result.value, expected, atol=1e-12)


@pytest.mark.parametrize(("n", "m", "size"), [(12, 4, 4), (12, 4, 6), (20, 5, 7), (60, 20, 24), (60, 20, 54)])
def test_singular_sets_are_told(n, m, size):
    powers = np.append(np.arange(0, n, n // m)[: m - 1], 1)
    who = singular_responders(n, powers, size)
    code = HarmonicFrameCode(n, powers)
    assert len(who) == size
    assert not code.sufficient(who)
    assert code.approximates(who)
    assert code.threshold > size
    with pytest.raises(TooFewResponders, match=rf"{size} responders have linearly dependent rows of rank below {m}"):
        code.decoder(who)
    rows = code.generator[who]
    estimate = HarmonicFrameCode(n, powers, below_threshold="least-squares").decoder(who)
    np.testing.assert_allclose(estimate.matrix, np.linalg.pinv(rows, rcond=1e-9), atol=1e-9)
    assert code.sufficient(range(code.threshold))


def test_estimates_do_not_invert_rounding():
    powers = np.arange(0, 100, 2)  # even ones at the 100th roots of unity: samples i and i + 50 are one
    code = HarmonicFrameCode(100, powers, below_threshold="least-squares")
    decoder = code.decoder([*range(30), *range(50, 80)])
    assert decoder.noise_amplification == pytest.approx(0.3)  # 30 of 50 blocks' combinations, each the mean of two
    assert decoder.condition < 1 + 1e-9


# Noise ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float64, np.complex128, np.float32])
@pytest.mark.parametrize(
    "noise",
    [AdditiveNoise(0.1), RelativeNoise(0.02), Quantized("float16"), Quantized("bfloat16"), Quantized("int8")],
    ids=repr,
)
def test_errors_are_as_expected(noise, dtype):
    rng = np.random.default_rng(0)
    code = HarmonicFrameCode(24, random_powers(24, 8, rng=2))
    decoder = code.decoder(rng.permutation(24)[:15])
    replies = rng.standard_normal((15, 4000)) * np.linspace(0.5, 2, 15)[:, None]
    if dtype == np.complex128:
        replies = replies + 1j * rng.standard_normal(replies.shape)
    replies = replies.astype(dtype)
    noisy = np.stack([noise(reply, np.random.default_rng(i)) for i, reply in enumerate(replies)])
    assert noisy.dtype == dtype
    expected = decoder.expected_error([math.sqrt(noise.variance(reply)) for reply in replies])
    found = np.sqrt(np.mean(np.abs((decoder @ noisy) - (decoder @ replies)) ** 2))
    assert found == pytest.approx(expected, rel=0.1)


def test_expected_error_of_equal_deviations():
    decoder = GaussianFrameCode(9, 4).decoder(range(7))
    expected = 0.3 * math.sqrt(decoder.noise_amplification)
    assert decoder.expected_error(0.3) == pytest.approx(expected)
    assert decoder.expected_error([0.3] * 7) == pytest.approx(expected)
    assert decoder.expected_error([0] * 7) == 0
    with pytest.raises(ValueError, match="7"):
        decoder.expected_error([0.3] * 6)


def test_lost_directions_are_refused_however_many_there_are():
    code = VandermondeCode(200, 120, "chebyshev")
    with pytest.raises(UnsafeDecode, match="residual"):
        code.decoder(range(200))


def test_spoilt_decoders_say_so_every_time():
    code = anyk.EntangledPolynomialCode(29, 3, 3, 3, basis="monomial")
    for _ in range(3):
        with pytest.warns(ApproximationWarning, match="rounding has spoilt the decoder") as caught:
            code.decoder(range(29))
        assert caught[0].filename == __file__


def test_codes_are_not_kept_alive():
    code = HarmonicFrameCode(100, range(0, 100, 2))
    code.sufficient(range(50))
    gone = weakref.ref(code)
    del code
    gc.collect()
    assert gone() is None


def test_decoders_are_kept_within_bounds():
    code = GaussianFrameCode(400, 300)
    rng = np.random.default_rng(0)
    for _ in range(80):
        code.decoder(rng.permutation(400)[:320])
    assert sum(matrix.nbytes for matrix in code._decoders[1].values()) <= 1 << 26


def test_noise_keeps_the_library_of_replies():
    torch = pytest.importorskip("torch")
    code = GaussianFrameCode(6, 3)
    with anyk.ThreadWorkers(6) as workers:
        result = anyk.map(torch.neg, torch.ones(3, 4), code=code, workers=workers, noise=AdditiveNoise(1e-3))
    assert isinstance(result.value, torch.Tensor)


def test_quantization_without_error():
    x = np.random.default_rng(0).standard_normal(100)
    half = x.astype(np.float16)
    assert Quantized("float16").variance(half) == 0
    np.testing.assert_array_equal(Quantized("float16")(half), half)
    for kind in ("float16", "bfloat16", "int8"):
        assert Quantized(kind).variance(np.zeros(3)) == 0
        assert Quantized(kind).variance(np.zeros((0, 2))) == 0
        assert Quantized(kind).variance(np.append(x, np.zeros(100))) == pytest.approx(
            Quantized(kind).variance(x) / (1 if kind == "int8" else 2)
        )
    assert RelativeNoise(0.1).variance([]) == 0
    np.testing.assert_array_equal(Quantized("bfloat16")(np.array([1e300, 1.0])), [np.inf, 1])


@pytest.mark.parametrize("noise", [AdditiveNoise(0.1), RelativeNoise(0.05), Quantized("int8"), Quantized("bfloat16")])
def test_noise_leaves_real_blocks_real(noise):
    code = HarmonicFrameCode(13, difference_set(13, 4))
    blocks, stop = np.random.default_rng(0).standard_normal((4, 3000)), anyk.FirstK(9)
    with anyk.ThreadWorkers(13) as workers:
        result = anyk.map(np.negative, blocks, code=code, workers=workers, noise=noise, stop=stop)
        turned = anyk.map(lambda block: 1j * block, blocks, code=code, workers=workers, noise=noise, stop=stop)
    assert result.value.dtype == np.float64
    assert np.abs(result.value + blocks).max() < 2
    assert turned.value.dtype == np.complex128


def test_noise_in_a_round():
    code = HarmonicFrameCode(20, random_powers(20, 8, rng=1, real=True), real=True)
    blocks = np.random.default_rng(0).standard_normal((8, 4000))
    with anyk.ThreadWorkers(20) as workers:
        for noise in (AdditiveNoise(0.1), RelativeNoise(0.05), Quantized("bfloat16"), Quantized("int8", seed=3)):
            result = anyk.map(np.negative, blocks, code=code, workers=workers, stop=anyk.All(), noise=noise)
            replies = -code.encode(blocks)[list(result.run.responders)]
            expected = result.decoder.expected_error([math.sqrt(noise.variance(reply)) for reply in replies])
            assert np.sqrt(np.mean((result.value + blocks) ** 2)) == pytest.approx(expected, rel=0.1)


def every_kind_of_float32():
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 32, 20000, dtype=np.uint32)
    halves = (rng.integers(0, 1 << 16, 2000, dtype=np.uint32) << 16) | 0x8000  # ties
    special = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-45, 3.3895e38, 3.4e38], dtype=np.float32)
    return np.concatenate([bits.view(np.float32), halves.view(np.float32), special])


def test_bfloat16_rounds_as_torch_does():
    torch = pytest.importorskip("torch")
    x = every_kind_of_float32()
    expected = torch.from_numpy(x).to(torch.bfloat16).to(torch.float32).numpy()
    found = Quantized("bfloat16")(x)
    np.testing.assert_array_equal(found, expected)
    finite = np.isfinite(x)
    np.testing.assert_array_equal(np.signbit(found[finite]), np.signbit(expected[finite]))
    wide = Quantized("bfloat16")(x[finite].astype(np.float64))
    np.testing.assert_array_equal(wide, expected[finite])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_float16_rounds_as_numpy_does(dtype):
    x = np.random.default_rng(0).standard_normal(1000).astype(dtype) * np.logspace(-9, 4, 1000).astype(dtype)
    np.testing.assert_array_equal(Quantized("float16")(x), x.astype(np.float16).astype(dtype))
    z = x[:500] + 1j * x[500:]
    np.testing.assert_array_equal(Quantized("float16")(z).imag, x[500:].astype(np.float16).astype(dtype))
    assert np.isinf(Quantized("float16")(np.array([65520.0], dtype=dtype))).all()


def test_int8_spreads_steps_up_to_the_largest():
    x = np.random.default_rng(0).standard_normal((50, 20))
    found = Quantized("int8")(x)
    step = np.abs(x).max() / 127
    np.testing.assert_allclose(found / step, np.round(x / step), atol=1e-9)
    assert len(np.unique(found)) <= 255
    np.testing.assert_array_equal(Quantized("int8")(np.zeros(3)), 0)
    tiny = np.array([1e-6, 5e-7], np.float16)  # a step that float16 does not have
    np.testing.assert_allclose(Quantized("int8")(tiny), tiny, atol=1e-7)


# In anyk.map ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.complex128, np.complex64, np.int64])
def test_real_blocks_come_back_real(dtype):
    code = HarmonicFrameCode(13, difference_set(13, 4))
    rng = np.random.default_rng(0)
    blocks = rng.integers(-9, 9, (4, 6)) + (1j * rng.integers(-9, 9, (4, 6)) if dtype in (complex, np.complex64) else 0)
    blocks = blocks.astype(dtype)
    mixing = rng.standard_normal((6, 3)).astype(np.float32)
    with anyk.ThreadWorkers(13) as workers:
        result = anyk.map(lambda block: block @ mixing, blocks, code=code, workers=workers)
        turned = anyk.map(lambda block: 1j * block, blocks, code=code, workers=workers)
    wanted = np.dtype(np.float64 if dtype == np.int64 else dtype)
    assert result.value.dtype == wanted
    close = 1e-4 if wanted.itemsize == 4 or dtype == np.complex64 else 1e-11
    np.testing.assert_allclose(result.value, blocks @ mixing, atol=close)
    assert np.iscomplexobj(turned.value)  # a function that makes real blocks complex
    np.testing.assert_allclose(turned.value, 1j * blocks, atol=close * 10)


# Bad arguments --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: HarmonicFrameCode(12, [0, 12]), ValueError, "powers must be distinct modulo the 12 workers, got"),
        (lambda: HarmonicFrameCode(12, []), ValueError, "powers must be a non-empty sequence of integers, got"),
        (lambda: HarmonicFrameCode(12, [0.5]), ValueError, "powers must be a non-empty sequence of integers, got"),
        (lambda: HarmonicFrameCode(2, [0, 1, 2]), ValueError, "3 blocks need at least as many workers, got workers=2"),
        (lambda: HarmonicFrameCode(2.0, [0]), TypeError, r"workers must be an integer, got 2\.0"),
        (lambda: HarmonicFrameCode(12, [0, 1], real=True), ValueError, r"negatives of \[1\] are missing"),
        (lambda: HarmonicFrameCode(3, [0, 1], [1, 1, 1j]), ValueError, "samples must be distinct"),
        (lambda: HarmonicFrameCode(3, [0, 1], [1, 2, 1j]), ValueError, "3 points of the unit circle.*moduli 1 to 2"),
        (lambda: HarmonicFrameCode(3, [0, 1], [1, 1j]), ValueError, r"3 points of the unit circle.*shape \(2,\)"),
        (
            lambda: HarmonicFrameCode(4, [0, 3, 4], [1, 1j, -1, -1j]),
            ValueError,
            "powers 0 and 4 agree, up to a factor, at all of these samples",
        ),
        (lambda: HarmonicFrameCode(2, [0], [1, -1], True), ValueError, "uniform samples: leave samples out"),
        (lambda: HarmonicFrameCode(2, [0], below_threshold="x"), ValueError, "below_threshold must be 'raise' or"),
        (lambda: GaussianFrameCode(3, 2, field="x"), ValueError, "field must be 'real' or 'complex', got 'x'"),
        (lambda: GaussianFrameCode(3, 2, rng=-1), TypeError, "rng must be a seed .* got -1"),
        (lambda: GaussianFrameCode(3, 2, below_threshold=None), ValueError, "below_threshold must be 'raise' or"),
        (lambda: SystematicMDSCode(3, 2, rng=None), TypeError, "rng must be a seed .* got None"),
        (lambda: SystematicMDSCode(2, 3), ValueError, "3 blocks need at least as many workers"),
        (lambda: VandermondeCode(3, 2, "x"), ValueError, "points must be one of chebyshev, equidistant, circle or an"),
        (lambda: VandermondeCode(3, 2, [0, 1, 2]), ValueError, "points must be distinct and none of them zero"),
        (lambda: VandermondeCode(3, 2, [1, 1, 2]), ValueError, "points must be distinct and none of them zero"),
        (lambda: VandermondeCode(3, 2, [1, 2]), ValueError, "points must be 3 finite numbers"),
        (lambda: VandermondeCode(2, 2, [1, np.inf]), ValueError, "points must be 2 finite numbers"),
        (lambda: ChebyshevCode(3, 2, "x"), ValueError, "below_threshold must be 'raise' or"),
        (lambda: ChebyshevCode(3, 0), ValueError, "blocks must be at least 1, got 0"),
        (lambda: AdditiveNoise(-1), ValueError, "deviation must be a finite number of at least 0, got -1"),
        (lambda: RelativeNoise(np.nan), ValueError, "epsilon must be a finite number of at least 0, got nan"),
        (lambda: RelativeNoise("1"), ValueError, "epsilon must be a finite number of at least 0, got '1'"),
        (lambda: AdditiveNoise(0.1, seed=-1), ValueError, "seed must be an integer of at least 0, got -1"),
        (lambda: Quantized("int8", seed=1.5), ValueError, r"seed must be an integer of at least 0, got 1\.5"),
        (lambda: ChebyshevCode(3, 2).decoder([0.9, 1]), TypeError, "cannot be interpreted as an integer"),
        (
            lambda: ChebyshevCode(3, 2).decoder([0, 1]).expected_error([1.0, 2.0, 3.0]),
            ValueError,
            r"one number or 2, one for each responder, got shape \(3,\)",
        ),
        (lambda: Quantized("int4"), ValueError, "kind must be float16, bfloat16 or int8, got 'int4'"),
        (lambda: anyk.map(abs, np.ones((2, 1)), noise=0.1), TypeError, r"noise must be a noise model such as"),
        (lambda: anyk.map(abs, np.ones((2, 1)), noise=Quantized), TypeError, r"noise must be a noise model such as"),
    ],
)
def test_bad_arguments(make, error, message):
    with pytest.raises(error, match=message):
        make()
