"""Structural equality of modules: equal text means equal module, and the first difference."""

from __future__ import annotations

from itertools import zip_longest

from meshc.ir.module import Module
from meshc.ir.printer import print_module


def equal(left: Module, right: Module) -> bool:
    """Whether both modules print alike; printing is exact, so nothing else can differ."""
    return print_module(left) == print_module(right)


def first_difference(left: Module, right: Module) -> str | None:
    """The first line in which the modules differ, as two lines of text, or None."""
    lines = zip_longest(print_module(left).splitlines(), print_module(right).splitlines())
    for number, (mine, other) in enumerate(lines, start=1):
        if mine != other:
            return f"line {number}:\n- {mine or ''}\n+ {other or ''}"
    return None
