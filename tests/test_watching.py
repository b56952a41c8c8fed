"""Logs, metrics and the live view of rounds."""

from __future__ import annotations

import builtins
import io
import json
import stat
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import anyk
from anyk.runtime.event_log import cause
from anyk.runtime.live import sparkline

SECRET = "s3cr3t"


def secretive(x: Any) -> Any:
    raise ValueError(f"{SECRET} {x}")


def rounds(listener: Any, count: int = 3, n: int = 6, **options: Any) -> None:
    """Stragglers, late answers, a failure in each round, and a worker that is lost."""
    with anyk.SimulatedWorkers(n, anyk.Markov(anyk.Deterministic(1.0), anyk.Deterministic(1.5), 0.3, 0.3)) as workers:
        for r in range(count):
            anyk.map(lambda x: x * 1.0, [0.123456], code=anyk.RepetitionCode(n, 1), workers=workers,
                     stop=anyk.FirstK(2), faults={0: anyk.Raise(SECRET), 1: anyk.Crash(0.5)} if r < 2 else None,
                     on_event=listener, **options)  # fmt: skip


def test_the_log_tells_what_happened(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    events: list[anyk.RoundEvent] = []
    with anyk.EventLog(path) as log:
        rounds(anyk.Listeners(log, events.append))
    log.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["event"], line["round"], line.get("worker")) for line in lines] == [
        (event.kind, event.round, event.worker) for event in events
    ]
    assert {line["cause"] for line in lines if line["event"] == "failed"} == {"raised RuntimeError", "lost"}
    assert {"restarted", "late"} <= {line["event"] for line in lines}
    ends = [line for line in lines if line["event"] == "ended"]
    assert [line["stop"] for line in ends] == ["FirstK(k=2)"] * 3
    assert all(len(line["used"]) == 2 for line in ends)


def test_the_log_is_private_and_holds_no_values(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"event": "before"}\n')
    path.chmod(0o644)
    with anyk.EventLog(path) as log, pytest.raises(anyk.TaskFailed), anyk.ThreadWorkers(3) as workers:
        anyk.map(secretive, [0.123456], workers=workers, on_event=log)
    text = path.read_text()
    assert text.startswith('{"event": "before"}\n')  # appended
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert SECRET not in text
    assert "123456" not in text
    assert "raised ValueError" in text


def test_logs_into_open_files_stay_open() -> None:
    text = io.StringIO()
    with anyk.EventLog(text) as log:
        rounds(log, 1)
    assert text.getvalue().count("\n") > 4
    with pytest.raises(TypeError, match="path or an open text file"):
        anyk.EventLog(3)  # type: ignore[arg-type]


@given(st.text())
def test_causes_never_repeat_a_message(message: str) -> None:
    assert cause(f"raised ValueError: {message}") == "raised ValueError"
    assert cause(f"lost: {message}") == "lost"
    assert cause(f"returned {message}") == "refused"
    assert message not in cause(f"raised Odd name: {message}") or message in "raised"


def values(metrics: anyk.Metrics) -> dict[str, float]:
    lines = [line for line in metrics.text().splitlines() if not line.startswith("#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def test_metrics_count_what_events_tell() -> None:
    events: list[anyk.RoundEvent] = []
    metrics = anyk.Metrics()
    rounds(anyk.Listeners(metrics, events.append), 8)
    found = values(metrics)
    assert found["anyk_rounds_total"] == 8.0
    for kind, name in (("answered", "answers"), ("late", "late"), ("restarted", "restarts")):
        for worker in range(6):
            expected = sum(event.kind == kind and event.worker == worker for event in events)
            assert found.get(f'anyk_{name}_total{{worker="{worker}"}}', 0.0) == expected
    assert found['anyk_failures_total{cause="raised",worker="0"}'] == 2.0
    assert found['anyk_failures_total{cause="lost",worker="1"}'] == 2.0
    runs = [event.detail for event in events if event.kind == "ended"]
    assert found["anyk_round_seconds_count"] == 8.0
    assert found["anyk_round_seconds_sum"] == pytest.approx(sum(run.seconds for run in runs))
    assert found['anyk_numbers_total{direction="received"}'] == sum(run.traffic.received for run in runs)
    assert sum(v for k, v in found.items() if k.startswith("anyk_stragglers_total")) == sum(
        len(run.stragglers) for run in runs
    )


def test_worker_labels_are_bounded_and_registries_apart() -> None:
    metrics, other = anyk.Metrics(most_workers=2), anyk.Metrics()
    rounds(metrics, 3)
    labels = {key.partition('worker="')[2].partition('"')[0] for key in values(metrics) if "worker=" in key}
    assert labels <= {"0", "1", "other"}
    assert values(other)["anyk_rounds_total"] == 0.0
    with pytest.raises(ValueError, match="most_workers"):
        anyk.Metrics(most_workers=-1)


def test_metrics_are_written_in_one_step(tmp_path: Path) -> None:
    path = tmp_path / "anyk.prom"
    metrics = anyk.Metrics(path)
    rounds(metrics, 1)
    first = path.read_text()
    assert "anyk_rounds_total 1.0" in first
    with path.open() as old:
        rounds(metrics, 1)
        assert old.read() == first  # replaced, not overwritten
    assert "anyk_rounds_total 2.0" in path.read_text()
    assert list(tmp_path.iterdir()) == [path]


def test_metrics_are_served_on_request_and_only_here() -> None:
    with anyk.Metrics() as metrics:
        rounds(metrics, 1)
        port = metrics.serve(0)
        assert metrics._servers[0][0].server_address[0] == "127.0.0.1"
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as reply:
            assert b"anyk_rounds_total 1.0" in reply.read()
    metrics.close()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20)


def test_metrics_without_the_library_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **options: Any) -> Any:
        if name == "prometheus_client":
            raise ImportError(name)
        return real(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"pip install 'anyk\[metrics\]'"):
        anyk.Metrics()


