"""Expands ops that each core computes on what it holds."""

from __future__ import annotations

from typing import cast

from meshc.ir.affine import Expr
from meshc.ir.core import Op, Operand, tensor_type
from meshc.ir.ops import mesh
from meshc.ir.types import Layout, TensorType
from meshc.ir.values import Value
from meshc.ir.views import View
from meshc.passes.tile.expand import local
from meshc.passes.tile.expand.emitter import index_of
from meshc.passes.tile.expand.values import Values
from meshc.support.diagnostics import fail


class Pointwise(Values):
    """A method for each op, named after its mnemonic."""

    def unary(self, op: Op, kernel: str, **params: float | str) -> None:
        """A pointwise kernel of one operand."""
        source = self.places[cast(Value, op.operands[0])]
        target = self.result_place(op, op.operands[0])
        self.emitter.compute(kernel, self.view(target), self.view(source), **params)

    def binary(self, op: Op, kernel: str) -> None:
        """A pointwise kernel of two operands; either may give its room to the result."""
        left, right = (cast(Value, o) for o in op.operands)
        source = self.places[left]
        second = self.constant(right, source)
        reuse: Operand = left
        if self.last_use.get(left) is not op and right in self.places:
            reuse = right
        target = self.result_place(op, reuse)
        self.emitter.compute(kernel, self.view(target), self.view(source), second)

    def add(self, op: Op) -> None:
        self.binary(op, "add")

    def mul(self, op: Op) -> None:
        self.binary(op, "mul")

    def div(self, op: Op) -> None:
        self.binary(op, "div")

    def exp_sub(self, op: Op) -> None:
        self.binary(op, "exp_sub")

    def silu(self, op: Op) -> None:
        self.unary(op, "silu")

    def gelu(self, op: mesh.Gelu) -> None:
        self.unary(op, "gelu", form=op.form)

    def scale(self, op: mesh.Scale) -> None:
        self.unary(op, "scale", factor=op.factor)

    def square_sum(self, op: Op) -> None:
        self.reduction(op, "square_sum")

    def row_max(self, op: Op) -> None:
        self.reduction(op, "row_max")

    def row_sum(self, op: Op) -> None:
        self.reduction(op, "row_sum")

    def reduction(self, op: Op, kernel: str) -> None:
        """A kernel that reduces the trailing dim of its view (the key dim of scores in its chunks);
        another dim is put last."""
        value = cast(Value, op.operands[0])
        source, target = self.places[value], self.result_place(op)
        single = not source.rows and not target.shape
        last = self.put_last(tensor_type(value), str(getattr(op, "dim", "")))
        if last and source.chunked:
            fail("unsupported-op", f"{op.NAME} of scores over a dim that is not the last", op.span)
        view = self.emitter.flat(source) if single else self.emitter.view(source, order=last)
        self.emitter.compute(kernel, self.view(target), view)

    def put_last(self, kind: TensorType, dim: str) -> tuple[int, ...]:
        """The order of a value's dims on a core that ends in ``dim``; empty where it does now."""
        row_dim = self.emitter.row_dim
        dims = [d for d in self.emitter.local_dims(kind) if d != row_dim]
        dims = [row_dim] * self.emitter.has_rows(kind) + dims
        if dim not in dims[:-1]:
            return ()
        return (*(i for i, d in enumerate(dims) if d != dim), dims.index(dim))

    def rms_scale(self, op: mesh.RmsScale) -> None:
        source, total = (self.places[cast(Value, o)] for o in op.operands[:2])
        gain = self.constant(op.operands[2], source)
        target = self.result_place(op, op.operands[0])
        count = self.module.dims[op.dim]
        views = [self.view(p) for p in (target, source)]
        sums = self.view(total)
        if not source.rows:
            views = [View(v.buffer, v.indices, (Expr.const(1), *v.shape())) for v in views]
        self.emitter.compute("rms_scale", *views, sums, gain, count=count, eps=op.eps)

    def rope(self, op: mesh.Rope) -> None:
        source = self.places[cast(Value, op.operands[0])]
        target = self.result_place(op, op.operands[0])
        local.rope(self.emitter, op, source, target)

    def mask(self, op: mesh.Mask) -> None:
        source = self.places[cast(Value, op.operands[0])]
        ring = self.current_cache().state if self.caches else None
        self.places[op.result] = source
        local.mask(self.emitter, op, source, ring)

    def relayout(self, op: mesh.Relayout) -> None:
        value = cast(Value, op.operands[0])
        source, target = self.places[value], self.result_place(op)
        (old,) = (tensor_type(value).layout or Layout()).splits
        (new,) = (tensor_type(op.result).layout or Layout()).splits
        shift = index_of(new.axis) * new.block - index_of(old.axis) * old.block
        self.emitter.compute("select_lanes", self.view(target), self.view(source), shift=shift)
