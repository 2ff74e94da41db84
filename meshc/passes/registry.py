"""Every pass there is, and pipelines of them from text."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from meshc.passes.base import Pass
from meshc.passes.graph.canonicalize import Canonicalize
from meshc.passes.graph.eliminate_transpose import EliminateTranspose
from meshc.passes.graph.fuse_cluster import FuseCluster
from meshc.passes.mesh.partition import Partition
from meshc.passes.mesh.place_interleave import PlaceInterleave
from meshc.passes.mesh.select_collective import SelectCollective
from meshc.passes.mesh.select_gemm import SelectGemm
from meshc.passes.mesh.shift_kv_cache import ShiftKvCache
from meshc.passes.mesh.split_regions import SplitRegions
from meshc.passes.spec import make_pass, parse_specs
from meshc.passes.tile.allocate_routes import AllocateRoutes
from meshc.passes.tile.expand_programs import ExpandPrograms
from meshc.passes.tile.plan_memory import PlanMemory
from meshc.passes.tile.schedule_tasks import ScheduleTasks
from meshc.support.diagnostics import fail

PASSES: tuple[type[Pass], ...] = (
    Canonicalize,
    EliminateTranspose,
    FuseCluster,
    Partition,
    SelectGemm,
    PlaceInterleave,
    ShiftKvCache,
    SelectCollective,
    SplitRegions,
    ExpandPrograms,
    AllocateRoutes,
    ScheduleTasks,
    PlanMemory,
)

_BY_NAME = {cls.NAME: cls for cls in PASSES}


def pass_class(name: str) -> type[Pass] | None:
    """The pass called ``name``, or None."""
    return _BY_NAME.get(name)


def parse_pipeline(text: str, source_name: str = "--passes") -> list[Pass]:
    """The passes that ``text`` spells, such as ``canonicalize,partition{grid=4x4}``.

    Fails with ``bad-pipeline``, ``unknown-pass`` or ``bad-pass-option`` and the place in the text.
    """
    found: list[Pass] = []
    for spec in parse_specs(text, source_name):
        cls = _BY_NAME.get(spec.name)
        if cls is None:
            near = difflib.get_close_matches(spec.name, _BY_NAME, n=1)
            fail(
                "unknown-pass",
                f"there is no pass '{spec.name}'",
                spec.span,
                notes=[f"passes: {', '.join(_BY_NAME)}"],
                help=f"did you mean '{near[0]}'?" if near else None,
            )
        found.append(make_pass(cls, spec))
    return found


def pipeline_text(passes: Iterable[Pass]) -> str:
    """The inverse of :func:`parse_pipeline`."""
    return ",".join(map(str, passes))
