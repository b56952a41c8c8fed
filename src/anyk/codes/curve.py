"""Codes that draw one curve through the blocks and another through the answers."""

from __future__ import annotations

from ..points import Nodes, chebyshev_first, chebyshev_second
from .base import DataCode, Exactness

__all__ = ["CurveCode"]


class CurveCode(DataCode):
    """Any function, approximately, from any non-empty set of answers; at paper 1's nodes, equations (19) and (20)."""

    @property
    def data_nodes(self) -> Nodes:
        """The nodes at which the blocks lie, alpha_j."""
        return chebyshev_first(self.blocks)

    @property
    def worker_nodes(self) -> Nodes:
        """The nodes at which the workers evaluate, z_i."""
        return chebyshev_second(self.workers)

    @property
    def threshold(self) -> int:
        """1: any answer gives an estimate, more answers a better one."""
        return 1

    @property
    def exact_for(self) -> Exactness:
        """Nothing but constants."""
        return "nothing"
