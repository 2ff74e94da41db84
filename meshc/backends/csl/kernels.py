"""Microkernels as CSL: vector operations on DSDs, and functions where a kernel takes several."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import replace

from meshc.backends.csl import products
from meshc.backends.csl.costs import SETUP, Costs
from meshc.backends.csl.descriptors import Descriptors, element, own
from meshc.backends.csl.expressions import expression
from meshc.backends.csl.names import Names
from meshc.backends.csl.products import Plan, Product
from meshc.backends.csl.registers import Registers
from meshc.backends.csl.rows import Rows
from meshc.backends.csl.windows import Dim, Window, window
from meshc.ir.affine import Expr
from meshc.ir.ops.tile import Compute
from meshc.ir.types import BufferType, DType
from meshc.ir.values import Value
from meshc.ir.views import View
from meshc.support.diagnostics import fail

_MOVE = {"f16": "@fmovh", "f32": "@fmovs"}
_POINTWISE = {
    "add": {"f16": "@faddh", "f32": "@fadds"},
    "mul": {"f16": "@fmulh", "f32": "@fmuls"},
    "max": {"f16": "@fmaxh", "f32": "@fmaxs"},
}
_WITH_NUMBER = {"scale": ("mul", "factor"), "at_least": ("max", "value")}
"""The operation of a kernel that takes a number, and the parameter that is this number."""
_PAD = "    "


class Kernels:
    """Writes kernels; gathers the functions, registers and scratch that they need."""

    def __init__(
        self, names: Names, descriptors: Descriptors, costs: Costs, free_bytes: int
    ) -> None:
        self.names = names
        self.descriptors = descriptors
        self.costs = costs
        self.free_bytes = free_bytes
        self.functions: list[str] = []
        self.registers = Registers(names)
        self.uses_math = False
        self.rows = Rows(self)
        self.scratch: dict[DType, int] = {}
        self._known: dict[tuple[str, ...], str] = {}
        self._writers: dict[str, Callable[[Compute], list[str]]] = {
            "fill": self._fill,
            "copy": self._copy,
            "add": self._pointwise,
            "mul": self._pointwise,
            "scale": self._with_number,
            "at_least": self._with_number,
            "relu2": self._relu2,
            "gemm": self._gemm,
            "rotate": self._rotate,
        }

    @property
    def known(self) -> tuple[str, ...]:
        """The kernels that can be emitted."""
        return (*self._writers, *self.rows.writers)

    def lines(self, op: Compute) -> list[str]:
        """The statements of one kernel out of ``known``."""
        if op.kernel in self.rows.writers:
            return self.rows.writers[op.kernel](op, _windows(op))
        return self._writers[op.kernel](op)

    def cycles(self, op: Compute) -> int:
        """Predicted cycles of one kernel."""
        windows = _windows(op)
        if op.kernel == "gemm":
            batch, chosen = self._batch(op, windows)
            return batch * chosen.cycles
        if op.kernel in self.rows.writers:
            return self.rows.cycles(op, windows)
        once = SETUP + self._vector(op, windows)
        if op.kernel == "relu2":
            return 2 * once
        return once if op.kernel != "rotate" else once + 2 * (SETUP + windows[0].size // 4)

    def steps(self, op: Compute) -> int:
        """Those of the cycles that are vector steps, beside which no transfer of the core moves."""
        windows = _windows(op)
        if op.kernel == "gemm":
            batch, chosen = self._batch(op, windows)
            return batch * chosen.steps
        if op.kernel in self.rows.writers:
            return self.rows.cycles(op, windows)
        return self._vector(op, windows) * (2 if op.kernel == "relu2" else 1)

    def _vector(self, op: Compute, windows: list[Window]) -> int:
        """Steps of one operation."""
        to = windows[0]
        kind = "mul" if op.kernel in ("mul", "scale") else "add"
        return self.costs.vector(kind, to.dtype, to.size, tuple(w.pace for w in windows))

    def _batch(self, op: Compute, windows: list[Window]) -> tuple[int, Plan]:
        """How many products there are in a batch, and the plan of each, zeros included."""
        to, left, right = windows
        if op.params["transposed"]:
            right = right.inner([*right.dims[:-2], right.dims[-1], right.dims[-2]])
        batch = math.prod(dim.extent for dim in to.dims[:-2])
        one = Product(to.trailing(2), left.trailing(2), right.trailing(2))
        return batch, self._plan(one, bool(op.params["accumulate"]))

    def scratch_lines(self) -> list[str]:
        """Declarations of scratch memory."""
        return [
            f"var {self._scratch_name(dtype)}: [{size}]{dtype} align(16) = @zeros([{size}]{dtype});"
            for dtype, size in self.scratch.items()
        ]

    def scratch_bytes(self, alignment: int) -> int:
        """Bytes of the scratch that the kernels written so far share."""
        return sum(aligned(dtype.bytes * n, alignment) for dtype, n in self.scratch.items())

    # --- one operation

    def _fill(self, op: Compute) -> list[str]:
        (to,) = _windows(op)
        value = literal(float(op.params["value"]), to.dtype)  # type: ignore[arg-type]
        return [f"{_MOVE[element(to.dtype)]}({self.descriptors.memory(to)}, {value});"]

    def _copy(self, op: Compute) -> list[str]:
        to, source = _windows(op)
        return [self.move(to, source) + ";"]

    def move(self, to: Window, source: Window) -> str:
        """An operation that copies ``source`` to ``to``, converting its elements."""
        builtin = {
            (DType.F32, DType.F16): "@fh2s",
            (DType.F16, DType.F32): "@fs2h",
        }.get((to.dtype, source.dtype), _MOVE[element(to.dtype)])
        return f"{builtin}({self.descriptors.memory(to)}, {self.descriptors.memory(source)})"

    def _pointwise(self, op: Compute) -> list[str]:
        to, left, right = _windows(op)
        _alike(op, to, left, right)
        builtin = _POINTWISE[op.kernel][element(to.dtype)]
        operands = [to, _repeated(left, to), _repeated(right, to)]
        return [f"{builtin}({', '.join(map(self.descriptors.memory, operands))});"]

    def _with_number(self, op: Compute) -> list[str]:
        to, source = _windows(op)
        _alike(op, to, source)
        operation, name = _WITH_NUMBER[op.kernel]
        number = literal(float(op.params[name]), to.dtype)  # type: ignore[arg-type]
        operands = f"{self.descriptors.memory(to)}, {self.descriptors.memory(source)}"
        return [f"{_POINTWISE[operation][element(to.dtype)]}({operands}, {number});"]

    def _relu2(self, op: Compute) -> list[str]:
        """The larger of the element and zero, then its square."""
        to, source = _windows(op)
        _alike(op, to, source)
        out, kind = self.descriptors.memory(to), element(to.dtype)
        return [
            f"{_POINTWISE['max'][kind]}({out}, {self.descriptors.memory(source)}, 0.0);",
            f"{_POINTWISE['mul'][kind]}({out}, {out}, {out});",
        ]

    def _rotate(self, op: Compute) -> list[str]:
        """The first dim moves down by ``by``, one place at a time."""
        (all_,) = _windows(op)
        by = op.params["by"]
        assert isinstance(by, Expr)
        count, stride = all_.dims[0].extent, all_.dims[0].stride
        slot = all_.inner(all_.dims[1:])
        spare = self._scratch(slot.dtype, slot.size)
        place = _index("i", count - 1) * stride
        step = [self.move(slot.moved(place), slot.moved(place + stride)) + ";"]
        body = [
            self.move(spare, slot) + ";",
            *_repeat("i", count - 1, step),
            self.move(slot.moved((count - 1) * stride), spare) + ";",
        ]
        name = self._function("rotate", all_, ["places: i16"], _repeat("_", "places", body))
        return [f"{name}({expression(by % count, self.descriptors.spell)});"]

    # --- products

    def _gemm(self, op: Compute) -> list[str]:
        to, left, right = _windows(op)
        if left.dtype != right.dtype or (left.dtype, to.dtype) == (DType.F32, DType.F16):
            fail(
                "csl-dtype", f"a product of {left.dtype} and {right.dtype} into {to.dtype}", op.span
            )
        if op.params["transposed"]:
            right = right.inner([*right.dims[:-2], right.dims[-1], right.dims[-2]])
        accumulate = bool(op.params["accumulate"])
        one = Product(to.trailing(2), left.trailing(2), right.trailing(2))
        lines = self._batches(to, left, right, accumulate)
        if accumulate or self._plan(one, accumulate).fresh:
            return lines
        zero = literal(0.0, to.dtype)
        return [f"{_MOVE[element(to.dtype)]}({self.descriptors.memory(to)}, {zero});", *lines]

    def _plan(self, product: Product, accumulate: bool) -> Plan:
        return products.plan(product, self.costs, self.free_bytes, accumulate)

    def _batches(self, to: Window, left: Window, right: Window, accumulate: bool) -> list[str]:
        """Loops over leading dims around one product."""
        count = len(to.dims) - 2
        heads = [w.dims[: len(w.dims) - 2] for w in (to, left, right)]
        lines: list[str] = []
        moved = [to.trailing(2), left.trailing(2), right.trailing(2)]
        depth = 0
        for position in range(count):
            strides = [_stride(head, position, count) for head in heads]
            extent = to.dims[position].extent
            if extent == 1:
                continue
            variable = f"h{position}"
            lines.append(f"{_PAD * depth}for (@range(i16, {extent})) |{variable}| {{")
            moved = [w.moved(own(variable) * s) for w, s in zip(moved, strides, strict=True)]
            depth += 1
        lines.append(_PAD * depth + self._product(Product(*moved), accumulate))
        return [*lines, *(_PAD * d + "}" for d in reversed(range(depth)))]

    def _product(self, product: Product, accumulate: bool) -> str:
        """A call of the function that does one product."""
        chosen = self._plan(product, accumulate)
        starts: dict[str, str] = {}
        windows = []
        for label, one in zip("cab", _sides(chosen.product), strict=True):
            fixed = one.start.constant
            moving = one.start - fixed
            if moving.is_const:
                windows.append(one)
                continue
            starts[f"{label}_at"] = expression(moving, self.descriptors.spell)
            windows.append(Window(one.buffer, one.dtype, own(f"{label}_at") + fixed, one.dims))
        inner = Product(*windows)
        body = self._body(replace(chosen, product=inner))
        name = self._function("gemm", product.c, [f"{n}: i16" for n in starts], body)
        return f"{name}({', '.join(starts.values())});"

    def _body(self, plan: Plan) -> list[str]:
        if plan.form == "outer":
            return self._outer(plan)
        return self._mapped(plan.product) if plan.form == "mapped" else self._looped(plan.product)

    def _mapped(self, product: Product) -> list[str]:
        m, _, _ = product.extents
        at = _index("i", m)
        row = product.c.moved(at * product.c.dims[0].stride).inner(product.c.dims[1:])
        factors = product.a.moved(at * product.a.dims[0].stride).inner(product.a.dims[1:])
        first = product.b.inner(product.b.dims[1:])
        memory = self.descriptors.memory
        sums = self.registers.loaded(memory(row)) if product.one_row else None
        body = []
        if sums is None:
            sums = self.registers.moving()
            body += [f"const row = {memory(row)};", *(f"@load_to_dsr({r}, row);" for r in sums)]
        rows = self.registers.rows()
        dtype = element(product.b.dtype)
        step = self._function("accumulate", product.c, [f"factor: {dtype}"], [
            f"{product.operation}({sums.to}, {sums.source}, {rows}, factor);"
        ])  # fmt: skip
        body += [
            f"@load_to_dsr({rows}, {memory(first)}, .{{ .save_address = true }});",
            f"@map({step}, {memory(factors)});",
        ]
        return _repeat("i", m, body)

    def _looped(self, product: Product) -> list[str]:
        m, k, _ = product.extents
        i, j = _index("i", m), _index("j", k)
        row = product.c.moved(i * product.c.dims[0].stride).inner(product.c.dims[1:])
        right = product.b.moved(j * product.b.dims[0].stride).inner(product.b.dims[1:])
        shift = self.descriptors.shifts.get(product.a.buffer.name, 0)
        left = product.a.start + shift + i * product.a.dims[0].stride + j * product.a.dims[1].stride
        factor = f"{self.names.of('buffer', product.a.buffer.name)}"
        factor += f"[{expression(left, self.descriptors.spell)}]"
        inner = [
            f"const row = {self.descriptors.memory(row)};",
            f"{product.operation}(row, row, {self.descriptors.memory(right)}, {factor});",
        ]
        return _repeat("i", m, _repeat("j", k, inner))

    def _outer(self, plan: Plan) -> list[str]:
        product, depth = plan.product, plan.depth
        _, k, _ = product.extents
        rounds, rest = divmod(k, depth)
        body = self._round(product, depth, plan.fresh)
        if rounds > 1:
            base = own("i") * depth
            left = product.a.moved(base * product.a.dims[1].stride)
            right = product.b.moved(base * product.b.dims[0].stride)
            body = _repeat("i", rounds, self._round(Product(product.c, left, right), depth))
        if rest:
            left = product.a.moved(rounds * depth * product.a.dims[1].stride)
            right = product.b.moved(rounds * depth * product.b.dims[0].stride)
            body += self._round(Product(product.c, left, right), rest)
        return body

    def _round(self, product: Product, depth: int, fresh: bool = False) -> list[str]:
        """All products of ``depth`` columns and rows, then their sum into the result, or, when it
        is ``fresh``, in its place."""
        m, _, n = product.extents
        dtype = product.c.dtype
        left, right = products.broadcast(product, 0, depth)
        memory = self.descriptors.memory

        def part(first: int, count: int) -> str:
            where = self._scratch(product.c.dtype, depth * m * n, first * m * n, count * m * n)
            return memory(where)

        add = products.add(dtype)
        factors = ", ".join(
            memory(side, f"{self.names.of('buffer', side.buffer.name)}_{what}")
            for side, what in ((left, "columns"), (right, "rows"))
        )
        sums = memory(product.c)
        if fresh and depth == 1:
            return [f"{products.multiply(dtype)}({sums}, {factors});"]
        lines = [f"{products.multiply(dtype)}({part(0, depth)}, {factors});"]
        if dtype == DType.F32:
            first = self._scratch(product.c.dtype, depth * m * n, 0, m * n)
            each = memory(first.moved(_index("j", depth) * (m * n)))
            return [*lines, *_repeat("j", depth, [f"{add}({sums}, {sums}, {each});"])]
        halvings = products.halvings(depth)
        for kept, more in halvings[:-1] if fresh else halvings:
            lines.append(f"{add}({part(0, more)}, {part(0, more)}, {part(kept, more)});")
        last = f"{part(0, 1)}, {part(1, 1)}" if fresh else f"{sums}, {part(0, 1)}"
        return [*lines, f"{add}({sums}, {last});"]

    # --- what kernels share

    def _function(self, verb: str, about: Window, params: list[str], body: list[str]) -> str:
        """The name of a function with this text."""
        key = (*params, *body)
        if key not in self._known:
            name = self.names.fresh(f"{verb}_{about.buffer.name}")
            self._known[key] = name
            head = f"fn {name}({', '.join(params)}) void {{"
            self.functions += ["", head, *(_PAD + line for line in body), "}"]
        return self._known[key]

    def value_function(self, name: str, kind: str, text: str) -> str:
        """The name of a function of one element ``v``, for ``@map``."""
        key = (name, kind, text)
        if key not in self._known:
            self._known[key] = self.names.fresh(f"{name}_{kind}")
            head = f"fn {self._known[key]}(v: {kind}) {kind} {{"
            self.functions += ["", head, f"{_PAD}return {text};", "}"]
        return self._known[key]

    def variable(self, text: str) -> None:
        """Declare a variable that functions share."""
        if text not in self.functions:
            self.functions += ["", text]

    def scratch_window(self, dtype: DType, size: int) -> Window:
        """Scratch of ``size`` elements."""
        return self._scratch(dtype, size)

    def _scratch(self, dtype: DType, size: int, first: int = 0, count: int = 0) -> Window:
        """``count`` elements of scratch from ``first`` on; scratch holds at least ``size``."""
        self.scratch[dtype] = max(self.scratch.get(dtype, 0), size)
        buffer = Value(f"scratch_{dtype}", BufferType(dtype, (size,)))
        return Window(buffer, dtype, Expr.const(first), (Dim(count or size, 1),))

    def _scratch_name(self, dtype: DType) -> str:
        return self.names.of("buffer", f"scratch_{dtype}")


def aligned(size: int, alignment: int) -> int:
    """``size`` rounded up to a multiple of ``alignment``."""
    return -(-size // alignment) * alignment


def literal(value: float, dtype: DType) -> str:
    """``value`` as a constant of ``dtype``, infinities and overflow by their bits."""
    code, width, word = ("<e", "<H", "u16") if dtype == DType.F16 else ("<f", "<I", "u32")
    try:
        exact = struct.pack(code, value)
    except OverflowError:
        exact = struct.pack(code, float("inf") if value > 0 else float("-inf"))
    if abs(struct.unpack(code, exact)[0]) < float("inf"):
        return repr(value)
    bits = struct.unpack(width, exact)[0]
    return f"@bitcast({dtype}, @as({word}, 0x{bits:x}))"


def _windows(op: Compute) -> list[Window]:
    """The operands. Raises ``csl-dtype`` for element types that CSL does not have."""
    found = [window(v, op.span) for v in op.operands if isinstance(v, View)]
    for one in found:
        element(one.dtype)
    return found


def _sides(product: Product) -> tuple[Window, Window, Window]:
    return product.c, product.a, product.b


def _stride(head: tuple[Dim, ...], position: int, count: int) -> int:
    """Stride of batch dim ``position`` of ``count`` for an operand that may lack leading ones."""
    own = position - (count - len(head))
    return head[own].stride if own >= 0 and head[own].extent > 1 else 0


def _repeated(operand: Window, to: Window) -> Window:
    """A smaller operand repeated over the leading dims that it lacks."""
    lacking = to.dims[: len(to.dims) - len(operand.dims)]
    return operand.inner([*(Dim(d.extent, 0) for d in lacking), *operand.dims])


def _alike(op: Compute, *windows: Window) -> None:
    if len({w.dtype for w in windows}) > 1:
        kinds = ", ".join(str(w.dtype) for w in windows)
        fail("csl-dtype", f"'{op.kernel}' of {kinds} mixes element types", op.span)


def _index(variable: str, count: int) -> Expr:
    """The variable of a loop of ``count`` steps that :func:`_repeat` writes."""
    return own(variable) if count > 1 else Expr.const(0)


def _repeat(variable: str, count: int | str, body: list[str]) -> list[str]:
    if count == 1:
        return body
    return [f"for (@range(i16, {count})) |{variable}| {{", *(_PAD + line for line in body), "}"]
