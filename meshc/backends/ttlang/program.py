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

from meshc.analysis.rotary import rope_frequencies
from meshc.backends.python.names import Names
from meshc.backends.ttlang import given as host
from meshc.backends.ttlang.collectives import combined
from meshc.backends.ttlang.given import ElementsOf, Given, elements_of, nodes_of, shape_of
from meshc.backends.ttlang.lanes import Elements, Grid
from meshc.backends.ttlang.operation import Node, Operation
from meshc.backends.ttlang.panels import Panel, alike, matrix, numbers_of
from meshc.backends.ttlang.pointwise import (
    Operand,
    constant,
    own,
    pointwise,
    spread_line,
    spread_numbers,
    square,
)
from meshc.backends.ttlang.products import Heads, summa, turned
from meshc.backends.ttlang.text import text_of
from meshc.backends.ttlang.waits import check_waits
from meshc.ir.core import Block, Op, tensor_type
from meshc.ir.core import Operand as Argument
from meshc.ir.functions import Function
from meshc.ir.module import Module
from meshc.ir.ops import mesh
from meshc.ir.types import DType, Layout, TensorType
from meshc.ir.values import Value
from meshc.support.diagnostics import fail

USUAL_ROOM = 1_499_136
"""Bytes of a node for buffers where the device sets no limit: those of Blackhole."""
_BINARY = {
    "mesh.add": "{a} + {b}",
    "mesh.mul": "{a} * {b}",
    "mesh.div": "{a} / {b}",
    "mesh.exp_sub": "ttl.math.exp({a} - {b})",
    "mesh.larger": "ttl.math.max({a}, {b})",
}
_REDUCED = {
    "mesh.row_sum": "ttl.math.reduce_sum({a}, dims=[-1], shape=(1, 1))",
    "mesh.square_sum": "ttl.math.reduce_sum({a} * {a}, dims=[-1], shape=(1, 1))",
    "mesh.row_max": "ttl.math.reduce_max({a}, dims=[-1], shape=(1, 1))",
}
_FUNCTIONS: dict[str, tuple[str, tuple[float, ...]]] = {
    "mesh.silu": ("ttl.math.silu({a})", ()),
    "mesh.sigmoid": ("ttl.math.sigmoid({a})", ()),
    "mesh.exp": ("ttl.math.exp({a})", ()),
    "mesh.tanh": ("ttl.math.tanh({a})", ()),
    "mesh.relu2": ("ttl.math.square(ttl.math.relu({a}))", ()),
    "mesh.quick_gelu": ("{a} * ttl.math.sigmoid({a} * {b})", (1.702,)),
}
_GELU: dict[str, tuple[str, tuple[float, ...]]] = {
    "erf": ("ttl.math.gelu({a})", ()),
    "tanh": (
        "{a} * {b} * ({c} + ttl.math.tanh(({a} + {a} * {a} * {a} * {e}) * {d}))",
        (0.5, 1.0, float(np.sqrt(2 / np.pi)), 0.044715),
    ),
}


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
        ending = self.block(self.module.function.body)
        names = []
        for value in ending.operands:
            name, panel = self.of(value)
            names.append(name)
            self.results.append(self._result(ending, value, panel))
        self.say(f"return {', '.join(names)}" + ("," if len(names) == 1 else ""))

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
        name = self.names.fresh(op.NAME.removeprefix("mesh."))
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
            writer = _WRITERS.get(type(op))
            if op.when is not None:
                self.refuse(op, "it has a condition")
            if isinstance(op, Function):
                _function(self, op)
            elif op.NAME in _BINARY:
                _binary(self, op)
            elif op.NAME in _REDUCED:
                _reduced(self, op)
            elif writer is None:
                self.refuse(op, "there are no operations for it")
            else:
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


Writer = Callable[[PhaseProgram, Any], None]
_WRITERS: dict[type[Op], Writer] = {}


def _writes(cls: type[Op]) -> Callable[[Writer], Writer]:
    def add(writer: Writer) -> Writer:
        _WRITERS[cls] = writer
        return writer

    return add


