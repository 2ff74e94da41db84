"""The graph of a model as a drawing: ops in rows, what they give as lines between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from meshc.ir.core import Block, Op
from meshc.ir.module import Module
from meshc.ir.printer import op_lines
from meshc.ir.values import Value

_ROUNDS = 6
"""Times that the ops of neighbouring rows are brought in order by those that they are joined to."""
_PARAMS = ("in", "state")
"""Parameters that are drawn as nodes; weights are listed with the ops that read them."""


@dataclass
class _Node:
    """An op or a parameter: the nodes that it reads, its row, and its place there."""

    name: str
    label: str
    kind: str
    line: int
    loop: int
    weights: list[str] = field(default_factory=list)
    reads: list[int] = field(default_factory=list)
    row: int = 0
    place: float = 0.0


def drawn_graph(module: Module) -> dict[str, Any]:
    """Nodes with their rows, places and loops, edges by number of node, and what loops are called.
    A value that a loop carries joins what gives it before the loop to what reads it inside."""
    nodes: list[_Node] = []
    givers: dict[Value, int] = {}
    weights = {p.value: p.value.name for p in module.function.params if p.role == "weight"}
    lines = {op: line for line, op in op_lines(module)}
    loops: list[str] = []

    def add(node: _Node) -> int:
        nodes.append(node)
        return len(nodes) - 1

    for param in module.function.params:
        if param.role in _PARAMS:
            label = f"{param.role} {param.value.type}"
            givers[param.value] = add(_Node(param.value.name, label, param.role, 0, -1))

    def walk(block: Block, loop: int) -> None:
        for op in block.ops:
            if op.regions:
                inside = _inner(op, len(loops))
                loops.append(inside)
                body = op.regions[0]
                for argument, given in zip(body.args, op.tensors(), strict=False):
                    if given in weights:
                        weights[argument] = weights[given]
                    elif given in givers:
                        givers[argument] = givers[given]
                walk(body, len(loops) - 1)
                last = body.ops[-1].tensors() if body.ops else []
                for result, given in zip(op.results, last, strict=False):
                    if given in givers:
                        givers[result] = givers[given]
                continue
            name = op.results[0].name if op.results else op.NAME.partition(".")[2]
            kind = op.NAME.partition(".")[2]
            node = _Node(name, str(op.results[0].type) if op.results else "", kind, lines[op], loop)
            node.reads = [*dict.fromkeys(givers[v] for v in op.tensors() if v in givers)]
            node.weights = [weights[v] for v in op.tensors() if v in weights]
            if kind in ("yield", "return") and not op.results:
                if kind == "return":
                    add(node)
                continue
            number = add(node)
            givers.update(dict.fromkeys(op.results, number))

    walk(module.function.body, -1)
    _place(nodes)
    edges = [[reader, giver] for reader, node in enumerate(nodes) for giver in node.reads]
    return {
        "nodes": [
            {
                "name": n.name,
                "label": n.label,
                "kind": n.kind,
                "line": n.line,
                "weights": n.weights,
                "row": n.row,
                "place": n.place,
                "loop": n.loop,
            }
            for n in nodes
        ],
        "edges": [[giver, reader] for reader, giver in edges],
        "loops": loops,
    }


def _inner(op: Op, number: int) -> str:
    dim = getattr(op, "dim", "")
    return f"repeat {dim}" if dim else f"loop {number}"


def _place(nodes: Sequence[_Node]) -> None:
    """Rows by the longest way from a parameter; in each row the order that crosses few edges."""
    for node in nodes:
        node.row = max((nodes[n].row + 1 for n in node.reads), default=0)
    readers: dict[int, list[int]] = {}
    for number, node in enumerate(nodes):
        for giver in node.reads:
            readers.setdefault(giver, []).append(number)
    for number, node in enumerate(nodes):
        if node.kind in _PARAMS and number in readers:
            node.row = max(0, min(nodes[n].row for n in readers[number]) - 1)
    rows: dict[int, list[int]] = {}
    for number, node in enumerate(nodes):
        rows.setdefault(node.row, []).append(number)
    for turn in range(_ROUNDS):
        for row in sorted(rows, reverse=turn % 2 == 1):
            near = readers if turn % 2 else {n: nodes[n].reads for n in rows[row]}
            rows[row].sort(key=lambda n: _mean([nodes[m].place for m in near.get(n, ())], n, nodes))
            for place, number in enumerate(rows[row]):
                nodes[number].place = place - (len(rows[row]) - 1) / 2


def _mean(places: Sequence[float], number: int, nodes: Sequence[_Node]) -> float:
    return sum(places) / len(places) if places else nodes[number].place
