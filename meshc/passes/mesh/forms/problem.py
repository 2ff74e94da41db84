"""What is lowered, and what every form may know about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from meshc.analysis.expert_dims import Routes, expert_dims, routes_of, whole_dims
from meshc.analysis.layout.tiling import Tiling, has_many_rows
from meshc.cost.growing_plans import PlanCosts
from meshc.cost.mesh_ops import MeshCosts, has_costs
from meshc.cost.track_sets import Algorithms
from meshc.ir.core import Op, Operand
from meshc.ir.mesh import Mesh
from meshc.ir.module import Module
from meshc.ir.ops import graph
from meshc.ir.types import DType
from meshc.ir.values import Value

AUTO = "auto"
"""The policy of KV caches is chosen by cost."""


@dataclass(frozen=True, eq=False)
class Problem:
    """A function of ``source`` that is to be laid over ``mesh``.

    ``gemm``, ``align``, ``result`` and ``kv`` are settings of partition. ``row_dim`` counts rows of
    tokens, of which a run has ``many_rows`` or one. ``users`` are the ops that read a value;
    ``turned`` are dims of which RoPE turns neighbours, ``experts`` those that count experts, of
    which ``routes`` says what is computed for rows that gates send alone, ``whole`` those of which
    every core has all; ``constants`` are weights and their slices in loops; ``windowed`` is whether
    rows see a window of the cache only; ``costs`` predicts mesh ops, or is None where no device is
    named or none of its cores computes with the module's types.
    """

    source: Module
    mesh: Mesh
    tiling: Tiling
    gemm: str
    align: str
    result: str
    kv: str
    many_rows: bool
    users: Mapping[Value, Sequence[Op]]
    turned: frozenset[str]
    experts: frozenset[str]
    whole: frozenset[str]
    routes: Routes
    constants: frozenset[Value]
    windowed: bool
    costs: MeshCosts | None

    @property
    def row_dim(self) -> str:
        """The dim that counts rows of tokens, or nothing."""
        return self.source.row_dim

    @property
    def extents(self) -> Mapping[str, int]:
        """Extents of dims."""
        return self.source.dims

    @property
    def dtype(self) -> DType:
        """Element type of activations and weights on the cores."""
        return self.source.dtype()

    @property
    def accumulate(self) -> DType:
        """Element type of sums."""
        return self.source.accumulate()

    @property
    def holds_copies(self) -> bool:
        """Whether the search may lay whole features on every core of a row, and weights on every
        row of the mesh: where all cores reach each other at once. A wafer has many small memories,
        which copies would use up; there only a pin asks for them."""
        return all(map(self.source.reaches_all, self.mesh.plane))

    @cached_property
    def plan_costs(self) -> PlanCosts | None:
        """What single ops cost a plan; None where nothing has any cost."""
        return None if self.costs is None else PlanCosts(self.costs)

    def used_by(self, value: Operand) -> Sequence[Op]:
        """The ops that read ``value``."""
        return self.users.get(value, ()) if isinstance(value, Value) else ()

    def is_returned(self, value: Value) -> bool:
        """Whether main gives ``value`` back, once, and nothing else reads it: the host takes it as
        it is, in the type of sums."""
        reads = [op for op in self.used_by(value) for operand in op.operands if operand is value]
        return len(reads) == 1 and isinstance(reads[0], graph.Return)

    def is_weight(self, value: Operand) -> bool:
        """Whether ``value`` is a weight, or a layer's slice of one."""
        return value in self.constants

    def is_given(self, value: Operand) -> bool:
        """Whether ``value`` is a parameter of the function."""
        return any(p.value is value for p in self.source.function.params)


def problem_of(
    module: Module,
    mesh: Mesh,
    tiling: Tiling,
    gemm: str,
    align: str,
    result: str,
    kv: str,
) -> Problem:
    """The problem of laying ``module`` over ``mesh``, with settings of partition."""
    users: dict[Value, list[Op]] = {}
    for op in module.walk():
        for value in dict.fromkeys(op.tensors()):
            users.setdefault(value, []).append(op)
    return Problem(
        source=module,
        mesh=mesh,
        tiling=tiling,
        gemm=gemm,
        align=align,
        result=result,
        kv=kv,
        many_rows=has_many_rows(module, module.row_dim),
        users=users,
        turned=frozenset(op.dim for op in module.walk() if isinstance(op, graph.Rope)),
        experts=expert_dims(module),
        whole=whole_dims(module),
        routes=routes_of(module),
        constants=_constants(module),
        windowed=any(isinstance(op, graph.Softmax) and op.window for op in module.walk()),
        costs=_costs(module, mesh, result),
    )


def without_limits(problem: Problem) -> Problem:
    """The same problem where reductions may have any number of channels."""
    if problem.costs is None:
        return problem
    return replace(problem, costs=problem.costs.without_limits())


def _constants(module: Module) -> frozenset[Value]:
    found = {p.value for p in module.function.params if p.role == "weight"}
    for op in module.walk():
        if isinstance(op, graph.Repeat):
            pairs = list(zip(op.tensors(), op.regions[0].args, strict=True))[op.carried :]
            found |= {arg for stack, arg in pairs if stack in found}
    return frozenset(found)


def _costs(module: Module, mesh: Mesh, result: str) -> MeshCosts | None:
    if not has_costs(module):
        return None
    return MeshCosts.of_module(module, mesh, Algorithms(rooted=result == "roots"))
