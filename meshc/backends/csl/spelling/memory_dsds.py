"""Memory DSDs: constants of the emitted file, and their run-time offsets where starts vary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from meshc.analysis.csl.strided_windows import MOST_DIMS, OWN, Window, has_one_dim
from meshc.analysis.csl.words import TABLE_BYTES
from meshc.backends.csl.spelling.expressions import Spelling, expression
from meshc.backends.csl.spelling.names import LONGEST, Names
from meshc.backends.csl.spelling.variables import Variable
from meshc.backends.csl.tree import syntax_tree as csl
from meshc.ir.affine import Expr
from meshc.ir.types import BufferType, DType
from meshc.support.diagnostics import fail

ELEMENTS = (DType.F16, DType.BF16, DType.F32)
_WORD = "u16"
"""The CSL type of a word of codes."""
_VARIABLES = "ijkl"


class Descriptors:
    """Hoists each distinct DSD to a constant ``NAME``, and numbers of a buffer to constants called
    after it; ``constants`` are they in order of use, ``tables`` the constant arrays among them."""

    def __init__(
        self,
        names: Names,
        spell: Spelling,
        shifts: Mapping[str, int],
        homes: Mapping[str, str] | None = None,
    ) -> None:
        """``shifts`` are the elements by which a buffer begins later in the array that holds it,
        ``homes`` the arrays of those that share one."""
        self.names = names
        self.spell = _with_own(spell)
        self.shifts = shifts
        self.homes = homes or {}
        self.constants: list[csl.Declare] = []
        self.windows: dict[csl.Expression, Window] = {}
        self.starts: dict[csl.Expression, Expr] = {}
        self.numbers: dict[str, int] = {}
        self.tables: list[Variable] = []
        self._known: dict[csl.Expression, str] = {}
        self._numbers: dict[tuple[str, str, int], str] = {}

    def memory(self, window: Window, hint: str = "") -> csl.Expression:
        """A DSD of ``window``. Raises ``csl-view`` beyond four dims, and for what a DSD does not
        walk through."""
        flat = window.merged()
        if not window.walked:
            fail("csl-view", f"the extents of a view of %{window.buffer.name} are not constant")
        fixed, moving = split(flat.start)
        array, shift = self.place(window.buffer.name)
        buffer = self.names.of("buffer", window.buffer.name)
        found: csl.Expression = self.constant(
            access(flat, array, fixed + shift), hint or _hint(flat, buffer, fixed)
        )
        if moving is not None:
            by = self.at(window.buffer.name, moving)
            found = moved(found, by, window.dtype)
        if not flat.constant:
            found = resized(found, expression(flat.dims[0].steps, self.spell), flat.dims[0].extent)
        self.windows[found] = flat
        return found

    def at(self, buffer: str, place: Expr) -> csl.Expression:
        """The number of an element of a buffer, with names for the strides of variables."""
        return expression(place, replace(self.spell, stride=partial(self._stride, buffer)))

    def cell(self, window: Window) -> csl.Element:
        """The element at which ``window`` begins."""
        array, shift = self.place(window.buffer.name)
        found = csl.Element(array, self.at(window.buffer.name, window.start + shift))
        self.starts[csl.address(found)] = window.start
        return found

    def place(self, buffer: str) -> tuple[str, int]:
        """The array that holds a buffer, and the element at which it begins there."""
        own_name = self.names.of("buffer", buffer)
        return self.homes.get(buffer, own_name), self.shifts.get(buffer, 0)

    def constant(self, value: csl.Expression, hint: str) -> csl.Name:
        """The name of the constant with this value."""
        if value not in self._known:
            self._known[value] = self.names.fresh(hint)
            self.constants.append(csl.const(self._known[value], value))
        return csl.Name(self._known[value])

    def table(self, value: csl.Expression, words: int, hint: str) -> csl.Name:
        """The constant array of so many words of 32 bits with this value."""
        if value not in self._known:
            self.tables.append(Variable("table", TABLE_BYTES * words, use="turns"))
        return self.constant(value, hint)

    def number(self, buffer: str, what: str, value: int) -> str:
        """The constant ``BUFFER_WHAT`` of a buffer."""
        key = (buffer, what, value)
        if key not in self._numbers:
            begin = self.names.of("buffer", buffer)[: LONGEST - 1 - len(what)]
            self._numbers[key] = self.names.fresh(f"{begin}_{what}")
            self.numbers[self._numbers[key]] = value
            self.constants.append(csl.const(self._numbers[key], value))
        return self._numbers[key]

    def _stride(self, buffer: str, variable: str, elements: int) -> str:
        """The constant that says how many elements of a buffer a step of ``variable`` is."""
        return self.number(buffer, f"per_{variable}", elements)


def _with_own(spell: Spelling) -> Spelling:
    """``spell``, and names of functions' own variables as they are."""

    def either(name: str) -> str | csl.Expression:
        return name.removeprefix(OWN) if name.startswith(OWN) else spell(name)

    return replace(spell, name=either)


