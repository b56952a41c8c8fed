"""Coded training gives what plain torch gives, whoever stalls, dies or lies; what it does to modules, and does not."""

from __future__ import annotations

import copy
import itertools
import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle
import numpy as np
import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402
from sklearn.datasets import load_digits  # noqa: E402
from torch import nn  # noqa: E402

import anyk  # noqa: E402
from anyk.torch import CodedGradient, soft_cross_entropy  # noqa: E402

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as in a script: workers cannot import it

N = 8
NULL = anyk.NullSpaceCode(anyk.cyclic_placement(N, N, 5), stragglers=2, adversaries=1)
GROUP = anyk.GroupCode(N, N, replicas=4, stragglers=1, adversaries=1)
CODES = {
    "nullspace": NULL,
    "chunks": anyk.NullSpaceCode(anyk.cyclic_placement(N, N, 5), stragglers=1, adversaries=1),
    "group": GROUP,
    "fractional": anyk.FractionalRepetitionCode(N, 16, stragglers=1, adversaries=1),
    "cyclic": anyk.CyclicCode(N, stragglers=2),
    "uncoded": anyk.IgnoreStragglersCode(N, 11),
}
ATTACKS = ["negate", "noise", "scale", "zero", "nan", "inf", "none", "shape", "dtype"]
CE = nn.CrossEntropyLoss()


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def start() -> anyk.LocalWorkers:
    return anyk.LocalWorkers(N, preload=("torch", "anyk.torch"))


@pytest.fixture(scope="module")
def local() -> Iterator[anyk.LocalWorkers]:
    with start() as workers:
        yield workers


@pytest.fixture(params=["local", "threads", "simulated"])
def engine(request: pytest.FixtureRequest, local: anyk.LocalWorkers) -> Iterator[Any]:
    if request.param == "local":
        yield local
    else:
        with {"threads": anyk.ThreadWorkers, "simulated": anyk.SimulatedWorkers}[request.param](N) as workers:
            yield workers


@pytest.fixture
def simulated() -> anyk.SimulatedWorkers:
    return anyk.SimulatedWorkers(N)


def data(count: int = 40, dtype: Any = torch.float64) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, 6, generator=generator, dtype=dtype), torch.randint(0, 3, (count,), generator=generator)


def mlp() -> Any:
    return nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 3)).double()


def grads(model: Any) -> list[Any]:
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]


def plain(model: Any, loss: Any, x: Any, y: Any) -> tuple[Any, list[Any]]:
    """Loss and gradients of plain torch."""
    twin = copy.deepcopy(model)
    twin.zero_grad()
    value = loss(twin(x), y)
    value.backward()
    return value.detach(), grads(twin)


def close(got: Any, expected: Any, rounding: float = 1e-12) -> None:
    for a, b in zip(got, expected, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            assert a.dtype == b.dtype
            torch.testing.assert_close(a.detach(), b.detach(), rtol=rounding, atol=rounding, equal_nan=True)


def trouble(code: Any, step: int) -> dict[int, Any]:
    """Another liar with another attack, and another straggler, in each round; as much as the code is for."""
    if not code.stragglers:
        return {}
    how = ATTACKS[step % len(ATTACKS)]
    straggler = [anyk.Slow(0.01), anyk.Raise(), anyk.Corrupt("nan")][step % 3]
    lie = {step % N: anyk.Corrupt(how, 2.0)} if code.adversaries else {}
    return {(step + 3) % N: straggler, **lie}


def train(
    model: Any,
    step: Callable[[int], Any],
    steps: int = 20,
    make: Callable[[Any], Any] = lambda p: torch.optim.SGD(p, lr=0.2),
    clip: bool = False,
    schedule: Any = None,
) -> list[float]:
    """An ordinary loop: `step` goes backward, all else is torch's."""
    optimizer = make(list(model.parameters()))
    scheduler = schedule(optimizer) if schedule else None
    losses = []
    for number in range(steps):
        optimizer.zero_grad()
        losses.append(float(step(number)))
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 0.3)
        optimizer.step()
        if scheduler:
            scheduler.step()
    return losses


def same_as_torch(
    model: Any, loss: Any, batches: list[Any], code: Any, workers: Any, rounding: float = 1e-10, **loop: Any
) -> CodedGradient:
    """Train two copies, one with plain torch: loss curves, parameters and buffers are the same."""
    twin, own = copy.deepcopy(model), copy.deepcopy(model)
    gradient = CodedGradient(own, loss, code, workers)

    def expected(number: int) -> Any:
        x, y = batches[number % len(batches)]
        value = loss(twin(x), y)
        value.backward()
        return value.detach()

    def coded(number: int) -> Any:
        faults = trouble(code, number)
        result = gradient.backward(*batches[number % len(batches)], faults=faults)
        lied = {worker for worker, fault in faults.items() if isinstance(fault, anyk.Corrupt) and fault.how != "nan"}
        assert set(result.run.liars) <= set(faults)
        assert not lied & set(result.run.responders)
        return result.value

    curve = train(twin, expected, **loop)
    np.testing.assert_allclose(train(own, coded, **loop), curve, rtol=rounding, atol=rounding)
    assert curve[-1] < curve[0]
    close(own.parameters(), twin.parameters(), rounding)
    close(own.buffers(), twin.buffers(), rounding)
    close(grads(own), grads(twin), rounding)
    return gradient


