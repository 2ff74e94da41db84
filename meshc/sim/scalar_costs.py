"""Cycles of scalar code, the table ``scalar`` of a timing model; both back ends count them.

Which instructions the vendor's compiler emits is not public, so costs belong to what stands in the
lowered form: operations, loads, calls.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import islice

from meshc.sim import ir, timing
from meshc.sim.control_flow import statements
from meshc.sim.products import is_wide
from meshc.sim.sema import csl_types as ty

SHORT = 12
"""Statements of a function that the vendor's compiler writes in the place of a call (inferred)."""
_SETTINGS = (
    "reset_routes", "switch_position", "switch_invalid", "switch_set", "switch_both",
    "teardown_exit", "teardown_toggle",
)  # fmt: skip
"""Effects that read a word of the configuration of a router, change it and write it."""


@dataclass(frozen=True)
class ScalarCosts:
    """Cycles of the parts of scalar code; the fields are those of the table."""

    operation: int
    wide_product: int
    narrow_product: int
    divide: int
    divide_f32: int
    to_integer: int
    branch: int
    routine: int
    rebase: int
    slot: int
    start_of_copy: int
    call: int
    effect: int
    setting: int
    register_base: int
    back: int
    wide_back: int
    load_constant: int
    load_variable: int
    timestamp: int
    trace_timestamp: int
    descriptor: int
    grid_descriptor: int
    scalar: int
    unrolled: int

    def binary(self, node: ir.Bin, narrow: bool = False) -> int:
        """One operation on two numbers; ``narrow``, where the upper half of the result is not
        used."""
        if isinstance(node.type, ty.Float):
            return self.divide_f32 if node.op == "/" else self.operation
        if node.op in "/%" and not isinstance(node.right, ir.Const):
            return self.divide
        if not is_wide(node):
            return self.operation
        return self.narrow_product if narrow else self.wide_product

    def part(self, node: ir.Expr) -> int:
        """A part of an expression, its own parts apart; numbers and locals are no operations."""
        match node:
            case ir.Const() | ir.Local() | ir.FnAddr() | ir.TaskId():
                return 0
            case ir.Bin():
                return self.binary(node)
            case ir.Cast():
                return self.conversion(node.operand.type, node.type)
            case ir.Select():
                return self.branch
            case ir.Runtime():
                return self.runtime(node.name)
        return self.operation

    def size(self, node: ir.Expr) -> int:
        """Instructions as which the compiler counts a part: a product is one of any width; fewer
        bits of a number, or other ones of the same size, are none."""
        match node:
            case ir.Bin(op="*"):
                return self.operation
            case ir.Bits():
                return 0
            case ir.Cast(type=ty.Int(bits=bits), operand=ir.Expr(type=ty.Int(bits=before))):
                return 0 if bits < before else self.operation
        return self.part(node)

    def way_back(self, loop: ir.Loop) -> int:
        """The way back to the beginning of ``loop``, which is not written out. A range's counter is
        twice as wide here as the program has it."""
        match loop.cond:
            case ir.Bin(left=ir.Expr(type=ty.Int(bits=64))):
                return self.back + self.wide_back
        return self.back

    def conversion(self, have: ty.Type, want: ty.Type) -> int:
        """A change of type that keeps the value."""
        routine = have == ty.F32 and isinstance(want, ty.Int)
        return self.to_integer if routine else self.operation

    def runtime(self, name: str) -> int:
        """A function of the machine; registers are operands as they stand."""
        if name.startswith("dsr_"):
            return 0
        return self.rebase if name == "set_base" else self.routine

    def operand(self, node: ir.Expr) -> int:
        """An operand of a vector operation: a descriptor is brought to a register, a number too;
        what is there already costs nothing."""
        if node.type in ty.DSRS:
            return 0
        if node.type == ty.MEM4D:
            return self.grid_descriptor
        return self.descriptor if node.type in ty.DSDS else self.scalar

    def load(self, node: ir.Expr) -> int:
        """A register loaded with a descriptor."""
        return self.load_constant if isinstance(node, ir.Const) else self.load_variable

    def copy(self, size: int) -> int:
        """A copy of ``size`` bytes."""
        return self.start_of_copy + (size + 3) // 4

    def of_effect(self, name: str) -> int:
        """An effect on the machine."""
        known = dict.fromkeys(_SETTINGS, self.setting) | {
            "tsc_read": self.timestamp,
            "trace_time": self.trace_timestamp,
            "set_dsr_base": self.register_base,
        }
        return known.get(name, self.effect)

    def of_call(self, callee: ir.Function | None) -> int:
        """A call; a short function is written in its place."""
        if callee is None:
            return self.call
        found = list(islice(statements(callee.body), SHORT + 1))
        loops = any(isinstance(stmt, ir.Loop) and not stmt.once for stmt in found)
        return self.call if len(found) > SHORT or loops else 0


@cache
def scalar_costs(arch: str, model: str = timing.DEFAULT) -> ScalarCosts:
    """The costs of scalar code on ``wse2`` or ``wse3``."""
    return ScalarCosts(**timing.numbers(model, arch, "scalar"))
