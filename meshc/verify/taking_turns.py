"""Turns: a loop sends the messages of one whole round, each when it is its sender's turn."""

from __future__ import annotations

from typing import NoReturn

from meshc.analysis.proofs.isl import mismatch_point
from meshc.analysis.traffic.turns import Turns, turns_of
from meshc.ir.affine import Cond, Expr
from meshc.ir.module import Module
from meshc.support.diagnostics import fail
from meshc.verify.transfers import Transfer
from meshc.verify.walk import mesh_scope, plain, point_text


def check_turns(module: Module, transfer: Transfer) -> None:
    """On a channel with turns, message t of a round is sent in step t of a loop that goes through
    the whole round (proved with isl), on all cores of a line or on none. Raises ``bad-turns``."""
    mesh = module.the_mesh()
    turns = turns_of(transfer.channel, mesh)
    if turns is None:
        return
    loop = transfer.context.loop
    if loop is None or loop.regions[0] is not transfer.block or transfer.chain:
        _reject(transfer, "they are sent outside the body of a loop over the steps of a round")
    if not loop.count.is_const or loop.count.constant < turns.messages:
        _reject(transfer, f"a round takes {turns.messages} steps and the loop {loop.count}")
    if transfer.context.around.free_vars & mesh.coordinates_of(turns.axis):
        _reject(transfer, "only a part of a line runs the loop")
    step = Expr.var(loop.var)
    scope = mesh_scope(module).within(Cond.between(0, step, loop.count))
    sent = plain(mesh, transfer.sends[0].when or Cond.true())
    witness = mismatch_point(sent, turns.sends(step), (), scope)
    if witness is not None:
        _reject(transfer, f"{_who(turns)} sends in that step, unlike {point_text(mesh, witness)}")


def _who(turns: Turns) -> str:
    first = f"the core with {turns.axis} = step"
    return first if turns.each == 1 else f"{first}/{turns.each}"


def _reject(transfer: Transfer, why: str) -> NoReturn:
    fail(
        "bad-turns",
        f"messages on @{transfer.channel.name} do not come in the order of turns: {why}",
        transfer.sends[0].span,
    )
