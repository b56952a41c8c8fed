"""The laws that every code and every engine obeys, to be run on your own as well as on ours.

>>> from anyk import BerrutCode
>>> check_code(BerrutCode(workers=12, blocks=4))

A broken law raises `AssertionError` that names the code, the law, and what was found.
"""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .codes.base import DataCode, Decoder
from .engine_laws import check_workers
from .errors import TooFewResponders

__all__ = ["check_code", "check_workers"]

# --- Laws of data codes -----------------------------------------------------------------------------------------------

_EPS = float(np.finfo(np.float64).eps)
_DTYPES = (np.float16, np.float32, np.float64, np.complex64, np.complex128)


def check_code(
    code: DataCode,
    *,
    function: Callable[[NDArray[Any]], NDArray[Any]] | None = None,
    rng: int | np.random.Generator = 0,
    trials: int = 10,
) -> None:
    """Check that a data code keeps the laws on which the rest of anyk relies.

    1. G and T have the right shapes and dtypes, are finite, read-only and built once.
    2. ``encode`` is G applied across the blocks; floating dtypes are kept, integers become float64.
    3. Columns of a decoder follow the responders asked for; arrival order changes nothing; decoders are cached.
    4. No responders, repeated and out-of-range ones are refused.
    5. Any `threshold` active workers are `sufficient`, sufficient sets decode, larger ones stay sufficient.
    6. Sufficient sets recover what `exact_for` promises, up to rounding times the Lebesgue constant.
    7. Below the threshold a code raises `TooFewResponders`, unless it is approximate, the set happens to be sufficient
       (and then the answer is exact), or the code has a field ``below_threshold`` that is not ``"raise"``.
    8. Where the rows of G sum to one, so do those of D: constants are recovered.
    9. The figures of a decoder are those of its matrix.
    10. A code is a frozen, hashable value: equal to its copies, and none the worse for pickling.

    Parameters
    ----------
    code : DataCode
    function : callable, optional
        A function of one block, recovered exactly by this code, that replaces the ones chosen from ``code.exact_for``:
        a random linear map, a random polynomial of ``code.degree``, or tanh.
    rng : int or numpy.random.Generator
    trials : int
        Random responder sets per law.

    Raises
    ------
    AssertionError
        On the first broken law.
    TypeError
        If `code` is not a `DataCode`.
    """
    if not isinstance(code, DataCode):
        raise TypeError(f"check_code checks instances of DataCode, got {type(code).__name__}")
    generator = np.random.default_rng(rng)
    _matrices(code)
    _encoding(code, generator)
    _refusals(code)
    for size in _sizes(code, generator, trials):
        subset = generator.permutation(np.array(code.active))[:size].tolist()
        _thresholds(code, subset)
        try:
            decoder = code.decoder(subset)
        except TooFewResponders:
            continue
        _columns(code, subset, decoder, generator)
        _figures(code, decoder)
        if code.sufficient(subset) and (len(subset) >= code.threshold or not _estimates(code)):
            _exactness(code, decoder, function, generator)
    _values(code)


def _law(holds: Any, code: DataCode, text: str) -> None:
    if not holds:
        raise AssertionError(f"{code!r}: {text}")


def _sizes(code: DataCode, rng: np.random.Generator, trials: int) -> list[int]:
    """Sizes of responder sets: the extremes, those around the threshold, and random ones."""
    active = len(code.active)
    wanted = [1, code.threshold - 1, code.threshold, code.threshold + 1, active - 1, active]
    sizes = [size for size in wanted if 1 <= size <= active]
    return sizes + [int(size) for size in rng.integers(1, active + 1, trials)]


def _estimates(code: DataCode) -> bool:
    """Whether fewer answers than the threshold may yield an approximation."""
    return code.approximate or getattr(code, "below_threshold", "raise") != "raise"


def _close(actual: Any, expected: Any, tolerance: float | NDArray[Any]) -> bool:
    return bool((np.abs(np.asarray(actual) - np.asarray(expected)) <= tolerance).all())


def _matrices(code: DataCode) -> None:
    for name, shape in (("generator", (code.workers, code.blocks)), ("target", (code.blocks, code.blocks))):
        matrix = getattr(code, name)
        _law(isinstance(matrix, np.ndarray), code, f"{name} must be a NumPy array, not {type(matrix).__name__}")
        _law(matrix.shape == shape, code, f"{name} must have shape {shape}, not {matrix.shape}")
        _law(matrix.dtype in (np.float64, np.complex128), code, f"{name} must be float64 or complex128: {matrix.dtype}")
        _law(np.isfinite(matrix).all(), code, f"{name} must be finite")
        _law(not matrix.flags.writeable, code, f"{name} must be read-only")
        _law(getattr(code, name) is matrix, code, f"{name} must be built once and kept")
    _law(np.array_equal(code.target, np.eye(code.blocks)), code, "target of a data code must be the identity")
    _law(code.threshold >= 1, code, f"threshold must be at least 1, not {code.threshold}")
    promises = ("any", "polynomial", "linear", "nothing")
    _law(code.exact_for in promises, code, f"exact_for must be one of {promises}, not {code.exact_for!r}")
    nonzero = np.flatnonzero(np.any(code.generator != 0, axis=1)).tolist()
    _law(list(code.active) == nonzero, code, "active must list the non-zero rows of the generator")


