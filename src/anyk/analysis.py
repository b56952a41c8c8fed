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
from .codes.frame import FrameCode
from .codes.gradient import GradientCode
from .codes.harmonic import HarmonicFrameCode
from .codes.product import ProductCode
from .errors import ApproximationWarning, TooFewResponders, UnsafeDecode
from .frames import coherence, is_equiangular, singular_responders
from .spectra import Manova

__all__ = [
    "Figures",
    "Spread",
    "amplifications",
    "compare",
    "eigenvalues",
    "figures",
    "frame_figures",
    "load",
    "sample_responders",
    "worst_responders",
]

_INEXACT = 1e-6  # residual from which an answer is an estimate
_LOST = 0.1  # of the target: more of it is missing than rounding takes
_OF_DECODERS = ("residual", "noise_amplification", "lebesgue_constant", "condition")


@dataclass(frozen=True)
class Spread:
    """A figure over responder sets; NaN where no set could be decoded.

    Attributes
    ----------
    mean, median : float
    worst : float
        The largest.
    log_mean : float
        Mean of the decimal logarithms, which heavy tails do not dominate; -inf where a value is zero.
    """

    mean: float
    median: float
    worst: float
    log_mean: float = math.nan

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of some values."""
        if len(values) == 0:
            return cls(math.nan, math.nan, math.nan)
        with np.errstate(divide="ignore"):
            logs = float(np.mean(np.log10(values)))
        return cls(float(np.mean(values)), float(np.median(values)), float(np.max(values)), logs)


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
        Fraction of the sets that do not yield what the code promises: that cannot be decoded, or not in float64, or
        only to an estimate by a code that is exact elsewhere. The spreads below are over all that can be decoded.
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
    count = inexact = 0
    for subset in subsets:
        count += 1
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ApproximationWarning)  # the figures say so themselves
                decoder = code.decoder(subset)
        except (TooFewResponders, UnsafeDecode):
            continue
        rows.append([getattr(decoder, name) for name in _OF_DECODERS])
        inexact += not (code.approximate or code.sufficient(subset)) and decoder.worst_residual > _INEXACT
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
        failures=(count - len(rows) + inexact) / count,
        **dict(zip(_OF_DECODERS, spreads, strict=True)),
        traffic=(2 if np.iscomplexobj(code._rows([0])) else 1) / chunks,
        load=load(code),
    )


def load(code: Code) -> float:
    """Blocks that a worker's row combines, or partitions that it holds, on average: see `Figures`."""
    combined: list[Any] = [code.placement if isinstance(code, GradientCode) else code.generator]
    if isinstance(code, ProductCode):
        combined = [code.left, code.right]
    return float(np.sum([np.count_nonzero(matrix) for matrix in combined]) / code.workers)


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


