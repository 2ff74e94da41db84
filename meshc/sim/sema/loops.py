"""Loops: executed at compile time, unrolled, or lowered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from meshc.sim import ir
from meshc.sim.lang import tree as t
from meshc.sim.sema import csl_types as ty
from meshc.sim.sema.arith import as_code, binary
from meshc.sim.sema.convert import coerce
from meshc.sim.sema.csl_types import Array, Int
from meshc.sim.sema.evaluating import is_scalar
from meshc.sim.sema.keeping import branch
from meshc.sim.sema.statements import Statements
from meshc.sim.sema.tree_walks import nodes
from meshc.sim.sema.values import Frame, LoopFrame, LoopSignal, RangeVal, Val
from meshc.support.diagnostics import fail


class Loops(Statements):
    """``while`` and ``for``."""

    def exec_While(self, stmt: t.While, frame: Frame) -> None:
        if frame.known:
            self._run_while(stmt, frame)
            return
        if stmt.inline:
            self._unroll(stmt, frame, self._run_while)
            return
        loop = self.new_loop(stmt.label)
        with branch(frame) as head:
            cond = self.boolean(stmt.cond, frame)
        if cond.known and not cond.v:
            return
        with branch(frame):
            body = self.lower_loop_body(stmt.body, frame, loop)
        step = self._captured(stmt.step, frame) if stmt.step is not None else []
        where = self.place_of(stmt)
        self.emit(frame, ir.Loop(where, loop.number, head, as_code(cond), body, step))

    def _run_while(self, stmt: t.While, frame: Frame) -> None:
        while True:
            self.tick(stmt.span)
            cond = self.boolean(stmt.cond, frame)
            if not cond.known:
                fail("csl-comptime", "the condition is not known at compile time", stmt.span)
            if not cond.v or self._run_body(stmt, frame):
                return
            if stmt.step is not None:
                self.exec(stmt.step, frame)

    def _run_body(self, stmt: t.While | t.For, frame: Frame) -> bool:
        """Run a loop body once at compile time; whether the loop was left. It also ends with an
        iteration that has errors: those of the others would say the same once more."""
        before = self.mistakes
        if frame.loops and frame.loops[-1].unrolled is stmt:
            self._lower_iteration(stmt, frame, frame.loops[-1])
            return self.mistakes > before
        frame.loops.append(LoopFrame(stmt.label, 0))
        try:
            self._scoped(stmt.body, frame)
        except LoopSignal as signal:
            if signal.label not in (None, stmt.label):
                raise
            return not signal.again
        finally:
            frame.loops.pop()
        return self.mistakes > before

    def _lower_iteration(self, stmt: t.While | t.For, frame: Frame, loop: LoopFrame) -> None:
        self.unit.temps += 1
        loop.iteration = self.unit.temps
        outer, frame.out = frame.out, []
        try:
            self._scoped(stmt.body, frame)
            body = frame.out
        finally:
            frame.out = outer
        self.emit_once(body, loop.iteration, stmt, frame)

    def exec_For(self, stmt: t.For, frame: Frame) -> None:
        subject = self.eval(stmt.subject, frame)

        def unrolled(stmt: t.For, frame: Frame) -> None:
            self._run_for(stmt, subject, frame)

        if frame.known:
            self._run_for(stmt, subject, frame)
        elif stmt.inline:
            self._unroll(stmt, frame, unrolled)
        elif subject.type == ty.RANGE:
            self._lower_range(stmt, subject.v, frame)
        elif isinstance(subject.type, Array) and (
            not isinstance(subject.v, list) or is_scalar(subject.type.element)
        ):
            self._lower_array(stmt, subject, frame)
        else:
            self._unroll(stmt, frame, unrolled)

    def _unroll(self, stmt: Any, frame: Frame, run: Callable[[Any, Frame], None]) -> None:
        """Lower every iteration by itself, in blocks that break and continue leave."""
        if not any(isinstance(n, t.Break | t.Continue) for n in nodes(stmt.body)):
            run(stmt, frame)
            return
        loop = self.new_loop(stmt.label)
        loop.unrolled = stmt
        outer, frame.out = frame.out, []
        frame.loops.append(loop)
        try:
            run(stmt, frame)
            body = frame.out
        finally:
            frame.out = outer
            frame.loops.pop()
        self.emit_once(body, loop.number, stmt, frame)

    def _run_for(self, stmt: t.For, subject: Val, frame: Frame) -> None:
        for position, value in enumerate(self._elements(stmt, subject)):
            self.tick(stmt.span)
            frame.names.append({})
            try:
                if stmt.captures:
                    frame.names[-1][stmt.captures[0]] = value
                if len(stmt.captures) > 1:
                    frame.names[-1][stmt.captures[1]] = Val(ty.U16, position)
                if self._run_body(stmt, frame):
                    return
            finally:
                frame.names.pop()

    def _elements(self, stmt: t.For, subject: Val) -> Iterator[Val]:
        if subject.type == ty.RANGE:
            span, bounds = stmt.subject.span, subject.v
            numbers = [self.as_number(v, span) for v in (bounds.low, bounds.high, bounds.step)]
            for number in range(*numbers):
                yield Val(bounds.type, number)
        elif isinstance(subject.type, Array) and isinstance(subject.v, list):
            for element in subject.v:
                is_val = isinstance(element, Val)
                yield element if is_val else Val(subject.type.element, element)
        elif subject.type == ty.STRUCT:
            yield from subject.v.values()
        else:
            fail("csl-type", f"cannot loop over '{subject.type}'", stmt.subject.span)

    def _lower_range(self, stmt: t.For, bounds: RangeVal, frame: Frame) -> None:
        """The counter is wider than the range's type, so that it cannot wrap around."""
        where, span = self.place_of(stmt), stmt.subject.span
        counter = self.unit.temp(ty.I32, "i")
        kind = bounds.type if isinstance(bounds.type, Int) else ty.I16
        if kind.bits > 16:
            counter.type = ty.I64
        wide = ty.I64 if kind.bits > 16 else ty.I32
        low, high, step = (
            self._kept_number(coerce(v, kind, span), frame, where, wide)
            for v in (bounds.low, bounds.high, bounds.step)
        )
        here = ir.Local(wide, counter)
        self.emit(frame, ir.SetLocal(where, counter, low))
        scope = {stmt.captures[0]: Val(kind, ir.Local(kind, counter), False)}
        tail: list[ir.Stmt] = []
        if len(stmt.captures) > 1:
            index = self.unit.temp(ty.U16, "n")
            self.emit(frame, ir.SetLocal(where, index, ir.Const(ty.U16, 0)))
            scope[stmt.captures[1]] = Val(ty.U16, ir.Local(ty.U16, index), False)
            tail.append(ir.SetLocal(where, index, _plus(index, ir.Const(ty.U16, 1))))
        frame.names.append(dict(scope))
        loop = self.new_loop(stmt.label)
        with branch(frame):
            body = self.lower_loop_body(stmt.body, frame, loop)
        frame.names.pop()
        tail.append(ir.SetLocal(where, counter, _plus(counter, step)))
        downward = isinstance(step, ir.Const) and step.value < 0
        cond = ir.Bin(ty.BOOL, ">" if downward else "<", here, high)
        self.emit(frame, ir.Loop(where, loop.number, [], cond, body, tail))

    def _kept_number(self, value: Val, frame: Frame, where: str, kind: Int) -> ir.Expr:
        if value.known:
            return ir.Const(kind, value.v)
        var = self.unit.temp(kind, "b")
        self.emit(frame, ir.SetLocal(where, var, ir.Cast(kind, value.v)))
        return ir.Local(kind, var)

    def _lower_array(self, stmt: t.For, subject: Val, frame: Frame) -> None:
        where, kind = self.place_of(stmt), subject.type
        assert isinstance(kind, Array)
        index = self.unit.temp(ty.U16, "n")
        at = Val(ty.U16, ir.Local(ty.U16, index), False)
        if isinstance(subject.v, list) and not subject.known:
            subject = self.kept(subject, "array", frame, stmt)
        flat = Val(Array((kind.count,), kind.element), self.code(subject), False)
        self.emit(frame, ir.SetLocal(where, index, ir.Const(ty.U16, 0)))
        scope: dict[str, Val] = {}
        first = self.index_value(flat, [at], frame, stmt.span)
        if len(stmt.captures) > 1:
            scope[stmt.captures[1]] = at
        frame.names.append(dict(scope))
        loop = self.new_loop(stmt.label)
        body = list[ir.Stmt]()
        if stmt.captures and any(_is_name(n, stmt.captures[0]) for n in nodes(stmt.body)):
            outer, frame.out = frame.out, body
            frame.names[-1][stmt.captures[0]] = self.kept(first, stmt.captures[0], frame, stmt)
            frame.out = outer
        with branch(frame):
            body += self.lower_loop_body(stmt.body, frame, loop)
        frame.names.pop()
        step: list[ir.Stmt] = [ir.SetLocal(where, index, _plus(index, ir.Const(ty.U16, 1)))]
        cond = as_code(binary("<", at, Val(ty.U16, kind.count), stmt.span))
        self.emit(frame, ir.Loop(where, loop.number, [], cond, body, step))


def _is_name(node: t.Node, name: str) -> bool:
    return isinstance(node, t.Name) and node.name == name


def _plus(var: ir.Var, amount: ir.Expr) -> ir.Expr:
    return ir.Bin(var.type, "+", ir.Local(var.type, var), amount)
