"""What an attention layer reads beside the residual stream: weights as they are packed, caches."""

from __future__ import annotations

from dataclasses import dataclass

from meshc.analysis.rotary_angles import rope_frequencies
from meshc.backends.cuda.chunk import Chunk
from meshc.backends.cuda.kernels.chunk_attention.kernel import Attention
from meshc.backends.cuda.kernels.fused import Fused
from meshc.ir.ops import graph

GAIN = "norm_of_attention"
_BIASES = ("query_bias", "key_bias", "value_bias")


@dataclass(frozen=True)
class AttentionWeights:
    """Arguments of launches. ``projections`` and ``output`` are a matrix, then a bias where there
    is one; ``head_norms`` the gains of queries and keys, where they are normed; ``angles`` tables
    of cosines and sines. There is no ``gain`` where ranks norm together in front of the layer."""

    gain: str
    projections: tuple[str, ...]
    head_norms: tuple[str, ...]
    output: tuple[str, ...]
    keys: str
    values: str
    angles: tuple[str, str]


def weights_of(chunk: Chunk, fused: Fused, shape: Attention) -> AttentionWeights:
    """What the layer ``fused`` of ``shape`` reads, added to ``chunk``; the projections
    of a key head lie together."""
    angles = chunk.add_angles(rope_frequencies(fused.all(graph.Rope)[0], shape.head))
    hidden, of_heads = shape.hidden, (shape.kv_heads, shape.rows)
    gain = ""
    if fused.takes("norm"):
        gain = chunk.add_weight(GAIN, "plain", fused.tensors("norm"), (hidden,))
    sources = fused.tensors("query", "key", "value")
    projections = [chunk.add_matrix("qkv", "projections", sources, (*of_heads, hidden))]
    if shape.bias:
        biases = fused.tensors(*_BIASES)
        projections.append(chunk.add_weight("bias_of_qkv", "projections", biases, of_heads))
    norms = (("queries", "query_norm"), ("keys", "key_norm")) if shape.head_epsilons else ()
    gains = [
        chunk.add_weight(f"norm_of_{what}", "plain", fused.tensors(name), (shape.head,))
        for what, name in norms
    ]
    outputs = hidden, shape.heads * shape.head
    output = [chunk.add_matrix("out", "output", fused.tensors("output"), outputs)]
    if shape.out_bias:
        bias = fused.tensors("output_bias")
        output.append(chunk.add_weight("bias_of_out", "plain", bias, (hidden,)))
    keys, values = (
        chunk.add_cache(name, shape.kv_heads, shape.head, fused.tensors(name))
        for name in ("keys", "values")
    )
    return AttentionWeights(
        gain, tuple(projections), tuple(gains), tuple(output), keys, values, angles
    )
