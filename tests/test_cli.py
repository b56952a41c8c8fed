"""The command line, in process and as a real program."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from anyk import cli
from anyk.errors import ApproximationWarning

runner = CliRunner()


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = "from anyk.cli import main; main()"
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)


@pytest.fixture
def blocks(tmp_path: Path) -> Path:
    path = tmp_path / "blocks.npy"
    np.save(path, np.linspace(-1, 1, 8).reshape(8, 1) * np.ones(3))
    return path


def test_help_of_every_command_has_an_example() -> None:
    assert "map" in run("--help").stdout
    for command in ("map", "codes", "compare", "reproduce", "demo"):
        shown = runner.invoke(cli.app, [command, "--help"], env={"COLUMNS": "200", "TERM": "dumb"}).stdout
        assert "Example: anyk " + command in shown
        assert "--json" in shown
        assert "--seed" in shown


def test_version() -> None:
    import anyk

    assert run("--version").stdout.strip() == f"anyk {anyk.__version__}"


def test_map_from_a_module_and_from_a_file(blocks: Path, tmp_path: Path) -> None:
    out, figure = tmp_path / "out.npy", tmp_path / "figure.png"
    done = run(
        "map", "numpy:tanh", str(blocks), "-o", str(out), "--workers", "12", "--stop", "first:10",
        "--plot", str(figure), "--json", "-",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert len(figures["responders"]) == 10
    assert figures["shape"] == [8, 3]
    x = np.load(blocks)
    assert np.abs(np.load(out) - np.tanh(x)).max() < 0.5
    assert figure.read_bytes().startswith(b"\x89PNG")

    (tmp_path / "mine.py").write_text("def double(x):\n    return 2 * x\n")
    done = run(
        "map", f"{tmp_path}/mine.py:double", str(blocks), "-o", str(out), "--workers", "12",
        "--code", "lagrange", "--order", "none",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert np.allclose(np.load(out), 2 * x, atol=1e-12)
    assert "wrote" in done.stdout


def test_output_has_the_very_name_it_was_given(blocks: Path, tmp_path: Path) -> None:
    out = tmp_path / "answers"
    done = run("map", "numpy:tanh", str(blocks), "-o", str(out), "--workers", "12", "--code", "uncoded")
    assert done.returncode == 0, done.stderr
    assert sorted(tmp_path.iterdir()) == [out, blocks]
    assert np.array_equal(np.load(out), np.tanh(np.load(blocks)))


def test_a_function_that_draws_draws_the_same_on_every_worker(blocks: Path, tmp_path: Path) -> None:
    (tmp_path / "drawing.py").write_text(
        "import random\nimport numpy as np\n"
        "def f(x):\n    return np.append(np.random.rand(2), random.random()) + 0 * x\n"
    )
    seen = []
    for seed in ("5", "5", "6"):
        done = run(
            "map", f"{tmp_path}/drawing.py:f", str(blocks), "-o", str(tmp_path / "o.npy"), "--workers", "12",
            "--code", "uncoded", "--seed", seed,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        seen.append(np.load(tmp_path / "o.npy"))
    assert np.array_equal(seen[0], np.broadcast_to(seen[0][0], (8, 3)))
    assert np.array_equal(seen[0], seen[1])
    assert not np.array_equal(seen[0], seen[2])


def test_a_coarse_answer_is_warned_of_in_one_line(blocks: Path, tmp_path: Path) -> None:
    done = run("map", "numpy:tanh", str(blocks), "-o", str(tmp_path / "o.npy"), "--workers", "8", "--stop", "first:2")
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("anyk: warning: 2 answers for 8 blocks")
    assert done.stderr.count("\n") == 1


def test_compare_json_equals_the_analysis() -> None:
    from anyk import BerrutCode
    from anyk.analysis import figures

    shown = runner.invoke(
        cli.app,
        ["compare", "berrut", "repetition:combine=majority", "uncoded", "--workers", "12", "--blocks", "5",
         "--responders", "9", "--trials", "30", "--seed", "3", "--json", "-"],
    )  # fmt: skip
    assert shown.exit_code == 0, shown.output
    berrut, repetition, uncoded = json.loads(shown.stdout)
    assert berrut["residual_worst"] == pytest.approx(figures(BerrutCode(12, 5), 9, 30, 3).residual.worst)
    assert repetition["code"] == "repetition:combine=majority"
    assert 0 <= repetition["failures"] <= 1
    assert uncoded["threshold"] == 5


def test_tables_are_printed(tmp_path: Path) -> None:
    shown = runner.invoke(cli.app, ["compare", "berrut", "--workers", "9", "--blocks", "3", "--responders", "7"])
    assert "berrut" in shown.stdout
    shown = runner.invoke(cli.app, ["codes", "--json", str(tmp_path / "codes.json")])
    assert {row["code"] for row in json.loads((tmp_path / "codes.json").read_text())} == {
        *cli.data_codes(),
        *cli.GRADIENT_CODES,
        *cli.PRODUCT_CODES,
    }
    for name in cli.data_codes():
        assert name in shown.stdout


def test_reproduce(tmp_path: Path) -> None:
    shown = runner.invoke(
        cli.app, ["reproduce", "bacc-fig4", "--trials", "5", "--json", "-", "--plot", str(tmp_path / "4.png")]
    )
    assert shown.exit_code == 0, shown.output
    rows = json.loads(shown.stdout)["rows"]
    assert rows[0]["s"] == 0
    assert rows[0]["mean"] == pytest.approx(0.0392, rel=0.01)
    assert (tmp_path / "4.png").read_bytes().startswith(b"\x89PNG")


BAD = [
    (["compare", "berut", "--workers", "9", "--blocks", "3", "--responders", "7"], "no code is called 'berut'"),
    (["compare", "berrut:knots=3", "--workers", "9", "--blocks", "3", "--responders", "7"], "has no option 'knots=3'"),
    (["compare", "berrut:nodes=gauss", "--workers", "9", "--blocks", "3", "--responders", "7"], "nodes must be one of"),
    (["compare", "lagrange:degree=x", "--workers", "9", "--blocks", "3", "--responders", "7"], "must be of type int"),
    (["compare", "berrut", "--workers", "3", "--blocks", "9", "--responders", "2"], "at least as many workers"),
    (["compare", "berrut", "--workers", "9", "--blocks", "3", "--responders", "10"], "responders must lie in 1..9"),
    (["reproduce", "bacc-fig9"], "choose one of bacc-fig1"),
    (["map", "numpy:tanh", "nowhere.npy", "-o", "x.npy"], "there is no file"),
    (["map", "numpy", "nowhere.npy", "-o", "x.npy"], "MODULE:FUNCTION"),
    (["map", "no_such_module:f", "nowhere.npy", "-o", "x.npy"], "cannot import"),
    (["map", "numpy:no_such", "nowhere.npy", "-o", "x.npy"], "has no 'no_such'"),
    (["map", "numpy:pi", "nowhere.npy", "-o", "x.npy"], "is not a function"),
    (["map", "numpy:", "nowhere.npy", "-o", "x.npy"], "MODULE:FUNCTION"),
    (["map", "numpy:tanh", "nowhere.npy", "-o", "no/x.npy"], "there is no folder no; make it first"),
    (["map", "numpy:tanh", "nowhere.npy", "-o", "."], "is a folder; name a file"),
    (["map", "numpy:tanh", "nowhere.npy", "-o", "x.npy", "--json", "no/x"], "--json no/x: there is no folder no"),
    (["map", "numpy:tanh", "nowhere.npy", "-o", "x.npy", "--plot", "x.xyz"], "pictures end in one of"),
    (["map", "numpy:tanh", "nowhere.npy", "-o", "x.npy", "--workers", "0"], "greater than or equal to 1"),
    (["map", "numpy:tanh", "nowhere.npy", "-o", "x.npy", "--order", "up"], "order must be path, none or auto"),
    (["codes", "--workers", "3", "--blocks", "9"], "at least as many workers"),
    (["codes", "--json", "no/x"], "there is no folder"),
    (["compare", "berrut", "--workers", "9", "--blocks", "3", "--responders", "5", "--json", "no/x"], "no folder"),
    (["reproduce", "bacc-fig4", "--plot", "no/x.png"], "there is no folder"),
    (["reproduce", "bacc-fig4", "--trials", "0"], "greater than or equal to 1"),
    (["demo", "--output", __file__], "is a file; name a folder"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_usage_exits_with_2_and_says_why(arguments: list[str], message: str) -> None:
    shown = runner.invoke(cli.app, arguments, env={"COLUMNS": "300", "TERM": "dumb"})
    assert shown.exit_code == 2
    assert message in " ".join(shown.output.replace("│", " ").split())
    assert "Traceback" not in shown.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--code", "lagrange:degree=2", "--workers", "9"], "needs 15 answers for 8 blocks and there are 9 workers"),
        (["--stop", "first:24"], "can never be met"),
    ],
)
def test_what_cannot_work_is_refused_before_the_work(blocks: Path, options: list[str], message: str) -> None:
    shown = runner.invoke(cli.app, ["map", "numpy:tanh", str(blocks), "-o", "x.npy", *options], env={"COLUMNS": "300"})
    assert shown.exit_code == 2
    assert message in shown.output


def test_many_processes_are_not_started_unasked(tmp_path: Path) -> None:
    np.save(tmp_path / "many.npy", np.zeros((500, 1)))
    shown = runner.invoke(cli.app, ["map", "numpy:tanh", str(tmp_path / "many.npy"), "-o", "x.npy"])
    assert shown.exit_code == 2
    assert "would start 625 processes" in shown.output


def test_a_file_that_is_no_array(tmp_path: Path) -> None:
    (tmp_path / "b.npy").write_text("hello")
    np.save(tmp_path / "scalar.npy", np.array(3.0))
    np.save(tmp_path / "objects.npy", np.array([1, "a"], dtype=object), allow_pickle=True)
    for name, message in (("b", "numpy.save"), ("objects", "numpy.save"), ("scalar", "needs a first axis")):
        shown = runner.invoke(
            cli.app, ["map", "numpy:tanh", str(tmp_path / f"{name}.npy"), "-o", "x.npy"], env={"COLUMNS": "300"}
        )
        assert shown.exit_code == 2
        assert message in shown.output
        assert "unsafely" not in shown.output


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def f(x) return", "SyntaxError"),
        ("raise RuntimeError('no good')", "RuntimeError: no good"),
        ("import sys\nsys.exit(3)", "SystemExit: 3"),
        ("import no_such_module", "No module named 'no_such_module'"),
    ],
)
def test_a_module_that_cannot_be_imported(text: str, message: str, blocks: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(text)
    done = run("map", f"{tmp_path}/broken.py:f", str(blocks), "-o", str(tmp_path / "o.npy"))
    assert done.returncode == 2
    assert "cannot import" in done.stderr
    assert message in " ".join(done.stderr.replace("│", " ").split())
    assert "Traceback" not in done.stderr


def test_an_error_of_our_own_making_is_one_line_too(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def broken() -> None:
        raise KeyError("oops")

    monkeypatch.setattr(cli, "app", broken)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # main() sets it: put it back afterwards
    monkeypatch.delenv("ANYK_DEBUG", raising=False)
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 1
    assert capsys.readouterr().err == "anyk: KeyError: 'oops' (ANYK_DEBUG=1 shows the traceback)\n"
    monkeypatch.setenv("ANYK_DEBUG", "1")
    with pytest.raises(KeyError):
        cli.main()


@pytest.mark.parametrize("stop", ["first:0", "first:x", "deadline:-1", "never", "all:3"])
def test_bad_stop_rules(blocks: Path, stop: str) -> None:
    shown = runner.invoke(cli.app, ["map", "numpy:tanh", str(blocks), "-o", "x.npy", "--stop", stop])
    assert shown.exit_code == 2


def test_a_failing_function_exits_with_1_and_its_traceback(blocks: Path, tmp_path: Path) -> None:
    (tmp_path / "failing.py").write_text("def f(x):\n    raise ValueError('no good')\n")
    done = run("map", f"{tmp_path}/failing.py:f", str(blocks), "-o", str(tmp_path / "o.npy"), "--workers", "9")
    assert done.returncode == 1
    assert "anyk: the function failed on worker" in done.stderr
    assert "ValueError: no good" in done.stderr
    assert "anyk/cli.py" not in done.stderr


def test_nan_blocks_are_named(tmp_path: Path) -> None:
    np.save(tmp_path / "b.npy", np.array([1.0, np.nan, 2.0]))
    done = run("map", "numpy:tanh", str(tmp_path / "b.npy"), "-o", str(tmp_path / "o.npy"))
    assert done.returncode == 1
    assert "block 1 holds 1 non-finite value" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_the_function_prints_stays_out_of_the_json(blocks: Path, tmp_path: Path) -> None:
    (tmp_path / "noisy.py").write_text("def f(x):\n    print('hello')\n    return x\n")
    done = run(
        "map", f"{tmp_path}/noisy.py:f", str(blocks), "-o", str(tmp_path / "o.npy"), "--workers", "9",
        "--code", "lagrange", "--json", "-",
    )  # fmt: skip
    assert json.loads(done.stdout)["shape"] == [8, 3]
    assert "hello" in done.stderr


# -- train ------------------------------------------------------------------------------------------------------------


def trained(*options: str) -> list[dict[str, object]]:
    shown = runner.invoke(cli.app, ["train", "--engine", "threads", "--delay", "0.01", "--json", "-", *options])
    assert shown.exit_code == 0, shown.output
    return json.loads(shown.stdout)["epochs"]


@pytest.mark.parametrize("code", ["nullspace", "group", "fractional", "universal", "cyclic", "cyclic-mds"])
def test_exact_codes_train_alike_whoever_is_late(code: str) -> None:
    options = ("--workers", "8", "--partitions", "8", "--epochs", "2", "--skew", "by-class", "--hidden", "0")
    waiting = trained("--code", "ignore", "--stragglers", "0", *options)
    coded = trained("--code", code, "--stragglers", "2", *options)
    assert [row["loss"] for row in coded] == pytest.approx([row["loss"] for row in waiting], rel=1e-9)


def test_liars_are_named_in_every_epoch_and_do_no_harm() -> None:
    options = ("--workers", "10", "--epochs", "2", "--hidden", "0", "--stragglers", "2")
    honest = trained("--code", "nullspace:replicas=5", *options)
    attacked = trained("--code", "nullspace:replicas=5", "--liars", "1", *options)
    assert [row["loss"] for row in attacked] == pytest.approx([row["loss"] for row in honest], rel=1e-9)
    assert all(row["liars_found"] for row in attacked)
    assert not any(row["liars_found"] for row in honest)


def test_a_resumed_training_goes_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    checkpoint = str(tmp_path / "half.npz")
    options = ("--workers", "6", "--stragglers", "1", "--hidden", "5")
    whole = trained("--epochs", "4", *options)
    first = trained("--epochs", "2", "--save", checkpoint, *options)
    second = trained("--epochs", "2", "--resume", checkpoint, *options)
    assert [row["loss"] for row in first + second] == pytest.approx([row["loss"] for row in whole], rel=1e-9)


def test_berrut_trains_on_mixtures() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ApproximationWarning)  # whether there is one depends on who is late
        rows = trained("--code", "berrut", "--workers", "12", "--stragglers", "1", "--epochs", "3")
    assert rows[-1]["loss"] < rows[0]["loss"]  # type: ignore[operator]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--code", "cyclic", "--liars", "1"), "cannot find 1 liars"),
        (("--code", "nonsense"), "no gradient code is called"),
        (("--code", "group:size=3"), "group has no option"),
        (("--code", "nullspace:replicas=3"), "3 replicas of a partition cannot make up for 4 stragglers"),
        (("--code", "cyclic", "--partitions", "7"), "as many partitions as workers"),
        (("--skew", "odd"), "--skew must be"),
        (("--engine", "spark"), "--engine must be"),
        (("--workers", "4", "--stragglers", "4"), "leave none"),
        (("--resume", "nothing.npz"), "there is no such file"),
        (("--save", "/no/such/folder/file.npz"), "there is no folder"),
    ],
)
def test_bad_training_options_are_refused_in_words(options: tuple[str, ...], message: str) -> None:
    shown = runner.invoke(cli.app, ["train", *options], env={"COLUMNS": "300", "TERMINAL_WIDTH": "300"})
    assert shown.exit_code == 2
    assert message in " ".join(shown.output.replace("│", " ").split())
