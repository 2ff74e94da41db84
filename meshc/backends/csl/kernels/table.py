"""Microkernels as CSL: vector operations on DSDs, and functions where a kernel takes several."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType

from meshc.analysis.csl import products
from meshc.analysis.csl.codes import KERNEL
from meshc.analysis.csl.factors import Product, call
from meshc.analysis.csl.instruction_costs import Costs
from meshc.analysis.csl.operands import CACHES, at_once, widened
from meshc.analysis.csl.products import Plan
from meshc.analysis.csl.strided_windows import Dim, Window, dense, own, window
from meshc.analysis.csl.sum_registers import AT_CALL
from meshc.backends.csl.kernels.by_rows import Rows
from meshc.backends.csl.kernels.caches import Caches
from meshc.backends.csl.kernels.choice import Choice
from meshc.backends.csl.kernels.codes import Codes
from meshc.backends.csl.kernels.elementwise import Elements
from meshc.backends.csl.kernels.gates import Gates
from meshc.backends.csl.kernels.masks import Masks
from meshc.backends.csl.kernels.registers import loaded
from meshc.backends.csl.kernels.rotary import Rotary
from meshc.backends.csl.kernels.routing import Routing
from meshc.backends.csl.kernels.shared_code import SharedCode, Writer, repeat
from meshc.backends.csl.kernels.statement_cycles import StatementCycles
from meshc.backends.csl.spelling.expressions import expression
from meshc.backends.csl.spelling.memory_dsds import Descriptors, builtin, element
from meshc.backends.csl.spelling.names import Names
from meshc.backends.csl.tree import syntax_tree as csl
from meshc.ir.affine import Cond, Expr
from meshc.ir.core import Op
from meshc.ir.ops.tile import Compute
from meshc.ir.types import DType
from meshc.ir.views import View
from meshc.support.diagnostics import fail


class Kernels:
    """Writes kernels; ``code`` has the functions, registers and scratch that they need."""

    def __init__(
        self,
        names: Names,
        descriptors: Descriptors,
        costs: Costs,
        known_at_start: Collection[str] = (),
        of_rounds: Collection[str] = (),
        phases: Mapping[Op, Cond] = MappingProxyType({}),
    ) -> None:
        """``known_at_start`` are names that have their values when a program starts: run-time
        scalars and coordinates. ``phases`` has the guard of the phase around a statement, in
        programs of several phases."""
        self.names = names
        self.descriptors = descriptors
        self.costs = costs
        self.code = SharedCode(names, descriptors)
        self.codes = Codes(self.code)
        self.rotary = Rotary(self.code, costs, known_at_start, of_rounds, phases)
        groups = (
            Rows(self.code, costs),
            Routing(self.code, costs),
            Choice(self.code, costs),
            Gates(self.code, costs),
            Caches(self.code),
            Masks(self.code),
            Elements(self.code),
        )
        self._reader = StatementCycles(
            costs,
            descriptors.windows,
            self.code.named,
            self.code.registers.kept,
            descriptors.numbers,
            descriptors.starts,
        )
        self._written: dict[Op, list[csl.Statement]] = {}
        self._writers: dict[str, Writer] = {
            **{name: write for group in groups for name, write in group.writers.items()},
            "rope": self.rotary.statements,
            "gemm": self._gemm,
            "rotate": self._rotate,
            "select_lanes": self._select_lanes,
        }

    @property
    def known(self) -> tuple[str, ...]:
        """The kernels that can be emitted."""
        return (*self._writers, KERNEL)

    def statements(self, op: Compute) -> list[csl.Statement]:
        """Those of one kernel out of ``known``."""
        if op.kernel == KERNEL:
            return self.codes.statements(op)
        given, write = _windows(op), self._writers[op.kernel]
        part = at_once(op, given)
        body = self.code.in_one_type(part, widened(op, part), lambda windows: write(op, windows))
        return body if part is given else self.code.over("part", given[0].dims[0], body)

    def work(self, op: Compute, local: Collection[str] = ()) -> tuple[int, int]:
        """Predicted cycles of one kernel, and the vector steps among them, during which the core's
        transfers stand still; names in the program that are ``local`` need no load."""
        if op not in self._written:
            self._written[op] = self.statements(op)
        return self.cycles_of(self._written[op], local)

    def cycles_of(self, body: csl.Statements, local: Collection[str] = ()) -> tuple[int, int]:
        """The same of statements."""
        near = {self.descriptors.spell(name) for name in local}
        return self._reader.of(body, [each.text for each in near if isinstance(each, csl.Name)])

    # --- moves

    def _rotate(self, op: Compute, windows: list[Window]) -> list[csl.Statement]:
        """The first dim moves down by ``by``, one place at a time."""
        (all_,) = windows
        by = op.params["by"]
        assert isinstance(by, Expr)
        count, stride = all_.dims[0].extent, all_.dims[0].stride
        slot = all_.inner(all_.dims[1:])
        spare = self.code.scratch_window(slot.dtype, slot.size).inner(dense(slot.dims))
        place = _index("i", count - 1) * stride
        step = self.code.copied(slot.moved(place), slot.moved(place + stride))
        body = [
            *self.code.copied(spare, slot),
            *repeat("i", count - 1, step),
            *self.code.copied(slot.moved((count - 1) * stride), spare),
        ]
        places = repeat("_", csl.Name("places"), body)
        name = self.code.function("rotate", all_, ["places: i16"], places)
        return [csl.do(name, expression(by % count, self.descriptors.spell))]

    def _select_lanes(self, op: Compute, windows: list[Window]) -> list[csl.Statement]:
        """Lane i takes lane i + shift, and 0 where there is none."""
        to, source = windows
        shift = op.params["shift"]
        assert isinstance(shift, Expr)
        lanes, given = to.dims[0].extent, source.dims[0].extent
        lane = own("lane")
        target = to.moved(lane * to.dims[0].stride).inner(to.dims[1:])
        taken = source.moved(own("from") * source.dims[0].stride).inner(source.dims[1:])
        there = csl.infix(csl.infix("from", ">=", 0), "and", csl.infix("from", "<", given))
        body = [
            csl.const("from", csl.Name("lane") + "places"),
            csl.when(there, self.code.copied(target, taken)),
        ]
        selected = [*self.code.set(to, 0.0), csl.loop("lane", lanes, body)]
        name = self.code.function("select", to, ["places: i16"], selected)
        return [csl.do(name, expression(shift, self.descriptors.spell))]

    # --- products

    def _gemm(self, op: Compute, windows: list[Window]) -> list[csl.Statement]:
        to, left, right = windows
        if left.dtype != right.dtype or (left.dtype == DType.F32 and to.dtype.half):
            fail(
                "csl-dtype", f"a product of {left.dtype} and {right.dtype} into {to.dtype}", op.span
            )
        found = self._batches(op)
        if op.params["accumulate"] or self._plan(op).fresh:
            return found
        return [*self.code.set(to, 0.0), *found]

    def _plan(self, op: Compute) -> Plan:
        """The way that the call says, zeros included. Raises ``csl-unassigned`` where it says none
        that there is."""
        found = products.planned_call(op, self.costs)
        if found is None:
            said = f"the way '{op.way}', which it cannot take" if op.way else "no way"
            fail(
                "csl-unassigned",
                f"the call 'gemm' of %{_windows(op)[0].buffer.name} says {said}",
                op.span,
                help="run the pass select-csl-products",
            )
        return found

    def _batches(self, op: Compute) -> list[csl.Statement]:
        """Loops over leading dims around one product."""
        said = call(op)
        found: list[csl.Statement] = [self._product(op, said.each(lambda place: own(f"h{place}")))]
        for place, batch in reversed(said.batches.items()):
            found = self.code.over(f"h{place}", batch.dim, found)
        return found

    def _product(self, op: Compute, product: Product) -> csl.Do:
        """A call of the function that does one product."""
        chosen = self._plan(op)
        chosen = replace(chosen, product=product.flipped() if chosen.flipped else product)
        starts: dict[str, csl.Expression] = {}
        windows = []
        for label, one in zip("cab", _sides(chosen.product), strict=True):
            fixed = one.start.constant
            moving = one.start - fixed
            if moving.is_const and not (chosen.block and label != "c"):
                windows.append(one)
                continue
            if chosen.block:  # long code, which calls of the same buffers share
                fixed, moving = 0, one.start
            starts[f"{label}_at"] = self.descriptors.at(one.buffer.name, moving)
            windows.append(Window(one.buffer, one.dtype, own(f"{label}_at") + fixed, one.dims))
        inner = Product(*windows)
        body = self._body(replace(chosen, product=inner), op.dsr)
        name = self.code.function("gemm", product.c, [f"{n}: i16" for n in starts], body)
        return csl.do(name, *starts.values())

    def _body(self, plan: Plan, dsr: int) -> list[csl.Statement]:
        if plan.form == "outer":
            return self._outer(plan)
        if plan.form == "packed":
            return self._packed(plan)
        if plan.form == "mapped":
            return self._mapped(plan.product, dsr, plan.rebased, plan.fresh)
        return self._looped(plan.product)

    def _mapped(
        self, product: Product, dsr: int, rebased: bool, fresh: bool = False
    ) -> list[csl.Statement]:
        """Sums in the registers ``dsr``, which are loaded here where no others hold the row: for
        each row, or once, with any place, and then ``rebased``. A ``fresh`` row is written by the
        first factor."""
        m, _, _ = product.extents
        at = _index("i", m)
        row = product.c.moved(at * product.c.dims[0].stride).inner(product.c.dims[1:])
        factors = product.a.moved(at * product.a.dims[0].stride).inner(product.a.dims[1:])
        first = product.b.inner(product.b.dims[1:])
        memory, cell = self.descriptors.memory, self.descriptors.cell
        body: list[csl.Statement] = []
        if dsr > AT_CALL:
            held = memory(row)
            assert isinstance(held, csl.Name)
            sums = self.code.registers.loaded(held, dsr)
        else:
            sums = self.code.registers.moving()
            body.append(csl.const("row", memory(_at_start(row) if rebased else row)))
            body += [loaded(name, "row") for name in sums]
        rows = self.code.registers.rows()
        added = csl.do(_multiply_add(product), sums.to, sums.source, rows, "factor")
        factor = f"factor: {element(product.b.dtype)}"
        step = self.code.function("accumulate", product.c, [factor], [added])
        kept = csl.record(save_address=csl.TRUE)
        body.append(loaded(rows, memory(_at_start(first) if rebased else first), kept))
        if fresh:
            (count,) = factors.fewest
            multiply = builtin("fmul", product.c.dtype)
            body.append(csl.do(multiply, sums.to, cell(factors), rows))
            factors = factors.moved(count.stride).inner([Dim(count.extent - 1, count.stride)])
        called = csl.do("@map", step, memory(factors))
        if not rebased:
            return self.code.over("i", product.a.dims[0], [*body, called])
        places = {sums.to: row, sums.source: row, rows: first}
        bases = [
            csl.do("@set_dsr_base_addr", name, csl.address(cell(at))) for name, at in places.items()
        ]
        return [*body, *self.code.over("i", product.a.dims[0], [*bases, called])]

    def _packed(self, plan: Plan) -> list[csl.Statement]:
        """The rows of a block of columns copied one behind the other, then mapped. Columns of the
        last block that there are none of are zeros, and their sums stay as they are."""
        product, block = plan.product, plan.block
        _, k, _ = product.extents
        columns = products.packed_columns(product, block)
        scratch = self.code.scratch_window(product.b.dtype, k * block)
        source, inner = products.packed(product, columns, scratch.buffer)
        body = self.code.copied(inner.b, source)
        count = product.b.dims[1].count
        if count is not None:
            missing = columns.start + (block - count)
            number = expression(missing, self.descriptors.spell)
            body.append(
                csl.when(csl.infix(number, ">", 0), self._zeros(inner.b, missing, number), share=0)
            )
        body += self._mapped(inner, AT_CALL, plan.rebased)
        return self.code.over_stretch(columns, body)

    def _zeros(self, packed: Window, missing: Expr, number: csl.Expression) -> list[csl.Statement]:
        """The ``missing`` last columns of ``packed`` rows set to zero, row by row or column by
        column, whichever are fewer."""
        rows, columns = packed.dims
        if rows.extent > columns.extent:
            last = packed.moved(columns.extent - 1 - own("missing")).inner([rows])
            return repeat("missing", number, self.code.set(last, 0.0))
        row = _index("j", rows.extent)
        behind = packed.moved(row * rows.stride + (columns.extent - missing))
        tail = behind.inner([Dim(columns.extent, 1, missing)])
        return repeat("j", rows.extent, self.code.set(tail, 0.0))

    def _looped(self, product: Product) -> list[csl.Statement]:
        m, k, _ = product.extents
        i, j = _index("i", m), _index("j", k)
        row = product.c.moved(i * product.c.dims[0].stride).inner(product.c.dims[1:])
        right = product.b.moved(j * product.b.dims[0].stride).inner(product.b.dims[1:])
        rows, columns = product.a.dims
        factor = self.descriptors.cell(product.a.moved(i * rows.stride + j * columns.stride))
        memory = self.descriptors.memory
        inner = [
            csl.const("row", memory(row)),
            csl.do(_multiply_add(product), "row", "row", memory(right), factor),
        ]
        return self.code.over("i", rows, self.code.over("j", columns, inner))

    def _outer(self, plan: Plan) -> list[csl.Statement]:
        """Loops over blocks of rows, columns and depth, as far as they are not taken at once."""
        over = self.code.over_stretch
        rows, columns, depths = products.outer_parts(plan.product, plan.depth, plan.block)
        found: list[csl.Statement] = []
        for row in rows:
            in_row: list[csl.Statement] = []
            for column in columns:
                sums: list[csl.Statement] = []
                for deep in depths:
                    part = products.part(plan.product, row, column, deep)
                    sums += over(deep, self._round(part, plan.fresh))
                in_row += over(column, sums)
            found += over(row, in_row)
        return found

    def _round(self, product: Product, fresh: bool) -> list[csl.Statement]:
        """All products of the columns and rows, then their sum into the result, or, when it is
        ``fresh``, in its place."""
        m, depth, n = product.extents
        dtype = product.c.dtype
        left, right = products.broadcast(product)
        memory = self.descriptors.memory

        def part(first: int, count: int) -> csl.Expression:
            where = self.code.scratch_window(
                product.c.dtype, depth * m * n, first * m * n, count * m * n
            )
            return memory(where)

        add, multiply = builtin("fadd", dtype), builtin("fmul", dtype)
        factors = [
            memory(side, f"{self.names.of('buffer', side.buffer.name)}_{what}")
            for side, what in ((left, "columns"), (right, "rows"))
        ]
        sums = memory(product.c)
        if fresh and depth == 1:
            return [csl.do(multiply, sums, *factors)]
        found: list[csl.Statement] = [csl.do(multiply, part(0, depth), *factors)]
        if dtype == DType.F32:
            first = self.code.scratch_window(product.c.dtype, depth * m * n, 0, m * n)
            each = memory(first.moved(_index("j", depth) * (m * n)))
            return [*found, *repeat("j", depth, [csl.do(add, sums, sums, each)])]
        halvings = products.halvings(depth)
        for kept, more in halvings[:-1] if fresh else halvings:
            found.append(csl.do(add, part(0, more), part(0, more), part(kept, more)))
        last = (part(0, 1), part(1, 1)) if fresh else (sums, part(0, 1))
        return [*found, csl.do(add, sums, *last)]


def _windows(op: Compute) -> list[Window]:
    """The operands. Raises ``csl-dtype`` for element types that CSL does not have."""
    found = [window(v, op.span) for v in op.operands if isinstance(v, View)]
    for one in found:
        if op.kernel not in CACHES:
            element(one.dtype)
    return found


def _sides(product: Product) -> tuple[Window, Window, Window]:
    return product.c, product.a, product.b


def _at_start(row: Window) -> Window:
    """As many elements from where the buffer begins: a constant, which a register is loaded with
    that gets an address before it is used."""
    return row.moved(-row.start)


def _multiply_add(product: Product) -> str:
    """The multiply-accumulate builtin."""
    if product.mixed:
        return "@fmachs"
    return builtin("fmac", product.c.dtype)


def _index(variable: str, count: int) -> Expr:
    """The variable of a loop of ``count`` steps that :func:`_repeat` writes."""
    return own(variable) if count > 1 else Expr.const(0)