# -- the same as plain torch ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", CODES.values(), ids=CODES)
def test_training_equals_plain_torch_whoever_lies_or_stalls(engine: Any, code: Any) -> None:
    def make(p: Any) -> Any:
        return torch.optim.SGD(p, lr=0.3, momentum=0.9, weight_decay=1e-3)

    same_as_torch(mlp(), CE, [data(53)], code, engine, make=make, clip=True)


LOOPS: dict[str, dict[str, Any]] = {
    "adam, cosine": {
        "make": lambda p: torch.optim.Adam(p, lr=0.02),
        "schedule": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 10),
    },
    "nesterov, one cycle": {
        "make": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
        "schedule": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.3, 40),
        "clip": True,
    },
    "groups": {"make": lambda p: torch.optim.AdamW([{"params": p[:2], "lr": 0.01}, {"params": p[2:], "lr": 0.1}])},
}


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_optimizers_schedulers_and_loaders_stay_torchs(local: anyk.LocalWorkers, loop: Any) -> None:
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data(50)), batch_size=20, shuffle=True)
    batches = list(loader)  # the last one is smaller
    same_as_torch(mlp(), CE, batches, NULL, local, steps=30, **loop)


@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad:UserWarning")
def test_lbfgs_calls_backward_as_often_as_it_likes(simulated: Any) -> None:
    x, y = data()
    curves = []
    for coded in (False, True):
        torch.manual_seed(0)
        model = mlp()
        gradient = CodedGradient(model, CE, NULL, simulated)
        optimizer = torch.optim.LBFGS(model.parameters(), line_search_fn="strong_wolfe")

        def closure(
            coded: bool = coded, model: Any = model, gradient: Any = gradient, optimizer: Any = optimizer
        ) -> Any:
            optimizer.zero_grad()
            if coded:
                return gradient.backward(x, y).value
            loss = CE(model(x), y)
            loss.backward()
            return loss

        curves.append([float(optimizer.step(closure).detach()) for _ in range(2)] + [float(CE(model(x), y))])
    np.testing.assert_allclose(*curves, rtol=1e-6)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(12, 6)
        self.out = nn.Linear(6, 12, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, tokens: Any) -> Any:
        return self.out(self.embedding(tokens).mean(dim=1))


class Shared(nn.Module):
    """One layer used twice, under two names; a number as a parameter; another parameter that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.again = self.first
        self.out = nn.Linear(6, 3)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.unused = nn.Parameter(torch.ones(4))

    def forward(self, x: Any) -> Any:
        return self.out(torch.tanh(self.again(torch.tanh(self.first(x)))) * self.scale)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.LSTM(2, 5, batch_first=True)
        self.out = nn.Linear(5, 3)

    def forward(self, x: Any) -> Any:
        return self.out(self.inner(x.reshape(len(x), 3, 2))[0][:, -1])


class Attention(nn.Module):
    """With the mask of minus infinities that transformers keep in a buffer, and others that stay as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
        self.out = nn.Linear(4, 3)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(3))
        self.register_buffer("places", torch.tensor([[2**60 + 1, 2**24 + 1]]).expand(3, 2))
        self.register_buffer("third", torch.tensor([1 / 3, np.nan], dtype=torch.float64), persistent=False)
        self.register_buffer("kept", torch.tensor([True, False]))

    def forward(self, x: Any) -> Any:
        x = F.pad(x.reshape(len(x), 3, 2), (0, 2), value=0.5)
        return self.out(self.inner(x, src_mask=self.mask.to(x.dtype))[:, -1])


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.randn(4, dtype=torch.complex64))
        self.out = nn.Linear(6, 3)

    def forward(self, x: Any) -> Any:
        return self.out(torch.fft.irfft(torch.fft.rfft(x) * self.filter.conj(), n=6))


def conv() -> Any:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 10)).double()


def frozen() -> Any:
    model = mlp()
    model[0].weight.requires_grad_(False)
    return model


def digits(count: int, dtype: Any = torch.float64) -> tuple[Any, Any]:
    images, labels = load_digits(return_X_y=True)
    return torch.tensor(images[:count] / 16, dtype=dtype), torch.tensor(labels[:count])


def tokens() -> tuple[Any, Any]:
    return torch.randint(0, 12, (40, 5)), torch.randint(0, 12, (40,))


MODELS: dict[str, tuple[Callable[[], Any], Callable[[], tuple[Any, Any]]]] = {
    "conv": (conv, lambda: (digits(64)[0].reshape(-1, 1, 8, 8), digits(64)[1])),
    "tied": (lambda: Tied().double(), tokens),
    "frozen": (frozen, data),
    "shared": (lambda: Shared().double(), data),
    "recurrent": (lambda: Recurrent().double(), data),
    "attention": (lambda: Attention().double(), data),
    "parametrized": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(6, 3)).double(), data),
    "complex": (lambda: Complex().to(torch.complex128).apply(real_layers), data),
    "sparse": (lambda: nn.Sequential(nn.EmbeddingBag(12, 6, sparse=True), nn.Linear(6, 12)).double(), tokens),
}


