"""Linear algebra on unreliable workers: `CodedOperator`, a SciPy LinearOperator, and the verb `anyk.matmul`."""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.linalg import LinearOperator

from . import blocks as _blocks
from .codes.base import Code, DataCode, Decoder
from .codes.mds import SystematicMDSCode
from .codes.polynomial import PolynomialCode
from .codes.product import ProductCode
from .errors import BlocksError, TooFewResponders, UnsafeDecode, WorkersClosed, warn
from .mapping import (
    Result,
    check_call,
    check_late,
    check_noise,
    check_range,
    noise_error,
    number_of,
    opened,
    warn_of_noise,
)
from .runtime.connect import connect
from .runtime.events import RoundEvent, Run, Traffic
from .runtime.faults import Fault
from .runtime.late import Late, Skip
from .runtime.noise import Noise
from .runtime.progress import listening
from .runtime.rounds import Reply, alone, gather
from .runtime.stop import All, Progress, StopRule, Sufficient
from .runtime.workers import Workers

__all__ = ["CodedOperator", "Cost", "matmul"]

Array = NDArray[Any]
_REFUSE = 0.1  # share of the product that rounding may cost
_PATIENCE = 0.005  # seconds; about what starting a worker afresh takes, and what it held is sent again by reference
_DENSE = 0.3  # share of non-zero entries from which a coded block is kept dense
_DEFAULT_WORKERS = 8


@dataclass(frozen=True)
class Cost:
    """What coding a matrix costs.

    Attributes
    ----------
    entries : int
        Non-zero entries of a sparse matrix, all entries of a dense one.
    stored : int
        The same, over all coded blocks on all workers.
    largest : int
        On the worker that holds the most: the work of one product there, in multiply-adds.
    overhead : float
        ``stored / entries``, 1 without a code (and without padding).
    seconds : float
        Time that encoding took.
    """

    entries: int
    stored: int
    largest: int
    seconds: float

    @property
    def overhead(self) -> float:
        """Stored entries over those of the matrix."""
        return self.stored / max(self.entries, 1)


def _multiply(state: dict[str, Any], block: Any, x: Any) -> Any:
    """On the worker."""
    return np.asarray(block @ x)


def _product(state: dict[str, Any], shapes: tuple[Any, Any], a: Any, b: Any) -> Any:
    """On the worker: two coded blocks, flat or sparse."""
    a, b = (x.reshape(shape) if shape is not None else x for x, shape in zip((a, b), shapes, strict=True))
    product = a @ b
    return product.toarray() if sparse.issparse(product) else np.asarray(product)


def _as_matrix(matrix: Any, noun: str, copy: bool = False) -> Any:
    """A two-dimensional CSR or NumPy array of floating numbers, all finite; the caller's own memory unless `copy`."""
    if isinstance(matrix, LinearOperator):
        raise TypeError(
            f"{noun} must be an array or sparse matrix with entries to encode, got a {type(matrix).__name__}"
        )
    if isinstance(matrix, list | tuple):
        matrix = np.asarray(matrix)
    if sparse.issparse(matrix) and len(matrix.shape) != 2:
        raise BlocksError(f"{noun} must be a matrix, got shape {matrix.shape}")
    kept: Any = sparse.csr_array(matrix) if sparse.issparse(matrix) else _numeric(matrix, noun)
    if sparse.issparse(kept):
        kept = sparse.csr_array((_numeric(kept.data, noun), kept.indices, kept.indptr), shape=kept.shape)
    if len(kept.shape) != 2 or 0 in kept.shape:
        raise BlocksError(f"{noun} must be a matrix with at least one row and column, got shape {kept.shape}")
    if kept.dtype == np.float16:
        return kept.astype(np.float32)
    shared = kept.data if sparse.issparse(kept) else kept
    given = matrix.data if sparse.issparse(matrix) else matrix
    return kept.copy() if copy and np.shares_memory(shared, np.asarray(given)) else kept


