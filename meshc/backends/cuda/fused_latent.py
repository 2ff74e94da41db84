"""The latent attention block of a fused decode graph as a launch."""

from __future__ import annotations

from collections.abc import Mapping

from meshc.analysis.blocks import THREADS
from meshc.analysis.dsmem import LatentAttention
from meshc.analysis.rotary import rope_frequencies
from meshc.backends.cuda.fused_body import Body, check_dims
from meshc.backends.cuda.gathering import Step
from meshc.backends.cuda.kernels import latent
from meshc.backends.cuda.program import Buffer, Launch
from meshc.ir.core import tensor_type
from meshc.ir.ops import graph
from meshc.ir.values import Value


def latent_block(step: Step, op: graph.Fuse, outer: Mapping[Value, str], layers: int) -> Launch:
    """Norm, absorbed projections, attention over latents, output projection and residual sum.

    Raises ``cuda-shape`` for weights in another order, :class:`DoesNotFit` for too large blocks.
    """
    body = Body(op, outer)
    dims = step.module.dims
    norm, latent_norm = body.all(graph.RmsNorm)
    query, rotary = (tensor_type(op.operands[n]).dims for n in (2, 3))
    value = tensor_type(op.operands[-1]).dims[1]
    hidden, heads, lane, turned, rank = norm.dim, query[1], query[-1], rotary[-1], latent_norm.dim
    ordered = [(hidden, heads, lane), (hidden, heads, turned), (hidden, rank), (hidden, turned)]
    ordered_last = [(lane, heads, rank), (rank, heads, value), (heads, value, hidden)]
    for place, wanted in [*enumerate(ordered, 2), *enumerate(ordered_last, -3)]:
        check_dims(op, place, wanted, {len(wanted)})
    sizes = LatentAttention(
        dims[hidden], dims[heads], dims[rank], dims[turned], dims[lane], dims[value],
        step.batch, op.heads,
    )  # fmt: skip
    factor = body.all(graph.Scale)
    shape = latent.Latent(
        sizes,
        step.dtype,
        step.page,
        norm.eps,
        latent_norm.eps,
        factor[0].factor if factor else 1.0,
    )
    step.frequencies = rope_frequencies(body.all(graph.Rope)[0], sizes.rope)
    plan = latent.plan(shape, op.cluster)
    name = step.shared("latent_block")
    step.add_kernel(
        name, latent.text(plan, name), plan.blocks, plan.cluster, plan.arena, THREADS,
        plan.dsmem_bytes,
    )  # fmt: skip
    plain, turning, to_latent, to_key = body.inputs(2, 6)
    absorb, expand, out = body.inputs(-3)
    for weight, op_of, lanes in (
        ("norm_of_attention", norm, sizes.hidden),
        ("norm_of_latent", latent_norm, sizes.latent),
    ):
        step.add_weight(weight, "plain", (body.name(op_of, 1),), (lanes,), layers)
    heads_of, clusters, width = (sizes.heads,), (sizes.clusters,), sizes.hidden
    for weight, pack, sources, parts, rows, columns in (
        ("queries", "latent_queries", (plain, turning), clusters, sizes.query_rows, width),
        ("latent_keys", "latent_keys", (to_latent, to_key), (), sizes.key, width),
        ("absorb", "by_heads", (absorb,), heads_of, sizes.latent, sizes.query),
        ("expand", "by_heads", (expand,), heads_of, sizes.value, sizes.latent),
        ("out", "output", (out,), clusters, width, sizes.attended),
    ):
        step.add_matrix(weight, pack, sources, (*parts, rows, columns), layers)
    pages = step.batch * -(-dims["S"] // step.page)
    step.buffers["latents"] = Buffer(step.dtype, (layers, pages, step.page, sizes.key), "state")
    return Launch(
        name,
        (
            step.row("residual"), step.row("sums"), "norm_of_attention[]", "norm_of_latent[]",
            "queries[]", "latent_keys[]", "absorb[]", "expand[]", "out[]", "latents[]",
            step.own("pages"), pages // step.batch, step.row("cached"), "cosines", "sines",
        ),
    )  # fmt: skip
