"""The verb `anyk.sum`: the sum of a function over partitions that stay on their workers, in coded messages."""

from __future__ import annotations

import functools
import math
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import optree
from numpy.typing import NDArray

from . import blocks as _blocks
from . import streams
from .codes.base import Decoder
from .codes.gradient import GradientCode, rounding, shortfall, split_chunks
from .codes.group import GroupCode
from .codes.polynomial_of_sum import PolynomialOfSumCode, matrix_polynomial
from .digest import digest
from .errors import BlocksError, TooFewResponders, UnsafeDecode, warn
from .locate import check_tolerance, locate
from .mapping import MOST_UNASKED, Result, check_call, check_late, number_of, opened
from .runtime.connect import connect
from .runtime.events import RoundEvent, Run, Traffic
from .runtime.faults import Fault
from .runtime.late import Late
from .runtime.late import chosen as policy
from .runtime.progress import listening
from .runtime.rounds import Reply, alone, gather
from .runtime.stop import StopRule, Sufficient
from .runtime.workers import Workers

__all__ = ["sum"]

_WARN, _REFUSE = 1e-3, 0.1  # share of the sum that rounding of the messages may cost
_COARSE, _INEXACT = 0.6, 1e-6  # share that an approximate and an exact code may miss without a word
_SEARCH = 10.0  # seconds that finding liars may take in one round
_STALE = "computed with other parameters: an update was lost, or the function changes its arguments in place"
_PLACEMENTS = 4  # sets of partitions that an engine's workers keep


@dataclass
class _Placed:
    """Partitions that have been handed to an engine; the references keep them there."""

    kept: list[Any]  # the caller's own objects, so that no others take their identities meanwhile
    references: list[Any]
    numbers: list[int]
    held: dict[int, set[int]] = field(default_factory=dict)  # by worker
    shares: OrderedDict[GradientCode, dict[int, tuple[Any, list[int]]]] = field(default_factory=OrderedDict)


_placed: weakref.WeakKeyDictionary[Any, OrderedDict[Any, _Placed]] = weakref.WeakKeyDictionary()
_stale: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()  # replies with other parameters, so far


def _message(state: dict[str, Any], job: Any, share: Any, parameters: Any, *held: Any) -> Any:
    """On the worker: the function of each partition held, combined into one message, and what its result looks like.

    Under the digest of the parameters as they are in the end: the function may have changed them.
    """
    (fn, polynomial), (numbers, share), (args, seeds, _) = job, share, parameters
    total: Any = None
    shape: Any = None
    # Where all are combined alike they are added up first: contributions that cancel leave the same on every worker.
    alike = polynomial is None and bool((share == share[0]).all())
    for number, partition, coefficients in zip(numbers, held, share, strict=True):
        own = {} if seeds is None else {"rng": streams.of_partition(seeds, number)}
        value = fn(partition, *args, **own)
        native, spec = _blocks.flatten(value)
        arrays = [_blocks.to_numpy(leaf) for leaf in native if leaf is not None]
        if not arrays or len(arrays) < len(native):
            raise TypeError("the function must return arrays or numbers for every partition, got None or nothing")
        layout = (spec, [(array.shape, array.dtype) for array in arrays])
        if shape is None:
            shape, like, dtype = layout, native, np.result_type(*arrays)
        elif layout != shape:
            raise ValueError(
                f"the function returned {_blocks.describe(*shape_of(layout))} for one partition and "
                f"{_blocks.describe(*shape_of(shape))} for another: gradients of all partitions must be alike"
            )
        if polynomial is not None:
            if len(arrays) > 1 or arrays[0].ndim != 2 or arrays[0].shape[0] != arrays[0].shape[1]:
                raise ValueError("a polynomial of a sum needs one square matrix for every partition")
            part = coefficients[0] * arrays[0]
        else:
            flat = arrays[0].reshape(-1) if len(arrays) == 1 else np.concatenate([a.reshape(-1) for a in arrays])
            # In float64, rounded once below.
            flat = flat.astype(np.result_type(flat, np.float64), copy=False)
            part = flat if alike else coefficients @ split_chunks(flat, len(coefficients))
        total = part if total is None else total + part
    if polynomial is not None:
        total = matrix_polynomial(polynomial, total).reshape(-1)
    elif alike:
        total = share[0] @ split_chunks(total, len(share[0]))
    dtype = np.result_type(dtype, np.float32)  # half precision has no room for large coefficients
    dtype = np.result_type(dtype, np.complex64) if np.iscomplexobj(total) else dtype
    skeleton = [
        _blocks.in_library(np.empty((0, *array_shape), array_dtype), _blocks.library(leaf))
        for (array_shape, array_dtype), leaf in zip(shape[1], like, strict=True)
    ]
    return {digest(parameters): (total.astype(dtype), optree.tree_unflatten(shape[0], skeleton))}


