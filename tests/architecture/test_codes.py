"""Diagnostic codes: each one used is explained, each one explained is used, each one is tested."""

import ast
import re

from sources import FILES, ROOT, nodes

from meshc.support.diagnostics import known_codes

KEBAB = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*\Z")
# Methods of Diagnostics whose first argument is a code, as that of ``fail``.
METHODS = {"error", "warning", "remark", "missed"}


def calls(every):
    """Arguments of calls among these nodes that are codes, with their lines."""
    for node in every:
        if isinstance(node, ast.Call) and len(node.args) > 1 and takes_code(node.func):
            yield node.args[0], node.lineno


def takes_code(function):
    if isinstance(function, ast.Name):
        return function.id == "fail"
    own = isinstance(getattr(function, "value", None), ast.Name) and function.value.id == "self"
    return isinstance(function, ast.Attribute) and function.attr in METHODS and not own


def strings(every):
    """Every string constant; the constant beginning of an f-string ends in a star."""
    for node in every:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr) and isinstance(node.values[0], ast.Constant):
            yield f"{node.values[0].value}*"


def test_used_codes_are_explained():
    missing = [
        f"{path.relative_to(ROOT)}:{line}: {node.value}"
        for path in FILES
        for node, line in calls(nodes(path))
        if isinstance(node, ast.Constant) and node.value not in known_codes()
    ]
    assert missing == []


# Where passes, analyses and checkers also report through functions and methods of their own.
REPORTING, REPORTERS = {"fail", "error", "remark"}, ("analysis", "passes", "verify")


def reported(every):
    """First arguments of all calls that report something by a constant code."""
    for node in every:
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if name in REPORTING:
                yield str(node.args[0].value)


def test_codes_of_passes_and_checkers_are_explained():
    found = {
        f"{path.relative_to(ROOT)}: {code}"
        for path in FILES
        if path.relative_to(ROOT / "meshc").parts[0] in REPORTERS
        for code in reported(nodes(path))
        if code not in known_codes()
    }
    assert found == set()
    assert "routes-clash" in set(reported(nodes(ROOT / "meshc" / "verify" / "routed.py")))
    wrong = ast.walk(ast.parse("self.error('no-such-code', 'text')"))
    assert list(reported(wrong)) == ["no-such-code"]


def test_explained_codes_are_used():
    found = {text for path in FILES for text in strings(nodes(path))}
    starts = tuple(t[:-1] for t in found if t.endswith("-*") and KEBAB.match(t[:-2]))
    unused = [c for c in known_codes() if c not in found and not (starts and c.startswith(starts))]
    assert unused == []


def is_complete(code, entry):
    """Whether a code is well formed, its summary is one line and its explanation says something."""
    return (
        KEBAB.match(code) is not None
        and set(entry) == {"summary", "explain"}
        and re.fullmatch(r".*[^.]", entry["summary"]) is not None
        and len(entry["explain"].strip()) > 40
    )


def test_entries_are_complete():
    assert len(known_codes()) > 200
    assert [code for code, entry in known_codes().items() if not is_complete(code, entry)] == []
    whole = {"summary": "a b", "explain": "c" * 41}
    assert is_complete("a-b", whole) and not is_complete("a_b", whole)
    for damage in ({"summary": "a."}, {"summary": "a\nb"}, {"summary": ""}, {"explain": "c"}):
        assert not is_complete("a-b", whole | damage)


def test_codes_occur_in_tests():
    """Each code stands, as a code, in some test or expected output: it has been made to happen."""
    tests = ROOT / "tests"
    files = [*tests.rglob("*.py"), *tests.rglob("*.meshir")]
    files += [path for path in (tests / "golden").rglob("*") if path.is_file()]
    found = set()
    for path in files:
        text = path.read_text(encoding="utf-8", errors="replace")
        found |= set(re.findall(r"""["'\[`]([a-z][a-z0-9-]*)["'\]`]""", text))
        for line in re.findall(r"^# remarks: (.*)$", text, re.MULTILINE):
            found |= set(line.split())
    assert [code for code in known_codes() if code not in found] == []
