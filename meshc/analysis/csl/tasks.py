"""Local tasks of a CSL program: which there are, and which ids they may have."""

from __future__ import annotations

from meshc.analysis.csl import resources
from meshc.analysis.csl.ends import used_colors
from meshc.analysis.csl.joined_transfers import RESUME, Transfers
from meshc.devices.csl import Targets
from meshc.ir.module import Module
from meshc.ir.ops.tile import Send


def task_names(transfers: Transfers) -> list[str]:
    """The tasks that ends of transfers run: ``resume``, the joins of groups, what starts the next
    transfer of a channel, what ends a turn. None where no wait returns from its task."""
    if not transfers.suspends:
        return []
    found = {RESUME: None}
    for group in transfers.of_token.values():
        found |= {join.task: None for join in group.joins}
        found |= {group.plain.signals[token].task: None for token in group.follows}
        for case in group.cases:
            sends = [op for op in group.starts if isinstance(op, Send)]
            found |= {case.turns[op.result]: None for op in sends if op.result in case.turns}
    return list(found)


def free_ids(module: Module, goals: Targets) -> list[int]:
    """Ids that tasks may have, in the order in which they take them: those left to programs that
    are no color in use, since a device may number both alike."""
    colors = used_colors(module)
    return [number for number in goals.task_ids if number not in colors]


def wrong_task(module: Module, goals: Targets) -> str | None:
    """What is wrong with the ids that a module says for ``goals``, in words; None where each of its
    tasks has a free one of its own."""
    names, free = task_names(Transfers(module)), free_ids(module, goals)
    for name in sorted(set(names) ^ resources.tasks(module).keys()):
        return f"task '{name}' has no id" if name in names else f"there is no task '{name}'"
    for name, number in resources.tasks(module).items():
        if number not in free:
            return f"task '{name}' has the id {number}, which is not free"
    if len(set(resources.tasks(module).values())) < len(resources.tasks(module)):
        return "two tasks have one id"
    return None