def shape_of(layout: tuple[Any, list[tuple[Any, Any]]]) -> tuple[Any, list[NDArray[Any]]]:
    """A layout as what `describe` takes."""
    spec, kinds = layout
    return spec, [np.broadcast_to(np.zeros((), dtype), shape) for shape, dtype in kinds]


def _listed(partitions: Any) -> tuple[list[Any], Any, list[Any]]:
    """The partitions one by one, a key that is the same for the same objects, and the objects that it is made of."""
    if isinstance(partitions, Iterator):
        raise BlocksError(f"partitions: got a {type(partitions).__name__}; put them into a list first")
    if isinstance(partitions, list):
        kept = list(partitions)  # the caller may change the list
        return kept, ("list", *map(id, kept)), kept
    if isinstance(partitions, tuple | dict) or hasattr(partitions, "shape"):
        leaves, spec = optree.tree_flatten(partitions)
        if not leaves or any(getattr(leaf, "ndim", 0) == 0 for leaf in leaves):
            raise BlocksError(
                "partitions: every array needs a leading axis that enumerates the partitions; put partitions that "
                "are something else into a list"
            )
        counts = {len(leaf) for leaf in leaves}
        if len(counts) > 1:
            raise BlocksError(f"partitions: the leading axes must be equally long, got {sorted(counts)}")
        listed = [optree.tree_unflatten(spec, [leaf[k] for leaf in leaves]) for k in range(counts.pop())]
        return listed, ("arrays", spec, *map(id, leaves)), leaves
    if isinstance(partitions, Sequence) and not isinstance(partitions, str | bytes):
        return list(partitions), ("sequence", id(partitions)), [partitions]
    raise BlocksError(f"partitions must be a list, or arrays with a leading axis, got {type(partitions).__name__}")


def _numbers(value: Any) -> int:
    """Array entries and numbers inside a value, as far as they can be seen."""
    leaves = optree.tree_leaves(value)
    return int(
        math.fsum(math.prod(leaf.shape) if hasattr(leaf, "shape") else isinstance(leaf, int | float) for leaf in leaves)
    )


def _place(engine: Workers, listed: list[Any], key: Any, kept: list[Any]) -> _Placed:
    known = _placed.setdefault(engine, OrderedDict())
    if key not in known:
        references = [engine.publish(partition) for partition in listed]
        known[key] = _Placed(kept, references, [_numbers(partition) for partition in listed])
        while len(known) > _PLACEMENTS:
            known.popitem(last=False)
    known.move_to_end(key)
    return known[key]


def _default_code(workers: Any, count: int) -> GradientCode:
    n = number_of(workers, count)
    if workers is None and n > MOST_UNASKED:
        raise ValueError(f"{count} partitions would start {n} processes: pass workers=, or group the partitions")
    return _two_copies(n, count)


@functools.lru_cache(maxsize=16)
def _two_copies(workers: int, partitions: int) -> GroupCode:
    """Kept, with its decoders, for the next round."""
    copies = min(2, workers)
    return GroupCode(workers, partitions, replicas=copies, stragglers=copies - 1)


