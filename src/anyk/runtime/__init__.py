"""The runtime: workers, stop rules, faults and the one gather loop. It knows no concrete code."""

from .connect import connect
from .event_log import EventLog
from .events import Listeners, RoundEvent, Run, Traffic
from .executors import ExecutorWorkers
from .faults import Corrupt, Crash, Fault, FaultyWorkers, Hang, Raise, Slow, random_faults
from .fitting import Fit, rank_latencies
from .late import Backup, Late, Restart, Skip
from .latency import Deterministic, LogNormal, Pareto, ShiftedExponential
from .live import LiveView
from .markov import Markov
from .metrics import Metrics
from .node_failures import NodeFailures
from .noise import AdditiveNoise, Noise, Quantized, RelativeNoise
from .processes import LocalWorkers
from .recorder import Recorder
from .simulated import SimulatedWorkers
from .stop import All, Deadline, FirstK, StopRule, Sufficient
from .threads import ThreadWorkers
from .trace import Trace
from .workers import Event, Failure, Workers

__all__ = [
    "AdditiveNoise",
    "All",
    "Backup",
    "Corrupt",
    "Crash",
    "Deadline",
    "Deterministic",
    "Event",
    "EventLog",
    "ExecutorWorkers",
    "Failure",
    "Fault",
    "FaultyWorkers",
    "FirstK",
    "Fit",
    "Hang",
    "Late",
    "Listeners",
    "LiveView",
    "LocalWorkers",
    "LogNormal",
    "Markov",
    "Metrics",
    "NodeFailures",
    "Noise",
    "Pareto",
    "Quantized",
    "Raise",
    "Recorder",
    "RelativeNoise",
    "Restart",
    "RoundEvent",
    "Run",
    "ShiftedExponential",
    "SimulatedWorkers",
    "Skip",
    "Slow",
    "StopRule",
    "Sufficient",
    "ThreadWorkers",
    "Trace",
    "Traffic",
    "Workers",
    "connect",
    "random_faults",
    "rank_latencies",
]
