"""What code of a simulated core did, by the ops that emitted CSL says in its comments."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import NamedTuple

KINDS = ("computing", "transfer", "waiting", "beside code")
"""What spans are, by number."""
_OF_KIND = {"transfer": 1, "wait": 2, "microthread": 3}

_END = re.compile(r"\b\w+?_(?:in|out)_\d")
_OP = re.compile(r"// (\w+) (%[\w.]+)")
_CALL = re.compile(r"\s*(\w+)\(\);\s*")
_FUNCTION = re.compile(r"fn (\w+)\(")


class Happened(NamedTuple):
    """A task, or an operation of a trace, of a core."""

    start: int
    end: int
    kind: str
    name: str


class Span(NamedTuple):
    """What a core did: its ``place`` in the text, of code that of the next operation, ``behind``
    that of the last one."""

    start: int
    end: int
    kind: int
    place: str
    behind: str = ""


def spans_of(happened: Sequence[Happened], beside: bool) -> Iterator[Span]:
    """What a core did; operations ``beside`` code are apart."""
    operations = [one for one in happened if one.kind != "task"]
    if beside:
        for one in operations:
            if one.kind == "microthread":
                yield Span(one.start, one.end, _OF_KIND[one.kind], place_of(one.name))
        return
    inside = [one for one in operations if one.kind in ("transfer", "wait")]
    starts = [one.start for one in operations]
    behind = ""
    for task in (one for one in happened if one.kind == "task"):
        now = task.start
        for one in inside:
            if one.start < task.start or one.end > task.end or one.start < now:
                continue
            place = place_of(one.name)
            if one.start > now:
                yield Span(now, one.start, 0, place, behind)
            if one.end > one.start:
                yield Span(one.start, one.end, _OF_KIND[one.kind], place)
            now, behind = one.end, place
        if now < task.end:
            at = bisect_left(starts, task.end)
            ahead = place_of(operations[at].name) if at < len(operations) else ""
            yield Span(now, task.end, 0, ahead, behind)


def place_of(name: str) -> str:
    """``file:line`` at the end of what an operation is called."""
    return name.rpartition(" ")[2].rpartition("/")[2]


def ops_in_front(lines: Sequence[str]) -> dict[int, list[str]]:
    """For each line with an operation on words, the ops in front of it, as comments spell them:
    those since other such operations, or since the function begins."""
    found: dict[int, list[str]] = {}
    ops: list[str] = []
    passed = False
    for number, (op, ends, moves, begins) in enumerate(_read(lines), 1):
        if begins or (op and passed):
            ops, passed = [], False
        if op:
            ops.append(op)
        passed = passed or moves
        if ends:
            found[number] = [*ops]
    return found


def ops_behind(lines: Sequence[str]) -> dict[int, list[str]]:
    """For each line with an operation on words, the ops behind it up to another such operation, or
    to the end of the function."""
    found: dict[int, list[str]] = {}
    waiting: list[int] = []
    ops: list[str] = []
    for number, (op, ends, moves, begins) in enumerate(_read(lines), 1):
        if begins or (moves and ops):
            found |= dict.fromkeys(waiting, ops)
            waiting, ops = [], []
        if ends:
            waiting.append(number)
        elif op:
            ops.append(op)
    return found | dict.fromkeys(waiting, ops)


def _read(lines: Sequence[str]) -> Iterator[tuple[str, bool, bool, bool]]:
    """Each line as: the op that its comment spells, whether there is an operation on words, whether
    there is one or a call of a function that has some, and whether a function begins."""
    moving, name = set[str](), ""
    for line in lines:
        begins = _FUNCTION.match(line)
        name = begins[1] if begins else name
        if _END.search(line.partition("//")[0]):
            moving.add(name)
    for line in lines:
        code, op = line.partition("//")[0], _OP.search(line)
        ends, call = _END.search(code) is not None, _CALL.fullmatch(code)
        moves = ends or (call is not None and call[1] in moving)
        words = f"{op[1]} {op[2]}" if op else ""
        yield words, ends, moves, _FUNCTION.match(line) is not None
