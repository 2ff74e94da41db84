"""Families of products with vectors that lie in memory, rounded. A block that has room for them
copies them; otherwise they come through the ring too, and it multiplies several of its row groups
by them at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from meshc.analysis.cuda.blocks import FRAGMENT, FRAGMENT_BYTES
from meshc.analysis.tasks.tiles import (
    MOST_TOGETHER,
    STREAMED_BLOCKS,
    coded_tile_blocks,
    columns_are_copied,
)
from meshc.backends.cuda.tasks.coded import block_bytes, block_type
from meshc.backends.cuda.tasks.columns import ZERO, Columns
from meshc.backends.cuda.tasks.families import NOT_UNROLLED, Placed, streamed_products
from meshc.backends.cuda.tasks.products import Product
from meshc.backends.cuda.tasks.statements import Statements, Text
from meshc.backends.cuda.tasks.storage import Storage
from meshc.backends.cuda.tasks.values import extents
from meshc.ir.batch import POSITION
from meshc.ir.ops import task
from meshc.support.diagnostics import fail

SUMS_APART = FRAGMENT * MOST_TOGETHER + 4
"""Floats from the sums of a vector to those of the next."""
HEAR = "mc::hear(ready, filled, mine.begin < mine.end);"
"""What the warp that brings does in front of a phase whose vectors others have given."""
TELL = "if (me == 0 && mine.begin < mine.end) mc::arrive(ready);"


def of_memory(family: Placed, storage: Storage) -> type[Product] | None:
    """How a family multiplies rows by vectors that lie in memory, rounded; None where it makes
    them itself."""
    for product in streamed_products(family):
        left = product.views()[1]
        for read in family.ops:
            if isinstance(read, task.Need) and read.result == left.buffer:
                if not storage.of_columns(read.view.buffer):
                    continue
                device, width = storage.module.the_device(), extents(left)[-1]
                fits = columns_are_copied(device, storage.tokens, width)
                return CopiedProduct if fits else StreamedProduct
    return None


@dataclass
class _OfMemory(Product):
    """A family of products whose left side lies in memory, rounded."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.whole = False
        left = self.left
        read = self.values.reads.get(left.buffer)
        if read is None or left.indices or left.reshape or left.order:
            fail("cuda-graph", "vectors that lie in memory are part of a value")
        buffer, (*lead, token, lane) = self.values.source(left.buffer, (ZERO, ZERO))
        first = lane // FRAGMENT
        if token != ZERO or first * FRAGMENT != lane:
            words = f"parts of left sides of products are no whole blocks of {FRAGMENT} lanes"
            fail("cuda-shape", f"{words} (%{buffer.name})")
        self.vectors, self.first_of_vectors = buffer, (*lead, token, lane)

    @property
    def _begin(self) -> str:
        """Where the vectors begin."""
        at = self.values.spelled(self.storage.place(self.vectors, self.first_of_vectors))
        name = self.storage.scratch(self.vectors)
        return name if at == "0" else f"{name} + {at}"


@dataclass
class CopiedProduct(_OfMemory):
    """A family of products whose left side a block copies, since it has room for it."""

    coming = ", coming"

    @property
    def asked(self) -> str:
        """The call by which they come, piece by piece."""
        return f"coming.ask<{-(-self.width // FRAGMENT)}>(columns, {self._begin}, me);"

    def columns(self) -> Columns:
        """They are asked for once blocks have met."""
        return Columns(lambda text: None, lambda text: text.add(self.asked))


