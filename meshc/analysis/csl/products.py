"""The kernel ``gemm`` in CSL: four ways to write it, and what they cost.

*mapped*: one multiply-accumulate of a row per element of the left operand, the row's DSD in a
register that moves on by itself; registers of a sum that is one row are loaded before the start.
Those of more rows are loaded for each row, or *rebased*: loaded once, from constant descriptors,
and given the address of row after row. A single row of sums that is not added to is *fresh*: what
the first factor gives is written over it, where zeros are written first otherwise.
*packed*: mapped, for so many columns at a time whose rows are copied to scratch, one behind the
other; where only the run knows how many columns there are, the last block is filled with zeros.
*looped*: a multiply-accumulate of a row at a time where rows do not follow each other in memory.
*outer*: all products of a few columns and rows at once into scratch, then pairwise sums; it pays
where rows are short, because the cost of a call is paid once for many of them. Extents that are
known only when the program runs go in blocks of so many, and one by one what no block holds, so
that no descriptor changes its length.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import NamedTuple

from meshc.analysis.csl.blocks import Stretch, blocks_of, power_of_two, stretches
from meshc.analysis.csl.factors import Product, call, one_product, without_joining
from meshc.analysis.csl.instruction_costs import (
    BANKS,
    BEGIN_OF_LOOP,
    CALL,
    CONSTANT,
    DESCRIPTOR,
    DRAINED,
    LENGTH,
    MOVED,
    OPERATION,
    PASS,
    WRITTEN,
    Costs,
    looped,
    rows_of_grids,
    setup,
    walked,
    writes,
)
from meshc.analysis.csl.strided_windows import Dim, Window, has_one_dim, own
from meshc.ir.affine import Expr
from meshc.ir.ops.tile import Compute
from meshc.ir.types import BufferType, DType
from meshc.ir.values import Value

MOST_SCRATCH_BYTES = 8192
_CALLED = 4  # scalar cycles of a call; a function without a loop is written in its place
_STATEMENTS = 6  # operations of a pass that make it longer to write out and take no cycles
_FILLED = 6  # the test whether a block of columns has more than there are
_SUMS_MOVED = 4  # of the DSD of sums whose place is a parameter
_LENGTHENED = 6  # of factors as many as the run says, beyond the wait for a register's address
_FACTOR = 4  # of a number that the run says, in a length
_REBASED = "_rebased"
_FRESH = "_fresh"


@dataclass(frozen=True)
class Plan:
    """A way to write ``product`` and its predicted cycles; ``depth`` of k at once for outer, and
    ``block`` rows or columns at once where their number is known only when the program runs, or
    columns for packed."""

    form: str
    product: Product
    cycles: int
    depth: int = 0
    block: int = 0
    steps: int = 0  # cycles of vector steps among them, when nothing else of the core can issue
    fresh: bool = False  # writes its result over what was there, so no zeros are needed
    flipped: bool = False  # ``product`` is the transpose of what was asked for
    rebased: bool = False  # registers are loaded once for all rows

    @property
    def scratch(self) -> int:
        """Elements of scratch."""
        if self.form == "packed":
            return self.product.extents[1] * self.block
        if self.form != "outer" or (self.fresh and self.depth == 1):
            return 0
        m, n = _at_once(self.product, self.block)
        return self.depth * m * n

    @property
    def scratch_dtype(self) -> DType:
        """Their type: that of sums for outer, and that of the rows that are copied for packed."""
        return (self.product.b if self.form == "packed" else self.product.c).dtype

    @property
    def way(self) -> str:
        """How a module says it: ``mapped``, ``packed_by_BLOCK``, both also ``_rebased``, the first
        also ``_fresh``, ``looped``, any of them ``_transposed``, ``outer_DEPTH``,
        ``outer_DEPTH_by_BLOCK``."""
        depth = f"_{self.depth}" if self.depth else ""
        block = f"_by_{self.block}" if self.block else ""
        rebased = _REBASED if self.rebased else ""
        fresh = _FRESH if self.fresh and self.form == "mapped" else ""
        turned = "_transposed" if self.flipped else ""
        return f"{self.form}{depth}{block}{rebased}{fresh}{turned}"


def planned_call(op: Compute, costs: Costs) -> Plan | None:
    """Each product of a call of ``gemm`` in the way that it says, with zeros where it needs them;
    None where that is none."""
    accumulate = bool(op.params["accumulate"]) or call(op).adds
    return planned(one_product(op), without_joining(op.way), costs, accumulate)


def planned(product: Product, way: str, costs: Costs, accumulate: bool = True) -> Plan | None:
    """``product`` written in a ``way``; None where it cannot be, or there is no such way."""
    said = way.removesuffix("_transposed")
    flipped = said != way
    if product.in_chunks and way not in ("mapped", f"mapped{_REBASED}"):
        return None
    one = product.flipped() if flipped else product
    said, fresh = said.removesuffix(_FRESH), said.endswith(_FRESH)
    said, rebased = said.removesuffix(_REBASED), said.endswith(_REBASED)
    form, _, rest = said.partition("_")
    depth, _, block = rest.partition("by_")
    numbers = [int(n) if n.isdecimal() else 0 for n in (depth.rstrip("_"), block)]
    found: Plan | None = None
    if form == "outer" and not flipped:
        found = _outer(product, costs, *numbers)
    elif form == "packed":
        found = _packed(one, costs, numbers[1], rebased)
    elif form in ("mapped", "looped"):
        found = _mapped(one, costs, rebased) if form == "mapped" else _looped(one, costs)
    if found is None:
        return None
    if fresh and (accumulate or form != "mapped" or not _may_be_fresh(found.product)):
        return None
    found = replace(_fresh(found, costs) if fresh else found, flipped=flipped)
    if found.way != way:
        return None
    return found if accumulate or fresh else _from_nothing(found, costs)


def _may_be_fresh(product: Product) -> bool:
    """Whether the first factor's multiple may be written over the sums: those of one row, and of
    the factors' type, as no product of two types is one operation."""
    m, k, _ = product.extents
    return m == 1 and k > 1 and product.constant and product.c.dtype == product.b.dtype


