"""Training without torch: logistic regression and small networks in NumPy, on coded gradients."""

from __future__ import annotations

import itertools
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import mapping, streams, summing
from .codes.base import DataCode
from .codes.gradient import GradientCode
from .mapping import Result
from .runtime.faults import Fault
from .runtime.stop import StopRule
from .runtime.workers import Workers

__all__ = ["Network", "Training", "partition_samples"]

Array = NDArray[np.float64]


def partition_samples(
    labels: ArrayLike, partitions: int, skew: Literal["iid", "by-class"] = "iid", seed: int = 0
) -> list[NDArray[np.intp]]:
    """Indices of the samples in each partition: shuffled, or sorted by label so that a partition holds few classes.

    Examples
    --------
    >>> partition_samples([1, 0, 1, 0], 2, "by-class")
    [array([1, 3]), array([0, 2])]
    """
    classes = np.asarray(labels)
    if skew not in ("iid", "by-class"):
        raise ValueError(f"skew must be 'iid' or 'by-class', got {skew!r}")
    if not 1 <= partitions <= len(classes):
        raise ValueError(f"{len(classes)} samples cannot be cut into {partitions} partitions")
    order = (
        np.argsort(classes, kind="stable")
        if skew == "by-class"
        else np.random.default_rng(seed).permutation(len(classes))
    )
    return [np.asarray(part) for part in np.array_split(order, partitions)]


@dataclass(frozen=True)
class Network:
    """A tanh network with softmax outputs and cross-entropy loss; with two sizes it is logistic regression.

    Parameters
    ----------
    sizes : tuple of int
        Inputs, hidden layers, classes.

    Examples
    --------
    >>> network = Network((2, 3))
    >>> weights = network.start(seed=0)
    >>> [w.shape for w in weights]
    [(2, 3), (3,)]
    >>> loss, gradients = network.gradient(np.ones((4, 2)), np.eye(3)[[0, 1, 2, 0]], weights)
    >>> [g.shape for g in gradients]
    [(2, 3), (3,)]
    """

    sizes: tuple[int, ...]

    def start(self, seed: int = 0) -> list[Array]:
        """Weights and biases, layer by layer; normal with variance one over the inputs, and zero."""
        rng = np.random.default_rng(seed)
        weights: list[Array] = []
        for inputs, outputs in itertools.pairwise(self.sizes):
            weights += [rng.standard_normal((inputs, outputs)) / np.sqrt(inputs), np.zeros(outputs)]
        return weights

    def logits(self, x: Array, weights: Sequence[Array]) -> Array:
        """Scores, (samples, classes)."""
        return self._forward(x, weights)[-1]

    def _forward(self, x: Array, weights: Sequence[Array]) -> list[Array]:
        activations = [x]
        for w, b in zip(weights[0::2], weights[1::2], strict=True):
            inner = len(activations) < len(self.sizes) - 1
            z = activations[-1] @ w + b
            activations.append(np.tanh(z) if inner else z)
        return activations

    def gradient(self, x: Array, targets: Array, weights: Sequence[Array]) -> tuple[float, list[Array]]:
        """The mean loss and its gradient; targets, (samples, classes), may be mixtures whose rows sum to one."""
        activations = self._forward(x, weights)
        scores = activations[-1] - activations[-1].max(axis=1, keepdims=True)
        log_p = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
        loss = -float((targets * log_p).sum()) / len(x)
        back = (np.exp(log_p) - targets) / len(x)
        gradients: list[Array] = []
        for layer in reversed(range(len(self.sizes) - 1)):
            below = activations[layer]
            gradients += [back.sum(axis=0), below.T @ back]
            if layer:
                back = (back @ weights[2 * layer].T) * (1 - below**2)
        return loss, gradients[::-1]

    def accuracy(self, x: Array, labels: ArrayLike, weights: Sequence[Array]) -> float:
        """Share of samples whose highest score is their label's."""
        return float((self.logits(x, weights).argmax(axis=1) == np.asarray(labels)).mean())


def _partial(
    partition: tuple[Any, ...], network: Network, weights: Sequence[Array], batch: int, *, rng: np.random.Generator
) -> dict[str, Any]:
    """One partition's share of the gradient; the mini-batch is the same on every worker that holds the partition."""
    x, targets, share = partition
    if 0 < batch < len(x):
        chosen = rng.choice(len(x), batch, replace=False)
        x, targets = x[chosen], targets[chosen]
    loss, gradients = network.gradient(x, targets, weights)
    return {"loss": share * loss, "gradient": [share * g for g in gradients]}


