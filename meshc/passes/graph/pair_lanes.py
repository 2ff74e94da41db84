"""Rotate-half RoPE to interleaved pairs, by reordering lanes in the weights that make them.

All ropes over one dim change together or not at all: a reordered q must meet a reordered k.
Where only the first lanes turn, all are reordered in runs of as many, which others do not mind, or
those behind them in a run of their own.
Backwards from each rope, everything that carries the dim must be reorderable: products with
weights, biases, gains, functions of elements, read by nothing else. Forwards, reordered lanes may
only flow into a cache of their own and into contractions over the dim with another reordered side.
"""

from __future__ import annotations

from collections.abc import Iterable

from meshc.ir.core import Op, tensor_type
from meshc.ir.functions import Function
from meshc.ir.module import Module, Param
from meshc.ir.ops import graph
from meshc.ir.origins import origins, readers
from meshc.ir.rewriter import Rewriter
from meshc.ir.rows import Paired
from meshc.ir.values import Value
from meshc.support.diagnostics import Diagnostics

_POINTWISE = (graph.Add, graph.Mul, graph.Scale, graph.RmsNorm, graph.Centre, Function)


class _NotReorderable(Exception):
    """Why the lanes cannot be reordered."""


def pair_lanes(module: Module, report: Diagnostics) -> None:
    """Turn the style of every rope whose lanes can be reordered into ``interleaved``."""
    ropes = [o for o in module.walk() if isinstance(o, graph.Rope) and o.style == "half"]
    for dim in dict.fromkeys(rope.dim for rope in ropes):
        mine = [rope for rope in ropes if rope.dim == dim]
        try:
            weights = _Lanes(module, dim, mine).weights()
        except _NotReorderable as why:
            report.remark("rope-kept", f"RoPE over {dim} stays rotate-half: {why}", mine[0].span)
            continue
        for rope in mine:
            rope.style = "interleaved"
        run = mine[0].lanes(module.dims[dim])
        pairs = Paired(dim, run if run < module.dims[dim] else 0)
        module.paired |= dict.fromkeys(weights, pairs)
        report.remark(
            "rope-paired",
            f"RoPE over {dim} turns neighbouring lanes: those of {', '.join(weights)} are "
            "reordered when they are packed",
            mine[0].span,
        )


class _Lanes:
    """The values over ``dim`` around the ropes, and whether they can all be reordered."""

    def __init__(self, module: Module, dim: str, ropes: list[graph.Rope]) -> None:
        self.module = module
        self.dim = dim
        self.ropes = ropes
        self.params = origins(module)
        self.rewriter = Rewriter(module)
        self.makers = {result: op for op in module.walk() for result in op.results}
        repeats = [op for op in module.walk() if isinstance(op, graph.Repeat)]
        self.loops = {op.regions[0].ops[-1]: op for op in repeats}
        self.inside: set[Value] = set()
        self.leaves: list[Param] = []

    def weights(self) -> list[str]:
        """Names of the weights to reorder; raises :class:`_NotReorderable` with the reason."""
        others = [o for o in self.module.walk() if isinstance(o, graph.Rope)]
        if any(o.dim == self.dim and o.style != "half" for o in others):
            raise _NotReorderable("another RoPE over it is interleaved already")
        extent = self.module.dims[self.dim]
        runs = {rope.lanes(extent) for rope in self.ropes}
        if len(runs) > 1:
            raise _NotReorderable("RoPEs turn different lanes of it")
        if not Paired(self.dim, max(runs)).fits(extent):
            raise _NotReorderable(f"{max(runs)} lanes turn, and the {extent} are no multiple")
        for rope in self.ropes:
            self.backwards(rope.tensors()[0])
        for value in self.inside:
            for user in self.rewriter.users(value):
                if not self.belongs(user):
                    raise _NotReorderable(f"{value} is also read by {user.NAME}")
        for param in self.leaves:
            for user, value in readers(self.module, param):
                if not self.belongs(user):
                    raise _NotReorderable(f"weight {value} is also read by {user.NAME}")
        self.forwards([rope.result for rope in self.ropes])
        return list(dict.fromkeys(param.value.name for param in self.leaves))

    def has_dim(self, value: Value) -> bool:
        return self.dim in tensor_type(value).dims

    def belongs(self, op: Op) -> bool:
        """Whether ``op`` is one of the ropes or makes a value that is reordered."""
        return any(op is rope for rope in self.ropes) or any(r in self.inside for r in op.results)

    def backwards(self, value: Value) -> None:
        """Collect what makes the lanes of ``value``."""
        param = self.params.get(value)
        if param is not None:
            if param.role != "weight":
                raise _NotReorderable(f"its operand {value} comes from outside")
            if all(param is not known for known in self.leaves):
                self.leaves.append(param)
            return
        if value in self.inside:
            return
        op = self.makers.get(value)
        if isinstance(op, graph.Matmul):
            self.product(op, value)
        elif isinstance(op, _POINTWISE):
            self.inside.add(value)
            for operand in op.tensors():
                if self.has_dim(operand):
                    self.backwards(operand)
        else:
            what = op.NAME if op is not None else "a loop value"
            raise _NotReorderable(f"{value} comes from {what}")

    def product(self, op: graph.Matmul, value: Value) -> None:
        """The lanes of a product are those of its right operand."""
        right = op.tensors()[1 + op.results.index(value)]
        if self.has_dim(op.tensors()[0]) or not self.has_dim(right):
            raise _NotReorderable(f"{value} is no product with a weight over {self.dim}")
        self.inside.add(value)
        self.backwards(right)

    def forwards(self, start: Iterable[Value]) -> None:
        """Follow the rotated values to the contractions that make their order irrelevant."""
        rotated = set(start)
        pending = list(rotated)
        products: list[graph.Matmul] = []
        while pending:
            value = pending.pop()
            for user in self.rewriter.users(value):
                if isinstance(user, graph.Matmul) and self.dim in user.contract:
                    products.append(user)
                elif isinstance(user, (graph.Transpose, graph.Scale)):
                    pending += [r for r in user.results if r not in rotated]
                    rotated |= set(user.results)
                elif isinstance(user, graph.Append) and user.operands[1] is value:
                    self.own_cache(user)
                    pending += [r for r in user.results if r not in rotated]
                    rotated |= set(user.results)
                elif not self.leaves_as_state(user, value):
                    raise _NotReorderable(f"the rotated {value} is read by {user.NAME}")
        for product in products:
            for operand in product.tensors():
                if operand not in rotated:
                    raise _NotReorderable(f"{product.result} contracts it with {operand}")

    def own_cache(self, op: graph.Append) -> None:
        """The cache must be a state that nothing but this append reads."""
        cache = op.tensors()[0]
        param = self.params.get(cache)
        if param is None or param.role != "state" or len(readers(self.module, param)) != 1:
            raise _NotReorderable(f"the cache {cache} is used elsewhere too")

    def leaves_as_state(self, user: Op, value: Value) -> bool:
        """Whether ``user`` only hands an appended cache out of its loop and the function."""
        if not isinstance(self.makers.get(value), graph.Append):
            return False
        if isinstance(user, graph.Return):
            return True
        loop = self.loops.get(user)
        if loop is None:
            return False
        place = user.operands.index(value)
        outside = self.rewriter.users(loop.results[place]) if place >= loop.carried else [loop]
        return all(isinstance(o, graph.Return) for o in outside)
