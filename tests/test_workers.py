"""Every engine obeys the laws; local processes die cleanly, in every way they can."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import psutil
import pytest

import anyk
from anyk.engine_laws import check_workers
from anyk.runtime import wire
from anyk.runtime.segments import Segment

# whatever else the tests have imported (torch, say) is not loaded again for each set of workers
Local = functools.partial(anyk.LocalWorkers, preload=())
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import the tests

K = np.linspace(0.0, 1.0, 4)


# -- the laws ---------------------------------------------------------------------------------------------------------


def test_local_workers_obey_the_laws() -> None:
    check_workers(Local, processes=True, huge=True)


def test_thread_workers_obey_the_laws() -> None:
    check_workers(anyk.ThreadWorkers, processes=False)


@pytest.mark.parametrize("latency", [None, anyk.Deterministic(0.0), anyk.Deterministic(0.3), anyk.Pareto()])
def test_simulated_workers_obey_the_laws(latency: Any) -> None:
    check_workers(lambda n: anyk.SimulatedWorkers(n, latency), processes=False, n=4)


@pytest.mark.parametrize("kind", ["threads", "forkserver"])
def test_executor_workers_obey_the_laws(kind: str) -> None:
    executors: list[Executor] = []

    def make(n: int) -> anyk.ExecutorWorkers:
        if kind == "threads":
            mine: list[Executor] = [ThreadPoolExecutor(1) for _ in range(n)]
        else:
            context = multiprocessing.get_context(kind)
            context.set_forkserver_preload(["anyk.engine_laws"])
            mine = [ProcessPoolExecutor(1, mp_context=context) for _ in range(n)]
        executors.extend(mine)
        return anyk.ExecutorWorkers(mine)

    try:
        check_workers(make, processes=True, n=2)
    finally:
        for executor in executors:
            executor.shutdown()


def test_wrapped_workers_obey_the_laws() -> None:
    elsewhere = {(0, 10_000): anyk.Crash()}
    check_workers(lambda n: anyk.FaultyWorkers(anyk.ThreadWorkers(n), elsewhere), processes=False)
    check_workers(lambda n: anyk.FaultyWorkers(Local(n), elsewhere), processes=True, n=2)


@pytest.mark.parametrize("make", [anyk.LocalWorkers, anyk.ThreadWorkers, anyk.SimulatedWorkers])
@pytest.mark.parametrize("n", [0, -1, 2.0, "3", True, None])
def test_the_number_of_workers_is_checked(make: Any, n: Any) -> None:
    with pytest.raises(ValueError, match="n must be an integer of at least 1"):
        make(n)


def test_preload_is_a_list_of_names() -> None:
    with pytest.raises(TypeError, match="preload must be a list"):
        anyk.LocalWorkers(1, preload="numpy")


def test_no_executors() -> None:
    with pytest.raises(ValueError, match="at least one"):
        anyk.ExecutorWorkers([])


# -- local processes: signals -----------------------------------------------------------------------------------------


@pytest.fixture
def local() -> Iterator[anyk.LocalWorkers]:
    with Local(4) as workers:
        yield workers


def identity(workers: Any, stop: Any = None, **keywords: Any) -> anyk.Result:
    """A round in which every worker that answers is told from the others."""
    return anyk.map(
        lambda x: x, K, code=anyk.RepetitionCode(4, 4), workers=workers, stop=stop or anyk.All(), **keywords
    )


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    for _ in range(3000):
        if value := condition():
            return value
        time.sleep(0.01)
    raise AssertionError(f"not in half a minute: {what}")


def gone(*pids: int) -> bool:
    """Ended; an orphan may stay a zombie until init looks after it."""
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                return False
    return True


def stopped(pid: int) -> bool:
    return psutil.Process(pid).status() == psutil.STATUS_STOPPED


def answers(workers: anyk.LocalWorkers, count: int) -> list[anyk.runtime.Event]:
    events: list[anyk.runtime.Event] = []
    while len(events) < count:
        got = workers.poll(60)
        assert got, "nothing came in a minute"
        events += [event for event in got if event.kind != "joined"]
    return events


def echo(state: dict[str, Any], value: Any) -> Any:
    return value


def sleep(state: dict[str, Any], seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def test_a_worker_killed_while_idle_is_back_in_the_next_round(local: anyk.LocalWorkers) -> None:
    for victims in ([2], [0, 1], [0, 1, 2, 3]):
        before = local.pids
        for victim in victims:
            os.kill(before[victim], signal.SIGKILL)
            wait_for(lambda pid=before[victim]: gone(pid), "death")  # type: ignore[misc]
        result = identity(local)
        assert result.run.responders == (0, 1, 2, 3)
        assert np.array_equal(result.value, K)
        assert [a != b for a, b in zip(before, local.pids, strict=True)] == [w in victims for w in range(4)]


def test_a_worker_killed_at_work_is_lost_with_the_signal_named(local: anyk.LocalWorkers) -> None:
    for sig in (signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM):
        local.submit(1, "doomed", sleep, 60.0)
        os.kill(local.pids[1], sig)
        (event,) = answers(local, 1)
        assert (event.kind, event.worker, event.token) == ("lost", 1, "doomed")
        assert sig.name in event.value
        local.drop(1)
    local.submit(1, "exits", lambda state: os._exit(7))
    (event,) = answers(local, 1)
    assert event.kind == "lost"
    assert "status 7" in event.value


def test_a_worker_killed_after_its_reply_was_still_right(local: anyk.LocalWorkers) -> None:
    large = np.arange(300_000.0)
    local.submit(3, "last words", echo, large)
    (event,) = answers(local, 1)
    os.kill(local.pids[3], signal.SIGKILL)
    wait_for(lambda: gone(local.pids[3]), "death")
    assert np.array_equal(event.value, large)  # its memory outlives it
    assert identity(local).run.responders == (0, 1, 2, 3)


def test_killed_with_the_reply_already_in_the_socket(local: anyk.LocalWorkers) -> None:
    local.submit(0, "sent", echo, np.arange(3.0))
    sock = local._workers[0].sock
    wait_for(lambda: _readable(sock, wire.HEADER.size * 3), "the reply")
    os.kill(local.pids[0], signal.SIGKILL)
    wait_for(lambda: gone(local.pids[0]), "death")
    first, second = answers(local, 2)
    assert (first.kind, first.token) == ("ok", "sent")
    assert np.array_equal(first.value, np.arange(3.0))
    assert (second.kind, second.token) == ("lost", None)


def _readable(sock: Any, least: int) -> bool:
    with contextlib.suppress(BlockingIOError):
        return len(sock.recv(1 << 16, __import__("socket").MSG_PEEK)) >= least
    return False


def test_killed_during_a_large_reply(local: anyk.LocalWorkers, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first part of a reply that fills the socket has been read when its sender dies."""
    broken = _without_shared_memory(monkeypatch)
    with broken() as workers:
        workers.submit(0, "cut", lambda state: np.zeros(4_000_000))
        wait_for(lambda: _readable(workers._workers[0].sock, 1 << 14), "the first part")
        workers.poll(0)
        os.kill(workers.pids[0], signal.SIGKILL)
        (event,) = answers(workers, 1)
        assert (event.kind, event.token) == ("lost", "cut")
        workers.drop(0)
        assert identity(workers).run.responders == (0, 1, 2, 3)