def real_layers(module: Any) -> None:
    if isinstance(module, nn.Linear):
        module.to(torch.float64)


@pytest.mark.filterwarnings("ignore:Complex modules are a new feature:UserWarning")
@pytest.mark.filterwarnings("ignore:Casting complex values to real:UserWarning")
@pytest.mark.parametrize("name", MODELS)
def test_models_of_many_kinds(local: anyk.LocalWorkers, name: str) -> None:
    model, batch = MODELS[name][0](), MODELS[name][1]()
    if name == "sparse":  # gradients come dense
        CodedGradient(model, CE, GROUP, local).backward(*batch)
        dense = [g.to_dense() for g in plain(model, CE, *batch)[1]]
        close(grads(model), dense)
        return
    own = same_as_torch(model, CE, [batch], GROUP, local, steps=10).model
    for p, q in zip(own.parameters(), model.parameters(), strict=True):
        if not p.requires_grad:
            assert torch.equal(p, q)
    for buffer, before in zip(own.buffers(), model.buffers(), strict=True):
        assert torch.equal(buffer.nan_to_num(), before.nan_to_num())


def test_a_parameter_that_nothing_uses_has_no_gradient(engine: Any) -> None:
    x, y = data()
    model = Shared().double()
    model.unused.requires_grad_(True)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.5)
    gradient = CodedGradient(model, CE, NULL, engine)
    gradient.backward(x, y, faults=trouble(NULL, 1))
    assert model.unused.grad is None
    close(grads(model), plain(model, CE, x, y)[1])
    optimizer.step()  # which decays no parameter without a gradient
    assert torch.equal(model.unused, torch.ones(4, dtype=torch.float64))


@pytest.mark.parametrize(
    ("dtype", "rounding"), [(torch.float32, 1e-5), (torch.float16, 5e-3), (torch.bfloat16, 4e-2)], ids=str
)
def test_lower_precisions(local: anyk.LocalWorkers, dtype: Any, rounding: float) -> None:
    def loss(outputs: Any, targets: Any) -> Any:
        return F.cross_entropy(outputs.float(), targets)

    x, y = data(64)
    if dtype == torch.float32:
        same_as_torch(mlp().to(dtype), CE, [(x.to(dtype), y)], NULL, local, rounding)
    model = mlp().to(dtype)
    value = CodedGradient(model, loss, NULL, local).backward(x.to(dtype), y, faults=trouble(NULL, 0)).value
    expected, exact = plain(copy.deepcopy(model).double(), CE, x.to(dtype).double(), y)
    torch.testing.assert_close(value, expected, rtol=rounding, atol=rounding)
    for p, g in zip(model.parameters(), exact, strict=True):
        assert p.grad.dtype == dtype
        assert float((p.grad.double() - g).norm() / g.norm()) < rounding


def test_tiny_half_gradients_of_small_partitions_do_not_vanish(simulated: Any) -> None:
    model = nn.Linear(6, 3).half()
    CodedGradient(model, lambda out, y: 4e-7 * out.sum() / len(out), NULL, simulated).backward(
        data()[0].half(), data()[1]
    )
    assert model.bias.grad.float().sum() > 1e-7


# -- backward as torch has it -----------------------------------------------------------------------------------------


def test_gradients_add_up_until_they_are_zeroed(engine: Any) -> None:
    x, y = data(48)
    model = Shared().double()
    gradient = CodedGradient(model, CE, NULL, engine)
    for part in (slice(0, 16), slice(16, 48)):
        gradient.backward(x[part], y[part])
    F.mse_loss(model(x[:5]), torch.zeros(5, 3, dtype=torch.float64)).backward()  # torch's own among them
    sums = [
        None if a is None else a + b + c
        for a, b, c in zip(
            plain(model, CE, x[:16], y[:16])[1],
            plain(model, CE, x[16:], y[16:])[1],
            plain(model, F.mse_loss, x[:5], torch.zeros(5, 3, dtype=torch.float64))[1],
            strict=True,
        )
    ]
    close(grads(model), sums)
    model.zero_grad(set_to_none=False)
    kept = model.out.weight.grad
    gradient.backward(x, y)
    assert model.out.weight.grad is kept
    close(grads(model), plain(model, CE, x, y)[1])
    model.zero_grad()
    assert grads(model)[0] is None


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_unequal_partitions_are_placed_once(engine: Any, reduction: str) -> None:
    x, y = data(36)
    edges = np.cumsum(range(N + 1)).tolist()
    partitions = [(x[a:b], y[a:b]) for a, b in itertools.pairwise(edges)]
    model, loss = mlp(), nn.CrossEntropyLoss(reduction=reduction)
    gradient = CodedGradient(model, loss, NULL, engine, partitions, reduction=reduction)
    for step in range(3):
        model.zero_grad()
        result = gradient.backward(faults=trouble(NULL, step), stop=anyk.All())
        value, expected = plain(model, loss, x, y)
        assert abs(float(result.value - value)) < 1e-11
        close(grads(model), expected, 1e-11)
        assert (result.run.traffic.placed > 0) == (step == 0)
        assert result.run.traffic.sent > 0


