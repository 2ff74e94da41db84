"""partition: choose layouts, and so lower the graph level to the mesh level."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isinf, prod
from typing import ClassVar

from meshc.analysis.layout.tiling import choose_tiling, has_many_rows, heads_of, most_rows
from meshc.cost.products import ALGORITHMS
from meshc.ir.batch import BATCH, REQUEST, batch_of
from meshc.ir.core import tensor_type
from meshc.ir.mesh import Mesh, plane_of
from meshc.ir.module import Function, Module
from meshc.ir.ops import graph
from meshc.ir.ops.mesh import ALIGNMENTS, CACHE_POLICIES, RESULTS, Dispatch
from meshc.ir.values import Value
from meshc.passes.base import Pass
from meshc.passes.mesh.form_search import Search
from meshc.passes.mesh.forms.lowering import Lowering
from meshc.passes.mesh.forms.problem import AUTO, Problem, problem_of, without_limits
from meshc.support.diagnostics import Diagnostics, fail
from meshc.verify import check_fact


@dataclass(frozen=True)
class Partition(Pass):
    """Give every value a layout on the mesh and every op the form that costs least in all.

    A search over ``passes/mesh/forms`` finds, for the models of WaferLLM on its wafer, the prefill
    plan of Fig. 3 (``BL_y E_x``, MeshGEMM) and the decode plan of Fig. 4 (``E_y`` replicated over
    x, MeshGEMV). Heads go whole groups first over a factor of x, then pairs of lanes, in the split
    that leaves the fewest lanes per core; where all cores reach each other at once, whole heads
    first, and key heads on several cores if there are fewer.

    ``forms`` pins some, such as ``q=gemv_y``. ``grid`` is columns x rows, or such as ``y=6,x=10``,
    and has no default. ``gemm`` ``transposed`` multiplies with transposed inputs (dist-GEMM-T).
    ``align`` says who skews operands of products, ``host`` or ``device``; empty is the host for
    weights, the cores for inputs. ``result`` ``roots`` leaves reduced results of main on the first
    cores. ``kv`` is the policy of KV caches, ``auto`` the cheaper of ``shift`` and ``cyclic``, with
    the queues that a ring takes from reductions.

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
    kv: str = AUTO
    forms: tuple[str, ...] = ()

    def run(self, module: Module, report: Diagnostics) -> Module:
        self._check()
        _check_batch(module)
        problem = self.problem(module)
        tiling, mesh = problem.tiling, problem.mesh
        search = Search(problem, _pins(self.forms), _room(module, mesh))
        best, *others = search.run()
        if isinf(best.cost.total):  # select-collective refuses it, where it is asked for
            search = replace(search, problem=without_limits(problem), several={})
            best, *others = search.run()
        for words, span in best.moves:
            report.remark("relayout", words, span)
        if search.several and problem.costs is not None:
            report.remark("forms", _choice(search, best, others))
        for op in module.walk():
            if isinstance(op, graph.TopK):
                words = f"a row goes to {op.count} of the {module.dims[op.dim]} experts of {op.dim}"
                computed = "those alone" if _dispatches(best, op.dim) else "all of them"
                report.remark("experts", f"{words}; {computed} are computed for it", op.span)
        if tiling.heads is not None and tiling.heads.headless:
            report.remark(
                "partition-heads",
                f"{module.dims[tiling.heads.query]} query heads over {tiling.columns} columns, "
                f"{tiling.query_block} on each, all of which have the same cache",
            )
        elif tiling.heads is not None:
            shared = f", {tiling.copies} of which have the same keys" if tiling.copies > 1 else ""
            report.remark(
                "partition-heads",
                f"{module.dims[tiling.heads.key]} groups of heads over {tiling.segments} segments "
                f"of {tiling.segment} columns{shared}: {tiling.query_block} query heads x "
                f"{tiling.lane_block} lanes per core",
            )
        lowered = Module(
            module.name,
            "mesh",
            dict(module.dims),
            dict(module.scalars),
            dict(module.options),
            module.rows,
            module.attention,
            dict(module.paired),
            module.device,
            mesh,
            multiples=dict(module.multiples),
        )
        lowered.functions = [_finished(best)]
        check_fact(lowered, "padding_safe")
        return lowered

    def problem(self, module: Module) -> Problem:
        """``module`` with its mesh, and how its heads and rows meet that."""
        if not self.grid:
            fail("bad-option", "partition is not told its mesh", help="write partition{grid=24x24}")
        columns, rows = module.axes.size_of(self.grid)
        heads = heads_of(module)
        whole = module.reaches_all(module.axes.across)
        tiling = choose_tiling(
            module.dims, heads, rows, columns, module.capacity, whole, most_rows(module)
        )
        mesh = plane_of(module.axes.plane, rows, columns, tiling.segments if heads else None)
        return problem_of(module, mesh, tiling, self.gemm, self.align, self.result, self.kv)

    def _check(self) -> None:
        """Fail with ``bad-option`` for a setting that is none."""
        settings = (
            ("gemm", self.gemm, ("auto", "transposed", *ALGORITHMS)),
            ("align", self.align, ("", *ALIGNMENTS)),
            ("result", self.result, RESULTS),
            ("kv", self.kv, (AUTO, *CACHE_POLICIES)),
        )
        for name, value, known in settings:
            if value not in known:
                words = ", ".join(k for k in known if k)
                fail("bad-option", f"no {name} '{value}' of partition", help=f"it is {words}")