# --- work on a node's own block


def _simple(
    program: PhaseProgram, op: Op, expression: str, others: Sequence[Argument] = (),
    numbers: Sequence[float] = (),
) -> None:  # fmt: skip
    """An op whose result lies as its first operand ``{a}``; ``others`` and then ``numbers`` are
    ``{b}``, ``{c}``, .."""
    name, panel = program.of(op.operands[0])
    if panel.line:
        program.refuse(op, f"{op.operands[0]} has no rows")
    beside = [(name, own(panel)), *(program.beside(op, panel, value) for value in others)]
    beside += [(program.number(value), constant(panel.width)) for value in numbers]
    made = alike(panel, tensor_type(op.result))
    operation = pointwise(program.grid, made, [operand for _, operand in beside], expression)
    program.give(op, op.result, operation, [tensor for tensor, _ in beside], made)


def _binary(program: PhaseProgram, op: Op) -> None:
    _simple(program, op, _BINARY[op.NAME], op.operands[1:])


def _function(program: PhaseProgram, op: Function) -> None:
    attributes: dict[str, Any] = op.attributes()
    expression, numbers = _FUNCTIONS.get(op.NAME, ("", ()))
    if op.NAME == "mesh.gelu":
        expression, numbers = _GELU[attributes["form"]]
    elif op.NAME == "mesh.clamp":
        expression = "ttl.math.max(ttl.math.min({a}, {b}), {c})"
        numbers = attributes["most"], attributes["least"]
    if not expression:
        program.refuse(op, "there are no operations for it")
    _simple(program, op, expression, numbers=numbers)


@_writes(mesh.Scale)
def _scale(program: PhaseProgram, op: mesh.Scale) -> None:
    _simple(program, op, "{a} * {b}", numbers=(op.factor,))


@_writes(mesh.AtLeast)
def _at_least(program: PhaseProgram, op: mesh.AtLeast) -> None:
    _simple(program, op, "ttl.math.max({a}, {b})", numbers=(op.value,))


@_writes(mesh.InverseRms)
def _inverse_rms(program: PhaseProgram, op: mesh.InverseRms) -> None:
    numbers = (1 / program.module.dims[op.dim], op.eps)
    _simple(program, op, "ttl.math.rsqrt({a} * {b} + {c})", numbers=numbers)


@_writes(mesh.RmsScale)
def _rms_scale(program: PhaseProgram, op: mesh.RmsScale) -> None:
    if op.also:
        program.refuse(op, f"it is over {op.dim} and {', '.join(op.also)}")
    numbers = (1 / program.module.dims[op.dim], op.eps)
    expression = "{a} * ttl.math.rsqrt({b} * {d} + {e}) * {c}"
    _simple(program, op, expression, op.operands[1:], numbers)


def _reduced(program: PhaseProgram, op: Op) -> None:
    name, panel = program.of(op.operands[0])
    over = op.over() if isinstance(op, mesh.RowReduction) else ()
    if panel.line or panel.numbers or over != panel.columns[-1:]:
        program.refuse(op, "it is not over the lanes of rows")
    made = numbers_of(panel, tensor_type(op.result))
    operation = pointwise(program.grid, made, [own(panel)], _REDUCED[op.NAME])
    program.give(op, op.result, operation, [name], made)


def _of_one_head(panel: Panel) -> Panel:
    """What lies beside each head of ``panel``: its rows and their lanes."""
    dims = (*panel.rows, *panel.columns[-1:])
    splits = tuple(s for s in (panel.kind.layout or Layout()).splits if s.dim in dims)
    kind = TensorType(panel.kind.dtype, dims, Layout(splits))
    return Panel(kind, panel.rows, panel.columns[-1:], panel.height, 1, panel.width)


