"""Mixtures of experts: the gates of each token, products with weights of the experts that some
token is sent to, and the sum of what these give."""

from __future__ import annotations

from collections.abc import Sequence

from meshc.ir.affine import Expr
from meshc.ir.core import Block, Op, tensor_type
from meshc.ir.ops import graph, task
from meshc.ir.ranks import RANK
from meshc.ir.types import DType, TensorType
from meshc.ir.values import Value
from meshc.ir.views import Point, View, Whole
from meshc.passes.task.expand.demand import Demand, refuse
from meshc.passes.task.expand.products import GROUP, PART, Products, most_that_divide
from meshc.passes.task.expand.program import (
    ROWS,
    OpenTask,
    Part,
    TaskProgram,
    constant,
    region,
    span,
)
from meshc.passes.task.expand.values import Known, Stored

EXPERT = "expert"
"""The dim that counts experts."""


class Experts:
    """Writes the families of a mixture. Its weights are never all read: what is done for an expert
    stands behind its gates (``task.routed``)."""

    def __init__(self, program: TaskProgram, demand: Demand, products: Products) -> None:
        self.program, self.demand, self.products = program, demand, products
        self.gates: dict[str, Known] = {}

    def choose(self, op: graph.TopK, known: Sequence[Known]) -> Known:
        """The gates of each token, by a task of a phase of their own."""
        scores, *bias = known
        kind, name = tensor_type(op.results[0]), op.results[0].name
        lanes = [d for d in kind.dims if d not in ROWS]
        if lanes != [op.dim] or any(one.weight is None for one in bias):
            refuse(op, f"choices among {', '.join(lanes)} that are no experts alone")
        self.products.store(scores)
        count = self.products.extent(lanes)
        own = Part(constant(0), count, Expr.var("b"))
        opened = self.program.family(
            self.program.phase(name), name, {"b": self.program.tokens}, own
        )
        given = self.demand.of(opened, scores, own)
        added = [self.demand.vector(opened, one, Part(constant(0), count), lanes) for one in bias]
        made = opened.local(name, (1, count))
        opened.compute(
            "top_k",
            made,
            given,
            *added,
            count=op.count,
            groups=op.groups,
            kept_groups=op.kept_groups,
            group_top=op.group_top,
            normalise=op.normalise,
            biased=bool(added),
        )
        found = self.gates[op.dim] = Known(name, kind, task=opened, here=made, sent=op.dim)
        self.products.store(found)
        ranks = self.program.source.ranks
        for part in () if ranks is None else ranks.parts:
            if part.whole == op.dim:
                own_kind = TensorType(kind.dtype, (*kind.dims[:-1], part.dim))
                self.gates[part.dim] = self.part(op, found, own_kind)
        return found

    def part(self, op: Op, gates: Known, kind: TensorType) -> Known:
        """The gates of a rank's own experts, by the tasks that have those of all; there are none of
        experts that no model has."""
        opened, dim = gates.task, kind.dims[-1]
        own, known = self.products.extent([dim]), self.gates.get(dim)
        if known is not None and known.operands == (gates,):
            return known
        if opened is None or gates.here is None or not gates.sent:
            refuse(op, "a rank's part of what are no gates")
        every = opened.local(f"{gates.name}_of_ranks", (1, own * self.program.ranks))
        opened.compute("fill", every, value=0.0)
        experts = self.program.lanes(gates.kind)
        opened.compute("copy", region(every, Whole(), span(0, experts)), gates.here)
        name = f"{gates.name}_part"
        buffer = self.program.scratch(name, (self.program.tokens, self.program.padded(own)))
        place = region(buffer, *self.program.at_layer, span(Expr.var("b"), 1), span(0, own))
        mine = region(every, Whole(), span(Expr.var(RANK) * own, own))
        opened.add(task.Give([place, mine]))
        stored = Stored(buffer, self.program.at_layer, opened.phase)
        return Known(name, kind, stored=stored, operands=(gates,), sent=dim)

    def are_in(self, value: Value) -> bool:
        """Whether what a product gives has lanes of all experts."""
        dims = [d for d in tensor_type(value).dims if d not in ROWS]
        return bool(dims) and dims[0] in self.gates

    def multiply(
        self, op: graph.Matmul, left: Known, rights: Sequence[Known], together: Sequence[int]
    ) -> dict[int, Known]:
        """Products of what experts are sent with weights of theirs, of which a task has rows of one
        expert; later ops compute with them lane by lane."""
        expert, *inner = [d for d in tensor_type(op.results[together[0]]).dims if d not in ROWS]
        if expert in left.kind.dims or not inner:
            refuse(op, f"products of lanes of {expert} with their weights")
        lanes, name = self.products.extent(inner), op.results[together[0]].name
        count = most_that_divide(lanes, max(self.program.rows // len(together), 1))
        start = Expr.var(EXPERT) * lanes + Expr.var(GROUP) * count
        opened = self._routed(name, expert, {GROUP: lanes // count}, Part(start, count))
        left = self.products.in_columns(left)
        whole = self.demand.whole(left)
        found = self.products.rows_times(
            opened, op, left, whole, rights, together, [expert], EXPERT
        )
        for known in found.values():
            known.routed = self.gates[expert]
        return found

    def join(self, op: graph.Matmul, left: Known, right: Known) -> Known:
        """The sum over experts of products with what they have of a token, times its gate: a task
        has rows of one of them, and those of a further phase add up what there is."""
        expert, *inner = [d for d in left.kind.dims if d not in ROWS]
        if left.sent != expert or {*op.contract} != {expert, *inner} or right.weight is None:
            refuse(op, f"a sum over {', '.join(op.contract)} of what experts give")
        kind, name = tensor_type(op.result), op.result.name
        down = [d for d in kind.dims if d not in ROWS]
        lanes, width = self.products.extent(down), self.products.extent(inner)
        self.products.prepare(left)
        left = self.products.in_columns(left)
        count, parts = self.program.rows, self._parts(width)
        own = Part(Expr.var(GROUP) * count, count)
        groups = self.program.padded(lanes) // count
        of_width = {PART: parts} if parts > 1 else {}
        opened = self._routed(name, expert, of_width | {GROUP: groups}, own)
        size, part = width // parts, Expr.var(PART) if parts > 1 else constant(0)
        columns = Part(Expr.var(EXPERT) * width + part * size, size)
        within = span(part * size, size) if parts > 1 else Whole()
        found = self.products.rows_times(
            opened, op, left, columns, [right], [0], [expert], EXPERT, within
        )
        experts = self.products.extent([expert])
        shape = (experts, parts, self.program.tokens, self.program.padded(lanes))
        sums = self.program.scratch(f"{name}_of_experts", shape)
        place = (*self.program.at_layer, Point(Expr.var(EXPERT)), Point(part), Whole())
        mine = span(own.start, count)
        given = found[0].here
        assert given is not None
        opened.add(task.Give([region(sums, *place, mine), View(given)]))
        return self._sum(name, kind, expert, sums, parts)

    def _parts(self, width: int) -> int:
        """Into how many parts the width of an expert is divided, where what all tokens have of it
        is as wide as that of other products."""
        parts, size = self.program.parts, self.program.tokens * width * DType.F32.bytes
        return parts if size >= self.program.wide and width % parts == 0 else 1

    def _sum(self, name: str, kind: TensorType, expert: str, sums: Value, parts: int) -> Known:
        """A phase that adds up what experts gave that some row is sent to."""
        opened = self.products.of_lanes(
            self.program.phase(f"{name}_sum"), f"{name}_sum", (), self.program.lanes(kind)
        )
        total = opened.local(name, (self.program.tokens, opened.own.count))
        opened.compute("fill", total, value=0.0)
        opened.loop(EXPERT, constant(self.products.extent([expert])))
        before = opened.blocks
        self._behind_gates(opened, expert)
        place = (*self.program.at_layer, Point(Expr.var(EXPERT)), Whole(), Whole())
        mine = span(opened.own.start, opened.own.count)
        given = opened.add(task.Need([region(sums, *place, mine)]), f"{name}_of_expert")
        for part in range(parts):
            opened.compute("add", total, total, region(given, Point(constant(part))))
        opened.blocks = before
        opened.leave()
        return Known(name, kind, task=opened, here=total)

    def _routed(self, name: str, expert: str, sizes: dict[str, int], own: Part) -> OpenTask:
        """A family of so many tasks of each expert, in a phase of its own, of which only those do
        something that have an expert some row is sent to."""
        domain = {**sizes, EXPERT: self.products.extent([expert])}
        opened = self.program.family(self.program.phase(name), name, domain, own)
        opened.routed = Expr.var(EXPERT)
        self._behind_gates(opened, expert)
        return opened

    def _behind_gates(self, opened: OpenTask, expert: str) -> None:
        """Let what is written into ``opened`` from now on stand behind the gates of one expert."""
        stored = self.gates[expert].stored
        assert stored is not None
        place = region(stored.buffer, *stored.lead, Whole(), span(Expr.var(EXPERT), 1))
        gates = opened.add(task.Need([place]), "gates")
        opened.known[self.gates[expert], Part(Expr.var(EXPERT), 1)] = gates
        op = task.Routed([View(gates)], regions=[Block()], expert=EXPERT)
        opened.add(op)
        opened.blocks = [op.regions[0]]
