"""Training with torch on workers that stall, die or lie: `CodedGradient` fills ``p.grad``, the loop stays torch's.

Needs ``anyk[torch]``.
"""

from __future__ import annotations

import io
import math
import pickle
import random
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np
import optree
import torch
from numpy.typing import NDArray
from torch.nn.utils import parametrize

from . import mapping, summing
from .codes.base import DataCode
from .codes.gradient import GradientCode
from .errors import NotPicklable
from .mapping import Result
from .runtime import faults as _faults
from .runtime.stop import Progress, StopRule
from .runtime.workers import Workers

__all__ = ["CodedGradient", "soft_cross_entropy"]

_one_at_a_time = threading.Lock()  # torch's random stream and its module hooks belong to the whole process


def soft_cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean of -sum_c t_c log softmax(logits)_c, for targets that are mixtures: entries may be negative or exceed one.

    Examples
    --------
    >>> round(soft_cross_entropy(torch.zeros(1, 4), torch.tensor([[1.5, -0.5, 0.0, 0.0]])).item(), 6)
    1.386294
    """
    return -(targets * torch.log_softmax(logits, dim=-1)).sum(dim=-1).mean()


class CodedGradient:
    """Gradients of a model over partitions of the data, from whichever workers answer.

    Every worker has its own replica of the model, which gets the parameters, buffers and train/eval modes in each
    round. Dropout and augmentation draw from a stream for each (partition, round), the same on every worker that holds
    the partition; without that, replicas of a partition disagree and decoding amplifies the difference.

    Parameters
    ----------
    model : torch.nn.Module
        Stays where it is, on any device; workers compute on the CPU.
    loss : callable
        ``loss(model(inputs), targets)``: a scalar, the mean over the samples (see `reduction`), each as heavy as the
        others: means that are weighted by class, or leave samples out, are not what they are over the whole batch.
    code : GradientCode or DataCode
        A gradient code computes each partition on several workers and adds up exactly. A data code (`BerrutCode`) mixes
        the partitions of a mini-batch, inputs and one-hot targets alike, and yields an approximate gradient from
        one partition's work per worker.
    workers : Workers
    partitions : sequence of (inputs, targets), optional
        As many as the code has; placed on the workers once. Without, `backward` takes mini-batches.
    reduction : {"mean", "sum"}
        What `loss` does over samples. Partitions may differ in size: the result is the gradient of the loss over all
        samples together.
    augment : callable, optional
        ``augment(inputs)`` on the worker, before the model; may draw from torch, NumPy or `random`.
    seed : int
        Of the random streams.
    check : bool
        In the first round, wait for one answer more than needed, if it comes, and verify that replicas agree.

    Notes
    -----
    Batch normalisation sees one partition at a time; what changes in floating and integer buffers comes back as the
    mean over partitions. On `ThreadWorkers` replicas run one at a time, since torch has one random stream per process.
    Gradients come dense and in the parameters' dtype; half precisions travel as float32. Hooks of modules run on the
    workers, on replicas; hooks of parameters here, on the whole gradient. Contexts such as ``torch.autocast`` do not
    reach the workers: enter them in the model's ``forward``. Wrappers of ``torch.compile`` and data parallelism are
    taken off.

    Examples
    --------
    >>> import anyk
    >>> _ = torch.manual_seed(0)
    >>> x, y = torch.randn(40, 5), torch.randint(0, 3, (40,))
    >>> model = torch.nn.Linear(5, 3)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=1e-4)
    >>> code = anyk.GroupCode(workers=4, partitions=4, replicas=4, stragglers=1, adversaries=1)
    >>> with anyk.ThreadWorkers(4) as workers:
    ...     gradient = CodedGradient(model, torch.nn.CrossEntropyLoss(), code, workers)
    ...     for _ in range(3):
    ...         optimizer.zero_grad()
    ...         loss = gradient.backward(x, y).value
    ...         optimizer.step()
    >>> bool(loss < 2)
    True
    """

    def __init__(
        self,
        model: torch.nn.Module,
        loss: Callable[[Any, Any], torch.Tensor],
        code: GradientCode | DataCode,
        workers: Workers,
        partitions: Sequence[Any] | None = None,
        *,
        reduction: str = "mean",
        augment: Callable[[Any], Any] | None = None,
        seed: int = 0,
        check: bool = True,
    ) -> None:
        if not isinstance(model, torch.nn.Module):
            raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
        if not callable(loss):
            raise TypeError(f"loss must be callable, got {loss!r}")
        if not isinstance(code, GradientCode | DataCode):
            raise TypeError(f"code must be a GradientCode or a DataCode, got {code!r}")
        if reduction not in ("mean", "sum"):
            raise ValueError(f"reduction must be 'mean' or 'sum', got {reduction!r}")
        if partitions is not None and isinstance(code, DataCode):
            raise ValueError("a data code mixes mini-batches: pass them to backward, without partitions")
        if not isinstance(workers, Workers):
            raise TypeError(f"workers must be a Workers object such as LocalWorkers(8), got {workers!r}")
        if int(seed) < 0:
            raise ValueError(f"seed must be at least 0, got {seed}")
        self.model, self.loss, self.code, self.workers = _unwrapped(model), loss, code, workers
        if isinstance(loss, torch.nn.Module):
            own = {id(p) for p in self.model.parameters()}
            if any(p.requires_grad and id(p) not in own for p in loss.parameters()):
                raise ValueError(
                    "the loss has parameters of its own, which would get no gradient: make it part of model"
                )
        self.reduction, self.augment, self.seed, self.check = reduction, augment, int(seed), check
        self.round = 0
        self._checked = False
        self._parts = None if partitions is None else self._listed(list(partitions))
        self._classes: int | None = None

    def backward(
        self,
        inputs: Any = None,
        targets: Any = None,
        *,
        stop: StopRule | None = None,
        **options: Any,
    ) -> Result:
        """Add the gradient to every ``p.grad``, as ``loss.backward()`` would.

        Parameters
        ----------
        inputs, targets : tensors (or trees of tensors) with a leading axis of samples, optional
            A mini-batch, which is cut into partitions. Omitted where partitions were given to the constructor.
        stop : StopRule, optional
        **options
            Further keywords of `anyk.sum` (or `anyk.map`): ``faults``, ``tolerance``, ``on_event``, ``progress``.

        Returns
        -------
        Result
            Its `value` is the loss, a scalar tensor; ``run.liars`` and the rest as in `anyk.sum`.

        Raises
        ------
        TooManyErrors
            Replies contradict one another: liars beyond what the code can find.
        ReplicasDisagree
            They do so everywhere: the model draws from elsewhere than torch, NumPy and `random`, or keeps a state.
        TooFewResponders, TaskFailed, ...
            As in `anyk.sum`; ``p.grad`` is then as it was.
        """
        task = _Task(_packed(self.model, self.loss, self.augment), self.seed)
        modes = [module.training for module in self.model.modules()]
        arguments = (self.round, _name(torch.get_default_dtype()), modes, [_outgoing(t) for t in _tensors(self.model)])
        try:
            if isinstance(self.code, GradientCode):
                parts = self._given(inputs, targets)
                if stop is None and self.check and not self._checked:
                    stop = _OneMore(self.code.threshold)
                result = summing.sum(task, parts, self.code, self.workers, stop, arguments, **options)
                value = result.value
            else:
                blocks = self._mixed(inputs, targets, task.packed)
                share = 1 / self.code.blocks  # K blocks, whoever answers
                weight = 1.0 if self.reduction == "sum" else share
                result = mapping.map(
                    lambda block: task((0, *block, weight, share), *arguments),
                    blocks,
                    code=self.code,
                    workers=self.workers,
                    stop=stop,
                    **options,
                )
                value = optree.tree_map(lambda leaf: np.asarray(leaf).sum(axis=0), result.value)
        finally:
            with _one_at_a_time:
                task.over = True  # a thread that comes too late must not draw from the caller's random streams
        self._fill(value)
        self.round += 1
        self._checked = True
        return Result(torch.tensor(float(value["loss"]), dtype=torch.float64), result.run, result.decoder)

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs, beside the model's and the optimizer's own state: where the random streams are."""
        return {"round": self.round, "seed": self.seed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        self.round, self.seed = int(state["round"]), int(state["seed"])

    # -- data ---------------------------------------------------------------------------------------------------------

    def _given(self, inputs: Any, targets: Any) -> list[Any]:
        if inputs is None and targets is None:
            if self._parts is None:
                raise ValueError("there is nothing to go backward through: pass inputs and targets, or partitions")
            return self._parts
        if self._parts is not None:
            raise ValueError("partitions were given to the constructor: call backward() without a mini-batch")
        count = _count(inputs, targets)
        assert isinstance(self.code, GradientCode)
        if count < self.code.partitions:
            raise ValueError(f"a mini-batch of {count} samples cannot be cut into {self.code.partitions} partitions")
        edges = [count * k // self.code.partitions for k in range(self.code.partitions + 1)]
        batch: Any = (inputs, targets)
        return self._listed(
            [
                optree.tree_map(
                    lambda leaf, k=k: leaf[edges[k] : edges[k + 1]] if getattr(leaf, "ndim", 0) else leaf, batch
                )
                for k in range(len(edges) - 1)
            ]
        )

    def _listed(self, partitions: list[Any]) -> list[Any]:
        assert isinstance(self.code, GradientCode)
        if len(partitions) != self.code.partitions:
            raise ValueError(f"{self.code!r} is for {self.code.partitions} partitions, got {len(partitions)}")
        for part in partitions:
            if not isinstance(part, tuple | list) or len(part) != 2:
                raise TypeError(f"a partition must be a pair (inputs, targets), got {type(part).__name__}")
        sizes = [_count(*part) for part in partitions]
        shares = [size / math.fsum(sizes) for size in sizes]
        plain = [optree.tree_map(_host, part) for part in partitions]
        return [
            (k, *part, share if self.reduction == "mean" else 1.0, share)
            for k, (part, share) in enumerate(zip(plain, shares, strict=True))
        ]

    def _mixed(self, inputs: Any, targets: Any, packed: bytes) -> Any:
        """K equal blocks of inputs and of targets, these as one-hot rows where they are classes."""
        if inputs is None or targets is None:
            raise ValueError("a data code needs a mini-batch: pass inputs and targets")
        if not isinstance(inputs, torch.Tensor) or not isinstance(targets, torch.Tensor):
            raise TypeError("a data code mixes one tensor of inputs with one of targets: pass tensors")
        blocks, count = self.code.blocks, _count(inputs, targets)  # type: ignore[union-attr]
        if count % blocks:
            raise ValueError(
                f"a mini-batch of {count} samples cannot be cut into {blocks} equal blocks, as a data code needs: "
                "choose a multiple and drop_last=True"
            )
        if not torch.is_floating_point(inputs):
            raise TypeError(f"inputs of {inputs.dtype} cannot be mixed: a data code needs floating-point inputs")
        if not torch.is_floating_point(targets):
            if targets.ndim != 1:
                raise ValueError(
                    f"targets of shape {tuple(targets.shape)} are no classes: pass them one-hot, as floats"
                )
            if self._classes is None:
                model = _Unpickler(io.BytesIO(packed)).load()[0].eval()
                with torch.no_grad(), torch.random.fork_rng(devices=[]):
                    self._classes = int(model(inputs[:1].detach().cpu()).shape[-1])
            targets = torch.nn.functional.one_hot(targets.long(), self._classes).to(inputs.dtype)
        return tuple(_host(tensor).reshape(blocks, count // blocks, *tensor.shape[1:]) for tensor in (inputs, targets))

    def _fill(self, value: dict[str, Any]) -> None:
        trainable = [p for p in self.model.parameters() if p.requires_grad]
        gradients = [
            (p, torch.as_tensor(np.asarray(flat)).to(p.device, p.dtype))
            for p, flat, used in zip(trainable, value["gradients"], value["used"], strict=True)
            if abs(used) > 1e-3  # others are nowhere in the graph: torch leaves None, which optimizers skip
        ]
        with torch.no_grad():
            for buffer, change in zip(filter(_moves, self.model.buffers()), value["buffers"], strict=True):
                if np.any(change):
                    moved = buffer.cpu().double() + torch.as_tensor(np.asarray(change))
                    buffer.copy_(moved if buffer.is_floating_point() else moved.round())
        if gradients:  # as if they came out of the graph: they are added up, and hooks see them
            torch.autograd.backward(*zip(*gradients, strict=True))


@dataclass(repr=False)
class _OneMore(StopRule):
    """Enough answers, and more than `count`, for which the round lasts up to twice as long and a second."""

    count: int
    enough: float = math.inf  # seconds

    def met(self, progress: Progress) -> bool:
        if not progress.sufficient(progress.responders):
            return False
        self.enough = min(self.enough, progress.elapsed)
        return len(progress.responders) > self.count or not progress.pending or progress.elapsed >= 2 * self.enough + 1

    def possible(self, progress: Progress) -> bool:
        return progress.sufficient([*progress.responders, *progress.pending])

    def wakeups(self) -> tuple[float, ...]:
        return (2 * self.enough + 1,)

    def __repr__(self) -> str:
        return "Sufficient() and one answer more"


# -- on the worker ----------------------------------------------------------------------------------------------------


@dataclass
class _Task:
    """The gradient of one partition, on a replica of the thread's own."""

    packed: bytes
    seed: int
    over: bool = False  # seen where workers share the caller's memory

    def __call__(self, partition: tuple[Any, ...], round: int, default: str, *state: Any) -> dict[str, Any]:
        shared = not _faults.dedicated_process
        with _one_at_a_time if shared else nullcontext():
            if self.over:
                raise RuntimeError("the round is over")
            if not shared:
                torch.set_default_dtype(getattr(torch, default))
            draws = torch.default_generator  # of the CPU alone
            saved = (draws.get_state(), np.random.get_state(), random.getstate()) if shared else None  # noqa: NPY002
            try:
                stream = int(np.random.SeedSequence([self.seed, round, partition[0]]).generate_state(1, np.uint64)[0])
                draws.manual_seed(stream)
                np.random.seed(stream % (1 << 32))  # noqa: NPY002  what augmentations draw from
                random.seed(stream)
                with torch.enable_grad():
                    return self._gradient(*partition[1:], *state)
            finally:
                if saved is not None:
                    draws.set_state(saved[0])
                    np.random.set_state(saved[1])  # noqa: NPY002
                    random.setstate(saved[2])

    def _gradient(
        self,
        inputs: Any,
        targets: Any,
        weight: float,
        share: float,
        modes: Sequence[bool],
        tensors: Sequence[NDArray[Any]],
    ) -> dict[str, Any]:
        model, loss, augment = _replica(self.packed)
        for tensor, array in zip(_tensors(model), tensors, strict=True):
            _incoming(tensor, array)
        for module, training in zip(model.modules(), modes, strict=True):
            module.training = training
        before = {name: b.detach().clone() for name, b in model.named_buffers() if _moves(b)}
        x, y = (optree.tree_map(_native, part) for part in (inputs, targets))
        if augment is not None:
            x = augment(x)
        trainable = [p for p in model.parameters() if p.requires_grad]
        value = loss(model(x), y)
        if not isinstance(value, torch.Tensor) or value.ndim:
            got = f"shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
            raise ValueError(f"the loss must be a scalar tensor, got {got}: reduce it over the samples")
        gradients = torch.autograd.grad(value, trainable, allow_unused=True)
        kind = np.result_type(np.float32, *(_sent(p.detach().real.flatten()[:0]).dtype for p in trainable))
        after = dict(model.named_buffers())
        return {
            "gradients": [
                _sent(torch.zeros_like(p) if g is None else g.to_dense() if g.is_sparse else g, weight)
                for p, g in zip(trainable, gradients, strict=True)
            ],
            "used": np.array([g is not None for g in gradients], kind),
            "buffers": [(share * _change(b, after.get(name))).astype(kind) for name, b in before.items()],
            "loss": kind.type(weight * float(value.detach())),
        }


_replicas = threading.local()


def _replica(packed: bytes) -> Any:
    """The thread's own copy of what was packed; made again where a call has put other tensors into it."""
    kept = getattr(_replicas, "kept", None)
    if kept is None or kept[0] != packed or [*map(id, _tensors(kept[1][0]))] != [*map(id, kept[2])]:
        loaded = _Unpickler(io.BytesIO(packed)).load()
        kept = _replicas.kept = (packed, loaded, _tensors(loaded[0]))
    return kept[1]


def _change(before: torch.Tensor, after: torch.Tensor | None) -> NDArray[np.float64]:
    """How a buffer has moved; not at all where it stays infinite, or is another one now."""
    if after is None or after.shape != before.shape:
        after = before
    old, new = before.double(), after.detach().double()
    return np.asarray(torch.where((old == new) | old.isnan(), 0.0, new - old).numpy())


# -- packing a model without its numbers ------------------------------------------------------------------------------


class _Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]
    """Replaces parameters and buffers, which travel in every round anyway, by their layout; ties survive."""

    def __init__(self, file: io.BytesIO, tensors: Sequence[torch.Tensor]) -> None:
        super().__init__(file, 5)
        self._places = {id(tensor): place for place, tensor in enumerate(tensors)}

    def persistent_id(self, value: Any) -> Any:
        place = self._places.get(id(value))
        if place is None:
            return None
        parameter = isinstance(value, torch.nn.Parameter)
        return place, tuple(value.shape), _name(value.dtype), parameter, value.requires_grad

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, torch.nn.Module) and parametrize.is_parametrized(value):  # which torch refuses to pickle
            return object.__new__, (type(value),), value.__dict__
        if isinstance(value, torch.Tensor) and value.device.type != "cpu":
            return value.detach().cpu().__reduce_ex__(5)
        return super().reducer_override(value)


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self._made: dict[int, torch.Tensor] = {}

    def persistent_load(self, pid: Any) -> Any:
        place, shape, dtype, parameter, grad = pid
        if place not in self._made:
            empty = torch.zeros(shape, dtype=getattr(torch, dtype))
            self._made[place] = torch.nn.Parameter(empty, requires_grad=grad) if parameter else empty
        return self._made[place]


def _packed(model: torch.nn.Module, loss: Any, augment: Any) -> bytes:
    file = io.BytesIO()
    try:
        _Pickler(file, _tensors(model)).dump((model, loss, augment))
    except Exception as error:
        raise NotPicklable(
            f"the model, the loss or the augmentation cannot be copied to workers: {error}. Each has a replica of its "
            "own, on threads too: what only lives here (a lock, an open file, a generator) must be made inside"
        ) from error
    return file.getvalue()


def _unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    while True:
        if isinstance(model, torch.nn.DataParallel | torch.nn.parallel.DistributedDataParallel):
            model = model.module
        elif "_orig_mod" in model._modules:  # of torch.compile
            model = model._orig_mod
        else:
            return model


def _tensors(model: torch.nn.Module) -> list[torch.Tensor]:
    return [*model.parameters(), *model.buffers()]


def _moves(buffer: torch.Tensor) -> bool:
    return not buffer.is_complex() and buffer.dtype != torch.bool


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _outgoing(tensor: torch.Tensor) -> NDArray[Any]:
    host = tensor.detach().cpu().contiguous()
    return np.asarray((host.view(torch.int16) if host.dtype == torch.bfloat16 else host).numpy())


def _incoming(tensor: torch.Tensor, array: NDArray[Any]) -> None:
    raw = tensor.detach()
    np.copyto((raw.view(torch.int16) if raw.dtype == torch.bfloat16 else raw).numpy(), array)


def _host(value: Any) -> Any:
    """Tensors as NumPy arrays, whose memory all workers of a machine share; those that NumPy has not as they are."""
    if not isinstance(value, torch.Tensor):
        return value
    host = value.detach().cpu()
    try:
        return host.numpy()
    except (TypeError, RuntimeError):
        return host.clone()


def _native(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    return torch.tensor(value) if isinstance(value, np.ndarray) else value


def _sent(gradient: torch.Tensor, weight: float = 1.0) -> NDArray[Any]:
    half = gradient.dtype in (torch.float16, torch.bfloat16)
    return np.asarray((weight * (gradient.float() if half else gradient)).resolve_conj().numpy())


def _count(inputs: Any, targets: Any) -> int:
    both: Any = (inputs, targets)
    sizes = {len(leaf) for leaf in optree.tree_leaves(both) if getattr(leaf, "ndim", 0)}
    if len(sizes) != 1 or sizes == {0}:
        raise ValueError(f"inputs and targets need one leading axis of samples, got lengths {sorted(sizes)}")
    return int(sizes.pop())
