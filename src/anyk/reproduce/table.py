"""A figure's numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["Table"]


@dataclass(frozen=True)
class Table:
    """What a reproduced figure says, and how to draw it.

    Attributes
    ----------
    name, title : str
    rows : list of dict
        One record per line, equal keys.
    notes : tuple of str
    x, y, by : str
        Columns that the plot shows: one curve of `y` over `x` for each value of the columns in `by`.
    dashed : str
        Curves with this value of the last column in `by` are dashed, in the colour of the one before.
    apart : bool
        Each curve has axes of its own.
    hidden : tuple of str
        Columns for the picture only; lines that differ in nothing else are shown once.
    label : str
        What the vertical axis shows, where that is neither a relative error nor said by `y`.
    """

    name: str
    title: str
    rows: list[dict[str, Any]]
    notes: tuple[str, ...] = ()
    x: str = ""
    y: str = ""
    by: tuple[str, ...] = field(default=())
    dashed: str = ""
    apart: bool = False
    hidden: tuple[str, ...] = ()
    label: str = ""

    def shown(self) -> list[dict[str, Any]]:
        """The lines of the printed table."""
        lines = [{key: value for key, value in row.items() if key not in self.hidden} for row in self.rows]
        return [line for index, line in enumerate(lines) if line not in lines[:index]]

    def curves(self) -> dict[str, tuple[list[float], list[float]]]:
        """The plot's curves, by name."""
        found: dict[str, tuple[list[float], list[float]]] = {}
        for row in self.rows:
            if row[self.x] is not None and row[self.y] is not None:
                name = ", ".join(f"{c} = {row[c]}" if isinstance(row[c], int) else str(row[c]) for c in self.by)
                xs, ys = found.setdefault(name, ([], []))
                xs.append(row[self.x])
                ys.append(row[self.y])
        return found

    def plot(self, ax: Any = None) -> Any:
        """Draw it with matplotlib; returns the axes (the first of them, where curves lie apart)."""
        from ..plots import curves, panels

        label = self.label or ("relative error" if self.y in ("mean", "median") else self.y)
        label += f", {self.y}" if label != self.y else ""
        words: dict[str, Any] = {"xlabel": "stragglers s" if self.x == "s" else self.x, "ylabel": label}
        lines = self.curves()
        if self.apart and ax is None:
            return panels(lines, **words, title=self.title)[0]
        dashed = [name for name in lines if self.dashed and name.endswith(self.dashed)]
        return curves(lines, ax, **words, title=self.title, dashed=dashed)
