"""A target is an object: nobody outside of back ends asks for its name, and the parts of a back end
below its target know no passes."""

import ast

from sources import FILES, PACKAGE, tree

from meshc.backends.target_options import OWN

OF_TARGETS = {
    "request.py", "target.py", "own_passes.py", "meshes.py", "csl/target.py",
    "csl/one_program.py", "cuda/target.py", "cuda/gpu_steps.py", "cuda/gpu_divisions.py",
    "ttlang/target.py",
}  # fmt: skip
"""Files of ``backends/`` that have passes run."""


def names_compared(module):
    """Lines on which something is compared with the name of a target, or looked up by it."""
    for node in ast.walk(module):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
        elif isinstance(node, ast.Dict):
            sides = [key for key in node.keys if key is not None]
        else:
            continue
        parts = [part for side in sides for part in ast.walk(side)]
        named = [p.value for p in parts if isinstance(p, ast.Constant) and p.value in OWN]
        asked = any(
            isinstance(p, ast.Name | ast.Attribute) and "target" in ast.unparse(p) for p in parts
        )
        if (named and asked) or (isinstance(node, ast.Dict) and len(named) > 1):
            yield node.lineno


def found_in(text):
    return list(names_compared(ast.parse(text)))


def test_what_is_found():
    assert found_in('if request.target == "csl": pass') == [1]
    assert found_in('x = 1 if target in ("python", "csl") else 2') == [1]
    assert found_in('MOST = {"python": 256, "csl": 64}') == [1]
    assert found_in('if backend.name == "python": pass') == []


def that_say(paths, words):
    """Those of ``paths`` in whose text one of ``words`` stands."""
    return [path for path in paths if any(word in path.read_text("utf-8") for word in words)]


def test_nobody_asks_for_the_name_of_a_target():
    outside = [p for p in FILES if p.relative_to(PACKAGE).parts[0] != "backends"]
    assert len(outside) > 500
    found = {
        str(path.relative_to(PACKAGE)): lines
        for path in that_say(outside, [f'"{name}"' for name in OWN])
        if (lines := list(names_compared(tree(path))))
    }
    assert found == {}


def test_only_targets_run_passes():
    folder = PACKAGE / "backends"
    running = {
        str(path.relative_to(folder))
        for path in that_say(folder.rglob("*.py"), ["meshc.passes", "meshc.pipelines"])
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith(("meshc.passes", "meshc.pipelines"))
    }
    assert running == OF_TARGETS
