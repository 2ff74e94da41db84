"""Directed graphs of small names: cycles, order, longest paths. The only user of networkx.

A graph is given as its edges; results are deterministic whatever the hash seed, ties going to the
node that was named first.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any, TypeVar

import networkx

Node = TypeVar("Node", bound=Hashable)


def find_cycle(edges: Iterable[tuple[Node, Node]]) -> tuple[Node, ...] | None:
    """Nodes of one cycle in order, starting at the one named first; None when there is none."""
    graph = _graph(edges)
    place = {node: i for i, node in enumerate(graph)}
    try:
        found = [node for node, _ in networkx.find_cycle(graph, list(graph))]
    except networkx.NetworkXNoCycle:
        return None
    start = min(range(len(found)), key=lambda i: place[found[i]])
    return (*found[start:], *found[:start])


def topological_order(
    edges: Iterable[tuple[Node, Node]], nodes: Iterable[Node] = ()
) -> tuple[Node, ...]:
    """All nodes, each after its predecessors, otherwise in the order they were named.

    ``nodes`` are named before those of the edges. Raises ValueError for a cyclic graph.
    """
    graph = _graph(edges, nodes)
    place = {node: i for i, node in enumerate(graph)}
    try:
        return tuple(networkx.lexicographical_topological_sort(graph, key=place.__getitem__))
    except networkx.NetworkXUnfeasible as error:
        raise ValueError("a cyclic graph has no topological order") from error


def longest_path(
    edges: Iterable[tuple[Node, Node]], weights: Mapping[Node, float]
) -> tuple[float, tuple[Node, ...]]:
    """Greatest sum of node weights along a path of an acyclic graph, and the path.

    Nodes without edges count as paths of their own; nodes without weight weigh 0. Raises ValueError
    for a cyclic graph.
    """
    graph = _graph(edges, weights)
    best: dict[Node, tuple[float, Node | None]] = {}
    for node in topological_order(graph.edges, graph):
        before: tuple[float, Node | None] = (0.0, None)
        for previous in graph.predecessors(node):
            if before[1] is None or best[previous][0] > before[0]:
                before = (best[previous][0], previous)
        best[node] = (before[0] + weights.get(node, 0.0), before[1])
    if not best:
        return 0.0, ()
    last = max(best, key=lambda n: best[n][0])
    return best[last][0], _path(best, last)


def reachable(edges: Iterable[tuple[Node, Node]], start: Node) -> frozenset[Node]:
    """``start`` and every node that can be reached from it."""
    graph = _graph(edges, (start,))
    return frozenset({start} | networkx.descendants(graph, start))


def _graph(edges: Iterable[tuple[Node, Node]], nodes: Iterable[Node] = ()) -> Any:
    graph = networkx.DiGraph()
    graph.add_nodes_from(nodes)
    graph.add_edges_from(edges)
    return graph


def _path(best: Mapping[Node, tuple[float, Node | None]], last: Node) -> tuple[Node, ...]:
    path = [last]
    while (previous := best[path[-1]][1]) is not None:
        path.append(previous)
    return tuple(reversed(path))