@dataclass
class StreamedProduct(_OfMemory):
    """A family of products whose left side comes through the ring."""

    @property
    def _block(self) -> tuple[str, int, int]:
        """A block of the rows, in the library and in bytes, and those of the vectors beside it."""
        vectors = 2 * self.storage.tokens
        if self.form is None:
            return "mc::Numbers", FRAGMENT_BYTES, vectors * FRAGMENT
        return block_type(self.form), block_bytes(self.form), vectors * self.form.span

    @property
    def _together(self) -> int:
        """Blocks of as many row groups as are multiplied at once that a tile has place for
        (Streamed in mc_streamed.cuh)."""
        if self.form is None:
            return STREAMED_BLOCKS
        return coded_tile_blocks(self.storage.module.the_device(), *self._block[1:])

    @property
    def tile_bytes(self) -> int:
        """Bytes of a tile: rows of all groups, and vectors."""
        _, rows, vectors = self._block
        return self._together * (MOST_TOGETHER * rows + vectors)

    @property
    def kind(self) -> str:
        """The routine of the library."""
        return f"mc::Streamed<{self._block[0]}, BATCH, {MOST_TOGETHER}, {self._together}>"

    @contextmanager
    def _rounds(self, text: Text) -> Iterator[None]:
        """A loop over the block's tasks, of which those that have the same vectors some at once."""
        first, end = f"mine.first({self.family.first})", f"mine.last({self.family.end})"
        if self.family.routed is not None:
            self.family.check_experts()
            first, end = "mine.begin", "mine.end"
        left, alike = f"{end} - first", self.family.alike(self.of_tasks)
        if alike > 1:
            number = f"(first - {self.family.first})" if self.family.first else "first"
            left = f"min({left}, {alike} - {number} % {alike})"
        count = "1" if alike == 1 else f"{self.kind}::together({left})"
        text.add(NOT_UNROLLED)
        with text.within(f"for (int first = {first}, groups; first < {end}; first += groups) {{"):
            text.add(f"groups = {count};")
            yield

    def bring(self, text: Text) -> None:
        """Write what one thread does: it brings the block's row groups, and vectors."""
        place = self.matrix.block(self.lead, self.row_group, self.first_block)
        spelled = self.values.spelled
        with self._rounds(text):
            at = self.storage.place(self.vectors, self.first_of_vectors)
            vectors = self._begin
            given = f"ring, item, groups, {vectors}, {self.blocks}, pace, [&](int number) {{"
            if self.of_tasks:
                text.add("const int task = first;")
                self._point(text, at.free_vars)
            with text.within(f"{self.kind}::bring({given}", "});"):
                text.add("const int task = first + number;")
                self._point(text, place.free_vars)
                unit = 256 if self.form is None else block_bytes(self.form)
                block = f"(size_t)({spelled(place)}) * {unit}"
                text.add(f"return {self.matrix.place.name} + {block};")

    def _point(self, text: Text, names: frozenset[str]) -> None:
        """The dims of a task that are among ``names``."""
        if self.family.routed is not None and self.family.routed.expert in names:
            self.family.point_expert(text)
        self.family.point(text, names)

    def compute(self, text: Text) -> None:
        """Write what the workers do: products, and what follows each element."""
        epilogue = self._epilogue()
        before = self._before(epilogue)
        if before:
            Statements(self.values, text, self.locals).add(before)
        names = self._names(epilogue)
        with self._rounds(text):
            # How many row groups there are at once depends on which experts are chosen.
            alike = ", true" if self.family.routed is not None else ""
            given = f"WARPS, {self.blocks}, T{alike}>(parts, ring, item, groups)"
            text.add(f"{self.kind}::multiply<{given};")
            rows, count = self.rows, f"BATCH * {self.rows} * groups"
            if self.active:
                count = f"({count} + 31) / 32 * 32"
            text.add(NOT_UNROLLED)
            with text.within(f"for (int at = me; at < {count}; at += WORKERS) {{"):
                text.add(
                    f"const int i = at % {rows}, number = at / {rows} % groups;",
                    f"const int b = {self._vector}, task = first + number;",
                )
                if POSITION in names and self.storage.has_lengths:
                    text.add(self.storage.told("b"))
                self._point(text, frozenset(self.family.op.dims) & names)
                self._ahead(text, epilogue)
                self._follow(text, epilogue)

    @property
    def _vector(self) -> str:
        every = f"at / {self.rows} / groups"
        return f"min({every}, BATCH - 1)" if self.active else every

    @property
    def active(self) -> str:
        """Whether a thread has an element, of which there may be no whole warps."""
        whole = self.storage.tokens * self.rows % 32 == 0
        return "" if whole else f"at < BATCH * {self.rows} * groups"

    def _sum(self, row: str) -> str:
        return f"parts[b * {self.kind}::STRIDE + 16 * number + {row or 'i'}]"
