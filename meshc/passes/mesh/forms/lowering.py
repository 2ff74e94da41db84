"""One way through a function so far: what the values lie like, and the mesh ops that compute them.

A search takes many ways at once. Each is a :class:`Lowering`, which forms extend by emitting mesh
ops and which is copied where ways part (:meth:`Lowering.fork`). Values never change once they are
emitted: where a weight lies is noted beside it until the winner is finished.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from meshc.analysis.layout.tiling import Tiling
from meshc.cost.growing_plans import PlanCost
from meshc.ir.core import Block, Op, Operand, tensor_type
from meshc.ir.functions import ON_MESH, Exp
from meshc.ir.mesh import Mesh
from meshc.ir.module import Param
from meshc.ir.ops import graph
from meshc.ir.ops import mesh as ops
from meshc.ir.rows import Attention
from meshc.ir.types import Layout, Split, TensorType, Type
from meshc.ir.values import Value
from meshc.passes.mesh.forms.problem import Problem
from meshc.support.diagnostics import fail
from meshc.support.spans import Span


@dataclass(frozen=True)
class Unnormalised:
    """A softmax before its division: the exponentials and their sums per core.

    The division waits until the weighted values are summed, so that numerator and denominator
    share one reduction. ``dim`` is that of the softmax. ``tops`` are the maxima of each core's own
    elements, where the exponentials are relative to those; None where all cores share the maximum.
    ``share`` is the exponential of an attention sink, relative to the shared maximum, and ``sink``
    the sink itself where each core has a maximum of its own; None without one.
    """

    value: Value
    sums: Value
    dim: str
    tops: Value | None = None
    share: Value | None = None
    sink: Value | None = None

    def finish(self, way: Lowering, name: str) -> Value:
        """The division, for whoever does not wait for it."""
        assert self.tops is None, "who merges softmaxes waits"
        sums = self.with_sink(way, way.completed(self.sums, self.value, self.dim, "sum"))
        return way.emit_like(ops.Div([self.value, sums]), name, self.value)

    def with_sink(self, way: Lowering, sums: Value, tops: Value | None = None) -> Value:
        """The completed ``sums`` with the share of the sink, if there is one, relative to the
        maxima ``tops`` of all cores where each had one of its own."""
        share = self.share
        if self.sink is not None and tops is not None:
            share = sink_share(way, self.sink, tops)
        if share is None:
            return sums
        (found,) = way.emit(ops.Add([sums, share]), (sums.name, way.type_of(sums)))
        return found


def sink_share(way: Lowering, sink: Value, tops: Value) -> Value:
    """``exp(sink - tops)``, of maxima that are not below the sink."""
    kind, name = way.type_of(tops), f"{sink.name}.share"
    (lowered,) = way.emit(ops.Scale([tops], factor=-1.0), (name, kind))
    (behind,) = way.emit(ops.Add([lowered, sink]), (name, kind))
    (share,) = way.emit(ON_MESH[Exp]([behind]), (name, kind))
    return share


@dataclass(frozen=True)
class Unscaled:
    """An RMSNorm before its scale: values times gain, and sums of squares per core.

    The scale of a row commutes with a product of it, so the sum of squares can travel in the
    reduction of that product. ``dim`` and ``eps`` are those of the norm.
    """

    value: Value
    sums: Value
    dim: str
    eps: float

    def finish(self, way: Lowering, name: str) -> Value:
        """The scale, for whoever does not wait for it."""
        sums = way.completed(self.sums, self.value, self.dim, "sum")
        (value,) = self.scaled(way, sums, [self.value], [name])
        return value

    def scaled(
        self, way: Lowering, sums: Value, values: Sequence[Value], names: Sequence[str]
    ) -> list[Value]:
        """``values``, computed of the unscaled ones, times the scale that ``sums`` give."""
        made = ops.InverseRms([sums], dim=self.dim, eps=self.eps)
        (inverse,) = way.emit(made, (f"{sums.name}.inverse", way.type_of(sums)))
        return [
            way.emit_like(ops.Mul([value, inverse]), name, value)
            for value, name in zip(values, names, strict=True)
        ]


@dataclass(frozen=True)
class AtExperts:
    """A value [rows, experts, features] at the experts of which ``routes`` are the gates, part of
    the graph value ``gates``. What it has for other rows does not matter. Once it is ``weighted``,
    whoever adds up the experts multiplies by the gates."""

    routes: Value
    gates: Value
    weighted: bool


@dataclass(frozen=True, eq=False)
class Loop:
    """A loop over layers: ``outer`` is the way that has come to it, which gives it ``operands``,
    and its body runs ``runs`` times in all."""

    op: graph.Repeat
    outer: Lowering
    operands: tuple[Value, ...]
    runs: int


@dataclass(eq=False)
class Lowering:
    """``env`` gives each graph value its mesh value; ``placed`` are the layouts chosen for weights;
    ``chosen`` the forms taken so far, by the name of what they compute; ``appends`` wait to enter
    their caches by ``policy``; ``at_experts`` are the graph values that wait for their gates, and
    ``dispatches`` what has been sent to experts, by rows, gates and where these lie; ``loop`` is
    the one in whose body the way is."""

    problem: Problem
    env: dict[Value, Value] = field(default_factory=dict)
    placed: dict[Value, Layout] = field(default_factory=dict)
    pending: dict[Value, Unnormalised | Unscaled] = field(default_factory=dict)
    appends: list[graph.Append] = field(default_factory=list)
    at_experts: dict[Value, AtExperts] = field(default_factory=dict)
    dispatches: dict[tuple[Value, Value, Split], tuple[Value, Value]] = field(default_factory=dict)
    policy: str = ""
    weights: set[Value] = field(default_factory=set)
    inputs: set[Value] = field(default_factory=set)
    stacks: dict[Value, Value] = field(default_factory=dict)
    params: tuple[Param, ...] = ()
    block: Block = field(default_factory=Block)
    names: dict[str, Value] = field(default_factory=dict)
    loop: Loop | None = None
    span: Span | None = None
    cost: PlanCost = field(default_factory=lambda: PlanCost.nothing(None))
    bytes: int = 0
    moves: tuple[tuple[str, Span | None], ...] = ()
    chosen: tuple[tuple[str, str], ...] = ()

    def fork(self) -> Lowering:
        """A way that shares what has been emitted and goes on by itself."""
        return Lowering(
            self.problem,
            dict(self.env),
            dict(self.placed),
            dict(self.pending),
            list(self.appends),
            dict(self.at_experts),
            dict(self.dispatches),
            self.policy,
            set(self.weights),
            set(self.inputs),
            dict(self.stacks),
            self.params,
            Block(list(self.block.args), list(self.block.ops)),
            dict(self.names),
            self.loop,
            self.span,
            self.cost,
            self.bytes,
            self.moves,
            self.chosen,
        )

    # --- the problem

    @property
    def carried(self) -> tuple[Value, ...]:
        """What the loop carries, as its body has it; nothing outside of loops."""
        return tuple(self.block.args[: self.loop.op.carried]) if self.loop else ()

    @property
    def mesh(self) -> Mesh:
        """The mesh that values are laid over."""
        return self.problem.mesh

    @property
    def tiling(self) -> Tiling:
        """How heads and rows meet the mesh."""
        return self.problem.tiling

    def heads(self) -> Attention:
        """Dims of the attention; what gets here belongs to one."""
        if self.tiling.heads is None:
            fail(
                "unsupported-op",
                "there is a cache, but no attention: no softmax over products with cached keys",
                help="multiply queries with the cache, take the softmax, weight cached values",
            )
        return self.tiling.heads

    # --- types and layouts

    def type_of(self, value: Operand) -> TensorType:
        """The type of a mesh value, with the layout chosen for it if it is a weight."""
        kind = tensor_type(value)
        placed = self.placed.get(value) if isinstance(value, Value) else None
        return kind if placed is None else kind.with_layout(placed)

    def layout_of(self, value: Operand) -> Layout:
        """The layout of a mesh value; none yet means that every core holds everything."""
        return self.type_of(value).layout or Layout()

    def restricted(self, value: Value, dims: Sequence[str]) -> Layout:
        """Layout of ``value`` for a tensor that has only ``dims`` of it."""
        return Layout(tuple(s for s in self.layout_of(value).splits if s.dim in dims))

    def summed(self, dims: tuple[str, ...], layout: Layout) -> TensorType:
        """Type of sums. They are rounded once, to the type of activations, by what takes them."""
        return TensorType(self.problem.accumulate, dims, layout)

    def partial(self, dims: tuple[str, ...], splits: tuple[Split, ...], axis: str) -> TensorType:
        """Type of a sum to be completed over ``axis``, which one core of it need not be."""
        axes = (axis,) if self.mesh.size(axis) > 1 else ()
        return self.summed(dims, Layout(splits, axes))

    def is_weight(self, value: Value) -> bool:
        """Whether ``value`` is a constant that lies where its use wants it."""
        return value in self.weights

    def holds_keys(self, value: Value) -> bool:
        """Whether ``value`` has the dim of cached keys."""
        heads = self.tiling.heads
        return heads is not None and heads.keys in tensor_type(value).dims

    def place(self, value: Value, layout: Layout, op: Op) -> None:
        """Give a weight its layout; fails where an earlier use gave another one."""
        kind = self.type_of(value)
        if kind.layout is not None and kind.layout != layout:
            fail(
                "weight-used-twice",
                f"'{value.name}' is used in two places that want it laid out differently",
                op.span,
                help="declare a second parameter for the second use",
            )
        if kind.layout is None:
            self.settle(value, layout)

    def settle(self, value: Value, layout: Layout) -> None:
        """Note where a weight lies, and where the stack lies of which it is a slice."""
        self.placed[value] = layout
        stack = self.stacks.get(value)
        if stack is not None:
            self.placed.setdefault(stack, layout)
        kind = self.type_of(stack or value)
        room = kind.dtype.bytes
        for extent in kind.local_shape(self.problem.extents):
            room *= extent
        self.bytes += room

    # --- emitting

    def value(self, name: str, kind: Type) -> Value:
        """A fresh value with a name like ``name``."""
        fresh, count = name, 0
        while fresh in self.names:
            count += 1
            fresh = f"{name}_{count}"
        self.names[fresh] = Value(fresh, kind)
        return self.names[fresh]

    def emit(self, op: Op, *results: tuple[str, Type]) -> list[Value]:
        """Append ``op``, at the place of what is being lowered, with fresh results."""
        op.span = op.span or self.span
        op.results = [self.value(name, kind) for name, kind in results]
        self.block.ops.append(op)
        if self.problem.plan_costs is not None:
            runs = self.loop.runs if self.loop else 1
            self.cost += self.problem.plan_costs.of(op, self.type_of, runs)
        return op.results

    def emit_like(self, op: Op, name: str, like: Value) -> Value:
        """Append ``op`` whose result is laid out as ``like``, in the module's dtype."""
        kind = self.type_of(like)
        (value,) = self.emit(op, (name, TensorType(self.problem.dtype, kind.dims, kind.layout)))
        return value

    def rounded(self, value: Value) -> Value:
        """``value`` in the type of activations, which the results of functions of elements have;
        sums are rounded to it here."""
        if self.type_of(value).dtype == self.problem.dtype:
            return value
        return self.emit_like(ops.Scale([value], factor=1.0), value.name, value)

    def all_reduce(self, values: list[Value], axis: str, reduce: str = "sum") -> list[Value]:
        """Complete partial values over ``axis``; nothing to do on an axis of one core."""
        if self.mesh.size(axis) == 1:
            return values
        kinds = [self.type_of(v) for v in values]
        assert all((k.layout or Layout()).partial == (axis,) for k in kinds)
        done = [k.with_layout(Layout((k.layout or Layout()).splits)) for k in kinds]
        return self.emit(
            ops.AllReduce(list(values), axis=axis, reduce=reduce),
            *((v.name, kind) for v, kind in zip(values, done, strict=True)),
        )

    def completed(self, value: Value, source: Value, dim: str, reduce: str) -> Value:
        """``value``, which reduces ``dim`` of ``source`` on each core, over all cores."""
        split = self.layout_of(source).split_of(dim)
        return self.all_reduce([value], split.axis, reduce)[0] if split else value

    def partial_over(self, made: ops.RowMax | ops.RowSum | ops.SquareSum, name: str) -> Value:
        """Append a reduction: partial over the axis that splits its dim, or over the one whose
        factors split its dims."""
        (operand,) = made.tensors()
        kind, over = self.type_of(operand), made.over()
        layout = kind.layout or Layout()
        axes = {split.axis for split in layout.splits if split.dim in over}
        if len(axes) > 1:
            axes = {self.mesh.whole(axis) for axis in axes}
        if len(over) == 1 and layout.repeats(over):
            fail("unsupported-layout", f"cores share parts of {over[0]}: {layout}", self.span)
        if len(axes) > 1:
            words = f"{', '.join(over)} lie over several axes: {layout}"
            fail("unsupported-layout", words, self.span)
        dims = tuple(d for d in kind.dims if d not in over)
        splits = self.restricted(operand, dims).splits
        done = self.summed(dims, Layout(splits))
        (value,) = self.emit(made, (name, self.partial(dims, splits, *axes) if axes else done))
        return value

    # --- graph values

    def env_of(self, operand: Operand) -> Value:
        """The mesh value of a graph value; what is pending of it is done now."""
        assert isinstance(operand, Value)
        waiting = self.pending.pop(operand, None)
        if waiting is not None:
            self.env[operand] = waiting.finish(self, operand.name)
        return self.env[operand]

    def peek(self, operand: Operand) -> Value:
        """A value laid out as what :meth:`env_of` gives, without emitting anything."""
        assert isinstance(operand, Value)
        waiting = self.pending.get(operand)
        return waiting.value if waiting else self.env[operand]

    def state_of(self, value: Value) -> object:
        """All that later ops can tell of a graph value."""
        waiting = self.pending.get(value)
        if waiting is not None:
            kinds = self.type_of(waiting.value), self.type_of(waiting.sums)
            merges = isinstance(waiting, Unnormalised) and waiting.tops is not None
            sinks = (
                isinstance(waiting, Unnormalised) and (waiting.share or waiting.sink) is not None
            )
            return type(waiting), *kinds, merges, sinks
        known = self.env.get(value)
        sent = self.at_experts.get(value)
        if known is not None and sent is not None:
            return self.type_of(known), self.type_of(sent.routes), sent.weighted
        return None if known is None else self.type_of(known)
