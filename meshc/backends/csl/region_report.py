"""The regions of a program for its report: places, what each holds, and how they hand over."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from meshc.analysis.traffic.channels import crossings
from meshc.analysis.traffic.handovers import handovers
from meshc.backends.csl.fabric.regions import Regions
from meshc.ir.affine import IntLike
from meshc.ir.module import Module
from meshc.ir.types import BufferType

_SIDES = {(False, 1): "south", (False, -1): "north", (True, 1): "east", (True, -1): "west"}
_SIGNS = {"east": ">", "west": "<", "south": "v", "north": "^"}


def regions_of(module: Module) -> list[dict[str, Any]]:
    """A record for each region: its ``place``, first column and row in the layout's rectangle; what
    it ``holds``, first and last index of each dim that is dealt to regions (nothing of it: an empty
    list); and but for the last one the side of the ``next`` region and the channels to it."""
    mesh, found = module.the_mesh(), []
    sides = {
        region: _SIDES[handover.axis == mesh.across, handover.way]
        for handover in handovers(mesh)
        for region in handover.regions
    }
    channels = [c for c in module.channels if len(c.route.inputs) > len(mesh.plane)]
    leaves = {c.name: set(crossings(c, mesh)[0][:, 0].tolist()) for c in channels}
    for region, place in enumerate(Regions(mesh).origins):
        entry: dict[str, Any] = {"place": list(place), "holds": _held(module, region)}
        if region in sides:
            names = [name for name, senders in leaves.items() if region in senders]
            entry["next"] = {"side": sides[region], "channels": names}
        found.append(entry)
    return found


def _held(module: Module, region: int) -> dict[str, list[int]]:
    """First and last index that ``region`` holds of each dim which is dealt to regions."""
    found: dict[str, list[int]] = {}
    for dim, indices in _dealt(module, region):
        inside = [i for i in indices if i < module.dims[dim]]
        found.setdefault(dim, [min(inside), max(inside)] if inside else [])
    return found


def _dealt(module: Module, region: int) -> Iterator[tuple[str, list[int]]]:
    """Dims of tensors whose index depends on the region alone, and the indices of ``region``."""
    outer = module.the_mesh().outer
    for port in module.ports:
        kind = port.buffer.type
        assert isinstance(kind, BufferType)
        lanes = dict(zip(port.lanes, map(np.arange, kind.shape), strict=True))
        for dim, index in zip(port.tensor.dims, port.element, strict=True):
            names = index.free_vars - {outer}
            if outer in index.free_vars and len(names) <= 1 and names <= lanes.keys():
                at: dict[str, IntLike] = {**lanes, outer: region}
                yield dim, np.atleast_1d(index.evaluate(at)).tolist()


def drawn(entries: Sequence[Mapping[str, Any]], columns: int, rows: int) -> list[str]:
    """The rectangle, a number for each region of ``columns`` x ``rows`` PEs and an arrow to the
    next one; a dot where none is."""
    numbers = {(e["place"][0] // columns, e["place"][1] // rows): n for n, e in enumerate(entries)}
    width = max(len(str(n)) for n in numbers.values())
    across, down = (1 + max(place[axis] for place in numbers) for axis in (0, 1))
    grid = [[" " * (1 if c % 2 else width) for c in range(2 * across - 1)] for _ in range(2 * down)]
    for row in range(down):
        for column in range(across):
            grid[2 * row][2 * column] = str(numbers.get((column, row), ".")).rjust(width)
    for (column, row), number in numbers.items():
        side = entries[number].get("next", {}).get("side")
        if side in ("east", "west"):
            grid[2 * row][2 * column + (1 if side == "east" else -1)] = _SIGNS[side]
        elif side is not None:
            at = 2 * row + (1 if side == "south" else -1)
            grid[at][2 * column] = _SIGNS[side].rjust(width)
    lines = [" ".join(cells).rstrip() for cells in grid]
    return [line for line in lines if line]


def told(entries: Sequence[Mapping[str, Any]], mesh: Sequence[int]) -> list[str]:
    """A drawing of the regions of ``mesh`` [columns, rows], and a line for each."""
    columns, rows = mesh
    lines = [f"{len(entries)} regions of {columns} x {rows} PEs:"]
    lines += [f"  {line}" for line in drawn(entries, columns, rows)]
    for number, entry in enumerate(entries):
        column, row = entry["place"]
        held = [f"{dim} {_span(span)}" for dim, span in entry["holds"].items()]
        text = f"region {number} at column {column}, row {row}: {', '.join(held)}"
        if "next" in entry:
            names = ", ".join(entry["next"]["channels"])
            text += f"; on to the {entry['next']['side']} by {names}"
        lines.append(text)
    return lines


def _span(span: Sequence[int]) -> str:
    if not span:
        return "none"
    first, last = span
    return str(first) if first == last else f"{first} to {last}"
