"""The ops of a whole graph become those of one rank: parts of dims, partial sums, collectives."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from meshc.ir.builder import Names
from meshc.ir.core import Block, Op, tensor_type
from meshc.ir.module import Module
from meshc.ir.ops import graph, ranks
from meshc.ir.ranks import RankPart
from meshc.ir.types import TensorType
from meshc.ir.values import Value
from meshc.support.diagnostics import fail

_ENDS = (graph.Yield, graph.Return)


class RankGraph:
    """Rewrites ``module`` in place, whose header has the extents of ``parts`` already.

    ``whole`` are parameters, and slices of them, that each rank has all of where they count
    experts. A value is what all ranks have alike, a part (it has a dim that is one), or a sum over
    the ranks that is still to be completed. Products over a part leave such a sum; it stays open
    through sums of two such values and products with what all ranks have, and is completed in front
    of all else.
    """

    def __init__(self, module: Module, parts: Collection[RankPart], whole: set[Value]) -> None:
        self.module = module
        self.parts = {part.whole: part for part in parts}
        self.own = {part.dim for part in parts}
        self.kept = whole
        self.experts = {op.dim for op in module.walk() if isinstance(op, graph.TopK)}
        self.names = Names.of(module)
        self.states = _state_results(module)
        self.open: set[Value] = set()
        self.completed: dict[Value, Value] = {}
        self.ops: list[Op] = []

    def run(self) -> None:
        """Do it. Fails with ``unsupported-op`` where an op cannot be computed by parts."""
        function = self.module.function
        for param in function.params:
            if param.role != "in":
                param.value.type = self.param_type(param.value)
        self.block(function.body)
        function.result_types = [value.type for value in function.body.ops[-1].tensors()]
        self.module.attention = tuple(
            replace(one, query=self.own_name(one.query), key=self.own_name(one.key))
            for one in self.module.attention
        )

    def own_name(self, dim: str) -> str:
        """What a rank has of ``dim``: its part, or all of it."""
        return self.parts[dim].dim if dim in self.parts else dim

    def param_type(self, value: Value) -> TensorType:
        """The type of a rank's part of a weight or a state."""
        kind = tensor_type(value)
        stays = self.experts if value in self.kept else set()
        return TensorType(
            kind.dtype, tuple(d if d in stays else self.own_name(d) for d in kind.dims)
        )

    def block(self, block: Block) -> None:
        """Rewrite the ops of ``block``, whose arguments have their types."""
        outer, self.ops = self.ops, []
        for op in block.ops:
            self.visit(op)
        block.ops, self.ops = self.ops, outer

    def visit(self, op: Op) -> None:
        """Rewrite one op and append it, behind what completes or takes parts of its operands."""
        stays = self.stays_open(op)
        if not stays:
            op.operands = [self.complete(value) for value in op.tensors()]
        if isinstance(op, graph.Repeat):
            self.repeat(op)
            return
        if isinstance(op, graph.Return):
            op.operands = [
                value if i in self.states else self.gathered(value)
                for i, value in enumerate(op.tensors())
            ]
        if isinstance(op, _ENDS):
            self.ops.append(op)
            return
        self.take_parts(op)
        op = self.renamed(op)
        self.place(op)
        if stays or self.sums_parts(op):
            self.leave_open(op)

    def stays_open(self, op: Op) -> bool:
        """Whether ``op`` is linear in operands that are sums still to be completed."""
        waiting = [value in self.open for value in op.tensors()]
        if isinstance(op, graph.Add):
            return all(waiting)
        if isinstance(op, graph.Mul):
            return waiting in ([True, False], [False, True]) and not self.has_part(op)
        return isinstance(op, (graph.Scale, graph.Transpose)) and all(waiting)

    def has_part(self, op: Op) -> bool:
        """Whether an operand of ``op`` is a part."""
        return any(self.own & {*tensor_type(value).dims} for value in op.tensors())

    def complete(self, value: Value) -> Value:
        """``value``, summed over all ranks where that is still to be done."""
        if value not in self.open:
            return value
        if value not in self.completed:
            op = ranks.AllReduce([value])
            self.completed[value] = self.added(op, f"{value.name}_sum")
        return self.completed[value]

    def gathered(self, value: Value) -> Value:
        """``value`` with the parts of all ranks."""
        for dim in tensor_type(value).dims:
            for part in self.parts.values():
                if part.dim == dim:
                    op = ranks.AllGather([value], dim=dim, whole=part.whole)
                    value = self.added(op, f"{value.name}_whole")
        return value

    def added(self, op: Op, name: str) -> Value:
        """The result of ``op``, which comes next."""
        kinds = op.infer(self.module.dims) or []
        op.results = [Value(self.names.fresh(name), kind) for kind in kinds]
        self.ops.append(op)
        return op.result

    def take_parts(self, op: Op) -> None:
        """Where one operand is a part of a dim that another has whole, take the part of that."""
        found = {dim for value in op.tensors() for dim in tensor_type(value).dims}
        operands = op.tensors()
        for part in self.parts.values():
            if part.dim not in found or part.whole not in found:
                continue
            for i, value in enumerate(operands):
                if part.whole in tensor_type(value).dims:
                    taken = ranks.RankPartOf([value], dim=part.dim, whole=part.whole)
                    operands[i] = self.added(taken, f"{value.name}_part")
        op.operands = [*operands]

    def renamed(self, op: Op) -> Op:
        """``op`` with the names of parts in its attributes; a look-up in a part of a table is an op
        of its own."""
        dims = {dim for value in op.tensors() for dim in tensor_type(value).dims}
        names = {p.whole: p.dim for p in self.parts.values() if p.dim in dims}
        if isinstance(op, graph.Embed) and op.dim in names:
            part = ranks.RankEmbed([*op.operands], op.results, dim=names[op.dim], whole=op.dim)
            part.span = op.span
            return part
        if isinstance(op, graph.Matmul):
            op.contract = tuple(names.get(d, d) for d in op.contract)
            op.group = tuple(names.get(d, d) for d in op.group)
        elif isinstance(op, graph.Transpose):
            op.dims = tuple(names.get(d, d) for d in op.dims)
        return op

    def place(self, op: Op) -> None:
        """Append ``op`` with the types that follow from its operands."""
        kinds = op.infer(self.module.dims)
        if kinds is None or op.regions:
            fail(
                "unsupported-op",
                f"{op.NAME} is no op that a rank computes by parts",
                op.span,
                help="tensor-parallel comes before passes that fuse ops",
            )
        for value, kind in zip(op.results, kinds, strict=True):
            value.type = kind
        self.ops.append(op)

    def sums_parts(self, op: Op) -> bool:
        """Whether the results of ``op`` are sums over parts."""
        if isinstance(op, ranks.RankEmbed):
            return True
        return isinstance(op, graph.Matmul) and bool(self.own & {*op.contract})

    def leave_open(self, op: Op) -> None:
        """The results of ``op`` are sums still to be completed, of which no dim is a part."""
        for value in op.results:
            if self.own & {*tensor_type(value).dims}:
                fail(
                    "unsupported-op",
                    f"{op.NAME} {value} would be a part of a sum over the ranks",
                    op.span,
                    help="name the dim that it sums over in 'keep', so that each rank has it whole",
                )
            self.open.add(value)

    def repeat(self, op: graph.Repeat) -> None:
        """A loop carries what all ranks have; stacks and their slices are parts."""
        (body,) = op.regions
        for argument, value in zip(body.args, op.tensors(), strict=True):
            kind = tensor_type(value)
            argument.type = TensorType(kind.dtype, tuple(d for d in kind.dims if d != op.dim))
        self.block(body)
        given = [tensor_type(value) for value in body.ops[-1].tensors()]
        for i, (value, kind) in enumerate(zip(op.results, given, strict=True)):
            value.type = kind if i < op.carried else TensorType(kind.dtype, (op.dim, *kind.dims))
        self.ops.append(op)


def _state_results(module: Module) -> set[int]:
    """Which results of the function are the next values of its states."""
    states = {param.value for param in module.function.params if param.role == "state"}
    before: dict[Value, Value] = {}
    for op in module.walk():
        if isinstance(op, graph.Append):
            before[op.result] = op.tensors()[0]
        elif isinstance(op, graph.Repeat):
            (body,) = op.regions
            before.update(zip(op.results, body.ops[-1].tensors(), strict=True))
            before.update(zip(body.args[op.carried :], op.tensors()[op.carried :], strict=True))
    found = set()
    for i, value in enumerate(module.function.body.ops[-1].tensors()):
        seen = value
        while seen in before:
            seen = before[seen]
        if seen in states:
            found.add(i)
    return found