def test_a_stopped_worker_is_skipped_and_its_stale_reply_stays_out(local: anyk.LocalWorkers) -> None:
    os.kill(local.pids[2], signal.SIGSTOP)
    wait_for(lambda: stopped(local.pids[2]), "the stop")
    code = anyk.RepetitionCode(4, 2)  # worker 0 and 1 copy the first two blocks, 2 and 3 again
    first = anyk.map(lambda x: x, K[:2], code=code, workers=local, stop=anyk.FirstK(3))
    assert first.run.stragglers == (2,)
    second = anyk.map(lambda x: x + 10, K[:2], code=code, workers=local, stop=anyk.FirstK(3))
    assert second.run.skipped == (2,)
    assert np.array_equal(second.value, K[:2] + 10)
    os.kill(local.pids[2], signal.SIGCONT)
    events: list[Any] = []
    third = anyk.map(lambda x: x + 20, K[:2], code=code, workers=local, stop=anyk.All(), on_event=events.append)
    assert third.run.responders == (0, 1, 2, 3)
    assert np.array_equal(third.value, K[:2] + 20)
    assert [event.worker for event in events if event.kind == "late"] == [2]


def test_a_worker_that_hangs_can_be_dropped_by_hand(local: anyk.LocalWorkers) -> None:
    assert _hung(local).run.stragglers == (1,)
    assert _quick(local).run.skipped == (1,)
    assert local.drop(1)
    assert identity(local).run.responders == (0, 1, 2, 3)
    _hung(local)
    assert local.drop(1, restart=False)
    assert identity(local).run.responders == (0, 1, 2, 3)


