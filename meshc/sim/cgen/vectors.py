"""Vector operations, ``@map`` and register loads as C statements."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from meshc.sim import ir
from meshc.sim.cgen.errors import Unsupported
from meshc.sim.cgen.expressions import CExpressions, Places, PythonCalls, member, type_code
from meshc.sim.cgen.marked_constants import descriptors, integer, mark_statement, state
from meshc.sim.control_flow import Facts, analyse, reaching
from meshc.sim.descriptors import Dsd
from meshc.sim.held_numbers import held_numbers
from meshc.sim.program import PeProgram
from meshc.sim.scalar_costs import ScalarCosts
from meshc.sim.sema import csl_types as ty
from meshc.sim.vector_ops import OPS

OP_NUMBERS = {name: number for number, name in enumerate(OPS)}
BANKS = {"dest": 0, "src0": 1, "src1": 2}
GATES = {"local": "GATE_LOCAL", "color": "GATE_COLOR", "queue": "GATE_QUEUE",
         "control": "GATE_CONTROL"}  # fmt: skip
_MOST_MAP_OPERANDS = 6
_NO_OPTIONS = "-1, GATE_NONE, 0, -1, 0, ON_CONTROL_NONE, -1, GATE_NONE, 0"


class VectorWriter(CExpressions):
    """Writes lines of functions. ``framed`` names those that keep their variables in frames."""

    def __init__(
        self,
        program: PeProgram,
        scalar: ScalarCosts,
        places: Places,
        calls: PythonCalls,
        known: Collection[str],
    ) -> None:
        super().__init__(scalar, places, calls)
        self.known = known
        self.program = program
        self.numbers = {f.name: i + 1 for i, f in enumerate(program.functions)}
        self.by_name = {f.name: f for f in program.functions}
        self.facts: Facts = analyse(program)
        self.held.numbers = held_numbers(program, self.facts.pointer_targets, scalar)
        self.framed = reaching(self.facts.calls, self.facts.blocking | self.facts.cyclic)
        self.lines: list[str] = []
        self.depth = 0
        self.stack: list[int] = []
        self.current = ir.Function("", [], ty.VOID)
        self.states = 0
        self.maps = 0

    def line(self, text: str) -> None:
        """Append a line."""
        self.lines.append("    " * self.depth + text if text else "")

    def _flush(self) -> None:
        """Write the cycles gathered so far."""
        total, self.cost = self.cost, 0
        if total:
            self.line(f"p->t += {total};")

    def _assign(self, var: ir.Var, text: str) -> None:
        star = "*" if var.type in ty.DSDS else ""
        self.line(f"{self.variable(var)} = {star}{text};")

    def _pause(self, how: str) -> None:
        """Leave a framed function; the next call goes on here."""
        self.states += 1
        self.line(f"top->at = {state(self.states)};")
        self.line(f"return {how};")
        self.lines.append("    " * (self.depth - 1) + f"case {state(self.states)}:;")

    # --- operands and operations ---

    def _operand(self, node: ir.Expr) -> str:
        if node.type in ty.DSRS:
            bank = BANKS[str(node.type)[4:]]
            return f"csl_dsr(p, {bank}, {self._const_number(node)})"
        if node.type in ty.DSDS:
            return f"{{{self.operand(node)}, 0, 0}}"
        return f"{{0, 0, {self.expr(node)}}}"

    def _const_number(self, node: ir.Expr) -> int:
        return int(getattr(node, "value", 0))

    def _operands(self, operands: Iterable[ir.Expr]) -> str:
        return f"(operand[]){{{', '.join(self._operand(o) for o in operands)}}}"

    def _row(self, operands: Sequence[ir.Expr]) -> str | None:
        """Operands that are constant descriptors and then at most one number, as arguments of
        ``csl_vector_row``; None for others. Constants of one statement get numbers in a row."""
        kept = [o for o in operands if isinstance(o, ir.Const) and isinstance(o.value, Dsd)]
        numbers = operands[len(kept) :]
        plain = not any(o.type in ty.DSDS or o.type in ty.DSRS for o in numbers)
        if list(operands[: len(kept)]) != kept or len(numbers) > 1 or not kept or not plain:
            return None
        first = len(self.dsds)
        for operand in kept:
            self.operand(operand)
        number = self.expr(numbers[0]) if numbers else "0"
        return f"{descriptors(first, len(kept))}, {len(kept)}, {len(numbers)}, {number}"

    def _vector(self, stmt: ir.VectorOp) -> None:
        if stmt.name not in self.known:
            raise Unsupported(f"@{stmt.name}")
        begin, place = len(self.lines), integer(self.place_number)
        options, form, op = stmt.options, "", OP_NUMBERS[stmt.name]
        row = None
        if options.index is None and not options.is_async:
            row = self._row(stmt.operands)
        operands = self._operands(stmt.operands) if row is None else ""
        self.cost += sum(self.held.operand(o) for o in stmt.operands)
        self._flush()
        if row is not None:
            form, head = "_row", f"p, {op}, {row}, {place}"
        else:
            index = "0" if options.index is None else self.expr(options.index)
            counts = f"{index}, {int(options.index is not None)}, {place}"
            head = f"p, {op}, {len(stmt.operands)}, {operands}, {counts}"
        waits = any(self.facts.may_block(o) for o in stmt.operands)
        self.line(f"/* @{stmt.name} */")
        complete = "1"
        if options.is_async:
            self.line(f"csl_launch_async({head}, {self._op_options(options)});")
        elif not waits:
            self.line(f"csl_vector{form}({head});")
        else:
            call = "csl_launch_row" if form else "csl_launch_sync"
            self._wait_if(f"{call}({head}, {self._op_options(options)})")
            complete = "p->complete"
        if stmt.result is not None:
            self._assign(stmt.result, complete)
        mark_statement(self.lines, begin)

    def _wait_if(self, call: str) -> None:
        self.line(f"if ({call}) {{")
        self.depth += 1
        self._pause("STEP_WAIT")
        self.depth -= 1
        self.line("}")

    def _op_options(self, options: ir.OpOptions) -> str:
        def gate(target: tuple[str, ir.Expr] | None) -> str:
            if target is None:
                return "GATE_NONE, 0"
            return f"{GATES[target[0]]}, {self.expr(target[1])}"

        def number(code: ir.Expr | None) -> str:
            return "-1" if code is None else self.expr(code)

        parts = [number(options.activate), gate(options.unblock), number(options.ut_id),
                 str(options.priority)]  # fmt: skip
        if options.on_control:
            parts += [f"ON_CONTROL_{options.on_control.upper()}",
                      number(options.on_control_activate),
                      gate(options.on_control_unblock)]  # fmt: skip
        else:
            parts += ["ON_CONTROL_NONE", "-1", "GATE_NONE, 0"]
        written = ", ".join(parts)
        return "&csl_no_options" if written == _NO_OPTIONS else f"&(options){{{written}}}"

    def _map(self, stmt: ir.MapOp) -> None:
        operands = [*stmt.sources, *([stmt.dst] if stmt.dst is not None else [])]
        if len(operands) > _MOST_MAP_OPERANDS:
            raise Unsupported("@map")
        listed = self._operands(operands)
        self._flush()
        framed = self.current.name in self.framed
        name = f"{self.prefix}map_{self.maps}"
        self.maps += 1
        self.line("{")
        self.depth += 1
        if not framed:
            self.line(f"mapping {name};")
        has_dst = int(stmt.dst is not None)
        self.line(f"csl_map_begin(p, &{name}, {len(operands)}, {listed}, {has_dst});")
        self.line(f"while (csl_map_next(p, &{name})) {{")
        self.depth += 1
        for source, kind in enumerate(stmt.params):
            self._map_take(stmt, name, source, kind)
        self._map_call(stmt, name)
        self.depth -= 1
        self.line("}")
        self.line(f"csl_map_end(p, &{name});")
        self.depth -= 1
        self.line("}")

    def _map_take(self, stmt: ir.MapOp, name: str, source: int, kind: ty.Type) -> None:
        take = f"csl_map_take(p, &{name}, {source}, {type_code(kind)}, {self.place_number})"
        if self.facts.may_block(stmt.sources[source]):
            self._wait_if(take)
            self.line(f"csl_map_taken(p, &{name}, {source}, {type_code(kind)});")
        else:
            self.line(f"{take};")

    def _map_call(self, stmt: ir.MapOp, name: str) -> None:
        kind = stmt.dst_type
        if stmt.fn in self.framed:
            self.line(f"enter_{stmt.fn}(p, {name}.v);")
            self._pause("STEP_CALL")
        else:
            args = "".join(f", {name}.v[{i}].{member(k)}" for i, k in enumerate(stmt.params))
            result = self.by_name[stmt.fn].result
            dst = "" if result == ty.VOID else f"p->result.{member(result)} = "
            self.line(f"{dst}fn_{stmt.fn}(p{args});")
        if stmt.dst is None or kind is None:
            return
        put = f"csl_map_put(p, &{name}, {type_code(kind)}, p->result, {self.place_number})"
        if self.facts.may_block(stmt.dst):
            self._wait_if(put)
        else:
            self.line(f"{put};")

    def _load_dsr(self, stmt: ir.LoadDsr) -> None:
        number, dsd = self.expr(stmt.number), self.operand(stmt.dsd)
        self.cost += self.scalar.load(stmt.dsd)
        self._flush()
        options = self._op_options(stmt.options)
        flags = f"{int(stmt.save_address)}, {int(stmt.options.is_async)}"
        bank = BANKS[stmt.bank]
        self.line(f"csl_load_dsr(p, {bank}, {number}, {dsd}, {flags}, {options});")
