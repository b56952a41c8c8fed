"""Policies for workers that are late: what becomes of them, and what rounds cost in time of machines."""

from __future__ import annotations

import contextlib
import math
import os
import signal
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import anyk
from anyk import Backup, Restart, Skip
from anyk.runtime.late import backup_due

X = np.arange(8.0).reshape(4, 2)
UNCODED = anyk.UncodedCode(4, 4)


double = eval("lambda x: 2 * x")  # travels by value: workers cannot import this module


class Fixed:
    """Latencies by worker and round of its own."""

    def __init__(self, *rows: list[float]) -> None:
        self.rows = rows

    def draw(self, rng: Any, workers: int, round: int) -> Any:
        return np.array(self.rows[min(round, len(self.rows) - 1)])


def test_seconds_of_machines() -> None:
    workers = anyk.SimulatedWorkers(4, Fixed([1.0, 2.0, 3.0, 10.0]))
    code = anyk.RepetitionCode(4, 1)
    run = anyk.map(double, X[:1], code=code, workers=workers, stop=anyk.FirstK(3)).run
    assert run.seconds == 3
    assert run.machine_seconds == 1 + 2 + 3 + 3  # the fourth was at work up to the stop
    assert run.wasted_seconds == 0
    run = anyk.map(double, X[:1], code=code, workers=workers, stop=anyk.FirstK(3)).run
    assert run.skipped == (3,)
    assert (run.machine_seconds, run.wasted_seconds) == (6, 0)  # the fourth is still at it
    run = anyk.map(double, X[:1], code=code, workers=workers, stop=anyk.Deadline(5.0)).run
    assert run.wasted_seconds == pytest.approx(7)  # of its first task, after that round had stopped


def test_skipped_workers_are_started_afresh_where_they_are_needed() -> None:
    workers = anyk.SimulatedWorkers(4, Fixed([1.0, 1.0, 1.0, 1000.0], [1.0] * 4))
    anyk.map(double, X[:1], code=anyk.RepetitionCode(4, 1), workers=workers, stop=anyk.FirstK(3))
    run = anyk.map(double, X, code=UNCODED, workers=workers, late=Skip(20.0)).run
    assert run.responders == (0, 1, 2, 3)
    assert run.seconds < 30
    again = anyk.SimulatedWorkers(4, Fixed([1.0, 1.0, 1.0, 1000.0], [1.0] * 4))
    anyk.map(double, X[:1], code=anyk.RepetitionCode(4, 1), workers=again, stop=anyk.FirstK(3))
    run = anyk.map(double, X, code=anyk.RepetitionCode(4, 4), workers=again, late=Skip(math.inf), stop=anyk.All()).run
    assert run.seconds > 900  # nobody is started afresh


def test_restart_ends_what_nobody_waits_for() -> None:
    with anyk.LocalWorkers(4, preload=()) as workers:
        before = workers.pids
        code = anyk.RepetitionCode(4, 1)
        faults = {2: anyk.Hang()}
        result = anyk.map(double, X[:1], code=code, workers=workers, faults=faults, late=Restart())
        assert np.array_equal(result.value, 2 * X[:1])
        assert workers.pids[2] != before[2]
        result = anyk.map(double, X, code=UNCODED, workers=workers, late=Restart())
        assert np.array_equal(result.value, 2 * X)


# -- backups ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", [anyk.ThreadWorkers, anyk.LocalWorkers])
def test_backups_answer_for_the_slow(engine: Any) -> None:
    with engine(6) as workers:
        faults = {1: anyk.Hang(), 3: anyk.Slow(5.0)}
        result = anyk.map(double, X, code=UNCODED, workers=workers, faults=faults, late=Backup())
        assert np.array_equal(result.value, 2 * X)
        assert set(result.run.backups) == {1, 3}
        assert result.run.responders == (0, 1, 2, 3)
        assert result.run.seconds < 4


def test_large_blocks_of_backups_are_their_own() -> None:
    blocks = np.arange(4.0)[:, None] * np.ones((1, 50_000))
    with anyk.LocalWorkers(5, preload=()) as workers:
        for slow in range(4):
            result = anyk.map(
                lambda x: (x, float(os.getpid())), blocks, code=UNCODED, workers=workers, faults={slow: anyk.Slow(0.3)},
                late=Backup(), stop=anyk.All(),
            )  # fmt: skip
            assert np.array_equal(result.value[0], blocks)


def test_sums_are_backed_up() -> None:
    parts = np.arange(12.0).reshape(4, 3)
    code = anyk.GroupCode(4, 4, replicas=1, stragglers=0)
    with anyk.LocalWorkers(5, preload=()) as workers:
        for _ in range(3):
            total = anyk.sum(np.square, parts, code, workers, faults={2: anyk.Hang()}, late=Backup())
            assert np.allclose(total.value, (parts**2).sum(axis=0))
            assert total.run.backups == {2: 4} or total.run.skipped == (2,) or total.run.backups


