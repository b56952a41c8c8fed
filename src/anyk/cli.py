"""The command line: ``anyk map``, ``train``, ``trace``, ``codes``, ``compare``, ``frame``, ``reproduce``, ``demo``."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import json
import math
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from .parsing import (
    GRADIENT_CODES,
    PRODUCT_CODES,
    UsageError,
    data_codes,
    data_options,
    gradient_options,
    load_function,
    parse_any_code,
    parse_code,
    parse_gradient_code,
    parse_stop,
    product_options,
)

__all__ = ["app", "main"]

_ENGINES = ("local", "threads", "simulated", "dask", "ray", "mpi")

app = typer.Typer(
    name="anyk",
    help="Coded computing: spread work over n workers and get the answer from whichever k respond.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Json = Annotated[str | None, typer.Option("--json", metavar="PATH|-", help="Write the figures as JSON; - is stdout.")]
Seed = Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seed of everything that is drawn.")]
Engine = Annotated[
    str, typer.Option(help="local (processes), threads, simulated, mpi, dask, ray, or where: dask://tcp://host:8786.")
]
TraceFile = Annotated[Path | None, typer.Option(metavar="FILE.jsonl", help="Record who took how long in each round.")]
Plot = Annotated[Path | None, typer.Option(metavar="FIG.png", help="Draw a picture (needs the extra plots).")]


def _version(wanted: bool) -> None:
    if wanted:
        from . import __version__

        typer.echo(f"anyk {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show it and exit.")
    ] = False,
) -> None:
    """Coded computing: spread work over n workers and get the answer from whichever k respond."""


# -- input and output -------------------------------------------------------------------------------------------------


def _clean(value: Any) -> Any:
    """JSON has no NaN and no NumPy."""
    if isinstance(value, dict):
        return {str(key): _clean(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(child) for child in value]
    if hasattr(value, "item") and not isinstance(value, str):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _check_targets(
    json_: str | None = None, plot: Path | None = None, *, reads: Path | None = None, **files: Path
) -> None:
    """Find out before the work, not after it, that its results cannot be written."""
    targets = {f"--{name}": path for name, path in files.items()}
    if plot is not None:
        targets["--plot"] = plot
    if json_ not in (None, "-"):
        targets["--json"] = Path(str(json_))
    taken = {} if reads is None else {reads.resolve(): "the input"}
    for option, path in targets.items():
        other = taken.setdefault(path.resolve(), option)
        if other != option:
            raise UsageError(f"{option} {path} is the file of {other}, too: name another")
        if str(path) == "-":
            raise UsageError(f"{option} - names no file; --json - writes to stdout")
        if not path.absolute().parent.is_dir():
            raise UsageError(f"{option} {path}: there is no folder {path.parent}; make it first")
        if path.is_dir():
            raise UsageError(f"{option} {path} is a folder; name a file")
        if not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
            raise UsageError(f"{option} {path} may not be written")
    if plot is not None:
        from .plots import new_axes

        known = new_axes().figure.canvas.get_supported_filetypes()
        if plot.suffix[1:].lower() not in known:
            raise UsageError(f"--plot {plot}: pictures end in one of {', '.join(f'.{kind}' for kind in sorted(known))}")


def _where(engine: str, workers: int) -> str:
    """The engine as `anyk.connect` takes it, checked before any work is done."""
    name, separator, _ = engine.partition("://")
    if name not in _ENGINES or not (separator or name == engine):
        raise UsageError(f"--engine must be {', '.join(_ENGINES)}, or where to find one, got {engine!r}")
    if separator:
        return engine
    return f"{engine}://{workers}" if engine in ("local", "threads", "simulated") else f"{engine}://"


def _write_json(target: str | None, figures: Any) -> None:
    if target is None:
        return
    text = json.dumps(_clean(figures), indent=1, allow_nan=False)
    if target == "-":
        typer.echo(text)
    else:
        Path(target).write_text(text + "\n")


def _show(title: str, rows: list[dict[str, Any]], quiet: bool, notes: tuple[str, ...] = ()) -> None:
    """A table on the terminal, unless JSON has it."""
    if quiet or not rows:
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for head in rows[0]:
        numeric = all(isinstance(row[head], int | float | type(None)) for row in rows)
        table.add_column(head.replace("_", " "), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        missing = (v is None or (isinstance(v, float) and math.isnan(v)) for v in row.values())
        cells = (f"{v:.3g}" if isinstance(v, float) else str(v) for v in row.values())
        table.add_row(*("-" if gap else cell for gap, cell in zip(missing, cells, strict=True)))
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(table)
    for note in notes:
        console.print(note, style="dim")


def _save_plot(ax: Any, path: Path | None) -> None:
    if path is not None:
        from .plots import save

        save(ax, path)
        typer.echo(f"wrote {path}", err=True)


@contextlib.contextmanager
def _prints_on_stderr() -> Iterator[None]:
    """What the function prints, here or in a worker started meanwhile, must not get into the JSON."""
    sys.stdout.flush()
    saved = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(saved, 1)
        os.close(saved)


def _recorder(trace: Path | None) -> Any:
    from .runtime import Recorder

    return None if trace is None else Recorder()


@contextlib.contextmanager
def _saved(recorder: Any, trace: Path | None) -> Iterator[None]:
    """What was recorded is worth most where something went wrong."""
    try:
        yield
    finally:
        if trace is not None and len(recorder):
            recorder.save(trace)


def _load_blocks(path: Path) -> Any:
    import numpy as np

    if not path.is_file():
        raise UsageError(f"there is no file {path}")
    try:
        array = np.load(path, allow_pickle=False)
        if not isinstance(array, np.ndarray):
            raise ValueError
        return array
    except (ValueError, EOFError):
        raise UsageError(f"{path} is not a .npy array of numbers: write it with numpy.save") from None


def seeded(fn: Callable[[Any], Any], seed: int) -> Callable[[Any], Any]:
    """`fn`, with the global generators of `random` and NumPy started from `seed` in every call.

    A code needs the same function on every worker: one that draws must draw the same numbers everywhere.
    """

    def call(block: Any) -> Any:
        import random

        import numpy as np

        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002  what the user's function draws from
        return fn(block)

    return call


# -- commands ---------------------------------------------------------------------------------------------------------


@app.command("map", epilog="Example: anyk map numpy:tanh blocks.npy -o out.npy --workers 30 --stop first:24")
def map_(
    function: Annotated[str, typer.Argument(metavar="MODULE:FUNCTION", help="What to call on each block.")],
    blocks: Annotated[Path, typer.Argument(metavar="BLOCKS.npy", help="Array with the blocks along its first axis.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="OUT.npy", help="Where the results go.")],
    workers: Annotated[int | None, typer.Option(min=1, help="How many; default: 5/4 of the blocks.")] = None,
    engine: Engine = "local",
    code: Annotated[str, typer.Option(help="See `anyk codes`; options as in lagrange:degree=2.")] = "spline",
    stop: Annotated[
        str | None, typer.Option(help="first:24, deadline:2.5, all, sufficient; comma: whichever first.")
    ] = None,
    order: Annotated[str, typer.Option(help="path, none or auto: order of the blocks inside the code.")] = "auto",
    plot: Plot = None,
    allow_nan: Annotated[bool, typer.Option("--allow-nan", help="Accept NaN in blocks and replies.")] = False,
    progress: Annotated[bool | None, typer.Option(help="Show who has answered; default: on a terminal.")] = None,
    trace: TraceFile = None,
    json_: Json = None,
    seed: Annotated[
        int,
        typer.Option(min=0, max=2**32 - 1, help="Every call of the function starts NumPy's and random's draws here."),
    ] = 0,
) -> None:
    """Map a function over blocks on workers that may stall, die or never answer."""
    import numpy as np

    from . import mapping

    if order not in ("path", "none", "auto"):
        raise UsageError(f"order must be path, none or auto, got {order!r}")
    _check_targets(json_, plot, reads=blocks, output=output, **({} if trace is None else {"trace": trace}))
    fn, data = load_function(function), _load_blocks(blocks)
    if data.ndim == 0 or len(data) == 0:
        raise UsageError(f"{blocks} needs a first axis that enumerates the blocks, got shape {data.shape}")
    count = workers if workers is not None else mapping.default_workers(len(data))
    if workers is None and count > mapping.MOST_UNASKED:
        raise UsageError(f"{len(data)} blocks would start {count} processes: pass --workers, or group the blocks")
    chosen = parse_code(code, count, len(data))
    if not chosen.sufficient(chosen.active):
        raise UsageError(
            f"{code} needs {chosen.threshold} answers for {len(data)} blocks and there are {count} workers: pass "
            f"--workers {chosen.threshold} or more, or group the blocks"
        )
    rule = None if stop is None else parse_stop(stop)
    if rule is not None:
        try:
            rule.check(len(chosen.active))
        except ValueError as error:
            raise UsageError(str(error)) from None
    recorder = _recorder(trace)
    with _prints_on_stderr() if json_ == "-" else contextlib.nullcontext(), _saved(recorder, trace):
        result = mapping.map(
            seeded(fn, seed),
            data,
            code=chosen,
            workers=_where(engine, count),
            stop=rule,
            order=None if order == "none" else order,
            allow_nan=allow_nan,
            progress=progress,
            on_event=recorder,
        )
    value = result.value
    if not hasattr(value, "shape"):
        raise UsageError(f"{function} returns {type(value).__name__}; only arrays can be written to {output}")
    with output.open("wb") as file:  # under that very name: given a path, NumPy would append .npy
        np.save(file, np.asarray(value))
    run, decoder = result.run, result.decoder
    figures = {
        "output": str(output),
        "shape": list(value.shape),
        "code": repr(result.code),
        "seconds": run.seconds,
        "responders": run.responders,
        "stragglers": run.stragglers,
        "failed": run.failed,
        "residual": decoder.residual,
        "noise_amplification": decoder.noise_amplification,
        "lebesgue_constant": decoder.lebesgue_constant,
    }
    if json_ != "-":
        failed = f", {len(run.failed)} failed" if run.failed else ""
        typer.echo(
            f"wrote {output} {tuple(value.shape)}: {len(run.responders)} of {len(run.workers)} workers in "
            f"{run.seconds:.3g} s{failed}"
        )
        for worker, reason in run.failed.items():
            typer.echo(f"  worker {worker}: {reason}")
    _write_json(json_, figures)
    if plot is not None:
        _save_plot(result.plot(), plot)


_PAPERS = {
    "berrut": "Jahani-Nezhad and Maddah-Ali, Berrut approximated coded computing (paper 1)",
    "spline": "splines in the angle; docs/benchmarks.md, accuracy",
    "floater-hormann": "arXiv 2509.09435",
    "bspline": "arXiv 2601.10616",
    "learning-theoretic": "Moradi et al., arXiv 2406.00300, NeurIPS 2024",
    "lagrange": "Yu et al., Lagrange coded computing, AISTATS 2019",
    "repetition": "the classic",
    "uncoded": "the baseline",
    "harmonic": "Yosibash and Zamir, coded computing with noise (paper 3)",
    "gaussian": "paper 3, equation (9)",
    "vandermonde": "Reed-Solomon over the reals or the circle (paper 3, Definition 2)",
    "chebyshev": "Fahim and Cadambe, arXiv 1903.08326",
    "mds": "systematic MDS, arXiv 1512.02673; here docs/design.md",
    "polynomial": "Yu et al., NIPS 2017; bases in docs/design.md",
    "khatri-rao": "Subramaniam et al., arXiv 1907.05965",
    "matdot": "Dutta et al., arXiv 1801.10292",
    "entangled": "Yu et al., ISIT 2018",
    "nullspace": "paper 2's optimum, well conditioned (docs/design.md)",
    "group": "fractional repetition with an MDS code over chunks (docs/design.md)",
    "universal": "Jahani-Nezhad and Maddah-Ali, heterogeneous gradient coding (paper 2), section III",
    "berrut-gradient": "paper 2, section V, as far as it is known",
    "cyclic": "Tandon et al., gradient coding, arXiv 1612.03301",
    "cyclic-mds": "Raviv et al., arXiv 1707.03858",
    "fractional": "Tandon et al.; ErasureHead, arXiv 1901.09671",
    "graph": "sparse graphs, arXiv 1711.06771; Glasgow and Wootters",
    "ignore": "the baseline",
}


def _settings(options: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in options.items())


@app.command(epilog="Example: anyk codes --workers 30 --blocks 20")
def codes(
    workers: Annotated[int, typer.Option(min=1, help="Number of workers for the figures.")] = 30,
    blocks: Annotated[int, typer.Option(min=1, help="Number of blocks for the figures.")] = 15,
    json_: Json = None,
    seed: Seed = 0,
) -> None:
    """List the codes: what they recover, from how many answers, at what cost."""
    import numpy as np

    from .analysis import load

    _check_targets(json_)
    rows: list[dict[str, Any]] = []

    def add(name: str, code: Any, options: str, mixed: float) -> None:
        rows.append(
            {
                "code": name,
                "class": type(code).__name__,
                "options": options or "-",
                "exact_for": code.exact_for,
                "threshold": code.threshold,
                "blocks_mixed_per_worker": mixed,
                "paper": _PAPERS[name],
            }
        )

    for name in data_codes():
        code = parse_code(name, workers, blocks)
        add(name, code, _settings(data_options(name)), float(np.count_nonzero(code.generator) / len(code.active)))
    for name in GRADIENT_CODES:
        count = workers if name.startswith("cyclic") else max(workers, blocks)
        code = parse_gradient_code(name, workers, count, stragglers=min(2, workers - 1))
        add(name, code, ", ".join(gradient_options(name)), load(code))
    for name in PRODUCT_CODES:
        count = min(blocks, (workers + 1) // 2) if name == "matdot" else blocks
        text = f"{name}:p=1,m=2,n={max(1, (workers - 1) // 2)}" if name == "entangled" else name
        code = parse_any_code(text, workers, count)
        add(name, code, _settings(product_options(name)), load(code))
    notes = (
        "From nullspace on: gradient codes, for sums of results; here for two stragglers, a partition per worker.",
        "From polynomial on: codes for products of matrices (`anyk.matmul`).",
    )
    _show(f"Codes over {workers} workers and {blocks} blocks", rows, json_ == "-", notes)
    _write_json(json_, rows)


@app.command(epilog="Example: anyk compare berrut lagrange repetition --workers 60 --blocks 20 --responders 45")
def compare(
    code: Annotated[list[str], typer.Argument(metavar="CODE...", help="Names as in `anyk codes`, with options.")],
    workers: Annotated[int, typer.Option(min=1, help="n.")],
    blocks: Annotated[int, typer.Option(min=1, help="K: blocks, or partitions of a gradient code.")],
    responders: Annotated[int, typer.Option(help="k, how many answer.")],
    trials: Annotated[int, typer.Option(min=1, help="Responder sets to draw.")] = 200,
    json_: Json = None,
    seed: Seed = 0,
) -> None:
    """Compare codes by what their decoders do to exactness and noise, over random sets of responders."""
    from .analysis import compare as compare_codes

    _check_targets(json_)
    if not 1 <= responders <= workers:
        raise UsageError(f"responders must lie in 1..{workers} (the number of workers), got {responders}")
    parsed = [parse_any_code(text, workers, blocks, stragglers=workers - responders) for text in code]
    records = [each.as_dict() for each in compare_codes(parsed, responders, trials=trials, seed=seed)]
    for text, record in zip(code, records, strict=True):
        record["code"] = text
    title = f"{responders} of {workers} workers, {blocks} blocks, {records[0]['sets']} sets"
    _show(title, [line for record in records for line in _lines(record)], json_ == "-", _COMPARE_NOTES)
    _write_json(json_, records)


_SPREADS = ("residual", "noise_amplification", "lebesgue_constant", "condition")
_COMPARE_NOTES = (
    "residual: error for the identity, 0 is exact; noise amplification: mean square error per unit of noise variance;",
    "lebesgue constant: largest growth of an error; failures: share of the sets without the promised answer.",
    "Gradient codes are built for as many stragglers as are missing, unless stragglers= says otherwise.",
)


def _lines(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Lines of the table: one for each figure, the code named in the first."""
    head = {key: record[key] for key in ("code", "threshold", "exact_for", "failures")}
    head["failures"] = f"{head['failures']:.3g}"
    blank = dict.fromkeys(head, "")
    return [
        (blank if index else head)
        | {"figure": figure.replace("_", " ")}
        | {kind: record[f"{figure}_{kind}"] for kind in ("mean", "median", "worst")}
        for index, figure in enumerate(_SPREADS)
    ]


