"""The runtime: workers, stop rules, faults and the one gather loop. It knows no concrete code."""

from .connect import connect
from .events import RoundEvent, Run, Traffic
from .executors import ExecutorWorkers
from .faults import Corrupt, Crash, Fault, FaultyWorkers, Hang, Raise, Slow, random_faults
from .late import Backup, Late, Restart, Skip
from .latency import Deterministic, LogNormal, Pareto, ShiftedExponential, Trace
from .noise import AdditiveNoise, Noise, Quantized, RelativeNoise
from .processes import LocalWorkers
from .simulated import SimulatedWorkers
from .stop import All, Deadline, FirstK, StopRule, Sufficient
from .threads import ThreadWorkers
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
    "ExecutorWorkers",
    "Failure",
    "Fault",
    "FaultyWorkers",
    "FirstK",
    "Hang",
    "Late",
    "LocalWorkers",
    "LogNormal",
    "Noise",
    "Pareto",
    "Quantized",
    "Raise",
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
]