def _hung(workers: Any) -> anyk.Result:
    code = anyk.RepetitionCode(4, 2)
    return anyk.map(lambda x: x, K[:2], code=code, workers=workers, stop=anyk.FirstK(3), faults={1: anyk.Hang()})


def _quick(workers: Any) -> anyk.Result:
    return anyk.map(lambda x: x, K[:2], code=anyk.RepetitionCode(4, 2), workers=workers, stop=anyk.FirstK(3))


def test_the_process_that_makes_workers_can_be_replaced(local: anyk.LocalWorkers) -> None:
    zygote = local._zygote._process
    zygote.kill()
    zygote.wait()
    wait_for(lambda: gone(*local.pids), "the death of its children")
    assert identity(local).run.responders == (0, 1, 2, 3)


# -- local processes: nothing is left ---------------------------------------------------------------------------------


def family() -> set[int]:
    return {process.pid for process in psutil.Process().children(recursive=True)}


def shared_memory() -> set[str]:
    """Names, but for those of an MPI or a Ray that happens to run beside."""
    names = os.listdir("/dev/shm") if os.path.isdir("/dev/shm") else []
    return {name for name in names if not name.startswith(("sm_segment", "vader", "mpich", "plasma", "ray"))}


def test_nothing_is_left_after_close_an_exception_or_del() -> None:
    with Local(1):
        pass
    before, files, descriptors = family(), shared_memory(), psutil.Process().num_fds()
    large = np.ones((4, 50_000))
    with Local(4) as workers:
        anyk.map(lambda x: x, large, code=anyk.RepetitionCode(4, 4), workers=workers)
        assert len(family() - before) == 5
    assert family() == before
    with contextlib.suppress(KeyError), Local(4) as workers:
        _hung(workers)
        raise KeyError
    assert family() == before
    workers = Local(4)
    _hung(workers)
    workers.publish(large)
    del workers
    gc.collect()
    assert family() == before
    assert anyk.map(lambda x: x, K[:2], workers=5).run.responders  # starts its own, for this call
    assert family() == before
    assert shared_memory() <= files
    gc.collect()
    assert psutil.Process().num_fds() <= descriptors


def test_shared_memory_does_not_pile_up() -> None:
    with Local(2) as workers:
        for step in range(12):
            refs = [workers.publish(np.full(20_000 * (step + 1), float(i))) for i in range(8)]
            for worker in range(2):
                workers.submit(worker, step, lambda state, a, b: a.sum() + b.sum(), refs[0], refs[-1])
            answers(workers, 2)
            if step == 4:
                counts = [psutil.Process(pid).num_fds() for pid in workers.pids]
        for pid, count in zip(workers.pids, counts, strict=True):
            assert psutil.Process(pid).num_fds() <= count + 16


SCRIPT = """
import os, sys, time
import numpy as np
import anyk

def work(x):
    {body}
    return x

print("start", os.getpid(), flush=True)
workers = anyk.LocalWorkers(4)
print("ready", *workers.pids, workers._zygote._process.pid, flush=True)
{call}
"""