def sum(
    fn: Callable[..., Any],
    partitions: Any,
    code: GradientCode | None = None,
    workers: Workers | int | str | None = None,
    stop: StopRule | None = None,
    args: tuple[Any, ...] = (),
    *,
    rng: int | np.random.Generator | None = None,
    faults: Mapping[int, Fault] | None = None,
    tolerance: float | None = None,
    late: Late | None = None,
    progress: bool | None = None,
    on_event: Callable[[RoundEvent], None] | None = None,
) -> Result:
    """The sum of ``fn(partition, *args)`` over all partitions, from whichever workers answer.

    Partitions are placed on the workers that hold them at the first call and stay there: later calls with the same
    objects send `args` only. Each worker calls `fn` for every partition that it holds, combines chunks of the results,
    and sends back ``d / code.chunks`` numbers. Liars are located and left out.

    Parameters
    ----------
    fn : callable
        Returns an array, a number, or a dict, list or tuple of those, alike for all partitions. It must return the same
        on every worker: draw what is random from `rng`, or replicas disagree.
    partitions
        K of them: a list of anything that can be pickled, or an array (a dict or tuple of arrays) with a leading axis.
        What is changed in place after the first call is not seen by the workers: pass new objects.
    code : GradientCode, optional
        Default: `GroupCode` with two copies of each partition, for one straggler.
    workers : Workers, int or str, optional
        As in `anyk.map`. Default: as many local processes, for this call, as the code has workers. Keep a
        `LocalWorkers` for many calls.
    stop : StopRule, optional
        Default: the first sufficient answers. A rule that takes fewer yields the least-squares estimate of the sum,
        with a warning that states its residual.
    args : tuple
        Further arguments of `fn`, such as the parameters of a model; sent to every worker in every call. `fn` must not
        change them in place: replies carry a digest of the arrays, numbers and strings that were used, and one that
        differs is an erasure.
    rng : int or numpy.random.Generator, optional
        `fn` is called as ``fn(partition, *args, rng=stream)``, with a generator that starts the same on every worker
        that holds the partition. An integer gives the same streams in every call, ``default_rng(rng).spawn(K)[k]`` for
        partition k; from a generator each call spawns a new one, so that it goes on from call to call.
    faults : mapping of worker to fault, optional
        Inflicted on this round, for tests and demonstrations.
    tolerance : float, optional
        As in `anyk.locate`.
    late, progress, on_event
        As in `anyk.map`.

    Returns
    -------
    Result
        Its `value` has the structure, shapes and floating dtypes of fn's results (integers become float64);
        ``run.liars`` and ``run.traffic`` tell who lied and what was sent.

    Raises
    ------
    TooManyErrors
        The replies contradict one another and it cannot be told who lies, though all that could answer have.
    ReplicasDisagree
        They do so everywhere: the function does not return the same on every worker.
    TooFewResponders, TaskFailed, DisagreeingReplies, NotPicklable
        As in `anyk.map`.
    UnsafeDecode
        Rounding alone would spoil the sum.

    Warns
    -----
    ApproximationWarning
        Fewer answers than an exact sum needs, or a noticeable loss by rounding.

    Examples
    --------
    >>> import anyk
    >>> code = anyk.NullSpaceCode(anyk.cyclic_placement(8, 8, 5), stragglers=2, adversaries=1)
    >>> data = np.arange(24.0).reshape(8, 3)
    >>> faults = {1: anyk.Raise(), 6: anyk.Corrupt("negate")}
    >>> with anyk.ThreadWorkers(8) as workers:
    ...     total = anyk.sum(np.square, data, code, workers, stop=anyk.All(), faults=faults)
    >>> np.round(total.value, 6), total.run.liars
    (array([1260., 1436., 1628.]), (6,))

    What is random comes from `rng`, and is the same whoever answers:

    >>> def noisy(row, scale, *, rng):
    ...     return row + scale * rng.standard_normal(3)
    >>> with anyk.ThreadWorkers(8) as workers:
    ...     total = anyk.sum(noisy, data, code, workers, args=(0.1,), rng=5, faults={2: anyk.Raise()})
    >>> streams = np.random.default_rng(5).spawn(8)
    >>> np.allclose(total.value, np.sum([noisy(row, 0.1, rng=rng) for row, rng in zip(data, streams)], axis=0))
    True
    """
    if isinstance(workers, str):
        with connect(workers, None if code is None else code.workers) as engine:
            return sum(
                fn, partitions, code, engine, stop, args, rng=rng,
                faults=faults, tolerance=tolerance, late=late, progress=progress, on_event=on_event,
            )  # fmt: skip
    if not isinstance(args, tuple):
        raise TypeError(f"args must be a tuple of further arguments, got {args!r}")
    check_tolerance(tolerance)
    check_late(late)
    seeds = None if rng is None else streams.of_round(rng)
    listed, key, kept = _listed(partitions)
    if not listed:
        raise BlocksError("partitions: there are none")
    if code is None:
        check_call(fn, workers, stop, faults)
        code = _default_code(workers, len(listed))
    if not isinstance(code, GradientCode):
        raise TypeError(f"code must be a gradient code such as NullSpaceCode(placement, stragglers=2), got {code!r}")
    if len(listed) != code.partitions:
        raise BlocksError(f"partitions: {code!r} is for {code.partitions}, got {len(listed)}")
    check_call(fn, workers, stop, faults, code.workers)
    chosen = code
    rule = stop if stop is not None else Sufficient()
    rule.check(len(chosen.active))
    if stop is None and not chosen.sufficient(chosen.active):
        raise TooFewResponders(
            f"{chosen!r} needs {chosen.threshold} answers, but only {len(chosen.active)} workers hold a partition"
        )
    exposed: set[int] = set()
    answered: set[int] = set()
    with ExitStack() as stack:
        tell = stack.enter_context(listening(progress, chosen.workers, on_event))

        def notify(event: RoundEvent) -> None:
            if event.kind == "failed" and str(event.detail).startswith("returned "):
                assert event.worker is not None
                exposed.add(event.worker)
            elif event.kind == "answered":
                assert event.worker is not None
                answered.add(event.worker)
            elif event.kind == "restarted":
                assert event.worker is not None
                for placement in _placed[engine].values():
                    placement.held.pop(event.worker, None)
            if tell is not None:
                tell(event)

        engine = stack.enter_context(opened(workers, chosen.workers))
        stack.enter_context(alone(engine))
        placed = _place(engine, listed, key, kept)
        shares = placed.shares.setdefault(chosen, {})
        placed.shares.move_to_end(chosen)
        while len(placed.shares) > _PLACEMENTS:
            placed.shares.popitem(last=False)
        polynomial = chosen.polynomial if isinstance(chosen, PolynomialOfSumCode) else None
        job = engine.publish((fn, polynomial))
        # What a worker holds may be spoilt: an engine that knows an equal value by its number must send it again.
        meant = (args, seeds, _stale.get(engine, 0))
        parameters, expected = engine.publish(meant), digest(meant)
        each = _numbers(args)
        sent = [0, 0]

        def send(who: Sequence[int], by: Mapping[int, int]) -> Iterator[tuple[int, Any, tuple[Any, ...]]]:
            for worker in who:
                if worker not in shares:
                    held, coefficients = chosen.share(worker)
                    shares[worker] = engine.publish((held, coefficients)), held.tolist()
                share, mine = shares[worker]
                there = placed.held.setdefault(by.get(worker, worker), set())
                sent[0] += each
                sent[1] += int(np.sum([placed.numbers[k] for k in mine if k not in there]))
                there.update(mine)
                yield worker, _message, (job, share, parameters, *(placed.references[k] for k in mine))

        def inspect(reply: Reply) -> Reply | str:
            keys = reply.spec.entries() if reply.spec.type is dict else []
            if len(keys) != 1 or not isinstance(keys[0], str) or len(keys[0]) != len(expected):
                return "returned no digest of its parameters"
            if keys[0] != expected:
                _stale[engine] = _stale.get(engine, 0) + 1
                return _STALE
            return Reply(reply.native, reply.arrays, reply.spec.children()[0])

        def sufficient(who: Collection[int]) -> bool:
            # Whoever has answered and is not among them has sent another shape than the majority.
            return chosen.sufficient(who, exposed | (answered - set(who)) if chosen.adversaries else ())

        deadline = math.inf

        def use(replies: dict[int, Reply], run: Run, error: Callable[[str], Exception]) -> Result:
            nonlocal deadline
            if not replies:
                raise error("nobody answered")
            begun = time.perf_counter()
            deadline = min(deadline, time.monotonic() + _SEARCH)
            messages = {worker: reply.arrays[0].reshape(-1) for worker, reply in replies.items()}
            skeleton = next(iter(replies.values()))
            budget = max(deadline - time.monotonic(), 1.0)
            lying = locate(chosen, messages, messages, tolerance=tolerance, seconds=budget)
            run.liars = tuple(sorted({*lying, *exposed}))
            run.responders = tuple(worker for worker in run.responders if worker not in lying)
            try:
                decoder = chosen.decoder(run.responders)
            except TooFewResponders as short:
                raise error(str(short)) from None
            honest = [messages[worker] for worker in run.responders]
            enough = chosen.sufficient([*run.responders, *lying], exposed)
            _check(decoder, honest, enough)
            value = _restore(decoder.matrix, honest, skeleton)
            received = int(np.sum([message.size for message in messages.values()]))
            run.traffic = Traffic(sent[0], received, sent[1])
            run.decode_seconds = time.perf_counter() - begun
            return Result(value, run, decoder)

        result: Result = gather(
            engine,
            chosen.active,
            send,
            rule,
            sufficient,
            faults=faults,
            notify=notify,
            late=policy(late, chosen.adversaries > 0),
            inspect=inspect,
            use=use,
        )
        return result


