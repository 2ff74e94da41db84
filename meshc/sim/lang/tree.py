"""The syntax tree of CSL. One dataclass per construct; every node knows its place."""

from __future__ import annotations

from dataclasses import dataclass, field

from meshc.support.spans import Span


@dataclass(slots=True, eq=False)
class Node:
    """Anything with a place in a source file."""

    span: Span


class Expr(Node):
    """An expression (types are expressions too)."""

    __slots__ = ()


class Stmt(Node):
    """A statement."""

    __slots__ = ()


@dataclass(slots=True, eq=False)
class IntLit(Expr):
    """An integer, in any base."""

    value: int


@dataclass(slots=True, eq=False)
class FloatLit(Expr):
    """A number with a fraction or an exponent."""

    value: float


@dataclass(slots=True, eq=False)
class StrLit(Expr):
    """A text in quotes, its escapes read."""

    value: str


@dataclass(slots=True, eq=False)
class BoolLit(Expr):
    """``true`` or ``false``"""

    value: bool


@dataclass(slots=True, eq=False)
class VoidLit(Expr):
    """``{}``"""


@dataclass(slots=True, eq=False)
class Name(Expr):
    """A name: of a variable, function, type or parameter."""

    name: str


@dataclass(slots=True, eq=False)
class EnumLit(Expr):
    """``.member`` whose enum follows from the context."""

    name: str


@dataclass(slots=True, eq=False)
class Unary(Expr):
    """``op`` in front of an operand: ``-``, ``!`` or ``~``."""

    op: str
    operand: Expr


@dataclass(slots=True, eq=False)
class Binary(Expr):
    """``op`` between two operands."""

    op: str
    left: Expr
    right: Expr


@dataclass(slots=True, eq=False)
class AddressOf(Expr):
    """``&operand``"""

    operand: Expr


@dataclass(slots=True, eq=False)
class Deref(Expr):
    """``operand.*``"""

    operand: Expr


@dataclass(slots=True, eq=False)
class Field(Expr):
    """``base.name``"""

    base: Expr
    name: str


@dataclass(slots=True, eq=False)
class Index(Expr):
    """``base[i, j]``"""

    base: Expr
    indices: list[Expr]


@dataclass(slots=True, eq=False)
class Call(Expr):
    """``callee(args)``"""

    callee: Expr
    args: list[Expr]


@dataclass(slots=True, eq=False)
class Builtin(Expr):
    """``@name(args)``; the name is stored without the at sign."""

    name: str
    args: list[Expr]


@dataclass(slots=True, eq=False)
class IfExpr(Expr):
    """``if (cond) then else other``, as a value."""

    cond: Expr
    then: Expr
    other: Expr | None


@dataclass(slots=True, eq=False)
class ComptimeExpr(Expr):
    """``comptime operand``"""

    operand: Expr


@dataclass(slots=True, eq=False)
class StructLit(Expr):
    """``.{...}`` or ``T{...}``: ``names`` has one entry per value, None in tuples and arrays."""

    type: Expr | None
    names: list[str | None]
    values: list[Expr]


@dataclass(slots=True, eq=False)
class TensorAccess(Expr):
    """``|i, j|{n, m} -> a[i, j]``"""

    variables: list[str]
    extents: list[Expr]
    access: Expr


@dataclass(slots=True, eq=False)
class BlockExpr(Expr):
    """A labelled block with a value."""

    body: Block


@dataclass(slots=True, eq=False)
class ArrayType(Expr):
    """``[n, m]T``; a dim is None where ``_`` leaves it to the values."""

    dims: list[Expr | None]
    element: Expr


@dataclass(slots=True, eq=False)
class PointerType(Expr):
    """``*T`` (``many`` false) or ``[*]T``."""

    many: bool
    const: bool
    target: Expr


@dataclass(slots=True, eq=False)
class FnType(Expr):
    """``fn(params) result``, or of a ``task``."""

    params: list[Param]
    result: Expr
    task: bool


