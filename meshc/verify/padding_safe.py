"""padding_safe: no op reads a pad lane in a state it cannot take.

Pads arise where a dim does not divide into equal parts, and in the slots of a KV cache that hold
no row yet. Each value has a state per dim: ``zero``, ``neg_inf`` or ``any`` (finite). Contractions
and sums need zero on one side, maxima need minus infinity; what an op gives follows from what it
takes.
"""

from __future__ import annotations

from collections.abc import Callable

from meshc.ir.core import Block, Op, tensor_type
from meshc.ir.functions import Function
from meshc.ir.module import Module
from meshc.ir.ops import mesh as ops
from meshc.ir.types import Layout, Split
from meshc.ir.values import Value
from meshc.support.diagnostics import fail

States = dict[str, str]


class _Checker:
    """Propagates pad states through a function, in order."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.states: dict[Value, States] = {}

    def run(self) -> None:
        module = self.module
        for param in module.function.params:
            state = "any" if param.role == "state" else "zero"
            states = dict.fromkeys(tensor_type(param.value).dims, state)
            if param.role == "in" and module.row_dim:
                states[module.row_dim] = "any"
            self.states[param.value] = states
        self.block(module.function.body)

    def block(self, block: Block) -> None:
        for op in block.ops:
            if isinstance(op, ops.Repeat):
                self.repeat(op)
            else:
                self.check(op)
                for result in op.results:
                    self.states[result] = self.given(op, result)

    def repeat(self, op: ops.Repeat) -> None:
        (body,) = op.regions
        for arg, operand in zip(body.args, op.tensors(), strict=True):
            self.states[arg] = self.of(operand)
        self.block(body)
        ends = body.ops[-1].tensors()
        for arg, end in zip(body.args[: op.carried], ends, strict=False):
            for dim, state in self.states[arg].items():
                split = (tensor_type(arg).layout or Layout()).split_of(dim)
                if split and state == "zero" and self.of(end).get(dim) != "zero":
                    self.fault(op, end, dim, "zero, as at the start of the loop")
        for result, end in zip(op.results, ends, strict=True):
            self.states[result] = self.of(end)

    def of(self, value: Value) -> States:
        """The states of the dims in which some lanes of ``value`` are pads."""
        kind = tensor_type(value)
        splits = {s.dim: s for s in (kind.layout or Layout()).splits}
        known = self.states.get(value, {}).items()
        return {d: state for d, state in known if d in splits and self.pads(splits[d])}

    def pads(self, split: Split) -> bool:
        """Whether lanes of ``split`` may hold no element; how many rows there are is up to the
        run where that has scalars."""
        lanes = split.block * (self.module.the_mesh().size(split.axis) // split.copies)
        varies = split.kind != "block" and bool(self.module.scalars)
        return varies or lanes != self.module.dims[split.dim]

    def check(self, op: Op) -> None:
        """Whether the operands' pads are in states that ``op`` can take."""
        if isinstance(op, (ops.Gemv, ops.Gemm, ops.GemmT, ops.ExpertGemv)):
            left, *rights = op.tensors()
            if isinstance(op, ops.ExpertGemv):
                del rights[0]  # the routes
            for dim in op.contract:
                for right in rights:
                    states = {self.of(left).get(dim, "zero"), self.of(right).get(dim, "zero")}
                    if "zero" not in states or "neg_inf" in states:
                        self.fault(op, left, dim, "zero")
        elif isinstance(op, ops.Combine):
            routes = op.tensors()[1]
            if self.of(routes).get(op.dim, "zero") != "zero":
                self.fault(op, routes, op.dim, "zero")
        elif isinstance(op, (ops.SquareSum, ops.RowSum)):
            for dim in op.over():
                self.need(op, dim, "zero")
        elif isinstance(op, ops.RowMax):
            self.need(op, op.dim, "neg_inf")

    def need(self, op: Op, dim: str, wanted: str) -> None:
        (value,) = op.tensors()
        if self.of(value).get(dim, wanted) != wanted:
            self.fault(op, value, dim, wanted)

    def fault(self, op: Op, value: Value, dim: str, wanted: str) -> None:
        state = self.of(value).get(dim, "any")
        fail(
            "padding-unsafe",
            f"{op.NAME} reads the pad lanes of {dim} in %{value.name}, which are {state}; "
            f"it needs {wanted}",
            op.span,
            help=f"on a mesh that divides {dim} evenly there is no padding",
        )

    def given(self, op: Op, result: Value) -> States:
        """Pad states of a result."""
        dims = tensor_type(result).dims
        rule = _RULES.get(type(op), _first)
        if isinstance(op, Function) and not op.keeps_zero:
            rule = _anything
        found = {dim: rule(dim, [self.of(v) for v in op.tensors()]) for dim in dims}
        if isinstance(op, ops.KeepLanes):
            return found | {op.dim: "zero"}
        return found | {op.dim: "neg_inf"} if isinstance(op, ops.Mask) else found


def _first(dim: str, operands: list[States]) -> str:
    """As the first operand (scaling, rotating, activations keep zero at zero)."""
    return operands[0].get(dim, "zero") if operands else "zero"


def _anything(dim: str, operands: list[States]) -> str:
    """Some number, whatever was there."""
    return "any"


def _product(dim: str, operands: list[States]) -> str:
    """Zero where any factor that has the dim is zero."""
    found = [o[dim] for o in operands if dim in o]
    return "zero" if "zero" in found or not found else found[0]


def _sum(dim: str, operands: list[States]) -> str:
    """Zero only where both are."""
    return "zero" if all(o.get(dim, "any") == "zero" for o in operands) else "any"


def _residual(dim: str, operands: list[States]) -> str:
    """As in the residual, to whose own rows of partial sums a core adds."""
    return operands[1].get(dim, "zero")


def _exponential(dim: str, operands: list[States]) -> str:
    """Minus infinity becomes zero; everything else some number."""
    return "zero" if operands[0].get(dim) == "neg_inf" else "any"


_RULES: dict[type[Op], Callable[[str, list[States]], str]] = {
    ops.Gemv: _product,
    ops.Gemm: _product,
    ops.GemmT: _product,
    ops.Mul: _product,
    ops.Add: _sum,
    ops.ExpSub: _exponential,
    ops.Larger: _anything,
    ops.AllReduceNorm: _residual,
}


def check(module: Module) -> None:
    """Follow the state of pad lanes through the function; a failure names op, value and dim."""
    _Checker(module).run()