def _check_batch(module: Module) -> None:
    """Fail with ``unsupported-batch`` where both tokens and requests are rows, or a step of several
    requests is asked for one of them."""
    batch, rows = batch_of(module), module.row_dim
    if batch > 1 and REQUEST in module.scalars:
        fail(
            "unsupported-batch",
            f"a step of {batch} requests takes the run-time scalar '{REQUEST}', which is for "
            "phases of one request",
        )
    if batch > 1 and rows != BATCH and has_many_rows(module, rows):
        fail(
            "unsupported-batch",
            f"a batch of {batch} requests with many rows of tokens {rows} each",
            help=f"read them one at a time, with {BATCH} = 1; the run-time scalar "
            f"'{REQUEST} = 0..{batch - 1}' says whose cache a run fills",
        )


def _choice(search: Search, best: Lowering, others: list[Lowering]) -> str:
    """Which forms were chosen where there were several, what they cost, and the next best."""
    taken = dict(best.chosen)
    words = ", ".join(f"{name} {form}" for name, form in taken.items() if name in search.several)
    found = f"{words}: {best.cost.total:.0f} cycles"
    for other in others:
        instead = {name: form for name, form in other.chosen if taken.get(name) != form}
        changed = ", ".join(f"{name} {form}" for name, form in instead.items())
        found += f"; next best with {changed}: {other.cost.total:.0f} cycles"
    return found


def _dispatches(way: Lowering, dim: str) -> bool:
    """Whether rows are sent to the experts ``dim``."""
    return any(isinstance(op, Dispatch) and op.dim == dim for op in way.block.walk())


def _pins(forms: tuple[str, ...]) -> dict[str, str]:
    """``name=form`` texts as a table. Fails with ``bad-option`` for anything else."""
    found = {}
    for text in forms:
        name, equals, form = text.partition("=")
        if not (name and equals and form):
            fail(
                "bad-option",
                f"'{text}' pins no form",
                help="write the result=form, such as q=gemv_y",
            )
        found[name] = form
    return found


def _room(module: Module, mesh: Mesh) -> int | None:
    """Bytes of weights that a core can have if the layers go to as many regions as there is room
    for; None where memory is no limit, since there is enough for a
    copy of everything that a run is given."""
    device = module.device
    if device is None or device.room_bytes is None:
        return None
    regions = (device.cores_x // mesh.columns) * (device.cores_y // mesh.rows)
    room = device.room_bytes * max(1, regions)
    kinds = [tensor_type(p.value) for p in module.function.params if p.role != "state"]
    whole = sum(kind.dtype.bytes * prod(kind.shape(module.dims)) for kind in kinds)
    return None if whole <= room else room


def _finished(way: Lowering) -> Function:
    """The function that a way has come to, with the layouts of its weights in their types and
    results called as the model calls them."""
    source = way.problem.source.function
    values = [p.value for p in way.params]
    values += [v for op in way.block.walk() for region in op.regions for v in region.args]
    for value in values:
        value.type = way.type_of(value).with_layout(way.layout_of(value))
    for asked, value in zip(
        source.body.ops[-1].tensors(), way.block.ops[-1].tensors(), strict=True
    ):
        if value.name.startswith(f"{asked.name}_"):
            _swap_names(way, value, asked.name)
    return Function(
        source.name, list(way.params), [v.type for v in way.block.ops[-1].tensors()], way.block
    )


def _swap_names(way: Lowering, value: Value, name: str) -> None:
    """Call ``value`` by ``name``, which a value on the way to it may have taken; that one gets the
    name of ``value``."""
    other = way.names[name]
    value.name, other.name = name, value.name
    way.names |= {v.name: v for v in (value, other)}
