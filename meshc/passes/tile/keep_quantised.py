"""keep-quantised: let weights stay quantised in the memory of cores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from meshc.ir.affine import Expr
from meshc.ir.codes import CODES, CodeFormat, kept_name
from meshc.ir.core import Block, Op
from meshc.ir.module import Buffer, Module, Port
from meshc.ir.ops import tile
from meshc.ir.types import BufferType, DType, TensorType
from meshc.ir.values import Value
from meshc.ir.views import Point, Range, View, Whole
from meshc.passes.base import Pass
from meshc.passes.kept_formats import ALL, formats_of, must_stay
from meshc.support.diagnostics import Diagnostics, fail

_ONE = Expr.const(1)


@dataclass(frozen=True)
class KeepQuantised(Pass):
    """Replace weights by their codes and scales, and decode them where a product reads them.

    ``formats`` says which: ``"wq=q4_1"`` for each, ``"wq=q4_1?"`` for one that is left decoded
    where it cannot be kept, or ``"all=q4_0"`` for every weight that can be. A weight in a buffer of
    a core becomes three: codes, scales of groups of rows and, in some formats, least numbers
    (:mod:`meshc.ir.codes`). They lie as the weight did. Before each product `tile.dequantise`
    writes numbers of the weight's element type to memory that all products share: for a vector, as
    many columns at a time as take ``block_bytes``. The numbers are those that the program has
    without this pass, to the bit.

    A weight can be kept where products alone read it, whole matrices of it, and where no group has
    rows on several cores. One that is named, without a question mark, and cannot be is
    ``keep-quantised``; of others a remark says why they are decoded.

    Before::

        buffer %w : f32[2, 32, 3] {role = weight}
        tile.gemm %y, %x, %w[n] {accumulate = false, transposed = false}

    After::

        buffer %w.codes : u4[2, 32, 3] {role = weight}
        buffer %w.scales : f16[2, 1, 3] {role = weight}
        tile.dequantise %w.numbers, %w.codes[n], %w.scales[n] {group = 32, zero = 8, lifted = false}
        tile.gemm %y, %x, %w.numbers {accumulate = false, transposed = false}
    """

    NAME: ClassVar[str] = "keep-quantised"
    ROUNDS: ClassVar[bool] = True
    LEVELS: ClassVar[tuple[str, ...]] = ("tile",)
    REQUIRES: ClassVar[frozenset[str]] = frozenset()
    ESTABLISHES: ClassVar[frozenset[str]] = frozenset()
    INVALIDATES: ClassVar[frozenset[str]] = frozenset(
        {
            "csl_functions",
            "csl_memory",
            "csl_products",
            "csl_registers",
            "csl_words",
            "memory_planned",
        }
    )

    formats: tuple[str, ...] = ()
    block_bytes: int = 2048

    def run(self, module: Module, report: Diagnostics) -> Module:
        chosen, must = formats_of(self.NAME, self.formats), must_stay(self.formats)
        for form in chosen.values():
            if not form.on_cores:
                words = f"cores of a mesh do not decode {form.name}"
                fail("keep-quantised", words, help="let the weights be decoded")
        weights = {port.name for port in module.ports if port.direction == "in"}
        for name in sorted(chosen.keys() - weights - {ALL}):
            report.missed("keep-quantised", f"there is no weight '{name}' in this program")
        before = kept = 0
        for buffer in [b for b in module.buffers if b.role == "weight"]:
            ports = [p for p in module.ports if p.buffer is buffer.value]
            names = [port.name for port in ports]
            found = {chosen.get(name, chosen.get(ALL)) for name in names}
            products = _products(module, buffer.value)
            if found <= {None} or (products is None and not chosen.keys() & {*names}):
                continue
            why = _obstacle(module, buffer, ports, products, found)
            if why is None and products is not None:
                form = next(each for each in found if each is not None)
                parts = _Kept(module, buffer, form, self.block_bytes).placed(ports, products)
                before, kept = before + buffer.type.bytes, kept + sum(p.type.bytes for p in parts)
            elif must & {*names}:
                fail(
                    "keep-quantised",
                    f"'{' and '.join(names)}' cannot stay quantised: {why}",
                    help="take another mesh, or let the weights be decoded",
                )
            else:
                report.missed("keep-quantised", f"'{' and '.join(names)}' is decoded: {why}")
        if before:
            report.remark(
                "keep-quantised",
                f"weights that stay quantised take {kept} bytes of a core instead of {before}",
            )
        return module


@dataclass(frozen=True)
class _Product:
    """A product, the block it stands in, and what it reads of the weight."""

    op: tile.Compute
    block: Block
    matrix: View


def _products(module: Module, weight: Value) -> list[_Product] | None:
    """The products that read ``weight``; None where something else does as well, or where they read
    parts of a matrix."""
    found = []
    for program in module.programs:
        for block in program.body.blocks():
            for op in block.ops:
                if weight in [view.buffer for view in op.views()]:
                    if not _reads_matrix(op, weight):
                        return None
                    assert isinstance(op, tile.Compute)
                    found.append(_Product(op, block, op.views()[2]))
    return found


def _reads_matrix(op: Op, weight: Value) -> bool:
    """Whether ``op`` multiplies by a whole matrix of ``weight``, which it reads nowhere else."""
    if not isinstance(op, tile.Compute) or op.kernel != "gemm" or op.params["transposed"]:
        return False
    *others, matrix = op.views()
    points = all(isinstance(index, Point) for index in matrix.indices)
    whole = points and not matrix.reshape and not matrix.order and len(matrix.shape()) == 2
    return whole and matrix.buffer is weight and all(v.buffer is not weight for v in others)


def _obstacle(
    module: Module,
    buffer: Buffer,
    ports: list[Port],
    products: list[_Product] | None,
    found: set[CodeFormat | None],
) -> str | None:
    """Why ``buffer`` cannot stay quantised, or None."""
    if len(found) != 1:
        return "it shares its place on the cores with weights of other formats"
    if not products:
        return "more than products of whole matrices read it, or nothing does"
    if not buffer.type.dtype.floats:
        return f"its elements are {buffer.type.dtype}"
    (form,) = found
    assert form is not None
    rows = buffer.type.shape[-2]
    if rows % form.group:
        return f"a core has {rows} of its rows, which cut groups of {form.group}"
    return next((why for port in ports if (why := _cut(module, port, rows, form.group))), None)


def _cut(module: Module, port: Port, rows: int, group: int) -> str | None:
    """Why rows of a group would not lie on one core, one behind another, or None."""
    lane, place = port.lanes[-2], _grouped(port)
    if place is None or port.lets or port.pad:
        return "its rows are dealt in a way that groups cannot follow"
    if port.where is not None and lane in port.where.free_vars:
        return "some of its rows are those of another weight"
    dim = port.tensor.dims[place]
    if module.dims[dim] % group:
        return f"its {module.dims[dim]} {dim} do not fill groups of {group}"
    for at, element in enumerate(port.element):
        own = [t for t in element.terms if lane in Expr((t,)).free_vars]
        rest = [t for t in element.terms if t not in own]
        if any(Expr((t,)).free_vars != {lane} or Expr((t,)).functions for t in own):
            return "its rows are dealt in a way that groups cannot follow"
        of_row = [int(_evaluated(Expr(tuple(own), element.constant), lane, k)) for k in range(rows)]
        firsts = [of_row[k - k % group] for k in range(rows)]
        if at != place and of_row != firsts:
            return f"groups of {group} would cut its {port.tensor.dims[at]}"
        if at == place and (
            of_row != [first + k % group for k, first in enumerate(firsts)]
            or any(first % group for first in firsts)
            or any(factor % group for _, factor in rest)
        ):
            return f"cores have parts of its {dim} that cut groups of {group}"
    return None


def _evaluated(element: Expr, lane: str, value: int) -> int:
    found = element.evaluate({lane: value})
    assert isinstance(found, int)
    return found


def _grouped(port: Port) -> int | None:
    """The place of the tensor's dim along which its groups lie: the innermost of those of a row,
    whose elements files store side by side."""
    lane = port.lanes[-2]
    places = [at for at, element in enumerate(port.element) if lane in element.free_vars]
    return places[-1] if places else None


@dataclass(frozen=True)
class _Kept:
    """A weight that stays quantised in the format ``form``."""

    module: Module
    weight: Buffer
    form: CodeFormat
    block_bytes: int

    def placed(self, ports: list[Port], products: list[_Product]) -> list[Buffer]:
        """Have it so in the module; the buffers that it takes the place of one."""
        shape, group = self.weight.type.shape, self.form.group
        groups = (*shape[:-2], shape[-2] // group, shape[-1])
        kinds = self.form.parts
        codes = self._buffer(CODES, self.form.codes, shape, "weight")
        others = [self._buffer(name, kind, groups, "weight") for name, kind in kinds.items()]
        columns = self._columns_of(products)
        numbers = self._buffer("numbers", self.weight.type.dtype, (shape[-2], columns), "")
        self._replace_ports(ports, codes, dict(zip(kinds, others, strict=True)))
        for product in products:
            self._decode(product, codes, others, numbers)
        place = self.module.buffers.index(self.weight)
        self.module.buffers[place : place + 1] = [codes, *others, numbers]
        return [codes, *others]

    def _columns_of(self, products: list[_Product]) -> int:
        """How many columns are decoded at a time: all, where results are not one row."""
        *_, rows, columns = self.weight.type.shape
        if not all(_is_row(product.op.views()[0]) for product in products):
            return columns
        most = max(1, self.block_bytes // (rows * self.weight.type.dtype.bytes))
        return -(-columns // -(-columns // most))

    def _buffer(
        self, part: str, kind: DType, shape: tuple[int, ...], role: Literal["weight", ""]
    ) -> Buffer:
        name = f"{self.weight.value.name}.{part}"
        return Buffer(Value(name, BufferType(kind, shape)), role)

    def _replace_ports(
        self, ports: list[Port], codes: Buffer, others: Mapping[str, Buffer]
    ) -> None:
        for port in ports:
            kind = TensorType(self.form.codes, port.tensor.dims)
            found = [
                replace(
                    port,
                    name=kept_name(port.name, self.form, CODES),
                    tensor=kind,
                    buffer=codes.value,
                ),
                *(self._of_groups(port, part, buffer) for part, buffer in others.items()),
            ]
            if port.name in self.module.paired:
                lanes = self.module.paired.pop(port.name)
                self.module.paired |= dict.fromkeys((own.name for own in found), lanes)
            place = self.module.ports.index(port)
            self.module.ports[place : place + 1] = found

    def _of_groups(self, port: Port, part: str, buffer: Buffer) -> Port:
        """The port of scales or least numbers: a lane for each group of rows."""
        lane, group, place = port.lanes[-2], self.form.group, _grouped(port)
        assert place is not None
        dims, element = list(port.tensor.dims), []
        by_group = f"{dims[place]}_by_{group}"
        self.module.dims[by_group] = self.module.dims[dims[place]] // group
        dims[place] = by_group
        for at, each in enumerate(port.element):
            first = each.substitute({lane: Expr.var(lane) * group})
            element.append(first // group if at == place else first)
        return replace(
            port,
            name=kept_name(port.name, self.form, part),
            tensor=TensorType(buffer.type.dtype, tuple(dims)),
            buffer=buffer.value,
            element=tuple(element),
        )

    def _decode(
        self, product: _Product, codes: Buffer, others: list[Buffer], numbers: Buffer
    ) -> None:
        """Let ``product`` read numbers that are decoded before it, some columns at a time."""
        op, columns = product.op, self.weight.type.shape[-1]
        step = numbers.type.shape[-1]
        whole = [codes, *others]
        place = product.block.ops.index(op)
        if step == columns:
            parts = [View(part.value, product.matrix.indices) for part in whole]
            op.operands[2] = View(numbers.value)
            product.block.ops.insert(place, self._decoding(View(numbers.value), parts, op))
            return
        var = _new_name(self.module, "block")
        loop = tile.For(var=var, count=Expr.const(columns // step))
        loop.regions = [Block(ops=self._block(product, whole, numbers, Expr.var(var) * step, step))]
        rest = columns % step
        behind = self._block(product, whole, numbers, Expr.const(columns - rest), rest)
        product.block.ops[place : place + 1] = [loop, *(behind if rest else [])]

    def _block(
        self, product: _Product, whole: list[Buffer], numbers: Buffer, start: Expr, count: int
    ) -> list[Op]:
        """Decoding ``count`` columns from ``start`` on, and the product by them."""
        op, extent = product.op, Expr.const(count)
        columns = (Whole(), Range(start, extent))
        parts = [View(part.value, (*product.matrix.indices, *columns)) for part in whole]
        fewer = count < numbers.type.shape[-1]
        own = View(numbers.value, (Whole(), Range(Expr.const(0), extent)) if fewer else ())
        out, left, _ = op.views()
        multiply = tile.Compute(
            [_columns(out, start, extent), left, own],
            kernel=op.kernel,
            params=dict(op.params),
            when=op.when,
        )
        return [self._decoding(own, parts, op), multiply]

    def _decoding(self, numbers: View, parts: list[View], op: tile.Compute) -> Op:
        return tile.Compute(
            [numbers, *parts],
            kernel="dequantise",
            params={
                "group": self.form.group,
                "zero": self.form.zero,
                "lifted": self.form.least is not None,
            },
            when=op.when,
        )


def _new_name(module: Module, name: str) -> str:
    """``name``, longer while a loop has it."""
    taken = {op.var for op in module.walk() if isinstance(op, tile.For)}
    while name in taken:
        name += "_"
    return name


def _is_row(out: View) -> bool:
    """Whether ``out`` is one row that lies side by side in a buffer of one dim."""
    side_by_side = len(out.buffer_type.shape) == 1 and all(
        isinstance(index, Range) and index.step == 1 for index in out.indices
    )
    return side_by_side and not out.order and len(out.shape()) == 2 and out.shape()[0] == _ONE


def _columns(out: View, start: Expr, extent: Expr) -> View:
    """``extent`` elements of the row ``out`` from ``start`` on."""
    first = next((i.start for i in out.indices if isinstance(i, Range)), Expr.const(0))
    return View(out.buffer, (Range(first + start, extent),), (_ONE, extent))
