"""What an operation of tt-lang is made of, before it is text.

An operation runs on all nodes at once. Each node has three threads: two *movers*, which bring tiles
from memory or other nodes and take them away, and one that *computes*. They hand each other blocks
through dataflow buffers, FIFOs of a few blocks of one shape. A *net* has the pipes by which blocks
go from node to node; a node that sends waits until all that receive from it have posted where the
block goes (tt-lang issue 614).
"""

from __future__ import annotations

from dataclasses import dataclass

TILE = 32
"""Rows and columns of a tile."""
TILE_BYTES = TILE * TILE * 4
"""Bytes of a tile of f32."""
Node = tuple[int, int]
"""Column and row of a node."""


@dataclass(frozen=True)
class Nodes:
    """Some nodes, and the condition on ``column`` and ``row`` that they alone fulfil."""

    condition: str
    members: frozenset[Node]


@dataclass(frozen=True)
class Window:
    """Tiles of a tensor: from which row and column on, as text, and how many."""

    tensor: str
    row: str
    column: str
    rows: int
    columns: int


@dataclass(frozen=True)
class Pipe:
    """A way from the node ``source`` to those of a rectangle: its first and last column, and its
    first and last row."""

    source: Node
    columns: tuple[int, int]
    rows: tuple[int, int]

    @property
    def receivers(self) -> tuple[Node, ...]:
        """The nodes at its other end."""
        (left, right), (top, bottom) = self.columns, self.rows
        return tuple((x, y) for y in range(top, bottom + 1) for x in range(left, right + 1))


@dataclass(frozen=True)
class Net:
    """Pipes that are used together, by ``name``."""

    name: str
    pipes: tuple[Pipe, ...]


@dataclass(frozen=True)
class Buffer:
    """A dataflow buffer for ``count`` blocks of ``rows`` x ``columns`` tiles, of the element type
    of a tensor that is called ``like``."""

    name: str
    like: str
    rows: int
    columns: int
    count: int = 2

    @property
    def bytes(self) -> int:
        """What it takes of a node's memory."""
        return self.count * self.rows * self.columns * TILE_BYTES


@dataclass(frozen=True)
class Reserve:
    """Name the free ``block`` of a buffer that is filled next."""

    block: str
    buffer: str


@dataclass(frozen=True)
class Push:
    """Give what was filled to whoever waits for the buffer."""

    block: str


@dataclass(frozen=True)
class Wait:
    """Wait until a buffer has a filled block, and name it."""

    block: str
    buffer: str


@dataclass(frozen=True)
class Pop:
    """Let go of a filled block."""

    block: str


@dataclass(frozen=True)
class Read:
    """Fill a block from memory."""

    block: str
    window: Window


@dataclass(frozen=True)
class Write:
    """Store a block to memory."""

    block: str
    window: Window


@dataclass(frozen=True)
class Send:
    """Send a block by each pipe of a net that begins at this node."""

    block: str
    net: str


@dataclass(frozen=True)
class Receive:
    """Fill a block by each pipe of a net that ends at this node: say where it goes, then wait."""

    block: str
    net: str


@dataclass(frozen=True)
class When:
    """``then`` on some nodes, ``other`` on the rest."""

    nodes: Nodes
    then: tuple[Statement, ...]
    other: tuple[Statement, ...] = ()


@dataclass(frozen=True)
class Repeat:
    """``body`` for each ``variable`` below ``count``."""

    variable: str
    count: int
    body: tuple[Statement, ...]


@dataclass(frozen=True)
class Compute:
    """Wait for the blocks ``takes``, reserve ``gives`` (each a block and its buffer), store an
    expression of blocks in each of these, and hand all of them on."""

    takes: tuple[tuple[str, str], ...]
    gives: tuple[tuple[str, str], ...]
    expressions: tuple[str, ...]


Statement = Reserve | Push | Wait | Pop | Read | Write | Send | Receive | When | Repeat | Compute
Body = tuple[Statement, ...]


@dataclass(frozen=True)
class Operation:
    """An operation on ``columns`` x ``rows`` nodes. ``tensors`` are its parameters, the one that it
    writes last."""

    columns: int
    rows: int
    tensors: tuple[str, ...]
    nets: tuple[Net, ...]
    buffers: tuple[Buffer, ...]
    movers: tuple[Body, Body]
    compute: Body

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes, row by row."""
        return tuple((x, y) for y in range(self.rows) for x in range(self.columns))

    @property
    def bytes(self) -> int:
        """What its buffers take of a node's memory."""
        return sum(buffer.bytes for buffer in self.buffers)


def blocks_of(tensor: str) -> str:
    """The buffer through which blocks of ``tensor`` go."""
    return f"{tensor}_blocks"


def block_of(tensor: str) -> str:
    """What a thread calls a block of that buffer."""
    return f"{tensor}_block"


def fetched(window: Window) -> Body:
    """A mover brings tiles of a tensor from memory."""
    block = block_of(window.tensor)
    return (Reserve(block, blocks_of(window.tensor)), Read(block, window), Push(block))


def stored(window: Window) -> Body:
    """A mover takes tiles of a tensor to memory."""
    block = block_of(window.tensor)
    return (Wait(block, blocks_of(window.tensor)), Write(block, window), Pop(block))


def through(tensor: str) -> tuple[str, str]:
    """A block of ``tensor`` and its buffer, as :class:`Compute` names them."""
    return block_of(tensor), blocks_of(tensor)


def repeated(variable: str, count: int, body: Body) -> Body:
    """``body`` for each ``variable`` below ``count``; once, without a loop, where that is 1."""
    return (Repeat(variable, count, body),) if count > 1 else body


def place(*terms: tuple[str, int], first: int = 0) -> str:
    """The text of a sum of names, each times a number, and of ``first``."""
    factors = [name if times == 1 else f"{name} * {times}" for name, times in terms if times]
    return " + ".join([*factors, *([str(first)] if first or not factors else [])])
