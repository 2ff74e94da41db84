"""Values that are kept: what was computed first must not change with what is computed next.

Lowered expressions are evaluated where they stand, so a value that reads memory or a variable is
that of a later time once code goes between. Operands, elements, fields and arguments are evaluated
from left to right, each once; those that the code of a later one may change are put away before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from meshc.sim import ir
from meshc.sim.control_flow import inside, statements
from meshc.sim.lang import tree as t
from meshc.sim.sema import csl_types as ty
from meshc.sim.sema.convert import offset_by, zero_of
from meshc.sim.sema.csl_types import Array, Int, Struct
from meshc.sim.sema.images import packed_bits
from meshc.sim.sema.names import Names
from meshc.sim.sema.packed_fields import bits_of_scalar, scalar_of_bits, shifted, taken, unit_of
from meshc.sim.sema.values import BitPlace, Frame, RangeVal, Val
from meshc.support.spans import Span


@contextmanager
def branch(frame: Frame) -> Iterator[list[ir.Stmt]]:
    """Code that may run, or not, or several times: variables that stand outside of it keep what is
    known of them at compile time."""
    outer, frame.out = frame.out, []
    frame.branches += 1
    try:
        yield frame.out
    finally:
        frame.out = outer
        frame.branches -= 1


class Keeping(Names):
    """Stores values in memory and variables."""

    def in_order(self, frame: Frame, node: t.Node, parts: Iterable[Callable[[], Val]]) -> list[Val]:
        """The values of ``parts``, computed one after the other."""
        values, marks = list[Val](), list[int]()
        for part in parts:
            values.append(part())
            marks.append(len(frame.out))
        if frame.known or marks[:1] == marks[-1:]:
            return values
        for position in reversed(range(len(values) - 1)):
            later = frame.out[marks[position] :]
            if may_change(values[position], later):
                code, frame.out = frame.out, []
                try:
                    values[position] = self.kept(values[position], "kept", frame, node)
                    code[marks[position] : marks[position]] = frame.out
                finally:
                    frame.out = code
        return values

    def all_in_order(self, nodes: Sequence[t.Expr], frame: Frame) -> list[Val]:
        """The values of ``nodes``, from left to right."""
        if not nodes:
            return []
        return self.in_order(frame, nodes[0], (partial(self.eval, node, frame) for node in nodes))

    def without_code(self, frame: Frame, node: t.Expr) -> Val:
        """The value of ``node`` for the sake of its type: what computes it is not part of the
        program."""
        inside_ = Frame(frame.module, False, frame.names) if frame.known else frame
        outer, inside_.out = inside_.out, []
        try:
            return self.eval(node, inside_)
        finally:
            inside_.out = outer

    def kept(self, value: Val, name: str, frame: Frame, node: t.Node) -> Val:
        """``value`` computed now and kept for later use."""
        kind, where = value.type, self.place_of(node)
        if kind == ty.STRUCT and not value.known:
            fields = {k: self.kept(v, name, frame, node) for k, v in value.v.items()}
            return Val(kind, fields, False)
        if kind == ty.RANGE:
            ends = (value.v.low, value.v.high, value.v.step)
            return Val(
                kind, RangeVal(value.v.type, *(self.kept(v, name, frame, node) for v in ends))
            )
        if value.known and not isinstance(kind, Array | Struct):
            return value
        if ty.lives_in_slots(kind) and isinstance(kind, Array):
            return self.kept_slots(value, frame, node.span)
        if isinstance(kind, Array | Struct):
            if value.known:
                return Val(kind, self.code(value, name), False)
            addr = self.local_place(name, kind, frame)
            self.store(addr, value, frame, where)
            return Val(kind, addr, False)
        var = self.unit.temp(kind, variable_name(name))
        self.emit(frame, ir.SetLocal(where, var, value.v))
        return Val(kind, ir.Local(kind, var), False)

    def kept_slots(self, value: Val, frame: Frame, span: Span) -> Val:
        """A local array of descriptors, which keeps its slots from call to call."""
        first = ir.Const(ty.U16, self.unit.add_slots(zero_of(value.type)))
        self.set_slots(first, value, frame, span)
        return Val(value.type, first, False)

    def set_slots(self, first: ir.Expr, value: Val, frame: Frame, span: Span) -> None:
        """Provided by the part for places: store descriptors from slot ``first`` on."""
        raise NotImplementedError

    def store(self, addr: ir.Expr, value: Val, frame: Frame, where: str) -> None:
        """Code that stores a value of any type in memory."""
        kind = value.type
        if isinstance(kind, Array) and isinstance(value.v, list) and not value.known:
            step = ty.size_of(kind.element)
            for position, part in enumerate(value.v):
                self.store(offset_by(addr, position * step), part, frame, where)
        elif isinstance(kind, Struct) and kind.packed and isinstance(value.v, dict):
            unit = unit_of(kind)
            self.emit(frame, ir.Store(where, unit, addr, self.packed(value, unit)))
        elif isinstance(kind, Struct) and isinstance(value.v, dict):
            for name, _ in kind.fields:
                if name in value.v:
                    offset = (kind.field(name) or (None, 0))[1]
                    self.store(offset_by(addr, offset), value.v[name], frame, where)
        elif isinstance(kind, Array | Struct):
            self.emit(frame, ir.Copy(where, addr, self.code(value), ty.size_of(kind)))
        else:
            self.emit(frame, ir.Store(where, kind, addr, self.code(value)))

    def packed(self, value: Val, unit: Int) -> ir.Expr:
        """A value of a packed struct, as the lowest bits of ``unit``."""
        kind = value.type
        if value.known:
            return ir.Const(unit, packed_bits(kind, value.v))
        if not isinstance(kind, Struct):
            return bits_of_scalar(kind, self.code(value), unit)
        if not isinstance(value.v, dict):
            width = Int(ty.bits_of(kind), False)  # what else stands in its unit is not its own
            whole = ir.Load(unit_of(kind), value.v)
            own = whole if width == whole.type else ir.Cast(width, whole)
            return bits_of_scalar(width, own, unit)
        total: ir.Expr | None = None
        for name, part in value.v.items():
            _, shift = kind.bit_field(name) or (kind, 0)
            code = shifted(self.packed(part, unit), shift)
            total = code if total is None else ir.Bin(unit, "|", total, code)
        return total or ir.Const(unit, 0)

    def unpacked(self, place: BitPlace, frame: Frame, node: t.Node) -> Val:
        """The value of a field of a packed struct."""
        if not isinstance(place.type, Struct):
            return Val(place.type, scalar_of_bits(place.type, taken(place)), False)
        unit, addr = unit_of(place.type), self.local_place("field", place.type, frame)
        bits = scalar_of_bits(Int(ty.bits_of(place.type), False), taken(place))
        code = bits if bits.type == unit else ir.Cast(unit, bits)
        self.emit(frame, ir.Store(self.place_of(node), unit, addr, code))
        return Val(place.type, addr, False)


def variable_name(name: str) -> str:
    """The name of a variable in generated code."""
    return "v_" + "".join(c if c.isalnum() else "_" for c in name)


def may_change(value: Val, code: list[ir.Stmt]) -> bool:
    """Whether ``code`` may change what ``value``, computed after it, is."""
    written, memory = set[ir.Var](), False
    for stmt in statements(code):
        match stmt:
            case ir.SetLocal():
                written.add(stmt.var)
            case ir.If() | ir.Loop() | ir.Break() | ir.Continue() | ir.Return():
                pass
            case _:
                memory = True
    return any(
        (memory and not isinstance(part, ir.Local))
        or (isinstance(part, ir.Local) and part.var in written)
        for part in reads(value)
    )


def reads(value: Val) -> Iterator[ir.Expr]:
    """The parts of a value that are read when its code runs: memory, variables, descriptors."""
    if value.type == ty.RANGE:
        for end in (value.v.low, value.v.high, value.v.step):
            yield from reads(end)
    elif isinstance(value.v, dict):
        for part in value.v.values():
            yield from reads(part)
    elif value.known:
        return
    elif isinstance(value.v, list):
        for part in value.v:
            yield from reads(part)
    else:
        for part in inside(value.v):
            if isinstance(part, ir.Local | ir.Load | ir.Slot):
                yield part
        if isinstance(value.type, Array | Struct):
            yield ir.Load(value.type, value.v)


def may_overlap(addr: ir.Expr, size: int, part: ir.Expr) -> bool:
    """Whether a part of a value, as :func:`reads` gives it, may lie in the bytes at ``addr``."""
    if not isinstance(part, ir.Load):
        return False
    if not isinstance(addr, ir.Const) or not isinstance(part.addr, ir.Const):
        return True
    start, end = part.addr.value, part.addr.value + ty.size_of(part.type)
    return bool(start < addr.value + size and addr.value < end)
