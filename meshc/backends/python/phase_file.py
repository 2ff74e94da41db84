"""The file of one phase."""

from __future__ import annotations

import textwrap

from meshc.backends.python import declarations
from meshc.backends.python.exchanges import functions
from meshc.backends.python.names import Names
from meshc.backends.python.source_text import WIDTH, call
from meshc.backends.python.statements import Statements
from meshc.backends.python.view_text import Writer
from meshc.ir.brought_functions import BROUGHT
from meshc.ir.kernels import KERNELS
from meshc.ir.module import Module
from meshc.ir.ops.tile import scalars_of_rounds
from meshc.support.diagnostics import fail

_PAD = " " * 4
_OPTIONAL = ("Hop", "element", "memo", "span", "wait")


def phase_file(module: Module, function: str) -> str:
    """Python text that defines ``function(fabric) -> Phase`` for a tile-level module.

    Raises ``not-tile-level``, ``unsupported-route``, ``unsupported-op``, ``python-nesting`` and
    ``unsafe-name``.
    """
    if module.level != "tile":
        fail("not-tile-level", f"module '{module.name}' is at the {module.level} level")
    writer = Writer(Names(frozenset({function})), module.the_mesh())
    rounds = scalars_of_rounds(module)
    scalars = [
        writer.declare_several(name) if name in rounds else writer.declare(name)
        for name in module.scalars
    ]
    memory = declarations.buffers(module, writer)
    routes = declarations.channels(module, writer)
    extents = declarations.extents(module, writer)
    statements = Statements(writer, functions(module))
    exchanges = statements.define(module)
    body = statements.block(module.program.body, 8)
    constants = declarations.constants(module)
    ports = declarations.ports(module, writer)
    hoisted = writer.hoisted
    program = [
        f"def {function}(fabric: Fabric) -> Phase:",
        f'{_PAD}"""Bind the program to the cores of ``fabric``."""',
        *_opening(module, function),
        *_section("Memory of each core: name, element type, extents.", memory),
        *_section("Channels: where the messages of each core go.", routes),
        *_section("Guards: the cores that take part in a statement.", hoisted.guards),
        *_section("Chains: cores that run one after the other, by rank.", hoisted.chains),
        *_section("Places in memory that differ between cores.", hoisted.places),
        *_section("Exchanges between cores that occur again and again.", exchanges),
        *_section("Parts of loops that are the same in every run.", statements.parts[1:]),
        "",
        f"{_PAD}def step({', '.join(scalars)}):",
        *extents,
        *body,
        *_section("Constants of the program.", constants),
        *_section("Logical tensors: the element that each lane of a buffer holds.", ports),
        "",
        *call(4, "return phase.runs", ["step", *_ranges(module)]),
    ]
    head = [
        *_docstring(module, function, statements.kernels),
        *_imports(program, statements.kernels),
    ]
    return "\n".join([*head, "", "", *program]) + "\n"


def _docstring(module: Module, name: str, kernels: set[str]) -> list[str]:
    """What this is, how to read it, and what its kernels do."""
    mesh = module.the_mesh()
    regions = f" in each of {mesh.regions} regions" if mesh.regions > 1 else ""
    size = f"{mesh.columns} x {mesh.rows} cores{regions}"
    return [
        f'"""Phase {name} of {plain(module.name)}: what every core runs.',
        "",
        f"Mesh (columns x rows): {size}; element type {module.dtype()}.",
        "",
        "A statement works on the memory of each core, on all cores that its guard (on=..) lets",
        "through. Only channels carry data from core to core; wait ends the transfers it names.",
        *_glossary(kernels),
        '"""',
        "",
    ]


def _glossary(kernels: set[str]) -> list[str]:
    """One entry per kernel used."""
    if not kernels:
        return []
    lines = ["", "Kernels, the result first:"]
    width = max(map(len, kernels)) + 6
    for name in sorted(kernels):
        doc = textwrap.wrap(KERNELS[name].doc, WIDTH - width)
        lines.append(f"    {name}".ljust(width) + doc[0])
        lines += [" " * width + line for line in doc[1:]]
    return lines


def _imports(program: list[str], kernels: set[str]) -> list[str]:
    """What the program uses of the runtime."""
    text = "\n".join(program)
    used = ["Fabric", *(n for n in _OPTIONAL if f"{n}(" in text or f"@{n}" in text), "Phase"]
    lines = _import("mesh_runtime", sorted(used, key=lambda n: (n.islower(), n)))
    own, brought = sorted(kernels - BROUGHT.keys()), sorted(kernels & BROUGHT.keys())
    lines += _import("mesh_runtime.kernels", own) if own else []
    return lines + (_import("mesh_runtime.brought", brought) if brought else [])


def _import(module: str, names: list[str]) -> list[str]:
    line = f"from {module} import {', '.join(names)}"
    if len(line) <= WIDTH:
        return [line]
    return [f"from {module} import (", *(f"{_PAD}{name}," for name in names), ")"]


def _opening(module: Module, name: str) -> list[str]:
    """The phase, and the coordinates of its cores."""
    arguments = ["fabric", f'"{name}"']
    rings = ", ".join(f'"{axis}"' for axis in module.the_mesh().interleaved)
    if rings:
        comma = "," if len(module.the_mesh().interleaved) == 1 else ""
        arguments.append(f"interleaved=({rings}{comma})")
    return [*call(4, "phase = Phase", arguments), f"{_PAD}core = phase.core"]


def _section(title: str, lines: list[str]) -> list[str]:
    while lines and not lines[-1]:
        lines.pop()
    return ["", f"{_PAD}# {title}", *lines] if lines else []


def _ranges(module: Module) -> list[str]:
    """The run-time scalars with their least and largest values, of which number they are multiples,
    and of how many a run is given several."""
    ranges = [f'"{plain(n)}": ({low}, {high})' for n, (low, high) in module.scalars.items()]
    several = [f'"{plain(n)}": {count}' for n, count in scalars_of_rounds(module).items()]
    found = [f"{{{', '.join(ranges)}}}"] if ranges else []
    multiples = [f'"{plain(n)}": {count}' for n, count in module.multiples.items()]
    found += [f"multiples={{{', '.join(multiples)}}}"] if multiples else []
    return found + ([f"several={{{', '.join(several)}}}"] if several else [])


def plain(text: str) -> str:
    """``text`` with what could end a string or a comment left out."""
    return "".join(c for c in text if c.isascii() and c.isprintable() and c not in '"\\')
