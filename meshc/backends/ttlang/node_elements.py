"""Which elements of a value each node has, in which order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from meshc.backends.ttlang.operation import Net, Node, Nodes, Pipe
from meshc.ir.mesh import Mesh
from meshc.ir.types import Layout, Split, TensorType
from meshc.support.diagnostics import fail

Elements = NDArray[np.int64]
"""Numbers of elements, in the order in which a node has them."""


@dataclass(frozen=True)
class Grid:
    """The nodes of a module: its mesh, in natural order, and the extents of its dims."""

    mesh: Mesh
    extents: Mapping[str, int]

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Column and row of each, row by row."""
        rows, columns = range(self.mesh.rows), range(self.mesh.columns)
        return tuple((column, row) for row in rows for column in columns)

    def part(self, axis: str, node: Node) -> int:
        """Which part of ``axis`` a node is."""
        column, row = node
        if axis == self.mesh.down:
            return row
        if axis == self.mesh.across:
            return column
        return divmod(column, self.mesh.size(self.mesh.inner))[axis == self.mesh.inner]

    def text(self, axis: str) -> str:
        """The same as text about ``column`` and ``row``."""
        if axis == self.mesh.down:
            return "row"
        if axis == self.mesh.across or self.mesh.segments == 1:
            return "column"
        operator = "%" if axis == self.mesh.inner else "//"
        return f"column {operator} {self.mesh.size(self.mesh.inner)}"

    def nodes_with(self, axis: str, part: int, skew: str = "") -> Nodes:
        """The nodes that have ``part`` of a dim that lies over ``axis``, rotated by the rank on
        ``skew`` if that is an axis."""
        size = self.mesh.size(axis)
        text = self.text(axis)
        if skew:
            text = f"({text} + {self.text(skew)}) % {size}"
        members = frozenset(n for n in self.nodes if self.rotated(axis, skew, n) == part)
        return Nodes(f"{text} == {part}", members)

    def rotated(self, axis: str, skew: str, node: Node) -> int:
        """Which part of a dim over ``axis``, rotated by ``skew``, a node has."""
        found = self.part(axis, node)
        return (found + self.part(skew, node)) % self.mesh.size(axis) if skew else found

    def nodes_without(self, axis: str, part: int) -> Nodes:
        """The nodes that are another part of ``axis``."""
        members = frozenset(n for n in self.nodes if self.part(axis, n) != part)
        return Nodes(f"{self.text(axis)} != {part}", members)

    def lines(self, axis: str) -> list[list[Node]]:
        """Nodes that differ in their part of ``axis`` alone, in the order of parts."""
        found: dict[tuple[int, ...], list[Node]] = {}
        for column, row in self.nodes:
            if axis == self.mesh.down:
                key: tuple[int, ...] = (column,)
            else:
                key = (row, column // self.mesh.size(axis))
            found.setdefault(key, []).append((column, row))
        return [*found.values()]

    def spreading(self, name: str, axis: str, senders: Nodes) -> Net | None:
        """The net by which each of ``senders`` reaches all others of its line along ``axis``; None
        where there are no others."""
        pipes: list[Pipe] = []
        for line in self.lines(axis):
            for source in line:
                if source in senders.members:
                    at = line.index(source)
                    pipes += [_pipe(source, part) for part in (line[:at], line[at + 1 :]) if part]
        return Net(name, tuple(pipes)) if pipes else None

    def local(self, kind: TensorType, dims: Sequence[str]) -> int:
        """How many lanes of ``dims`` a node has."""
        return len(self.elements(kind, dims, self.nodes[0]))

    def elements(self, kind: TensorType, dims: Sequence[str], node: Node) -> Elements:
        """What ``node`` has of ``dims`` of a value, as numbers of their flattening. Raises
        ``ttlang-tiles`` where lanes have no element."""
        layout = kind.layout or Layout()
        found = np.zeros(1, np.int64)
        for group in self._groups(layout, dims):
            extent = prod(self.extents[dim] for dim in group)
            own = self._of_group(layout.split_of(group[0]), extent, len(group) > 1, node)
            if own.max(initial=0) >= extent:
                fail(
                    "ttlang-tiles",
                    f"{', '.join(group)} of {kind} does not lie in equal parts over the nodes",
                    help="use a mesh that divides it",
                )
            found = (found[:, None] * extent + own[None, :]).reshape(-1)
        return found

    def _of_group(self, split: Split | None, extent: int, joint: bool, node: Node) -> Elements:
        if split is None:
            return np.arange(extent)
        parts = self.mesh.size(split.axis)
        block = -(-extent // parts) if joint else split.block
        part = self.rotated(split.axis, split.skew, node) // split.copies
        lanes = np.arange(block)
        return lanes * parts + part if split.kind != "block" else part * block + lanes

    def _groups(self, layout: Layout, dims: Sequence[str]) -> list[list[str]]:
        """``dims`` one by one, but those together that lie over one axis."""
        groups: list[list[str]] = []
        for dim in dims:
            split = layout.split_of(dim)
            before = layout.split_of(groups[-1][0]) if groups else None
            if split is not None and before is not None and split.axis == before.axis:
                groups[-1].append(dim)
            else:
                groups.append([dim])
        return groups


def _pipe(source: Node, line: list[Node]) -> Pipe:
    """The pipe to all nodes of ``line``, which lie beside each other."""
    (left, top), (right, bottom) = line[0], line[-1]
    return Pipe(source, (left, right), (top, bottom))


def runs(elements: Elements) -> list[tuple[int, int, int]]:
    """``elements`` as ranges: first, end and step of each, one behind the other."""
    found: list[tuple[int, int, int]] = []
    values = [int(e) for e in elements]
    at = 0
    while at < len(values):
        step = values[at + 1] - values[at] if at + 1 < len(values) else 1
        end = at + 1
        while step > 0 and end < len(values) and values[end] - values[end - 1] == step:
            end += 1
        last = values[end - 1]
        found.append((values[at], last + 1, max(step, 1) if end > at + 1 else 1))
        at = end
    return found
