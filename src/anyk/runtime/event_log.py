"""A structured log of what happens in rounds."""

from __future__ import annotations

import io
import json
import os
import threading
import time
from pathlib import Path
from typing import Any, TextIO

from .events import RoundEvent, Run

__all__ = ["EventLog", "cause"]


def cause(reason: Any) -> str:
    """What kind of failure that was: "raised ValueError", "lost" or "refused", without values from its message."""
    text = str(reason)
    if text.startswith("raised "):
        name = text.removeprefix("raised ").partition(":")[0]
        return f"raised {name}" if name.isidentifier() else "raised"
    return "lost" if text.startswith("lost") else "refused"


class EventLog:
    """Pass it as ``on_event``: one JSON line for each `RoundEvent`.

    A line tells when, what, which round and which worker; for failures the kind of cause; for ends of rounds who was
    used and how long it took. Never a block, reply, argument or message of an exception.

    Parameters
    ----------
    file : path or text file
        A path is appended to, and only its owner may read the file; an open file stays open at the end.

    Examples
    --------
    >>> import anyk, io, json
    >>> text = io.StringIO()
    >>> with anyk.SimulatedWorkers(3) as workers, anyk.EventLog(text) as log:
    ...     result = anyk.map(abs, [0.5], workers=workers, stop=anyk.All(), on_event=log,
    ...                       faults={1: anyk.Raise("secret")})
    >>> [json.loads(line)["cause"] for line in text.getvalue().splitlines() if "cause" in line]
    ['raised RuntimeError']
    """

    def __init__(self, file: str | Path | TextIO) -> None:
        self._lock = threading.Lock()
        self._owned = isinstance(file, str | Path)
        self._file: TextIO
        if isinstance(file, str | Path):
            descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.fchmod(descriptor, 0o600)  # if it was there before
            except BaseException:
                os.close(descriptor)
                raise
            self._file = os.fdopen(descriptor, "w", encoding="utf-8")
        else:
            if not isinstance(file, io.TextIOBase) and not hasattr(file, "write"):
                raise TypeError(f"file must be a path or an open text file, got {file!r}")
            self._file = file

    def __call__(self, event: RoundEvent) -> None:
        """Write a line."""
        line: dict[str, Any] = {
            "time": round(time.time(), 6),
            "event": event.kind,
            "round": event.round,
            "seconds": event.seconds,
        }
        if event.worker is not None:
            line["worker"] = event.worker
        if event.kind == "started":
            line["workers"] = event.detail
        elif event.kind == "failed":
            line["cause"] = cause(event.detail)
        elif event.kind in ("answered", "late") and event.detail is not None:
            line["own_seconds"] = event.detail
        elif isinstance(event.detail, Run):
            line |= _outcome(event.detail)
        text = json.dumps(line) + "\n"
        with self._lock:
            self._file.write(text)
            if event.kind == "ended":
                self._file.flush()

    def close(self) -> None:
        """Close the file if it was opened here. Idempotent."""
        with self._lock:
            if self._owned:
                self._file.close()
            else:
                self._file.flush()

    def __enter__(self) -> EventLog:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _outcome(run: Run) -> dict[str, Any]:
    return {
        "stopped": run.seconds,
        "stop": run.stopped_by,
        "used": list(run.responders),
        "liars": list(run.liars),
        "stragglers": list(run.stragglers),
        "skipped": list(run.skipped),
        "failed": sorted(run.failed),
        "encode_seconds": run.encode_seconds,
        "decode_seconds": run.decode_seconds,
        "sent": run.traffic.sent,
        "received": run.traffic.received,
        "placed": run.traffic.placed,
    }
