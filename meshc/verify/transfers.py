"""Pairs of send and recv: the n-th of either on a channel in a block belong together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from meshc.ir.core import Block
from meshc.ir.module import Channel, Module
from meshc.ir.ops import tile
from meshc.support.diagnostics import fail
from meshc.verify.walk import Context, blocks


@dataclass(frozen=True)
class Transfer:
    """One transfer of a block."""

    channel: Channel
    send: tile.Send
    recv: tile.Recv
    block: Block
    context: Context


def transfers(module: Module) -> Iterator[Transfer]:
    """Every transfer of the module; fails where sends and receives do not pair up."""
    channels = {c.name: c for c in module.channels}
    for block, context in blocks(module):
        sends: dict[str, list[tile.Send]] = {}
        recvs: dict[str, list[tile.Recv]] = {}
        for op in block.ops:
            if isinstance(op, tile.Send):
                sends.setdefault(op.channel, []).append(op)
            elif isinstance(op, tile.Recv):
                recvs.setdefault(op.channel, []).append(op)
        for name in {**sends, **recvs}:
            given, taken = sends.get(name, []), recvs.get(name, [])
            if len(given) != len(taken) or name not in channels:
                ends: list[tile.Send | tile.Recv] = [*given, *taken]
                fail(
                    "channels-unmatched",
                    f"{len(given)} sends and {len(taken)} receives on @{name} in one block",
                    ends[0].span,
                )
            for send, recv in zip(given, taken, strict=True):
                yield Transfer(channels[name], send, recv, block, context)