def _fresh(plan: Plan, costs: Costs) -> Plan:
    """``plan`` with a first operation that multiplies alone and so reads no sums."""
    c, a, b = plan.product.c, plan.product.a, plan.product.b
    (_, k, n), (deep, across), row = plan.product.extents, b.dims, a.dims[1].stride
    others = Product(
        c,
        a.moved(row).inner([a.dims[0], Dim(k - 1, row)]),
        b.moved(deep.stride).inner([Dim(k - 1, deep.stride), across]),
    )
    paces = (c.dims[1].stride, across.stride)
    steps = costs.vector("mul", c.dtype, n, paces) + _rows_cycles(others, costs)
    cycles = plan.cycles - plan.steps + steps
    return replace(plan, cycles=cycles, steps=steps, fresh=True)


def _from_nothing(plan: Plan, costs: Costs) -> Plan:
    """``plan`` with zeros before it, or without the sum onto them."""
    _, k, _ = plan.product.extents
    dtype = plan.product.c.dtype
    dense = zeros(plan.product, costs)
    once = setup([plan.product.c, 0]) + dense
    whole = plan.depth == k and plan.product.a.dims[1].count is None
    if plan.form == "outer" and whole and dtype.half:
        return replace(plan, cycles=plan.cycles - once, steps=plan.steps - dense, fresh=True)
    return replace(plan, cycles=plan.cycles + once, steps=plan.steps + dense)


def zeros(product: Product, costs: Costs) -> int:
    """Cycles of writing zeros over the sums, set-up apart."""
    m, _, n = product.extents
    return costs.vector("add", product.c.dtype, m * n, (), rows_of_grids([product.c]))


def _rows_cycles(product: Product, costs: Costs) -> int:
    """All multiply-accumulates of a row, set-up apart."""
    m, k, n = product.extents
    kind = "mixed" if product.mixed else "mac"
    strides = (product.c.dims[1].stride, product.b.dims[1].stride)
    cycles = m * k * costs.vector(kind, product.c.dtype, n, strides)
    if product.b.dtype == DType.F32 and strides[0] == strides[1]:
        instead = 0 if strides[0] and strides[0] % BANKS == 0 else writes(n)
        cycles += (n - instead) * _meetings(product, costs)
    elif product.b.dtype == DType.F32 and all(strides):
        cycles += m * k * n // BANKS  # in the mean over where rows begin
    return cycles


