"""Kernels that go row by row: sums and maxima, scaling by rows, functions of elements.

A *row* is the trailing dims that a smaller operand lacks; there is one value of the smaller operand
per row. Sums run in the order of the elements, as the device's reductions do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from meshc.analysis.csl.across import lane_of
from meshc.analysis.csl.blocks import Blocks, Piece, blocks_of, in_blocks, pieces
from meshc.analysis.csl.element_costs import softmaxes
from meshc.analysis.csl.function_steps import function_steps
from meshc.analysis.csl.held import CHANGED
from meshc.analysis.csl.instruction_costs import Costs
from meshc.analysis.csl.operands import one_by_one
from meshc.analysis.csl.strided_windows import Dim, Window, dense, own
from meshc.analysis.csl.ways import ACROSS, NEWTON, block_of, goes_over
from meshc.backends.csl.kernels.elementwise import same_type
from meshc.backends.csl.kernels.registers import loaded
from meshc.backends.csl.kernels.shared_code import SharedCode, Writer, literal
from meshc.backends.csl.spelling.expressions import expression
from meshc.backends.csl.spelling.memory_dsds import builtin
from meshc.backends.csl.tree import syntax_tree as csl
from meshc.ir.brought_functions import BROUGHT, CSL_MATH
from meshc.ir.ops.tile import Compute
from meshc.ir.types import DType
from meshc.support.diagnostics import fail

_VARIABLES = "ijkl"

Formula = Callable[[csl.Expression], csl.Expression]
"""A function of one element of f32."""
_VALUE, _FIRST, _SECOND, _HALF = map(csl.Name, ("value", "first", "second", "half"))
_SIZE, _NEAR, _HIGH, _TAIL, _FOUND = map(csl.Name, ("size", "near", "high", "tail", "found"))
_BITS = csl.call("@bitcast", "u32", _VALUE)
_RECIPROCAL = csl.function(
    "reciprocal",
    ["value: f32"],
    [
        csl.const("first", csl.call("@bitcast", "f32", csl.bits("u32", 0x7EF311C7) - _BITS)),
        csl.const("second", _FIRST * (2.0 - _VALUE * _FIRST)),
        csl.returned(_SECOND * (2.0 - _VALUE * _SECOND)),
    ],
    "f32",
    "1 / value for sizes from 2^-126 to 2^126: a first guess that is right to 5.1e-2, as its bits "
    "are those of the value from a constant, and two of Newton's steps, 6.7e-6.",
)
_ROOT_BITS = csl.bits("u32", 0x5F3759DF) - csl.infix(_BITS, ">>", 1)
_INVERSE_ROOT = csl.function(
    "inverse_root",
    ["value: f32"],
    [
        csl.const("half", 0.5 * _VALUE),
        csl.const("first", csl.call("@bitcast", "f32", _ROOT_BITS)),
        csl.const("second", _FIRST * (1.5 - _HALF * _FIRST * _FIRST)),
        csl.returned(_SECOND * (1.5 - _HALF * _SECOND * _SECOND)),
    ],
    "f32",
    "1 / sqrt(value) in the same way, its first guess right to 3.5e-2, and 4.8e-6 in the end.",
)
_BELOW_ZERO = csl.infix(_VALUE, "<", 0.0)
_ERF = csl.function(
    "erf",
    ["value: f32"],
    [
        csl.const("size", csl.either(_BELOW_ZERO, -_VALUE, _VALUE)),
        csl.const("near", 1.0 / (1.0 + 0.3275911 * _SIZE)),
        csl.const("high", ((1.061405429 * _NEAR - 1.453152027) * _NEAR + 1.421413741) * _NEAR),
        csl.const("tail", ((_HIGH - 0.284496736) * _NEAR + 0.254829592) * _NEAR),
        csl.const("found", 1.0 - _TAIL * csl.call("math.exp_f32", -_SIZE * _SIZE)),
        csl.returned(csl.either(_BELOW_ZERO, -_FOUND, _FOUND)),
    ],
    "f32",
    "The error function, right to 1.5e-7 (Abramowitz and Stegun, 7.1.26).",
)

Row = tuple[Window, ...]


class Rows:
    """Writers of kernels by rows, with the functions and scratch of ``code``."""

    def __init__(self, code: SharedCode, costs: Costs) -> None:
        self.code = code
        self.costs = costs
        self.writers: dict[str, Writer] = {
            "row_sum": self._row_sum,
            "row_max": self._row_max,
            "square_sum": self._square_sum,
            "div": self._div,
            "exp_sub": self._exp_sub,
            "exp": self._exp,
            "merge_softmax": self._merge_softmax,
            "rms_scale": self._rms_scale,
            "inverse_rms": self._inverse_rms,
            "silu": self._silu,
            "gelu": self._gelu,
            "tanh": self._tanh,
            "sigmoid": self._sigmoid,
            "quick_gelu": self._quick_gelu,
            **{name: self._brought for name, one in BROUGHT.items() if one.csl is not None},
        }

    def _by_steps(self, op: Compute, windows: list[Window], each: Writer) -> list[csl.Statement]:
        """The vector operations that ``op`` says, in a function where it may lie outside of loops;
        without a way, and for what no block holds, ``each`` element one by one."""
        if not op.way:
            return each(op, windows)
        block = block_of(op)
        if block and blocks_of(windows[0].dims):
            return self._in_blocks(op, in_blocks(windows, block, goes_over(op)), each)
        body: list[csl.Statement] = []
        for part in pieces(windows, block) if block else [Piece(windows, 1, None)]:
            steps = function_steps(op, part.windows, self.costs)
            assert steps is not None
            one = self.code.steps(steps)
            body += self.code.over(*part.loop, one) if part.loop else one
        if not all(window.start.is_const for window in windows):
            return body
        return [csl.do(self.code.function(op.kernel, windows[0], [], body))]

    def _in_blocks(self, op: Compute, cut: Blocks, each: Writer) -> list[csl.Statement]:
        """Vector operations on whole blocks, then ``each`` element that is left one by one."""
        steps = function_steps(op, cut.whole, self.costs)
        assert steps is not None
        body = self.code.steps(steps)
        for loop in reversed(cut.loops):
            assert loop.loop is not None
            body = self.code.over(loop.variable, loop.loop, body)
        for rest in cut.rests:
            counts = (expression(count, self.code.descriptors.spell) for count in rest.counts)
            left = self.code.in_one_type(
                rest.windows, one_by_one(op, rest.windows), lambda windows: each(op, windows)
            )
            body.append(
                csl.when(csl.joined("and", [csl.infix(count, ">", 0) for count in counts]), left)
            )
        return body

    # --- reductions

    def _row_sum(self, op: Compute, windows: list[Window]) -> list[csl.Statement]:
        to, source = windows
        if op.way == ACROSS:
            add = builtin("fadd", to.dtype) if to.dtype == source.dtype else "@faddhs"
            return self._across(op, add, 0.0, to, source)
        return self._reduced(op, to, source, "fadd", csl.as_expression(0.0))

    def _across(
        self, op: Compute, combine: str, start: float, to: Window, source: Window
    ) -> list[csl.Statement]:
        """``combine`` what begins as ``start`` with the lanes of all rows of ``source``, one after
        the other; a register holds it where ``op`` says so."""
        memory, loads = self.code.descriptors.memory, []
        found: csl.Operand = memory(to)
        if op.dsr:
            register = self.code.registers.held(CHANGED, op.dsr)
            loads, found = [loaded(register, memory(to))], register
        lanes = source.dims[-1]
        at = own("lane") if lanes.extent > 1 else 0
        lane = memory(lane_of(source).moved(at * lanes.stride))
        body = self.code.over("lane", lanes, [csl.do(combine, found, found, lane)])
        return [*loads, *self.code.set(to, start), *body]

    def _row_max(self, op: Compute, windows: list[Window]) -> list[csl.Statement]:
        to, source = windows
        if op.way == ACROSS:
            return self._max_across(op, to, source)
        return self._reduced(op, to, source, "fmax", literal(float("-inf"), to.dtype))

    def _max_across(self, op: Compute, to: Window, source: Window) -> list[csl.Statement]:
        """Maxima in the type of the rows, in scratch where they are wanted in another."""
        most, kind = to, source.dtype
        if to.dtype != kind:
            most = self.code.scratch_window(kind, to.size).inner(dense(to.dims))
        found = self._across(op, builtin("fmax", kind), float("-inf"), most, source)
        return found if most is to else [*found, *self.code.copied(to, most)]

    def _reduced(
        self, op: Compute, to: Window, source: Window, operation: str, start: csl.Expression
    ) -> list[csl.Statement]:
        same_type(op, to, source)
        combined = builtin(operation, to.dtype)

        def write(row: Row) -> list[csl.Statement]:
            total, memory = self.code.descriptors.cell(row[0]), self.code.descriptors.memory
            sums = self.code.parts(
                row[1:], lambda part: [csl.do(combined, csl.address(total), total, memory(part[0]))]
            )
            return [csl.assign(total, start), *sums]

        return self._each(to, (to, source), write)

    def _square_sum(self, op: Compute, windows: list[Window]) -> list[csl.Statement]:
        to, source = windows
        spare = self.code.scratch_window(to.dtype, source.size).inner(dense(source.dims))
        squares = self.code.copied(spare, source) if source.dtype != to.dtype else []
        factor = spare if squares else source
        squared = self.code.operations("fmul", (spare, factor, factor))
        return [*squares, *squared, *self._row_sum(op, [to, spare])]

    # --- scaling

    def _div(self, op: Compute, windows: list[Window]) -> list[csl.Statement]:
        to, left, right = windows
        same_type(op, to, left, right)

        def write(row: Row) -> list[csl.Statement]:
            divisor = self.code.descriptors.cell(row[2])
            inverse: csl.Expression = 1.0 / divisor
            if op.way == NEWTON:
                self.code.helper(_RECIPROCAL)
                inverse = narrow(csl.call("reciprocal", wide(divisor, row[2].dtype)), to.dtype)
            return self.code.operations("fmul", row[:2], inverse)

        return self._each(right, (to, left, right), write)

    def _rms_scale(self, op: Compute, windows: list[Window]) -> list[csl.Statement]:
        to, source, squares, gain = windows
        same_type(op, to, source, gain)
        count, eps = int(str(op.params["count"])), float(op.params["eps"])  # type: ignore[arg-type]

        def write(row: Row) -> list[csl.Statement]:
            total = csl.cast("f32", self.code.descriptors.cell(row[2]))
            scale: csl.Expression = _inverse_root_of_mean(total, count, eps)
            if op.way == NEWTON:
                self.code.helper(_INVERSE_ROOT)
                scale = csl.call("inverse_root", total * float(np.float32(1 / count)) + eps)

            def scaled(part: Sequence[Window]) -> csl.Statements:
                one, other, by = part
                return [
                    self.code.operation("fmul", (one, other), narrow(scale, to.dtype)),
                    self.code.operation("fmul", (one, one, by)),
                ]

            return self.code.parts((*row[:2], gain), scaled)

        return self._each(squares, (to, source, squares), write)

    def _inverse_rms(self, op: Compute, windows: list[Window]) -> list[csl.Statement]:
        to, squares = windows
        same_type(op, to, squares)
        count, eps = int(str(op.params["count"])), float(op.params["eps"])  # type: ignore[arg-type]

        def write(row: Row) -> list[csl.Statement]:
            cell = self.code.descriptors.cell
            value = _inverse_root_of_mean(csl.cast("f32", cell(row[1])), count, eps)
            return [csl.assign(cell(row[0]), narrow(value, to.dtype))]

        return self._each(squares, (to, squares), write)

    # --- functions of elements

    def _exp_sub(self, op: Compute, windows: list[Window]) -> list[csl.Statement]:
        return self._by_steps(op, windows, self._exp_sub_by_rows)

    def _exp_sub_by_rows(self, op: Compute, windows: list[Window]) -> list[csl.Statement]:
        same_type(op, *windows)
        to, source, most = windows
        self.code.variable("most_of_row", to.dtype)
        top = wide(csl.Name("most_of_row"), to.dtype)
        name = self._function("exponential", to.dtype, lambda x: csl.call("math.exp_f32", x - top))

        def write(row: Row) -> list[csl.Statement]:
            most = csl.assign("most_of_row", self.code.descriptors.cell(row[2]))
            return [most, *self._map(name, row[1], row[0])]

        return self._each(most, (to, source, most), write)

    def _exp(self, op: Compute, windows: list[Window]) -> list[csl.Statement]:
        return self._mapped(op, windows, "exp", lambda x: csl.call("math.exp_f32", x))

    def _merge_softmax(self, op: Compute, windows: list[Window]) -> list[csl.Statement]:
        """Both are scaled to the larger of their maxima, softmax by softmax, and added."""
        same_type(op, *windows)
        kind = windows[0].dtype
        self.code.variable("most_of_row", kind)
        count = softmaxes(op)
        mine, theirs = (_softmaxes(window, count) for window in windows)

        def exponential(top: csl.Expression) -> csl.Expression:
            if kind != DType.BF16:
                return csl.call(f"math.exp_{kind}", top - "most_of_row")
            return narrow(csl.call("math.exp_f32", wide(top - "most_of_row", kind)), kind)

        def write(row: Row) -> list[csl.Statement]:
            memory, do_all = self.code.descriptors.memory, self.code.operation
            values, _, _, more, _, high = row
            total, top, other, their_top = (
                self.code.descriptors.cell(row[place]) for place in (1, 2, 4, 5)
            )
            larger = csl.do(
                builtin("fmax", kind), csl.address("most_of_row"), "most_of_row", memory(high)
            )
            return [
                csl.assign("most_of_row", top),
                larger,
                csl.const("kept", exponential(top)),
                csl.const("added", exponential(their_top)),
                do_all("fmul", (values, values), "kept"),
                do_all("fmac", (values, values, more), "added"),
                csl.assign(total, total * "kept" + other * "added"),
                csl.assign(top, "most_of_row"),
            ]

        body = self._each(mine[1], (*mine, *theirs), write)
        return body if count > 1 else [csl.scope(body)]

    def _silu(self, op: Compute, windows: list[Window]) -> list[csl.Statement]:
        return self._by_steps(op, windows, self._silu_of_each)

    def _silu_of_each(self, op: Compute, windows: list[Window]) -> list[csl.Statement]:
        return self._mapped(op, windows, "silu", lambda x: x / _one_and_exp(-x))

    def _gelu(self, op: Compute, windows: list[Window]) -> list[csl.Statement]:
        return self._by_steps(op, windows, self._gelu_of_each)

    def _gelu_of_each(self, op: Compute, windows: list[Window]) -> list[csl.Statement]:
        if op.params["form"] == "tanh":
            return self._mapped(op, windows, "gelu", _gelu_by_tanh)
        self.code.helper(_ERF)
        return self._mapped(
            op,
            windows,
            "gelu_erf",
            lambda x: 0.5 * x * (1.0 + csl.call("erf", 0.7071067812 * x)),
        )

    def _tanh(self, op: Compute, windows: list[Window]) -> list[csl.Statement]:
        return self._mapped(op, windows, "tanh", lambda x: csl.call("math.tanh_f32", x))

    def _sigmoid(self, op: Compute, windows: list[Window]) -> list[csl.Statement]:
        return self._mapped(op, windows, "sigmoid", lambda x: 1.0 / _one_and_exp(-x))

    def _quick_gelu(self, op: Compute, windows: list[Window]) -> list[csl.Statement]:
        return self._mapped(op, windows, "quick_gelu", lambda x: x / _one_and_exp(-1.702 * x))

    def _brought(self, op: Compute, windows: list[Window]) -> list[csl.Statement]:
        """A function of elements of another package."""
        value = BROUGHT[op.kernel].csl
        assert value is not None
        return self._mapped(op, windows, op.kernel, lambda x: value(x, _of_library, **op.params))

    def _mapped(
        self, op: Compute, windows: list[Window], name: str, formula: Formula
    ) -> list[csl.Statement]:
        to, source = windows
        same_type(op, to, source)
        return self._map(self._function(name, to.dtype, formula), source, to)

    def _map(self, name: str, source: Window, to: Window) -> list[csl.Statement]:
        """A function for each element of ``source``."""
        memory = self.code.descriptors.memory
        return self.code.parts(
            (source, to), lambda part: [csl.do("@map", name, *map(memory, part))]
        )

    def _function(self, name: str, dtype: DType, formula: Formula) -> str:
        """The name of a function of one element, computed in f32 whatever its type."""
        found = narrow(formula(wide(csl.Name("value"), dtype)), dtype)
        return self.code.value_function(name, str(dtype), found)

    # --- rows

    def _each(
        self, small: Window, windows: Row, write: Callable[[Row], list[csl.Statement]]
    ) -> list[csl.Statement]:
        """``write`` for each element of ``small`` with that element's row of each window."""
        loops: list[tuple[str, Dim]] = []
        moved, heads = list(windows), len(small.dims)
        if not all(_like(w.dims[:heads], small.dims) for w in windows):
            fail("csl-view", f"rows of %{windows[-1].buffer.name} do not match its smaller operand")
        for place, dim in enumerate(small.dims):
            if dim.extent == 1:
                continue
            name = _VARIABLES[len(loops)]
            loops.append((name, dim))
            strides = [w.dims[place].stride if place < len(w.dims) else 0 for w in windows]
            moved = [w.moved(own(name) * s) for w, s in zip(moved, strides, strict=True)]
        body = write(tuple(w.inner(w.dims[heads:] or (Dim(1, 1),)) for w in moved))
        for name, dim in reversed(loops):
            body = self.code.over(name, dim, body)
        return body


