"""The import graph: layers, siblings, owners of third-party packages, no cycles."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "meshc"

# Each part may import the parts below it, never its own row: parts of a row are siblings.
ROWS = (
    ("support", "version"),
    ("devices",),
    ("ir",),
    ("analysis",),
    ("cost",),
    ("verify",),
    ("frontend", "passes", "backends", "interp", "sim", "serving"),
    ("pipelines",),
    ("driver",),
    ("cli", "api"),
    ("__init__", "__main__"),
)
HEIGHT = {part: height for height, row in enumerate(ROWS) for part in row}

# The one module (or folder) that may import a third-party package.
OWNERS = {
    "islpy": "meshc.analysis.isl",
    "networkx": "meshc.analysis.graphs",
    "lark": "meshc.support.grammar",
    "jinja2": "meshc.backends.templates",
    "tqdm": "meshc.cli.progress",
    "argcomplete": "meshc.cli.completion",
    "gguf": "meshc.frontend.models",
    "safetensors": "meshc.frontend.models",
    "tokenizers": "meshc.frontend.models",
    "matplotlib": "meshc.serving.plots",
}
# Needed by everyone who computes.
FREE = {"numpy"}


def module_name(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def for_types_only(tree):
    """Import nodes under ``if TYPE_CHECKING``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield from ast.walk(node)


def imported(path, name, types=True):
    """Absolute names that the file at ``path``, module ``name``, imports, with their lines.

    Without ``types``, imports for type checkers only are left out: they cannot form a cycle.
    """
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = set() if types else set(for_types_only(tree))
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                up = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*up, *([node.module] if node.module else [])])
            for alias in node.names:
                whole = f"{base}.{alias.name}"
                yield (whole if whole in MODULES else base), node.lineno


EDGES = {name: list(imported(path, name)) for name, path in MODULES.items()}


def part_of(name):
    pieces = name.split(".")
    return pieces[1] if len(pieces) > 1 else "__init__"


def test_every_part_has_a_place():
    assert {part_of(name) for name in MODULES} <= set(HEIGHT)


@pytest.mark.parametrize("name", MODULES)
def test_imports_go_down(name):
    mine = part_of(name)
    wrong = []
    for target, line in EDGES[name]:
        if target.split(".")[0] != "meshc":
            continue
        other = part_of(target)
        if other != mine and HEIGHT[other] >= HEIGHT[mine]:
            wrong.append(f"line {line}: {target}")
    assert wrong == []


@pytest.mark.parametrize("name", MODULES)
def test_third_party_packages_have_one_owner(name):
    wrong = []
    for target, line in EDGES[name]:
        top = target.split(".")[0]
        if top in sys.stdlib_module_names or top in FREE or top == "meshc":
            continue
        owner = OWNERS.get(top)
        if owner is None or not (name == owner or name.startswith(f"{owner}.")):
            wrong.append(f"line {line}: {target}")
    assert wrong == []


@pytest.mark.parametrize("name", MODULES)
def test_no_import_inside_a_function(name):
    tree = ast.parse(MODULES[name].read_text(encoding="utf-8"))
    found = [
        inner.lineno
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for inner in ast.walk(node)
        if isinstance(inner, (ast.Import, ast.ImportFrom))
    ]
    assert found == []


def test_no_import_cycles():
    """Modules, packages included, form no cycle."""
    check_no_cycles(
        {
            name: {t for t, _ in imported(path, name, types=False) if t in MODULES and t != name}
            for name, path in MODULES.items()
        }
    )


def test_the_csl_back_end_has_no_cycle_of_types_either():
    """What is imported for type checkers only forms no cycle in ``backends/csl``."""
    inside = [name for name in MODULES if name.startswith("meshc.backends.csl.")]
    assert len(inside) > 20
    check_no_cycles({name: {t for t, _ in EDGES[name] if t in inside} for name in inside})


def check_no_cycles(graph):
    done, path = set(), []

    def visit(name):
        assert name not in path, " -> ".join([*path[path.index(name) :], name])
        if name in done:
            return
        path.append(name)
        for target in sorted(graph[name]):
            visit(target)
        path.pop()
        done.add(name)

    for name in sorted(graph):
        visit(name)


def test_the_rules_can_fail(tmp_path):
    """The scanner sees what it must see: relative, nested and aliased imports."""
    text = "from . import b\nimport islpy as i\ndef f():\n    from meshc.cli import entry\n"
    path = tmp_path / "a.py"
    path.write_text(text)
    found = [target for target, _ in imported(path, "meshc.ir.a")]
    assert found == ["meshc.ir", "islpy", "meshc.cli.entry"]