def launch(tmp_path: Path, body: str, call: str) -> tuple[subprocess.Popen[bytes], list[int]]:
    """A real script, without a main guard; the process and the ids of its children."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(body=body, call=call))
    process = subprocess.Popen(  # unbuffered: what is read ahead here would be lost to `finish`
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0, cwd=tmp_path
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith(b"start")
    return process, [int(word) for word in process.stdout.readline().split()[1:]]


def finish(process: subprocess.Popen[bytes]) -> tuple[str, str]:
    """The rest of what it prints, on both streams, to its end."""
    out, errors = process.communicate(timeout=100)
    return out.decode(), errors.decode()


MAP = "result = anyk.map(work, np.ones((3, 4)), workers=workers, stop=anyk.All())"


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGKILL, signal.SIGTERM])
def test_no_process_survives_its_master(tmp_path: Path, sig: signal.Signals) -> None:
    body = f"open(os.path.join({str(tmp_path)!r}, f'at-work-{{os.getpid()}}'), 'w').close(); time.sleep(600)"
    files = shared_memory()
    process, children = launch(tmp_path, body.replace("{{", "{").replace("}}", "}"), MAP)
    assert len(children) == 5
    wait_for(lambda: len(list(tmp_path.glob("at-work-*"))) == 4, "all at work")
    process.send_signal(sig)
    _, errors = finish(process)
    assert process.returncode != 0
    if sig == signal.SIGINT:
        assert "KeyboardInterrupt" in errors
    wait_for(lambda: gone(*children), "the end of all children")
    assert shared_memory() <= files


@pytest.mark.parametrize(
    "call",
    [
        MAP + "\nprint(result.value.shape)",  # never closed
        MAP + "\nworkers.close()\nprint(result.value.shape)",
        "with workers:\n    " + MAP + "\nprint(result.value.shape)",
        "anyk.map(work, np.ones((3, 4)), workers=workers, stop=anyk.FirstK(3), faults={0: anyk.Hang()})\nprint((3, 4))",
    ],
)
def test_scripts_without_a_main_guard(tmp_path: Path, call: str) -> None:
    process, children = launch(tmp_path, "print('printed by a worker')", call)
    out, errors = finish(process)
    assert process.returncode == 0, errors
    assert "(3, 4)" in out
    assert out.count("printed by a worker") >= 3
    wait_for(lambda: gone(*children), "the end of all children")


def test_functions_of_every_origin(tmp_path: Path) -> None:
    (tmp_path / "neighbour.py").write_text("def triple(x):\n    return 3 * x\n")
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        import functools, json, operator
        import numpy as np
        import anyk, neighbour

        FACTOR = 3

        def of_main(x):
            return helper(x)

        def helper(x):
            return FACTOR * x

        class Callable:
            def __init__(self, factor):
                self.factor = factor
            def __call__(self, x):
                return self.factor * x
            def method(self, x):
                return self.factor * x

        def local_class():
            class Inner(Callable):
                pass
            return Inner(3)

        def closure(factor):
            return lambda x: factor * x

        functions = [of_main, helper, Callable(3), Callable(3).method, local_class(), closure(3), neighbour.triple,
                     lambda x: FACTOR * x, functools.partial(operator.mul, 3), closure(np.full(40_000, 3.0)[:1])]
        with anyk.LocalWorkers(4) as workers:
            for fn in functions:
                value = anyk.map(fn, [1.0, 2.0], code=anyk.UncodedCode(2, 2), workers=workers).value
                print(json.dumps([float(v) for v in np.ravel(value)]))
        """)
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    assert [json.loads(line) for line in done.stdout.splitlines()] == [[3.0, 6.0]] * 10


def test_a_low_limit_of_open_files(tmp_path: Path) -> None:
    """Every worker takes a socket and two segments."""
    call = """
workers.close()
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (128, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
with anyk.LocalWorkers(48) as workers:
    for size in (20_000, 300_000):
        result = anyk.map(work, np.ones((48, size)), code=anyk.UncodedCode(48, 48), workers=workers)
print(result.value.shape, len(result.run.responders))
"""
    process, _ = launch(tmp_path, "pass", call)
    out, errors = finish(process)
    assert process.returncode == 0, errors
    assert "(48, 300000) 48" in out


def test_output_that_nobody_reads_costs_no_worker(tmp_path: Path) -> None:
    body = "print('x'); sys.stdout.close()"
    process, _ = launch(tmp_path, body, MAP + "\nprint(result.run.responders)")
    out, errors = finish(process)
    assert process.returncode == 0, errors
    assert "(0, 1, 2, 3)" in out


def test_a_module_that_workers_cannot_import_is_reported_every_time(
    local: anyk.LocalWorkers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "vanishing.py").write_text("def same(x):\n    return x\n")
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        same = importlib.import_module("vanishing").same
    monkeypatch.setitem(sys.modules, "vanishing", sys.modules["vanishing"])
    for _ in range(2):
        with pytest.raises(anyk.TaskFailed, match=r"ModuleNotFoundError.*vanishing"):
            anyk.map(same, K, code=anyk.UncodedCode(4, 4), workers=local)
    del sys.modules["vanishing"]
    assert identity(local).run.responders == (0, 1, 2, 3)