def _numeric(values: Any, noun: str) -> Array:
    """Finite numbers, integers as float64."""
    try:
        array = _blocks.to_numpy(values)
    except TypeError as error:
        raise BlocksError(f"{noun}: {error}") from error
    if not _blocks.finite(array):
        bad = int((~np.isfinite(array)).sum())
        raise BlocksError(f"{noun} holds {bad} non-finite value{'s' if bad > 1 else ''} (NaN or inf)")
    return array


def _check_code(code: Code, stop: StopRule) -> None:
    """Refuse codes whose products are not exact, and sufficient answers that there can never be."""
    if code.approximate:
        raise ValueError(f"{code!r} is not exact for linear functions; SystematicMDSCode and frame codes are")
    if not code.sufficient(code.active) and not stop.possible(Progress((), code.active, 0.0, code.sufficient)):
        raise TooFewResponders(
            f"{code!r} needs {code.threshold} answers and has {len(code.active)} workers with something to do"
        )


def _entries(block: Any) -> int:
    return int(block.nnz) if sparse.issparse(block) else int(block.size)


def _combine_sparse(weights: Array, parts: Sequence[Any]) -> Any:
    """sum_j w_j parts_j, sparse unless that has become dense."""
    scalar = _blocks.coded_dtype(weights, parts[0].dtype).type
    terms = [parts[j] * scalar(weights[j]) for j in np.flatnonzero(weights).tolist()]
    if not terms:
        return sparse.csr_array(parts[0].shape, dtype=parts[0].dtype)
    total = functools.reduce(operator.add, terms)
    return total.toarray() if total.nnz > _DENSE * math.prod(total.shape) else sparse.csr_array(total)


