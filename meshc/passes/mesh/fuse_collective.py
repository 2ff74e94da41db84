"""fuse-collective: reductions with the residual sums and norms behind them, residuals in parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from meshc.ir.core import Block, Op, Operand, tensor_type
from meshc.ir.module import Module
from meshc.ir.ops import mesh as ops
from meshc.ir.rewriter import Rewriter
from meshc.ir.types import Layout, Split, TensorType
from meshc.ir.values import Value
from meshc.passes.base import Pass
from meshc.passes.mesh.own_rows import carry_own_rows
from meshc.support.diagnostics import Diagnostics, fail


@dataclass(frozen=True)
class FuseCollective(Pass):
    """Make one op of an all_reduce, the residual sum behind it and the RMSNorm behind that.

    Each core of the axis adds up and normalises its own rows of tokens (TokenWeave, Gond and
    others, 2025): the norm is no longer computed on every core, and a GPU has one kernel that reads
    and writes a row once. The residual stays in parts until somebody needs all of it: a residual
    sum without a norm behind it, at the end of a layer, is made of parts too (``reduce_scatter``),
    a loop over layers carries it in parts, and the norm at the start of a layer is computed by rows
    and gathered. What else is needed whole is gathered in front of its first use. ``axis`` names
    the axis of the reductions to fuse (all of them by default); rows are the dim of the largest
    extent that the norm does not go over. A norm whose rows do not lie whole on every core is left
    as it is.

    Before::

        %s = mesh.all_reduce %p {axis = gpu} : f32[B, E]<>
        %x_1 = mesh.add %x, %s : f32[B, E]<>
        %q = mesh.square_sum %x_1 {dim = E} : f32[B]<>
        %h = mesh.rms_scale %x_1, %q, %g {dim = E} : f32[B, E]<>

    After::

        %x.own = mesh.part %x {axis = gpu, dim = B} : f32[B, E]<B_gpu%:2>
        %h, %x_1.own = mesh.all_reduce_norm %p, %x.own, %g {axis = gpu, rows = B, dim = E} : ...
    """

    NAME: ClassVar[str] = "fuse-collective"
    LEVELS: ClassVar[tuple[str, ...]] = ("mesh",)
    REQUIRES: ClassVar[frozenset[str]] = frozenset({"partitioned"})
    ESTABLISHES: ClassVar[frozenset[str]] = frozenset()
    INVALIDATES: ClassVar[frozenset[str]] = frozenset({"collectives_selected"})

    axis: str = "all"

    def run(self, module: Module, report: Diagnostics) -> Module:
        axes = module.the_mesh().parts
        if self.axis not in ("all", *axes):
            fail("bad-option", f"no axis '{self.axis}' to reduce over; there are {', '.join(axes)}")
        rewriter = Rewriter(module)
        fused = sum(
            _Fusion(module, rewriter, block, self.axis).run() for block in list(rewriter.blocks())
        )
        if fused:
            carry_own_rows(rewriter)
            words = f"{fused} reduction{'s' * (fused > 1)} with residual sum and norm fused"
            report.remark("collective-fused", words)
        return module


@dataclass(frozen=True)
class _Match:
    """The ops of one fused reduction. ``rows`` lie over its axis as those of ``own`` do."""

    reduction: ops.AllReduce
    add: ops.Add
    squares: ops.SquareSum
    scale: ops.RmsScale
    rows: str
    own: TensorType


@dataclass
class _Fusion:
    """One block on its way. ``parts`` are cores' own rows of values, ``pending`` are those of these
    values whose op is gone, with the axis and the dim by which they lie."""

    module: Module
    rewriter: Rewriter
    block: Block
    axis: str
    parts: dict[Value, Value] = field(default_factory=dict)
    pending: dict[Value, tuple[str, str]] = field(default_factory=dict)

    def run(self) -> int:
        """How many reductions are fused."""
        fused = 0
        for op in list(self.block.ops):
            if not isinstance(op, ops.AllReduce) or self.axis not in ("all", op.axis):
                continue
            match = self.match(op)
            if match is not None:
                self.fuse(match)
                fused += 1
            else:
                self.scatter(op)
        for whole, (axis, rows) in self.pending.items():
            self.gather(whole, axis, rows)
        return fused

    # --- what is found

    def reader(self, value: Value) -> Op | None:
        """The op of the block that uses ``value``, if it is one alone."""
        users = self.rewriter.users(value)
        return users[0] if len(users) == 1 and users[0] in self.block.ops else None

    def residual_sum(self, op: ops.AllReduce) -> ops.Add | None:
        """The sum of the reduction's result and a residual, which all lie alike."""
        if len(op.operands) != 1 or op.reduce != "sum" or op.when is not None:
            return None
        add = self.reader(op.results[0])
        if not isinstance(add, ops.Add) or add.when is not None:
            return None
        if add.operands[0] is add.operands[1]:
            return None
        kinds = {tensor_type(value) for value in (*add.operands, add.result)}
        return add if len(kinds) == 1 else None

    def match(self, op: ops.AllReduce) -> _Match | None:
        """The norm behind ``op``, if it and the residual can be computed by rows."""
        add = self.residual_sum(op)
        users = [] if add is None else self.rewriter.users(add.result)
        squares = next((user for user in users if isinstance(user, ops.SquareSum)), None)
        scale = None if squares is None else self.reader(squares.result)
        if add is None or squares not in self.block.ops or not isinstance(scale, ops.RmsScale):
            return None
        x, _, gain = scale.operands
        if scale.also:
            return None
        if x is not add.result or scale.dim != squares.dim or not self.is_before(gain, add):
            return None
        if squares.when is not None or scale.when is not None:
            return None
        found = self.own_rows(op, scale.dim, tensor_type(gain))
        if found is None:
            return None
        known = [self.parts[value] for value in add.tensors() if value in self.parts]
        if any(tensor_type(part) != found[1] for part in known):
            return None
        return _Match(op, add, squares, scale, *found)

    def is_before(self, operand: Operand, op: Op) -> bool:
        """Whether ``operand`` is there before ``op``."""
        behind = self.block.ops[self.block.ops.index(op) :]
        return all(operand is not result for other in behind for result in other.results)

    def own_rows(
        self, op: ops.AllReduce, dim: str, gain: TensorType
    ) -> tuple[str, TensorType] | None:
        """The dim that is dealt over the reduction's axis, and the type of a core's own rows."""
        kind, extents = tensor_type(op.operands[0]), self.module.dims
        layout, along = kind.layout or Layout(), gain.layout or Layout()
        splits = {split.dim: split for split in layout.splits}
        whole = [d for d in kind.dims if d not in splits or splits[d].block >= extents[d]]
        free = [d for d in whole if d != dim]
        if dim not in whole or not free or layout.partial != (op.axis,) or layout.roots:
            return None
        if gain.dims != (dim,) or along.split_of(dim) != splits.get(dim):
            return None
        rows = max(free, key=extents.__getitem__)
        block = -(-extents[rows] // self.module.the_mesh().size(op.axis))
        splits[rows] = Split(rows, op.axis, block, "cyclic")
        own = Layout(tuple(splits[d] for d in kind.dims if d in splits))
        return rows, kind.with_layout(own)

    # --- what it becomes

    def fuse(self, match: _Match) -> None:
        """Put the fused op where the residual sum is."""
        reduction, add, scale = match.reduction, match.add, match.scale
        (residual,) = (value for value in add.tensors() if value is not reduction.result)
        build = self.rewriter.before(add)
        if residual not in self.parts:
            part = ops.Part([residual], axis=reduction.axis, dim=match.rows)
            self.parts[residual] = build.add(part, f"{residual.name}.own", types=[match.own])[0]
        fused = ops.AllReduceNorm(
            [reduction.operands[0], self.parts[residual], scale.operands[2]],
            axis=reduction.axis, rows=match.rows, dim=scale.dim, eps=scale.eps, span=reduction.span,
        )  # fmt: skip
        name, kinds = scale.result.name, [scale.result.type, match.own]
        normed, stream = build.add(fused, name, f"{add.result.name}.own", types=kinds)
        self.rewriter.replace_op(scale, [normed])
        self.rewriter.rename(normed, name)
        self.parts[add.result] = stream
        self.pending[add.result] = (reduction.axis, match.rows)
        self.remove(match.squares, add, reduction)

    def scatter(self, op: ops.AllReduce) -> None:
        """A sum with a residual of which cores have their own rows is made of those."""
        add = self.residual_sum(op)
        residuals = [] if add is None else [v for v in add.tensors() if v is not op.result]
        if add is None or residuals[0] not in self.parts:
            return
        own = self.parts[residuals[0]]
        kind = tensor_type(own)
        splits = (kind.layout or Layout()).on_axis(op.axis)
        if not splits:
            return
        rows = splits[0].dim
        build = self.rewriter.before(add)
        reduced = ops.ReduceScatter([op.operands[0]], axis=op.axis, dim=rows, span=op.span)
        (part,) = build.add(reduced, f"{op.result.name}.own", types=[kind])
        summed = ops.Add([own, part], span=add.span)
        (stream,) = build.add(summed, f"{add.result.name}.own", types=[kind])
        self.parts[add.result] = stream
        self.pending[add.result] = (op.axis, rows)
        self.remove(add, op)

    def remove(self, *old: Op) -> None:
        """Leave these out, whose results are used whole by others at most."""
        self.block.ops = [op for op in self.block.ops if not any(op is other for other in old)]

    def gather(self, whole: Value, axis: str, rows: str) -> None:
        """All of ``whole`` in front of its first use, if there is one."""
        users = self.rewriter.users(whole)
        if not users:
            return
        first = next(op for op in self.block.ops if _holds(op, users))
        gather = ops.AllGather([self.parts[whole]], axis=axis, dim=rows)
        build = self.rewriter.before(first)
        self.rewriter.replace_uses({whole: build.add(gather, whole.name, types=[whole.type])[0]})


def _holds(op: Op, users: Sequence[Op]) -> bool:
    """Whether one of ``users`` is ``op`` or within it."""
    inside = [op, *(inner for region in op.regions for inner in region.walk())]
    return any(user is other for user in users for other in inside)
