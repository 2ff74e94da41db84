"""The decode plan of WaferLLM Fig. 4: vectors split over one axis, replicated over the other.

Each product flips the axis: a vector on y times a weight ``<E_y F_x>`` gives partial sums over y
whose reduction leaves a vector on x, replicated over y. Weights of consecutive products are placed
with their axes swapped, so nothing is ever transposed (fine-grained replication, section 4.2).
"""

from __future__ import annotations

from meshc.ir.core import Op, tensor_type
from meshc.ir.ops import graph, mesh
from meshc.ir.types import Layout, Split
from meshc.ir.values import Value
from meshc.passes.mesh.plans.base import Unnormalised, value_type
from meshc.passes.mesh.plans.common import CommonOps
from meshc.support.diagnostics import fail


class DecodePlan(CommonOps):
    """Lowers a function whose activations are single rows."""

    def input_layout(self, dims: tuple[str, ...]) -> Layout:
        """The last dim over rows, as ``BE_yL^x`` of the paper."""
        others = [d for d in dims if d != self.row_dim]
        if not others:
            return Layout()
        down = self.mesh.down
        return Layout((Split(others[-1], down, self.lanes(others[-1], down)),))

    def matmul(self, op: graph.Matmul) -> None:
        """Local products, then the reduction over the axis that split the contraction."""
        rights = [self.env_of(r) for r in op.operands[1:]]
        soft = self.unnormalised(op.operands[0], rights)
        value = soft.weights if soft else self.laid_out(op.operands[0])
        if all(self.is_weight(r) for r in rights):
            self.times_weights(op, value, rights)
        elif len(rights) == 1 and not self.is_weight(rights[0]):
            self.times_cache(op, value, rights[0], soft)
        else:
            fail("unsupported-op", "a product of weights and activations at once", op.span)

    def times_weights(self, op: graph.Matmul, left: Value, rights: list[Value]) -> None:
        """A GEMV with constants, placed where the vector is."""
        contract = self.contracted(op, left, rights)
        axis = self.axis_of(left, contract)
        target = self.mesh.other(axis)
        new_dims = [self.new_dims(op, left, r) for r in rights]
        if target == self.mesh.down and any(self.has_heads(d) for d in new_dims):
            axis, target = self.mesh.plane
            left = self.move(left, self.on_axis(left, axis), op)
        held = self.restricted(left, contract).splits
        results = []
        for old, right, dims in zip(op.results, rights, new_dims, strict=True):
            columns = self.column_splits(dims, target)
            order = value_type(right).dims
            splits = tuple(s for d in order for s in (*held, *columns) if s.dim == d)
            self.lay_weight(right, Layout(splits), op)
            results.append((old.name, self.partial(tensor_type(old).dims, Layout(columns), axis)))
        made = mesh.Gemv([left, *rights], contract=contract, group=op.group)
        values = self.reduced(self.emit(made, *results), axis, op.results)
        self.env.update(zip(op.results, values, strict=True))

    def times_cache(
        self, op: graph.Matmul, left: Value, right: Value, soft: Unnormalised | None
    ) -> None:
        """Scores from cached keys, or values weighted by a softmax."""
        dims = tensor_type(op.result).dims
        new = tuple(
            s for s in self.splits(right) if s.dim in dims and s.dim not in value_type(left).dims
        )
        kept = self.kept_splits(left, op.contract)
        layout = Layout(tuple(s for d in dims for s in (*kept, *new) if s.dim == d))
        axes = {s.axis for s in self.splits(right) if s.dim in op.contract}
        if len(axes) != 1:
            fail("unsupported-op", "this product of activations has no distributed form", op.span)
        (axis,) = axes
        made = mesh.Gemv([left, right], contract=op.contract, group=op.group)
        (value,) = self.emit(made, (op.result.name, self.partial(dims, layout, axis)))
        if soft is None:
            (self.env[op.result],) = self.all_reduce([value], axis)
            return
        value, sums = self.all_reduce([value, soft.sums], axis)
        self.env[op.result] = self.emit_like(mesh.Div([value, sums]), op.result.name, value)

    def splits(self, value: Value) -> tuple[Split, ...]:
        """The splits of a value's layout."""
        return (value_type(value).layout or Layout()).splits

    def kept_splits(self, left: Value, contract: tuple[str, ...]) -> tuple[Split, ...]:
        """Splits of the left dims that survive the contraction."""
        return tuple(s for s in self.splits(left) if s.dim not in contract)

    def new_dims(self, op: graph.Matmul, left: Value, right: Value) -> tuple[str, ...]:
        """Dims that the right operand adds."""
        old = {*value_type(left).dims, *op.contract}
        return tuple(d for d in value_type(right).dims if d not in old)

    def axis_of(self, value: Value, dims: tuple[str, ...]) -> str:
        """The axis of the plane over which ``dims`` lie, be it over its factors; columns where they
        lie over none or both."""
        axes = {self.mesh.whole(s.axis) for s in self.splits(value) if s.dim in dims}
        return axes.pop() if len(axes) == 1 else self.mesh.across

    def on_axis(self, value: Value, axis: str) -> Layout:
        """The layout with the (only) split dim over ``axis`` instead."""
        (split,) = self.splits(value)
        return Layout((Split(split.dim, axis, self.lanes(split.dim, axis)),))

    def move(self, value: Value, layout: Layout, op: Op) -> Value:
        """Bring a vector from one axis to the other: a masked copy and a reduction."""
        old, new = self.splits(value), layout.splits
        single = len(old) == len(new) == 1 and old[0].dim == new[0].dim
        if not single or {old[0].axis, new[0].axis} != set(self.mesh.plane):
            return super().move(value, layout, op)
        hops = self.mesh.size(old[0].axis) - 1
        self.report.remark(
            "relayout",
            f"'{value.name}' moves from axis {old[0].axis} to {new[0].axis}: a reduction over "
            f"{hops} hops that a residual connection or a second product would avoid",
            op.span,
        )
        kind = self.partial(value_type(value).dims, layout, old[0].axis)
        moved = self.emit(mesh.Relayout([value]), (value.name, kind))
        return self.all_reduce(moved, old[0].axis)[0]
