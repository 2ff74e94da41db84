"""Directed graphs: the shortest explanation of a cycle. The only user of networkx, which is loaded
where there is something to explain."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from importlib import import_module
from typing import TypeVar

Node = TypeVar("Node", bound=Hashable)


def shortest_cycle(edges: Iterable[tuple[Node, Node]]) -> tuple[Node, ...]:
    """The nodes of a cycle of the fewest edges, in order; empty where there is none. Of several the
    one of the node that was named first, from that node on."""
    networkx = import_module("networkx")
    graph = networkx.DiGraph(list(edges))
    place = {node: number for number, node in enumerate(graph)}
    found: list[Node] = []
    for part in networkx.strongly_connected_components(graph):
        inside = graph.subgraph(part)
        for node in part:
            ways = networkx.single_source_shortest_path(inside, node)
            back = [ways[last] for last in inside.predecessors(node)]
            for way in back:
                if not found or (len(way), place[node]) < (len(found), place[found[0]]):
                    found = way
    return tuple(found)
