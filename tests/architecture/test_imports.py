"""The import graph: layers, siblings, owners of third-party packages, no cycles."""

import ast
import sys
from functools import cache

from sources import FILES, ROOT, nodes

# Each part may import the parts below it, never its own row: parts of a row are siblings.
ROWS = (
    ("version",),
    ("support",),
    ("devices", "published"),
    ("ir",),
    ("analysis",),
    ("cost",),
    ("verify", "mlir"),
    ("frontend", "passes", "interp", "sim", "serving"),
    ("pipelines",),
    ("backends",),
    ("driver",),
    ("view",),
    ("api",),
    ("torch",),
    ("cli",),
    ("testing",),
    ("__init__", "__main__"),
)
HEIGHT = {part: height for height, row in enumerate(ROWS) for part in row}

# The one module (or folder) that may import a third-party package; what templates of models and
# those of emitted texts need of jinja2 has nothing in common.
OWNERS = {
    "islpy": ("meshc.analysis.proofs.isl", "meshc.analysis.proofs.islsets"),
    "networkx": "meshc.support.graphs",
    "lark": "meshc.support.grammar",
    "jinja2": ("meshc.backends.templates", "meshc.frontend.chat.sandbox", "meshc.view.page"),
    "pytest": "meshc.testing",
    "tqdm": "meshc.cli.progress",
    "argcomplete": "meshc.cli.shell_completion",
    "gguf": "meshc.frontend.checkpoints",
    "safetensors": "meshc.frontend.checkpoints",
    "tokenizers": "meshc.frontend.checkpoints",
    "matplotlib": (
        "meshc.serving.plots",
        "meshc.driver.planning.pictures",
        "meshc.driver.tuning.pictures",
        "meshc.view.pictures",
    ),
    "distributed": "meshc.support.cluster",
    "torch": "meshc.torch",
    "transformers": "meshc.torch",
    "starlette": "meshc.serving.endpoint",
    "uvicorn": "meshc.serving.endpoint",
    "prometheus_client": "meshc.serving.endpoint",
    "llguidance": "meshc.serving.endpoint.schemas",
}
# Needed by everyone who computes.
FREE = {"numpy"}


def module_name(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in FILES}


def imported(path, name):
    """Absolute names that the file at ``path``, module ``name``, imports, with their lines."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in nodes(path):
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


@cache
def edges():
    """What each module imports."""
    return {name: list(imported(path, name)) for name, path in MODULES.items()}


def part_of(name):
    pieces = name.split(".")
    return pieces[1] if len(pieces) > 1 else "__init__"


def test_every_part_has_a_place():
    assert {part_of(name) for name in MODULES} <= set(HEIGHT)


def test_imports_go_down():
    wrong = [
        f"{name}:{line}: {target}"
        for name, targets in edges().items()
        for target, line in targets
        if target.split(".")[0] == "meshc"
        and part_of(target) != part_of(name)
        and HEIGHT[part_of(target)] >= HEIGHT[part_of(name)]
    ]
    assert wrong == []


def may_import(name, target):
    """Whether module ``name`` may import ``target``, as far as owners of packages are concerned."""
    top = target.split(".")[0]
    if top in sys.stdlib_module_names or top in FREE or top == "meshc":
        return True
    owners = OWNERS.get(top, ())
    owners = (owners,) if isinstance(owners, str) else owners
    return any(name == owner or name.startswith(f"{owner}.") for owner in owners)


def test_third_party_packages_have_one_owner():
    wrong = [
        f"{name}:{line}: {target}"
        for name, targets in edges().items()
        for target, line in targets
        if not may_import(name, target)
    ]
    assert wrong == []


def inside_functions(every):
    """Lines of imports that happen when a function is called."""
    for node in every:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for inner in ast.walk(node):
                if isinstance(inner, (ast.Import, ast.ImportFrom)):
                    yield inner.lineno


def test_no_import_inside_a_function():
    found = [
        f"{name}:{line}" for name, path in MODULES.items() for line in inside_functions(nodes(path))
    ]
    assert found == []


def cycles(graph):
    """Groups of modules that import each other, also through others; ``graph``: name to names."""

    def below(name):
        found, left = set(), [name]
        while left:
            new = graph.get(left.pop(), set()) - found
            found |= new
            left += new
        return found

    reached = {name: below(name) for name in graph}
    groups = {
        frozenset(other for other in reached[name] if name in reached.get(other, ()))
        for name in graph
        if name in reached[name]
    }
    return {tuple(sorted(group)) for group in groups}


def test_no_import_cycles():
    """Modules form no cycle, imports for type checkers only included."""
    graph = {
        name: {target for target, _ in targets if target in MODULES and target != name}
        for name, targets in edges().items()
    }
    assert cycles(graph) == set()


def test_the_rules_can_fail(tmp_path):
    """The scanner sees what it must see: relative, nested and aliased imports."""
    text = "from . import b\nimport islpy as i\ndef f():\n    from meshc.cli import entry\n"
    path = tmp_path / "a.py"
    path.write_text(text)
    found = [target for target, _ in imported(path, "meshc.ir.a")]
    assert found == ["meshc.ir", "islpy", "meshc.cli.entry"]
    assert list(inside_functions(ast.walk(ast.parse(text)))) == [4]
    assert may_import("meshc.analysis.proofs.isl", "islpy")
    assert not may_import("meshc.ir.a", "islpy")
    assert not may_import("meshc.ir.a", "requests")
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == {("b", "c")}