def _softmaxes(window: Window, count: int) -> Row:
    """Values, sums and maxima of ``count`` softmaxes, which lie side by side in the last dim."""
    *lead, last = window.dims
    lanes, step = last.extent // count - 2, last.stride
    rows = (*lead, Dim(count, step))
    values = window.inner((*lead, Dim(count, lanes * step), Dim(lanes, step)))
    sums = window.moved(count * lanes * step).inner(rows)
    return values, sums, sums.moved(count * step)


def wide(value: csl.Expression, dtype: DType) -> csl.Expression:
    """A value of ``dtype`` as f32."""
    return value if dtype == DType.F32 else csl.cast("f32", value)


def narrow(value: csl.Expression, dtype: DType) -> csl.Expression:
    """A value of f32 as one of ``dtype``."""
    return value if dtype == DType.F32 else csl.cast(dtype, value)


def _inverse_root_of_mean(total: csl.Expression, count: int, eps: float) -> csl.Expression:
    return 1.0 / csl.call("math.sqrt_f32", total / float(count) + eps)


def _of_library(name: str, value: csl.Operand) -> csl.Expression:
    """A function of the library of CSL, of f32."""
    if name not in CSL_MATH:
        raise ValueError(f"CSL has {', '.join(CSL_MATH)} for functions of elements, no '{name}'")
    return csl.call(f"math.{name}_f32", value)


def _one_and_exp(power: csl.Expression) -> csl.Expression:
    return 1.0 + csl.call("math.exp_f32", power)


def _gelu_by_tanh(x: csl.Expression) -> csl.Expression:
    inner = 0.7978845608 * (x + 0.044715 * x * x * x)
    return 0.5 * x * (1.0 + csl.call("math.tanh_f32", inner))


def _like(dims: Sequence[Dim], others: Sequence[Dim]) -> bool:
    """Whether extents are equal, as far as they are known when the program is compiled."""
    pairs = zip(dims, others, strict=False)
    known = [(a.extent, b.extent) for a, b in pairs if a.count is None and b.count is None]
    return len(dims) == len(others) and all(a == b for a, b in known)
