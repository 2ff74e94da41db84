"""Named pipelines as data: which passes bring a graph down to which level."""

from __future__ import annotations

from meshc.ir.module import LEVELS, Level
from meshc.passes.base import Pass
from meshc.passes.registry import parse_pipeline

STAGES: dict[Level, tuple[str, ...]] = {
    "graph": ("canonicalize", "eliminate-transpose"),
    "mesh": (
        "partition",
        "select-gemm",
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
    return parse_pipeline(",".join(chosen.get(name, name) for name in names))
