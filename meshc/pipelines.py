"""Named pipelines as data: which passes bring a graph down to which level."""

from __future__ import annotations

from meshc.ir.batch import REQUEST
from meshc.ir.module import LEVELS, Level, Module
from meshc.passes.base import Pass
from meshc.passes.registry import own_pipeline

STAGES: dict[Level, tuple[str, ...]] = {
    "graph": ("canonicalize", "eliminate-transpose"),
    "mesh": (
        "partition",
        "select-gemm",
        "select-dispatch",
        "place-interleave",
        "shift-kv-cache",
        "select-collective",
        "split-regions",
    ),
    "tile": ("expand-programs", "allocate-routes", "schedule-tasks", "plan-memory"),
}


def pipeline_to(level: Level, settings: dict[str, str] | None = None) -> list[Pass]:
    """The passes from a fresh graph to the end of ``level``.

    ``settings`` replaces the spec of a pass by name, for instance ``{"shift-kv-cache":
    "shift-kv-cache{policy=cyclic}"}``.
    """
    chosen = settings or {}
    reached = LEVELS[: LEVELS.index(level) + 1]
    names = [name for stage in reached for name in STAGES[stage]]
    return own_pipeline(",".join(chosen.get(name, name) for name in names))


KEEPING = "keep-quantised"
"""Comes before ``allocate-routes`` where settings have it."""

DEALING = "tensor-parallel"
"""The pass that makes the graph of one GPU among several, behind those of the graph."""


CODING = "code-caches"
"""The pass that lets caches keep floats of eight bits, behind that."""


def graph_passes(settings: dict[str, str] | None = None, *behind: str) -> list[Pass]:
    """The passes of a fresh decode graph of GPUs, and those ``behind`` them; ``settings`` as above,
    of which ``tensor-parallel`` deals the model to several GPUs, and ``code-caches`` lets its
    caches keep floats of eight bits."""
    chosen = settings or {}
    asked = [name for name in (DEALING, CODING) if name in chosen]
    names = [*STAGES["graph"], *asked, *behind]
    return own_pipeline(",".join(chosen.get(name, name) for name in names))


FUSING = "fuse-chunk"
"""The pass that fuses a decode graph into kernels that read many tokens of a prompt."""


def pipeline_to_kernels(settings: dict[str, str] | None = None) -> list[Pass]:
    """The passes that fuse a fresh decode graph into kernels; of several GPUs, to which settings
    deal the model, sums are fused with residuals and norms before."""
    dealt = ["fuse-all-reduce"] if DEALING in (settings or {}) else []
    return graph_passes(settings, *dealt, FUSING)


SERVING_STAGES = ("chunk-prompts", "group-layers")
"""The passes that let a fresh graph serve requests as they come."""


def serving_passes(multiple: int, grouped: bool, force: bool = False, most: int = 0) -> list[Pass]:
    """The passes that let a fresh graph serve requests as they come: prompts in chunks that begin
    at multiples of ``multiple`` tokens and have at most ``most`` (0: as many as the caches hold)
    and, if ``grouped``, by groups of layers (of a dense model only if ``force``)."""
    names = [f"chunk-prompts{{multiple={multiple},most={most}}}"]
    names += [f"group-layers{{force={'true' if force else 'false'}}}"] if grouped else []
    return own_pipeline(",".join(names))


def chunking_passes(multiple: int, most: int) -> list[Pass]:
    """The pass that lets a fresh graph of prefill read prompts in chunks of at most ``most``
    tokens, which begin at multiples of ``multiple``."""
    return own_pipeline(f"chunk-prompts{{multiple={multiple},most={most}}}")


CHOOSING = "choose-token"
"""The pass that lets the program of a fresh graph of a decode step choose its token."""


def choosing_passes(alone: bool = False) -> list[Pass]:
    """The passes that let cores choose tokens, in front of all others; or of which nothing but the
    choice is left."""
    return own_pipeline(f"{CHOOSING}{{alone={'true' if alone else 'false'}}}")


NODE_STAGES = ("fuse-collective",)
"""The passes for kernels of several GPUs, behind ``shift-kv-cache``."""


RANK_PASSES = ("tensor-parallel", "fuse-all-reduce", "batch-tokens", "split-tokens")
"""Passes that make graphs of one GPU among several and of batches of tokens; asked for by name."""


