"""Prompts in chunks of one request: the launches of a decode step for several tokens, or kernels of
many."""

from __future__ import annotations

from meshc.backends.cuda.gathering import Launches, Step
from meshc.backends.cuda.kernels.tiles import DoesNotFit
from meshc.backends.cuda.overlapping import Splitting, overlapped
from meshc.backends.cuda.program import CHUNK_UNIT, MOST_CHUNK, Prefill

CHUNKS = (16, 8, 4, 2)
"""Tokens of a chunk of a prompt; the first that fits is taken."""


def chunk_of(step: Step, tokens: int, splitting: Splitting | None = None) -> Step | None:
    """A chunk of a prompt as a step of its own, nothing gathered yet: of up to ``tokens``, for
    which some op may have no kernel; for 0 of as many columns as decode kernels take, None where
    that is one; with collectives for ``splitting`` as well. ``step`` is read to its end."""
    most = min(MOST_CHUNK, -(-step.module.capacity // CHUNK_UNIT) * CHUNK_UNIT)
    columns = min(tokens, most) or _most_columns(step)
    if columns == 1:
        return None
    tiled = tokens > 0
    budget = 0 if splitting is None else splitting.multiprocessors
    return Step(step.module, step.page, step.dtype, step.transport, columns, tiled, budget)


def joined(
    step: Step, chunk: Step, launches: Launches, splitting: Splitting | None = None
) -> Prefill:
    """How a prompt is read; kernels and buffers of ``chunk`` are put with those of ``step``."""
    overlap = None if splitting is None else overlapped(chunk, launches, splitting)
    step.texts |= chunk.texts
    step.kernels |= chunk.kernels
    step.buffers |= {n: b for n, b in chunk.buffers.items() if n not in step.buffers}
    return Prefill(chunk.columns, launches.before, launches.stages, launches.after, overlap)


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
