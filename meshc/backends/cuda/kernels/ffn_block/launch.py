"""A feed-forward layer as two launches: norm, inner products and activation; outer product and
residual sum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshc.backends.cuda.gathering import Step
from meshc.backends.cuda.kernels.fused import FEED_FORWARD, Fused, FusedKernel
from meshc.backends.cuda.kernels.rows_product.chunk import ChunkProduct
from meshc.backends.cuda.kernels.rows_product.chunk_launch import columns, normed
from meshc.backends.cuda.kernels.rows_product.chunk_launch import product as chunk_product
from meshc.backends.cuda.kernels.rows_product.kernel import RowsProduct
from meshc.backends.cuda.kernels.rows_product.launch import product_of_columns
from meshc.backends.cuda.launches import Launch
from meshc.backends.cuda.program import Buffer
from meshc.ir.ops import graph


class FeedForward(FusedKernel):
    """A feed-forward layer with its norm and residual sum; gated where it takes a gate."""

    NAME: ClassVar[str] = "ffn_block"
    PLACE: ClassVar[str] = FEED_FORWARD
    TAKES: ClassVar[tuple[str, ...]] = ("residual", "norm", "up", "down")
    MAY_TAKE: ClassVar[tuple[str, ...]] = ("gate", "gate_bias", "up_bias", "down_bias")
    PARTIAL: ClassVar[bool] = True
    GAIN: ClassVar[str] = "norm_of_ffn"

    def launches(self, step: Step, fused: Fused) -> list[Launch]:
        layer, ranks = _layer(step, fused), fused.op.partial
        first = RowsProduct(
            step.columns, layer.hidden, layer.rows, step.dtype, "plain" if ranks else "normed",
            layer.output, layer.epsilon, _activation(fused), fused.takes("up_bias"),
        )  # fmt: skip
        second = RowsProduct(
            step.columns, layer.features, layer.hidden, step.dtype, "plain",
            "stored" if ranks else "residual",
            bias=fused.takes("down_bias"), factor=layer.factor,
        )  # fmt: skip
        made = step.own(step.of_stage("features"))
        step.buffers[made] = Buffer("f32", (step.columns, layer.features), "scratch")
        sums, residual = step.own("sums"), step.own("residual")
        given = (step.own("normed"),) if ranks else (sums, layer.gain)
        ends = (sums,) if ranks else (sums, residual)
        inner = (*given, *layer.inner, made)
        outer = (made, *layer.outer, *ends)
        return [
            product_of_columns(step, step.own("ffn_inner"), first, inner, layer.inner[0]),
            product_of_columns(step, step.own("ffn_outer"), second, outer, layer.outer[0]),
        ]

    def chunk_launches(self, step: Step, fused: Fused) -> list[Launch]:
        layer, tokens, ranks = _layer(step, fused), step.columns, fused.op.partial
        first = ChunkProduct(
            tokens, layer.hidden, layer.rows, step.dtype, layer.output,
            activation=_activation(fused), bias=fused.takes("up_bias"),
        )  # fmt: skip
        second = ChunkProduct(
            tokens, layer.features, layer.hidden, step.dtype, "part" if ranks else "added",
            bias=fused.takes("down_bias"), factor=layer.factor,
        )  # fmt: skip
        sums, residual = step.own("sums"), step.own("residual")
        made = columns(step, step.of_stage("features"), layer.features)
        ahead: list[Launch] = []
        if not ranks:
            ahead = normed(step, "ffn_norm", sums, layer.gain, layer.hidden, layer.epsilon)
        inputs, ends = step.own("normed"), (sums,) if ranks else (sums, residual)
        return [
            *ahead,
            chunk_product(step, "ffn_inner", first, inputs, layer.inner, (made,)),
            chunk_product(step, "ffn_outer", second, made, layer.outer, ends),
        ]


@dataclass(frozen=True)
class _Layer:
    """Extents, and arguments of launches: ``inner`` and ``outer`` are a matrix of the inner and the
    outer product, then a bias where there is one. ``rows`` are those of the inner one; what the
    outer one gives is times ``factor``. There is no ``gain`` where ranks norm together in front of
    the layer."""

    hidden: int
    features: int
    rows: int
    output: str
    epsilon: float
    gain: str
    inner: tuple[str, ...]
    outer: tuple[str, ...]
    factor: float


def _layer(step: Step, fused: Fused) -> _Layer:
    """A feed-forward layer, whose weights are added to ``step``."""
    (width, epsilon), down = fused.entry(), fused.reader("down", graph.Matmul)
    inner = (width, *down.contract)
    gated = fused.takes("gate")
    sides = ("gate", "up") if gated else ("up",)
    for name in sides:
        fused.check_dims(name, inner, {2})
    fused.check_dims("down", inner[::-1], {2})
    hidden, features = (step.module.dims[d] for d in inner)
    rows = len(sides) * features
    name, pack = ("gate_up", "gated") if gated else ("up", "transposed")
    gain = ""
    if fused.takes("norm"):
        gain = step.add_weight(FeedForward.GAIN, "plain", fused.tensors("norm"), (hidden,))
    first = [step.add_matrix(name, pack, fused.tensors(*sides), (rows, hidden))]
    if fused.takes("up_bias"):
        biases = fused.tensors(*(f"{side}_bias" for side in sides))
        first.append(step.add_weight(f"bias_of_{name}", pack, biases, (rows,)))
    second = [step.add_matrix("down", "transposed", fused.tensors("down"), (hidden, features))]
    if fused.takes("down_bias"):
        bias = fused.tensors("down_bias")
        second.append(step.add_weight("bias_of_down", "plain", bias, (hidden,)))
    return _Layer(
        hidden, features, rows, "gated" if gated else "activated", epsilon, gain,
        tuple(first), tuple(second), fused.factor_behind(down),
    )  # fmt: skip


def _activation(fused: Fused) -> str:
    """The activation by its name in a template."""
    if fused.all(graph.Silu):
        return "silu"
    (gelu,) = fused.all(graph.Gelu)
    return f"gelu_{gelu.form}"
