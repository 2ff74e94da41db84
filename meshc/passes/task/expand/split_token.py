"""Attention whose cached tokens are dealt: a task has some runs of tokens of a key head, for a
token that is read or for some of a prompt (SplitToken of ClusterFusion, section 3.2; flash
decoding).

Where a step verifies drafts, a token attends to those of its request that are read in front of it
as if it were read alone: new keys and values stand in the runs in which they would be found in the
caches, so what is computed of a token does not depend, to the bit, on which of them are new."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from meshc.analysis.tasks.tiles import LATENT_NEIGHBOUR, latent_neighbours
from meshc.ir.affine import Cond, Expr
from meshc.ir.batch import AHEAD
from meshc.ir.ops import graph, task
from meshc.ir.values import Value
from meshc.ir.views import Point, Range, View
from meshc.passes.task.expand.attending_family import AttendingFamily, shape_of
from meshc.passes.task.expand.demand import Demand
from meshc.passes.task.expand.program import Part, constant, region, span
from meshc.passes.task.expand.token_runs import Runs
from meshc.passes.task.expand.values import Known, Scores, Stored

WORTH_SPLITTING = 4
"""Runs of tokens by which tasks have to be shorter for more of them: by the event model it takes as
long to merge half as many records of DeepSeek-V2-Lite again."""


class SplitToken(AttendingFamily):
    """One family, whose tasks leave records of their softmaxes."""

    def __init__(
        self, runs: Runs, demand: Demand, op: graph.Matmul, scores: Scores, values: Known
    ) -> None:
        super().__init__(runs, demand, op, scores, values)
        self.splits = runs.tasks(prod(self.sizes), self.capacity)
        if len(scores.products) > 1 and self.program.owned:
            self._split_for_neighbours()
        self.split = Expr.var("s")
        self.new = self.program.tokens if self.program.of_prompt else self.program.together
        self.drafted = self.program.together > 1
        self.limit = self.position if self.drafted else self.first
        self.fresh: dict[Value | None, Value] = {}

    def _split_for_neighbours(self) -> None:
        """More tasks for a token, where blocks attend to latents for neighbours at once, of which
        each request may have some that have none: as many as blocks, if they are shorter by more
        than it takes to merge what they leave."""
        program, (tokens, *others) = self.program, self.sizes
        most = latent_neighbours(tokens, self.heads, self.lanes)
        requests = program.source.dims[program.requests]
        apart = min(tokens, (tokens + requests * (most - 1)) // most)
        splits = self.runs.tasks(apart * prod(others), self.capacity)
        alone, together = (
            -(-self.capacity // (self.runs.tokens * n)) for n in (self.splits, splits)
        )
        if alone >= together * (1 + LATENT_NEIGHBOUR * (most - 1)) + WORTH_SPLITTING:
            self.splits = splits

    def made(self) -> Known:
        """Write it; what it gives are records, which whoever needs attention merges."""
        program, name = self.program, self.op.results[0].name
        self.family("attend", dict(zip("bgs", (*self.sizes, self.splits), strict=True)))
        queries = [
            self.lanes_of(query, self.group, self.heads * self.lanes_of_head(cache), self.own)
            for query, cache in self.scores.products
        ]
        caches = [*(cache for _, cache in self.scores.products), self.values]
        for cache in caches:
            if cache.weight not in self.fresh:
                self.fresh[cache.weight] = self._stored(cache)
        total = self.empty(self.lanes, Cond.eq(self.split, 0) if self.splits > 1 else None)
        self._cached(total, queries, caches)
        self._fresh(total, queries, [self.fresh[cache.weight] for cache in caches])
        shape = (program.tokens, self.sizes[1], self.splits, self.heads, self.lanes + 2)
        records = program.scratch("records", shape)
        at = (span(self.token, self.asking), Point(self.group), Point(self.split))
        given = View(total, (), self.by_token(self.lanes + 2))
        self.task.add(task.Give([region(records, *program.at_layer, *at), given]))
        stored = Stored(records, program.at_layer, self.task.phase)
        return Known(name, self.kind, merged=stored, key_heads=self.sizes[1])

    def _stored(self, cache: Known) -> Value:
        """New keys or values as their cache will hold them, those of all tokens of a prompt, or of
        the task's request; a task gives those of its own tokens."""
        assert cache.grown is not None
        of = Part(constant(0), 0, self.token if self.new == 1 else None)
        if self.drafted:
            of = Part(constant(0), 0, self.program.first_of(self.token), self.new)
        lanes = self.lanes_of_head(cache)
        new = self.lanes_of(cache.grown, self.key_head, lanes, of)
        value = self.task.local(f"{cache.name}_new", (self.new, lanes), cache.kind.dtype)
        self.task.compute(f"{cache.coded}_rows" if cache.coded else "copy", value, new)
        token = self.token
        if self.asking > 1:
            self.task.loop("t", constant(self.asking))
            token = token + Expr.var("t")
        position = span(self.program.position(token), 1)
        place = region(self.runs.cache(cache), *self.place(cache, position, self.key_head))
        own = self._own if self.drafted else span(token, 1)
        given = View(value) if self.new == 1 else View(value, (own,))
        self.task.add(task.Give([place, given]))
        first = Cond.eq(self.group % self.shares, 0) if self.shares > 1 else None
        for cond in (self._owner(), first, self.program.there(token)):
            self.guard(self.task.blocks[-1].ops[-1:], cond)
        if self.asking > 1:
            self.task.leave()
        return value

    @property
    def _own(self) -> Range:
        """The row of this task's token among those of its request."""
        return span(self.program.number(self.token), 1)

    def _owner(self) -> Cond | None:
        """Where this task has the new tokens; None where each has them."""
        run = self.limit // self.runs.tokens
        return Cond.eq(run % self.splits, self.split) if self.splits > 1 else None

    def _cached(self, total: Value, queries: Sequence[Value], caches: Sequence[Known]) -> None:
        """Fold the cached tokens of this task into ``total``, run by run."""
        tokens, splits = self.runs.tokens, self.splits
        behind = self.limit - self.split * tokens + tokens * splits - 1
        body = self.task.loop("n", behind // (tokens * splits))
        first = (Expr.var("n") * splits + self.split) * tokens
        runs: dict[Value | None, Value] = {}
        for cache in caches:
            if cache.weight not in runs:
                runs[cache.weight] = self._run(cache, first)
        folded = [runs[cache.weight] for cache in caches]
        self._fold(total, queries, folded, first, tokens, self.limit)
        there = self.program.there(self.token) if self.program.of_prompt else None
        for cond in (self.in_window(first), there):
            self.guard(body.ops, cond)
        self.task.leave()

    def _run(self, cache: Known, first: Expr) -> Value:
        """A run of cached tokens of this key head, those of this step left out, or in their
        places."""
        at = self.place(cache, span(first, self.runs.tokens), self.key_head)
        dim = int(cache.stacked) + int("B" in cache.kind.dims)
        op = task.Stream([region(self.runs.cache(cache), *at)], dim=dim, below=self.first)
        run = self.task.add(op, f"{cache.name}_run")
        return self._with_new(run, cache, first) if self.drafted else run

    def _with_new(self, run: Value, cache: Known, first: Expr) -> Value:
        """A ``run`` from token ``first`` on, in which new tokens stand in their places."""
        write, new = self.task, self.fresh[cache.weight]
        seen = write.local(f"{cache.name}_seen", shape_of(run), cache.kind.dtype)
        write.compute("copy", seen, run)
        write.loop("t", constant(self.new))
        number = Expr.var("t")
        at = self.first + number - first
        rows = (region(value, span(row, 1)) for value, row in ((seen, at), (new, number)))
        write.compute("copy", *rows)
        inside = Cond.between(0, at, self.runs.tokens)
        if self.program.owned:
            inside &= Cond.le(number, Expr.var(AHEAD))
        self.guard(write.blocks[-1].ops[-1:], inside)
        write.leave()
        return seen

    def _fresh(self, total: Value, queries: Sequence[Value], fresh: Sequence[Value]) -> None:
        """Fold the new tokens into the record of the task that has them."""
        before = len(self.task.blocks[-1].ops)
        if self.drafted:
            own = [View(value, (self._own,)) for value in fresh]
            self._fold(total, queries, own, self.position, 1, self.position + 1)
        else:
            self._fold(total, queries, fresh, self.first, self.new, self.first + self.new)
        there = self.program.there(self.token) if self.program.owned else None
        for cond in (self._owner(), there):
            self.guard(self.task.blocks[-1].ops[before:], cond)

    def _fold(
        self,
        total: Value,
        queries: Sequence[Value],
        cached: Sequence[Value | View],
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