def _encoding(code: DataCode, rng: np.random.Generator) -> None:
    gain = max(1.0, float(np.abs(code.generator).sum(axis=1).max()))
    real = rng.uniform(-1, 1, (code.blocks, 3, 2)) / gain
    for dtype in _DTYPES:
        blocks = (real + 1j * real[::-1] if np.issubdtype(dtype, np.complexfloating) else real).astype(dtype)
        coded = code.encode(blocks)
        expected = np.tensordot(code.generator, blocks.astype(np.result_type(dtype, np.float64)), axes=1)
        wanted = np.result_type(dtype, np.complex64) if np.iscomplexobj(code.generator) else np.dtype(dtype)
        _law(coded.dtype == wanted, code, f"encode turned {np.dtype(dtype)} into {coded.dtype} instead of {wanted}")
        _law(coded.shape == expected.shape, code, f"encode returned shape {coded.shape}, not {expected.shape}")
        info = np.finfo(dtype)
        tolerance = 8 * code.blocks * float(info.eps) + float(info.tiny)
        _law(_close(coded, expected, tolerance), code, f"encode is not generator @ blocks in {np.dtype(dtype)}")
    whole = rng.integers(-9, 10, (code.blocks, 3))
    coded = code.encode(whole)
    _law(coded.dtype == code.generator.dtype, code, f"encode turned integers into {coded.dtype}, not float64")
    _law(_close(coded, code.generator @ whole, 64 * code.blocks * _EPS * gain), code, "encode is wrong for integers")
    listed = code.encode(list(whole))
    _law(_close(listed, coded, 64 * code.blocks * _EPS * gain), code, "a list of blocks is encoded unlike their array")


def _refusals(code: DataCode) -> None:
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


def _thresholds(code: DataCode, subset: list[int]) -> None:
    sufficient = code.sufficient(subset)
    _law(sufficient == code.sufficient(iter(subset[::-1])), code, "sufficient must not depend on the arrival order")
    if len(subset) >= code.threshold:
        _law(sufficient, code, f"{len(subset)} active workers reach the threshold {code.threshold} but do not suffice")
    if sufficient:
        _law(code.sufficient(code.active), code, f"{subset} suffices, but all active workers do not")
    try:
        code.decoder(subset)
    except TooFewResponders as error:
        _law(not sufficient, code, f"{subset} should suffice but cannot be decoded: {error}")
    else:
        _law(sufficient or _estimates(code), code, f"{subset} does not suffice, so it must raise TooFewResponders")


def _columns(code: DataCode, subset: list[int], decoder: Decoder, rng: np.random.Generator) -> None:
    asked, matrix = tuple(subset), decoder.matrix
    _law(decoder.responders == asked, code, f"the decoder of {asked} names the responders {decoder.responders}")
    _law(matrix.shape == (code.blocks, len(asked)), code, f"a decoder of {len(asked)} has shape {matrix.shape}")
    _law(matrix.dtype in (np.float64, np.complex128), code, f"decoders must be float64 or complex128: {matrix.dtype}")
    _law(np.isfinite(matrix).all(), code, f"the decoder of {asked} is not finite")
    _law(not matrix.flags.writeable, code, "decoders must be read-only")
    order = sorted(asked)
    plain = code.decoder(order)
    places = [order.index(worker) for worker in asked]
    _law(np.array_equal(matrix, plain.matrix[:, places]), code, f"columns do not follow the responders {asked}")
    _law(code.decoder(np.array(order)).matrix is plain.matrix, code, f"the decoder of {order} is not cached")

    replies = rng.uniform(-1, 1, (code.workers, 2))
    expected = matrix @ replies[list(asked)]
    tolerance = 8 * len(asked) * _EPS * max(1.0, decoder.lebesgue_constant)
    for what, actual in (
        ("an array", decoder @ replies[list(asked)]),
        ("a list", decoder @ [replies[worker] for worker in asked]),
        ("a mapping", decoder @ dict(enumerate(replies))),
        ("sorted replies", plain @ replies[order]),
    ):
        _law(_close(actual, expected, tolerance), code, f"decoding {what} is not the decoder's matrix @ replies")
    small = replies[list(asked)] / max(1.0, decoder.lebesgue_constant)  # within the range of float16
    for dtype in _DTYPES:
        kept = (decoder @ small.astype(dtype)).dtype
        wanted = np.result_type(dtype, np.complex64) if np.iscomplexobj(matrix) else np.dtype(dtype)
        _law(kept == wanted, code, f"decoding turned {np.dtype(dtype)} into {kept} instead of {wanted}")

    used = code.generator[list(asked)]
    if (code.sufficient(asked) or code.approximate) and _close(used.sum(axis=1), 1, 16 * code.blocks * _EPS):
        off = np.abs(matrix.sum(axis=1) - 1).max()
        tolerance = 64 * len(asked) * _EPS * max(1.0, decoder.lebesgue_constant)
        _law(off <= tolerance, code, f"rows of the decoder of {asked} miss the sum one by {off:.2g}")


