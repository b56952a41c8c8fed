"""Workers by name."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import anyk


@pytest.mark.parametrize("where", ["local://3", "threads://3", "simulated://3"])
def test_names(where: str) -> None:
    result = anyk.map(np.negative, [1.0, 2.0], code=anyk.LagrangeCode(3, 2), workers=where)
    assert np.allclose(result.value, [-1, -2])
    assert np.allclose(anyk.sum(np.square, np.ones((3, 2)), workers=where).value, 3)
    assert np.allclose(anyk.matmul(np.eye(2), np.eye(2), anyk.PolynomialCode(3, 2, 1), where).value, np.eye(2))
    with anyk.CodedOperator(np.eye(4), anyk.SystematicMDSCode(3, 2), where) as operator:
        assert np.allclose(operator @ np.arange(4.0), np.arange(4.0))
    with pytest.raises(anyk.errors.WorkersClosed):
        operator._engine.poll(0)


def test_how_many() -> None:
    for where, n, expected in (("threads://", 5, 5), ("threads://4", 5, 4), ("local://", 2, 2)):
        with anyk.connect(where, n) as workers:
            assert len(workers) == expected
    with pytest.raises(ValueError, match="needs 5 workers, got 4"):
        anyk.map(abs, [1.0], code=anyk.RepetitionCode(5, 1), workers="threads://4")


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("8", "workers='8' is no engine: use local://16"),
        ("", "is no engine"),
        ("spark://host", "is no engine"),
        ("local://many", "after local:// comes a number of workers"),
        ("threads://0", "n must be an integer of at least 1"),
        ("mpi://8", "is no engine"),
        (None, "is no engine"),
    ],
)
def test_what_is_refused(where: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        anyk.connect(where)


@pytest.mark.parametrize(("module", "extra"), [("distributed", "dask"), ("ray", "ray"), ("mpi4py", "mpi")])
def test_engines_that_are_not_installed_name_their_extra(module: str, extra: str) -> None:
    code = f"""
import sys
sys.modules[{module!r}] = None
import anyk
name = {{"dask": "DaskWorkers", "ray": "RayWorkers", "mpi": "MPIWorkers"}}["{extra}"]
for use in (lambda: anyk.connect("{extra}://"), lambda: getattr(anyk, name)):
    try:
        use()
    except ImportError as error:
        assert "pip install 'anyk[{extra}]'" in str(error), error
    else:
        raise SystemExit("not refused")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_optional_engines_are_names_of_the_package() -> None:
    assert {"DaskWorkers", "RayWorkers", "MPIWorkers"} <= set(dir(anyk))
    with pytest.raises(AttributeError, match="no attribute 'SparkWorkers'"):
        _ = anyk.SparkWorkers
