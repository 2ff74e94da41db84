"""What the kernels of a program share: functions, registers, variables and scratch memory.

A function with the same text is emitted once, and scratch is as large as the largest kernel needs.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from meshc.analysis.csl.blocks import Stretch
from meshc.analysis.csl.codes import CODES
from meshc.analysis.csl.held import Place, places
from meshc.analysis.csl.memory import WIDENED, scratch_type, stored_bytes
from meshc.analysis.csl.strided_windows import Dim, Window, dense, first_part
from meshc.analysis.csl.vector_steps import Steps
from meshc.backends.csl.kernels.registers import Registers, loaded
from meshc.backends.csl.spelling.expressions import HELPERS, expression
from meshc.backends.csl.spelling.memory_dsds import Descriptors, builtin, stored
from meshc.backends.csl.spelling.names import Names
from meshc.backends.csl.spelling.variables import ALIGNMENT, Kind, Variable
from meshc.backends.csl.tree import syntax_tree as csl
from meshc.ir.affine import Expr
from meshc.ir.ops.tile import Compute
from meshc.ir.types import BufferType, DType
from meshc.ir.values import Value

Writer = Callable[[Compute, list[Window]], list[csl.Statement]]
"""Writes a kernel on windows of memory."""


class SharedCode:
    """Gathers ``functions``, which are also ``named``, and ``registers``, the elements of
    ``scratch`` by type, those of operands that are ``widened`` to f32, and the ``words`` for codes
    of weights."""

    def __init__(self, names: Names, descriptors: Descriptors) -> None:
        self.names = names
        self.descriptors = descriptors
        self.functions: list[csl.Statement] = []
        self.named: dict[str, csl.Function] = {**HELPERS}
        self.registers = Registers(names)
        self.variables: list[Variable] = []
        self.scratch: dict[DType, int] = {}
        self.widened = 0
        self.words = 0
        self.tables: list[Variable] = []
        self._known: dict[tuple[object, ...], str] = {}

    def move(self, to: Window, source: Window) -> csl.Do:
        """An operation that copies ``source`` to ``to``, converting its elements."""
        copied = builtin("fmov", to.dtype)
        if to.dtype.half != source.dtype.half:
            copied = "@fs2h" if to.dtype.half else "@fh2s"
        return csl.do(copied, self.descriptors.memory(to), self.descriptors.memory(source))

    def copied(self, to: Window, source: Window) -> list[csl.Statement]:
        """Statements that copy ``source`` to ``to``, converting its elements."""
        return self.parts((to, source), lambda part: [self.move(*part)])

    def set(self, to: Window, value: float) -> list[csl.Statement]:
        """Statements that set all elements of ``to``."""
        return self.operations("fmov", (to,), literal(value, to.dtype))

    def operations(
        self, operation: str, windows: Sequence[Window], *numbers: csl.Operand
    ) -> list[csl.Statement]:
        """The vector ``operation`` on windows, the result first, and ``numbers``, in loops where no
        DSD walks through them."""
        return self.parts(windows, lambda part: [self.operation(operation, part, *numbers)])

    def operation(self, operation: str, windows: Sequence[Window], *numbers: csl.Operand) -> csl.Do:
        """The same where DSDs walk through the windows."""
        memory = map(self.descriptors.memory, windows)
        return csl.do(builtin(operation, windows[0].dtype), *memory, *numbers)

    def parts(
        self, windows: Sequence[Window], write: Callable[[Sequence[Window]], csl.Statements]
    ) -> list[csl.Statement]:
        """``write`` for parts of windows of one shape through which DSDs can walk: for all at once,
        or in loops over their first dims."""
        loops, part = first_part(windows)
        found = write(part)
        for variable, dim in reversed(loops):
            found = self.over(variable, dim, found)
        return [*found]

    def over(
        self, variable: str, dim: Dim, body: csl.Statements, passes: int | None = None
    ) -> list[csl.Statement]:
        """``body`` in a loop over ``dim``, whose ``passes`` count where there is room for no more
        (default: its extent)."""
        if dim.count is None:
            return repeat(variable, dim.extent, body)
        count = expression(dim.count, self.descriptors.spell)
        return [csl.loop(variable, count, body, dim.extent if passes is None else passes)]

    def over_stretch(self, stretch: Stretch, body: csl.Statements) -> list[csl.Statement]:
        """``body`` as often as ``stretch`` has it."""
        if stretch.loop is None:
            return [*body]
        return self.over(stretch.variable, stretch.loop, body, stretch.times)

    def function(
        self, verb: str, about: Window, params: Iterable[str], body: csl.Statements
    ) -> str:
        """The name of a function that does this."""
        key = (*params, *body)
        if key not in self._known:
            name = self._known[key] = self.names.fresh(f"{verb}_{about.buffer.name}")
            self._declare(csl.function(name, params, body))
        return self._known[key]

    def value_function(self, name: str, kind: str, value: csl.Expression) -> str:
        """The name of a function of one element ``value``, for ``@map``."""
        key = (name, kind, value)
        if key not in self._known:
            found = self._known[key] = self.names.fresh(f"{name}_{kind}")
            body = [csl.returned(value)]
            self._declare(csl.function(found, [f"value: {kind}"], body, kind))
        return self._known[key]

    def variable(self, name: str, dtype: DType) -> None:
        """Declare a variable that functions share."""
        declared = csl.var(name, dtype, 0.0)
        found = Variable("variable", dtype.bytes, declared, "rows")
        if found not in self.variables:
            self.variables.append(found)
            self.functions.append(declared)

    def table(self, name: str, size: int, dtype: DType) -> str:
        """The name of an array that functions fill and read, called like ``name``."""
        chosen = self.names.fresh(name)
        found = array("table", self.names.of("buffer", chosen), dtype, size)
        self.tables.append(replace(found, use="angles"))
        return chosen

    def helper(self, function: csl.Function) -> None:
        """Declare a function that others call."""
        if function.name not in self.named:
            self._declare(function)

    def _declare(self, function: csl.Function) -> None:
        self.functions.append(function)
        self.named[function.name] = function

    def widened_window(self, source: Window, first: int) -> Window:
        """f32 memory for the elements of ``source``, one behind the other, from element ``first``
        of what is kept for operands in another type."""
        self.widened = max(self.widened, first + source.size)
        buffer = Value(WIDENED, BufferType(DType.F32, (self.widened,)))
        return Window(buffer, DType.F32, Expr.const(first), dense(source.dims))

    def in_one_type(
        self,
        given: Sequence[Window],
        copied: Sequence[bool],
        write: Callable[[list[Window]], csl.Statements],
    ) -> list[csl.Statement]:
        """``write`` for operands of which those that are ``copied`` lie in f32 memory of their own;
        the first is the result."""
        windows = self.widened_windows(given, copied)
        to, *sources = zip(windows, given, strict=True)
        before = [line for w, g in sources if w is not g for line in self.copied(w, g)]
        after = self.copied(*to[::-1]) if to[0] is not to[1] else []
        return [*before, *write(windows), *after]

    def widened_windows(self, given: Sequence[Window], copied: Sequence[bool]) -> list[Window]:
        """Operands, those that are ``copied`` as f32 memory of their own."""
        found, first = list[Window](), 0
        for one, yes in zip(given, copied, strict=True):
            found.append(self.widened_window(one, first) if yes else one)
            first += one.size if yes else 0
        return found

    def scratch_window(self, dtype: DType, size: int, first: int = 0, count: int = 0) -> Window:
        """``count`` elements of scratch (0: all) from ``first`` on; it holds at least ``size``."""
        self.scratch[dtype] = max(self.scratch.get(dtype, 0), size)
        buffer = Value(f"scratch_{dtype}", BufferType(dtype, (size,)))
        return Window(buffer, dtype, Expr.const(first), (Dim(count or size, 1),))

    def reserve(self, scratch: Mapping[str, int]) -> None:
        """Have so many elements of scratch by name: of words for codes and of f32."""
        self.words = max(self.words, scratch.get(CODES, 0))
        if str(DType.F32) in scratch:
            self.scratch_window(DType.F32, scratch[str(DType.F32)])

    def steps(self, steps: Steps) -> list[csl.Statement]:
        """The statements of vector operations on scratch, and before them of the registers that
        hold their operands."""
        self.scratch_window(steps.dtype, steps.words)
        names = {
            place: self.registers.held(place.file, number)
            for place, (number, _) in steps.held.items()
        }

        def spelled(operand: Window | float | str, place: Place | None) -> csl.Operand:
            if place in names:
                return names[place]
            return self.descriptors.memory(operand) if isinstance(operand, Window) else operand

        loads: list[csl.Statement] = [
            loaded(names[place], self.descriptors.memory(window))
            for place, (_, window) in steps.held.items()
        ]
        return loads + [
            csl.do(one[0], *map(spelled, one[1], places(one))) for one in steps.operations
        ]

    def needed(self) -> dict[str, int]:
        """Elements of scratch that the kernels written so far take, by name."""
        found = {str(dtype): size for dtype, size in self.scratch.items()}
        found |= {CODES: self.words} if self.words else {}
        return {**found, WIDENED: self.widened} if self.widened else found

    def shared_variables(self, scratch: Mapping[str, int]) -> list[Variable]:
        """Variables for ``scratch``, so many elements by name, and for the tables of the kernels
        written so far."""
        found = [
            array("scratch", self._scratch_name(name), scratch_type(name), size)
            for name, size in scratch.items()
        ]
        return [*found, *self.tables]

    def _scratch_name(self, name: str) -> str:
        return self.names.of("buffer", name if name == WIDENED else f"scratch_{name}")


def repeat(variable: str, count: int | csl.Expression, body: csl.Statements) -> list[csl.Statement]:
    """``body`` in a loop of ``count`` steps; without one where there is a single step."""
    return [*body] if count == 1 else [csl.loop(variable, count, body)]


def array(kind: Kind, name: str, dtype: DType, size: int, remark: str = "") -> Variable:
    """An aligned array of ``size`` elements, all of them zero."""
    held = f"[{size}]{stored(dtype)}"
    declared = csl.Declare(
        "var", name, csl.call("@zeros", csl.Literal(held)), f"{held} align({ALIGNMENT})", remark
    )
    return Variable(kind, stored_bytes(dtype) * size, declared)


def literal(value: float, dtype: DType) -> csl.Expression:
    """``value`` as a constant of ``dtype``, infinities and overflow by their bits."""
    bits, largest = _bits(value, dtype)
    if bits & largest != largest:
        return csl.as_expression(value)
    return csl.call("@bitcast", str(dtype), csl.bits(f"u{8 * dtype.bytes}", bits))


def _bits(value: float, dtype: DType) -> tuple[int, int]:
    """The bit pattern of ``value`` in ``dtype``, those beyond it as infinities, and the exponent of
    infinities and of what is no number."""
    code, width, exponent = ("<e", "<H", 0x7C00) if dtype == DType.F16 else ("<f", "<I", 0x7F800000)
    try:
        exact = struct.pack(code, value)
    except OverflowError:
        exact = struct.pack(code, math.copysign(math.inf, value))
    (bits,) = struct.unpack(width, exact)
    if dtype != DType.BF16:
        return bits, exponent
    nearest = bits if math.isnan(value) else bits + 0x7FFF + (bits >> 16 & 1)
    return nearest >> 16, exponent >> 16
