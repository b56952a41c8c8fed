"""What a gradient code is: partial results are combined after the work, each worker's own into one short message.

::

    partition k yields a gradient g_k of d numbers, cut into m = `chunks` chunks g_k[0] .. g_k[m-1] of ceil(d/m) numbers
    worker n sends        y_n = sum_{k held by n} sum_j G[n, k*m + j] g_k[j]
    the master recovers   sum_k g_k[j] = sum_{n in S} D_S[j, n] y_n              S = whoever responded

The messages of all workers obey linear checks, H y = 0, whatever the gradients are, and L y are the chunks of the sum.
So the weights for a set of responders are L - X H with X chosen such that the columns of the missing workers vanish: a
system as small as the number of checks, not of workers. Checks that are left over tell liars (`anyk.locate`).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Sequence, Sized
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from ..errors import PlacementError, UnsafeDecode
from ..placement import as_placement, chunks_for
from .base import Code, Exactness, Matrix

__all__ = [
    "Component",
    "GradientCode",
    "check_rounding",
    "join_chunks",
    "message_sizes",
    "rounding",
    "shortfall",
    "split_chunks",
]

_DENSE = 1 << 24  # entries; beyond, the generator stays sparse
_CUTOFF = 1e-10  # singular values, relative to the largest, that least squares below the threshold takes for zero
_SOLVED = 1e-7  # relative residual of weights that count as exact
_WARN, _REFUSE = 1e-6, 0.1  # share of the answer that rounding in float64 costs
_VANISHED = 1e-13  # singular values of some columns of orthonormal checks that are zero but for rounding
_ROUNDED = 1e-13  # what rounding leaves of a system, relative to its solution


def split_chunks(gradients: ArrayLike, chunks: int) -> NDArray[Any]:
    """Cut the last axis, of d numbers, into chunks: (..., d) becomes (..., chunks, ceil(d/chunks)), padded with zeros.

    Examples
    --------
    >>> split_chunks([1.0, 2.0, 3.0], chunks=2)
    array([[1., 2.],
           [3., 0.]])
    """
    array = np.asarray(gradients)
    *lead, d = array.shape
    width = -(-d // chunks)
    if width * chunks != d:
        padded = np.zeros((*lead, width * chunks), array.dtype)
        padded[..., :d] = array
        array = padded
    return array.reshape(*lead, chunks, width)


def join_chunks(chunks: ArrayLike, d: int) -> NDArray[Any]:
    """Undo `split_chunks`: (..., chunks, width) becomes (..., d).

    Examples
    --------
    >>> join_chunks([[1.0, 2.0], [3.0, 0.0]], d=3)
    array([1., 2., 3.])
    """
    array = np.asarray(chunks)
    return array.reshape(*array.shape[:-2], -1)[..., :d]


@dataclass(frozen=True, eq=False)
class Component:
    """Workers whose messages obey common checks, and how their share of the sum is read off.

    Attributes
    ----------
    members : (n,) int
        The workers, rising.
    checks : (c, n)
        H, with orthonormal rows: ``checks @ messages[members]`` is zero unless somebody lies.
    reader : (chunks, n)
        L, orthogonal to the checks: ``reader @ messages[members]`` is the members' share of the sum.
    """

    members: NDArray[np.intp]
    checks: Matrix
    reader: Matrix

    @classmethod
    def of(cls, members: ArrayLike, checks: Matrix, reader: Matrix) -> Component:
        """From any checks and any reader that spell the same code."""
        basis = np.linalg.qr(checks.conj().T)[0].conj().T if len(checks) else checks
        return cls(np.asarray(members, dtype=np.intp), basis, reader - (reader @ basis.conj().T) @ basis)

    def weights(self, missing: NDArray[np.intp]) -> Matrix | None:
        """The quietest exact weights that do without the members at positions `missing`; None if there are none.

        Since reader and checks are orthogonal, the weights of least norm come from the smallest X.
        """
        if not len(missing):
            return self.reader
        if len(missing) > len(self.checks):
            return None
        here, wanted = self.checks[:, missing], self.reader[:, missing]
        left, values, right = np.linalg.svd(here, full_matrices=False)
        kept = values > _VANISHED  # rows of H have length one: a column may be zero but for rounding
        x = (wanted @ right[kept].conj().T / values[kept]) @ left[:, kept].conj().T
        weights = self.reader - x @ self.checks
        rest = float(np.abs(weights[:, missing]).max())
        if rest > max(_SOLVED * max(1.0, float(np.abs(self.reader).max())), _ROUNDED * float(np.abs(x).max())):
            return None
        weights[:, missing] = 0
        return np.asarray(weights)


class GradientCode(Code):
    """A code over partial results; recovers their sum. Concrete codes are final frozen dataclasses.

    Attributes
    ----------
    placement : (workers, partitions) bool
        Who holds which partition. Codes without a free placement have fields of the same names as the properties here;
        ``field()`` without a default keeps a dataclass from taking the property for one.
    stragglers, adversaries : int
        Any so many workers need not answer, and any so many others may lie.
    """

    placement: NDArray[np.bool_]
    stragglers: int
    adversaries: int

    _in_double = True  # weights may be large

    def _check_placement(self) -> None:
        """Normalise the fields `placement`, `stragglers`, `adversaries` and `rng` of a dataclass."""
        object.__setattr__(self, "placement", as_placement(self.placement))
        self._check_counts()

    def _check_counts(self) -> None:
        for name in ("stragglers", "adversaries"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | np.integer):
                raise TypeError(f"{name} must be an integer, got {value!r}")
            if value < 0:
                raise PlacementError(f"{name} must be at least 0, got {value}")
            object.__setattr__(self, name, int(value))
        seed = getattr(self, "rng", 0)
        if isinstance(seed, np.random.Generator):  # a value, so that equal codes are equal
            object.__setattr__(self, "rng", int(seed.integers(1 << 63)))
        elif isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
            raise TypeError(f"rng must be an integer or a numpy.random.Generator, and not negative, got {seed!r}")

    @cached_property
    def workers(self) -> int:  # type: ignore[override]
        """N, the number of workers."""
        return int(self.placement.shape[0])

    @cached_property
    def partitions(self) -> int:
        """K, the number of partitions."""
        return int(self.placement.shape[1])

    @cached_property
    def replicas(self) -> int:
        """r, the copies of the partition with the fewest."""
        return int(self.placement.sum(axis=0).min())

    @cached_property
    def chunks(self) -> int:
        """m: a message has 1/m of a gradient's entries; r - s - 2a."""
        return chunks_for(self.replicas, self.stragglers, self.adversaries)

    @property
    def threshold(self) -> int:
        """N - s answers, among which `adversaries` liars can still be told; N without workers that hold nothing."""
        return max(len(self.active) - self.stragglers, 1)

    @cached_property
    def _busy(self) -> frozenset[int]:
        return frozenset(self.active)

    @property
    def _needed(self) -> int:
        """Answers of workers that hold something, of which any so many are enough."""
        return max(min(self.threshold, len(self.active) - self.stragglers), 1)

    @property
    def approximate(self) -> bool:
        """Whether the sum is an estimate, whoever answers."""
        return False

    @property
    def exact_for(self) -> Exactness:
        """The sum is a linear function of the partial results."""
        return "nothing" if self.approximate else "linear"

    @cached_property
    def active(self) -> tuple[int, ...]:
        """Workers that hold something."""
        return tuple(np.flatnonzero(self.placement.any(axis=1)).tolist())

    # -- the matrices -------------------------------------------------------------------------------------------------

    @cached_property
    def coefficients(self) -> sparse.csr_array:
        """The generator as a SciPy sparse array, (workers, partitions * chunks); exactly zero where nothing is held."""
        return sparse.csr_array(self._coefficients())

    @abstractmethod
    def _coefficients(self) -> Any:
        """Build G."""

    @cached_property
    def generator(self) -> Matrix:
        """G, (workers, partitions * chunks), partition-major: column k*m + j is chunk j of partition k.

        A read-only NumPy array, or the sparse `coefficients` where that would have more than 2**24 entries.
        """
        if math.prod(self.coefficients.shape) > _DENSE:
            return self.coefficients  # type: ignore[no-any-return]
        matrix = np.asarray(self.coefficients.toarray())
        matrix.flags.writeable = False
        return matrix

    @cached_property
    def target(self) -> Matrix:
        """T, (chunks, partitions * chunks): ones over the partitions, chunk by chunk."""
        matrix = np.tile(np.eye(self.chunks), self.partitions)
        matrix.flags.writeable = False
        return matrix

    def _rows(self, workers: Sequence[int]) -> Any:
        return self.coefficients[list(workers)]

    @cached_property
    def components(self) -> tuple[Component, ...]:
        """The checks that messages obey, by groups of workers that share them; here from the generator itself."""
        members = np.array(self.active, dtype=np.intp)
        rows = self.coefficients[members].toarray()
        left, values, right = np.linalg.svd(rows, full_matrices=False)
        rank = int((values > 1e-11 * values[0]).sum())
        checks = null_checks(left[:, :rank])
        reader = (self.target @ right[:rank].conj().T / values[:rank]) @ left[:, :rank].conj().T
        return (Component(members, checks, reader),)

    def share(self, worker: int) -> tuple[NDArray[np.intp], Matrix]:
        """The partitions that a worker combines, (p,), and their coefficients, (p, chunks)."""
        held = np.flatnonzero(self.placement[worker])
        matrix = self.coefficients
        here = slice(*matrix.indptr[[worker, worker + 1]].tolist())  # slices of SciPy's own take ten times as long
        row = np.zeros(self.partitions * self.chunks, matrix.dtype)
        np.add.at(row, matrix.indices[here], matrix.data[here])
        return held, np.ascontiguousarray(row.reshape(self.partitions, self.chunks)[held])

    # -- encoding and decoding ----------------------------------------------------------------------------------------

    def encode(self, gradients: ArrayLike) -> NDArray[Any]:
        """All messages, (workers, ceil(d/chunks)), of gradients (partitions, d), without any workers involved."""
        array = np.asarray(gradients)
        if array.ndim != 2 or len(array) != self.partitions:
            raise ValueError(f"gradients must have shape ({self.partitions}, d), got {array.shape}")
        dtype = array.dtype if array.dtype.kind in "fc" else np.dtype(np.float64)
        pieces = split_chunks(array, self.chunks)
        messages = self.coefficients @ pieces.reshape(self.partitions * self.chunks, -1)
        return np.asarray(messages.astype(np.result_type(dtype, np.complex64) if np.iscomplexobj(messages) else dtype))

    def sufficient(self, responders: Iterable[int], exposed: Iterable[int] = ()) -> bool:
        """Whether these answers are enough, adversaries among them; those `exposed` already are as good as answers."""
        needed = self._needed - min(self.adversaries, len(set(exposed)))
        if isinstance(responders, Sized) and len(responders) < needed:  # asked after every answer
            return False
        return len(self._busy.intersection(responders)) >= needed

    def approximates(self, responders: Iterable[int]) -> bool:
        """Whether these responders leave a residual."""
        decoder = self.decoder(responders)
        return shortfall(self, decoder.matrix, decoder.responders) > _WARN

    def _decode(self, responders: NDArray[np.intp], replies: Sequence[Any] | None) -> Matrix:
        # Checks of an approximate code may hold only nearly, and the weights that they give be enormous.
        weights = None if self.approximate else self._exact_weights(responders)
        if weights is None:
            matrix = least_squares_sum(self._rows(responders.tolist()), self.target)
            if not self.approximate and GradientCode.sufficient(self, responders.tolist()):  # exact on paper
                check_rounding(self, matrix, responders)
            return matrix
        return np.ascontiguousarray(weights[:, responders])

    def _exact_weights(self, responders: NDArray[np.intp]) -> Matrix | None:
        present = np.zeros(self.workers, np.bool_)
        present[responders] = True
        total: Matrix | None = None
        for component in self.components:
            part = component.weights(np.flatnonzero(~present[component.members]))
            if part is None:
                return None
            if total is None:
                total = np.zeros((self.chunks, self.workers), part.dtype)
            total[:, component.members] += part
        return total

    # -- values -------------------------------------------------------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        values = self.__getstate__().values()
        return (type(self), *((v.shape, v.tobytes()) if isinstance(v, np.ndarray) else v for v in values))

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Copies and what comes from a pickle are as read-only as the original."""
        for name, value in state.items():
            if isinstance(value, np.ndarray):
                value.flags.writeable = False
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        fields = self.__getstate__()
        given = [f"{name}={_brief(value)}" for name, value in fields.items() if name != "placement"]
        if "placement" in fields:
            given.insert(0, f"<{self.workers} workers x {self.partitions} partitions, r={self.replicas}>")
        return f"{type(self).__name__}({', '.join(given)})"


def _brief(value: Any) -> str:
    if isinstance(value, tuple) and len(value) > 12:
        return f"({value[0]!r}, ... {len(value)} in all)"
    return repr(value)


def message_sizes(code: GradientCode, workers: Sequence[int] | NDArray[np.intp]) -> NDArray[np.float64]:
    """Sizes of honest messages relative to one another: the norms of the workers' rows of G."""
    squares = abs(code._rows(np.asarray(workers).tolist())).power(2).sum(axis=1)
    sizes = np.sqrt(np.asarray(squares)).ravel()
    return np.where(sizes > 0, sizes, 1.0)


