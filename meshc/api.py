"""The public API, whose names ``meshc`` gives; see docs/library.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from meshc.backends.meshes import MeshTarget
from meshc.backends.request import argument_names
from meshc.backends.target import Target, Work, Written, usual_target
from meshc.backends.target_options import MeshOptions, TargetOptions, option
from meshc.driver import (
    Answer,
    Compiled,
    CompileRequest,
    Executable,
    LoadedModel,
    compile_loaded,
    load_any,
)
from meshc.interp.check import Session, run_any
from meshc.interp.inputs import wanted_inputs
from meshc.ir.brought_functions import BroughtFunction
from meshc.ir.functions import Function as ElementFunction
from meshc.ir.module import Module
from meshc.ir.printer import print_module
from meshc.ir.verifier import verify_module
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
from meshc.passes.instruments import Instrument
from meshc.passes.manager import PassManager
from meshc.passes.mesh.forms.brought import BroughtForm
from meshc.passes.mesh.fuse_collective import FuseCollective
from meshc.passes.mesh.partition import Partition
from meshc.passes.mesh.place_interleave import PlaceInterleave
from meshc.passes.mesh.select_collective import SelectCollective
from meshc.passes.mesh.select_dispatch import SelectDispatch
from meshc.passes.mesh.select_gemm import SelectGemm
from meshc.passes.mesh.shift_kv_cache import ShiftKvCache
from meshc.passes.mesh.split_regions import SplitRegions
from meshc.passes.registry import PASSES, parse_pipeline
from meshc.passes.resources.csl.assign_queues import AssignCslQueues
from meshc.passes.resources.csl.assign_registers import AssignCslRegisters
from meshc.passes.resources.csl.assign_tasks import AssignCslTasks
from meshc.passes.resources.csl.merge_buffers import MergeCslBuffers
from meshc.passes.resources.csl.plan_memory import PlanCslMemory
from meshc.passes.resources.csl.plan_words import PlanCslWords
from meshc.passes.resources.csl.select_functions import SelectCslFunctions
from meshc.passes.resources.csl.select_products import SelectCslProducts
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
from meshc.support.blame import blamed
from meshc.support.diagnostics import Diagnostic, Diagnostics, InternalError, MeshcError, fail
from meshc.support.files import read_text
from meshc.support.output import write_directory
from meshc.support.spans import Source
from meshc.verify.given import read_module
from meshc.version import VERSION as __version__

_IR_LIMIT_BYTES = 64 << 20


def load(path: str | Path) -> Module:
    """The module in a ``.meshir`` file, verified, with the facts it claims checked.

    Raises :class:`MeshcError` with every mistake and its place.
    """
    return read_module(read_text(Path(path), _IR_LIMIT_BYTES))


def parse(text: str, name: str = "<text>") -> Module:
    """As :func:`load`, from a text; ``name`` is what messages call it."""
    return read_module(Source(name, text))


def compile(
    model: str | Path | LoadedModel,
    *,
    target: str = "",
    device: str = "",
    mesh: str = "",
    phase: str = "both",
    seq: int | None = None,
    layers: int | None = None,
    dtype: str = "",
    kv: str = "auto",
    compile_to: str = "",
    output: str | Path | None = None,
    force: bool = False,
    report: Diagnostics | None = None,
    **flags: Any,
) -> Compiled:
    """Compile a model; the arguments are the flags of ``meshc compile``, ``flags`` those that are
    rarely needed (arguments of :class:`CompileRequest`).

    Without ``target`` the program is for the one that ``device`` is made for, else for Python.
    ``model`` is a ``.mesh`` or ``.gguf`` file, a Hugging Face directory or ``config.json``, or a
    built-in name; or what a front end has made of one. The result has ``modules`` by phase and
    ``files`` by path; ``output`` names a directory to write them to. Its ``remarks`` are also added
    to ``report``. Raises
    :class:`MeshcError` for what is wrong with the input, unknown ``flags`` among it, and
    :class:`InternalError` for what is wrong with meshc.
    """
    named = target or usual_target(device, compile_to)
    _check_flags(flags, named)
    request = CompileRequest(
        target=named,
        device=device,
        mesh=mesh,
        phase=phase,
        seq=seq,
        layers=layers,
        dtype=dtype,
        kv=kv,
        compile_to=compile_to,
        **flags,
    )
    found = Diagnostics()
    try:
        loaded = model if isinstance(model, LoadedModel) else load_any(str(model), found)
        compiled = compile_loaded(loaded, request, report=found)
    except (MeshcError, InternalError):
        raise
    except Exception as error:
        if blame := blamed(error):
            raise blame from error
        raise
    finally:
        if report is not None:
            for message in found.messages:
                report.add(message)
    if output is not None:
        write_directory(Path(output), compiled.files, compiled.facts, force, found)
    return compiled


def _check_flags(flags: Mapping[str, object], target: str) -> None:
    """Fail with ``bad-argument`` for a name that is none of an argument of :func:`compile`."""
    known = argument_names(target)
    others = {*signature(compile).parameters} - {"flags"}
    unknown = next((name for name in flags if name not in known), None)
    if unknown is not None:
        near = get_close_matches(unknown, known | others, n=3)
        does = f"is it {' or '.join(near)}?" if near else f"it takes {', '.join(sorted(known))}"
        fail("bad-argument", f"compile takes no argument '{unknown}'", help=does)


def run(
    module: Module,
    arrays: Mapping[str, ArrayLike] | None = None,
    /,
    **scalars: int | Sequence[int],
) -> list[NDArray[Any]]:
    """What ``module``, of any level, computes: its results in order, those that are state left out.

    ``arrays`` are inputs and weights by the names of the model's parameters; ``scalars`` are those
    of the module, such as ``pos``, of which there may be one for each request of a batch. The
    interpreters compute it, in float64 above the tile level; state starts as zeros (a
    :class:`Session` keeps it). Raises ``interp-input``, ``interp-scalar`` and what executing
    raises.
    """
    given = {name: np.asarray(array) for name, array in (arrays or {}).items()}
    known = [want.name for want in wanted_inputs(module)]
    unknown = [name for name in given if name not in known]
    if unknown:
        words = f"'{module.name}' takes no array '{unknown[0]}'"
        fail("interp-input", words, help=f"it takes {', '.join(known) or 'none'}")
    return run_any(module, given, scalars)


__all__ = [
    "PASSES",
    "AllocateRoutes",
    "Answer",
    "AssignCslQueues",
    "AssignCslRegisters",
    "AssignCslTasks",
    "BatchTokens",
    "BroughtForm",
    "BroughtFunction",
    "Canonicalize",
    "ChooseToken",
    "ChunkPrompts",
    "CodeCaches",
    "CompileRequest",
    "Compiled",
    "Cut",
    "Diagnostic",
    "Diagnostics",
    "ElementFunction",
    "EliminateTranspose",
    "Executable",
    "ExpandPrograms",
    "ExpandTasks",
    "FoldScratch",
    "FuseAllReduce",
    "FuseChunk",
    "FuseCluster",
    "FuseCollective",
    "GroupLayers",
    "Instrument",
    "InternalError",
    "KeepQuantised",
    "Meet",
    "MergeCslBuffers",
    "MeshOptions",
    "MeshTarget",
    "MeshcError",
    "Module",
    "Partition",
    "Pass",
    "PassManager",
    "PipelineRequests",
    "PlaceInterleave",
    "PlaceTasks",
    "PlanCslMemory",
    "PlanCslWords",
    "PlanMemory",
    "ScheduleTasks",
    "SelectCollective",
    "SelectCslFunctions",
    "SelectCslProducts",
    "SelectDispatch",
    "SelectGemm",
    "Session",
    "ShiftKvCache",
    "SplitRegions",
    "SplitTokens",
    "StreamQuantised",
    "Target",
    "TargetOptions",
    "TensorParallel",
    "Work",
    "Written",
    "__version__",
    "compile",
    "load",
    "option",
    "parse",
    "parse_pipeline",
    "print_module",
    "run",
    "verify_module",
]