def test_mini_batches_are_placed_each_time(simulated: Any) -> None:
    gradient = CodedGradient(mlp(), CE, NULL, simulated)
    assert all(gradient.backward(*data(8 + step)).run.traffic.placed > 0 for step in range(3))


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp()

    def forward(self, inputs: Any) -> Any:
        return {"logits": self.inner(inputs["a"] + inputs["more"][0]), "more": inputs["factor"]}


def test_inputs_targets_and_outputs_are_trees(engine: Any) -> None:
    def loss(outputs: Any, targets: Any) -> Any:
        return outputs["more"] * CE(outputs["logits"], targets["y"]) + (outputs["logits"] * targets["z"]).mean()

    x, y = data()
    batch = {"a": x, "more": (x.flip(0),), "factor": 0.5}, {"y": y, "z": torch.rand(40, 1)}
    model = Two()
    result = CodedGradient(model, loss, NULL, engine).backward(*batch)
    value, expected = plain(model, loss, *batch)
    torch.testing.assert_close(result.value, value)
    close(grads(model), expected)


def test_targets_may_be_missing(simulated: Any) -> None:
    model = mlp()
    CodedGradient(model, lambda out, _: out.square().mean(), NULL, simulated).backward(data()[0])
    close(grads(model), plain(model, lambda out, _: out.square().mean(), data()[0], None)[1])


def test_the_loss_may_look_at_the_model(engine: Any) -> None:
    model = mlp()

    def loss(outputs: Any, targets: Any) -> Any:
        return CE(outputs, targets) + 0.1 * model[0].weight.square().sum()

    x, y = data()
    gradient = CodedGradient(model, loss, NULL, engine)
    for _ in range(2):
        model.zero_grad()
        value = gradient.backward(x, y).value
        got, expected = grads(model), CE(model(x), y) + 0.1 * model[0].weight.square().sum()
        model.zero_grad()
        expected.backward()
        torch.testing.assert_close(value, expected.detach())
        close(got, grads(model))
        with torch.no_grad():
            model[0].weight.mul_(0.5)


def test_hooks_of_parameters_see_the_whole_gradient(engine: Any) -> None:
    seen: list[Any] = []
    x, y = data()
    model = mlp()
    model[0].weight.register_hook(lambda g: -0.5 * g)
    model[2].bias.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    with torch.no_grad():  # which ends nothing: what is differentiated is on the workers
        CodedGradient(model, CE, NULL, engine).backward(x, y)
    _, expected = plain(mlp_of(model), CE, x, y)
    close(grads(model), [-0.5 * expected[0], *expected[1:]])
    close(seen, expected[3:])


def mlp_of(model: Any) -> Any:
    twin = mlp()
    twin.load_state_dict(model.state_dict())
    return twin


def test_layers_may_be_frozen_and_thawed_on_the_way(local: anyk.LocalWorkers) -> None:
    x, y = data()
    model = frozen()
    gradient = CodedGradient(model, CE, NULL, local)
    gradient.backward(x, y)
    assert model[0].weight.grad is None
    model.requires_grad_(True)
    model.zero_grad()
    gradient.backward(x, y)
    close(grads(model), plain(model, CE, x, y)[1])


