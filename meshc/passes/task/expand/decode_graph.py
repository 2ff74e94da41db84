"""Walks a decode graph and writes its program of tasks."""

from __future__ import annotations

from dataclasses import dataclass, replace

from meshc.ir.affine import Expr
from meshc.ir.core import Block, Op, tensor_type
from meshc.ir.functions import Function
from meshc.ir.module import Module
from meshc.ir.ops import batches, graph, ranks, tile
from meshc.ir.types import TensorType
from meshc.ir.values import Value
from meshc.ir.views import Point
from meshc.passes.task.expand.attention import Attending
from meshc.passes.task.expand.demand import Demand, refuse
from meshc.passes.task.expand.lane_choice import Choices
from meshc.passes.task.expand.mixtures import Experts
from meshc.passes.task.expand.products import POINTWISE, Products, joined_results
from meshc.passes.task.expand.program import TaskProgram, constant
from meshc.passes.task.expand.token_runs import Runs
from meshc.passes.task.expand.values import Known, Stored

_MISSING: dict[type[Op], str] = {
    graph.Transpose: "a value whose dims change their order",
    ranks.RankEmbed: "a part of the table of words",
    ranks.AllReduceResidualRmsNorm: "a sum of ranks that is fused with residual and norm",
}
"""What an op is for that there is no rule for."""


@dataclass(frozen=True)
class Grain:
    """How much a task has: ``rows`` lanes of products, ``tokens`` of a cache to a run that
    attention folds, its tokens shared by as many tasks as ``blocks`` have something to do, or by
    ``splits``, for ``together`` tokens of a prompt, or not its tokens but its lanes by ``lanes``;
    ``parts`` of the width of products whose left side has ``wide`` bytes, and of those of what was
    attended a part for each key head with ``heads``. With ``merge`` tasks of their own merge what
    attention leaves, with ``columns`` left sides of products lie in memory, rounded."""

    rows: int
    tokens: int
    blocks: int
    parts: int
    merge: bool
    wide: int
    heads: bool
    splits: int
    together: int
    lanes: int
    columns: bool


