"""The latent attention block of a fused decode graph as a launch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from meshc.analysis.blocks import THREADS
from meshc.analysis.dsmem import LatentAttention
from meshc.analysis.rotary import rope_frequencies
from meshc.backends.cuda.fused_body import Body, check_dims
from meshc.backends.cuda.gathering import Step
from meshc.backends.cuda.kernels import latent
from meshc.backends.cuda.program import Launch
from meshc.ir.core import tensor_type
from meshc.ir.ops import graph
from meshc.ir.values import Value


def latent_block(step: Step, op: graph.Fuse, outer: Mapping[Value, str]) -> Launch:
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
    angles = step.add_angles(rope_frequencies(body.all(graph.Rope)[0], sizes.rope))
    plan = latent.plan(shape, op.cluster)
    name = step.add_kernel(
        step.shared("latent_block"), partial(latent.text, plan), plan.blocks, plan.cluster,
        plan.arena, THREADS, plan.dsmem_bytes,
    )  # fmt: skip
    gains = {
        what: step.add_weight(
            f"norm_of_{what}", "plain", (body.name(norm, 1),), (step.module.dims[norm.dim],)
        )
        for what, norm in norms.items()
    }
    matrices = _add_matrices(step, body, sizes)
    of_query = (gains["query"], matrices["query_latent"]) if sizes.query_rank else ()
    weights = (matrices[of] for of in ("queries", "latent_keys", "absorb", "expand", "out"))
    pages = step.batch * -(-step.module.capacity // step.page)
    cache = step.add_cache("latents", (pages, step.page, sizes.key))
    table = step.own("pages"), pages // step.batch
    return Launch(
        name,
        (
            step.row("residual"), step.row("sums"), gains["attention"], gains["latent"], *of_query,
            *weights, cache, *table, step.row("cached"), *angles,
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


def _add_matrices(step: Step, body: Body, sizes: LatentAttention) -> dict[str, str]:
    """The weights that tensor cores multiply with: the arguments that stand for them."""
    start = 4 if sizes.query_rank else 2
    plain, turning, to_latent, to_key = body.inputs(start, start + 4)
    absorb, expand, out = body.inputs(-3)
    heads, clusters = (sizes.heads,), (sizes.clusters,)
    found: dict[str, str] = {}
    width, asked = sizes.hidden, sizes.query_width
    if sizes.query_rank:
        source = tuple(body.inputs(2, 3))
        shape = (sizes.query_rank, width)
        found["query_latent"] = step.add_matrix("query_latent", "transposed", source, shape)
    for weight, pack, sources, parts, rows, columns in (
        ("queries", "latent_queries", (plain, turning), clusters, sizes.query_rows, asked),
        ("latent_keys", "latent_keys", (to_latent, to_key), (), sizes.key, width),
        ("absorb", "by_heads", (absorb,), heads, sizes.latent, sizes.query),
        ("expand", "by_heads", (expand,), heads, sizes.value, sizes.latent),
        ("out", "output", (out,), clusters, width, sizes.attended),
    ):
        found[weight] = step.add_matrix(weight, pack, sources, (*parts, rows, columns))
    return found
