"""The kernel ``gemm`` in CSL: three ways to write it, and which is the cheapest.

*mapped*: one multiply-accumulate of a row per element of the left operand, the row's DSD in a
register that moves on by itself; registers of a sum that is one row are loaded before the start.
*looped*: the same where rows do not follow each other in memory.
*outer*: all products of a few columns and rows at once into scratch, then pairwise sums; it pays
where rows are short, because the cost of a call is paid once for many of them. Extents that are
known only when the program runs go in blocks of so many, and one by one what no block holds, so
that no descriptor changes its length.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from meshc.analysis.csl.blocks import Stretch, blocks_of, power_of_two, stretches
from meshc.analysis.csl.costs import (
    BANKS,
    CALL,
    CONSTANT,
    DESCRIPTOR,
    LENGTH,
    MOVED,
    PASS,
    START,
    START_OF_LOOP,
    WRITTEN,
    Costs,
    looped,
    rows_of_grids,
    setup,
    walked,
    writes,
)
from meshc.analysis.csl.windows import Dim, Window, has_one_dim, window
from meshc.ir.affine import Expr
from meshc.ir.ops.tile import Compute
from meshc.ir.types import BufferType, DType
from meshc.ir.values import Value
from meshc.ir.views import View
from meshc.support.diagnostics import fail

MOST_SCRATCH_BYTES = 8192
_CALLED = 4  # scalar cycles of a call; a function without a loop is written in its place
_STATEMENTS = 6  # operations of a pass that make it longer to write out and take no cycles
_SUMS_MOVED = 4  # of the DSD of sums whose place is a parameter


@dataclass(frozen=True)
class Product:
    """``c[m, n] += a[m, k] b[k, n]`` on one core; windows have just these dims."""

    c: Window
    a: Window
    b: Window

    @property
    def extents(self) -> tuple[int, int, int]:
        """m, k, n."""
        return self.a.dims[0].extent, self.a.dims[1].extent, self.b.dims[1].extent

    @property
    def mixed(self) -> bool:
        """Whether factors of 16 bits go into f32 sums."""
        return self.c.dtype == DType.F32 and self.b.dtype.half

    @property
    def one_row(self) -> bool:
        """Whether the result is one row at one place, whose registers are loaded for good."""
        return self.c.dims[0].extent == 1 and self.c.start.is_const and self.c.constant

    @property
    def constant(self) -> bool:
        """Whether all extents are known when the program is compiled."""
        return all(side.constant for side in (self.c, self.a, self.b))

    def flipped(self) -> Product:
        """The same product as ``transpose(c) += transpose(b) transpose(a)``."""
        return Product(_flip(self.c), _flip(self.b), _flip(self.a))


@dataclass(frozen=True)
class Plan:
    """A way to write ``product`` and its predicted cycles; ``depth`` of k at once for outer, and
    ``block`` rows or columns at once where their number is known only when the program runs."""

    form: str
    product: Product
    cycles: int
    depth: int = 0
    block: int = 0
    steps: int = 0  # cycles of vector steps among them, when nothing else of the core can issue
    fresh: bool = False  # writes its result over what was there, so no zeros are needed
    flipped: bool = False  # ``product`` is the transpose of what was asked for

    @property
    def scratch(self) -> int:
        """Elements of scratch."""
        if self.form != "outer" or (self.fresh and self.depth == 1):
            return 0
        m, n = _at_once(self.product, self.block)
        return self.depth * m * n

    @property
    def way(self) -> str:
        """How a module says it: ``mapped``, ``looped``, either ``_transposed``, ``outer_DEPTH``,
        ``outer_DEPTH_by_BLOCK``."""
        if self.form == "outer":
            return f"outer_{self.depth}" + (f"_by_{self.block}" if self.block else "")
        return f"{self.form}_transposed" if self.flipped else self.form


def cheapest(
    product: Product, costs: Costs, free_bytes: int, accumulate: bool = True, blocks: bool = True
) -> Plan:
    """The cheapest way, with at most ``free_bytes`` of scratch; zeros that it needs when it is not
    to ``accumulate`` count as part of it. Extents of the run count as the most that they can be;
    without ``blocks``, no outer products are tried for them."""
    ways = ["mapped", "looped", "mapped_transposed", "looped_transposed"]
    if product.constant or blocks:
        for block in _blocks(product):
            depth = _deepest(product, block, min(free_bytes, MOST_SCRATCH_BYTES))
            ways += [Plan("outer", product, 0, depth, block).way] if depth else []
    found = [p for way in ways if (p := planned(product, way, costs, accumulate)) is not None]
    if not found:
        fail("csl-view", f"the rows of a product into %{product.c.buffer.name} are too far apart")
    return min(found, key=lambda p: p.cycles)


def planned(product: Product, way: str, costs: Costs, accumulate: bool = True) -> Plan | None:
    """``product`` written in a ``way``; None where it cannot be, or there is no such way."""
    form, _, rest = way.partition("_")
    flipped = rest == "transposed"
    one = product.flipped() if flipped else product
    found: Plan | None = None
    if form == "outer":
        depth, _, block = rest.partition("_by_")
        if depth.isdecimal() and (block or "0").isdecimal():
            found = _outer(product, costs, int(depth), int(block or 0))
            found = found if found is not None and found.way == way else None
    elif rest in ("", "transposed") and form in ("mapped", "looped"):
        found = _mapped(one, costs) if form == "mapped" else _looped(one, costs)
    if found is None:
        return None
    found = replace(found, flipped=flipped)
    return found if accumulate else _from_nothing(found, costs)


class Batch(NamedTuple):
    """A loop over products: its dim, and the strides of result, left and right factors."""

    dim: Dim
    strides: tuple[int, int, int]


def operands(op: Compute) -> tuple[Window, Window, Window]:
    """Result and factors of a call of ``gemm``, the right factor as ``[.., k, n]``."""
    to, left, right = (window(v, op.span) for v in op.operands if isinstance(v, View))
    if op.params["transposed"]:
        right = right.inner([*right.dims[:-2], right.dims[-1], right.dims[-2]])
    return to, left, right


def batches(given: Sequence[Window]) -> dict[int, Batch]:
    """The loops around one product of ``given`` operands, by the number of the leading dim."""
    to = given[0]
    count = len(to.dims) - 2
    heads = [one.dims[: len(one.dims) - 2] for one in given]
    found = {}
    for place in range(count):
        if to.dims[place].extent > 1:
            c, a, b = (_stride(head, place, count) for head in heads)
            found[place] = Batch(to.dims[place], (c, a, b))
    return found


def one_product(op: Compute) -> Product:
    """The product that each pass of the loops of a call of ``gemm`` does."""
    given = operands(op)
    found = [one.trailing(2) for one in given]
    for place, batch in batches(given).items():
        at = Expr.var(f"batch.{place}")
        found = [w.moved(at * s) for w, s in zip(found, batch.strides, strict=True)]
    return Product(*found)


def _stride(head: tuple[Dim, ...], position: int, count: int) -> int:
    """Stride of batch dim ``position`` of ``count`` for an operand that may lack leading ones."""
    own = position - (count - len(head))
    return head[own].stride if own >= 0 and head[own].extent > 1 else 0


def _from_nothing(plan: Plan, costs: Costs) -> Plan:
    """``plan`` with zeros before it, or without the sum onto them."""
    m, k, n = plan.product.extents
    dtype = plan.product.c.dtype
    sums = plan.product.c
    dense = costs.vector("add", dtype, m * n, (), rows_of_grids([sums]))
    once = setup([sums, 0]) + dense
    whole = plan.depth == k and plan.product.a.dims[1].count is None
    if plan.form == "outer" and whole and dtype.half:
        return replace(plan, cycles=plan.cycles - once, steps=plan.steps - dense, fresh=True)
    return replace(plan, cycles=plan.cycles + once, steps=plan.steps + dense)


def _flip(window: Window) -> Window:
    return window.inner(window.dims[::-1])


def _rows_cycles(product: Product, costs: Costs) -> int:
    """All multiply-accumulates of a row, set-up apart."""
    m, k, n = product.extents
    kind = "mixed" if product.mixed else "mac"
    strides = (product.c.dims[1].stride, product.b.dims[1].stride)
    cycles = m * k * costs.vector(kind, product.c.dtype, n, strides)
    if product.b.dtype == DType.F32 and strides[0] == strides[1]:
        cycles += (n - writes(n)) * _meetings(product, costs)
    return cycles


def _meetings(product: Product, costs: Costs) -> int:
    """Pairs of rows of sums and of factors in one bank group, which are read one after the other;
    where rows lie is the run's to say, as many as in the mean."""
    m, k, _ = product.extents
    apart = costs.apart(product.c, product.b)
    if apart is None:
        return m * k // BANKS
    sums = Counter((apart + i * product.c.dims[0].stride) % BANKS for i in range(m))
    factors = Counter(j * product.b.dims[0].stride % BANKS for j in range(k))
    return sum(count * factors[bank] for bank, count in sums.items())


