"""Liars become erasures: which replies contradict the others, from the replies alone.

Messages of a gradient code obey linear checks, H y = 0. What the responders' messages leave of them, the syndrome, is a
combination of the liars' columns of H and of nothing else. So the liars are the smallest set of columns that spans it:

1. Replies of another shape or with NaN or infinity are liars at once.
2. A syndrome within rounding accuses nobody.
3. If the lies are linearly independent (one liar more is one dimension more) the liars are the columns that lie in the
   syndrome's span. If they collude, sets of columns are searched, the last two of each set at once; over polynomial
   codes the error-locating polynomial finds them without a search (Berlekamp and Welch, stacked over projections).
4. Whoever is found is left out, and the rest is tested again with the smaller rounding that their own size allows:
   small lies hide behind huge ones only until those are gone. So columns that span all but a trifle go first.

With t checks left at most t/2 liars can be told apart, over the reals as over finite fields. A syndrome that fewer than
t columns span is the work of a few; one that fills all of the checks, or contradictions in most of the groups, are not:
there the replicas disagree.
"""

from __future__ import annotations

import itertools
import time
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.polynomial.chebyshev import chebvander
from numpy.typing import NDArray

from .codes.base import Code, Matrix
from .codes.gradient import Component, GradientCode, null_checks
from .errors import ReplicasDisagree, TooManyErrors

__all__ = ["locate"]

_ROUNDING = 8.0  # rounding of a reply, in eps of its dtype; combining r * m terms in that dtype costs a few eps
_STEPS = 64  # of the smallest number of a dtype, by which sums of numbers that small may be off
_EPS = float(np.finfo(np.float64).eps)
_TINY = float(np.finfo(np.float64).tiny)
_CODE = 512 * _EPS  # where the terms of all messages of a column nearly cancel they lose digits, by chance
_MATRICES = 4.0  # rounding of the code's own matrices, in units of what messages of one partition alone show
_SLICE = 1 << 20  # entries of all replies that are looked at together
_SIGNIFICANT = 3.0  # singular values of the syndrome above this, in units of rounding, are lies
_KEPT = 64  # candidates of a search that are tried in full
_GREY = 4.0  # what cannot be explained and is no larger, in units of rounding, does no harm
_TRIFLE = 1e-4  # of a syndrome
_PARALLEL = 1 - 1e-6  # cosine of columns that point one way
_FEW = 1.0  # seconds of search for a few liars more than expected, before replicas are said to disagree
_IMPROVED = 4  # of which the first are improved by exchanges


