"""A feed-forward layer as two launches: norm, inner products and activation; outer product and
residual sum."""

from __future__ import annotations

from typing import ClassVar

from meshc.backends.cuda.gathering import Step
from meshc.backends.cuda.kernels.collective.launch import normed_rows
from meshc.backends.cuda.kernels.fused import FEED_FORWARD, Fused, FusedKernel
from meshc.backends.cuda.kernels.rows_product.kernel import RowsProduct
from meshc.backends.cuda.kernels.rows_product.launch import product_of_columns
from meshc.backends.cuda.program import Buffer, Launch
from meshc.ir.ops import graph


class FeedForward(FusedKernel):
    """A feed-forward layer with its norm and residual sum; gated where it takes a gate."""

    NAME: ClassVar[str] = "ffn_block"
    PLACE: ClassVar[str] = FEED_FORWARD
    TAKES: ClassVar[tuple[str, ...]] = ("residual", "norm", "up", "down")
    MAY_TAKE: ClassVar[tuple[str, ...]] = ("gate", "gate_bias", "up_bias", "down_bias")
    PARTIAL: ClassVar[bool] = True

    def launches(self, step: Step, fused: Fused) -> list[Launch]:
        norm, down = fused.reader("norm", graph.RmsNorm), fused.reader("down", graph.Matmul)
        inner = (norm.dim, *down.contract)
        gated = fused.takes("gate")
        sides = ("gate", "up") if gated else ("up",)
        for name in sides:
            fused.check_dims(name, inner, {2})
        fused.check_dims("down", inner[::-1], {2})
        hidden, features = (step.module.dims[d] for d in inner)
        rows = len(sides) * features
        partial = fused.op.partial
        first = RowsProduct(
            step.columns, hidden, rows, step.dtype, "plain" if partial else "normed",
            "gated" if gated else "activated", norm.eps, _activation(fused), fused.takes("up_bias"),
        )  # fmt: skip
        second = RowsProduct(
            step.columns, features, hidden, step.dtype, "plain",
            "stored" if partial else "residual",
            bias=fused.takes("down_bias"),
        )  # fmt: skip
        name, pack = ("gate_up", "gated") if gated else ("up", "transposed")
        gain = step.add_weight("norm_of_ffn", "plain", fused.tensors("norm"), (hidden,))
        matrix = step.add_matrix(name, pack, fused.tensors(*sides), (rows, hidden))
        ahead = normed_rows(step, hidden, norm.eps, gain) if partial else []
        given = [step.own("normed"), matrix] if partial else [step.own("sums"), gain, matrix]
        if first.bias:
            biases = fused.tensors(*(f"{side}_bias" for side in sides))
            given.append(step.add_weight(f"bias_of_{name}", pack, biases, (rows,)))
        outer = step.add_matrix("down", "transposed", fused.tensors("down"), (hidden, features))
        last = [outer]
        if second.bias:
            bias = fused.tensors("down_bias")
            last.append(step.add_weight("bias_of_down", "plain", bias, (hidden,)))
        made = step.own(step.of_stage("features"))
        step.buffers[made] = Buffer("f32", (step.columns, features), "scratch")
        sums, residual = step.own("sums"), step.own("residual")
        ends = (sums,) if partial else (sums, residual)
        return [
            *ahead,
            product_of_columns(step, step.own("ffn_inner"), first, (*given, made), matrix),
            product_of_columns(step, step.own("ffn_outer"), second, (made, *last, *ends), outer),
        ]


def _activation(fused: Fused) -> str:
    """The activation by its name in a template."""
    if fused.all(graph.Silu):
        return "silu"
    (gelu,) = fused.all(graph.Gelu)
    return "gelu_tanh" if gelu.form == "tanh" else "gelu"
