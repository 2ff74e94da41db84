"""Microkernels as CSL: vector operations on DSDs, and functions where a kernel takes several."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import replace

from meshc.backends.csl.kernels import products
from meshc.backends.csl.kernels.caches import CACHES, Caches
from meshc.backends.csl.kernels.choices import USUAL, Choices
from meshc.backends.csl.kernels.costs import SETUP, Costs
from meshc.backends.csl.kernels.products import MOST_SCRATCH_BYTES, Plan, Product
from meshc.backends.csl.kernels.rotary import Rotary
from meshc.backends.csl.kernels.rows import Rows
from meshc.backends.csl.kernels.shared_code import PAD, SharedCode, literal, repeat
from meshc.backends.csl.spelling.descriptors import Descriptors, element, own
from meshc.backends.csl.spelling.expressions import expression
from meshc.backends.csl.spelling.names import Names
from meshc.backends.csl.spelling.windows import Dim, Window, window
from meshc.ir.affine import Expr
from meshc.ir.ops.tile import Compute
from meshc.ir.types import DType
from meshc.ir.views import View
from meshc.support.diagnostics import fail

_POINTWISE = {
    "add": {"f16": "@faddh", "f32": "@fadds"},
    "mul": {"f16": "@fmulh", "f32": "@fmuls"},
    "max": {"f16": "@fmaxh", "f32": "@fmaxs"},
}
_WITH_NUMBER = {"scale": ("mul", "factor"), "at_least": ("max", "value")}
"""The operation of a kernel that takes a number, and the parameter that is this number."""


_MIXED = ("copy", "gemm", "square_sum", "select_lanes", *CACHES)
"""Kernels that take operands of several types as they are."""
_WIDE = {"rope": (1,)}
"""Operands that are f32 whatever the type of the others."""
_OF_ANY_TYPE = {"rms_scale": (2,)}
"""Operands of which a kernel reads single values, whatever their type."""

_SELECTED = 21
"""Cycles of one lane that is selected, measured on the simulator."""
_SHARE = 4
"""Of the memory that is free the part that functions of many elements may take for scratch."""

Writer = Callable[[Compute, list[Window]], list[str]]


class Kernels:
    """Writes kernels; ``code`` has the functions, registers and scratch that they need."""

    def __init__(
        self,
        names: Names,
        descriptors: Descriptors,
        costs: Costs,
        free_bytes: int,
        known_at_start: Collection[str] = (),
        choices: Choices = USUAL,
    ) -> None:
        """``known_at_start`` are names that have their values when a program starts: run-time
        scalars and coordinates."""
        self.names = names
        self.descriptors = descriptors
        self.costs = costs
        self.free_bytes = free_bytes
        self.code = SharedCode(names, descriptors)
        scratch = min(free_bytes // _SHARE, MOST_SCRATCH_BYTES)
        self.rows = Rows(self.code, costs, scratch, choices)
        self.caches = Caches(self.code)
        self.rotary = Rotary(self.code, costs, scratch, known_at_start, choices)
        self._writers: dict[str, Writer] = {
            **self.rows.writers,
            **self.caches.writers,
            "rope": self.rotary.lines,
            "fill": self._fill,
            "copy": self._copy,
            "add": self._pointwise,
            "mul": self._pointwise,
            "scale": self._with_number,
            "at_least": self._with_number,
            "relu2": self._relu2,
            "gemm": self._gemm,
            "rotate": self._rotate,
            "select_lanes": self._select_lanes,
        }

    @property
    def known(self) -> tuple[str, ...]:
        """The kernels that can be emitted."""
        return (*self._writers,)

    def lines(self, op: Compute) -> list[str]:
        """The statements of one kernel out of ``known``."""
        given = _windows(op)
        windows = self._widened(op, given)
        moves = [(w, g) for w, g in zip(windows, given, strict=True) if w is not g]
        before = [self.code.move(w, g) + ";" for w, g in moves if g is not given[0]]
        after = [self.code.move(g, w) + ";" for w, g in moves if g is given[0]]
        return [*before, *self._writers[op.kernel](op, windows), *after]

    def _widened(self, op: Compute, given: list[Window]) -> list[Window]:
        """The operands of a kernel, those in f16 as f32 where the kernel has both and takes one
        type alone. Its result comes first."""
        if op.kernel in _WIDE:
            wide = [w if n in _WIDE[op.kernel] else None for n, w in enumerate(given)]
            return self._as_f32(given, [w for w in wide if w is not None])
        alike = [w for n, w in enumerate(given) if n not in _OF_ANY_TYPE.get(op.kernel, ())]
        if op.kernel in _MIXED or len({w.dtype for w in alike}) == 1:
            return given
        return self._as_f32(given, given)

    def _as_f32(self, given: list[Window], which: list[Window]) -> list[Window]:
        """``given``, those of ``which`` that are f16 as f32."""
        found, first = [], 0
        for one in given:
            if one in which and one.dtype == DType.F16:
                one = self.code.widened_window(one, first)
                first += one.size
            found.append(one)
        return found

    def cycles(self, op: Compute) -> int:
        """Predicted cycles of one kernel."""
        given = _windows(op)
        windows = self._widened(op, given)
        moved = [w for w, g in zip(windows, given, strict=True) if w is not g]
        return self._own_cycles(op, windows) + sum(
            SETUP + self.costs.vector("add", DType.F32, w.size, (1,)) for w in moved
        )

    def _own_cycles(self, op: Compute, windows: list[Window]) -> int:
        if op.kernel == "gemm":
            batch, chosen = self._batch(op, windows)
            return batch * chosen.cycles
        if op.kernel in self.rows.writers:
            return self.rows.cycles(op, windows, self.costs)
        if op.kernel in self.caches.writers:
            return self.caches.cycles(op, windows, self.costs)
        if op.kernel == "rope":
            return self.rotary.cycles(op, windows, self.costs)
        if op.kernel == "select_lanes":
            return windows[0].dims[0].extent * _SELECTED
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
        if op.kernel in ("rope", *self.rows.writers, *self.caches.writers):
            return self.cycles(op)
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

    # --- one operation

    def _fill(self, op: Compute, windows: list[Window]) -> list[str]:
        (to,) = windows
        return [self.code.set(to, float(op.params["value"]))]  # type: ignore[arg-type]

    def _copy(self, op: Compute, windows: list[Window]) -> list[str]:
        to, source = windows
        return [self.code.move(to, source) + ";"]

    def _pointwise(self, op: Compute, windows: list[Window]) -> list[str]:
        to, left, right = windows
        _alike(op, to, left, right)
        builtin = _POINTWISE[op.kernel][element(to.dtype)]
        operands = [to, _repeated(left, to), _repeated(right, to)]
        return [f"{builtin}({', '.join(map(self.descriptors.memory, operands))});"]

    def _with_number(self, op: Compute, windows: list[Window]) -> list[str]:
        to, source = windows
        _alike(op, to, source)
        operation, name = _WITH_NUMBER[op.kernel]
        number = literal(float(op.params[name]), to.dtype)  # type: ignore[arg-type]
        operands = f"{self.descriptors.memory(to)}, {self.descriptors.memory(source)}"
        return [f"{_POINTWISE[operation][element(to.dtype)]}({operands}, {number});"]

    def _relu2(self, op: Compute, windows: list[Window]) -> list[str]:
        """The larger of the element and zero, then its square."""
        to, source = windows
        _alike(op, to, source)
        out, kind = self.descriptors.memory(to), element(to.dtype)
        return [
            f"{_POINTWISE['max'][kind]}({out}, {self.descriptors.memory(source)}, 0.0);",
            f"{_POINTWISE['mul'][kind]}({out}, {out}, {out});",
        ]

    def _rotate(self, op: Compute, windows: list[Window]) -> list[str]:
        """The first dim moves down by ``by``, one place at a time."""
        (all_,) = windows
        by = op.params["by"]
        assert isinstance(by, Expr)
        count, stride = all_.dims[0].extent, all_.dims[0].stride
        slot = all_.inner(all_.dims[1:])
        spare = self.code.scratch_window(slot.dtype, slot.size)
        place = _index("i", count - 1) * stride
        step = [self.code.move(slot.moved(place), slot.moved(place + stride)) + ";"]
        body = [
            self.code.move(spare, slot) + ";",
            *repeat("i", count - 1, step),
            self.code.move(slot.moved((count - 1) * stride), spare) + ";",
        ]
        name = self.code.function("rotate", all_, ["places: i16"], repeat("_", "places", body))
        return [f"{name}({expression(by % count, self.descriptors.spell)});"]

    def _select_lanes(self, op: Compute, windows: list[Window]) -> list[str]:
        """Lane i takes lane i + shift, and 0 where there is none."""
        to, source = windows
        shift = op.params["shift"]
        assert isinstance(shift, Expr)
        lanes, given = to.dims[0].extent, source.dims[0].extent
        lane = own("lane")
        target = to.moved(lane * to.dims[0].stride).inner(to.dims[1:])
        taken = source.moved(own("from") * source.dims[0].stride).inner(source.dims[1:])
        body = [
            "const from = lane + places;",
            f"if (from >= 0 and from < {given}) {{",
            f"{PAD}{self.code.move(target, taken)};",
            "}",
        ]
        loop = [f"for (@range(i16, {lanes})) |lane| {{", *(PAD + line for line in body), "}"]
        name = self.code.function("select", to, ["places: i16"], [self.code.set(to, 0.0), *loop])
        return [f"{name}({expression(shift, self.descriptors.spell)});"]

    # --- products

    def _gemm(self, op: Compute, windows: list[Window]) -> list[str]:
        to, left, right = windows
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
        return [self.code.set(to, 0.0), *lines]

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
            lines.append(f"{PAD * depth}for (@range(i16, {extent})) |{variable}| {{")
            moved = [w.moved(own(variable) * s) for w, s in zip(moved, strides, strict=True)]
            depth += 1
        lines.append(PAD * depth + self._product(Product(*moved), accumulate))
        return [*lines, *(PAD * d + "}" for d in reversed(range(depth)))]

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
        name = self.code.function("gemm", product.c, [f"{n}: i16" for n in starts], body)
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
        sums = self.code.registers.loaded(memory(row)) if product.one_row else None
        body = []
        if sums is None:
            sums = self.code.registers.moving()
            body += [f"const row = {memory(row)};", *(f"@load_to_dsr({r}, row);" for r in sums)]
        rows = self.code.registers.rows()
        dtype = element(product.b.dtype)
        step = self.code.function("accumulate", product.c, [f"factor: {dtype}"], [
            f"{product.operation}({sums.to}, {sums.source}, {rows}, factor);"
        ])  # fmt: skip
        body += [
            f"@load_to_dsr({rows}, {memory(first)}, .{{ .save_address = true }});",
            f"@map({step}, {memory(factors)});",
        ]
        return repeat("i", m, body)

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
        return repeat("i", m, repeat("j", k, inner))

    def _outer(self, plan: Plan) -> list[str]:
        product, depth = plan.product, plan.depth
        _, k, _ = product.extents
        rounds, rest = divmod(k, depth)
        body = self._round(product, depth, plan.fresh)
        if rounds > 1:
            base = own("i") * depth
            left = product.a.moved(base * product.a.dims[1].stride)
            right = product.b.moved(base * product.b.dims[0].stride)
            body = repeat("i", rounds, self._round(Product(product.c, left, right), depth))
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
            where = self.code.scratch_window(
                product.c.dtype, depth * m * n, first * m * n, count * m * n
            )
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
            first = self.code.scratch_window(product.c.dtype, depth * m * n, 0, m * n)
            each = memory(first.moved(_index("j", depth) * (m * n)))
            return [*lines, *repeat("j", depth, [f"{add}({sums}, {sums}, {each});"])]
        halvings = products.halvings(depth)
        for kept, more in halvings[:-1] if fresh else halvings:
            lines.append(f"{add}({part(0, more)}, {part(0, more)}, {part(kept, more)});")
        last = f"{part(0, 1)}, {part(1, 1)}" if fresh else f"{sums}, {part(0, 1)}"
        return [*lines, f"{add}({sums}, {last});"]


def _windows(op: Compute) -> list[Window]:
    """The operands. Raises ``csl-dtype`` for element types that CSL does not have."""
    found = [window(v, op.span) for v in op.operands if isinstance(v, View)]
    for one in found:
        if op.kernel not in CACHES:
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
