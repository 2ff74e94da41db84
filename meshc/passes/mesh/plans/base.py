"""What both partition plans share: walking the graph, emitting mesh ops, laying weights out.

A plan gives every graph value a mesh value with a layout. Weights have no layout until their
first use decides it: constants are placed where the computation wants them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import cast

from meshc.analysis.tiling import HeadDims, Tiling, ceil_div
from meshc.ir.core import Block, Op, Operand, tensor_type
from meshc.ir.mesh import Mesh
from meshc.ir.module import Function, Module, Param
from meshc.ir.ops import graph, mesh
from meshc.ir.types import DType, Layout, Split, TensorType, Type
from meshc.ir.values import Value
from meshc.support.diagnostics import Diagnostics, fail


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
    """Lowers one function; subclasses choose the layouts. ``row_dim`` counts rows of tokens."""

    row_dim: str = ""

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
                self.handler(op)(op)
        return extra

    def handler(self, op: Op) -> Callable[[Op], None]:
        """The method named after the op's mnemonic."""
        name = op.NAME.partition(".")[2].replace("return", "returned").replace("yield", "yielded")
        method = getattr(self, name, None)
        if method is None:
            fail("unsupported-op", f"{op.NAME} cannot be partitioned", op.span)
        return cast(Callable[[Op], None], method)

    def embedded(self, op: graph.Embed) -> Param:
        """The host looks tokens up; the rows enter as an input."""
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
        """Append ``op`` to the current block with fresh results."""
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
        if they leave main and the option ``result`` is ``roots``, on the first core only."""
        at_roots = str(self.source.option("result", "")) == "roots"
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
        """KV caches: rows of the sequence over y, heads over x (WaferLLM section 4.3)."""
        heads = self.heads()
        splits = [Split(heads.keys, "y", self.tiling.row_lanes, "shift")]
        return Layout(tuple(splits) + self.head_splits(dims))

    def heads(self) -> HeadDims:
        """Dims of the attention; what gets here belongs to one."""
        if self.tiling.heads is None:
            fail(
                "unsupported-op",
                "there is a cache, but no attention: no softmax over products with cached keys",
                help="multiply queries with the cache, take the softmax, weight cached values",
            )
        return self.tiling.heads

    def unnormalised(self, left: Operand, rights: list[Value]) -> Unnormalised | None:
        """The softmax whose division can wait until cached values are weighted: ``left``, if
        nothing but this product reads it."""
        users = [o for o in self.source.walk() if left in o.operands]
        if not isinstance(left, Value) or len(users) != 1 or not all(map(self.holds_keys, rights)):
            return None
        return self.softmaxes.pop(left, None)

    def holds_keys(self, value: Value) -> bool:
        """Whether ``value`` is a KV cache."""
        heads = self.tiling.heads
        return heads is not None and heads.keys in value_type(value).dims

    def contracted(self, op: graph.Matmul, left: Value, rights: list[Value]) -> tuple[str, ...]:
        """The dims that a product of ``left`` with matrices contracts, in the order in which a core
        holds them: all dims of ``left`` but the rows of tokens."""
        dims = value_type(left).dims
        contract = tuple(d for d in dims if d in op.contract)
        rows = {"B", self.row_dim}
        kept = [d for d in dims if d not in contract and d not in rows]
        shared = [d for d in kept if any(d in value_type(r).dims for r in rights)]
        if kept or rows & set(contract):
            what = f"{', '.join(contract)} of {left} [{', '.join(dims)}]"
            if rows & set(contract):
                why = "which are its rows"
            elif shared:
                why = f"and has a matrix for each {', '.join(shared)}"
            else:
                why = f"and keeps {', '.join(kept)}"
            fail(
                "unsupported-op",
                f"this product contracts {what}, {why}: that has no distributed form",
                op.span,
                help="products contract all dims of the left side but B and the rows",
            )
        return contract

    def head_splits(self, dims: tuple[str, ...]) -> tuple[Split, ...]:
        """Whole head groups over xh, then pairs of lanes over xd."""
        found = []
        heads, tiling = self.tiling.heads, self.tiling
        for dim in dims:
            if heads is not None and dim == heads.query and dim != heads.key:
                found.append(Split(dim, "xh", tiling.query_block))
            elif heads is not None and dim == heads.key:
                found.append(Split(dim, "xh", tiling.key_block))
            elif heads is not None and dim == heads.lane:
                found.append(Split(dim, "xd", tiling.lane_block))
        return tuple(found)

    def has_heads(self, dims: tuple[str, ...]) -> bool:
        """Whether ``dims`` are those of queries, keys or values."""
        heads = self.tiling.heads
        return heads is not None and heads.lane in dims and bool({heads.query, heads.key} & {*dims})

    def column_splits(self, dims: tuple[str, ...], axis: str) -> tuple[Split, ...]:
        """Splits of a matmul's new dims over ``axis``: heads on x, else the largest dim."""
        if self.has_heads(dims) and axis == "x":
            return self.head_splits(dims)
        if not dims:
            return ()
        widest = max(dims, key=lambda d: self.extents[d])
        return (Split(widest, axis, ceil_div(self.extents[widest], self.mesh.size(axis))),)

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

    # --- ops that do not depend on the plan

    def fit_second(self, op: Op) -> tuple[Value, Value]:
        """Operands of a pointwise op, the second laid out like the first."""
        left, right = self.laid_out(op.operands[0]), self.env_of(op.operands[1])
        wanted = self.restricted(left, value_type(right).dims)
        if self.is_weight(right):
            self.lay_weight(right, wanted, op)
        elif value_type(right).layout != wanted:
            right = self.move(right, wanted, op)
        return left, right

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

    def add(self, op: Op) -> None:
        """Sum of two values."""
        left, right = self.fit_second(op)
        self.env[op.result] = self.emit_like(mesh.Add([left, right]), op.result.name, left)

    def mul(self, op: Op) -> None:
        """Product of two values."""
        left, right = self.fit_second(op)
        self.env[op.result] = self.emit_like(mesh.Mul([left, right]), op.result.name, left)

    def _unary(self, made: Op, op: Op) -> None:
        value = self.laid_out(op.operands[0])
        made.operands = [value]
        self.env[op.result] = self.emit_like(made, op.result.name, value)

    def scale(self, op: graph.Scale) -> None:
        """Product with a constant."""
        self._unary(mesh.Scale(factor=op.factor), op)

    def silu(self, op: graph.Silu) -> None:
        """SiLU."""
        self._unary(mesh.Silu(), op)

    def gelu(self, op: graph.Gelu) -> None:
        """GELU."""
        self._unary(mesh.Gelu(form=op.form), op)

    def rope(self, op: graph.Rope) -> None:
        """Rotation of pairs, each whole on one core."""
        value = self.laid_out(op.operands[0])
        if op.style != "interleaved":
            fail(
                "unsupported-op",
                "rotate-half RoPE whose weights cannot be reordered into pairs",
                op.span,
                help="canonicalize reorders them when the rotated value comes straight from a "
                "matmul with a weight",
            )
        made = mesh.Rope(**{f.name: getattr(op, f.name) for f in fields(op)})
        made.operands, made.results, made.regions = [value], [], []
        self.env[op.result] = self.emit_like(made, op.result.name, value)

    def rms_norm(self, op: graph.RmsNorm) -> None:
        """Sum of squares, its reduction, then the scaling."""
        value, gain = self.laid_out(op.operands[0]), self.env_of(op.operands[1])
        if op.dim == self.row_dim and self.extents[op.dim] > 1:
            fail(
                "unsupported-op",
                f"a norm over {op.dim}, the rows of tokens, has no distributed form",
                op.span,
                help="a norm is over a dim of each row",
            )
        total = self.partial_over(mesh.SquareSum([value], dim=op.dim), f"{op.result.name}.ss")
        total = self.completed(total, value, op.dim, "sum")
        self.lay_weight(gain, self.restricted(value, (op.dim,)), op)
        scaled = mesh.RmsScale([value, total, gain], dim=op.dim, eps=op.eps)
        self.env[op.result] = self.emit_like(scaled, op.result.name, value)

    def softmax(self, op: graph.Softmax) -> None:
        """Mask, maximum, exponentials and their sums; the division is left to the consumer."""
        scores = self.laid_out(op.operands[0])
        name = op.result.name
        if self.holds_keys(scores) and op.mask != "causal":
            fail(
                "unsupported-op",
                "a softmax over a cache must not see the rows that hold nothing yet",
                op.span,
                help="write softmax(.., mask = causal)",
            )
        if op.mask == "causal" or self.has_pads(value_type(scores), op.dim):
            made = mesh.Mask([scores], dim=op.dim, rows=op.rows, kind=op.mask)
            scores = self.emit_like(made, f"{name}.s", scores)
        top = self.partial_over(mesh.RowMax([scores], dim=op.dim), f"{name}.max")
        top = self.completed(top, scores, op.dim, "max")
        weights = self.emit_like(mesh.ExpSub([scores, top]), name, scores)
        sums = self.partial_over(mesh.RowSum([weights], dim=op.dim), f"{name}.sum")
        self.softmaxes[op.result] = Unnormalised(weights, sums, op.dim)

    def partial_over(self, made: mesh.RowMax | mesh.RowSum | mesh.SquareSum, name: str) -> Value:
        """Append a reduction of one dim: partial over the axis that splits the dim."""
        (operand,) = made.tensors()
        kind = value_type(operand)
        dims = tuple(d for d in kind.dims if d != made.dim)
        layout = self.restricted(operand, dims)
        split = layout_of(kind).split_of(made.dim)
        if split is not None:
            layout = layout.with_partial(*self.parts(split.axis))
        (value,) = self.emit(made, (name, TensorType(self.source.accumulate(), dims, layout)))
        return value

    def completed(self, value: Value, source: Value, dim: str, reduce: str) -> Value:
        """``value``, which reduces ``dim`` of ``source`` on each core, over all cores."""
        split = layout_of(value_type(source)).split_of(dim)
        return self.all_reduce([value], split.axis, reduce)[0] if split else value

    def has_pads(self, kind: TensorType, dim: str) -> bool:
        """Whether some lanes of ``dim`` hold no element."""
        split = layout_of(kind).split_of(dim)
        if split is None:
            return False
        whole = split.block * self.mesh.size(split.axis) == self.extents[dim]
        return not whole or (split.kind != "block" and bool(self.source.scalars))

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
        made = mesh.Append(operands, dim=first.dim, rows=first.rows)
        caches = [o for o in operands[::2] if isinstance(o, Value)]
        results = self.emit(made, *((f"{c.name}.new", c.type) for c in caches))
        for append, value in zip(self.appends, results, strict=True):
            self.env[append.result] = value
        self.appends = []

    def move_rows(self, cache: Value, new: Value, op: Op) -> Value:
        """New rows must lie on the columns where the cache has them."""
        heads = self.heads()
        want = tuple(s for s in layout_of(value_type(cache)).splits if s.dim != heads.keys)
        have = tuple(s for s in layout_of(value_type(new)).splits if s.dim != heads.rows)
        if set(want) != set(have):
            fail("unsupported-layout", f"new rows lie as {value_type(new).layout}", op.span)
        return new

    def repeat(self, op: graph.Repeat) -> None:
        """The loop over layers, with the same carried layouts at its start and end."""
        (old,) = op.regions
        taken = [self.laid_out(o) for o in op.operands[: op.carried]]
        operands = taken + [self.env_of(o) for o in op.operands[op.carried :]]
        outer, self.block, self.carried = self.block, Block(), op.carried
        for position, (arg, value) in enumerate(zip(old.args, operands, strict=True)):
            kind = value_type(value)
            dims = kind.dims if position < op.carried else kind.dims[1:]
            inner = self.value(arg.name, TensorType(kind.dtype, dims, kind.layout))
            self.env[arg] = inner
            if value in self.weights and position >= op.carried:
                self.weights.add(inner)
                self.inner[value] = inner
            self.block.args.append(inner)
        self.lower_block(old)
        body, self.block = self.block, outer
        for arg in body.args:
            if value_type(arg).layout is None:
                arg.type = value_type(arg).with_layout(Layout())
        made = mesh.Repeat(list(operands), regions=[body], dim=op.dim, carried=op.carried)
        ends = body.ops[-1].tensors()
        kinds = [
            value_type(v) if i < op.carried else self.stacked(op.dim, value_type(v))
            for i, v in enumerate(ends)
        ]
        results = self.emit(made, *((r.name, k) for r, k in zip(op.results, kinds, strict=True)))
        for old_result, value in zip(op.results, results, strict=True):
            self.env[old_result] = value

    def stacked(self, dim: str, kind: TensorType) -> TensorType:
        """Type of ``kind`` collected over the layers."""
        return TensorType(kind.dtype, (dim, *kind.dims), kind.layout)

    def yielded(self, op: graph.Yield) -> None:
        """Carried values return to the layout they entered with."""
        values = [self.laid_out(o) for o in op.operands]
        for position, arg in enumerate(self.block.args[: self.carried]):
            entered = value_type(arg).layout or Layout()
            if value_type(values[position]).layout != entered:
                values[position] = self.move(values[position], entered, op)
        self.emit(mesh.Yield(list(values)))

    def returned(self, op: graph.Return) -> None:
        """Results leave as they lie, by the names that the model gives them."""
        self.flush_appends(None)
        values: list[Operand] = []
        for asked in op.tensors():
            value = self.env_of(asked)
            if value.name.startswith(f"{asked.name}_"):
                self.give_name(value, asked.name)
            values.append(value)
        self.emit(mesh.Return(values))


def value_type(value: Value) -> TensorType:
    """The tensor type of a mesh-level value."""
    return tensor_type(value)


def layout_of(kind: TensorType) -> Layout:
    """The layout of a type; none means that every core holds everything."""
    return kind.layout or Layout()
