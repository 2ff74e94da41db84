"""The types of CSL."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod


@dataclass(frozen=True)
class Type:
    """Any type; ``str`` gives its CSL spelling."""


@dataclass(frozen=True)
class Simple(Type):
    """A type without structure: bool, void, color, mem1d_dsd, comptime_int, ..."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Int(Type):
    """An integer of ``bits`` bits, with a sign or without."""

    bits: int
    signed: bool

    def __str__(self) -> str:
        return f"{'i' if self.signed else 'u'}{self.bits}"

    @property
    def low(self) -> int:
        """The smallest value."""
        return -(1 << (self.bits - 1)) if self.signed else 0

    @property
    def high(self) -> int:
        """The largest value."""
        return (1 << (self.bits - 1 if self.signed else self.bits)) - 1

    def wrap(self, value: int) -> int:
        """``value`` modulo 2^bits, in the range of the type."""
        value &= (1 << self.bits) - 1
        if self.signed and value >> (self.bits - 1):
            value -= 1 << self.bits
        return value


@dataclass(frozen=True)
class Float(Type):
    """A number of ``bits`` bits with a fraction: ``f16``, ``bf16``, ``cb16`` or ``f32``."""

    name: str
    bits: int

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Array(Type):
    """Elements side by side in memory, row after row."""

    dims: tuple[int, ...]
    element: Type

    def __str__(self) -> str:
        return f"[{', '.join(map(str, self.dims))}]{self.element}"

    @property
    def count(self) -> int:
        """The number of elements."""
        return prod(self.dims)


@dataclass(frozen=True)
class Pointer(Type):
    """An address of a ``target``, or of ``many`` side by side; ``const`` ones are read only."""

    many: bool
    const: bool
    target: Type

    def __str__(self) -> str:
        return f"{'[*]' if self.many else '*'}{'const ' if self.const else ''}{self.target}"


@dataclass(frozen=True)
class Fn(Type):
    """A function, or a task."""

    params: tuple[Type, ...]
    result: Type
    task: bool = False

    def __str__(self) -> str:
        params = ", ".join(map(str, self.params))
        return f"{'task' if self.task else 'fn'}({params}) {self.result}"


@dataclass(frozen=True)
class Enum(Type):
    """Named numbers of the type ``base``."""

    name: str
    base: Type
    members: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        return self.name

    def value(self, member: str) -> int | None:
        """The number of a member."""
        return dict(self.members).get(member)


@dataclass(frozen=True)
class Struct(Type):
    """Named fields, of which a ``union`` has one at a time; ``packed`` ones have no gaps."""

    name: str
    fields: tuple[tuple[str, Type], ...]
    union: bool = False
    packed: bool = False

    def __str__(self) -> str:
        return self.name

    @property
    def stored(self) -> tuple[tuple[str, Type], ...]:
        """The fields that a value consists of: of a union the largest."""
        if not self.union:
            return self.fields
        return self.fields and (max(self.fields, key=lambda field: size_of(field[1])),)

    def bit_field(self, name: str) -> tuple[Type, int] | None:
        """Type and lowest bit of a field of a packed type, or of a union's integer that is narrower
        than its place in memory; None for fields with an address."""
        shift = 0
        for field_name, field_type in self.fields:
            if field_name == name:
                whole = bits_of(field_type) == 8 * size_of(field_type)
                narrow = self.union and isinstance(field_type, Int) and not whole
                return (field_type, shift) if self.packed or narrow else None
            if not self.union:
                shift += bits_of(field_type)
        return None

    def field(self, name: str) -> tuple[Type, int] | None:
        """Type and byte offset of a field."""
        offset = 0
        for field_name, field_type in self.fields:
            offset = align_up(offset, alignment(field_type))
            if field_name == name:
                return field_type, offset
            if not self.union:
                offset += size_of(field_type)
        return None


BOOL = Simple("bool")
VOID = Simple("void")
COMPTIME_INT = Simple("comptime_int")
COMPTIME_FLOAT = Simple("comptime_float")
STRING = Simple("comptime_string")
TYPE = Simple("type")
STRUCT = Simple("comptime_struct")
ANYTYPE = Simple("anytype")
MODULE = Simple("imported_module")
RANGE = Simple("range")
ENUM_LITERAL = Simple("enum_literal")
UNDEFINED = Simple("undefined")
ANYOPAQUE = Simple("anyopaque")
COLOR = Simple("color")
DIRECTION = Simple("direction")
INPUT_QUEUE = Simple("input_queue")
OUTPUT_QUEUE = Simple("output_queue")
DATA_TASK = Simple("data_task_id")
LOCAL_TASK = Simple("local_task_id")
CONTROL_TASK = Simple("control_task_id")
UT = Simple("ut_id")
MEM1D = Simple("mem1d_dsd")
MEM4D = Simple("mem4d_dsd")
CIRCBUF = Simple("circbuf_dsd")
FABIN = Simple("fabin_dsd")
FABOUT = Simple("fabout_dsd")
FIFO = Simple("fifo")
DSR_DEST = Simple("dsr_dest")
DSR_SRC0 = Simple("dsr_src0")
DSR_SRC1 = Simple("dsr_src1")
XDSR = Simple("xdsr")
SR = Simple("sr")

