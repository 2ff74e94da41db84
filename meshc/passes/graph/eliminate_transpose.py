"""eliminate-transpose: contract by name what the user transposed by hand."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

from meshc.ir.clone import clone_module
from meshc.ir.core import tensor_type
from meshc.ir.module import Module
from meshc.ir.ops import graph
from meshc.ir.rewriter import Rewriter
from meshc.passes.base import Pass
from meshc.passes.graph.retype import retype
from meshc.support.diagnostics import Diagnostics


@dataclass(frozen=True)
class EliminateTranspose(Pass):
    """Remove every op that only reorders dims (WaferLLM section 4.1).

    A matmul contracts dims by name, so the order of its operands' dims does not matter: the
    distributed algorithms pick the one in which nothing moves (dist-GEMM-T for scores). On a mesh
    a transpose is an all-to-all whose longest message goes from corner to corner, columns + rows
    - 2 hops; a remark says so for each one that is gone.

    Before::

        %t = graph.transpose %k {dims = [G, D, S]} : f32[G, D, S]
        %s = graph.matmul %q, %t {contract = [D], group = [H, G]} : f32[L, H, S]

    After::

        %s = graph.matmul %q, %k {contract = [D], group = [H, G]} : f32[L, H, S]

    A transpose whose order is visible from outside (a result of the function, a value carried
    over layers) cannot be removed and is an error, ``transpose-kept``.
    """

    NAME: ClassVar[str] = "eliminate-transpose"
    LEVELS: ClassVar[tuple[str, ...]] = ("graph",)
    REQUIRES: ClassVar[frozenset[str]] = frozenset()
    ESTABLISHES: ClassVar[frozenset[str]] = frozenset({"transpose_free"})
    INVALIDATES: ClassVar[frozenset[str]] = frozenset()

    def run(self, module: Module, report: Diagnostics) -> Module:
        every = _transposes(module)
        removable = every if not _problems(module, every) else _greedy(module, every)
        for op in every:
            if op in removable:
                report.remark("transpose-eliminated", _saved(module, op), op.span)
        kept = [op for op in every if op not in removable]
        for op in kept:
            report.error(
                "transpose-kept",
                f"{op.result} reorders the dims of {op.operands[0]} and cannot be removed",
                op.span,
                notes=[*dict.fromkeys(_problems(module, [op])), _cost(module, op)],
                help="transpose where a matmul contracts the dims, or not at all",
            )
        report.raise_errors()
        _remove(module, removable)
        retype(module)
        return module


def _transposes(module: Module) -> list[graph.Transpose]:
    return [op for op in module.walk() if isinstance(op, graph.Transpose)]


def _remove(module: Module, chosen: list[graph.Transpose]) -> None:
    rewriter = Rewriter(module)
    for op in chosen:
        rewriter.replace_op(op, op.tensors())


def _problems(module: Module, chosen: list[graph.Transpose]) -> list[str]:
    """What would no longer fit without the ``chosen`` ones; tried on a copy."""
    places = [i for i, op in enumerate(_transposes(module)) if op in chosen]
    trial = clone_module(module)
    copies = _transposes(trial)
    _remove(trial, [copies[i] for i in places])
    return retype(trial)


def _greedy(module: Module, every: list[graph.Transpose]) -> list[graph.Transpose]:
    """As many as go one after the other, where not all can go at once."""
    chosen: list[graph.Transpose] = []
    for op in every:
        if not _problems(module, [*chosen, op]):
            chosen.append(op)
    return chosen


def _saved(module: Module, op: graph.Transpose) -> str:
    before = ", ".join(tensor_type(op.operands[0]).dims)
    return (
        f"the transpose of {op.operands[0]} [{before}] to [{', '.join(op.dims)}] is gone: "
        f"{_cost(module, op)}"
    )


def _cost(module: Module, op: graph.Transpose) -> str:
    """What the transpose moves and how far."""
    elements = prod(tensor_type(op.operands[0]).shape(module.dims))
    return f"an all-to-all of {elements} elements over columns + rows - 2 hops"
