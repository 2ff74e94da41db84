"""The predicted time of a decode step of tasks, in words."""

from __future__ import annotations

from functools import lru_cache

from meshc.cost.tasks.steps import StepTime, step_time
from meshc.cost.tasks.tile_times import Links, TileTimes
from meshc.driver.halves import node_of
from meshc.ir.batch import POSITION
from meshc.ir.module import Module
from meshc.ir.printer import print_module
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
    return _with_full_caches(_Printed(module))


class _Printed:
    """A module that is the same as another one that is printed so. What a step takes is asked for
    where it is chosen, in remarks and in the summary, and followed block by block each time."""

    def __init__(self, module: Module) -> None:
        self.module, self._text = module, print_module(module)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Printed) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)


@lru_cache(maxsize=4)
def _with_full_caches(printed: _Printed) -> StepTime | None:
    module = printed.module
    times = TileTimes(module.the_device(), links=_links(module))
    rank = {} if module.ranks is None else {RANK: 0}
    try:
        return step_time(module, {POSITION: _tokens(module), **rank}, times)
    except MeshcError:
        return None


def _links(module: Module) -> Links | None:
    """The links of the smallest node that has the GPUs of all ranks, if one is known."""
    if module.ranks is None:
        return None
    try:
        return Links.of(node_of(module.the_device(), module.ranks.count))
    except MeshcError:
        return None


def _tokens(module: Module) -> int:
    return min(module.scalars[POSITION][1], MOST_TOKENS)


def predicted(module: Module) -> str:
    """That time in words; nothing where it is not known."""
    found = step_with_full_caches(module)
    if found is None or (module.ranks is not None and _links(module) is None):
        return ""
    return (
        f"predicted {1e6 * found.seconds:.0f} us with {_tokens(module)} tokens before it, "
        f"{found.ratio:.2f} times what its {found.bytes} bytes take at {found.rate / 1e9:.0f} "
        f"GB/s; most of it {_LIMITS[found.limit]}"
    )
