"""Traces: what is recorded, what files hold, and what a replay does."""

from __future__ import annotations

import functools
import json
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import anyk
from anyk.runtime.trace import TracedRound

X = np.linspace(0.0, 1.0, 4)
Story = list[tuple[Any, ...]]


def play(workers: anyk.Workers, rounds: int, stop: anyk.StopRule, on_event: Any = None) -> Story:
    """Who answered in which order, and when."""
    story = []
    code = anyk.RepetitionCode(len(workers), 1)
    for _ in range(rounds):
        try:
            run = anyk.map(np.tanh, [0.5], code=code, workers=workers, stop=stop, on_event=on_event).run
        except anyk.TooFewResponders as error:
            run = error.run
        story.append((list(run.answered_at), run.responders, run.stragglers, run.skipped, run.seconds))
    return story


def same(one: Story, other: Story) -> bool:
    return all(a[:4] == b[:4] and abs(a[4] - b[4]) < 1e-9 * (1 + a[4]) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(
    "model",
    [
        anyk.Pareto(1.0, 1.2),
        anyk.Markov(anyk.LogNormal(1.0, 0.2), anyk.LogNormal(9.0, 0.5), 0.1, 0.3, seed=1),
        anyk.NodeFailures(anyk.ShiftedExponential(), 3, 0.02, 0.4, seed=2),
    ],
)
@pytest.mark.parametrize(
    "stop", [anyk.FirstK(12), anyk.FirstK(6), anyk.Deadline(2.0), anyk.FirstK(14) | anyk.Deadline(3.0)]
)
def test_a_replay_tells_the_same_story(model: Any, stop: anyk.StopRule, tmp_path: Path) -> None:
    recorder, path = anyk.Recorder(), tmp_path / "trace.jsonl"
    with anyk.SimulatedWorkers(20, model, seed=3) as workers:
        story = play(workers, 30, stop, recorder)
    recorder.save(path)
    with anyk.SimulatedWorkers(20, anyk.Trace.load(path), seed=4) as workers:
        assert same(play(workers, 30, stop), story)


def test_recorded_latencies_are_the_models() -> None:
    """Whatever was seen is what was drawn, in the round in which it was drawn; bounds lie below."""
    model = anyk.Markov(anyk.LogNormal(1.0, 0.2), anyk.LogNormal(9.0, 0.5), 0.1, 0.3)
    recorder, rng = anyk.Recorder(), np.random.default_rng(5)
    with anyk.SimulatedWorkers(20, model, seed=5) as workers:
        play(workers, 40, anyk.FirstK(12), recorder)
    trace = recorder.trace
    drawn = np.array([model.draw(rng, 20, r) for r in range(40)])
    assert np.allclose(trace.seconds[trace.known], drawn[trace.known], rtol=1e-12)
    assert (trace.at_least <= drawn).all()
    late = [w for r in trace.rounds for w in range(20) if w not in r.used and trace.known[r.round, w]]
    assert len(late) > 20
    assert (trace.at_least > 0).any()


def test_a_straggler_took_longer_than_it_was_waited_for() -> None:
    recorder = anyk.Recorder()
    with anyk.SimulatedWorkers(3, anyk.Trace([1.0, 2.0, 50.0])) as workers:
        for least in (2.0, 2.0, 4.0, 6.0):  # each round hears at its start that the worker is still silent
            anyk.map(np.tanh, [0.5], workers=workers, stop=anyk.FirstK(2), on_event=recorder)
            trace = recorder.trace
            assert np.isnan(trace.seconds[0, 2])
            assert trace.at_least[0, 2] == least
            assert trace.at_least[1:, 2].max(initial=0.0) == 0.0  # it had no task in these
        for _ in range(9):  # short enough for the others not to lose their patience with it
            run = anyk.map(np.tanh, [0.5], workers=workers, stop=anyk.Deadline(5.0), on_event=recorder).run
    assert run.fed_at == {2: 2.0}
    assert recorder.trace.seconds[0, 2] == 50.0
    assert np.isnan(recorder.trace.seconds[-1, 2])
    assert recorder.trace.at_least[-1, 2] == 3.0


def test_one_run_and_many_rounds_alike(tmp_path: Path) -> None:
    recorder = anyk.Recorder()
    with anyk.SimulatedWorkers(5, anyk.Pareto(), seed=1) as workers:
        faults: Any = {1: anyk.Raise("no"), 2: anyk.Crash(0.25)}
        run = anyk.map(np.tanh, [0.5], workers=workers, stop=anyk.FirstK(3), faults=faults, on_event=recorder).run
    run.save_trace(tmp_path / "run.jsonl")
    recorder.save(tmp_path / "recorder.jsonl")
    assert (tmp_path / "run.jsonl").read_text() == (tmp_path / "recorder.jsonl").read_text()
    assert stat.S_IMODE((tmp_path / "run.jsonl").stat().st_mode) == 0o600
    assert not list(tmp_path.glob("*.part"))
    trace = anyk.Trace.load(tmp_path / "run.jsonl")
    assert trace.rounds[0].failed == {1: "raised RuntimeError: no", 2: "lost: the worker crashed"}
    assert trace.faults() == {(1, 0): anyk.Raise("raised RuntimeError: no"), (2, 0): anyk.Crash(0.25)}
    with anyk.SimulatedWorkers(5, trace) as inner, anyk.FaultyWorkers(inner, trace.faults()) as workers:
        again = anyk.map(np.tanh, [0.5], workers=workers, stop=anyk.FirstK(3)).run
    assert again.responders == run.responders
    assert again.answered_at == run.answered_at
    assert set(again.failed) == {1, 2}


def test_every_verb_can_be_recorded() -> None:
    recorder = anyk.Recorder()
    code = anyk.GroupCode(4, 4, replicas=2, stragglers=1)
    with anyk.ThreadWorkers(4) as workers:
        anyk.map(np.tanh, X[:2], workers=workers, on_event=recorder)
        anyk.sum(np.square, [1.0, 2.0, 3.0, 4.0], code, workers, on_event=recorder)
        with anyk.CodedOperator(np.eye(6), anyk.SystematicMDSCode(4, 3), workers, on_event=recorder) as operator:
            assert np.allclose(operator @ np.ones(6), 1.0)
    trace = recorder.trace
    assert trace.seconds.shape == (3, 4)
    assert len(recorder) == len(trace) == 3
    assert (trace.seconds[trace.known] >= 0).all()


@pytest.mark.parametrize("make", [anyk.ThreadWorkers, functools.partial(anyk.LocalWorkers, preload=())])
def test_late_answers_of_real_workers_are_heard(make: Any) -> None:
    """After the round that gave them up, before the next or within it."""
    recorder = anyk.Recorder()
    with make(3) as workers:
        for faults in ({2: anyk.Slow(0.3)}, {0: anyk.Slow(0.5), 1: anyk.Slow(0.5)}, None):
            code = anyk.RepetitionCode(3, 1)
            anyk.map(np.sqrt, [4.0], code=code, workers=workers, stop=anyk.FirstK(2), faults=faults, on_event=recorder)
    trace = recorder.trace
    assert trace.rounds[0].used == (0, 1)
    assert trace.seconds[0, 2] >= 0.3
    assert trace.at_least[0, 2] < 0.3
    assert trace.known[1].all() or trace.at_least[1].max() > 0


def test_recorders_survive_a_change_of_workers_and_failed_rounds() -> None:
    recorder = anyk.Recorder()
    for n in (3, 5):
        with anyk.SimulatedWorkers(n, anyk.Deterministic(2.0)) as workers, pytest.raises(anyk.TooFewResponders):
            anyk.map(np.tanh, [0.5], workers=workers, stop=anyk.Deadline(1.0), on_event=recorder)
    assert np.isnan(recorder.trace.seconds).all()
    assert recorder.trace.at_least.tolist() == [[1.0] * 3 + [0.0] * 2, [1.0] * 5]
    with pytest.raises(ValueError, match="no round has been recorded"):
        _ = anyk.Recorder().trace


times = st.one_of(st.floats(0, 1e9), st.just(np.nan), st.just(np.inf))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_files_hold_everything(data: Any, tmp_path_factory: Any) -> None:
    rounds, workers = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 5))
    row = st.lists(times, min_size=workers, max_size=workers)
    bound = st.lists(st.floats(0, 1e9), min_size=workers, max_size=workers)
    who = st.integers(0, workers - 1)
    each = st.builds(
        TracedRound, st.integers(0, 99), st.floats(-1e9, 1e9), st.floats(0, 1e9), st.text(), st.tuples(who),
        st.dictionaries(who, st.text()), st.dictionaries(who, st.floats(0, 9)),
    )  # fmt: skip
    trace = anyk.Trace(
        data.draw(st.lists(row, min_size=rounds, max_size=rounds)),
        data.draw(st.lists(bound, min_size=rounds, max_size=rounds)),
        data.draw(st.lists(each, min_size=rounds, max_size=rounds)),
    )
    path = tmp_path_factory.mktemp("trace") / "t.jsonl"
    trace.save(path)
    again = anyk.Trace.load(path)
    assert np.array_equal(again.seconds, trace.seconds, equal_nan=True)
    assert np.array_equal(again.at_least, trace.at_least)
    assert again.rounds == trace.rounds


