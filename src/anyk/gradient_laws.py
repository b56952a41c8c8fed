"""The laws of gradient codes, and those that codes of every kind obey; `anyk.testing.check_code` runs them."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from .codes.base import Code, Decoder
from .codes.gradient import GradientCode
from .codes.polynomial_of_sum import PolynomialOfSumCode
from .errors import ApproximationWarning, TooFewResponders, UnsafeDecode

__all__ = [
    "DTYPES",
    "EPS",
    "check_columns",
    "check_figures",
    "check_gradient_code",
    "check_promise",
    "check_refusals",
    "check_value",
    "close",
    "law",
    "sizes",
]

EPS = float(np.finfo(np.float64).eps)
DTYPES = (np.float16, np.float32, np.float64, np.complex64, np.complex128)
_REPR = 400  # characters
_ROUNDING = 256.0  # times eps, the size of the terms of a message, and the amplification: what exact sums may be off by
_NOTHING = 1e-9  # residual, relative to the root of the partitions, that is rounding; a thousand times as much is none

# --- Laws of every code -----------------------------------------------------------------------------------------------


def law(holds: Any, code: Code, text: str) -> None:
    """Raise `AssertionError` that names the code unless the law holds."""
    if not holds:
        raise AssertionError(f"{code!r}: {text}")


def close(actual: Any, expected: Any, tolerance: float | NDArray[Any]) -> bool:
    """Whether all entries agree within the tolerance."""
    return bool((np.abs(np.asarray(actual) - np.asarray(expected)) <= tolerance).all())


def sizes(code: Code, rng: np.random.Generator, trials: int) -> list[int]:
    """Sizes of responder sets: the extremes, those around the threshold, and random ones."""
    active = len(code.active)
    wanted = [1, code.threshold - 1, code.threshold, code.threshold + 1, active - 1, active]
    extremes = [size for size in wanted if 1 <= size <= active]
    return extremes + [int(size) for size in rng.integers(1, active + 1, trials)]


def _rows(code: Code, responders: Iterable[int]) -> NDArray[Any]:
    rows = code._rows(list(responders))
    return np.asarray(rows.toarray() if sparse.issparse(rows) else rows)


def check_matrix(code: Code, name: str, shape: tuple[int, int]) -> None:
    """A dense matrix of the code has the right shape and dtype, is finite, read-only and built once."""
    matrix = getattr(code, name)
    law(isinstance(matrix, np.ndarray), code, f"{name} must be a NumPy array, not {type(matrix).__name__}")
    law(matrix.shape == shape, code, f"{name} must have shape {shape}, not {matrix.shape}")
    law(matrix.dtype in (np.float64, np.complex128), code, f"{name} must be float64 or complex128: {matrix.dtype}")
    law(np.isfinite(matrix).all(), code, f"{name} must be finite")
    law(not matrix.flags.writeable, code, f"{name} must be read-only")
    law(getattr(code, name) is matrix, code, f"{name} must be built once and kept")


def check_promise(code: Code) -> None:
    """The threshold and `exact_for` are possible ones."""
    law(code.threshold >= 1, code, f"threshold must be at least 1, not {code.threshold}")
    promises = ("any", "polynomial", "linear", "nothing")
    law(code.exact_for in promises, code, f"exact_for must be one of {promises}, not {code.exact_for!r}")


def check_refusals(code: Code) -> None:
    """No responders, repeated and out-of-range ones are refused."""
    first = code.active[0]
    for responders, error, what in (
        ([], TooFewResponders, "no responders"),
        ([first, first], ValueError, "repeated responders"),
        ([first, code.workers], ValueError, "a responder beyond the last worker"),
        ([first, -1], ValueError, "a negative responder"),
    ):
        try:
            code.decoder(responders)
        except error:
            continue
        except Exception as other:
            raise AssertionError(f"{code!r}: {what} must raise {error.__name__}, not {other!r}") from other
        raise AssertionError(f"{code!r}: {what} must raise {error.__name__}")


def check_columns(code: Code, subset: list[int], decoder: Decoder, rng: np.random.Generator) -> None:
    """Columns of a decoder follow the responders asked for; it is cached, read-only, and keeps floating dtypes."""
    asked, matrix = tuple(subset), decoder.matrix
    law(decoder.responders == asked, code, f"the decoder of {asked} names the responders {decoder.responders}")
    law(matrix.shape == (len(code.target), len(asked)), code, f"a decoder of {len(asked)} has shape {matrix.shape}")
    law(matrix.dtype in (np.float64, np.complex128), code, f"decoders must be float64 or complex128: {matrix.dtype}")
    law(np.isfinite(matrix).all(), code, f"the decoder of {asked} is not finite")
    law(not matrix.flags.writeable, code, "decoders must be read-only")
    order = sorted(asked)
    plain = code.decoder(order)
    places = [order.index(worker) for worker in asked]
    law(np.array_equal(matrix, plain.matrix[:, places]), code, f"columns do not follow the responders {asked}")
    law(code.decoder(np.array(order)).matrix is plain.matrix, code, f"the decoder of {order} is not cached")

    replies = rng.uniform(-1, 1, (code.workers, 2))
    expected = matrix @ replies[list(asked)]
    tolerance = 8 * len(asked) * EPS * max(1.0, decoder.lebesgue_constant)
    for what, actual in (
        ("an array", decoder @ replies[list(asked)]),
        ("a list", decoder @ [replies[worker] for worker in asked]),
        ("a mapping", decoder @ dict(enumerate(replies))),
        ("sorted replies", plain @ replies[order]),
    ):
        law(close(actual, expected, tolerance), code, f"decoding {what} is not the decoder's matrix @ replies")
    small = replies[list(asked)] / max(1.0, decoder.lebesgue_constant)  # within the range of float16
    for dtype in DTYPES:
        kept = (decoder @ small.astype(dtype)).dtype
        wanted = np.result_type(dtype, np.complex64) if np.iscomplexobj(matrix) else np.dtype(dtype)
        law(kept == wanted, code, f"decoding turned {np.dtype(dtype)} into {kept} instead of {wanted}")


def check_figures(code: Code, decoder: Decoder) -> None:
    """The figures of a decoder are those of its matrix."""
    matrix, used = decoder.matrix, _rows(code, decoder.responders)
    values = np.linalg.svd(matrix, compute_uv=False)
    values = values[values > values[0] * max(matrix.shape) * EPS]
    off = np.abs(matrix @ used - code.target)
    for name, expected in (
        ("residual", np.sqrt((off**2).sum())),
        ("worst_residual", np.sqrt((off**2).sum(axis=1)).max()),
        ("noise_amplification", (np.abs(matrix) ** 2).sum() / len(code.target)),
        ("lebesgue_constant", max(np.abs(row).sum() for row in matrix)),
        ("condition", values.max() / values.min() if len(values) else 1.0),
    ):
        actual = getattr(decoder, name)
        law(isinstance(actual, float), code, f"{name} must be a float, not {type(actual).__name__}")
        terms = max(1.0, float(np.abs(used).max())) * np.sqrt(used.shape[1])
        tolerance = 1e-9 * abs(expected) + 64 * code.workers * EPS * decoder.lebesgue_constant * terms
        law(abs(actual - expected) <= tolerance, code, f"{name} is {actual}, but its matrix says {expected}")


def check_value(code: Code) -> None:
    """A code is a frozen, hashable value: equal to its copies, and none the worse for pickling."""
    name = dataclasses.fields(code)[0].name  # type: ignore[arg-type]
    try:
        setattr(code, name, getattr(code, name))
    except dataclasses.FrozenInstanceError:
        pass
    else:
        raise AssertionError(f"{code!r}: codes must be frozen dataclasses, but {name} could be set")
    law(code != object(), code, "equal to an unrelated object")
    for how, twin in (
        ("dataclasses.replace", dataclasses.replace(code)),  # type: ignore[type-var]
        ("copy.copy", copy.copy(code)),
        ("copy.deepcopy", copy.deepcopy(code)),
        ("pickle", pickle.loads(pickle.dumps(code))),
    ):
        law(type(twin) is type(code) and twin == code, code, f"not equal to what {how} makes of it")
        law(hash(twin) == hash(code), code, f"its hash differs from that of what {how} makes of it")
        everybody = range(code.workers)
        law(np.array_equal(_rows(twin, everybody), _rows(code, everybody)), code, f"{how} changes the generator")
        for field in dataclasses.fields(code):  # type: ignore[arg-type]
            value = getattr(twin, field.name)
            frozen = not (isinstance(value, np.ndarray) and value.flags.writeable)
            law(frozen, code, f"{field.name} can be written to in what {how} makes of it")
        responders = code.active
        if code.sufficient(responders):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", ApproximationWarning)
                    same = np.array_equal(twin.decoder(responders).matrix, code.decoder(responders).matrix)
            except UnsafeDecode:
                continue
            law(same, code, f"{how} changes the decoder")


# --- Laws of gradient codes -------------------------------------------------------------------------------------------


def check_gradient_code(code: GradientCode, rng: np.random.Generator, trials: int) -> None:
    """Check that a gradient code keeps the laws on which the rest of anyk relies: see `anyk.testing.check_code`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ApproximationWarning)  # a code may say that it is coarse
        _matrices(code)
        _encoding(code, rng)
        check_refusals(code)
        _components(code, rng)
        _sufficiency(code, rng, trials)
        for size in sizes(code, rng, trials):
            subset = rng.permutation(np.array(code.active))[:size].tolist()
            decoder = _decoder(code, subset)
            if decoder is None:
                continue
            check_columns(code, subset, decoder, rng)
            check_figures(code, decoder)
            _residual(code, decoder)
        if not code.approximate:
            _exactness(code, rng, trials)
            _more_is_quieter(code, rng, trials)
        check_value(code)
        text = repr(code)
        law(len(text) <= _REPR and "\n" not in text, code, f"repr must be one line of at most {_REPR} characters")


