"""Launches as data: a kernel and its arguments by name, in the layers of a stage."""

from __future__ import annotations

from dataclasses import dataclass

RANK, RANKS = "@rank", "@ranks"
"""Arguments of a launch: which of the ranks a GPU is, and how many there are."""
OF_ALL, OF_EACH = "@all", "@each"
"""Behind the name of symmetric memory: the multicast address that stands for it on all GPUs, and
where it lies on each of them."""


@dataclass(frozen=True)
class Launch:
    """A kernel with its arguments: names of buffers and weights, or integers.

    A name with ``[]`` behind it stands for the part of the layer that is computed, counted within
    its stage, with ``[3]`` for row 3 of its first dim. What begins with ``@`` or has it behind a
    name is the place of a rank among others (:data:`RANK`, :data:`OF_ALL`).
    """

    kernel: str
    arguments: tuple[str | int, ...]


@dataclass(frozen=True)
class Stage:
    """``layers`` layers of one kind, which have weights and caches of their own: the launches of
    each."""

    layers: int
    launches: tuple[Launch, ...]


def part_of(argument: str, layer: int) -> tuple[str, int | None]:
    """What an argument names, and which part of its first dim, None for the whole."""
    name, bracket, part = argument.removesuffix("]").partition("[")
    if not bracket:
        return name, None
    return name, int(part) if part else layer
