"""channels_matched: each channel carries the send domain exactly onto the recv domain."""

from __future__ import annotations

from meshc.analysis.isl import image_mismatch, two_sources
from meshc.ir.affine import Cond
from meshc.ir.module import Module
from meshc.support.diagnostics import fail
from meshc.verify.transfers import Transfer, transfers
from meshc.verify.walk import guard_of, mesh_scope, plain, point_text


def check(module: Module) -> None:
    """Prove with isl, for every iteration and run-time value; a failure names a witness core."""
    scope = mesh_scope(module)
    for channel in module.channels:
        clash = two_sources(channel.route, scope)
        if clash is not None:
            fail(
                "channels-unmatched",
                f"on @{channel.name} two cores send to one: "
                f"{point_text(clash[0].source)} and {point_text(clash[1].source)}",
            )
    proved: set[tuple[str, Cond, Cond]] = set()
    for transfer in transfers(module):
        mesh = module.the_mesh()
        sends = plain(mesh, guard_of(transfer.send, transfer.context))
        receives = plain(mesh, guard_of(transfer.recv, transfer.context))
        same_size(transfer)
        key = (transfer.channel.name, sends, receives)
        if key in proved:
            continue
        proved.add(key)
        witness = image_mismatch(transfer.channel.route, sends, receives, scope)
        if witness is not None:
            fail(
                "channels-unmatched",
                f"a message on @{transfer.channel.name} has no counterpart at "
                f"{point_text(witness)}",
                transfer.recv.span,
                notes=("either nothing is sent to it, or it does not receive",),
            )


def same_size(transfer: Transfer) -> None:
    """Both ends move equally many elements, for every run-time value."""
    (source,), (target,) = transfer.send.views(), transfer.recv.views()
    one = sorted(map(str, source.shape()))
    other = sorted(map(str, target.shape()))
    if [e for e in one if e != "1"] != [e for e in other if e != "1"]:
        fail(
            "channels-unmatched",
            f"{source} is sent but {target} is received: different numbers of elements",
            transfer.recv.span,
        )
