"""Answers that would have been wrong, and waits that would not have ended: each found once, none to come back."""

from __future__ import annotations

import itertools
import os
import pickle
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import anyk
from anyk.errors import ApproximationWarning, BlocksError, DisagreeingReplies, RoundError, UnsafeDecode, WorkersClosed
from anyk.runtime.segments import Segment

X = np.linspace(0, 1, 4)


def test_a_nan_stays_in_its_block() -> None:
    with anyk.ThreadWorkers(5) as workers:
        for code, stop in ((anyk.RepetitionCode(5, 2), anyk.All()), (anyk.UncodedCode(5, 2), None)):
            result = anyk.map(lambda x: x + 0, [np.nan, 2.0], code=code, workers=workers, stop=stop, allow_nan=True)
            assert np.isnan(result.value[0])
            assert result.value[1] == 2.0
    # A mixed matrix: rows that do not use the block with the NaN are clean, whatever the others do.
    matrix = np.array([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    from anyk.blocks import combine

    got = combine(matrix, np.array([[np.inf, np.nan], [1.0, 2.0], [3.0, 4.0]]))
    assert np.isinf(got[0, 0])
    assert np.isnan(got[0, 1])
    assert np.array_equal(got[1:], [[2.0, 3.0], [0.0, 0.0], [1.0, 2.0]])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_majority_of_huge_replies_outvotes_a_liar(dtype: type) -> None:
    size = {np.float16: 300, np.float32: 1e30, np.float64: 1e200}[dtype]
    code = anyk.RepetitionCode(3, 1, combine="majority")
    honest, liar = np.array([size, -size], dtype), np.array([2 * size, size], dtype)
    for lies in range(3):
        replies = [liar if worker == lies else honest for worker in range(3)]
        assert np.array_equal((code.decoder(range(3), replies) @ replies)[0], honest)
    nan = np.array([np.nan, 1.0], dtype)
    assert np.array_equal((code.decoder(range(3), [nan, nan, liar]) @ [nan, nan, liar])[0], nan, equal_nan=True)
    with pytest.raises(DisagreeingReplies):
        code.decoder([0, 1], [honest, liar])


def test_integers_that_float64_cannot_hold_are_refused() -> None:
    for big in (2**53 + 1, -(2**53) - 1):
        with pytest.raises(BlocksError, match=r"2\*\*53"):
            anyk.UncodedCode(1, 1).encode(np.array([big]))
    assert anyk.UncodedCode(1, 1).encode(np.array([2**53]))[0] == 2.0**53


@pytest.mark.parametrize("gap", [range(6), range(24, 30)])
def test_a_gap_at_an_end_warns_at_the_size_of_the_demo(gap: range) -> None:
    hung = {worker: anyk.Hang() for worker in gap}
    with anyk.SimulatedWorkers(30) as workers, pytest.warns(ApproximationWarning, match="in the worst block"):
        anyk.map(np.sin, np.linspace(0, 6, 15), workers=workers, stop=anyk.FirstK(24), faults=hung)


def test_an_approximate_answer_of_an_exact_code_warns() -> None:
    code = anyk.LagrangeCode(10, 5, degree=3, below_threshold="least-squares")
    with anyk.SimulatedWorkers(10) as workers, pytest.warns(ApproximationWarning):
        anyk.map(lambda x: x**3, np.linspace(0, 1, 5), code=code, workers=workers, stop=anyk.FirstK(4))
    code = anyk.LagrangeCode(20, 5, degree=3, below_threshold="least-squares")
    with anyk.SimulatedWorkers(20) as workers, warnings.catch_warnings():
        warnings.simplefilter("error")
        result = anyk.map(lambda x: x**3, np.linspace(0, 1, 5), code=code, workers=workers, stop=anyk.FirstK(14))
    assert np.allclose(result.value, np.linspace(0, 1, 5) ** 3, atol=1e-9)


@pytest.mark.parametrize("make", [anyk.ThreadWorkers, lambda n: anyk.LocalWorkers(n, preload=())])
def test_another_worker_hangs_in_every_round_and_the_rounds_go_on(make) -> None:
    with make(6) as workers:
        for round in range(8):
            result = anyk.map(np.cos, X, workers=workers, stop=anyk.FirstK(5), faults={round % 6: anyk.Hang()})
            assert len(result.run.responders) == 5
            assert round % 6 not in result.run.responders


def executors(n: int) -> anyk.ExecutorWorkers:
    return anyk.ExecutorWorkers([ThreadPoolExecutor(1) for _ in range(n)])


def hang_in_block_0(x):
    # Not for ever: the interpreter waits for the threads of an executor when it ends.
    time.sleep(3.0 if x == 0 else 0.0)
    return x


@pytest.mark.parametrize("make", [anyk.ThreadWorkers, lambda n: anyk.LocalWorkers(n, preload=()), executors])
def test_close_from_another_thread_ends_a_round(make) -> None:
    workers = make(3)
    if make is executors:
        function, faults = hang_in_block_0, {}
    else:
        function, faults = np.cos, {0: anyk.Hang()}
    started = threading.Event()
    threading.Thread(target=lambda: started.wait(30) and workers.close(), daemon=True).start()
    with pytest.raises(WorkersClosed):
        anyk.map(
            function, X[:3], code=anyk.UncodedCode(3, 3), workers=workers, faults=faults,
            on_event=lambda event: started.set(),
        )  # fmt: skip


@pytest.mark.parametrize("make", [anyk.ThreadWorkers, lambda n: anyk.LocalWorkers(n, preload=())])
def test_an_exception_that_cannot_be_printed_is_reported(make) -> None:
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

    def raise_unprintable(x):
        raise Unprintable

    with make(2) as workers, pytest.raises(anyk.TaskFailed, match="cannot be printed"):
        anyk.map(raise_unprintable, X[:2], code=anyk.UncodedCode(2, 2), workers=workers)


CHILD = """
import multiprocessing
import anyk

def child(queue):
    with anyk.ThreadWorkers(3) as workers:
        code = anyk.RepetitionCode(3, 1)
        result = anyk.map(lambda x: x, [1.0], code=code, workers=workers, stop=anyk.All(), faults={1: anyk.Crash()})
    queue.put(list(result.run.failed))

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    process.join()
    print(process.exitcode, queue.get(timeout=30))
"""


def test_crash_in_a_thread_spares_the_process_also_in_a_child(tmp_path) -> None:
    (tmp_path / "script.py").write_text(CHILD)
    command = [sys.executable, str(tmp_path / "script.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "0 [1]\n", done.stderr


def test_nested_faults_bend_virtual_time_only() -> None:
    with anyk.SimulatedWorkers(4, anyk.Deterministic(1.0)) as inner:
        workers = anyk.FaultyWorkers(inner, {(0, 0): anyk.Slow(1e6), (1, 0): anyk.Hang(), (2, 0): anyk.Slow(5)})
        faults = {0: anyk.Hang(), 1: anyk.Slow(3), 2: anyk.Slow(7)}
        code = anyk.RepetitionCode(4, 1)
        result = anyk.map(np.cos, X[:1], code=code, workers=workers, stop=anyk.Deadline(50), faults=faults)
    assert result.run.responders == (2, 3)
    assert result.run.answered_at[2] == 13.0


def test_a_segment_that_cannot_be_mapped_is_closed_once(monkeypatch) -> None:
    import anyk.runtime.segments as segments

    closed: list[int] = []
    real = os.close
    monkeypatch.setattr(segments.os, "close", lambda fd: (closed.append(fd), real(fd))[1])
    monkeypatch.setattr(segments.mmap, "mmap", lambda *_, **__: (_ for _ in ()).throw(OSError("no room")))
    with pytest.raises(OSError, match="no room"):
        Segment.create(1 << 20)
    assert len(closed) == 1


@pytest.mark.parametrize("seconds", [1e7, float("inf")])
def test_very_long_deadlines(seconds: float) -> None:
    for make in (anyk.ThreadWorkers, anyk.SimulatedWorkers, lambda n: anyk.LocalWorkers(n, preload=())):
        with make(5) as workers:
            result = anyk.map(
                np.cos, X[:1], code=anyk.RepetitionCode(5, 1), workers=workers, stop=anyk.Deadline(seconds)
            )
        assert len(result.run.responders) == 5


def test_the_decoder_of_a_result_is_the_matrix_that_was_applied() -> None:
    x = np.random.default_rng(0).permutation(np.linspace(-1, 1, 9))
    replies: dict[int, float] = {}
    with anyk.SimulatedWorkers(14, seed=1) as workers:
        result = anyk.map(np.exp, x, workers=workers, stop=anyk.FirstK(11))
    assert result.order is not None
    coded = result.code.encode(x[result.order])
    replies = dict(enumerate(np.exp(coded)))
    assert np.allclose(result.decoder @ replies, result.value, rtol=1e-12)
    plain = result.code.decoder(result.run.responders)
    for name in ("residual", "worst_residual", "noise_amplification", "lebesgue_constant", "condition"):
        assert getattr(result.decoder, name) == pytest.approx(getattr(plain, name), rel=1e-12)


def test_errors_of_rounds_carry_what_arrived_and_travel_between_processes() -> None:
    found: list[RoundError] = []
    with anyk.ThreadWorkers(4) as workers:
        for code, faults, dtype in (
            (anyk.UncodedCode(4, 4), {1: anyk.Raise("oh")}, np.float64),
            (anyk.UncodedCode(4, 4), {1: anyk.Corrupt("nan")}, np.float64),
            (anyk.RepetitionCode(4, 2, combine="majority"), {1: anyk.Corrupt("negate")}, np.float64),
            (anyk.LagrangeCode(4, 4, degree=1), {}, np.float16),
        ):
            x = X[: code.blocks].astype(dtype)
            with pytest.raises(RoundError) as caught:  # noqa: PT012
                anyk.map(lambda v: v + 1, x, code=code, workers=workers, stop=anyk.All(), faults=faults)
                raise UnsafeDecode("not unsafe after all", {0: 1.0}, anyk.Run())
            found.append(caught.value)
    assert {type(error).__name__ for error in found} >= {"TaskFailed", "TooFewResponders", "DisagreeingReplies"}
    for error in found:
        assert error.run is not None
        assert error.arrived
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is type(error)
        assert str(copy) == str(error)
        assert copy.arrived.keys() == error.arrived.keys()


def test_public_names_of_signatures_are_public() -> None:
    for name in ("Run", "RoundEvent", "Fault", "map"):
        assert hasattr(anyk, name)
    scope: dict[str, object] = {}
    exec("from anyk import *", scope)
    assert "map" not in scope  # the builtin is not shadowed
    for one, other in itertools.pairwise(sorted(anyk.__all__)):
        assert one < other


def test_a_code_that_could_never_decode_is_refused_with_its_threshold() -> None:
    with anyk.ThreadWorkers(6) as workers, pytest.raises(anyk.TooFewResponders, match="needs 10 answers and has 6"):
        anyk.map(np.cos, X, code=anyk.LagrangeCode(6, 4, degree=3), workers=workers)


def test_a_run_knows_when_each_worker_failed() -> None:
    faults = {0: anyk.Crash(after=2.0), 1: anyk.Raise(), 2: anyk.Corrupt("nan"), 3: anyk.Corrupt("shape")}
    with anyk.SimulatedWorkers(8, anyk.Deterministic(5.0)) as workers:
        run = anyk.map(
            np.cos, X[:1], code=anyk.RepetitionCode(8, 1), workers=workers, stop=anyk.All(), faults=faults
        ).run
    assert run.failed.keys() == run.failed_at.keys() == faults.keys()
    assert run.failed_at == {0: 2.0, 1: 5.0, 2: 5.0, 3: 5.0}


# -- forks of the caller ----------------------------------------------------------------------------------------------


def test_a_fork_neither_uses_nor_breaks_the_workers(tmp_path: Path) -> None:
    script = tmp_path / "forks.py"
    script.write_text(
        """
import os, sys
import numpy as np
import anyk
import anyk.errors

workers = anyk.LocalWorkers(4)
operator = anyk.CodedOperator(np.eye(40), anyk.SystematicMDSCode(4, 3), workers)
operator @ np.ones(40)
for how in ("use", "close", "delete", "exit"):
    pid = os.fork()
    if pid == 0:
        status = 1
        if how == "use":
            try:
                operator @ np.ones(40)
            except anyk.errors.WorkersClosed as error:
                status = 0 if "of which this is a fork" in str(error) else 2
        else:
            if how == "close":
                workers.close()
            elif how == "delete":
                del operator, workers
            status = 0
        sys.stdout.flush()
        if how == "exit":
            sys.exit(0)
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, how
    assert np.array_equal((operator @ np.arange(40.0)).round(9), np.arange(40.0)), how
print("fine")
"""
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    assert done.stdout == "fine\n", done.stderr


def test_closing_in_the_middle_leaves_no_process_behind() -> None:
    import psutil

    before = set(psutil.Process().children(recursive=True))
    for attempt in range(12):
        workers = anyk.LocalWorkers(3, preload=())
        faults = {0: anyk.Crash(), 1: anyk.Slow(0.002)}
        operator = anyk.CodedOperator(np.eye(12), anyk.SystematicMDSCode(3, 2), workers, faults=faults)
        ends: list[BaseException] = []

        def work(operator: anyk.CodedOperator = operator, ends: list[BaseException] = ends) -> None:
            try:
                while True:
                    operator @ np.ones(12)
            except BaseException as error:
                ends.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        time.sleep(0.02 + 0.01 * (attempt % 4))
        workers.close()
        thread.join(30)
        assert [type(end) for end in ends] == [WorkersClosed]
        left = set(psutil.Process().children(recursive=True)) - before
        psutil.wait_procs(left, timeout=5)
        assert not [p for p in left if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
