"""Prompts in chunks: the launches of a decode step for several tokens of one request."""

from __future__ import annotations

from meshc.backends.cuda.gathering import Launches, Step
from meshc.backends.cuda.kernels.tiles import DoesNotFit
from meshc.backends.cuda.program import Prefill

CHUNKS = (16, 8, 4, 2)
"""Tokens of a chunk of a prompt; the first that fits is taken."""


def chunk_of(step: Step) -> Step | None:
    """A chunk of a prompt as a step of its own, nothing gathered yet; None where products of more
    than one column do not fit. ``step`` is read to its end."""
    columns = _most_columns(step)
    if columns == 1:
        return None
    return Step(step.module, step.page, step.cores, step.dtype, step.transport, columns)


def joined(step: Step, chunk: Step, launches: Launches) -> Prefill:
    """How a prompt is read; kernels and buffers of ``chunk`` are put with those of ``step``."""
    step.texts |= chunk.texts
    step.kernels |= chunk.kernels
    step.buffers |= {n: b for n, b in chunk.buffers.items() if n not in step.buffers}
    return Prefill(chunk.columns, launches.before, launches.stages, launches.after)


def _most_columns(step: Step) -> int:
    """The columns of the largest chunk whose products fit a block."""
    for columns in CHUNKS:
        try:
            for fits in step.of_columns:
                fits(columns)
        except DoesNotFit:
            continue
        return columns
    return 1
