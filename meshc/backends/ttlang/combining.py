"""Operations that combine what the nodes of an axis have: each sends its block to all others of its
line, which add up what came in the order of parts."""

from __future__ import annotations

from meshc.backends.ttlang.node_elements import Grid
from meshc.backends.ttlang.operation import (
    Body,
    Buffer,
    Compute,
    Net,
    Nodes,
    Operation,
    Push,
    Read,
    Receive,
    Reserve,
    Send,
    When,
    Window,
    block_of,
    blocks_of,
    repeated,
    stored,
    through,
)
from meshc.backends.ttlang.panels import Panel

SOURCE, SUMS, RESULT = "a", "sums", "out"
HOW = {"sum": "{old} + {new}", "max": "ttl.math.max({old}, {new})"}


def spread(window: Window, senders: Nodes, net: Net | None) -> Body:
    """A mover fills a block of the buffer of ``window``: ``senders`` from memory, and then by
    ``net`` the others of their lines."""
    block = block_of(window.tensor)
    filled: Body = (Read(block, window),)
    if net is not None:
        sent: Body = (*filled, Send(block, net.name))
        senders = Nodes(f"{net.name}.is_src()", senders.members)
        filled = (When(senders, sent, (Receive(block, net.name),)),)
    return (Reserve(block, blocks_of(window.tensor)), *filled, Push(block))


def folded(takes: tuple[str, ...], term: str, first: bool, last: bool, how: str) -> Compute:
    """A step of a sum: ``term`` of blocks of the tensors ``takes``, alone or with what is summed up
    so far."""
    old = "old_block"
    held = tuple(map(through, takes)) + (() if first else ((old, blocks_of(SUMS)),))
    goal = through(RESULT) if last else ("new_block", blocks_of(SUMS))
    value = term if first else HOW[how].format(old=old, new=term)
    return Compute(held, (goal,), (value,))


def combined(grid: Grid, panel: Panel, axis: str, how: str) -> Operation:
    """The sum or maximum over ``axis`` of blocks that lie as ``panel``, on all of its nodes."""
    parts = range(grid.mesh.size(axis))
    row = (("line", 1),) if panel.height > 1 else ()
    size = (1, panel.wide)
    source = panel.window(SOURCE, row, (), size)
    nets = {}
    bring: Body = ()
    for part in parts:
        senders = grid.nodes_with(axis, part)
        nets[part] = grid.spreading(f"from_part{part}", axis, senders)
        bring += spread(source, senders, nets[part])
    folds = tuple(
        folded((SOURCE,), block_of(SOURCE), part == 0, part == parts[-1], how) for part in parts
    )
    return Operation(
        grid.mesh.columns,
        grid.mesh.rows,
        (SOURCE, RESULT),
        tuple(net for net in nets.values() if net is not None),
        tuple(
            Buffer(blocks_of(name), RESULT, *size, max(2, count))
            for name, count in ((SOURCE, len(parts)), (RESULT, 0), (SUMS, 0))
        ),
        (
            repeated("line", panel.height, bring),
            repeated("line", panel.height, stored(panel.window(RESULT, row, (), size))),
        ),
        repeated("line", panel.height, folds),
    )
