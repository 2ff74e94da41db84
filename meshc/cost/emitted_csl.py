"""What emitted CSL takes on a core of a wafer, before there is a program.

Where a device has CSL, searches and the clock of emitted programs know the same prices. A
microkernel is counted here by the functions that choose how it is written (``analysis/csl``), on
operands that lie without gaps, each in the way that takes the fewest cycles with as much scratch as
a function may have; messages and loops by the set-ups of their statements. What only the clock
knows is where a program has its operands, which memory it has left, and what guards cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import prod
from typing import NamedTuple

from meshc.analysis.csl import instruction_costs as csl
from meshc.analysis.csl.across import OF_A_RING, slots_of_rows
from meshc.analysis.csl.element_costs import by_rows, goes_by_rows, rows_masked
from meshc.analysis.csl.factors import Batch, Product
from meshc.analysis.csl.factors import Call as Products
from meshc.analysis.csl.held import FUNCTIONS
from meshc.analysis.csl.instruction_costs import NUMBER, Costs, rows_of_grids, setup, walked
from meshc.analysis.csl.operands import BY_STEPS, one_by_one
from meshc.analysis.csl.product_choice import Choices, best
from meshc.analysis.csl.products import MOST_SCRATCH_BYTES
from meshc.analysis.csl.rope_vectors import turned_rows
from meshc.analysis.csl.strided_windows import Dim, Window, dense, first_part, rounds, window
from meshc.analysis.csl.vector_ways import (
    BY_LANES,
    BY_NEWTON,
    chosen_way,
    takes_registers,
    vector_cycles,
)
from meshc.analysis.csl.ways import ACROSS, BY, HALF, NEWTON, VECTOR
from meshc.devices import Device, Number, WatchedDevice
from meshc.ir.affine import Expr
from meshc.ir.ops.tile import Compute, ParamValue
from meshc.ir.types import BufferType, DType
from meshc.ir.values import Value
from meshc.ir.views import Range, View, Whole

Shape = tuple[int, ...]
_AMPLE = MOST_SCRATCH_BYTES // DType.F32.bytes
"""f32 elements of scratch that a function may take."""
_OF_RUN = Expr.var("rows")
_WITH_A_NUMBER = ("fill", "scale", "at_least")
_OPERATIONS = {"relu2": 2, "clamp": 4}
_NONE = Expr.const(0)
_ADDRESS = 8
"""Where a slot that is moved lies, worked out as the program runs."""
_CASES = 10
"""Going on with one of the first cases of a program."""
_CASE = 30
"""Going on with a case in the mean over the 39 of a prompt's program with layers of one kind."""
_SOURCE = "set-ups of emitted statements (docs/csl.md, Predicted cycles)"
_LANE = 21
"""One lane that is selected."""


@dataclass(frozen=True)
class Operand:
    """An operand of a microkernel that lies without gaps; of the dims at the places in ``of_run``
    the run knows how much there is."""

    shape: Shape
    dtype: DType
    of_run: tuple[int, ...] = ()

    @property
    def view(self) -> View:
        """A window of memory of its own."""
        value = Value("operand", BufferType(self.dtype, self.shape))
        places = range(len(self.shape))
        ranges = (Range(_NONE, _OF_RUN) if n in self.of_run else Whole() for n in places)
        return View(value, tuple(ranges) if self.of_run else ())

    @property
    def words(self) -> int:
        """Wavelets of a message of it: two elements of 16 bits go in one where the program knows
        that there is an even number."""
        size = prod(self.shape)
        known = prod(e for n, e in enumerate(self.shape) if n not in self.of_run)
        return size // 2 if self.dtype.bytes == 2 and known % 2 == 0 else size


@dataclass(frozen=True)
class Call:
    """A microkernel, its result first, and those of its ``params`` on which its cost depends."""

    kernel: str
    operands: tuple[Operand, ...]
    params: tuple[tuple[str, ParamValue], ...] = ()


@dataclass(frozen=True)
class LocalProduct:
    """``batch`` products ``[m, k] @ [k, n]`` of factors and sums of these types. The right factors
    are rows of its transpose where ``transposed``; products of slots that move go onto what the
    sums were where they ``accumulate``. Only the run knows how much there is of the letters
    ``of_run``. Rows of sums and of left factors are those of all products together where these are
    ``interleaved``. So many products in a row are ``sharing`` a right factor. With ``chunks`` the
    factors have so many chunks of ``k`` lanes each, one behind the other, which are added up."""

    m: int
    k: int
    n: int
    dtype: DType
    sums: DType
    batch: int = 1
    transposed: bool = False
    accumulate: bool = False
    of_run: str = ""
    interleaved: bool = False
    sharing: int = 1
    chunks: int = 1


