"""The latent attention block as a launch."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from meshc.analysis.cuda.blocks import THREADS
from meshc.analysis.cuda.dsmem import LatentAttention
from meshc.analysis.rotary import rope_frequencies
from meshc.backends.cuda.gathering import Step
from meshc.backends.cuda.kernels.fused import (
    ATTENTION,
    Fused,
    FusedKernel,
)
from meshc.backends.cuda.kernels.latent_block import kernel
from meshc.backends.cuda.launches import Launch
from meshc.ir.ops import graph


class LatentBlock(FusedKernel):
    """Norm, absorbed projections, attention over latents, output projection and residual sum.

    With ``query_latent`` and its norm, queries are products of a latent of their own.
    """

    NAME: ClassVar[str] = "latent_block"
    PLACE: ClassVar[str] = ATTENTION
    TAKES: ClassVar[tuple[str, ...]] = (
        "residual", "norm", "query", "query_rope", "latent", "key_rope", "latent_norm", "latents",
        "keys", "absorb", "expand", "output",
    )  # fmt: skip
    MAY_TAKE: ClassVar[tuple[str, ...]] = ("query_latent", "query_norm")
    PARTIAL: ClassVar[bool] = True
    GAIN: ClassVar[str] = "norm_of_attention"

    def launches(self, step: Step, fused: Fused) -> list[Launch]:
        names = {"attention": "norm", "latent": "latent_norm", "query": "query_norm"}
        names = {what: name for what, name in names.items() if fused.takes(name)}
        norms = {what: fused.reader(name, graph.RmsNorm) for what, name in names.items()}
        hidden, epsilon = fused.entry()
        over = {"attention": hidden, **{what: norm.dim for what, norm in norms.items()}}
        sizes = _sizes(step, fused, over)
        scales = fused.all(graph.Scale)
        shape = kernel.Latent(
            sizes,
            step.dtype,
            step.page,
            epsilon,
            norms["latent"].eps,
            scales[0].factor if scales else 1.0,
            norms["query"].eps if sizes.query_rank else 0.0,
            fused.op.partial,
        )
        angles = step.add_angles(rope_frequencies(fused.all(graph.Rope)[0], sizes.rope))
        plan = kernel.plan(shape, step.device, fused.op.cluster)
        made = step.add_kernel(
            step.shared("latent_block"), partial(kernel.text, plan), plan.blocks, plan.cluster,
            plan.arena, THREADS, plan.dsmem_bytes,
        )  # fmt: skip
        gains = {}
        for what, norm in norms.items():
            extent = (step.module.dims[norm.dim],)
            source = fused.tensors(names[what])
            gains[what] = step.add_weight(f"norm_of_{what}", "plain", source, extent)
        matrices = _add_matrices(step, fused, sizes)
        of_query = (gains["query"], matrices["query_latent"]) if sizes.query_rank else ()
        weights = (matrices[of] for of in ("queries", "latent_keys", "absorb", "expand", "out"))
        pages = step.batch * -(-step.module.capacity // step.page)
        cache = step.add_cache("latents", (pages, step.page, sizes.key))
        table = step.own("pages"), pages // step.batch
        read = step.row("normed" if shape.partial else "residual")
        given = read, step.row("sums"), *(gains[what] for what in norms if what == "attention")
        arguments = (
            *given, gains["latent"], *of_query, *weights, cache, *table, step.row("cached"),
            *angles,
        )  # fmt: skip
        return [Launch(made, arguments)]


def _sizes(step: Step, fused: Fused, normed: dict[str, str]) -> LatentAttention:
    """Sizes of the block, whose weights must be over dims in the order in which they are packed;
    ``normed`` are the dims of its norms."""
    dims = step.module.dims
    hidden, rank = normed["attention"], normed["latent"]
    source = normed.get("query", hidden)
    if "query" in normed:
        fused.check_dims("query_latent", (hidden, source), {2})
    heads, lane = fused.dims("query")[1], fused.dims("query")[-1]
    turned, value = fused.dims("query_rope")[-1], fused.dims("output")[1]
    wanted = {
        "query": (source, heads, lane),
        "query_rope": (source, heads, turned),
        "latent": (hidden, rank),
        "key_rope": (hidden, turned),
        "absorb": (lane, heads, rank),
        "expand": (rank, heads, value),
        "output": (heads, value, hidden),
    }
    for name, over in wanted.items():
        fused.check_dims(name, over, {len(over)})
    return LatentAttention(
        dims[hidden], dims[heads], dims[rank], dims[turned], dims[lane], dims[value],
        step.batch, fused.op.heads, dims[source] if "query" in normed else 0,
    )  # fmt: skip


def _add_matrices(step: Step, fused: Fused, sizes: LatentAttention) -> dict[str, str]:
    """The weights that tensor cores multiply with: the arguments that stand for them."""
    heads, clusters = (sizes.heads,), (sizes.clusters,)
    width, asked = sizes.hidden, sizes.query_width
    found = {}
    if sizes.query_rank:
        source, shape = fused.tensors("query_latent"), (sizes.query_rank, width)
        found["query_latent"] = step.add_matrix("query_latent", "transposed", source, shape)
    for weight, pack, names, parts, rows, columns in (
        ("queries", "latent_queries", ("query", "query_rope"), clusters, sizes.query_rows, asked),
        ("latent_keys", "latent_keys", ("latent", "key_rope"), (), sizes.key, width),
        ("absorb", "by_heads", ("absorb",), heads, sizes.latent, sizes.query),
        ("expand", "by_heads", ("expand",), heads, sizes.value, sizes.latent),
        ("out", "output", ("output",), clusters, width, sizes.attended),
    ):
        shape_of = (*parts, rows, columns)
        found[weight] = step.add_matrix(weight, pack, fused.tensors(*names), shape_of)
    return found
