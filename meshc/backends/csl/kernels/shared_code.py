"""What the kernels of a program share: functions, registers, variables and scratch memory.

A function with the same text is emitted once, and scratch is as large as the largest kernel needs.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from meshc.analysis.csl.codes import CODES
from meshc.analysis.csl.held import Operand, Place, places
from meshc.analysis.csl.memory import WIDENED, scratch_type, stored_bytes
from meshc.analysis.csl.vector_steps import Steps
from meshc.analysis.csl.windows import Dim, Window, dense, first_part
from meshc.backends.csl.kernels.registers import Registers
from meshc.backends.csl.spelling.descriptors import Descriptors, builtin, stored
from meshc.backends.csl.spelling.expressions import expression
from meshc.backends.csl.spelling.names import Names
from meshc.backends.csl.spelling.storage import ALIGNMENT, Kind, Variable
from meshc.ir.affine import Expr
from meshc.ir.types import BufferType, DType
from meshc.ir.values import Value

PAD = "    "


class SharedCode:
    """Gathers the text of ``functions`` and ``registers``, the elements of ``scratch`` by type,
    those of operands that are ``widened`` to f32, and the ``words`` for codes of weights."""

    def __init__(self, names: Names, descriptors: Descriptors) -> None:
        self.names = names
        self.descriptors = descriptors
        self.functions: list[str] = []
        self.registers = Registers(names)
        self.variables: list[Variable] = []
        self.uses_math = False
        self.scratch: dict[DType, int] = {}
        self.widened = 0
        self.words = 0
        self.tables: list[Variable] = []
        self._known: dict[tuple[str, ...], str] = {}

    def move(self, to: Window, source: Window) -> str:
        """An operation that copies ``source`` to ``to``, converting its elements."""
        copied = builtin("fmov", to.dtype)
        if to.dtype.half != source.dtype.half:
            copied = "@fs2h" if to.dtype.half else "@fh2s"
        return f"{copied}({self.descriptors.memory(to)}, {self.descriptors.memory(source)})"

    def copied(self, to: Window, source: Window) -> list[str]:
        """Statements that copy ``source`` to ``to``, converting its elements."""
        return self.parts((to, source), lambda part: [self.move(*part) + ";"])

    def set(self, to: Window, value: float) -> list[str]:
        """Statements that set all elements of ``to``."""
        number, move = literal(value, to.dtype), builtin("fmov", to.dtype)
        memory = self.descriptors.memory
        return self.parts((to,), lambda part: [f"{move}({memory(part[0])}, {number});"])

    def parts(
        self, windows: Sequence[Window], write: Callable[[Sequence[Window]], list[str]]
    ) -> list[str]:
        """``write`` for parts of windows of one shape through which DSDs can walk: for all at once,
        or in loops over their first dims."""
        loops, part = first_part(windows)
        lines = write(part)
        for variable, dim in reversed(loops):
            lines = self.over(variable, dim, lines)
        return lines

    def over(self, variable: str, dim: Dim, body: list[str]) -> list[str]:
        """``body`` in a loop over ``dim``."""
        if dim.count is None:
            return repeat(variable, dim.extent, body)
        return repeat(variable, expression(dim.count, self.descriptors.spell), body)

    def function(self, verb: str, about: Window, params: list[str], body: list[str]) -> str:
        """The name of a function with this text."""
        key = (*params, *body)
        if key not in self._known:
            name = self.names.fresh(f"{verb}_{about.buffer.name}")
            self._known[key] = name
            head = f"fn {name}({', '.join(params)}) void {{"
            self.functions += ["", head, *(PAD + line for line in body), "}"]
        return self._known[key]

    def value_function(self, name: str, kind: str, text: str) -> str:
        """The name of a function of one element ``value``, for ``@map``."""
        key = (name, kind, text)
        if key not in self._known:
            self._known[key] = self.names.fresh(f"{name}_{kind}")
            head = f"fn {self._known[key]}(value: {kind}) {kind} {{"
            self.functions += ["", head, f"{PAD}return {text};", "}"]
        return self._known[key]

    def variable(self, name: str, dtype: DType) -> None:
        """Declare a variable that functions share."""
        found = Variable("variable", dtype.bytes, f"var {name}: {dtype} = 0.0;", "rows")
        if found not in self.variables:
            self.variables.append(found)
            self.functions += ["", found.line]

    def table(self, name: str, size: int, dtype: DType) -> str:
        """The name of an array that functions fill and read, called like ``name``."""
        chosen = self.names.fresh(name)
        found = array("table", self.names.of("buffer", chosen), dtype, size)
        self.tables.append(replace(found, use="angles"))
        return chosen

    def helper(self, lines: list[str]) -> None:
        """Declare a function that others call."""
        if tuple(lines) not in self._known:
            self._known[tuple(lines)] = ""
            self.functions += ["", *lines]

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
        write: Callable[[list[Window]], list[str]],
    ) -> list[str]:
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

    def steps(self, steps: Steps) -> list[str]:
        """The statements of vector operations on scratch, and before them of the registers that
        hold their operands."""
        self.scratch_window(steps.dtype, steps.words)
        names = {
            place: self.registers.held(place.file, number)
            for place, (number, _) in steps.held.items()
        }

        def spelled(operand: Operand, place: Place | None) -> str:
            if place in names:
                return names[place]
            if isinstance(operand, Window):
                return self.descriptors.memory(operand)
            return operand if isinstance(operand, str) else repr(operand)

        loads = [
            f"@load_to_dsr({names[place]}, {self.descriptors.memory(window)});"
            for place, (_, window) in steps.held.items()
        ]
        return loads + [
            f"{one[0]}({', '.join(map(spelled, one[1], places(one)))});" for one in steps.operations
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


def repeat(variable: str, count: int | str, body: list[str]) -> list[str]:
    """``body`` in a loop of ``count`` steps; without one where there is a single step."""
    if count == 1:
        return body
    return [f"for (@range(i16, {count})) |{variable}| {{", *(PAD + line for line in body), "}"]


def array(kind: Kind, name: str, dtype: DType, size: int, remark: str = "") -> Variable:
    """An aligned array of ``size`` elements, all of them zero."""
    text = f"[{size}]{stored(dtype)}"
    line = f"var {name}: {text} align({ALIGNMENT}) = @zeros({text});{remark}"
    return Variable(kind, stored_bytes(dtype) * size, line)


def literal(value: float, dtype: DType) -> str:
    """``value`` as a constant of ``dtype``, infinities and overflow by their bits."""
    bits, largest = _bits(value, dtype)
    if bits & largest != largest:
        return repr(value)
    return f"@bitcast({dtype}, @as(u{8 * dtype.bytes}, 0x{bits:x}))"


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
