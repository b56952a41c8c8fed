"""What is written on the command line, as objects: codes, stop rules and functions."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import inspect
import json
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import typer

__all__ = [
    "GRADIENT_CODES",
    "PRODUCT_CODES",
    "UsageError",
    "data_codes",
    "data_options",
    "gradient_options",
    "load_function",
    "parse_any_code",
    "parse_code",
    "parse_gradient_code",
    "parse_stop",
    "product_options",
]


class UsageError(typer.BadParameter):
    """Bad input on the command line: exit status 2, one line."""


def data_codes() -> dict[str, Any]:
    """Data codes by name."""
    from . import codes

    return {
        "berrut": codes.BerrutCode,
        "spline": codes.SplineCode,
        "floater-hormann": codes.FloaterHormannCode,
        "bspline": codes.BSplineCode,
        "learning-theoretic": codes.LearningTheoreticCode,
        "lagrange": codes.LagrangeCode,
        "repetition": codes.RepetitionCode,
        "uncoded": codes.UncodedCode,
        "harmonic": _harmonic,
        "gaussian": codes.GaussianFrameCode,
        "vandermonde": codes.VandermondeCode,
        "chebyshev": codes.ChebyshevCode,
        "mds": codes.SystematicMDSCode,
    }


def _harmonic(
    workers: int,
    blocks: int,
    powers: str = "optimized",
    real: bool = False,
    seed: int = 0,
    below_threshold: str = "raise",
) -> Any:
    """Powers by the name of the way to choose them."""
    from .codes import HarmonicFrameCode
    from .difference_sets import difference_set
    from .frames import optimized_powers, random_powers

    if powers.endswith(".json"):
        return _saved_frame(powers, workers, blocks, below_threshold)
    makers: dict[str, Callable[[], Any]] = {
        "optimized": lambda: optimized_powers(workers, blocks, seed, real=real),
        "random": lambda: random_powers(workers, blocks, seed, real=real),
        "difference": lambda: difference_set(workers, blocks),
        "consecutive": lambda: range(blocks),
    }
    if powers not in makers:
        raise ValueError(f"powers must be one of {', '.join(makers)}, or a FILE.json of `anyk frame`, got {powers!r}")
    if blocks > workers:
        raise ValueError(f"{blocks} blocks need at least as many workers, got workers={workers}")
    return HarmonicFrameCode(workers, makers[powers](), real=real, below_threshold=below_threshold)  # type: ignore[arg-type]


def _saved_frame(path: str, workers: int, blocks: int, below_threshold: str) -> Any:
    """What `anyk frame --output` has written."""
    from .codes import HarmonicFrameCode

    try:
        saved = json.loads(Path(path).read_text())
        code = HarmonicFrameCode(saved["workers"], saved["powers"], real=saved["real"], below_threshold=below_threshold)  # type: ignore[arg-type]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is not a file that `anyk frame --output` has written: {error}") from None
    if (code.workers, code.blocks) != (workers, blocks):
        raise UsageError(f"{path} is for {code.workers} workers and {code.blocks} blocks, not {workers} and {blocks}")
    return code


def _near_square(count: int) -> int:
    """The divisor of count next to its root, from below."""
    return max(d for d in range(1, count + 1) if count % d == 0 and d * d <= count)


def _outer(kind: str) -> Callable[..., Any]:
    """Product codes that need p n answers; p n is the number of blocks unless said otherwise."""

    def build(workers: int, blocks: int, p: int = 0, n: int = 0, seed: int = 0, **options: Any) -> Any:
        from . import codes

        p = p or (_divided(blocks, n=n) if n else _near_square(blocks))
        return getattr(codes, kind)(workers, p, n or _divided(blocks, p=p), rng=seed, **options)

    return build


def _matdot(workers: int, blocks: int, m: int = 0, **options: Any) -> Any:
    from .codes import MatDotCode

    return MatDotCode(workers, m or blocks, **options)


def _entangled(workers: int, blocks: int, p: int = 2, m: int = 2, n: int = 0, **options: Any) -> Any:
    from .codes import EntangledPolynomialCode

    return EntangledPolynomialCode(workers, p, m, n or _divided(blocks, p=p, m=m), **options)


def _divided(blocks: int, **splits: int) -> int:
    """What is left of the blocks for the last split."""
    product = math.prod(splits.values())
    if blocks % product:
        given = ", ".join(f"{name}={value}" for name, value in splits.items())
        raise ValueError(f"{blocks} blocks cannot be cut by {given}: give all splits, or divisors of the blocks")
    return blocks // product


PRODUCT_CODES: dict[str, Callable[..., Any]] = {
    "polynomial": _outer("PolynomialCode"),
    "khatri-rao": _outer("KhatriRaoCode"),
    "matdot": _matdot,
    "entangled": _entangled,
}


def product_options(name: str) -> dict[str, Any]:
    """Options of a product code on the command line, and their defaults."""
    listed = {key: each.default for key, each in inspect.signature(PRODUCT_CODES[name]).parameters.items()}
    listed = {key: value for key, value in listed.items() if key not in ("workers", "blocks", "options")}
    bases = {"polynomial": "harmonic", "matdot": "harmonic", "entangled": "circle"}
    return listed | ({"basis": bases[name]} if name in bases else {}) | {"below_threshold": "raise"}


def data_options(name: str) -> dict[str, Any]:
    """Options of a data code on the command line, and their defaults."""
    kind = data_codes()[name]
    if dataclasses.is_dataclass(kind):
        listed = {each.name: each.default for each in dataclasses.fields(kind)}
    else:
        listed = {key: each.default for key, each in inspect.signature(kind).parameters.items()}
    return {"seed" if key == "rng" else key: value for key, value in listed.items() if key not in ("workers", "blocks")}


def _options(name: str, text: str, known: dict[str, Any]) -> dict[str, Any]:
    """``option=value,option=value`` as the types of the defaults."""
    options: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        key, equals, value = part.partition("=")
        if key not in known or not equals:
            raise UsageError(f"{name} has no option {part!r}: {', '.join(known) or 'it has none'} (as option=value)")
        kind: Any = type(known[key])
        try:
            if kind is bool:
                options[key] = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[
                    value.lower()
                ]
            else:
                options[key] = kind(value)
        except (ValueError, KeyError):
            raise UsageError(f"{key} of {name} must be of type {kind.__name__}, got {value!r}") from None
        if key == "seed" and options[key] < 0:
            raise UsageError(f"seed of {name} must be at least 0, got {value}")
    return options


def parse_any_code(text: str, workers: int, blocks: int, **defaults: Any) -> Any:
    """A data, gradient or product code, by its name; `defaults` are options that a gradient code need not have.

    Examples
    --------
    >>> parse_any_code("matdot:m=4", 9, 4).threshold
    7
    """
    name = text.partition(":")[0]
    if name in GRADIENT_CODES:
        return parse_gradient_code(text, workers, blocks, **defaults)
    if name not in PRODUCT_CODES:
        return parse_code(text, workers, blocks)
    try:
        return PRODUCT_CODES[name](workers, blocks, **_options(name, text.partition(":")[2], product_options(name)))
    except ValueError as error:
        raise UsageError(str(error)) from None


def _placed(kind: str) -> Callable[..., Any]:
    """A builder of codes for any placement: cyclic, or random where asked for."""

    def build(
        workers: int,
        partitions: int,
        replicas: int = 0,
        stragglers: int = 0,
        adversaries: int = 0,
        placement: str = "cyclic",
        seed: int = 0,
        **options: Any,
    ) -> Any:
        from . import codes
        from . import placement as placements

        makers = {
            "cyclic": placements.cyclic_placement,
            "random": lambda n, k, r: placements.random_placement(n, k, r, rng=seed),
            "fractional": placements.fractional_repetition_placement,
        }
        if placement not in makers:
            raise ValueError(f"placement must be one of {', '.join(makers)}, got {placement!r}")
        copies = replicas or min(stragglers + 2 * adversaries + 1, workers)
        held = makers[placement](workers, partitions, copies)
        if kind == "NullSpaceCode":
            options = {"rng": seed, **options}
        return getattr(codes, kind)(held, stragglers=stragglers, adversaries=adversaries, **options)

    return build


def _group(
    workers: int, partitions: int, replicas: int = 0, stragglers: int = 0, adversaries: int = 0, seed: int = 0
) -> Any:
    from . import codes

    copies = replicas or min(stragglers + 2 * adversaries + 1, workers)
    return codes.GroupCode(workers, partitions, copies, stragglers, adversaries, rng=seed)


def _ring(kind: str) -> Callable[..., Any]:
    def build(workers: int, partitions: int, stragglers: int = 0, seed: int = 0) -> Any:
        from . import codes

        if partitions != workers:
            raise ValueError(f"a code on a ring has as many partitions as workers, got {partitions} and {workers}")
        return getattr(codes, kind)(workers, stragglers, **({"rng": seed} if kind == "CyclicCode" else {}))

    return build


def _fractional(workers: int, partitions: int, stragglers: int = 0, adversaries: int = 0) -> Any:
    from . import codes

    return codes.FractionalRepetitionCode(workers, partitions, stragglers, adversaries)


def _graph(
    workers: int, partitions: int, replicas: int = 3, stragglers: int = 0, graph: str = "regular", seed: int = 0
) -> Any:
    from . import codes

    return codes.GraphCode(workers, partitions, replicas, stragglers, graph, rng=seed)  # type: ignore[arg-type]


def _ignore(workers: int, partitions: int, stragglers: int = 0) -> Any:
    from . import codes

    return codes.IgnoreStragglersCode(workers, partitions, stragglers)


GRADIENT_CODES: dict[str, Callable[..., Any]] = {
    "nullspace": _placed("NullSpaceCode"),
    "group": _group,
    "universal": _placed("UniversalPolynomialCode"),
    "berrut-gradient": _placed("BerrutGradientCode"),
    "cyclic": _ring("CyclicCode"),
    "cyclic-mds": _ring("CyclicMDSCode"),
    "fractional": _fractional,
    "graph": _graph,
    "ignore": _ignore,
}
_TEXT_OPTIONS = ("placement", "nodes", "decoder", "graph")


def gradient_options(name: str) -> list[str]:
    """Options of a gradient code on the command line."""
    listed = list(inspect.signature(GRADIENT_CODES[name]).parameters)
    extra = {"universal": ["nodes", "chunks", "decoder"], "berrut-gradient": ["chunks", "decoder"]}.get(name, [])
    return [each for each in listed if each not in ("workers", "partitions", "options")] + extra


def parse_gradient_code(text: str, workers: int, partitions: int, **defaults: Any) -> Any:
    """A gradient code from ``name`` or ``name:option=value,...``; `defaults` are options it need not have.

    Examples
    --------
    >>> parse_gradient_code("fractional:stragglers=2", 6, 6)
    FractionalRepetitionCode(workers=6, partitions=6, stragglers=2, adversaries=0)
    """
    name, _, rest = text.partition(":")
    if name not in GRADIENT_CODES:
        raise UsageError(f"no gradient code is called {name!r}: choose one of {', '.join(GRADIENT_CODES)}")
    known = gradient_options(name)
    options = {key: value for key, value in defaults.items() if key in known}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if key not in known or not equals:
            raise UsageError(f"{name} has no option {part!r}: {', '.join(known)} (as option=value)")
        try:
            options[key] = value if key in _TEXT_OPTIONS else int(value)
            if key not in _TEXT_OPTIONS and options[key] < 0:
                raise ValueError
        except ValueError:
            raise UsageError(f"{key} of {name} must be an integer of at least 0, got {value!r}") from None
    try:
        return GRADIENT_CODES[name](workers, partitions, **options)
    except ValueError as error:
        raise UsageError(str(error)) from None


def parse_code(text: str, workers: int, blocks: int) -> Any:
    """A data code from ``name`` or ``name:option=value,option=value``.

    Examples
    --------
    >>> parse_code("lagrange:degree=2", 9, 4)
    LagrangeCode(workers=9, blocks=4, degree=2, below_threshold='raise')
    """
    name, _, rest = text.partition(":")
    known = data_codes()
    if name in PRODUCT_CODES:
        raise UsageError(f"{name} is a code for products of matrices; here choose one of {', '.join(known)}")
    if name not in known:
        raise UsageError(f"no code is called {name!r}: choose one of {', '.join(known)}")
    options = _options(name, rest, data_options(name))
    try:
        seed = {"rng": options.pop("seed")} if "seed" in options and known[name] is not _harmonic else {}
        return known[name](workers=workers, blocks=blocks, **options, **seed)
    except ValueError as error:
        raise UsageError(str(error)) from None


def parse_stop(text: str) -> Any:
    """A stop rule from ``first:24``, ``deadline:2.5``, ``all`` or ``sufficient``; a comma means whichever comes first.

    Examples
    --------
    >>> parse_stop("first:24,deadline:2.5")
    FirstK(k=24) | Deadline(seconds=2.5)
    """
    from .runtime.stop import All, Deadline, FirstK, StopRule, Sufficient

    rule: StopRule | None = None
    for part in text.split(","):
        name, _, value = part.strip().partition(":")
        try:
            if name == "first":
                one: StopRule = FirstK(int(value))
            elif name == "deadline":
                one = Deadline(float(value))
            elif name in ("all", "sufficient") and not value:
                one = All() if name == "all" else Sufficient()
            else:
                raise UsageError(f"no stop rule {part!r}: use first:24, deadline:2.5, all or sufficient")
        except ValueError as error:
            raise UsageError(f"stop rule {part!r}: {error}") from None
        rule = one if rule is None else rule | one
    assert rule is not None
    return rule


def load_function(text: str) -> Any:
    """The function MODULE:FUNCTION or FILE.py:FUNCTION; the current folder is searched for modules."""
    place, colon, name = text.rpartition(":")
    if not (place and colon and name):
        raise UsageError(f"the function must be given as MODULE:FUNCTION or FILE.py:FUNCTION, got {text!r}")
    try:
        if place.endswith(".py"):
            path = Path(place).resolve()
            if not path.is_file():
                raise UsageError(f"there is no file {place}")
            sys.path.insert(0, str(path.parent))
            spec = importlib.util.spec_from_file_location(f"_anyk_{path.stem}", path)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module
            spec.loader.exec_module(module)
            cloudpickle.register_pickle_by_value(module)  # workers cannot import it by that name
        else:
            sys.path.insert(0, os.getcwd())
            module = importlib.import_module(place)
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        if os.environ.get("ANYK_DEBUG"):
            raise
        raise UsageError(f"cannot import {place}: {type(error).__name__}: {error}") from None
    fn: Any = module
    for part in name.split("."):
        if not hasattr(fn, part):
            raise UsageError(f"{place} has no {name!r}")
        fn = getattr(fn, part)
    if not callable(fn):
        raise UsageError(f"{text} is not a function")
    return fn
