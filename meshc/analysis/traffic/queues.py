"""Queues of a core: channels that meet there need different ones."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TypeVar

from meshc.analysis.traffic.channels import Ends, shares_core

Node = TypeVar("Node", bound=Hashable)


def assign_queues(ends: Sequence[Ends]) -> list[int]:
    """A queue for each channel, as few as possible: channels that meet at a core need two."""
    count = len(ends)
    meets = [
        {
            other
            for other in range(count)
            if other != index and shares_core(ends[index], ends[other])
        }
        for index in range(count)
    ]
    return fewest_numbers(meets)


def fewest_numbers(meets: Sequence[AbstractSet[int]]) -> list[int]:
    """A number for each node of a conflict graph, different for those that meet, the largest as
    small as possible."""
    for numbers in range(_clique(meets), len(meets) + 1):
        chosen = _colored(meets, numbers)
        if chosen is not None:
            return chosen
    return []


def _clique(meets: Sequence[AbstractSet[int]]) -> int:
    """The size of some set of nodes that all meet, found greedily: at least so many numbers."""
    inside: set[int] = set()
    for node in sorted(range(len(meets)), key=lambda i: -len(meets[i])):
        if inside <= meets[node]:
            inside.add(node)
    return len(inside)


def _colored(meets: Sequence[AbstractSet[int]], numbers: int) -> list[int] | None:
    """A proper coloring of the conflict graph with ``numbers`` colors; a number that no node has
    yet is as good as any other such number, so one of them is tried."""
    order = sorted(range(len(meets)), key=lambda i: -len(meets[i]))

    def tried(_: int, chosen: Mapping[int, int]) -> Iterable[int]:
        return range(min(numbers, max(chosen.values(), default=-1) + 2))

    found = different_numbers(order, meets.__getitem__, tried)
    return None if found is None else [found[i] for i in range(len(meets))]


def different_numbers(
    order: Sequence[Node],
    rivals: Callable[[Node], Iterable[Node]],
    choices: Callable[[Node, Mapping[Node, int]], Iterable[int]],
) -> dict[Node, int] | None:
    """A number for each node that none of its ``rivals`` has, or None where there is none, by
    backtracking in ``order``. ``choices`` are the numbers to try for a node after those that are
    chosen. Programs have at most a few dozen nodes, most of which rival each other."""
    chosen: dict[Node, int] = {}

    def extend(depth: int) -> bool:
        if depth == len(order):
            return True
        node = order[depth]
        busy = {chosen[other] for other in rivals(node) if other in chosen}
        for number in choices(node, chosen):
            if number not in busy:
                chosen[node] = number
                if extend(depth + 1):
                    return True
                del chosen[node]
        return False

    return chosen if extend(0) else None
