"""Prompts in chunks of one request: kernels of many tokens, or the launches of a decode step for
several."""

from __future__ import annotations

from collections.abc import Iterator

from meshc.backends.cuda.gathering import Launches, Step
from meshc.backends.cuda.kernels.tiles import DoesNotFit
from meshc.backends.cuda.program import Prefill

CHUNKS = (16, 8, 4, 2)
"""Tokens of a chunk of a prompt; the first that fits is taken."""


TILED = 512
"""The most tokens of a chunk whose kernels read each weight once."""
_EIGHT = 8


def chunks_of(step: Step) -> Iterator[Step]:
    """Chunks of a prompt as steps of their own, nothing gathered yet, the best first: one of many
    tokens, for which some op may have no kernel, then one of as many columns as decode kernels
    take, if that is more than one. ``step`` is read to its end."""
    tokens = min(TILED, -(-step.module.capacity // _EIGHT) * _EIGHT)
    yield Step(
        step.module, step.page, step.cores, step.dtype, step.transport, tokens, tiled=True
    )  # fmt: skip
    columns = _most_columns(step)
    if columns > 1:
        yield Step(step.module, step.page, step.cores, step.dtype, step.transport, columns)


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
