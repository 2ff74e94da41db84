"""The lowered form: typed expressions and structured statements, the input of both back ends.

Expressions have no side effects apart from reading memory; calls and effects are statements.
Addresses are byte addresses of the PE's own memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from meshc.sim.sema.csl_types import Fn, Type


@dataclass(slots=True, eq=False)
class Expr:
    """A value of ``type``."""

    type: Type


@dataclass(slots=True, eq=False)
class Const(Expr):
    """A number, a bool, or a descriptor."""

    value: Any


@dataclass(slots=True, eq=False)
class FnAddr(Expr):
    """A function as a value."""

    name: str


@dataclass(slots=True, eq=False)
class TaskId(Expr):
    """The id a task is bound to, known when all of the program is lowered."""

    task: Any


@dataclass(slots=True, eq=False)
class Var:
    """A local variable of a function."""

    name: str
    type: Type


@dataclass(slots=True, eq=False)
class Local(Expr):
    """The value of a local variable."""

    var: Var


@dataclass(slots=True, eq=False)
class Load(Expr):
    """The value in memory at a byte address."""

    addr: Expr


@dataclass(slots=True, eq=False)
class Slot(Expr):
    """A descriptor variable, numbered outside of byte memory."""

    index: Expr


@dataclass(slots=True, eq=False)
class Bin(Expr):
    """``op`` on two operands of equal type (shifts and pointer offsets apart)."""

    op: str
    left: Expr
    right: Expr


@dataclass(slots=True, eq=False)
class Un(Expr):
    """``op`` on one operand: minus, or ``not`` of a bool or of all bits."""

    op: str
    operand: Expr


@dataclass(slots=True, eq=False)
class Cast(Expr):
    """Value conversion as ``@as`` does it."""

    operand: Expr


@dataclass(slots=True, eq=False)
class Bits(Expr):
    """Reinterpretation of the bits."""

    operand: Expr


@dataclass(slots=True, eq=False)
class Select(Expr):
    """One of two values; both are computed."""

    cond: Expr
    then: Expr
    other: Expr


@dataclass(slots=True, eq=False)
class Runtime(Expr):
    """A pure function of the machine: descriptor edits, mathematics, coordinates."""

    name: str
    args: list[Expr]


@dataclass(slots=True)
class Stmt:
    """A statement; ``place`` is ``file:line``."""

    place: str


@dataclass(slots=True)
class SetLocal(Stmt):
    """A local variable gets a value."""

    var: Var
    value: Expr


@dataclass(slots=True)
class Store(Stmt):
    """A value of ``type`` goes to memory at a byte address."""

    type: Type
    addr: Expr
    value: Expr


@dataclass(slots=True)
class SetSlot(Stmt):
    """A descriptor variable gets a value."""

    index: Expr
    value: Expr


@dataclass(slots=True)
class Copy(Stmt):
    """``size`` bytes from address to address."""

    to: Expr
    source: Expr
    size: int


@dataclass(slots=True)
class If(Stmt):
    """One of two lists of statements."""

    cond: Expr
    then: list[Stmt]
    other: list[Stmt]


@dataclass(slots=True)
class Loop(Stmt):
    """``head``, leave unless ``cond``, ``body``, ``step``, again. ``once`` runs the body once."""

    label: int
    head: list[Stmt]
    cond: Expr
    body: list[Stmt]
    step: list[Stmt]
    once: bool = False


@dataclass(slots=True)
class Break(Stmt):
    """Leaves the loop called ``label``."""

    label: int


@dataclass(slots=True)
class Continue(Stmt):
    """Goes on with the step of the loop called ``label``."""

    label: int


@dataclass(slots=True)
class Return(Stmt):
    """Ends the function, with a value unless it gives none."""

    value: Expr | None


@dataclass(slots=True)
class CallFn(Stmt):
    """A call of a function by its name, whose value goes to ``dst``."""

    dst: Var | None
    name: str
    args: list[Expr]


@dataclass(slots=True)
class CallPtr(Stmt):
    """A call of the function that a pointer of ``type`` has the number of."""

    dst: Var | None
    target: Expr
    type: Fn
    args: list[Expr]


@dataclass(slots=True)
class Effect(Stmt):
    """An effect on the machine that cannot block: activate, block, time stamps, registers."""

    dst: Var | None
    name: str
    args: list[Expr]


@dataclass(slots=True)
class OpOptions:
    """The options of a vector operation; ``unblock`` is (kind, id)."""

    is_async: bool = False
    activate: Expr | None = None
    unblock: tuple[str, Expr] | None = None
    index: Expr | None = None
    ut_id: Expr | None = None
    priority: int = 0
    on_control: str = ""
    on_control_activate: Expr | None = None
    on_control_unblock: tuple[str, Expr] | None = None


@dataclass(slots=True)
class VectorOp(Stmt):
    """``name(dst, sources...)``; ``result`` receives whether the operation completed."""

    result: Var | None
    name: str
    operands: list[Expr]
    options: OpOptions


@dataclass(slots=True)
class MapOp(Stmt):
    """``@map``: ``fn`` on elements; ``dst`` is None when the function returns nothing."""

    fn: str
    params: tuple[Type, ...]
    sources: list[Expr]
    dst: Expr | None
    dst_type: Type | None


@dataclass(slots=True)
class LoadDsr(Stmt):
    """A register load; ``bank`` is dest, src0 or src1."""

    bank: str
    number: Expr
    dsd: Expr
    options: OpOptions
    save_address: bool
    single_step: bool


@dataclass
class Function:
    """A lowered function or task of one PE program."""

    name: str
    params: list[Var]
    result: Type
    body: list[Stmt] = field(default_factory=list)
    blocking: bool = False
    source: str = ""
