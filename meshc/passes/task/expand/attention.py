"""Attention over cached tokens: tasks of a token that is read, or of some of a prompt, a key head
and some of the cached tokens, each of which leaves records of its softmaxes (WaferLLM's merged
softmax, flash decoding)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from meshc.analysis.cuda.blocks import FRAGMENT
from meshc.analysis.tasks.tiles import tile_bytes
from meshc.ir.affine import Cond, Expr
from meshc.ir.batch import POSITION
from meshc.ir.core import Op, tensor_type
from meshc.ir.functions import Function
from meshc.ir.ops import graph, task
from meshc.ir.types import DType, TensorType
from meshc.ir.values import Value
from meshc.ir.views import Index, Point, View, Whole
from meshc.passes.task.expand.demand import Demand, refuse
from meshc.passes.task.expand.products import Products
from meshc.passes.task.expand.program import Part, TaskProgram, constant, region, span
from meshc.passes.task.expand.values import Known, Scores, Stored

MOST_HEADS = 16
"""Query heads of a task at the most: what a block holds of their values while it folds tokens."""
MOST_QUERIES = 64
"""Queries of a task at the most, of heads times tokens, and of 128 lanes at the most: of wider
heads there are fewer."""
MOST_QUERY_LANES = 128 * MOST_QUERIES


class Attending:
    """Writes the family that attends; a task takes every run of ``tokens`` of so many, with 0 of
    as many as a block of a GPU asks for at once, for ``together`` tokens that are read at the
    most, with 0 for as many as a block has room for. There are ``splits`` tasks for a key head,
    with 0 enough for all ``blocks``; so many for each part of its query heads, where these are more
    than :data:`MOST_HEADS`."""

    def __init__(
        self,
        program: TaskProgram,
        demand: Demand,
        products: Products,
        tokens: int,
        blocks: int,
        splits: int,
        together: int,
    ) -> None:
        self.program, self.demand, self.products = program, demand, products
        self.together = together
        self.asked, self.tokens, self.blocks, self.wanted = tokens, tokens, blocks, splits
        self.caches: dict[Value, Value] = {}

    # --- on the way to the softmax

    def scores(self, op: graph.Matmul, left: Known, right: Known) -> Known:
        """Products of queries with a cache ``[B, tokens, heads, lanes]``, or without heads."""
        keys, dims = right.grown, right.kind.dims
        if keys is None or op.contract != dims[-1:] or len(_per_request(right)) > 3:
            refuse(op, f"attention over a cache of dims {', '.join(dims)}")
        self.products.store(left)
        self.products.store(keys)
        scores = Scores([(left, right)])
        return Known(op.results[0].name, tensor_type(op.results[0]), scores=scores)

    def sum(self, op: graph.Add, first: Known, second: Known) -> Known:
        """Scores over several caches of the same tokens (latent attention)."""
        one, other = first.scores, second.scores
        if one is None or other is None or one.steps or other.steps:
            refuse(op, "scores to which something else is added")
        scores = Scores([*one.products, *other.products])
        return Known(op.results[0].name, tensor_type(op.results[0]), scores=scores)

    def step(self, op: Op, known: Known) -> Known:
        """A change of scores, element by element."""
        scores = known.scores
        assert scores is not None
        if isinstance(op, graph.Scale):
            factor = op.factor
            scores.steps.append(lambda t, v: t.compute("scale", v, v, factor=factor))
        elif isinstance(op, Function):
            kernel, given = op.NAME.partition(".")[2], op.attributes()
            scores.steps.append(lambda t, v: t.compute(kernel, v, v, **given))
        else:
            refuse(op, "this change of attention's scores")
        return Known(op.results[0].name, tensor_type(op.results[0]), scores=scores)

    def softmax(self, op: graph.Softmax, known: Known, sink: Known | None) -> Known:
        """The softmax of scores, which is never computed as such."""
        scores = known.scores
        if scores is None or scores.softmax is not None or op.mask != "causal":
            refuse(op, "a softmax that is not that of causal attention")
        if sink is not None and sink.weight is None:
            refuse(op, "a sink that is computed")
        scores.softmax, scores.sink = op, sink
        return Known(op.results[0].name, tensor_type(op.results[0]), scores=scores)

    # --- the family

    def attend(self, op: graph.Matmul, left: Known, right: Known) -> Known:
        """Values weighted by the softmax of scores."""
        scores = left.scores
        if scores is None or not isinstance(scores.softmax, graph.Softmax) or right.grown is None:
            refuse(op, "a product with a cache that is not that of attention")
        self.products.store(right.grown)
        self.tokens = self.asked or self._in_a_tile([*(c for _, c in scores.products), right])
        return _Family(self, op, scores, right).made()

    def _in_a_tile(self, caches: Sequence[Known]) -> int:
        """The tokens of a run: those whose rows of all caches a block asks for at once."""
        dims = self.program.source.dims
        rows = {
            cache.weight: cache.kind.dtype.bytes * dims[cache.kind.dims[-1]] for cache in caches
        }
        tile = tile_bytes(self.program.source.the_device())
        most = tile // sum(rows.values()) // FRAGMENT * FRAGMENT
        return min(max(most, FRAGMENT), 4 * FRAGMENT)

    def asking(self, heads: int, lanes: int) -> int:
        """For how many tokens a task attends, each of which has so many ``heads`` in it; in a step
        for one, as each is of a request of its own."""
        tokens = self.program.tokens
        if not self.program.of_prompt:
            return 1
        most = self.together or min(MOST_QUERIES, MOST_QUERY_LANES // lanes) // heads
        return next(n for n in range(max(min(most, tokens), 1), 0, -1) if tokens % n == 0)

    def splits(self, groups: int, capacity: int) -> int:
        """How many tasks share the cached tokens for each of so many ``groups`` of queries; none of
        them without any."""
        wanted = self.wanted or self.blocks // groups
        return max(1, min(wanted, -(-capacity // self.tokens)))

    def cache(self, known: Known) -> Value:
        """The buffer of a cache, with room for whole runs of tokens."""
        param = known.weight
        assert param is not None
        if param not in self.caches:
            kind = tensor_type(param)
            shape = list(kind.shape(self.program.source.dims))
            tokens = int(known.stacked) + int("B" in kind.dims)
            shape[tokens] = -(-shape[tokens] // self.tokens) * self.tokens
            self.caches[param] = self.program.buffer(param.name, shape, kind.dtype, "state")
        return self.caches[param]


class _Family:
    """One attending family, while it is written."""

    def __init__(self, of: Attending, op: graph.Matmul, scores: Scores, values: Known) -> None:
        self.of, self.op, self.scores, self.values = of, op, scores, values
        program, dims = of.program, of.program.source.dims
        keys, *heads, lane = _per_request(values)
        self.lanes, self.capacity = dims[lane], dims[keys]
        self.groups = dims[heads[0]] if heads else 1
        self.kind = TensorType(DType.F32, tensor_type(op.results[0]).dims)
        of_queries = program.lanes(self.kind) // self.lanes
        shares = {_per_request(cache)[:-1] for _, cache in scores.products}
        if of_queries % self.groups or shares != {(keys, *heads)}:
            refuse(op, "heads that do not share key heads evenly")
        every = of_queries // self.groups
        self.heads = next(n for n in range(min(every, MOST_HEADS), 0, -1) if every % n == 0)
        self.shares = every // self.heads
        latent = any(cache.weight is values.weight for _, cache in scores.products)
        self.asking = 1 if latent else of.asking(self.heads, self.lanes)
        self.rows = self.asking * self.heads
        tokens = program.tokens // self.asking
        self.sizes = (tokens, self.groups * self.shares)
        self.splits = of.splits(prod(self.sizes), self.capacity)
        run, self.group, self.split = (Expr.var(n) for n in "bgs")
        self.token = run * self.asking
        self.key_head = self.group // self.shares
        self.position, self.first = program.position(self.token), Expr.var(POSITION)
        self.request = constant(0) if program.of_prompt else self.token
        self.new = program.tokens if program.of_prompt else 1

    def made(self) -> Known:
        """Write it; what it gives are records, which whoever needs attention merges."""
        program, name = self.of.program, self.op.results[0].name
        domain = dict(zip("bgs", (*self.sizes, self.splits), strict=True))
        own = Part(constant(0), 0, self.token, self.asking)
        phase = program.phase("attend")
        self.task = program.family(phase, "attend", domain, own, program.each)
        queries = [
            self._lanes_of(query, self.group, self.heads * self._lanes(cache), own)
            for query, cache in self.scores.products
        ]
        caches = [*(cache for _, cache in self.scores.products), self.values]
        fresh: dict[Value | None, Value] = {}
        for cache in caches:
            if cache.weight not in fresh:
                fresh[cache.weight] = self._stored(cache)
        total = self._empty()
        self._sink(total)
        self._cached(total, queries, caches)
        self._fresh(total, queries, [fresh[cache.weight] for cache in caches])
        shape = (program.tokens, self.sizes[1], self.splits, self.heads, self.lanes + 2)
        records = program.scratch("records", shape)
        at = (span(self.token, self.asking), Point(self.group), Point(self.split))
        given = View(total, (), self._by_token(self.lanes + 2))
        self.task.add(task.Give([region(records, *program.at_layer, *at), given]))
        stored = Stored(records, program.at_layer, self.task.phase)
        return Known(name, self.kind, merged=stored)

    def _by_token(self, lanes: int) -> tuple[Expr, ...]:
        """The shape of so many ``lanes`` of each query, those of a token together."""
        return tuple(map(constant, (self.asking, self.heads, lanes)))

    def _lanes(self, cache: Known) -> int:
        """Lanes of a head of a cache."""
        return self.of.program.source.dims[cache.kind.dims[-1]]

    def _tokens(self, cache: Known, first: Index) -> tuple[Index, ...]:
        """The place of tokens of this task's request and key head in a cache."""
        lead = self.of.program.at_layer if cache.stacked else ()
        request = (Point(self.request),) if "B" in cache.kind.dims else ()
        head = (Point(self.key_head),) if len(_per_request(cache)) == 3 else ()
        return (*lead, *request, first, *head)

    def _lanes_of(self, known: Known, run: Expr, count: int, of: Part) -> Value:
        """A run of so many lanes of the tokens ``of``, ``[tokens, lanes]``."""
        return self.of.demand.of(self.task, known, replace(of, start=run * count, count=count))

    def _stored(self, cache: Known) -> Value:
        """New keys or values as their cache will hold them, those of all tokens of a prompt; a task
        gives those of its own tokens."""
        assert cache.grown is not None
        of = Part(constant(0), 0, self.token if self.new == 1 else None)
        new = self._lanes_of(cache.grown, self.key_head, self._lanes(cache), of)
        shape = (self.new, self._lanes(cache))
        value = self.task.local(f"{cache.name}_new", shape, cache.kind.dtype)
        self.task.compute("copy", value, new)
        token = self.token
        if self.asking > 1:
            self.task.loop("t", constant(self.asking))
            token = token + Expr.var("t")
        position = span(self.of.program.position(token), 1)
        place = region(self.of.cache(cache), *self._tokens(cache, position))
        given = View(value) if self.new == 1 else View(value, (span(token, 1),))
        self.task.add(task.Give([place, given]))
        first = Cond.eq(self.group % self.shares, 0) if self.shares > 1 else None
        for cond in (self._owner(), first, self.of.program.there(token)):
            self._guard(self.task.blocks[-1].ops[-1:], cond)
        if self.asking > 1:
            self.task.leave()
        return value

    def _guard(self, ops: Sequence[Op], cond: Cond | None) -> None:
        """Let ``ops`` run where ``cond`` holds as well; memory is there everywhere."""
        for op in ops:
            if cond is not None and not isinstance(op, task.Local):
                op.when = cond if op.when is None else cond & op.when

    def _owner(self) -> Cond | None:
        """Where this task has the new tokens; None where each has them."""
        run = self.first // self.of.tokens
        return Cond.eq(run % self.splits, self.split) if self.splits > 1 else None

    def _empty(self) -> Value:
        """The record of no token for each query: values, weight, largest score."""
        total = self.task.local("total", (self.rows, self.lanes + 2))
        self.task.compute("fill", View(total, (Whole(), span(0, self.lanes + 1))), value=0.0)
        most = (Whole(), Point(constant(self.lanes + 1)))
        self.task.compute("fill", View(total, most), value=DType.F32.lowest)
        return total

    def _sink(self, total: Value) -> None:
        """A sink is one more score, of weight 1 and without a value, in the first split."""
        sink = self.scores.sink
        if sink is None:
            return
        part = Part(self.group * self.heads, self.heads)
        score = self.of.demand.vector(self.task, sink, part, sink.kind.dims)
        rows: Index = Whole()
        if self.asking > 1:
            self.task.loop("t", constant(self.asking))
            rows = span(Expr.var("t") * self.heads, self.heads)
        first = Cond.eq(self.split, 0) if self.splits > 1 else None
        for lane, kernel, operands, given in (
            (self.lanes, "fill", (), {"value": 1.0}),
            (self.lanes + 1, "copy", (score,), {}),
        ):
            view = View(total, (rows, Point(constant(lane))))
            self.task.compute(kernel, view, *operands, **given)
            self._guard(self.task.blocks[-1].ops[-1:], first)
        if self.asking > 1:
            self.task.leave()

    def _cached(self, total: Value, queries: Sequence[Value], caches: Sequence[Known]) -> None:
        """Fold the cached tokens of this task into ``total``, run by run."""
        tokens, splits = self.of.tokens, self.splits
        behind = self.first - self.split * tokens + tokens * splits - 1
        body = self.task.loop("n", behind // (tokens * splits))
        first = (Expr.var("n") * splits + self.split) * tokens
        runs: dict[Value | None, Value] = {}
        for cache in caches:
            if cache.weight not in runs:
                runs[cache.weight] = self._run(cache, first)
        folded = [runs[cache.weight] for cache in caches]
        self._fold(total, queries, folded, first, tokens, self.first)
        for cond in (self._in_window(first), self.of.program.there(self.token)):
            self._guard(body.ops, cond)
        self.task.leave()

    def _run(self, cache: Known, first: Expr) -> Value:
        """A run of cached tokens of this key head, those of this step left out."""
        at = self._tokens(cache, span(first, self.of.tokens))
        place = region(self.of.cache(cache), *at)
        dim = int(cache.stacked) + int("B" in cache.kind.dims)
        op = task.Stream([place], dim=dim, below=self.first)
        return self.task.add(op, f"{cache.name}_run")

    def _fresh(self, total: Value, queries: Sequence[Value], fresh: Sequence[Value]) -> None:
        """Fold the new tokens into the record of the task that has them."""
        before = len(self.task.blocks[-1].ops)
        self._fold(total, queries, fresh, self.first, self.new, self.first + self.new)
        self._guard(self.task.blocks[-1].ops[before:], self._owner())

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
            lanes = self._lanes(self.scores.products[number][1])
            rows, more = View(query, (), (constant(self.rows), constant(lanes))), bool(number)
            write.compute("gemm", scores, rows, key, accumulate=more, transposed=True)
        for step in self.scores.steps:
            step(write, scores)
        at: dict[str, object] = {
            "query": self.position, "query_step": int(self.asking > 1), "key": first, "key_step": 1,
        }  # fmt: skip
        if tokens > 1:
            masked = View(scores, (), self._by_token(tokens), (1, 0, 2))
            write.compute("mask_causal", masked, **at, limit=limit)
            self._window(masked, at)
        record = write.local("record", (self.rows, self.lanes + 2))
        sums = View(record, (Whole(), span(0, self.lanes)))
        weight, most = (View(record, (Whole(), Point(constant(self.lanes + n)))) for n in (0, 1))
        write.compute("row_max", most, scores)
        write.compute("at_least", most, most, value=DType.F32.lowest)
        write.compute("exp_sub", scores, scores, most)
        write.compute("row_sum", weight, scores)
        write.compute("gemm", sums, scores, values, accumulate=False, transposed=False)
        write.compute("merge_softmax", total, record, count=1)

    def _layers_with_window(self) -> Cond | None:
        """In which layers attention has a window; None where it has none."""
        op, layer = self.scores.softmax, self.of.program.layer
        assert isinstance(op, graph.Softmax)
        if not op.window:
            return None
        if layer is None:
            return Cond.true()
        if op.but:
            return Cond.ne((layer + 1) % op.but, 0)
        if op.after:
            return Cond.ge(layer, op.after)
        return Cond.eq(layer % op.every, 0) if op.every > 1 else Cond.true()

    def _window(self, scores: View, at: dict[str, object]) -> None:
        layers, op = self._layers_with_window(), self.scores.softmax
        if layers is not None and isinstance(op, graph.Softmax):
            limit = self.position + self.asking
            self.task.compute("mask_window", scores, window=op.window, **at, limit=limit)
            everywhere = None if layers.is_true else layers
            self._guard(self.task.blocks[-1].ops[-1:], everywhere)

    def _in_window(self, first: Expr) -> Cond | None:
        """Where some token of the run from ``first`` on is seen."""
        layers, op = self._layers_with_window(), self.scores.softmax
        if layers is None or not isinstance(op, graph.Softmax):
            return None
        return Cond.gt(first + self.of.tokens, self.position + 1 - op.window) | ~layers


def _per_request(cache: Known) -> tuple[str, ...]:
    """The dims of a cache of one request: tokens, heads if there are any, lanes."""
    return tuple(d for d in cache.kind.dims if d != "B")
