"""The C text of a program: one piece for all PE classes that share code."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable
from dataclasses import dataclass

from meshc.sim.cgen.expressions import Places, PythonCalls
from meshc.sim.cgen.functions import CFunctionWriter
from meshc.sim.cgen.merging import Table, Written, merge
from meshc.sim.program import PeProgram
from meshc.sim.scalar_costs import ScalarCosts

_HEAD = '#include "csl.h"\n\n'


@dataclass
class Member:
    """A PE class in a group: its number and its constants."""

    number: int
    table: Table


@dataclass
class Group:
    """PE classes that share code. ``places`` and ``calls`` belong to numbers in the text."""

    text: str
    members: list[Member]
    places: Places
    calls: PythonCalls


def emit(classes: list[PeProgram], scalar: ScalarCosts, known: Collection[str]) -> list[Group]:
    """The groups of a program; ``known`` are the vector operations that C can compute.

    Raises Unsupported when something cannot be written in C.
    """
    places: dict[str, Places] = defaultdict(Places)
    calls: dict[str, PythonCalls] = defaultdict(PythonCalls)
    functions: dict[Hashable, Written] = {}
    shapes: dict[tuple[str, ...], list[tuple[int, list[Written]]]] = {}
    for number, pe_class in enumerate(classes):
        name = pe_class.name
        writer = CFunctionWriter(pe_class, scalar, places[name], calls[name], known)
        parts = writer.write(functions)
        shapes.setdefault((name, *(part.shape for part in parts)), []).append((number, parts))
    groups = []
    for (name, *_), entries in shapes.items():
        text, tables = merge([parts for _, parts in entries])
        members = [Member(n, table) for (n, _), table in zip(entries, tables, strict=True)]
        groups.append(Group(_HEAD + text, members, places[name], calls[name]))
    return groups