def _meetings(product: Product, costs: Costs) -> int:
    """Pairs of rows of sums and of factors in one bank group, which are read one after the other;
    where rows lie is the run's to say, as many as in the mean."""
    m, k, _ = product.extents
    apart, step = costs.apart(product.c, product.b)
    if step < BANKS:
        return m * k // BANKS
    sums = Counter((apart + i * product.c.dims[0].stride) % BANKS for i in range(m))
    factors = Counter(j * product.b.dims[0].stride % BANKS for j in range(k))
    return sum(count * factors[bank] for bank, count in sums.items())


def _mapped(
    product: Product, costs: Costs, rebased: bool = False, kept: bool = True
) -> Plan | None:
    """Rows of ``b`` must follow each other, so that the register finds the next one. Registers are
    loaded from DSDs of one dim, those of one row of sums for good if they are ``kept``; the first
    call is made while they are written. They are ``rebased`` where there are several rows."""
    m, k, n = product.extents
    if rebased and m == 1:
        return None
    rows, columns = product.b.dims
    if k > 1 and (rows.stride != n * columns.stride or columns.count is not None):
        return None
    mapped = product.a.inner(product.a.dims[1:])
    if not all(has_one_dim(side.trailing(1)) for side in (product.c, product.b)):
        return None
    if not (mapped.constant if product.in_chunks else has_one_dim(mapped)):
        return None
    steps = _rows_cycles(product, costs)
    body = m * k * CALL + steps
    if rebased:
        fixed = [side.dims[1].count is None for side in (product.b, product.c, product.c)]
        loads = sum(CONSTANT if one else costs.load for one in fixed)
        row = DRAINED + WRITTEN + (0 if product.a.dims[1].count is None else _LENGTHENED)
        once = loads + _CALLED + BEGIN_OF_LOOP
        return Plan("mapped", product, body + m * row + once, steps=steps, rebased=True)
    loads = WRITTEN - (CALL - OPERATION) + (CONSTANT if product.b.start.is_const else costs.load)
    loads += 0 if kept and product.one_row else 2 * costs.load
    passes = _CALLED + BEGIN_OF_LOOP + m * (PASS + 2 * MOVED) if m > 1 else 0
    return Plan("mapped", product, body + m * loads + passes, steps=steps)


def _looped(product: Product, costs: Costs) -> Plan | None:
    m, k, _ = product.extents
    if not (product.c.trailing(1).walked and product.b.trailing(1).walked):
        return None
    once = walked(3, 1) + _element(product.a)
    once += _moved(product.b) if k > 1 else 0
    once += _moved(product.c) if m > 1 else 0
    once += sum(_length(row.dims[1]) for row in (product.c, product.b))
    counted = once + _STATEMENTS
    passes = looped(m, k * counted, 0) if m > 1 else 0
    passes += m * looped(k, counted, 0) if k > 1 else 0
    steps = _rows_cycles(product, costs)
    cycles = (_CALLED if m * k > 1 else 0) + m * k * once + passes + steps
    return Plan("looped", product, cycles, steps=steps)


def packed_columns(product: Product, block: int) -> Stretch:
    """The columns of ``product`` in blocks; the last may have more than there are when the program
    runs."""
    columns = _columns(product)
    times = columns.extent // block
    count = None if columns.count is None else (columns.count + (block - 1)) // block
    loop = None if times == 1 else Dim(times, block, count)
    start = own("column") * block if loop else Expr.const(0)
    return Stretch(start, block, times, loop, "column")


def packed(product: Product, columns: Stretch, scratch: Value) -> tuple[Window, Product]:
    """The rows of a block of ``columns``, and the product with them once they are copied to
    ``scratch``, which holds them one behind the other: as many as there is room for, since a DSD
    of several dims has constant extents, though no factor may meet the last of them."""
    block = columns.length
    (cm, cn), (bk, bn) = product.c.dims, product.b.dims
    source = product.b.moved(columns.start * bn.stride)
    sums = product.c.moved(columns.start * cn.stride).inner([cm, Dim(block, cn.stride)])
    rows = (Dim(bk.extent, block), Dim(block, 1))
    copied = Window(scratch, product.b.dtype, Expr.const(0), rows)
    every = source.inner([Dim(bk.extent, bk.stride), Dim(block, bn.stride)])
    return every, Product(sums, product.a, copied)


