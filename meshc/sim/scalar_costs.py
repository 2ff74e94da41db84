"""Cycles of scalar code, the table ``scalar`` of ``machine/costs.toml``; both back ends count them.

Which instructions the vendor's compiler emits is not public, so costs belong to what stands in the
lowered form: operations, loads, calls.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib import resources

from meshc.sim import ir
from meshc.sim.sema import types as ty


@dataclass(frozen=True)
class ScalarCosts:
    """Cycles of the parts of scalar code; the fields are those of the table."""

    operation: int
    wide_product: int
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
    register_base: int
    timestamp: int
    trace_timestamp: int
    descriptor: int

    def binary(self, node: ir.Bin) -> int:
        """One operation on two numbers."""
        if isinstance(node.type, ty.Float):
            return self.divide_f32 if node.op == "/" else self.operation
        if node.op in "/%" and not isinstance(node.right, ir.Const):
            return self.divide
        if not isinstance(node.type, ty.Int) or node.type.bits <= 16:
            return self.operation
        known = isinstance(node.left, ir.Const) or isinstance(node.right, ir.Const)
        return self.wide_product if node.op == "*" and not known else self.operation

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
        """An operand of a vector operation: a descriptor made at run time goes to a register."""
        return self.descriptor if node.type in ty.DSDS and not isinstance(node, ir.Const) else 0

    def copy(self, size: int) -> int:
        """A copy of ``size`` bytes."""
        return self.start_of_copy + (size + 3) // 4

    def of_effect(self, name: str) -> int:
        """An effect on the machine."""
        known = {
            "tsc_read": self.timestamp,
            "trace_time": self.trace_timestamp,
            "set_dsr_base": self.register_base,
        }
        return known.get(name, self.effect)

    def of_call(self, callee: ir.Function | None) -> int:
        """A call; one of a function that only passes an effect on is written in its place."""
        body = callee.body if callee is not None else []
        return 0 if len(body) == 1 and isinstance(body[0], ir.Effect) else self.call


def _read() -> ScalarCosts:
    path = resources.files("meshc.sim.machine") / "costs.toml"
    return ScalarCosts(**tomllib.loads(path.read_text(encoding="utf-8"))["scalar"])


SCALAR = _read()
