"""A feed-forward layer as three launches: norm, inner products and activation, outer product and
residual sum; of a rank the first stands in front of the layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshc.backends.cuda.chunk import Chunk
from meshc.backends.cuda.kernels.chunk_product.kernel import ChunkProduct
from meshc.backends.cuda.kernels.chunk_product.launch import columns, normed, product
from meshc.backends.cuda.kernels.fused import Fused, FusedKernel
from meshc.backends.cuda.launches import Launch
from meshc.ir.ops import graph


class FeedForward(FusedKernel):
    """A feed-forward layer with its norm and residual sum; gated where it takes a gate."""

    NAME: ClassVar[str] = "ffn_block"
    TAKES: ClassVar[tuple[str, ...]] = ("residual", "norm", "up", "down")
    MAY_TAKE: ClassVar[tuple[str, ...]] = ("gate", "gate_bias", "up_bias", "down_bias")
    PARTIAL: ClassVar[bool] = True
    GAIN: ClassVar[str] = "norm_of_ffn"

    def launches(self, chunk: Chunk, fused: Fused) -> list[Launch]:
        layer, tokens, ranks = _layer(chunk, fused), chunk.tokens, fused.op.partial
        first = ChunkProduct(
            tokens, layer.hidden, layer.rows, chunk.dtype, layer.output,
            activation=_activation(fused), bias=fused.takes("up_bias"),
        )  # fmt: skip
        second = ChunkProduct(
            tokens, layer.features, layer.hidden, chunk.dtype, "part" if ranks else "added",
            bias=fused.takes("down_bias"), factor=layer.factor,
        )  # fmt: skip
        sums, residual = chunk.own("sums"), chunk.own("residual")
        made = columns(chunk, chunk.of_stage("features"), layer.features)
        ahead: list[Launch] = []
        if not ranks:
            ahead = normed(chunk, "ffn_norm", sums, layer.gain, layer.hidden, layer.epsilon)
        inputs, ends = chunk.own("normed"), (sums,) if ranks else (sums, residual)
        return [
            *ahead,
            product(chunk, "ffn_inner", first, inputs, layer.inner, (made,)),
            product(chunk, "ffn_outer", second, made, layer.outer, ends),
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


def _layer(chunk: Chunk, fused: Fused) -> _Layer:
    """A feed-forward layer, whose weights are added to ``chunk``."""
    (width, epsilon), down = fused.entry(), fused.reader("down", graph.Matmul)
    inner = (width, *down.contract)
    gated = fused.takes("gate")
    sides = ("gate", "up") if gated else ("up",)
    for name in sides:
        fused.check_dims(name, inner, {2})
    fused.check_dims("down", inner[::-1], {2})
    hidden, features = (chunk.module.dims[d] for d in inner)
    rows = len(sides) * features
    name, pack = ("gate_up", "gated") if gated else ("up", "transposed")
    gain = ""
    if fused.takes("norm"):
        gain = chunk.add_weight(FeedForward.GAIN, "plain", fused.tensors("norm"), (hidden,))
    first = [chunk.add_matrix(name, pack, fused.tensors(*sides), (rows, hidden))]
    if fused.takes("up_bias"):
        biases = fused.tensors(*(f"{side}_bias" for side in sides))
        first.append(chunk.add_weight(f"bias_of_{name}", pack, biases, (rows,)))
    second = [chunk.add_matrix("down", "transposed", fused.tensors("down"), (hidden, features))]
    if fused.takes("down_bias"):
        bias = fused.tensors("down_bias")
        second.append(chunk.add_weight("bias_of_down", "plain", bias, (hidden,)))
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
