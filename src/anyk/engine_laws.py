"""The laws that every engine obeys: `check_workers` runs a new one through them, with plain asserts.

Everything is asked through the `Workers` protocol; no law looks at a clock to judge speed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .errors import NotPicklable, WorkersClosed
from .runtime.faults import Crash, Slow, run_faulty
from .runtime.workers import Event, Failure, Workers

__all__ = ["check_workers"]

_PATIENCE = 120.0  # seconds on the workers' clock; only an engine that is at fault comes near
_SLOW = 0.4

State = dict[str, Any]


def _echo(state: State, *args: Any) -> Any:
    return args[0] if len(args) == 1 else list(args)


def _double(state: State, value: Any) -> Any:
    return value * 2


def _put(state: State, value: Any) -> Any:
    state["value"] = value
    return 0.0


def _get(state: State) -> Any:
    return float(state.get("value", -1.0))


def _count(state: State) -> Any:
    state["count"] = state.get("count", 0) + 1
    return state["count"]


def _totals(state: State, *arrays: Any) -> Any:
    return [np.asarray(array).sum() for array in arrays]


def _big(state: State, size: int) -> Any:
    return np.arange(size, dtype=np.float64)


def _deep_thought(state: State) -> Any:
    raise LookupError("the question is not known")


def _exits(state: State) -> Any:
    raise SystemExit(3)


_REPLIES: dict[str, Callable[[], Any]] = {
    "array": lambda: np.arange(6.0).reshape(2, 3),
    "fortran order": lambda: np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "strided": lambda: np.arange(20.0)[::3],
    "0-d": lambda: np.array(2.5),
    "float": lambda: 2.5,
    "int": lambda: 7,
    "bool": lambda: True,
    "complex": lambda: 1 + 2j,
    "NumPy scalar": lambda: np.float32(1.5),
    "empty": lambda: np.zeros((0, 3), np.float32),
    "bools": lambda: np.array([True, False]),
    "int8": lambda: np.arange(-3, 3, dtype=np.int8),
    "uint64": lambda: np.array([2**63], np.uint64),
    "float16": lambda: np.arange(5, dtype=np.float16),
    "complex64": lambda: (1j * np.arange(5)).astype(np.complex64),
    "NaN and infinity": lambda: np.array([np.nan, np.inf, -np.inf, -0.0]),
    "list": lambda: [np.arange(3.0), 1.0],
    "tuple": lambda: (np.arange(3.0), 1.0),
    "dict": lambda: {"b": np.arange(3.0), "a": 1.0, 3: np.float32(2.0)},
    "nested": lambda: {"a": [np.arange(3), (np.zeros(0), {"b": True})], "c": (), "d": {"e": [1.0, 2j]}},
    "several large": lambda: {"a": np.arange(300_000.0), "b": np.ones((300, 301), np.float32), "c": 1.0},
}


def _reply(state: State, name: str) -> Any:
    return _REPLIES[name]()


def _same(got: Any, expected: Any, where: str) -> None:
    if isinstance(expected, dict):
        assert isinstance(got, dict), f"{where}: expected a dict, got {type(got).__name__}"
        assert got.keys() == expected.keys(), f"{where}: expected the keys {list(expected)}, got {list(got)}"
        for key, child in expected.items():
            _same(got[key], child, f"{where}, {key!r}")
    elif isinstance(expected, list | tuple):
        assert type(got) is type(expected), f"{where}: expected a {type(expected).__name__}, got {type(got).__name__}"
        assert len(got) == len(expected), f"{where}: expected {len(expected)} items, got {len(got)}"
        for index, child in enumerate(expected):
            _same(got[index], child, f"{where}, item {index}")
    else:
        a, b = np.asarray(got), np.asarray(expected)
        assert (a.shape, a.dtype) == (b.shape, b.dtype), f"{where}: expected {b.dtype}{b.shape}, got {a.dtype}{a.shape}"
        assert np.array_equal(a, b, equal_nan=a.dtype.kind in "fc"), f"{where}: the numbers have changed"


class _Bench:
    """Workers under test, with the events that have come so far."""

    def __init__(self, workers: Workers) -> None:
        self.workers = workers
        self.n = len(workers)
        self.round = 0

    def token(self, worker: int) -> tuple[int, int]:
        """A token of the current round."""
        return (self.round, worker)

    def collect(self, count: int) -> list[Event]:
        """The next `count` answers; joined workers are not counted."""
        events: list[Event] = []
        while len(events) < count:
            events += self.next()
        assert len(events) == count, f"{count} answers are due, but more came: {events}"
        return events

    def next(self, kind: str = "ok, error or lost") -> list[Event]:
        """Events of these kinds, at least one."""
        start = self.workers.time()
        while self.workers.time() - start < _PATIENCE:
            if events := [event for event in self.workers.poll(1.0) if event.kind in kind]:
                return events
        raise AssertionError(f"an event is due ({kind}), none came in {_PATIENCE:.0f} s")

    def all(self, fn: Any, *args: Any) -> list[Any]:
        """One round of the same task on every worker; the values, by worker."""
        self.round += 1
        for worker in range(self.n):
            self.workers.submit(worker, self.token(worker), fn, *args)
        return self.values(self.collect(self.n))

    def values(self, events: list[Event]) -> list[Any]:
        """The values of one round, by worker, after checking kinds and tokens."""
        for event in events:
            assert event.kind == "ok", f"worker {event.worker} should have answered, but: {event}"
            assert event.token == self.token(event.worker), f"worker {event.worker} answered with another's token"
        assert len({event.worker for event in events}) == len(events), "a worker answered twice"
        return [event.value for event in sorted(events, key=lambda event: event.worker)]

    def revive(self) -> None:
        """Start those afresh that are lost."""
        for event in self.workers.poll(0):
            if event.kind == "lost":
                self.workers.drop(event.worker)

    def quiet(self, seconds: float = 0.0) -> None:
        """Nothing comes."""
        events = [event for event in self.workers.poll(seconds) if event.kind != "joined"]
        assert events == [], f"nothing is due, but {events} came"


def _addressing(bench: _Bench) -> None:
    """Task n runs on worker n, in whatever order it is submitted and answered, and finds that worker's state."""
    bench.round += 1
    for worker in reversed(range(bench.n)):
        bench.workers.submit(worker, bench.token(worker), _put, 10.0 + worker)
    bench.values(bench.collect(bench.n))
    assert [float(v) for v in bench.all(_get)] == [10.0 + worker for worker in range(bench.n)], (
        "state did not stay with its worker"
    )
    for expected in (1, 2, 3):
        assert [int(v) for v in bench.all(_count)] == [expected] * bench.n, "a worker lost count: its state is shared"
    if bench.n > 1:
        bench.round += 1
        bench.workers.submit(bench.n - 1, bench.token(bench.n - 1), _get)
        assert [float(v) for v in bench.values(bench.collect(1))] == [9.0 + bench.n], "one worker alone"