def locate(
    code: Code,
    replies: Any,
    responders: Iterable[int],
    *,
    tolerance: float | None = None,
    seconds: float = 10.0,
) -> list[int]:
    """The workers whose replies cannot be true.

    Parameters
    ----------
    code : GradientCode
        Up to ``code.adversaries`` liars are located (in every group of a `GroupCode`), beside those that give
        themselves away by NaN, infinity or another shape than the majority.
    replies : (responders, d/m) array, list of arrays, or mapping from worker to array
        Messages in the order of `responders`. In a list they may differ in shape: the minority lies.
    responders : worker indices
    tolerance : float, optional
        Rounding error of an honest message, relative to the size of the messages. Default: 8 times the eps of the
        replies' dtype, and 512 times that of float64, or more for a code whose own matrices are less exact. Lies
        smaller than that cannot be told from rounding, and do as little harm. Raise it where replicas of a partition
        are computed on unlike hardware.
    seconds : float
        How long to search for liars that collude.

    Returns
    -------
    list of int
        Workers, rising; empty if all replies agree.

    Raises
    ------
    TooManyErrors
        If the replies contradict one another and no set of at most ``code.adversaries`` liars explains it, or none was
        found in time. More replies may help.
    ReplicasDisagree
        If they do so everywhere: in most of the groups of workers that hold common partitions, or in all checks of the
        only one there is. Nobody is accused then.

    Notes
    -----
    A syndrome is compared, column by column, with ``tolerance * sqrt(t)`` times the root mean square of the messages in
    that column (plus a quarter of the largest), t being the number of checks. In columns of next to nothing, with
    8 times the eps of float64 of the messages' root mean square.

    Examples
    --------
    >>> import anyk
    >>> code = anyk.NullSpaceCode(anyk.cyclic_placement(10, 10, 5), stragglers=2, adversaries=1)
    >>> messages = code.encode(np.arange(80.0).reshape(10, 8))
    >>> messages[4] = -messages[4]
    >>> locate(code, messages[:8], range(8))
    [4]
    """
    if not isinstance(code, GradientCode):
        raise TypeError(f"liars are located by the checks of gradient codes, got {code!r}")
    who = np.array([int(worker) for worker in responders], dtype=np.intp)
    if len(np.unique(who)) < len(who) or (len(who) and not 0 <= who.min() <= who.max() < code.workers):
        raise ValueError(f"responders must be distinct and lie in 0..{code.workers - 1}, got {who.tolist()}")
    rows = [replies[worker] for worker in who.tolist()] if isinstance(replies, Mapping) else list(replies)
    if len(rows) != len(who):
        raise ValueError(f"{len(who)} responders need as many replies, got {len(rows)}")
    check_tolerance(tolerance)
    arrays, bad = _screen(rows)
    deadline = time.monotonic() + seconds
    liars = [int(who[position]) for position in bad]
    honest = {int(who[position]): array for position, array in enumerate(arrays) if position not in bad}
    if honest:
        kinds = Counter(array.dtype for array in honest.values())
        info = np.finfo(kinds.most_common(1)[0][0])  # a liar must not choose how exactly we look
        groups = [_Suspects(code, component, honest, info, tolerance, deadline) for component in code.components]
        for group in groups:
            liars += group.find(len(liars))
        if disagreeing := [group for group in groups if group.complaint]:
            checked = len([group for group in groups if group.checked])
            if 2 * len(disagreeing) > checked and (checked > 1 or disagreeing[0].throughout):
                raise ReplicasDisagree(_disagreement(disagreeing, checked))
            raise TooManyErrors(disagreeing[0].complaint)
    return sorted(liars)


def _disagreement(disagreeing: Sequence[_Suspects], checked: int) -> str:
    worst = max(disagreeing, key=lambda group: group.worst)
    alone = "; or one of them is wrong, which a single check cannot tell" if checked == worst.checked == 1 else ""
    return (
        f"replicas disagree in {len(disagreeing)} of {checked} group{'s' if checked > 1 else ''} of workers that hold "
        f"common partitions: replies contradict one another by up to {worst.worst * worst.tolerance:.2g} of their "
        f"size, {worst.worst:.2g} times what rounding could ({worst.code!r}). The same partition must give the same "
        "result on every worker. Suspects: dropout or augmentation without a common seed (anyk.sum(rng=...) hands out "
        "streams), batch statistics that each worker keeps for itself, non-deterministic kernels or unlike hardware "
        f"(raise the tolerance){alone}"
    )


def check_tolerance(tolerance: Any) -> None:
    """Refuse what no rounding error can be: it would accuse everybody, or nobody."""
    if tolerance is not None and not 0 < tolerance < np.inf:
        raise ValueError(f"tolerance must be a positive number, got {tolerance!r}")


def _screen(rows: Sequence[Any]) -> tuple[list[NDArray[Any]], set[int]]:
    """Flat floating-point replies, and the positions of those that are none, or unlike the majority, or not finite."""
    arrays: list[NDArray[Any]] = []
    shapes: dict[tuple[int, ...], int] = {}
    bad = set()
    for position, row in enumerate(rows):
        array = np.asarray(row)
        if array.dtype.kind in "biu":
            array = array.astype(np.float64)
        if array.dtype.kind not in "fc":
            bad.add(position)
        else:
            shapes[array.shape] = shapes.get(array.shape, 0) + 1
        arrays.append(array)
    usual = max(shapes, key=lambda shape: shapes[shape], default=())
    for position, array in enumerate(arrays):
        if position not in bad and (array.shape != usual or not np.isfinite(array).all()):
            bad.add(position)
        arrays[position] = array.reshape(-1)
    return arrays, bad


