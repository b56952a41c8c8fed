"""The figures of the papers: each a pure function from a seed and a scale to a table."""

from .bacc import FIGURES
from .table import Table

__all__ = ["FIGURES", "Table"]