def _errors(bench: _Bench) -> None:
    """An exception is an event with its type, message and traceback as text, and the worker lives on."""
    bench.all(_put, 1.0)
    bench.round += 1
    bench.workers.submit(0, bench.token(0), _deep_thought)
    for worker in range(1, bench.n):
        bench.workers.submit(worker, bench.token(worker), _double, 4.0)
    events = {event.worker: event for event in bench.collect(bench.n)}
    event = events.pop(0)
    assert event.kind == "error", f"expected an error event, got {event}"
    assert event.token == bench.token(0), "the error came with another token"
    failure = event.value
    assert isinstance(failure, Failure), f"an error's value must be a Failure, got {failure!r}"
    assert failure.type == "LookupError", f"expected LookupError, got {failure.type}"
    assert failure.message == "the question is not known", f"the message has changed: {failure.message!r}"
    assert "_deep_thought" in failure.traceback, f"the traceback does not name the function: {failure.traceback}"
    assert "the question is not known" in failure.traceback, "the traceback does not end with the message"
    assert [float(v) for v in bench.values(list(events.values()))] == [8.0] * (bench.n - 1), "the others suffered"
    bench.round += 1
    bench.workers.submit(0, bench.token(0), _exits)
    (event,) = bench.collect(1)
    assert event.kind == "error", f"SystemExit is an exception like any other, got {event}"
    assert [float(v) for v in bench.all(_get)] == [1.0] * bench.n, "state was lost with the exception"


