"""The figures of the papers: each a pure function from a seed and a scale to a table."""

from . import bacc, gradient, noise
from .table import Table

FIGURES = {**bacc.FIGURES, **gradient.FIGURES, **noise.FIGURES}

__all__ = ["FIGURES", "Table"]
