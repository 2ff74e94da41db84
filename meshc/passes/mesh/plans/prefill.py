"""The prefill plan of WaferLLM Fig. 3: rows of tokens over y, features over x (``BL_y E_x``).

Every product is a MeshGEMM whose result lies like its input. Scores come from dist-GEMM-T, with
keys moving along y and accumulators along x, which leaves them skewed as the product with the
values wants its left operand: neither a transpose nor an alignment of the scores is needed.
Rows are dealt cyclically: token t lives on row t mod rows, so that positions stay affine, rows are
balanced for every prompt length, and the KV cache is already where decode expects it.
"""

from __future__ import annotations

from dataclasses import replace

from meshc.analysis.tiling import ceil_div
from meshc.ir.core import tensor_type
from meshc.ir.ops import graph, mesh
from meshc.ir.types import Layout, Split, TensorType
from meshc.ir.values import Value
from meshc.passes.mesh.plans.base import Unnormalised, layout_of, value_type
from meshc.passes.mesh.plans.common import CommonOps
from meshc.support.diagnostics import fail


class PrefillPlan(CommonOps):
    """Lowers a function whose activations are many rows."""

    def aligned_by_host(self, value: Value) -> bool:
        """Whether ``value``, a parameter, is placed skewed: weights, if the setting ``align`` does
        not say ``device``; inputs, if it says ``host``."""
        usual = "device" if value in self.inputs else "host"
        return (self.align or usual) == "host"

    def input_layout(self, dims: tuple[str, ...]) -> Layout:
        """Rows over y, the last other dim over x."""
        others = [d for d in dims if d != self.row_dim]
        if not others:
            return Layout((self.row_split(),))
        last = others[-1]
        across = self.mesh.across
        return Layout((self.row_split(), Split(last, across, self.lanes(last, across))))

    def row_split(self) -> Split:
        """Rows of the prompt over y."""
        return Split(self.row_dim, self.mesh.down, self.tiling.row_lanes, "cyclic")

    def matmul(self, op: graph.Matmul) -> None:
        """MeshGEMM with constants, dist-GEMM-T for scores, MeshGEMM for weighted values."""
        rights = [self.env_of(r) for r in op.operands[1:]]
        soft = self.unnormalised(op.operands[0], rights)
        value = soft.weights if soft else self.laid_out(op.operands[0])
        if len(rights) == 1 and self.is_transposed(op, rights[0]):
            self.times_transposed(op, value, rights[0])
        elif all(self.is_weight(r) for r in rights):
            self.times_weights(op, value, rights)
        elif len(rights) == 1 and self.holds_keys(rights[0]):
            if self.holds_keys(value):
                self.times_values(op, value, rights[0], soft)
            else:
                self.times_keys(op, value, rights[0])
        else:
            fail(
                "unsupported-op",
                "this product of activations has no distributed form",
                op.span,
                help="the right side of a product is a param, an input or a cache",
            )

    def times_weights(self, op: graph.Matmul, left: Value, rights: list[Value]) -> None:
        """MeshGEMM: the weights are stored skewed, the left operand is aligned on the mesh."""
        if self.row_dim not in value_type(left).dims:
            fail(
                "unsupported-op",
                f"the left side of this product has no rows {self.row_dim}, of which there are "
                f"{self.extents[self.row_dim]}",
                op.span,
                help="multiply what has rows of tokens with params",
            )
        contract = self.contracted(op, left, rights)
        contracted = self.restricted(left, contract).splits
        down, across = self.mesh.plane
        results = []
        skew = self.skew_of(rights, op)
        for old, right in zip(op.results, rights, strict=True):
            taken = {*value_type(left).dims}
            new = tuple(d for d in value_type(right).dims if d not in taken)
            columns = self.column_splits(new, across)
            held = tuple(
                Split(s.dim, down, ceil_div(self.extents[s.dim], self.mesh.rows), skew=skew)
                for s in contracted
            )
            order = value_type(right).dims
            self.lay_weight(
                right, Layout(tuple(s for d in order for s in (*held, *columns) if s.dim == d)), op
            )
            layout = Layout((self.row_split(), *columns))
            dtype = self.source.accumulate() if self.is_returned(old) else self.dtype
            results.append((old.name, TensorType(dtype, tensor_type(old).dims, layout)))
        aligned = self.align_input(op, left)
        made = mesh.Gemm(
            [left, *rights],
            contract=contract,
            group=op.group,
            axis=across,
            left_aligned=aligned,
        )
        values = self.emit(made, *results)
        self.env.update(zip(op.results, values, strict=True))

    def is_transposed(self, op: graph.Matmul, right: Value) -> bool:
        """Whether the product is dist-GEMM-T: of an input that the model transposes, or of any if
        the setting ``gemm`` says so; the result must leave main as it is."""
        dims = value_type(right).dims
        new = [d for d in dims if d not in op.contract]
        free = right in self.inputs and len(new) == 1 and self.is_returned(op.result)
        stored = dims[-1] in op.contract
        return free and (self.gemm == "transposed" or (self.gemm == "auto" and stored))

    def times_transposed(self, op: graph.Matmul, left: Value, right: Value) -> None:
        """dist-GEMM-T: rows of the right operand over y, the result's new dim skewed over x."""
        contract = self.contracted(op, left, [right])
        (new,) = (d for d in value_type(right).dims if d not in contract)
        extent, skew = self.extents[new], self.skew_of([right], op)
        down, across = self.mesh.plane
        rows = Split(new, down, ceil_div(extent, self.mesh.rows), skew=skew)
        held = (*self.restricted(left, contract).splits, rows)
        order = value_type(right).dims
        self.lay_weight(right, Layout(tuple(s for d in order for s in held if s.dim == d)), op)
        columns = Split(new, across, ceil_div(extent, self.mesh.columns), skew=down)
        kind = TensorType(
            self.source.accumulate(),
            tensor_type(op.result).dims,
            Layout((self.row_split(), columns)),
        )
        made = mesh.GemmT([left, right], contract=contract, group=op.group, axis=across)
        (self.env[op.result],) = self.emit(made, (op.result.name, kind))

    def skew_of(self, rights: list[Value], op: graph.Matmul) -> str:
        """The axis that turns the right operands of a product, or nothing."""
        turned = {self.aligned_by_host(r) for r in rights}
        if len(turned) > 1:
            fail("unsupported-op", "one product with weights and inputs at once", op.span)
        return self.mesh.across if turned == {True} else ""

    def align_input(self, op: graph.Matmul, left: Value) -> bool:
        """Let the host place the left operand skewed, if it may and only this product reads it."""
        users = [o for o in self.source.walk() if op.operands[0] in o.operands]
        given = any(p.value is op.operands[0] for p in self.source.function.params)
        if self.align != "host" or users != [op] or not given:
            return False
        kind = value_type(left)
        down, across = self.mesh.plane
        turned = [replace(s, skew=down) if s.axis == across else s for s in layout_of(kind).splits]
        left.type = kind.with_layout(Layout(tuple(turned)))
        return True

    def times_keys(self, op: graph.Matmul, left: Value, right: Value) -> None:
        """dist-GEMM-T; the scores' key dim ends on xd, skewed by the row."""
        heads, tiling = self.heads(), self.tiling
        kept = tuple(s for s in self.restricted(left, (self.row_dim, heads.query)).splits)
        lanes = tiling.chunks_x * (tiling.row_lanes // tiling.chunks_y)
        keys = Split(heads.keys, self.mesh.inner, lanes, "cyclic", skew=self.mesh.down)
        layout = Layout((*kept, keys))
        made = mesh.GemmT([left, right], contract=op.contract, group=op.group, axis=self.mesh.inner)
        kind = TensorType(self.dtype, tensor_type(op.result).dims, layout)
        (self.env[op.result],) = self.emit(made, (op.result.name, kind))

    def times_values(
        self, op: graph.Matmul, left: Value, right: Value, soft: Unnormalised | None
    ) -> None:
        """MeshGEMM of the exponentials with the values, then the delayed division."""
        heads = self.heads()
        dims = tensor_type(op.result).dims
        if heads.lane not in dims or heads.keys not in op.contract:
            fail("unsupported-op", "this product with a cache is none of attention", op.span)
        layout = Layout((self.row_split(), *self.head_splits(dims)))
        sums = self.completed(soft.sums, left, soft.dim, "sum") if soft else None
        made = mesh.Gemm(
            [left, right],
            contract=op.contract,
            group=op.group,
            axis=self.mesh.inner,
            left_aligned=True,
        )
        kind = TensorType(self.dtype, dims, layout)
        (value,) = self.emit(made, (op.result.name, kind))
        if sums is not None:
            value = self.emit_like(mesh.Div([value, sums]), op.result.name, value)
        self.env[op.result] = value
