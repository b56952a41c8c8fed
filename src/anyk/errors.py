"""Every error and warning that anyk raises.

::

    Exception
    +-- AnykError
        +-- BlocksError (ValueError)        the input: none, unequal, empty or non-finite blocks
        +-- PlacementError (ValueError)     a placement that is none, or has too few replicas for what is asked of it
        +-- RoundError                      a round brought no answer; carries what arrived
        |   +-- TooFewResponders                fewer answers than the code or the stop rule needs
        |   +-- UnsafeDecode (ArithmeticError)  rounding alone would swamp the answer
        |   +-- TaskFailed (RuntimeError)       the worker's function raised, everywhere that counts
        |   +-- TooManyErrors (ArithmeticError) wrong replies that cannot be told from the right ones
        |   |   +-- ReplicasDisagree                they contradict one another everywhere: no few liars do that
        |   +-- DisagreeingReplies              as many answers of one kind as of another
        +-- NotPicklable (TypeError)        the function cannot travel to another process
        +-- TooFewWorkers (RuntimeError)    a cluster has fewer workers than were asked for
        +-- WorkersClosed (RuntimeError)    the workers were closed, or never opened
    UserWarning
    +-- ApproximationWarning                the answer is coarser than the code was built for
"""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any

__all__ = [
    "AnykError",
    "ApproximationWarning",
    "BlocksError",
    "DisagreeingReplies",
    "NotPicklable",
    "PlacementError",
    "ReplicasDisagree",
    "RoundError",
    "TaskFailed",
    "TooFewResponders",
    "TooFewWorkers",
    "TooManyErrors",
    "UnsafeDecode",
    "WorkersClosed",
    "warn",
]


class AnykError(Exception):
    """Base of all errors raised by anyk."""


class BlocksError(AnykError, ValueError):
    """The blocks to be mapped are missing, unequal, empty or not finite."""


class PlacementError(AnykError, ValueError):
    """Not a placement, or one with too few replicas for the stragglers and adversaries asked for."""


class RoundError(AnykError):
    """A round that brought no answer.

    Attributes
    ----------
    arrived : dict[int, Any]
        The valid replies that did arrive, by worker; own copies, safe to keep.
    run : Run or None
        What happened to every worker, when a round was run at all.
    """

    def __init__(self, message: str, arrived: dict[int, Any] | None = None, run: Any = None) -> None:
        super().__init__(message)
        self.arrived: dict[int, Any] = arrived or {}
        self.run = run

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), str(self), self.__dict__)


def _rebuild(kind: type[RoundError], message: str, attributes: dict[str, Any]) -> RoundError:
    error = kind.__new__(kind, message)
    error.__dict__.update(attributes)
    return error


class TooFewResponders(RoundError):
    """Fewer workers answered than the code or the stop rule needs."""


class UnsafeDecode(RoundError, ArithmeticError):
    """Decoding would amplify rounding beyond the size of the answer."""


class TooManyErrors(RoundError, ArithmeticError):
    """The replies contradict one another, and no set of as few liars as the code allows for explains it."""


class ReplicasDisagree(TooManyErrors):
    """Workers that hold the same partition return different results, everywhere: the function is to blame, not a few.

    It draws random numbers of its own (dropout), keeps a state that differs from worker to worker (running statistics
    of batches), or runs on kernels that round differently from run to run.
    """


class TaskFailed(RoundError, RuntimeError):
    """The function raised on a worker and too few other workers answered.

    Attributes
    ----------
    worker : int
        Index of the first worker whose function raised.
    traceback_text : str
        That worker's own traceback.
    """

    def __init__(
        self, message: str, worker: int, traceback_text: str, arrived: dict[int, Any] | None = None, run: Any = None
    ) -> None:
        super().__init__(message, arrived, run)
        self.worker = worker
        self.traceback_text = traceback_text


class DisagreeingReplies(RoundError):
    """As many workers returned one structure, shape, dtype or (for copies) value as returned another."""


class NotPicklable(AnykError, TypeError):
    """The function, or something that it captures, cannot be sent to another process."""


class TooFewWorkers(AnykError, RuntimeError):
    """A cluster has fewer workers than were asked for, or they cannot be started."""


class WorkersClosed(AnykError, RuntimeError):
    """The workers have been closed."""


class ApproximationWarning(UserWarning):
    """The decoded answer is coarser than the code was built for; the message carries the figures."""


_HERE = os.path.dirname(__file__)


def warn(text: str) -> None:
    """An `ApproximationWarning` at the line that called anyk, directly or through one of SciPy's solvers."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and _between(frame.f_code.co_filename):
        frame, level = frame.f_back, level + 1
    warnings.warn(ApproximationWarning(text), stacklevel=level)


def _between(filename: str) -> bool:
    return filename.startswith(_HERE) or f"{os.sep}scipy{os.sep}" in filename