HEAD = '{"format": "anyk-trace", "version": 1, "workers": 2}'
GOOD = '{"round": 0, "seconds": [1.0, null]}'


@pytest.mark.parametrize(
    ("lines", "number", "why"),
    [
        ([], 1, "there are no rounds"),
        ([HEAD], 2, "there are no rounds"),
        (["not JSON"], 1, "Expecting value"),
        (["[" * 100_000], 1, "recursion"),
        (['{"workers": 2}'], 1, "must begin with"),
        ([HEAD.replace("1,", "2,", 1)], 1, "version 2 is not 1"),
        ([HEAD.replace('s": 2', 's": 0')], 1, "workers must be a positive integer"),
        ([HEAD, GOOD, GOOD[:-4]], 3, "Expecting|delimiter"),
        ([HEAD, "[]"], 2, "must be a JSON object"),
        ([HEAD, "{}"], 2, "there is no 'seconds'"),
        ([HEAD, GOOD, '{"seconds": [1.0]}'], 3, "a list of 2"),
        ([HEAD, '{"seconds": [1.0, -1]}'], 2, "finite numbers of at least 0, got -1"),
        ([HEAD, '{"seconds": [1.0, true]}'], 2, "got True"),
        ([HEAD, '{"seconds": [1.0, "2"]}'], 2, "got '2'"),
        ([HEAD, '{"seconds": [1.0, NaN]}'], 2, "NaN is no JSON number"),
        ([HEAD, '{"seconds": [1.0, 1e999]}'], 2, "got inf"),
        ([HEAD, f'{{"seconds": [1.0, {"9" * 400}]}}'], 2, "too large"),
        ([HEAD, '{"seconds": [1, 2], "silent": {"2": 1.0}}'], 2, "silent must map workers, 0..1"),
        ([HEAD, '{"seconds": [1, 2], "silent": {"²": 1.0}}'], 2, "silent must map workers, 0..1"),
        ([HEAD, '{"seconds": [1, 2], "failed": [1]}'], 2, "failed must map workers"),
        ([HEAD, '{"seconds": [1, 2], "used": [2]}'], 2, "used must list workers"),
        ([HEAD, '{"seconds": [1, 2], "never": [-1]}'], 2, "never must list workers"),
        ([HEAD, '{"seconds": [1, 2], "round": -1}'], 2, "round must be"),
        ([HEAD, '{"seconds": [1, 2], "started": "now"}'], 2, "started must be"),
    ],
)
def test_malformed_files_name_the_line(lines: list[str], number: int, why: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text("\n".join(lines))
    with pytest.raises(ValueError, match=rf"bad.jsonl, line {number}: not a trace of anyk: .*({why})"):
        anyk.Trace.load(path)


def test_bytes_that_are_no_text_name_the_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(HEAD.encode() + b"\n\xff\xfe\xfd\n")
    with pytest.raises(ValueError, match="line 2"):
        anyk.Trace.load(path)


def test_lines_can_be_read_by_people(tmp_path: Path) -> None:
    with anyk.SimulatedWorkers(3, anyk.Trace([1.0, 2.0, 9.0])) as workers:
        run = anyk.map(np.tanh, [0.5], workers=workers, stop=anyk.FirstK(2)).run
    run.save_trace(tmp_path / "t.jsonl")
    head, line = map(json.loads, (tmp_path / "t.jsonl").read_text().splitlines())
    assert head == {"format": "anyk-trace", "version": 1, "workers": 3}
    assert line == {"round": 0, "started": 0.0, "stopped": 2.0, "stop": "FirstK(k=2)", "seconds": [1.0, 2.0, None],
                    "silent": {"2": 2.0}, "used": [0, 1]}  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "at_least", "rounds", "why"),
    [
        ([1.0, np.nan], [0.0, -1.0], (), "at_least"),
        ([1.0, np.nan], [0.0, np.inf], (), "at_least"),
        ([1.0, np.nan], [0.0], (), "at_least"),
        ([1.0, np.nan], None, (TracedRound(0), TracedRound(1)), "rounds must be as many"),
    ],
)
def test_traces_are_checked(seconds: Any, at_least: Any, rounds: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        anyk.Trace(seconds, at_least, rounds)


def test_percentiles_by_kaplan_and_meier() -> None:
    """Against the textbook: survival steps by 1 - deaths / at risk."""
    trace = anyk.Trace([[1.0, 2.0, np.nan, 4.0, np.nan]], [[0, 0, 2.0, 0, 5.0]])
    sample = trace.sample()
    # survival: 4/5 after 1, 3/5 after 2, 3/5 * 1/2 = 0.3 after 4
    assert [sample.quantile(q) for q in (0.2, 0.3, 0.4, 0.5, 0.7, 0.71)] == [1.0, 2.0, 2.0, 4.0, 4.0, np.inf]
    assert trace.sample(2).quantile(0.5) == np.inf
    assert np.isnan(anyk.Trace([np.nan]).sample().quantile(0.5))


def test_persistence_of_slowness() -> None:
    model = anyk.Markov(anyk.Deterministic(1.0), anyk.Deterministic(5.0), 0.1, 0.2, seed=3)
    rng = np.random.default_rng(0)
    trace = anyk.Trace([model.draw(rng, 100, r) for r in range(1000)])
    for lag in (1, 2, 5):
        assert abs(trace.persistence(lag) - model.correlation(lag)) < 0.03
    fresh = anyk.Trace([anyk.Pareto().draw(rng, 100, r) for r in range(300)])
    assert abs(fresh.persistence()) < 0.03
    assert np.isnan(anyk.Trace([1.0, 2.0]).persistence())
    with pytest.raises(ValueError, match="lag"):
        fresh.persistence(0)
