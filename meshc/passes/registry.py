"""Every pass there is, those of other packages included, and pipelines of them from text."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable

from meshc.passes import brought_passes
from meshc.passes.base import Pass
from meshc.passes.graph.batch_tokens import BatchTokens
from meshc.passes.graph.canonicalize import Canonicalize
from meshc.passes.graph.choose_token import ChooseToken
from meshc.passes.graph.chunk_prompts import ChunkPrompts
from meshc.passes.graph.code_caches import CodeCaches
from meshc.passes.graph.eliminate_transpose import EliminateTranspose
from meshc.passes.graph.fuse_all_reduce import FuseAllReduce
from meshc.passes.graph.fuse_chunk import FuseChunk
from meshc.passes.graph.group_layers import GroupLayers
from meshc.passes.graph.split_tokens import SplitTokens
from meshc.passes.graph.tensor_parallel import TensorParallel
from meshc.passes.mesh.fuse_collective import FuseCollective
from meshc.passes.mesh.partition import Partition
from meshc.passes.mesh.place_interleave import PlaceInterleave
from meshc.passes.mesh.select_collective import SelectCollective
from meshc.passes.mesh.select_dispatch import SelectDispatch
from meshc.passes.mesh.select_gemm import SelectGemm
from meshc.passes.mesh.shift_kv_cache import ShiftKvCache
from meshc.passes.mesh.split_regions import SplitRegions
from meshc.passes.resources.csl.assign_queues import AssignCslQueues
from meshc.passes.resources.csl.assign_registers import AssignCslRegisters
from meshc.passes.resources.csl.assign_tasks import AssignCslTasks
from meshc.passes.resources.csl.merge_buffers import MergeCslBuffers
from meshc.passes.resources.csl.plan_memory import PlanCslMemory
from meshc.passes.resources.csl.plan_words import PlanCslWords
from meshc.passes.resources.csl.select_functions import SelectCslFunctions
from meshc.passes.resources.csl.select_products import SelectCslProducts
from meshc.passes.spec import make_pass, parse_specs
from meshc.passes.task.cut import Cut
from meshc.passes.task.expand_tasks import ExpandTasks
from meshc.passes.task.fold_scratch import FoldScratch
from meshc.passes.task.fuse_cluster import FuseCluster
from meshc.passes.task.meet import Meet
from meshc.passes.task.place_tasks import PlaceTasks
from meshc.passes.task.stream_quantised import StreamQuantised
from meshc.passes.tile.allocate_routes import AllocateRoutes
from meshc.passes.tile.expand_programs import ExpandPrograms
from meshc.passes.tile.keep_quantised import KeepQuantised
from meshc.passes.tile.pipeline_requests import PipelineRequests
from meshc.passes.tile.plan_memory import PlanMemory
from meshc.passes.tile.schedule_tasks import ScheduleTasks
from meshc.support.diagnostics import fail
from meshc.support.spans import Span
from meshc.version import VERSION

PASSES: tuple[type[Pass], ...] = (
    Canonicalize,
    EliminateTranspose,
    FuseChunk,
    ChooseToken,
    ChunkPrompts,
    GroupLayers,
    TensorParallel,
    FuseAllReduce,
    BatchTokens,
    SplitTokens,
    CodeCaches,
    Partition,
    SelectGemm,
    SelectDispatch,
    PlaceInterleave,
    ShiftKvCache,
    FuseCollective,
    SelectCollective,
    SplitRegions,
    ExpandPrograms,
    PipelineRequests,
    KeepQuantised,
    AllocateRoutes,
    ScheduleTasks,
    PlanMemory,
    MergeCslBuffers,
    SelectCslProducts,
    SelectCslFunctions,
    AssignCslRegisters,
    PlanCslMemory,
    AssignCslQueues,
    AssignCslTasks,
    PlanCslWords,
    ExpandTasks,
    StreamQuantised,
    PlaceTasks,
    FuseCluster,
    Meet,
    FoldScratch,
    Cut,
)

_BY_NAME = {cls.NAME: cls for cls in PASSES}


def pass_names() -> list[str]:
    """Names of all passes, meshc's own first. Raises ``bad-plugin``."""
    return list(dict.fromkeys([*_BY_NAME, *brought_passes.KIND.names()]))


def pass_class(name: str, span: Span | None = None) -> type[Pass]:
    """The pass called ``name``, of meshc or of another package.

    Fails with ``unknown-pass``, ``duplicate-pass`` where several packages bring it, and
    ``bad-plugin`` where its package is broken; ``span`` is where the name stands.
    """
    own = _BY_NAME.get(name)
    offered = brought_passes.KIND.offers(name)
    origins = [f"meshc {VERSION}"] if own else []
    origins += [offer.origin for offer in offered]
    if len(origins) > 1:
        fail(
            "duplicate-pass",
            f"there are {len(origins)} passes '{name}'",
            span,
            notes=[f"one is of {origin}" for origin in origins],
            help="uninstall a package, or ask its authors for another name",
        )
    if own or offered:
        return own or brought_passes.loaded(offered[0], span)
    names = pass_names()
    near = difflib.get_close_matches(name, names, n=1)
    fail(
        "unknown-pass",
        f"there is no pass '{name}'",
        span,
        notes=[f"passes: {', '.join(names)}"],
        help=f"did you mean '{near[0]}'?" if near else None,
    )


def parse_pipeline(text: str, source_name: str = "--passes") -> list[Pass]:
    """The passes that ``text`` spells, such as ``canonicalize,partition{grid=4x4}``.

    Fails with ``bad-pipeline``, ``bad-pass-option`` and what :func:`pass_class` fails with, and
    the place in the text.
    """
    return _passes(text, source_name, pass_class)


def own_pipeline(text: str) -> list[Pass]:
    """As :func:`parse_pipeline`, of meshc's own passes, whatever is installed beside it."""
    return _passes(text, "<pipeline>", lambda name, _: _BY_NAME[name])


def _passes(
    text: str, source_name: str, find: Callable[[str, Span | None], type[Pass]]
) -> list[Pass]:
    specs = parse_specs(text, source_name)
    return [make_pass(find(spec.name, spec.span), spec) for spec in specs]


def pipeline_text(passes: Iterable[Pass]) -> str:
    """The inverse of :func:`parse_pipeline`."""
    return ",".join(map(str, passes))
