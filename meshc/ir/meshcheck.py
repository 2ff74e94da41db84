"""Modules of the mesh level, held against their header: heads of products, and the type of sums."""

from __future__ import annotations

from collections.abc import Iterator

from meshc.ir.core import tensor_type
from meshc.ir.module import Module
from meshc.ir.ops import mesh
from meshc.support.spans import Span

_SUMS = (mesh.Product, mesh.ExpertGemv, mesh.Combine, mesh.RowSum, mesh.SquareSum)


def mesh_mistakes(module: Module) -> Iterator[tuple[str, Span | None, str]]:
    """What is wrong, where, and a help; nothing for modules of other levels.

    Heads of a product that share heads of another side are queries and keys of attention, whose
    tiles the header's names decide. Sums have the type that the option ``accumulate`` names, so
    that nobody rounds them before what takes them does.
    """
    if module.level != "mesh":
        return
    known = {(one.query, one.key) for one in module.attention}
    sums = module.accumulate()
    for op in module.walk():
        if isinstance(op, mesh.Product) and len(op.group) == 2 and op.group not in known:
            query, key = op.group
            words = f"{op.NAME}: the header does not say that heads {query} share heads {key}"
            yield words, op.span, f"such as: attention query = {query}, key = {key}, .."
        for value in op.results if isinstance(op, _SUMS) else ():
            dtype = tensor_type(value).dtype
            if dtype is not sums:
                words = f"{op.NAME}: {value} is {dtype}, but sums are {sums}"
                yield words, op.span, f"options accumulate = {dtype}, or round it behind the sum"