def test_wrappers_are_taken_off(simulated: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch about itself
        wrapped = nn.DataParallel(torch.compile(mlp()))
    CodedGradient(wrapped, CE, NULL, simulated).backward(*data())
    close(grads(wrapped), plain(mlp_of(wrapped.module._orig_mod), CE, *data())[1])


class Constant(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 3)

    def forward(self, x: Any) -> Any:
        return self.inner(x) * torch.full((3,), 1 / 3)


def test_the_default_dtype_is_the_callers(engine: Any) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        model = Constant()
        CodedGradient(model, CE, NULL, engine).backward(*data())
        close(grads(model), plain(model, CE, *data())[1])
    finally:
        torch.set_default_dtype(torch.float32)
    model = Constant()
    CodedGradient(model, CE, NULL, engine).backward(*data(dtype=torch.float32))
    assert model.inner.weight.grad.dtype == torch.float32


# -- replicas ---------------------------------------------------------------------------------------------------------


class Touchy(nn.Module):
    """Changes itself whenever it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.drop, self.calls, self.grown = mlp(), nn.Dropout(0.3), 0, [0]
        self.register_buffer("cache", None)

    def forward(self, x: Any) -> Any:
        self.calls += 1
        self.grown.append(self.calls)
        self.cache = x.detach().mean(dim=0)
        with torch.no_grad():
            self.inner[0].bias.clamp_(-0.1, 0.1)
        return self.inner(self.drop(x)) + random.random() + np.random.random()  # noqa: NPY002


def state_of(model: Any) -> Any:
    return copy.deepcopy([*model.state_dict().items()]), [module.training for module in model.modules()]


def streams() -> Any:
    return torch.get_rng_state().tolist(), repr(np.random.get_state()), random.getstate()  # noqa: NPY002


def test_the_callers_module_and_random_streams_are_left_alone(engine: Any) -> None:
    model, seen = Touchy(), []
    model.inner.register_forward_hook(lambda *arguments: seen.append(1))
    model.inner[2].eval()
    x, y = data()
    x.requires_grad_(True)
    before, drawn = state_of(model), streams()
    gradient = CodedGradient(model, CE, NULL, engine, augment=lambda x: x.mul_(2) + torch.rand(len(x), 1))
    for step in range(4):
        gradient.backward(x, y, faults={step: anyk.Slow(0.02)}, stop=anyk.FirstK(N - 1))
    anyk.map(np.negative, np.zeros((N, 1)), code=anyk.UncodedCode(N, N), workers=engine)  # the late ones are done
    after = state_of(model)
    assert str(before) == str(after)
    assert streams() == drawn
    assert (model.calls, model.grown, model.cache, seen) == (0, [0], None, [])
    assert x.grad is None
    assert torch.equal(x, data()[0])


@pytest.mark.parametrize("kind", [anyk.ThreadWorkers, anyk.SimulatedWorkers])
def test_who_comes_too_late_does_not_compute(kind: Any, tmp_path: Any) -> None:
    path = str(tmp_path / "calls")

    def note(x: Any) -> Any:
        with open(path, "a") as file:
            file.write(".")
        return x

    with kind(N) as workers:
        gradient = CodedGradient(mlp(), CE, NULL, workers, augment=note)
        faults = {2: anyk.Slow(0.3 if kind is anyk.ThreadWorkers else 1e6)}
        result = gradient.backward(*data(), faults=faults, stop=anyk.FirstK(N - 1))
        assert 2 not in result.run.responders
        anyk.map(np.negative, np.zeros((N, 1)), code=anyk.UncodedCode(N, N), workers=workers)
    assert os.path.getsize(path) == 5 * (N - 1)


def test_train_and_eval_follow_the_caller(engine: Any) -> None:
    x, y = data()
    model = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(6), *mlp()).double()
    gradient = CodedGradient(model, CE, NULL, engine)
    gradient.backward(x, y)
    model.zero_grad()
    model.eval()
    kept = copy.deepcopy(model.state_dict())
    assert float((kept["1.running_mean"]).abs().max()) > 0
    value, expected = plain(model, CE, x, y)
    torch.testing.assert_close(gradient.backward(x, y).value, value)
    close(grads(model), expected)
    close(model.state_dict().values(), kept.values(), 0)
    assert not any(module.training for module in model.modules())


# -- randomness -------------------------------------------------------------------------------------------------------


def dropping() -> Any:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3))


def shaken(x: Any) -> Any:
    return x * random.uniform(0.9, 1.1) + 0.1 * torch.randn_like(x) + np.random.normal(0, 0.1)  # noqa: NPY002


def test_dropout_agrees_for_hundreds_of_rounds(local: anyk.LocalWorkers) -> None:
    x, y = data(48, torch.float32)
    model = dropping()
    partitions = [(x[k::N], y[k::N]) for k in range(N)]
    gradient = CodedGradient(model, CE, GROUP, local, partitions, augment=shaken)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    losses = []
    for _ in range(200):
        optimizer.zero_grad()
        result = gradient.backward()
        assert result.run.liars == ()
        losses.append(float(result.value))
        optimizer.step()
    assert np.isfinite(losses).all()
    assert np.mean(losses[-20:]) < np.mean(losses[:20])
    assert gradient.state_dict() == {"round": 200, "seed": 0}


def curve(workers: Any, seed: int, augment: Any = shaken, code: Any = NULL) -> list[float]:
    model = dropping().double()
    gradient = CodedGradient(model, CE, code, workers, seed=seed, augment=augment)
    step = iter(range(100))
    return train(model, lambda _: gradient.backward(*data(), faults=trouble(code, next(step))).value, steps=4)


def test_a_seed_fixes_what_is_drawn(engine: Any, simulated: Any) -> None:
    first = curve(engine, 5)
    np.testing.assert_allclose(curve(simulated, 5), first, rtol=1e-10)  # whoever answers, on whatever engine
    np.testing.assert_allclose(curve(simulated, 5, code=CODES["cyclic"]), first, rtol=1e-10)  # and whoever holds what
    assert np.abs(np.array(curve(engine, 6)) - first).min() > 1e-4


def test_rounds_and_partitions_draw_differently(simulated: Any) -> None:
    model = nn.Sequential(nn.Dropout(0.5))
    x = torch.ones(N, 200)
    gradient = CodedGradient(model, lambda out, _: out[:, :100].sum(), NULL, simulated, reduction="sum")
    model.append(nn.Linear(200, 200, bias=False))
    with torch.no_grad():
        model[1].weight.copy_(torch.eye(200))
    seen = set()
    for _ in range(3):
        model.zero_grad()
        gradient.backward(x)
        seen.add(tuple(model[1].weight.grad[0].round().tolist()))
    assert len(seen) == 3
    assert all(len(set(row)) > 3 for row in seen)  # had all partitions the same mask: 0 or 2 * N


def test_a_resumed_run_continues_as_if_nothing_had_happened(local: anyk.LocalWorkers, tmp_path: Any) -> None:
    x, y = data()
    partitions = [(x[k::N], y[k::N]) for k in range(N)]

    def parts(model: Any, workers: Any) -> dict[str, Any]:
        return {
            "gradient": CodedGradient(model, CE, NULL, workers, partitions, augment=shaken),
            "model": model,
            "optimizer": torch.optim.Adam(model.parameters(), 0.02),
        }

    def rounds(run: dict[str, Any], count: int) -> list[float]:
        losses = []
        for _ in range(count):
            run["optimizer"].zero_grad()
            losses.append(float(run["gradient"].backward().value))
            run["optimizer"].step()
        return losses

    whole = parts(dropping().double(), local)
    expected = rounds(whole, 3)
    torch.save({name: part.state_dict() for name, part in whole.items()}, tmp_path / "run.pt")
    expected = rounds(whole, 3)
    with start() as workers:
        resumed = parts(nn.Sequential(*dropping()).apply(blank).double(), workers)
        for name, state in torch.load(tmp_path / "run.pt").items():
            resumed[name].load_state_dict(state)
        np.testing.assert_allclose(rounds(resumed, 3), expected, rtol=1e-9)
    close(resumed["model"].state_dict().values(), whole["model"].state_dict().values(), 1e-9)


def blank(module: Any) -> None:
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.weight)


class Unseeded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp()

    def forward(self, x: Any) -> Any:
        return self.inner(x) * (np.random.default_rng().random() + 0.5)


@pytest.mark.parametrize("name", ["nullspace", "chunks", "group", "fractional", "cyclic"])
def test_draws_from_elsewhere_are_found_in_the_first_round(engine: Any, name: str) -> None:
    model = Unseeded()
    with pytest.raises(anyk.TooManyErrors, match="seed"):
        CodedGradient(model, CE, CODES[name], engine).backward(*data())
    assert grads(model) == [None] * 4


def test_a_resumed_run_is_checked_too(simulated: Any) -> None:
    gradient = CodedGradient(Unseeded(), CE, CODES["cyclic"], simulated)
    gradient.load_state_dict({"round": 7, "seed": 0})
    with pytest.raises(anyk.TooManyErrors, match="seed"):
        gradient.backward(*data())


# -- batch normalisation, buffers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_running_statistics_are_the_mean_over_partitions(engine: Any, reduction: str) -> None:
    x, y = data(51)
    model = nn.Sequential(nn.BatchNorm1d(6, momentum=0.3), *mlp()).double()
    model[0].num_batches_tracked += 2**24 + 1  # beyond what float32 can count
    loss = nn.CrossEntropyLoss(reduction=reduction)
    gradient = CodedGradient(model, loss, NULL, engine, reduction=reduction)
    for step in range(3):
        expected, sizes = [], np.diff([51 * k // N for k in range(N + 1)])
        for part in torch.split(x, sizes.tolist()):
            alone = copy.deepcopy(model[0])
            alone(part)
            expected.append(torch.stack([alone.running_mean, alone.running_var]))
        gradient.backward(x, y, faults=trouble(NULL, step))
        mean = sum(size / 51 * one for size, one in zip(sizes.tolist(), expected, strict=True))
        close([model[0].running_mean, model[0].running_var], mean)
        assert int(model[0].num_batches_tracked) == 2**24 + 2 + step


def test_a_network_with_batch_normalisation_learns(local: anyk.LocalWorkers) -> None:
    x, y = digits(400, torch.float32)
    model = nn.Sequential(nn.Linear(64, 32, bias=False), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))
    gradient = CodedGradient(model, CE, GROUP, local)
    train(
        model,
        lambda n: gradient.backward(x, y, faults=trouble(GROUP, n)).value,
        30,
        lambda p: torch.optim.Adam(p, 0.02),
    )
    model.eval()
    assert float((model(x).argmax(dim=1) == y).double().mean()) > 0.95


class Replacing(nn.Module):
    """A buffer that is another tensor after each call, and one that only comes into being."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 3)
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("cache", None, persistent=False)

    def forward(self, x: Any) -> Any:
        self.mean = 0.5 * self.mean + 0.5 * x.mean(dim=0)
        if self.cache is None:
            self.cache = torch.ones(len(x), 3)
        return self.inner(x - self.mean) * self.cache[:1]


def test_buffers_that_are_replaced(engine: Any) -> None:
    x, y = data(40, torch.float32)
    model = Replacing()
    kept = model.mean
    gradient = CodedGradient(model, CE, NULL, engine)
    for _ in range(3):
        gradient.backward(x, y)
    assert model.mean is kept
    assert model.cache is None
    torch.testing.assert_close(model.mean, 0.875 * x.mean(dim=0))


# -- data codes -------------------------------------------------------------------------------------------------------

EXACT = [anyk.UncodedCode(N, N), anyk.RepetitionCode(N, 4), anyk.BerrutCode(N, 1)]


@pytest.mark.parametrize("code", EXACT, ids=repr)
@pytest.mark.parametrize("kind", ["classes", "one-hot", "values", "sum"])
def test_data_codes_that_are_exact(engine: Any, code: Any, kind: str) -> None:
    x, y = data(40, torch.float32)
    reduction = "sum" if kind == "sum" else "mean"
    loss: Any = nn.CrossEntropyLoss(reduction=reduction)
    targets = {"one-hot": F.one_hot(y, 3).float(), "values": torch.rand(40, 3)}.get(kind, y.to(torch.int32))
    if kind == "one-hot":
        loss = soft_cross_entropy
    elif kind == "values":
        loss = nn.MSELoss()
    seen: list[Any] = []
    model = nn.Sequential(*mlp(), nn.BatchNorm1d(3, affine=False).eval()).float()
    model.register_forward_hook(lambda *arguments: seen.append(1))
    gradient = CodedGradient(model, loss, code, engine, reduction=reduction)
    for _ in range(2):
        model.zero_grad()
        result = gradient.backward(x, targets, stop=anyk.All())
        value, expected = plain(mlp_with(model), loss, x, y if targets.dtype == torch.int32 else targets)
        torch.testing.assert_close(result.value.float(), value)
        close(grads(model), expected, 1e-5 if kind == "sum" else 1e-6)
    assert seen == []


def mlp_with(model: Any) -> Any:
    twin = nn.Sequential(*mlp(), nn.BatchNorm1d(3, affine=False).eval()).float()
    twin.load_state_dict(model.state_dict())
    return twin


def test_running_statistics_under_a_data_code(simulated: Any) -> None:
    x, y = data(40, torch.float32)
    for reduction in ("mean", "sum"):
        model = nn.Sequential(nn.BatchNorm1d(6, momentum=1.0), nn.Linear(6, 3))
        gradient = CodedGradient(
            model, nn.CrossEntropyLoss(reduction=reduction), EXACT[0], simulated, reduction=reduction
        )
        gradient.backward(x, y)
        torch.testing.assert_close(model[0].running_mean, x.mean(dim=0))
        assert int(model[0].num_batches_tracked) == 1


@pytest.mark.parametrize("soft", [False, True])
def test_approximate_gradients_of_coded_data_learn_digits(soft: bool) -> None:
    x, y = digits(300, torch.float32)
    model = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Dropout(0.1), nn.Linear(32, 10))
    with anyk.SimulatedWorkers(15) as workers:
        gradient = CodedGradient(model, CE, anyk.BerrutCode(15, 5), workers)
        targets = F.one_hot(y, 10).float() if soft else y
        losses = train(model, lambda _: gradient.backward(x, targets).value, 40, lambda p: torch.optim.SGD(p, 0.5))
    assert losses[-1] < 0.5 * losses[0]
    model.eval()
    assert float((model(x).argmax(dim=1) == y).double().mean()) > 0.8