def _matrices(code: GradientCode) -> None:
    workers, partitions, m = code.workers, code.partitions, code.chunks
    placement = code.placement
    law(placement.dtype == np.bool_, code, f"placement must be boolean, not {placement.dtype}")
    law(placement.shape == (workers, partitions), code, f"placement must have shape {(workers, partitions)}")
    law(not placement.flags.writeable, code, "placement must be read-only")
    copies = int(placement.sum(axis=0).min())
    law(copies >= 1, code, "every partition must be held by somebody")
    law(
        list(code.active) == np.flatnonzero(placement.any(axis=1)).tolist(), code, "active must list who holds anything"
    )
    law(m >= 1, code, f"chunks must be at least 1, not {m}")
    for name in ("coefficients", "generator", "target"):
        matrix, shape = getattr(code, name), (m if name == "target" else workers, partitions * m)
        law(matrix.shape == shape, code, f"{name} must have shape {shape}, not {matrix.shape}")
        law(matrix.dtype in (np.float64, np.complex128), code, f"{name} must be float64 or complex128: {matrix.dtype}")
        law(getattr(code, name) is matrix, code, f"{name} must be built once and kept")
        entries = matrix.data if sparse.issparse(matrix) else matrix
        law(np.isfinite(entries).all(), code, f"{name} must be finite")
        if isinstance(matrix, np.ndarray):
            law(not matrix.flags.writeable, code, f"{name} must be read-only")
    law(sparse.issparse(code.coefficients), code, "coefficients must be a SciPy sparse array")
    generator = code.coefficients.toarray()
    if isinstance(code.generator, np.ndarray):
        law(np.array_equal(code.generator, generator), code, "generator must be the coefficients")
    foreign = np.repeat(~placement, m, axis=1)
    law(not generator[foreign].any(), code, "generator must be zero where the placement says nothing is held")
    ones = np.array([[column % m == j for column in range(partitions * m)] for j in range(m)], dtype=np.float64)
    law(np.array_equal(code.target, ones), code, "target must be ones over the partitions, chunk by chunk")
    for worker in (0, workers - 1):
        held, share = code.share(worker)
        here = np.flatnonzero(placement[worker])
        same = np.array_equal(held, here) and np.array_equal(share, generator[worker].reshape(-1, m)[here])
        law(same, code, f"share({worker}) must be what the placement and the generator say")
    check_promise(code)
    most = copies - code.stragglers - 2 * code.adversaries
    law(code.approximate or m <= most, code, f"{m} chunks are more than r - s - 2a = {most}: no exact code has as many")


