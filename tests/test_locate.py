"""Liars are found, exactly, whatever they send; honest workers never are; and what cannot be told is refused."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import anyk
from anyk import (
    CyclicCode,
    CyclicMDSCode,
    FractionalRepetitionCode,
    GraphCode,
    GroupCode,
    NullSpaceCode,
    PolynomialOfSumCode,
    TooManyErrors,
    UniversalPolynomialCode,
    cyclic_placement,
    locate,
    placement_by_speed,
    random_placement,
)
from anyk.codes.polynomial_of_sum import matrix_polynomial

Array = NDArray[Any]

D = 48
RINGS = [(10, 5, 2, 1), (20, 8, 3, 2), (30, 9, 3, 2), (50, 11, 3, 3), (100, 14, 3, 5)]
IDLE = placement_by_speed([0, 1, 1, 1, 2, 1, 1, 1, 1, 2, 0, 1], partitions=10, replicas=8)  # two hold nothing


@functools.cache
def ring(n: int, r: int, s: int, a: int) -> NullSpaceCode:
    return NullSpaceCode(cyclic_placement(n, n, r), s, a)


SMALL, MIDDLE = ring(10, 5, 2, 1), ring(20, 8, 3, 2)
OTHERS = {
    "random": NullSpaceCode(random_placement(24, 30, 9, 2), 2, 3),
    "random, many partitions": NullSpaceCode(random_placement(12, 40, 7, 1), 2, 2),
    "everybody holds everything": NullSpaceCode(np.ones((10, 4)), 2, 3),
    "idle workers": NullSpaceCode(IDLE, 3, 2),
    "universal": UniversalPolynomialCode(cyclic_placement(16, 16, 8), 3, 2),
    "universal, literal": UniversalPolynomialCode(cyclic_placement(10, 10, 7), 2, 2, nodes="literal"),
    "universal, circle": UniversalPolynomialCode(cyclic_placement(16, 16, 8), 3, 2, nodes="circle"),
    "universal, idle workers": UniversalPolynomialCode(IDLE, 3, 2),
    "groups": GroupCode(24, 24, 7, 2, 1),
    "unequal groups": GroupCode(23, 17, 9, 2, 2, sizes=(14, 9)),
    "copies": FractionalRepetitionCode(15, 15, 2, 1),
    "polynomial of the sum": PolynomialOfSumCode(cyclic_placement(14, 14, 11), [1, 0.5, -0.5], 1, 2),
}


def messages(code: anyk.GradientCode, rng: np.random.Generator) -> tuple[Array, Array]:
    """Honest messages, (workers, width), and what is to be recovered."""
    if isinstance(code, PolynomialOfSumCode):
        parts = rng.standard_normal((code.partitions, 4, 4)) / 4
        return code.encode(parts).reshape(code.workers, -1), matrix_polynomial(code.polynomial, parts.sum(axis=0))
    gradients = rng.standard_normal((code.partitions, D))
    return code.encode(gradients), gradients.sum(axis=0)


def error(code: anyk.GradientCode, y: Array, honest: Any, truth: Array) -> float:
    """Relative error of the sum from these workers."""
    chosen = sorted(honest)
    total = code.decoder(chosen).matrix @ y[chosen].astype(np.result_type(y, np.float64))
    return float(np.linalg.norm(total.ravel()[: truth.size] - truth.ravel()) / np.linalg.norm(truth))


def draw(code: anyk.GradientCode, rng: np.random.Generator, more: int = 0) -> tuple[list[int], list[int]]:
    """As few responders as suffice, and as many liars as the code is for (in every group), or more in one of them."""
    responders: list[int] = []
    liars: list[int] = []
    for index, component in enumerate(code.components):
        here = rng.permutation(component.members)[: len(component.members) - code.stragglers]
        responders += here.tolist()
        liars += here[: code.adversaries + (more if index == 0 else 0)].tolist()
    return sorted(responders), sorted(liars)


# What a liar sends in place of y; `stale` is his message of another round.
Lie = Callable[[Array, Array, np.random.Generator], Array]


def rms(y: Array) -> float:
    return float(np.sqrt(np.mean(np.abs(y.astype(np.complex128)) ** 2)))


def one_entry(y: Array, stale: Array, rng: np.random.Generator) -> Array:
    out = y.copy()
    out[rng.integers(out.size)] += rms(y)
    return out


LIES: dict[str, Lie] = {
    "gaussian": lambda y, stale, rng: 10 * rms(y) * rng.standard_normal(y.size),
    "sign flipped": lambda y, stale, rng: -y,
    "zeroed": lambda y, stale, rng: 0 * y,
    "stale": lambda y, stale, rng: stale,
    "scaled": lambda y, stale, rng: 1.7 * y,
    "constant": lambda y, stale, rng: np.ones(y.size),
    "one entry": one_entry,
    "huge": lambda y, stale, rng: 1e12 * rng.standard_normal(y.size),
    "vast": lambda y, stale, rng: (1e300 if np.finfo(y.dtype).eps < 1e-8 else 1e30) * rng.standard_normal(y.size),
    "tiny": lambda y, stale, rng: y + 1e-6 * rms(y) * rng.standard_normal(y.size),
}
ATTACKS = [*LIES, "mixed", "colluding", "all in one entry"]
AGREEING = ("sign flipped", "zeroed", "stale", "scaled", "constant")  # where all send the same, a + 1 outvote the rest


def attack(kind: str, y: Array, stale: Array, liars: list[int], rng: np.random.Generator) -> Array:
    out = y.copy()
    if kind in ("colluding", "all in one entry"):  # all add multiples of one vector
        vector = 3 * rng.standard_normal(y.shape[1])
        if kind != "colluding":
            vector[np.arange(y.shape[1]) != rng.integers(y.shape[1])] = 0
        out[liars] += np.outer(rng.standard_normal(len(liars)), vector).astype(y.dtype)
        return out
    for liar in liars:
        lie = LIES[str(rng.choice(list(LIES))) if kind == "mixed" else kind]
        out[liar] = lie(y[liar], stale[liar], rng).astype(y.dtype)
    return out


def rounds(code: anyk.GradientCode, kind: str, single: bool = False, more: int = 0, trials: int = 20) -> Any:
    """What is sent and should be recovered, by whom, and who lies."""
    rng = np.random.default_rng(1)
    for _ in range(trials):
        (y, truth), (stale, _) = messages(code, rng), messages(code, rng)
        if single:
            y, stale = (each.astype(np.complex64 if np.iscomplexobj(y) else np.float32) for each in (y, stale))
        responders, liars = draw(code, rng, more)
        yield attack(kind, y, stale, liars, rng), truth, responders, liars


# -- as many liars as a code is for -----------------------------------------------------------------------------------


RING_ATTACKS = [
    pytest.param(setting, kind, trials, id=f"{setting} {kind}")
    for setting in RINGS
    for kind in ATTACKS
    for trials in [20 if setting[0] < 100 or kind in [*LIES, "mixed"] else 1 if kind == "colluding" else 0]  # seconds
    if trials
]


@pytest.mark.parametrize(("setting", "kind", "trials"), RING_ATTACKS)
def test_liars_on_a_ring_are_located_and_the_sum_is_right(setting: tuple[int, ...], kind: str, trials: int) -> None:
    code = ring(*setting)
    for sent, truth, responders, liars in rounds(code, kind, trials=trials):
        assert locate(code, sent[responders], responders, seconds=200) == liars
        assert error(code, sent, set(responders) - set(liars), truth) < 1e-12


@pytest.mark.parametrize("kind", ATTACKS)
@pytest.mark.parametrize("name", OTHERS)
def test_liars_among_other_codes_are_located_and_the_sum_is_right(name: str, kind: str) -> None:
    code = OTHERS[name]
    for sent, truth, responders, liars in rounds(code, kind, trials=6):
        assert locate(code, sent[responders], responders) == liars
        assert error(code, sent, set(responders) - set(liars), truth) < 1e-7


def coarse(code: anyk.GradientCode) -> float:
    """What single precision may cost; the universal polynomial amplifies it."""
    return 1e-3 if isinstance(code, UniversalPolynomialCode) else 1e-5


CODES = {str(each): ring(*each) for each in RINGS[:4]} | OTHERS


@pytest.mark.parametrize("kind", ATTACKS)
@pytest.mark.parametrize("name", CODES)
def test_single_precision_hides_no_more_than_its_rounding(name: str, kind: str) -> None:
    code = CODES[name]
    for sent, truth, responders, liars in rounds(code, kind, single=True, trials=5):
        found = locate(code, sent[responders], responders)
        if kind not in ("tiny", "mixed"):
            assert found == liars
        assert error(code, sent, set(responders) - set(found), truth) < coarse(code)


def attempt(code: anyk.GradientCode, sent: Array, responders: list[int], **options: Any) -> list[int] | None:
    """Who is found; None if it is refused."""
    try:
        return locate(code, sent[responders], responders, **options)
    except TooManyErrors:
        return None


@pytest.mark.parametrize("kind", ATTACKS)
@pytest.mark.parametrize("name", CODES)
def test_one_liar_more_is_refused_or_does_no_harm(name: str, kind: str) -> None:
    code = CODES[name]
    if name == "copies" and kind in AGREEING:
        pytest.skip("a + 1 liars of 2a + 1 who send the same are the majority")
    for single in (False, True):
        found = []
        for sent, truth, responders, _ in rounds(code, kind, single, more=1, trials=4):
            found.append(attempt(code, sent, responders))
            if found[-1] is not None:
                assert error(code, sent, set(responders) - set(found[-1]), truth) < (coarse(code) if single else 1e-7)
        assert None in found or single


# -- lies that hide behind one another --------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", [(3, 2), (2, 2, 1), (4, 1), (3, 1, 1), (2, 1, 1, 1)], ids=str)
def test_groups_of_liars_that_collude_each_by_itself(groups: tuple[int, ...]) -> None:
    code = ring(*RINGS[-1])
    rng = np.random.default_rng(2)
    for _ in range(3):
        y, _ = messages(code, rng)
        responders, liars = draw(code, rng)
        for group in np.split(rng.permutation(liars), np.cumsum(groups)[:-1]):
            y[group] += np.outer(rng.standard_normal(len(group)), rng.standard_normal(y.shape[1]))
        assert locate(code, y[responders], responders) == liars


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [1.0, 1e4, 1e8])
@pytest.mark.parametrize("steps", [30, 300, 3000])
def test_a_lie_hardly_larger_than_rounding_beside_large_ones(dtype: Any, size: float, steps: float) -> None:
    code = ring(*RINGS[3])
    rng = np.random.default_rng(3)
    tolerance = 8 * float(np.finfo(dtype).eps) + 512 * float(np.finfo(np.float64).eps)
    for _ in range(5):
        y, truth = messages(code, rng)
        responders, (*large, small) = draw(code, rng)
        y = y.astype(dtype)
        y[large] += (size * rng.standard_normal((len(large), y.shape[1]))).astype(dtype)
        y[small] += (steps * np.finfo(dtype).eps * rng.standard_normal(y.shape[1])).astype(dtype)
        found = locate(code, y[responders], responders)
        assert set(large) <= set(found)
        assert error(code, y, set(responders) - set(found), truth) < 20 * tolerance


def test_one_wrong_entry_behind_a_huge_lie() -> None:
    rng = np.random.default_rng(4)
    code = ring(*RINGS[2])
    for _ in range(50):
        y, _ = messages(code, rng)
        responders, liars = draw(code, rng)
        y[liars[0], rng.integers(y.shape[1])] += 1.0
        y[liars[1]] = 1e12 * rng.standard_normal(y.shape[1])
        assert locate(code, y[responders], responders) == liars


@pytest.mark.parametrize("name", ["universal", "universal, circle", "groups", "random"])
@pytest.mark.parametrize("largest", [1e307, 1.7e308])
def test_the_largest_numbers_there_are(name: str, largest: float) -> None:
    code = OTHERS[name]
    for liar in range(code.workers):
        y, _ = messages(code, np.random.default_rng(liar))
        y[liar] = largest * (1 + 1j) if np.iscomplexobj(y) else largest
        assert locate(code, y, range(code.workers)) == [liar]


@pytest.mark.parametrize("scale", [1e-3, 1e-5, 1e-7])
def test_small_half_precision_messages_are_looked_at(scale: float) -> None:
    y, _ = messages(SMALL, np.random.default_rng(5))
    y = (scale * y).astype(np.float16)
    expected = [] if scale < 1e-6 else [3]  # all that is left of the smallest are a few steps of float16
    assert locate(SMALL, y, range(10)) == []
    y[3] = -y[3]
    assert locate(SMALL, y, range(10)) == expected


def test_a_liar_does_not_choose_how_exactly_he_is_looked_at() -> None:
    y, _ = messages(SMALL, np.random.default_rng(6))
    sent: list[Array] = list(y)
    sent[0] = (1.001 * y[0]).astype(np.float16)
    assert locate(SMALL, sent, range(10)) == [0]


# -- NaN, infinity, other shapes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("entries", [1, None])
def test_what_is_not_finite_is_a_lie(bad: float, entries: int | None) -> None:
    y, truth = messages(MIDDLE, np.random.default_rng(7))
    y[[4, 9], :entries] = bad
    assert locate(MIDDLE, y[:17], range(17)) == [4, 9]
    assert error(MIDDLE, y, set(range(17)) - {4, 9}, truth) < 1e-12


def test_what_is_not_finite_costs_one_check_and_a_lie_two() -> None:
    y, _ = messages(MIDDLE, np.random.default_rng(8))
    y[[1, 5, 11]] = np.nan  # instead of the three that need not answer
    y[[2, 3]] *= 1.5
    assert locate(MIDDLE, y, range(20)) == [1, 2, 3, 5, 11]


@pytest.mark.parametrize(
    "reply",
    [np.ones(D - 1), np.ones((D, 1)), np.ones(()), 3.0, None, "text", np.array(["a"]), np.array([{}]), np.ones(0)],
    ids=repr,
)
def test_a_reply_of_another_shape_in_a_list_is_a_lie(reply: Any) -> None:
    y, _ = messages(MIDDLE, np.random.default_rng(9))
    sent: list[Any] = list(y)
    sent[6] = reply
    sent[8] = -y[8]
    assert locate(MIDDLE, sent, range(20)) == [6, 8]
    assert locate(MIDDLE, dict(enumerate(sent)), range(20)) == [6, 8]


# -- honest messages --------------------------------------------------------------------------------------------------

SHAPES: dict[str, Callable[[np.random.Generator, int, int], Array]] = {
    "normal": lambda rng, k, d: rng.standard_normal((k, d)),
    "partitions of all scales": lambda rng, k, d: rng.standard_normal((k, d)) * 10.0 ** rng.uniform(-30, 30, (k, 1)),
    "columns of all scales": lambda rng, k, d: rng.standard_normal((k, d)) * 10.0 ** rng.uniform(-30, 30, (1, d)),
    "heavy tails": lambda rng, k, d: rng.standard_cauchy((k, d)),
    "sparse": lambda rng, k, d: rng.standard_normal((k, d)) * (rng.random((k, d)) < 0.1),
    "zeros": lambda rng, k, d: np.zeros((k, d)),
    "all alike": lambda rng, k, d: np.tile(rng.standard_normal(d), (k, 1)),
    "ramp": lambda rng, k, d: np.arange(k * d).reshape(k, d) / 7,
    "integers": lambda rng, k, d: rng.integers(-1000, 1000, (k, d)),
    "smallest": lambda rng, k, d: 1e-310 * rng.standard_normal((k, d)),
    "largest": lambda rng, k, d: 1e300 * rng.standard_normal((k, d)),
}
PRECISE = ("partitions of all scales", "columns of all scales", "smallest", "largest")  # need the range of float64


@st.composite
def codes(draw: st.DrawFn) -> anyk.GradientCode:
    a, s, m = draw(st.integers(0, 2)), draw(st.integers(0, 2)), draw(st.integers(1, 3))
    r = m + s + 2 * a
    n, k = draw(st.integers(r, r + 8)), draw(st.integers(1, 14))
    kind = draw(st.sampled_from(["cyclic", "random", "universal", "circle", "groups", "copies"]))
    if kind == "groups":
        return GroupCode(n, k, r, s, a)
    if kind == "copies":
        return FractionalRepetitionCode(n, k, s, a)
    if kind in ("cyclic", "random"):
        return NullSpaceCode((random_placement if kind == "random" else cyclic_placement)(n, k, r), s, a)
    return UniversalPolynomialCode(
        cyclic_placement(n, k, r), s, a, nodes="circle" if kind == "circle" else "interleaved"
    )


@settings(max_examples=150, deadline=None, derandomize=True)
@given(codes(), st.sampled_from(list(SHAPES)), st.sampled_from(["d", "f", "e", "D"]), st.integers(0, 99), st.data())
def test_honest_messages_accuse_nobody(
    code: anyk.GradientCode, shape: str, dtype: str, seed: int, data: st.DataObject
) -> None:
    rng = np.random.default_rng(seed)
    d = data.draw(st.sampled_from([1, 2, 13, 100]), "d")
    gradients = SHAPES[shape](rng, code.partitions, d)
    if shape in PRECISE and dtype in "fe":
        dtype = "d"
    if dtype == "D":
        gradients = gradients + 1j * SHAPES[shape](rng, code.partitions, d)
    if shape != "integers" or dtype != "d":
        gradients = np.clip(gradients.real, -10, 10).astype(dtype) if dtype == "e" else gradients.astype(dtype)
    sent = code.encode(gradients)
    responders = data.draw(st.permutations(range(code.workers)), "responders")
    responders = responders[: data.draw(st.integers(0, code.workers), "how many")]
    assert locate(code, sent[responders], responders) == []


def test_integer_replies() -> None:
    code = FractionalRepetitionCode(9, 9, 2)
    sent = np.tile(np.arange(12).reshape(3, 4), (3, 1))[np.argsort(np.tile(np.arange(3), 3), kind="stable")]
    assert locate(code, sent, range(9)) == []
    code = FractionalRepetitionCode(9, 9, 0, 1)
    sent[4] += 1
    assert locate(code, sent, range(9)) == [4]
    assert locate(code, sent.astype(np.uint8), range(9)) == [4]


@pytest.mark.parametrize("code", [ring(5, 4, 1, 1), ring(6, 5, 1, 1), ring(6, 4, 1, 1)], ids=repr)
def test_columns_that_nearly_cancel_by_chance_accuse_nobody(code: anyk.GradientCode) -> None:
    for seed in range(3):
        sent = code.encode(np.random.default_rng(seed).standard_normal((code.partitions, 200_000)))
        assert locate(code, sent, range(code.workers)) == []
        sent[2, 77_777] += 1e-6
        assert locate(code, sent, range(code.workers)) == [2]


@pytest.mark.parametrize(("n", "nodes"), [(16, "literal"), (40, "interleaved"), (30, "circle")])
def test_codes_with_inexact_matrices_accuse_nobody(n: int, nodes: str) -> None:
    code = UniversalPolynomialCode(cyclic_placement(n, n, 12 if n > 16 else 8), 3, 2, nodes=nodes)
    rng = np.random.default_rng(10)
    for _ in range(40):
        y, _ = messages(code, rng)
        responders = rng.permutation(n)[: rng.integers(n // 2, n + 1)]
        assert locate(code, y[responders], responders) == []


def test_messages_of_a_million_numbers() -> None:
    code = ring(8, 6, 2, 1)
    sent = code.encode(np.random.default_rng(11).standard_normal((8, 3_000_000)).astype(np.float32))
    assert sent.shape == (8, 1_500_000)
    assert locate(code, sent, range(8)) == []
    sent[5, -1] += 0.01
    assert locate(code, sent, range(8)) == [5]


@pytest.mark.parametrize("d", [1, 2])
def test_fewer_numbers_than_chunks(d: int) -> None:
    code = ring(20, 10, 3, 2)
    rng = np.random.default_rng(12)
    for _ in range(10):
        gradients = rng.standard_normal((20, d))
        sent = code.encode(gradients)
        assert sent.shape == (20, 1)
        responders, liars = draw(code, rng)
        sent[liars] += rng.standard_normal((2, 1))
        assert locate(code, sent[responders], responders) == liars
        assert error(code, sent, set(responders) - set(liars), gradients.sum(axis=0)) < 1e-12


def test_empty_messages_and_nobody() -> None:
    assert locate(SMALL, np.zeros((10, 0)), range(10)) == []
    assert locate(SMALL, [], []) == []
    assert locate(SMALL, {}, []) == []


# -- more and fewer answers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", RINGS[:4], ids=str)
@pytest.mark.parametrize("kind", ["gaussian", "one entry", "mixed", "colluding"])
def test_spare_answers(setting: tuple[int, ...], kind: str) -> None:
    code = ring(*setting)
    rng = np.random.default_rng(13)
    for _ in range(5):
        (y, _), (stale, _) = messages(code, rng), messages(code, rng)
        liars = np.sort(rng.permutation(code.workers)[: code.adversaries]).tolist()
        assert locate(code, attack(kind, y, stale, liars, rng), range(code.workers)) == liars


def test_with_fewer_answers_fewer_liars_can_be_told() -> None:
    y, truth = messages(MIDDLE, np.random.default_rng(14))
    y[2] *= -1
    for count, expected in ((17, [2]), (16, [2]), (15, [2]), (14, None), (13, [])):  # 4, 3, 2, 1 and no checks left
        assert attempt(MIDDLE, y, list(range(count))) == expected
    with pytest.raises(TooManyErrors, match="1 spare check cannot tell who"):
        locate(MIDDLE, y[:14], range(14))
    y[5] *= 3
    assert attempt(MIDDLE, y, list(range(17))) == [2, 5]
    assert attempt(MIDDLE, y, list(range(16))) is None
    assert error(MIDDLE, y, set(range(20)) - {2, 5}, truth) < 1e-12


def test_the_order_of_the_answers_does_not_matter() -> None:
    rng = np.random.default_rng(15)
    y, _ = messages(MIDDLE, rng)
    y[[3, 7]] *= 2
    for _ in range(5):
        responders = rng.permutation(20).tolist()
        assert locate(MIDDLE, y[responders], responders) == [3, 7]
        assert locate(MIDDLE, dict(enumerate(y)), iter(responders)) == [3, 7]
        assert locate(MIDDLE, list(y[responders]), np.array(responders)) == [3, 7]
    assert locate(MIDDLE, dict(enumerate(y)), [*range(14), 15, 16, 18]) == [3, 7]  # others are not looked at


def test_groups_are_judged_one_by_one() -> None:
    code = GroupCode(21, 21, 7, 2, 1)
    y, truth = messages(code, np.random.default_rng(16))
    liars = [group[0] for group in code.groups]
    y[liars] *= -1
    assert locate(code, y, range(21)) == liars
    assert error(code, y, set(range(21)) - set(liars), truth) < 1e-12
    y[code.groups[1][1]] += 1
    with pytest.raises(TooManyErrors, match=r"the replies of 7 workers contradict .* 1 liars set aside"):
        locate(code, y, range(21))


# -- what is refused --------------------------------------------------------------------------------------------------

BAD: dict[str, tuple[Callable[[Array], Any], type[Exception], str]] = {
    "a data code": (lambda y: locate(anyk.BerrutCode(10, 4), y, range(10)), TypeError, "gradient codes"),
    "no code": (lambda y: locate(None, y, range(10)), TypeError, "gradient codes"),  # type: ignore[arg-type]
    "twice": (lambda y: locate(SMALL, y[:3], [0, 1, 1]), ValueError, "distinct"),
    "beyond the last": (lambda y: locate(SMALL, y[:2], [0, 10]), ValueError, r"0\.\.9"),
    "negative": (lambda y: locate(SMALL, y[:2], [0, -1]), ValueError, r"0\.\.9"),
    "too few replies": (lambda y: locate(SMALL, y[:9], range(10)), ValueError, "10 responders need as many"),
    "too many replies": (lambda y: locate(SMALL, y, range(9)), ValueError, "9 responders need as many"),
    "a reply missing": (lambda y: locate(SMALL, {0: y[0]}, [0, 1]), KeyError, "1"),
    "tolerance 0": (lambda y: locate(SMALL, y, range(10), tolerance=0), ValueError, "tolerance must be"),
    "negative tolerance": (lambda y: locate(SMALL, y, range(10), tolerance=-1), ValueError, "tolerance must be"),
    "tolerance NaN": (lambda y: locate(SMALL, y, range(10), tolerance=np.nan), ValueError, "tolerance must be"),
    "infinite tolerance": (lambda y: locate(SMALL, y, range(10), tolerance=np.inf), ValueError, "tolerance must be"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case: str) -> None:
    call, kind, text = BAD[case]
    with pytest.raises(kind, match=text):
        call(SMALL.encode(np.ones((10, 3))))


@pytest.mark.parametrize(
    "code",
    [ring(10, 4, 2, 0), GroupCode(10, 10, 3, 2), CyclicCode(9, 3), CyclicMDSCode(9, 3), GraphCode(12, 6, 3, 2)],
    ids=repr,
)
def test_without_adversaries_a_contradiction_is_refused(code: anyk.GradientCode) -> None:
    y, _ = messages(code, np.random.default_rng(17))
    assert locate(code, y, range(code.workers)) == []
    y[4] *= 1.01
    with pytest.raises(TooManyErrors, match=r"the code is for adversaries=0.*common seed.*raise the tolerance"):
        locate(code, y, range(code.workers))


def test_without_spare_answers_nothing_can_be_told() -> None:
    code = ring(10, 4, 2, 0)
    y, _ = messages(code, np.random.default_rng(18))
    y[4] *= 2
    assert locate(code, y[:8], range(8)) == []


def test_tolerance_lets_unlike_hardware_pass_and_still_finds_a_liar() -> None:
    rng = np.random.default_rng(19)
    y, _ = messages(MIDDLE, rng)
    y *= 1 + 1e-7 * rng.standard_normal(y.shape)
    with pytest.raises(TooManyErrors, match="unlike hardware"):
        locate(MIDDLE, y, range(20))
    assert locate(MIDDLE, y, range(20), tolerance=1e-5) == []
    y[[3, 17]] *= 1.01
    assert locate(MIDDLE, y, range(20), tolerance=1e-5) == [3, 17]


def test_no_time_to_search() -> None:
    code = ring(*RINGS[-1])
    rng = np.random.default_rng(20)
    y, _ = messages(code, rng)
    responders, liars = draw(code, rng)
    sent = attack("colluding", y, y, liars, rng)
    with pytest.raises(TooManyErrors, match="the time for finding liars that collude is over"):
        locate(code, sent[responders], responders, seconds=0)
    sent = attack("gaussian", y, y, liars, rng)
    assert locate(code, sent[responders], responders, seconds=0) == liars  # no search


@pytest.mark.parametrize("kind", ["mixed", "colluding", "tiny"])
@pytest.mark.parametrize("more", [0, 1])
def test_the_outcome_is_always_the_same(kind: str, more: int) -> None:
    code = ring(*RINGS[3])
    for sent, _, responders, _ in rounds(code, kind, more=more, trials=3):
        outcomes = [attempt(code, sent, responders) for _ in range(5)]
        assert all(outcome == outcomes[0] for outcome in outcomes)
        assert (outcomes[0] is None) == bool(more)


def test_the_replies_are_left_as_they_are() -> None:
    y, _ = messages(SMALL, np.random.default_rng(21))
    y[3] *= 2
    y.flags.writeable = False
    assert locate(SMALL, y, range(10)) == [3]
