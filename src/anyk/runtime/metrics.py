"""Counters and histograms for Prometheus (``pip install anyk[metrics]``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .event_log import cause
from .events import RoundEvent, Run

__all__ = ["Metrics"]

_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)


class Metrics:
    """Pass it as ``on_event``: rounds, their seconds, and what workers did, for Prometheus.

    They live in a registry of their own. Worker labels are bounded: those from `most_workers` on share the label
    ``other``. Causes of failures are ``raised``, ``lost`` and ``refused``.

    Parameters
    ----------
    file : path, optional
        Written at the end of every round, in one step (node_exporter's textfile collector reads ``*.prom``).
    most_workers : int
        Workers with a label of their own.
    buckets : tuple of float
        Upper ends of the histograms' buckets, in seconds.

    Attributes
    ----------
    registry : prometheus_client.CollectorRegistry

    Raises
    ------
    ImportError
        With the command that installs prometheus_client.

    Examples
    --------
    >>> import anyk
    >>> metrics = anyk.Metrics()
    >>> with anyk.SimulatedWorkers(3) as workers:
    ...     result = anyk.map(abs, [0.5], workers=workers, stop=anyk.All(), on_event=metrics)
    >>> "anyk_rounds_total 1.0" in metrics.text()
    True
    """

    def __init__(
        self, file: str | Path | None = None, *, most_workers: int = 256, buckets: tuple[float, ...] = _SECONDS
    ) -> None:
        try:
            import prometheus_client as prometheus
        except ImportError as error:
            raise ImportError("metrics need prometheus_client: pip install 'anyk[metrics]'") from error
        if isinstance(most_workers, bool) or not isinstance(most_workers, int) or most_workers < 0:
            raise ValueError(f"most_workers must be an integer of at least 0, got {most_workers!r}")
        self._prometheus: Any = prometheus
        self._file, self._most = file, most_workers
        self._servers: list[tuple[Any, Any]] = []
        self.registry: Any = prometheus.CollectorRegistry()

        def counter(name: str, what: str, *labels: str) -> Any:
            return prometheus.Counter(f"anyk_{name}", what, labels, registry=self.registry)

        def histogram(name: str, what: str) -> Any:
            return prometheus.Histogram(f"anyk_{name}_seconds", what, buckets=buckets, registry=self.registry)

        self._rounds = counter("rounds", "Rounds that have ended, well or not.")
        self._round = histogram("round", "From the start of a round to its stop.")
        self._decode = histogram("decode", "Decoding, by the master.")
        self._answer = histogram("answer", "From the start of a round to an answer.")
        self._answers = counter("answers", "Valid answers.", "worker")
        self._failures = counter("failures", "Functions that raised, workers lost, replies refused.", "worker", "cause")
        self._given_up = counter("stragglers", "Tasks that were not waited for.", "worker")
        self._late = counter("late", "Answers to earlier rounds, dropped.", "worker")
        self._restarts = counter("restarts", "Workers started afresh.", "worker")
        self._liars = counter("liars", "Replies that cannot be true.", "worker")
        self._numbers = counter("numbers", "Numbers moved: sent, received, placed.", "direction")
        self._latest = prometheus.Gauge("anyk_last_round_time", "When a round ended last.", registry=self.registry)

    def _label(self, worker: int | None) -> str:
        return str(worker) if worker is not None and worker < self._most else "other"

    def __call__(self, event: RoundEvent) -> None:
        """Count."""
        worker = self._label(event.worker)
        if event.kind == "answered":
            self._answers.labels(worker).inc()
            self._answer.observe(event.seconds)
        elif event.kind == "failed":
            self._failures.labels(worker, cause(event.detail).partition(" ")[0]).inc()
        elif event.kind == "late":
            self._late.labels(worker).inc()
        elif event.kind == "restarted":
            self._restarts.labels(worker).inc()
        elif event.kind == "ended":
            self._end(event)

    def _end(self, event: RoundEvent) -> None:
        self._rounds.inc()
        self._latest.set_to_current_time()
        if isinstance(event.detail, Run):
            run = event.detail
            self._round.observe(run.seconds)
            self._decode.observe(run.decode_seconds)
            for counter, who in ((self._given_up, run.stragglers), (self._liars, run.liars)):
                for worker in who:
                    counter.labels(self._label(worker)).inc()
            for direction, count in run.traffic._asdict().items():
                self._numbers.labels(direction).inc(count)
        if self._file is not None:
            self.write(self._file)

    def text(self) -> str:
        """All figures in Prometheus' text format."""
        return str(self._prometheus.generate_latest(self.registry).decode())

    def write(self, path: str | Path) -> None:
        """Write `text` to a file in one step: whoever reads it finds the old figures or the new."""
        self._prometheus.write_to_textfile(str(path), self.registry)

    def serve(self, port: int, host: str = "127.0.0.1") -> int:
        """Answer HTTP requests for the figures, on this machine only unless told otherwise, until `close`.

        Returns
        -------
        int
            The port, chosen by the system for 0.
        """
        server, thread = self._prometheus.start_http_server(port, addr=host, registry=self.registry)
        self._servers.append((server, thread))
        return int(server.server_port)

    def close(self) -> None:
        """Stop serving. Idempotent."""
        while self._servers:
            server, thread = self._servers.pop()
            server.shutdown()
            server.server_close()
            thread.join()

    def __enter__(self) -> Metrics:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
