"""stream-quantised: let weights of a program of tasks stay quantised in the memory of its GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, ClassVar

import numpy as np

from meshc.ir.affine import Expr
from meshc.ir.builder import Names
from meshc.ir.codes import (
    CODE_FORMATS,
    CODES,
    LEAST,
    LEAST_UNITS,
    SCALES,
    UNITS,
    CodeFormat,
    kept_name,
)
from meshc.ir.core import Block, Op, Operand
from meshc.ir.module import Buffer, Module, Port
from meshc.ir.ops import task, tile
from meshc.ir.types import BufferType, DType, TensorType
from meshc.ir.values import Value
from meshc.ir.views import Index, Range, View, Whole
from meshc.passes.base import Pass
from meshc.passes.kept_formats import ALL, formats_of, must_stay, named
from meshc.support.diagnostics import Diagnostics, fail

_TURNED = (1, 0)
"""Rows of a weight are what a task gives; a kernel that decodes has groups along the other dim."""


@dataclass(frozen=True)
class StreamQuantised(Pass):
    """Replace weights that products stream by their codes, and what there is once for a group of
    them: scales and, in some formats, least numbers.

    ``formats`` says which, as those of ``keep-quantised`` do; one that says another encoding, as
    files call it, is of a weight that cannot stay so. Each stream of rows of a weight
    becomes one of their codes and one of the scales of their groups, which lie along the width of a
    product (:mod:`meshc.ir.codes`); `tile.dequantise` makes numbers of them, in f32. So a product
    is that of the numbers that codes stand for, and not of these rounded to the type of the model.

    A weight can stay quantised where products alone stream it, rows of it as wide as whole groups.
    One that is named, without a question mark, and cannot is ``keep-quantised``; of others a remark
    says why they are decoded.

    Before::

        %w_1 = task.stream %w[2*g +: 2] : f32[2, 64]
        tile.gemm %y, %h, %w_1 {accumulate = false, transposed = true}

    After::

        %w_codes = task.stream %w.codes[2*g +: 2] : u4[2, 64]
        %w_scales = task.stream %w.scales[2*g +: 2] : f16[2, 2]
        %w_numbers = task.local : f32[2, 64]
        tile.dequantise %w_numbers order [1, 0], %w_codes order [1, 0], %w_scales order [1, 0] {group = 32, zero = 8, lifted = false}
        tile.gemm %y, %h, %w_numbers {accumulate = false, transposed = true}
    """  # noqa: E501

    NAME: ClassVar[str] = "stream-quantised"
    ROUNDS: ClassVar[bool] = True
    LEVELS: ClassVar[tuple[str, ...]] = ("task",)
    REQUIRES: ClassVar[frozenset[str]] = frozenset({"streams_free"})
    ESTABLISHES: ClassVar[frozenset[str]] = frozenset()
    INVALIDATES: ClassVar[frozenset[str]] = frozenset()

    formats: tuple[str, ...] = ()

    def run(self, module: Module, report: Diagnostics) -> Module:
        other = {n: e for n, e in named(self.formats).items() if n != ALL and _is_other(e)}
        formats = [text for text in self.formats if text.partition("=")[0] not in other]
        chosen, must = formats_of(self.NAME, formats), must_stay(self.formats)
        weights = {port.name for port in module.ports if port.direction == "in"}
        for name in sorted(chosen.keys() - weights - {ALL}):
            report.missed("keep-quantised", f"there is no weight '{name}' in this program")
        before = kept = 0
        for buffer in [b for b in module.buffers if b.role == "weight"]:
            (port,) = (p for p in module.ports if p.buffer is buffer.value)
            streams = _products(module, buffer.value)
            form = chosen.get(port.name, chosen.get(ALL))
            if port.name in other and streams is not None:
                stored = other[port.name]
                why: str | None = f"files have it as {stored}, as kernels do not decode it"
            elif form is None or (streams is None and port.name not in chosen):
                continue
            else:
                why = _obstacle(module, buffer, port, streams, form)
            if why is None and streams is not None and form is not None:
                parts = _Kept(module, buffer, port, form).placed(streams)
                decoded = prod(buffer.type.shape) * module.stored(buffer.type.dtype).bytes
                before, kept = before + decoded, kept + sum(p.type.bytes for p in parts)
            elif port.name in must:
                fail(
                    "keep-quantised",
                    f"'{port.name}' cannot stay quantised: {why}",
                    help="let the weights that cannot be decoded: --keep-quantised possible",
                )
            else:
                report.missed("keep-quantised", f"'{port.name}' is decoded: {why}")
        if before:
            report.remark(
                "keep-quantised",
                f"weights that stay quantised take {kept} bytes of the GPU instead of {before}",
            )
        return module


def _is_other(form: str) -> bool:
    """Whether it is how files call an encoding, and no format."""
    return bool(form) and form not in CODE_FORMATS


@dataclass(frozen=True)
class _Streamed:
    """A stream of rows of a weight, the product that takes them, and the blocks both stand in."""

    stream: task.Stream
    product: tile.Compute
    block: Block
    of_product: Block


def _products(module: Module, weight: Value) -> list[_Streamed] | None:
    """The streams of ``weight``, each of which one product takes; None where something else reads
    it as well."""
    found = []
    for program in module.programs:
        blocks = [*program.body.blocks()]
        for block in blocks:
            for op in block.ops:
                if weight not in [view.buffer for view in op.views()]:
                    continue
                if not isinstance(op, task.Stream) or op.below is not None or op.when is not None:
                    return None
                users = [
                    (user, inside)
                    for inside in blocks
                    for user in inside.ops
                    if op.result in [view.buffer for view in user.views()]
                ]
                if len(users) != 1 or not _takes_rows(users[0][0], op.result):
                    return None
                product, inside = users[0]
                assert isinstance(product, tile.Compute)
                found.append(_Streamed(op, product, block, inside))
    return found or None


def _takes_rows(op: Op, rows: Value) -> bool:
    """Whether ``op`` multiplies by ``rows``, all of them as they come."""
    if not isinstance(op, tile.Compute) or op.kernel != "gemm" or not op.params["transposed"]:
        return False
    *others, right = op.views()
    return right == View(rows) and all(view.buffer is not rows for view in others)


def _obstacle(
    module: Module,
    buffer: Buffer,
    port: Port,
    streams: Sequence[_Streamed] | None,
    form: CodeFormat,
) -> str | None:
    """Why ``buffer`` cannot stay quantised, or None."""
    if streams is None:
        return "more than products of its rows read it, or nothing does"
    if not buffer.type.dtype.floats:
        return f"its elements are {buffer.type.dtype}"
    group, width = form.span, buffer.type.shape[-1]
    if width % group:
        return f"its rows are {width} wide, which cuts groups of {group}"
    for one in streams:
        shape = one.stream.view.shape()
        if len(shape) != 2 or not all(extent.is_const for extent in shape):
            return "tasks have no rows of it"
        across = _across(one.stream.view)
        if isinstance(across, Range) and (
            _by_group(across.start, group) is None or _by_group(across.extent, group) is None
        ):
            return f"tasks have {across.extent} of its width, which cut groups of {group}"
    return _cut(module, port, width, group)


def _across(view: View) -> Index:
    """Which columns a view of rows has."""
    rank = len(view.buffer_type.shape)
    return view.indices[-1] if len(view.indices) == rank else Whole()


def _by_group(value: Expr, group: int) -> Expr | None:
    """``value`` in groups, None where it may lie within one."""
    whole = all(factor % group == 0 for factor in (value.constant, *(f for _, f in value.terms)))
    return value // group if whole else None


def _grouped(port: Port) -> int | None:
    """The place of the tensor's dim along which its groups lie: the innermost of those of a row,
    whose elements files store side by side."""
    places = [at for at, e in enumerate(port.element) if port.lanes[-1] in e.free_vars]
    return places[-1] if places else None


def _cut(module: Module, port: Port, width: int, group: int) -> str | None:
    """Why elements of a group do not lie side by side in the tensor, or None."""
    lane, place = port.lanes[-1], _grouped(port)
    if place is None or port.lets or port.pad or port.where is not None:
        return "its rows lie in a way that groups cannot follow"
    covered = _covered(module, port, group)
    if covered is None:
        dim = port.tensor.dims[place]
        part = None if module.ranks is None else module.ranks.part_of(dim)
        if part is not None and module.dims[dim] % group == 0:
            dim = part.whole
        return f"its {module.dims[dim]} {dim} do not fill groups of {group}"
    along = np.arange(width)
    first, flat = along - along % group, np.zeros(width, int)
    for at, element in enumerate(port.element):
        if lane not in element.free_vars:
            continue
        if element.free_vars != {lane}:
            return "its rows lie in a way that groups cannot follow"
        index = np.asarray(element.evaluate({lane: along}))
        if at in covered:
            flat = flat * module.dims[port.tensor.dims[at]] + index
        elif not np.array_equal(index, index[first]):
            return f"groups of {group} would cut its {port.tensor.dims[at]}"
    if (flat[first] % group).any() or not np.array_equal(flat, flat[first] + along % group):
        return f"groups of {group} would cut its {port.tensor.dims[place]}"
    return None


def _covered(module: Module, port: Port, group: int) -> tuple[int, ...] | None:
    """The places of the tensor's dims of which a group has some or all: the innermost of those of a
    row, or that and the one around it; None where groups do not fill them."""
    place = _grouped(port)
    assert place is not None
    dims = port.tensor.dims
    inner = module.dims[dims[place]]
    if _fill(module, dims[place], group):
        return (place,)
    if inner >= group or group % inner or place == 0:
        return None
    whole = _fill(module, dims[place], inner) and _fill(module, dims[place - 1], group // inner)
    return (place - 1, place) if whole else None


def _fill(module: Module, dim: str, count: int) -> bool:
    """Whether every ``count`` elements of ``dim`` fill it, and if it is a rank's part of another
    dim, that and each part of it."""
    part = None if module.ranks is None else module.ranks.part_of(dim)
    extents = [module.dims[dim]]
    if part is not None:
        extents += [module.dims[part.whole], part.team]
    return all(extent % count == 0 for extent in extents)


@dataclass(frozen=True)
class _Kept:
    """A weight that stays quantised in the format ``form``."""

    module: Module
    weight: Buffer
    port: Port
    form: CodeFormat

    def placed(self, streams: Sequence[_Streamed]) -> list[Buffer]:
        """Have it so in the module; the buffers that it takes the place of one."""
        shape, form = self.weight.type.shape, self.form
        codes = self._buffer(CODES, form.codes, shape)
        others = {
            part: self._buffer(part, kind, (*shape[:-1], shape[-1] // form.elements(part)))
            for part, kind in form.parts.items()
        }
        self._replace_port(codes, others)
        for one in streams:
            self._decode(one, {CODES: codes, **others})
        place = self.module.buffers.index(self.weight)
        self.module.buffers[place : place + 1] = [codes, *others.values()]
        return [codes, *others.values()]

    def _buffer(self, part: str, kind: DType, shape: tuple[int, ...]) -> Buffer:
        return Buffer(Value(f"{self.weight.value.name}.{part}", BufferType(kind, shape)), "weight")

    def _replace_port(self, codes: Buffer, others: dict[str, Buffer]) -> None:
        port, module = self.port, self.module
        found = [
            replace(
                port,
                name=kept_name(port.name, self.form, CODES),
                tensor=TensorType(self.form.codes, port.tensor.dims),
                buffer=codes.value,
            ),
            *(self._of_groups(part, buffer) for part, buffer in others.items()),
        ]
        if port.name in module.paired:
            lanes = module.paired.pop(port.name)
            module.paired |= dict.fromkeys((own.name for own in found), lanes)
        place = module.ports.index(port)
        module.ports[place : place + 1] = found

    def _of_groups(self, part: str, buffer: Buffer) -> Port:
        """The port of a part, whose last lane counts groups of elements."""
        port, group = self.port, self.form.elements(part)
        covered = _covered(self.module, port, group)
        assert covered is not None
        lane, dims, element = port.lanes[-1], list(port.tensor.dims), []
        of_dim, left = {}, group
        for at in reversed(covered):
            extent = self.module.dims[dims[at]]
            of_dim[at] = left if at == covered[0] else extent
            left //= of_dim[at]
            dims[at] = self._by_group(dims[at], of_dim[at])
        for at, each in enumerate(port.element):
            first = each.substitute({lane: Expr.var(lane) * group})
            element.append(first // of_dim.get(at, 1))
        return replace(
            port,
            name=kept_name(port.name, self.form, part),
            tensor=TensorType(buffer.type.dtype, tuple(dims)),
            buffer=buffer.value,
            element=tuple(element),
        )

    def _by_group(self, dim: str, count: int) -> str:
        """The dim that counts groups of ``count`` of ``dim``, which is dealt to ranks as it is."""
        module, name = self.module, f"{dim}_by_{count}"
        module.dims[name] = module.dims[dim] // count
        part = None if module.ranks is None else module.ranks.part_of(dim)
        if module.ranks is not None and part is not None and module.ranks.part_of(name) is None:
            whole = f"{part.whole}_by_{count}"
            module.dims[whole] = module.dims[part.whole] // count
            own = replace(part, dim=name, whole=whole, team=part.team // count)
            module.ranks = replace(module.ranks, parts=(*module.ranks.parts, own))
        return name

    def _decode(self, one: _Streamed, parts: dict[str, Buffer]) -> None:
        """Let a product take numbers that are made of what is streamed instead of rows."""
        form, view = self.form, one.stream.view
        name, names = self.weight.value.name, Names.of(self.module)
        made: dict[str, Op] = {}
        for part, buffer in parts.items():
            op = task.Stream([View(buffer.value, self._groups_of(view, form.elements(part)))])
            kinds = op.infer({})
            assert kinds is not None
            op.results = [Value(names.fresh(f"{name}_{part}"), kinds[0])]
            made[part] = op
        place = one.block.ops.index(one.stream)
        one.block.ops[place : place + 1] = made.values()
        decoded: list[Op] = []

        def numbers(called: str, group: int, zero: int, *given: Value) -> Value:
            rows, columns = (extent.constant for extent in View(given[0]).shape())
            local = task.Local()
            local.results = [Value(names.fresh(called), BufferType(DType.F32, (rows, columns)))]
            turned: list[Operand] = [View(v, order=_TURNED) for v in (local.result, *given)]
            params: dict[str, Any] = {"group": group, "zero": zero, "lifted": len(given) > 2}
            decoded.extend((local, tile.Compute(turned, kernel="dequantise", params=params)))
            return local.result

        own = {part: op.result for part, op in made.items()}
        for part, units, zero in ((SCALES, UNITS, form.scale_zero), (LEAST, LEAST_UNITS, 0)):
            if units in own:
                given, many = (own[part], own.pop(units)), form.block // form.group
                own[part] = numbers(f"{name}_{part}_numbers", many, zero, *given)
        result = numbers(f"{name}_numbers", form.group, form.zero, *own.values())
        place = one.of_product.ops.index(one.product)
        one.of_product.ops[place:place] = decoded
        one.product.operands[2] = View(result)

    def _groups_of(self, view: View, group: int) -> tuple[Index, ...]:
        """The indices of the groups of so many of the elements that a view has."""
        across = _across(view)
        if not isinstance(across, Range):
            return view.indices
        return (*view.indices[:-1], Range(across.start // group, across.extent // group))
