"""Values during analysis: known ones, those known at run time only, and what names stand for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from meshc.sim import ir
from meshc.sim.lang import tree as t
from meshc.sim.sema.csl_types import VOID, Int, Type


@dataclass(slots=True)
class Val:
    """A typed value.

    When ``known`` the Python value is in ``v``; otherwise ``v`` is lowered code (for arrays and
    structs in memory: their address). ``home`` is the constant a known array comes from.
    """

    type: Type
    v: Any
    known: bool = True
    home: Global | None = None


@dataclass(slots=True, eq=False)
class Symbol:
    """A variable or constant placed in PE memory. ``init`` is None for zeros."""

    name: str
    type: Type
    addr: int
    size: int
    init: Any = None


@dataclass(slots=True, eq=False)
class Cell:
    """A mutable variable of a function that runs at compile time, or of such code; it stands within
    so many branches and loops of the running program."""

    type: Type
    v: Any
    branches: int = 0


@dataclass(slots=True, eq=False)
class CellRef:
    """A pointer to a compile-time variable or a part of it."""

    place: CellPlace


@dataclass(slots=True, eq=False)
class CellPlace:
    """Where a compile-time assignment goes: ``container[key]``."""

    type: Type
    container: Any
    key: Any
    in_union: bool = False
    branches: int = 0

    def read(self) -> Any:
        """The present value."""
        if isinstance(self.container, Cell | Val):
            return self.container.v
        return self.container[self.key]


@dataclass(slots=True, eq=False)
class StackVar:
    """A local variable that lives in memory: static, or on the stack of a recursive function."""

    type: Type
    addr: ir.Expr


@dataclass(slots=True, eq=False)
class StackFrame:
    """The memory variables of a recursive function: ``base`` holds the address of the first."""

    base: ir.Var
    size: int = 0


@dataclass(slots=True, eq=False)
class MemPlace:
    """Where a run-time assignment goes: memory at ``addr``."""

    type: Type
    addr: ir.Expr
    const: bool = False


@dataclass(slots=True, eq=False)
class BitPlace:
    """Where a field of a packed struct goes: bits from ``shift`` on of the ``unit`` at ``addr``."""

    type: Type
    addr: ir.Expr
    unit: Int
    shift: int
    const: bool = False


@dataclass(slots=True, eq=False)
class LocalPlace:
    """A local variable that may be assigned to."""

    var: ir.Var


@dataclass(slots=True, eq=False)
class SlotPlace:
    """A descriptor variable."""

    type: Type
    index: ir.Expr
    const: bool = False


Place = CellPlace | MemPlace | BitPlace | LocalPlace | SlotPlace


@dataclass(slots=True, eq=False)
class FnVal:
    """A function or task of one module instance."""

    module: Module
    decl: t.FnDecl

    @property
    def name(self) -> str:
        """The name as declared."""
        return self.decl.name


@dataclass(slots=True, eq=False)
class Global:
    """A top-level variable or constant; evaluated when first looked at."""

    module: Module
    decl: t.VarDecl
    type: Type | None = None
    value: Val | None = None
    busy: bool = False
    symbol: Symbol | None = None
    slot: int = -1


@dataclass(slots=True, eq=False)
class Module:
    """One instance of a file: its declarations and parameter values."""

    name: str
    file: t.File
    folder: str
    bindings: dict[str, Val]
    number: int
    names: dict[str, Val | Global | FnVal] = field(default_factory=dict)
    library: str = ""
    mentioned: frozenset[str] | None = None
    """The names in the text of the file, once somebody has asked."""


@dataclass(slots=True)
class RangeVal:
    """``@range(T, low, high, step)``"""

    type: Type
    low: Val
    high: Val
    step: Val


@dataclass(slots=True, eq=False)
class Divided:
    """An argument that has parts, of which some are known at run time only: the known ones as they
    are, of the others the types. ``range`` is the type of the numbers of a range."""

    parts: dict[Any, Val | Divided | Type]
    range: Type | None = None


class ReturnSignal(Exception):
    """Unwinds a function that runs at compile time."""

    def __init__(self, value: Val | None) -> None:
        self.value = value


class LoopSignal(Exception):
    """Unwinds to a loop of a function that runs at compile time."""

    def __init__(self, label: str | None, again: bool, value: Val | None = None) -> None:
        self.label, self.again, self.value = label, again, value


@dataclass(slots=True)
class LoopFrame:
    """A loop or block being lowered, or run at compile time, where only its label counts.

    ``breaks`` gathers the values that leave a block. For an ``unrolled`` loop ``iteration`` numbers
    the present body, which ``continue`` leaves.
    """

    label: str | None
    number: int
    is_block: bool = False
    result: ir.Var = field(default_factory=lambda: ir.Var("", VOID))
    breaks: list[tuple[ir.SetLocal, Val, t.Break]] | None = None
    unrolled: t.Stmt | None = None
    iteration: int = 0


@dataclass(slots=True, eq=False)
class Frame:
    """Where code is being analysed: scopes, and for lowered code the statement list.

    ``called`` says that a function runs at compile time, which can return.
    """

    module: Module
    known: bool
    names: list[dict[str, Any]] = field(default_factory=lambda: [{}])
    out: list[ir.Stmt] = field(default_factory=list)
    result: Type | None = None
    loops: list[LoopFrame] = field(default_factory=list)
    addressed: frozenset[str] = frozenset()
    function: str = ""
    in_layout: bool = False
    stack: StackFrame | None = None
    branches: int = 0
    called: bool = False

    def find(self, name: str) -> Any:
        """What a local name stands for, or None."""
        for scope in reversed(self.names):
            if name in scope:
                return scope[name]
        return None

    def at_comptime(self) -> Frame:
        """The same place, evaluated at compile time."""
        if self.known:
            return self
        return Frame(
            self.module, True, self.names, [], self.result, [], frozenset(), self.function,
            branches=self.branches,
        )  # fmt: skip
