"""The prefill plan of WaferLLM Fig. 3: rows of tokens over y, features over x (``BL_y E_x``).

Every product is a MeshGEMM whose result lies like its input. Scores come from dist-GEMM-T, with
keys moving along y and accumulators along x, which leaves them skewed as the product with the
values wants its left operand: neither a transpose nor an alignment of the scores is needed.
Rows are dealt cyclically: token t lives on row t mod rows, so that positions stay affine, rows are
balanced for every prompt length, and the KV cache is already where decode expects it.
"""

from __future__ import annotations

from meshc.analysis.tiling import ceil_div
from meshc.ir.core import tensor_type
from meshc.ir.ops import graph, mesh
from meshc.ir.types import Layout, Split, TensorType
from meshc.ir.values import Value
from meshc.passes.mesh.plans.base import Plan, Unnormalised, value_type
from meshc.support.diagnostics import fail


class PrefillPlan(Plan):
    """Lowers a function whose activations are many rows."""

    row_dim: str = "L"

    def input_layout(self, dims: tuple[str, ...]) -> Layout:
        """Rows over y, the last dim over x."""
        last = dims[-1]
        block = ceil_div(self.extents[last], self.mesh.size("x"))
        return Layout((self.row_split(), Split(last, "x", block)))

    def row_split(self) -> Split:
        """Rows of the prompt over y."""
        return Split(self.row_dim, "y", self.tiling.row_lanes, "cyclic")

    def matmul(self, op: graph.Matmul) -> None:
        """MeshGEMM with constants, dist-GEMM-T for scores, MeshGEMM for weighted values."""
        left = op.operands[0]
        assert isinstance(left, Value)
        soft = self.softmaxes.pop(left, None)
        value = soft.weights if soft else self.env_of(left)
        rights = [self.env_of(r) for r in op.operands[1:]]
        if all(self.is_weight(r) for r in rights):
            self.times_weights(op, value, rights)
        elif soft is not None and len(rights) == 1:
            self.times_values(op, value, rights[0], soft)
        elif len(rights) == 1 and self.holds_keys(rights[0]):
            self.times_keys(op, value, rights[0])
        else:
            fail("unsupported-op", "this product of activations has no distributed form", op.span)

    def holds_keys(self, value: Value) -> bool:
        """Whether ``value`` is a KV cache."""
        heads = self.tiling.heads
        return heads is not None and heads.keys in value_type(value).dims

    def times_weights(self, op: graph.Matmul, left: Value, rights: list[Value]) -> None:
        """MeshGEMM: the weights are stored skewed, the left operand is aligned on the mesh."""
        contracted = self.restricted(left, op.contract).splits
        chunks = self.mesh.size("y")
        results = []
        for old, right in zip(op.results, rights, strict=True):
            taken = {*value_type(left).dims, *op.contract}
            new = tuple(d for d in value_type(right).dims if d not in taken)
            columns = self.column_splits(new, "x")
            held = tuple(
                Split(s.dim, "y", ceil_div(self.extents[s.dim], chunks), skew="x")
                for s in contracted
            )
            order = value_type(right).dims
            self.lay_weight(
                right, Layout(tuple(s for d in order for s in (*held, *columns) if s.dim == d)), op
            )
            layout = Layout((self.row_split(), *columns))
            results.append((old.name, TensorType(self.dtype, tensor_type(old).dims, layout)))
        made = mesh.Gemm([left, *rights], contract=op.contract, group=op.group)
        values = self.emit(made, *results)
        self.env.update(zip(op.results, values, strict=True))

    def times_keys(self, op: graph.Matmul, left: Value, right: Value) -> None:
        """dist-GEMM-T; the scores' key dim ends on xd, skewed by the row."""
        heads, tiling = self.heads(), self.tiling
        kept = tuple(s for s in self.restricted(left, (heads.rows, heads.query)).splits)
        lanes = tiling.chunks_x * (tiling.row_lanes // tiling.chunks_y)
        keys = Split(heads.keys, "xd", lanes, "cyclic", skew="y")
        layout = Layout((*kept, keys))
        made = mesh.GemmT([left, right], contract=op.contract, group=op.group, axis="xd")
        kind = TensorType(self.dtype, tensor_type(op.result).dims, layout)
        (self.env[op.result],) = self.emit(made, (op.result.name, kind))

    def times_values(self, op: graph.Matmul, left: Value, right: Value, soft: Unnormalised) -> None:
        """MeshGEMM of the exponentials with the values, then the delayed division."""
        (sums,) = self.all_reduce([soft.sums], soft.axis)
        heads = self.heads()
        dims = tensor_type(op.result).dims
        layout = Layout((self.row_split(), *self.head_splits(dims)))
        made = mesh.Gemm(
            [left, right], contract=op.contract, group=op.group, axis="xd", left_aligned=True
        )
        kind = TensorType(self.dtype, dims, layout)
        (value,) = self.emit(made, (op.result.name, kind))
        assert heads.lane in dims
        self.env[op.result] = self.emit_like(mesh.Div([value, sums]), op.result.name, value)
