"""partition: choose layouts, and so lower the graph level to the mesh level."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshc.analysis.tiling import choose_tiling, has_many_rows, heads_of
from meshc.cost.products import ALGORITHMS
from meshc.ir.mesh import plane_of
from meshc.ir.module import Module
from meshc.ir.ops.mesh import ALIGNMENTS, RESULTS
from meshc.passes.base import Pass
from meshc.passes.mesh.plans.base import Plan
from meshc.passes.mesh.plans.decode import DecodePlan
from meshc.passes.mesh.plans.prefill import PrefillPlan
from meshc.support.diagnostics import Diagnostics, fail
from meshc.verify import check_fact


@dataclass(frozen=True)
class Partition(Pass):
    """Give every value a layout on the mesh and every op its distributed form.

    Many rows of tokens get the prefill plan of WaferLLM Fig. 3 (``BL_y E_x``, MeshGEMM), single
    rows the decode plan of Fig. 4 (``E_y`` replicated over x, MeshGEMV). Heads go whole groups
    first over a factor of x, then pairs of lanes, in the split that leaves the fewest lanes per
    core. ``grid`` is columns x rows, or such as ``y=6,x=10``; empty takes the module's option of
    that name. ``gemm`` ``transposed`` multiplies with transposed inputs (dist-GEMM-T). ``align``
    says who skews operands of products, ``host`` or ``device``; empty is the host for weights, the
    cores for inputs. ``result`` ``roots`` leaves reduced results of main on the first cores.

    Before::

        %x: f32[L, E]
        %y = graph.matmul %x, %w {contract = [E]} : f32[L, F]

    After::

        mesh y = 4, x = 4
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
    gemm: str = "auto"
    align: str = ""
    result: str = "everywhere"

    def run(self, module: Module, report: Diagnostics) -> Module:
        self._check()
        columns, rows = module.axes.size_of(self.grid or str(module.option("grid", "1x1")))
        batch = module.dims.get("B", 1)
        if batch != 1:
            fail(
                "unsupported-batch", f"a batch of {batch} is not supported; compile for one request"
            )
        heads, row_dim = heads_of(module), module.row_dim
        tiling = choose_tiling(module.dims, heads, rows, columns, module.capacity)
        mesh = plane_of(module.axes.plane, rows, columns, tiling.segments if heads else None)
        kind = PrefillPlan if has_many_rows(module, row_dim) else DecodePlan
        plan: Plan = kind(module, mesh, tiling, report)
        plan.row_dim = row_dim
        plan.gemm, plan.align, plan.result = self.gemm, self.align, self.result
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
            {**module.options, "grid": f"{columns}x{rows}"},
            module.rows,
            module.attention,
            dict(module.paired),
            module.device,
            mesh,
        )
        lowered.functions = [plan.function()]
        check_fact(lowered, "padding_safe")
        return lowered

    def _check(self) -> None:
        """Fail with ``bad-option`` for a setting that is none."""
        settings = (
            ("gemm", self.gemm, ("auto", "transposed", *ALGORITHMS)),
            ("align", self.align, ("", *ALIGNMENTS)),
            ("result", self.result, RESULTS),
        )
        for name, value, known in settings:
            if value not in known:
                words = ", ".join(k for k in known if k)
                fail("bad-option", f"no {name} '{value}' of partition", help=f"it is {words}")