def test_a_task_that_fails_everywhere_fails() -> None:
    def poisoned(x: Any) -> Any:
        if x[0] == 4:
            raise ValueError("poisoned")
        return x

    with anyk.ThreadWorkers(6) as workers, pytest.raises(anyk.TaskFailed, match="poisoned"):
        anyk.map(poisoned, X, code=UNCODED, workers=workers, faults={2: anyk.Slow(0.3)}, late=Backup())


def test_the_death_of_either_is_survived() -> None:
    with anyk.ThreadWorkers(5) as workers:
        faults: dict[int, Any] = {1: anyk.Crash(after=0.3)}
        result = anyk.map(double, X, code=UNCODED, workers=workers, faults=faults, late=Backup())
        assert result.run.backups == {1: 0} or set(result.run.backups) == {1}
    with anyk.ThreadWorkers(5) as workers:
        dying = anyk.FaultyWorkers(workers, {(1, 0): anyk.Slow(0.5), (4, 0): anyk.Crash()})  # also the one to spare
        result = anyk.map(double, X, code=UNCODED, workers=dying, late=Backup())
        assert np.array_equal(result.value, 2 * X)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0.1, 10), min_size=6, max_size=6), st.integers(0, 2), st.floats(1, 4), st.integers(4, 6))
def test_backups_never_change_the_answer(latencies: list[float], hung: int, after: float, n: int) -> None:
    workers = anyk.SimulatedWorkers(n, Fixed(latencies[:n]))
    faults = {worker: anyk.Hang() for worker in range(hung)}
    plain = anyk.SimulatedWorkers(n, Fixed(latencies[:n]))
    result = anyk.map(double, X, code=UNCODED, workers=workers, faults=faults, late=Backup(after))
    assert np.array_equal(result.value, 2 * X)
    if not hung:
        longest = anyk.map(double, X, code=UNCODED, workers=plain).run.seconds
        assert result.run.seconds <= longest + 1e-9
    assert all(task != worker for task, worker in result.run.backups.items())


def test_when_backups_begin() -> None:
    assert backup_due(Backup(2.0), 4, [1.0]) == math.inf
    assert backup_due(Backup(2.0), 4, [3.0, 1.0]) == 2
    assert backup_due(Backup(2.0), 5, [3.0, 1.0, 2.0]) == 4
    assert backup_due(Backup(2.0), 2, [1e-6]) == 0.02
    assert backup_due(Skip(), 2, [1.0, 1.0]) == math.inf


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Skip(-1), ValueError, "patience must be a number of at least 0, got -1"),
        (lambda: Skip(math.nan), ValueError, "patience must be a number of at least 0, got nan"),
        (lambda: Backup(0.5), ValueError, r"after must be a number of at least 1, got 0\.5"),
        (lambda: anyk.map(abs, X, late="skip"), TypeError, r"late must be Skip\(\), Restart\(\) or Backup\(\), got"),
        (lambda: anyk.sum(abs, X, late=Skip), TypeError, r"late must be Skip\(\), Restart\(\) or Backup\(\), got"),
        (lambda: anyk.matmul(X, X.T, late=1), TypeError, r"late must be Skip\(\), Restart\(\) or Backup\(\), got"),
    ],
)
def test_what_is_refused(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


def test_liars_answer_for_nobody_else() -> None:
    """Who stood in for others would have more votes than one."""
    faults = {0: anyk.Corrupt("negate"), 1: anyk.Slow(0.3)}
    code = anyk.RepetitionCode(3, 1, combine="majority")
    with anyk.ThreadWorkers(3) as workers:
        result = anyk.map(abs, [2.0], code=code, workers=workers, late=anyk.Backup(), faults=faults, stop=anyk.All())
    assert result.value == [2.0]
    assert result.run.backups == {}
    data = np.arange(24.0).reshape(8, 3)
    sums = anyk.NullSpaceCode(anyk.cyclic_placement(8, 8, 5), stragglers=2, adversaries=1)
    with anyk.ThreadWorkers(8) as workers:
        total = anyk.sum(np.square, data, sums, workers, late=anyk.Backup(), faults=faults, stop=anyk.All())
    np.testing.assert_allclose(total.value, (data**2).sum(axis=0))
    assert total.run.liars == (0,)
    assert total.run.backups == {}


def test_the_dead_are_tried_again_before_those_who_hang_are_waited_for() -> None:
    with anyk.LocalWorkers(3) as workers:

        def kill(event: anyk.RoundEvent) -> None:
            if event.kind == "submitted" and event.worker == 1:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

        pid, code = workers.pids[1], anyk.RepetitionCode(3, 1)
        faults = {0: anyk.Hang(), 1: anyk.Slow(0.2)}
        result = anyk.map(
            abs, [-2.0], code=code, workers=workers, stop=anyk.FirstK(2), faults=faults, late=Skip(0.1), on_event=kill
        )
        assert result.value == [2.0]
        assert result.run.responders == (1, 2)
