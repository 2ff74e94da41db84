"""The predicted time of a decode step of tasks, in words."""

from __future__ import annotations

from meshc.backends.cuda.halves import node_of
from meshc.backends.cuda.tasks.groups import NODES
from meshc.cost.predictions import Prediction
from meshc.cost.tasks.phase_times import StepTime
from meshc.cost.tasks.predicting import predicted_step, timed
from meshc.cost.tasks.tile_times import Links
from meshc.ir.batch import AHEAD, LENGTH, OWNER, POSITION
from meshc.ir.module import Module
from meshc.ir.ranks import RANK
from meshc.support.diagnostics import MeshcError

_LIMITS = {
    "memory": "waiting for memory",
    "computing": "computing",
    "meeting": "in meetings",
    "idle": "waiting for the last block of a phase",
}


MOST_TOKENS = 1 << 14
"""Behind more cached tokens no step is predicted, since the model follows each tile of them."""


def step_with_full_caches(module: Module) -> StepTime | None:
    """What the step of ``module``, of the task level, takes with full caches, or behind
    :data:`MOST_TOKENS` tokens, as the event model predicts; None for a device that lacks a number
    for it, or one without a position. Ranks do alike, so that one stands for all; where no node of
    such GPUs is known, their links take no time."""
    if POSITION not in module.scalars:
        return None
    try:
        return timed(module, _scalars(module), _links(module))
    except MeshcError:
        return None


def prediction_with_full_caches(module: Module) -> Prediction | None:
    """The same by phase, or that of a run that reads the last tokens of a prompt for which caches
    have room; None for a program without a position. Raises ``device-number``."""
    if POSITION not in module.scalars:
        return None
    scalars = _scalars(module)
    if LENGTH in module.scalars:
        most = module.scalars[LENGTH][1]
        scalars |= {LENGTH: most, POSITION: max(0, _tokens(module) + 1 - most)}
    return predicted_step(module, scalars, _links(module))


def _links(module: Module) -> Links | None:
    """The links of the smallest node that has the GPUs of all ranks, if one is known."""
    if module.ranks is None:
        return None
    try:
        return Links.of(node_of(module.the_device(), module.ranks.count))
    except MeshcError:
        return None


def _scalars(module: Module) -> dict[str, int]:
    """What a run is told: that the caches of all requests are full, and that each token of a batch
    is the only one of its request."""
    others = dict.fromkeys({RANK, OWNER, AHEAD} & module.scalars.keys(), 0)
    return {**others, POSITION: _tokens(module)}


def _tokens(module: Module) -> int:
    return min(module.scalars[POSITION][1], MOST_TOKENS)


def predicted(module: Module) -> str:
    """That time in words; nothing where it is not known. Of nodes it is without what they hand
    on."""
    found = step_with_full_caches(module)
    if found is None or (module.ranks is not None and _links(module) is None):
        return ""
    nodes = int(module.option(NODES, 1))
    of_all = f" on its {nodes} nodes, one behind the other," if nodes > 1 else ""
    return (
        f"predicted {1e6 * found.seconds:.0f} us{of_all} with {_tokens(module)} tokens before it, "
        f"{found.ratio:.2f} times what its {found.bytes} bytes take at {found.rate / 1e9:.0f} "
        f"GB/s; most of it {_LIMITS[found.limit]}"
    )
