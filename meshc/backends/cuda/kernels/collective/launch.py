"""The sum over ranks, residual sum and norm in front of a block, as a launch on all GPUs.

Every block of a rank leaves its part of a sum in ``sums`` (the look-up leaves zeros), and reads
``normed``. The launch between two of them adds up what all ranks left, adds it to the residual, of
which each GPU keeps its own rows alone, normalises with the gain of the block behind it, and gives
``normed`` to all. It leaves zeros in ``sums`` again.

Of many tokens of a prompt one product writes all of ``sums``, rounded as its inputs are, and
``normed`` are columns of the next one. In front of the logits only the last token's row is
completed.
"""

from __future__ import annotations

from functools import partial

from meshc.analysis.cuda.blocks import FRAGMENT
from meshc.backends.cuda.gathering import Step
from meshc.backends.cuda.kernels.collective import kernel
from meshc.backends.cuda.kernels.tiles import DoesNotFit
from meshc.backends.cuda.launches import OF_EACH, RANK, RANKS, Launch
from meshc.backends.cuda.program import TRANSPORTS, Buffer
from meshc.ir.ops import ranks
from meshc.support.diagnostics import fail


def fused_sum(
    step: Step, op: ranks.AllReduceResidualRmsNorm, gain: str, source: str
) -> list[Launch]:
    """The launch of ``op``, whose gain is the model's tensor ``source``, packed as ``gain``. Behind
    the layers of a chunk of many tokens it completes the last one alone.

    Raises DoesNotFit for rows that registers do not hold, and for too many ranks; ``bad-argument``
    for more multiprocessors beside other kernels than ``op`` may take at all.
    """
    hidden = step.module.dims[op.dim]
    packed = step.add_weight(gain, "plain", (source,), (hidden,))
    if step.tiled:
        if step.budget > op.multiprocessors:
            fail(
                "bad-argument",
                f"collectives beside other kernels would have {step.budget} multiprocessors, of "
                f"{op.multiprocessors} that {op.NAME} may take",
                op.span,
            )
        return _chunk(step, op, hidden, packed, last=not step.layers)
    return _rows(step, op, hidden, packed)


def _rows(step: Step, op: ranks.AllReduceResidualRmsNorm, hidden: int, gain: str) -> list[Launch]:
    """In front of a block that reads rows of ``hidden`` values."""
    shape = kernel.Collective(
        "all_reduce_norm", hidden, "f32", step.transport, op.eps, in_step=True, gain=step.dtype
    )
    name = _kernel(step, shape, "all_reduce_norm", min(op.multiprocessors, step.columns))
    sums, normed, signals = map(step.own, ("sums", "normed", "signals"))
    step.buffers[normed] = Buffer("f32", (step.columns, hidden), "symmetric")
    reach = TRANSPORTS[step.transport]
    arguments = (
        sums + reach, step.own("residual"), gain, normed + reach, sums, signals + OF_EACH,
        step.columns, RANK, RANKS,
    )  # fmt: skip
    return [Launch(name, arguments)]


def _chunk(
    step: Step, op: ranks.AllReduceResidualRmsNorm, hidden: int, gain: str, last: bool
) -> list[Launch]:
    """Of all tokens of a chunk, whose ``normed`` are columns of 16 bits; of the ``last`` one alone
    a row of f32, ``last_normed``."""
    tokens, layout = step.columns, "f32" if last else "columns"
    shape = kernel.Collective(
        "all_reduce_norm", hidden, step.dtype, step.transport, op.eps, chunk=tokens, layout=layout
    )
    sums, normed = step.own("sums"), step.own("last_normed" if last else "normed")
    if last:
        name = _kernel(step, shape, "last_all_reduce_norm", 1)
        step.buffers[normed] = Buffer("f32", (1, hidden), "symmetric")
    else:
        name = _kernel(step, shape, "all_reduce_norm", min(op.multiprocessors, tokens))
        columns = -(-hidden // FRAGMENT), tokens, FRAGMENT
        step.buffers[normed] = Buffer(step.dtype, columns, "symmetric")
    reach, rows = TRANSPORTS[step.transport], (-1, 1) if last else (0, tokens)
    arguments = (
        sums + reach, step.own("residual"), gain, normed + reach, step.own("signals") + OF_EACH,
        step.own("count"), *rows, RANK, RANKS,
    )  # fmt: skip
    return [Launch(name, arguments)]


def _kernel(step: Step, shape: kernel.Collective, name: str, blocks: int) -> str:
    """A kernel of ``shape`` in ``blocks`` blocks, called ``name`` or so, and words for its signals.
    Raises DoesNotFit for too many ranks."""
    joined = step.module.ranks
    assert joined is not None
    if joined.count > kernel.MOST_GPUS:
        raise DoesNotFit(f"{joined.count} ranks, of {kernel.MOST_GPUS} that collectives join")
    plan = kernel.plan(shape, blocks)
    signals = step.own("signals")
    words = kernel.plan(shape, max(blocks, step.budget)).signals(joined.count)
    known = step.buffers.get(signals)
    if known is None or known.shape[0] < words:
        step.buffers[signals] = Buffer("i32", (words,), "signals")

    def added(called: str, count: int) -> str:
        return step.add_kernel(
            called, partial(kernel.text, plan), count, 1, plan.arena, plan.threads, meets=True
        )

    made = added(step.own(name), blocks)
    if step.budget and blocks > 1:
        step.within_budget[made] = added(f"beside_{made}", step.budget)
    return made
