"""Splines as matrices, in the angle and in z.

With theta = arccos(z) the Chebyshev nodes are evenly spaced, and f(u(cos theta)) is even about 0 and pi. So a spline
through the nodes and their mirror images, periodic over the circle, has no ends at which it could go astray, whichever
nodes are missing. Interpolation and smoothing are linear in the values: rows to multiply them with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import BSpline, CubicSpline
from scipy.sparse import csc_array
from scipy.sparse.linalg import splu

from .points import Nodes, coincidences

__all__ = ["SMOOTHING", "SmoothingSplines", "evident", "leave_one_out", "natural_matrix", "spline_matrix"]

Matrix = NDArray[np.float64]


class _Circle:
    """Angles of nodes and of their mirror images, in rising order; which node is where.

    Attributes
    ----------
    angles : (m,) float64
        In (-pi, pi]; nodes at 0 and pi are their own images.
    node : (m,) int
        Which node lies there, or is mirrored there.
    """

    def __init__(self, nodes: Nodes) -> None:
        theta = np.pi * nodes.numerators / nodes.denominator
        mirrored = np.flatnonzero((nodes.numerators > 0) & (nodes.numerators < nodes.denominator))
        self.angles = np.concatenate([-theta[mirrored][::-1], theta])
        self.node = np.concatenate([mirrored[::-1], np.arange(len(nodes))])
        self.count = len(nodes)

    def folded(self, weights: Matrix) -> Matrix:
        """Columns of one node added up: (rows, m) -> (rows, n)."""
        out = np.zeros((len(weights), self.count))
        np.add.at(out.T, self.node, weights.T)
        return out

    def knots(self, degree: int) -> Matrix:
        """One at each place, and `degree` more on either side, around the circle."""
        turns, place = np.divmod(np.arange(-degree, len(self.angles) + degree + 1), len(self.angles))
        return np.asarray(self.angles[place] + 2 * np.pi * turns)

    def basis(self, angles: Matrix, degree: int) -> csc_array:
        """Periodic B-splines with a knot at each of the m places, evaluated at these angles: (angles, m)."""
        count, knots, start = len(self.angles), self.knots(degree), self.angles[0]
        within = start + np.mod(angles - start, 2 * np.pi)
        rows = BSpline.design_matrix(np.minimum(within, np.nextafter(start + 2 * np.pi, 0)), knots, degree).tocoo()
        return csc_array((rows.data, (rows.row, rows.col % count)), shape=(len(angles), count))


def spline_matrix(points: Nodes, nodes: Nodes, degree: int = 3) -> Matrix:
    """The interpolating spline in the angle through `nodes`, even about 0 and pi, evaluated at `points`.

    Parameters
    ----------
    points : Nodes, length p
    nodes : Nodes, length n
        At least one; any will do.
    degree : {1, 3, 5, ...}

    Returns
    -------
    (p, n) float64
        Rows sum to one; a point that equals a node gives the unit row of that node.

    Examples
    --------
    >>> from anyk.points import chebyshev_first, chebyshev_second
    >>> nodes, points = chebyshev_second(30), chebyshev_first(4)
    >>> estimate = spline_matrix(points, nodes) @ np.exp(nodes.values)
    >>> bool(np.abs(estimate - np.exp(points.values)).max() < 1e-5)
    True
    """
    circle = _Circle(nodes)
    at = circle.basis(np.pi * points.numerators / points.denominator, degree)
    factors = splu(csc_array(circle.basis(circle.angles, degree).T))
    matrix = circle.folded(factors.solve(at.T.toarray()).T)
    hits = coincidences(points, nodes)
    matrix[hits.any(axis=1)] = 0.0
    matrix[hits] = 1.0
    return np.asarray(matrix / matrix.sum(axis=1, keepdims=True))


def leave_one_out(nodes: Nodes, values: Matrix, degree: int = 3) -> Matrix:
    """Errors at each node of `spline_matrix` through the other nodes' values, without refits.

    An odd-degree spline has the least energy of all curves through its values. The energy is a quadratic form in them
    whose gradient is the jump of the highest derivative, so the error without value i is jump_i over its own share in
    it.

    Parameters
    ----------
    nodes : Nodes, length n, at least 2
    values : (n, columns)
    degree : {1, 3, 5, ...}

    Returns
    -------
    (n, columns)
    """
    circle = _Circle(nodes)
    count = len(circle.angles)
    factors = splu(csc_array(circle.basis(circle.angles, degree)))

    def jumps(given: Matrix) -> Matrix:
        knots = circle.knots(degree)
        derivative = factors.solve(given[circle.node])[np.arange(count + degree) % count]
        for order in range(degree, 0, -1):
            derivative = order * np.diff(derivative, axis=0) / (knots[1 + order : -1] - knots[1 : -1 - order])[:, None]
            knots = knots[1:-1]
        return np.asarray((derivative - np.roll(derivative, 1, axis=0))[count - circle.count :])

    return jumps(values) / _diagonal(jumps, circle.count)[:, None]


def _diagonal(apply: Callable[[Matrix], Matrix], count: int) -> Matrix:
    """The diagonal of a linear map whose entries fall off quickly away from it: many columns are asked for at once."""
    colour = np.arange(count) % min(count, _PROBES)
    probes = np.zeros((count, min(count, _PROBES)))
    probes[np.arange(count), colour] = 1.0
    return np.asarray(apply(probes)[np.arange(count), colour])


_PROBES = 128  # at a distance of so many nodes nothing is left of a value


def natural_matrix(points: Nodes, nodes: Nodes) -> Matrix:
    """The natural cubic spline through `nodes`, evaluated at `points`; a straight line beyond the outermost nodes.

    Parameters
    ----------
    points : Nodes, length p
    nodes : Nodes, length n, in falling order

    Returns
    -------
    (p, n) float64, rows sum to one
    """
    x, at = nodes.values[::-1], points.values
    if len(x) < 3:
        slope = (at - x[0]) / (x[-1] - x[0]) if len(x) == 2 else np.zeros_like(at)
        return np.stack([slope, 1 - slope], axis=1)[:, 2 - len(x) :]
    spline = CubicSpline(x, np.eye(len(x)), bc_type="natural")
    inside = np.clip(at, x[0], x[-1])
    rows = spline(inside) + (at - inside)[:, None] * spline(inside, 1)
    hits = coincidences(points, nodes)
    matrix = np.asarray(rows[:, ::-1]).copy()
    matrix[hits.any(axis=1)] = 0.0
    matrix[hits] = 1.0
    return matrix


class SmoothingSplines:
    """Cubic smoothing splines: they minimise sum (y - f)^2 + weight h^3 integral f''^2, h the mean spacing.

    Parameters
    ----------
    nodes : Nodes, length n, in falling order
    angle : bool
        Splines in the angle, even about 0 and pi, where each node counts together with its mirror image; otherwise
        natural splines in z.

    Notes
    -----
    In Reinsch's form: with second differences Q and the Gram matrix R of the second derivative, the smoothed values are
    f = y - w Q (R + w Q^T Q)^-1 Q^T y, w = weight h^3. `leave_one_out` needs no refits: the error at a node without its
    value is its residual over 1 - S_ii.
    """

    def __init__(self, nodes: Nodes, *, angle: bool = True) -> None:
        if angle:
            circle = _Circle(nodes)
            places, self._node = circle.angles, circle.node
            gaps = np.diff(places, append=places[0] + 2 * np.pi)
            self._q, self._r = _second_differences(np.roll(gaps, 1), gaps)
            self._first = len(places) - len(nodes)  # the images come before the nodes
        else:
            places, self._node = nodes.values[::-1], np.arange(len(nodes))[::-1]
            gaps = np.diff(places)
            whole_q, whole_r = _second_differences(np.append(1.0, gaps), np.append(gaps, 1.0))
            self._q, self._r = whole_q[:, 1:-1], whole_r[1:-1, 1:-1]
            self._first = 0
        self.count = len(nodes)
        self.unit = float(gaps.mean()) ** 3 if len(gaps) else 1.0

    def smoothing(self, weight: float) -> Callable[[Matrix], Matrix]:
        """The map from values (n, columns) to smoothed values at the nodes."""
        if self._q.shape[1] == 0 or weight == 0.0:
            return lambda values: values
        w = weight * self.unit
        inner = splu(csc_array(self._r + w * (self._q.T @ self._q)))
        back = np.argsort(self._node[self._first :])

        def smooth(values: Matrix) -> Matrix:
            spread = values[self._node]
            whole = spread - w * (self._q @ inner.solve(np.asarray(self._q.T @ spread)))
            return np.asarray(whole[self._first :][back])

        return smooth

    def smoother(self, weight: float) -> Matrix:
        """S: the smoothed values at the nodes are S @ y, (n, n)."""
        return self.smoothing(weight)(np.eye(self.count))

    def leave_one_out(self, weight: float, values: Matrix) -> Matrix:
        """Errors at each node of the spline through the other nodes' values, (n, columns); for a positive weight."""
        smooth = self.smoothing(weight)
        return np.asarray((values - smooth(values)) / (1.0 - _diagonal(smooth, self.count))[:, None])


