"""anyk: any k of n. Coded computing over workers that may be slow, dead, noisy or lying."""

from typing import TYPE_CHECKING, Any

from . import errors
from .codes import (
    BerrutCode,
    BerrutGradientCode,
    ChebyshevCode,
    Code,
    CyclicCode,
    CyclicMDSCode,
    DataCode,
    Decoder,
    EntangledPolynomialCode,
    FractionalRepetitionCode,
    FrameCode,
    GaussianFrameCode,
    GradientCode,
    GraphCode,
    GroupCode,
    HarmonicFrameCode,
    IgnoreStragglersCode,
    KhatriRaoCode,
    LagrangeCode,
    MatDotCode,
    NullSpaceCode,
    PolynomialCode,
    PolynomialOfSumCode,
    ProductCode,
    RepetitionCode,
    SplineCode,
    SystematicMDSCode,
    UncodedCode,
    UniversalPolynomialCode,
    VandermondeCode,
)
from .codes.berrut import error_bound, lebesgue_bound
from .difference_sets import difference_set, is_difference_set
from .errors import PlacementError, ReplicasDisagree, TaskFailed, TooFewResponders, TooManyErrors
from .frames import (
    coherence,
    is_equiangular,
    nonuniform_samples,
    optimized_powers,
    random_powers,
    singular_responders,
    welch_bound,
)
from .interpolation import lebesgue_constant, lebesgue_function
from .locate import locate
from .mapping import Result
from .mapping import map as map
from .operators import CodedOperator, matmul
from .ordering import path_order
from .placement import (
    cyclic_placement,
    fractional_repetition_placement,
    minimum_communication,
    placement_by_speed,
    random_placement,
    replication,
)
from .runtime import (
    AdditiveNoise,
    All,
    Backup,
    Corrupt,
    Crash,
    Deadline,
    Deterministic,
    EventLog,
    ExecutorWorkers,
    Fault,
    FaultyWorkers,
    FirstK,
    Fit,
    Hang,
    Listeners,
    LiveView,
    LocalWorkers,
    LogNormal,
    Markov,
    Metrics,
    NodeFailures,
    Noise,
    Pareto,
    Quantized,
    Raise,
    Recorder,
    RelativeNoise,
    Restart,
    RoundEvent,
    Run,
    ShiftedExponential,
    SimulatedWorkers,
    Skip,
    Slow,
    StopRule,
    Sufficient,
    ThreadWorkers,
    Trace,
    Traffic,
    Workers,
    connect,
    random_faults,
    rank_latencies,
)
from .spectra import Manova, MarchenkoPastur
from .summing import sum as sum

if TYPE_CHECKING:
    from .runtime.dask import DaskWorkers as DaskWorkers
    from .runtime.mpi import MPIWorkers as MPIWorkers
    from .runtime.ray import RayWorkers as RayWorkers

__version__ = "0.1.0"
__all__ = [
    "AdditiveNoise",
    "All",
    "Backup",
    "BerrutCode",
    "BerrutGradientCode",
    "ChebyshevCode",
    "Code",
    "CodedOperator",
    "Corrupt",
    "Crash",
    "CyclicCode",
    "CyclicMDSCode",
    "DataCode",
    "Deadline",
    "Decoder",
    "Deterministic",
    "EntangledPolynomialCode",
    "EventLog",
    "ExecutorWorkers",
    "Fault",
    "FaultyWorkers",
    "FirstK",
    "Fit",
    "FractionalRepetitionCode",
    "FrameCode",
    "GaussianFrameCode",
    "GradientCode",
    "GraphCode",
    "GroupCode",
    "Hang",
    "HarmonicFrameCode",
    "IgnoreStragglersCode",
    "KhatriRaoCode",
    "LagrangeCode",
    "Listeners",
    "LiveView",
    "LocalWorkers",
    "LogNormal",
    "Manova",
    "MarchenkoPastur",
    "Markov",
    "MatDotCode",
    "Metrics",
    "NodeFailures",
    "Noise",
    "NullSpaceCode",
    "Pareto",
    "PlacementError",
    "PolynomialCode",
    "PolynomialOfSumCode",
    "ProductCode",
    "Quantized",
    "Raise",
    "Recorder",
    "RelativeNoise",
    "RepetitionCode",
    "ReplicasDisagree",
    "Restart",
    "Result",
    "RoundEvent",
    "Run",
    "ShiftedExponential",
    "SimulatedWorkers",
    "Skip",
    "Slow",
    "SplineCode",
    "StopRule",
    "Sufficient",
    "SystematicMDSCode",
    "TaskFailed",
    "ThreadWorkers",
    "TooFewResponders",
    "TooManyErrors",
    "Trace",
    "Traffic",
    "UncodedCode",
    "UniversalPolynomialCode",
    "VandermondeCode",
    "Workers",
    "coherence",
    "connect",
    "cyclic_placement",
    "difference_set",
    "error_bound",
    "errors",
    "fractional_repetition_placement",
    "is_difference_set",
    "is_equiangular",
    "lebesgue_bound",
    "lebesgue_constant",
    "lebesgue_function",
    "locate",
    "matmul",
    "minimum_communication",
    "nonuniform_samples",
    "optimized_powers",
    "path_order",
    "placement_by_speed",
    "random_faults",
    "random_placement",
    "random_powers",
    "rank_latencies",
    "replication",
    "singular_responders",
    "welch_bound",
]

_OPTIONAL = {"DaskWorkers": "dask", "MPIWorkers": "mpi", "RayWorkers": "ray"}  # engines that need an extra


def __getattr__(name: str) -> Any:
    if name in _OPTIONAL:
        import importlib

        return getattr(importlib.import_module(f".runtime.{_OPTIONAL[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_OPTIONAL})