class Work(NamedTuple):
    """Predicted ``cycles`` of a microkernel, and how many of them are vector ``steps``, in which
    transfers of the core stand still."""

    cycles: int
    steps: int


class _Known(NamedTuple):
    """The ``work`` of a microkernel, and the numbers of the device that were ``asked`` for it."""

    work: Work
    asked: frozenset[str]


@dataclass(frozen=True)
class EmittedKernels:
    """Those on cores of ``device``; what was asked for before is known, of devices with the same
    numbers to all."""

    device: Device
    _known: dict[Call | LocalProduct, _Known] = field(
        default_factory=dict, compare=False, repr=False
    )

    @staticmethod
    def of(device: Device) -> EmittedKernels:
        """Those on ``device``."""
        numbers = tuple(sorted((name, one.value) for name, one in device.numbers.items()))
        return EmittedKernels(device, _known_with(numbers))

    def cycles(self, what: Call | LocalProduct) -> int:
        """Predicted cycles of a microkernel."""
        return self.work(what).cycles

    def work(self, what: Call | LocalProduct) -> Work:
        """The same, and how many of them are vector steps; for all but products those are left
        out."""
        found = self._known.get(what)
        if found is None:
            watched = self.device.watched()
            costs = Costs(watched)
            if isinstance(what, LocalProduct):
                work = _product(what, costs)
            else:
                work = Work(_call(what, costs), 0)
            found = self._known[what] = _Known(work, frozenset(watched.asked))
        if isinstance(self.device, WatchedDevice):
            self.device.asked.update(found.asked)
        return found.work

    def start(self, chunk: Operand) -> int:
        """Cycles of starting a transfer of a ``chunk`` in one of several slots."""
        return 2 * csl.DESCRIPTOR + _ADDRESS + (csl.LENGTH if chunk.of_run else 0)

    @property
    def round_(self) -> int:
        """Cycles of a round of a loop whose core returns from its task and goes on when transfers
        have ended, apart from these: to the case behind them, and to that of the next round."""
        return csl.LOOP_OF_CASES + Costs(self.device).task + csl.RESUME + 2 * _CASE

    @property
    def join(self) -> int:
        """Cycles of the task that joins the ends of two transfers."""
        return Costs(self.device).task + csl.JOIN


@lru_cache(maxsize=4)
def _known_with(
    numbers: tuple[tuple[str, int | float | str | None], ...],
) -> dict[Call | LocalProduct, _Known]:
    """What is known of devices with these ``numbers``: a search and the passes behind it ask for
    the same kernels."""
    return {}


def as_emitted(device: Device) -> Device:
    """``device`` with what stages, relays, steps and operations of emitted programs take, where it
    has CSL: the numbers of its file are those of published programs, whose text is not ours. A core
    awaits the transfers of a chain, so that their set-ups follow their first words."""
    if device.csl_arch is None:
        return device
    costs = Costs(device)
    stage = 2 * costs.ramp + csl.FABRIC + walked(1) + costs.awaited + 1
    resumed = costs.task + csl.RESUME + costs.task + csl.JOIN
    numbers: dict[str, float] = {
        "route_cycles": stage,
        "step_cycles": csl.LOOP_OF_CASES + resumed + walked(2) + _CASES,
        "op_cycles": walked(2) + csl.LOOP + csl.MOVED,
    }
    if device.link.relay_cycles is not None:
        numbers["relay_cycles"] = costs.relay
    told = {name: Number(value, "calibrated", _SOURCE) for name, value in numbers.items()}
    return replace(device, numbers={**device.numbers, **told})