class _Suspects:
    """The members of a component that answered, and what is left of its checks for them."""

    def __init__(
        self,
        code: GradientCode,
        component: Component,
        replies: Mapping[int, NDArray[Any]],
        info: Any,
        tolerance: float | None,
        deadline: float,
    ) -> None:
        self.code, self.replies, self.deadline = code, replies, deadline
        if component not in _scaled:
            _scaled[component] = _scale(code, component)
        self.scale, self.checks, own = _scaled[component]
        self.tolerance = _ROUNDING * float(info.eps) + _CODE + _MATRICES * own if tolerance is None else tolerance
        self.least = float(info.smallest_subnormal)
        self.worst = 0.0  # column of the syndrome
        self.checked = 0  # checks that could be made, in the end
        self.complaint = ""
        self.throughout = False  # whether no few liars could be the cause
        self.members = component.members
        self.present = np.array([worker in replies for worker in component.members.tolist()])

    def find(self, already: int) -> list[int]:
        """The liars among them, by worker; a complaint is left where there are more."""
        found: list[int] = []
        most = self.code.adversaries
        while True:
            positions = np.flatnonzero(self.present)
            checks = self._remaining()
            if not len(checks):
                return found
            self.checked = len(checks)
            syndrome = self._syndrome(checks, positions)
            if syndrome is None:
                return found
            allowed = min(most - len(found), len(checks) // 2)
            support = None
            if allowed >= 1:
                columns = checks[:, positions]
                support = _dominant(syndrome, columns, allowed)
            if allowed >= 1 and support is None:
                candidates = itertools.chain(
                    self._algebraic(positions, allowed), _supports(syndrome, columns, allowed, self.deadline)
                )
                support = next((one for one in candidates if _explains(syndrome, columns, one)), None)
            if support is None and self.worst <= _GREY:
                return found
            if support is None:
                self.complaint = self._complain(len(checks), allowed, found, already)
                self.throughout = self._throughout(syndrome, checks[:, positions], most - len(found))
                return found
            found += self.members[positions[list(support)]].tolist()
            self.present[positions[list(support)]] = False

    def _throughout(self, syndrome: Matrix, columns: Matrix, expected: int) -> bool:
        """Whether it takes as many liars as there are checks, and one more than expected could have been told."""
        count = len(columns)
        if count < expected + 2:  # one check and a code for nobody who lies: nobody is accused
            return count == 1 and self.code.adversaries == 0
        values = np.linalg.svd(syndrome, compute_uv=False)
        if int((values > _SIGNIFICANT * np.sqrt(syndrome.shape[1])).sum()) == count:
            return True
        until = min(self.deadline, time.monotonic() + _FEW)
        few = any(_explains(syndrome, columns, one) for one in _supports(syndrome, columns, count - 1, until))
        return not few and time.monotonic() <= until

    def _complain(self, checks: int, allowed: int, found: list[int], already: int) -> str:
        aside = already + len(found)
        if allowed >= 1 and time.monotonic() > self.deadline:
            reason = "the time for finding liars that collude is over"
        elif allowed >= 1:
            reason = f"no {allowed} of them explain it"
        elif len(found) >= self.code.adversaries:
            reason = f"the code is for adversaries={self.code.adversaries}"
        else:
            reason = f"{checks} spare check{'s' if checks > 1 else ''} cannot tell who"
        return (
            f"the replies of {int(self.present.sum())} workers contradict one another: their checks leave "
            f"{self.worst:.2g} times what rounding could, and {reason} ({self.code!r}"
            f"{f', {aside} liars set aside' if aside else ''}). Wait for more replies. If nobody lies, workers that "
            "hold the same partition compute different results: dropout or augmentation without a common seed, or "
            "unlike hardware (raise the tolerance)"
        )

    def _remaining(self) -> Matrix:
        """Orthonormal checks on the members present: combinations that vanish on the missing ones."""
        missing = np.flatnonzero(~self.present)
        if len(missing) >= len(self.checks):
            return self.checks[:0]
        if not len(missing):
            return self.checks
        combined = null_checks(self.checks[:, missing]) @ self.checks
        combined[:, missing] = 0
        return np.asarray(combined)

    def _syndrome(self, checks: Matrix, positions: NDArray[np.intp]) -> Matrix | None:
        """A few projections of the columns that contradict, in units of rounding; None if there are none."""
        rows = [self.replies[worker] for worker in self.members[positions].tolist()]
        scale, here = self.scale[positions, None], checks[:, positions]
        count, width = len(rows[0]), max(1, _SLICE // len(rows))
        rng = np.random.default_rng()  # unpredictable, so that no lie can hide from the projection
        parts: list[Matrix] = []
        self.worst = 0.0
        for start in range(0, count, width):
            block = np.stack([row[start : start + width] for row in rows])
            block = block.astype(np.result_type(block, np.float64))
            largest = _largest(block)
            top = largest.max(initial=0)
            usual = top * np.sqrt(np.mean((largest / (top or 1)) ** 2))
            largest = np.maximum(largest, _TINY)
            block /= largest  # first, or huge lies would overflow
            block /= scale
            again = np.maximum(_largest(block), _TINY)
            block /= again
            rounding = np.sqrt(len(checks) * np.mean(np.abs(block) ** 2, axis=0)) + 0.25
            # Terms as large as usual may have cancelled, and numbers too small for the dtype's full precision are as
            # coarse as the smallest of all.
            with np.errstate(over="ignore"):
                floor = (_ROUNDING * _EPS * usual + _STEPS * self.least) / largest / again
            sizes = here @ block / (self.tolerance * rounding + floor)
            norms = np.linalg.norm(sizes, axis=0)
            contradicting = norms > 1
            if contradicting.any():
                self.worst = max(self.worst, float(norms.max()))
                parts.append(sizes[:, contradicting])
        if not parts:
            return None
        together = np.concatenate(parts, axis=1)
        limit = 4 * len(checks) + 8
        if together.shape[1] <= limit:
            return np.asarray(together)
        return np.asarray(together @ rng.standard_normal((together.shape[1], limit)) / np.sqrt(together.shape[1]))

    def _algebraic(self, positions: NDArray[np.intp], allowed: int) -> Iterator[tuple[int, ...]]:
        """Candidates from the error-locating polynomial, for codes whose messages are values of a polynomial.

        With E vanishing at the liars' nodes, y_i E(x_i) are values of a polynomial Q at all nodes, in every projection
        of the messages: what is orthogonal to all such Q gives linear equations for E.
        """
        nodes = getattr(self.code, "alpha", None)
        if nodes is None:
            return
        x = nodes[self.members[positions]]
        degree = len(self.members) - len(self.checks)  # coefficients of the message polynomial
        basis = np.vander if np.iscomplexobj(nodes) else lambda points, n: chebvander(points, n - 1)
        rng = np.random.default_rng()
        rows = [self.replies[worker] for worker in self.members[positions].tolist()]
        largest = max(_TINY, *(float(_largest(row)) for row in rows))
        projected = np.zeros((8, len(rows)), np.result_type(rows[0], np.float64))
        for start in range(0, len(rows[0]), _SLICE):
            parts = [row[start : start + _SLICE] for row in rows]
            projection = rng.standard_normal((len(parts[0]), 8))
            projected += np.stack([(part.astype(projected.dtype) / largest) @ projection for part in parts], axis=1)
        for errors in range(1, allowed + 1):
            if degree + errors >= len(x):
                return
            outside = null_checks(basis(x, degree + errors))
            locator = basis(x, errors + 1)
            equations = np.concatenate([outside @ (y[:, None] * locator) for y in projected])
            coefficients = np.linalg.svd(equations)[2][-1].conj()
            yield tuple(np.argsort(np.abs(locator @ coefficients))[:errors].tolist())


def _largest(block: NDArray[Any]) -> NDArray[np.float64]:
    """The largest number of each column; real and imaginary parts count by themselves."""
    size = np.abs(block.real).max(axis=0, initial=0)
    if np.iscomplexobj(block):
        size = np.maximum(size, np.abs(block.imag).max(axis=0, initial=0))
    return np.asarray(size, dtype=np.float64)


_scaled: weakref.WeakKeyDictionary[Component, tuple[NDArray[np.float64], Matrix, float]] = weakref.WeakKeyDictionary()


def _scale(code: GradientCode, component: Component) -> tuple[NDArray[np.float64], Matrix, float]:
    """Sizes of honest messages relative to one another, checks on messages of one size, and the code's own rounding."""
    if code.exact_for == "polynomial":
        return np.ones(len(component.members)), component.checks, 0.0
    rows = code.coefficients[component.members]
    sizes = np.sqrt(np.asarray(abs(rows).power(2).sum(axis=1))).ravel()
    scale = np.where(sizes > 0, sizes, 1.0)
    checks = np.linalg.qr((component.checks * scale).conj().T)[0].conj().T
    if not len(checks):
        return scale, checks, 0.0
    unit = rows.multiply(1 / scale[:, None]).tocsc()
    squares = np.asarray(abs(unit).power(2).sum(axis=0)).ravel()
    rounding = np.sqrt(len(checks) * squares / len(scale)) + 0.25 * np.sqrt(squares)
    left = np.linalg.norm(checks @ unit, axis=0)
    return scale, checks, float((left / np.where(rounding > 0, rounding, np.inf)).max())


def _explains(syndrome: Matrix, columns: Matrix, support: Sequence[int]) -> bool:
    """Whether these columns span the syndrome up to rounding."""
    basis = np.linalg.qr(columns[:, list(support)])[0]
    left = syndrome - basis @ (basis.conj().T @ syndrome)
    return bool(np.linalg.norm(left, axis=0).max() <= 1)


def _dominant(syndrome: Matrix, columns: Matrix, most: int) -> tuple[int, ...] | None:
    """Columns that span all but a trifle of the syndrome, if there are: what is left is judged once they are gone."""
    left, values, _ = np.linalg.svd(syndrome, full_matrices=False)
    rank = int((values > 10 * _TRIFLE * values[0]).sum())
    if rank > most:
        return None
    signal, sizes = left[:, :rank], np.linalg.norm(columns, axis=0)
    beside = columns - signal @ (signal.conj().T @ columns)
    distance = np.where(sizes > 1e-9, np.linalg.norm(beside, axis=0) / np.where(sizes > 0, sizes, 1), np.inf)
    nearest = np.argsort(distance)[:rank]
    basis = np.linalg.qr(columns[:, nearest])[0]
    rest = np.linalg.norm(syndrome - basis @ (basis.conj().T @ syndrome))
    return tuple(nearest.tolist()) if rest <= _TRIFLE * values[rank - 1] else None


def _supports(syndrome: Matrix, columns: Matrix, most: int, deadline: float) -> Iterator[tuple[int, ...]]:
    """Sets of at most `most` columns that may span the syndrome, the smallest and likeliest first."""
    left, values, _ = np.linalg.svd(syndrome, full_matrices=False)
    rank = max(1, int((values > _SIGNIFICANT * np.sqrt(syndrome.shape[1])).sum()))
    if rank > most:
        rank = most  # perhaps the last of them are rounding after all
    sizes = np.linalg.norm(columns, axis=0)
    unit = columns / np.where(sizes > 0, sizes, 1)
    signal = left[:, :rank]
    beside = unit - signal @ (signal.conj().T @ unit)
    distance = np.where(sizes > 1e-9, np.linalg.norm(beside, axis=0), np.inf)
    for count in range(rank, most + 1):
        if count > rank:
            for place, support in enumerate(_collusion(signal, unit, sizes > 1e-9, count, deadline)):
                yield support
                if place < _IMPROVED:  # beside those who collude, a lie that is hardly larger than rounding
                    yield _exchanged(syndrome, columns, support)
        nearest = tuple(np.argsort(distance)[:count].tolist())
        yield nearest  # independent lies
        yield _exchanged(syndrome, columns, nearest)


def _exchanged(syndrome: Matrix, columns: Matrix, support: tuple[int, ...]) -> tuple[int, ...]:
    """The support with members replaced, one at a time, as long as that explains more: weak lies near rounding."""

    def unexplained(chosen: Sequence[int]) -> NDArray[np.float64]:
        """What is left of the syndrome with each further column added."""
        basis = np.linalg.qr(columns[:, list(chosen)])[0] if len(chosen) else columns[:, :0]
        rest = syndrome - basis @ (basis.conj().T @ syndrome)
        free = columns - basis @ (basis.conj().T @ columns)
        squares = (np.abs(free) ** 2).sum(axis=0)
        gain = (np.abs(free.conj().T @ rest) ** 2).sum(axis=1) / np.where(squares > 1e-18, squares, np.inf)
        return np.asarray((np.abs(rest) ** 2).sum() - gain)

    current = list(support)
    for _ in range(2 * len(current)):
        before = tuple(current)
        for position in range(len(current)):
            others = current[:position] + current[position + 1 :]
            current = [*others[:position], int(np.argmin(unexplained(others))), *others[position:]]
        if tuple(current) == before:
            break
    return tuple(sorted(set(current)))


def _collusion(
    signal: Matrix, unit: Matrix, usable: NDArray[np.bool_], count: int, deadline: float
) -> Iterator[tuple[int, ...]]:
    """Sets of `count` columns that span a signal of lower rank: beside it, they are linearly dependent.

    With count - rank - 1 of them projected out as well, two others point one way. These and the signal span all of the
    set, so that the rest of it lies in that span. Sets are gone through in rising order, so that each is met once.
    Where two point one way already with fewer projected out, several groups collude, each by itself: with one of them
    added to the signal the search goes on for the others.
    """
    rank = signal.shape[1]
    beside = unit - signal @ (signal.conj().T @ unit)
    places = np.flatnonzero(usable & (np.linalg.norm(beside, axis=0) > 1e-12))
    best: list[tuple[float, tuple[int, ...]]] = []
    groups: list[tuple[int, ...]] = []

    def visit(vectors: Matrix, labels: NDArray[np.intp], chosen: tuple[int, ...], depth: int) -> None:
        sizes = np.linalg.norm(vectors, axis=0)
        directions = vectors / np.where(sizes > 1e-9, sizes, np.inf)
        cosines = np.abs(directions.conj().T @ directions)
        np.fill_diagonal(cosines, 0)
        flat = int(np.argmax(cosines))
        cosine, some = float(cosines.flat[flat]), (*chosen, int(labels[flat // len(labels)]))
        if depth == 0:
            if len(best) < _KEPT or cosine > best[-1][0]:
                best.append((cosine, some))
                best.sort(reverse=True)
                del best[_KEPT:]
            return
        if cosine > _PARALLEL:
            groups.append(some)
            return
        for index in range(len(labels) - depth - rank):
            if time.monotonic() > deadline:
                return
            pivot = vectors[:, index]
            size = float(np.vdot(pivot, pivot).real)
            rest = vectors[:, index + 1 :]
            if size > 1e-18:
                rest = rest - np.multiply.outer(pivot, (pivot.conj() @ rest) / size)
            visit(rest, labels[index + 1 :], (*chosen, int(labels[index])), depth - 1)

    if len(places) > count - rank:
        # Coordinates beside the signal only: fewer numbers to move.
        basis = np.linalg.svd(beside[:, places], full_matrices=False)[0][:, : beside.shape[0] - rank]
        visit(basis.conj().T @ beside[:, places], places, (), count - rank - 1)
    for some in [group for group in groups[:_KEPT] if len(group) == min(map(len, groups))]:
        yield from _collusion(_spanned(signal, unit, some), unit, usable, count, deadline)
    for _, some in best:
        span = _spanned(signal, unit, some)
        distance = np.linalg.norm(unit - span @ (span.conj().T @ unit), axis=0)
        distance[~usable] = np.inf
        distance[list(some)] = np.inf
        yield *some, *np.argsort(distance)[:rank].tolist()


def _spanned(signal: Matrix, unit: Matrix, some: Sequence[int]) -> Matrix:
    """An orthonormal basis of the signal and some columns."""
    return np.linalg.qr(np.concatenate([signal, unit[:, list(some)]], axis=1))[0]
