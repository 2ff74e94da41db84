"""The public API, whose names ``meshc`` gives; see docs/library.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from meshc.driver import Compiled, CompileRequest, compile_loaded, load_any
from meshc.ir.module import Module
from meshc.ir.printer import print_module
from meshc.ir.verifier import verify_module
from meshc.passes.base import Pass
from meshc.passes.graph.canonicalize import Canonicalize
from meshc.passes.graph.eliminate_transpose import EliminateTranspose
from meshc.passes.graph.fuse_cluster import FuseCluster
from meshc.passes.instruments import Instrument
from meshc.passes.manager import PassManager
from meshc.passes.mesh.partition import Partition
from meshc.passes.mesh.place_interleave import PlaceInterleave
from meshc.passes.mesh.select_collective import SelectCollective
from meshc.passes.mesh.select_gemm import SelectGemm
from meshc.passes.mesh.shift_kv_cache import ShiftKvCache
from meshc.passes.mesh.split_regions import SplitRegions
from meshc.passes.registry import PASSES, parse_pipeline
from meshc.passes.tile.allocate_routes import AllocateRoutes
from meshc.passes.tile.expand_programs import ExpandPrograms
from meshc.passes.tile.plan_memory import PlanMemory
from meshc.passes.tile.schedule_tasks import ScheduleTasks
from meshc.support.diagnostics import Diagnostic, Diagnostics, InternalError, MeshcError
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
    model: str | Path,
    *,
    target: str = "python",
    device: str = "",
    mesh: str = "8x8",
    phase: str = "both",
    seq: int | None = None,
    layers: int | None = None,
    dtype: str = "",
    kv: str = "shift",
    compile_to: str = "",
    output: str | Path | None = None,
    force: bool = False,
    report: Diagnostics | None = None,
    **flags: Any,
) -> Compiled:
    """Compile a model; the arguments are the flags of ``meshc compile``, ``flags`` those that are
    rarely needed (fields of :class:`CompileRequest`).

    ``model`` is a ``.mesh`` or ``.gguf`` file, a Hugging Face directory or ``config.json``, or a
    built-in name. The result has ``modules`` by phase and ``files`` by path; ``output`` names a
    directory to write them to. Remarks are added to ``report``. Raises :class:`MeshcError` for what
    is wrong with the input and :class:`InternalError` for what is wrong with meshc.
    """
    request = CompileRequest(
        target, device, mesh, phase, seq, layers, dtype, kv, compile_to, **flags
    )
    found = Diagnostics() if report is None else report
    compiled = compile_loaded(load_any(str(model), found), request, report=found)
    if output is not None:
        write_directory(Path(output), compiled.files, compiled.facts, force, found)
    return compiled


__all__ = [
    "PASSES",
    "AllocateRoutes",
    "Canonicalize",
    "Compiled",
    "Diagnostic",
    "Diagnostics",
    "EliminateTranspose",
    "ExpandPrograms",
    "FuseCluster",
    "Instrument",
    "InternalError",
    "MeshcError",
    "Module",
    "Partition",
    "Pass",
    "PassManager",
    "PlaceInterleave",
    "PlanMemory",
    "ScheduleTasks",
    "SelectCollective",
    "SelectGemm",
    "ShiftKvCache",
    "SplitRegions",
    "__version__",
    "compile",
    "load",
    "parse",
    "parse_pipeline",
    "print_module",
    "verify_module",
]