def _gradients(code: GradientCode, rng: np.random.Generator, d: int) -> NDArray[Any]:
    """Partial results: (partitions, d), or square matrices for a polynomial of their sum."""
    if isinstance(code, PolynomialOfSumCode):
        return np.asarray(rng.standard_normal((code.partitions, 3, 3)) / np.sqrt(3 * code.partitions))
    return rng.standard_normal((code.partitions, d))


def _pieces(code: GradientCode, gradients: NDArray[Any]) -> NDArray[Any]:
    """The chunks of all gradients, padded with zeros: (partitions * chunks, width)."""
    padded = np.pad(gradients, ((0, 0), (0, -gradients.shape[1] % code.chunks)))
    return padded.reshape(code.partitions * code.chunks, -1)


def _messages(code: GradientCode, gradients: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """What encode must return, in double precision, and the size of the terms that rounding is relative to."""
    generator = code.coefficients.toarray()
    if isinstance(code, PolynomialOfSumCode):
        mixed, sizes = np.tensordot(generator, gradients, 1), np.tensordot(abs(generator), abs(gradients), 1)
        terms = [(c, np.linalg.matrix_power(mixed, p), np.linalg.matrix_power(sizes, p)) for p, c in _powers(code)]
        total = np.sum([c * power for c, power, _ in terms], axis=0)
        return total, np.asarray((code.degree + 1) * np.sum([abs(c) * size for c, _, size in terms], axis=0))
    pieces = _pieces(code, gradients)
    return generator @ pieces, np.abs(generator) @ np.abs(pieces)


def _powers(code: PolynomialOfSumCode) -> list[tuple[int, float]]:
    return list(enumerate(code.polynomial))


def _total(code: GradientCode, gradients: NDArray[Any]) -> NDArray[Any]:
    """What decoding must return: (chunks, ...)."""
    if isinstance(code, PolynomialOfSumCode):
        whole = gradients.sum(axis=0)
        return np.asarray(np.sum([[c * np.linalg.matrix_power(whole, p)] for p, c in _powers(code)], axis=0))
    total = gradients.sum(axis=0)
    return np.pad(total, (0, -len(total) % code.chunks)).reshape(code.chunks, -1)


def _encoding(code: GradientCode, rng: np.random.Generator) -> None:
    m = code.chunks
    for d in {3 * m, 3 * m + 1, max(m - 1, 1)}:  # chunks that divide d, that do not, and that outnumber it
        real = _gradients(code, rng, d)
        real = real / max(1.0, float(_messages(code, real)[1].max()))  # within the range of float16
        shape = (code.workers, *real.shape[1:]) if real.ndim == 3 else (code.workers, -(-d // m))
        for dtype in DTYPES:
            gradients = (real + 1j * real[::-1] if np.issubdtype(dtype, np.complexfloating) else real).astype(dtype)
            messages = code.encode(gradients)
            expected, terms = _messages(code, gradients.astype(np.result_type(dtype, np.float64)))
            wanted = np.result_type(dtype, np.complex64) if np.iscomplexobj(expected) else np.dtype(dtype)
            law(messages.dtype == wanted, code, f"encode turned {np.dtype(dtype)} into {messages.dtype}, not {wanted}")
            law(messages.shape == shape, code, f"encode of {d} entries returned shape {messages.shape}, not {shape}")
            eps, least = float(np.finfo(dtype).eps), float(np.finfo(dtype).tiny)
            tolerance = 8 * eps * np.abs(expected) + 8 * code.partitions * m * EPS * terms + least
            law(close(messages, expected, tolerance), code, f"encode is not generator @ chunks in {np.dtype(dtype)}")
    for whole in (np.int8, np.int64, np.bool_):
        gradients = np.ones_like(real, dtype=whole)
        messages = code.encode(gradients)
        law(messages.dtype == code.coefficients.dtype, code, f"encode turned {np.dtype(whole)} into {messages.dtype}")
        expected, terms = _messages(code, gradients.astype(np.float64))
        tolerance = 8 * code.partitions * m * EPS * terms
        law(close(messages, expected, tolerance), code, f"encode is wrong for {np.dtype(whole)}")
    for wrong in (real[:, 0], np.concatenate([real, real[:1]])):
        try:
            code.encode(wrong)
        except ValueError:
            continue
        raise AssertionError(f"{code!r}: encode must refuse gradients of shape {wrong.shape}")


def _decoder(code: GradientCode, responders: Iterable[int]) -> Decoder | None:
    """The decoder, or None where the code refuses."""
    responders = list(responders)
    try:
        return code.decoder(responders)
    except UnsafeDecode:
        return None
    except TooFewResponders as error:
        text = f"{sorted(responders)} should suffice but cannot be decoded: {error}"
        law(not code.sufficient(responders), code, text)
        return None


def _components(code: GradientCode, rng: np.random.Generator) -> None:
    """The checks vanish on all messages, and the reader is what they leave of the sum."""
    gradients = _gradients(code, rng, 3 * code.chunks + 1)
    messages, terms = _messages(code, gradients)
    shape = (code.workers, -1)
    messages, terms = messages.reshape(shape), terms.reshape(shape)
    read: Any = 0
    seen: list[int] = []
    spare = len(code.active)
    for part in code.components:
        members, checks, reader = part.members, part.checks, part.reader
        seen += members.tolist()
        law(members.tolist() == sorted(set(members.tolist())), code, "members of a component must rise")
        law(checks.shape[1:] == members.shape, code, f"checks of {len(members)} members have shape {checks.shape}")
        law(reader.shape == (code.chunks, len(members)), code, f"a reader has shape {reader.shape}")
        unit = close(checks @ checks.conj().T, np.eye(len(checks)), 1e-10)
        law(unit, code, "checks of a component must be orthonormal")
        tolerance = 1e-9 * max(1.0, float(np.abs(reader).max()))
        law(close(reader @ checks.conj().T, 0, tolerance), code, "the reader must be orthogonal to the checks")
        size = float(terms[members].max())
        law(close(checks @ messages[members], 0, 1e-9 * max(size, 1e-300)), code, "messages must obey the checks")
        spare = min(spare, len(checks))
        read = read + reader @ messages[members]
    law(sorted(seen) == list(code.active), code, "every active worker must belong to exactly one component")
    if not code.approximate:
        least = code.stragglers + 2 * code.adversaries
        law(spare >= least, code, f"s + 2a = {least} checks are needed to do without as many workers, got {spare}")
        everybody = _decoder(code, code.active)
        if everybody is not None:
            tolerance = 1e-9 * max(1.0, everybody.lebesgue_constant) * float(terms.max())
            right = close(read, _total(code, gradients).reshape(code.chunks, -1), tolerance)
            law(right, code, "the readers must read the sum off all messages")


def _sufficiency(code: GradientCode, rng: np.random.Generator, trials: int) -> None:
    """Sufficient sets stay sufficient as they grow, arrive in any order, can be decoded, and exactly so."""
    law(not code.sufficient([]), code, "no answers must not suffice")
    for _ in range(trials):
        order = rng.permutation(np.array(code.active)).tolist()
        enough = False
        for size in range(1, len(order) + 1):
            now = code.sufficient(order[:size])
            law(now or not enough, code, f"{order[: size - 1]} suffices, but not with {order[size - 1]}")
            reached = size >= code.threshold
            law(
                now or not reached,
                code,
                f"{size} active workers reach the threshold {code.threshold} without sufficing",
            )
            same = code.sufficient(iter(order[:size][::-1])) == now
            law(same, code, "sufficient must not depend on the arrival order")
            if now and not enough:
                decoder = _decoder(code, order[:size])
                if decoder is not None and not code.approximate:
                    text = f"{order[:size]} suffices, but the sum is only approximate"
                    law(_relative(decoder) <= max(_NOTHING, _rounding(code, decoder)), code, text)
            enough = now


def _relative(decoder: Decoder) -> float:
    return decoder.residual / float(np.sqrt(decoder.code.target.shape[1]))


def _rounding(code: GradientCode, decoder: Decoder) -> float:
    """What rounding leaves of the residual, in the same units."""
    largest = float(np.linalg.norm(code.coefficients.toarray(), axis=1).max())  # missing workers' rows count, too
    return _ROUNDING * EPS * largest * float(np.linalg.norm(decoder.matrix)) / float(np.sqrt(code.partitions))


def _residual(code: GradientCode, decoder: Decoder) -> None:
    relative, coarse = _relative(decoder), code.approximates(decoder.responders)
    text = f"approximates({decoder.responders}) is {coarse}, but the residual is {decoder.residual:.2g}"
    law(isinstance(coarse, bool), code, f"approximates must be a bool, not {type(coarse).__name__}")
    law(not coarse or relative > _NOTHING, code, text)
    law(coarse or relative < max(1000 * _NOTHING, _rounding(code, decoder)), code, text)


def _missing(code: GradientCode, size: int, rng: np.random.Generator, trials: int) -> Iterator[list[int]]:
    """Sets of missing workers: random, contiguous, and what exchanging one for another makes of the noisiest."""
    active = np.array(code.active)
    sets = [rng.permutation(active)[:size].tolist() for _ in range(trials)]
    starts = rng.permutation(len(active))[:trials]
    sets += [active[(start + np.arange(size)) % len(active)].tolist() for start in starts]
    yield from sets
    if not 0 < size < len(active):
        return

    def noise(missing: list[int]) -> float:
        decoder = _decoder(code, set(code.active) - set(missing))
        return -1.0 if decoder is None else decoder.noise_amplification

    worst = max(sets, key=noise)
    level = noise(worst)
    for _ in range(2):
        for place in rng.permutation(size).tolist():
            others = rng.permutation(np.setdiff1d(active, worst))[:4].tolist()
            tried = [[*worst[:place], other, *worst[place + 1 :]] for other in others]
            best = max(tried, key=noise)
            if noise(best) > level:
                worst, level = best, noise(best)
    yield worst


def _exactness(code: GradientCode, rng: np.random.Generator, trials: int) -> None:
    """Any threshold answers give the sum, and so do those that are left once as many liars and more were dropped."""
    gradients = _gradients(code, rng, 3 * code.chunks + 1)
    _, terms = _messages(code, gradients)
    messages, total = code.encode(gradients), _total(code, gradients)
    s, a = code.stragglers, code.adversaries
    law(len(code.active) > s + 2 * a, code, f"{len(code.active)} workers cannot do without s + 2a = {s + 2 * a}")
    for size in sorted({s, s + a, s + 2 * a}):
        for missing in _missing(code, size, rng, trials):
            responders = sorted(set(code.active) - set(missing))
            law(size > s or code.sufficient(responders), code, f"without {missing} the others must suffice")
            try:
                decoder = code.decoder(responders)
            except UnsafeDecode:
                continue
            except TooFewResponders as error:
                raise AssertionError(f"{code!r}: without {sorted(missing)} the others must decode: {error}") from error
            gain = max(1.0, float(np.linalg.norm(decoder.matrix, axis=1).max()))
            tolerance = _ROUNDING * EPS * gain * float(terms.max()) * np.sqrt(code.workers)
            worst = float(np.abs(decoder @ messages[responders] - total).max())
            text = f"without {sorted(missing)} the sum is off by {worst:.2g}, above the {tolerance:.2g} of rounding"
            law(worst <= tolerance, code, text)


def _more_is_quieter(code: GradientCode, rng: np.random.Generator, trials: int) -> None:
    """A further answer never makes the sum noisier: the weights are the quietest."""
    for _ in range(trials):
        order = rng.permutation(np.array(code.active)).tolist()
        before = np.inf
        for size in range(len(order) - code.stragglers - 2 * code.adversaries, len(order) + 1):
            decoder = _decoder(code, order[:size])
            if decoder is None:
                continue
            now = decoder.noise_amplification
            text = f"noise amplification rises from {before:.6g} to {now:.6g} with the answer of {order[size - 1]}"
            law(now <= before * (1 + 1e-6), code, text)
            before = now
