"""What a program is given: panels of inputs and weights, tables that are known beforehand, and
numbers; and how its host brings them into the memory of the chip."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from meshc.backends.ttlang.node_elements import Elements, Grid, runs
from meshc.backends.ttlang.operation import Node
from meshc.backends.ttlang.panels import Panel
from meshc.ir.rows import Paired

Ranges = list[tuple[int, int, int]]
ElementsOf = Callable[[Node], Elements]


@dataclass(frozen=True)
class Given:
    """A panel that the host fills: of the tensor ``source``, or of a table ``made`` beforehand.
    ``rows`` and ``columns`` say which elements of the flattened dims of the panel each node has;
    ``layers`` is how many there are of a weight that is a stack."""

    name: str
    source: str
    panel: Panel
    rows: ElementsOf
    columns: ElementsOf
    layers: int = 0
    made: tuple[tuple[str, Any], ...] = ()

    def entry(self, grid: Grid) -> dict[str, Any]:
        """What the host reads about it."""
        layers = {"layers": self.layers} if self.layers else {}
        made = {"made": dict(self.made)} if self.made else {}
        return {
            "name": self.name,
            "tensor": self.source,
            **layers,
            **made,
            **shape_of(self.panel, grid),
            "nodes": nodes_of(grid, self.rows, self.columns),
        }


def shape_of(panel: Panel, grid: Grid) -> dict[str, Any]:
    """Tiles of a block, the dims of the tensor, and in which order they are flattened to rows and
    to columns; dims of one element are left out of the latter."""
    return {
        "block": [panel.height, panel.wide],
        "dims": list(panel.kind.dims),
        "extents": [grid.extents[dim] for dim in panel.kind.dims],
        "rows": list(panel.rows),
        "columns": list(panel.columns),
        "numbers": panel.numbers,
    }


def nodes_of(grid: Grid, rows: ElementsOf, columns: ElementsOf) -> list[dict[str, Any]]:
    """For each node, row by row, its elements as ranges."""
    return [
        {"node": list(node), "rows": runs(rows(node)), "columns": runs(columns(node))}
        for node in grid.nodes
    ]


def elements_of(grid: Grid, panel: Panel, dims: Sequence[str]) -> ElementsOf:
    """The elements of ``dims`` of a value that each node has, as its layout says."""

    def found(node: Node) -> Elements:
        return grid.elements(panel.kind, dims, node)

    return found


def paired(found: ElementsOf, grid: Grid, dims: Sequence[str], pairs: Paired) -> ElementsOf:
    """The elements of a weight whose lanes of the dim of ``pairs``, one of ``dims``, the model has
    in another order (:class:`meshc.ir.rows.Paired`)."""
    behind = prod(grid.extents[dim] for dim in dims[dims.index(pairs.dim) + 1 :])
    extent = grid.extents[pairs.dim]

    def in_model(node: Node) -> Elements:
        elements = found(node)
        rest, lane = elements // behind // extent, elements // behind % extent
        taken = np.asarray(pairs.element(lane, extent), np.int64)
        return (rest * extent + taken) * behind + elements % behind

    return in_model
