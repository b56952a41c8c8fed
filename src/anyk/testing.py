"""The laws that every code and every engine obeys, to be run on your own as well as on ours.

>>> from anyk import BerrutCode, CyclicCode, PolynomialCode
>>> check_code(BerrutCode(workers=12, blocks=4))
>>> check_code(CyclicCode(workers=12, stragglers=4))
>>> check_code(PolynomialCode(workers=12, p=3, n=3))

A broken law raises `AssertionError` that names the code, the law, and what was found.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .codes.base import Code, DataCode, Decoder
from .codes.gradient import GradientCode
from .codes.product import ProductCode
from .engine_laws import check_workers
from .errors import ApproximationWarning, TooFewResponders, UnsafeDecode
from .gradient_laws import (
    DTYPES,
    EPS,
    check_columns,
    check_figures,
    check_gradient_code,
    check_matrix,
    check_promise,
    check_refusals,
    check_value,
    close,
    law,
    sizes,
)
from .product_laws import check_product_code

__all__ = ["check_code", "check_workers"]

# --- Laws of data codes -----------------------------------------------------------------------------------------------


def check_code(
    code: Code,
    *,
    function: Callable[[NDArray[Any]], NDArray[Any]] | None = None,
    rng: int | np.random.Generator = 0,
    trials: int = 10,
) -> None:
    """Check that a code keeps the laws on which the rest of anyk relies.

    1. G and T have the right shapes and dtypes, are finite, read-only and built once.
    2. ``encode`` is G applied across the blocks; floating dtypes are kept, integers become float64.
    3. Columns of a decoder follow the responders asked for; arrival order changes nothing; decoders are cached.
    4. No responders, repeated and out-of-range ones are refused.
    5. Any `threshold` active workers are `sufficient`, sufficient sets decode, or are refused by
       `UnsafeDecode` where rounding eats the answer; larger ones stay sufficient.
    6. Sufficient sets recover what `exact_for` promises, up to rounding times the noise amplification.
    7. The figures of a decoder are those of its matrix.
    8. A code is a frozen, hashable value: equal to its copies, and none the worse for pickling.

    Data codes:

    9. Below the threshold a code raises `TooFewResponders`, unless it is approximate, the set happens to be sufficient
       (and then the answer is exact), or the code has a field ``below_threshold`` that is not ``"raise"``.
    10. Where the rows of G sum to one, so do those of D: constants are recovered.

    Gradient codes:

    9. G is zero where the placement says so, T is ones chunk by chunk, and ``share`` tells each worker its part of G.
    10. The checks of `components` vanish on all messages, and their readers read off the sum.
    11. Exact sums survive `stragglers` missing workers and, liars once dropped, 2 `adversaries` more: random sets,
        contiguous ones, and the noisiest that exchanges find. `UnsafeDecode` is an answer, a wrong sum is not.
    12. A further answer never makes an exact sum noisier.
    13. `approximates` tells the sets that leave a residual.

    Product codes, with 1 for U and V (``left``, ``right``), too, and 2 for ``encode`` of both operands:

    9. Below the threshold a code raises `TooFewResponders`, unless ``below_threshold`` asks for least squares;
       `approximates` tells those sets. At the threshold `UnsafeDecode`, or an `ApproximationWarning`, is an answer.
    10. D picks every block of the product out of the workers' bilinear forms, whether just enough answer or more.
    11. Products of whole numbers are recovered from the encoded operands up to rounding times the Lebesgue constant.

    Parameters
    ----------
    code : DataCode, GradientCode or ProductCode
    function : callable, optional
        A function of one block, recovered exactly by this data code, that replaces the ones chosen from
        ``code.exact_for``: a random linear map, a random polynomial of ``code.degree``, or tanh.
    rng : int or numpy.random.Generator
    trials : int
        Random responder sets per law.

    Raises
    ------
    AssertionError
        On the first broken law.
    TypeError
        If `code` is none of these, or `function` is given for another than a data code.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ApproximationWarning)  # a warning is an answer, and may come with every decoder
        _check_code(code, function, np.random.default_rng(rng), trials)


def _check_code(
    code: Code,
    function: Callable[[NDArray[Any]], NDArray[Any]] | None,
    generator: np.random.Generator,
    trials: int,
) -> None:
    if isinstance(code, GradientCode):
        if function is not None:
            raise TypeError("gradient codes recover sums whatever the function: function= is for data codes")
        check_gradient_code(code, generator, trials)
        return
    if isinstance(code, ProductCode):
        if function is not None:
            raise TypeError("product codes recover products of matrices: function= is for data codes")
        check_product_code(code, generator, trials)
        return
    if not isinstance(code, DataCode):
        raise TypeError(f"check_code checks data, gradient and product codes, got {type(code).__name__}")
    _matrices(code)
    _encoding(code, generator)
    check_refusals(code)
    for size in sizes(code, generator, trials):
        subset = generator.permutation(np.array(code.active))[:size].tolist()
        _thresholds(code, subset)
        try:
            decoder = code.decoder(subset)
        except (TooFewResponders, UnsafeDecode):  # the latter is an answer: rounding has eaten this system
            continue
        check_columns(code, subset, decoder, generator)
        _constants(code, decoder)
        check_figures(code, decoder)
        if code.sufficient(subset) and (len(subset) >= code.threshold or not _estimates(code)):
            _exactness(code, decoder, function, generator)
    check_value(code)


