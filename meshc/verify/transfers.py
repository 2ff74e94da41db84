"""Transfers of a tile program: which sends and receives belong together.

The n-th send and the n-th receive on a channel in a block are one transfer. A relay is one of
either; where a block relays on a channel, all its ends on that channel are one transfer together,
a chain, and no core may have two of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from meshc.analysis.isl import Scope, find_point
from meshc.ir.affine import Cond
from meshc.ir.core import Block
from meshc.ir.module import Channel, Module
from meshc.ir.ops import tile
from meshc.support.diagnostics import fail
from meshc.verify.walk import Context, blocks, guard_of, mesh_scope, plain, point_text


@dataclass(frozen=True)
class Transfer:
    """One transfer of a block: the statements that send, and those that receive."""

    channel: Channel
    sends: tuple[tile.Send | tile.Relay, ...]
    recvs: tuple[tile.Recv | tile.Relay, ...]
    block: Block
    context: Context

    @property
    def chain(self) -> bool:
        """Whether some core passes the message on."""
        return any(isinstance(op, tile.Relay) for op in (*self.sends, *self.recvs))

    def senders(self, module: Module) -> Cond:
        """Where something is sent, in terms of the position of a core."""
        return _anywhere(module, self.sends, self.context)

    def receivers(self, module: Module) -> Cond:
        """Where something is received, in terms of the position of a core."""
        return _anywhere(module, self.recvs, self.context)


def _anywhere(module: Module, ends: Sequence[tile.Transfer], context: Context) -> Cond:
    mesh = module.the_mesh()
    return Cond.any(plain(mesh, guard_of(op, context)) for op in ends)


def transfers(module: Module) -> Iterator[Transfer]:
    """Every transfer of the module; fails where sends and receives do not pair up."""
    channels = {c.name: c for c in module.channels}
    scope = mesh_scope(module)
    for block, context in blocks(module):
        sends: dict[str, list[tile.Send | tile.Relay]] = {}
        recvs: dict[str, list[tile.Recv | tile.Relay]] = {}
        for op in block.ops:
            if isinstance(op, (tile.Send, tile.Relay)):
                sends.setdefault(tile.channel_out(op) or "", []).append(op)
            if isinstance(op, (tile.Recv, tile.Relay)):
                recvs.setdefault(op.channel, []).append(op)
        for name in {**sends, **recvs}:
            given, taken = sends.get(name, []), recvs.get(name, [])
            if any(isinstance(op, tile.Relay) for op in (*given, *taken)) and name in channels:
                chain = Transfer(channels[name], tuple(given), tuple(taken), block, context)
                _one_end_each(module, chain, scope)
                yield chain
                continue
            if len(given) != len(taken) or name not in channels:
                ends: list[tile.Transfer] = [*given, *taken]
                fail(
                    "channels-unmatched",
                    f"{len(given)} sends and {len(taken)} receives on @{name} in one block",
                    ends[0].span,
                )
            for send, recv in zip(given, taken, strict=True):
                yield Transfer(channels[name], (send,), (recv,), block, context)


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
