"""Left sides of products: what all tasks of a phase multiply rows by, as columns in shared memory.

A pattern picks the library routine that makes the columns: normed vectors, merged attention, plain
vectors. Anything else is computed place by place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from meshc.analysis.cuda.blocks import FRAGMENT
from meshc.backends.cuda.tasks.statements import Statements, Text
from meshc.backends.cuda.tasks.storage import element_type
from meshc.backends.cuda.tasks.values import Values, constant, extents
from meshc.ir.affine import Expr
from meshc.ir.ops import tile
from meshc.ir.types import BufferType, DType
from meshc.ir.values import Value
from meshc.ir.views import View

ZERO = Expr.const(0)


@dataclass(frozen=True)
class Columns:
    """How the columns of a phase are made: ``ahead`` before blocks have met, ``then`` behind it."""

    ahead: Callable[[Text], None]
    then: Callable[[Text], None]


def columns_of(
    values: Values, view: View, statements: Statements, kind: str | None = None
) -> Columns:
    """The columns ``view``, ``[requests, width]``, of which no view is but the whole. They are of
    the library's usual kind, or of another ``kind``."""
    source = rounded(values, view)
    of = "" if kind is None else f", {kind}"
    found = _normed(values, source, of) or _merged(values, source, of) or _plain(values, source, of)
    return found or _any(values, source, statements, of)


def _nothing(text: Text) -> None:
    pass


def rounded(values: Values, view: View) -> View:
    """What ``view`` is the rounded value of: columns round it themselves, in two parts."""
    op = values.formula_of(view.buffer)
    if op is not None and op.kernel == "copy" and element_type(view.buffer) is not DType.F32:
        out, given = op.views()
        if not (out.reshape or given.reshape or given.indices or given.order):
            return given
    return view


def _pointer(values: Values, view: View) -> tuple[str, int] | None:
    """Where rows of scratch begin that a view is, and how far they are apart; None where they are
    no neighbours."""
    if view.indices or view.reshape or view.order or view.buffer not in values.reads:
        return None
    value, first = values.source(view.buffer, (ZERO, ZERO))
    storage = values.storage
    if storage.role(value) != "":
        return None
    shape = storage.shape(value)
    _, second = values.source(view.buffer, (ZERO, Expr.const(1)))
    if storage.place(value, second) - storage.place(value, first) != Expr.const(1):
        return None
    at = values.spelled(storage.place(value, first))
    name = storage.scratch(value)
    return (name if at == "0" else f"{name} + {at}"), shape[-1]


def aligned(values: Values, view: View, width: int) -> tuple[str, int] | None:
    """The same of rows of ``width`` floats on 16-byte addresses, whole eights."""
    found = _pointer(values, view)
    if found is None or width % 8 or found[1] % 4:
        return None
    value, first = values.source(view.buffer, (ZERO, ZERO))
    place = values.storage.place(value, first)
    factors = [place.constant, *(factor for _, factor in place.terms)]
    return found if all(factor % 4 == 0 for factor in factors) else None


def _plain(values: Values, view: View, of: str) -> Columns | None:
    width = extents(view)[1]
    found = aligned(values, view, width)
    if found is None:
        return None
    name, stride = found
    given = f"columns, {name}, {stride}, me{values.words(view.buffer)}"
    call = f"mc::put_plain_columns<BATCH, {width}, WORKERS{of}>({given});"
    return Columns(_nothing, lambda text: text.add(call))


def _normed(values: Values, view: View, of: str) -> Columns | None:
    op = values.formula_of(view.buffer)
    if op is None or op.kernel != "rms_scale" or view.indices or view.reshape:
        return None
    _, given, squares, gain = op.views()
    (sums,) = values.writers.get(squares.buffer, [None])[:1]
    requests, width = extents(view)
    found = aligned(values, given, width)
    whole = sums is not None and sums.kernel == "square_sum" and sums.views()[1] == given
    stream = values.reads.get(gain.buffer)
    if found is None or not whole or stream is None or gain.indices or op.params["count"] != width:
        return None
    name, stride = found
    if requests > 1 and stride != width:
        return None
    weight, index = values.source(gain.buffer, (ZERO,))
    row = buffer_shape(weight)[-1]
    if len(index) > 1 and row % 8:
        return None  # gains are read by eights, and those of a layer begin between two
    layer = values.storage.of_layer(row, index[0], values.ranges) if len(index) > 1 else ""
    pointer = f"{values.storage.vector(weight)}{' + ' + layer.removesuffix(' + ') if layer else ''}"
    eps = constant(float(str(op.params["eps"])))

    def ahead(text: Text) -> None:
        text.add(f"const mc::Gains<T, {width}, WORKERS> gains({pointer}, me);")

    words = values.words(op.views()[1].buffer)
    if words:
        words = f", 0, {-(-width // FRAGMENT) * FRAGMENT}{words}"

    def then(text: Text) -> None:
        given = f"columns, {name}, gains, {eps}, parts, me, 1{words}"
        text.add(f"mc::put_normed_columns<T, BATCH, {width}, WORKERS{of}>({given});")

    return Columns(ahead, then)