def _estimates(code: DataCode) -> bool:
    """Whether fewer answers than the threshold may yield an approximation."""
    return code.approximate or getattr(code, "below_threshold", "raise") != "raise"


def _matrices(code: DataCode) -> None:
    for name, shape in (("generator", (code.workers, code.blocks)), ("target", (code.blocks, code.blocks))):
        check_matrix(code, name, shape)
    law(np.array_equal(code.target, np.eye(code.blocks)), code, "target of a data code must be the identity")
    check_promise(code)
    nonzero = np.flatnonzero(np.any(code.generator != 0, axis=1)).tolist()
    law(list(code.active) == nonzero, code, "active must list the non-zero rows of the generator")


def _encoding(code: DataCode, rng: np.random.Generator) -> None:
    gain = max(1.0, float(np.abs(code.generator).sum(axis=1).max()))
    real = rng.uniform(-1, 1, (code.blocks, 3, 2)) / gain
    for dtype in DTYPES:
        blocks = (real + 1j * real[::-1] if np.issubdtype(dtype, np.complexfloating) else real).astype(dtype)
        coded = code.encode(blocks)
        expected = np.tensordot(code.generator, blocks.astype(np.result_type(dtype, np.float64)), axes=1)
        wanted = np.result_type(dtype, np.complex64) if np.iscomplexobj(code.generator) else np.dtype(dtype)
        law(coded.dtype == wanted, code, f"encode turned {np.dtype(dtype)} into {coded.dtype} instead of {wanted}")
        law(coded.shape == expected.shape, code, f"encode returned shape {coded.shape}, not {expected.shape}")
        info = np.finfo(dtype)
        tolerance = 8 * code.blocks * float(info.eps) + float(info.tiny)
        law(close(coded, expected, tolerance), code, f"encode is not generator @ blocks in {np.dtype(dtype)}")
    whole = rng.integers(-9, 10, (code.blocks, 3))
    coded = code.encode(whole)
    law(coded.dtype == code.generator.dtype, code, f"encode turned integers into {coded.dtype}, not float64")
    law(close(coded, code.generator @ whole, 64 * code.blocks * EPS * gain), code, "encode is wrong for integers")
    listed = code.encode(list(whole))
    law(close(listed, coded, 64 * code.blocks * EPS * gain), code, "a list of blocks is encoded unlike their array")


def _thresholds(code: DataCode, subset: list[int]) -> None:
    sufficient = code.sufficient(subset)
    law(sufficient == code.sufficient(iter(subset[::-1])), code, "sufficient must not depend on the arrival order")
    if len(subset) >= code.threshold:
        law(sufficient, code, f"{len(subset)} active workers reach the threshold {code.threshold} but do not suffice")
    if sufficient:
        law(code.sufficient(code.active), code, f"{subset} suffices, but all active workers do not")
    try:
        code.decoder(subset)
    except UnsafeDecode:
        law(sufficient, code, f"{subset} does not suffice, which is no UnsafeDecode")
    except TooFewResponders as error:
        law(not sufficient, code, f"{subset} should suffice but cannot be decoded: {error}")
    else:
        law(sufficient or _estimates(code), code, f"{subset} does not suffice, so it must raise TooFewResponders")


def _constants(code: DataCode, decoder: Decoder) -> None:
    asked, matrix = decoder.responders, decoder.matrix
    used = code.generator[list(asked)]
    if (code.sufficient(asked) or code.approximate) and close(used.sum(axis=1), 1, 16 * code.blocks * EPS):
        off = np.abs(matrix.sum(axis=1) - 1).max()
        tolerance = 64 * len(asked) * EPS * max(1.0, decoder.lebesgue_constant)
        law(off <= tolerance, code, f"rows of the decoder of {asked} miss the sum one by {off:.2g}")


def _exactness(
    code: DataCode,
    decoder: Decoder,
    function: Callable[[NDArray[Any]], NDArray[Any]] | None,
    rng: np.random.Generator,
) -> None:
    degree = int(getattr(code, "degree", 1)) if code.exact_for == "polynomial" else 1
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
    tolerance = 64 * (code.blocks + degree**2) * EPS * max(1.0, decoder.lebesgue_constant) * scale
    worst = float(np.abs((decoder @ replies) - expected).max())
    law(
        worst <= tolerance,
        code,
        f"{decoder.responders} should recover {code.exact_for!r} functions exactly, but the error is {worst:.2g}, "
        f"above the {tolerance:.2g} of rounding",
    )