def worst_responders(
    code: Code, responders: int, rng: int | np.random.Generator = 0, *, starts: int = 200, sweeps: int = 3
) -> tuple[int, ...]:
    """The loudest set of that many workers that a search finds: what could happen, not what usually does.

    Random gaps are tried, contiguous ones, and progressions around the circle in all steps; in the loudest of them one
    worker at a time is exchanged as long as that makes it louder. A set that cannot be decoded is the worst there is;
    those that a search comes upon are returned at once, which says nothing of others.

    Parameters
    ----------
    code : Code
    responders : int
    rng : int or numpy.random.Generator
    starts : int
        Random sets to begin with, and a tenth of the progressions; exchanges begin at one set more for each hundred.
    sweeps : int
        Rounds of exchanges.

    Returns
    -------
    tuple of int
        Rising; its amplification is ``code.decoder(set).noise_amplification``, where it can be decoded.

    Examples
    --------
    >>> from anyk import ChebyshevCode
    >>> worst = worst_responders(ChebyshevCode(12, 9), 9)
    >>> worst[-1] - worst[0]  # neighbours: the gap is at an end
    8
    """
    _check(code, responders, starts)
    n, generator = code.workers, np.random.default_rng(rng)
    solved = isinstance(code, FrameCode | ProductCode)  # by least squares, here without the decoders' bookkeeping
    rows, target = np.asarray(code.generator) if solved else None, code.target

    def loudness(present: NDArray[np.bool_]) -> float:
        if rows is None:
            return _amplification(code, np.flatnonzero(present))
        values = rows[present]
        try:
            weights = np.linalg.lstsq(values.conj().T, target.conj().T, rcond=1e-15)[0].conj().T
        except np.linalg.LinAlgError:
            return math.inf
        lost = np.linalg.norm(weights @ values - target)
        return float(np.linalg.norm(weights)) if lost < _LOST else math.inf

    def without(missing: Any) -> NDArray[np.bool_]:
        present = np.ones(n, dtype=bool)
        present[np.asarray(missing, dtype=np.intp) % n] = False
        return present

    gone = n - responders
    steps, places = np.arange(1, n // 2 + 1), np.arange(n)
    progressions = [start + step * np.arange(gone) for step in steps for start in places]
    gaps = progressions[:n] + progressions[n :: 1 + len(progressions) // (10 * starts)]
    gaps += [generator.permutation(n)[:gone] for _ in range(starts)]
    candidates = [present for present in map(without, gaps) if present.sum() == responders]
    scored = sorted(((loudness(present), index) for index, present in enumerate(candidates)), reverse=True)
    best, loudest = scored[0][0], candidates[scored[0][1]]
    for score, index in scored[: 1 + starts // 100]:
        present = candidates[index].copy()
        for _ in range(sweeps if gone else 0):
            before = score
            for out in np.flatnonzero(~present):
                for into in np.flatnonzero(present):
                    present[[out, into]] = True, False
                    louder = loudness(present)
                    if louder > score * 1.01:
                        score = louder
                        break
                    present[[out, into]] = False, True
            if score <= before:
                break
        if score > best:
            best, loudest = score, present
    return tuple(np.flatnonzero(loudest).tolist())


def _amplification(code: Code, who: NDArray[np.intp]) -> float:
    """Infinite where there is no answer, or not the promised one."""
    if not (code.approximate or code.sufficient(who.tolist())):
        return math.inf
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ApproximationWarning)
            return code.decoder(who).noise_amplification
    except (TooFewResponders, UnsafeDecode):
        return math.inf


def eigenvalues(
    code: Code, responders: int, trials: int = 100, rng: int | np.random.Generator = 0
) -> NDArray[np.float64]:
    """Eigenvalues of G_S* G_S over random responder sets, beside which `Manova` and `MarchenkoPastur` can be laid.

    Returns
    -------
    (trials, blocks) float64, rising along each row
    """
    sets = sample_responders(code, responders, trials, rng)
    rows = (np.asarray(code.generator)[subset] for subset in sets)
    return np.stack([np.linalg.eigvalsh(part.conj().T @ part) for part in rows])


def amplifications(
    code: FrameCode, responders: int, trials: int, rng: int | np.random.Generator
) -> NDArray[np.float64]:
    """The noise amplification over random responder sets, from their rows' singular values.

    Returns
    -------
    (trials,) float64; infinite where the rows lack full rank in float64
    """
    sets = sample_responders(code, responders, trials, rng)
    values = np.stack([np.linalg.svd(code.generator[subset], compute_uv=False) for subset in sets])
    rounding = values.shape[1] * np.finfo(np.float64).eps * values[:, :1]
    with np.errstate(divide="ignore"):
        squares = np.where(values > rounding, values, 0.0) ** -2.0
    full = responders >= code.blocks
    return np.asarray(squares.mean(axis=1) if full else np.full(trials, math.inf))


def frame_figures(
    workers: int,
    powers: Iterable[int],
    responders: int,
    trials: int = 400,
    seed: int = 0,
    real: bool = False,
) -> dict[str, Any]:
    """Figures of a harmonic frame over random survivors: noise amplification, coherence, singular sets.

    Mean, median, decimal log-mean, 99th percentile and worst are over the survivors that can be decoded;
    ``undecodable`` is the share of the others (rounds wait for more answers there), ``singular`` whether such sets are
    known to exist.

    Examples
    --------
    >>> row = frame_figures(13, [0, 1, 3, 9], responders=9)
    >>> row["equiangular"], row["singular"]
    (True, False)
    """
    powers = [int(z) for z in powers]
    code = HarmonicFrameCode(workers, powers, real=real)
    drawn = amplifications(code, responders, trials, seed)
    amplification = drawn[np.isfinite(drawn)] if np.isfinite(drawn).any() else drawn
    return {
        "coherence": coherence(code.generator),
        "equiangular": is_equiangular(code.generator),
        "mean": float(amplification.mean()),
        "median": float(np.median(amplification)),
        "log_mean": float(np.log10(amplification).mean()),
        "p99": float(np.quantile(amplification, 0.99, method="higher")),
        "worst": float(amplification.max()),
        "undecodable": float(1 - np.isfinite(drawn).mean()),
        "threshold": code.threshold,
        "singular": singular_responders(workers, powers, responders) is not None,
        "manova": Manova(len(powers) / workers, responders / len(powers)).amplification,
    }


def _check(code: Code, responders: int, trials: int) -> None:
    if not 1 <= responders <= code.workers:
        raise ValueError(f"responders must lie in 1..{code.workers} (the workers of {code!r}), got {responders}")
    if trials < 1:
        raise ValueError(f"trials must be at least 1, got {trials}")