def test_what_a_data_code_cannot_mix(simulated: Any) -> None:
    x, y = data(40, torch.float32)
    gradient = CodedGradient(mlp().float(), CE, anyk.BerrutCode(N, 4), simulated)
    with pytest.raises(TypeError, match=r"torch\.int64 cannot be mixed"):
        gradient.backward(x.long(), y)
    with pytest.raises(ValueError, match=r"38 samples cannot be cut into 4 equal blocks.*drop_last"):
        gradient.backward(x[:38], y[:38])
    with pytest.raises(ValueError, match="needs a mini-batch"):
        gradient.backward(x)
    with pytest.raises(ValueError, match=r"shape \(40, 2\) are no classes"):
        gradient.backward(x, torch.stack([y, y], dim=1))
    with pytest.raises(TypeError, match="pass tensors"):
        gradient.backward({"a": x}, y)
    with pytest.raises(ValueError, match="lengths"):
        gradient.backward(x, y[:20])
    with pytest.raises(ValueError, match="without partitions"):
        CodedGradient(mlp(), CE, anyk.BerrutCode(N, 4), simulated, [(x, y)])


# -- what goes wrong --------------------------------------------------------------------------------------------------


def test_workers_that_are_killed_or_replaced_in_the_middle_of_training(local: anyk.LocalWorkers) -> None:
    x, y = data()
    model = mlp()
    gradient = CodedGradient(model, CE, NULL, local, [(x[k::N], y[k::N]) for k in range(N)])

    def kill(event: Any) -> None:
        if event.kind == "submitted" and event.worker == 5:
            os.kill(local.pids[5], signal.SIGKILL)

    optimizer = torch.optim.SGD(model.parameters(), 0.3)
    for step in range(9):
        if step == 2:
            os.kill(local.pids[0], signal.SIGKILL)
        if step == 4:
            local.drop(3)
        value, expected = plain(model, CE, x, y)
        optimizer.zero_grad()
        result = gradient.backward(
            on_event=kill if step == 6 else None, faults={1: anyk.Crash()} if step == 7 else None, stop=anyk.All()
        )
        torch.testing.assert_close(result.value, value, rtol=1e-12, atol=0)
        close(grads(model), expected)
        optimizer.step()
        assert len(result.run.failed) <= 1
        assert result.run.liars == ()
    assert result.run.responders == tuple(range(N))
    assert gradient.round == 9


