"""A coverage-guided fuzzer on the parser of replies and frames: python benchmarks/fuzz_reply.py CORPUS -runs=1000000

Needs atheris, which nothing else does; further arguments are libFuzzer's. Inputs begin with a letter: R and a reply's
payload, F and a frame, H and choices for the strategies of tests/test_reply.py. Whatever is accepted is checked by
rules that are written down here once more. `trap` makes unpickling, imports, compiling and opening files failures.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import pickle
import random
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

PREFIX = struct.Struct("<Iq")
FRAME = struct.Struct("<4sBBHQQ")
KINDS = ["?", *(f"{sign}{size}" for sign in "iu" for size in (1, 2, 4, 8)), "f2", "f4", "f8", "g", "c8", "c16", "G"]
DTYPES = {np.dtype(kind).str: np.dtype(kind).itemsize for kind in KINDS}
LIMITS = {"header": 1 << 24, "buffers": 1 << 36, "depth": 64, "dimensions": 32}
SEGMENT = SimpleNamespace(view=memoryview(bytes(range(256)) * 16))  # what a reply may name as its shared memory
LIBRARIES = ["numpy", "torch", "array_api_strict", "jax.numpy", "cupy", "os", "", "numpy.ctypeslib"]
ATOMS = [
    None, True, False, -1, 0, 1, 2, 3, 255, 2**31, 2**32, 2**47, 2**48, 2**63, 2**64, 10**308, 10**309, 10**400,
    0.0, -0.0, 0.5, 1e308, math.inf, -math.inf, math.nan, "", "ok", "error", "d", "l", "t", "\ud800", "é\0", "__a__",
    *LIBRARIES, *DTYPES, "|O", "<M8[s]", ">f8", "|S4", "<U1", "|V8", [], [[]], {}, {"a": 0}, {"a": 0, "b": 1, "c": 2},
]  # fmt: skip
counts = {"accepted": 0, "failures": 0, "malformed": 0, "frames": 0, "strategies": 0}

# -- what may be accepted ---------------------------------------------------------------------------------------------


def lawful(text: bytes) -> tuple[list[Any], list[int]]:
    """A reply's header, and the bytes of each of its buffers; AssertionError where it breaks a rule."""
    assert len(text) <= LIMITS["header"], "long header"
    header = json.loads(text.decode())
    assert type(header) is list, "header"
    assert type(header[-1]) in (int, float), "time"
    assert 0 <= header[-1] <= sys.float_info.max, "time"
    if header[0] == "error":
        assert [type(part) for part in header[1:-1]] == [str] * 3, "texts"
        return header, []
    assert header[0] == "ok", "kind"
    assert len(header) == 4, "length"
    _, spec, leaves, _ = header
    assert type(leaves) is list, "leaves"
    sizes = []
    for leaf in leaves:
        assert type(leaf) is list, "leaf"
        library, dtype, shape = leaf
        assert type(library) is str, "library"
        assert type(shape) is list, "shape"
        assert all(type(side) is int and side >= 0 for side in shape), "shape"
        assert len(shape) <= LIMITS["dimensions"], "dimensions"
        sizes.append(DTYPES[dtype] * math.prod(shape))
    assert sum(sizes) <= LIMITS["buffers"], "size"
    assert list(numbered(spec, 0)) == list(range(len(leaves))), "leaves, each once and in order"
    return header, sizes


def numbered(spec: Any, depth: int) -> Iterator[int]:
    if type(spec) is int:
        yield spec
        return
    assert depth <= LIMITS["depth"], "depth"
    assert type(spec) is list, "structure"
    kind, children = spec
    assert type(children) is list, "children"
    assert kind in ("d", "l", "t"), "container"
    if kind == "d":
        keys = [key for key, _ in children]
        assert all(type(key) in (str, int) for key in keys), "keys"
        assert len(set(keys)) == len(keys), "distinct keys"
        children = [child for _, child in children]
    for child in children:
        yield from numbered(child, depth + 1)


