"""The runtime: workers, stop rules, faults and the one gather loop. It knows no concrete code."""

from .events import RoundEvent, Run, Traffic
from .executors import ExecutorWorkers
from .faults import Corrupt, Crash, Fault, FaultyWorkers, Hang, Raise, Slow, random_faults
from .fitting import Fit, rank_latencies
from .latency import Deterministic, LogNormal, Pareto, ShiftedExponential
from .markov import Markov
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
    "Corrupt",
    "Crash",
    "Deadline",
    "Deterministic",
    "Event",
    "ExecutorWorkers",
    "Failure",
    "Fault",
    "FaultyWorkers",
    "FirstK",
    "Fit",
    "Hang",
    "LocalWorkers",
    "LogNormal",
    "Markov",
    "NodeFailures",
    "Noise",
    "Pareto",
    "Quantized",
    "Raise",
    "Recorder",
    "RelativeNoise",
    "RoundEvent",
    "Run",
    "ShiftedExponential",
    "SimulatedWorkers",
    "Slow",
    "StopRule",
    "Sufficient",
    "ThreadWorkers",
    "Trace",
    "Traffic",
    "Workers",
    "random_faults",
    "rank_latencies",
]