def test_too_few_answers_leave_the_gradients_alone(engine: Any) -> None:
    x, y = data()
    model = mlp()
    gradient = CodedGradient(model, CE, NULL, engine)
    faults = {worker: anyk.Corrupt("nan") for worker in range(4)}
    for number in range(2):  # the first round, which is checked, and another
        kept = grads(model)
        with pytest.raises(anyk.TooFewResponders, match=r"cannot be met: \d of 8 workers answered"):
            gradient.backward(x, y, faults=faults)
        assert gradient.round == number
        close(grads(model), kept, 0)
        gradient.backward(x, y)
    with pytest.raises(anyk.TooFewResponders):
        CodedGradient(mlp(), CE, NULL, engine).backward(x, y, faults=dict.fromkeys(range(N), anyk.Corrupt("nan")))


def test_the_first_round_does_not_wait_for_ever_for_the_answer_that_it_would_like(simulated: Any) -> None:
    gradient = CodedGradient(mlp(), CE, NULL, simulated)
    result = gradient.backward(*data(), faults={1: anyk.Hang(), 4: anyk.Hang()})
    assert result.run.stragglers == (1, 4)
    fresh = anyk.SimulatedWorkers(N)
    result = CodedGradient(mlp(), CE, NULL, fresh).backward(*data(), faults={1: anyk.Hang()})
    assert len(result.run.responders) == N - 1