def _mapped(product: Product, costs: Costs) -> Plan | None:
    """Rows of ``b`` must follow each other, so that the register finds the next one. Registers are
    loaded from DSDs of one dim; the first call is made while they are written."""
    m, k, n = product.extents
    rows, columns = product.b.dims
    if k > 1 and (rows.stride != n * columns.stride or columns.count is not None):
        return None
    if not all(has_one_dim(side.trailing(1)) for side in (product.c, product.a, product.b)):
        return None
    steps = _rows_cycles(product, costs)
    body = m * k * CALL + steps
    factors = CONSTANT if product.b.start.is_const else costs.load
    loads = WRITTEN - (CALL - START) + factors + (0 if product.one_row else 2 * costs.load)
    passes = _CALLED + START_OF_LOOP + m * (PASS + 2 * MOVED) if m > 1 else 0
    return Plan("mapped", product, body + m * loads + passes, steps=steps)


def _looped(product: Product, costs: Costs) -> Plan | None:
    m, k, _ = product.extents
    if not (product.c.trailing(1).walked and product.b.trailing(1).walked):
        return None
    once = walked(3, 1) + _element(product.a)
    once += _moved(product.b) if k > 1 else 0
    once += _moved(product.c) if m > 1 else 0
    once += sum(LENGTH for row in (product.c, product.b) if not row.trailing(1).constant)
    counted = once + _STATEMENTS
    passes = looped(m, k * counted, 0) if m > 1 else 0
    passes += m * looped(k, counted, 0) if k > 1 else 0
    steps = _rows_cycles(product, costs)
    cycles = (_CALLED if m * k > 1 else 0) + m * k * once + passes + steps
    return Plan("looped", product, cycles, steps=steps)


def _moved(rows: Window) -> int:
    """Scalar cycles of a DSD moved to the row that a loop's variable numbers."""
    return MOVED if rows.dims[0].stride != 1 else MOVED - 1


def _element(left: Window) -> int:
    """Scalar cycles of the address of a left factor, and of its load."""
    strides = [dim.stride for dim in left.dims if dim.extent > 1]
    return sum(stride != 1 for stride in strides) + max(len(strides), 1)


def _blocks(product: Product) -> list[int]:
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


def _deepest(product: Product, block: int, free_bytes: int) -> int:
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
    if not 1 <= depth <= product.extents[1] or block not in _blocks(product):
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
    return START_OF_LOOP + stretch.times * (PASS + 2 * MOVED)


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
        met = costs.meetings(factors) + _sums_that_meet(product, costs)
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
        costs.meetings([product.c, scratch.moved(j * m * n).inner(part)])
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
