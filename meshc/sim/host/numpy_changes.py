"""Finds what NumPy 2 changed under published host scripts: shifts of 16-bit words.

With NumPy 1 a ``uint16`` shifted left by 16 became a wide integer; with NumPy 2 it stays a
``uint16`` and is 0, so that time stamps put together in that way lose their high words.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from meshc.support.diagnostics import Diagnostic

_WORD_BITS = 16


def shift_remark(script: Path) -> Diagnostic | None:
    """A remark about the first such shift in a script or in the modules beside it that it imports.

    None with NumPy 1, for scripts that do not parse, and for those without 16-bit words.
    """
    if int(np.__version__.partition(".")[0]) < 2:
        return None
    place = next(_shifts(script, {script}), None)
    if place is None:
        return None
    words = (
        f"{place} shifts words by {_WORD_BITS} bits or more; with NumPy {np.__version__} the result"
    )
    return Diagnostic(
        "remark", "csl-numpy", f"{words} is 0 where the words are of type uint16",
        help="write int(word) << 16, or install 'numpy<2' for scripts of that time",
    )  # fmt: skip


def _shifts(path: Path, seen: set[Path]) -> Iterator[str]:
    """``file:line`` of each shift of a variable or element by a constant of at least 16."""
    try:
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
    except (OSError, ValueError, SyntaxError):
        return
    for node in ast.walk(tree):
        if "uint16" in text and isinstance(node, ast.BinOp) and _is_wide_shift(node):
            yield f"{path.name}:{node.lineno}"
    for name in _imported(tree):
        beside = path.parent / f"{name}.py"
        if beside not in seen and beside.is_file():
            seen.add(beside)
            yield from _shifts(beside, seen)


def _is_wide_shift(node: ast.BinOp) -> bool:
    amount = node.right.value if isinstance(node.right, ast.Constant) else None
    return (
        isinstance(node.op, ast.LShift)
        and isinstance(amount, int)
        and amount >= _WORD_BITS
        and isinstance(node.left, ast.Name | ast.Subscript)
    )


def _imported(tree: ast.Module) -> Iterator[str]:
    """Top-level names of the modules that a script imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]