@_writes(mesh.Mask)
def _mask(program: PhaseProgram, op: mesh.Mask) -> None:
    name, panel = program.of(op.operands[0])
    if op.kind == "none":
        program.put(op.result, name, alike(panel, tensor_type(op.result)))
        return
    if op.window and (op.every != 1 or op.but or op.after):
        program.refuse(op, "its window is not that of all layers")
    if panel.rows != (op.rows,) or panel.columns[-1:] != (op.dim,):
        program.refuse(op, "its scores are not rows of keys")
    seen = _of_one_head(panel)
    table = program.table("mask", seen, (("causal", op.window),), "mask")
    made = alike(panel, tensor_type(op.result))
    operands = [own(panel), own(seen, grouped=False)]
    operation = pointwise(program.grid, made, operands, "{a} + {b}")
    program.give(op, op.result, operation, [name, table], made)


@_writes(mesh.Rope)
def _rope(program: PhaseProgram, op: mesh.Rope) -> None:
    name, panel = program.of(op.operands[0])
    if op.but or op.skip or op.rows not in panel.rows or panel.columns[-1:] != (op.dim,):
        program.refuse(op, "layers turn by other angles, or its lanes are not those of rows")
    lanes = program.grid.extents[op.dim]
    turns = tuple(rope_frequencies(op, lanes))
    angles = _of_one_head(panel)
    tables = [program.table(word, angles, ((word, turns),), word) for word in ("cosine", "sine")]
    whole = Panel(TensorType(DType.F32, (), Layout()), (), (), panel.width, 1, panel.width)
    pairs = program.table("pairs", whole, (("pairs", panel.width),), "pairs")
    made = alike(panel, tensor_type(op.result))
    operands = [own(panel), own(angles, False), own(angles, False), square(panel.width)]
    operation = pointwise(program.grid, made, operands, "{a} * {b} + ({a} @ {d}) * {c}")
    program.give(op, op.result, operation, [name, *tables, pairs], made)


# --- work of several nodes


@_writes(mesh.AllReduce)
def _all_reduce(program: PhaseProgram, op: mesh.AllReduce) -> None:
    if op.reduce == "softmax":
        program.refuse(op, "it merges softmaxes")
    for operand, result in zip(op.operands, op.results, strict=True):
        name, panel = program.of(operand)
        made = alike(panel, tensor_type(result))
        if program.grid.mesh.size(op.axis) == 1:
            program.put(result, name, made)
            continue
        operation = combined(program.grid, panel, op.axis, op.reduce)
        program.give(op, result, operation, [name], made)


@_writes(mesh.Gemm)
def _gemm(program: PhaseProgram, op: mesh.Gemm) -> None:
    name, left = program.of(op.operands[0])
    heads = tuple(dim for dim in left.columns if dim not in op.contract)
    if left.columns != (*heads, *program.several(op.contract)) or left.line or left.numbers:
        program.refuse(op, "what it contracts are not the last columns of its left side")
    if program.grid.mesh.whole(op.axis) != program.grid.mesh.across:
        program.refuse(op, "its left side moves along columns")
    contracted = program.several(op.contract)
    splits = (left.kind.layout or Layout()).splits
    skew = next((s.skew for s in splits if s.dim in contracted), "")
    order = _order(program, op, left, contracted, skew)
    for argument, result in zip(op.operands[1:], op.results, strict=True):
        new = tuple(d for d in tensor_type(argument).dims if d not in op.contract)
        right_name, right = _right(program, op, argument, (contracted, new), order)
        kind = tensor_type(result)
        columns = program.several([d for d in kind.dims if d not in left.rows])
        made = matrix(program.grid, result, left.rows, columns, kind)
        own_heads = _heads(program, op, left, right, heads)
        if columns[: len(heads)] != heads:
            program.refuse(op, "heads are not the first columns of its result")
        operation = summa(program.grid, left, right, made, op.axis, skew, own_heads, program.room)
        program.give(op, result, operation, [name, right_name], made)


def _order(
    program: PhaseProgram, op: Op, left: Panel, dims: tuple[str, ...], skew: str
) -> Elements:
    """What is contracted, in the order in which parts of the left side have it. Raises
    ``ttlang-op`` where nodes of one part differ."""
    assert isinstance(op, mesh.Gemm)
    grid = program.grid
    parts: dict[int, Elements] = {}
    for node in grid.nodes:
        part = grid.rotated(op.axis, skew, node)
        found = grid.elements(left.kind, dims, node)
        if not np.array_equal(parts.setdefault(part, found), found):
            program.refuse(op, "nodes of one part have other elements")
    order = np.concatenate([parts[part] for part in sorted(parts)])
    if not np.array_equal(np.sort(order), np.arange(len(order))):
        program.refuse(op, f"{', '.join(dims)} of its left side does not lie over {op.axis} alone")
    return order


