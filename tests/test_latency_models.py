"""Latency models: exact stationary figures, and parameters found again in long traces, stragglers given up included."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

import anyk
from anyk.runtime.censored import Censored
from anyk.runtime.chain import Chain

FAMILIES = [anyk.ShiftedExponential(1.5, 0.7), anyk.Pareto(1.2, 2.5), anyk.LogNormal(2.0, 0.6)]


def drawn(model: Any, rounds: int, workers: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.array([model.draw(rng, workers, r) for r in range(rounds)])


def given_up(seconds: np.ndarray, after: Any) -> anyk.Trace:
    """The trace of rounds in which nobody was waited for longer than that."""
    bounds = np.broadcast_to(after, seconds.shape)
    seen = seconds <= bounds
    return anyk.Trace(np.where(seen, seconds, np.nan), np.where(seen, 0.0, bounds))


def numbers(model: Any) -> np.ndarray:
    values = [getattr(model, name) for name in model.__dataclass_fields__ if name not in ("seed", "node_size")]
    return np.concatenate([[v] if isinstance(v, float) else numbers(v) for v in values])


@pytest.mark.parametrize("model", FAMILIES)
def test_densities_and_survival_belong_together(model: Any) -> None:
    for t in (0.5, 1.3, 2.0, 4.0):
        inside = integrate.quad(
            lambda x: np.exp(model.log_density(np.array([x]))[0]), t, np.inf, limit=300, points=None
        )
        assert abs(inside[0] - np.exp(model.log_survival(np.array([t]))[0])) < 1e-5
    sample = drawn(model, 1, 200_000)[0]
    assert abs((sample > 2.0).mean() - np.exp(model.log_survival(np.array([2.0]))[0])) < 0.005


def test_densities_are_scipys() -> None:
    t = np.array([1.6, 2.0, 5.0, 30.0])
    for model, other in zip(
        FAMILIES, (stats.expon(1.5, 0.7), stats.pareto(2.5, scale=1.2), stats.lognorm(0.6, scale=2.0)), strict=True
    ):
        assert np.allclose(model.log_density(t), other.logpdf(t))
        assert np.allclose(model.log_survival(t), other.logsf(t))


@pytest.mark.parametrize("model", FAMILIES)
@pytest.mark.parametrize("after", [np.inf, 2.2])
def test_parameters_are_found_again(model: Any, after: float) -> None:
    """Also where a third to a half was given up, in which case dropping those would be far off."""
    seconds = drawn(model, 400, 50)
    trace = given_up(seconds, np.minimum(after, seconds.max()))
    found = type(model).fit(trace)
    assert np.allclose(numbers(found), numbers(model), rtol=0.03)
    if after < np.inf:
        naive = type(model).fit(anyk.Trace(trace.seconds))
        assert not np.allclose(numbers(naive), numbers(model), rtol=0.1)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(FAMILIES), st.floats(0.3, 0.95))
def test_no_neighbour_is_more_likely(seed: int, model: Any, share: float) -> None:
    seconds = drawn(model, 4, 25, seed)
    sample = given_up(seconds, np.quantile(seconds, share)).sample()
    found = type(model).fit_sample(sample)

    def likelihood(each: Any) -> float:
        return float(each.log_density(sample.seconds).sum() + each.log_survival(sample.bounds).sum())

    best, (a, b) = likelihood(found), numbers(found)
    for factors in ((1.01, 1.0), (0.99, 1.0), (1.0, 1.02), (1.0, 0.98), (0.99, 1.01)):
        with np.errstate(invalid="ignore"):
            other = likelihood(type(model)(a * factors[0], b * factors[1]))
        assert not other > best + 1e-6


def test_weights_count_like_copies() -> None:
    for model in FAMILIES:
        t = drawn(model, 1, 60)[0]
        twice = Censored.of(np.r_[t[:40], t[:40]], np.r_[t[40:], t[40:], t[40:]])
        weighted = Censored.of(t[:40], t[40:], np.full(40, 2.0), np.full(20, 3.0))
        assert np.allclose(numbers(type(model).fit_sample(twice)), numbers(type(model).fit_sample(weighted)), rtol=1e-5)


def test_alike_latencies_and_none() -> None:
    alike = anyk.Trace(np.full((5, 4), 2.0))
    assert anyk.LogNormal.fit(alike).median == pytest.approx(2.0)
    assert anyk.ShiftedExponential.fit(alike).shift == 2.0
    for kind in (anyk.ShiftedExponential, anyk.Pareto, anyk.LogNormal, anyk.Markov, anyk.NodeFailures):
        with pytest.raises(ValueError, match="fitted to latencies above zero"):
            kind.fit(anyk.Trace([np.nan, np.inf]))
    with pytest.raises(ValueError, match="that differ"):
        anyk.Markov.fit(alike)
    with pytest.raises(ValueError, match="no latency model can be fitted"):
        anyk.rank_latencies(anyk.Trace([np.nan, np.nan]))
    with pytest.raises(TypeError, match="has no likelihood"):
        anyk.Markov(anyk.Deterministic(), anyk.LogNormal(), 0.1, 0.1).log_likelihood(alike)


# -- chains -----------------------------------------------------------------------------------------------------------


def test_markov_stationary_figures() -> None:
    model = anyk.Markov(anyk.Deterministic(1.0), anyk.Deterministic(6.0), 0.04, 0.16, seed=7)
    assert model.slow_share == pytest.approx(0.2)
    assert model.slow_rounds == pytest.approx(6.25)
    slow = np.array([model.is_slow(2000, r) for r in range(200)])
    assert abs(slow[0].mean() - 0.2) < 0.03  # from the start
    assert abs(slow.mean() - 0.2) < 0.01
    for lag in (1, 3, 8):
        assert abs(np.corrcoef(slow[:-lag].ravel(), slow[lag:].ravel())[0, 1] - model.correlation(lag)) < 0.02
    assert abs((slow[1:] & ~slow[:-1]).sum() / (~slow[:-1]).sum() - 0.04) < 0.002
    assert abs((~slow[1:] & slow[:-1]).sum() / slow[:-1].sum() - 0.16) < 0.005


def test_node_failures_stationary_figures() -> None:
    model = anyk.NodeFailures(anyk.Deterministic(1.0), 4, 0.02, 0.18, seed=7)
    assert model.down_share == pytest.approx(0.1)
    seconds = drawn(model, 300, 4002)
    down = np.isinf(seconds)
    assert (seconds[~down] == 1.0).all()
    nodes = down[:, :4000].reshape(300, 1000, 4)
    assert (nodes.all(axis=2) == nodes.any(axis=2)).all()  # together or not at all
    assert (down[:, 4000] == down[:, 4001]).all()
    assert abs(down.mean() - 0.1) < 0.01
    starts = nodes[1:, :, 0] & ~nodes[:-1, :, 0]
    lengths = nodes[:, :, 0].sum() / max(starts.sum() + nodes[0, :, 0].sum(), 1)
    assert abs(lengths - 1 / 0.18) < 0.3  # geometric


@settings(max_examples=30, deadline=None)
@given(st.floats(0.01, 1), st.floats(0.01, 1), st.integers(0, 1000), st.lists(st.integers(0, 12), min_size=1))
def test_walks_are_functions_of_the_seed(leave: float, back: float, seed: int, rounds: list[int]) -> None:
    """Whoever asks first, in whatever order."""
    one = Chain(leave, back, seed)
    for r in rounds:
        assert np.array_equal(one.state(5, r), Chain(leave, back, seed).state(5, r))
        one.state(7, r)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 5))
def test_smoothing_is_the_sum_over_all_paths(seed: int, rounds: int) -> None:
    rng = np.random.default_rng(seed)
    chain = Chain(*rng.uniform(0.05, 0.95, 2))
    seen = rng.normal(size=(rounds, 1, 2))
    start = np.array([1 - chain.share, chain.share])
    steps = np.array([[1 - chain.leave, chain.leave], [chain.back, 1 - chain.back]])
    total, ones, counts = 0.0, np.zeros(rounds), np.zeros((2, 2))
    for path in np.ndindex(*(2,) * rounds):
        p = start[path[0]] * np.prod([steps[a, b] for a, b in itertools.pairwise(path)])
        p *= np.exp(sum(seen[r, 0, s] for r, s in enumerate(path)))
        total += p
        ones += p * np.array(path)
        for a, b in itertools.pairwise(path):
            counts[a, b] += p
    likelihood, smoothed, found = chain.smooth(seen)
    assert likelihood == pytest.approx(np.log(total))
    assert np.allclose(smoothed[:, 0], ones / total)
    assert np.allclose(found, counts / total)


@pytest.mark.parametrize("bad", [0.0, -0.1, 1.1, float("nan"), True, "a"])
def test_chances_are_checked(bad: Any) -> None:
    with pytest.raises(ValueError, match="to_slow must be a probability"):
        anyk.Markov(anyk.Deterministic(), anyk.Deterministic(), bad, 0.5)
    with pytest.raises(ValueError, match="repair must be a probability"):
        anyk.NodeFailures(anyk.Deterministic(), 2, 0.5, bad)


@pytest.mark.parametrize("after", [None, 4.5])
def test_markov_is_found_again(after: float | None) -> None:
    model = anyk.Markov(anyk.LogNormal(1.0, 0.2), anyk.LogNormal(5.0, 0.4), 0.05, 0.15, seed=2)
    seconds = drawn(model, 400, 60)
    found = anyk.Markov.fit(anyk.Trace(seconds) if after is None else given_up(seconds, after))
    assert np.allclose(numbers(found), numbers(model), rtol=0.12)
    assert abs(found.slow_share - model.slow_share) < 0.03


def test_markov_is_found_in_what_a_recorder_heard() -> None:
    """First answers only: the slow ones are given up, mostly, and are skipped while they are busy."""
    model = anyk.Markov(anyk.LogNormal(1.0, 0.2), anyk.LogNormal(4.0, 0.3), 0.05, 0.2, seed=2)
    recorder = anyk.Recorder()
    with anyk.SimulatedWorkers(60, model, seed=1) as workers:
        for _ in range(150):
            anyk.map(np.tanh, [0.5], workers=workers, stop=anyk.FirstK(35), on_event=recorder)
    found = anyk.Markov.fit(recorder.trace)
    assert abs(found.to_slow - 0.05) < 0.02
    assert abs(found.to_fast - 0.2) < 0.07
    assert np.allclose(numbers(found)[:4], numbers(model)[:4], rtol=0.1)


@pytest.mark.parametrize("node_size", [6, None])
def test_node_failures_are_found_again(node_size: int | None) -> None:
    model = anyk.NodeFailures(anyk.ShiftedExponential(1.0, 0.5), 6, 0.03, 0.2, seed=5)
    seconds = drawn(model, 300, 60)
    found = anyk.NodeFailures.fit(given_up(seconds, 2.0), node_size)
    assert found.node_size == 6
    assert np.allclose(numbers(found), numbers(model), rtol=0.15)


@pytest.mark.parametrize(
    "model",
    [
        *FAMILIES,
        anyk.Markov(anyk.LogNormal(1.0, 0.2), anyk.LogNormal(5.0, 0.4), 0.05, 0.15),
        anyk.NodeFailures(anyk.ShiftedExponential(1.0, 0.5), 5, 0.03, 0.2),
    ],
)
def test_the_right_model_is_ranked_first(model: Any) -> None:
    fits = anyk.rank_latencies(given_up(drawn(model, 100, 20), 3.0))
    assert type(fits[0].model) is type(model)
    assert [fit.bic for fit in fits] == sorted(fit.bic for fit in fits)
    assert {type(fit.model).__name__: fit.parameters for fit in fits} == {
        "ShiftedExponential": 2, "Pareto": 2, "LogNormal": 2, "Markov": 6, "NodeFailures": 5,
    }  # fmt: skip


def test_nodes_that_are_repaired_come_back() -> None:
    """With workers whose memory is gone; a worker that hangs for another reason stays away."""
    model = anyk.NodeFailures(anyk.Deterministic(1.0), 5, 0.1, 0.3, seed=1)
    with anyk.SimulatedWorkers(20, model) as workers:
        for r in range(40):
            down = model.is_down(20, r)
            run = anyk.map(np.tanh, [0.5], workers=workers, code=anyk.RepetitionCode(20, 1), stop=anyk.Deadline(3.0),
                           faults={19: anyk.Hang()} if r == 0 else None).run  # fmt: skip
            assert set(run.responders) == set(np.flatnonzero(~down).tolist()) - {19}
