"""partition: choose layouts, and so lower the graph level to the mesh level."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from meshc.analysis.tiling import choose_tiling, find_heads, has_many_rows
from meshc.ir.core import tensor_type
from meshc.ir.mesh import Mesh
from meshc.ir.module import Module
from meshc.ir.types import DType
from meshc.passes.base import Pass
from meshc.passes.mesh.plans.base import Plan
from meshc.passes.mesh.plans.decode import DecodePlan
from meshc.passes.mesh.plans.prefill import PrefillPlan
from meshc.support.diagnostics import Diagnostics, fail
from meshc.verify import check_fact

_MAX_CORES = 16_000_000


@dataclass(frozen=True)
class Partition(Pass):
    """Give every value a layout on the mesh and every op its distributed form.

    Many rows of tokens get the prefill plan of WaferLLM Fig. 3 (``BL_y E_x``, MeshGEMM), single
    rows the decode plan of Fig. 4 (``E_y`` replicated over x, MeshGEMV). Heads go whole groups
    first over a factor of x, then pairs of lanes, in the split that leaves the fewest lanes per
    core. ``grid`` is columns x rows; empty takes the module's option of that name.

    Before::

        %x: f32[L, E]
        %y = graph.matmul %x, %w {contract = [E]} : f32[L, F]

    After::

        mesh rows = 4, columns = 4
        %x: f32[L, E]<E_y:2>, weight %w: f32[E, F]<E_y:2 F_x:2>
        %y_1 = mesh.gemv %x, %w {contract = [E]} : f32[L, F]<F_x:2 +y>
        %y = mesh.all_reduce %y_1 {axis = y} : f32[L, F]<F_x:2>
    """

    NAME: ClassVar[str] = "partition"
    LEVELS: ClassVar[tuple[str, ...]] = ("graph",)
    REQUIRES: ClassVar[frozenset[str]] = frozenset({"transpose_free"})
    ESTABLISHES: ClassVar[frozenset[str]] = frozenset({"partitioned", "padding_safe"})
    INVALIDATES: ClassVar[frozenset[str]] = frozenset()

    grid: str = ""

    def run(self, module: Module, report: Diagnostics) -> Module:
        columns, rows = parse_grid(self.grid or str(module.option("grid", "1x1")))
        batch = module.dims.get("B", 1)
        if batch != 1:
            fail(
                "unsupported-batch", f"a batch of {batch} is not supported; compile for one request"
            )
        heads = find_heads(module)
        row_dim = _row_dim(module)
        capacity = module.dims[heads.keys] if heads else module.dims.get(row_dim, 1)
        tiling = choose_tiling(module.dims, heads, rows, columns, capacity)
        mesh = Mesh(rows, columns, segments=tiling.segments)
        kind = PrefillPlan if has_many_rows(module, row_dim) else DecodePlan
        plan: Plan = kind(module, mesh, tiling, report)
        plan.row_dim = row_dim
        if tiling.heads is not None:
            report.remark(
                "partition-heads",
                f"{module.dims[tiling.heads.key]} groups of heads over {tiling.segments} segments "
                f"of {tiling.segment} columns: {tiling.query_block} query heads x "
                f"{tiling.lane_block} lanes per core",
            )
        lowered = Module(
            module.name,
            "mesh",
            dict(module.dims),
            dict(module.scalars),
            {
                **module.options,
                "grid": f"{columns}x{rows}",
                "head_dims": str(heads or ""),
                "row_dim": row_dim,
                "capacity": capacity,
            },
            module.device,
            mesh,
        )
        lowered.functions = [plan.function()]
        check_fact(lowered, "padding_safe")
        return lowered


def parse_grid(text: str) -> tuple[int, int]:
    """Columns and rows from ``WxH``; fails with ``bad-mesh`` on anything else."""
    match = re.fullmatch(r"(\d{1,5})x(\d{1,5})", text)
    if match is None or "0" in (match[1].lstrip("0") or "0", match[2].lstrip("0") or "0"):
        fail("bad-mesh", f"'{text}' is no mesh", help="write columns x rows, such as 24x24")
    columns, rows = int(match[1]), int(match[2])
    if columns * rows > _MAX_CORES:
        fail("bad-mesh", f"a mesh of {columns * rows} cores is more than any device has")
    return columns, rows


def _row_dim(module: Module) -> str:
    """The dim that counts rows of tokens: that of the cache, or the first of the first input, or
    the last where that has token ids.

    A vector of numbers has none but its batch, or nothing.
    """
    heads = find_heads(module)
    if heads is not None:
        return heads.rows
    for param in module.function.params:
        kind = tensor_type(param.value)
        if param.role == "in" and kind.dims:
            inner = [d for d in kind.dims if d != "B"]
            if kind.dtype is DType.I32 and inner:
                return inner[-1]
            return inner[0] if len(inner) > 1 else "B" if "B" in kind.dims else ""
    fail("unsupported-op", "the function has no input to partition by")
