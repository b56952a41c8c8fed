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

from . import mapping, summing
from .codes.base import DataCode
from .codes.gradient import GradientCode
from .mapping import Result
from .runtime import faults as _faults
from .runtime.stop import All, FirstK, StopRule, Sufficient
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
        ``loss(model(inputs), targets)``: a scalar, the mean over the samples (see `reduction`).
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
        In the first round, wait for one answer more than needed and verify that replicas agree.

    Notes
    -----
    Batch normalisation sees one partition at a time; running statistics (all floating buffers) come back as the mean
    over partitions. On `ThreadWorkers` replicas run one at a time, since torch has one random stream per process.
    Gradients come in the parameters' dtype; bfloat16 ones travel as float32.

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
        self.model, self.loss, self.code, self.workers = model, loss, code, workers
        self.reduction, self.augment, self.seed, self.check = reduction, augment, int(seed), check
        self.round = 0
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
            Replies contradict one another: liars beyond what the code can find, or replicas that disagree.
        TooFewResponders, TaskFailed, ...
            As in `anyk.sum`; ``p.grad`` is then as it was.
        """
        task = _Task(_packed(self.model, self.loss, self.augment), self.seed, self.reduction)
        arguments = (self.round, _modes(self.model), [_outgoing(t) for t in _tensors(self.model)])
        if isinstance(self.code, GradientCode):
            parts = self._given(inputs, targets)
            if stop is None and self.check and self.round == 0:
                stop = All() | (Sufficient() & FirstK(min(self.code.threshold + 1, len(self.code.active))))
            result = summing.sum(task, parts, self.code, self.workers, stop, arguments, **options)
            value = result.value
        else:
            blocks = self._mixed(inputs, targets)
            result = mapping.map(
                lambda block: task((0, *block, 1.0), *arguments),
                blocks,
                code=self.code,
                workers=self.workers,
                stop=stop,
                **options,
            )
            scale = 1.0 if self.reduction == "sum" else 1 / self.code.blocks  # K blocks, whoever answered
            value = optree.tree_map(lambda leaf: np.asarray(leaf).sum(axis=0) * scale, result.value)
        self._fill(value)
        self.round += 1
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
            [optree.tree_map(lambda leaf, k=k: leaf[edges[k] : edges[k + 1]], batch) for k in range(len(edges) - 1)]
        )

    def _listed(self, partitions: list[Any]) -> list[Any]:
        assert isinstance(self.code, GradientCode)
        if len(partitions) != self.code.partitions:
            raise ValueError(f"{self.code!r} is for {self.code.partitions} partitions, got {len(partitions)}")
        sizes = [_count(*part) for part in partitions]
        total = math.fsum(sizes) if self.reduction == "mean" else 1.0
        weights = [size / total if self.reduction == "mean" else 1.0 for size in sizes]
        plain = [optree.tree_map(_host, part) for part in partitions]
        return [(k, *part, weight) for k, (part, weight) in enumerate(zip(plain, weights, strict=True))]

    def _mixed(self, inputs: Any, targets: Any) -> Any:
        """K equal blocks of inputs and of targets, these as one-hot rows where they are classes."""
        if inputs is None or targets is None:
            raise ValueError("a data code needs a mini-batch: pass inputs and targets")
        blocks, count = self.code.blocks, _count(inputs, targets)  # type: ignore[union-attr]
        if count % blocks:
            raise ValueError(
                f"a mini-batch of {count} samples cannot be cut into {blocks} equal blocks, as a data code needs: "
                "choose a multiple and drop_last=True"
            )
        if not torch.is_floating_point(inputs):
            raise TypeError(f"inputs of {inputs.dtype} cannot be mixed: a data code needs floating-point inputs")
        if not torch.is_floating_point(targets):
            if self._classes is None:
                self._classes = self._outputs(inputs[:1])
            targets = torch.nn.functional.one_hot(targets, self._classes).to(inputs.dtype)
        return tuple(_host(tensor).reshape(blocks, count // blocks, *tensor.shape[1:]) for tensor in (inputs, targets))

    def _outputs(self, sample: Any) -> int:
        modes = _modes(self.model)
        with torch.no_grad(), torch.random.fork_rng():
            self.model.eval()
            outputs = self.model(sample)
        for module, training in zip(self.model.modules(), modes, strict=True):
            module.training = training
        return int(outputs.shape[-1])

    def _fill(self, value: dict[str, Any]) -> None:
        trainable = [p for p in self.model.parameters() if p.requires_grad]
        with torch.no_grad():
            for p, flat, used in zip(trainable, value["gradients"], value["used"], strict=True):
                if abs(used) < 1e-3:  # nowhere in the graph: torch leaves None, which optimizers skip
                    continue
                gradient = torch.as_tensor(np.asarray(flat)).to(p.device, p.dtype)
                if p.grad is None:
                    p.grad = gradient.clone()
                else:
                    p.grad += gradient
            buffers = [b for b in self.model.buffers() if b.is_floating_point()]
            for buffer, mean in zip(buffers, value["buffers"], strict=True):
                buffer.copy_(torch.as_tensor(np.asarray(mean)).to(buffer.device, buffer.dtype))
            for buffer, mean in zip(_counters(self.model), value["counters"], strict=True):
                buffer.copy_(torch.as_tensor(np.asarray(mean)).round().to(buffer.device, buffer.dtype))


# -- on the worker ----------------------------------------------------------------------------------------------------


@dataclass
class _Task:
    """The gradient of one partition, on a replica of the thread's own."""

    packed: bytes
    seed: int
    reduction: str

    def __call__(
        self, partition: tuple[Any, ...], round: int, modes: Sequence[bool], tensors: Sequence[NDArray[Any]]
    ) -> dict[str, Any]:
        k, inputs, targets, weight = partition
        shared = not _faults.dedicated_process
        with _one_at_a_time if shared else nullcontext():
            saved = (torch.get_rng_state(), np.random.get_state(), random.getstate()) if shared else None  # noqa: NPY002
            try:
                return self._gradient(k, inputs, targets, weight, round, modes, tensors)
            finally:
                if saved is not None:
                    torch.set_rng_state(saved[0])
                    np.random.set_state(saved[1])  # noqa: NPY002
                    random.setstate(saved[2])

    def _gradient(
        self,
        k: int,
        inputs: Any,
        targets: Any,
        weight: float,
        round: int,
        modes: Sequence[bool],
        tensors: Sequence[NDArray[Any]],
    ) -> dict[str, Any]:
        model, loss, augment = _replica(self.packed)
        own = _tensors(model)
        for tensor, array in zip(own, tensors, strict=True):
            _incoming(tensor, array)
        for module, training in zip(model.modules(), modes, strict=True):
            module.training = training
        stream = int(np.random.SeedSequence([self.seed, round, k]).generate_state(1, np.uint64)[0])
        torch.manual_seed(stream)
        np.random.seed(stream % (1 << 32))  # noqa: NPY002  what augmentations draw from
        random.seed(stream)
        x, y = (optree.tree_map(_native, part) for part in (inputs, targets))
        if augment is not None:
            x = augment(x)
        trainable = [p for p in model.parameters() if p.requires_grad]
        value = loss(model(x), y)
        if value.ndim:
            raise ValueError(f"the loss must be a scalar, got shape {tuple(value.shape)}: reduce it over the samples")
        gradients = torch.autograd.grad(value, trainable, allow_unused=True)
        kind = np.result_type(np.float16, *(_half(p) for p in trainable))
        return {
            "gradients": [
                np.zeros(tuple(p.shape), _half(p))
                if g is None
                else weight * (g.to_dense() if g.is_sparse else g).to(_wide(g)).numpy()
                for p, g in zip(trainable, gradients, strict=True)
            ],
            "used": np.array([g is not None for g in gradients], kind),
            "buffers": [self._share(b, weight, kind) for b in model.buffers() if b.is_floating_point()],
            "counters": [self._share(b, weight, kind) for b in _counters(model)],
            "loss": kind.type(weight * float(value.detach())),
        }

    def _share(self, buffer: torch.Tensor, weight: float, kind: np.dtype[Any]) -> NDArray[Any]:
        share = weight if self.reduction == "mean" else 0.0
        return np.asarray(share * buffer.detach().double().numpy(), kind)