def _stragglers(bench: _Bench) -> None:
    """A late reply keeps the token of its own round."""
    bench.all(_put, 0.0)
    bench.round += 1
    old = bench.token(0)
    bench.workers.submit(0, old, run_faulty, Slow(_SLOW), _echo, 1.0)
    late: list[Event] = []
    for _ in range(2):
        bench.round += 1
        for worker in range(1, bench.n):
            bench.workers.submit(worker, bench.token(worker), _echo, 2.0)
        answers: list[Event] = []
        while len(answers) < bench.n - 1:
            for event in bench.next():
                (late if event.worker == 0 else answers).append(event)
        assert [float(v) for v in bench.values(answers)] == [2.0] * (bench.n - 1), "the others were held up"
    if not late:
        late = bench.collect(1)
    assert [(event.token, event.kind, float(event.value)) for event in late] == [(old, "ok", 1.0)], (
        f"the straggler's reply should carry {old}, got {late}"
    )
    bench.quiet()


def _published(bench: _Bench) -> None:
    """Published values serve as function and as argument, small and large; old ones make room."""
    large = np.arange(600_000.0)  # 4.8 MB
    fn = bench.workers.publish(_echo)
    for value in (3.0, np.arange(5.0), large, {"a": large, "b": [1.0, np.zeros(0)]}):
        ref = bench.workers.publish(value)
        for got in bench.all(fn, ref):
            _same(got, value, "a published argument")
    shift = 0.25
    closure = bench.workers.publish(lambda state, x: float(large.sum()) + shift + x)
    expected = float(large.sum()) + shift + 1.0
    assert [float(v) for v in bench.all(closure, 1.0)] == [expected] * bench.n, "a published closure"
    kept = bench.workers.publish(large)
    for step in range(30):
        values = np.full(120_000 + 10_000 * (step % 7), float(step))
        ref = bench.workers.publish(values)
        bench.round += 1
        worker = step % bench.n
        bench.workers.submit(worker, bench.token(worker), _totals, ref, kept, values[:10])
        (totals,) = bench.values(bench.collect(1))
        _same([np.asarray(total) for total in totals],
              [np.asarray(float(step) * values.size), np.asarray(large.sum()), np.asarray(10.0 * step)],
              f"publish number {step}")  # fmt: skip
        del ref
    for got in bench.all(_echo, kept):
        _same(got, large, "a value that was published long ago")
    small = [bench.workers.publish(float(step)) for step in range(20)]
    assert [float(v) for v in bench.all(_echo, small[0])] == [0.0] * bench.n, "the first of many small values"


def _allocated(bench: _Bench) -> None:
    """Arrays from `allocate` are of the asked shape and dtype, and arrive as they were filled."""
    layouts: list[list[tuple[tuple[int, ...], Any]]] = [
        [((3,), np.float64)],
        [((), np.float64), ((0, 2), np.float32)],
        [((200_000,), np.float64)],
        [((4,), np.complex64), ((300, 301), np.float32), ((), np.float64), ((0,), np.float64), ((7,), np.float16)],
        [((50_000,), np.float64)],
        [((700_000,), np.float64), ((5,), np.complex128)],
    ]
    for layout in layouts:
        bench.round += 1
        filled = []
        for worker in range(bench.n):
            arrays = bench.workers.allocate(worker, layout)
            assert [(a.shape, a.dtype) for a in arrays] == [(shape, np.dtype(kind)) for shape, kind in layout], (
                f"asked for {layout}, got {[(a.shape, a.dtype) for a in arrays]}"
            )
            for index, array in enumerate(arrays):
                array[...] = np.arange(array.size).reshape(array.shape) % 97 + worker + index
            filled.append([array.copy() for array in arrays])
            bench.workers.submit(worker, bench.token(worker), _echo, [1.0], *arrays)
        for worker, got in enumerate(bench.values(bench.collect(bench.n))):
            _same(got[1:], filled[worker], f"allocated for worker {worker}")
    mine = np.arange(150_000.0)
    (theirs,) = bench.workers.allocate(0, [((150_000,), np.float64)])
    theirs[...] = -mine
    bench.round += 1
    bench.workers.submit(0, bench.token(0), _echo, mine, theirs, mine[::2], np.asfortranarray(mine.reshape(300, 500)))
    (got,) = bench.values(bench.collect(1))
    _same(got, [mine, -mine, mine[::2], mine.reshape(300, 500)], "allocated arrays among others")


def _replies(bench: _Bench) -> None:
    """Arrays, numbers and containers of them come back as they are."""
    for name, make in _REPLIES.items():
        for got in bench.all(_reply, name):
            _same(got, make(), f"reply {name!r}")
    first = bench.all(_reply, "several large")
    for got in first:
        _same(got, _REPLIES["several large"](), "a reply, before that worker's next task")


