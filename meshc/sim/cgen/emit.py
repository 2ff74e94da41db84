"""The C text of a program: one piece for all PE classes that share code."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from meshc.sim.cgen.constants import Table, Written, merge
from meshc.sim.cgen.expressions import Places, PythonCalls
from meshc.sim.cgen.functions import CFunctionWriter
from meshc.sim.descriptors import Dsd
from meshc.sim.program import PeProgram

_HEAD = '#include "csl.h"\n\n'


@dataclass
class Member:
    """A PE class in a group: its number and its constants."""

    number: int
    table: Table
    dsds: list[Dsd]


@dataclass
class Group:
    """PE classes that share code. ``places`` and ``calls`` belong to numbers in the text."""

    text: str
    members: list[Member]
    places: Places
    calls: PythonCalls


def emit(classes: list[PeProgram], known: Collection[str]) -> list[Group]:
    """The groups of a program; ``known`` are the vector operations that C can compute.

    Raises Unsupported when something cannot be written in C.
    """
    shapes: dict[str, list[tuple[int, Written]]] = {}
    found: dict[str, tuple[Places, PythonCalls]] = {}
    for number, pe_class in enumerate(classes):
        places, calls = Places(), PythonCalls()
        writer = CFunctionWriter(pe_class, places, calls, known)
        written = Written(writer.write(), writer.dsds)
        key = f"{written.shape}{places.names}{calls.entries}"
        shapes.setdefault(key, []).append((number, written))
        found[key] = places, calls
    groups = []
    for key, entries in shapes.items():
        text, tables = merge([w for _, w in entries])
        members = [Member(n, t, w.dsds) for (n, w), t in zip(entries, tables, strict=True)]
        groups.append(Group(_HEAD + text, members, *found[key]))
    return groups