@app.command(
    epilog="Figures: bacc-fig1 ... bacc-fig5, gradient-tradeoff, gradient-approximation, training, "
    "noise-fig3, noise-spectrum, noise-worst, noise-models, product-bases. "
    "Example: anyk reproduce bacc-fig4 --trials 2000 --plot fig4.png"
)
def reproduce(
    figure: Annotated[
        str,
        typer.Argument(metavar="FIGURE", help="A figure's name; see below."),
    ],
    trials: Annotated[int | None, typer.Option(min=1, help="Straggler sets a point (rounds, for training).")] = None,
    responders: Annotated[
        float | None, typer.Option(min=0.0, max=1.0, help="k/n of noise-fig3, noise-spectrum and noise-worst.")
    ] = None,
    plot: Plot = None,
    json_: Json = None,
    seed: Seed = 0,
) -> None:
    """Re-make a figure of a paper as a table and a picture."""
    from .reproduce import FIGURES

    if figure not in FIGURES:
        raise UsageError(f"no figure is called {figure!r}: choose one of {', '.join(FIGURES)}")
    _check_targets(json_, plot)
    options: dict[str, Any] = {} if trials is None else {"trials": trials}
    if responders is not None:
        if "share" not in inspect.signature(FIGURES[figure]).parameters:
            raise UsageError(f"{figure} has no --responders")
        options["share"] = responders
    table = FIGURES[figure](seed, **options)
    if not table.rows:
        raise UsageError(f"{figure} has nothing to show for --responders {responders}: fewer answers than blocks")
    _show(table.title, table.shown(), json_ == "-", table.notes)
    _write_json(json_, {"figure": figure, "title": table.title, "seed": seed, "rows": table.rows, "notes": table.notes})
    if plot is not None:
        _save_plot(table.plot(), plot)


