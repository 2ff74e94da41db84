"""Lowered expressions as Python text, and their cost in cycles."""

from __future__ import annotations

import math

from meshc.sim import ir
from meshc.sim.descriptors import Dsd
from meshc.sim.known_values import KnownValues
from meshc.sim.scalar_costs import ScalarCosts
from meshc.sim.sema import csl_types as ty
from meshc.sim.sema.csl_types import BF16, F16, F32, Enum, Float, Int, Pointer, Type

_VIEWS = {(8, False): "B", (8, True): "b", (16, False): "H", (16, True): "h",
          (32, False): "W", (32, True): "w", (64, False): "Q", (64, True): "q"}  # fmt: skip
_COMPARE = ("==", "!=", "<", "<=", ">", ">=")


def machine_type(kind: Type) -> Type:
    """The number type that represents ``kind`` in memory."""
    if isinstance(kind, Enum):
        return machine_type(kind.base)
    if isinstance(kind, Int):
        for bits in (8, 16, 32, 64):
            if kind.bits <= bits:
                return Int(bits, kind.signed)
    return kind if isinstance(kind, Float) else ty.U16


class ExpressionWriter:
    """Writes expressions; ``cost`` grows by the cycles of each."""

    def __init__(self, scalar: ScalarCosts) -> None:
        self.scalar = scalar
        self.held = KnownValues(scalar)
        self.cost = 0
        self.place = ""
        self.constants: list[object] = []
        self.numbers: dict[str, int] = {}

    def constant(self, value: object) -> str:
        """The name of a descriptor constant."""
        for position, known in enumerate(self.constants):
            if known is value or (type(known) is type(value) and known == value):
                return f"K[{position}]"
        self.constants.append(value)
        return f"K[{len(self.constants) - 1}]"

    def expr(self, node: ir.Expr) -> str:
        """Text for ``node``, safe to embed anywhere. What is known costs nothing."""
        if isinstance(node, ir.Const):
            return self._const(node)
        if isinstance(node, ir.Local):
            return self.local(node.var)
        before = self.cost
        text = self._worked_out(node)
        if self.held.repeats(node):
            self.cost = before
        return text

    def _worked_out(self, node: ir.Expr) -> str:
        match node:
            case ir.Load():
                self.cost += self.scalar.operation
                return self.load(node.type, node.addr)
            case ir.Slot():
                return self.slot(node.index)
            case ir.Bin():
                self.cost += self.held.binary(node)
                return self._bin(node)
            case ir.Un():
                self.cost += self.scalar.operation
                return self._unary(node)
            case ir.Cast():
                self.cost += self.scalar.conversion(node.operand.type, node.type)
                return self.cast(node.operand, node.type)
            case ir.Bits():
                return self._bits(node.operand, node.type)
            case ir.Select():
                self.cost += self.scalar.branch
                cond, then, other = (self.expr(e) for e in (node.cond, node.then, node.other))
                return self.select(cond, then, other)
            case ir.Runtime():
                self.cost += self.scalar.runtime(node.name)
                return self.runtime(node)
            case ir.FnAddr():
                return str(self.numbers[node.name])
        raise AssertionError(node)

    def local(self, var: ir.Var) -> str:
        """The value of a local variable."""
        return var.name

    def slot(self, index: ir.Expr) -> str:
        """The value of a descriptor variable."""
        return f"S[{self.expr(index)}]"

    def operand(self, node: ir.Expr) -> str:
        """An operand of an operation. A descriptor that may never have been set is checked."""
        text = self.expr(node)
        made = isinstance(node, ir.Runtime)
        stated = isinstance(node, ir.Const) and isinstance(node.value, Dsd)
        return text if node.type not in ty.DSDS or made or stated else self.descriptor(text)

    def descriptor(self, text: str) -> str:
        """A descriptor that must have been set."""
        return f"R.descriptor(pe, {text}, {self.place!r})"

    def select(self, cond: str, then: str, other: str) -> str:
        """One of two values."""
        return f"({then} if {cond} else {other})"

    def runtime(self, node: ir.Runtime) -> str:
        """A function of the machine."""
        args = "".join(", " + self.operand(a) for a in node.args)
        return f"R.{node.name}(pe, {str(node.type)!r}{args})"

    def _const(self, node: ir.Const) -> str:
        value = node.value
        if node.type in ty.DSDS:
            return self.constant(value)
        if isinstance(value, bool):
            return str(value)
        if isinstance(value, float):
            if math.isinf(value) or value != value:
                return f"float('{value}')"
            return repr(value) if value >= 0 else f"({value!r})"
        if value is None:
            return "None"
        return str(value) if value >= 0 else f"({value})"

    # --- memory ---

    def load(self, kind: Type, addr: ir.Expr) -> str:
        """A read from memory."""
        plain = machine_type(kind)
        size = ty.size_of(plain)
        index = self.checked(self.index(addr, size), size)
        if index is None:
            text = f"R.load(pe, {self.expr(addr)}, {self._code(plain)!r})"
        elif isinstance(plain, Float):
            if plain == F32:
                return f"F[{index}]"
            return f"{'T16' if plain == F16 else 'TB16'}[H[{index}]]"
        else:
            assert isinstance(plain, Int)
            text = f"{_VIEWS[plain.bits, plain.signed]}[{index}]"
        return f"({text} != 0)" if kind == ty.BOOL else text

    def _code(self, plain: Type) -> str:
        return str(plain)

    def store(self, kind: Type, addr: ir.Expr, value: ir.Expr) -> str:
        """A statement that writes memory."""
        plain = machine_type(kind)
        self.cost += self.scalar.operation
        raw_bits = isinstance(value, ir.Bits) and isinstance(value.operand.type, Int)
        if raw_bits and isinstance(value, ir.Bits) and isinstance(plain, Float):
            plain = kind = Int(plain.bits, False)  # keep all bits, of NaNs too
            value = ir.Bits(plain, value.operand)
        if plain == F32 and isinstance(value, ir.Bin) and value.type == F32:
            text = self.unrounded(value)  # the store rounds
        else:
            text = self.expr(value)
        if kind == ty.BOOL:
            text = f"int({text})"
        index = self.checked(self.index(addr, ty.size_of(plain)), ty.size_of(plain))
        if index is None:
            return f"R.store(pe, {self.expr(addr)}, {self._code(plain)!r}, {text})"
        if isinstance(plain, Float):
            if plain == F32:
                return f"F[{index}] = {text}"
            return f"H[{index}] = {'h16' if plain == F16 else 'hb16'}({text})"
        assert isinstance(plain, Int)
        return f"{_VIEWS[plain.bits, plain.signed]}[{index}] = {text}"

    def checked(self, index: str | None, size: int) -> str | None:
        """An index as text that wraps where its byte address has more than 16 bits."""
        if index is None or index.isdecimal():
            return index
        wrap = f"R.wrap_index(pe, i_, {size}, {self.place!r})"
        return f"i_ if -1 < (i_ := {index}) < {0x10000 // size} else {wrap}"

    def index(self, addr: ir.Expr, size: int) -> str | None:
        """``addr / size`` as text when that is sure to be whole and inside of memory views."""
        if isinstance(addr, ir.Const):
            if addr.value % size or addr.value >= 0xC000:
                return None
            return str(addr.value // size)
        if isinstance(addr, ir.Bin) and addr.op == "+" and isinstance(addr.left, ir.Const):
            rest = self._scaled(addr.right, size)
            if rest is not None and addr.left.value % size == 0:
                start = addr.left.value // size
                return f"{start} + {rest}"
        return None

    def _scaled(self, offset: ir.Expr, size: int) -> str | None:
        if isinstance(offset, ir.Const):
            return str(offset.value // size) if offset.value % size == 0 else None
        if isinstance(offset, ir.Bin) and offset.op == "*" and isinstance(offset.right, ir.Const):
            factor = offset.right.value
            if factor % size == 0:
                index = self.raw(offset.left)
                return index if factor == size else f"({index}) * {factor // size}"
            return None
        if isinstance(offset, ir.Bin) and offset.op == "+":
            left, right = self._scaled(offset.left, size), self._scaled(offset.right, size)
            return f"{left} + {right}" if left is not None and right is not None else None
        return self.raw(offset) if size == 1 else None

    def raw(self, node: ir.Expr) -> str:
        """An index without wraparound: casts to u16 of signed numbers keep their sign."""
        if isinstance(node, ir.Cast) and isinstance(node.operand.type, Int):
            return self.raw(node.operand)
        if isinstance(node, ir.Bin) and node.type == ty.U16 and node.op in "+*":
            return f"({self.raw(node.left)} {node.op} {self.raw(node.right)})"
        return self.expr(node)

    # --- operators ---

    def _bin(self, node: ir.Bin) -> str:
        if node.op in ("and", "or") or node.op in _COMPARE:
            return f"({self.expr(node.left)} {node.op} {self.expr(node.right)})"
        if isinstance(node.type, Float):
            return round_text(node.type, self._float_bin(node))
        left, right = self.expr(node.left), self.expr(node.right)
        kind = machine_int(node.type)
        if node.type == ty.BOOL:
            return f"({left} {node.op} {right})"
        match node.op:
            case "+" | "-" | "*":
                return wrap_text(kind, f"{left} {node.op} {right}")
            case "&" | "|" | "^":
                return f"({left} {node.op} {right})"
            case "<<":
                shift = self._amount(node.right, right, kind.bits)
                return wrap_text(kind, f"({left} << {shift})")
            case ">>":
                return f"({left} >> {self._amount(node.right, right, kind.bits)})"
            case "/":
                text = f"idiv({left}, {right})" if kind.signed else f"({left} // {right})"
                return wrap_text(kind, text) if kind.signed else text
            case "%":
                return f"irem({left}, {right})" if kind.signed else f"({left} % {right})"
        raise AssertionError(node.op)

    def _amount(self, node: ir.Expr, text: str, bits: int) -> str:
        if isinstance(node, ir.Const):
            return str(min(node.value, 2 * bits))
        return f"min({text}, {2 * bits})"

    def unrounded(self, node: ir.Bin) -> str:
        """An operation on floats whose result is not rounded."""
        before = self.cost
        self.cost += self.held.binary(node)
        text = self._float_bin(node)
        if self.held.repeats(node):
            self.cost = before
        return text

    def _float_bin(self, node: ir.Bin) -> str:
        left, right = self.expr(node.left), self.expr(node.right)
        if node.op == "/":
            return f"fdiv({left}, {right})"
        return f"({left} {node.op} {right})"

    def _unary(self, node: ir.Un) -> str:
        inner = self.expr(node.operand)
        if node.op == "!":
            return f"(not {inner})"
        if isinstance(node.type, Float):
            return f"(-{inner})"
        kind = machine_int(node.type)
        return wrap_text(kind, f"-{inner}" if node.op == "-" else f"~{inner}")

    def cast(self, operand: ir.Expr, want: Type) -> str:
        """Value conversion."""
        have, inner = operand.type, self.expr(operand)
        if want == ty.BOOL:
            return f"({inner} != 0)"
        if isinstance(want, Float):
            if have == F32 and want != F32:
                return round_text(want, inner)
            if isinstance(have, Float):
                return inner
            return round_text(want, f"float({inner})")
        kind = machine_int(want)
        if isinstance(have, Float):
            return f"f2i({inner}, {kind.bits}, {kind.signed})"
        if have == ty.BOOL:
            return f"int({inner})"
        source = machine_int(have)
        if kind.low <= source.low and source.high <= kind.high:
            return inner
        return wrap_text(kind, inner)

    def _bits(self, operand: ir.Expr, want: Type) -> str:
        have = operand.type
        if isinstance(operand, ir.Load) and isinstance(have, Float) and isinstance(want, Int):
            self.cost += self.scalar.operation
            return self.load(want, operand.addr)  # keeps all bits, of NaNs too
        inner = self.expr(operand)
        if isinstance(have, Float) and isinstance(want, Float):
            return inner
        if isinstance(have, Float):
            text = f"{ {F32: 'w32', F16: 'h16', BF16: 'hb16'}[have] }({inner})"
            kind = machine_int(want)
            return wrap_text(kind, text) if kind.signed else text
        if isinstance(want, Float):
            if want == F32:
                return f"f32_of({inner} & 0xFFFFFFFF)"
            return f"{'T16' if want == F16 else 'TB16'}[{inner} & 0xFFFF]"
        kind, source = machine_int(want), machine_int(have)
        if want == ty.BOOL:
            return f"({inner} != 0)"
        return inner if kind == source else wrap_text(kind, inner)


def machine_int(kind: Type) -> Int:
    """The integer type that represents ``kind`` in registers (odd widths keep theirs)."""
    if isinstance(kind, Enum):
        kind = kind.base
    if isinstance(kind, Int):
        return kind
    assert not isinstance(kind, Float | Pointer) or isinstance(kind, Pointer)
    return ty.U16


def wrap_text(kind: Int, text: str) -> str:
    """``text`` modulo 2^bits."""
    mask = (1 << kind.bits) - 1
    if not kind.signed:
        return f"({text} & {mask})" if text.startswith("(") else f"(({text}) & {mask})"
    half = 1 << (kind.bits - 1)
    return f"((({text}) + {half} & {mask}) - {half})"


def round_text(kind: Float, text: str) -> str:
    """``text`` rounded to ``kind``."""
    return f"{ {F32: 'r32', F16: 'r16', BF16: 'rb16'}[kind] }({text})"