class GraphExpander:
    """The tasks of one graph."""

    def __init__(self, source: Module, grain: Grain) -> None:
        self.source, self.merge = source, grain.merge
        self.program = TaskProgram(source, grain.rows, grain.parts, grain.wide)
        self.demand = Demand(self.program)
        self.products = Products(self.program, self.demand, grain.heads, grain.columns)
        runs = Runs(
            self.program, grain.tokens, grain.blocks, grain.splits, grain.together, grain.lanes
        )
        self.attending = Attending(self.demand, self.products, runs)
        self.experts = Experts(self.program, self.demand, self.products)
        self.choices = Choices(self.program, self.demand, self.products, grain.blocks)
        self.env: dict[Value, Known] = {}
        self.users: dict[Value, list[Op]] = {}
        for op in source.walk():
            for value in op.tensors():
                self.users.setdefault(value, []).append(op)

    def expand(self) -> Module:
        """The module of tasks. Raises ``no-tasks`` for what there is no rule for."""
        function = self.source.function
        for op in self.source.walk():
            if type(op) in _MISSING:
                refuse(op, _MISSING[type(op)])
        for param in function.params:
            value = param.value
            users = {type(user) for user in self.users.get(value, ())}
            if param.role == "in" and users and users <= {graph.ArgMax, graph.Draw}:
                self.env[value] = self.products.given(value)
            elif param.role == "in" and not users <= {graph.Embed}:
                self.env[value] = self.products.look_up(value)
            else:
                self.env[value] = Known(value.name, tensor_type(value), weight=value)
        self._block(function.body)
        return self.program.module

    # --- ops

    def _block(self, block: Block) -> None:
        for op in block.ops:
            with self.program.origin.at(op):
                self._op(op)

    def _op(self, op: Op) -> None:
        known = [self.env[value] for value in op.tensors()]
        match op:
            case graph.Embed():
                self.env[op.result] = self.products.look_up(op.result)  # by the host
            case graph.Repeat():
                self._repeat(op)
            case graph.Return():
                self._return(op)
            case graph.RmsNorm() | graph.Centre():
                self.env[op.result] = self.products.wait(op, known)
            case graph.Append():
                self.env[op.result] = self._grown(op, *known)
            case batches.TokenCaches():
                (cache,) = known
                self.env[op.result] = replace(cache, kind=tensor_type(op.result))
            case graph.Matmul():
                self._product(op, known)
            case graph.ArgMax() | graph.Draw():
                self.env[op.result] = self.choices.choose(op, known)
            case graph.TopK():
                self.env[op.result] = self.experts.choose(op, known)
            case ranks.RankPartOf():
                self.env[op.result] = self.experts.part(op, known[0], tensor_type(op.result))
            case graph.Softmax() if known[0].scores is None and op.mask != "causal":
                self.env[op.result] = self.products.wait(op, known)
            case graph.Softmax():
                sink = known[1] if len(known) > 1 else None
                self.env[op.result] = self.attending.softmax(op, known[0], sink)
            case graph.Add() if known[0].scores is not None:
                self.env[op.result] = self.attending.sum(op, *known)
            case graph.Scale() | Function() if known[0].scores is not None:
                self.env[op.result] = self.attending.step(op, known[0])
            case graph.Rope():
                self.env[op.result] = self.products.follow(op, known)
            case ranks.AllReduce():
                self.env[op.result] = self.products.sum_of_ranks(op, *known)
            case _ if isinstance(op, POINTWISE):
                if isinstance(op, (graph.Add, graph.Mul)) and known[0].weight is not None:
                    known.reverse()
                self.env[op.result] = self.products.follow(op, known)
            case _:
                refuse(op, "an op of this kind in a decode step")

    def _grown(self, op: graph.Append, cache: Known, new: Known) -> Known:
        """A cache with what this step appends."""
        kind = cache.kind
        order = [d for d in (self.program.requests, op.dim) if d in kind.dims]
        if list(kind.dims[: len(order)]) != order or cache.weight is None:
            refuse(op, f"a cache of dims {', '.join(kind.dims)}")
        name, weight, stacked = op.result.name, cache.weight, cache.stacked
        return Known(name, kind, weight, stacked, grown=new, coded=op.coded)

    def _product(self, op: graph.Matmul, known: list[Known]) -> None:
        left, *rights = known
        if left.scores is not None:
            attended = self.attending.attend(op, left, rights[0])
            lanes = self.source.dims[rights[0].kind.dims[-1]]
            merged = self.products.merged(attended, lanes) if self.merge else attended
            self.env[op.result] = merged
        elif rights[0].grown is not None:
            self.env[op.result] = self.attending.scores(op, left, rights[0])
        elif left.routed is not None:
            self.env[op.result] = self.experts.join(op, left, rights[0])
        elif all(r.weight is not None for r in rights):
            if self._is_result(op):
                self.products.deal(op)
            found: dict[int, Known] = {}
            joined = joined_results(op, self.users)
            routed = [one for one in joined if self.experts.are_in(op.results[one[0]])]
            if len(routed) < len(joined):
                dense = [one for one in joined if one not in routed]
                self.products.prepare(left)
                found |= self.products.multiply(op, left, rights, dense)
            for together in routed:
                self.products.prepare(left)
                found |= self.experts.multiply(op, left, rights, together)
            self.env |= {op.results[n]: one for n, one in found.items()}
        else:
            refuse(op, "a product of two values that are computed")

    def _is_result(self, op: graph.Matmul) -> bool:
        """Whether nothing but a result of the program is made of a product, lane by lane."""
        users = self.users.get(op.results[0], [])
        while len(op.results) == 1 and len(users) == 1:
            (user,) = users
            if isinstance(user, graph.Return):
                return True
            if not isinstance(user, graph.Scale | Function) or len(user.tensors()) > 1:
                return False
            users = self.users.get(user.results[0], [])
        return False

    # --- loops and results

    def _repeat(self, op: graph.Repeat) -> None:
        """The phases of a layer in a loop over layers, which has each carried value once for each
        layer and once behind them."""
        if op.rounds:
            refuse(op, "layers of which a run does some")
        program, body = self.program, op.regions[0]
        if program.layer is not None:
            refuse(op, "a loop over layers inside of another one")
        program.layers = self.source.dims[op.dim]
        carried = [self._carried(v, program.layers) for v in op.tensors()[: op.carried]]
        var = program.variables.fresh("layer")
        program.layer = Expr.var(var)
        for number, (arg, value) in enumerate(zip(body.args, op.tensors(), strict=True)):
            known = self.env[value]
            if number < op.carried:
                stored = Stored(carried[number], (Point(program.layer),), program.phases)
                self.env[arg] = Known(arg.name, known.kind, stored=stored)
            else:
                kind = known.kind
                inner = TensorType(kind.dtype, kind.dims[1:])
                self.env[arg] = Known(arg.name, inner, weight=known.weight, stacked=True)
        count = constant(program.layers)
        loop = tile.For(var=var, count=count, regions=[Block()], span=op.span)
        program.blocks[-1].ops.append(loop)
        program.blocks.append(loop.regions[0])
        targets = {}
        for buffer, value in zip(carried, body.ops[-1].tensors(), strict=False):
            targets[value] = Stored(buffer, (Point(program.layer + 1),), program.phases)
        self._block(Block(ops=body.ops[:-1]))
        for value, target in targets.items():
            self.products.deliver(self.env[value], target)
        program.blocks.pop()
        program.layer = None
        for number, value in enumerate(op.results):
            given = self.env[body.ops[-1].tensors()[number]]
            known = Known(value.name, tensor_type(value), weight=given.weight, grown=given.grown)
            if number < op.carried:
                lead = (Point(constant(program.layers)),)
                known = Known(
                    value.name, given.kind, stored=Stored(carried[number], lead, program.phases)
                )
            self.env[value] = known
        program.layers = 1

    def _carried(self, value: Value, layers: int) -> Value:
        """A buffer of what a loop carries, of which the first version is given before it."""
        known = self.env[value]
        lanes = self.program.padded(self.program.lanes(known.kind))
        shape = (layers + 1, self.program.tokens, lanes)
        buffer = self.program.buffer(f"{value.name}_of_layer", shape)
        target = Stored(buffer, (Point(constant(0)),), self.program.phases)
        self.products.deliver(known, target)
        return buffer

    def _return(self, op: graph.Return) -> None:
        for value in op.tensors():
            known = self.env[value]
            if known.grown is None:
                self.products.deliver_out(known)
