"""Noise models: what finite precision or an analog device does to replies, applied by the workers.

A model is called with an array and a random generator that is the worker's own for that round; `variance` predicts the
mean square error of an entry, which `Decoder.noise_amplification` carries to the result (paper 3, section V).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import optree
from numpy.typing import ArrayLike, NDArray

from .. import blocks as _blocks

__all__ = ["AdditiveNoise", "Noise", "Quantized", "RelativeNoise", "run_noisy"]

Array = NDArray[Any]


@runtime_checkable
class Noise(Protocol):
    """What `anyk.map`, `anyk.matmul` and `CodedOperator` take as ``noise=``."""

    @property
    def seed(self) -> int:
        """Where the workers' random generators start."""
        ...

    def __call__(self, reply: Array, rng: np.random.Generator) -> Array:
        """The reply, spoilt."""
        ...

    def variance(self, reply: ArrayLike) -> float:
        """Mean square error of an entry of such a reply."""
        ...


def _floating(reply: ArrayLike) -> Array:
    array = np.asarray(reply)
    return array if array.dtype.kind in "fc" else array.astype(np.float64)


def _normal(array: Array, rng: np.random.Generator) -> Array:
    """Of unit variance; complex entries have half of it in each part."""
    if np.iscomplexobj(array):
        return np.asarray((rng.standard_normal(array.shape) + 1j * rng.standard_normal(array.shape)) / np.sqrt(2))
    return np.asarray(rng.standard_normal(array.shape))


def _check_seed(seed: Any) -> None:
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise ValueError(f"seed must be an integer of at least 0, got {seed!r}")


def _check_size(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not 0 <= value < np.inf:
        raise ValueError(f"{name} must be a finite number of at least 0, got {value!r}")


@dataclass(frozen=True)
class AdditiveNoise:
    """Independent normal noise of standard deviation `deviation` on every entry (paper 3, equation (6)).

    Examples
    --------
    >>> import anyk
    >>> code = anyk.GaussianFrameCode(workers=40, blocks=10, rng=1)
    >>> with anyk.ThreadWorkers(40) as workers:
    ...     noisy = {"noise": AdditiveNoise(0.1), "stop": anyk.FirstK(30)}
    ...     result = anyk.map(np.negative, np.ones((10, 500)), code=code, workers=workers, **noisy)
    >>> error = float(np.sqrt(np.mean((result.value + 1) ** 2)))
    >>> round(error / result.expected_error, 1)
    1.0
    """

    deviation: float
    seed: int = 0

    def __post_init__(self) -> None:
        _check_size("deviation", self.deviation)
        _check_seed(self.seed)

    def __call__(self, reply: Array, rng: np.random.Generator) -> Array:
        """Add it."""
        array = _floating(reply)
        return np.asarray(array + self.deviation * _normal(array, rng)).astype(array.dtype)

    def variance(self, reply: ArrayLike) -> float:
        """The same for any reply."""
        return self.deviation**2


@dataclass(frozen=True)
class RelativeNoise:
    """Normal noise of `epsilon` times each entry: rounding, or an analog multiplier's gain error."""

    epsilon: float
    seed: int = 0

    def __post_init__(self) -> None:
        _check_size("epsilon", self.epsilon)
        _check_seed(self.seed)

    def __call__(self, reply: Array, rng: np.random.Generator) -> Array:
        """Multiply by 1 + epsilon z."""
        array = _floating(reply)
        real = rng.standard_normal(array.shape)
        return np.asarray(array * (1 + self.epsilon * real)).astype(array.dtype)

    def variance(self, reply: ArrayLike) -> float:
        """epsilon^2 times the mean square."""
        array = _floating(reply)
        return float(self.epsilon**2 * np.mean(np.abs(array) ** 2)) if array.size else 0.0


@dataclass(frozen=True)
class Quantized:
    """Replies rounded to a short format, and sent in their own dtype: float16, bfloat16, or int8 on a scale of its own.

    int8 spreads 255 steps evenly up to the largest entry of each array. float16 overflows from 65,520 on, bfloat16 from
    3.4e38, and such a reply counts as an erasure. Real and imaginary parts are rounded separately.
    """

    kind: Literal["float16", "bfloat16", "int8"]
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in ("float16", "bfloat16", "int8"):
            raise ValueError(f"kind must be float16, bfloat16 or int8, got {self.kind!r}")
        _check_seed(self.seed)

    def __call__(self, reply: Array, rng: np.random.Generator | None = None) -> Array:
        """Round."""
        array = _floating(reply)
        parts = _parts(array)
        if self.kind == "float16":
            with np.errstate(over="ignore"):
                rounded = parts.astype(np.float16).astype(parts.dtype)
        elif self.kind == "bfloat16":
            with np.errstate(over="ignore"):
                bits = np.ascontiguousarray(parts, dtype=np.float32).view(np.uint32)
            kept = (bits + (np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1)))) & np.uint32(0xFFFF0000)
            rounded = np.where(np.isfinite(parts), kept.view(np.float32), parts).astype(parts.dtype)
        else:
            wide = parts.astype(np.result_type(parts, np.float64))  # a step may underflow
            step = self._step(wide)
            rounded = (np.round(wide / step) * step).astype(parts.dtype) if step else parts.copy()
        return np.asarray(rounded.reshape(-1).view(array.dtype).reshape(array.shape))

    def _step(self, parts: Array) -> float:
        return float(np.abs(parts).max(initial=0.0)) / 127

    def variance(self, reply: ArrayLike) -> float:
        """A twelfth of the mean square step between neighbouring numbers; nothing for zeros and for the kind itself."""
        array = _floating(reply)
        if array.size == 0 or array.dtype.name == self.kind:
            return 0.0
        parts = np.abs(_parts(array)).astype(np.float64)
        if self.kind == "int8":
            steps: Any = self._step(parts)
        else:
            digits, least = (10, -14) if self.kind == "float16" else (7, -126)
            exponents = np.maximum(np.frexp(parts)[1] - 1, least)
            steps = np.where(parts > 0, np.exp2(exponents - digits), 0.0)
        return float(np.mean(np.square(steps)) / 12 * (2 if np.iscomplexobj(array) else 1))


def _parts(array: Array) -> Array:
    """Real and imaginary parts as real numbers, (entries or twice as many,)."""
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(flat.real.dtype) if np.iscomplexobj(flat) else flat


def run_noisy(state: dict[str, Any], noise: Noise, entropy: tuple[int, ...], fn: Callable[..., Any], *args: Any) -> Any:
    """The task that stands in for ``fn(state, *args)`` on a noisy worker."""
    rng = np.random.default_rng(entropy)

    def spoil(leaf: Any) -> Any:
        return _blocks.from_numpy(noise(_blocks.raw_numpy(leaf), rng), leaf)

    return optree.tree_map(spoil, fn(state, *args))
