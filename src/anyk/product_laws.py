"""The laws of product codes; `anyk.testing.check_code` runs them."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .blocks import coded_dtype
from .codes.base import Decoder
from .codes.product import ProductCode, kron_rows
from .errors import ApproximationWarning, TooFewResponders, UnsafeDecode
from .gradient_laws import (
    EPS,
    check_columns,
    check_figures,
    check_matrix,
    check_refusals,
    check_value,
    close,
    law,
    sizes,
)

__all__ = ["check_product_code"]

_ROUNDING = 64.0  # times eps, the unknowns, the Lebesgue constant and the size of the replies


def check_product_code(code: ProductCode, rng: np.random.Generator, trials: int) -> None:
    """Check that a product code keeps the laws on which the rest of anyk relies: see `anyk.testing.check_code`."""
    _matrices(code)
    _encoding(code, rng)
    check_refusals(code)
    spoilt: set[tuple[int, ...]] = set()  # what the code itself said that rounding has eaten
    for size in sizes(code, rng, trials):
        subset = rng.permutation(np.array(code.active))[:size].tolist()
        decoder = _decoder(code, subset, spoilt)
        if decoder is None:
            continue
        check_columns(code, subset, decoder, rng)
        check_figures(code, decoder)
        if len(subset) >= code.threshold and tuple(sorted(subset)) not in spoilt:
            _algebra(code, decoder)
            _products(code, decoder, rng)
    check_value(code)


def _matrices(code: ProductCode) -> None:
    splits = code.splits
    positive = len(splits) == 3 and all(isinstance(split, int) and split >= 1 for split in splits)
    law(positive, code, f"splits must be three positive integers, not {splits}")
    p, m, n = splits
    law(code.threshold >= 1, code, f"threshold must be at least 1, not {code.threshold}")
    law(code.exact_for == "bilinear", code, f"exact_for must be 'bilinear', not {code.exact_for!r}")
    law(not code.approximate, code, "product codes are exact, so approximate must be False")
    unknowns = code.generator.shape[-1]
    for name, shape in (
        ("left", (code.workers, p * m)),
        ("right", (code.workers, m * n)),
        ("generator", (code.workers, unknowns)),
        ("target", (p * n, unknowns)),
    ):
        check_matrix(code, name, shape)
    busy = np.any(code.left != 0, axis=1) & np.any(code.right != 0, axis=1)
    law(list(code.active) == np.flatnonzero(busy).tolist(), code, "active must list the workers with two operands")


def _encoding(code: ProductCode, rng: np.random.Generator) -> None:
    p, m, n = code.splits
    for dtype in (np.int64, np.float32, np.float64, np.complex128):
        a, b = (_whole(rng, (count, *shape), dtype) for count, shape in ((p * m, (2, 3)), (m * n, (3, 1))))
        for name, coded, matrix, blocks in zip("ab", code.encode(a, b), (code.left, code.right), (a, b), strict=True):
            expected = np.tensordot(matrix, blocks.astype(np.result_type(dtype, np.float64)), axes=1)
            law(coded.shape == expected.shape, code, f"encode({name}) has shape {coded.shape}, not {expected.shape}")
            wanted = coded_dtype(matrix, np.dtype(np.float64 if dtype is np.int64 else dtype))
            law(coded.dtype == wanted, code, f"encode({name}) turned {np.dtype(dtype)} into {coded.dtype}")
            size = np.tensordot(np.abs(matrix), np.abs(blocks), axes=1)
            eps = max(EPS, float(np.finfo(coded.dtype).eps))
            same = close(coded, expected, 8 * len(blocks) * eps * size)
            law(same, code, f"encode({name}) is not its encoder @ blocks in {np.dtype(dtype)}")
        for wrong in ((np.concatenate([a, a[:1]]), b), (a, b[1:]), (a[0, 0, 0], b)):
            try:
                code.encode(*wrong)
            except ValueError:
                continue
            raise AssertionError(f"{code!r}: encode must refuse operands of shapes {[x.shape for x in wrong]}")


def _decoder(code: ProductCode, subset: list[int], spoilt: set[tuple[int, ...]]) -> Decoder | None:
    """The decoder, or None where there is none; refusals must be those that the threshold tells."""
    enough = len(subset) >= code.threshold
    estimates = code.below_threshold != "raise"
    sufficient = code.sufficient(subset)
    law(sufficient == code.sufficient(iter(subset[::-1])), code, "sufficient must not depend on the arrival order")
    text = f"{len(subset)} active workers reach the threshold {code.threshold} but do not suffice"
    law(sufficient or not enough, code, text)
    law(not sufficient or code.sufficient(code.active), code, f"{subset} suffices, but all active workers do not")
    coarse = code.approximates(subset)
    law(coarse == (not enough), code, f"approximates({subset}) is {coarse}; the threshold is {code.threshold}")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            decoder = code.decoder(subset)
        except UnsafeDecode:
            law(enough, code, f"{subset} is below the threshold, which is no UnsafeDecode")
            return None
        except TooFewResponders as error:
            law(not enough, code, f"{subset} should suffice but cannot be decoded: {error}")
            law(not estimates, code, f"{subset} must be estimated by least squares: {error}")
            return None
    law(enough or estimates, code, f"{subset} does not suffice, so it must raise TooFewResponders")
    if any(issubclass(each.category, ApproximationWarning) for each in caught):
        spoilt.add(tuple(sorted(subset)))
    return decoder


def _algebra(code: ProductCode, decoder: Decoder) -> None:
    """D picks sum_j A_ij B_jl out of the workers' bilinear forms, coefficient by coefficient."""
    p, m, n = code.splits
    who = list(decoder.responders)
    forms = kron_rows(code.left[who], code.right[who])
    inner, rows, columns = np.eye(m), np.eye(p), np.eye(n)
    expected = np.einsum("ab,cd,ef->aebcdf", rows, inner, columns).reshape(p * n, p * m * m * n)
    gain = np.abs(decoder.matrix).sum(axis=1, keepdims=True) * max(1.0, float(np.abs(forms).max()))
    off = np.abs(decoder.matrix @ forms - expected)
    tolerance = _ROUNDING * code.generator.shape[1] * EPS * np.maximum(1.0, gain)
    text = f"the decoder of {who} reads products off by {off.max():.2g}, above the {tolerance.max():.2g} of rounding"
    law((off <= tolerance).all(), code, text)