def _timeouts(bench: _Bench) -> None:
    """poll(0) returns at once, poll(t) returns nothing when nothing comes, and an answer is not lost in between."""
    bench.all(_echo, 0.0)
    bench.quiet()
    bench.quiet(0.02)
    bench.round += 1
    bench.workers.submit(0, bench.token(0), run_faulty, Slow(0.1), _echo, 1.0)
    events: list[Event] = []
    start = bench.workers.time()
    while not events and bench.workers.time() - start < _PATIENCE:
        events = [event for event in bench.workers.poll(0.01) if event.kind != "joined"]
    assert [float(v) for v in bench.values(events)] == [1.0], "the answer got lost between two polls"
    bench.workers.submit(0, bench.token(0), _echo, 2.0)
    assert [float(v) for v in bench.values(_forever(bench.workers))] == [2.0], "poll(None) waits for an answer"


def _forever(workers: Workers) -> list[Event]:
    while True:
        if events := [event for event in workers.poll(None) if event.kind != "joined"]:
            return events


def _drops(bench: _Bench) -> None:
    """A dropped worker forgets its state and its task; without a restart it is lost until the next drop."""
    bench.all(_put, 5.0)
    bench.round += 1
    old = bench.token(0)
    bench.workers.submit(0, old, run_faulty, Slow(_SLOW), _put, 6.0)
    if not bench.workers.drop(0):
        assert [float(v) for v in bench.values(bench.collect(1))] == [0.0], "not dropped, and no answer either"
        assert bench.workers.drop(0, restart=False) is False, "an engine can drop or it cannot"
        return
    bench.round += 1
    bench.workers.submit(0, bench.token(0), _get)
    assert [float(v) for v in bench.values(bench.collect(1))] == [-1.0], "state survived the drop"
    bench.quiet(3 * _SLOW)
    expected = [-1.0] + [5.0] * (bench.n - 1)
    assert [float(v) for v in bench.all(_get)] == expected, "a drop reached other workers"
    bench.workers.poll(0)
    bench.workers.drop(0)
    joined = bench.next("joined")
    assert [event.token for event in joined] == [None], f"an idle worker that was dropped joins once, got {joined}"
    for restart in (True, False):  # at work
        bench.round += 1
        bench.workers.submit(0, bench.token(0), run_faulty, Slow(_SLOW), _put, 7.0)
        assert bench.workers.drop(0, restart=restart), "drop worked once, but not twice"
    (event,) = bench.collect(1)
    assert (event.kind, event.worker, event.token) == ("lost", 0, bench.token(0)), (
        f"a worker that goes for good is lost, with its task: got {event}"
    )
    bench.round += 1
    bench.workers.submit(0, bench.token(0), _get)
    (event,) = bench.collect(1)
    assert (event.kind, event.token) == ("lost", bench.token(0)), f"no task runs on a lost worker, got {event}"
    assert bench.workers.drop(0), "a lost worker can be started again"
    assert [float(v) for v in bench.all(_get)] == expected, "state after the restart"
    bench.quiet(3 * _SLOW)


def _crashes(bench: _Bench) -> None:
    """A worker that dies is lost, alone; if the engine can restart it, it is as new."""
    bench.all(_put, 5.0)
    bench.round += 1
    bench.workers.submit(0, bench.token(0), run_faulty, Crash(), _get)
    for worker in range(1, bench.n):
        bench.workers.submit(worker, bench.token(worker), _get)
    events = {event.worker: event for event in bench.collect(bench.n)}
    event = events.pop(0)
    assert (event.kind, event.token) == ("lost", bench.token(0)), f"a worker that died is lost, got {event}"
    assert isinstance(event.value, str), f"a lost event says why, got {event.value!r}"
    assert [float(v) for v in bench.values(list(events.values()))] == [5.0] * (bench.n - 1), "the others suffered"
    bench.round += 1
    bench.workers.submit(0, bench.token(0), _get)
    (event,) = bench.collect(1)
    assert (event.kind, event.token) == ("lost", bench.token(0)), f"no task runs on a lost worker, got {event}"
    if bench.workers.drop(0):
        assert [float(v) for v in bench.all(_get)] == [-1.0] + [5.0] * (bench.n - 1), "state after the restart"
    bench.quiet()


def _pid(state: State) -> Any:
    return os.getpid()


