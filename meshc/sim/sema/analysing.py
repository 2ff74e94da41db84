"""What all parts of the analyser share: the unit under work, error helpers, code emission."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from meshc.sim import ir
from meshc.sim.csl_files import Loader
from meshc.sim.descriptors import Dsd
from meshc.sim.lang import tree as t
from meshc.sim.sema import csl_types as ty
from meshc.sim.sema.csl_types import Array, Float, Fn, Int, Struct, Type
from meshc.sim.sema.unit import Unit
from meshc.sim.sema.values import FnVal, Frame, Module, Val
from meshc.support.diagnostics import MeshcError, fail
from meshc.support.spans import Span

# Iterations and calls at compile time: ten for each 16-bit word of a PE's memory, and for a layout
# as many for each PE of a wafer.
MOST_STEPS = 1 << 18
MOST_LAYOUT_STEPS = 10_000_000


def located(problem: MeshcError, span: Span) -> MeshcError:
    """The same errors; those without a place are at ``span``."""
    return MeshcError(
        d if d.span is not None else replace(d, span=span) for d in problem.diagnostics
    )


class Core:
    """State of one analysis: a PE program or a layout."""

    def __init__(self, loader: Loader, unit: Unit) -> None:
        self.loader = loader
        self.unit = unit
        self.arch = unit.arch
        self.modules: list[Module] = []
        self.layout: Any = None
        self.steps = 0
        self.mistakes = 0

    # provided by the other parts
    eval: Callable[..., Val]
    call_known: Callable[..., Val]
    instance: Callable[..., ir.Function]
    type_from: Callable[..., Type]

    def known(self, node: t.Expr, frame: Frame, want: Type | None = None) -> Val:
        """The compile-time value of ``node``; an error when it has none."""
        value = self.eval(node, frame.at_comptime(), want)
        if not value.known:
            fail("csl-comptime", "this value must be known at compile time", node.span)
        return value

    def number(self, node: t.Expr, frame: Frame) -> int:
        """The compile-time integer (or id) ``node`` stands for."""
        value = self.known(node, frame)
        return self.as_number(value, node.span)

    def text(self, node: t.Expr, frame: Frame) -> str:
        """The compile-time string ``node`` stands for."""
        value = self.known(node, frame)
        if value.type != ty.STRING:
            fail("csl-type", f"expected a string, found '{value.type}'", node.span)
        text: str = value.v
        return text

    def struct(self, node: t.Expr, frame: Frame) -> dict[Any, Val]:
        """The fields of the anonymous struct ``node`` stands for."""
        value = self.known(node, frame)
        if value.type != ty.STRUCT:
            fail("csl-type", f"expected a struct, found '{value.type}'", node.span)
        fields: dict[Any, Val] = value.v
        return fields

    def as_number(self, value: Val, span: Span) -> int:
        """A known integer or id as a Python int."""
        if not value.known or not isinstance(value.v, int) or isinstance(value.v, bool):
            fail("csl-type", f"expected an integer, found '{value.type}'", span)
        return int(value.v)

    def emit(self, frame: Frame, stmt: ir.Stmt) -> None:
        """Append lowered code; an error where only compile-time code may stand."""
        if frame.known:
            fail("csl-comptime", "this runs on the PE and cannot be run at compile time")
        frame.out.append(stmt)
        self.unit.statements += 1

    def place_of(self, node: t.Node) -> str:
        """``file:line`` for messages at run time."""
        return f"{node.span.source.name}:{node.span.line}"

    def code(self, value: Val, name: str = "const") -> ir.Expr:
        """``value`` as lowered code; known aggregates are placed in memory."""
        if not value.known:
            if isinstance(value.v, list):
                fail_internal = "an array with run-time elements needs a variable"
                fail("csl-type", fail_internal)
            result: ir.Expr = value.v
            return result
        if isinstance(value.v, FnVal):
            return self.fn_code(value.v, value.type)
        if isinstance(value.type, Array | Struct):
            if value.home is not None:
                return ir.Const(ty.U16, self.home_symbol(value).addr)
            return ir.Const(ty.U16, self.memory(name, value.type, value.v).addr)
        if value.v is not None and not isinstance(value.v, int | float | Dsd):
            fail("csl-type", f"a value of type '{value.type}' is none of the running program")
        return ir.Const(value.type, value.v)

    def home_symbol(self, value: Val) -> Any:
        """The memory of a constant array or struct, placed at first need."""
        home = value.home
        assert home is not None
        if home.symbol is None:
            home.symbol = self.memory(home.decl.name, value.type, value.v)
        return home.symbol

    def memory(self, name: str, kind: Type, init: Any, align: int = 0) -> Any:
        """Memory with known contents; functions among them become the names of their code."""
        return self.unit.place(name, kind, self._with_names(kind, init), align)

    def _with_names(self, kind: Type, init: Any) -> Any:
        if isinstance(init, FnVal):
            function = self.instance(init, (), init.decl.span)
            self.unit.functions.setdefault(function.name, function)
            return function.name
        if isinstance(kind, Array) and not isinstance(kind.element, Float | Int):
            return [self._with_names(kind.element, v) for v in init]
        if isinstance(kind, Struct):
            return {
                name: Val(v.type, self._with_names(v.type, v.v), v.known)
                for name, v in init.items()
            }
        return init

    def fn_code(self, fn: FnVal, kind: Type) -> ir.Expr:
        """A function used as a run-time value."""
        if fn.decl.task:
            return ir.TaskId(ty.LOCAL_TASK, fn)
        function = self.instance(fn, (), fn.decl.span)
        self.unit.functions.setdefault(function.name, function)
        return ir.FnAddr(kind, function.name)

    def fn_type(self, fn: FnVal) -> Fn:
        """The type of a function without comptime parameters."""
        frame = Frame(fn.module, True)
        params = tuple(
            ty.ANYTYPE if p.type is None else self.type_from(p.type, frame) for p in fn.decl.params
        )
        return Fn(params, self.type_from(fn.decl.result, frame), fn.decl.task)

    @property
    def most_steps(self) -> int:
        """The iterations and calls that may be made at compile time."""
        return MOST_STEPS if self.layout is None else MOST_LAYOUT_STEPS

    @property
    def exhausted(self) -> bool:
        """Whether they are used up."""
        return self.steps > self.most_steps

    def tick(self, span: Span) -> None:
        """Count an iteration or call at compile time; endless ones end in an error."""
        self.steps += 1
        if self.exhausted:
            fail(
                "csl-comptime",
                f"compile-time code takes more than {self.most_steps:,} iterations and calls: it "
                "runs too long, or without end",
                span,
                help="check the condition and the step of the loop, or do the work at run time",
            )
