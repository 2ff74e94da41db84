"""deadlock_free: sends come no later than the waits that need them, or go along a sweep.

A relay waits for its message before it sends, so a chain of relays always needs a sweep.
"""

from __future__ import annotations

from meshc.analysis.proofs.isl import find_point
from meshc.ir.affine import Cond
from meshc.ir.core import Op
from meshc.ir.module import Module
from meshc.ir.ops import tile
from meshc.support.diagnostics import fail
from meshc.support.spans import Span
from meshc.verify.transfers import Transfer, transfers
from meshc.verify.walk import mesh_scope, plain_expr, point_text


def check(module: Module) -> None:
    """In the common program order each send is issued before any wait for its message; where a
    chain breaks this, its sweep's rank must grow by one along the channel (proved with isl)."""
    for transfer in transfers(module):
        if transfer.chain or _waits_first(transfer):
            _check_sweep(module, transfer)


def _waits_first(transfer: Transfer) -> bool:
    """Whether some wait needs the message before the common order sends it."""
    ops = transfer.block.ops
    sent = ops.index(transfer.sent_at)
    token = transfer.recvs[0].result
    waits = [
        place
        for place, op in enumerate(ops)
        if any(isinstance(o, tile.Wait) and token in o.operands for o in _with_nested(op))
    ]
    return bool(waits) and min(waits) < sent


def _with_nested(op: Op) -> list[Op]:
    return [op, *(o for region in op.regions for o in region.walk())]


def _check_sweep(module: Module, transfer: Transfer) -> None:
    if not transfer.context.sweeps:
        fail(
            "deadlock",
            f"every core waits for @{transfer.channel.name} before any sends on it",
            _span(transfer),
            help="send before the wait, or put the chain into a tile.sweep with its rank",
        )
    mesh, scope = module.the_mesh(), mesh_scope(module)
    rank = plain_expr(mesh, transfer.context.sweeps[-1].rank)
    sends = transfer.senders(module)
    for piece in transfer.channel.route.pieces:
        there = rank.substitute(
            dict(zip(transfer.channel.route.inputs, piece.outputs, strict=True))
        )
        wrong = sends & piece.domain & Cond.ne(there, rank + 1)
        witness = find_point(wrong, (), scope)
        if witness is not None:
            fail(
                "deadlock",
                f"the sweep's rank does not grow by one along @{transfer.channel.name} at "
                f"{point_text(mesh, witness)}",
                _span(transfer),
            )


def _span(transfer: Transfer) -> Span | None:
    """Where to look: at the first receive, which is what waits."""
    return (*transfer.recvs, *transfer.sends)[0].span