def _products(code: ProductCode, decoder: Decoder, rng: np.random.Generator) -> None:
    """Every block of a product of whole numbers, from the replies that encoded operands give."""
    p, m, n = code.splits
    who = list(decoder.responders)
    for dtype in (np.float64, np.complex128):
        a, b = _whole(rng, (p * m, 2, 3), dtype), _whole(rng, (m * n, 3, 2), dtype)
        left, right = code.encode(a, b)
        expected = np.einsum("ijrs,jlst->ilrt", a.reshape(p, m, 2, 3), b.reshape(m, n, 3, 2)).reshape(p * n, 2, 2)
        size = np.tensordot(abs(code.left[who]), abs(a), 1) @ np.tensordot(abs(code.right[who]), abs(b), 1)
        scale = max(float(size.max()), float(np.abs(expected).max()), 1.0)
        tolerance = _ROUNDING * code.generator.shape[1] * EPS * max(1.0, decoder.lebesgue_constant) * scale
        worst = float(np.abs((decoder @ (left @ right)[who]) - expected).max())
        text = f"the product from {who} is off by {worst:.2g}, above the {tolerance:.2g} of rounding"
        law(worst <= tolerance, code, text)


def _whole(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Integers between -9 and 9, complex ones where the dtype is."""
    real = rng.integers(-9, 10, shape)
    if np.issubdtype(dtype, np.complexfloating):
        return np.asarray(real + 1j * rng.integers(-9, 10, shape), dtype)
    return real.astype(dtype)
