"""Modules import downward only; names are exported as promised; `import anyk` is light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import anyk

SOURCE = Path(anyk.__file__).parent
# From the bottom up. A trailing dot stands for a package's modules; modules of one layer may import one another.
LAYERS = [
    ("errors",),
    ("points", "placement", "difference_sets", "spectra", "streams"),
    ("interpolation", "frames", "splines"),
    ("ordering",),
    ("blocks",),
    ("digest",),
    ("codes.base",),
    ("codes", "codes."),
    ("locate",),
    ("analysis", "plan"),
    ("runtime", "runtime."),
    ("plots",),  # knows what a run is, not how one comes about
    ("mapping", "summing", "operators"),
    ("training",),
    ("engine_laws", "gradient_laws", "product_laws"),
    ("testing", "reproduce", "reproduce.", "demo", "torch", "torch."),
    ("",),  # the public names
    ("parsing",),
    ("cli", "__main__"),
]
MODULES = sorted(SOURCE.rglob("*.py"))


def name_of(path: Path) -> str:
    parts = list(path.relative_to(SOURCE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMES = {name_of(path) for path in MODULES}


def layer_of(module: str) -> int:
    for index, layer in enumerate(LAYERS):
        if module in layer:
            return index
    for index, layer in enumerate(LAYERS):
        if any(entry.endswith(".") and module.startswith(entry) for entry in layer):
            return index
    raise AssertionError(f"anyk.{module} has no layer: give it one in tests/test_imports.py and docs/design.md")


def is_type_checking(node: ast.AST) -> bool:
    if not isinstance(node, ast.If):
        return False
    test = node.test
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def statements(tree: ast.AST):
    """All imports that may run, those inside functions too."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif is_type_checking(node):
            for child in node.orelse:
                yield from statements(ast.Module([child], []))
        else:
            yield from statements(node)


def imports_of(source: str, module: str, is_package: bool) -> set[str]:
    """The modules of anyk that a module imports; ``from . import x`` counts as x where x is a module."""
    package = module.split(".") if module else []
    if not is_package:
        package = package[:-1]
    found = set()
    for node in statements(ast.parse(source)):
        if isinstance(node, ast.Import):
            dotted = [alias.name for alias in node.names]
            found |= {name.removeprefix("anyk").lstrip(".") for name in dotted if name.split(".")[0] == "anyk"}
            continue
        if node.level:
            base = package[: len(package) - node.level + 1]
            origin = ".".join(base + (node.module.split(".") if node.module else []))
        elif node.module and node.module.split(".")[0] == "anyk":
            origin = node.module.removeprefix("anyk").lstrip(".")
        else:
            continue
        for alias in node.names:
            inner = f"{origin}.{alias.name}".lstrip(".")
            found.add(inner if inner in NAMES else origin)
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: name_of(path) or "anyk")
def test_imports_run_downward(path):
    module = name_of(path)
    own = layer_of(module)
    for other in imports_of(path.read_text(), module, path.name == "__init__.py"):
        assert other in NAMES, f"anyk.{module} imports anyk.{other}, which does not exist"
        assert layer_of(other) <= own, f"anyk.{module} imports anyk.{other}, which lies above it"


def test_no_cycles_at_import_time():
    """Within one layer, too; a package's __init__ is left out, since its modules import past it."""
    edges = {}
    for path in MODULES:
        if path.name != "__init__.py":
            module = name_of(path)
            edges[module] = imports_of(path.read_text(), module, False) & NAMES
    done: set[str] = set()

    def visit(module, trail):
        assert module not in trail, f"cycle: {' -> '.join([*trail, module])}"
        if module not in done:
            for other in edges.get(module, ()):
                visit(other, [*trail, module])
            done.add(module)

    for module in edges:
        visit(module, [])


@pytest.mark.parametrize(
    ("source", "module", "is_package", "expected"),
    [
        ("from .points import Nodes", "interpolation", False, {"points"}),
        ("from .. import blocks as _blocks", "codes.base", False, {"blocks"}),
        ("from .base import Code", "codes.berrut", False, {"codes.base"}),
        ("from .base import Code", "codes", True, {"codes.base"}),
        ("from . import errors", "", True, {"errors"}),
        ("import anyk.cli", "blocks", False, {"cli"}),
        ("import anyk", "blocks", False, {""}),
        ("from anyk.codes import BerrutCode", "blocks", False, {"codes"}),
        ("import numpy\nfrom torch import nn", "blocks", False, set()),
        ("def f():\n    from .cli import main", "blocks", False, {"cli"}),
        ("if TYPE_CHECKING:\n    from .cli import main\nelse:\n    from .plots import x", "blocks", False, {"plots"}),
    ],
)
def test_imports_are_read_correctly(source, module, is_package, expected, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "NAMES", NAMES | {"cli", "plots"})
    assert imports_of(source, module, is_package) == expected


def test_public_names_exist_and_are_sorted():
    assert anyk.__all__ == sorted(anyk.__all__)
    assert len(set(anyk.__all__)) == len(anyk.__all__)
    for name in anyk.__all__:
        assert getattr(anyk, name) is not None


@pytest.mark.parametrize("path", MODULES, ids=lambda path: name_of(path) or "anyk")
def test_all_lists_of_modules_name_what_is_there(path):
    """Read, not imported: some modules need optional libraries."""
    tree = ast.parse(path.read_text())
    defined, listed = set(), None
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            defined |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    defined.add(target.id)
                    if target.id == "__all__":
                        listed = ast.literal_eval(node.value)
    if listed is not None:
        assert listed == sorted(listed)
        assert set(listed) <= defined


def test_import_is_light():
    heavy = ["matplotlib", "torch", "sklearn", "rich", "typer", "mpmath", "hypothesis"]
    script = f"import sys, anyk; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
    assert done.stderr == ""
