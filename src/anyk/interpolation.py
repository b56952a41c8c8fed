"""Interpolation as matrices: rows that evaluate, at given points, an interpolant through given nodes.

One function serves a code twice: as its encoder (data nodes -> worker nodes) and as its decoder (worker nodes ->
data nodes). All matrices are float64 and each row sums to one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .points import Nodes, coincidences, differences

__all__ = [
    "berrut_matrix",
    "chebyshev_basis",
    "floater_hormann_matrix",
    "lagrange_matrix",
    "lebesgue_constant",
    "lebesgue_function",
]

Matrix = NDArray[np.float64]


def _barycentric(weights: Matrix, difference: Matrix, hits: NDArray[np.bool_]) -> Matrix:
    """Rows weights_j / difference_ij, normalised to sum one; a row with a hit is a unit row."""
    with np.errstate(divide="ignore"):
        rows = weights / np.where(hits, np.inf, difference)
    rows[hits.any(axis=1)] = 0.0
    rows[hits] = 1.0
    rows /= rows.sum(axis=1, keepdims=True)
    return np.asarray(rows)


def berrut_matrix(points: Nodes, nodes: Nodes) -> Matrix:
    """Berrut's rational interpolant, weights (-1)^j over the nodes in the order given: paper 1, (18) and (21).

    Parameters
    ----------
    points : Nodes, length p
        Where the interpolant is evaluated.
    nodes : Nodes, length n
        Monotone. The signs count positions in `nodes`, so a decoder passes the responders' nodes only.

    Returns
    -------
    (p, n) float64
        Rows sum to one; a point that equals a node gives the unit row of that node.

    Examples
    --------
    >>> from anyk.points import chebyshev_first, chebyshev_second
    >>> berrut_matrix(chebyshev_first(1), chebyshev_second(3)).round(3)
    array([[0., 1., 0.]])
    """
    signs = np.where(np.arange(len(nodes)) % 2 == 0, 1.0, -1.0)
    return _barycentric(signs, differences(points, nodes), coincidences(points, nodes))


def floater_hormann_matrix(points: Nodes, nodes: Nodes, degree: int) -> Matrix:
    """Floater and Hormann's rational interpolant of a degree, without poles on the line; degree 0 is Berrut's.

    Parameters
    ----------
    points : Nodes, length p
    nodes : Nodes, length n, monotone
    degree : int
        At least 0; n - 1 is taken where it is larger.

    Returns
    -------
    (p, n) float64, rows sum to one
    """
    count = len(nodes)
    degree = min(degree, count - 1)
    gaps = np.abs(differences(nodes, nodes))
    np.fill_diagonal(gaps, 1.0)
    runs = np.arange(count - degree)[:, None] + np.arange(degree + 1)
    logs = -np.log(gaps[runs[:, :, None], runs[:, None, :]]).sum(axis=2)
    weights = np.zeros(count)
    np.add.at(weights, runs, np.exp(logs - logs.max()))
    weights *= np.where(np.arange(count) % 2 == 0, 1.0, -1.0)
    return _barycentric(weights, differences(points, nodes), coincidences(points, nodes))


def lagrange_matrix(points: Nodes, nodes: Nodes) -> Matrix:
    """The polynomial interpolant through `nodes`, in barycentric form, evaluated at `points`; shape (p, n).

    Weights 1 / prod(x_j - x_l) are formed from logarithms, so that a thousand nodes neither overflow nor underflow.
    """
    gaps = differences(nodes, nodes)
    np.fill_diagonal(gaps, 1.0)
    logs = -np.log(np.abs(gaps)).sum(axis=1)
    signs = np.where((gaps < 0).sum(axis=1) % 2 == 0, 1.0, -1.0)
    weights = signs * np.exp(logs - logs.max())
    hits = coincidences(points, nodes)
    difference = differences(points, nodes)
    # Second barycentric form; the first form's node polynomial cancels in the normalisation.
    return _barycentric(weights, difference, hits)


def chebyshev_basis(nodes: Nodes, degree: int) -> Matrix:
    """Chebyshev polynomials T_0 .. T_degree at the nodes, shape (n, degree + 1)."""
    return np.asarray(np.polynomial.chebyshev.chebvander(nodes.values, degree))


def lebesgue_function(x: ArrayLike, nodes: ArrayLike) -> NDArray[np.float64]:
    """Lebesgue function of Berrut's interpolant at `x`: the sum of the absolute basis functions; paper 1, Fig. 1.

    Parameters
    ----------
    x : array of points
    nodes : (n,) monotone nodes of the responders

    Returns
    -------
    array of the shape of `x`, each entry at least 1 up to rounding

    Examples
    --------
    >>> float(lebesgue_function(0.0, [1.0, -1.0]))
    1.0
    """
    at = np.asarray(x, dtype=np.float64)
    knots = np.asarray(nodes, dtype=np.float64)
    difference = np.subtract.outer(at.ravel(), knots)
    signs = np.where(np.arange(len(knots)) % 2 == 0, 1.0, -1.0)
    rows = _barycentric(signs, difference, difference == 0)
    return np.asarray(np.abs(rows).sum(axis=1).reshape(at.shape))


def lebesgue_constant(nodes: ArrayLike, *, samples: int = 64) -> float:
    """Maximum of `lebesgue_function` over the hull of the nodes.

    The function has one hump between two neighbouring nodes; each is sampled at `samples` points and the best
    sample refined by golden-section search, so the result is accurate to about ten digits.

    Examples
    --------
    >>> from anyk.points import chebyshev_second
    >>> round(lebesgue_constant(chebyshev_second(21).values), 2)
    2.93
    """
    knots = np.sort(np.asarray(nodes, dtype=np.float64))
    if len(knots) < 2:
        return 1.0
    t = (np.arange(samples) + 0.5) / samples
    left, width = knots[:-1, None], np.diff(knots)[:, None]
    x = left + width * t
    best = lebesgue_function(x, knots).argmax(axis=1)
    low = knots[:-1] + width[:, 0] * np.maximum(t[best] - 1 / samples, 0)
    high = knots[:-1] + width[:, 0] * np.minimum(t[best] + 1 / samples, 1)
    ratio = (np.sqrt(5) - 1) / 2
    for _ in range(40):
        a, b = high - ratio * (high - low), low + ratio * (high - low)
        left_is_higher = lebesgue_function(a, knots) > lebesgue_function(b, knots)
        low, high = np.where(left_is_higher, low, a), np.where(left_is_higher, b, high)
    return float(lebesgue_function((low + high) / 2, knots).max())
