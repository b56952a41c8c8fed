"""Where the expected values of test_reproduce.py come from: `python tests/oracle_bacc.py` (two minutes).

Dense formulas of paper 1, written without anyk: nodes by their cosines, coincidences by a tolerance, polynomials by
Horner. 6,000 functions in samples of the paper's 100, with 20 straggler sets each; the spread over the samples shows
that a single sample of 100 functions scatters by 15 % to 30 % around the mean where the points are sorted, and by
orders of magnitude where they are not.
"""

from __future__ import annotations

import numpy as np

SETTINGS = ((500, 20, 25), (700, 20, 35), (700, 30, 35), (500, 30, 25))


def matrix(points, nodes):
    difference = points[:, None] - nodes
    hit = np.abs(difference) < 1e-13
    rows = (-1.0) ** np.arange(len(nodes)) / np.where(hit, 1, difference)
    rows /= rows.sum(axis=1, keepdims=True)
    rows[hit.any(axis=1)] = hit[hit.any(axis=1)]
    return rows


def sample(alpha, z, degree, s, in_order, rng, functions=100, sets=20):
    x = rng.uniform(-1, 1, (functions, len(alpha)))
    if in_order:
        x.sort(axis=1)
    coefficients = rng.uniform(-10, 10, (degree + 1, functions, 1))
    replies, truth = np.polyval(coefficients, x @ matrix(z, alpha).T), np.polyval(coefficients, x)
    errors = []
    for _ in range(sets if s else 1):
        kept = np.sort(rng.permutation(len(z))[s:])
        estimate = replies[:, kept] @ matrix(alpha, z[kept]).T
        errors.append(np.linalg.norm(estimate - truth, axis=1) / np.linalg.norm(truth, axis=1))
    return np.array(errors)


def main():
    rng = np.random.default_rng(2026)
    for n, k, degree in SETTINGS:
        alpha, z = np.cos((2 * np.arange(k) + 1) * np.pi / (2 * k)), np.cos(np.arange(n + 1) * np.pi / n)
        for in_order in (True, False):
            for s in (0, 100, 200, 300, 400):
                found = np.array([sample(alpha, z, degree, s, in_order, rng) for _ in range(60)])
                low, high = np.quantile(found.mean(axis=(1, 2)), (0.025, 0.975))
                order = "sorted" if in_order else "as drawn"
                print(
                    f"{(n, k, degree)} {order} s={s}: mean {found.mean():.3g} median {np.median(found):.3g}; "
                    f"95 % of the samples of 100 have a mean in {low:.3g} .. {high:.3g}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
