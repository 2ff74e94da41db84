"""What a task needs of a value: it is needed from a buffer, streamed, or computed in the task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import NoReturn

from meshc.ir.affine import Cond, Expr
from meshc.ir.batch import AHEAD
from meshc.ir.core import Op
from meshc.ir.functions import Function
from meshc.ir.ops import graph
from meshc.ir.ops import task as tasks
from meshc.ir.types import BufferType, DType
from meshc.ir.values import Value
from meshc.ir.views import Index, Point, View, Whole
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
from meshc.support.diagnostics import fail


def refuse(op: Op, words: str) -> NoReturn:
    """Fail with ``no-tasks``: what there is no rule for."""
    fail("no-tasks", f"there are no tasks for {words} ({op.NAME})", op.span)


class Demand:
    """Writes into a task what it needs of values, each once."""

    def __init__(self, program: TaskProgram) -> None:
        self.program = program

    def whole(self, known: Known) -> Part:
        """All lanes of a value, of all tokens."""
        return Part(constant(0), self.program.lanes(known.kind))

    def of(self, task: OpenTask, known: Known, part: Part) -> Value:
        """``part`` of a value in ``task``, ``[tokens, lanes]``."""
        key = (known, part)
        if known.task is task and known.here is not None and part == task.own:
            return known.here
        if key not in task.known:
            assert len(task.blocks) == 1, "what is needed is written in front of loops"
            task.known[key] = self._made(task, known, part)
        return task.known[key]

    def vector(self, task: OpenTask, known: Known, part: Part, dims: Sequence[str]) -> Value:
        """Lanes of a weight that has no rows, ``[lanes]``, in the order of ``dims``."""
        key = (known, (Part(part.start, part.count), tuple(dims)))
        if key not in task.known:
            if known.weight is None or not {*known.kind.dims} <= {*dims}:
                fail("no-tasks", f"there are no tasks for %{known.name}, which has no rows")
            buffer = self.program.vector(known.weight, known.stacked, dims)
            lead = self.program.at_layer if known.stacked else ()
            lanes = region(buffer, *lead, part.lanes_of(buffer))
            task.known[key] = task.add(tasks.Stream([lanes]), known.name)
        return task.known[key]

    def columns(self, task: OpenTask, known: Known, part: Part, dtype: DType) -> Value:
        """A part of a value as the left side of products, rounded to ``dtype`` if it is not rounded
        yet."""
        value = self.of(task, known, part)
        assert isinstance(value.type, BufferType)
        if value.type.dtype is dtype or value.type.dtype is not DType.F32:
            return value
        key = (known, (part, dtype))
        if key not in task.known:
            rounded = task.local(f"{known.name}_columns", _shape(value), dtype)
            task.compute("copy", rounded, value)
            task.known[key] = rounded
        return task.known[key]

    # --- how

    def _made(self, task: OpenTask, known: Known, part: Part) -> Value:
        if known.routed is not None and task.routed is None:
            fail("no-tasks", f"there are no tasks for %{known.name} of experts without rows")
        if known.stored is not None:
            ragged = self.program.owned and part.many > 1
            every = replace(part, token=None, many=1) if ragged else part
            lanes = every.of(known.stored.buffer, known.stored.lead)
            kind = tasks.Need if known.stored.phase else tasks.Stream
            given = task.add(kind([lanes]), known.name)
            return self._of_request(task, given, part) if ragged else given
        if known.merged is not None:
            return self._merged(task, known, part)
        if known.weight is not None:
            fail("no-tasks", f"there are no tasks for rows of the weight %{known.name}")
        op = known.later
        if op is None:
            fail("no-tasks", f"%{known.name} is needed before the task that gives it has ended")
        with task.origin.at(op):
            return self._computed(task, known, op, part)

    def _of_request(self, task: OpenTask, every: Value, part: Part) -> Value:
        """The rows of the task's request, up to its own token, out of ``every`` row; behind them
        there is nothing."""
        assert part.token is not None
        rows = task.local(f"{every.name}_of_request", (part.many, part.count))
        task.loop("t", constant(part.many))
        number, first = Expr.var("t"), part.token
        views = (region(one, span(at, 1)) for one, at in ((rows, number), (every, first + number)))
        task.compute("copy", *views)
        (copy,) = task.blocks[-1].ops
        copy.when = Cond.le(number, Expr.var(AHEAD)) & Cond.ge(first + number, 0)
        task.leave()
        return rows

    def _computed(self, task: OpenTask, known: Known, op: Op, part: Part) -> Value:
        """What ``op`` gives, in the task that needs it."""
        if isinstance(op, graph.RmsNorm):
            return self._norm(task, known, op, part)
        if isinstance(op, graph.Centre):
            return self._centred(task, known, op, part)
        if isinstance(op, graph.Softmax):
            return self._softmax(task, known, op, part)
        if isinstance(op, graph.Rope):
            return self._rope(task, known, op, part)
        first = self.of(task, known.operands[0], part)
        return self.pointwise(task, known, op, first, part)

    def pointwise(self, task: OpenTask, known: Known, op: Op, first: Value, part: Part) -> Value:
        """An op on single elements, of whose first operand the task has ``first``."""
        result = task.local(known.name, _shape(first))
        if isinstance(op, graph.Scale):
            task.compute("scale", result, first, factor=op.factor)
        elif isinstance(op, Function):
            kernel = op.NAME.partition(".")[2]
            task.compute(kernel, result, first, **op.attributes())
        elif isinstance(op, (graph.Add, graph.Mul)):
            other = known.operands[1]
            kernel = "add" if isinstance(op, graph.Add) else "mul"
            dims = [d for d in known.kind.dims if d not in ROWS]
            if other.weight is not None:
                second = self.vector(task, other, part, dims)
            elif dims == [d for d in other.kind.dims if d not in ROWS]:
                second = self.of(task, other, part)
            else:
                values = first, other
                self._with_repeated(task, op, kernel, result, values, dims, part)
                return result
            task.compute(kernel, result, first, second)
        else:
            refuse(op, "an op of this kind in a decode step")
        return result

    def _norm(self, task: OpenTask, known: Known, op: graph.RmsNorm, part: Part) -> Value:
        """RMSNorm over all lanes, or over those of each head."""
        source, gain = known.operands
        dims = [d for d in known.kind.dims if d not in ROWS]
        over = {op.dim, *op.also}
        width = prod(self.program.source.dims[d] for d in over)
        if {*dims[len(dims) - len(over) :]} != over or gain.weight is None:
            refuse(op, "a norm over other dims than the last ones")
        if width == self.program.lanes(known.kind):
            return self._norm_of_all(task, known, op, part, width)
        if part.count % width:
            return self._slice(task, known, part)
        rows, heads = part.rows(self.program.tokens), part.count // width
        value = self.of(task, source, part)
        squares = task.local(f"{known.name}_squares", (rows, heads))
        result = task.local(known.name, (rows, part.count))
        shape = (constant(rows), constant(heads), constant(width))
        task.compute("square_sum", squares, View(value, (), shape))
        gains = self.vector(task, gain, Part(constant(0), width), dims[len(dims) - len(over) :])
        made, given = View(result, (), shape), View(value, (), shape)
        task.compute("rms_scale", made, given, squares, gains, count=width, eps=op.eps)
        return result

    def _norm_of_all(
        self, task: OpenTask, known: Known, op: graph.RmsNorm, part: Part, width: int
    ) -> Value:
        source, gain = known.operands
        rows = part.rows(self.program.tokens)
        every = replace(part, start=constant(0), count=width)
        value = self.of(task, source, every)
        key = (("squares", source), every)
        if key not in task.known:
            squares = task.local(f"{known.name}_squares", (rows,))
            task.compute("square_sum", squares, value)
            task.known[key] = squares
        lanes = value if part == every else self.of(task, source, part)
        result = task.local(known.name, (rows, part.count))
        gains = self.vector(task, gain, part, [d for d in known.kind.dims if d not in ROWS])
        task.compute("rms_scale", result, lanes, task.known[key], gains, count=width, eps=op.eps)
        return result

    def _with_repeated(
        self, task: OpenTask, op: Op, kernel: str, result: Value, values: tuple[Value, Known],
        dims: Sequence[str], part: Part,
    ) -> None:  # fmt: skip
        """``kernel`` of a value that is there and of one over the first of its ``dims``, of which
        one lane is for all lanes that the task has."""
        first, other = values
        own = [d for d in other.kind.dims if d not in ROWS]
        inner = prod(self.program.source.dims[d] for d in dims[len(own) :])
        if own != list(dims[: len(own)]) or (own and inner % part.count):
            refuse(op, f"%{other.name}, repeated over dims that it lacks")
        lane = part.start // inner if own else constant(0)
        if own and task.routed is not None:
            lane = task.routed
        second = self.of(task, other, replace(part, start=lane, count=1))
        by_lane = [View(v, (), (), (1, 0)) for v in (result, first)]
        rows = constant(part.rows(self.program.tokens))
        task.compute(kernel, *by_lane, View(second, (), (rows,)))

    def _softmax(self, task: OpenTask, known: Known, op: graph.Softmax, part: Part) -> Value:
        """The softmax of all lanes of each token."""
        rows, width = part.rows(self.program.tokens), self.program.source.dims[op.dim]
        if part.start != constant(0) or part.count != width or len(known.operands) > 1:
            refuse(op, "a softmax of some lanes")
        value = self.of(task, known.operands[0], part)
        most, total = (task.local(f"{known.name}_{of}", (rows,)) for of in ("most", "total"))
        result = task.local(known.name, (rows, width))
        task.compute("row_max", most, value)
        task.compute("exp_sub", result, value, most)
        task.compute("row_sum", total, result)
        task.compute("div", result, result, total)
        return result

    def _centred(self, task: OpenTask, known: Known, op: graph.Centre, part: Part) -> Value:
        """A value less the mean of its lanes, token by token, of all or of those of each head."""
        (source,) = known.operands
        width, rows = self.program.source.dims[op.dim], part.rows(self.program.tokens)
        shape: tuple[int, ...] = (rows,)
        order: tuple[int, ...] = (1, 0)
        every, given = replace(part, start=constant(0), count=width), tuple[Expr, ...]()
        if width != self.program.lanes(known.kind):
            if known.kind.dims[-1] != op.dim:
                refuse(op, "the mean of other lanes than the last ones")
            if part.count % width:
                return self._slice(task, known, part)
            shape, order, every = (rows, part.count // width), (2, 0, 1), part
            given = tuple(map(constant, (*shape, width)))
        key = (("mean", source), every)
        if key not in task.known:
            mean = task.local(f"{known.name}_mean", shape)
            task.compute("row_sum", mean, View(self.of(task, source, every), (), given))
            task.compute("scale", mean, mean, factor=-1.0 / width)
            task.known[key] = mean
        value = self.of(task, source, part)
        result = task.local(known.name, _shape(value))
        by_lane = [View(v, (), given, order) for v in (result, value)]
        task.compute("add", *by_lane, task.known[key])
        return result

    def _rope(self, task: OpenTask, known: Known, op: graph.Rope, part: Part) -> Value:
        if not self.turns(op, known, part):
            return self._slice(task, known, part)
        return self.turned(task, known, op, self.of(task, known.operands[0], part), part)

    def turns(self, op: graph.Rope, known: Known, part: Part) -> bool:
        """Whether ``part`` has whole pairs of a rotation, of whole heads or of one."""
        lanes = self.program.source.dims[op.dim]
        if op.style != "interleaved" or known.kind.dims[-1:] != (op.dim,):
            refuse(op, "a rotation of lanes that are no pairs")
        return part.count % lanes == 0 or (lanes % part.count == 0 and part.count % 2 == 0)

    def turned(
        self, task: OpenTask, known: Known, op: graph.Rope, value: Value, part: Part
    ) -> Value:
        """``value`` with its pairs turned by the position of each token."""
        lanes = self.program.source.dims[op.dim]
        heads, own = max(part.count // lanes, 1), min(part.count, lanes)
        lead = self.program.at_layer if op.period else ()
        first = constant(0) if own == lanes else (part.start % lanes) // 2
        table = self.program.frequencies(op)
        pairs = region(table, *lead, Part(first, own // 2).lanes_of(table))
        angles = task.add(tasks.Stream([pairs]), f"{known.name}_angles")
        result = task.local(known.name, _shape(value))
        shape = (constant(heads), constant(1), constant(own))
        if part.token is not None and part.many == 1:
            position = self.program.position(part.token)
            made, given = View(result, (), shape), View(value, (), shape)
            task.compute("rope", made, given, angles, position=position, step=1)
            return result
        name = "t" if "b" in task.family.dims else "b"
        at = Expr.var(name)
        row, token = (Point(at),), at if part.token is None else part.token + at
        position = self.program.position(token)
        each = self.program.each if part.token is None else ()
        task.loop(name, constant(part.rows(self.program.tokens)), each)
        made, given = View(result, row, shape), View(value, row, shape)
        task.compute("rope", made, given, angles, position=position, step=1)
        task.leave()
        return result

    def _merged(self, task: OpenTask, known: Known, part: Part) -> Value:
        """Attention of all heads, of those of a key head, or of one, from the records of all splits
        (merge_softmax)."""
        stored = known.merged
        assert stored is not None
        rows, groups, splits, heads, wide = stored.extents
        lanes = wide - 2
        at: tuple[Index, ...] = ()
        kept: tuple[int, ...] = (groups, heads)
        if part != self.whole(known):
            group, head = _run_of(part, heads * lanes), _run_of(part, lanes)
            if part.token is None and lanes % part.count == 0 and part.count < lanes:
                return self._merged_lanes(task, known, part, stored)
            if part.token is not None or (group is None and head is None):
                return self._slice(task, known, part)
            if head is not None:
                at, kept = (Point(head // heads), Whole(), Point(head % heads)), ()
            elif group is not None:
                at, kept = (span(group, 1),), (1, heads)
        records = task.add(
            tasks.Need([region(stored.buffer, *stored.lead, Whole(), *at)]), f"{known.name}_records"
        )
        before = (Whole(),) * (2 if kept else 1)
        total = task.local(f"{known.name}_total", (rows, *kept, wide))
        task.compute("copy", total, region(records, *before, Point(constant(0))))
        if splits > 1:
            task.loop("s", constant(splits - 1))
            other = region(records, *before, Point(Expr.var("s") + 1))
            task.compute("merge_softmax", total, other, count=1)
            task.leave()
        every = (Whole(),) * (1 + len(kept))
        result = task.local(known.name, (rows, part.count))
        made = View(result, (), tuple(map(constant, (rows, *kept, lanes))))
        weights = region(total, *every, Point(constant(lanes)))
        task.compute("div", made, region(total, *every, span(0, lanes)), weights)
        return result

    def _merged_lanes(self, task: OpenTask, known: Known, part: Part, stored: Stored) -> Value:
        """Some lanes of a head, from those of its records, with their weights and largest
        scores."""
        rows, _, splits, heads, wide = stored.extents
        lanes, count = wide - 2, part.count
        head = part.start // lanes
        at = (*stored.lead, Whole(), Point(head // heads), Whole(), Point(head % heads))
        needs = [
            task.add(tasks.Need([region(stored.buffer, *at, own)]), f"{known.name}_{name}")
            for name, own in (
                ("lanes", span(part.start % lanes, count)),
                ("weights", span(lanes, 2)),
            )
        ]
        places = span(0, count), span(count, 2)
        total = task.local(f"{known.name}_total", (rows, count + 2))
        for own, need in zip(places, needs, strict=True):
            task.compute(
                "copy", region(total, Whole(), own), region(need, Whole(), Point(constant(0)))
            )
        if splits > 1:
            task.loop("s", constant(splits - 1))
            other = task.local(f"{known.name}_record", (rows, count + 2))
            for own, need in zip(places, needs, strict=True):
                split = Point(Expr.var("s") + 1)
                task.compute("copy", region(other, Whole(), own), region(need, Whole(), split))
            task.compute("merge_softmax", total, other, count=1)
            task.leave()
        result = task.local(known.name, (rows, count))
        weights = region(total, Whole(), Point(constant(count)))
        task.compute("div", result, region(total, Whole(), places[0]), weights)
        return result

    def _slice(self, task: OpenTask, known: Known, part: Part) -> Value:
        """A part that is no whole number of heads or pairs: of the value, computed whole."""
        whole = self.whole(known)
        assert part != whole
        value = self.of(task, known, whole)
        rows, missing = part.rows(self.program.tokens), -whole.count % part.count
        if missing:
            # The last part has lanes that the value lacks.
            padded = task.local(known.name, (rows, whole.count + missing))
            task.compute("fill", region(padded, Whole(), span(whole.count, missing)), value=0.0)
            task.compute("copy", region(padded, Whole(), span(0, whole.count)), value)
            value = padded
        result = task.local(known.name, (rows, part.count))
        task.compute("copy", result, part.of(value))
        return result


def _run_of(part: Part, lanes: int) -> Expr | None:
    """Which run of ``lanes`` a part is, if it is one: that of a head, or of some."""
    run = part.start // lanes
    return run if part.count == lanes and run * lanes == part.start else None


def _shape(value: Value) -> tuple[int, ...]:
    assert isinstance(value.type, BufferType)
    return value.type.shape
