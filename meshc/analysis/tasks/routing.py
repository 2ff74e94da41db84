"""How many experts a program of tasks does something for."""

from __future__ import annotations

from meshc.analysis.tasks.accesses import families_of
from meshc.ir.module import Module
from meshc.ir.ops import task, tile


def experts_of(module: Module, family: task.Family, routed: task.Routed) -> tuple[int, int]:
    """How many experts there are that ``routed``, in a task of ``family``, counts, and how many of
    them are chosen at the most: all different ones of all tokens, of which ranks have even shares.
    """
    every = list(family.regions[0].walk())
    needs = (op for op in every if isinstance(op, task.Need))
    gates = next(op.view for op in needs if routed.gates.buffer in op.results)
    loops = {op.var: op.count.constant for op in every if isinstance(op, tile.For)}
    experts = (family.domain | loops)[routed.expert]
    *_, tokens, _ = gates.buffer_type.shape
    for phase in module.walk():
        for one in families_of(phase) if isinstance(phase, task.Phase) else ():
            ops = list(one.regions[0].walk())
            if any(isinstance(op, task.Give) and op.view.buffer is gates.buffer for op in ops):
                chosen = (op for op in ops if isinstance(op, tile.Compute) and op.kernel == "top_k")
                counts = [int(str(op.params["count"])) for op in chosen]
                ranks = 1 if module.ranks is None else module.ranks.count
                most = -(-tokens * max(counts, default=experts) // ranks)
                return experts, min(experts, most)
    return experts, experts
