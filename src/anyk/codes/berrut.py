"""Berrut approximated coded computing: paper 1, equations (18) to (21)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ..interpolation import berrut_matrix
from ..points import Nodes, chebyshev_first, chebyshev_second, equidistant_closed, equidistant_open, half_open_chebyshev
from .base import DataCode, Exactness, Matrix

__all__ = ["BerrutCode", "error_bound", "lebesgue_bound"]

NodeFamily = Literal["chebyshev", "equidistant", "equidistant-closed", "approxifer"]


@dataclass(frozen=True)
class BerrutCode(DataCode):
    """Berrut approximated coded computing (BACC): any function, approximately, from any non-empty set of answers.

    Worker i works on u(z_i), where u is Berrut's rational interpolant through the blocks at the data nodes; the master
    passes another such interpolant through the answers and reads it off at the data nodes. Signs alternate over the
    responders, sorted by node, so that no pole appears when workers are missing.

    Parameters
    ----------
    workers : int
        The paper's N + 1.
    blocks : int
        The paper's K, at most `workers`.
    nodes : {"chebyshev", "equidistant", "equidistant-closed", "approxifer"}
        ``"chebyshev"``: the paper's, equations (19) and (20). ``"equidistant"``: data nodes 1 - 2(j+1)/(K+1) inside the
        interval, worker nodes 1 - 2i/N. ``"equidistant-closed"``: data nodes that include both ends.
        ``"approxifer"``: Chebyshev, but no worker at -1, which is better where `workers` is close to `blocks`.

    Notes
    -----
    Not exact even for f = identity. Errors fall as the order of the blocks gets smoother: see `anyk.path_order`.

    Examples
    --------
    >>> import numpy as np
    >>> code = BerrutCode(workers=60, blocks=4)
    >>> x = np.linspace(0, 1, 4)
    >>> coded = code.encode(x)
    >>> decoder = code.decoder(range(0, 60, 2))
    >>> round(float(np.abs(decoder @ np.exp(coded[::2]) - np.exp(x)).max()), 3)
    0.011
    """

    workers: int
    blocks: int
    nodes: NodeFamily = "chebyshev"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nodes not in get_args(NodeFamily):
            raise ValueError(f"nodes must be one of {', '.join(get_args(NodeFamily))}, got {self.nodes!r}")

    @property
    def data_nodes(self) -> Nodes:
        """The nodes at which the blocks lie, alpha_j."""
        if self.nodes == "equidistant":
            return equidistant_open(self.blocks)
        if self.nodes == "equidistant-closed":
            return equidistant_closed(self.blocks)
        return chebyshev_first(self.blocks)

    @property
    def worker_nodes(self) -> Nodes:
        """The nodes at which the workers evaluate, z_i."""
        if self.nodes == "chebyshev":
            return chebyshev_second(self.workers)
        if self.nodes == "approxifer":
            return half_open_chebyshev(self.workers)
        return equidistant_closed(self.workers)

    @property
    def threshold(self) -> int:
        """1: any answer gives an estimate, more answers a better one."""
        return 1

    @property
    def exact_for(self) -> Exactness:
        """Nothing but constants."""
        return "nothing"

    def _generator(self) -> Matrix:
        return berrut_matrix(self.worker_nodes, self.data_nodes)

    def _decode(self, responders: NDArray[np.intp], replies: Sequence[Any] | None) -> Matrix:
        return berrut_matrix(self.data_nodes, self.worker_nodes.take(responders))


def _settings(workers: int, stragglers: int) -> tuple[int, int, float]:
    n = workers - 1
    if not 0 <= stragglers < n:
        raise ValueError(f"stragglers must lie in 0..{n - 1} for {workers} workers, got {stragglers}")
    return n, stragglers, (stragglers + 1) * (stragglers + 3) * np.pi**2 / 4


def lebesgue_bound(workers: int, stragglers: int) -> float:
    """Paper 1's bound on the Lebesgue constant of the responders' nodes, whichever `stragglers` are missing.

    ((s+1)(s+3) pi^2/4 + 1) (1 + pi^2 (s+1) ln(N-s)) with N = workers - 1. True, and far from tight.

    Examples
    --------
    >>> round(lebesgue_bound(workers=21, stragglers=0))
    257
    """
    n, s, mesh_ratio = _settings(workers, stragglers)
    return float((mesh_ratio + 1) * (1 + np.pi**2 * (s + 1) * np.log(n - s)))


def error_bound(workers: int, stragglers: int, second_derivative: float, first_derivative: float = 0.0) -> float:
    """Paper 1's bound on the decoding error of g = f(u(z)), in the maximum norm over [-1, 1].

    2 (1+R) sin((s+1) pi / 2N) (||g''|| [+ ||g'|| if N-s is even]) with R = (s+1)(s+3) pi^2/4 and N = workers - 1.

    Parameters
    ----------
    workers, stragglers : int
    second_derivative, first_derivative : float
        Maximum norms of g'' and g' over [-1, 1].

    Examples
    --------
    >>> error_bound(101, 10, second_derivative=9.0, first_derivative=3.0) > 0.032
    True
    """
    n, s, mesh_ratio = _settings(workers, stragglers)
    slope = first_derivative if (n - s) % 2 == 0 else 0.0
    return float(2 * (1 + mesh_ratio) * np.sin((s + 1) * np.pi / (2 * n)) * (second_derivative + slope))
