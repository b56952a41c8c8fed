"""A progress bar that shows who has answered."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from .events import RoundEvent

__all__ = ["ProgressBar", "listening", "progress_bar"]

_MARKS = {"submitted": "·", "answered": "█", "failed": "x", "late": "·"}


def progress_bar(wanted: bool | None, workers: int) -> ProgressBar | None:
    """A subscriber that draws one mark per worker, or None where no bar is wanted.

    Parameters
    ----------
    wanted : bool or None
        None: only on a terminal, and only for rounds that last longer than half a second.
    workers : int
    """
    if wanted or (wanted is None and sys.stderr.isatty()):
        return ProgressBar(bool(wanted), workers)
    return None


@contextmanager
def listening(
    progress: bool | None, workers: int, on_event: Callable[[RoundEvent], None] | None
) -> Iterator[Callable[[RoundEvent], None] | None]:
    """What tells a round's events to the caller's listener and to a progress bar, or None where nobody listens.

    The bar is closed at the end, come what may.
    """
    drawn = progress is None and getattr(on_event, "draws", False)  # two pictures would spoil one another
    bar = None if drawn else progress_bar(progress, workers)
    listeners = [each for each in (on_event, bar) if each is not None]

    def notify(event: RoundEvent) -> None:
        for listener in listeners:
            listener(event)

    try:
        yield notify if listeners else None
    finally:
        if bar is not None:
            bar.close()


class ProgressBar:
    """A subscriber to one round's events; call it with each."""

    def __init__(self, at_once: bool, workers: int) -> None:
        self.at_once = at_once
        self.marks = [" "] * workers
        self.bar: Any = None
        self.task: Any = None

    def __call__(self, event: RoundEvent) -> None:
        """Draw what has happened."""
        if event.worker is not None and event.worker < len(self.marks) and event.kind in _MARKS:
            self.marks[event.worker] = _MARKS[event.kind]
        if self.bar is None and (event.kind == "ended" or not (self.at_once or event.seconds > 0.5)):
            return
        if self.bar is None:
            self._open()
        answered = self.marks.count("█")
        shown = "".join(self.marks) if len(self.marks) <= 64 else ""
        self.bar.update(self.task, completed=answered, marks=shown)
        if event.kind == "ended":
            self.close()

    def close(self) -> None:
        """Leave the terminal as it was. Idempotent."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None

    def _open(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = [TextColumn("answered"), BarColumn(20), MofNCompleteColumn(), TextColumn("{task.fields[marks]}")]
        console = Console(stderr=True)  # elsewhere than on a terminal only the end is drawn: no thread for that
        self.bar = Progress(*columns, TimeElapsedColumn(), console=console, auto_refresh=console.is_terminal)
        self.task = self.bar.add_task("round", total=len(self.marks), marks="")
        self.bar.start()
