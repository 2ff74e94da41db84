"""What families that attend have in common: the shape of attention, what a task holds of it, and
the softmax over a run of keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from meshc.ir.affine import Cond, Expr
from meshc.ir.batch import POSITION
from meshc.ir.core import Op, tensor_type
from meshc.ir.ops import graph, task
from meshc.ir.types import DType, TensorType
from meshc.ir.values import Value
from meshc.ir.views import Index, Point, View, Whole
from meshc.passes.task.expand.demand import Demand, refuse
from meshc.passes.task.expand.program import OpenTask, Part, constant, span
from meshc.passes.task.expand.token_runs import Runs
from meshc.passes.task.expand.values import Known, Scores

MOST_HEADS = 16
"""Query heads of a task at the most: what a block holds of their values while it folds tokens."""


class AttendingFamily:
    """One attention of the graph, while its tasks are written: those of each key head for each part
    of its query heads, where these are more than :data:`MOST_HEADS`."""

    def __init__(
        self, runs: Runs, demand: Demand, op: graph.Matmul, scores: Scores, values: Known
    ) -> None:
        self.runs, self.demand = runs, demand
        self.op, self.scores, self.values = op, scores, values
        program, dims = runs.program, runs.program.source.dims
        self.program = program
        keys, *heads, lane = per_request(values)
        self.lanes, self.capacity = dims[lane], dims[keys]
        self.groups = dims[heads[0]] if heads else 1
        self.kind = TensorType(DType.F32, tensor_type(op.results[0]).dims)
        of_queries = program.lanes(self.kind) // self.lanes
        shares = {per_request(cache)[:-1] for _, cache in scores.products}
        if of_queries % self.groups or shares != {(keys, *heads)}:
            refuse(op, "heads that do not share key heads evenly")
        every = of_queries // self.groups
        self.heads = next(n for n in range(min(every, MOST_HEADS), 0, -1) if every % n == 0)
        self.shares = every // self.heads
        self.latent = any(cache.weight is values.weight for _, cache in scores.products)
        if self.latent and values.coded:
            refuse(op, f"latents that caches keep as {values.coded}")
        self.asking = 1 if self.latent else runs.asking(self.heads, self.lanes)
        self.rows = self.asking * self.heads
        self.sizes = program.tokens // self.asking, self.groups * self.shares
        run, self.group = Expr.var("b"), Expr.var("g")
        self.token = run * self.asking
        self.key_head = self.group // self.shares
        self.position, self.first = program.position(self.token), Expr.var(POSITION)
        self.request = program.request(self.token)
        self.own = Part(constant(0), 0, self.token, self.asking)

    def family(self, name: str, domain: dict[str, int]) -> OpenTask:
        """A family of tasks of a phase of its own, which is written from now on."""
        phase = self.program.phase(name)
        self.task = self.program.family(phase, name, domain, self.own, self.program.each)
        return self.task

    def by_token(self, lanes: int) -> tuple[Expr, ...]:
        """The shape of so many ``lanes`` of each query, those of a token together."""
        return tuple(map(constant, (self.asking, self.heads, lanes)))

    def lanes_of_head(self, cache: Known) -> int:
        """Lanes of a head of a cache."""
        return self.program.source.dims[cache.kind.dims[-1]]

    def place(self, cache: Known, tokens: Index, head: Expr) -> tuple[Index, ...]:
        """The place of ``tokens`` of this task's request and of a ``head`` in a cache."""
        lead = self.program.at_layer if cache.stacked else ()
        request = (Point(self.request),) if "B" in cache.kind.dims else ()
        heads = (Point(head),) if len(per_request(cache)) == 3 else ()
        return (*lead, *request, tokens, *heads)

    def lanes_of(self, known: Known, run: Expr, count: int, of: Part) -> Value:
        """A run of so many lanes of the tokens ``of``, ``[tokens, lanes]``."""
        return self.demand.of(self.task, known, replace(of, start=run * count, count=count))

    def guard(self, ops: Sequence[Op], cond: Cond | None) -> None:
        """Let ``ops`` run where ``cond`` holds as well; memory is there everywhere."""
        for op in ops:
            if cond is not None and not isinstance(op, task.Local):
                op.when = cond if op.when is None else cond & op.when

    # --- the softmax

    def empty(self, lanes: int, sink_in: Cond | None = None) -> Value:
        """The record of no token for each query: so many ``lanes`` of values, weight, largest
        score. A sink is one more score, of weight 1 and without a value, there where ``sink_in``
        holds."""
        total = self.task.local("total", (self.rows, lanes + 2))
        self.task.compute("fill", View(total, (Whole(), span(0, lanes + 1))), value=0.0)
        most = (Whole(), Point(constant(lanes + 1)))
        self.task.compute("fill", View(total, most), value=DType.F32.lowest)
        sink = self.scores.sink
        if sink is None:
            return total
        part = Part(self.group * self.heads, self.heads)
        score = self.demand.vector(self.task, sink, part, sink.kind.dims)
        rows: Index = Whole()
        if self.asking > 1:
            self.task.loop("t", constant(self.asking))
            rows = span(Expr.var("t") * self.heads, self.heads)
        for lane, kernel, operands, given in (
            (lanes, "fill", (), {"value": 1.0}),
            (lanes + 1, "copy", (score,), {}),
        ):
            view = View(total, (rows, Point(constant(lane))))
            self.task.compute(kernel, view, *operands, **given)
            self.guard(self.task.blocks[-1].ops[-1:], sink_in)
        if self.asking > 1:
            self.task.leave()
        return total

    def weigh(
        self,
        total: Value,
        scores: Value,
        values: Value | View,
        first: Expr,
        limit: Expr,
        more: Callable[[View], None] | None = None,
    ) -> None:
        """Softmax of ``scores`` of keys from ``first`` on, of which there are those in front of
        ``limit``, and the ``values`` that it weighs, merged into ``total``. ``more`` writes what is
        added to weighed values."""
        write, (_, tokens), (_, wide) = self.task, shape_of(scores), shape_of(total)
        for step in self.scores.steps:
            step(write, scores)
        at: dict[str, object] = {
            "query": self.position, "query_step": int(self.asking > 1), "key": first, "key_step": 1,
        }  # fmt: skip
        # One query attends to a run of one token or is no part of it: see ``in_window``.
        if tokens > 1 or self.asking > 1:
            masked = View(scores, (), self.by_token(tokens), (1, 0, 2))
            write.compute("mask_causal", masked, **at, limit=limit)
            self._window(masked, at)
        record = write.local("record", (self.rows, wide))
        sums = View(record, (Whole(), span(0, wide - 2)))
        weight, most = (View(record, (Whole(), Point(constant(wide - n)))) for n in (2, 1))
        write.compute("row_max", most, scores)
        write.compute("at_least", most, most, value=DType.F32.lowest)
        write.compute("exp_sub", scores, scores, most)
        write.compute("row_sum", weight, scores)
        write.compute("gemm", sums, scores, values, accumulate=False, transposed=False)
        if more is not None:
            more(sums)
        write.compute("merge_softmax", total, record, count=1)

    def _layers_with_window(self) -> Cond | None:
        """In which layers attention has a window; None where it has none."""
        op, layer = self.scores.softmax, self.program.layer
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
            self.guard(self.task.blocks[-1].ops[-1:], everywhere)

    def in_window(self, first: Expr) -> Cond | None:
        """Where some token of the run from ``first`` on is seen."""
        layers, op = self._layers_with_window(), self.scores.softmax
        if layers is None or not isinstance(op, graph.Softmax):
            return None
        return Cond.gt(first + self.runs.tokens, self.position + 1 - op.window) | ~layers


def per_request(cache: Known) -> tuple[str, ...]:
    """The dims of a cache of one request: tokens, heads if there are any, lanes."""
    return tuple(d for d in cache.kind.dims if d != "B")


def shape_of(value: Value) -> tuple[int, int]:
    """The extents of a value of two dims."""
    rows, columns = (extent.constant for extent in View(value).shape())
    return rows, columns