def _right(
    program: PhaseProgram, op: mesh.Gemm, argument: Argument,
    dims: tuple[tuple[str, ...], tuple[str, ...]], order: Elements,
) -> tuple[str, Panel]:  # fmt: skip
    """The right side of a product, rows of tiles being what is contracted, in ``order`` over the
    rows of nodes. A parameter is given so; what was computed must lie so."""
    grid, (contracted, new) = program.grid, dims
    crossing = grid.mesh.other(op.axis)
    share = len(order) // grid.mesh.size(crossing)

    def wanted(node: Node) -> Elements:
        part = grid.part(crossing, node)
        return order[part * share : (part + 1) * share]

    assert isinstance(argument, Value)
    source, _ = program.stacks.get(argument, (argument, 0))
    columns = program.several(new)
    if source in program.parameters:
        placed = _by_result(program, op, argument, contracted)
        panel = matrix(grid, argument, contracted, columns, placed)
        return program.parameter(argument, panel, wanted).name, panel
    name, panel = program.of(argument)
    if panel.rows != contracted or panel.columns != columns:
        program.refuse(op, f"{argument} is no matrix of what it contracts")
    for node in grid.nodes:
        if not np.array_equal(grid.elements(panel.kind, contracted, node), wanted(node)):
            program.refuse(op, f"parts of {argument} are not those of its left side")
    return name, panel


def _by_result(
    program: PhaseProgram, op: mesh.Gemm, argument: Value, contracted: tuple[str, ...]
) -> TensorType:
    """The type of a right side that is given: new dims as they lie in the result, and what is
    contracted in equal parts over rows of nodes."""
    result = op.results[op.operands.index(argument) - 1]
    layout = tensor_type(result).layout or Layout()
    kind = tensor_type(argument)
    own = (kind.layout or Layout()).splits
    held = tuple(replace(s, skew="") for s in own if s.dim in contracted)
    splits = held + tuple(s for s in layout.splits if s.dim in kind.dims)
    return kind.with_layout(Layout(splits))


