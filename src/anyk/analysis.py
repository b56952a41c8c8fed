"""The figures of a code over sets of responders, and codes side by side: records, no printing."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .codes.base import Code
from .codes.gradient import GradientCode
from .errors import ApproximationWarning, TooFewResponders, UnsafeDecode

__all__ = ["Figures", "Spread", "compare", "figures", "sample_responders"]

_OF_DECODERS = ("residual", "noise_amplification", "lebesgue_constant", "condition")


@dataclass(frozen=True)
class Spread:
    """Mean, median and worst (largest) of a figure over responder sets; NaN where no set could be decoded."""

    mean: float
    median: float
    worst: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of some values."""
        if len(values) == 0:
            return cls(math.nan, math.nan, math.nan)
        return cls(float(np.mean(values)), float(np.median(values)), float(np.max(values)))


@dataclass(frozen=True)
class Figures:
    """What a code promises and what its decoders do over sets of `responders` answers; see `figures`.

    Attributes
    ----------
    code : str
        The code, as it is written.
    workers, blocks, responders, threshold : int
    exact_for : str
        Functions recovered exactly at the threshold.
    sets : int
        How many responder sets were tried.
    failures : float
        Fraction of the sets that cannot be decoded, or not in float64. The spreads below are over the others.
    residual, noise_amplification, lebesgue_constant, condition : Spread
        As in `Decoder`.
    traffic : float
        What a worker sends, in replies of one whole block (or gradient); complex codes send twice as much.
    load : float
        Blocks that a worker's row of the generator combines, or partitions that it holds, on average over all workers:
        storage and compute where the work precedes the combination, the cost of encoding where it follows.
    """

    code: str
    workers: int
    blocks: int
    responders: int
    threshold: int
    exact_for: str
    sets: int
    failures: float
    residual: Spread
    noise_amplification: Spread
    lebesgue_constant: Spread
    condition: Spread
    traffic: float
    load: float

    def as_dict(self) -> dict[str, Any]:
        """One flat record; a spread becomes three entries, ``residual_mean`` and so on."""
        flat: dict[str, Any] = {}
        for name, value in asdict(self).items():
            flat |= {f"{name}_{part}": v for part, v in value.items()} if isinstance(value, dict) else {name: value}
        return flat


def sample_responders(code: Code, responders: int, trials: int, rng: int | np.random.Generator) -> NDArray[np.intp]:
    """Random sets of that many distinct workers, each set equally likely; idle workers may be among them.

    Parameters
    ----------
    code : Code
    responders : int
        Size of a set, 1 .. ``code.workers``.
    trials : int
        Number of sets; a set may come up twice.
    rng : int or numpy.random.Generator

    Returns
    -------
    (trials, responders) worker indices, rising along each row.

    Examples
    --------
    >>> from anyk import UncodedCode
    >>> sample_responders(UncodedCode(workers=9, blocks=3), responders=3, trials=2, rng=0).shape
    (2, 3)
    """
    _check(code, responders, trials)
    order = np.random.default_rng(rng).random((trials, code.workers)).argsort(axis=1)
    return np.sort(order[:, :responders], axis=1)


def figures(code: Code, responders: int, trials: int = 200, seed: int = 0) -> Figures:
    """The figures of a code over sets of `responders` workers.

    All sets are tried where there are no more than `trials` of them, so that the worst is the worst; otherwise `trials`
    random ones.

    Examples
    --------
    >>> from anyk import BerrutCode, RepetitionCode
    >>> table = figures(RepetitionCode(workers=6, blocks=3), responders=4)
    >>> table.sets, table.failures, table.residual.worst, table.lebesgue_constant.worst
    (15, 0.2, 0.0, 1.0)
    >>> figures(BerrutCode(workers=30, blocks=10), responders=25).as_dict()["residual_mean"] < 1
    True
    """
    _check(code, responders, trials)
    subsets: Iterable[Any]
    if math.comb(code.workers, responders) <= trials:
        subsets = list(itertools.combinations(range(code.workers), responders))
    else:
        subsets = sample_responders(code, responders, trials, seed)
    rows: list[list[float]] = []
    count = 0
    for subset in subsets:
        count += 1
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ApproximationWarning)  # the figures say so themselves
                decoder = code.decoder(subset)
        except (TooFewResponders, UnsafeDecode):
            continue
        rows.append([getattr(decoder, name) for name in _OF_DECODERS])
    spreads = [Spread.of([row[column] for row in rows]) for column in range(len(_OF_DECODERS))]
    # Gradient codes cut a reply into chunks, each with its own columns of a generator that may be sparse.
    chunks = code.chunks if isinstance(code, GradientCode) else 1
    combined = code.placement if isinstance(code, GradientCode) else code.generator
    return Figures(
        code=repr(code),
        workers=code.workers,
        blocks=combined.shape[1],
        responders=responders,
        threshold=code.threshold,
        exact_for=code.exact_for,
        sets=count,
        failures=(count - len(rows)) / count,
        **dict(zip(_OF_DECODERS, spreads, strict=True)),
        traffic=(2 if np.iscomplexobj(code._rows([0])) else 1) / chunks,
        load=float(np.count_nonzero(combined) / code.workers),
    )


def compare(codes: Iterable[Code], responders: int, trials: int = 200, seed: int = 0) -> list[Figures]:
    """`figures` of several codes for the same number of answers, in the order given.

    Examples
    --------
    >>> from anyk import BerrutCode, RepetitionCode
    >>> rows = compare([BerrutCode(12, 4), RepetitionCode(12, 4)], responders=9, trials=220)
    >>> [(row.exact_for, round(row.failures, 3)) for row in rows]
    [('nothing', 0.0), ('any', 0.018)]
    """
    return [figures(code, responders, trials, seed) for code in codes]


def _check(code: Code, responders: int, trials: int) -> None:
    if not 1 <= responders <= code.workers:
        raise ValueError(f"responders must lie in 1..{code.workers} (the workers of {code!r}), got {responders}")
    if trials < 1:
        raise ValueError(f"trials must be at least 1, got {trials}")
