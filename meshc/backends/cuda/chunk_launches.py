"""A fused decode graph as kernels and launches that read many tokens of a prompt at once.

The residual stream stays in f32 in two buffers. The attention block adds its output and the
residual to ``sums``, the feed-forward block reads ``sums`` and writes the next residual. So no
kernel writes what another block of it reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from meshc.backends.cuda.chain import check_chain
from meshc.backends.cuda.chunk import Chunk, Launches
from meshc.backends.cuda.kernels.chunk_tiles import DoesNotFit
from meshc.backends.cuda.kernels.collective.launch import fused_sum
from meshc.backends.cuda.kernels.fused import Fused
from meshc.backends.cuda.kernels.registry import kernel_of
from meshc.backends.cuda.launches import Launch, Stage
from meshc.backends.cuda.overlapping import Splitting, overlapped
from meshc.backends.cuda.program import KERNELS, MOST_CHUNK, Prefill
from meshc.backends.cuda.targets import kind_of
from meshc.cost.prompts import most_chunk, whole_chunk
from meshc.ir.batch import POSITION
from meshc.ir.core import Op
from meshc.ir.module import Module
from meshc.ir.ops import graph, ranks
from meshc.ir.values import Value
from meshc.support.diagnostics import fail


@dataclass(frozen=True)
class ChunkGraph:
    """The graph of a decode step, fused into the kernels that read up to ``tokens`` tokens of a
    prompt at once, each weight once, where ``least`` of them or more are left. Ranks may read
    chunks in two halves on two streams, by ``splitting``."""

    module: Module
    tokens: int
    splitting: Splitting | None = None
    least: int = 1


def chunk_of(given: ChunkGraph, page: int, transport: str) -> tuple[Chunk, Prefill]:
    """The kernels of ``given``, and how prompts are read by them; for the graph of a rank, with
    collectives by ``transport`` (:data:`meshc.backends.cuda.program.TRANSPORTS`).

    Raises ``cuda-graph`` for what is not fused into the kernels of one step, ``cuda-dtype`` for
    element types other than f16 and bf16, ``cuda-shape`` for what does not fit a block.
    """
    module, splitting = given.module, given.splitting
    dtype = kind_of(module)
    check_chain(module)
    device = module.the_device()
    most = MOST_CHUNK if module.ranks is not None else most_chunk(device)
    tokens = whole_chunk(device, min(given.tokens, most), module.capacity)
    budget = 0 if splitting is None else splitting.multiprocessors
    chunk = Chunk(module, page, dtype, transport, tokens, budget)
    try:
        launches = _launches(chunk)
    except DoesNotFit as reason:
        fail(
            "cuda-shape",
            f"no kernels read {given.tokens} tokens of a prompt at once: {reason}",
            help="without --chunk prompts are read by tasks",
        )
    overlap = None if splitting is None else overlapped(chunk, launches, splitting)
    read = launches.before, launches.stages, launches.after
    return chunk, Prefill(KERNELS, chunk.tokens, min(given.least, chunk.tokens), *read, overlap)


def _launches(chunk: Chunk) -> Launches:
    origin = {p.value: p.value.name for p in chunk.module.function.params}
    before: list[Launch] = []
    stages: list[Stage] = []
    after: list[Launch] = []
    if chunk.module.scalars.get(POSITION, (0, 0))[0] < 0:
        fail("cuda-graph", "the kernels of a step continue all of its requests")
    ops = chunk.module.function.body.ops
    for op, following in zip(ops, [*ops[1:], None], strict=True):
        if isinstance(op, graph.Repeat):
            if op.rounds:
                fail("cuda-graph", f"the kernels of a step pass all layers of {op.dim}", op.span)
            chunk.stage, chunk.layers = len(stages), chunk.module.dims[op.dim]
            stages.append(Stage(chunk.layers, tuple(_layer(chunk, op, origin))))
            chunk.stage, chunk.layers = 0, 0
        elif isinstance(op, graph.Fuse):
            (after if stages else before).extend(_fused(chunk, op, origin))
        elif isinstance(op, ranks.AllReduceResidualRmsNorm):
            after += _sum(chunk, op, following, origin)
        elif isinstance(op, ranks.ZerosLike):
            continue  # the look-up leaves them
        elif not isinstance(op, graph.Return):
            _unfused(op)
    chunk.add_inputs()
    return Launches(tuple(before), tuple(stages), tuple(after))


def _unfused(op: Op) -> NoReturn:
    fail(
        "cuda-graph",
        f"{op.NAME} is part of no kernel that reads many tokens of a prompt",
        op.span,
        help="without --chunk prompts are read by tasks",
    )


def _layer(chunk: Chunk, op: graph.Repeat, origin: Mapping[Value, str]) -> list[Launch]:
    (block,) = op.regions
    inner = {
        argument: origin.get(operand, "")
        for argument, operand in zip(block.args, op.operands, strict=True)
        if isinstance(operand, Value)
    }
    found = []
    for part, following in zip(block.ops, [*block.ops[1:], None], strict=True):
        if isinstance(part, graph.Fuse):
            found += _fused(chunk, part, inner)
        elif isinstance(part, ranks.AllReduceResidualRmsNorm):
            found += _sum(chunk, part, following, inner)
        elif not isinstance(part, graph.Yield):
            _unfused(part)
    return found


def _sum(
    chunk: Chunk,
    op: ranks.AllReduceResidualRmsNorm,
    following: Op | None,
    outer: Mapping[Value, str],
) -> list[Launch]:
    """A sum over ranks with residual and norm, in front of the block that reads what is normed."""
    if not isinstance(following, graph.Fuse):
        ends = isinstance(following, (graph.Yield, graph.Return))
        _unfused(op if following is None or ends else following)
    gain = outer.get(op.tensors()[2], "")
    roles = {param.value.name: param.role for param in chunk.module.function.params}
    if roles.get(gain) != "weight":
        fail("cuda-graph", f"the gain {op.operands[2]} of {op.NAME} is no weight", op.span)
    return fused_sum(chunk, op, kernel_of(following).GAIN, gain)


def _fused(chunk: Chunk, op: graph.Fuse, outer: Mapping[Value, str]) -> list[Launch]:
    kernel = kernel_of(op)
    if chunk.module.ranks is not None and kernel.GAIN and "normed" not in op.takes:
        fail(
            "cuda-graph",
            f"the {op.kernel} of a rank begins with a norm of its own, behind a sum over ranks "
            "that is not fused with it",
            op.span,
            help="fuse-all-reduce comes in front of fuse-chunk; a bias behind the sum is no part "
            "of a kernel",
        )
    if chunk.module.ranks is not None and kernel.PARTIAL and not op.partial:
        fail(
            "cuda-graph",
            f"every rank computes the whole {op.kernel}, which no rank has a part of",
            op.span,
            help="kernels of ranks are of models whose heads and features are dealt to them",
        )
    return kernel.launches(chunk, Fused(op, outer))