def terminal(width: int = 100) -> tuple[io.StringIO, Console]:
    text = io.StringIO()
    return text, Console(file=text, force_terminal=True, width=width, height=60)


def test_the_live_view_draws_and_leaves_the_terminal_as_it_was() -> None:
    text, console = terminal()
    with anyk.LiveView(console=console) as view:
        rounds(view, 4)
    shown = text.getvalue()
    assert "4 rounds ended" in shown
    assert "2 raised RuntimeError" in shown
    assert "given up" in shown
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") == 1  # the cursor is there again


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_the_live_view_is_gone_after_errors(error: type[BaseException]) -> None:
    text, console = terminal()
    view = anyk.LiveView(console=console)

    def interrupted(event: anyk.RoundEvent) -> None:
        if event.kind == "answered":
            raise error

    with pytest.raises(error), view:
        rounds(anyk.Listeners(view, interrupted), 1)
    assert text.getvalue().count("\x1b[?25h") == 1
    with view:  # and may come back
        rounds(view, 1)
    assert view.rounds == 2


def test_the_live_view_shows_the_slowest_of_many() -> None:
    text, console = terminal()
    slowness = np.where(np.arange(200) < 3, 50.0, 1.0)
    with anyk.SimulatedWorkers(200, slowness=slowness, seed=1) as workers, anyk.LiveView(5, console) as view:
        anyk.map(np.tanh, [0.5], workers=workers, stop=anyk.All(), on_event=view)
    last = text.getvalue().rpartition("worker ")[2]
    assert [f"\n{worker} " in last.replace("\x1b[2K", "") for worker in (0, 1, 2)] == [True] * 3
    assert "195 answered" in last


def test_the_live_view_is_nothing_off_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with anyk.LiveView() as view:
        rounds(view, 2)
    with anyk.LiveView(console=Console(file=io.StringIO(), force_terminal=False)) as other:
        rounds(other, 2)
    assert view.rounds == other.rounds == 2
    assert capsys.readouterr() == ("", "")


def test_no_progress_bar_beside_a_live_view(monkeypatch: pytest.MonkeyPatch) -> None:
    from anyk.runtime import progress

    wanted: list[Any] = []
    monkeypatch.setattr(progress, "progress_bar", lambda wanted_, n: wanted.append(wanted_))
    view = anyk.LiveView()
    for listener, option in ((view, None), (anyk.Listeners(print, view), None), (view, True), (None, None)):
        with progress.listening(option, 3, listener):
            pass
    assert wanted == [True, None]


@given(st.lists(st.one_of(st.floats(0, 1e300), st.just(np.nan)), max_size=9))
def test_sparklines_have_a_mark_for_each(seconds: list[float]) -> None:
    positive = [value for value in seconds if value > 0]
    assert len(sparkline(seconds, min(positive, default=1.0), max(positive, default=1.0))) == len(seconds)


def test_all_listeners_hear_even_if_one_raises() -> None:
    heard: list[str] = []

    def bad(event: anyk.RoundEvent) -> None:
        raise ValueError("first")

    both = anyk.Listeners(bad, lambda event: heard.append(event.kind), bad)
    with pytest.raises(ValueError, match="first"):
        both(anyk.RoundEvent("started", 0, 0.0, detail=1))
    assert heard == ["started"]
    with pytest.raises(TypeError, match="callable"):
        anyk.Listeners(3)  # type: ignore[arg-type]