def _product(one: LocalProduct, costs: Costs) -> Work:
    m, k, n = (
        (extent, _OF_RUN if letter in one.of_run and extent > 1 else None)
        for letter, extent in zip("mkn", (one.m, one.k, one.n), strict=True)
    )
    lead = one.batch if one.interleaved else 1
    right = [Dim(k[0], one.n, k[1]), Dim(n[0], 1, n[1])]
    if one.transposed:
        right = [Dim(k[0], 1, k[1]), Dim(n[0], one.k, n[1])]
    groups = one.batch // one.sharing
    # Chunks that move are in a slot that only the run knows.
    at = Expr.var("slot") if one.accumulate and one.chunks == 1 else _NONE
    product = Product(
        _window(one.sums, [Dim(m[0], one.n * lead, m[1]), Dim(n[0], 1, n[1])]),
        _window(one.dtype, [Dim(m[0], one.k * lead, m[1]), Dim(k[0], 1, k[1])]).moved(
            at * (one.batch * one.m * one.k)
        ),
        _window(one.dtype, right).moved(at * (groups * one.k * one.n)),
    )
    group = one.sharing if one.interleaved else one.sharing * one.m  # rows of a right factor
    head = 1 if one.interleaved else one.m
    loops = (
        Batch(Dim(groups, 1), (group * one.n, group * one.k, one.k * one.n)),
        Batch(Dim(one.sharing, 1), (head * one.n, head * one.k, 0)),
        Batch(Dim(one.chunks, 1), (0, one.batch * one.m * one.k, groups * one.k * one.n)),
    )
    batches = {place: loop for place, loop in enumerate(loops) if loop.dim.extent > 1}
    free = MOST_SCRATCH_BYTES if product.constant else MOST_SCRATCH_BYTES // 2
    found = best(Products(product, batches), costs, free, one.accumulate, Choices())
    addresses = 0 if at == _NONE else 2 * _ADDRESS
    return Work(found.cycles + addresses, found.steps)


def _call(call: Call, costs: Costs) -> int:
    op = Compute([o.view for o in call.operands], kernel=call.kernel, params=dict(call.params))
    windows = [window(view) for view in op.views()]
    to = windows[0]
    match call.kernel:
        case "ring_push":
            return OF_A_RING + setup([to]) + costs.vector("add", to.dtype, to.size, (1,))
        case "mask_causal":
            return rows_masked(to, costs)
        case "rope":
            kind = to.dtype if to.dtype == DType.F16 else DType.F32
            return turned_rows(costs, to, windows[1], to.shape[-2], kind).cycles
        case "select_lanes":
            return to.shape[0] * _LANE
    if call.kernel in (*BY_STEPS, *BY_NEWTON, *BY_LANES):
        op.way = chosen_way(op, costs, _AMPLE, (VECTOR, HALF, BY, NEWTON, ACROSS), ())
        if op.way:
            op.dsr = FUNCTIONS if takes_registers(op) else 0
            return vector_cycles(op, windows, costs)
    if call.kernel == "mask_slots":
        return slots_of_rows([to], costs)
    copied = one_by_one(op, windows)
    wide = [_in_f32(one) if yes else one for one, yes in zip(windows, copied, strict=True)]
    copies = sum(
        _elements("copy", pair, costs)
        for pair in zip(wide, windows, strict=True)
        if pair[0] is not pair[1]
    )
    if goes_by_rows(call.kernel):
        return copies + by_rows(op, wide, costs)
    return copies + _elements(call.kernel, wide, costs)


def _elements(kernel: str, windows: Sequence[Window], costs: Costs) -> int:
    """A vector operation on all elements; operands that lack leading dims are repeated."""
    to, *others = windows
    alike = [to]
    for one in others:
        lacking = to.dims[: len(to.dims) - len(one.dims)]
        alike.append(one.inner((*(Dim(d.extent, 0, d.count) for d in lacking), *one.dims)))
    kind = "mul" if kernel in ("mul", "scale") else "add"
    if any(one.dtype.half != to.dtype.half for one in others):
        kind = "convert"
    loops, part = first_part(alike)
    paces = tuple(one.pace for one in part)
    rows = rows_of_grids(part)
    steps = costs.vector(kind, to.dtype, part[0].size, paces, rows)
    steps += round(costs.meetings(part[1:], kind, rows))
    numbers = NUMBER if kernel in _WITH_A_NUMBER else 0
    operations = _OPERATIONS.get(kernel, 1)
    once = operations * (setup(part) + numbers + steps)
    if not loops:
        return once
    moved = csl.OFFSET + (0 if part[0].constant else csl.LENGTH)
    return rounds(loops) * (once + csl.LOOP + operations * moved * len(part))


def _in_f32(one: Window) -> Window:
    """Memory for a copy of what has 16 bits."""
    return _window(DType.F32, dense(one.dims))


def _window(dtype: DType, dims: Sequence[Dim]) -> Window:
    size = sum((dim.extent - 1) * dim.stride for dim in dims) + 1
    return Window(Value("operand", BufferType(dtype, (size,))), dtype, Expr.const(0), tuple(dims))
