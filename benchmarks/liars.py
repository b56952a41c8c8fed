"""How often liars are located: python benchmarks/liars.py [--trials 1000] (a quarter of an hour).

With as many liars as a code is for, and with one more; nobody answers who need not. A colluding attack at 100 workers
takes seconds to search, so it gets 20 trials in a thousand.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from run import table as markdown

import anyk

SETTINGS = [(10, 5, 2, 1), (20, 8, 3, 2), (30, 9, 3, 2), (50, 11, 3, 3), (100, 14, 3, 5)]
D = 48  # entries of a gradient

Array = NDArray[Any]
Attack = Callable[[Array, Array, np.random.Generator], Array]


def root_mean_square(y: Array) -> float:
    return float(np.sqrt(np.mean(np.abs(y.astype(np.float64)) ** 2)))


def one_entry(y: Array, stale: Array, rng: np.random.Generator) -> Array:
    out = y.copy()
    out[rng.integers(out.size)] += root_mean_square(y)
    return out


def vast(y: Array, stale: Array, rng: np.random.Generator) -> Array:
    return (1e300 if y.dtype == np.float64 else 1e30) * rng.standard_normal(y.size)


# What a liar sends in place of y, by attack; `stale` is his message of another round.
ALONE: dict[str, Attack] = {
    "gaussian": lambda y, stale, rng: 10 * root_mean_square(y) * rng.standard_normal(y.size),
    "sign flipped": lambda y, stale, rng: -y,
    "zeroed": lambda y, stale, rng: 0 * y,
    "stale": lambda y, stale, rng: stale,
    "scaled": lambda y, stale, rng: 1.7 * y,
    "constant": lambda y, stale, rng: np.ones(y.size),
    "one entry": one_entry,
    "1e12 times": lambda y, stale, rng: 1e12 * rng.standard_normal(y.size),
    "1e300 times": vast,
    "1e-6 off": lambda y, stale, rng: y + 1e-6 * root_mean_square(y) * rng.standard_normal(y.size),
}
ATTACKS = [*ALONE, "mixed", "colluding"]


def attack(kind: str, y: Array, stale: Array, liars: Array, rng: np.random.Generator) -> Array:
    """All messages, with those of the liars replaced."""
    out = y.copy()
    if kind == "colluding":  # all add multiples of one vector
        out[liars] += (3 * np.outer(rng.standard_normal(len(liars)), rng.standard_normal(y.shape[1]))).astype(y.dtype)
        return out
    seen = [name for name in ALONE if name != "1e-6 off" or y.dtype == np.float64]  # float32 cannot see the smallest
    for liar in liars:
        out[liar] = ALONE[str(rng.choice(seen)) if kind == "mixed" else kind](y[liar], stale[liar], rng).astype(y.dtype)
    return out


def measured(code: anyk.GradientCode, kind: str, dtype: Any, count: int, trials: int) -> dict[str, Any]:
    rng = np.random.default_rng(trials)
    located = refused = accused = 0
    worst = spent = 0.0
    for _ in range(trials):
        gradients = rng.standard_normal((code.partitions, D))
        truth, y = gradients.sum(axis=0), code.encode(gradients).astype(dtype)
        stale = code.encode(rng.standard_normal((code.partitions, D))).astype(dtype)
        responders = np.sort(rng.permutation(code.workers)[: code.workers - code.stragglers])
        liars = rng.choice(responders, count, replace=False)
        sent = attack(kind, y, stale, liars, rng)
        begun = time.perf_counter()
        try:
            found = anyk.locate(code, sent[responders], responders)
        except anyk.TooManyErrors:
            refused += 1
            continue
        finally:
            spent += time.perf_counter() - begun
        located += set(found) == set(liars.tolist())
        accused += not set(found) <= set(liars.tolist())
        honest = [worker for worker in responders.tolist() if worker not in found]
        total = (code.decoder(honest).matrix @ sent[honest].astype(np.float64)).ravel()
        worst = max(worst, float(np.linalg.norm(total - truth) / np.linalg.norm(truth)))
    return {
        "N, r, s, a": f"{code.workers}, {code.replicas}, {code.stragglers}, {code.adversaries}",
        "messages": np.dtype(dtype).name,
        "liars": count,
        "attack": kind,
        "trials": trials,
        "located %": f"{100 * located / trials:g}",
        "refused %": f"{100 * refused / trials:g}",
        "honest accused %": f"{100 * accused / trials:g}",
        "worst error": worst,
        "ms": 1e3 * spent / trials,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=1000)
    trials = parser.parse_args().trials
    rows = []
    for n, r, s, a in SETTINGS:
        code = anyk.NullSpaceCode(anyk.cyclic_placement(n, n, r), s, a)
        for dtype in (np.float64, np.float32):
            for count in (a, a + 1):
                for kind in ATTACKS:
                    slow = kind == "colluding" and n == 100
                    rows.append(measured(code, kind, dtype, count, max(trials // 50, 1) if slow else trials))
                lines = markdown(rows).splitlines()
                print("\n".join(lines[: 2 if len(rows) == len(ATTACKS) else 0] + lines[-len(ATTACKS) :]), flush=True)
    within = [row for row in rows if row["liars"] == int(row["N, r, s, a"].split(", ")[-1])]
    for name, most in (("float64", 1e-9), ("float32", 1e-4)):
        mine = [row for row in rows if row["messages"] == name]
        seen = [row for row in mine if row in within and (name == "float64" or row["attack"] != "1e-6 off")]
        share = sum(float(row["located %"]) * row["trials"] for row in seen) / sum(row["trials"] for row in seen)
        wrong = [row for row in mine if row["worst error"] > most]
        print(f"\n{name}: {share:.4g} % located; answers off by more than {most:g} in {len(wrong)} settings")


if __name__ == "__main__":
    main()
