"""The demo, whole: real data, thirty real processes, real faults."""

from __future__ import annotations

import json
from pathlib import Path

from anyk.demo import run_demo


def test_the_demo_tells_the_truth(tmp_path: Path) -> None:
    lines: list[str] = []
    records = run_demo(tmp_path / "out", seed=1, echo=lines.append)
    assert {(record["job"], record["method"].split(",")[0].split(" (")[0]) for record in records} == {
        (job, method)
        for job in ("van der Pol sweep", "digits classifier")
        for method in ("wait for all", "repetition", "Berrut code")
    }
    for record in records:
        exact = "Berrut" not in record["method"]
        assert record["relative_error"] < (1e-12 if exact else 0.3)
        if record["job"] == "digits classifier":
            assert record["agreement"] > (0.999999 if exact else 0.9)
            assert record["accuracy"] > 0.88
    assert all(record["workers_waited_for"] == 24 for record in records if "Berrut" in record["method"])
    for name in ("timeline.png", "error_vs_responders.png"):
        assert (tmp_path / "out" / name).read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "out" / "demo.json").read_text())["records"] == records
    assert len(lines) == 7
