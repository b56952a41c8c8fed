"""What a code is: a generator, a target and a way to decode from any set of responders.

::

    worker n returns      y_n = f( sum_j G[n, j] X_j )          n = 0 .. workers-1
    the master recovers   f(X_j)  ~=  sum_{n in S} D_S[j, n] y_n     S = whoever responded

G is the `generator`, D_S the `Decoder.matrix`. Algebraic codes solve for D_S by least squares from G_S; evaluation
codes interpolate the curve z -> f(u(z)) from the responders' nodes. A new code defines `_generator`, `_decode` and
the properties that say what it promises; everything else follows.
"""

from __future__ import annotations

import operator
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from .. import blocks as _blocks
from ..errors import TooFewResponders, warn

__all__ = ["BelowThreshold", "Code", "DataCode", "Decoder", "check_below_threshold", "least_squares_decoder", "seed_of"]

Matrix = NDArray[Any]
Exactness = Literal["any", "polynomial", "bilinear", "linear", "nothing"]
BelowThreshold = Literal["raise", "least-squares"]
_CACHED_DECODERS, _CACHED_BYTES = 128, 1 << 26  # that a code keeps


@dataclass(frozen=True, eq=False)
class Decoder:
    """The linear map from the responders' replies to the recovered blocks, with its figures.

    Attributes
    ----------
    code : Code
    responders : tuple of int
        Workers whose replies are combined, in the order in which they were asked for.
    matrix : (targets, len(responders)) float64 or complex128, read-only
        Column p multiplies the reply of worker ``responders[p]``.
    order : (targets,) permutation or None
        Set by `anyk.map` when it encoded the blocks along a path: block ``order[j]`` took the code's j-th place. The
        rows of `matrix` are in the order of the blocks.
    """

    code: Code
    responders: tuple[int, ...]
    matrix: Matrix = field(repr=False)
    order: NDArray[np.intp] | None = field(default=None, repr=False)

    @cached_property
    def residual(self) -> float:
        """||D G_S - T||_F: zero when the identity function is recovered exactly; needs no data."""
        return float(np.linalg.norm(self._difference))

    @cached_property
    def _difference(self) -> Matrix:
        """D G_S - T, in the code's order."""
        matrix = self.matrix if self.order is None else self.matrix[self.order]
        return np.asarray(matrix @ self.code._rows(self.responders) - self.code.target)

    @cached_property
    def worst_residual(self) -> float:
        """The largest row norm of D G_S - T: the identity's error in the worst block; 1 for no answer at all."""
        return float(np.linalg.norm(self._difference, axis=1).max())

    @cached_property
    def noise_amplification(self) -> float:
        """||D||_F^2 / targets: mean square error of a block per unit of noise variance in each reply."""
        return float(np.linalg.norm(self.matrix) ** 2 / len(self.matrix))

    @cached_property
    def lebesgue_constant(self) -> float:
        """||D||_inf, the largest absolute row sum: how much the worst error in a reply can grow."""
        return float(np.abs(self.matrix).sum(axis=1).max())

    @cached_property
    def condition(self) -> float:
        """Ratio of the largest to the smallest non-zero singular value of the decoding matrix; 1 for zeros only."""
        values = np.linalg.svd(self.matrix, compute_uv=False)
        values = values[values > values[0] * max(self.matrix.shape) * np.finfo(np.float64).eps]
        return float(values[0] / values[-1]) if len(values) else 1.0

    def expected_error(self, deviation: float | Sequence[float]) -> float:
        """Root mean square error of an entry of the result, for independent noise on the replies.

        Parameters
        ----------
        deviation : float or (responders,) floats
            Standard deviation of the noise on an entry of each reply, in the order of `responders`: for a noise model
            ``sqrt(noise.variance(reply))``.

        Returns
        -------
        float
            ``deviation * sqrt(noise_amplification)`` for equal deviations (paper 3, equation (8)). Of complex replies
            it is the error of a complex entry; where only the real part is kept, half of the variance is.
        """
        given, count = np.asarray(deviation, dtype=np.float64), len(self.responders)
        if given.shape not in ((), (count,)):
            raise ValueError(
                f"deviation must be one number or {count}, one for each responder, got shape {given.shape}"
            )
        each = np.broadcast_to(given, (count,))
        return float(np.linalg.norm(self.matrix * each) / np.sqrt(len(self.matrix)))

    def __matmul__(self, replies: Any) -> Any:
        """Recover the blocks from the replies.

        Parameters
        ----------
        replies
            What the responders returned, in the order of `responders`: an array with a leading axis, a list with one
            array or tree each, or a mapping from worker to reply (extra workers are ignored).

        Returns
        -------
        Array or tree with the blocks along the leading axis, in the replies' library and (floating) dtype.
        """
        if isinstance(replies, Mapping) and all(worker in replies for worker in self.responders):
            replies = [replies[worker] for worker in self.responders]
        return _blocks.combine(self.matrix, replies, "replies", double=self.code._in_double)