JOINING_STAGES = ("allocate-routes", "schedule-tasks", "plan-memory")
"""The passes that give a program joined of two phases what each had for itself."""


def joining_passes() -> list[Pass]:
    """The passes behind the joining of two phases."""
    return own_pipeline(",".join(JOINING_STAGES))


RESOURCE_STAGES = (
    "merge-csl-buffers",
    "select-csl-products",
    "select-csl-functions",
    "assign-csl-registers",
    "plan-csl-memory",
    "assign-csl-queues",
    "assign-csl-tasks",
    "plan-csl-words",
)
"""The passes that assign what a CSL program takes of a core."""

_FOR_ALL_DEVICES = ("assign-csl-queues", "assign-csl-tasks")
"""Those that can assign what is legal on every device for CSL."""


def resource_passes(portable: bool = False) -> list[Pass]:
    """The passes that say what a CSL program takes of a core, after those of the tile level;
    ``portable`` for all devices that CSL is for."""
    names = (
        f"{name}{{portable=true}}" if portable and name in _FOR_ALL_DEVICES else name
        for name in RESOURCE_STAGES
    )
    return own_pipeline(",".join(names))


TASK_STAGES = ("expand-tasks", "place-tasks", "meet", "fold-scratch")
"""The passes from the graph of a decode step to a program of tasks, behind those of the graph."""


STREAMING = "stream-quantised"
"""Comes behind ``expand-tasks`` where settings have it."""

CUTTING = "cut"
"""The pass that makes several kernels of such a program, behind all others."""

CLUSTERING = "fuse-cluster"
"""The pass that makes clusters of the blocks of such a program, behind ``place-tasks``."""


def pipeline_to_tasks(settings: dict[str, str] | None = None, cluster: int = 0) -> list[Pass]:
    """The passes from a fresh graph of a decode step to its program of tasks, perhaps in clusters
    of so many blocks; ``settings`` as above, of which ``tensor-parallel`` deals the model to
    several GPUs before."""
    names = [*TASK_STAGES]
    if STREAMING in (settings or {}):
        names.insert(names.index("expand-tasks") + 1, STREAMING)
    if CUTTING in (settings or {}):
        names.append(CUTTING)
    if cluster:
        names.insert(names.index("place-tasks") + 1, CLUSTERING)
        settings = {**(settings or {}), CLUSTERING: f"{CLUSTERING}{{cluster={cluster}}}"}
    return graph_passes(settings, *names)


GIVEN: dict[Level, tuple[str, ...]] = {
    "graph": (),
    "mesh": ("partitioned", "padding_safe"),
    "tile": ("guards_cover", "channels_matched", "deadlock_free"),
}
"""Facts that the passes of a level count on and none of them establishes."""

_ENDS: dict[Level, str] = {
    "graph": "transpose_free",
    "mesh": "collectives_selected",
    "tile": "memory_planned",
}
_LOWERING = ("partition", "expand-programs")
REQUESTS_BEHIND = {"expand-programs": "pipeline-requests"}
"""Behind the first comes the second where a program is told which request it works on."""


def pipeline_from(
    module: Module, level: Level, settings: dict[str, str] | None = None
) -> list[Pass]:
    """The passes from ``module``, of any level, to the end of ``level``: all of a fresh graph; of
    a module that was dumped or written by hand those of its level, unless what the last of them
    establishes holds already, and of the levels below. Where a run is told which request it works
    on, a step of decoding becomes one of all requests."""
    chosen = settings or {}
    here = LEVELS.index(module.level)
    names: list[str] = []
    for stage in LEVELS[here : LEVELS.index(level) + 1]:
        own = stage == module.level
        if not own or _ENDS[stage] not in module.holds:
            names += [n for n in STAGES[stage] if not (own and n in _LOWERING)]
    if REQUEST in module.scalars:
        behind = {name: [name, more] for name, more in REQUESTS_BEHIND.items()}
        names = [one for name in names for one in behind.get(name, [name])]
    if KEEPING in chosen and "allocate-routes" in names:
        names.insert(names.index("allocate-routes"), KEEPING)
    return own_pipeline(",".join(chosen.get(name, name) for name in names))