def _pids(bench: _Bench) -> list[int]:
    """Process ids of the workers, or none where they share this process, or live on another machine."""
    pids = [int(value) for value in bench.all(_pid)]
    here = os.getpid() not in pids and len(set(pids)) == bench.n
    for pid in pids if here else ():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 0)
            continue
        here = False
    return pids if here else []


def _kills(bench: _Bench) -> None:
    """A worker killed while idle, at work and right after its answer is lost by its next task at the latest.

    Where workers can be started afresh, so can one that was killed.
    """
    restarts = bench.workers.drop(0)
    for moment in ("idle", "at work", "after its answer"):
        bench.revive()
        bench.all(_put, 5.0)
        pids = _pids(bench)
        if not pids:
            return
        bench.round += 1
        if moment == "at work":
            bench.workers.submit(0, bench.token(0), run_faulty, Slow(60.0), _get)
            bench.quiet(0.05)
        os.kill(pids[0], signal.SIGKILL)
        events = []
        if moment != "at work":
            events = [event for event in bench.workers.poll(0.2) if event.kind == "lost"]
            bench.workers.submit(0, bench.token(0), _get)
        while not events:
            events = [event for event in bench.next() if event.worker == 0]
        if (event := events[-1]).token is None:  # the loss of the idle worker; its task is lost, too
            (event,) = [event for event in bench.next() if event.worker == 0]
        assert (event.kind, event.token) == ("lost", bench.token(0)), f"killed {moment}, it is lost, got {event}"
        assert isinstance(event.value, str), f"a lost event says why, got {event.value!r}"
        assert bench.workers.drop(0) == restarts, f"a killed worker can be started afresh: expected {restarts}"
        if not restarts:
            return
        assert [float(v) for v in bench.all(_get)] == [-1.0] + [5.0] * (bench.n - 1), f"killed {moment}: states"


def _stops(bench: _Bench) -> None:
    """A stopped worker holds nobody up, can be dropped, and what it says when it goes on is late or unheard."""
    bench.all(_put, 5.0)
    pids = _pids(bench)
    if not pids:
        return
    os.kill(pids[0], signal.SIGSTOP)
    try:
        bench.round += 1
        old = bench.token(0)
        bench.workers.submit(0, old, _get)
        for _ in range(2):
            bench.round += 1
            for worker in range(1, bench.n):
                bench.workers.submit(worker, bench.token(worker), _get)
            assert [float(v) for v in bench.values(bench.collect(bench.n - 1))] == [5.0] * (bench.n - 1), "held up"
        dropped = bench.workers.drop(0)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pids[0], signal.SIGCONT)
    if dropped:
        assert [float(v) for v in bench.all(_get)] == [-1.0] + [5.0] * (bench.n - 1), (
            "after a stopped worker was dropped"
        )
        bench.quiet(0.1)
    else:
        (event,) = bench.collect(1)
        assert (event.token, event.kind, float(event.value)) == (old, "ok", 5.0), f"a late answer, got {event}"
        assert [float(v) for v in bench.all(_get)] == [5.0] * bench.n, "after a stopped worker went on"


def _threads(bench: _Bench) -> None:
    """Workers serve whichever thread asks, one at a time."""
    found: list[Any] = []
    for _ in range(3):
        thread = threading.Thread(target=lambda: found.append(bench.all(_double, 4.0)))
        thread.start()
        thread.join()
    assert [[float(v) for v in values] for values in found] == [[8.0] * bench.n] * 3, "from another thread"


def _interrupts(bench: _Bench) -> None:
    """Ctrl-C ends the wait for events, in the main thread, and loses none."""
    if threading.current_thread() is not threading.main_thread():
        return
    bench.all(_put, 5.0)
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        for delay in (0.0, 0.02, 0.1):
            bench.round += 1
            bench.workers.submit(0, bench.token(0), run_faulty, Slow(_SLOW), _get)
            timer = threading.Timer(delay, signal.pthread_kill, (threading.get_ident(), signal.SIGINT))
            raised, events = False, []
            try:
                timer.start()
                events = bench.workers.poll(_PATIENCE)
                timer.join()  # only an engine that has answered before comes here
            except KeyboardInterrupt:
                raised = True
            timer.join()
            assert raised, "an interrupt of a wait must raise KeyboardInterrupt"
            assert events == [], f"the wait went on after the interrupt, until {events}"
            for worker in range(1, bench.n):
                bench.workers.submit(worker, bench.token(worker), _get)
            assert [float(v) for v in bench.values(bench.collect(bench.n))] == [5.0] * bench.n, "after an interrupt"
    finally:
        signal.signal(signal.SIGINT, handler)