@dataclass(slots=True, eq=False)
class AnyType(Expr):
    """``anytype``"""


@dataclass(slots=True, eq=False)
class EnumDecl(Expr):
    """``enum(base) { member = value, .. }``; a value is None where it follows from the one
    before."""

    base: Expr | None
    members: list[str]
    values: list[Expr | None]


@dataclass(slots=True, eq=False)
class StructDecl(Expr):
    """``kind`` is struct or union, after packed or extern where that is written."""

    kind: str
    fields: list[tuple[str, Expr, Expr | None]]


@dataclass(slots=True, eq=False)
class SwitchProng(Node):
    """``items`` empty means else; an item is a value or a (low, high) range."""

    items: list[Expr | tuple[Expr, Expr]]
    body: Stmt | Expr


@dataclass(slots=True, eq=False)
class SwitchExpr(Expr):
    """``switch (subject) { prongs }``, as a value or as a statement."""

    subject: Expr
    prongs: list[SwitchProng]


# --- statements ---


@dataclass(slots=True, eq=False)
class ExprStmt(Stmt):
    """An expression that stands alone, for what it does."""

    expr: Expr


@dataclass(slots=True, eq=False)
class Assign(Stmt):
    """``op`` is empty for plain assignment, else the operator in front of ``=``."""

    op: str
    target: Expr
    value: Expr


@dataclass(slots=True, eq=False)
class Block(Stmt):
    """``label: { .. }``, run by the compiler where it is ``comptime``."""

    body: list[Stmt]
    label: str | None = None
    comptime: bool = False


@dataclass(slots=True, eq=False)
class If(Stmt):
    """``if (cond) then else other``, as a statement."""

    cond: Expr
    then: Stmt
    other: Stmt | None


@dataclass(slots=True, eq=False)
class While(Stmt):
    """``while (cond) : (step) body``; ``inline`` loops are unrolled."""

    cond: Expr
    step: Stmt | None
    body: Stmt
    label: str | None
    inline: bool


@dataclass(slots=True, eq=False)
class For(Stmt):
    """``for (subject) |element, index| body``; ``inline`` loops are unrolled."""

    subject: Expr
    captures: list[str]
    body: Stmt
    label: str | None
    inline: bool


@dataclass(slots=True, eq=False)
class Return(Stmt):
    """``return value;``"""

    value: Expr | None


@dataclass(slots=True, eq=False)
class Break(Stmt):
    """``break :label value;``"""

    label: str | None
    value: Expr | None


@dataclass(slots=True, eq=False)
class Continue(Stmt):
    """``continue :label;``"""

    label: str | None


@dataclass(slots=True, eq=False)
class VarDecl(Stmt):
    """A ``const`` or ``var``; ``init`` is None for extern and bare ``var x: T``."""

    name: str
    const: bool
    type: Expr | None
    init: Expr | None
    align: Expr | None = None
    export: bool = False
    comptime: bool = False
    section: str | None = None
    extern: bool = False


@dataclass(slots=True, eq=False)
class Param(Node):
    """A parameter of a function or of a file."""

    name: str
    type: Expr | None
    default: Expr | None = None
    comptime: bool = False


@dataclass(slots=True, eq=False)
class FnDecl(Node):
    """A function or a task; ``body`` is None for one that is declared only."""

    name: str
    params: list[Param]
    result: Expr
    body: Block | None
    task: bool = False
    inline: bool = False
    export: bool = False


@dataclass(slots=True, eq=False)
class ComptimeBlock(Node):
    """``comptime { .. }`` of a file."""

    body: Block


@dataclass(slots=True, eq=False)
class LayoutBlock(Node):
    """``layout { .. }`` of a file."""

    body: Block


@dataclass(slots=True, eq=False)
class File:
    """One parsed file: top-level items in order."""

    path: str
    params: list[Param] = field(default_factory=list)
    decls: dict[str, VarDecl | FnDecl] = field(default_factory=dict)
    comptime: list[ComptimeBlock] = field(default_factory=list)
    layout: LayoutBlock | None = None