def rounding(code: GradientCode, matrix: Matrix, workers: Sequence[int] | NDArray[np.intp]) -> float:
    """How much of the sum one eps of rounding in every message costs, where partial results are unlike one another."""
    return float(np.linalg.norm(matrix * message_sizes(code, workers), axis=1).max()) / math.sqrt(code.partitions)


def shortfall(code: GradientCode, matrix: Matrix, workers: Sequence[int] | NDArray[np.intp]) -> float:
    """Share of the sum that these weights miss, where partial results are unlike one another: 1 for no answer."""
    difference = matrix @ code._rows(np.asarray(workers).tolist()) - code.target
    return float(np.linalg.norm(difference, axis=1).max()) / math.sqrt(code.partitions)


def check_rounding(code: GradientCode, matrix: Matrix, responders: NDArray[np.intp]) -> None:
    """Caution or refuse where rounding in float64 spoils an answer that is exact on paper."""
    amplification, missed = rounding(code, matrix, responders), shortfall(code, matrix, responders)
    loss = max(missed, amplification * float(np.finfo(np.float64).eps))
    if loss < _WARN:
        return
    text = (
        f"rounding in float64 costs {loss:.1e} of the sum with {len(responders)} of {code.workers} workers: noise is "
        f"amplified {amplification:.1e} times and the weights miss {missed:.1e} of the sum ({code!r}); NullSpaceCode "
        "is as short and well conditioned"
    )
    if not loss < _REFUSE:
        raise UnsafeDecode(text)
    code._cautions[tuple(responders.tolist())] = text


def null_checks(columns: Matrix) -> Matrix:
    """Orthonormal rows that vanish on every column of an (n, rank) matrix: (n - rank, n)."""
    full = np.linalg.qr(columns, mode="complete")[0]
    return np.ascontiguousarray(full[:, columns.shape[1] :].conj().T)


def least_squares_sum(rows: Any, target: Matrix) -> Matrix:
    """The D that makes ||D rows - target|| least, of least norm; `rows` sparse, one for each responder."""
    dense = rows.toarray()
    if dense.size > _DENSE:  # singular values of the small factor only
        q, r = np.linalg.qr(dense.T)
        return np.ascontiguousarray(np.linalg.lstsq(r, q.conj().T @ target.T, rcond=_CUTOFF)[0].T)
    solution = np.linalg.lstsq(dense.T, target.T, rcond=_CUTOFF)[0]
    return np.ascontiguousarray(solution.T)
