"""A short soak of local workers: the long ones, and those of clusters, are benchmarks."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "soak.py"


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts descriptors by /proc")
def test_sixty_rounds_of_kills_hangs_and_lies() -> None:
    command = [sys.executable, str(SCRIPT), "local", "--rounds", "60", "--workers", "8", "--seed", "1", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)["counts"]
    assert counts["compared"] + counts["refused"] == 60
    assert min(counts[each] for each in ("killed", "stopped", "dropped", "hung", "crashed", "lied", "refused")) > 0
