"""The sum over ranks, residual sum and norm in front of a block, as a launch on all GPUs.

Every block of a rank leaves its part of a sum in ``sums`` (the look-up leaves zeros), and reads
``normed``. The launch between two of them adds up what all ranks left, adds it to the residual, of
which each GPU keeps its own rows alone, normalises with the gain of the block behind it, and gives
``normed`` to all. It leaves zeros in ``sums`` again.
"""

from __future__ import annotations

from functools import partial

from meshc.backends.cuda.gathering import Step
from meshc.backends.cuda.kernels.collective import kernel
from meshc.backends.cuda.kernels.tiles import DoesNotFit
from meshc.backends.cuda.program import OF_EACH, RANK, RANKS, TRANSPORTS, Buffer, Launch

BLOCKS = 8
"""Blocks of a collective: the multiprocessors that it takes."""


def normed_rows(step: Step, hidden: int, epsilon: float, gain: str) -> list[Launch]:
    """The launch in front of a block that reads rows of ``hidden`` values, normed with the weight
    ``gain``. Raises DoesNotFit for rows that registers do not hold, and for too many ranks."""
    ranks = step.module.ranks
    assert ranks is not None
    if ranks.count > kernel.MOST_GPUS:
        raise DoesNotFit(f"{ranks.count} ranks, of {kernel.MOST_GPUS} that collectives join")
    shape = kernel.Collective(
        "all_reduce_norm", hidden, "f32", step.transport, epsilon, in_step=True, gain=step.dtype
    )
    blocks = min(BLOCKS, step.columns)
    plan = kernel.plan(shape, blocks)
    name = step.add_kernel(
        step.own("all_reduce_norm"), partial(kernel.text, plan), plan.blocks, 1, plan.arena,
        plan.threads, meets=True,
    )  # fmt: skip
    sums, normed, signals = map(step.own, ("sums", "normed", "signals"))
    step.buffers[normed] = Buffer("f32", (step.columns, hidden), "symmetric")
    step.buffers[signals] = Buffer("i32", (plan.signals(ranks.count),), "signals")
    reach = TRANSPORTS[step.transport]
    arguments = (
        sums + reach, step.own("residual"), gain, normed + reach, sums, signals + OF_EACH,
        step.columns, RANK, RANKS,
    )  # fmt: skip
    return [Launch(name, arguments)]