@dataclass(frozen=True)
class Merged:
    """Attention whose records are merged: a division by the weights of a total into which they
    are merged, those of the first split being copied. ``of`` is what the task needs of them,
    ``[requests, groups, splits, heads, lanes + 2]`` or ``[requests, splits, lanes + 2]`` of one
    head or, where it divides ``some`` of the lanes, ``[requests, splits, some]``."""

    of: Value
    records: Value
    shape: tuple[int, ...]
    some: bool
    lanes: int

    def index(self, values: Values, request: Expr = ZERO) -> tuple[tuple[Expr, ...], Expr]:
        """Where the first record of a request begins, and its first lane that the task needs."""
        at = (request, *[ZERO] * (len(self.shape) - 1))
        *lead, first = values.source(self.of, at)[1]
        return (*lead, ZERO), first


def merged(values: Values, value: Value) -> Merged | None:
    """The records whose attention ``value`` is; None for another one, and for records that the
    library has not left."""
    op = values.formula_of(value)
    if op is None or op.kernel != "div":
        return None
    total = op.views()[1].buffer
    writers = values.writers.get(total, [])
    copies = [w for w in writers if w.kernel == "copy"]
    if not copies or len(copies) > 2 or {w.kernel for w in writers} - {"copy", "merge_softmax"}:
        return None
    needs = [values.reads.get(w.views()[1].buffer) for w in copies]
    buffers = {need.view.buffer if need is not None else None for need in needs}
    (buffer,) = buffers if len(buffers) == 1 else (None,)
    if buffer is None or buffer not in values.storage.doubling:
        return None
    assert needs[0] is not None
    wide = buffer_shape(buffer)[-1]
    shape = extents(View(needs[0].result))
    return Merged(needs[0].result, buffer, shape, len(copies) == 2, wide - 2)


def buffer_shape(value: Value) -> tuple[int, ...]:
    """The shape of a buffer in the program."""
    assert isinstance(value.type, BufferType)
    return value.type.shape


def _merged(values: Values, view: View, of: str) -> Columns | None:
    found = merged(values, view.buffer)
    if found is None or view.indices or view.reshape or len(found.shape) != 5:
        return None
    _, groups, splits, heads, _ = found.shape
    stride = values.storage.shape(found.records)[-1]
    at = values.spelled(values.storage.place(found.records, found.index(values)[0]))
    name = values.storage.scratch(found.records)
    shape = f"BATCH, {groups}, {splits}, {heads}, {found.lanes}, {stride}, WORKERS{of}"
    begin = name if at == "0" else f"{name} + {at}"
    apart = prod(values.storage.shape(found.records)[-4:])
    call = (
        f"mc::put_merged_columns<{shape}>(columns, {begin}, {apart}, me{values.words(found.of)});"
    )
    return Columns(_nothing, lambda text: text.add(call))


def _any(values: Values, view: View, statements: Statements, of: str) -> Columns:
    requests, width = extents(view)

    def then(text: Text) -> None:
        statements.text = text
        statements.add(hoisted(values, view))
        with values.within(b=requests, k=width):
            element = values.element(view, (Expr.var("b"), Expr.var("k")))
        call = f"mc::put_columns_of<BATCH, {width}, WORKERS{of}>"
        with text.within(f"{call}(columns, me, [&](int b, int k) {{", "});"):
            text.add(f"return {element};")

    return Columns(_nothing, then)


def hoisted(values: Values, view: View) -> list[tile.Compute | tile.For]:
    """The statements of a task, loops among them, that ``view`` needs, in order."""
    needed = values.behind(view)

    def writes(op: object) -> bool:
        if isinstance(op, tile.Compute):
            return op.views()[0].buffer in needed
        return isinstance(op, tile.For) and any(writes(one) for one in op.regions[0].ops)

    return [op for op in values.ops if writes(op) and isinstance(op, (tile.Compute, tile.For))]