def as_told(value: Any, spec: Any, arrays: list[Any]) -> None:
    """The value is what the header says, of the bytes that came with it."""
    if type(spec) is int:
        raw, dtype, shape = arrays[spec]
        got = value if isinstance(value, np.ndarray) else np.asarray(value)
        assert got.dtype.str == dtype, (got.dtype, dtype)
        assert got.shape == tuple(shape), (got.shape, shape)
        assert got.tobytes() == raw, "other bytes"
        assert not got.dtype.hasobject
        assert dtype != "|b1" or set(raw) <= {0, 1}, "a truth value of neither 0 nor 1"
        return
    kind, children = spec
    assert type(value) is {"d": dict, "l": list, "t": tuple}[kind], kind
    assert len(value) == len(children)
    if kind == "d":
        assert list(map(repr, value)) == [repr(key) for key, _ in children]
        value, children = list(value.values()), [child for _, child in children]
    for each, child in zip(value, children, strict=True):
        as_told(each, child, arrays)


def layouts(sizes: list[int]) -> list[int]:
    offsets, total = [], 0
    for size in sizes:
        offsets.append(total)
        total += size + -size % 64
    return offsets


def judge(payload: bytes) -> str:
    """Parse a reply as engines do, by shared memory or inline, and in parts; what became of it, if all is well."""
    from anyk.runtime import reply, wire

    with trapped():
        try:
            header, holder = wire.split_reply(memoryview(payload), {1: SEGMENT}.__getitem__)
            parsed = reply.parse(header)
            if isinstance(parsed, reply.Header):
                inline = holder.obj is payload
                value = reply.assemble(parsed, wire.cut(holder, parsed.sizes, whole=inline))
                again, arrays = reply.encode(value, parsed.seconds)
        except reply.Malformed:
            if len(payload) >= PREFIX.size:  # the same, of engines that move parts
                text = payload[PREFIX.size : PREFIX.size + PREFIX.unpack_from(payload)[0]]
                reply.event(0, 0, [text, payload[PREFIX.size + len(text) :]])
            return "malformed"
    told, sizes = lawful(bytes(header))
    assert header == payload[PREFIX.size :][: len(header)]
    if not isinstance(parsed, reply.Header):
        assert told[0] == "error"
        assert reply.parse(reply.encode_failure(*parsed)) == parsed
        return "failures"
    assert sizes == parsed.sizes
    held = bytes(holder)
    raw = [held[offset:][:size] for offset, size in zip(layouts(sizes), sizes, strict=True)]
    assert [len(each) for each in raw] == sizes
    assert not inline or len(held) == sum(size + -size % 64 for size in sizes), "something follows its arrays"
    as_told(value, told[1], [(each, *leaf[1:]) for each, leaf in zip(raw, told[2], strict=True)])
    canonical = reply.encode(value, parsed.seconds)
    assert canonical[0] == again
    retold, resized = lawful(again)
    assert (retold[1], resized, float(retold[3])) == (told[1], sizes, float(told[3]))
    assert [leaf[1:] for leaf in retold[2]] == [leaf[1:] for leaf in told[2]]
    with trapped():
        event = reply.event(0, 0, [again, *(np.ascontiguousarray(a).reshape(-1).view(np.uint8) for a in arrays)])
    assert event.kind == "ok", event
    as_told(event.value, retold[1], [(a.tobytes(), *leaf[1:]) for a, leaf in zip(arrays, retold[2], strict=True)])
    return "accepted"


def judge_frame(data: bytes) -> str:
    """A header of a frame is refused, or is one."""
    from anyk.runtime import reply, wire

    with trapped():
        try:
            kind, descriptors, sequence, length = wire.parse_header(data)
        except reply.Malformed:
            return "malformed"
    assert kind <= 2
    assert length <= LIMITS["header"] + LIMITS["buffers"]
    assert FRAME.pack(b"ANYK", kind, descriptors, 0, sequence, length) == data[: FRAME.size]
    return "frames"


