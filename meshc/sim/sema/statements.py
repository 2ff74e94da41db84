"""Statements: executed at compile time or lowered, by one set of rules."""

from __future__ import annotations

from typing import Any, NoReturn

from meshc.sim import ir
from meshc.sim.lang import tree as t
from meshc.sim.sema import csl_types as ty
from meshc.sim.sema.addressed import address_of, moves, placed_at
from meshc.sim.sema.analysing import located
from meshc.sim.sema.arith import as_code, binary
from meshc.sim.sema.calls import Calls
from meshc.sim.sema.convert import coerce, copied, zero_of
from meshc.sim.sema.csl_types import Array, Enum, Struct, Type
from meshc.sim.sema.evaluating import is_scalar
from meshc.sim.sema.keeping import branch, variable_name
from meshc.sim.sema.unit import MEMORY_BYTES, STATEMENT_BYTES
from meshc.sim.sema.values import (
    BitPlace,
    Cell,
    CellPlace,
    Frame,
    LocalPlace,
    LoopFrame,
    LoopSignal,
    MemPlace,
    Place,
    ReturnSignal,
    SlotPlace,
    StackVar,
    Val,
)
from meshc.support.diagnostics import MeshcError, fail


class Statements(Calls):
    """Blocks, variables, assignments, conditions and jumps; loops are in :mod:`loops`."""

    def exec_block(self, block: t.Block, frame: Frame) -> None:
        """All statements of a block in a scope of its own."""
        frame.names.append({})
        try:
            for stmt in block.body:
                self._exec_checked(stmt, frame)
        finally:
            frame.names.pop()

    def _exec_checked(self, stmt: t.Stmt, frame: Frame) -> None:
        """Like exec; in lowered code an error ends only its own statement."""
        if frame.known or isinstance(stmt, t.VarDecl):
            self.exec(stmt, frame)
            return
        try:
            self.exec(stmt, frame)
        except MeshcError as problem:
            self.mistakes += 1
            self.problems(problem)
        if not self.unit.code_fits:
            fail(
                "csl-memory",
                f"the code has more than {MEMORY_BYTES // STATEMENT_BYTES} statements here; by an "
                f"estimate of {STATEMENT_BYTES} bytes for each, which is low, it does not fit the "
                f"{MEMORY_BYTES} bytes of a PE",
                stmt.span,
                help="an unrolled loop repeats its body: use a plain loop or a vector operation",
            )

    def exec(self, stmt: t.Stmt, frame: Frame) -> None:
        """One statement; errors without a place are in its line."""
        try:
            getattr(self, "exec_" + type(stmt).__name__)(stmt, frame)
        except MeshcError as problem:
            raise located(problem, stmt.span) from None

    def exec_Block(self, stmt: t.Block, frame: Frame) -> None:
        if stmt.comptime:
            frame = frame.at_comptime()
        if stmt.label is None:
            self.exec_block(stmt, frame)
        elif frame.known:
            self.run_block(stmt, frame)
        else:
            self._lower_once(stmt, frame)

    def run_block(self, block: t.Block, frame: Frame) -> Val | None:
        """Run a block with a label at compile time; the value that it was left with."""
        frame.loops.append(LoopFrame(block.label, 0, is_block=True))
        try:
            self.exec_block(block, frame)
        except LoopSignal as signal:
            if signal.label != block.label:
                raise
            return signal.value
        finally:
            frame.loops.pop()
        return None

    def _lower_once(self, stmt: t.Block, frame: Frame) -> None:
        loop = self.new_loop(stmt.label, is_block=True)
        inner = t.Block(stmt.span, stmt.body)
        self.emit_once(self.lower_loop_body(inner, frame, loop), loop.number, stmt, frame)

    def emit_once(self, body: list[ir.Stmt], number: int, node: t.Node, frame: Frame) -> None:
        """Code that jumps may leave by the number given."""
        yes = ir.Const(ty.BOOL, True)
        self.emit(frame, ir.Loop(self.place_of(node), number, [], yes, body, [], once=True))

    def new_loop(self, label: str | None, is_block: bool = False) -> LoopFrame:
        """A loop with a number of its own."""
        self.unit.temps += 1
        return LoopFrame(label, self.unit.temps, is_block)

    def lower_loop_body(self, body: t.Stmt, frame: Frame, loop: LoopFrame) -> list[ir.Stmt]:
        """The lowered body of a loop."""
        outer, frame.out = frame.out, []
        frame.loops.append(loop)
        try:
            self._exec_checked(body, frame)
            return frame.out
        finally:
            frame.out = outer
            frame.loops.pop()

    def exec_ExprStmt(self, stmt: t.ExprStmt, frame: Frame) -> None:
        if isinstance(stmt.expr, t.SwitchExpr):
            self.exec_switch(stmt.expr, frame)
        elif isinstance(stmt.expr, t.IfExpr):
            node = stmt.expr
            other = t.ExprStmt(node.span, node.other) if node.other is not None else None
            self.exec_If(t.If(node.span, node.cond, t.ExprStmt(node.span, node.then), other), frame)
        else:
            self.eval(stmt.expr, frame, ty.VOID if isinstance(stmt.expr, t.Builtin) else None)

    def exec_VarDecl(self, stmt: t.VarDecl, frame: Frame) -> None:
        kind = self.type_from(stmt.type, frame) if stmt.type is not None else None
        if stmt.init is None:
            if kind is None:
                fail("csl-type", f"'{stmt.name}' needs a type or a value", stmt.span)
            value = Val(kind, zero_of(kind))
        elif stmt.comptime:
            value = self.known(stmt.init, frame, kind)
        else:
            value = self.eval(stmt.init, frame, kind)
        if kind is not None:
            value = coerce(value, kind, stmt.span)
        if value.type == ty.RANGE:
            frame.names[-1][stmt.name] = self.kept(value, stmt.name, frame, stmt)
        elif frame.known or stmt.comptime:
            frame.names[-1][stmt.name] = value if stmt.const else self._cell(value, frame)
        elif stmt.const:
            self._local_const(stmt, value, frame)
        else:
            self._local_var(stmt, value, frame)

    def _cell(self, value: Val, frame: Frame) -> Cell:
        return Cell(value.type, copied(value).v, frame.branches)

    def _local_const(self, stmt: t.VarDecl, value: Val, frame: Frame) -> None:
        if not value.known or (isinstance(value.type, Array) and stmt.name in frame.addressed):
            value = self.kept(value, stmt.name, frame, stmt)
        elif stmt.name in frame.addressed and is_scalar(value.type):
            symbol = self.memory(stmt.name, value.type, value.v)
            addr = ir.Const(ty.U16, symbol.addr)
            frame.names[-1][stmt.name] = StackVar(value.type, addr)
            return
        frame.names[-1][stmt.name] = value

    def _local_var(self, stmt: t.VarDecl, value: Val, frame: Frame) -> None:
        kind = value.type
        if kind in (ty.COMPTIME_INT, ty.COMPTIME_FLOAT):
            fail("csl-type", f"variable '{stmt.name}' needs a type", stmt.span)
        if kind in ty.COMPTIME_ONLY:
            kept = self.kept(value, stmt.name, frame, stmt)
            frame.names[-1][stmt.name] = self._cell(kept, frame)
            return
        self.check_runtime_type(kind, stmt.name, stmt.span)
        where = self.place_of(stmt)
        if ty.lives_in_slots(kind) and isinstance(kind, Array):
            frame.names[-1][stmt.name] = self.kept_slots(value, frame, stmt.span)
            return
        in_memory = stmt.name in frame.addressed and not ty.lives_in_slots(kind)
        if isinstance(kind, Array | Struct) or in_memory:
            addr = self.local_place(stmt.name, kind, frame)
            self.store(addr, value, frame, where)
            frame.names[-1][stmt.name] = StackVar(kind, addr)
            return
        var = self.unit.temp(kind, variable_name(stmt.name))
        self.emit(frame, ir.SetLocal(where, var, self.code(value)))
        frame.names[-1][stmt.name] = var

    def spill(self, name: str, var: ir.Var, frame: Frame, where: str) -> None:
        """Move a parameter whose address is taken to memory, where descriptors cannot be."""
        if ty.lives_in_slots(var.type):
            return
        addr = self.local_place(name, var.type, frame)
        code = ir.Local(var.type, var)
        self.emit(frame, ir.Store(where, var.type, addr, code))
        frame.names[0][name] = StackVar(var.type, addr)

    def exec_Assign(self, stmt: t.Assign, frame: Frame) -> None:
        if isinstance(stmt.target, t.Name) and stmt.target.name == "_" and not stmt.op:
            self.eval(stmt.value, frame)
            return
        place = self.place(stmt.target, frame)
        kind = place.var.type if isinstance(place, LocalPlace) else place.type
        if frame.known and not isinstance(place, CellPlace):
            fail("csl-comptime", "a variable cannot be changed at compile time", stmt.span)

        steps = [lambda: self.eval(stmt.value, frame, kind)]
        if stmt.op:
            steps.insert(0, lambda: self._read_place(place, frame, stmt))
        if moves(place):
            steps.insert(0, lambda: address_of(place))
        values = self.in_order(frame, stmt, steps)
        target = placed_at(place, values[0]) if moves(place) else place
        value = binary(stmt.op, values[-2], values[-1], stmt.span) if stmt.op else values[-1]
        self.assign(target, value, frame, stmt.span)

    def _read_place(self, place: Place, frame: Frame, node: t.Node) -> Val:
        match place:
            case CellPlace():
                return Val(place.type, place.read())
            case LocalPlace():
                return Val(place.var.type, ir.Local(place.var.type, place.var), False)
            case SlotPlace():
                return Val(place.type, ir.Slot(place.type, place.index), False)
            case MemPlace():
                return self.load(place.type, place.addr)
            case BitPlace():
                return self.unpacked(place, frame, node)

    def exec_If(self, stmt: t.If, frame: Frame) -> None:
        cond = self.boolean(stmt.cond, frame)
        if cond.known:
            chosen = stmt.then if cond.v else stmt.other
            if chosen is not None:
                self._scoped(chosen, frame)
            return
        then = self._captured(stmt.then, frame)
        other = self._captured(stmt.other, frame) if stmt.other is not None else []
        self.emit(frame, ir.If(self.place_of(stmt), cond.v, then, other))

    def _scoped(self, stmt: t.Stmt, frame: Frame) -> None:
        frame.names.append({})
        try:
            self.exec(stmt, frame)
        finally:
            frame.names.pop()

    def _captured(self, stmt: t.Stmt, frame: Frame) -> list[ir.Stmt]:
        with branch(frame) as code:
            self._scoped(stmt, frame)
        return code

    def exec_Return(self, stmt: t.Return, frame: Frame) -> None:
        want = frame.result
        value = None if stmt.value is None else self.eval(stmt.value, frame, want)
        if value is not None and want is not None and want != ty.VOID:
            value = coerce(value, want, stmt.span)
        if frame.known:
            if not frame.called:
                self._no_return(stmt, frame)
            raise ReturnSignal(value)
        if value is None or want == ty.VOID:
            if want not in (ty.VOID, None) and value is None:
                fail("csl-type", f"expected a value of type '{want}'", stmt.span)
            self.leave(frame, stmt)
            self.emit(frame, ir.Return(self.place_of(stmt), None))
            return
        if isinstance(value.type, Array | Struct):
            symbol = self.unit.place(f"{frame.function}_result", value.type)
            addr = ir.Const(ty.U16, symbol.addr)
            self.store(addr, value, frame, self.place_of(stmt))
            self.leave(frame, stmt)
            self.emit(frame, ir.Return(self.place_of(stmt), addr))
            return
        code = self.code(value)
        self.leave(frame, stmt)
        self.emit(frame, ir.Return(self.place_of(stmt), code))

    def _no_return(self, stmt: t.Return, frame: Frame) -> NoReturn:
        if not frame.function:
            fail("csl-syntax", "there is no function to return from here", stmt.span)
        words = "a function that runs on a PE cannot return while it is compiled"
        fail("csl-comptime", words, stmt.span)

    def leave(self, frame: Frame, node: t.Node) -> None:
        """Give the stack frame of a recursive function back."""
        if frame.stack is not None:
            here = ir.Local(ty.U16, frame.stack.base)
            self.emit(frame, ir.Store(self.place_of(node), ty.U16, self.stack_pointer(), here))

    def exec_Break(self, stmt: t.Break, frame: Frame) -> None:
        value = None if stmt.value is None else self.eval(stmt.value, frame)
        loop = self._target(stmt, frame)
        if frame.known:
            raise LoopSignal(stmt.label, False, value)
        if value is not None and loop.breaks is not None:
            placeholder = ir.SetLocal(self.place_of(stmt), loop.result, ir.Const(ty.VOID, None))
            loop.breaks.append((placeholder, value, stmt))
            self.emit(frame, placeholder)
        self.emit(frame, ir.Break(self.place_of(stmt), loop.number))

    def exec_Continue(self, stmt: t.Continue, frame: Frame) -> None:
        loop = self._target(stmt, frame)
        if frame.known:
            raise LoopSignal(stmt.label, True)
        if loop.iteration:
            self.emit(frame, ir.Break(self.place_of(stmt), loop.iteration))
        else:
            self.emit(frame, ir.Continue(self.place_of(stmt), loop.number))

    def _target(self, stmt: t.Break | t.Continue, frame: Frame) -> LoopFrame:
        for loop in reversed(frame.loops):
            if loop.is_block and (stmt.label is None or isinstance(stmt, t.Continue)):
                continue
            if stmt.label in (None, loop.label):
                return loop
        fail("csl-syntax", "there is no loop to leave here", stmt.span)

    # --- switch ---

    def exec_switch(self, node: t.SwitchExpr, frame: Frame) -> None:
        """A switch as a statement."""
        subject = self._subject(node, frame)
        if subject.known:
            prong = self._chosen(node, subject, frame)
            if prong is not None:
                self._scoped(self._prong_stmt(prong), frame)
            return
        chain: list[ir.Stmt] = []
        for prong in reversed(node.prongs):
            body = self._captured(self._prong_stmt(prong), frame)
            if not prong.items:
                chain = body
                continue
            test = self._prong_test(prong, subject, frame)
            chain = [ir.If(self.place_of(prong), test, body, chain)]
        frame.out.extend(chain)

    def _subject(self, node: t.SwitchExpr, frame: Frame) -> Val:
        subject = self.eval(node.subject, frame)
        kind = subject.type
        if not (is_scalar(kind) or kind in (ty.COMPTIME_INT, ty.STRING, ty.TYPE, ty.ENUM_LITERAL)):
            fail("csl-type", f"a value of type '{kind}' cannot be switched on", node.subject.span)
        return subject

    def _prong_stmt(self, prong: t.SwitchProng) -> t.Stmt:
        if isinstance(prong.body, t.Expr):
            return t.ExprStmt(prong.span, prong.body)
        return prong.body

    def _prong_test(self, prong: t.SwitchProng, subject: Val, frame: Frame) -> ir.Expr:
        total: ir.Expr | None = None
        for item in prong.items:
            if isinstance(item, tuple):
                low, high = (self.eval(i, frame, subject.type) for i in item)
                above = as_code(binary(">=", subject, low, prong.span))
                below = as_code(binary("<=", subject, high, prong.span))
                test: ir.Expr = ir.Bin(ty.BOOL, "and", above, below)
            else:
                value = self.eval(item, frame, subject.type)
                test = as_code(binary("==", subject, value, prong.span))
            total = test if total is None else ir.Bin(ty.BOOL, "or", total, test)
        assert total is not None
        return total

    def _chosen(self, node: t.SwitchExpr, subject: Val, frame: Frame) -> t.SwitchProng | None:
        for prong in node.prongs:
            if not prong.items or any(self._matches(i, subject, frame) for i in prong.items):
                return prong
        return None

    def _matches(self, item: Any, subject: Val, frame: Frame) -> bool:
        if isinstance(item, tuple):
            low, high = (self.known(i, frame, subject.type).v for i in item)
            return bool(low <= subject.v <= high)
        want = subject.type if isinstance(subject.type, Enum) else None
        return bool(self.known(item, frame, want).v == subject.v)

    def eval_SwitchExpr(self, node: t.SwitchExpr, frame: Frame, want: Type | None) -> Val:
        subject = self._subject(node, frame)
        if subject.known:
            prong = self._chosen(node, subject, frame)
            if prong is None:
                fail("csl-type", "no prong of the switch matches", node.span)
            if isinstance(prong.body, t.Expr):
                return self.eval(prong.body, frame, want)
            self.exec(prong.body, frame)
            return Val(ty.VOID, None)
        result: ir.Var | None = None
        chain: list[ir.Stmt] = []
        for prong in reversed(node.prongs):
            if not isinstance(prong.body, t.Expr):
                fail("csl-type", "a switch used as a value needs values", prong.span)
            value, body = self._arm(prong.body, frame, want)
            if result is None:
                kind = want or value.type
                result = self.unit.temp(ty.I16 if kind == ty.COMPTIME_INT else kind)
            value = coerce(value, result.type, prong.span)
            body.append(ir.SetLocal(self.place_of(prong), result, self.code(value)))
            if prong.items:
                test = self._prong_test(prong, subject, frame)
                chain = [ir.If(self.place_of(prong), test, body, chain)]
            else:
                chain = body
        frame.out.extend(chain)
        assert result is not None
        return Val(result.type, ir.Local(result.type, result), False)