class Code(ABC):
    """A linear code over `workers` workers. Concrete codes are final frozen dataclasses."""

    workers: int

    @property
    @abstractmethod
    def generator(self) -> Matrix:
        """G: one row per worker."""

    @property
    @abstractmethod
    def target(self) -> Matrix:
        """T: one row per recovered combination, in the columns of G."""

    @property
    @abstractmethod
    def threshold(self) -> int:
        """Any this many working responders suffice to decode; 1 for codes that decode approximately from any."""

    @property
    @abstractmethod
    def exact_for(self) -> Exactness:
        """Functions recovered exactly at the threshold: "any", "polynomial", "bilinear", "linear" or "nothing"."""

    @property
    def approximate(self) -> bool:
        """Whether answers are approximate for a general function, so that the order of the blocks matters."""
        return self.exact_for == "nothing"

    @cached_property
    def active(self) -> tuple[int, ...]:
        """Workers that have something to do: a non-zero row of the generator."""
        return tuple(np.flatnonzero(np.any(self.generator != 0, axis=1)).tolist())

    def approximates(self, responders: Iterable[int]) -> bool:
        """Whether the answer from these responders is approximate even for the functions of `exact_for`."""
        return self.approximate

    def sufficient(self, responders: Iterable[int]) -> bool:
        """Whether these responders can be decoded."""
        distinct = responders if isinstance(responders, Set) else set(responders)  # asked after every answer
        return len(distinct) >= self.threshold

    def _rows(self, workers: Sequence[int]) -> Any:
        """The rows of G of these workers, dense or sparse."""
        return self.generator[list(workers)]

    @abstractmethod
    def _decode(self, responders: NDArray[np.intp], replies: Sequence[Any] | None) -> Matrix:
        """D_S for sorted, distinct responders; `replies` in the same order, or None."""

    def decoder(self, responders: Iterable[int], replies: Sequence[Any] | Mapping[int, Any] | None = None) -> Decoder:
        """The decoder for a set of responders, in any order; cached per set.

        Parameters
        ----------
        responders : distinct worker indices
            Column p of the decoder's matrix belongs to the p-th of them.
        replies : optional
            Their replies, for codes that choose among decoding matrices by looking at them.

        Raises
        ------
        TooFewResponders
            If this set does not suffice for the code.
        ValueError
            If an index is out of range or repeated.
        """
        asked = tuple(operator.index(worker) for worker in responders)
        key = tuple(sorted(set(asked)))
        if len(asked) == 0:
            raise TooFewResponders(f"{self!r} cannot decode: there are no responders")
        if len(key) < len(asked):
            raise ValueError(f"responders are repeated: {sorted(asked)}")
        if key[0] < 0 or key[-1] >= self.workers:
            raise ValueError(f"responders must lie in 0..{self.workers - 1}, got {sorted(asked)}")
        workers = np.array(key, dtype=np.intp)
        if replies is not None and self._looks_at_replies:
            in_order = replies if isinstance(replies, Mapping) else dict(zip(asked, replies, strict=True))
            matrix = self._decode(workers, [in_order[worker] for worker in key])
        else:
            matrix = self._cached(key, workers)
        if key in self._cautions:
            warn(self._cautions[key])
        if key != asked:
            matrix = matrix[:, np.searchsorted(workers, asked)]
            matrix.flags.writeable = False
        elif matrix.flags.writeable:
            matrix.flags.writeable = False
        return Decoder(self, asked, matrix)

    _looks_at_replies = False
    _in_double = False  # whether replies of lower precision are combined in float64

    @cached_property
    def _decoders(self) -> tuple[threading.Lock, OrderedDict[tuple[int, ...], Matrix]]:
        return threading.Lock(), OrderedDict()

    def _cached(self, key: tuple[int, ...], workers: NDArray[np.intp]) -> Matrix:
        lock, known = self._decoders
        with lock:
            if key in known:
                known.move_to_end(key)
                return known[key]
        matrix = self._decode(workers, None)
        matrix.flags.writeable = False
        with lock:
            known[key] = matrix
            most = max(1, min(_CACHED_DECODERS, _CACHED_BYTES // max(matrix.nbytes, 1)))
            while len(known) > most:
                self._cautions.pop(known.popitem(last=False)[0], None)
        return matrix

    @cached_property
    def _cautions(self) -> dict[tuple[int, ...], str]:
        """What is to be said of some cached decoders, every time that they are asked for."""
        return {}

    def __getstate__(self) -> dict[str, Any]:
        """Fields only: caches (and their lock) stay at home."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}  # type: ignore[attr-defined]


class DataCode(Code):
    """A code that combines `blocks` equal data blocks before the work; recovers f of each block."""

    blocks: int

    def __post_init__(self) -> None:
        for name in ("workers", "blocks"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | np.integer):
                raise TypeError(f"{name} must be an integer, got {value!r}")
            if name in self.__dataclass_fields__:  # type: ignore[attr-defined]  # others follow from what is given
                object.__setattr__(self, name, int(value))
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.blocks > self.workers:
            raise ValueError(
                f"{self.blocks} blocks need at least as many workers, got workers={self.workers}: "
                "use more workers or group the blocks"
            )

    @cached_property
    def generator(self) -> Matrix:
        """G, shape (workers, blocks), float64, read-only."""
        matrix = self._generator()
        matrix.flags.writeable = False
        return matrix

    @abstractmethod
    def _generator(self) -> Matrix:
        """Build G."""

    @cached_property
    def target(self) -> Matrix:
        """The identity: every block is recovered by itself."""
        matrix = np.eye(self.blocks)
        matrix.flags.writeable = False
        return matrix

    def encode(self, blocks: Any) -> Any:
        """The coded blocks, one per worker along the leading axis, without any workers involved.

        Parameters
        ----------
        blocks
            Array with a leading axis of length `blocks`, list of that many arrays or trees, or a dict or tuple of
            arrays with that leading axis. Integers and booleans are promoted to float64.

        Returns
        -------
        Array (workers, ...), or a tree of such arrays, in the caller's library, dtype and device.
        """
        return _blocks.combine(self.generator, blocks, "blocks")


def check_below_threshold(value: Any) -> None:
    """Refuse other words."""
    if value not in ("raise", "least-squares"):
        raise ValueError(f"below_threshold must be 'raise' or 'least-squares', got {value!r}")


def seed_of(rng: int | np.random.Generator) -> int:
    """What a code keeps of an `rng`, so that it stays a value: the seed, or one drawn from the generator."""
    if isinstance(rng, np.random.Generator):
        return int(rng.integers(2**62))
    if isinstance(rng, bool) or not isinstance(rng, int | np.integer) or rng < 0:
        raise TypeError(f"rng must be a seed (an integer of at least 0) or a numpy.random.Generator, got {rng!r}")
    return int(rng)


def least_squares_decoder(generator: Matrix, target: Matrix, cutoff: float = 1e-15) -> Matrix:
    """T pinv(G_S): the least-squares, minimum-norm decoder of an algebraic code.

    Singular values below `cutoff` times the largest count as zero: where a system may be singular, those that rounding
    made of zeros must not be inverted.
    """
    with _blocks.one_blas_thread() if generator.size < 1 << 20 else nullcontext():
        return _least_squares(generator, target, cutoff)


def _least_squares(generator: Matrix, target: Matrix, cutoff: float) -> Matrix:
    rows, columns = generator.shape
    if rows >= columns:
        q, r = np.linalg.qr(generator)
        diagonal = np.abs(np.diag(r))
        if (
            diagonal.min() > max(1e-12, 10 * columns * cutoff) * diagonal.max()
        ):  # full rank: several times faster than singular values
            return np.asarray(solve_triangular(r, target.T, trans="T").T @ q.conj().T)
    return np.asarray(target @ np.linalg.pinv(generator, rcond=cutoff))
