"""Marks in emitted text of what may differ between PE classes that share code (``merging.py``).

While a class is written its constants stand between marks, with a letter that says their kind, and
so does every statement that other classes may have in another form.
"""

from __future__ import annotations

import math
import re

_OPEN, _CLOSE = "\x02", "\x03"
MARKED = re.compile(f"{_OPEN}(.)([^{_CLOSE}]*){_CLOSE}")
_BEGIN, _END = "\x04", "\x05"
STATEMENT = re.compile(f"{_BEGIN}([^{_END}]*){_END}")
NUMBER, REAL, DESCRIPTORS, STATE = "nfds"


def integer(number: int) -> str:
    """An integer constant, marked."""
    return f"{_OPEN}{NUMBER}{number}{_CLOSE}"


def real(number: float) -> str:
    """A floating point constant, marked."""
    return f"{_OPEN}{REAL}{number!r}{_CLOSE}"


def descriptors(first: int, count: int) -> str:
    """The number of the first of ``count`` descriptor constants of the class, marked."""
    return f"{_OPEN}{DESCRIPTORS}{first} {count}{_CLOSE}"


def state(number: int) -> str:
    """The number of a place where a function goes on, marked; 0 is its beginning, and of all others
    the mark stands twice: where the place is noted, and then at the place."""
    return f"{_OPEN}{STATE}{number}{_CLOSE}"


def mark_statement(lines: list[str], first: int) -> None:
    """Mark ``lines`` from ``first`` on as one statement."""
    lines[first] = _BEGIN + lines[first]
    lines[-1] += _END


def literal(kind: str, text: str) -> str:
    """A constant of a kind, whose text stood between marks, written out in C."""
    if kind == NUMBER:
        return integer_literal(int(text))
    number = float(text)
    if math.isnan(number):
        return "(double)NAN"
    if math.isinf(number):
        return "(double)INFINITY" if number > 0 else "(-(double)INFINITY)"
    return f"({text})" if text.startswith("-") else text


def integer_literal(number: int) -> str:
    """A C literal of 64 bits."""
    if number >= 1 << 63:
        return f"{number}u"
    if number == -(1 << 63):
        return "INT64_MIN"
    text = f"{number}ll" if abs(number) >= 1 << 31 else str(number)
    return f"({text})" if number < 0 else text
