"""How many wavelets fit on the way from a sender to its receivers, with strict queues."""

from __future__ import annotations

from collections import deque

from meshc.sim.machine.fabric import Fabric, Key
from meshc.sim.route_configs import OPPOSITE, RAMP


def reach(fabric: Fabric, key: Key, depth: int) -> tuple[int, int]:
    """What one wavelet that a PE sends on a color counts for, and how much fits under way.

    Each receiver has its own copy; a router that makes copies counts them itself. Every link holds
    one word, the output queue ``depth`` and the queue at the end of the route what is documented.
    """
    costs = fabric.machine.costs
    if key in fabric.sinks:
        return 1, depth + costs.host_depth
    tree = fabric.tree(key)
    if not tree:
        ends = _ends(fabric, key)
        return 1, max(1, len(ends)) * (depth + max(ends, default=costs.input_depth))
    farthest = max(hops for _, hops, _ in tree)
    return len(tree), len(tree) * (depth + costs.input_depth + farthest)


def _ends(fabric: Fabric, key: Key) -> list[int]:
    """How many words fit on the way to each end of a route, by the routers' present positions.

    Where nothing can change the route, it is followed once.
    """
    if key in fabric.ends:
        return fabric.ends[key]
    found, colors = _followed(fabric, key)
    if colors <= {key[2]} and key[2] not in fabric.dynamic:
        fabric.ends[key] = found
    return found


def _followed(fabric: Fabric, key: Key) -> tuple[list[int], set[int]]:
    """The words that fit on the way to each end of a route, and the colors that it has."""
    costs = fabric.machine.costs
    found: list[int] = []
    first = [(key[0], key[1], color) for color in fabric.swapped(key, RAMP)]
    work, seen = deque((one, 0) for one in first), set(first)
    while work:
        at, links = work.popleft()
        router = fabric.routers.get(at)
        for out in router.tx() if router else ():
            if out == RAMP:
                found.append(links + costs.input_depth)
                continue
            following, far = _over_a_link(fabric, at, out)
            if not following and out == fabric.routers[at].exit:
                found.append(links + far + costs.host_depth)
            work.extend((there, links + far) for there in following if there not in seen)
            seen.update(following)
    return found, {color for _, _, color in seen}


def _over_a_link(fabric: Fabric, at: Key, out: int) -> tuple[list[Key], int]:
    """Where wavelets arrive that leave a router in a direction, and links that they cross."""
    if out == fabric.routers[at].exit:
        if at not in fabric.virtual:
            return [], 1
        target, hops = fabric.virtual[at]
        return [target], 1 + hops
    x, y, _ = fabric.neighbour(at, out)
    there = (x, y, at[2])
    return [(x, y, color) for color in fabric.swapped(there, OPPOSITE[out])], 1