F16 = Float("f16", 16)
F32 = Float("f32", 32)
BF16 = Float("bf16", 16)
CB16 = Float("cb16", 16)
U8, U16, U32, U64 = (Int(n, False) for n in (8, 16, 32, 64))
I8, I16, I32, I64 = (Int(n, True) for n in (8, 16, 32, 64))

IDS = frozenset(
    (
        COLOR,
        DIRECTION,
        INPUT_QUEUE,
        OUTPUT_QUEUE,
        DATA_TASK,
        LOCAL_TASK,
        CONTROL_TASK,
        UT,
        DSR_DEST,
        DSR_SRC0,
        DSR_SRC1,
        XDSR,
        SR,
    )
)
DSDS = frozenset((MEM1D, MEM4D, CIRCBUF, FABIN, FABOUT, FIFO))
DSRS = frozenset((DSR_DEST, DSR_SRC0, DSR_SRC1))
COMPTIME_ONLY = frozenset(
    (COMPTIME_INT, COMPTIME_FLOAT, STRING, TYPE, STRUCT, MODULE, ENUM_LITERAL, FIFO)
)

NAMED: dict[str, Type] = {
    **{
        s.name: s
        for s in (
            BOOL, VOID, COMPTIME_INT, COMPTIME_FLOAT, STRING, TYPE, STRUCT, MODULE, COLOR,
            ANYOPAQUE, DIRECTION, INPUT_QUEUE, OUTPUT_QUEUE, DATA_TASK, LOCAL_TASK, CONTROL_TASK,
            UT, MEM1D, MEM4D, CIRCBUF, FABIN, FABOUT, DSR_DEST, DSR_SRC0, DSR_SRC1, XDSR, SR,
        )
    },
    "f16": F16,
    "f32": F32,
    "bf16": BF16,
    "cb16": CB16,
    "range": RANGE,
}  # fmt: skip


def named(name: str) -> Type | None:
    """The builtin type called ``name``; ``i7`` and ``u24`` are types too."""
    found = NAMED.get(name)
    if found is None and re.fullmatch(r"[iu][1-9][0-9]?", name) and int(name[1:]) <= 64:
        return Int(int(name[1:]), name[0] == "i")
    return found


def size_of(kind: Type) -> int:
    """Bytes a value of ``kind`` takes in memory; 0 for those that live elsewhere."""
    match kind:
        case Int():
            return 1 if kind.bits <= 8 else 2 if kind.bits <= 16 else 4 if kind.bits <= 32 else 8
        case Float():
            return kind.bits // 8
        case Array():
            return kind.count * size_of(kind.element)
        case Enum():
            return size_of(kind.base)
        case Pointer() | Fn():
            return 2
        case Struct() if kind.packed:
            return size_of(Int(bits_of(kind), False))
        case Struct():
            ends = [0]
            for name, field_type in kind.fields:
                found = kind.field(name)
                ends.append((found[1] if found else 0) + size_of(field_type))
            return align_up(max(ends), alignment(kind))
    return 2 if kind in IDS or kind == BOOL else 0


def bits_of(kind: Type) -> int:
    """Bits a value of ``kind`` takes in a packed struct; 0 for those that cannot stand there."""
    match kind:
        case Int():
            return kind.bits
        case Float():
            return kind.bits
        case Enum():
            return bits_of(kind.base)
        case Struct() if kind.packed:
            widths = [bits_of(field_type) for _, field_type in kind.fields]
            return max(widths, default=0) if kind.union else sum(widths)
        case Pointer() if not isinstance(kind.target, Fn):
            return 16
    return 1 if kind == BOOL else 0


def alignment(kind: Type) -> int:
    """The byte alignment of a variable of ``kind``: 16-bit words, 4 bytes for 32-bit values."""
    match kind:
        case Array():
            return alignment(kind.element)
        case Struct() if not kind.packed:
            return max((alignment(f) for _, f in kind.fields), default=2)
    return min(4, max(1, size_of(kind)))


def align_up(offset: int, to: int) -> int:
    """``offset`` rounded up to a multiple of ``to``."""
    return (offset + to - 1) // to * to


def lives_in_slots(kind: Type) -> bool:
    """Whether values are descriptors, which the machine keeps outside of byte memory."""
    return kind in DSDS or (isinstance(kind, Array) and kind.element in DSDS)


def is_numeric(kind: Type) -> bool:
    """Integers and floats, comptime ones included."""
    return isinstance(kind, Int | Float) or kind in (COMPTIME_INT, COMPTIME_FLOAT)


def is_int(kind: Type) -> bool:
    """Integers, comptime_int included."""
    return isinstance(kind, Int) or kind == COMPTIME_INT


def is_float(kind: Type) -> bool:
    """Floats, comptime_float included."""
    return isinstance(kind, Float) or kind == COMPTIME_FLOAT