def _restore(matrix: NDArray[Any], messages: list[NDArray[Any]], like: Reply) -> Any:
    """The chunks of the sum, put together again as what the function returned."""
    first = messages[0]
    leaf = _blocks.Leaf(messages, first.shape, first.dtype, first)
    out = np.empty((len(matrix), first.size), np.result_type(matrix, first.dtype, np.float64))
    _blocks.apply(matrix, leaf, out, double=True)
    flat, leaves, offset = out.reshape(-1), [], 0
    for array, native in zip(like.arrays[1:], like.native[1:], strict=True):
        shape = array.shape[1:]
        size = math.prod(shape)
        part = flat[offset : offset + size].reshape(shape)
        if np.iscomplexobj(part) and not np.iscomplexobj(array):  # complex codes of real data
            part = part.real
        with np.errstate(over="ignore"):
            total = part.astype(array.dtype)
        if not _blocks.finite(total):
            raise UnsafeDecode(f"the sum exceeds the range of {array.dtype}: compute in a higher precision")
        leaves.append(_blocks.from_numpy(total, native))
        offset += size
    return optree.tree_unflatten(like.spec.children()[1], leaves)


def _check(decoder: Decoder, messages: list[NDArray[Any]], enough: bool) -> None:
    """Warn of an approximate sum, of liars that could not show and of rounding; refuse where it eats the sum."""
    code, workers, dtype = decoder.code, decoder.responders, messages[0].dtype
    assert isinstance(code, GradientCode)
    linear = not isinstance(code, PolynomialOfSumCode)
    missed = shortfall(code, decoder.matrix, workers)
    loss = float(np.finfo(dtype).eps) * rounding(code, decoder.matrix, workers) if linear else 0.0
    figures = f"{code!r}, {len(workers)} responders, noise amplification {decoder.noise_amplification:.3g}"
    if not loss < _REFUSE or not (missed < _REFUSE or code.approximate or not enough):
        raise UnsafeDecode(
            f"decoding would amplify the rounding of {dtype} messages to {max(loss, missed):.1e} of the sum "
            f"({figures}): wait for more workers, compute in a higher precision, or use a code with more replicas"
        )
    if loss > _WARN:
        warn(f"rounding of {dtype} messages may cost {loss:.1e} of the sum ({figures})")
    if missed > (_COARSE if code.approximate else _INEXACT):
        warn(
            f"{len(workers)} answers are too few for an exact sum: the estimate is off by about {missed:.2g} of the "
            f"sum where partial results are unlike one another, 1 being no answer at all ({figures})"
        )
    elif code.adversaries and not enough:
        warn(
            f"{len(workers)} answers are enough for a sum but not for finding {code.adversaries} liars among them: "
            f"none of them may lie ({figures})"
        )
