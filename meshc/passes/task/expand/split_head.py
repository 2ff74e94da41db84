"""Attention whose lanes are dealt: a task has a part of the lanes of a key head and of its query
heads (SplitHead of ClusterFusion, appendix B.2)."""

from __future__ import annotations

from meshc.ir.affine import Cond, Expr
from meshc.ir.ops import graph, task
from meshc.ir.types import DType
from meshc.ir.values import Value
from meshc.ir.views import Point, Range, View, Whole
from meshc.passes.task.expand.attending_family import AttendingFamily, per_request
from meshc.passes.task.expand.demand import Demand, refuse
from meshc.passes.task.expand.program import constant, region, span
from meshc.passes.task.expand.token_runs import Runs
from meshc.passes.task.expand.values import Known, Scores, Stored


class SplitHead(AttendingFamily):
    """Two families. Tasks of the first multiply the lanes that they have of queries and keys; those
    of the second add these products up, which gives the scores of all cached tokens, and weigh the
    lanes that they have of values. Caches have each part of the lanes of a head as a head of its
    own. A task of the second has what those of its key head give: ClusterReduce, where they are the
    blocks of a cluster."""

    def __init__(
        self, runs: Runs, demand: Demand, op: graph.Matmul, scores: Scores, values: Known
    ) -> None:
        super().__init__(runs, demand, op, scores, values)
        if self.program.of_prompt:
            refuse(op, "prompts whose heads are dealt lane by lane")
        if self.program.together > 1:
            refuse(op, "drafts whose heads are dealt lane by lane")
        if len(scores.products) > 1 or len(per_request(values)) != 3:
            refuse(op, "latents, which have no heads whose lanes are dealt")
        if self.lanes % runs.lanes:
            refuse(op, f"{runs.lanes} parts of the {self.lanes} lanes of a head")
        self.query, self.keys = scores.products[0]
        if self.lanes_of_head(self.keys) != self.lanes:
            refuse(op, "keys of other lanes than values")
        self.part = Expr.var("part")
        self.own_lanes = self.lanes // runs.lanes
        self.domain = dict(zip("bg", self.sizes, strict=True)) | {"part": runs.lanes}
        self.run = Expr.var("n") * runs.tokens
        self.rounds = self.first // runs.tokens + 1

    def made(self) -> Known:
        """Write both; what they give are the attended lanes."""
        products = self._products()
        program, write = self.program, self.family("attend", self.domain)
        value = self._stored(self.values)
        total = self.empty(self.own_lanes)
        body = write.loop("n", self.rounds)
        everywhere = Whole(), Whole(), span(self.run, self.runs.tokens)
        at = (*program.at_layer, Point(self.token), Point(self.group), *everywhere)
        came = write.add(task.Need([region(products, *at)]), "products")
        run = self._run(self.values)
        scores = write.local("scores", (self.rows, self.runs.tokens))
        write.compute("copy", scores, View(came, (Point(constant(0)),)))
        if self.runs.lanes > 1:
            write.loop("s", constant(self.runs.lanes - 1))
            write.compute("add", scores, scores, View(came, (Point(Expr.var("s") + 1),)))
            write.leave()

        def fresh(sums: View) -> None:
            weights = View(scores, (Whole(), self._new_key()))
            write.compute("gemm", sums, weights, value, accumulate=True, transposed=False)
            self.guard(body.ops[-1:], self._has_new())

        self.weigh(total, scores, run, self.run, self.first + 1, fresh)
        self.guard(body.ops, self.in_window(self.run))
        write.leave()
        return self._given(total)

    def _products(self) -> Value:
        """What the first family gives: for each token, key head and part of its lanes the products
        of all query heads with the keys of all tokens."""
        program, write = self.program, self.family("score", self.domain)
        tokens, wide = self.runs.tokens, self.heads * self.lanes
        query = self.lanes_of(self.query, self.group, wide, self.own)
        asked = write.local("lanes_of_query", (self.rows, self.own_lanes))
        write.loop("h", constant(self.heads))
        lanes = span(Expr.var("h") * self.lanes + self.part * self.own_lanes, self.own_lanes)
        write.compute("copy", View(asked, (span(Expr.var("h"), 1),)), View(query, (Whole(), lanes)))
        write.leave()
        key = self._stored(self.keys)
        capacity = -(-self.capacity // tokens) * tokens
        shape = (program.tokens, self.sizes[1], self.runs.lanes, self.rows, capacity)
        given = program.scratch("products", shape)
        body = write.loop("n", self.rounds)
        run = self._run(self.keys)
        products = write.local("products_of_lanes", (self.rows, tokens))
        write.compute("gemm", products, asked, run, accumulate=False, transposed=True)
        of_new = View(products, (Whole(), self._new_key()))
        write.compute("gemm", of_new, asked, key, accumulate=True, transposed=True)
        self.guard(body.ops[-1:], self._has_new())
        at = Point(self.token), Point(self.group), Point(self.part), Whole(), span(self.run, tokens)
        write.add(task.Give([region(given, *program.at_layer, *at), View(products)]))
        self.guard(body.ops, self.in_window(self.run))
        write.leave()
        return given

    def _stored(self, cache: Known) -> Value:
        """The lanes that a task has of the new token, as the cache will hold them, ``[1, lanes]``;
        one of those that share a key head gives them."""
        assert cache.grown is not None
        new = self.lanes_of(cache.grown, self.key_head, self.lanes, self.own)
        value = self.task.local(f"{cache.name}_new", (1, self.own_lanes), cache.kind.dtype)
        lanes = span(self.part * self.own_lanes, self.own_lanes)
        self.task.compute("copy", value, View(new, (Whole(), lanes)))
        at = self.place(cache, span(self.first, 1), self._head())
        self.task.add(task.Give([region(self.runs.cache(cache), *at), View(value)]))
        if self.shares > 1:
            self.guard(self.task.blocks[-1].ops[-1:], Cond.eq(self.group % self.shares, 0))
        return value

    def _run(self, cache: Known) -> Value:
        """A run of cached tokens of the lanes that a task has, that of this step left out."""
        at = self.place(cache, span(self.run, self.runs.tokens), self._head())
        dim = int(cache.stacked) + int("B" in cache.kind.dims)
        op = task.Stream([region(self.runs.cache(cache), *at)], dim=dim, below=self.first)
        return self.task.add(op, f"{cache.name}_run")

    def _head(self) -> Expr:
        """The head of a cache that the lanes are which a task has."""
        return self.key_head * self.runs.lanes + self.part

    def _has_new(self) -> Cond:
        """Whether the new token is one of the present run."""
        return Cond.eq(self.first // self.runs.tokens, Expr.var("n"))

    def _new_key(self) -> Range:
        """The place of the new token in the run that has it."""
        return span(self.first - self.run, 1)

    def _given(self, total: Value) -> Known:
        """The attended lanes in a buffer, head by head."""
        program, write, own = self.program, self.task, self.own_lanes
        lanes = View(total, (Whole(), span(0, own)))
        attended = write.local("attended_lanes", (self.rows, own))
        write.compute("div", attended, lanes, View(total, (Whole(), Point(constant(own)))))
        every = program.lanes(self.kind)
        results = [op for op in program.source.walk() if isinstance(op, graph.Return)]
        if every != program.padded(every) and any(
            self.op.results[0] in op.operands for op in results
        ):
            words = f"{every} lanes of heads that blocks share as a result"
            refuse(self.op, f"{words}, no whole groups of {program.rows}")
        given = program.scratch("attended", (program.tokens, program.padded(every)), DType.F32)
        write.loop("h", constant(self.heads))
        head = self.group * self.heads + Expr.var("h")
        at = span(self.token, 1), span(head * self.lanes + self.part * own, own)
        source = View(attended, (span(Expr.var("h"), 1),))
        write.add(task.Give([region(given, *program.at_layer, *at), source]))
        write.leave()
        stored = Stored(given, program.at_layer, write.phase)
        return Known(self.op.results[0].name, self.kind, stored=stored, key_heads=self.sizes[1])
