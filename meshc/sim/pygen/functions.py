"""Lowered functions as Python source: plain functions, and generators for those that may block."""

from __future__ import annotations

from meshc.sim import ir
from meshc.sim.control_flow import Facts, analyse
from meshc.sim.held_numbers import held_numbers
from meshc.sim.program import PeProgram
from meshc.sim.pygen.expressions import ExpressionWriter
from meshc.sim.scalar_costs import ScalarCosts
from meshc.sim.sema import csl_types as ty


class FunctionWriter(ExpressionWriter):
    """Writes all functions of one PE program as the body of ``make(pe, ...)``."""

    def __init__(self, program: PeProgram, scalar: ScalarCosts) -> None:
        super().__init__(scalar)
        self.program = program
        self.by_name = {f.name: f for f in program.functions}
        self.numbers = {f.name: i + 1 for i, f in enumerate(program.functions)}
        self.facts: Facts = analyse(program)
        self.held.numbers = held_numbers(program, self.facts.pointer_targets, scalar)
        self.lines: list[str] = []
        self.places: list[str] = []
        self.depth = 1
        self.steps: dict[int, list[ir.Stmt]] = {}
        self.stack: list[int] = []
        self.flagged: set[int] = set()
        self.current = ir.Function("", [], ty.VOID)
        self.pending = 0

    def write(self) -> str:
        """The source text."""
        self.depth = 0
        header = "def make(pe, K, R, S, B, b, H, h, W, w, Q, q, F, T16, TB16, r32, r16, rb16, "
        self.line(header + "h16, hb16, w32, f32_of, f2i, idiv, irem, fdiv):")
        self.depth = 1
        for function in self.program.functions:
            self._function(function)
        names = ", ".join(f"{f.name!r}: _{f.name}" for f in self.program.functions)
        self.line(f"return {{{names}}}")
        return "\n".join(self.lines) + "\n"

    def line(self, text: str) -> None:
        """Append a line of source and remember where it comes from."""
        self.lines.append("    " * self.depth + text)
        self.places.append(self.place)

    def _function(self, function: ir.Function) -> None:
        self.current = function
        self.held.begin(function, self.by_name)
        self.place = function.source
        params = ", ".join(p.name for p in function.params)
        self.line(f"def _{function.name}({params}):")
        self.depth += 1
        start = len(self.lines)
        self._block(function.body, tail=True)
        if function.name in self.facts.blocking:
            self.line("return")
            self.line("yield")
        elif len(self.lines) == start:
            self.line("pass")
        self.depth -= 1

    def _block(self, body: list[ir.Stmt], tail: bool = False) -> None:
        for position, stmt in enumerate(body):
            last = tail and (
                position == len(body) - 1
                or (isinstance(body[position + 1], ir.Return) and body[position + 1].value is None)  # type: ignore[attr-defined]
            )
            self.place = stmt.place
            self._statement(stmt, last)
            self.held.after(stmt)
        self._flush()

    def _suite(self, body: list[ir.Stmt], tail: bool = False) -> None:
        self.depth += 1
        start = len(self.lines)
        self._block(body, tail)
        if len(self.lines) == start:
            self.line("pass")
        self.depth -= 1

    def _flush(self) -> None:
        """Write the cycles gathered so far."""
        total, self.cost = self.cost, 0
        if total:
            self.line(f"pe.t += {total}")

    def _statement(self, stmt: ir.Stmt, last: bool) -> None:
        match stmt:
            case ir.SetLocal():
                self.line(f"{stmt.var.name} = {self.expr(stmt.value)}")
            case ir.Store():
                self.line(self.store(stmt.type, stmt.addr, stmt.value))
            case ir.SetSlot():
                self.cost += self.scalar.slot
                self.line(f"S[{self.expr(stmt.index)}] = {self.expr(stmt.value)}")
            case ir.Copy():
                self.cost += self.scalar.copy(stmt.size)
                to, source = self.expr(stmt.to), self.expr(stmt.source)
                self.line(f"R.copy(pe, {to}, {source}, {stmt.size})")
            case ir.If():
                self._if(stmt, last)
            case ir.Loop():
                self._loop(stmt)
            case ir.Break() | ir.Continue():
                self._jump(stmt)
            case ir.Return():
                text = "" if stmt.value is None else " " + self.expr(stmt.value)
                self._flush()
                self.line("return" + text)
            case ir.CallFn():
                self._call(stmt, last)
            case ir.CallPtr():
                self._call_pointer(stmt)
            case ir.Effect():
                self._effect(stmt)
            case ir.VectorOp():
                self._vector(stmt)
            case ir.MapOp():
                self._map(stmt)
            case ir.LoadDsr():
                self._load_dsr(stmt)

    def _if(self, stmt: ir.If, last: bool) -> None:
        cond = self.expr(stmt.cond)
        self.cost += self.scalar.branch
        self._flush()
        self.line(f"if {cond}:")
        before = self.held.now()
        self._suite(stmt.then, last)
        other = self.held.other_way(stmt.then, before)
        if stmt.other:
            self.place = stmt.place
            self.line("else:")
            self._suite(stmt.other, last)
        self.held.meet(stmt.other, other)

    def _loop(self, stmt: ir.Loop) -> None:
        before, each = self.held.moved_out(stmt)
        self.cost += before
        self._flush()
        written_out = self.held.enter(stmt)
        self.steps[stmt.label] = stmt.step
        self.stack.append(stmt.label)
        flags = _outer_jumps(stmt)
        for label in flags:
            self.line(f"j_{label} = 0")
        self.line("while True:")
        self.depth += 1
        self._block(stmt.head)
        if not (isinstance(stmt.cond, ir.Const) and stmt.cond.value):
            cond = self.expr(stmt.cond)
            self.cost += 0 if written_out else self.scalar.way_back(stmt) + each
            self._flush()
            self.line(f"if not {cond}: break")
        elif not stmt.once:
            self.cost += self.scalar.operation
        self._block(stmt.body)
        if stmt.once:
            self.line("break")
        else:
            self._step(stmt.step)
        self.depth -= 1
        self.stack.pop()
        self.held.leave(stmt)
        for label in flags:
            self._propagate(label)

    def _step(self, step: list[ir.Stmt]) -> None:
        """The end of a pass of a loop, to which several ways lead."""
        self.held.forget()
        self._block(step)
        self.line("if pe.t > pe.limit: R.overrun(pe)")

    def _propagate(self, label: int) -> None:
        """After an inner loop: carry on a jump to an outer one."""
        self.line(f"if j_{label}:")
        self.depth += 1
        if self.stack and self.stack[-1] == label:
            self.line(f"if j_{label} == 1: break")
            self._step(self.steps[label])
            self.line("continue")
        else:
            self.line("break")
        self.depth -= 1

    def _jump(self, stmt: ir.Break | ir.Continue) -> None:
        self._flush()
        inner = self.stack[-1]
        if inner != stmt.label:
            self.line(f"j_{stmt.label} = {1 if isinstance(stmt, ir.Break) else 2}")
            self.line("break")
        elif isinstance(stmt, ir.Break):
            self.line("break")
        else:
            self._step(self.steps[stmt.label])
            self.line("continue")

    # --- calls ---

    def _call(self, stmt: ir.CallFn, last: bool) -> None:
        args = ", ".join(self.expr(a) for a in stmt.args)
        self.cost += self.scalar.of_call(self.by_name.get(stmt.name))
        self._flush()
        cyclic = stmt.name in self.facts.cyclic
        blocking = stmt.name in self.facts.blocking
        here = self.current.name in self.facts.cyclic and self.current.result == ty.VOID
        if cyclic and last and here and stmt.dst is None and not self.stack:
            self.line(f"return (_{stmt.name}, ({args}{',' if args else ''}))")
            return
        call = f"{'yield from ' if blocking else ''}_{stmt.name}({args})"
        if stmt.dst is not None:
            self.line(f"{stmt.dst.name} = {call}")
        elif cyclic:
            self.line(f"tail = {call}")
            again = "yield from tail[0](*tail[1])" if blocking else "tail[0](*tail[1])"
            self.line(f"while tail is not None: tail = {again}")
        else:
            self.line(call)

    def _call_pointer(self, stmt: ir.CallPtr) -> None:
        target = self.expr(stmt.target)
        args = ", ".join(self.expr(a) for a in stmt.args)
        self.cost += self.scalar.call
        self._flush()
        dst = f"{stmt.dst.name} = " if stmt.dst is not None else ""
        if self.facts.pointer_targets & self.facts.blocking:
            self.line(f"{dst}yield from R.call(pe, {target}, ({args}{',' if args else ''}))")
        else:
            self.line(f"{dst}R.call_plain(pe, {target}, ({args}{',' if args else ''}))")

    def _effect(self, stmt: ir.Effect) -> None:
        args = "".join(", " + self.expr(a) for a in stmt.args)
        self.cost += self.scalar.of_effect(stmt.name)
        self._flush()
        dst = f"{stmt.dst.name} = " if stmt.dst is not None else ""
        if stmt.name == "assert":
            self.line(f"R.check(pe{args}, {stmt.place!r})")
        else:
            self.line(f"{dst}E.{stmt.name}(pe{args})".replace("E.", "R."))

    # --- vector operations ---

    def _vector(self, stmt: ir.VectorOp) -> None:
        operands = ", ".join(self.operand(o) for o in self._operands(stmt.operands))
        self.cost += sum(self.held.operand(o) for o in stmt.operands)
        self._flush()
        options = stmt.options
        result = f"{stmt.result.name} = " if stmt.result is not None else ""
        index = self.expr(options.index) if options.index is not None else "None"
        waits = any(self.facts.may_block(o) for o in stmt.operands)
        if not waits and not options.is_async:
            self.line(f"R.vector(pe, {stmt.name!r}, ({operands},), {index})")
            if result:
                self.line(f"{result}True")
            return
        extra = self._op_options(options)
        head = f"pe, {stmt.name!r}, ({operands},), {index}, {stmt.place!r}, {extra}"
        if options.is_async:
            self.line(f"R.launch_async({head})")
            if result:
                self.line(f"{result}True")
            return
        self.line(f"op = R.launch_sync({head})")
        self.line("if not op.done: yield op")
        if result:
            self.line(f"{result}op.complete")

    def _op_options(self, options: ir.OpOptions) -> str:
        def gate(target: tuple[str, ir.Expr] | None) -> str:
            return "None" if target is None else f"({target[0]!r}, {self.expr(target[1])})"

        activate = "None" if options.activate is None else self.expr(options.activate)
        ut = "None" if options.ut_id is None else self.expr(options.ut_id)
        text = f"{activate}, {gate(options.unblock)}, {ut}"
        if options.on_control:
            on_activate = options.on_control_activate
            code = "None" if on_activate is None else self.expr(on_activate)
            text += f", ({options.on_control!r}, {code}, {gate(options.on_control_unblock)})"
        if options.priority:
            text += f"{'' if options.on_control else ', None'}, {options.priority}"
        return text

    def _operands(self, operands: list[ir.Expr]) -> list[ir.Expr]:
        return [
            ir.Runtime(o.type, f"dsr_{str(o.type)[4:]}", [ir.Const(ty.U16, getattr(o, "value", 0))])
            if o.type in ty.DSRS
            else o
            for o in operands
        ]

    def _map(self, stmt: ir.MapOp) -> None:
        sources = ", ".join(self.operand(o) for o in self._operands(stmt.sources))
        dst = "None"
        if stmt.dst is not None:
            dst = self.operand(self._operands([stmt.dst])[0])
        self._flush()
        types = "".join(f"{_element(t)!r}, " for t in stmt.params)
        dst_type = repr(_element(stmt.dst_type)) if stmt.dst_type is not None else "None"
        head = f"pe, _{stmt.fn}, ({sources}{',' if sources else ''}), ({types}), {dst}, {dst_type}"
        operands = [*stmt.sources, *([stmt.dst] if stmt.dst is not None else [])]
        waits = any(self.facts.may_block(o) for o in operands)
        if waits or stmt.fn in self.facts.blocking:
            blocking = stmt.fn in self.facts.blocking
            self.line(f"yield from R.map_waiting({head}, {blocking}, {stmt.place!r})")
        else:
            self.line(f"R.map_plain({head})")

    def _load_dsr(self, stmt: ir.LoadDsr) -> None:
        number, dsd = self.expr(stmt.number), self.operand(stmt.dsd)
        self.cost += self.scalar.load(stmt.dsd)
        self._flush()
        options = self._op_options(stmt.options)
        self.line(
            f"R.load_dsr(pe, {stmt.bank!r}, {number}, {dsd}, {stmt.save_address}, "
            f"{stmt.options.is_async}, {options})"
        )


def _element(kind: ty.Type | None) -> str:
    return str(kind)


def _outer_jumps(loop: ir.Loop) -> list[int]:
    """Labels of loops outside of ``loop`` that its body jumps to."""
    inner: set[int] = {loop.label}
    targets: list[int] = []

    def visit(body: list[ir.Stmt]) -> None:
        for stmt in body:
            if isinstance(stmt, ir.Loop):
                inner.add(stmt.label)
                visit(stmt.head)
                visit(stmt.body)
            elif isinstance(stmt, ir.If):
                visit(stmt.then)
                visit(stmt.other)
            elif isinstance(stmt, ir.Break | ir.Continue) and stmt.label not in targets:
                targets.append(stmt.label)

    visit(loop.body)
    return [label for label in targets if label not in inner]
