"""A live picture of long jobs on the terminal."""

from __future__ import annotations

import math
import sys
import threading
from collections import Counter, deque
from typing import Any

from .event_log import cause
from .events import RoundEvent, Run

__all__ = ["LiveView", "sparkline"]

_BARS = "▁▂▃▄▅▆▇█"
_KEPT, _SHOWN = 24, 32  # latencies of a worker, workers
_STYLES = {
    "at work": "yellow",
    "answered": "green",
    "failed": "red",
    "given up": "dark_orange",
    "restarted": "magenta",
    "idle": "dim",
}


def sparkline(values: Any, low: float, high: float) -> str:
    """A bar for each value, on a logarithmic scale; a blank for NaN.

    Examples
    --------
    >>> sparkline([1.0, 10.0, 100.0, float("nan")], 1.0, 100.0)
    '▁▅█ '
    """
    span = math.log(high) - math.log(low) if high > low > 0 else 0.0
    marks = []
    for value in values:
        if not value > 0:
            marks.append(" " if value != value else _BARS[0])
        else:
            share = (math.log(min(max(value, low), high)) - math.log(low)) / span if span else 0.0
            marks.append(_BARS[math.floor(share * (len(_BARS) - 1) + 0.5)])
    return "".join(marks)


class LiveView:
    """A context manager, and a listener to pass as ``on_event``: workers' states, recent latencies, rounds, failures.

    Draws on a terminal only, at most `shown` workers (the slowest of late), and leaves the terminal as it was, come
    what may. Rounds that it listens to draw no progress bar of their own unless asked to.

    Parameters
    ----------
    shown : int
    console : rich.console.Console, optional
        Default: stderr.

    Examples
    --------
    >>> import anyk
    >>> with anyk.SimulatedWorkers(3) as workers, anyk.LiveView() as view:
    ...     result = anyk.map(abs, [0.5], workers=workers, on_event=view)
    >>> view.rounds
    1
    """

    draws = True  # no progress bar besides

    def __init__(self, shown: int = _SHOWN, console: Any = None) -> None:
        self.rounds = 0
        self._shown, self._console = shown, console
        self._live: Any = None
        self._lock = threading.Lock()
        self._states: dict[int, str] = {}
        self._latencies: dict[int, deque[float]] = {}
        self._failures: Counter[str] = Counter()
        self._seconds: deque[float] = deque(maxlen=_KEPT)
        self._round, self._answered, self._asked = 0, 0, 0

    def __call__(self, event: RoundEvent) -> None:
        """Take note; another thread draws."""
        with self._lock:
            self._note(event)

    def _note(self, event: RoundEvent) -> None:
        worker = event.worker
        if event.kind == "started":
            self._round, self._answered, self._asked = event.round, 0, int(event.detail)
        elif event.kind == "ended":
            self.rounds += 1
            if isinstance(event.detail, Run):
                self._seconds.append(event.detail.seconds)
                for straggler in event.detail.stragglers:
                    if self._states.get(straggler) == "at work":
                        self._states[straggler] = "given up"
        elif worker is None:
            pass
        elif event.kind == "answered":
            self._answered += 1
            self._states[worker] = "answered"
            self._latencies.setdefault(worker, deque(maxlen=_KEPT)).append(event.seconds)
        elif event.kind == "failed":
            self._states[worker] = "failed"
            self._failures[cause(event.detail)] += 1
        else:
            self._states[worker] = {"submitted": "at work", "restarted": "restarted"}.get(event.kind, "idle")

    def _picture(self) -> Any:
        from rich.table import Table
        from rich.text import Text

        with self._lock:
            seen = [value for kept in self._latencies.values() for value in kept if value > 0]
            low, high = min(seen, default=1.0), max(seen, default=1.0)
            mean = {worker: sum(kept) / len(kept) for worker, kept in self._latencies.items()}
            order = sorted(self._states, key=lambda worker: (-mean.get(worker, math.inf), worker))
            table = Table(box=None, pad_edge=False, title=self._headline(), title_justify="left", title_style="bold")
            for head in ("worker", "state", f"last {_KEPT} answers, {low:.2g} to {high:.2g} s", "mean s"):
                table.add_column(head)
            for worker in sorted(order[: self._shown]):
                state, kept = self._states[worker], self._latencies.get(worker, ())
                average = f"{mean[worker]:.3g}" if worker in mean else "-"
                table.add_row(str(worker), Text(state, style=_STYLES[state]), sparkline(kept, low, high), average)
            if len(order) > self._shown:
                counts = Counter(self._states[worker] for worker in order[self._shown :])
                rest = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
                table.add_row("...", Text(rest, style="dim"), "faster ones", "")
            return table

    def _headline(self) -> str:
        low, high = min(self._seconds, default=0.0), max(self._seconds, default=0.0)
        parts = [f"round {self._round}: {self._answered} of {self._asked} answered", f"{self.rounds} rounds ended"]
        if self._seconds:
            parts.append(f"last {self._seconds[-1]:.3g} s {sparkline(self._seconds, low, high)}")
        parts += [f"{count} {why}" for why, count in self._failures.most_common(3)]
        return "; ".join(parts)

    def __enter__(self) -> LiveView:
        if self._console is None and not sys.stderr.isatty():
            return self
        from rich.console import Console
        from rich.live import Live

        console = self._console if self._console is not None else Console(stderr=True)
        if console.is_terminal:
            self._live = Live(get_renderable=self._picture, console=console, refresh_per_second=4)
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()
