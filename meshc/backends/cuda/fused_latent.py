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
    norms = _norms(body)
    sizes = _sizes(step, op, norms)
    factor = body.all(graph.Scale)
    shape = latent.Latent(
        sizes,
        step.dtype,
        step.page,
        norms["attention"].eps,
        norms["latent"].eps,
        factor[0].factor if factor else 1.0,
        norms["query"].eps if sizes.query_rank else 0.0,
    )
    step.frequencies = rope_frequencies(body.all(graph.Rope)[0], sizes.rope)
    plan = latent.plan(shape, op.cluster)
    name = step.shared("latent_block")
    step.add_kernel(
        name, latent.text(plan, name), plan.blocks, plan.cluster, plan.arena, THREADS,
        plan.dsmem_bytes,
    )  # fmt: skip
    for what, norm in norms.items():
        extent = step.module.dims[norm.dim]
        step.add_weight(f"norm_of_{what}", "plain", (body.name(norm, 1),), (extent,), layers)
    _add_matrices(step, body, sizes, layers)
    pages = step.batch * -(-step.module.capacity // step.page)
    step.buffers["latents"] = Buffer(step.dtype, (layers, pages, step.page, sizes.key), "state")
    of_query = ("norm_of_query[]", "query_latent[]") if sizes.query_rank else ()
    return Launch(
        name,
        (
            step.row("residual"), step.row("sums"), "norm_of_attention[]", "norm_of_latent[]",
            *of_query, "queries[]", "latent_keys[]", "absorb[]", "expand[]", "out[]", "latents[]",
            step.own("pages"), pages // step.batch, step.row("cached"), "cosines", "sines",
        ),
    )  # fmt: skip


def _norms(body: Body) -> dict[str, graph.RmsNorm]:
    """The norms of the input, of latents and, if it has one, of the query's latent, by their gains'
    places."""
    gains = body.block.args
    places = {"attention": gains[1], "latent": gains[-6], "query": gains[3]}
    norms = {n.operands[1]: n for n in body.all(graph.RmsNorm)}
    return {what: norms[gain] for what, gain in places.items() if gain in norms}


def _sizes(step: Step, op: graph.Fuse, norms: Mapping[str, graph.RmsNorm]) -> LatentAttention:
    """Sizes of the block, whose weights must be over dims in the order in which they are packed."""
    dims = step.module.dims
    hidden, rank = norms["attention"].dim, norms["latent"].dim
    source, start = hidden, 2
    if "query" in norms:
        source, start = norms["query"].dim, 4
        check_dims(op, 2, (hidden, source), {2})
    query, rotary = (tensor_type(op.operands[n]).dims for n in (start, start + 1))
    heads, lane, turned = query[1], query[-1], rotary[-1]
    value = tensor_type(op.operands[-1]).dims[1]
    ordered = [(source, heads, lane), (source, heads, turned), (hidden, rank), (hidden, turned)]
    ordered_last = [(lane, heads, rank), (rank, heads, value), (heads, value, hidden)]
    for place, wanted in [*enumerate(ordered, start), *enumerate(ordered_last, -3)]:
        check_dims(op, place, wanted, {len(wanted)})
    return LatentAttention(
        dims[hidden], dims[heads], dims[rank], dims[turned], dims[lane], dims[value],
        step.batch, op.heads, dims[source] if "query" in norms else 0,
    )  # fmt: skip


def _add_matrices(step: Step, body: Body, sizes: LatentAttention, layers: int) -> None:
    """The weights that tensor cores multiply with."""
    start = 4 if sizes.query_rank else 2
    plain, turning, to_latent, to_key = body.inputs(start, start + 4)
    absorb, expand, out = body.inputs(-3)
    heads, clusters = (sizes.heads,), (sizes.clusters,)
    width, asked = sizes.hidden, sizes.query_width
    if sizes.query_rank:
        source = tuple(body.inputs(2, 3))
        step.add_matrix("query_latent", "transposed", source, (sizes.query_rank, width), layers)
    for weight, pack, sources, parts, rows, columns in (
        ("queries", "latent_queries", (plain, turning), clusters, sizes.query_rows, asked),
        ("latent_keys", "latent_keys", (to_latent, to_key), (), sizes.key, width),
        ("absorb", "by_heads", (absorb,), heads, sizes.latent, sizes.query),
        ("expand", "by_heads", (expand,), heads, sizes.value, sizes.latent),
        ("out", "output", (out,), clusters, width, sizes.attended),
    ):
        step.add_matrix(weight, pack, sources, (*parts, rows, columns), layers)
