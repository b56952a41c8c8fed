"""Training in NumPy: the gradient is a gradient, coded steps are plain steps, checkpoints resume."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import anyk
from anyk.training import Network, Training, partition_samples

RNG = np.random.default_rng(0)
X, LABELS = RNG.standard_normal((60, 6)), RNG.integers(0, 3, 60)
NETWORK = Network((6, 5, 3))


def training(code: object, workers: object, **options: object) -> Training:
    count = getattr(code, "partitions", None) or code.blocks  # type: ignore[attr-defined]
    return Training(NETWORK, X, LABELS, partition_samples(LABELS, count), code, workers, rate=0.2, **options)  # type: ignore[arg-type]


def plain(steps: int, momentum: float = 0.9) -> list[np.ndarray]:
    """Gradient descent without workers."""
    weights = NETWORK.start(0)
    velocity = [np.zeros_like(w) for w in weights]
    for _ in range(steps):
        _, gradients = NETWORK.gradient(X, np.eye(3)[LABELS], weights)
        for v, w, g in zip(velocity, weights, gradients, strict=True):
            v *= momentum
            v -= 0.2 * g
            w += v
    return weights


@given(st.lists(st.integers(1, 5), min_size=2, max_size=4), st.integers(0, 99))
@settings(deadline=None, max_examples=20)
def test_the_gradient_is_the_derivative_of_the_loss(sizes: list[int], seed: int) -> None:
    rng, network = np.random.default_rng(seed), Network(tuple(sizes))
    weights, x = network.start(seed), rng.standard_normal((4, sizes[0]))
    targets = rng.standard_normal((4, sizes[-1]))
    targets += (1 - targets.sum(axis=1, keepdims=True)) / sizes[-1]  # rows sum to one
    _, gradients = network.gradient(x, targets, weights)
    for w, g in zip(weights, gradients, strict=True):
        place = tuple(rng.integers(0, side) for side in w.shape)
        kept, step = w[place], 1e-6
        losses = []
        for w[place] in (kept + step, kept - step):
            losses.append(network.gradient(x, targets, weights)[0])
        w[place] = kept
        assert g[place] == pytest.approx((losses[0] - losses[1]) / (2 * step), abs=1e-7)


@pytest.mark.parametrize(
    "code",
    [
        anyk.NullSpaceCode(anyk.cyclic_placement(6, 6, 5), stragglers=1, adversaries=1),
        anyk.GroupCode(6, 4, replicas=3, stragglers=1),
        anyk.FractionalRepetitionCode(6, 6, stragglers=1),
        anyk.UniversalPolynomialCode(anyk.random_placement(6, 8, 4), stragglers=2),
    ],
    ids=lambda code: type(code).__name__,
)
def test_coded_steps_are_plain_steps(code: anyk.GradientCode) -> None:
    with anyk.ThreadWorkers(6) as workers:
        job = training(code, workers)
        for step in range(10):
            faults = {step % 6: anyk.Raise()}
            if code.adversaries:
                faults[(step + 2) % 6] = anyk.Corrupt("noise", 5.0, seed=step)  # type: ignore[assignment]
            job.step(faults=faults)
    for ours, theirs in zip(job.weights, plain(10), strict=True):
        assert np.abs(ours - theirs).max() < 1e-12


def test_a_data_code_without_mixing_is_exact() -> None:
    with anyk.ThreadWorkers(6) as workers:
        job = training(anyk.UncodedCode(6, 6), workers)
        for _ in range(5):
            job.step()
    for ours, theirs in zip(job.weights, plain(5), strict=True):
        assert np.abs(ours - theirs).max() < 1e-12


def test_mini_batches_depend_on_seed_and_round_only() -> None:
    code = anyk.GroupCode(4, 4, replicas=2, stragglers=1)
    losses = []
    for missing in (0, 3):
        with anyk.ThreadWorkers(4) as workers:
            job = training(code, workers, batch=5, seed=7)
            losses.append([job.step(faults={missing: anyk.Raise()}).value for _ in range(4)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)


def test_a_checkpoint_resumes_exactly(tmp_path: Path) -> None:
    code = anyk.GroupCode(4, 4, replicas=2, stragglers=1)
    with anyk.ThreadWorkers(4) as workers:
        whole, first = training(code, workers, batch=5), training(code, workers, batch=5)
        expected = [whole.step().value for _ in range(6)]
        got = [first.step().value for _ in range(3)]
        first.save(tmp_path / "half.npz")
        second = training(code, workers, batch=5, seed=99)
        second.load(tmp_path / "half.npz")
        got += [second.step().value for _ in range(3)]
    assert got == pytest.approx(expected, rel=1e-12)


def test_a_checkpoint_of_something_else_is_refused(tmp_path: Path) -> None:
    code = anyk.GroupCode(4, 4, replicas=2, stragglers=1)
    job = training(code, anyk.SimulatedWorkers(4))
    (tmp_path / "text.npz").write_text("no checkpoint")
    np.savez(tmp_path / "other.npz", a=1)
    other = Training(Network((6, 3)), X, LABELS, partition_samples(LABELS, 4), code, anyk.SimulatedWorkers(4))
    other.save(tmp_path / "smaller.npz")
    for name in ("text.npz", "other.npz", "smaller.npz"):
        with pytest.raises(ValueError, match=r"is not a checkpoint|holds weights of shapes"):
            job.load(tmp_path / name)


@pytest.mark.parametrize("skew", ["iid", "by-class"])
def test_partitions_cover_every_sample_once(skew: str) -> None:
    parts = partition_samples(LABELS, 7, skew)  # type: ignore[arg-type]
    assert sorted(np.concatenate(parts).tolist()) == list(range(60))
    spread = np.mean([len(set(LABELS[part].tolist())) for part in parts])
    assert (spread < 2) == (skew == "by-class")


def test_executors_get_partitions_once() -> None:
    code = anyk.GroupCode(2, 2, replicas=2, stragglers=1)
    parts = [np.ones(50_000), np.ones(50_000)]
    executors = [ProcessPoolExecutor(1), ProcessPoolExecutor(1)]
    sizes: list[int] = []
    try:
        for executor in executors:
            submit = executor.submit
            executor.submit = lambda fn, *args, s=submit: (sizes.append(len(args[-1])), s(fn, *args))[1]  # type: ignore
        with anyk.ExecutorWorkers(executors) as workers:
            for _ in range(3):
                assert anyk.sum(np.sum, parts, code, workers, stop=anyk.All()).value == pytest.approx(100_000)
    finally:
        for executor in executors:
            executor.shutdown()
    assert min(sizes[:2]) > 400_000
    assert max(sizes[2:]) < 10_000