def most_packed(product: Product, free_bytes: int) -> int:
    """The most columns whose rows have room in scratch and that fill the product in equal blocks;
    0 where there are none."""
    _, k, _ = product.extents
    n = _columns(product).extent
    most = min(n, free_bytes // (k * product.b.dtype.bytes))
    return next((block for block in range(most, 0, -1) if n % block == 0), 0)


def _columns(product: Product) -> Dim:
    """The columns that result and right factor both have room for."""
    return min(product.c.dims[1], product.b.dims[1], key=lambda dim: dim.extent)


def _whole_columns(side: Window) -> bool:
    """Whether ``side`` begins at the first of the columns that there may be, so that all of them
    are its own, where only the run knows how many there are."""
    columns = side.dims[1]
    if columns.count is None:
        return True
    start, every = side.start, columns.stride * columns.extent
    within = start.constant // max(1, columns.stride) % columns.extent
    return not within and all(factor % every == 0 for _, factor in start.terms)


def _packed(product: Product, costs: Costs, block: int, rebased: bool) -> Plan | None:
    _, k, _ = product.extents
    if block < 1 or _columns(product).extent % block:
        return None
    if not (_whole_columns(product.c) and _whole_columns(product.b)):
        return None
    columns = packed_columns(product, block)
    size, dtype = k * block, product.b.dtype
    scratch = Value("scratch", BufferType(dtype, (size,)))
    source, inner = packed(product, columns, scratch)
    mapped, pair = _mapped(inner, costs, rebased, kept=False), (inner.b, source)
    if mapped is None or not all(one.walked for one in pair):
        return None
    paces = tuple(one.pace for one in pair)
    copied = costs.vector("add", dtype, size, paces, rows_of_grids(pair))
    filled = 0 if _columns(product).count is None else _FILLED
    lengths = sum(LENGTH for one in pair if not one.constant)
    once = setup(pair) + lengths + copied + filled + mapped.cycles
    cycles = columns.times * once + _passes(columns)
    steps = columns.times * (copied + mapped.steps)
    return Plan("packed", product, cycles, 0, block, steps, rebased=rebased)


def _moved(rows: Window) -> int:
    """Scalar cycles of a DSD moved to the row that a loop's variable numbers."""
    return MOVED if rows.dims[0].stride != 1 else MOVED - 1


def _length(dim: Dim) -> int:
    """Scalar cycles of the length of a DSD over ``dim``, where the run says it."""
    if dim.count is None:
        return 0
    return LENGTH + _FACTOR * sum(factor != 1 for _, factor in dim.count.terms)


def _element(left: Window) -> int:
    """Scalar cycles of the address of a left factor, and of its load."""
    strides = [dim.stride for dim in left.dims if dim.extent > 1]
    return sum(stride != 1 for stride in strides) + max(len(strides), 1)


def outer_blocks(product: Product) -> list[int]:
    """The blocks in which outer products may take rows and columns whose number is known only when
    the program runs: powers of two. None (0) where all are known; and no way at all for factors
    of another type than their sums."""
    if product.mixed:
        return []
    return blocks_of(product.c.dims) or [0]


def _at_once(product: Product, block: int) -> tuple[int, int]:
    """Rows and columns of the result that an outer product takes at once."""
    rows, columns = (
        d.extent if d.count is None else min(block, power_of_two(d.extent)) for d in product.c.dims
    )
    return rows, columns


def deepest(product: Product, block: int, free_bytes: int) -> int:
    """So many columns and rows at once have room for their products; 0 where none has."""
    _, k, _ = product.extents
    m, n = _at_once(product, block)
    most = free_bytes // (m * n * product.c.dtype.bytes)
    return power_of_two(min(k, most)) if most > 0 else 0


class OuterParts(NamedTuple):
    """Rows, columns and depth of an outer product, each in parts."""

    rows: list[Stretch]
    columns: list[Stretch]
    depths: list[Stretch]


def outer_parts(product: Product, depth: int, block: int) -> OuterParts:
    """The parts in which an outer product is taken."""
    m, n = _at_once(product, block)
    return OuterParts(
        stretches(product.c.dims[0], m, "row"),
        stretches(product.c.dims[1], n, "column"),
        stretches(product.a.dims[1], depth, "i"),
    )


def part(product: Product, row: Stretch, column: Stretch, deep: Stretch) -> Product:
    """The part of ``product`` that these stretches say."""

    def cut(side: Window, first: Stretch, second: Stretch) -> Window:
        (outer, inner), both = side.dims, (first.length, second.length)
        moved = side.moved(first.start * outer.stride + second.start * inner.stride)
        return moved.inner([Dim(both[0], outer.stride), Dim(both[1], inner.stride)])

    return Product(
        cut(product.c, row, column), cut(product.a, row, deep), cut(product.b, deep, column)
    )


def _outer(product: Product, costs: Costs, depth: int, block: int) -> Plan | None:
    if not 1 <= depth <= product.extents[1] or block not in outer_blocks(product):
        return None
    rows, columns, depths = outer_parts(product, depth, block)
    loops = any(one.loop is not None for one in (*rows, *columns, *depths))
    cycles, steps = _CALLED if loops else 0, 0
    for row in rows:
        cycles += _passes(row)
        for column in columns:
            cycles += row.times * _passes(column)
            for deep in depths:
                once = part(product, row, column, deep)
                times = row.times * column.times
                round_steps = _round_steps(once, costs)
                round_cycles = _round_cycles(once, round_steps)
                cycles += times * (_passes(deep) + deep.times * round_cycles)
                steps += times * deep.times * round_steps
    return Plan("outer", product, cycles, depth, block, steps)


def _passes(stretch: Stretch) -> int:
    """Cycles of the loop over a stretch: its passes, and the DSDs that each moves."""
    if stretch.loop is None:
        return 0
    return BEGIN_OF_LOOP + stretch.times * (PASS + 2 * MOVED)


def _round_cycles(product: Product, steps: int) -> int:
    """All products of the columns and rows, and their sum into the result, whose vector operations
    take so many ``steps``."""
    _, depth, _ = product.extents
    sums = 0 if product.c.start.is_const else 2 * _SUMS_MOVED
    factors = broadcast(product)
    multiplied = setup(factors) + DESCRIPTOR  # the results lie in scratch, one after the other
    added = setup([product.c, product.c]) + DESCRIPTOR
    if product.c.dtype == DType.F32:
        passes = looped(depth, added + sums, 1) if depth > 1 else 0
        return steps + multiplied + depth * (added + sums) + passes
    halves = len(halvings(depth)) * walked(3)
    return steps + multiplied + halves + added + sums


def _round_steps(product: Product, costs: Costs) -> int:
    """Cycles of the vector steps of a round; f32 parts are added one by one, and slowly where they
    lie in the sum's banks."""
    m, depth, n = product.extents
    dtype, part = product.c.dtype, m * n
    factors = broadcast(product)
    paces = tuple(side.pace for side in factors)
    steps = costs.vector("mul", dtype, depth * part, paces, rows_of_grids(factors))
    once = costs.vector("add", dtype, part, (), rows_of_grids([product.c]))
    if dtype == DType.F32:
        rows = rows_of_grids(factors)
        met = round(costs.meetings(factors, "mul", rows)) + _sums_that_meet(product, costs)
        return steps + depth * once + met
    return steps + sum(costs.vector("add", dtype, h * part, ()) for _, h in halvings(depth)) + once


def _sums_that_meet(product: Product, costs: Costs) -> int:
    """Cycles that sums of f32 lose to parts in scratch that lie in their bank groups. Parts follow
    each other evenly, so that every ``BANKS``-th one lies in the same group."""
    m, depth, n = product.extents
    size = depth * m * n
    scratch = Window(Value("scratch", BufferType(DType.F32, (size,))), DType.F32, Expr.const(0), ())
    part = (Dim(m * n, 1),)
    met = [
        round(
            costs.meetings(
                [product.c, scratch.moved(j * m * n).inner(part)], "add", rows_of_grids([product.c])
            )
        )
        for j in range(min(depth, BANKS))
    ]
    whole, rest = divmod(depth, len(met))
    return whole * sum(met) + sum(met[:rest])


def halvings(depth: int) -> list[tuple[int, int]]:
    """Pairwise sums of ``depth`` parts: (parts kept, parts added onto the first of them)."""
    found = []
    while depth > 1:
        kept = -(-depth // 2)
        found.append((kept, depth - kept))
        depth = kept
    return found


def broadcast(product: Product) -> tuple[Window, Window]:
    """Left and right factors as ``[k, m, n]``."""
    m, depth, n = product.extents
    (am, ak), (bk, bn) = product.a.dims, product.b.dims
    return (
        product.a.inner([Dim(depth, ak.stride), Dim(m, am.stride), Dim(n, 0)]),
        product.b.inner([Dim(depth, bk.stride), Dim(m, 0), Dim(n, bn.stride)]),
    )
