"""The stages of a step, and what the tasks of each stream, need and compute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from meshc.cost.tasks.coded_blocks import Coded
from meshc.ir.ops import task

Kind = Literal["product", "attention", "copy"]
SMALL_BYTES = 1024
"""What a task has for itself of a stream is read by its threads if it is less than that."""
READ_AT_ONCE = 32768
"""Bytes that the threads of a block ask for, and hold, before they wait for them: 128 each."""
SUMS_BYTES = 1024
"""Sums that the warps of a block have of a vector and a fragment, twice."""


@dataclass(frozen=True)
class Piece:
    """Bytes that a task brings together. They are multiplied by ``rows`` vectors: requests, or
    the query heads of a key head, twice so many where keys are values too. ``filled`` is the share
    of the rows of a tensor core's fragment that a product uses. Numbers are made of what is
    ``coded``, block by block, or of rows ``of_floats`` of eight bits. With each byte come so many
    of ``vectors``, which others gave, in copies of ``copied`` bytes of what is brought, in tiles of
    ``place`` bytes, these among them. Of tiles of cached tokens so many are ``looked_up`` together,
    and so many ``tokens`` of a batch attend to each, one after the other or, of latents,
    ``together``; where that is done statement by statement, warps have so many instructions
    ``issued`` for each byte."""

    bytes: int
    kind: Kind = "copy"
    rows: int = 1
    filled: float = 1.0
    coded: Coded | None = None
    vectors: float = 0.0
    copied: int = 0
    place: int = 0
    of_floats: bool = False
    looked_up: int = 1
    tokens: int = 1
    issued: float = 0.0
    together: bool = False


@dataclass(frozen=True)
class TaskWork:
    """What one task brings, in order, and the bytes that it reads for itself alone."""

    pieces: tuple[Piece, ...]
    own: int = 0

    @cached_property
    def multiplies(self) -> bool:
        """Whether products hide what it reads for itself."""
        return any(piece.kind == "product" for piece in self.pieces)

    @cached_property
    def brought(self) -> int:
        """Bytes by way of the ring."""
        return sum(piece.bytes for piece in self.pieces)


@dataclass(frozen=True)
class FamilyWork:
    """Tasks of a family, or of one value of its first dim, in the order of its domain. ``read`` is
    what a block that has one of them
    reads in a phase, by its text: bytes, and whether they come from memory at first, being
    streamed. ``held`` are bytes of the block's memory that its tasks take. Products have
    ``vectors`` left sides of ``width`` elements. ``groups`` are those of its tasks, where these are
    dealt to clusters. Left sides that lie in memory, by their text, are ``copied`` by a block: so
    many bytes. A task chooses among so many ``candidates``."""

    name: str
    tasks: tuple[TaskWork, ...]
    read: Mapping[str, tuple[int, bool]]
    held: int
    vectors: int = 1
    width: int = 0
    groups: tuple[int, ...] = ()
    copied: Mapping[str, int] = field(default_factory=dict)
    candidates: int = 0

    @property
    def beside_vectors(self) -> bool:
        """Whether what it brings comes with vectors that others gave, and not before these."""
        return any(piece.vectors for task in self.tasks for piece in task.pieces)

    @property
    def waited(self) -> Mapping[str, int]:
        """What a block reads once it has met the others, by its text, in bytes: a norm's weights it
        has asked for before. Vectors that are normed are read again if threads cannot hold them."""
        normed = any(fresh for _, fresh in self.read.values())
        return {
            text: 2 * size if normed and size > READ_AT_ONCE else size
            for text, (size, fresh) in self.read.items()
            if not fresh
        }

    @property
    def at_once(self) -> int:
        """How much of that it asks for at once: of one vector, as much as threads hold; or where
        several records are merged, up to four for each eight elements of a thread."""
        elements = self.vectors * self.width
        if not elements:
            return READ_AT_ONCE
        records = max((n for n, fresh in self.read.values() if not fresh), default=0) / elements / 4
        if records > 1:
            return READ_AT_ONCE // 4 * min(int(records), 4)
        return min(READ_AT_ONCE, 4 * self.width)


@dataclass(frozen=True)
class PhaseWork:
    """Families whose tasks run at the same time, shared by ``blocks``: 0 if they are not placed.
    Blocks are clusters of ``cluster``, which share tasks in so many ``groups`` if there are any.
    Experts are ``chosen`` in front of it."""

    name: str
    families: tuple[FamilyWork, ...]
    blocks: int = 0
    cluster: int = 0
    groups: int = 0
    chosen: bool = False

    @cached_property
    def bytes(self) -> int:
        """What comes from memory: what all tasks of a family read alike once, what is brought for
        each task."""
        streamed = {k: n for f in self.families for k, (n, fresh) in f.read.items() if fresh}
        return sum(t.brought for f in self.families for t in f.tasks) + sum(streamed.values())


@dataclass(frozen=True)
class Meeting:
    """Blocks wait for each other; ``kind`` says how (:class:`meshc.ir.ops.task.Meet`). Behind one
    of all ranks, or by tags in words of these, each reads ``linked`` bytes that others have given
    it."""

    kind: str = task.COUNTER
    linked: int = 0

    @property
    def of_cluster(self) -> bool:
        """Whether only those of each cluster do."""
        return self.kind == task.CLUSTER


@dataclass(frozen=True)
class LoopWork:
    """``count`` rounds of the same phases."""

    count: int
    body: tuple[Stage, ...]


Stage = PhaseWork | LoopWork | Meeting