def _cut(matrix: Any, rows: int, columns: int) -> list[Any]:
    """rows x columns equal blocks, row by row, padded by zeros; sparse ones stay sparse."""
    height, width = (-(-size // parts) for size, parts in zip(matrix.shape, (rows, columns), strict=True))
    return [
        _padded(matrix[i * height : (i + 1) * height, j * width : (j + 1) * width], (height, width))
        for i in range(rows)
        for j in range(columns)
    ]


def _padded(block: Any, shape: tuple[int, int]) -> Any:
    if sparse.issparse(block):
        block.resize(shape)  # a slice of a sparse array is a copy
        return block
    if block.shape == shape:
        return np.ascontiguousarray(block)
    padded = np.zeros(shape, block.dtype)
    padded[: block.shape[0], : block.shape[1]] = block
    return padded


def _leaf(blocks: Sequence[Array]) -> _blocks.Leaf:
    return _blocks.Leaf([block.reshape(-1) for block in blocks], blocks[0].shape, blocks[0].dtype, None)


def _encode_rows(code: DataCode, matrix: Any) -> list[Any]:
    """The coded block of each worker: rows of the matrix in `code.blocks` equal parts, combined."""
    parts = _cut(matrix, code.blocks, 1)
    dtype = _blocks.coded_dtype(code.generator, matrix.dtype)
    if sparse.issparse(matrix):
        return [_combine_sparse(weights, parts).astype(dtype, copy=False) for weights in code.generator]
    leaf = _leaf(parts)
    coded: list[Any] = []
    for weights in code.generator:
        chosen = np.flatnonzero(weights)
        if len(chosen) == 1 and weights[chosen[0]] == 1:
            coded.append(parts[chosen[0]])
            continue
        out = np.empty((1, leaf.size), dtype)
        _blocks.apply(weights[None], leaf, out, double=True)
        coded.append(out.reshape(leaf.shape))
    return coded


class _Kept:
    """One coded matrix, published to an engine's workers."""

    def __init__(self, matrix: Any, code: DataCode, engine: Workers) -> None:
        begun = time.perf_counter()
        self.rows, self.dtype = matrix.shape[0], matrix.dtype
        coded, active = _encode_rows(code, matrix), set(code.active)
        self.epsilon = float(np.finfo(coded[0].dtype).eps)  # of the coded entries
        self.sizes = [_entries(block) for block in coded]
        self.blocks = [engine.publish(block) if worker in active else None for worker, block in enumerate(coded)]
        self.cost = Cost(_entries(matrix), sum(self.sizes), max(self.sizes), time.perf_counter() - begun)


class CodedOperator(LinearOperator):  # type: ignore[misc]
    """A matrix on workers that may stall or die, as a SciPy LinearOperator: `cg`, `lsqr`, `eigsh` run unchanged.

    The rows are cut into `code.blocks` equal parts, encoded once, and stay on the workers. A product sends the vector
    to all of them and ends with the first sufficient answers; stragglers are not waited for. Workers that died, or are
    still at work for an earlier product, are started afresh when they are needed; where more hang in one product than
    the code has to spare, it waits for them: add a `Deadline` to `stop`. Products with the adjoint (`rmatvec`, ``A.H``)
    need a second coded copy, of the columns, which is made when the first such product is asked for.

    Parameters
    ----------
    matrix : (M, N) array or SciPy sparse matrix
        Real or complex; integers become float64; copied. Sparse blocks stay sparse, but those of workers that hold
        mixtures have the non-zeros of all that is mixed: `cost` tells. With `SystematicMDSCode` only
        ``workers - blocks`` do.
    code : DataCode, optional
        One that is exact for linear functions; default `SystematicMDSCode` with a quarter of the workers to spare.
    workers : Workers, int or str, optional
        As in `anyk.map`. Default: as many local processes as the code has workers. Those started here end with `close`,
        or the ``with`` block; `Workers` that you pass stay yours.
    stop : StopRule, optional
        Default: the first sufficient answers.
    faults : mapping of worker to fault, optional
        Inflicted on every product, for tests and demonstrations.
    noise : Noise, optional
        What every worker does to its replies.
    patience : float
        Seconds, at least, before a worker that is still at an earlier product, and needed, is started afresh.
    on_event : callable, optional
        Receives every `RoundEvent`.

    Attributes
    ----------
    shape, dtype
        As of any LinearOperator.
    code : DataCode
    cost : Cost
        Entries stored, and the largest share; `adjoint_cost` for the second copy, None until it is made.
    rounds : int
        Products so far.
    run : Run or None
        The latest product's round.
    expected_error : float or None
        With ``noise=``: the root mean square error that it leaves in an entry of the latest product.

    Raises
    ------
    BlocksError
        For a matrix or vector that is not numeric, finite and two- (one- or two-) dimensional.
    TooFewResponders, TaskFailed, UnsafeDecode
        As in `anyk.map`, from each product.

    Warns
    -----
    ApproximationWarning
        Where rounding may cost more than half of the digits, `noise` a tenth of a product, or a stop rule takes fewer
        answers than are needed.

    Examples
    --------
    >>> import anyk
    >>> from scipy.sparse import diags_array
    >>> from scipy.sparse.linalg import cg
    >>> matrix = diags_array([-1.0, 2.5, -1.0], offsets=[-1, 0, 1], shape=(100, 100))
    >>> with anyk.ThreadWorkers(8) as workers:
    ...     A = anyk.CodedOperator(matrix, anyk.SystematicMDSCode(8, 6), workers, faults={2: anyk.Raise()})
    ...     x, info = cg(A, np.ones(100))
    >>> info, bool(np.abs(matrix @ x - 1).max() < 1e-3)
    (0, True)
    """

    def __init__(
        self,
        matrix: Any,
        code: DataCode | None = None,
        workers: Workers | int | str | None = None,
        stop: StopRule | None = None,
        *,
        faults: Mapping[int, Fault] | None = None,
        noise: Noise | None = None,
        patience: float = _PATIENCE,
        on_event: Callable[[RoundEvent], None] | None = None,
    ) -> None:
        kept = _as_matrix(matrix, "matrix", copy=True)
        self._owned = ExitStack()
        try:
            engine: Workers | int | None
            if isinstance(workers, str):
                engine = self._owned.enter_context(connect(workers, None if code is None else code.workers))
            else:
                engine = workers
            self._begin(kept, code, engine, stop, faults, noise, patience, on_event)
        except BaseException:
            self._owned.close()
            raise
        super().__init__(dtype=kept.dtype, shape=kept.shape)

    def _begin(
        self,
        kept: Any,
        code: DataCode | None,
        workers: Workers | int | None,
        stop: StopRule | None,
        faults: Mapping[int, Fault] | None,
        noise: Noise | None,
        patience: float,
        on_event: Callable[[RoundEvent], None] | None,
    ) -> None:
        check_call(_multiply, workers, stop, faults)
        check_noise(noise)
        if code is None:
            n = number_of(workers, _DEFAULT_WORKERS)
            code = SystematicMDSCode(n, max(1, n - max(1, n // 4)))
        if not isinstance(code, DataCode):
            raise TypeError(f"code must be a data code such as SystematicMDSCode(16, 12), got {code!r}")
        if isinstance(patience, bool) or not isinstance(patience, int | float | np.number) or not patience >= 0:
            raise ValueError(f"patience must be a number of seconds of at least 0, got {patience!r}")
        check_call(_multiply, workers, stop, faults, code.workers)
        self.code: DataCode = code
        self.stop: StopRule = stop if stop is not None else Sufficient()
        self.stop.check(len(code.active))
        _check_code(code, self.stop)
        self.run: Run | None = None
        self.rounds = 0
        self.expected_error: float | None = None
        self._matrix, self._faults, self._noise = kept, faults, noise
        self._patience, self._on_event = float(patience), on_event
        self._engine: Workers = self._owned.enter_context(opened(workers, code.workers))
        self._closed = False
        self._backward: _Kept | None = None
        with alone(self._engine):
            self._forward = _Kept(kept, code, self._engine)

    @property
    def cost(self) -> Cost:
        """What the coded matrix costs."""
        return self._forward.cost

    @property
    def adjoint_cost(self) -> Cost | None:
        """What the second copy costs, for products with the adjoint."""
        return None if self._backward is None else self._backward.cost

    def close(self) -> None:
        """Forget the coded blocks, and stop the workers that were started here. Idempotent."""
        self._closed = True
        self._forward.blocks = []
        self._backward = self._matrix = None
        self._owned.close()

    def __enter__(self) -> CodedOperator:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _matvec(self, x: Any) -> Array:
        return self._apply(lambda: self._forward, np.asarray(x).reshape(-1, 1))[:, 0]

    def _matmat(self, X: Any) -> Array:
        return self._apply(lambda: self._forward, np.asarray(X))

    def _rmatvec(self, x: Any) -> Array:
        return self._rmatmat(np.asarray(x).reshape(-1, 1))[:, 0]

    def _rmatmat(self, X: Any) -> Array:
        return self._apply(self._adjoint_kept, np.asarray(X))

    def _adjoint_kept(self) -> _Kept:
        """The second copy, made when it is first needed."""
        if self._backward is None:
            adjoint = self._matrix.conj().T
            adjoint = sparse.csr_array(adjoint) if sparse.issparse(adjoint) else np.ascontiguousarray(adjoint)
            self._backward = _Kept(adjoint, self.code, self._engine)
        return self._backward

    def _check_open(self) -> None:
        if self._closed:
            raise WorkersClosed("this operator has been closed")

    def _apply(self, which: Callable[[], _Kept], x: Any) -> Array:
        self._check_open()
        with alone(self._engine):
            self._check_open()  # it may have been closed while others were at work
            return self._round(which(), _numeric(x, "the vector"))

    def _round(self, kept: _Kept, x: Array) -> Array:
        dtype = np.result_type(kept.dtype, x.dtype)
        if x.shape[1] == 0:
            return np.empty((kept.rows, 0), dtype)
        engine, code, blocks = self._engine, self.code, kept.blocks
        x = np.ascontiguousarray(x, dtype=np.result_type(x.dtype, np.float32))
        flat = x[:, 0] if x.shape[1] == 1 else x  # a product with a vector is the faster one
        sent = [0]
        operand = engine.publish(flat)

        def send(who: Sequence[int], by: Mapping[int, int]) -> Iterator[tuple[int, Any, tuple[Any, ...]]]:
            for worker in who:
                sent[0] += x.size
                yield worker, _multiply, (blocks[worker], operand)

        def use(replies: dict[int, Reply], run: Run, error: Callable[[str], Exception]) -> Array:
            found = _recover(code, replies, run, error, dtype, sent[0], kept.epsilon, self._noise)
            self.run, self.rounds, self.expected_error = run, self.rounds + 1, found.expected_error
            product = found.value.reshape(-1, x.shape[1])[: kept.rows]
            return np.asarray(product.astype(dtype, copy=False))

        result: Array = gather(
            engine,
            code.active,
            send,
            self.stop,
            code.sufficient,
            faults=self._faults,
            notify=self._on_event,
            noise=self._noise,
            late=Skip(self._patience),
            use=use,
        )
        return result


def _recover(
    code: Code,
    replies: dict[int, Reply],
    run: Run,
    error: Callable[[str], Exception],
    dtype: np.dtype[Any],
    sent: int,
    epsilon: float,
    noise: Noise | None,
) -> Result:
    """The recovered blocks, (targets, *shape of a reply): real where `dtype` is, whatever the code.

    `epsilon` is that of the coded operands.
    """
    begun = time.perf_counter()
    if not replies:
        raise error("nobody answered")
    blocks = [reply.arrays[0] for reply in replies.values()]
    run.traffic = Traffic(sent, sum(block.size for block in blocks))
    try:
        decoder = code.decoder(run.responders, [reply.arrays for reply in replies.values()])
    except TooFewResponders as short:
        raise error(str(short)) from None
    _check_rounding(decoder, max(epsilon, float(np.finfo(blocks[0].dtype).eps)))
    leaf = _leaf(blocks)
    out = np.empty((len(decoder.matrix), leaf.size), np.result_type(decoder.matrix, leaf.dtype, np.float64))
    _blocks.apply(decoder.matrix, leaf, out, double=True)
    check_range(out)
    if np.iscomplexobj(out) and dtype.kind != "c":
        out = np.ascontiguousarray(out.real)
    expected: float | None = None
    if noise is not None:
        expected = noise_error(
            decoder, noise, _blocks.Blocks(len(blocks), [leaf], None, listed=False), dtype.kind != "c"
        )
        warn_of_noise(decoder, expected, [out])
    run.decode_seconds = time.perf_counter() - begun
    return Result(out.reshape(-1, *leaf.shape), run, decoder, expected)


def _check_rounding(decoder: Decoder, epsilon: float) -> None:
    """Warn where rounding may cost half of the digits, or too few answered; refuse where it eats all of them."""
    code, loss = decoder.code, epsilon * decoder.lebesgue_constant
    figures = f"{code!r}, {len(decoder.responders)} responders, Lebesgue constant {decoder.lebesgue_constant:.3g}"
    if not loss < _REFUSE:
        raise UnsafeDecode(
            f"decoding would amplify the rounding of operands and replies ({epsilon:.1e}) to {loss:.1e} of the product "
            f"({figures}): wait for more workers, compute in a higher precision, or use a code with a smaller noise "
            "amplification"
        )
    if code.approximates(decoder.responders):
        warn(
            f"{len(decoder.responders)} answers are too few for an exact product: even the identity is recovered with "
            f"a residual of {decoder.residual:.3g}, {decoder.worst_residual:.3g} in the worst block ({figures})"
        )
    elif loss > math.sqrt(epsilon):
        warn(f"rounding of operands and replies ({epsilon:.1e}) may cost {loss:.1e} of the product ({figures})")


# -- products of two matrices -----------------------------------------------------------------------------------------


def _default_product_code(workers: Any, shape: tuple[int, int]) -> PolynomialCode:
    """Three quarters of the workers multiply blocks as square as the product allows."""
    n = number_of(workers, _DEFAULT_WORKERS)
    need = max(1, n * 3 // 4)
    splits = [p for p in range(1, need + 1) if need % p == 0]
    p = min(splits, key=lambda p: abs(math.log(shape[0] / p) - math.log(shape[1] * p / need)))
    return PolynomialCode(n, p, need // p)


def matmul(
    a: Any,
    b: Any,
    code: ProductCode | DataCode | None = None,
    workers: Workers | int | str | None = None,
    stop: StopRule | None = None,
    *,
    faults: Mapping[int, Fault] | None = None,
    noise: Noise | None = None,
    late: Late | None = None,
    progress: bool | None = None,
    on_event: Callable[[RoundEvent], None] | None = None,
) -> Result:
    """The product A B, from whichever workers answer: each multiplies one coded block of A by one of B.

    Parameters
    ----------
    a : (r, s) array or SciPy sparse matrix
    b : (s, t) array or SciPy sparse matrix
        Shapes that the code's cuts do not divide are padded by zeros, which are cut off again. Mixtures of sparse
        blocks have the non-zeros of all that is mixed; where that matters use a `SystematicMDSCode`, whose first
        workers get blocks of A as they are.
    code : ProductCode or DataCode, optional
        `PolynomialCode` (default; p n threshold), `KhatriRaoCode`, `MatDotCode`, `EntangledPolynomialCode`; or a data
        code, which codes rows of A and sends B to everybody.
    workers, stop, faults, noise, late, progress, on_event
        As in `anyk.map`.

    Returns
    -------
    Result
        Its `value` is the (r, t) product, dense, of the operands' floating dtype (float16 is computed in float32);
        ``np.asarray(result)`` is it, too.

    Raises
    ------
    BlocksError
        Operands that are not finite numeric matrices, or whose inner dimensions differ.
    TooFewResponders, TaskFailed, UnsafeDecode
        As in `anyk.map`.

    Warns
    -----
    ApproximationWarning
        Where rounding may cost more than half of the digits, `noise` a tenth of the product, or fewer answers than an
        exact product needs were taken.

    Examples
    --------
    >>> import anyk
    >>> a, b = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4)
    >>> with anyk.ThreadWorkers(6) as workers:
    ...     result = anyk.matmul(a, b, code=anyk.PolynomialCode(6, p=2, n=2), workers=workers, faults={1: anyk.Raise()})
    >>> np.round(result.value, 9)
    array([[20., 23., 26., 29.],
           [56., 68., 80., 92.]])
    """
    if isinstance(workers, str):
        with connect(workers, None if code is None else code.workers) as engine:
            return matmul(
                a, b, code, engine, stop, faults=faults, noise=noise, late=late, progress=progress, on_event=on_event
            )
    left, right = _as_matrix(a, "a"), _as_matrix(b, "b")
    if left.shape[1] != right.shape[0]:
        raise BlocksError(f"a has {left.shape[1]} columns and b {right.shape[0]} rows: they must be equally many")
    check_call(_product, workers, stop, faults)
    check_noise(noise)
    check_late(late)
    if code is None:
        code = _default_product_code(workers, (left.shape[0], right.shape[1]))
    if not isinstance(code, ProductCode | DataCode):
        raise TypeError(f"code must be a product code such as PolynomialCode(8, p=2, n=3), got {code!r}")
    check_call(_product, workers, stop, faults, code.workers)
    chosen = code
    rule = stop if stop is not None else Sufficient()
    if stop is None and isinstance(chosen, ProductCode) and chosen.threshold > len(chosen.active):
        rule = All()  # least squares of what there is; the code would not exist otherwise
    rule.check(len(chosen.active))
    _check_code(chosen, rule)
    dtype = np.result_type(left.dtype, right.dtype)
    with ExitStack() as stack:
        notify = stack.enter_context(listening(progress, chosen.workers, on_event))
        engine = stack.enter_context(opened(workers, chosen.workers))
        stack.enter_context(alone(engine))
        operands: _Rows | _Blocks
        if isinstance(chosen, DataCode):
            operands = _Rows(chosen, left, right, engine)
        else:
            operands = _Blocks(chosen, left, right, engine)
        p, n = operands.grid

        def use(replies: dict[int, Reply], run: Run, error: Callable[[str], Exception]) -> Result:
            run.encode_seconds = operands.seconds
            found = _recover(chosen, replies, run, error, dtype, operands.sent, operands.epsilon, noise)
            height, width = found.value.shape[1:]
            value = found.value.reshape(p, n, height, width).transpose(0, 2, 1, 3).reshape(p * height, n * width)
            return dataclasses.replace(found, value=value[: left.shape[0], : right.shape[1]].astype(dtype))

        result: Result = gather(
            engine,
            chosen.active,
            operands.send,
            rule,
            chosen.sufficient,
            faults=faults,
            notify=notify,
            noise=noise,
            late=late if late is not None else Skip(),
            use=use,
        )
        return result


class _Rows:
    """Rows of A coded by a data code, B for everybody."""

    def __init__(self, code: DataCode, a: Any, b: Any, engine: Workers) -> None:
        self.grid = code.blocks, 1
        self.kept = _Kept(a, code, engine)
        self.b, self.size = engine.publish(b), _entries(b)
        self.epsilon = max(self.kept.epsilon, float(np.finfo(b.dtype).eps))
        self.seconds, self.sent = self.kept.cost.seconds, 0

    def send(self, who: Sequence[int], by: Mapping[int, int]) -> Iterator[tuple[int, Any, tuple[Any, ...]]]:
        for worker in who:
            self.sent += self.size + self.kept.sizes[worker]
            yield worker, _product, ((None, None), self.kept.blocks[worker], self.b)


class _Blocks:
    """Blocks of both operands coded by a product code, worker by worker."""

    def __init__(self, code: ProductCode, a: Any, b: Any, engine: Workers) -> None:
        p, m, n = code.splits
        self.grid = p, n
        self.epsilon = max(float(np.finfo(operand.dtype).eps) for operand in (a, b))
        self.engine, self.seconds, self.sent = engine, 0.0, 0
        # Of each operand: its encoder, its blocks, and the dense ones as rows for `blocks.apply`.
        self.sides = [
            (encoder, parts, None if sparse.issparse(parts[0]) else _leaf(parts))
            for encoder, parts in ((code.left, _cut(a, p, m)), (code.right, _cut(b, m, n)))
        ]
        self.shapes = tuple(None if leaf is None else leaf.shape for _, _, leaf in self.sides)

    def send(self, who: Sequence[int], by: Mapping[int, int]) -> Iterator[tuple[int, Any, tuple[Any, ...]]]:
        layouts = [
            ((leaf.size,), _blocks.coded_dtype(encoder, leaf.dtype))
            for encoder, _, leaf in self.sides
            if leaf is not None
        ]
        for worker in who:
            begun = time.perf_counter()
            outs = iter(self.engine.allocate(by.get(worker, worker), layouts) if layouts else [])
            coded: list[Any] = []
            for encoder, parts, leaf in self.sides:
                if leaf is None:
                    coded.append(_combine_sparse(encoder[worker], parts))
                else:
                    coded.append(next(outs))
                    _blocks.apply(encoder[[worker]], leaf, coded[-1:])
            self.sent += sum(_entries(each) for each in coded)
            self.seconds += time.perf_counter() - begun
            yield worker, _product, (self.shapes, *coded)