class Raising(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp()

    def forward(self, x: Any) -> Any:
        return self.deep_inside(self.inner(x))

    def deep_inside(self, x: Any) -> Any:
        raise ArithmeticError("not today")


def test_a_model_that_raises_tells_where(engine: Any) -> None:
    with pytest.raises(anyk.TaskFailed, match="ArithmeticError: not today") as caught:
        CodedGradient(Raising(), CE, NULL, engine).backward(*data())
    assert "deep_inside" in caught.value.traceback_text
    assert anyk.map(np.negative, np.zeros(2), code=anyk.RepetitionCode(N, 2), workers=engine).run.responders


@pytest.mark.parametrize(
    ("loss", "got"),
    [
        (nn.CrossEntropyLoss(reduction="none"), r"got shape \(5,\): reduce it"),
        (lambda out, y: float(CE(out, y)), "got float"),
    ],
)
def test_a_loss_that_is_no_scalar(simulated: Any, loss: Any, got: str) -> None:
    with pytest.raises(anyk.TaskFailed, match=f"must be a scalar tensor, {got}"):
        CodedGradient(mlp(), loss, NULL, simulated).backward(*data())


def test_what_can_travel(engine: Any) -> None:
    model = mlp()
    model.extra = lambda x: x + 1  # goes with cloudpickle
    CodedGradient(model, lambda out, y: CE(model.extra(out), y), NULL, engine).backward(*data())
    close(grads(model), plain(mlp_of(model), CE, *data())[1])
    lock = threading.Lock()
    for arguments in (
        {"model": model},
        {"loss": lambda out, y: (lock, CE(out, y))[1]},
        {"augment": lambda x: (lock, x)},
    ):
        keywords: dict[str, Any] = {"model": mlp(), "loss": CE} | arguments
        keywords["model"].extra = lock if "model" in arguments else None
        with pytest.raises(anyk.errors.NotPicklable, match=r"cannot be copied to workers.*lock"):
            CodedGradient(code=NULL, workers=engine, **keywords).backward(*data())


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors:UserWarning")
def test_arguments_that_cannot_be(simulated: Any) -> None:
    x, y = data()
    good: dict[str, Any] = {"model": mlp(), "loss": CE, "code": NULL, "workers": simulated}
    for wrong, kind, words in [
        ({"model": mlp}, TypeError, "model must be a torch.nn.Module, got function"),
        ({"loss": 1}, TypeError, "loss must be callable"),
        ({"loss": nn.AdaptiveLogSoftmaxWithLoss(3, 3, [1])}, ValueError, "the loss has parameters of its own"),
        ({"code": anyk.cyclic_placement(N, N, 3)}, TypeError, "a GradientCode or a DataCode"),
        ({"workers": 8}, TypeError, "workers must be a Workers object"),
        ({"seed": -1}, ValueError, "seed must be at least 0"),
        ({"reduction": "none"}, ValueError, "reduction must be 'mean' or 'sum'"),
        ({"partitions": [(x, y)] * 7}, ValueError, "is for 8 partitions, got 7"),
        ({"partitions": [x] * 8}, TypeError, r"must be a pair \(inputs, targets\), got Tensor"),
        ({"partitions": [(x, y[:3])] * 8}, ValueError, r"one leading axis of samples, got lengths \[3, 40\]"),
        ({"partitions": [(x[:0], y[:0])] + [(x, y)] * 7}, ValueError, r"got lengths \[0\]"),
    ]:
        with pytest.raises(kind, match=words):
            CodedGradient(**good | wrong)
    gradient = CodedGradient(**good)
    with pytest.raises(ValueError, match="pass inputs and targets, or partitions"):
        gradient.backward()
    with pytest.raises(ValueError, match="7 samples cannot be cut into 8 partitions"):
        gradient.backward(x[:7], y[:7])
    with pytest.raises(ValueError, match="lengths"):
        gradient.backward(x, y[:9])
    placed = CodedGradient(**good, partitions=[(x, y)] * 8)
    with pytest.raises(ValueError, match="without a mini-batch"):
        placed.backward(x, y)
    assert gradient.round == placed.round == 0


def test_the_soft_loss_is_torchs_for_probabilities() -> None:
    logits, targets = torch.randn(5, 4), torch.rand(5, 4).softmax(dim=1)
    torch.testing.assert_close(soft_cross_entropy(logits, targets), F.cross_entropy(logits, targets))
