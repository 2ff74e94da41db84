"""Lowered expressions as C text. Costs are counted by the base class, so that both back ends agree.

Integers are ``int64_t`` (``uint64_t`` for u64), floats ``double``, descriptors ``const dsd *``.
"""

from __future__ import annotations

from meshc.sim import ir
from meshc.sim.cgen.errors import Unsupported
from meshc.sim.cgen.marked_constants import descriptors, integer, real
from meshc.sim.descriptors import Dsd
from meshc.sim.pygen.expressions import ExpressionWriter, machine_int, machine_type
from meshc.sim.scalar_costs import ScalarCosts
from meshc.sim.sema import csl_types as ty
from meshc.sim.sema.csl_types import BF16, F16, F32, U64, Float, Int, Type

_COMPARE = ("==", "!=", "<", "<=", ">", ">=")
_MODULAR = ("+", "-", "*")
_MATH = ("floor", "ceil", "sqrt", "cos", "sin", "exp", "log", "inv", "invsqrt", "tanh", "pow",
         "fscale")  # fmt: skip
_EDITS = ("inc_offset", "set_base", "dsd_stride")
_MAKERS = ("mem1d", "scalar_mem", "fabin", "fabout")
_PREDICATES = {"isnan": "isnan", "isinf": "isinf", "signbit": "signbit"}
_PLAIN = {"x_coord": "(int64_t)p->x", "y_coord": "(int64_t)p->y", "inf": "(double)INFINITY",
          "nan": "(double)NAN"}  # fmt: skip
_QUERIES = ("queue_empty", "teardown_pending", "get_config")


