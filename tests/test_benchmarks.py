"""The benchmarks run, at a tiny size; their figures are not judged here."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "run.py"


def test_all_benchmarks_run_at_a_tiny_size(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--tiny", "--json", str(out)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(out.read_text())
    assert set(figures) == {"coding", "decoders", "rounds", "transport", "start", "stragglers", "simulated",
        "amplification", "weights", "coded_round", "operator", "solver", "scale", "engines", "job", "soak",
        "papers", "varied"}  # fmt: skip
    for name, rows in figures.items():
        assert rows, name
        assert f"### {name}" in done.stdout
        assert all(value > 0 for row in rows for value in row.values() if isinstance(value, float))
