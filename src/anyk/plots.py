"""Pictures, with matplotlib (``pip install anyk[plots]``); nothing here touches its global state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

if TYPE_CHECKING:
    from .runtime.events import Run
    from .runtime.trace import Trace

__all__ = ["curves", "heat_map", "heat_text", "new_axes", "panels", "save", "timeline"]

# Okabe and Ito's colours, told apart by all kinds of colour vision.
BLUE, ORANGE, GREEN, RED, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#999999"
COLOURS = (BLUE, RED, GREEN, ORANGE, "#CC79A7", "#56B4E9", "#000000", "#882255", GREY, "#117733")


def new_axes(width: float = 8.0, height: float = 4.5) -> Any:
    """Axes of a new figure that belongs to no window.

    Raises
    ------
    ImportError
        With the command that installs matplotlib.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install 'anyk[plots]'") from error
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure.add_subplot()


def save(ax: Any, path: Any) -> None:
    """Write the figure that the axes belong to."""
    ax.figure.savefig(path, dpi=150)


def timeline(run: Run, ax: Any = None, *, title: str | None = None) -> Any:
    """One bar per worker from the start of the round to its answer, and a line where the round stopped.

    Parameters
    ----------
    run : Run
        ``result.run``, or the `run` of an error.
    ax : matplotlib axes, optional
    title : str, optional

    Returns
    -------
    The axes.
    """
    if ax is None:
        ax = new_axes(8.0, max(2.5, 1.2 + 0.14 * len(run.workers)))
    stop = run.seconds
    right = max([stop, *run.answered_at.values()]) * 1.25 or 1.0
    groups: dict[str, tuple[str, list[int], list[float]]] = {
        "answered, used": (BLUE, [], []),
        "given up": (ORANGE, [], []),
        "failed": (RED, [], []),
        "busy with an earlier round": (GREY, [], []),
    }
    for worker in run.workers:
        if worker in run.responders:
            name, end = "answered, used", run.answered_at.get(worker, stop)
        elif worker in run.failed:
            name, end = "failed", run.failed_at.get(worker, stop)
        elif worker in run.skipped:
            name, end = "busy with an earlier round", right
        else:
            name, end = "given up", right
        groups[name][1].append(worker)
        groups[name][2].append(end)
    for name, (colour, who, ends) in groups.items():
        if who:
            ax.barh(who, ends, height=0.7, color=colour, label=f"{name} ({len(who)})")
    for worker, seconds in run.failed_at.items():
        ax.plot(seconds, worker, "x", color="black", markersize=6)
    ax.axvline(stop, color="black", linewidth=1.2, linestyle="--")
    ax.annotate(
        f"answer after {stop:.3g} s", (stop, 1.0), (4, -2), xycoords=("data", "axes fraction"),
        textcoords="offset points", va="top", fontsize=9,
    )  # fmt: skip
    ax.set(xlim=(0, right), xlabel="seconds", ylabel="worker")
    ax.set_ylim(max(run.workers, default=0) + 0.7, min(run.workers, default=0) - 0.7)
    ax.set_title(title or f"{len(run.responders)} of {len(run.workers)} workers answered in time")
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.09), ncol=4, frameon=False, fontsize=9)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    return ax


