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
    value: int


@dataclass(slots=True, eq=False)
class FloatLit(Expr):
    value: float


@dataclass(slots=True, eq=False)
class StrLit(Expr):
    value: str


@dataclass(slots=True, eq=False)
class BoolLit(Expr):
    value: bool


@dataclass(slots=True, eq=False)
class VoidLit(Expr):
    """``{}``"""


@dataclass(slots=True, eq=False)
class Name(Expr):
    name: str


@dataclass(slots=True, eq=False)
class EnumLit(Expr):
    """``.member`` whose enum follows from the context."""

    name: str


@dataclass(slots=True, eq=False)
class Unary(Expr):
    op: str
    operand: Expr


@dataclass(slots=True, eq=False)
class Binary(Expr):
    op: str
    left: Expr
    right: Expr


@dataclass(slots=True, eq=False)
class AddressOf(Expr):
    operand: Expr


@dataclass(slots=True, eq=False)
class Deref(Expr):
    operand: Expr


@dataclass(slots=True, eq=False)
class Field(Expr):
    base: Expr
    name: str


@dataclass(slots=True, eq=False)
class Index(Expr):
    base: Expr
    indices: list[Expr]


@dataclass(slots=True, eq=False)
class Call(Expr):
    callee: Expr
    args: list[Expr]


@dataclass(slots=True, eq=False)
class Builtin(Expr):
    """``@name(args)``; the name is stored without the at sign."""

    name: str
    args: list[Expr]


@dataclass(slots=True, eq=False)
class IfExpr(Expr):
    cond: Expr
    then: Expr
    other: Expr | None


@dataclass(slots=True, eq=False)
class ComptimeExpr(Expr):
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
    params: list[Param]
    result: Expr
    task: bool


@dataclass(slots=True, eq=False)
class AnyType(Expr):
    """``anytype``"""


@dataclass(slots=True, eq=False)
class EnumDecl(Expr):
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
    subject: Expr
    prongs: list[SwitchProng]


# --- statements ---


@dataclass(slots=True, eq=False)
class ExprStmt(Stmt):
    expr: Expr


@dataclass(slots=True, eq=False)
class Assign(Stmt):
    """``op`` is empty for plain assignment, else the operator in front of ``=``."""

    op: str
    target: Expr
    value: Expr


@dataclass(slots=True, eq=False)
class Block(Stmt):
    body: list[Stmt]
    label: str | None = None
    comptime: bool = False


@dataclass(slots=True, eq=False)
class If(Stmt):
    cond: Expr
    then: Stmt
    other: Stmt | None


@dataclass(slots=True, eq=False)
class While(Stmt):
    cond: Expr
    step: Stmt | None
    body: Stmt
    label: str | None
    inline: bool


@dataclass(slots=True, eq=False)
class For(Stmt):
    subject: Expr
    captures: list[str]
    body: Stmt
    label: str | None
    inline: bool


@dataclass(slots=True, eq=False)
class Return(Stmt):
    value: Expr | None


@dataclass(slots=True, eq=False)
class Break(Stmt):
    label: str | None
    value: Expr | None


@dataclass(slots=True, eq=False)
class Continue(Stmt):
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
    name: str
    params: list[Param]
    result: Expr
    body: Block | None
    task: bool = False
    inline: bool = False
    export: bool = False


@dataclass(slots=True, eq=False)
class ComptimeBlock(Node):
    body: Block


@dataclass(slots=True, eq=False)
class LayoutBlock(Node):
    body: Block


@dataclass(slots=True, eq=False)
class File:
    """One parsed file: top-level items in order."""

    path: str
    params: list[Param] = field(default_factory=list)
    decls: dict[str, VarDecl | FnDecl] = field(default_factory=dict)
    comptime: list[ComptimeBlock] = field(default_factory=list)
    layout: LayoutBlock | None = None
