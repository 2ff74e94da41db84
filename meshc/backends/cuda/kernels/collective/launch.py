"""The sum over ranks, residual sum and norm in front of a block, as a launch on all GPUs.

Of many tokens of a prompt one product of every rank leaves its part of a sum in ``sums``, rounded
as its inputs are (the look-up leaves zeros), and ``normed`` are columns of the next one. The launch
between two of them adds up what all ranks left, adds it to the residual, of which each GPU keeps
its own rows alone, normalises with the gain of the block behind it, and gives ``normed`` to all. In
front of the logits only the last token's row is completed.
"""

from __future__ import annotations

from functools import partial

from meshc.analysis.cuda.blocks import FRAGMENT
from meshc.backends.cuda.chunk import Chunk
from meshc.backends.cuda.gpu_shares import TRANSPORTS
from meshc.backends.cuda.kernels.chunk_tiles import DoesNotFit
from meshc.backends.cuda.kernels.collective import kernel
from meshc.backends.cuda.launches import OF_EACH, RANK, RANKS, Launch
from meshc.backends.cuda.program import Buffer
from meshc.ir.ops import ranks
from meshc.support.diagnostics import fail


def fused_sum(
    chunk: Chunk, op: ranks.AllReduceResidualRmsNorm, gain: str, source: str
) -> list[Launch]:
    """The launch of ``op``, whose gain is the model's tensor ``source``, packed as ``gain``. Behind
    the layers of a chunk of many tokens it completes the last one alone.

    Raises DoesNotFit for rows that registers do not hold, and for too many ranks; ``bad-argument``
    for more multiprocessors beside other kernels than ``op`` may take at all.
    """
    hidden = chunk.module.dims[op.dim]
    packed = chunk.add_weight(gain, "plain", (source,), (hidden,))
    if chunk.budget > op.multiprocessors:
        fail(
            "bad-argument",
            f"collectives beside other kernels would have {chunk.budget} multiprocessors, of "
            f"{op.multiprocessors} that {op.NAME} may take",
            op.span,
        )
    return _sum(chunk, op, hidden, packed, last=not chunk.layers)


def _sum(
    chunk: Chunk, op: ranks.AllReduceResidualRmsNorm, hidden: int, gain: str, last: bool
) -> list[Launch]:
    """The sum over ranks, whose ``normed`` are columns of 16 bits for all tokens; for the ``last``
    one alone a row of f32, ``last_normed``."""
    tokens, layout = chunk.tokens, "f32" if last else "columns"
    shape = kernel.Collective(
        "all_reduce_norm", hidden, chunk.dtype, chunk.transport, op.eps, chunk=tokens, layout=layout
    )
    sums, normed = chunk.own("sums"), chunk.own("last_normed" if last else "normed")
    if last:
        name = _kernel(chunk, shape, "last_all_reduce_norm", 1)
        chunk.buffers[normed] = Buffer("f32", (1, hidden), "symmetric")
    else:
        name = _kernel(chunk, shape, "all_reduce_norm", min(op.multiprocessors, tokens))
        columns = -(-hidden // FRAGMENT), tokens, FRAGMENT
        chunk.buffers[normed] = Buffer(chunk.dtype, columns, "symmetric")
    reach, rows = TRANSPORTS[chunk.transport], (-1, 1) if last else (0, tokens)
    arguments = (
        sums + reach, chunk.own("residual"), gain, normed + reach, chunk.own("signals") + OF_EACH,
        chunk.own("count"), *rows, RANK, RANKS,
    )  # fmt: skip
    return [Launch(name, arguments)]


def _kernel(chunk: Chunk, shape: kernel.Collective, name: str, blocks: int) -> str:
    """A kernel of ``shape`` in ``blocks`` blocks, called ``name`` or so, and words for its signals.
    Raises DoesNotFit for too many ranks."""
    joined = chunk.module.ranks
    assert joined is not None
    if joined.count > kernel.MOST_GPUS:
        raise DoesNotFit(f"{joined.count} ranks, of {kernel.MOST_GPUS} that collectives join")
    plan = kernel.plan(shape, blocks)
    signals = chunk.own("signals")
    words = kernel.plan(shape, max(blocks, chunk.budget)).signals(joined.count)
    known = chunk.buffers.get(signals)
    if known is None or known.shape[0] < words:
        chunk.buffers[signals] = Buffer("i32", (words,), "signals")

    def added(called: str, count: int) -> str:
        return chunk.add_kernel(
            called, partial(kernel.text, plan), count, plan.arena, plan.threads, meets=True
        )

    made = added(chunk.own(name), blocks)
    if chunk.budget and blocks > 1:
        chunk.within_budget[made] = added(f"beside_{made}", chunk.budget)
    return made
