"""The README's example runs as it stands, in a script without a main guard."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def run(number: int, folder: Path) -> subprocess.CompletedProcess[str]:
    """One of the README's examples, as a script."""
    examples = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    script = folder / "example.py"
    script.write_text(examples[number])
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done


def test_the_example_of_sums_runs(tmp_path: Path) -> None:
    liars, error = re.fullmatch(r"lied: (\(.*\)) error: (\S+)\n", run(1, tmp_path).stdout).groups()  # type: ignore[union-attr]
    assert eval(liars) == (99 % 12,)
    assert float(error) < 1e-9


def test_the_example_of_linear_algebra_runs(tmp_path: Path) -> None:
    info, error, rounds = run(2, tmp_path).stdout.split()[:3]
    assert int(info) == 0
    assert float(error) < 1e-6
    assert int(rounds) > 1


def test_the_example_runs(tmp_path: Path) -> None:
    done = run(0, tmp_path)
    shape, responders, stragglers = re.findall(r"\(.*?\)", done.stdout)
    assert shape == "(15, 50, 2)"
    assert len(eval(responders)) == 24
    assert not {3, 7, 11} & set(eval(responders))
    assert {3, 11} <= set(eval(stragglers))


def test_local_links_lead_somewhere() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), (page.name, target)