def curves(
    lines: Mapping[str, tuple[ArrayLike, ArrayLike]],
    ax: Any = None,
    *,
    xlabel: str,
    ylabel: str,
    title: str | None = None,
    log: bool = True,
    dashed: Sequence[str] = (),
) -> Any:
    """Named curves over one axis, the vertical one logarithmic unless told otherwise.

    Parameters
    ----------
    lines : mapping of name to (x, y)
    log : bool
        Zeros, which a logarithmic axis cannot show, leave a gap.
    dashed : names of the curves to draw dashed, in the colour of the one before

    Returns
    -------
    The axes.
    """
    many = len(lines) > 4
    if ax is None:
        ax = new_axes(10.0 if many else 8.0)
    index = -1
    for name, (x, y) in lines.items():
        index += name not in dashed or index < 0
        height = np.asarray(y, dtype=np.float64)
        ax.plot(
            np.asarray(x), np.where(height > 0, height, np.nan) if log else height, "--o" if name in dashed else "-o",
            color=COLOURS[index % len(COLOURS)], label=name, markersize=4 if np.size(x) < 60 else 0,
        )  # fmt: skip
    if log:
        ax.set_yscale("log")
    ax.set(xlabel=xlabel, ylabel=ylabel)
    if title:
        ax.set_title(title)
    if many:  # beside the curves, not over them
        ax.legend(fontsize=9, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    else:
        ax.legend(fontsize=9)
    ax.grid(alpha=0.3)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    return ax


def panels(
    lines: Mapping[str, tuple[ArrayLike, ArrayLike]], *, xlabel: str, ylabel: str, title: str | None = None
) -> list[Any]:
    """Each curve by itself, one below the other, over shared axes: for curves that would hide each other."""
    first = new_axes(8.0, 1.0 + 1.4 * len(lines))
    figure = first.figure
    first.remove()
    axes = list(np.ravel(figure.subplots(len(lines), sharex=True, sharey=True)))
    for index, (ax, (name, (x, y))) in enumerate(zip(axes, lines.items(), strict=True)):
        ax.plot(np.asarray(x), np.asarray(y), color=COLOURS[index % len(COLOURS)], linewidth=1.2)
        ax.set_title(name, loc="left", fontsize=9)
        ax.grid(alpha=0.3)
        for side in ("top", "right"):
            ax.spines[side].set_visible(False)
    axes[-1].set_xlabel(xlabel)
    figure.supylabel(ylabel, fontsize=10)
    if title:
        figure.suptitle(title)
    return axes


def heat_map(trace: Trace, ax: Any = None, *, title: str | None = None) -> Any:
    """Workers by rounds, coloured by latency; crosses where a worker was given up or lost, blank where it had no task.

    Returns
    -------
    The axes.
    """
    if ax is None:
        ax = new_axes(8.0, float(np.clip(2.0 + 0.08 * trace.workers, 3.0, 9.0)))
    times, given_up = _times(trace)
    logs = np.full(times.shape, np.nan)
    np.log10(times, out=logs, where=times > 0)
    image = ax.imshow(logs.T, aspect="auto", interpolation="nearest", cmap="viridis")
    bar = ax.figure.colorbar(image, ax=ax)
    bar.set_label("log10 of seconds")
    rounds, workers = np.nonzero(given_up)
    if len(rounds) <= 5000:  # more would hide the rest
        ax.plot(rounds, workers, "x", color=RED, markersize=3)
    ax.set(xlabel="round", ylabel="worker")
    ax.set_title(title or f"{len(trace)} rounds, {trace.workers} workers, {len(rounds)} given up (x)")
    return ax


def heat_text(trace: Trace, height: int = 40, width: int = 80) -> list[tuple[str, str]]:
    """The same in characters: a label and a row of shades for each worker, or for groups of neighbours.

    Shades tell fifths of all latencies, ``x`` that most were given up, a blank that there was no task.

    Examples
    --------
    >>> from anyk import Trace
    >>> heat_text(Trace([[1.0, 8.0], [2.0, float("nan")], [4.0, 9.0]], [[0, 0], [0, 2.0], [0, 0]]))
    [('0', '··▒'), ('1', '▓x█')]
    """
    times, given_up = _times(trace)
    seen = np.sort(times[times > 0])
    rows = []
    for who in np.array_split(np.arange(trace.workers), min(height, trace.workers)):
        marks = []
        for when in np.array_split(np.arange(len(trace)), min(width, len(trace))):
            part, lost = times[np.ix_(when, who)], given_up[np.ix_(when, who)]
            part = part[~np.isnan(part)]
            if not len(part):
                marks.append(" ")
            elif 2 * lost.sum() > len(part):
                marks.append("x")
            else:
                below = np.searchsorted(seen, np.median(part)) / max(len(seen), 1)
                marks.append("·░▒▓█"[min(int(5 * below), 4)])
        rows.append((str(who[0]) if len(who) == 1 else f"{who[0]}-{who[-1]}", "".join(marks)))
    return rows


def _times(trace: Trace) -> tuple[Any, Any]:
    """How long answers took, or were waited for in vain, NaN without a task; and where they were given up."""
    given_up = ~trace.known & (trace.bounds > 0)
    return np.where(trace.known, trace.seconds, np.where(given_up, trace.bounds, np.nan)), given_up
