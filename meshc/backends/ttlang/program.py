"""A phase at the mesh level as operations and the function that calls them.

Every mesh op becomes operations whose operands and results lie in the memory of the chip, a block
of tiles for each node (:mod:`meshc.backends.ttlang.panels`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import numpy as np

from meshc.backends.python.names import Names
from meshc.backends.ttlang import given_panels as host
from meshc.backends.ttlang.given_panels import ElementsOf, Given, elements_of, nodes_of, shape_of
from meshc.backends.ttlang.node_elements import Grid
from meshc.backends.ttlang.operation import TILE_BYTES, Operation
from meshc.backends.ttlang.operation_text import text_of
from meshc.backends.ttlang.panels import Panel, matrix
from meshc.backends.ttlang.pointwise import (
    Operand,
    own,
    spread_line,
    spread_numbers,
)
from meshc.backends.ttlang.wait_proof import check_waits
from meshc.ir.core import Block, Op, tensor_type
from meshc.ir.core import Operand as Argument
from meshc.ir.module import Module
from meshc.ir.ops import mesh
from meshc.ir.types import DType, Layout, TensorType
from meshc.ir.values import Value
from meshc.support.diagnostics import fail

USUAL_ROOM = 1_499_136
"""Bytes of a node for buffers where the device sets no limit: those of Blackhole."""
Writer = Callable[["PhaseProgram", Any], None]
WRITERS: dict[type[Op], Writer] = {}
"""What writes the operations of an op: the table that other files of this folder fill."""


def writes(*classes: type[Op]) -> Callable[[Writer], Writer]:
    """Decorator: the function writes the operations of ops of ``classes``."""

    def add(writer: Writer) -> Writer:
        WRITERS.update(dict.fromkeys(classes, writer))
        return writer

    return add


@dataclass
class PhaseProgram:
    """The files of a phase, as its ops are written one by one."""

    module: Module
    grid: Grid = field(init=False)
    names: Names = field(default_factory=lambda: Names(frozenset({"ttl", "ttnn", "empty"})))
    panels: dict[Value, tuple[str, Panel]] = field(default_factory=dict)
    givens: dict[tuple[object, ...], Given] = field(default_factory=dict)
    stacks: dict[Value, tuple[Value, int]] = field(default_factory=dict)
    stacked: dict[str, str] = field(default_factory=dict)
    operations: dict[str, str] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    depth: int = 1
    results: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.grid = Grid(self.module.the_mesh(), self.module.dims)
        self.parameters = {p.value: p for p in self.module.function.params}
        room = self.module.the_device().data_bytes
        self.room = USUAL_ROOM if room is None else room

    # --- what the file says

    def write(self) -> None:
        """Write all ops. Raises ``ttlang-op``, ``ttlang-tiles``, ``ttlang-memory`` and
        ``ttlang-waits``."""
        self._check_module()
        ending = self.block(self.module.function.body)
        names = []
        for value in ending.operands:
            name, panel = self.of(value)
            names.append(name)
            self.results.append(self._result(ending, value, panel))
        self.say(f"return {', '.join(names)}" + ("," if len(names) == 1 else ""))
        self._check_chip()

    def _check_module(self) -> None:
        """Raise ``ttlang-op`` for nodes that are not in natural order and for other types."""
        mesh = self.grid.mesh
        if mesh.interleaved or mesh.regions > 1:
            words = "nodes are one plane in natural order"
            fail("ttlang-op", f"programs for --target ttlang: {words}, not {self.module.name}'s")
        values = [p.value for p in self.module.function.params]
        values += [value for op in self.module.walk() for value in op.results]
        for value in values:
            if tensor_type(value).dtype != DType.F32:
                words = f"compute in f32, and {value} is {tensor_type(value).dtype}"
                fail("ttlang-op", f"programs for --target ttlang {words}")

    def _check_chip(self) -> None:
        """Raise ``ttlang-memory`` where all that is given does not fit the memory of the chip."""
        room = self.module.the_device().global_memory_bytes
        panels = [(given.panel, max(1, given.layers)) for given in self.givens.values()]
        tiles = sum(panel.height * panel.wide * count for panel, count in panels)
        taken = tiles * len(self.grid.nodes) * TILE_BYTES
        if room and taken > room:
            fail("ttlang-memory", f"weights and tables take {taken} bytes of the chip, of {room}")

    def _result(self, op: Op, value: Argument, panel: Panel) -> dict[str, Any]:
        """What the host reads about a result."""
        layout = panel.kind.layout or Layout()
        if layout.partial or layout.roots:
            self.refuse(op, f"{value} is not on all nodes that it belongs to")
        kind, rest = tensor_type(value), set(tensor_type(value).dims) - set(panel.kind.dims)
        layers = {"layers": self.module.dims[rest.pop()]} if rest else {}
        rows, columns = (elements_of(self.grid, panel, d) for d in (panel.rows, panel.columns))
        return {
            "name": str(value).removeprefix("%"),
            "result": list(kind.dims),
            **layers,
            **shape_of(panel, self.grid),
            "nodes": nodes_of(self.grid, rows, columns),
        }

    def text(self) -> str:
        """The operations and the function ``program`` that calls them."""
        taken = ", ".join(given.name for given in self.givens.values())
        head = f'"""Operations of {self.module.name} on {self.grid.mesh} nodes, and their order."""'
        imports = "import ttl\nimport ttnn\n\nfrom tiles import empty\n"
        defined = "\n\n".join(
            body.replace(f"def {_UNNAMED}(", f"def {name}(", 1)
            for body, name in self.operations.items()
        )
        calls = "\n".join(self.calls)
        return f"{head}\n\n{imports}\n\n{defined}\n\ndef program({taken}):\n{calls}\n"

    def layouts(self) -> str:
        """What the host reads: how all that is given and all results lie."""
        found = {
            "nodes": [self.grid.mesh.columns, self.grid.mesh.rows],
            "given": [given.entry(self.grid) for given in self.givens.values()],
            "results": self.results,
        }
        return json.dumps(found, indent=1) + "\n"

    def say(self, line: str) -> None:
        """A line of ``program``."""
        self.calls.append("    " * self.depth + line)

    def refuse(self, op: Op, words: str) -> NoReturn:
        """Raise ``ttlang-op``."""
        fail(
            "ttlang-op",
            f"programs for --target ttlang do not compute this {op.NAME}: {words}",
            op.span,
            help="docs/ttlang.md says what they compute; --target python computes all",
        )

    # --- values

    def of(self, value: Argument) -> tuple[str, Panel]:
        """The name and panel of a value; a parameter's rows of tokens lie over rows of tiles."""
        assert isinstance(value, Value)
        if value in self.panels:
            return self.panels[value]
        kind = tensor_type(value)
        rows = self.several([d for d in kind.dims if d in self.row_dims])
        columns = self.several([d for d in kind.dims if d not in self.row_dims])
        panel = matrix(self.grid, value, rows, columns, kind)
        found = self.parameter(value, panel)
        self.panels[value] = found.name, panel
        return self.panels[value]

    @property
    def row_dims(self) -> frozenset[str]:
        """The dims that count tokens, of a step and of caches."""
        rows = self.module.rows
        return frozenset() if rows is None else frozenset({rows.dim, rows.capacity})

    def several(self, dims: Sequence[str]) -> tuple[str, ...]:
        """Those of ``dims`` that have more than one element."""
        return tuple(dim for dim in dims if self.module.dims[dim] > 1)

    def parameter(self, value: Value, panel: Panel, rows: ElementsOf | None = None) -> Given:
        """What the host fills for a parameter that is read as ``panel``; ``rows`` says which
        elements of its rows a node has, where that is not what its layout says."""
        source, layers = self.stacks.get(value, (value, 0))
        if source not in self.parameters:
            raise AssertionError(f"{value} is no parameter and has no panel")
        if self.parameters[source].role == "state":
            fail(
                "ttlang-op",
                f"the cache {source} is read, which an earlier run filled",
                help="programs for --target ttlang read a prompt as long as their caches",
            )
        spread = [rows or elements_of(self.grid, panel, panel.rows),
                  elements_of(self.grid, panel, panel.columns)]  # fmt: skip
        pairs = self.module.paired.get(source.name)
        for i, dims in enumerate((panel.rows, panel.columns)):
            if pairs is not None and pairs.dim in dims:
                spread[i] = host.paired(spread[i], self.grid, dims, pairs)
        layout = json.dumps(nodes_of(self.grid, spread[0], spread[1]))
        key = (source, panel.rows, panel.columns, layout)
        if key not in self.givens:
            suffix = "_right" if any(k[0] is source for k in self.givens) else ""
            name = self.names.fresh(source.name + suffix)
            self.givens[key] = Given(name, source.name, panel, spread[0], spread[1], layers)
        given = self.givens[key]
        return replace(given, name=f"{given.name}[layer]") if layers else given

    def number(self, value: float) -> str:
        """The tile that is filled with ``value``."""
        kind = TensorType(DType.F32, (), Layout())
        panel = Panel(kind, (), (), 1, 1, 1)
        return self.table("number", panel, (("number", value),), f"number_{value!r}")

    def table(self, called: str, panel: Panel, made: tuple[tuple[str, Any], ...], name: str) -> str:
        """The panel of what the host makes beforehand."""
        key = (called, panel, made)
        if key not in self.givens:
            rows, columns = (elements_of(self.grid, panel, d) for d in (panel.rows, panel.columns))
            fresh = self.names.fresh(name.replace("-", "minus_"))
            self.givens[key] = Given(fresh, called, panel, rows, columns, made=made)
        return self.givens[key].name

    def check_alike(self, op: Op, one: Panel, other: Panel, dims: Sequence[str]) -> None:
        """Refuse two values of which a node has other elements of ``dims``."""
        for node in self.grid.nodes:
            mine, its = (self.grid.elements(panel.kind, dims, node) for panel in (one, other))
            if not np.array_equal(mine, its):
                self.refuse(op, f"{', '.join(dims)} of its operands lie differently")

    # --- calls

    def give(
        self, op: Op, result: Value, operation: Operation, operands: Sequence[str], panel: Panel
    ) -> None:
        """Call ``operation``, which gives ``result`` as ``panel``."""
        body = text_of(operation, _UNNAMED)
        if body not in self.operations:
            self.operations[body] = self._checked(op, operation)
        made = self.names.fresh(result.name)
        rows, columns = panel.height * self.grid.mesh.rows, panel.wide * self.grid.mesh.columns
        self.say(f"{made} = empty({rows}, {columns})")
        self.say(f"{self.operations[body]}({', '.join([*operands, made])})")
        self.put(result, made, panel)

    def _checked(self, op: Op, operation: Operation) -> str:
        """The name of an operation that is called for the first time."""
        name = self.names.fresh(op.NAME.removeprefix("mesh.") + "_op")
        check_waits(operation, name)
        if operation.bytes > self.room:
            fail(
                "ttlang-memory",
                f"buffers of the operation '{name}' take {operation.bytes} bytes of a node, of "
                f"{self.room}",
                op.span,
                help="use a larger mesh",
            )
        return name

    def put(self, value: Value, name: str, panel: Panel) -> None:
        """``value`` is what ``name`` holds from now on."""
        self.panels[value] = name, panel

    def block(self, block: Block) -> Op:
        """Write the ops of a block; its ending."""
        for op in block.ops:
            if isinstance(op, (mesh.Return, mesh.Yield)):
                return op
            writer = WRITERS.get(type(op))
            if writer is None:
                self.refuse(op, "there are no operations for it")
            if op.when is not None:
                self.refuse(op, "it has a condition")
            writer(self, op)
        raise AssertionError("a block without an ending")

    # --- operands beside others

    def beside(self, op: Op, panel: Panel, value: Argument) -> tuple[str, Operand]:
        """How ``value`` is read beside rows of tiles of ``panel``, which has its dims."""
        name, other = self.of(value)
        shared = tuple(dim for dim in other.kind.dims if dim in panel.kind.dims)
        self.check_alike(op, panel, other, self.several(shared))
        if other.line:
            grouped = other.columns == panel.columns
            if panel.numbers or not (grouped or other.columns == panel.columns[-1:]):
                self.refuse(op, f"{value} lies over heads alone")
            return name, spread_line(other, grouped)
        if other.rows != panel.rows:
            self.refuse(op, f"{value} has other rows")
        if other.numbers and not panel.numbers:
            if other.columns not in ((), panel.columns[:-1]):
                self.refuse(op, f"{value} has a number for some heads")
            return name, spread_numbers(other, bool(other.columns))
        if other.columns not in (panel.columns, () if panel.numbers else panel.columns[-1:]):
            self.refuse(op, f"{value} lies over other columns")
        return name, own(other, other.columns == panel.columns)


_UNNAMED = "unnamed"
