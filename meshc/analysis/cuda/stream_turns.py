"""The order in which two halves of a batch take turns on the two streams of a GPU, as data.

One half's collective runs on a few multiprocessors (the stream of communication) beside the other
half's kernels (the stream of compute). What stands between two collectives is a *block*; in front
of each the half's sum over all GPUs is completed. A collective waits for the kernels whose parts it
sums, and a half's next kernels wait for their collective; halves wait for each other by the order
of a stream alone: the first half's keys of a layer are in the cache before the second half attends
(TokenWeave, Figure 7).

The cost model prices this order (:mod:`meshc.cost.nodes.overlap`), and programs of several GPUs
are emitted in it.
"""

from __future__ import annotations

from typing import NamedTuple

COMPUTE, COMMUNICATION = "compute", "communication"


class Turn(NamedTuple):
    """What a stream does next for a ``half`` (0 or 1) of the batch, once the other stream has
    recorded the event ``waits`` for the last time before; then it records ``records``."""

    stream: str
    half: int
    waits: str
    records: str


def _of_half(half: int) -> tuple[Turn, Turn]:
    summed, computed = f"summed_{half}", f"computed_{half}"
    return (
        Turn(COMMUNICATION, half, computed, summed),
        Turn(COMPUTE, half, summed, computed),
    )


def blocks_alone(beside: int) -> int:
    """The most blocks of a collective that runs alone, of a device whose collectives have
    ``beside`` multiprocessors beside other kernels (``collective_blocks``).

    Alone it takes nothing from anybody: twice as many, with which TokenWeave's fused kernel is
    fastest (Figure 10).
    """
    return 2 * beside


TURNS = (*_of_half(0), *_of_half(1))
"""The turns of each block: the collective in front of it and its kernels, for the first half, then
for the second one."""
