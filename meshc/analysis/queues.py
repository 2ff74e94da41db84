"""Queues of a core: channels that meet there need different ones."""

from __future__ import annotations

from collections.abc import Sequence

from meshc.analysis.channels import Ends, shares_core


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


def fewest_numbers(meets: Sequence[set[int]]) -> list[int]:
    """A number for each node of a conflict graph, different for those that meet, the largest as
    small as possible."""
    for numbers in range(_clique(meets), len(meets) + 1):
        chosen = _colored(meets, numbers)
        if chosen is not None:
            return chosen
    return []


def _clique(meets: Sequence[set[int]]) -> int:
    """The size of some set of nodes that all meet, found greedily: at least so many numbers."""
    inside: set[int] = set()
    for node in sorted(range(len(meets)), key=lambda i: -len(meets[i])):
        if inside <= meets[node]:
            inside.add(node)
    return len(inside)


def _colored(meets: Sequence[set[int]], numbers: int) -> list[int] | None:
    """A proper coloring of the conflict graph with ``numbers`` colors, by backtracking from the
    node with most conflicts; the graphs have at most a few dozen nodes and large cliques."""
    order = sorted(range(len(meets)), key=lambda i: -len(meets[i]))
    chosen: dict[int, int] = {}

    def extend(depth: int) -> bool:
        if depth == len(order):
            return True
        index = order[depth]
        busy = {chosen[other] for other in meets[index] if other in chosen}
        fresh = max(chosen.values(), default=-1) + 1
        for number in range(min(numbers, fresh + 1)):
            if number not in busy:
                chosen[index] = number
                if extend(depth + 1):
                    return True
                del chosen[index]
        return False

    return [chosen[i] for i in range(len(meets))] if extend(0) else None