def _closing(bench: _Bench) -> None:
    """Closing is idempotent and works in the middle of a task; afterwards the workers refuse."""
    bench.round += 1
    bench.workers.submit(0, bench.token(0), run_faulty, Slow(_SLOW), _echo, 1.0)
    bench.workers.close()
    bench.workers.close()
    uses: dict[str, Callable[[], Any]] = {
        "submit": lambda: bench.workers.submit(0, bench.token(0), _echo, 1.0),
        "poll": lambda: bench.workers.poll(0),
        "drop": lambda: bench.workers.drop(0),
    }
    for name, use in uses.items():
        refused = False
        try:
            use()
        except WorkersClosed:
            refused = True
        assert refused, f"{name} after close must raise WorkersClosed"


def _unpicklable(bench: _Bench) -> None:
    """What cannot travel is refused at once, with a hint, and harms nothing."""
    lock = threading.Lock()

    def locked(state: State) -> Any:
        return float(lock.locked())

    refused = None
    try:
        bench.workers.submit(0, bench.token(0), bench.workers.publish(locked))
    except NotPicklable as error:
        refused = error
    assert refused is not None, "a function that holds a lock must raise NotPicklable"
    assert [float(v) for v in bench.all(_echo, 1.0)] == [1.0] * bench.n, "after NotPicklable"


def _huge(bench: _Bench) -> None:
    """100 MB to every worker and back."""
    size = 12_500_000
    for worker in range(bench.n):
        bench.round += 1
        (array,) = bench.workers.allocate(worker, [((size,), np.float64)])
        array[...] = np.arange(size) + worker
        bench.workers.submit(worker, bench.token(worker), _double, array)
        (got,) = bench.values(bench.collect(1))
        assert got.shape == (size,), f"expected {size} numbers, got {got.shape}"
        assert np.array_equal(got[[0, 1, size // 2, -1]], 2.0 * (np.array([0, 1, size // 2, size - 1]) + worker)), (
            "100 MB there and back: the numbers have changed"
        )


def check_workers(
    make: Callable[[int], Workers], *, processes: bool, n: int = 3, huge: bool = False, mortal: bool = True
) -> None:
    """Assert that an engine obeys the laws of `Workers`; for the tests of a new one.

    Parameters
    ----------
    make : callable
        ``make(n)`` returns fresh workers; they are closed here. Called about fifteen times.
    processes : bool
        Whether tasks leave this process, so that what cannot be pickled must be refused.
    n : int
        Number of workers, at least 2.
    huge : bool
        Also move 100 MB to each worker and back.
    mortal : bool
        Whether the engine outlives the death of a worker; False for MPI, which does not.

    Raises
    ------
    AssertionError
        Saying what is wrong.
    """
    assert n >= 2, "the laws need at least two workers"
    laws = [_addressing, _errors, _stragglers, _published, _allocated, _replies, _timeouts, _drops, _closing]
    laws += [_threads, _stops]
    laws += [_crashes, _kills] if mortal else []
    laws += [_unpicklable, _interrupts] if processes else []
    laws += [_huge] if huge else []
    for law in laws:
        with _fresh(make, n) as bench:
            law(bench)
    with _fresh(make, n) as one, _fresh(make, n) as other:  # side by side
        one.all(_put, 1.0)
        other.all(_put, 2.0)
        array = np.arange(100_000.0)
        mine, theirs = one.workers.publish(array), other.workers.publish(-array)
        for got in one.all(_echo, mine):
            _same(got, array, "published by the first of two sets of workers")
        for got in other.all(_echo, theirs):
            _same(got, -array, "published by the second of two sets of workers")
        one.workers.close()
        assert [float(v) for v in other.all(_get)] == [2.0] * n, "closing one set of workers reached another"


@contextlib.contextmanager
def _fresh(make: Callable[[int], Workers], n: int) -> Iterator[_Bench]:
    workers = make(n)
    try:
        assert len(workers) == n, f"asked for {n} workers, got {len(workers)}"
        assert isinstance(workers, Workers), f"{type(workers).__name__} lacks methods of the Workers protocol"
        yield _Bench(workers)
    finally:
        workers.close()
