"""Every code that passes, analyses and checkers raise or remark has its explanation."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import meshc
from meshc.support.diagnostics import known_codes

ROOT = Path(meshc.__file__).parent
FOLDERS = ("analysis", "passes", "verify")
SOURCES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
REPORTING = {"fail", "error", "remark"}


def codes(path: Path) -> set[str]:
    """First arguments of calls that report something."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if name in REPORTING:
                found.add(str(node.args[0].value))
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_codes_are_explained(path: Path) -> None:
    assert sorted(codes(path) - set(known_codes())) == []


def test_codes_are_found() -> None:
    assert {"routes-clash", "too-many-routes"} <= codes(ROOT / "verify" / "routed.py")
    assert "does-not-fit" in codes(ROOT / "passes" / "tile" / "plan_memory.py")
