"""channels_matched: each channel carries the send domain exactly onto the recv domain."""

from __future__ import annotations

from meshc.analysis.proofs.isl import Scope, image_mismatch, two_sources, unmapped_point
from meshc.ir.affine import Cond
from meshc.ir.mesh import Mesh
from meshc.ir.module import Module
from meshc.ir.views import View
from meshc.support.diagnostics import fail
from meshc.verify.taking_turns import check_turns
from meshc.verify.transfers import Transfer, transfers
from meshc.verify.walk import mesh_scope, point_text


def check(module: Module) -> None:
    """Prove with isl, for every iteration and run-time value; a failure names a witness core."""
    mesh, scope = module.the_mesh(), mesh_scope(module)
    for channel in module.channels:
        if channel.turns:
            continue
        clash = two_sources(channel.route, scope)
        if clash is not None:
            fail(
                "channels-unmatched",
                f"on @{channel.name} two cores send to one: "
                f"{point_text(mesh, clash[0].source)} and {point_text(mesh, clash[1].source)}",
            )
    proved: set[tuple[str, Cond, Cond]] = set()
    for transfer in transfers(module):
        sends, receives = transfer.senders(module), transfer.receivers(module)
        same_size(transfer)
        key = (transfer.channel.name, sends, receives)
        if key in proved:
            continue
        proved.add(key)
        check_turns(module, transfer)
        leads_somewhere(mesh, transfer, sends, scope)
        witness = image_mismatch(transfer.channel.route, sends, receives, scope)
        if witness is not None:
            fail(
                "channels-unmatched",
                f"a message on @{transfer.channel.name} has no counterpart at "
                f"{point_text(mesh, witness)}",
                transfer.recvs[0].span if transfer.recvs else transfer.sends[0].span,
                notes=("either nothing is sent to it, or it does not receive",),
            )


def leads_somewhere(mesh: Mesh, transfer: Transfer, senders: Cond, scope: Scope) -> None:
    """The route gives every core that sends a core to send to."""
    witness = unmapped_point(transfer.channel.route, senders, scope)
    if witness is not None:
        fail(
            "channels-unmatched",
            f"the route of @{transfer.channel.name} leads nowhere from "
            f"{point_text(mesh, witness)}, which sends on it",
            transfer.sends[0].span,
        )


def same_size(transfer: Transfer) -> None:
    """All ends move equally many elements, for every run-time value."""
    first, *others = (view for op in (*transfer.sends, *transfer.recvs) for view in op.views())
    for other in others:
        if _extents(first) != _extents(other):
            fail(
                "channels-unmatched",
                f"{first} is sent but {other} is received: different numbers of elements",
                transfer.recvs[0].span if transfer.recvs else transfer.sends[0].span,
            )


def _extents(view: View) -> list[str]:
    return [e for e in sorted(map(str, view.shape())) if e != "1"]