def test_nested_workers_inside_a_worker(local: anyk.LocalWorkers) -> None:
    def inner(x: Any) -> Any:
        return anyk.map(lambda y: 2 * y, np.array([x, x + 1]), code=anyk.UncodedCode(2, 2), workers=2).value

    value = anyk.map(inner, K, code=anyk.UncodedCode(4, 4), workers=local).value
    assert np.array_equal(value, np.stack([2 * K, 2 * K + 2], axis=1))


def test_workers_draw_different_random_numbers(local: anyk.LocalWorkers) -> None:
    def draw(x: Any) -> Any:
        import random

        return [np.random.random(), random.random()]  # noqa: NPY002

    replies = anyk.map(draw, K, code=anyk.UncodedCode(4, 4), workers=local).value
    assert all(len(set(column)) == 4 for column in replies)


# -- what workers say is not trusted ----------------------------------------------------------------------------------


def test_garbage_on_the_socket_loses_only_its_sender(local: anyk.LocalWorkers) -> None:
    def babble(state: dict[str, Any], data: bytes) -> Any:
        import gc
        import socket

        for candidate in gc.get_objects():
            if isinstance(candidate, socket.socket) and candidate.fileno() >= 0:
                candidate.sendall(data)
        time.sleep(600)

    frames = [
        b"garbage" * 100,
        wire.frame(wire.REPLY, 10**6, b"a task that it does not have"),
        wire.frame(wire.REPLY, 0, b""),
        wire.frame(wire.HELLO, 0, b"", descriptors=3),  # that do not come
        b"ANYK" + bytes([9]) * 20,
    ]
    for data in frames:
        local.submit(2, "babble", babble, data)
        for worker in (0, 1, 3):
            local.submit(worker, "fine", echo, float(worker))
        events = sorted(answers(local, 4), key=lambda event: event.worker)
        assert [event.kind for event in events] == ["ok", "ok", "lost", "ok"], data
        assert "not a reply" in events[2].value
        local.drop(2)
    assert identity(local).run.responders == (0, 1, 2, 3)


def test_a_malformed_reply_is_an_error_of_its_sender(local: anyk.LocalWorkers) -> None:
    def forged(state: dict[str, Any]) -> Any:
        from anyk.runtime import reply

        reply.encode = lambda value, seconds: (b"[1,2]", [])
        return 1.0

    def overflow(state: dict[str, Any]) -> Any:
        from anyk.runtime import reply

        reply.encode_failure = lambda failure, seconds: b'["error","a","b","c",1' + b"0" * 400 + b"]"
        raise RuntimeError

    for number, task in enumerate((forged, overflow)):
        local.submit(number, task.__name__, task)
        (event,) = answers(local, 1)
        assert (event.kind, event.token, event.value.type) == ("error", task.__name__, "Malformed")


# -- without shared memory --------------------------------------------------------------------------------------------


def _without_shared_memory(monkeypatch: pytest.MonkeyPatch) -> Callable[[], anyk.LocalWorkers]:
    """Workers for which neither side can make a segment."""

    def refuse(*arguments: Any, **keywords: Any) -> Any:
        raise OSError("no shared memory today")

    def refuse_there(state: dict[str, Any]) -> float:
        from anyk.runtime.segments import Segment

        Segment.create = refuse  # type: ignore[method-assign]
        return 0.0

    def make(n: int = 4) -> anyk.LocalWorkers:
        monkeypatch.setattr(Segment, "create", refuse)
        workers = Local(n)
        for worker in range(n):
            workers.submit(worker, (0, worker), refuse_there)
        answers(workers, n)
        return workers

    return make


def test_everything_works_without_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    check_workers(_without_shared_memory(monkeypatch), processes=True, n=2, huge=True)


def test_many_threads_may_publish_and_map(local: anyk.LocalWorkers) -> None:
    failures: list[BaseException] = []

    def many(offset: float) -> None:
        try:
            for step in range(10):
                shift = np.full(10_000 * (step % 3 * 4 + 1), offset + step)
                value = anyk.map(lambda x, s=shift: x + s[0], K, code=anyk.UncodedCode(4, 4), workers=local).value
                assert np.array_equal(value, K + offset + step)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=many, args=(100.0 * index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
