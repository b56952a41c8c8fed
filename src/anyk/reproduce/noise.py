"""Coded computing with noise (paper 3): figure 3, the laws behind it, and products of matrices.

m = 50 blocks; n workers, of which k answer. The digits of the paper's k/n are lost: 0.8 by default here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..analysis import amplifications, eigenvalues, worst_responders
from ..codes import (
    ChebyshevCode,
    Code,
    FrameCode,
    GaussianFrameCode,
    HarmonicFrameCode,
    KhatriRaoCode,
    MatDotCode,
    PolynomialCode,
    SystematicMDSCode,
)
from ..difference_sets import difference_set
from ..frames import nonuniform_samples, optimized_powers, random_powers
from ..runtime.noise import AdditiveNoise, Noise, Quantized, RelativeNoise
from ..spectra import Manova, MarchenkoPastur
from .table import Table

__all__ = ["FIGURES"]

Array = NDArray[np.float64]
_M = 50
_INVERSE_GAMMAS = (1.3, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0)


def _nonuniform(n: int, rng: np.random.Generator) -> HarmonicFrameCode:
    """Definition 3 with b periods, b a divisor of n below n, and a grid of up to twice as many points."""
    divisors = [b for b in range(1, n // 2 + 1) if n % b == 0]
    periods = int(rng.choice(divisors))
    grid = int(rng.integers(n // periods + 1, 2 * n // periods + 1))
    return HarmonicFrameCode(n, range(_M), nonuniform_samples(n, periods, grid, rng=rng))


def fig3(seed: int = 0, trials: int = 200, share: float = 0.8, sets: int = 10, held_out: int = 200) -> Table:
    """Fig. 3: noise amplification against n/m. `trials` random codes a point, the best kept, as in the paper.

    Parameters
    ----------
    seed : int
    trials : int
        Random codes of each kind.
    share : float
        k/n.
    sets, held_out : int
        Survivor sets by which a code is chosen, and on which it is then measured.
    """
    rng = np.random.default_rng(seed)
    rows: list[dict[str, Any]] = []
    for inverse in _INVERSE_GAMMAS:
        n = round(inverse * _M)
        k = round(share * n)
        if k < _M:
            continue
        gamma, beta = _M / n, k / _M
        makers: dict[str, Callable[[], FrameCode]] = {
            "random powers": lambda n=n: HarmonicFrameCode(n, random_powers(n, _M, rng)),  # type: ignore[misc]
            "non-uniform samples": lambda n=n: _nonuniform(n, rng),  # type: ignore[misc]
            "Gaussian": lambda n=n: GaussianFrameCode(n, _M, rng=rng, field="complex"),  # type: ignore[misc]
        }
        chosen: dict[str, tuple[FrameCode, float, float]] = {}
        for name, make in makers.items():
            drawn = [make() for _ in range(trials)]
            scores = [float(amplifications(code, k, sets, rng).mean()) for code in drawn]
            best = int(np.argmin(scores))
            chosen[name] = drawn[best], scores[best], float(np.median(scores))
        chosen["consecutive powers"] = HarmonicFrameCode(n, range(_M)), math.nan, math.nan
        chosen["optimized powers"] = HarmonicFrameCode(n, optimized_powers(n, _M, seed)), math.nan, math.nan
        real = optimized_powers(n, _M, seed, real=True)
        chosen["optimized powers, real"] = HarmonicFrameCode(n, real, real=True), math.nan, math.nan
        for name, (code, score, usual) in chosen.items():
            values = amplifications(code, k, held_out, rng)
            rows.append(
                {
                    "n/m": n / _M,
                    "k/n": k / n,
                    "code": name,
                    "mean": float(values.mean()),
                    "median": float(np.median(values)),
                    "log-mean": float(np.log10(values).mean()),
                    "worst": float(values.max()),
                    "as chosen": score,
                    "usual code": usual,
                }
            )
        laws = {"MANOVA": Manova(gamma, beta).amplification, "Marchenko-Pastur": MarchenkoPastur(beta).amplification}
        for name, value in {**laws, "lower bound m/k": 1 / beta}.items():
            rows.append(
                {
                    "n/m": n / _M,
                    "k/n": k / n,
                    "code": name,
                    "mean": value,
                    "median": value,
                    "log-mean": math.log10(value),
                }
                | dict.fromkeys(("worst", "as chosen", "usual code"), math.nan)
            )
    return Table(
        "noise-fig3",
        f"Noise amplification, m = {_M}, k/n = {share}: the best of {trials} random codes",
        rows,
        (
            f"Chosen by the mean over {sets} survivor sets ('as chosen': too good), measured on {held_out} others;",
            "'usual code': the median of the codes' means. Optimized powers need no draws. log-mean: decimal.",
        ),
        x="n/m",
        y="mean",
        by=("code",),
        label="noise amplification",
    )


def spectrum(seed: int = 0, trials: int = 400, share: float = 0.7) -> Table:
    """Densities of the eigenvalues beside their laws, n = 2m (and 103 workers, 51 blocks, for the difference set)."""
    n, rows = 2 * _M, []
    k = round(share * n)
    codes: dict[str, FrameCode] = {
        "random powers": HarmonicFrameCode(n, random_powers(n, _M, seed)),
        "difference set": HarmonicFrameCode(103, difference_set(103, 51)),
        "consecutive powers": HarmonicFrameCode(n, range(_M)),
        "Gaussian": GaussianFrameCode(n, _M, rng=seed, field="complex"),
    }
    law, gaussian = Manova(_M / n, k / _M), MarchenkoPastur(k / _M)
    edges = np.linspace(0.0, gaussian.edges[1] * 1.05, 61)
    middles = (edges[1:] + edges[:-1]) / 2
    curves: dict[str, Array] = {"MANOVA": law.density(middles), "Marchenko-Pastur": gaussian.density(middles)}
    ends = {"MANOVA": law.edges, "Marchenko-Pastur": gaussian.edges}
    for name, code in codes.items():
        values = eigenvalues(code, round(share * code.workers), trials, seed).ravel()
        values = values[values < code.workers / code.blocks - 1e-9] if name != "Gaussian" else values  # the atom
        ends[name] = float(values.min()), float(values.max())
        curves[name] = np.histogram(values, edges)[0] / (trials * code.blocks * (edges[1] - edges[0]))
    for name, density in curves.items():
        low, high = ends[name]
        rows += [
            {"law": name, "eigenvalue": float(x), "density": float(y), "from .. to": f"{low:.3f} .. {high:.3f}"}
            for x, y in zip(middles, density, strict=True)
        ]
    return Table(
        "noise-spectrum",
        f"Eigenvalues of the survivors' Gram matrix, k/n = {share}",
        rows,
        (
            f"{trials} survivor sets each; eigenvalues at n/m (fewer than m missing) are left out.",
            "from .. to: the edges of a law's bulk; the smallest and largest eigenvalue of a code.",
        ),
        x="eigenvalue",
        y="density",
        by=("law",),
        apart=True,
        hidden=("eigenvalue", "density"),
    )


def worst(seed: int = 0, trials: int = 200, share: float = 0.8) -> Table:
    """What the worst survivors found cost; m = 24, so that the search goes deep."""
    rng, rows = np.random.default_rng(seed), []
    m = 24
    for n in (31, 37, 47, 61):
        k = max(m + 1, round(share * n))
        codes: dict[str, FrameCode] = {
            "optimized powers": HarmonicFrameCode(n, optimized_powers(n, m, seed)),
            "optimized powers, real": HarmonicFrameCode(n, optimized_powers(n, m, seed, real=True), real=True),
            "random powers": HarmonicFrameCode(n, random_powers(n, m, rng)),
            "consecutive powers": HarmonicFrameCode(n, range(m)),
            "Gaussian": GaussianFrameCode(n, m, rng=seed),
            "Chebyshev": ChebyshevCode(n, m),
            "systematic MDS": SystematicMDSCode(n, m, rng=seed),
        }
        for name, code in codes.items():
            values = amplifications(code, k, trials, rng)
            found = code.decoder(worst_responders(code, k, seed, starts=trials))
            rows.append(
                {
                    "n": n,
                    "k": k,
                    "code": name,
                    "mean": float(values.mean()),
                    "median": float(np.median(values)),
                    "worst drawn": float(values.max()),
                    "worst found": max(found.noise_amplification, float(values.max())),
                }
            )
    return Table(
        "noise-worst",
        f"Noise amplification of the worst survivors found, m = {m}, k/n = {share}",
        rows,
        (f"Worst drawn: of {trials} random sets; found: by exchanges from those and progressions.",),
        x="n",
        y="worst found",
        by=("code",),
        label="noise amplification",
    )


def models(seed: int = 0, trials: int = 40) -> Table:
    """Noise on the replies: the error predicted from code and noise, and the one that happens."""
    rng, rows = np.random.default_rng(seed), []
    m, n, k = 24, 47, 38
    codes: dict[str, FrameCode] = {
        "optimized powers": HarmonicFrameCode(n, optimized_powers(n, m, seed)),
        "optimized powers, real": HarmonicFrameCode(n, optimized_powers(n, m, seed, real=True), real=True),
        "consecutive powers": HarmonicFrameCode(n, range(m)),
        "Gaussian": GaussianFrameCode(n, m, rng=seed),
    }
    kinds: tuple[Noise, ...] = (
        AdditiveNoise(0.01), RelativeNoise(0.01), Quantized("float16"), Quantized("bfloat16"), Quantized("int8")
    )  # fmt: skip
    for name, code in codes.items():
        for noise in kinds:
            predicted, happened = [], []
            for _ in range(trials):
                blocks = rng.standard_normal((m, 500))
                replies = code.encode(blocks)
                decoder = code.decoder(np.sort(rng.permutation(n)[:k]))
                received = replies[list(decoder.responders)]
                deviations = [math.sqrt(noise.variance(reply)) for reply in received]
                spoilt = np.stack([noise(reply, rng) for reply in received])
                predicted.append(decoder.expected_error(deviations))
                happened.append(float(np.sqrt(np.mean(np.abs((decoder @ spoilt) - blocks) ** 2))))
            rows.append(
                {
                    "code": name,
                    "noise": str(noise),
                    "predicted": float(np.mean(predicted)),
                    "happened": float(np.mean(happened)),
                    "worst ratio": float(np.max(np.array(happened) / np.array(predicted))),
                }
            )
    return Table(
        "noise-models",
        f"Root mean square error of the result, blocks of unit variance: {k} of {n} workers, {m} blocks",
        rows,
        (f"Mean over {trials} survivor sets; the prediction knows code, survivors and replies, not the blocks.",),
        x="predicted",
        y="happened",
        by=("code",),
        label="root mean square error",
    )


def _products() -> Iterator[tuple[str, Callable[[], Any]]]:
    for basis in ("harmonic", "chebyshev", "circle", "monomial"):
        yield f"polynomial 5 x 10, {basis}", lambda basis=basis: PolynomialCode(60, 5, 10, basis)  # type: ignore[misc]
    yield "Khatri-Rao 5 x 10", lambda: KhatriRaoCode(60, 5, 10)
    for basis in ("harmonic", "chebyshev", "circle", "monomial"):
        yield f"MatDot 25, {basis}", lambda basis=basis: MatDotCode(60, 25, basis)  # type: ignore[misc]


def products(seed: int = 0, trials: int = 100) -> Table:
    """Products of matrices over 60 workers, in all bases: relative errors at the threshold and beyond, worst-found."""
    rng, rows = np.random.default_rng(seed), []
    for name, make in _products():
        code = make()
        p, m, n = code.splits
        a, b = rng.standard_normal((p * m, 8, 10)), rng.standard_normal((m * n, 10, 8))
        truth = np.einsum("ijab,jlbc->ilac", a.reshape(p, m, 8, 10), b.reshape(m, n, 10, 8)).reshape(p * n, 8, 8)
        left, right = code.encode(a, b)
        replies = left @ right
        for extra in (0, 5):
            k = code.threshold + extra
            sets = [np.sort(rng.permutation(60)[:k]) for _ in range(trials)]
            errors = [_error(code, who, replies, truth) for who in sets]
            found = worst_responders(code, k, seed, starts=trials)
            rows.append(
                {
                    "code": name,
                    "answers": k,
                    "median": float(np.median(errors)),
                    "worst drawn": float(np.max(errors)),
                    "worst found": max(_error(code, np.array(found), replies, truth), *errors),
                    "amplification": _rms(code, found),
                }
            )
    return Table(
        "product-bases",
        "Products of matrices, 60 workers: error at the threshold and five answers beyond",
        rows,
        (
            f"{trials} random sets, and the worst that a search finds; decoded even where anyk.matmul would refuse.",
            "Amplification: growth of an error in the replies, root mean square, at the worst set found.",
        ),
        x="answers",
        y="worst found",
        by=("code",),
        label="relative error",
    )


def _matrix(code: Code, who: Any) -> NDArray[Any]:
    return np.asarray(np.linalg.lstsq(code._rows(list(who)).T, code.target.T, rcond=1e-16)[0].T)


def _rms(code: Code, who: Any) -> float:
    return float(np.linalg.norm(_matrix(code, who)) / math.sqrt(len(code.target)))


def _error(code: Code, who: NDArray[np.intp], replies: NDArray[Any], truth: Array) -> float:
    product = np.tensordot(_matrix(code, who), replies[who], axes=1)
    return float(np.linalg.norm(product - truth) / np.linalg.norm(truth))


FIGURES: dict[str, Callable[..., Table]] = {
    "noise-fig3": fig3,
    "noise-spectrum": spectrum,
    "noise-worst": worst,
    "noise-models": models,
    "product-bases": products,
}