_replicas = threading.local()


def _replica(packed: bytes) -> Any:
    """The thread's own copy of what was packed."""
    kept = getattr(_replicas, "kept", None)
    if kept is None or kept[0] != packed:
        kept = _replicas.kept = (packed, _Unpickler(io.BytesIO(packed)).load())
    return kept[1]


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
        return place, tuple(value.shape), str(value.dtype).removeprefix("torch."), parameter, value.requires_grad


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
    grads = [(p, p.grad) for p in model.parameters()]
    try:
        for p, _ in grads:
            p.grad = None
        _Pickler(file, _tensors(model)).dump((model, loss, augment))
    finally:
        for p, grad in grads:
            p.grad = grad
    return file.getvalue()


def _tensors(model: torch.nn.Module) -> list[torch.Tensor]:
    return [*model.parameters(), *model.buffers()]


def _counters(model: torch.nn.Module) -> list[torch.Tensor]:
    return [b for b in model.buffers() if not b.is_floating_point() and not b.is_complex() and b.dtype != torch.bool]


def _modes(model: torch.nn.Module) -> tuple[bool, ...]:
    return tuple(module.training for module in model.modules())


def _outgoing(tensor: torch.Tensor) -> NDArray[Any]:
    host = tensor.detach().cpu().contiguous()
    return np.asarray((host.view(torch.int16) if host.dtype == torch.bfloat16 else host).numpy())


def _incoming(tensor: torch.Tensor, array: NDArray[Any]) -> None:
    raw = tensor.detach()
    np.copyto((raw.view(torch.int16) if raw.dtype == torch.bfloat16 else raw).numpy(), array)


def _host(value: Any) -> Any:
    """Tensors as NumPy arrays, whose memory all workers of a machine share."""
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value


def _native(value: Any) -> Any:
    return torch.from_numpy(value.copy()) if isinstance(value, np.ndarray) else value


def _wide(tensor: torch.Tensor) -> torch.dtype:
    return torch.float32 if tensor.dtype == torch.bfloat16 else tensor.dtype


def _half(tensor: torch.Tensor) -> np.dtype[Any]:
    return np.dtype(str(_wide(tensor)).removeprefix("torch."))


def _count(inputs: Any, targets: Any) -> int:
    both: Any = (inputs, targets)
    sizes = {len(leaf) for leaf in optree.tree_leaves(both) if getattr(leaf, "ndim", 0)}
    if len(sizes) != 1:
        raise ValueError(f"inputs and targets need one leading axis of samples, got lengths {sorted(sizes)}")
    return int(sizes.pop())
