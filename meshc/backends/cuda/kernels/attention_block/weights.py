"""What an attention layer reads beside the residual stream: weights as they are packed, caches."""

from __future__ import annotations

from dataclasses import dataclass

from meshc.analysis.rotary import rope_frequencies
from meshc.backends.cuda.gathering import Step
from meshc.backends.cuda.kernels.attention_block.kernel import AttentionPlan
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
    pages: int  # of a request


def weights_of(step: Step, fused: Fused, plan: AttentionPlan) -> AttentionWeights:
    """What the layer ``fused`` reads, added to ``step``, packed as decode steps of ``plan`` read
    it."""
    shape = plan.shape
    angles = step.add_angles(rope_frequencies(fused.all(graph.Rope)[0], shape.head))
    parts = plan.cluster if plan.dataflow == "split_head" else 1
    hidden, of_heads = shape.hidden, (shape.kv_heads, shape.sizes.rows)
    gain = ""
    if fused.takes("norm"):
        gain = step.add_weight(GAIN, "plain", fused.tensors("norm"), (hidden,))
    sources = fused.tensors("query", "key", "value")
    projections = [step.add_matrix("qkv", "projections", sources, (*of_heads, hidden), parts)]
    if shape.bias:
        biases = fused.tensors(*_BIASES)
        projections.append(step.add_weight("bias_of_qkv", "projections", biases, of_heads, parts))
    norms = (("queries", "query_norm"), ("keys", "key_norm")) if shape.head_epsilons else ()
    gains = [
        step.add_weight(f"norm_of_{what}", "plain", fused.tensors(name), (shape.head,))
        for what, name in norms
    ]
    outputs = (plan.clusters, parts, hidden, plan.heads * shape.head // parts)
    output = [step.add_matrix("out", "output", fused.tensors("output"), outputs, parts)]
    if shape.out_bias:
        bias = fused.tensors("output_bias")
        output.append(step.add_weight("bias_of_out", "plain", bias, (hidden,)))
    pages = step.batch * -(-step.module.capacity // step.page)
    pool = (pages, shape.kv_heads, step.page, shape.head)
    keys, values = (
        step.add_cache(name, pool, fused.tensors(name) if plan.swizzled else ())
        for name in ("keys", "values")
    )
    return AttentionWeights(
        gain, tuple(projections), tuple(gains), tuple(output), keys, values, angles,
        pages // step.batch,
    )  # fmt: skip
