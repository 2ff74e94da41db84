"""Families of products: rows of weights come through the ring, and what follows is lane by lane."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from meshc.analysis.cuda.blocks import FRAGMENT
from meshc.analysis.tasks.tiles import (
    DOUBLED_VECTORS,
    coded_tile_bytes,
    digit_bytes,
    multiplied_whole,
    side_by_side,
    tile_bytes,
)
from meshc.backends.cuda.tasks.coded import block_bytes, block_type, coded_matrix, digits_type
from meshc.backends.cuda.tasks.columns import Columns, columns_of
from meshc.backends.cuda.tasks.families import Placed, rows_of, streamed_products
from meshc.backends.cuda.tasks.lanes import Lanes
from meshc.backends.cuda.tasks.matrix_places import Matrix
from meshc.backends.cuda.tasks.reserved import fresh
from meshc.backends.cuda.tasks.statements import Locals, Statements, Text, angle_of
from meshc.backends.cuda.tasks.storage import Storage
from meshc.backends.cuda.tasks.values import Values, extents
from meshc.ir.affine import Expr
from meshc.ir.batch import POSITION
from meshc.ir.core import Op
from meshc.ir.ops import task, tile
from meshc.ir.types import BufferType
from meshc.ir.values import Value
from meshc.ir.views import View
from meshc.support.diagnostics import fail


@dataclass
class Product:
    """A family of products, of ``values`` of a task; ``ranges`` are those of names around it."""

    family: Placed
    storage: Storage
    locals: Locals
    ranges: dict[str, tuple[int, int]]
    coming: ClassVar[str] = ""

    def __post_init__(self) -> None:
        requests = self.storage.tokens
        streamed = streamed_products(self.family)
        self.products = [*streamed]
        self.results = frozenset(op.views()[0].buffer for op in self.products)
        first = self.products[0]
        self.rows = extents(first.views()[0])[1]
        ranges = {**self.ranges, **self.family.ranges}
        ranges |= {"b": (0, requests - 1), "i": (0, self.rows - 1)}
        self.values = Values(self.storage, self.family.ops, ranges, self.family.waits)
        self.left = first.views()[1]
        if any(self.values.key(p.views()[1]) != self.values.key(self.left) for p in self.products):
            fail("cuda-graph", "products of a task multiply rows by different vectors")
        if self.rows * len(self.products) > FRAGMENT:
            fail("cuda-graph", f"a task has more than {FRAGMENT} rows of weights")
        rows = [*streamed.values()]
        self.form = rows[0].form
        if any(one.form != self.form for one in rows):
            called = ", ".join(f"%{one.streams[0].view.buffer.name}" for one in rows)
            fail("cuda-graph", f"{called}, which tasks multiply together, are of several formats")
        self.stream = rows[0].streams[0].view
        parts = [[stream.view.buffer for stream in one.streams] for one in rows]
        if self.form is None:
            self.matrix: Matrix = self.storage.matrix([one for (one,) in parts], self.rows)
        else:
            self.matrix = coded_matrix(self.storage, parts, self.rows, self.form)
        self.width = extents(View(rows[0].streams[0].result))[1]
        form, count = self.form, self.storage.tokens
        self.whole = form is not None and multiplied_whole(
            form.codes, form.group, form.span, count, self.width
        )
        self._place()

    def _place(self) -> None:
        """Where the row group of a task begins in its matrix."""
        *lead, row, column = rows_of(self.stream)
        whole = self.stream.buffer_type.shape[-1]
        own = FRAGMENT if self.form is None else self.form.span
        if self.width != whole and self.width % own:
            fail("cuda-shape", f"parts of {self.width} values are no whole blocks of {own}")
        self.blocks = -(-self.width // own)
        self.row_group = row // self.rows
        if self.row_group * self.rows != row:
            fail("cuda-graph", "tasks multiply rows that are no groups of a matrix")
        self.lead, self.first_block = lead, column // own

    # --- what it needs before

    @property
    def key(self) -> str:
        """What its columns are: the same for families that share them."""
        return self.values.key(self.left)

    @property
    def of_tasks(self) -> frozenset[str]:
        """The dims of a task on which its columns depend."""
        return self.values.names(self.left) & frozenset(self.family.op.dims)

    def columns(self) -> Columns:
        """How its columns are made."""
        statements = Statements(self.values, Text(), self.locals)
        kind = digits_type(self.form) if self.form is not None and self.whole else None
        return columns_of(self.values, self.left, statements, kind)

    @property
    def column_bytes(self) -> int:
        """Bytes of these."""
        count, width = self.storage.tokens, -(-self.width // FRAGMENT) * FRAGMENT
        if self.form is not None and self.whole:
            return digit_bytes(self.form.group, count, width)
        return 2 * count * (2 if count <= DOUBLED_VECTORS else 1) * width

    # --- text

    def bring(self, text: Text) -> None:
        """Write what one thread does: it brings the block's row groups."""
        with self.family.each(text):
            place = self.matrix.block(self.lead, self.row_group, self.first_block)
            self.family.point(text, place.free_vars)
            if self.form is not None:
                kind, unit = block_type(self.form), block_bytes(self.form)
                at = f"(size_t)({self.values.spelled(place)}) * {unit}"
                begin = f"{self.matrix.place.name} + {at}"
                given = f"ring, item, {begin}, {self.blocks}, {self.tile_blocks}, pace"
                text.add(f"mc::bring_coded_group<{kind}>({given});")
                return
            begin = f"{self.matrix.place.name} + (size_t)({self.values.spelled(place)}) * 256"
            count = f"{self.blocks}, {self.tile_blocks}, pace"
            text.add(f"mc::bring_row_group(ring, item, {begin}, {count});")

    @property
    def tile_bytes(self) -> int:
        """Bytes of a tile at the most."""
        device = self.storage.module.the_device()
        if self.form is None:
            return tile_bytes(device)
        pairs = self.whole and side_by_side(self.storage.tokens, 1) and not self.form.block
        return coded_tile_bytes(device, block_bytes(self.form), self.blocks, pairs)

    @property
    def tile_blocks(self) -> str:
        """Blocks of a tile."""
        if self.form is None:
            return "TILE_BLOCKS"
        return str(self.tile_bytes // block_bytes(self.form))

    def compute(self, text: Text) -> None:
        """Write what the workers do: columns that depend on the task, the product, and what follows
        it."""
        own = self.of_tasks
        epilogue = self._epilogue()
        before = self._before(epilogue)
        names = own | self._names(epilogue)
        if before:
            Statements(self.values, text, self.locals).add(before)
        if own:
            text.add("int made = -1;  // whose columns are there")
        with self.family.each(text):
            if POSITION in names and self.storage.has_lengths:
                text.add(self.storage.told("min(b, BATCH - 1)"))
            used = frozenset(self.family.op.dims) & names
            self.family.point(text, used)
            if own:
                self._columns_of_task(text, own)
            self._ahead(text, epilogue)
            given = f"columns, parts, turn, {self.blocks}, {self.tile_blocks}, me{self.coming}"
            kernel = "multiply_row_group<"
            if self.form is not None:
                kind = block_type(self.form)
                kernel = f"multiply_coded_group<{f'mc::Whole<{kind}>' if self.whole else kind}, "
            product = f"mc::{kernel}WARPS, BATCH>(ring, item, {given})"
            text.add(f"const float sum = {product};")
            with text.within("if (me < LANES) {"):
                self._follow(text, epilogue)

    @property
    def active(self) -> str:
        """Whether a thread has an element; empty where each has one."""
        there = "me < 16 * BATCH"
        return there if self.rows == FRAGMENT else f"{there} && i < {self.rows}"

    def _follow(self, text: Text, epilogue: Sequence[Op]) -> None:
        """What follows the product, of the element of a thread."""
        self._sums(text)
        gives = [op for op in epilogue if isinstance(op, task.Give)]
        lanes = Lanes(self.values, text, True)
        lanes.add([op for op in epilogue if not isinstance(op, task.Give)])
        if not self.active:
            lanes.add(gives)
            return
        with text.within(f"if ({self.active}) {{"):
            lanes.add(gives)

    def _columns_of_task(self, text: Text, own: frozenset[str]) -> None:
        place = Expr.const(0)
        for name, size in self.family.op.domain.items():
            if name in own:
                place = place * size + Expr.var(name)
        with text.within(f"if (made != {self.values.spelled(place)}) {{"):
            text.add(f"made = {self.values.spelled(place)};")
            made = self.columns()
            made.ahead(text)
            made.then(text)

    def _epilogue(self) -> list[Op]:
        """What follows the product: all that gives need but the columns."""
        wanted: set[Value] = set()
        for op in self.family.ops:
            if isinstance(op, task.Give):
                wanted |= self.values.behind(op.source, self.results)
        return [op for op in self.family.ops if self._follows(op, wanted)]

    def _follows(self, op: Op, wanted: set[Value]) -> bool:
        if isinstance(op, task.Give):
            return True
        if isinstance(op, tile.For):
            return any(self._follows(one, wanted) for one in op.regions[0].ops)
        return (
            isinstance(op, tile.Compute)
            and op not in self.products
            and op.views()[0].buffer in wanted
        )

    def _before(self, epilogue: list[Op]) -> list[Op]:
        """Those of the epilogue that no thread can do alone, such as sums over whole rows: they are
        the same for all tasks, and taken out of ``epilogue``."""
        found: list[Op] = []
        for op in list(epilogue):
            if isinstance(op, tile.Compute) and not self._by_lane(op):
                out = op.views()[0]
                if self.values.depends(out, self.results) and op.kernel in _OF_NEIGHBOURS:
                    continue
                if self.values.depends(out, self.results) or self.values.names(out) & {
                    *self.family.op.dims
                }:
                    fail("cuda-graph", f"tile.{op.kernel} of what a task has, behind its product")
                epilogue.remove(op)
                found.append(op)
        return found

    def _by_lane(self, op: tile.Compute) -> bool:
        shape = op.views()[0].buffer.type
        assert isinstance(shape, BufferType)
        lanes = shape.shape in ((self.storage.tokens, self.rows), (self.rows,))
        return lanes and op.kernel not in _OF_NEIGHBOURS

    def _names(self, ops: Sequence[Op]) -> frozenset[str]:
        found: frozenset[str] = frozenset()
        for op in ops:
            if isinstance(op, tile.For):
                found |= self._names(op.regions[0].ops)
            if isinstance(op, tile.Compute) and op.kernel == "rope":
                found |= {POSITION}
            for view in op.views():
                found |= self.values.names(view)
        return found

    def _ahead(self, text: Text, epilogue: Sequence[Op]) -> None:
        """Ask for what the epilogue reads before the sums are known."""
        requests = self.storage.tokens
        for op in _computes(epilogue):
            for view in op.views()[1:]:
                value = view.buffer
                if value not in self.values.reads or value in self.values.registers:
                    continue
                if op.kernel == "rope" and view is op.views()[2]:
                    self._angles(text, op, view)
                    continue
                shape = extents(View(value))
                if shape == (requests, 1):
                    self._load(text, value, (Expr.var("b"), Expr.const(0)))
                    continue
                if (
                    shape not in ((requests, self.rows), (self.rows,))
                    or view.indices
                    or view.reshape
                ):
                    continue
                at = (Expr.var("b"), Expr.var("i")) if len(shape) == 2 else (Expr.var("i"),)
                self._load(text, value, at)

    def _load(self, text: Text, value: Value, own: tuple[Expr, ...]) -> None:
        name, element = fresh(self.storage.taken, value.name), self.values.element(View(value), own)
        text.add(f"const float {name} = {self._where_active(element)};")
        self.values.registers[value] = (name, own)

    def _where_active(self, element: str) -> str:
        return f"{self.active} ? {element} : 0.0f" if self.active else element

    def _angles(self, text: Text, op: tile.Compute, view: View) -> None:
        shape = extents(op.views()[0])
        pair = (Expr.var("i") % shape[-1]) // 2
        cosine, sine = angle_of(self.values, op, view, pair)
        names = [self.storage.taken.fresh(n) for n in ("cosine", "sine")]
        for name, element in zip(names, (cosine, sine), strict=True):
            text.add(f"const float {name} = {self._where_active(element)};")
        self.values.angles[op] = (names[0], names[1])

    def _sums(self, text: Text) -> None:
        """The sums of a thread's element, of each of the weights."""
        count = len(self.products)
        for number, op in enumerate(self.products):
            value = op.views()[0].buffer
            name = fresh(self.storage.taken, value.name)
            self.values.registers[value] = (name, (Expr.var("b"), Expr.var("i")))
            plus = f" + {number}" if number else ""
            text.add(
                f"const float {name} = {self._sum(f'{count} * i{plus}' if count > 1 else '')};"
            )

    def _sum(self, row: str) -> str:
        """The sum of the ``row`` of a thread's group and its vector, of its own row for none."""
        return f"mc::shuffle(sum, mc::lane() / 16 * 16 + {row})" if row else "sum"


def multiplied_alike(products: Sequence[Product]) -> None:
    """Products that have the same columns multiply by whole numbers if all can, in one format."""
    forms = {one.form if one.whole else None for one in products}
    for one in products:
        one.whole = one.whole and len(forms) == 1


_OF_NEIGHBOURS = frozenset({"square_sum", "row_sum", "row_max"})


def _computes(ops: Sequence[Op]) -> list[tile.Compute]:
    found = []
    for op in ops:
        if isinstance(op, tile.Compute):
            found.append(op)
        found += [one for region in op.regions for one in _computes(region.ops)]
    return found
