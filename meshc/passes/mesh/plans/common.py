"""What both partition plans lower alike: pointwise ops, norms, softmaxes, loops and results."""

from __future__ import annotations

from dataclasses import fields

from meshc.ir.core import Block, Op, Operand
from meshc.ir.ops import graph, mesh
from meshc.ir.types import Layout, TensorType
from meshc.ir.values import Value
from meshc.passes.mesh.plans.base import Plan, Unnormalised, layout_of, value_type
from meshc.support.diagnostics import fail


class CommonOps(Plan):
    """Methods named after the mnemonics of the ops that they lower."""

    # --- pointwise ops and rows

    def fit_second(self, op: Op) -> tuple[Value, Value]:
        """Operands of a pointwise op, the second laid out like the first."""
        left, right = self.laid_out(op.operands[0]), self.env_of(op.operands[1])
        wanted = self.restricted(left, value_type(right).dims)
        if self.is_weight(right):
            self.lay_weight(right, wanted, op)
        elif value_type(right).layout != wanted:
            right = self.move(right, wanted, op)
        return left, right

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
        split = layout_of(value_type(value)).split_of(op.dim)
        if split is not None and split.block % 2:
            fail(
                "unsupported-layout",
                f"'{value.name}' lies as {value_type(value).layout}, which parts pairs that rotate",
                op.span,
                help=f"choose a mesh whose cores hold whole pairs of {op.dim}",
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

    def has_pads(self, kind: TensorType, dim: str) -> bool:
        """Whether some lanes of ``dim`` hold no element."""
        split = layout_of(kind).split_of(dim)
        if split is None:
            return False
        whole = split.block * self.mesh.size(split.axis) == self.extents[dim]
        return not whole or (split.kind != "block" and bool(self.source.scalars))

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

    # --- what products have in common

    def unnormalised(self, left: Operand, rights: list[Value]) -> Unnormalised | None:
        """The softmax whose division can wait until cached values are weighted: ``left``, if
        nothing but this product reads it."""
        users = [o for o in self.source.walk() if left in o.operands]
        if not isinstance(left, Value) or len(users) != 1 or not all(map(self.holds_keys, rights)):
            return None
        return self.softmaxes.pop(left, None)

    def contracted(self, op: graph.Matmul, left: Value, rights: list[Value]) -> tuple[str, ...]:
        """The dims that a product of ``left`` with matrices contracts, in the order in which a core
        holds them: all dims of ``left`` but the rows of tokens."""
        dims = value_type(left).dims
        contract = tuple(d for d in dims if d in op.contract)
        rows = {"B", self.row_dim}
        kept = [d for d in dims if d not in contract and d not in rows]
        others = [d for d in dims if d not in contract and d != "B"]
        shared = [d for d in others if any(d in value_type(r).dims for r in rights)]
        if kept or shared or rows & set(contract):
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

    # --- loops and results

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