# -- what must not happen ---------------------------------------------------------------------------------------------

_trapped = False
FORBIDDEN = ("exec", "compile", "import", "open", "os.", "subprocess.", "pickle.", "marshal.", "ctypes.", "socket.")


@contextlib.contextmanager
def trapped() -> Iterator[None]:
    global _trapped
    _trapped = True
    try:
        yield
    finally:
        _trapped = False


def trap() -> None:
    """From now on whatever executes anything, inside `trapped`, ends this process: no handler can hide it."""

    def refuse(*args: Any, **options: Any) -> Any:
        print("a reply was unpickled", args, file=sys.stderr, flush=True)
        os.abort()

    def hook(event: str, args: Any) -> None:
        if _trapped and event.startswith(FORBIDDEN):
            refuse(event, args)

    sys.addaudithook(hook)
    pickle.loads = pickle.load = pickle.Unpickler = pickle._Unpickler = refuse  # type: ignore


# -- what is tried ----------------------------------------------------------------------------------------------------


def pack(header: Any, buffers: bytes = b"", number: int = -1) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    return PREFIX.pack(len(text), number) + text + buffers


def seeds() -> list[bytes]:
    """Valid inputs of all kinds."""
    from anyk.runtime import reply, wire

    trees: list[Any] = [
        1.5,
        {"a": [np.arange(6.0).reshape(2, 3), 1j], "b": (np.zeros(0, np.float32), {"c": np.array([True])}), 3: ()},
        [np.ones((2, 1, 2), kind) for kind in DTYPES],
    ]
    payloads = [wire.join_reply(*reply.encode(tree, 0.5), lambda nbytes: None) for tree in trees]
    payloads += [pack(["ok", 0, [[library, "<f4", [2]]], 1], bytes(64)) for library in LIBRARIES]
    payloads += [
        pack(["error", "ValueError", "text", "a traceback"[:9], 0.1]),
        pack(["ok", 0, [["", "<f8", [4, 4]]], 2], b"", 1),
    ]
    frames = [wire.frame(kind, 7, b"payload", kind) for kind in range(3)]
    choices = [random.Random(seed).randbytes(300) for seed in range(4)]
    return [b"R" + each for each in payloads] + [b"F" + each for each in frames] + [b"H" + each for each in choices]


def mutate(data: bytes, rng: random.Random, havoc: Callable[[bytes], bytes], size: int = 1 << 14) -> bytes:
    """Another input: mostly a reply whose structure is changed while its lengths stay right."""
    kind, body = data[:1], data[1:]
    if kind not in (b"R", b"F", b"H"):
        return rng.choice(seeds())
    if kind != b"R" or rng.random() < 0.2:
        return kind + havoc(body)[: size - 1]
    try:
        length, number = PREFIX.unpack_from(body)
        text, rest = body[PREFIX.size : PREFIX.size + length], body[PREFIX.size + length :]
        header = json.loads(text)
    except (struct.error, ValueError, RecursionError):
        return rng.choice(seeds())
    for _ in range(rng.choice((1, 1, 1, 2, 3, 5))):
        header = changed(header, rng)
    if rng.random() < 0.7:
        rest = fitted(header, rest, rng)
    if rng.random() < 0.1:
        rest = havoc(rest)
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=rng.random() < 0.9).encode("utf-8", "surrogatepass")
    if rng.random() < 0.1:
        text = havoc(text)
    number = rng.choice((number, number, number, -1, 0, 1, -2))
    length = len(text) + (rng.choice((-1, 1, 64)) if rng.random() < 0.03 else 0)
    return (b"R" + PREFIX.pack(max(length, 0), number) + text + rest)[:size]


def scrambled(part: bytes, rng: random.Random) -> bytes:
    """A few bytes changed; what libFuzzer does better."""
    data = bytearray(part)
    for _ in range(rng.randrange(1, 4)):
        place = rng.randrange(len(data) + 1)
        data[place : place + rng.randrange(3)] = rng.randbytes(rng.randrange(3))
    return bytes(data)


