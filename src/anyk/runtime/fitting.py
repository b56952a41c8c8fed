"""Which latency model a trace speaks for."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from .latency import Latency, LogNormal, Pareto, ShiftedExponential
from .markov import Markov, log_chances
from .node_failures import NodeFailures
from .trace import Trace

__all__ = ["Fit", "rank_latencies"]


@dataclass(frozen=True)
class Fit:
    """A model fitted to a trace.

    Attributes
    ----------
    model : Latency
    log_likelihood : float
        Of all latencies, those that are only known to be longer than something included.
    parameters : int
        How many were fitted.
    bic : float
        Bayesian information criterion, parameters * ln(latencies) - 2 * log_likelihood; less is better.
    """

    model: Latency
    log_likelihood: float
    parameters: int
    bic: float


def rank_latencies(trace: Trace) -> list[Fit]:
    """`ShiftedExponential`, `Pareto`, `LogNormal`, `Markov` and `NodeFailures` fitted to a trace, the best first.

    Raises
    ------
    ValueError
        If none can be fitted.

    Examples
    --------
    >>> import numpy as np, anyk
    >>> rng, model = np.random.default_rng(0), anyk.Pareto(1.0, 2.0)
    >>> rank_latencies(Trace([model.draw(rng, 20, r) for r in range(20)]))[0].model
    Pareto(scale=1.00..., shape=...)
    """
    found, refused = [], ""
    count = len(trace.sample())
    for kind in (ShiftedExponential, Pareto, LogNormal, Markov, NodeFailures):
        try:
            model = kind.fit(trace)
        except ValueError as error:
            refused = str(error)
            continue
        if isinstance(model, Markov | NodeFailures):
            likelihood = model.log_likelihood(trace)
        else:
            likelihood = float(log_chances(model, trace).sum())
        parameters = _parameters(model)
        found.append(Fit(model, likelihood, parameters, parameters * math.log(count) - 2 * likelihood))
    if not found:
        raise ValueError(f"no latency model can be fitted to {trace!r}: {refused}")
    return sorted(found, key=lambda each: each.bic)


def _parameters(model: Latency) -> int:
    """Numbers that a model is made of, its seed apart."""
    values = [getattr(model, each.name) for each in fields(model) if each.name != "seed"]  # type: ignore[arg-type]
    return sum(1 if isinstance(value, int | float) else _parameters(value) for value in values)
