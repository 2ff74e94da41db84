"""The modules of the package and their syntax trees, which several rules look at."""

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "meshc"
FILES = sorted(PACKAGE.rglob("*.py"))


@cache
def tree(path):
    """The syntax tree of a file; whoever asks for it does not change it."""
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes(path):
    """All nodes of a file's syntax tree."""
    return tuple(ast.walk(tree(path)))