_ATTACKS = ("negate", "noise", "zero", "scale", "nan")


@app.command(epilog="Example: anyk train --code nullspace --workers 20 --stragglers 4 --liars 1 --skew by-class")
def train(
    code: Annotated[str, typer.Option(help="A gradient code of `anyk codes`, as in group:replicas=10; or berrut.")] = (
        "nullspace"
    ),
    workers: Annotated[int, typer.Option(min=1, help="Workers.")] = 20,
    partitions: Annotated[int | None, typer.Option(min=1, help="Default: one per worker; half, for berrut.")] = None,
    stragglers: Annotated[int, typer.Option(min=0, help="Workers that are late, and that the code is for.")] = 4,
    liars: Annotated[int, typer.Option(min=0, help="Workers that lie, and that the code is for.")] = 0,
    skew: Annotated[str, typer.Option(help="iid, or by-class: few classes in a partition.")] = "iid",
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the data.")] = 20,
    batch: Annotated[int, typer.Option(min=0, help="Samples of a partition in a round; 0: all of them.")] = 20,
    hidden: Annotated[int, typer.Option(min=0, help="Hidden units; 0: logistic regression.")] = 32,
    rate: Annotated[float, typer.Option(help="Learning rate.")] = 0.3,
    momentum: Annotated[float, typer.Option(help="Momentum.")] = 0.9,
    delay: Annotated[float, typer.Option(min=0, help="Seconds by which stragglers are late.")] = 0.2,
    persistent: Annotated[bool, typer.Option(help="The same stragglers all the time, or others each round.")] = True,
    engine: Engine = "local",
    save: Annotated[Path | None, typer.Option(metavar="FILE.npz", help="Checkpoint, written after each epoch.")] = None,
    resume: Annotated[Path | None, typer.Option(metavar="FILE.npz", help="Continue from a checkpoint.")] = None,
    trace: TraceFile = None,
    json_: Json = None,
    seed: Seed = 0,
) -> None:
    """Train on the digits data set with coded gradients, while workers are late and lie."""
    import numpy as np

    from .runtime import Corrupt, Slow, connect
    from .training import Network, Training, partition_samples

    files = {"save": save, "trace": trace}
    _check_targets(json_, **{name: path for name, path in files.items() if path is not None})
    if skew not in ("iid", "by-class"):
        raise UsageError(f"--skew must be iid or by-class, got {skew!r}")
    where = _where(engine, workers)
    if stragglers + liars >= workers:
        raise UsageError(f"{stragglers} stragglers and {liars} liars leave none of {workers} workers")
    mixing = code.partition(":")[0] in data_codes()
    count = partitions if partitions is not None else max(1, workers // 2) if mixing else workers
    if mixing:
        chosen = parse_code(code, workers, count)
        if chosen.exact_for in ("linear", "polynomial"):
            raise UsageError(f"{code} is for {chosen.exact_for} functions, and gradients are none: use berrut")
    else:
        chosen = parse_gradient_code(code, workers, count, stragglers=stragglers, adversaries=liars, seed=seed)
    if liars and getattr(chosen, "adversaries", 0) < liars:
        raise UsageError(f"{code} cannot find {liars} liars: use nullspace, group, universal or fractional")
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise UsageError(f"{error}: pip install 'anyk[demo]'") from None
    x, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    x, labels = x[order] / 16, labels[order]
    learn, test = slice(0, 1400), slice(1400, None)
    network = Network((64, hidden, 10) if hidden else (64, 10))
    parts = partition_samples(labels[learn], count, skew, seed)  # type: ignore[arg-type]
    rounds = 1 if not batch else max(1, math.ceil(min(map(len, parts)) / batch))
    rows = []
    from .runtime.stop import FirstK

    stop = FirstK(workers - stragglers) if chosen.approximate else None
    recorder = _recorder(trace)
    with connect(where, workers) as pool, _saved(recorder, trace):
        job = Training(network, x[learn], labels[learn], parts, chosen, pool, rate, momentum, batch, seed)
        if resume is not None:
            if not resume.is_file():
                raise UsageError(f"--resume {resume}: there is no such file")
            job.load(resume)
        for epoch in range(epochs):
            seconds, sent, received, found = 0.0, 0, 0, set()
            for _ in range(rounds):
                rng = np.random.default_rng([seed, job.round])
                late = np.arange(stragglers) if persistent else rng.choice(workers, stragglers, replace=False)
                lying = rng.choice(np.setdiff1d(np.arange(workers), late), liars, replace=False)
                faults: dict[int, Any] = {int(worker): Slow(delay) for worker in late}
                faults |= {
                    int(w): Corrupt(_ATTACKS[int(rng.integers(len(_ATTACKS)))], 3.0, seed=job.round) for w in lying
                }
                result = job.step(stop, faults, progress=False, on_event=recorder)
                seconds += result.run.seconds + result.run.decode_seconds
                sent += result.run.traffic.sent
                received += result.run.traffic.received
                found |= set(result.run.liars)
            row = {
                "epoch": epoch + 1,
                "loss": network.gradient(x[learn], np.eye(10)[labels[learn]], job.weights)[0],
                "accuracy": network.accuracy(x[test], labels[test], job.weights),
                "seconds": seconds,
                "numbers_sent": sent,
                "numbers_received": received,
                "liars_found": ", ".join(map(str, sorted(found))),
            }
            rows.append(row)
            if save is not None:
                job.save(save)
            if json_ != "-":
                tail = f"  liars {row['liars_found']}" if found else ""
                typer.echo(
                    f"epoch {row['epoch']:3d}  loss {row['loss']:.5f}  accuracy {row['accuracy']:.3f}  "
                    f"{seconds:.3g} s  {sent:,} numbers out, {received:,} back{tail}"
                )
    _write_json(json_, {"code": repr(chosen), "skew": skew, "stragglers": stragglers, "liars": liars, "epochs": rows})


traces = typer.Typer(name="trace", help="Look at recorded rounds: who was slow when, and which model fits.",
                     no_args_is_help=True)  # fmt: skip
app.add_typer(traces)
TraceArgument = Annotated[Path, typer.Argument(metavar="FILE.jsonl", help="What --trace or anyk.Recorder wrote.")]
_LAGS, _SLOWEST = (1, 2, 5, 10), 8


def _load_trace(path: Path) -> Any:
    from .runtime import Trace

    if not path.is_file():
        raise UsageError(f"there is no file {path}")
    try:
        return Trace.load(path)
    except ValueError as error:
        raise UsageError(str(error)) from None


@traces.command(epilog="Example: anyk trace show rounds.jsonl --plot rounds.png")
def show(file: TraceArgument, plot: Plot = None, json_: Json = None) -> None:
    """Who was slow when, the slowest workers, percentiles, and whether slowness persists."""
    import numpy as np

    from .plots import heat_map, heat_text

    _check_targets(json_, plot, reads=file)
    trace = _load_trace(file)
    given_up, whole = ~trace.known & (trace.bounds > 0), trace.sample()
    shares = (0.5, 0.9, 0.99)
    workers = []
    for worker in range(trace.workers):
        sample = trace.sample(worker)
        failed = sum(worker in each.failed for each in trace.rounds)
        row = {"worker": worker, "tasks": len(sample), "given_up": int(given_up[:, worker].sum()), "failed": failed}
        workers.append(row | {f"p{100 * share:g}": sample.quantile(share) for share in shares})
    slowest = sorted(workers, key=lambda row: (-np.nan_to_num(row["p50"], nan=-1.0), -row["given_up"]))
    figures = {
        "rounds": len(trace),
        "workers": trace.workers,
        "tasks": len(whole),
        "given_up": int(given_up.sum()),
        "failed": sum(len(each.failed) for each in trace.rounds),
        "percentiles": {f"p{100 * share:g}": whole.quantile(share) for share in shares},
        "persistence": {str(lag): trace.persistence(lag) for lag in _LAGS if lag < len(trace)},
        "by_worker": workers,
    }
    if json_ != "-":
        from rich.console import Console
        from rich.text import Text

        console = Console(width=None if sys.stdout.isatty() else 160)
        width = max(console.width - 14, 10)
        console.print(f"{len(trace)} rounds from left to right, {trace.workers} workers", style="bold")
        for label, marks in heat_text(trace, width=width):
            line = Text(f"{label:>12} ")
            for mark in marks:
                line.append(mark, _HEAT.get(mark, ""))
            console.print(line)
        console.print("  · ░ ▒ ▓ █ fifths of all latencies, fastest first; x given up; blank: no task", style="dim")
        _show("Slowest workers", slowest[:_SLOWEST], False)
        head = {key: figures[key] for key in ("tasks", "given_up", "failed")} | figures["percentiles"]
        head |= {f"persistence, lag {lag}": value for lag, value in figures["persistence"].items()}
        _show("All", [head], False, (
            "p50, p90, p99: seconds by which that share has answered (Kaplan, Meier); inf: not while anybody waited.",
            "persistence: correlation of slowness with the same worker's so many rounds later; 0: drawn anew.",
        ))  # fmt: skip
    _write_json(json_, figures)
    if plot is not None:
        _save_plot(heat_map(trace), plot)


_HEAT = {"·": "green", "░": "green", "▒": "yellow", "▓": "dark_orange", "█": "red", "x": "bold red"}


@traces.command(epilog="Example: anyk trace fit rounds.jsonl")
def fit(file: TraceArgument, json_: Json = None) -> None:
    """Fit latency models by maximum likelihood and rank them; what was given up counts as longer than the wait."""
    from .runtime import rank_latencies

    _check_targets(json_, reads=file)
    fits = rank_latencies(_load_trace(file))
    rows: list[dict[str, Any]] = [
        {
            "model": repr(each.model),
            "log_likelihood": each.log_likelihood,
            "parameters": each.parameters,
            "bic": each.bic,
            "behind": each.bic - fits[0].bic,
        }
        for each in fits
    ]
    notes = ("bic: less is better; behind by 10 or more is strong evidence for the first.",)
    shown = [
        row | {"model": re.sub(r"\d+\.\d+", lambda number: f"{float(number[0]):.4g}", row["model"])} for row in rows
    ]
    _show(f"Latency models for {file}", shown, json_ == "-", notes)
    _write_json(json_, rows)


_SINGULAR_SHARE = 0.1  # of survivor sets without a solution that a frame may have and still be the best


@app.command(epilog="Example: anyk frame --workers 100 --blocks 50 --search 10 --output frame.json")
def frame(
    workers: Annotated[int, typer.Option(min=1, help="n.")],
    blocks: Annotated[int, typer.Option(min=1, help="m, the number of powers.")],
    responders: Annotated[int | None, typer.Option(min=1, help="k, how many answer; default: four fifths.")] = None,
    search: Annotated[
        float, typer.Option(min=0, help="Seconds to search for powers; 0: a fixed number of steps.")
    ] = 0.0,
    real: Annotated[bool, typer.Option("--real", help="Powers closed under negation: a real frame.")] = False,
    trials: Annotated[int, typer.Option(min=1, help="Survivor sets to draw.")] = 400,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE.json", help="Where the best powers and their figures go."),
    ] = None,
    json_: Json = None,
    seed: Seed = 0,
) -> None:
    """Find a quiet harmonic frame: powers whose noise amplification stays low whoever is missing."""
    from . import frames
    from .analysis import frame_figures
    from .difference_sets import difference_family, difference_set, is_prime, next_prime

    _check_targets(json_, **({} if output is None else {"output": output}))
    if blocks > workers:
        raise UsageError(f"{blocks} blocks need at least as many workers, got --workers {workers}")
    k = responders if responders is not None else max(blocks, round(0.8 * workers))
    if not blocks <= k <= workers:
        raise UsageError(f"--responders must lie in {blocks}..{workers} (blocks .. workers), got {k}")
    found: dict[str, Any] = {
        "optimized": frames.optimized_powers(workers, blocks, seed, real=real, responders=k, seconds=search or None),
        "random": frames.random_powers(workers, blocks, seed, real=real),
        "consecutive": range(blocks),
    }
    family = None if real else difference_family(workers, blocks)
    if family is not None:
        found = {f"difference set ({family})": difference_set(workers, blocks), **found}
    rows = [
        {"powers": name} | frame_figures(workers, powers, k, trials, seed + 1, real and name != "consecutive")
        for name, powers in found.items()
    ]
    fit = [index for index, row in enumerate(rows) if not real or row["powers"] != "consecutive"]
    best = min(fit, key=lambda index: (rows[index]["undecodable"] > _SINGULAR_SHARE, rows[index]["log_mean"]))
    name = rows[best]["powers"]
    notes = (
        f"Welch bound {frames.welch_bound(workers, blocks):.6g}; amplification at least {blocks / k:.4g} (m/k), "
        f"MANOVA's {rows[0]['manova']:.4g}; {trials} survivor sets, {k} answers each. Undecodable: the share of sets "
        "without a solution, which wait for more answers (singular: such sets are known to exist; none do for a prime "
        f"number of workers{'' if is_prime(workers) else f', such as {next_prime(workers)}'}).",
        f"Best: {name}: {', '.join(map(str, sorted(int(z) for z in found[name])))}",
        f"Any {rows[best]['threshold']} answers suffice, and most sets of {blocks}, which are louder: these figures "
        f"take stop=anyk.FirstK({k}).",
    )
    shown = [{key: value for key, value in row.items() if key != "manova"} for row in rows]
    _show(f"{k} of {workers} workers, {blocks} blocks", shown, json_ == "-", notes)
    is_real = real and name != "consecutive"
    record = {"workers": workers, "blocks": blocks, "responders": k, "seed": seed, "real": is_real, "best": name,
              "powers": [int(z) for z in found[name]], "figures": rows}  # fmt: skip
    if output is not None:
        _write_json(str(output), record)
        typer.echo(f"wrote {output}: use it as `anyk compare harmonic:powers={output}`, or in Python", err=True)
        typer.echo(
            f"  d = json.load(open({str(output)!r}))\n"
            "  code = anyk.HarmonicFrameCode(d['workers'], d['powers'], real=d['real'])",
            err=True,
        )
    _write_json(json_, record)


