"""Where values inside loops come from: block arguments traced back to function parameters."""

from __future__ import annotations

from meshc.ir.core import Op
from meshc.ir.module import Module, Param
from meshc.ir.ops import graph
from meshc.ir.values import Value


def stacked_slices(module: Module) -> dict[Value, Value]:
    """Each block argument that is one layer's slice of a stack, with the stack it comes from."""
    found: dict[Value, Value] = {}
    for op in module.walk():
        if isinstance(op, graph.Repeat):
            pairs = list(zip(op.tensors(), op.regions[0].args, strict=True))
            found.update({inner: outer for outer, inner in pairs[op.carried :]})
    return found


def origins(module: Module) -> dict[Value, Param]:
    """Every value that is a function parameter or a slice of one, with that parameter; those
    inside loops and fused kernels too."""
    found = {param.value: param for param in module.function.params}
    inside = {**stacked_slices(module), **_fused(module)}
    for inner, outer in inside.items():
        if outer in found:
            found[inner] = found[outer]
    return found


def _fused(module: Module) -> dict[Value, Value]:
    """Each block argument of a fused kernel, with the value it stands for."""
    kernels = [op for op in module.walk() if isinstance(op, graph.Fuse)]
    pairs = (zip(op.regions[0].args, op.tensors(), strict=True) for op in kernels)
    return {inner: outer for each in pairs for inner, outer in each}


def readers(module: Module, param: Param) -> list[tuple[Op, Value]]:
    """Ops that read ``param`` or a slice of it, with the value they read; loops and fused kernels,
    whose bodies read it, excepted."""
    known = origins(module)
    return [
        (op, value)
        for op in module.walk()
        for value in op.tensors()
        if known.get(value) is param and not isinstance(op, (graph.Repeat, graph.Fuse))
    ]