def _hint(window: Window, buffer: str, start: int) -> str:
    """A name that says which part of a buffer it is."""
    kind = window.buffer.type
    whole = isinstance(kind, BufferType) and kind.bytes == window.size * kind.dtype.bytes
    whole = whole and not window.buffer.name.startswith("scratch")  # shared, as large as needed
    name = f"{buffer}_all" if whole else f"{buffer}_{'_'.join(map(str, window.shape))}"
    return f"{name}_from_{start}" if start else name


def split(start: Expr) -> tuple[int, Expr | None]:
    """The constant part of a start, and what is left if it varies."""
    if start.is_const:
        return start.constant, None
    return start.constant, start - start.constant


def access(window: Window, buffer: str, start: int) -> csl.Expression:
    """``@get_dsd`` of a memory window that starts at element ``start``.

    Strides beyond eight bits take the form for several dims, also where there is one.
    """
    if len(window.dims) > MOST_DIMS:
        fail(
            "csl-view",
            f"a view of %{window.buffer.name} walks through {len(window.dims)} dims, but a DSD "
            f"has {MOST_DIMS}",
        )
    variables = tuple(_VARIABLES[: len(window.dims)])
    terms: list[csl.Expression] = [
        csl.Name(name) if dim.stride == 1 else dim.stride * csl.Name(name)
        for name, dim in zip(variables, window.dims, strict=True)
        if dim.stride
    ]
    if start or not terms:
        terms.append(csl.as_expression(start))
    extents = tuple(dim.extent for dim in window.dims)
    walked = csl.Walked(variables, extents, csl.Element(buffer, csl.joined("+", terms)))
    kind = "mem1d_dsd" if has_one_dim(window) else "mem4d_dsd"
    return csl.call("@get_dsd", kind, csl.record(tensor_access=walked))


def moved(descriptor: csl.Expression, by: csl.Operand, dtype: DType) -> csl.Expression:
    """``descriptor`` so many elements further on."""
    return csl.call("@increment_dsd_offset", descriptor, by, element(dtype))


def resized(descriptor: csl.Expression, length: csl.Operand, most: int) -> csl.Call:
    """``descriptor`` with so many elements, of which ``most`` count where cycles are predicted."""
    return csl.Call("@set_dsd_length", (descriptor, csl.cast("u16", length)), most)


def element(dtype: DType) -> str:
    """The CSL type of an element that vector operations take, of codes that of the words that hold
    them. Raises ``csl-dtype`` for what has none."""
    if dtype.coded:
        return _WORD
    if dtype not in ELEMENTS:
        fail(
            "csl-dtype",
            f"elements of type {dtype} cannot be emitted as CSL",
            help="use f16, bf16 or f32",
        )
    return str(dtype)


def builtin(operation: str, dtype: DType) -> str:
    """The builtin that does ``operation``, such as ``fadd``, on elements of ``dtype``: CSL has one
    for floats of 16 bits, whichever their format, and one for those of 32. Raises ``csl-dtype``."""
    return f"@{operation}{'s' if element(dtype) == 'f32' else 'h'}"


def stored(dtype: DType) -> str:
    """The CSL type of an element of an array. Raises ``csl-dtype`` for what has none."""
    return str(dtype) if dtype == DType.I32 else element(dtype)