def _figures(code: DataCode, decoder: Decoder) -> None:
    matrix, used = decoder.matrix, code.generator[list(decoder.responders)]
    values = np.linalg.svd(matrix, compute_uv=False)
    values = values[values > values[0] * max(matrix.shape) * _EPS]
    for name, expected in (
        ("residual", np.sqrt((np.abs(matrix @ used - code.target) ** 2).sum())),
        ("noise_amplification", (np.abs(matrix) ** 2).sum() / code.blocks),
        ("lebesgue_constant", max(np.abs(row).sum() for row in matrix)),
        ("condition", values.max() / values.min()),
    ):
        actual = getattr(decoder, name)
        _law(isinstance(actual, float), code, f"{name} must be a float, not {type(actual).__name__}")
        tolerance = 1e-9 * abs(expected) + 64 * code.workers * _EPS * decoder.lebesgue_constant
        _law(abs(actual - expected) <= tolerance, code, f"{name} is {actual}, but its matrix says {expected}")


def _exactness(
    code: DataCode,
    decoder: Decoder,
    function: Callable[[NDArray[Any]], NDArray[Any]] | None,
    rng: np.random.Generator,
) -> None:
    degree = int(getattr(code, "degree", 1))
    if function is None and code.exact_for == "nothing":
        return
    if function is None and code.exact_for == "linear":
        mixing = rng.uniform(-1, 1, (3, 4))
        function = lambda block: block @ mixing  # noqa: E731
    elif function is None and code.exact_for == "polynomial":
        coefficients = rng.uniform(-1, 1, degree + 1)
        function = lambda block: np.polynomial.chebyshev.chebval(block, coefficients)  # noqa: E731
    elif function is None:
        function = np.tanh
    blocks = rng.uniform(-1, 1, (code.blocks, 3))
    replies = np.stack([np.asarray(function(block)) for block in code.encode(blocks)])[list(decoder.responders)]
    expected = np.stack([np.asarray(function(block)) for block in blocks])
    # Rounding of a coded block grows by about f', at most the square of the degree times the largest reply.
    scale = max(1.0, float(np.abs(replies).max()), float(np.abs(expected).max()))
    tolerance = 64 * (code.blocks + degree**2) * _EPS * max(1.0, decoder.lebesgue_constant) * scale
    worst = float(np.abs((decoder @ replies) - expected).max())
    _law(
        worst <= tolerance,
        code,
        f"{decoder.responders} should recover {code.exact_for!r} functions exactly, but the error is {worst:.2g}, "
        f"above the {tolerance:.2g} of rounding",
    )


def _values(code: DataCode) -> None:
    name = dataclasses.fields(code)[0].name  # type: ignore[arg-type]
    try:
        setattr(code, name, getattr(code, name))
    except dataclasses.FrozenInstanceError:
        pass
    else:
        raise AssertionError(f"{code!r}: codes must be frozen dataclasses, but {name} could be set")
    _law(code != object(), code, "equal to an unrelated object")
    for how, twin in (
        ("dataclasses.replace", dataclasses.replace(code)),  # type: ignore[type-var]
        ("copy.copy", copy.copy(code)),
        ("copy.deepcopy", copy.deepcopy(code)),
        ("pickle", pickle.loads(pickle.dumps(code))),
    ):
        _law(type(twin) is type(code) and twin == code, code, f"not equal to what {how} makes of it")
        _law(hash(twin) == hash(code), code, f"its hash differs from that of what {how} makes of it")
        _law(np.array_equal(twin.generator, code.generator), code, f"{how} changes the generator")
        responders = code.active
        if code.sufficient(responders):
            same = np.array_equal(twin.decoder(responders).matrix, code.decoder(responders).matrix)
            _law(same, code, f"{how} changes the decoder")