def _heads(
    program: PhaseProgram, op: mesh.Gemm | mesh.GemmT, left: Panel, right: Panel,
    heads: tuple[str, ...],
) -> Heads:  # fmt: skip
    """How the products of heads share right sides; ``heads`` are those of the left one."""
    if not heads:
        return Heads()
    own_heads = program.grid.local(left.kind, heads)
    dims = (op.group[1],) if op.group else heads
    keys = program.grid.local(right.kind, program.several(dims))
    if len(heads) > 1 or own_heads % keys or (op.group and op.group[0] != heads[0]):
        program.refuse(op, "a node has no whole groups of heads")
    share = own_heads // keys
    for node in program.grid.nodes:
        query = program.grid.elements(left.kind, heads, node)
        key = program.grid.elements(right.kind, program.several(dims), node)
        if not np.array_equal(query // share, np.repeat(key, share)):
            program.refuse(op, "a node lacks the keys of one of its heads")
    return Heads(keys, share)


@_writes(mesh.GemmT)
def _gemm_t(program: PhaseProgram, op: mesh.GemmT) -> None:
    (left_name, left), (right_name, right) = map(program.of, op.operands)
    grid, kind = program.grid, tensor_type(op.result)
    contracted = program.several(op.contract)
    heads = tuple(dim for dim in left.columns if dim not in contracted)
    columns = program.several([d for d in kind.dims if d not in left.rows])
    if left.columns != (*heads, *contracted) or right.columns[-1:] != contracted:
        program.refuse(op, "what it contracts are not the last columns of both sides")
    if columns != (*heads, *right.rows) or grid.mesh.whole(op.axis) != grid.mesh.across:
        program.refuse(op, "its result is not scores of rows beside rows")
    made = matrix(grid, op.result, left.rows, columns, kind)
    split = (kind.layout or Layout()).split_of(right.rows[0])
    skew = "" if split is None else split.skew
    crossing = grid.mesh.other(op.axis)
    parts = {
        grid.part(crossing, node): grid.elements(right.kind, right.rows, node)
        for node in grid.nodes
    }
    program.check_alike(op, left, right, contracted)
    for node in grid.nodes:
        part = grid.rotated(op.axis, skew, node)
        scores = grid.elements(kind, right.rows, node)
        rows = grid.elements(right.kind, right.rows, node)
        if part not in parts or len(parts) != grid.mesh.size(op.axis):
            program.refuse(op, "rows and columns of nodes are not as many")
        if not np.array_equal(parts[part], scores) or not np.array_equal(
            parts[grid.part(crossing, node)], rows
        ):
            program.refuse(op, "parts of its result are not those of its right side")
    own_heads = _heads(program, op, left, right, heads)
    operation = turned(grid, left, right, made, op.axis, skew, own_heads, program.room)
    program.give(op, op.result, operation, [left_name, right_name], made)


@_writes(mesh.Append)
def _append(program: PhaseProgram, op: mesh.Append) -> None:
    """New rows are the whole cache: a program reads a prompt as long as its caches."""
    pairs = zip(op.operands[::2], op.operands[1::2], op.results, strict=True)
    for cache, new, result in pairs:
        name, panel = program.of(new)
        kind = tensor_type(cache)
        rows = tuple(op.dim if dim == op.rows else dim for dim in panel.rows)
        grown = replace(panel, kind=kind, rows=rows)
        if program.module.dims[op.dim] != program.module.dims[op.rows]:
            program.refuse(op, f"{op.rows} is not all of {op.dim}")
        for node in program.grid.nodes:
            held = program.grid.elements(kind, (*rows, *panel.columns), node)
            given = program.grid.elements(panel.kind, (*panel.rows, *panel.columns), node)
            if not np.array_equal(held, given):
                program.refuse(op, f"{new} does not lie as {cache} does")
        program.put(result, name, grown)


@_writes(mesh.Repeat)
def _repeat(program: PhaseProgram, op: mesh.Repeat) -> None:
    (body,) = op.regions
    if op.rounds:
        program.refuse(op, "a run passes some of the layers")
    count = program.module.dims[op.dim]
    carried = []
    for argument, operand in zip(body.args, op.operands[: op.carried], strict=False):
        name, panel = program.of(operand)
        own_name = program.names.fresh(argument.name)
        program.say(f"{own_name} = {name}")
        program.put(argument, own_name, panel)
        carried.append(own_name)
    for argument, operand in zip(body.args[op.carried :], op.operands[op.carried :], strict=True):
        assert isinstance(operand, Value)
        if operand not in program.parameters:
            program.refuse(op, f"{operand} is a stack that was computed")
        program.stacks[argument] = operand, count
    kept = [program.names.fresh(value.name) for value in op.results[op.carried :]]
    for name in kept:
        program.say(f"{name} = []")
    program.say(f"for layer in range({count}):")
    program.depth += 1
    ending = program.block(body)
    given = [program.of(value) for value in ending.operands]
    for name, (found, _) in zip(kept, given[op.carried :], strict=True):
        program.say(f"{name}.append({found})")
    goes_on = given[: op.carried]
    program.say(f"{', '.join(carried)} = {', '.join(name for name, _ in goes_on)}")
    program.depth -= 1
    for value, name, (_, panel) in zip(
        op.results, [*carried, *kept], [*goes_on, *given[op.carried :]], strict=True
    ):
        program.put(value, name, panel)


@_writes(mesh.KeepLanes)
def _keep_lanes(program: PhaseProgram, op: mesh.KeepLanes) -> None:
    """All lanes of a tile hold elements."""
    name, panel = program.of(op.operands[0])
    program.put(op.result, name, alike(panel, tensor_type(op.result)))
