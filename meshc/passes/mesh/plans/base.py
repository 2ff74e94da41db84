"""What both partition plans share: walking the graph, emitting mesh ops, laying weights out.

A plan gives every graph value a mesh value with a layout. Weights have no layout until their
first use decides it: constants are placed where the computation wants them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from meshc.analysis.tiling import Tiling, ceil_div
from meshc.ir.core import Block, Op, Operand, tensor_type
from meshc.ir.mesh import Mesh
from meshc.ir.module import Function, Module, Param
from meshc.ir.ops import graph, mesh
from meshc.ir.rows import Attention
from meshc.ir.types import DType, Layout, Split, TensorType, Type
from meshc.ir.values import Value
from meshc.support.diagnostics import Diagnostics, fail
from meshc.support.spans import Span


@dataclass(eq=False)
class Unnormalised:
    """A softmax before its division: the exponentials and their sums per core.

    The division waits until the weighted values are summed, so that numerator and denominator
    share one reduction. ``dim`` is that of the softmax.
    """

    weights: Value
    sums: Value
    dim: str


class Plan:
    """Lowers one function; subclasses choose the layouts. ``row_dim`` counts rows of tokens;
    ``gemm``, ``align`` and ``result`` are settings of partition."""

    row_dim: str = ""
    gemm: str = "auto"
    align: str = ""
    result: str = "everywhere"

    def __init__(self, module: Module, the_mesh: Mesh, tiling: Tiling, report: Diagnostics) -> None:
        self.source = module
        self.mesh = the_mesh
        self.tiling = tiling
        self.report = report
        self.extents = module.dims
        self.env: dict[Value, Value] = {}
        self.softmaxes: dict[Value, Unnormalised] = {}
        self.appends: list[graph.Append] = []
        self.weights: set[Value] = set()
        self.inputs: set[Value] = set()
        self.inner: dict[Value, Value] = {}
        self.block = Block()
        self.named: dict[str, Value] = {}
        self.carried = 0
        self.span: Span | None = None

    # --- the function

    def function(self) -> Function:
        """The mesh-level function for the graph-level one."""
        old = self.source.function
        params = [self.param(p) for p in old.params if not self.hosted(p)]
        params += self.lower_block(old.body)
        for param in params:
            self.settle(param)
        result_types = [v.type for v in self.block.ops[-1].tensors()]
        return Function(old.name, params, result_types, self.block)

    def hosted(self, param: Param) -> bool:
        """Whether only the host reads ``param``: token ids and the embedding table."""
        users = [o for o in self.source.walk() if param.value in o.operands]
        return bool(users) and all(isinstance(o, graph.Embed) for o in users)

    def param(self, param: Param) -> Param:
        """A mesh-level parameter: inputs get the activation layout, weights wait for their use, and
        so do inputs without rows, which are placed where their product wants them."""
        kind = tensor_type(param.value)
        value = self.value(param.value.name, TensorType(self.dtype, kind.dims))
        self.env[param.value] = value
        given = param.role == "in" and self.is_placed_by_product(param.value)
        if given:
            self.inputs.add(value)
        if param.role == "weight" or given:
            self.weights.add(value)
        elif param.role == "state":
            value.type = value_type(value).with_layout(self.cache_layout(kind.dims))
        else:
            value.type = value_type(value).with_layout(self.input_layout(kind.dims))
        return Param(value, param.role)

    def is_placed_by_product(self, value: Value) -> bool:
        """Whether an input is no activation: it has no rows of tokens or, where nothing has, it is
        the right operand of products and nothing else."""
        if self.row_dim:
            return self.row_dim not in tensor_type(value).dims
        users = [o for o in self.source.walk() if value in o.operands]
        return bool(users) and all(
            isinstance(o, graph.Matmul) and value in o.operands[1:] and value is not o.operands[0]
            for o in users
        )

    def settle(self, param: Param) -> None:
        """A weight that was laid out through its slice in a loop takes the slice's layout."""
        inner = self.inner.get(param.value)
        if inner is not None and inner in self.weights:
            param.value.type = value_type(param.value).with_layout(value_type(inner).layout)
        if value_type(param.value).layout is None:
            param.value.type = value_type(param.value).with_layout(Layout())

    def lower_block(self, block: Block) -> list[Param]:
        """Lower every op of ``block`` into the current block; returns inputs the host provides."""
        extra: list[Param] = []
        for op in block.ops:
            if isinstance(op, graph.Embed):
                extra.append(self.embedded(op))
            elif isinstance(op, graph.Append):
                self.appends.append(op)
            else:
                self.flush_appends(op)
                outer, self.span = self.span, op.span
                self.handler(op)(op)
                self.span = outer
        return extra

    def handler(self, op: Op) -> Callable[[Op], None]:
        """The method named after the op's mnemonic."""
        name = op.NAME.partition(".")[2].replace("return", "returned").replace("yield", "yielded")
        method = getattr(self, name, None)
        if method is None:
            fail("unsupported-op", f"{op.NAME} cannot be partitioned", op.span)
        return cast(Callable[[Op], None], method)

    def embedded(self, op: graph.Embed) -> Param:
        """The host looks tokens up in a table of the checkpoint; the rows enter as an input."""
        table = op.tensors()[1]
        rows = [p.value for p in self.source.function.params if p.role == "weight"]
        if table not in rows or tensor_type(table).dims[0] != op.dim:
            over = ", ".join(tensor_type(table).dims)
            fail(
                "unsupported-op",
                f"tokens are looked up in {table} over {over}, which is no weight with a row for "
                "each of them",
                op.span,
                help=f"declare the table with {op.dim} first; products can transpose it",
            )
        dims = tensor_type(op.result).dims
        layout = self.input_layout(dims)
        value = self.value(op.result.name, TensorType(self.dtype, dims, layout))
        self.env[op.result] = value
        return Param(value, "in")

    # --- emitting

    @property
    def dtype(self) -> DType:
        """Element type of activations and weights on the cores."""
        return self.source.dtype()

    def value(self, name: str, kind: Type) -> Value:
        """A fresh value with a name like ``name``."""
        fresh, count = name, 0
        while fresh in self.named:
            count += 1
            fresh = f"{name}_{count}"
        self.named[fresh] = Value(fresh, kind)
        return self.named[fresh]

    def give_name(self, value: Value, name: str) -> None:
        """Call ``value`` by ``name``, which a value on the way to it may have taken; that one gets
        the name of ``value``."""
        other = self.named[name]
        value.name, other.name = name, value.name
        self.named |= {v.name: v for v in (value, other)}

    def emit(self, op: Op, *results: tuple[str, Type]) -> list[Value]:
        """Append ``op``, at the place of what is being lowered, to the current block with fresh
        results."""
        op.span = op.span or self.span
        op.results = [self.value(name, kind) for name, kind in results]
        self.block.ops.append(op)
        return op.results

    def emit_like(self, op: Op, name: str, like: Value) -> Value:
        """Append ``op`` whose result is laid out as ``like``, in the module's dtype."""
        kind = value_type(like)
        (value,) = self.emit(op, (name, TensorType(self.dtype, kind.dims, kind.layout)))
        return value

    def all_reduce(self, values: list[Value], axis: str, reduce: str = "sum") -> list[Value]:
        """Complete partial values over ``axis``; nothing to do on an axis of one core."""
        axes = self.parts(axis)
        kinds = [value_type(v) for v in values]
        done = [TensorType(k.dtype, k.dims, Layout(layout_of(k).splits)) for k in kinds]
        if self.mesh.size(axis) == 1:
            for value, kind in zip(values, done, strict=True):
                value.type = kind
            return values
        assert all(layout_of(k).partial == axes for k in kinds)
        operands: list[Operand] = list(values)
        return self.emit(
            mesh.AllReduce(operands, axis=axis, reduce=reduce),
            *((v.name, kind) for v, kind in zip(values, done, strict=True)),
        )

    def reduced(self, values: list[Value], axis: str, users: list[Value]) -> list[Value]:
        """Complete the results of a product, graph values ``users``: on every core of the axis or,
        if they leave main and the setting ``result`` is ``roots``, on the first core only."""
        at_roots = self.result == "roots"
        if not at_roots or self.mesh.size(axis) == 1 or not all(map(self.is_returned, users)):
            return self.all_reduce(values, axis)
        kinds = [value_type(v) for v in values]
        done = [
            TensorType(k.dtype, k.dims, Layout(layout_of(k).splits, (), self.parts(axis)))
            for k in kinds
        ]
        return self.emit(
            mesh.Reduce(list(values), axis=axis),
            *((v.name, kind) for v, kind in zip(values, done, strict=True)),
        )

    def is_returned(self, value: Value) -> bool:
        """Whether main gives ``value`` back, once, and nothing else reads it: the host takes it as
        it is, in the type of sums."""
        users = [o for o in self.source.walk() for operand in o.operands if operand is value]
        return len(users) == 1 and isinstance(users[0], graph.Return)

    def parts(self, axis: str) -> tuple[str, ...]:
        """How a partial sum over ``axis`` is written in a layout."""
        return (axis,)

    def partial(self, dims: tuple[str, ...], layout: Layout, axis: str) -> TensorType:
        """Type of a partial sum over ``axis``."""
        return TensorType(self.source.accumulate(), dims, layout.with_partial(*self.parts(axis)))

    # --- layouts

    def input_layout(self, dims: tuple[str, ...]) -> Layout:
        """Layout in which activations enter."""
        raise NotImplementedError

    def cache_layout(self, dims: tuple[str, ...]) -> Layout:
        """KV caches: rows of the sequence over rows, heads over columns (WaferLLM section 4.3)."""
        heads = self.heads()
        splits = [Split(heads.keys, self.mesh.down, self.tiling.row_lanes, "shift")]
        return Layout(tuple(splits) + self.head_splits(dims))

    def heads(self) -> Attention:
        """Dims of the attention; what gets here belongs to one."""
        if self.tiling.heads is None:
            fail(
                "unsupported-op",
                "there is a cache, but no attention: no softmax over products with cached keys",
                help="multiply queries with the cache, take the softmax, weight cached values",
            )
        return self.tiling.heads

    def holds_keys(self, value: Value) -> bool:
        """Whether ``value`` is a KV cache."""
        heads = self.tiling.heads
        return heads is not None and heads.keys in value_type(value).dims

    def head_splits(self, dims: tuple[str, ...]) -> tuple[Split, ...]:
        """Whole head groups over segments of columns, then pairs of lanes inside them."""
        found = []
        heads, tiling = self.tiling.heads, self.tiling
        for dim in dims:
            if heads is not None and dim == heads.query and dim != heads.key:
                found.append(Split(dim, self.mesh.group, tiling.query_block))
            elif heads is not None and dim == heads.key:
                found.append(Split(dim, self.mesh.group, tiling.key_block))
            elif heads is not None and dim == heads.lane:
                found.append(Split(dim, self.mesh.inner, tiling.lane_block))
        return tuple(found)

    def has_heads(self, dims: tuple[str, ...]) -> bool:
        """Whether ``dims`` are those of queries, keys or values."""
        heads = self.tiling.heads
        return heads is not None and heads.lane in dims and bool({heads.query, heads.key} & {*dims})

    def column_splits(self, dims: tuple[str, ...], axis: str) -> tuple[Split, ...]:
        """Splits of a matmul's new dims over ``axis``: heads on columns, else the largest dim."""
        if self.has_heads(dims) and axis == self.mesh.across:
            return self.head_splits(dims)
        if not dims:
            return ()
        widest = max(dims, key=lambda d: self.extents[d])
        return (Split(widest, axis, self.lanes(widest, axis)),)

    def lanes(self, dim: str, axis: str) -> int:
        """Lanes of ``dim`` on each core of ``axis``: equal shares, in whole pairs where RoPE turns
        neighbours."""
        extent, size = self.extents[dim], self.mesh.size(axis)
        if any(isinstance(o, graph.Rope) and o.dim == dim for o in self.source.walk()):
            return 2 * ceil_div(ceil_div(extent, 2), size)
        return ceil_div(extent, size)

    def lay_weight(self, value: Value, layout: Layout, op: Op) -> None:
        """Give a weight its layout, or check that an earlier use gave the same one."""
        kind = value_type(value)
        if kind.layout is None:
            value.type = kind.with_layout(layout)
        elif kind.layout != layout:
            fail(
                "weight-used-twice",
                f"'{value.name}' is used in two places that want it laid out differently",
                op.span,
                help="declare a second parameter for the second use",
            )

    def is_weight(self, value: Value) -> bool:
        """Whether ``value`` is a constant that may still be placed at will."""
        return value in self.weights

    def restricted(self, value: Value, dims: tuple[str, ...]) -> Layout:
        """Layout of ``value`` for a tensor that has only ``dims`` of it."""
        return Layout(tuple(s for s in layout_of(value_type(value)).splits if s.dim in dims))

    def move(self, value: Value, layout: Layout, op: Op) -> Value:
        """Bring ``value`` into another layout, where the plan knows how."""
        fail(
            "unsupported-layout",
            f"'{value.name}' lies as {value_type(value).layout} but {layout} is needed",
            op.span,
        )

    def env_of(self, operand: Operand) -> Value:
        """The mesh value of a graph value; a pending softmax is divided now."""
        assert isinstance(operand, Value)
        soft = self.softmaxes.pop(operand, None)
        if soft is not None:
            sums = self.completed(soft.sums, soft.weights, soft.dim, "sum")
            self.env[operand] = self.emit_like(
                mesh.Div([soft.weights, sums]), operand.name, soft.weights
            )
        return self.env[operand]

    def laid_out(self, operand: Operand) -> Value:
        """The mesh value of a graph value that is computed on; a constant whose use leaves the
        layout open lies as activations do."""
        value = self.env_of(operand)
        kind = value_type(value)
        if kind.layout is None:
            layout = self.input_layout(kind.dims)
            splits = tuple(s for s in layout.splits if s.dim in kind.dims)
            value.type = kind.with_layout(Layout(splits))
        return value

    def completed(self, value: Value, source: Value, dim: str, reduce: str) -> Value:
        """``value``, which reduces ``dim`` of ``source`` on each core, over all cores."""
        split = layout_of(value_type(source)).split_of(dim)
        return self.all_reduce([value], split.axis, reduce)[0] if split else value

    def flush_appends(self, user: Op | None) -> None:
        """Emit pending cache appends as one op once something needs a cache."""
        used = (
            user is None
            or isinstance(user, (graph.Yield, graph.Return))
            or any(a.result in user.operands for a in self.appends)
        )
        if not self.appends or not used:
            return
        operands: list[Operand] = []
        for append in self.appends:
            cache, new = (self.env_of(o) for o in append.operands)
            operands += [cache, self.move_rows(cache, new, append)]
        first = self.appends[0]
        made = mesh.Append(operands, span=first.span, dim=first.dim, rows=first.rows)
        caches = [o for o in operands[::2] if isinstance(o, Value)]
        results = self.emit(made, *((f"{c.name}.new", c.type) for c in caches))
        for append, value in zip(self.appends, results, strict=True):
            self.env[append.result] = value
        self.appends = []

    def move_rows(self, cache: Value, new: Value, op: Op) -> Value:
        """New rows must lie on the columns where the cache has them."""
        heads = self.heads()
        want = tuple(s for s in layout_of(value_type(cache)).splits if s.dim != heads.keys)
        have = tuple(s for s in layout_of(value_type(new)).splits if s.dim != self.row_dim)
        if set(want) != set(have):
            fail("unsupported-layout", f"new rows lie as {value_type(new).layout}", op.span)
        return new


def value_type(value: Value) -> TensorType:
    """The tensor type of a mesh-level value."""
    return tensor_type(value)


def layout_of(kind: TensorType) -> Layout:
    """The layout of a type; none means that every core holds everything."""
    return kind.layout or Layout()
