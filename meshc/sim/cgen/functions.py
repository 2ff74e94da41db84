"""Lowered functions as C: plain functions, and state machines for those that may have to wait.

A function that may wait, or that may call itself, keeps its variables in a frame (``struct frame``
in runtime/csl.h) and is written as ``step``, a switch that goes on where the frame stopped.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterable

from meshc.sim import ir
from meshc.sim.cgen.errors import Unsupported
from meshc.sim.cgen.expressions import c_type, member
from meshc.sim.cgen.marked_constants import state
from meshc.sim.cgen.merging import Written
from meshc.sim.cgen.vectors import GATES, VectorWriter
from meshc.sim.control_flow import statements
from meshc.sim.sema import csl_types as ty

_EFFECTS = frozenset((
    "random16", "prng_seed", "queue_flush", "queue_empty", "tsc_enable", "tsc_disable",
    "tsc_reset", "tsc_read", "get_config", "set_config", "reset_routes", "switch_position",
    "switch_invalid", "switch_set", "switch_both", "bind_queue", "flush_exit", "teardown_exit",
    "teardown_toggle", "teardown_pending", "set_dsr_base", "task_priority", "thread_priority",
))  # fmt: skip
_NOTHING = ("set_prng",)
# A C compiler's time for a function grows faster than its length: longer ones are not optimised.
_MOST_LINES = 1000


class CFunctionWriter(VectorWriter):
    """Writes all functions of one PE program."""

    def write(self, known: dict[Hashable, Written]) -> list[Written]:
        """The parts of the text: declarations, functions, and the table of all functions. Classes
        have functions in common, which are written once and then ``known``."""
        functions = self.program.functions
        declarations = "".join(f"{self._declaration(f)}\n" for f in functions)
        entries = "".join(f"    {self._entry(f)},\n" for f in functions)
        table = f"\nconst function csl_functions[] = {{\n    {{0, 0, 0}},\n{entries}}};\n"
        return [
            Written(declarations, []),
            *(self._written(function, known) for function in functions),
            Written(table, []),
        ]

    def _written(self, function: ir.Function, known: dict[Hashable, Written]) -> Written:
        key = (id(function), self.surroundings)
        if key not in known:
            self.lines, self.dsds = [], []
            self._function(function)
            known[key] = Written("".join(f"{line}\n" for line in self.lines), self.dsds)
        return known[key]

    @functools.cached_property
    def surroundings(self) -> Hashable:
        """All that the text of a function depends on beside the function itself."""
        program, facts = self.program, self.facts
        return (
            program.name,
            tuple(
                (f.name, f.result, self.scalar.of_call(f), self.held.size_in_place(f, self.by_name))
                for f in program.functions
            ),
            *(frozenset(found) for found in (self.framed, facts.blocking, facts.cyclic)),
            frozenset(facts.fabric_registers),
            frozenset(self.held.numbers.items()),
        )

    # --- functions ---

    def _declaration(self, function: ir.Function) -> str:
        if function.name in self.framed:
            return f"static frame *enter_{function.name}(pe *p, const value *args);"
        return self._signature(function) + ";"

    def _signature(self, function: ir.Function) -> str:
        result = "void" if function.result == ty.VOID else c_type(function.result)
        params = "".join(
            f", const dsd *{v.name}_in" if v.type in ty.DSDS else f", {c_type(v.type)} {v.name}_"
            for v in function.params
        )
        return f"static {result} fn_{function.name}(pe *p{params})"

    def _entry(self, function: ir.Function) -> str:
        name = function.name
        if name in self.framed:
            return f"{{0, enter_{name}, {int(name in self.facts.blocking)}}}"
        return f"{{call_{name}, 0, 0}}"

    def _function(self, function: ir.Function) -> None:
        self.current, self.place = function, function.source
        self.held.begin(function, self.by_name)
        self.states = self.maps = 0
        self.line("")
        if function.source:
            self.line(f"/* {function.source} */")
        head = len(self.lines)
        if function.name in self.framed:
            self._framed(function)
        else:
            self._plain(function)
        if len(self.lines) - head > _MOST_LINES:
            first = "static int step_" if function.name in self.framed else "static"
            start = next(i for i in range(head, len(self.lines)) if self.lines[i].startswith(first))
            self.lines[start] = f"LONG {self.lines[start]}"

    def _plain(self, function: ir.Function) -> None:
        self.prefix = ""
        self.line(self._signature(function))
        self.line("{")
        params = {p.name for p in function.params}
        for var in _variables(function):
            if var.name not in params:
                start = "{0}" if var.type in ty.DSDS else "0"
                self.line(f"    {c_type(var.type)} {var.name}_ = {start};")
        for var in function.params:
            if var.type in ty.DSDS:
                self.line(f"    dsd {var.name}_ = *{var.name}_in;")
        self.depth = 1
        self._block(function.body)
        if function.result != ty.VOID:
            empty = "(dsd){0}" if function.result in ty.DSDS else "0"
            self.line(f"return {empty};")
        self.depth = 0
        self.line("}")
        self._uniform_call(function)

    def _uniform_call(self, function: ir.Function) -> None:
        """The form in which the machine and function pointers call a plain function."""
        args = "".join(f", args[{i}].{member(v.type)}" for i, v in enumerate(function.params))
        self.line("")
        self.line(f"static value call_{function.name}(pe *p, const value *args)")
        self.line("{")
        call = f"fn_{function.name}(p{args})"
        if function.result == ty.VOID:
            self.line(f"    {call};")
            self.line("    return (value){0};")
        elif function.result in ty.DSDS:
            self.line(f"    p->result_dsd = {call};")
            self.line("    return (value){.d = &p->result_dsd};")
        else:
            self.line(f"    return (value){{.{member(function.result)} = {call}}};")
        self.line("}")

    def _framed(self, function: ir.Function) -> None:
        name, self.prefix = function.name, "f->"
        variables = _variables(function)
        head = len(self.lines)
        self.line(f"static int step_{name}(pe *p, frame *top)")
        self.line("{")
        self.line(f"    struct frame_{name} *f = (struct frame_{name} *)top;")
        self.line("    switch (top->at) {")
        self.line(f"    case {state(0)}:;")
        self.depth = 2
        self._block(function.body, tail=True)
        self.depth = 0
        self.line("    }")
        self.line("    return STEP_DONE;")
        self.line("}")
        fields = [f"    {c_type(v.type)} {v.name}_;" for v in variables]
        fields += [f"    mapping map_{i};" for i in range(self.maps)]
        struct = [f"struct frame_{name} {{", "    frame head;", *fields, "};", ""]
        self.lines[head:head] = struct
        self.line("")
        self.line(f"static frame *enter_{name}(pe *p, const value *args)")
        self.line("{")
        self.line(f"    struct frame_{name} *f = (struct frame_{name} *)")
        self.line(f"        csl_push(p, sizeof(struct frame_{name}), step_{name});")
        for i, var in enumerate(function.params):
            star = "*" if var.type in ty.DSDS else ""
            self.line(f"    f->{var.name}_ = {star}args[{i}].{member(var.type)};")
        self.line("    return &f->head;")
        self.line("}")

    # --- statements ---

    def _block(self, body: list[ir.Stmt], tail: bool = False) -> None:
        for position, stmt in enumerate(body):
            following = body[position + 1] if position + 1 < len(body) else None
            last = tail and (
                following is None or (isinstance(following, ir.Return) and following.value is None)
            )
            self.place = stmt.place
            self._statement(stmt, last)
            self.held.after(stmt)
        self._flush()

    def _suite(self, body: list[ir.Stmt], tail: bool = False) -> None:
        self.depth += 1
        self._block(body, tail)
        self.depth -= 1

    def _statement(self, stmt: ir.Stmt, last: bool) -> None:
        match stmt:
            case ir.SetLocal():
                self._assign(stmt.var, self.expr(stmt.value))
            case ir.Store():
                self.line(self.store(stmt.type, stmt.addr, stmt.value))
            case ir.SetSlot():
                self.cost += self.scalar.slot
                self.line(f"*{self.slot(stmt.index)} = *{self.expr(stmt.value)};")
            case ir.Copy():
                self.cost += self.scalar.copy(stmt.size)
                to, source = self.expr(stmt.to), self.expr(stmt.source)
                self.line(f"csl_copy(p, {to}, {source}, {stmt.size});")
            case ir.If():
                self._if(stmt, last)
            case ir.Loop():
                self._loop(stmt)
            case ir.Break() | ir.Continue():
                self._jump(stmt)
            case ir.Return():
                self._return(stmt)
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
            case _:
                raise Unsupported(type(stmt).__name__)

    def _if(self, stmt: ir.If, last: bool) -> None:
        cond = self.expr(stmt.cond)
        self.cost += self.scalar.branch
        self._flush()
        self.line(f"if ({cond}) {{")
        before = self.held.now()
        self._suite(stmt.then, last)
        other = self.held.other_way(stmt.then, before)
        if stmt.other:
            self.line("} else {")
            self._suite(stmt.other, last)
        self.held.meet(stmt.other, other)
        self.line("}")

    def _loop(self, stmt: ir.Loop) -> None:
        before, each = self.held.moved_out(stmt)
        self.cost += before
        self._flush()
        written_out = self.held.enter(stmt)
        self.stack.append(stmt.label)
        self.line("for (;;) {")
        self.depth += 1
        self._block(stmt.head)
        if not (isinstance(stmt.cond, ir.Const) and stmt.cond.value):
            cond = self.expr(stmt.cond)
            self.cost += 0 if written_out else self.scalar.way_back(stmt) + each
            self._flush()
            self.line(f"if (!{cond})")
            self.line("    break;")
        elif not stmt.once:
            self.cost += self.scalar.operation
        self._block(stmt.body)
        jumps = {(type(s), s.label) for s in statements(stmt.body)
                 if isinstance(s, ir.Break | ir.Continue)}  # fmt: skip
        if stmt.once:
            self.line("break;")
        if (ir.Continue, stmt.label) in jumps:
            self.line(f"next_{stmt.label}:;")
        if not stmt.once:
            self.held.forget()
            self._block(stmt.step)
            self.line("if (p->t > p->limit)")
            self.line("    csl_overrun(p);")
        self.depth -= 1
        self.line("}")
        self.stack.pop()
        self.held.leave(stmt)
        if (ir.Break, stmt.label) in jumps:
            self.line(f"done_{stmt.label}:;")

    def _jump(self, stmt: ir.Break | ir.Continue) -> None:
        self._flush()
        self.line(f"goto {'done' if isinstance(stmt, ir.Break) else 'next'}_{stmt.label};")

    def _return(self, stmt: ir.Return) -> None:
        value = None if stmt.value is None else self.expr(stmt.value)
        self._flush()
        if self.current.name not in self.framed:
            star = "*" if stmt.value is not None and stmt.value.type in ty.DSDS else ""
            self.line(f"return {star}{value};" if value is not None else "return;")
            return
        if stmt.value is not None and stmt.value.type in ty.DSDS:
            self.line(f"p->result_dsd = *{value};")
        elif stmt.value is not None:
            self.line(f"p->result.{member(self.current.result)} = {value};")
        self.line("return STEP_DONE;")

    # --- calls ---

    def _values(self, args: Iterable[ir.Expr]) -> str:
        listed = ", ".join(f"{{.{member(a.type)} = {self.expr(a)}}}" for a in args)
        return f"(value[]){{{listed or '{.i = 0}'}}}"

    def _call(self, stmt: ir.CallFn, last: bool) -> None:
        if stmt.name not in self.framed:
            args = "".join(f", {self.expr(a)}" for a in stmt.args)
            self.cost += self.scalar.of_call(self.by_name.get(stmt.name))
            self._flush()
            dst = f"{self.variable(stmt.dst)} = " if stmt.dst is not None else ""
            self.line(f"{dst}fn_{stmt.name}(p{args});")
            return
        values = self._values(stmt.args)
        self.cost += self.scalar.of_call(self.by_name.get(stmt.name))
        self._flush()
        if self._ends_with(stmt, last):
            self.line("{")
            self.line(f"    value args[] = {values[len('(value[])') :]};")
            self.line("    csl_pop(p);")
            self.line(f"    enter_{stmt.name}(p, args);")
            self.line("    return STEP_CALL;")
            self.line("}")
            return
        self.line(f"enter_{stmt.name}(p, {values});")
        self._pause("STEP_CALL")
        self._take_result(stmt.dst)

    def _ends_with(self, stmt: ir.CallFn, last: bool) -> bool:
        """Whether a call takes the place of its caller, so that endless chains need no stack."""
        cyclic = stmt.name in self.facts.cyclic and self.current.name in self.facts.cyclic
        void = self.current.result == ty.VOID and stmt.dst is None
        return cyclic and void and last and not self.stack

    def _take_result(self, dst: ir.Var | None) -> None:
        if dst is not None:
            text = "&p->result_dsd" if dst.type in ty.DSDS else f"p->result.{member(dst.type)}"
            self._assign(dst, text)

    def _call_pointer(self, stmt: ir.CallPtr) -> None:
        target = self.expr(stmt.target)
        values = self._values(stmt.args)
        self.cost += self.scalar.call
        self._flush()
        if self.current.name not in self.framed:
            dst, result = stmt.dst, f"csl_call_plain(p, {target}, {values})"
            if dst is None:
                self.line(f"{result};")
            else:
                self._assign(dst, f"{result}.{member(dst.type)}")
            return
        self.line(f"if (csl_call_target(p, {target}, {values})) {{")
        self.depth += 1
        self._pause("STEP_CALL")
        self.depth -= 1
        self.line("}")
        self._take_result(stmt.dst)

    def _effect(self, stmt: ir.Effect) -> None:
        args = [self.expr(a) for a in stmt.args]
        self.cost += self.scalar.of_effect(stmt.name)
        self._flush()
        call = self._effect_call(stmt, args)
        if not call:
            return
        if stmt.dst is not None:
            self._assign(stmt.dst, call)
        else:
            self.line(f"{call};")

    def _effect_call(self, stmt: ir.Effect, args: list[str]) -> str:
        """The C text of an effect; those without one of their own are called in Python."""
        name = stmt.name
        listed = "".join(f", {a}" for a in args)
        action, _, kind = name.partition("_")
        if name == "assert":
            return f"csl_check(p{listed}, {self.place_number})"
        if name == "unblock_cmd_stream":
            return "csl_unblock_cmd_stream(p)"
        if action == "activate" and kind in GATES:
            return f"csl_activate(p{listed})"
        if action in ("block", "unblock") and kind in GATES:
            return f"csl_{action}(p, {GATES[kind]}{listed})"
        if name in ("fifo_read_length", "fifo_write_length"):
            return f"csl_fifo_length(p{listed}, {int(name == 'fifo_write_length')})"
        if name in _NOTHING:
            return ""
        if name in _EFFECTS:
            return f"csl_{name}(p{listed})"
        kinds = tuple(a.type for a in stmt.args)
        return self.python(name, "", kinds, args, stmt.dst.type if stmt.dst else ty.VOID)


def _variables(function: ir.Function) -> list[ir.Var]:
    """All local variables, parameters first."""
    found = {v.name: v for v in function.params}
    for stmt in statements(function.body):
        for var in (getattr(stmt, "var", None), getattr(stmt, "dst", None),
                    getattr(stmt, "result", None)):  # fmt: skip
            if isinstance(var, ir.Var):
                found.setdefault(var.name, var)
    return list(found.values())