_FEWEST = 8  # responders, for leave-one-out to mean anything
SMOOTHING = tuple(10.0**power for power in range(-2, 5))  # weights to try
_EVIDENT = 2.0  # standard errors


def evident(nodes: Nodes, values: Matrix, degrees: Sequence[int], weights: Sequence[float]) -> tuple[int, float]:
    """Degree and weight of the spline in the angle with the least error in leave-one-out, if that is beyond doubt.

    Otherwise the first of the degrees, and weight 0. Beyond doubt: a smoother one's squared errors are smaller by
    two standard errors of the mean; another degree's by one, and by two in the logarithm, since a few wide gaps rule
    the mean. Without a responder a gap is twice as wide, so leave-one-out alone is a poor judge.

    Parameters
    ----------
    nodes : Nodes, length n
    values : (n, columns) float64
    degrees : odd integers
    weights : numbers above 0
        Of cubic smoothing splines.
    """
    if len(nodes) < _FEWEST or not np.isfinite(values).all() or len(degrees) + len(weights) == 1:
        return degrees[0], 0.0
    values = values / max(np.abs(values).max(initial=0.0), 1e-300)

    def squares(errors: Matrix) -> Matrix:
        return np.asarray((errors**2).sum(axis=1))

    usual = squares(leave_one_out(nodes, values, degrees[0]))
    smoothing = SmoothingSplines(nodes)
    other = [(squares(leave_one_out(nodes, values, degree)), (degree, 0.0)) for degree in degrees[1:]]
    found = [
        (errors, choice)
        for errors, choice in other
        if _certainty(np.log((usual + 1e-32) / (errors + 1e-32))) > _EVIDENT and _certainty(usual - errors) > 1
    ]
    smoother = [(squares(smoothing.leave_one_out(weight, values)), (3, weight)) for weight in weights]
    for errors, choice in sorted(smoother, key=lambda each: float(each[0].sum()))[:1]:
        found += [(errors, choice)] if _certainty(usual - errors) > _EVIDENT else []
    return min(found, key=lambda each: float(each[0].sum()), default=(usual, (degrees[0], 0.0)))[1]


def _certainty(gain: Matrix) -> float:
    """The mean in standard errors."""
    return float(gain.mean() / max(gain.std(ddof=1) / np.sqrt(len(gain)), 1e-300))


def _second_differences(before: Matrix, after: Matrix) -> tuple[csc_array, csc_array]:
    """Q and R around a circle, given the gap before and after each place: symmetric, with corners."""
    count = len(before)
    index = np.arange(count)
    rows, columns = np.tile(index, 3), np.concatenate([(index - 1) % count, index, (index + 1) % count])

    def cyclic(lower: Matrix, middle: Matrix, upper: Matrix) -> csc_array:
        return csc_array((np.concatenate([lower, middle, upper]), (rows, columns)), shape=(count, count))

    q = cyclic(1 / before, -1 / before - 1 / after, 1 / after).T
    return csc_array(q), cyclic(before / 6, (before + after) / 3, after / 6)