class PythonCalls:
    """Functions that C code calls in Python, with the types of arguments and result."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, str, tuple[Type, ...], Type]] = []

    def number(self, name: str, kind: str, params: tuple[Type, ...], result: Type) -> int:
        """The number of a function; ``kind`` is the type a pure function is told, or ''."""
        entry = (name, kind, params, result)
        if entry not in self.entries:
            self.entries.append(entry)
        return self.entries.index(entry)


class Places:
    """Source places, numbered over all classes of a file; number 0 is no place."""

    def __init__(self) -> None:
        self.names = [""]
        self._numbers = {"": 0}

    def number(self, name: str) -> int:
        """The number of ``file:line``."""
        if name not in self._numbers:
            self._numbers[name] = len(self.names)
            self.names.append(name)
        return self._numbers[name]


def member(kind: Type) -> str:
    """The member of ``union value`` that holds a value of ``kind``."""
    if kind in ty.DSDS:
        return "d"
    if isinstance(kind, Float):
        return "f"
    return "u" if kind == U64 else "i"


def c_type(kind: Type) -> str:
    """The C type of a variable."""
    if kind in ty.DSDS:
        return "dsd"
    if isinstance(kind, Float):
        return "double"
    return "uint64_t" if kind == U64 else "int64_t"


class CExpressions(ExpressionWriter):
    """Writes expressions as C. ``prefix`` stands before the names of local variables."""

    def __init__(self, scalar: ScalarCosts, places: Places, calls: PythonCalls) -> None:
        super().__init__(scalar)
        self.places_seen = places
        self.calls = calls
        self.dsds: list[Dsd] = []
        self.prefix = ""
        self.place = ""

    @property
    def place_number(self) -> int:
        """The number of the present source place."""
        return self.places_seen.number(self.place)

    def constant(self, value: object) -> str:
        """A pointer to a descriptor constant of the class."""
        self.dsds.append(value)  # type: ignore[arg-type]
        return f"&p->k->d[{descriptors(len(self.dsds) - 1, 1)}]"

    def _const(self, node: ir.Const) -> str:
        value = node.value
        if node.type in ty.DSDS:
            return self.constant(value)
        if value is None:
            return "0"
        return real(value) if isinstance(value, float) else integer(int(value))

    def local(self, var: ir.Var) -> str:
        """The value of a local variable."""
        return f"{'&' if var.type in ty.DSDS else ''}{self.variable(var)}"

    def variable(self, var: ir.Var) -> str:
        """A local variable as a place to store to; ``_`` keeps clear of C's own names."""
        return f"{self.prefix}{var.name}_"

    def slot(self, index: ir.Expr) -> str:
        """A pointer to a descriptor variable."""
        return f"csl_slot(p, {self.expr(index)}, {self.place_number})"

    def descriptor(self, text: str) -> str:
        """A pointer to a descriptor that must have been set."""
        return f"csl_descriptor(p, {text}, {self.place_number})"

    def select(self, cond: str, then: str, other: str) -> str:
        """One of two values."""
        return f"({cond} ? {then} : {other})"

    def runtime(self, node: ir.Runtime) -> str:
        """A function of the machine."""
        args = [self.operand(a) for a in node.args]
        name, listed = node.name, ", ".join(args)
        if name in _PLAIN:
            return _PLAIN[name]
        if name in _PREDICATES:
            return f"({_PREDICATES[name]}({listed}) != 0)"
        if name in _MATH:
            second = args[1] if len(args) > 1 else "0"
            return f"csl_math(p, M_{name.upper()}, {type_code(node.type)}, {args[0]}, {second})"
        if name == "dsd_length":
            return f"(dsd[1]){{csl_dsd_length({listed})}}"
        if name in _MAKERS:
            return f"(dsd[1]){{csl_{name}({listed})}}"
        if name in _EDITS:
            return f"(dsd[1]){{csl_{name}(p, {listed})}}"
        if name in _QUERIES:
            return f"csl_{name}(p, {listed})"
        kinds = tuple(a.type for a in node.args)
        return self.python(name, str(node.type), kinds, args, node.type)

    def python(
        self, name: str, kind: str, kinds: tuple[Type, ...], args: list[str], result: Type
    ) -> str:
        """A call of a function in Python."""
        if result in ty.DSDS or any(k in ty.DSDS for k in kinds):
            raise Unsupported(name)
        number = self.calls.number(name, kind, kinds, result)
        values = ", ".join(f"{{.{member(k)} = {a}}}" for k, a in zip(kinds, args, strict=True))
        call = f"csl_python(p, {number}, (value[]){{{values or '{.i = 0}'}}})"
        return call if result == ty.VOID else f"{call}.{member(result)}"

    # --- memory ---

    def load(self, kind: Type, addr: ir.Expr) -> str:
        """A read from memory."""
        plain = machine_type(kind)
        index = self.index(addr, ty.size_of(plain))
        if index is None:
            family = "float" if isinstance(plain, Float) else "int"
            text = f"csl_load_{family}(p, {self.expr(addr)}, {type_code(plain)})"
            text = f"(uint64_t){text}" if plain == U64 else text
        else:
            text = f"csl_get_{plain}(p, {index}, {self.place_number})"
        return f"({text} != 0)" if kind == ty.BOOL else text

    def store(self, kind: Type, addr: ir.Expr, value: ir.Expr) -> str:
        """A statement that writes memory."""
        plain = machine_type(kind)
        self.cost += self.scalar.operation
        raw_bits = isinstance(value, ir.Bits) and isinstance(value.operand.type, Int)
        if raw_bits and isinstance(value, ir.Bits) and isinstance(plain, Float):
            plain = Int(plain.bits, False)  # keep all bits, of NaNs too
            value = ir.Bits(plain, value.operand)
        if plain == F32 and isinstance(value, ir.Bin) and value.type == F32:
            text = self.unrounded(value)  # the store rounds
        else:
            text = self.expr(value)
        index = self.index(addr, ty.size_of(plain))
        if index is not None:
            return f"csl_put_{plain}(p, {index}, {text}, {self.place_number});"
        family = "float" if isinstance(plain, Float) else "int"
        text = f"(int64_t){text}" if plain == U64 else text
        return f"csl_store_{family}(p, {self.expr(addr)}, {type_code(plain)}, {text});"

    def index(self, addr: ir.Expr, size: int) -> str | None:
        """``addr / size`` as text when that is sure to be whole."""
        if isinstance(addr, ir.Const):
            if addr.value % size or addr.value >= 0xC000:
                return None
            return integer(addr.value // size)
        if isinstance(addr, ir.Bin) and addr.op == "+" and isinstance(addr.left, ir.Const):
            rest = self._scaled(addr.right, size)
            if rest is not None and addr.left.value % size == 0:
                return f"{integer(addr.left.value // size)} + {rest}"
        return None

    def _scaled(self, offset: ir.Expr, size: int) -> str | None:
        if isinstance(offset, ir.Const):
            return integer(offset.value // size) if offset.value % size == 0 else None
        if isinstance(offset, ir.Bin) and offset.op == "*" and isinstance(offset.right, ir.Const):
            factor = offset.right.value
            if factor % size == 0:
                index = self.raw(offset.left)
                return index if factor == size else f"({index}) * {integer(factor // size)}"
            return None
        return super()._scaled(offset, size)

    # --- operators ---

    def _bin(self, node: ir.Bin) -> str:
        if node.op in ("and", "or"):
            sign = "&&" if node.op == "and" else "||"
            return f"({self.expr(node.left)} {sign} {self.expr(node.right)})"
        if node.op in _COMPARE:
            return f"({self.expr(node.left)} {node.op} {self.expr(node.right)})"
        if isinstance(node.type, Float):
            return rounded(node.type, self._float_bin(node))
        if node.op in _MODULAR:
            kind = machine_int(node.type)
            return wrapped(kind, self._sum(node, kind.bits))
        left, right = self.expr(node.left), self.expr(node.right)
        if node.type == ty.BOOL or node.op in "&|^":
            return f"({left} {node.op} {right})"
        return self._int_bin(node, machine_int(node.type), left, right)

    def _sum(self, node: ir.Bin, bits: int) -> str:
        """A sum, difference or product of integers before it is wrapped to ``bits``."""
        return f"{self._residue(node.left, bits)} {node.op} {self._residue(node.right, bits)}"

    def _residue(self, node: ir.Expr, bits: int) -> str:
        """An unsigned number that equals ``node`` modulo 2^bits: sums, differences and products in
        it need not be wrapped, since what is around them will be."""
        if not isinstance(node, ir.Bin) or node.op not in _MODULAR or isinstance(node.type, Float):
            return f"U({self.expr(node)})"
        if machine_int(node.type).bits >= bits:
            before = self.cost
            self.cost += self.held.binary(node)
            text = f"({self._sum(node, bits)})"
            if self.held.repeats(node):
                self.cost = before
            return text
        return f"U({self.expr(node)})"

    def _int_bin(self, node: ir.Bin, kind: Int, left: str, right: str) -> str:
        place = self.place_number
        match node.op:
            case "<<":
                return wrapped(kind, f"csl_shl({left}, {right})")
            case ">>":
                return f"csl_{'sar' if kind.signed else 'shr'}({left}, {right})"
            case "/" if kind.signed:
                return wrapped(kind, f"csl_div(p, {left}, {right}, {place})")
            case "%" if kind.signed:
                return f"csl_rem(p, {left}, {right}, {place})"
            case "/":
                return f"csl_udiv(p, {left}, {right}, {place})"
            case "%":
                return f"csl_urem(p, {left}, {right}, {place})"
        raise AssertionError(node.op)

    def _float_bin(self, node: ir.Bin) -> str:
        left, right = self.expr(node.left), self.expr(node.right)
        if node.op == "/":
            return f"csl_fdiv({left}, {right})"
        if node.op == "%":
            raise Unsupported("% of floats")
        return f"({left} {node.op} {right})"

    def _unary(self, node: ir.Un) -> str:
        inner = self.expr(node.operand)
        if node.op == "!":
            return f"(!{inner})"
        if isinstance(node.type, Float):
            return f"(-{inner})"
        sign = "0 - " if node.op == "-" else "~"
        return wrapped(machine_int(node.type), f"{sign}U({inner})")

    def cast(self, operand: ir.Expr, want: Type) -> str:
        """Value conversion."""
        have, inner = operand.type, self.expr(operand)
        if want == ty.BOOL:
            return f"({inner} != 0)"
        if isinstance(want, Float):
            if isinstance(have, Float):
                return rounded(want, inner) if have == F32 and want != F32 else inner
            return rounded(want, f"(double){inner}")
        kind = machine_int(want)
        if isinstance(have, Float):
            return of_u64(kind, f"csl_f2i({inner}, {kind.bits}, {int(kind.signed)})")
        if have == ty.BOOL:
            return inner
        source = machine_int(have)
        if kind.low <= source.low and source.high <= kind.high:
            return of_u64(kind, inner)
        return wrapped(kind, inner)

    def _bits(self, operand: ir.Expr, want: Type) -> str:
        have = operand.type
        if isinstance(operand, ir.Load) and isinstance(have, Float) and isinstance(want, Int):
            self.cost += self.scalar.operation
            return self.load(want, operand.addr)  # keeps all bits, of NaNs too
        inner = self.expr(operand)
        if isinstance(have, Float) and isinstance(want, Float):
            return inner
        if isinstance(have, Float):
            text = f"{_TO_BITS[have]}({inner})"
            kind = machine_int(want)
            return wrapped(kind, text) if kind.signed else f"(int64_t){text}"
        if isinstance(want, Float):
            return f"{_OF_BITS[want]}({inner})"
        kind, source = machine_int(want), machine_int(have)
        if want == ty.BOOL:
            return f"({inner} != 0)"
        return inner if kind == source else wrapped(kind, inner)


_TO_BITS = {F32: "csl_w32", F16: "csl_h16", BF16: "csl_hb16"}
_OF_BITS = {F32: "csl_f32_of", F16: "csl_half", BF16: "csl_brain"}
_ROUND = {F32: "csl_r32", F16: "csl_r16", BF16: "csl_rb16"}


def type_code(kind: Type) -> str:
    """The name of a number type in runtime/csl.h."""
    return f"T_{str(machine_type(kind)).upper()}"


def rounded(kind: Float, text: str) -> str:
    """``text`` rounded to ``kind``."""
    return f"{_ROUND[kind]}({text})"


def of_u64(kind: Int, text: str) -> str:
    """``text`` as unsigned when ``kind`` is u64."""
    return f"(uint64_t){text}" if kind == U64 else text


def wrapped(kind: Int, text: str) -> str:
    """``text`` modulo 2^bits."""
    sign = "s" if kind.signed else "u"
    if kind.bits in (8, 16, 32):
        return f"{sign.upper()}{kind.bits}({text})"
    return of_u64(kind, f"csl_wrap_{sign}({text}, {kind.bits})")
