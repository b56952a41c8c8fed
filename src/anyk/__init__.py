"""anyk: any k of n. Coded computing over workers that may be slow, dead, noisy or lying."""

from . import errors
from .codes import BerrutCode, Code, DataCode, Decoder, LagrangeCode, RepetitionCode, UncodedCode
from .codes.berrut import error_bound, lebesgue_bound
from .errors import TaskFailed, TooFewResponders
from .interpolation import lebesgue_constant, lebesgue_function
from .mapping import Result
from .mapping import map as map
from .ordering import path_order
from .runtime import (
    All,
    Corrupt,
    Crash,
    Deadline,
    Deterministic,
    ExecutorWorkers,
    Fault,
    FaultyWorkers,
    FirstK,
    Hang,
    LocalWorkers,
    LogNormal,
    Pareto,
    Raise,
    RoundEvent,
    Run,
    ShiftedExponential,
    SimulatedWorkers,
    Slow,
    StopRule,
    Sufficient,
    ThreadWorkers,
    Trace,
    Workers,
    random_faults,
)

__version__ = "0.1.0"
__all__ = [
    "All",
    "BerrutCode",
    "Code",
    "Corrupt",
    "Crash",
    "DataCode",
    "Deadline",
    "Decoder",
    "Deterministic",
    "ExecutorWorkers",
    "Fault",
    "FaultyWorkers",
    "FirstK",
    "Hang",
    "LagrangeCode",
    "LocalWorkers",
    "LogNormal",
    "Pareto",
    "Raise",
    "RepetitionCode",
    "Result",
    "RoundEvent",
    "Run",
    "ShiftedExponential",
    "SimulatedWorkers",
    "Slow",
    "StopRule",
    "Sufficient",
    "TaskFailed",
    "ThreadWorkers",
    "TooFewResponders",
    "Trace",
    "UncodedCode",
    "Workers",
    "error_bound",
    "errors",
    "lebesgue_bound",
    "lebesgue_constant",
    "lebesgue_function",
    "path_order",
    "random_faults",
]