@app.command(epilog="Example: anyk demo --output demo-output")
def demo(
    output: Annotated[Path, typer.Option(help="Folder for the pictures and figures.")] = Path("demo-output"),
    json_: Json = None,
    seed: Seed = 0,
) -> None:
    """The main job on real data: 30 processes, some slow, one hung, one killed; three ways to cope. Half a minute."""
    _check_targets(json_)
    if output.exists() and not output.is_dir():
        raise UsageError(f"--output {output} is a file; name a folder")
    try:
        from .demo import run_demo

        records = run_demo(output, seed, lambda line: typer.echo(line, err=True))
    except ImportError as error:
        raise UsageError(f"{error}: pip install 'anyk[demo]'") from None
    _show("30 processes: 3 slow, 1 hung, 1 killed", records, json_ == "-")
    if json_ != "-":
        typer.echo(f"wrote {output}/timeline.png, error_vs_responders.png, demo.json")
    _write_json(json_, records)


def _warn(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: Any = None,
    line: str | None = None,
) -> None:
    """Our warnings in one line, without the place in this file that made the call."""
    from .errors import ApproximationWarning

    if issubclass(category, ApproximationWarning):
        typer.echo(f"anyk: warning: {message}", err=True)
    else:
        typer.echo(warnings.formatwarning(message, category, filename, lineno, line), err=True, nl=False)


def main() -> None:
    """Entry point: errors in one line, without a traceback unless ANYK_DEBUG is set."""
    if "--engine=mpi" in sys.argv or ("--engine", "mpi") in itertools.pairwise(sys.argv):
        from .runtime.mpi import command

        command(_main)
    else:
        _main()


def _main() -> None:
    from .errors import AnykError

    warnings.showwarning = _warn
    try:
        app()
    except Exception as error:
        if os.environ.get("ANYK_DEBUG"):
            raise
        expected = isinstance(error, AnykError | ValueError | TypeError | ImportError | OSError)
        kind = "" if expected else f"{type(error).__name__}: "
        hint = "" if expected else " (ANYK_DEBUG=1 shows the traceback)"
        typer.echo(f"anyk: {kind}{error}{hint}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
