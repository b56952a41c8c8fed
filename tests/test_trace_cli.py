"""``anyk trace``, and ``--trace`` of what records one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import anyk
from anyk import cli
from anyk.plots import heat_map, heat_text

runner = CliRunner()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    model = anyk.Markov(anyk.LogNormal(1.0, 0.2), anyk.LogNormal(6.0, 0.2), 0.05, 0.2, seed=1)
    recorder = anyk.Recorder()
    slowness = np.where(np.arange(12) == 7, 30.0, 1.0)
    with anyk.SimulatedWorkers(12, model, slowness=slowness, seed=1) as workers:
        for r in range(40):
            anyk.map(np.tanh, [0.5], workers=workers, stop=anyk.FirstK(8), on_event=recorder,
                     faults={4: anyk.Crash(0.01)} if r == 0 else None)  # fmt: skip
    recorder.save(tmp_path / "rounds.jsonl")
    return tmp_path / "rounds.jsonl"


def test_show_tells_who_was_slow(file: Path) -> None:
    shown = runner.invoke(cli.app, ["trace", "show", str(file)])
    assert shown.exit_code == 0, shown.output
    assert "40 rounds from left to right, 12 workers" in shown.stdout
    assert "x" in shown.stdout
    assert "persistence" in shown.stdout
    slowest = shown.stdout.partition("Slowest workers")[2].splitlines()[4]
    assert slowest.split()[1] == "7"


def test_show_as_json_and_picture(file: Path, tmp_path: Path) -> None:
    figure = tmp_path / "heat.png"
    shown = runner.invoke(cli.app, ["trace", "show", str(file), "--json", "-", "--plot", str(figure)])
    assert shown.exit_code == 0, shown.output
    figures = json.loads(shown.stdout)
    assert (figures["rounds"], figures["workers"], figures["failed"]) == (40, 12, 1)
    assert figures["by_worker"][4]["failed"] == 1
    assert set(figures["persistence"]) == {"1", "2", "5", "10"}
    assert figures["percentiles"]["p50"] < 2.0
    assert figure.read_bytes()[:4] == b"\x89PNG"


def test_fit_ranks_models(file: Path) -> None:
    shown = runner.invoke(cli.app, ["trace", "fit", str(file), "--json", "-"])
    assert shown.exit_code == 0, shown.output
    rows = json.loads(shown.stdout)
    assert rows[0]["model"].startswith("Markov(fast=LogNormal(")
    assert rows[0]["behind"] == 0.0
    assert [row["bic"] for row in rows] == sorted(row["bic"] for row in rows)
    assert "Latency models" in runner.invoke(cli.app, ["trace", "fit", str(file)]).stdout


@pytest.mark.parametrize("command", ["show", "fit"])
def test_files_that_are_no_traces_are_refused_in_a_line(command: str, tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text("{}\n")
    for name, why in ((str(bad), "line 1"), (str(tmp_path / "none"), "there is no file")):
        done = runner.invoke(cli.app, ["trace", command, name], env={"COLUMNS": "400"})
        assert done.exit_code == 2
        assert why in done.output
    shown = runner.invoke(cli.app, ["trace", command, "--help"], env={"COLUMNS": "200", "TERM": "dumb"}).stdout
    assert f"Example: anyk trace {command}" in shown


def test_map_and_train_record(tmp_path: Path) -> None:
    blocks, trace = tmp_path / "x.npy", tmp_path / "map.jsonl"
    np.save(blocks, np.linspace(0, 1, 4))
    done = runner.invoke(cli.app, ["map", "numpy:tanh", str(blocks), "-o", str(tmp_path / "y.npy"), "--workers", "5",
                                   "--stop", "all", "--trace", str(trace)])  # fmt: skip
    assert done.exit_code == 0, done.output
    assert anyk.Trace.load(trace).seconds.shape == (1, 5)
    trace = tmp_path / "train.jsonl"
    done = runner.invoke(cli.app, ["train", "--engine", "simulated", "--workers", "6", "--stragglers", "1", "--epochs",
                                   "2", "--batch", "0", "--trace", str(trace)])  # fmt: skip
    assert done.exit_code == 0, done.output
    assert anyk.Trace.load(trace).seconds.shape == (2, 6)


def test_a_run_that_fails_is_recorded_too(tmp_path: Path) -> None:
    blocks, trace = tmp_path / "x.npy", tmp_path / "map.jsonl"
    np.save(blocks, np.array(["1", "2"], dtype="U1").astype(np.float64))
    job = tmp_path / "job.py"
    job.write_text("def fails(x):\n    raise ValueError('no')\n")
    done = runner.invoke(cli.app, ["map", f"{job}:fails", str(blocks), "-o", str(tmp_path / "y.npy"), "--workers", "3",
                                   "--trace", str(trace)])  # fmt: skip
    assert done.exit_code != 0
    assert set(anyk.Trace.load(trace).rounds[0].failed.values()) == {"raised ValueError: no"}


@pytest.mark.parametrize("shape", [(1, 1), (3, 100), (200, 5), (7, 41)])
def test_heat_maps_of_all_sizes(shape: Any) -> None:
    seconds = np.random.default_rng(0).pareto(2.0, shape) + 1
    seconds[0, 0] = np.nan
    trace = anyk.Trace(seconds)
    rows = heat_text(trace, height=40, width=30)
    assert len(rows) == min(40, shape[1])
    assert {len(marks) for _, marks in rows} == {min(30, shape[0])}
    assert heat_map(trace).get_xlabel() == "round"
