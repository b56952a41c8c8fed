"""The verb `anyk.map`: a function over blocks, on workers that stall, die or never answer."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import optree
from numpy.typing import NDArray

from . import blocks as _blocks
from .blocks import Blocks
from .codes.base import DataCode, Decoder
from .codes.spline import SplineCode
from .errors import TooFewResponders, UnsafeDecode, warn
from .ordering import path_order
from .runtime.connect import connect
from .runtime.events import RoundEvent, Run, Traffic
from .runtime.faults import Fault
from .runtime.late import Late
from .runtime.late import chosen as policy
from .runtime.noise import Noise
from .runtime.processes import LocalWorkers
from .runtime.progress import listening
from .runtime.rounds import Reply, alone, gather
from .runtime.stop import FirstK, StopRule, Sufficient
from .runtime.workers import Workers, is_workers

__all__ = ["Result", "map"]

_WARN, _REFUSE = 2e-2, 0.1  # share of an answer that rounding may cost
MOST_UNASKED = 128  # processes that are started without having been asked for
_SMALL = 1 << 14  # bytes; smaller coded blocks are made in one product and sent inside the messages
_NOISY = 0.1  # share of the answer that noise may cost without a word
_DEVIATIONS = 8  # of noise, that an imaginary part may have and still be noise
_COARSE, _WORST = 0.6, 1.5  # residuals for the identity, all blocks and the worst; a gap at an end exceeds one of them


@dataclass(frozen=True, eq=False)
class Result:
    """What `anyk.map` returns.

    Attributes
    ----------
    value : Any
        f of each block: arrays with the blocks along the leading axis (in a tree like f's own result), or a list of
        them where the blocks came as a list.
    run : Run
        Who answered, who did not, and when.
    decoder : Decoder
        The matrix that was applied, with its figures; ``decoder @ replies`` is `value`.
    expected_error : float or None
        With ``noise=``: the root mean square error that it leaves in an entry of `value`, predicted from the noise
        model and the size of the replies.
    """

    value: Any = field(repr=False)
    run: Run
    decoder: Decoder
    expected_error: float | None = None

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """`value` as an array."""
        return np.array(self.value, dtype=dtype) if copy else np.asarray(self.value, dtype=dtype)

    @property
    def order(self) -> NDArray[np.intp] | None:
        """The path through the blocks that was encoded: block ``order[j]`` took the code's j-th place."""
        return self.decoder.order

    @property
    def code(self) -> Any:
        """The code that was used."""
        return self.decoder.code

    def plot(self, ax: Any = None) -> Any:
        """Timeline of the round: who answered when, who was given up. Needs ``anyk[plots]``; returns the axes."""
        from .plots import timeline

        return timeline(self.run, ax=ax)


def _evaluate(state: dict[str, Any], job: tuple[Any, ...], *leaves: Any) -> Any:
    """On the worker: rebuild the coded block and call the user's function."""
    fn, spec, shapes, libraries = job
    arrays = []
    for leaf, shape, library in zip(leaves, shapes, libraries, strict=True):
        array = leaf.reshape(shape)
        arrays.append(_blocks.in_library(array, library) if library != "numpy" or array.ndim else array[()])
    return fn(optree.tree_unflatten(spec, arrays))


def _order_of(order: Any, parts: Blocks, approximate: bool) -> NDArray[np.intp] | None:
    if order is None or (isinstance(order, str) and order == "auto" and not approximate):
        return None
    if isinstance(order, str):
        if order not in ("auto", "path"):
            raise ValueError(f"order must be 'auto', 'path', None or a permutation of the blocks, got {order!r}")
        features = _blocks.features(parts)
        return path_order(features) if features.shape[1] else None
    permutation = np.asarray(order)
    if permutation.shape != (parts.count,) or not np.array_equal(np.sort(permutation), np.arange(parts.count)):
        raise ValueError(f"order must be a permutation of 0..{parts.count - 1}, got {order!r}")
    return permutation.astype(np.intp)


def default_workers(count: int) -> int:
    """How many workers `count` blocks get where nobody says: 5/4 of them, and at least two more."""
    return count + max(2, math.ceil(count / 4))


def _code_for(code: DataCode | None, workers: Any, count: int) -> DataCode:
    if code is None:
        n = number_of(workers, default_workers(count))
        if workers is None and n > MOST_UNASKED:
            raise ValueError(f"{count} blocks would start {n} processes: pass workers=, or group the blocks")
        return SplineCode(n, count)
    if not isinstance(code, DataCode):
        raise TypeError(f"code must be a data code such as BerrutCode(workers, blocks), got {code!r}")
    if code.blocks != count:
        raise ValueError(f"{code!r} is for {code.blocks} blocks, got {count}")
    return code


def check_call(fn: Any, workers: Any, stop: Any, faults: Any, needed: int | None = None) -> None:
    """Refuse arguments of a verb that cannot be what they should."""
    if not callable(fn):
        raise TypeError(f"fn must be callable, got {fn!r}")
    if workers is not None and (
        isinstance(workers, type | bool) or not (is_workers(workers) or isinstance(workers, int | np.integer))
    ):
        raise TypeError(
            f"workers must be a number, Workers such as LocalWorkers(8), or a string for anyk.connect, got {workers!r}"
        )
    if stop is not None and not isinstance(stop, StopRule):
        raise TypeError(f"stop must be a stop rule such as FirstK(24) or Deadline(2.5), got {stop!r}")
    if not isinstance(faults, Mapping | None):
        raise TypeError(f"faults must be a mapping such as {{3: Slow(0.5)}}, got {faults!r}")
    for worker, fault in (faults or {}).items():
        if not isinstance(worker, int | np.integer) or not isinstance(fault, Fault):
            raise TypeError(f"faults must map workers to faults such as Slow(0.5), got {worker!r}: {fault!r}")
        if needed is not None and not 0 <= worker < needed:
            raise ValueError(f"faults names worker {worker}, but there are workers 0..{needed - 1}")
    if needed is not None and workers is not None:
        n = number_of(workers, needed)
        if n < needed:
            raise ValueError(f"the code needs {needed} workers, got {n}")


def number_of(workers: Workers | int | np.integer[Any] | None, default: int) -> int:
    """How many workers are meant."""
    if workers is None:
        return default
    return int(workers) if isinstance(workers, int | np.integer) else len(workers)


@contextmanager
def opened(workers: Workers | int | None, needed: int) -> Iterator[Workers]:
    """The caller's workers, or as many local processes as are needed, which end with the context."""
    if workers is None or isinstance(workers, int | np.integer):
        with LocalWorkers(needed) as ours:
            yield ours
    else:
        yield workers


def check_noise(noise: Any) -> None:
    """Refuse what is no noise model."""
    if noise is not None and (isinstance(noise, type) or not isinstance(noise, Noise)):
        raise TypeError(f"noise must be a noise model such as AdditiveNoise(0.01), got {noise!r}")


def check_late(late: Any) -> None:
    """Refuse what is no policy."""
    if late is not None and not isinstance(late, Late):
        raise TypeError(f"late must be Skip(), Restart() or Backup(), got {late!r}")


def _default_stop(code: DataCode) -> StopRule:
    if code.approximate:
        return FirstK(math.ceil(0.8 * len(code.active)))
    return Sufficient()


def map(
    fn: Callable[[Any], Any],
    blocks: Any,
    *,
    code: DataCode | None = None,
    workers: Workers | int | str | None = None,
    stop: StopRule | None = None,
    order: str | Sequence[int] | NDArray[np.intp] | None = "auto",
    faults: Mapping[int, Fault] | None = None,
    noise: Noise | None = None,
    late: Late | None = None,
    allow_nan: bool = False,
    allow_empty: bool = False,
    progress: bool | None = None,
    on_event: Callable[[RoundEvent], None] | None = None,
) -> Result:
    """f of every block, from whichever workers answer.

    Each worker calls `fn` once, on a coded block of the same shape as the blocks; the master decodes the replies that
    arrive before the stop rule is met.

    Parameters
    ----------
    fn : callable
        Takes one block, returns an array, a number, or a dict, list or tuple of those. Called on mixtures of blocks,
        so it must accept any values of their kind. Its argument may lie in memory that the next call reuses: copy
        what is to be kept beyond the call.
    blocks
        K equal blocks: an array of any array library with a leading axis, a list of arrays or trees, or a dict or
        tuple of arrays with a leading axis. Floating and complex dtypes are kept; integers and booleans become float64.
    code : DataCode, optional
        Default: `SplineCode` over all `workers`.
    workers : Workers, int or str, optional
        Where to work. A number starts that many local processes for this call; reuse a `LocalWorkers` for many calls.
        A string such as ``"dask://tcp://host:8786"``, ``"ray://auto"`` or ``"mpi://"`` is for `anyk.connect`.
        Default: as many as the code has, or 5/4 of the blocks.
    stop : StopRule, optional
        When to stop waiting. Default: the first sufficient set of answers for exact codes, four fifths of the workers
        for approximate ones.
    order : "auto", "path", None or permutation
        Order of the blocks inside the code; undone in the result. ``"path"`` (and ``"auto"`` for approximate codes)
        finds a short path through the blocks, None keeps the caller's order, as the papers do.
    faults : mapping of worker to fault, optional
        Inflicted on this round, for tests and demonstrations.
    noise : Noise, optional
        What every worker does to its reply, such as `AdditiveNoise(0.01)` or `Quantized("float16")`.
    late : Skip, Restart or Backup, optional
        What is done about workers that are late; default `Skip()`.
    allow_nan : bool
        Accept NaN and infinity in blocks and replies. Otherwise such blocks raise and such replies count as erasures.
    allow_empty : bool
        Accept blocks without entries.
    progress : bool, optional
        Draw a progress bar on stderr. Default: on a terminal, for rounds longer than half a second.
    on_event : callable, optional
        Receives every `RoundEvent`.

    Returns
    -------
    Result

    Raises
    ------
    BlocksError
        No blocks, or unequal, empty or non-finite ones.
    TooFewResponders
        Too few valid replies; they are in its `arrived`.
    TaskFailed
        The same, and `fn` raised; carries the worker's index and traceback.
    DisagreeingReplies
        Replies of different shapes without a majority.
    NotPicklable
        `fn` cannot be sent to a process.
    UnsafeDecode
        Rounding alone would spoil the answer.

    Warns
    -----
    ApproximationWarning
        Too few answers, or a large gap among them, for the number of blocks; or a noticeable loss by rounding, or by
        `noise`.

    Examples
    --------
    >>> import numpy as np, anyk
    >>> x = np.linspace(0, 1, 5)
    >>> with anyk.ThreadWorkers(20) as workers:
    ...     result = anyk.map(np.exp, x, workers=workers, stop=anyk.All(), faults={3: anyk.Raise()})
    >>> bool(np.abs(result.value - np.exp(x)).max() < 0.05), 3 in result.run.responders
    (True, False)
    """
    if isinstance(workers, str):
        with connect(workers, None if code is None else code.workers) as engine:
            return map(
                fn, blocks, code=code, workers=engine, stop=stop, order=order, faults=faults, noise=noise, late=late,
                allow_nan=allow_nan, allow_empty=allow_empty, progress=progress, on_event=on_event,
            )  # fmt: skip
    parts = _blocks.split(blocks)
    if not allow_empty:
        parts.require_entries("blocks")
    if not allow_nan:
        parts.require_finite("blocks")
    check_call(fn, workers, stop, faults)
    check_noise(noise)
    check_late(late)
    chosen = _code_for(code, workers, parts.count)
    check_call(fn, workers, stop, faults, chosen.workers)
    rule = stop if stop is not None else _default_stop(chosen)
    rule.check(len(chosen.active))
    if not chosen.sufficient(chosen.active):
        raise TooFewResponders(
            f"{chosen!r} needs {chosen.threshold} answers and has {len(chosen.active)} workers with something to do: "
            "use more workers or fewer blocks"
        )
    permutation = _order_of(order, parts, chosen.approximate)
    generator = chosen.generator if permutation is None else chosen.generator[:, np.argsort(permutation)]
    with ExitStack() as stack:
        notify = stack.enter_context(listening(progress, chosen.workers, on_event))
        engine = stack.enter_context(opened(workers, chosen.workers))
        stack.enter_context(alone(engine))
        job = engine.publish((fn, parts.spec, [leaf.shape for leaf in parts.leaves], _libraries(parts)))
        encoding = [0.0]
        sent, size = [0], sum(leaf.size for leaf in parts.leaves)
        small = max((leaf.size * leaf.dtype.itemsize for leaf in parts.leaves), default=0) < _SMALL

        def send(who: Sequence[int], by: Mapping[int, int]) -> Iterator[tuple[int, Any, tuple[Any, ...]]]:
            begun = time.perf_counter()
            rows = generator[list(who)]
            layouts = [((leaf.size,), _blocks.coded_dtype(generator, leaf.dtype)) for leaf in parts.leaves]
            outs: Sequence[Sequence[NDArray[Any]]]
            if small:
                together = [np.empty((len(who), *shape), dtype) for shape, dtype in layouts]
                outs = list(zip(*together, strict=True)) if together else [()] * len(who)
                targets: list[Any] = together
            else:
                outs = [engine.allocate(by.get(worker, worker), layouts) for worker in who]
                targets = [[out[index] for out in outs] for index in range(len(layouts))]
            for leaf, target in zip(parts.leaves, targets, strict=True):
                _blocks.apply(rows, leaf, target)
            encoding[0] += time.perf_counter() - begun
            sent[0] += len(who) * size
            for worker, out in zip(who, outs, strict=True):
                yield worker, _evaluate, (job, *out)

        def use(replies: dict[int, Reply], run: Run, error: Callable[[str], Exception]) -> Result:
            run.encode_seconds = encoding[0]
            run.traffic = Traffic(sent[0], sum(array.size for reply in replies.values() for array in reply.arrays))
            begun = time.perf_counter()
            received = _received(list(replies.values()))
            try:
                decoder = chosen.decoder(run.responders, [reply.arrays for reply in replies.values()])
            except TooFewResponders as short:
                raise error(str(short)) from None
            if permutation is not None:
                matrix = decoder.matrix[np.argsort(permutation)]
                matrix.flags.writeable = False
                decoder = Decoder(chosen, decoder.responders, matrix, permutation)
            _check(decoder, received)
            value = _blocks.combine(decoder.matrix, received)
            if not allow_nan:
                check_range(*(_blocks.raw_numpy(leaf) for leaf in _blocks.flatten(value)[0]))
            if np.iscomplexobj(decoder.matrix) and not any(leaf.dtype.kind == "c" for leaf in parts.leaves):
                value = _real_again(value, decoder, received, noise)
            expected: float | None = None
            if noise is not None:
                arrays = [_blocks.raw_numpy(leaf) for leaf in _blocks.flatten(value)[0]]
                expected = noise_error(decoder, noise, received, all(array.dtype.kind != "c" for array in arrays))
                warn_of_noise(decoder, expected, arrays)
            if parts.listed:
                value = _blocks.unstack(value, parts.count)
            run.decode_seconds = time.perf_counter() - begun
            return Result(value, run, decoder, expected)

        result: Result = gather(
            engine,
            chosen.active,
            send,
            rule,
            chosen.sufficient,
            faults=faults,
            allow_nan=allow_nan,
            notify=notify,
            noise=noise,
            late=policy(late, chosen._looks_at_replies),
            use=use,
        )
        return result


def _libraries(parts: Blocks) -> list[str]:
    return [_blocks.library(leaf.like) for leaf in parts.leaves]


def _received(replies: list[Reply]) -> Blocks:
    """Screened replies as blocks; no copies."""
    if not replies:
        return Blocks(0, [], None, listed=False)
    first = replies[0]
    leaves = [
        _blocks.Leaf([reply.arrays[index].reshape(-1) for reply in replies], array.shape, array.dtype, like)
        for index, (array, like) in enumerate(zip(first.arrays, first.native, strict=True))
    ]
    return Blocks(len(replies), leaves, first.spec, listed=False)


def _real_again(value: Any, decoder: Decoder, received: Blocks, noise: Noise | None) -> Any:
    """Results of real blocks without the imaginary parts that a complex code leaves, if mere rounding and noise."""
    leaves, spec = _blocks.flatten(value)
    arrays = [_blocks.raw_numpy(leaf) for leaf in leaves]
    for array, leaf in zip(arrays, received.leaves, strict=True):
        largest = max((float(np.abs(row).max(initial=0.0)) for row in leaf.rows), default=0.0)
        rounding = 64 * float(np.finfo(leaf.dtype).eps) * decoder.lebesgue_constant * largest
        if noise is not None:
            deviations = [math.sqrt(noise.variance(row)) for row in leaf.rows]
            rounding += _DEVIATIONS * float(np.linalg.norm(decoder.matrix * deviations, axis=1).max())
        if not np.iscomplexobj(array) or not float(np.abs(array.imag).max(initial=0.0)) <= rounding:
            return value
    real = [_blocks.from_numpy(array.real.copy(), like) for array, like in zip(arrays, leaves, strict=True)]
    return optree.tree_unflatten(spec, real)


def _check(decoder: Decoder, received: Blocks) -> None:
    """Warn of a coarse answer, refuse one that rounding has eaten."""
    code, count = decoder.code, len(decoder.responders)
    epsilon = max((float(np.finfo(leaf.dtype).eps) for leaf in received.leaves), default=0.0)
    loss = epsilon * decoder.lebesgue_constant
    figures = f"{code!r}, {count} responders, Lebesgue constant {decoder.lebesgue_constant:.3g}"
    if not loss < _REFUSE:
        raise UnsafeDecode(
            f"decoding would amplify rounding (eps {epsilon:.1e}) to {loss:.1e} of the answer ({figures}): wait for "
            "more workers, use a higher precision, or a code with a smaller noise amplification"
        )
    if loss > _WARN:
        warn(f"rounding may cost {loss:.1e} of the answer ({figures})")
    coarse = decoder.residual > _COARSE * math.sqrt(len(decoder.matrix)) or decoder.worst_residual > _WORST
    if code.approximates(decoder.responders) and (coarse or not code.approximate):
        warn(
            f"{count} answers for {len(decoder.matrix)} blocks, or a gap among them, leave a coarse estimate: even "
            f"the identity would be recovered with a residual of {decoder.residual:.3g}, "
            f"{decoder.worst_residual:.3g} in the worst block, where no answer at all leaves "
            f"{math.sqrt(len(decoder.matrix)):.3g} and 1 ({figures}); wait for more workers"
        )


def check_range(*values: NDArray[Any]) -> None:
    """Refuse what overflowed in decoding: the replies were finite."""
    for array in values:
        if not _blocks.finite(array):
            raise UnsafeDecode(
                f"decoding exceeds the range of {array.dtype}, though all replies are finite: scale the blocks down, "
                "or use a code with a smaller noise amplification"
            )


def noise_error(decoder: Decoder, noise: Noise, received: Blocks, real: bool) -> float:
    """Root mean square error that the workers' noise leaves in an entry of the result; real results have half of it."""
    square, entries = 0.0, 0
    for leaf in received.leaves:
        deviations = [math.sqrt(noise.variance(row)) for row in leaf.rows]
        halved = 0.5 if real and leaf.dtype.kind == "c" else 1.0
        square += halved * decoder.expected_error(deviations) ** 2 * leaf.size
        entries += leaf.size
    return math.sqrt(square / max(entries, 1))


def warn_of_noise(decoder: Decoder, error: float, values: Sequence[NDArray[Any]]) -> None:
    """Say so where the expected error is a good part of the answer."""
    total, entries = math.fsum(float(np.linalg.norm(v)) ** 2 for v in values), math.fsum(v.size for v in values)
    size = math.sqrt(max(total / max(entries, 1) - error**2, 0.0))
    if error > _NOISY * size:
        warn(
            f"the workers' noise is expected to leave an error of {error:.3g} in entries of size {size:.3g}: "
            f"{len(decoder.responders)} answers of {decoder.code!r} amplify its variance "
            f"{decoder.noise_amplification:.3g} times; wait for more workers"
        )
