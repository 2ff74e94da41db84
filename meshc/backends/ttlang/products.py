"""Operations of distributed products.

SUMMA (van de Geijn and Watts 1997): in each step those who have a part of what is contracted send
it to all others of their row (of the left side) or column (of the right one), and every node adds
up a product. Where the right side is turned (dist-GEMM-T, WaferLLM section 5.4) the parts of its
rows go along columns alone, and the products of a row's nodes are sent to the one whose part of the
result they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd

from meshc.backends.ttlang.combining import RESULT, SUMS, folded, spread
from meshc.backends.ttlang.node_elements import Grid
from meshc.backends.ttlang.operation import (
    TILE_BYTES,
    Body,
    Buffer,
    Compute,
    Net,
    Operation,
    Pipe,
    Pop,
    Push,
    Receive,
    Reserve,
    Send,
    Wait,
    When,
    block_of,
    blocks_of,
    fetched,
    repeated,
    stored,
    through,
)
from meshc.backends.ttlang.panels import Panel
from meshc.support.diagnostics import fail

LEFT, RIGHT, PARTIAL, CAME = "a", "b", "partial", "came"
Columns = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Heads:
    """Products of one operation: ``keys`` right sides, each with ``share`` left ones."""

    keys: int = 1
    share: int = 1

    def loop(self, body: Body) -> Body:
        """``body`` for each product."""
        return repeated("key", self.keys, repeated("head", self.share, body))

    def own(self, width: int) -> Columns:
        """Where the tiles of a product begin, of which each has ``width``."""
        key = (("key", self.share * width),) if self.keys > 1 else ()
        return key + ((("head", width),) if self.share > 1 else ())

    def shared(self, width: int) -> Columns:
        """Where the tiles of the right side of a product begin, each ``width`` wide."""
        return (("key", width),) if self.keys > 1 else ()


def summa(
    grid: Grid, left: Panel, right: Panel, result: Panel, axis: str, skew: str, heads: Heads,
    room: int,
) -> Operation:  # fmt: skip
    """``left @ right``; parts of the left side lie over ``axis``, rotated by the rank on ``skew``,
    those of the right one over the axis that crosses it. Buffers take at most ``room`` bytes of a
    node, else ``ttlang-memory``."""
    count = heads.keys * heads.share
    deep, wide, high = left.wide // count, result.wide // count, result.height
    across, crossing = axis, grid.mesh.other(axis)
    whole = deep * grid.mesh.size(across)
    step, piece = _chunks(high, gcd(deep, right.height), wide, whole, room)
    steps = range(0, whole, step)
    part_of_columns = (("piece", piece),) if wide > piece else ()
    nets: dict[str, Net | None] = {}

    def mover(tensor: str, panel: Panel, along: str, turned: str, extent: int) -> Iterator[Body]:
        for number, first in enumerate(steps):
            part, offset = divmod(first, extent)
            senders = grid.nodes_with(along, part, turned)
            name = f"{tensor}_of_step{number}"
            nets[name] = grid.spreading(name, along, senders)
            if tensor == LEFT:
                window = panel.window(tensor, (), heads.own(deep), (high, step), (0, offset))
            else:
                columns = (*heads.shared(wide), *part_of_columns)
                window = panel.window(tensor, (), columns, (step, piece), (offset, 0))
            yield spread(window, senders, nets[name])

    def of_all(body: Body) -> Body:
        return heads.loop(repeated("piece", wide // piece, body))

    lefts = sum(mover(LEFT, left, across, skew, deep), ())
    rights = sum(mover(RIGHT, right, crossing, "", right.height), ())
    columns = (*heads.own(wide), *part_of_columns)
    out = stored(result.window(RESULT, (), columns, (high, piece)))
    term = f"{block_of(LEFT)} @ {block_of(RIGHT)}"
    sums = tuple(
        folded((LEFT, RIGHT), term, first == 0, first == steps[-1], "sum") for first in steps
    )
    return Operation(
        grid.mesh.columns,
        grid.mesh.rows,
        (LEFT, RIGHT, RESULT),
        tuple(net for net in nets.values() if net is not None),
        (
            Buffer(blocks_of(LEFT), LEFT, high, step, max(2, len(steps))),
            Buffer(blocks_of(RIGHT), RIGHT, step, piece, max(2, len(steps))),
            Buffer(blocks_of(RESULT), RESULT, high, piece),
            *((Buffer(blocks_of(SUMS), RESULT, high, piece),) if len(steps) > 1 else ()),
        ),
        (of_all(lefts), of_all((*rights, *out))),
        of_all(sums),
    )


def _chunks(high: int, deep: int, wide: int, whole: int, room: int) -> tuple[int, int]:
    """How many tiles of ``deep`` a step contracts, of ``whole`` that all do, and how many of
    ``wide`` are computed at once: as many as buffers have room for."""

    def taken(step: int, piece: int) -> int:
        count = max(2, whole // step)
        return TILE_BYTES * (count * step * (high + piece) + 4 * high * piece)

    for piece in range(wide, 0, -1):
        for step in range(deep, 0, -1):
            if wide % piece == deep % step == 0 and taken(step, piece) <= room:
                return step, piece
    fail(
        "ttlang-memory",
        f"a product of {high} rows of tiles that contracts {whole} takes {taken(1, 1)} bytes of a "
        f"node for one column of its result, of {room}",
        help="use a mesh with more rows, or fewer rows of tokens",
    )


def turned(
    grid: Grid, left: Panel, right: Panel, result: Panel, axis: str, skew: str, heads: Heads,
    room: int,
) -> Operation:  # fmt: skip
    """``left @ right^T``: what is contracted lies over ``axis`` in both, rows of the right side
    over the axis that crosses it, and parts of the result over ``axis``, rotated by the rank on
    ``skew``."""
    count = heads.keys * heads.share
    deep, wide, high = left.wide // count, result.wide // count, result.height
    crossing, size = grid.mesh.other(axis), grid.mesh.size(axis)
    nets: list[Net] = []
    bring: Body = ()
    store: Body = ()
    compute: Body = ()
    q = left.window(LEFT, (), heads.own(deep), (high, deep))
    k = right.window(RIGHT, (), heads.shared(deep), (wide, deep))
    out = stored(result.window(RESULT, (), heads.own(wide), (high, wide)))
    product = f"{block_of(LEFT)} @ ttl.block.transpose({block_of(RIGHT)})"
    for part in range(size):
        senders = grid.nodes_with(crossing, part)
        net = grid.spreading(f"b_of_step{part}", crossing, senders)
        nets += [] if net is None else [net]
        bring += (*fetched(q), *spread(k, senders, net))
        owners = grid.nodes_with(axis, part, skew)
        if size == 1:
            compute += (folded((LEFT, RIGHT), product, True, True, "sum"),)
            store += out
            continue
        gathering = _gathering(grid, f"sums{part}", axis, owners.members)
        nets += gathering
        compute += (When(owners, tuple(_owned(product, size)), (_given(product),)),)
        store += (When(owners, (*_received(grid, axis, gathering), *out),
                       _sent(grid, axis, gathering)),)  # fmt: skip
    names = (RESULT, SUMS, PARTIAL, CAME) if size > 1 else (RESULT,)
    made = Operation(
        grid.mesh.columns,
        grid.mesh.rows,
        (LEFT, RIGHT, RESULT),
        tuple(nets),
        (
            Buffer(blocks_of(LEFT), LEFT, high, deep),
            Buffer(blocks_of(RIGHT), RIGHT, wide, deep, max(2, size)),
            *(
                Buffer(blocks_of(name), RESULT, high, wide, max(2, size if name == CAME else 0))
                for name in names
            ),
        ),
        (heads.loop(bring), heads.loop(store)),
        heads.loop(compute),
    )
    if made.bytes > room:
        fail(
            "ttlang-memory",
            f"a product with a turned matrix takes {made.bytes} bytes of a node, of {room}",
            help="use a larger mesh, or fewer rows of tokens",
        )
    return made


def _gathering(grid: Grid, name: str, axis: str, owners: frozenset[tuple[int, int]]) -> list[Net]:
    """For each part of ``axis`` the net by which it sends to the owner in its line."""
    nets = []
    for part in range(grid.mesh.size(axis)):
        pipes = []
        for line in grid.lines(axis):
            (owner,) = (node for node in line if node in owners)
            if line[part] != owner:
                column, row = owner
                pipes.append(Pipe(line[part], (column, column), (row, row)))
        nets.append(Net(f"{name}_from{part}", tuple(pipes)))
    return nets


def _owned(product: str, size: int) -> Iterator[Compute]:
    """The owner's own product, and those of the others of its line."""
    yield folded((LEFT, RIGHT), product, True, False, "sum")
    for other in range(1, size):
        yield folded((CAME,), block_of(CAME), False, other == size - 1, "sum")


def _given(product: str) -> Compute:
    """The product of a node that is another's."""
    return Compute((through(LEFT), through(RIGHT)), (through(PARTIAL),), (product,))


def _received(grid: Grid, axis: str, nets: list[Net]) -> Iterator[When]:
    block, blocks = through(CAME)
    for part, net in enumerate(nets):
        taken: Body = (Reserve(block, blocks), Receive(block, net.name), Push(block))
        yield When(grid.nodes_without(axis, part), taken)


def _sent(grid: Grid, axis: str, nets: list[Net]) -> Body:
    block, blocks = through(PARTIAL)
    given = (
        When(grid.nodes_with(axis, part), (Send(block, net.name),)) for part, net in enumerate(nets)
    )
    return (Wait(block, blocks), *given, Pop(block))
