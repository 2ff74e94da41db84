"""Layers of which a run passes some, so that prompts are read by groups of layers.

Phases are the same as in one run of all layers; a run does those of its layers and, of what stands
around loops over layers, what is in front of its first one and behind its last one. Where it ends
blocks have met as at any meeting, so what the next run must find is what layers hand on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

from meshc.backends.cuda.tasks.families import Loop, Phase
from meshc.backends.cuda.tasks.storage import Storage
from meshc.ir.core import Op
from meshc.ir.module import Module
from meshc.ir.ops import task
from meshc.ir.values import Value
from meshc.ir.views import Point
from meshc.support.diagnostics import fail

LAYER_GROUPS = "layer_groups"
"""The option of a graph that reads prompts of which a run may pass some of the layers."""
NODES = "nodes"
"""The option of a graph that says over how many nodes its layers are dealt, if they are: a run
passes those of one, which has their weights and caches alone."""
LAYERS = "layers"
"""The buffer that says which layers a run passes."""
OF_A_RUN = FIRST_LAYER, LAST_LAYER = "from_layer", "to_layer"
"""The first layer that a run passes, and the one behind its last."""
HANDED_ON = "rows"
"""The role of buffers that layers hand on, which a host keeps from run to run."""


def rounds(loop: Loop, before: int | None) -> str:
    """The head of ``loop``, over the layers of a run where ``before`` layers stand in front of it,
    over all for None."""
    var, count = loop.var, str(loop.count)
    first, end = "0", count
    if before == 0:
        first, end = FIRST_LAYER, f"min({LAST_LAYER}, {count})"
    elif before is not None:
        first, end = f"max({FIRST_LAYER} - {before}, 0)", f"min({LAST_LAYER} - {before}, {count})"
    return f"for (int {var} = {first}; {var} < {end}; {var}++) {{"


def there(before: int) -> str:
    """In front of what stands behind ``before`` layers outside of loops: a run does it with the
    last of these, or with the first layer of all."""
    if not before:
        return f"if ({FIRST_LAYER} == 0) "
    return f"if ({FIRST_LAYER} < {before} && {LAST_LAYER} >= {before}) "


def of_layers(
    storage: Storage, body: Sequence[Phase | Loop], nodes: int
) -> tuple[int, dict[str, int]]:
    """How many layers ``body`` has, all in one loop, and the names of memory that each of them has
    a part of, with the elements of a part. Raises ``cuda-graph`` where layers are of several
    kinds, share what they keep, or are fewer than ``nodes``."""
    counts = [one.count for one in body if isinstance(one, Loop)]
    parts = {name: prod(weight.shape) for name, weight in storage.weights.items() if weight.layers}
    caches = {n: b.shape for n, b in storage.buffers.items() if b.role == "state"}
    stacks = [storage.weights[name].layers for name in parts]
    stacks += [shape[0] for shape in caches.values()]
    if len(counts) != 1 or set(stacks) != set(counts):
        fail(
            "cuda-graph",
            "layers of nodes are of one kind, and all of them in one loop",
            help="leave --nodes out",
        )
    if counts[0] < nodes:
        fail("cuda-graph", f"{counts[0]} layers are too few for {nodes} nodes")
    return counts[0], parts | {name: prod(shape[1:]) for name, shape in caches.items()}


def keep_rows(storage: Storage, body: Sequence[Phase | Loop]) -> None:
    """Let what layers of ``body`` hand on have the role :data:`HANDED_ON`."""
    for value in _handed_on(storage.module, body):
        name = storage.scratch(value)
        storage.buffers[name] = replace(storage.buffers[name], role=HANDED_ON)


def _handed_on(module: Module, body: Sequence[Phase | Loop]) -> list[Value]:
    """The scratch of ``module`` that a layer needs of layers in front of it, or of what stands in
    front of all: what is not given by the same round of its loop."""
    scratch = {buffer.value for buffer in module.buffers if buffer.role == ""}
    found: dict[Value, None] = {}
    for loop in (one for one in body if isinstance(one, Loop)):
        ops = list(_ops(loop.body))
        own = {_version(op) for op in ops if isinstance(op, task.Give)}
        for op in ops:
            if isinstance(op, task.Need) and op.view.buffer in scratch and _version(op) not in own:
                found[op.view.buffer] = None
    return list(found)


def _version(op: task.Give | task.Need) -> tuple[Value, str]:
    """A buffer, and which version of it, where layers have one each."""
    first = op.view.indices[0] if op.view.indices else None
    return op.view.buffer, str(first.at) if isinstance(first, Point) else ""


def _ops(body: Sequence[Phase | Loop]) -> Iterator[Op]:
    for one in body:
        if isinstance(one, Loop):
            yield from _ops(one.body)
        else:
            for family in one.families:
                yield from family.op.regions[0].walk()
