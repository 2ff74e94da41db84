"""Options of a header are plain values: nothing takes one apart to find several things in it."""

import ast

from sources import FILES, PACKAGE, tree

TAKING_APART = {"split", "rsplit", "partition", "rpartition", "fullmatch", "match", "findall"}


def is_option(node):
    """Whether ``node`` reads an option of a module: ``m.option(..)``, ``m.options[..]``."""
    return any(
        isinstance(part, ast.Attribute)
        and part.attr in ("option", "options")
        and isinstance(part.value, ast.Name | ast.Attribute)
        and ast.unparse(part.value).endswith(("module", "source"))
        for part in ast.walk(node)
    )


def taken_apart(module):
    """Lines on which an option is split, also through a variable of the same function."""
    scopes = [n for n in ast.walk(module) if isinstance(n, ast.FunctionDef)] or [module]
    found = set()
    for scope in scopes:
        assigned = [n for n in ast.walk(scope) if isinstance(n, ast.Assign)]
        names = {
            target.id
            for node in assigned
            if is_option(node.value)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for call in ast.walk(scope):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
                continue
            subjects = [call.func.value, *call.args]
            if call.func.attr in TAKING_APART and any(
                is_option(s) or (isinstance(s, ast.Name) and s.id in names) for s in subjects
            ):
                found.add(call.lineno)
    return sorted(found)


def found_in(text):
    return taken_apart(ast.parse(text))


def test_what_is_found():
    assert found_in('names = str(module.option("paired", "")).split(",")') == [1]
    assert found_in('def f(self):\n  t = str(self.source.options["k"])\n  t.partition(":")') == [3]
    assert found_in('import re\nre.fullmatch("x", str(module.option("grid", "")))') == [2]
    assert found_in('device, found = module.option("phase", ""), "a b".split()') == []


def test_no_option_is_taken_apart():
    paths = [p for p in FILES if "sim" not in p.relative_to(PACKAGE).parts]
    assert len(paths) > 200
    found = {
        str(path.relative_to(PACKAGE)): lines
        for path in paths
        if (lines := taken_apart(tree(path)))
    }
    assert found == {}
