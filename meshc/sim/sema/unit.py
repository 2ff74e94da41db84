"""One PE program while it is compiled: memory, functions, tasks, queues, exports."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from meshc.sim import ir
from meshc.sim.sema.csl_types import F16, U16, Array, Float, Type, align_up, alignment, size_of
from meshc.sim.sema.values import FnVal, Symbol
from meshc.support.spans import Span

DATA_START = 64
SMALL_BYTES = 2048
MEMORY_BYTES = 48 * 1024
# An estimate from below: an instruction of one 16-bit word for each statement of lowered code.
STATEMENT_BYTES = 2


@dataclass
class Export:
    """A symbol the host can name: data through the pointer at ``addr``, or a function."""

    name: str
    kind: str
    type: Type
    addr: int = 0
    fn: str = ""


@dataclass
class Unit:
    """Everything known of one PE program. Ids are numbers; see :mod:`meshc.sim.program`. ``half``
    is the format of 16-bit floats at run time."""

    arch: str
    name: str = ""
    half: Float = F16
    symbols: list[Symbol] = field(default_factory=list)
    end: int = DATA_START + SMALL_BYTES
    small_end: int = DATA_START
    slots: list[Any] = field(default_factory=list)
    functions: dict[str, ir.Function] = field(default_factory=dict)
    instances: dict[Any, ir.Function] = field(default_factory=dict)
    data_tasks: dict[int, FnVal] = field(default_factory=dict)
    local_tasks: dict[int, FnVal] = field(default_factory=dict)
    control_tasks: dict[int, FnVal] = field(default_factory=dict)
    teardown: dict[int, FnVal] = field(default_factory=dict)
    empty_handlers: dict[int, FnVal] = field(default_factory=dict)
    task_ids: dict[tuple[int, str], tuple[str, int]] = field(default_factory=dict)
    in_queues: dict[int, int] = field(default_factory=dict)
    out_queues: dict[int, int] = field(default_factory=dict)
    in_queues_used: dict[int, Span] = field(default_factory=dict)
    out_queues_used: dict[int, Span] = field(default_factory=dict)
    activated: list[tuple[str, Any]] = field(default_factory=list)
    blocked: list[tuple[str, Any]] = field(default_factory=list)
    unblocked: list[tuple[str, Any]] = field(default_factory=list)
    exports: dict[str, Export] = field(default_factory=dict)
    export_variables: set[str] = field(default_factory=set)
    dsr_loads: list[ir.LoadDsr] = field(default_factory=list)
    color_configs: dict[int, Any] = field(default_factory=dict)
    local_settings: list[tuple[int, int]] = field(default_factory=list)
    fifos: int = 0
    strings: list[str] = field(default_factory=list)
    trace_buffers: dict[str, int] = field(default_factory=dict)
    memcpy_ports: dict[int, str] = field(default_factory=dict)
    temps: int = 0
    statements: int = 0
    one_task_table: bool = False  # SDK 0.x: control wavelets start tasks of colors too
    recursive: frozenset[str] = frozenset()
    with_memory: set[str] = field(default_factory=set)
    stack_pointer: Symbol | None = None
    stack_limit: ir.Const = field(default_factory=lambda: ir.Const(U16, 0))

    def place_stack(self, most: int) -> None:
        """The stack of recursive functions, of at most ``most`` bytes, behind all variables."""
        if self.stack_pointer is not None:
            stack = self.place("stack", Array((max(most, 256) // 2,), U16), None, 4)
            self.stack_pointer.init = stack.addr
            self.stack_limit.value = stack.addr + stack.size

    def place(self, name: str, kind: Type, init: Any = None, align: int = 0) -> Symbol:
        """Give a variable its place in memory.

        Scalars and pointers have a region of their own below the arrays: programs exist that write
        a little past an array, which with the vendor's layout hits no pointer.
        """
        size = size_of(kind)
        if (
            not isinstance(kind, Array)
            and size <= 8
            and not align
            and self.small_end + 8 <= DATA_START + SMALL_BYTES
        ):
            self.small_end = align_up(self.small_end, alignment(kind))
            symbol = Symbol(name, kind, self.small_end, size, init)
            self.symbols.append(symbol)
            self.small_end += max(size, 1)
            return symbol
        self.end = align_up(self.end, max(align, alignment(kind)))
        symbol = Symbol(name, kind, self.end, size_of(kind), init)
        self.symbols.append(symbol)
        self.end += max(symbol.size, 1)
        return symbol

    @property
    def used(self) -> int:
        """Bytes of data in use."""
        return self.end - (DATA_START + SMALL_BYTES) + self.small_end - DATA_START

    def add_slots(self, values: list[Any]) -> int:
        """Make room for descriptor variables; the number of the first."""
        self.slots += values
        return len(self.slots) - len(values)

    @property
    def code_fits(self) -> bool:
        """Whether the code may fit the memory of a PE, by an estimate from below."""
        return self.statements * STATEMENT_BYTES <= MEMORY_BYTES

    def temp(self, kind: Type, name: str = "t") -> ir.Var:
        """A fresh local variable."""
        self.temps += 1
        return ir.Var(f"{name}_{self.temps}", kind)

    def string(self, text: str) -> int:
        """The number of a string that the machine may print."""
        if text not in self.strings:
            self.strings.append(text)
        return self.strings.index(text)