@dataclass(eq=False, repr=False)
class Training:
    """Stochastic gradient descent with momentum on coded gradients.

    Parameters
    ----------
    network : Network
    x : (samples, inputs) array
    labels : (samples,) integers
    partitions : list of index arrays
        As from `partition_samples`, as many as the code has.
    code : GradientCode or DataCode
        A data code mixes one mini-batch of every partition, and its one-hot targets, at the master.
    workers : Workers
    rate, momentum : float
    batch : int
        Samples of each partition in a round; 0 for all.
    seed : int

    Attributes
    ----------
    weights : list of arrays
    round : int

    Examples
    --------
    >>> import anyk
    >>> x, labels = np.eye(8), np.arange(8) % 2
    >>> code = anyk.GroupCode(workers=4, partitions=4, replicas=2, stragglers=1)
    >>> with anyk.ThreadWorkers(4) as workers:
    ...     training = Training(Network((8, 2)), x, labels, partition_samples(labels, 4), code, workers, rate=4.0)
    ...     losses = [training.step(faults={1: anyk.Raise()}).value for _ in range(20)]
    >>> losses[-1] < losses[0] / 3
    True
    """

    network: Network
    x: Array
    labels: NDArray[np.intp]
    partitions: list[NDArray[np.intp]]
    code: GradientCode | DataCode
    workers: Workers
    rate: float = 0.5
    momentum: float = 0.9
    batch: int = 0
    seed: int = 0
    weights: list[Array] = field(init=False)
    velocity: list[Array] = field(init=False)
    round: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.weights = self.network.start(self.seed)
        self.velocity = [np.zeros_like(w) for w in self.weights]
        targets = np.eye(self.network.sizes[-1])[np.asarray(self.labels)]
        total = sum(len(part) for part in self.partitions)
        self._parts = [
            (np.asarray(self.x, np.float64)[part], targets[part], len(part) / total) for part in self.partitions
        ]

    def step(self, stop: StopRule | None = None, faults: Mapping[int, Fault] | None = None, **options: Any) -> Result:
        """One round and one step; the `value` of the result is the loss before the step."""
        if isinstance(self.code, DataCode):
            result, loss, gradients = self._mixed(self.code, stop, faults, options)
        else:
            arguments = (self.network, self.weights, self.batch)
            result = summing.sum(
                _partial, self._parts, self.code, self.workers, stop, arguments,
                rng=self._rng(), faults=faults, **options,
            )  # fmt: skip
            loss, gradients = float(result.value["loss"]), result.value["gradient"]
        for velocity, weight, gradient in zip(self.velocity, self.weights, gradients, strict=True):
            velocity *= self.momentum
            velocity -= self.rate * gradient
            weight += velocity
        self.round += 1
        return Result(loss, result.run, result.decoder)

    def _rng(self) -> np.random.Generator:
        """The round's, whatever was run before it."""
        return np.random.default_rng([self.seed, self.round])

    def _mixed(
        self, code: DataCode, stop: StopRule | None, faults: Mapping[int, Fault] | None, options: dict[str, Any]
    ) -> tuple[Result, float, list[Array]]:
        size = min(len(x) for x, _, _ in self._parts)
        size = min(size, self.batch) if self.batch else size
        blocks, seeds = [], streams.of_round(self._rng())
        for k, (x, targets, _) in enumerate(self._parts):
            chosen = streams.of_partition(seeds, k).choice(len(x), size, replace=False)
            chosen = chosen[np.argsort(targets[chosen].argmax(axis=1), kind="stable")]  # like is mixed with like
            blocks.append((x[chosen], targets[chosen]))
        network, weights = self.network, self.weights
        result = mapping.map(
            lambda block: network.gradient(block[0], block[1], weights),
            blocks, code=code, workers=self.workers, stop=stop, faults=faults, **options,
        )  # fmt: skip
        losses, gradients = zip(*result.value, strict=True)
        mean = [np.mean(parts, axis=0) for parts in zip(*gradients, strict=True)]  # over K blocks, whoever answered
        return result, float(np.mean(losses)), mean

    def save(self, path: str | Path) -> None:
        """Write everything that a resumed run needs: weights, velocity, round and seed."""
        arrays = {f"weight_{i}": w for i, w in enumerate(self.weights)}
        arrays |= {f"velocity_{i}": v for i, v in enumerate(self.velocity)}
        unfinished = Path(f"{path}.part")  # a crash must not take the last checkpoint with it
        with unfinished.open("wb") as file:
            np.savez(file, round=self.round, seed=self.seed, **arrays)  # type: ignore[arg-type]
        unfinished.replace(path)

    def load(self, path: str | Path) -> None:
        """Continue where `save` left off.

        Raises
        ------
        ValueError
            If the file is no checkpoint of a network of this shape.
        """
        try:
            with np.load(path, allow_pickle=False) as saved:
                weights = [saved[f"weight_{i}"] for i in range(len(self.weights))]
                velocity = [saved[f"velocity_{i}"] for i in range(len(self.weights))]
                round, seed = int(saved["round"]), int(saved["seed"])
        except (KeyError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(f"{path} is not a checkpoint of this training: {error}") from None
        shapes = [w.shape for w in weights]
        if not shapes == [v.shape for v in velocity] == [w.shape for w in self.weights]:
            raise ValueError(f"{path} holds weights of shapes {shapes}, not those of {self.network}")
        self.weights, self.velocity, self.round, self.seed = weights, velocity, round, seed
