"""Transfers of a tile program: which sends and receives belong together.

The n-th send and the n-th receive on a channel in a block are one transfer. A loop that only sends
on a channel, or only receives, takes the place of one: it belongs to the loop of the other side,
which takes as many steps, and what is sent in a step is received in the same step. A relay is a
send and a receive; where a block relays on a channel, all its ends on that channel are one transfer
together, a chain, and no core may have two of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from meshc.analysis.proofs.isl import Scope, find_point
from meshc.ir.affine import Cond, Expr
from meshc.ir.core import Block, Op
from meshc.ir.module import Channel, Module
from meshc.ir.ops import tile
from meshc.support.diagnostics import fail
from meshc.verify.walk import Context, blocks, guard_of, inside, mesh_scope, plain, point_text


@dataclass(frozen=True)
class Transfer:
    """One transfer of a block: the statements that send, and those that receive.

    They may stand in loops of the block, ``send_loops`` and ``recv_loops``, outermost first.
    """

    channel: Channel
    sends: tuple[tile.Send | tile.Relay, ...]
    recvs: tuple[tile.Recv | tile.Relay, ...]
    block: Block
    context: Context
    send_loops: tuple[tile.For, ...] = ()
    recv_loops: tuple[tile.For, ...] = ()

    @property
    def chain(self) -> bool:
        """Whether some core passes the message on."""
        return any(isinstance(op, tile.Relay) for op in (*self.sends, *self.recvs))

    @property
    def sent_at(self) -> Op:
        """The statement of the block that sends, or holds what sends."""
        return (*self.send_loops, *self.sends)[0]

    def senders(self, module: Module) -> Cond:
        """Where something is sent, in terms of the position of a core."""
        return _anywhere(module, self.sends, self.context, self.send_loops)

    def receivers(self, module: Module) -> Cond:
        """Where something is received, in terms of the position of a core and of the loops that
        send."""
        found = _anywhere(module, self.recvs, self.context, self.recv_loops)
        pairs = zip(self.recv_loops, self.send_loops, strict=True)
        return found.substitute({mine.var: Expr.var(theirs.var) for mine, theirs in pairs})


def _anywhere(
    module: Module, ends: Sequence[tile.Transfer], context: Context, loops: Sequence[tile.For]
) -> Cond:
    mesh = module.the_mesh()
    for loop in loops:
        context = inside(loop, context)
    return Cond.any(plain(mesh, guard_of(op, context)) for op in ends)


@dataclass(frozen=True)
class _End:
    """A statement that sends or receives, and the loops between it and a block."""

    op: tile.Transfer
    loops: tuple[tile.For, ...] = ()

    def meets(self, other: _End) -> bool:
        """Whether both take equally many steps."""
        mine, theirs = ([(o.count, o.each) for o in end.loops] for end in (self, other))
        return mine == theirs


@dataclass
class _Ends:
    """What a block sends and receives on one channel, in order."""

    sends: list[_End] = field(default_factory=list)
    recvs: list[_End] = field(default_factory=list)
    crossed: Op | None = None
    """A statement with transfers of its own on the channel while others are on their way."""

    @property
    def relays(self) -> bool:
        """Whether some statement of the block passes messages on."""
        return any(isinstance(end.op, tile.Relay) for end in (*self.sends, *self.recvs))

    @property
    def one_sided(self) -> bool:
        """Whether the other side must stand elsewhere."""
        return not self.relays and bool(self.sends) != bool(self.recvs)


_Known = dict[int, dict[str, _Ends]]


def transfers(module: Module) -> Iterator[Transfer]:
    """Every transfer of the module; fails with ``channels-unmatched`` where sends and receives do
    not pair up."""
    channels = {c.name: c for c in module.channels}
    scope, known = mesh_scope(module), _Known()
    for block, context in blocks(module):
        within = context.loop is not None and context.loop.regions[0] is block
        for name, ends in _ends(block, known).items():
            if within and ends.one_sided:
                continue  # the block around the loop has the other side
            sends, recvs = ends.sends, ends.recvs
            looped = any(end.loops for end in (*sends, *recvs))
            if ends.relays and name in channels and not looped:
                given, taken = (tuple(end.op for end in side) for side in (sends, recvs))
                chain = Transfer(channels[name], given, taken, block, context)  # type: ignore[arg-type]
                _one_end_each(module, chain, scope)
                yield chain
                continue
            if len(sends) != len(recvs) or name not in channels or ends.relays:
                fail(
                    "channels-unmatched",
                    f"{len(sends)} sends and {len(recvs)} receives on @{name} in one block",
                    [*sends, *recvs][0].op.span,
                )
            if ends.crossed is not None:
                fail(
                    "channels-unmatched",
                    f"transfers on @{name} begin and end here while another is on its way",
                    ends.crossed.span,
                    help="messages of a channel arrive in the order in which they are sent: "
                    "receive the first before, or give these a channel of their own",
                )
            for send, recv in zip(sends, recvs, strict=True):
                yield _transfer(channels[name], send, recv, block, context)


def _ends(block: Block, known: _Known) -> dict[str, _Ends]:
    """Ends by channel that pair up in ``block``: its own, and those of its loops that have no other
    side in there. ``known`` are those of blocks that have been looked at."""
    if id(block) in known:
        return known[id(block)]
    found: dict[str, _Ends] = {}
    for op in block.ops:
        if isinstance(op, (tile.Send, tile.Relay)):
            found.setdefault(tile.channel_out(op) or "", _Ends()).sends.append(_End(op))
        if isinstance(op, (tile.Recv, tile.Relay)):
            found.setdefault(op.channel, _Ends()).recvs.append(_End(op))
        for region in op.regions:
            for name, ends in _ends(region, known).items():
                mine = found.setdefault(name, _Ends())
                if isinstance(op, tile.For) and ends.one_sided:
                    mine.sends += [_End(end.op, (op, *end.loops)) for end in ends.sends]
                    mine.recvs += [_End(end.op, (op, *end.loops)) for end in ends.recvs]
                elif len(mine.sends) != len(mine.recvs):
                    mine.crossed = op
    known[id(block)] = found
    return found


def _transfer(channel: Channel, send: _End, recv: _End, block: Block, context: Context) -> Transfer:
    """The transfer of two ends; fails where their loops differ."""
    if not send.meets(recv):
        fail(
            "channels-unmatched",
            f"what one loop sends on @{channel.name} is received in other steps",
            recv.op.span,
            help="a loop that only receives takes as many steps as the loop that sends",
        )
    assert isinstance(send.op, (tile.Send, tile.Relay)) and isinstance(
        recv.op, (tile.Recv, tile.Relay)
    )
    return Transfer(channel, (send.op,), (recv.op,), block, context, send.loops, recv.loops)


def _one_end_each(module: Module, chain: Transfer, scope: Scope) -> None:
    """In a chain no core sends twice or receives twice: else messages would not pair up."""
    mesh = module.the_mesh()
    for ends in (chain.sends, chain.recvs):
        for one, other in combinations(ends, 2):
            both = guard_of(one, chain.context) & guard_of(other, chain.context)
            witness = find_point(plain(mesh, both), (), scope)
            if witness is not None:
                fail(
                    "channels-unmatched",
                    f"two statements of a chain on @{chain.channel.name} run at "
                    f"{point_text(mesh, witness)}",
                    other.span,
                    help="a core starts, passes on or ends a chain; give other messages of the "
                    "channel a block of their own",
                )
