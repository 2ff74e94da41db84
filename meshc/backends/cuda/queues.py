"""Launches of two halves of a chunk on two streams: what an overlapped program reads prompts by.

A machine follows a queue as it stands: each launch on its stream, behind the event that it waits
for, and with the event recorded that others wait for. The CUDA graph of a GPU is captured from it,
the executor runs and judges it, and its order is the one that the cost model prices
(:mod:`meshc.analysis.cuda.stream_turns`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshc.analysis.cuda.stream_turns import COMMUNICATION, COMPUTE
from meshc.backends.cuda.launches import Launch

STREAMS = (COMPUTE, COMMUNICATION)


@dataclass(frozen=True)
class Queued:
    """A launch on a ``stream``, which first waits for the event ``waits`` as it was recorded last,
    and behind which ``records`` is recorded; empty for no event."""

    launch: Launch
    stream: str
    waits: str = ""
    records: str = ""

    def __post_init__(self) -> None:
        if self.stream not in STREAMS:
            raise ValueError(f"there is no stream '{self.stream}'")


Queue = Sequence[tuple[Queued, int]]
"""What is queued, in the order in which a host says it, with the layer within its stage."""


@dataclass(frozen=True)
class QueuedStage:
    """``layers`` layers of one kind: what is queued for each."""

    layers: int
    queued: tuple[Queued, ...]


@dataclass(frozen=True)
class Cut:
    """A chunk of ``tokens`` or more has ``at`` in its first half; with 0 it stays whole."""

    tokens: int
    at: int

    def __post_init__(self) -> None:
        if not 0 <= self.at < self.tokens:
            raise ValueError("a chunk is cut behind its end")


@dataclass(frozen=True)
class Overlap:
    """How chunks of up to ``tokens`` are read in two halves, by the last of ``cuts``, which stand
    from few tokens to many, that has no more tokens; others in one piece.

    The first half has the buffers of a chunk in one piece, the second one of its own, called
    ``second_`` in place of ``chunk_``; its ``second_pages`` are ``chunk_pages``. ``after`` gives
    the logits behind the last token of the second half. Collectives have ``multiprocessors``
    blocks.
    """

    tokens: int
    multiprocessors: int
    cuts: tuple[Cut, ...]
    before: tuple[Queued, ...]
    stages: tuple[QueuedStage, ...]
    after: tuple[Queued, ...]

    def cut_of(self, tokens: int) -> int:
        """The tokens of the first half of a chunk of ``tokens``; 0 for one that stays whole."""
        places = [cut.at for cut in self.cuts if cut.tokens <= tokens]
        return places[-1] if places else 0

    def every_launch(self) -> list[Launch]:
        """Those of a layer of each kind, and those in front and behind."""
        stages = (one for stage in self.stages for one in stage.queued)
        return [one.launch for one in (*self.before, *stages, *self.after)]

    def queue(self, logits: bool) -> list[tuple[Queued, int]]:
        """All launches of a chunk; those that give logits where they are wanted."""
        found = [(queued, 0) for queued in self.before]
        for stage in self.stages:
            found += [(one, layer) for layer in range(stage.layers) for one in stage.queued]
        return found + [(queued, 0) for queued in self.after if logits]
