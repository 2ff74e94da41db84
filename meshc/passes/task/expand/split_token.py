"""Attention whose cached tokens are dealt: a task has some runs of tokens of a key head, for a
token that is read or for some of a prompt (SplitToken of ClusterFusion, section 3.2; flash
decoding)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from meshc.ir.affine import Cond, Expr
from meshc.ir.ops import graph, task
from meshc.ir.values import Value
from meshc.ir.views import Point, View
from meshc.passes.task.expand.attending_family import AttendingFamily
from meshc.passes.task.expand.demand import Demand
from meshc.passes.task.expand.program import Part, constant, region, span
from meshc.passes.task.expand.runs import Runs
from meshc.passes.task.expand.values import Known, Scores, Stored


class SplitToken(AttendingFamily):
    """One family, whose tasks leave records of their softmaxes."""

    def __init__(
        self, runs: Runs, demand: Demand, op: graph.Matmul, scores: Scores, values: Known
    ) -> None:
        super().__init__(runs, demand, op, scores, values)
        self.splits = runs.tasks(prod(self.sizes), self.capacity)
        self.split = Expr.var("s")
        self.new = self.program.tokens if self.program.of_prompt else 1

    def made(self) -> Known:
        """Write it; what it gives are records, which whoever needs attention merges."""
        program, name = self.program, self.op.results[0].name
        self.family("attend", dict(zip("bgs", (*self.sizes, self.splits), strict=True)))
        queries = [
            self.lanes_of(query, self.group, self.heads * self.lanes_of_head(cache), self.own)
            for query, cache in self.scores.products
        ]
        caches = [*(cache for _, cache in self.scores.products), self.values]
        fresh: dict[Value | None, Value] = {}
        for cache in caches:
            if cache.weight not in fresh:
                fresh[cache.weight] = self._stored(cache)
        total = self.empty(self.lanes, Cond.eq(self.split, 0) if self.splits > 1 else None)
        self._cached(total, queries, caches)
        self._fresh(total, queries, [fresh[cache.weight] for cache in caches])
        shape = (program.tokens, self.sizes[1], self.splits, self.heads, self.lanes + 2)
        records = program.scratch("records", shape)
        at = (span(self.token, self.asking), Point(self.group), Point(self.split))
        given = View(total, (), self.by_token(self.lanes + 2))
        self.task.add(task.Give([region(records, *program.at_layer, *at), given]))
        stored = Stored(records, program.at_layer, self.task.phase)
        return Known(name, self.kind, merged=stored, key_heads=self.sizes[1])

    def _stored(self, cache: Known) -> Value:
        """New keys or values as their cache will hold them, those of all tokens of a prompt; a task
        gives those of its own tokens."""
        assert cache.grown is not None
        of = Part(constant(0), 0, self.token if self.new == 1 else None)
        lanes = self.lanes_of_head(cache)
        new = self.lanes_of(cache.grown, self.key_head, lanes, of)
        value = self.task.local(f"{cache.name}_new", (self.new, lanes), cache.kind.dtype)
        self.task.compute("copy", value, new)
        token = self.token
        if self.asking > 1:
            self.task.loop("t", constant(self.asking))
            token = token + Expr.var("t")
        position = span(self.program.position(token), 1)
        place = region(self.runs.cache(cache), *self.place(cache, position, self.key_head))
        given = View(value) if self.new == 1 else View(value, (span(token, 1),))
        self.task.add(task.Give([place, given]))
        first = Cond.eq(self.group % self.shares, 0) if self.shares > 1 else None
        for cond in (self._owner(), first, self.program.there(token)):
            self.guard(self.task.blocks[-1].ops[-1:], cond)
        if self.asking > 1:
            self.task.leave()
        return value

    def _owner(self) -> Cond | None:
        """Where this task has the new tokens; None where each has them."""
        run = self.first // self.runs.tokens
        return Cond.eq(run % self.splits, self.split) if self.splits > 1 else None

    def _cached(self, total: Value, queries: Sequence[Value], caches: Sequence[Known]) -> None:
        """Fold the cached tokens of this task into ``total``, run by run."""
        tokens, splits = self.runs.tokens, self.splits
        behind = self.first - self.split * tokens + tokens * splits - 1
        body = self.task.loop("n", behind // (tokens * splits))
        first = (Expr.var("n") * splits + self.split) * tokens
        runs: dict[Value | None, Value] = {}
        for cache in caches:
            if cache.weight not in runs:
                runs[cache.weight] = self._run(cache, first)
        self._fold(total, queries, [runs[c.weight] for c in caches], first, tokens, self.first)
        for cond in (self.in_window(first), self.program.there(self.token)):
            self.guard(body.ops, cond)
        self.task.leave()

    def _run(self, cache: Known, first: Expr) -> Value:
        """A run of cached tokens of this key head, those of this step left out."""
        at = self.place(cache, span(first, self.runs.tokens), self.key_head)
        dim = int(cache.stacked) + int("B" in cache.kind.dims)
        op = task.Stream([region(self.runs.cache(cache), *at)], dim=dim, below=self.first)
        return self.task.add(op, f"{cache.name}_run")

    def _fresh(self, total: Value, queries: Sequence[Value], fresh: Sequence[Value]) -> None:
        """Fold the new tokens into the record of the task that has them."""
        before = len(self.task.blocks[-1].ops)
        self._fold(total, queries, fresh, self.first, self.new, self.first + self.new)
        self.guard(self.task.blocks[-1].ops[before:], self._owner())

    def _fold(
        self,
        total: Value,
        queries: Sequence[Value],
        cached: Sequence[Value],
        first: Expr,
        tokens: int,
        limit: Expr,
    ) -> None:
        """Softmax of the scores of ``tokens`` keys from ``first`` on, of which there are those in
        front of ``limit``, merged into ``total``; ``cached`` has keys of each product, then
        values."""
        write = self.task
        scores = write.local("scores", (self.rows, tokens))
        *keys, values = cached
        for number, (query, key) in enumerate(zip(queries, keys, strict=True)):
            lanes = self.lanes_of_head(self.scores.products[number][1])
            rows, more = View(query, (), (constant(self.rows), constant(lanes))), bool(number)
            write.compute("gemm", scores, rows, key, accumulate=more, transposed=True)
        self.weigh(total, scores, values, first, limit)
