"""in_cluster: what lies in the memory of a cluster is given and needed by its blocks alone."""

from __future__ import annotations

from meshc.analysis.proofs.isl import find_point
from meshc.analysis.tasks.accesses import OTHER, Access, At, accesses
from meshc.analysis.tasks.order import leaves_cluster, same_cluster
from meshc.ir.affine import Cond, Expr
from meshc.ir.module import Module
from meshc.ir.ops import task
from meshc.support.diagnostics import fail
from meshc.verify.tasks import element_text, task_text


def check(module: Module) -> None:
    """For each buffer in the memory of clusters, blocks of one cluster run who gives an element and
    who needs it, and no two elements that a cluster gives have one place. Raises
    ``outside-cluster``."""
    of_cluster = {b.value: b.cluster for b in module.buffers if b.cluster is not None}
    every = [access for access in accesses(module) if access.buffer in of_cluster]
    gives = [access for access in every if isinstance(access.op, task.Give)]
    for give in gives:
        for other in every:
            if other.buffer is not give.buffer:
                continue
            if isinstance(other.op, task.Need):
                _within(module, other, give)
            else:
                _apart(module, give, other, *of_cluster[give.buffer])


def _within(module: Module, need: Access, give: Access) -> None:
    reader, writer = At(need, module), At(give, module, OTHER)
    point = leaves_cluster(module, need, give)
    if point is not None:
        fail(
            "outside-cluster",
            f"{need.words} needs {element_text(reader, point)} of another cluster, in whose memory "
            f"{task_text(writer, point)} gives it",
            need.op.span,
            notes=[f"in {task_text(reader, point)}"],
            help="leave it in the memory of the GPU, which the pass fuse-cluster does",
        )


def _apart(module: Module, one: Access, other: Access, dim: int, extent: int) -> None:
    rank = len(one.elements)
    first, second = At(one, module, shared=rank), At(other, module, OTHER, shared=rank)
    here, there = (Expr.var(at.name(at.access.elements[dim])) for at in (first, second))
    meet = Cond.eq((here - there) % extent, 0) & Cond.ne(here, there)
    point = find_point(first.touched & second.touched & same_cluster(first, second) & meet)
    if point is not None:
        fail(
            "outside-cluster",
            f"{element_text(first, point)}, given by {task_text(first, point)}, and "
            f"{element_text(second, point)} have one place in the memory of their cluster",
            one.op.span,
            help=f"{one.buffer} has too little of dim {dim} there",
        )
