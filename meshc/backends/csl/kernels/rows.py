"""Kernels that go row by row: sums and maxima, scaling by rows, functions of elements.

A *row* is the trailing dims that a smaller operand lacks; there is one value of the smaller operand
per row. Sums run in the order of the elements, as the device's reductions do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from meshc.analysis.csl.across import lane_of
from meshc.analysis.csl.blocks import Blocks, Piece, blocks_of, in_blocks, pieces
from meshc.analysis.csl.costs import Costs
from meshc.analysis.csl.element_costs import softmaxes
from meshc.analysis.csl.function_steps import function_steps
from meshc.analysis.csl.operands import one_by_one
from meshc.analysis.csl.vector_ways import vector_cycles
from meshc.analysis.csl.ways import ACROSS, NEWTON, block_of, goes_over
from meshc.analysis.csl.windows import Dim, Window, dense, own
from meshc.backends.csl.kernels.shared_code import PAD, SharedCode, literal
from meshc.backends.csl.spelling.descriptors import builtin
from meshc.backends.csl.spelling.expressions import expression
from meshc.ir.ops.tile import Compute
from meshc.ir.types import DType
from meshc.support.diagnostics import fail

_VARIABLES = "ijkl"
_RECIPROCAL = [
    "// 1 / value for sizes from 2^-126 to 2^126: a first guess that is right to 5.1e-2, as its",
    "// bits are those of the value from a constant, and two of Newton's steps, 6.7e-6.",
    "fn reciprocal(value: f32) f32 {",
    f"{PAD}const first = @bitcast(f32, @as(u32, 0x7ef311c7) - @bitcast(u32, value));",
    f"{PAD}const second = first * (2.0 - value * first);",
    f"{PAD}return second * (2.0 - value * second);",
    "}",
]
_INVERSE_ROOT = [
    "// 1 / sqrt(value) in the same way, its first guess right to 3.5e-2, and 4.8e-6 in the end.",
    "fn inverse_root(value: f32) f32 {",
    f"{PAD}const half = 0.5 * value;",
    f"{PAD}const first = @bitcast(f32, @as(u32, 0x5f3759df) - (@bitcast(u32, value) >> 1));",
    f"{PAD}const second = first * (1.5 - half * first * first);",
    f"{PAD}return second * (1.5 - half * second * second);",
    "}",
]
_ERF = [
    "// The error function, right to 1.5e-7 (Abramowitz and Stegun, 7.1.26).",
    "fn erf(value: f32) f32 {",
    f"{PAD}const size = if (value < 0.0) -value else value;",
    f"{PAD}const near = 1.0 / (1.0 + 0.3275911 * size);",
    f"{PAD}const high = ((1.061405429 * near - 1.453152027) * near + 1.421413741) * near;",
    f"{PAD}const tail = ((high - 0.284496736) * near + 0.254829592) * near;",
    f"{PAD}const found = 1.0 - tail * math.exp_f32(-size * size);",
    f"{PAD}return if (value < 0.0) -found else found;",
    "}",
]

Row = tuple[Window, ...]


class Rows:
    """Writers of kernels by rows, with the functions and scratch of ``code``."""

    def __init__(self, code: SharedCode, costs: Costs) -> None:
        self.code = code
        self.costs = costs
        self.writers: dict[str, Callable[[Compute, list[Window]], list[str]]] = {
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
        }

    def cycles(self, op: Compute, windows: list[Window], costs: Costs) -> int:
        """Predicted cycles of one of these kernels."""
        return vector_cycles(op, windows, costs)

    def _by_steps(
        self,
        op: Compute,
        windows: list[Window],
        each: Callable[[Compute, list[Window]], list[str]],
    ) -> list[str]:
        """The vector operations that ``op`` says, in a function where it may lie outside of loops;
        without a way, and for what no block holds, ``each`` element one by one."""
        if not op.way:
            return each(op, windows)
        block = block_of(op)
        if block and blocks_of(windows[0].dims):
            return self._in_blocks(op, in_blocks(windows, block, goes_over(op)), each)
        lines = []
        for part in pieces(windows, block) if block else [Piece(windows, 1, None)]:
            steps = function_steps(op, part.windows, self.costs)
            assert steps is not None
            one = self.code.steps(steps)
            lines += self.code.over(*part.loop, one) if part.loop else one
        if not all(window.start.is_const for window in windows):
            return lines
        return [f"{self.code.function(op.kernel, windows[0], [], lines)}();"]

    def _in_blocks(
        self, op: Compute, cut: Blocks, each: Callable[[Compute, list[Window]], list[str]]
    ) -> list[str]:
        """Vector operations on whole blocks, then ``each`` element that is left one by one."""
        steps = function_steps(op, cut.whole, self.costs)
        assert steps is not None
        lines = self.code.steps(steps)
        for loop in reversed(cut.loops):
            assert loop.loop is not None
            lines = self.code.over(loop.variable, loop.loop, lines)
        for rest in cut.rests:
            counts = (expression(count, self.code.descriptors.spell) for count in rest.counts)
            lines.append(f"if ({' and '.join(f'{count} > 0' for count in counts)}) {{")
            left = self.code.in_one_type(
                rest.windows, one_by_one(op, rest.windows), lambda windows: each(op, windows)
            )
            lines += [*(PAD + line for line in left), "}"]
        return lines

    # --- reductions

    def _row_sum(self, op: Compute, windows: list[Window]) -> list[str]:
        to, source = windows
        return self._reduced(op, to, source, "fadd", "0.0")

    def _row_max(self, op: Compute, windows: list[Window]) -> list[str]:
        to, source = windows
        if op.way == ACROSS:
            return self._max_across(to, source)
        return self._reduced(op, to, source, "fmax", literal(float("-inf"), to.dtype))

    def _max_across(self, to: Window, source: Window) -> list[str]:
        """A lane of all rows after the other."""
        most, kind = to, source.dtype
        if to.dtype != kind:
            most = self.code.scratch_window(kind, to.size).inner(dense(to.dims))
        lanes, memory = source.dims[-1], self.code.descriptors.memory
        at = own("lane") if lanes.extent > 1 else 0
        lane = lane_of(source).moved(at * lanes.stride)
        larger = f"{builtin('fmax', kind)}({memory(most)}, {memory(most)}, {memory(lane)});"
        lines = [*self.code.set(most, float("-inf")), *self.code.over("lane", lanes, [larger])]
        return lines if most is to else [*lines, *self.code.copied(to, most)]

    def _reduced(
        self, op: Compute, to: Window, source: Window, operation: str, start: str
    ) -> list[str]:
        _same(op, to, source)

        def write(row: Row) -> list[str]:
            total, memory = self._cell(row[0]), self.code.descriptors.memory
            added = f"{builtin(operation, to.dtype)}(&{total}, {total}, {{}});"
            sums = self.code.parts(row[1:], lambda part: [added.format(memory(part[0]))])
            return [f"{total} = {start};", *sums]

        return self._each(to, (to, source), write)

    def _square_sum(self, op: Compute, windows: list[Window]) -> list[str]:
        to, source = windows
        wide = self.code.scratch_window(to.dtype, source.size).inner(dense(source.dims))
        memory = self.code.descriptors.memory
        squares = self.code.copied(wide, source) if source.dtype != to.dtype else []
        factor = wide if squares else source

        def square(part: Sequence[Window]) -> list[str]:
            one, other = map(memory, part)
            return [f"{builtin('fmul', to.dtype)}({one}, {other}, {other});"]

        return [*squares, *self.code.parts((wide, factor), square), *self._row_sum(op, [to, wide])]

    # --- scaling

    def _div(self, op: Compute, windows: list[Window]) -> list[str]:
        to, left, right = windows
        _same(op, to, left, right)

        def write(row: Row) -> list[str]:
            memory = self.code.descriptors.memory
            inverse = f"1.0 / {self._cell(row[2])}"
            if op.way == NEWTON:
                self.code.helper(_RECIPROCAL)
                inverse = f"reciprocal({_wide(self._cell(row[2]), row[2].dtype)})"
                if to.dtype != DType.F32:
                    inverse = f"@as({to.dtype}, {inverse})"
            return self.code.parts(
                row[:2],
                lambda part: [
                    f"{builtin('fmul', to.dtype)}({', '.join(map(memory, part))}, {inverse});"
                ],
            )

        return self._each(right, (to, left, right), write)

    def _rms_scale(self, op: Compute, windows: list[Window]) -> list[str]:
        to, source, squares, gain = windows
        _same(op, to, source, gain)
        self.code.uses_math |= op.way != NEWTON
        count, eps = op.params["count"], float(op.params["eps"])  # type: ignore[arg-type]

        def write(row: Row) -> list[str]:
            memory = self.code.descriptors.memory
            total = f"@as(f32, {self._cell(row[2])})"
            scale = f"1.0 / math.sqrt_f32({total} / {count}.0 + {eps!r})"
            if op.way == NEWTON:
                self.code.helper(_INVERSE_ROOT)
                assert isinstance(count, int)
                share = float(np.float32(1 / count))
                scale = f"inverse_root({total} * {share!r} + {eps!r})"
            if to.dtype != DType.F32:
                scale = f"@as({to.dtype}, {scale})"

            def scaled(part: Sequence[Window]) -> list[str]:
                one, other, by = map(memory, part)
                return [
                    f"{builtin('fmul', to.dtype)}({one}, {other}, {scale});",
                    f"{builtin('fmul', to.dtype)}({one}, {one}, {by});",
                ]

            return self.code.parts((*row[:2], gain), scaled)

        return self._each(squares, (to, source, squares), write)

    def _inverse_rms(self, op: Compute, windows: list[Window]) -> list[str]:
        to, squares = windows
        _same(op, to, squares)
        self.code.uses_math = True
        count, eps = op.params["count"], float(op.params["eps"])  # type: ignore[arg-type]

        def write(row: Row) -> list[str]:
            mean = f"@as(f32, {self._cell(row[1])}) / {count}.0 + {eps!r}"
            value = f"1.0 / math.sqrt_f32({mean})"
            if to.dtype != DType.F32:
                value = f"@as({to.dtype}, {value})"
            return [f"{self._cell(row[0])} = {value};"]

        return self._each(squares, (to, squares), write)

    # --- functions of elements

    def _exp_sub(self, op: Compute, windows: list[Window]) -> list[str]:
        return self._by_steps(op, windows, self._exp_sub_by_rows)

    def _exp_sub_by_rows(self, op: Compute, windows: list[Window]) -> list[str]:
        _same(op, *windows)
        to, source, most = windows
        self.code.uses_math = True
        self.code.variable("most_of_row", to.dtype)
        text = f"math.exp_f32({{}} - {_wide('most_of_row', to.dtype)})"
        name = self._function("exponential", to.dtype, text)

        def write(row: Row) -> list[str]:
            memory = self.code.descriptors.memory
            each = self.code.parts(
                row[1::-1], lambda part: [f"@map({name}, {', '.join(map(memory, part))});"]
            )
            return [f"most_of_row = {self._cell(row[2])};", *each]

        return self._each(most, (to, source, most), write)

    def _exp(self, op: Compute, windows: list[Window]) -> list[str]:
        return self._mapped(op, windows, "exp", "math.exp_f32({0})")

    def _merge_softmax(self, op: Compute, windows: list[Window]) -> list[str]:
        """Both are scaled to the larger of their maxima, softmax by softmax, and added."""
        _same(op, *windows)
        self.code.uses_math = True
        kind = windows[0].dtype
        self.code.variable("most_of_row", kind)
        count = softmaxes(op)
        mine, theirs = (_softmaxes(window, count) for window in windows)

        def exponential(top: str) -> str:
            if kind != DType.BF16:
                return f"math.exp_{kind}({top} - most_of_row)"
            return f"@as({kind}, math.exp_f32(@as(f32, {top} - most_of_row)))"

        def write(row: Row) -> list[str]:
            memory = self.code.descriptors.memory
            values, total, top, more, other, high = row
            cells = [self._cell(window) for window in (total, top, other, high)]
            sums = memory(values)
            return [
                f"most_of_row = {cells[1]};",
                f"{builtin('fmax', kind)}(&most_of_row, most_of_row, {memory(high)});",
                f"const kept = {exponential(cells[1])};",
                f"const added = {exponential(cells[3])};",
                f"{builtin('fmul', kind)}({sums}, {sums}, kept);",
                f"{builtin('fmac', kind)}({sums}, {sums}, {memory(more)}, added);",
                f"{cells[0]} = {cells[0]} * kept + {cells[2]} * added;",
                f"{cells[1]} = most_of_row;",
            ]

        lines = self._each(mine[1], (*mine, *theirs), write)
        return lines if count > 1 else ["{", *(PAD + line for line in lines), "}"]

    def _silu(self, op: Compute, windows: list[Window]) -> list[str]:
        return self._by_steps(op, windows, self._silu_of_each)

    def _silu_of_each(self, op: Compute, windows: list[Window]) -> list[str]:
        return self._mapped(op, windows, "silu", "{0} / (1.0 + math.exp_f32(-{0}))")

    def _gelu(self, op: Compute, windows: list[Window]) -> list[str]:
        return self._by_steps(op, windows, self._gelu_of_each)

    def _gelu_of_each(self, op: Compute, windows: list[Window]) -> list[str]:
        if op.params["form"] == "tanh":
            inner = "0.7978845608 * ({0} + 0.044715 * {0} * {0} * {0})"
            return self._mapped(
                op, windows, "gelu", f"0.5 * {{0}} * (1.0 + math.tanh_f32({inner}))"
            )
        self.code.helper(_ERF)
        return self._mapped(op, windows, "gelu_erf", "0.5 * {0} * (1.0 + erf(0.7071067812 * {0}))")

    def _tanh(self, op: Compute, windows: list[Window]) -> list[str]:
        return self._mapped(op, windows, "tanh", "math.tanh_f32({0})")

    def _sigmoid(self, op: Compute, windows: list[Window]) -> list[str]:
        return self._mapped(op, windows, "sigmoid", "1.0 / (1.0 + math.exp_f32(-{0}))")

    def _quick_gelu(self, op: Compute, windows: list[Window]) -> list[str]:
        return self._mapped(op, windows, "quick_gelu", "{0} / (1.0 + math.exp_f32(-1.702 * {0}))")

    def _mapped(self, op: Compute, windows: list[Window], name: str, text: str) -> list[str]:
        to, source = windows
        _same(op, to, source)
        self.code.uses_math = True
        function = self._function(name, to.dtype, text)
        memory = self.code.descriptors.memory
        return self.code.parts(
            (source, to), lambda part: [f"@map({function}, {', '.join(map(memory, part))});"]
        )

    def _function(self, name: str, dtype: DType, text: str) -> str:
        """The name of a function of one element, which has its place in ``text``; it is computed in
        f32 whatever its type."""
        found = text.format(_wide("value", dtype))
        if dtype != DType.F32:
            found = f"@as({dtype}, {found})"
        return self.code.value_function(name, str(dtype), found)

    # --- rows

    def _each(self, small: Window, windows: Row, write: Callable[[Row], list[str]]) -> list[str]:
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
        lines = write(tuple(w.inner(w.dims[heads:] or (Dim(1, 1),)) for w in moved))
        for name, dim in reversed(loops):
            lines = self.code.over(name, dim, lines)
        return lines

    def _cell(self, window: Window) -> str:
        """The element at which a window begins."""
        name, shift = self.code.descriptors.place(window.buffer.name)
        return f"{name}[{self.code.descriptors.at(window.buffer.name, window.start + shift)}]"


def _softmaxes(window: Window, count: int) -> Row:
    """Values, sums and maxima of ``count`` softmaxes, which lie side by side in the last dim."""
    *lead, last = window.dims
    lanes, step = last.extent // count - 2, last.stride
    rows = (*lead, Dim(count, step))
    values = window.inner((*lead, Dim(count, lanes * step), Dim(lanes, step)))
    sums = window.moved(count * lanes * step).inner(rows)
    return values, sums, sums.moved(count * step)


def _wide(name: str, dtype: DType) -> str:
    """A variable as f32."""
    return name if dtype == DType.F32 else f"@as(f32, {name})"


def _like(dims: Sequence[Dim], others: Sequence[Dim]) -> bool:
    """Whether extents are equal, as far as they are known when the program is compiled."""
    pairs = zip(dims, others, strict=False)
    known = [(a.extent, b.extent) for a, b in pairs if a.count is None and b.count is None]
    return len(dims) == len(others) and all(a == b for a, b in known)


def _same(op: Compute, *windows: Window) -> None:
    if len({w.dtype for w in windows}) > 1:
        kinds = ", ".join(str(w.dtype) for w in windows)
        fail("csl-dtype", f"'{op.kernel}' of {kinds} mixes element types", op.span)