def places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(tree, list | dict):
        for key, child in enumerate(tree) if isinstance(tree, list) else tree.items():
            yield from places(child, (*path, key))


def changed(tree: Any, rng: random.Random) -> Any:
    """One change at one place; `tree` is used up."""
    try:
        *path, last = rng.choice([place for place in places(tree) if place] or [(0,)])
        parent = tree
        for key in path:
            parent = parent[key]
        old, how = parent[last], rng.randrange(8)
        if how == 0:
            del parent[last]
        elif how == 1 and isinstance(parent, list):
            parent.insert(last, json.loads(json.dumps(old)))
        elif how == 2:
            parent[last] = [rng.choice("dlt"), [old]] if rng.random() < 0.5 else [old]
        elif how == 3 and isinstance(old, list):
            rng.shuffle(old)
        elif how == 4 and type(old) in (int, float):
            parent[last] = old + rng.choice((-1, 1, 0.5, 2**48))
        elif how == 5:  # another leaf, told in both places
            leaves = tree[2]
            leaves.append(
                [rng.choice(LIBRARIES), rng.choice(list(DTYPES)), [rng.randrange(4) for _ in range(rng.randrange(4))]]
            )
            tree[1] = [rng.choice("lt"), [tree[1], len(leaves) - 1]]
        else:
            parent[last] = json.loads(json.dumps(rng.choice(ATOMS)))
    except (TypeError, LookupError, AttributeError, OverflowError):
        return tree if tree else ["ok", 0, [["numpy", "<f8", []]], 0]
    return tree


def fitted(header: Any, rest: bytes, rng: random.Random) -> bytes:
    """As many bytes as the header asks for, where that is not much."""
    try:
        total = sum(
            int(size + -size % 64)
            for size in (DTYPES[kind] * math.prod(map(float, shape)) for _, kind, shape in header[2])
        )
        return (rest + rng.randbytes(total))[:total] if 0 <= total <= 1 << 12 else rest
    except (TypeError, LookupError, ValueError, OverflowError):
        return rest


def one_input(data: bytes, strategies: Callable[[bytes], Any] | None = None) -> None:
    kind, body = data[:1], data[1:]
    if kind == b"F":
        counts[judge_frame(body)] += 1
    elif kind == b"H" and strategies is not None:
        counts["strategies"] += 1
        strategies(body)
    else:
        counts[judge(body)] += 1


def main() -> None:
    import atheris

    with atheris.instrument_imports(include=["anyk.runtime.reply", "anyk.runtime.wire"]):
        from anyk.runtime import reply, wire  # noqa: F401
    import array_api_strict  # noqa: F401  replies may ask for libraries that are there
    import torch  # noqa: F401

    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    import test_reply

    forged = test_reply.test_forged_headers.hypothesis.fuzz_one_input
    folder = Path(next((each for each in sys.argv[1:] if not each.startswith("-")), "."))
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        folder.mkdir(parents=True, exist_ok=True)
        for index, seed in enumerate(seeds()):
            (folder / f"seed-{index:02}").write_bytes(seed)
    trap()

    def mutator(data: bytes, size: int, seed: int) -> bytes:
        return mutate(
            bytes(data), random.Random(seed), lambda part: bytes(atheris.Mutate(bytes(part), len(part) + 16)), size
        )

    done = 0

    def test(data: bytes) -> None:
        nonlocal done
        one_input(data, forged)
        done += 1
        if done % 100_000 == 0:
            print(done, counts, file=sys.stderr, flush=True)

    atheris.Setup(
        [*sys.argv, "-print_final_stats=1", "-max_len=16384", "-rss_limit_mb=8192"], test, custom_mutator=mutator
    )
    atheris.Fuzz()


if __name__ == "__main__":
    main()
