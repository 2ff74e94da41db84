"""What operations cost, to choose between ways of writing a kernel and to predict programs.

Lanes per cycle are numbers of the device, stride classes the vendor's documented ones; what is the
same on all wafers, or on those of an architecture, is in ``devices/csl.toml``, each with kind and
source: the measured or assumed cycles that ``docs/sim.md`` lists, the same for which the simulator
is calibrated on published points. None is fitted to cycles of whole programs;
``docs/performance.md`` says how close predictions come.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd

from meshc.analysis.csl.strided_windows import Window, has_one_dim
from meshc.devices import Device
from meshc.devices.csl import statement_cycles
from meshc.ir.brought_functions import CSL_MATH
from meshc.ir.types import DType

_OF = statement_cycles()
OPERATION = _OF["operation"]
DESCRIPTOR = _OF["descriptor"]
GRID = _OF["grid_descriptor"]
NUMBER = _OF["number"]
MAPPED = _OF["mapped"]
CALL = MAPPED + OPERATION + NUMBER  # of a mapped function, whose operation is on registers
CONSTANT = _OF["constant_load"]
WRITTEN = _OF["written"]
DRAINED = _OF["drained"]
REBASED = _OF["rebased"]
OFFSET = LENGTH = _OF["routine"]
MOVED = OFFSET + 1  # by a multiple of a loop's variable
BRANCH = _OF["branch"]
BACK = _OF["back"]
CALLED = _OF["call"]
EFFECT = _OF["effect"]
DIVISION = _OF["divide"]
REAL_DIVISION = _OF["real_divide"]
TO_INTEGER = _OF["to_integer"]
FUNCTION = {
    f"math.{name}_{kind}": LENGTH + _OF[name] for name in CSL_MATH for kind in ("f16", "f32")
}
STORE = 1
TAKEN = 3 + STORE  # an element of an array into a variable: two loads, an addition
COMPARED = 2 + BRANCH  # one case of a switch: load, comparison, branch
JOIN = 2 * EFFECT  # a task that joins two ends, once it runs: blocked again, a signal
RESUME = EFFECT + CALLED  # the task that goes on, once it runs: blocked again, a call
FABRIC = OPERATION  # one with a fabric operand; on WSE-3 a second cycle is hidden by its code
RELAY = _OF["relay"]
UNROLLED = _OF["unrolled"]
PASS = _OF["pass"]
LOOP = PASS + 1  # scalar code around one pass of a loop
BEGIN_OF_LOOP = _OF["begin"]
BEGIN_OF_LOOP_WRITTEN_OUT = _OF["begin_written_out"]
LOOP_OF_CASES = LOOP  # the same where the pass suspends, the choice of the next case apart
FRAME = _OF["timestamp"]
WRITE_EVERY = _OF["write_every"]
STAY_EVERY = _OF["stay_every"]
BANKS = 4  # f32 words from one bank group to the same again


@dataclass(frozen=True)
class Costs:
    """Cycles of operations on ``device``; buffers begin in the first bank group, those of ``late``
    so many elements later."""

    device: Device
    late: Mapping[str, int] = field(default_factory=dict)

    @property
    def task(self) -> int:
        """Picking and starting a local task."""
        return int(self.device.real("task_cycles"))

    @property
    def load(self) -> int:
        """A register loaded from a descriptor that is made at run time."""
        return int(self.device.real("register_load_cycles"))

    @property
    def awaited(self) -> int:
        """The set-up of a transfer that its task awaits, which follows its first word."""
        return statement_cycles(str(self.device.csl_arch))["awaited"]

    @property
    def relay(self) -> float:
        """A relay that its task awaits, from word to word with its hop; what it sends on leaves
        once it is set up."""
        return (self.device.link.relay_cycles or 0) - RELAY + self.awaited

    @property
    def hop(self) -> int:
        """From router to router."""
        return int(self.device.link.hop_cycles)

    @property
    def ramp(self) -> int:
        """Between a core and its router, what a relay takes less its hop and its sum."""
        return int((self.device.link.relay_cycles or 0) - self.hop - RELAY) // 2

    def vector(
        self, kind: str, dtype: DType, extent: int, strides: tuple[int, ...], rows: int = 0
    ) -> int:
        """``extent`` elements, set-up apart, of a ``mac``, ``mixed``, ``mul``, ``add``, ``convert``
        or ``integer``, which makes floats of words; an operand of several dims has ``rows``. Maxima
        count as conversions, of which a cycle takes one (on some devices more). A row takes a
        cycle, but none of f32 multiply-accumulates."""
        lanes = self._lanes(kind, str(dtype))
        for stride in strides:
            lanes = min(lanes, stride_lanes(stride, lanes))
        if rows:
            once = 0 if (kind, dtype) == ("mac", DType.F32) else rows
            return once + -(-extent // max(1, lanes // 2))
        steps = -(-extent // lanes)
        return steps + writes(extent, strides) if (kind, dtype) == ("mac", DType.F32) else steps

    def meetings(self, sources: Sequence[Window], kind: str = "mul", rows: int = 0) -> float:
        """Steps of an operation on f32 in which both ``sources`` lie in one bank group, so that
        they are read one after the other; none of a ``kind`` that takes several elements a cycle
        where an operand of several dims, which has ``rows``, leaves it half of them. A source that
        does not move is read once; where one lies is the run's to say, as many steps as in the mean
        over the places where it may."""
        if len(sources) < 2 or any(one.dtype != DType.F32 for one in sources):
            return 0
        first, second = (one.fewest[-1].stride for one in sources[:2])
        lanes = self._lanes(kind, str(DType.F32))
        halved = rows > 0 and min(stride_lanes(one, lanes) for one in (first, second)) > 1
        if not first or not second or halved:
            return 0
        count, drift = sources[0].size, first - second
        apart, step = self.apart(*sources[:2])
        reached = gcd(drift, step, BANKS)
        if apart % reached:
            return 0
        if step == BANKS and drift:
            every = BANKS // gcd(drift, BANKS)
            met = (n for n in range(min(every, count)) if (apart + n * drift) % BANKS == 0)
            return next((-(-(count - n) // every) for n in met), 0)
        return count * (step if not drift else reached) / BANKS

    def apart(self, first: Window, second: Window) -> tuple[int, int]:
        """Bank groups from where ``second`` begins to where ``first`` does, and in which steps that
        changes with what only the run knows."""
        way = first.start - second.start
        late = (self.late.get(one.buffer.name, 0) for one in (first, second))
        step = gcd(BANKS, *(factor for _, factor in way.terms))
        return (way.constant + next(late) - next(late)) % step, step

    def _lanes(self, kind: str, dtype: str) -> int:
        """Elements per cycle at full speed; a product takes as many as a multiply-add."""
        if kind in ("convert", "integer"):
            return int(self.device.real(f"{kind}_lanes_per_cycle"))
        if kind == "add":
            return int(self.device.lanes(dtype))
        return int(self.device.macs("f16" if kind == "mixed" else dtype, dtype))


_KINDS = {
    **dict.fromkeys(("@fmulh",), ("mul", DType.F16)),
    **dict.fromkeys(("@fmach",), ("mac", DType.F16)),
    **dict.fromkeys(
        ("@fmovh", "@faddh", "@fsubh", "@fabsh", "@fnegh", "@add16", "@and16", "@sub16"),
        ("add", DType.F16),
    ),
    **dict.fromkeys(("@fmaxh", "@sll16", "@slr16"), ("convert", DType.F16)),
    **dict.fromkeys(("@fmuls",), ("mul", DType.F32)),
    **dict.fromkeys(("@fmacs",), ("mac", DType.F32)),
    **dict.fromkeys(("@fmachs",), ("mixed", DType.F32)),
    **dict.fromkeys(
        ("@fmovs", "@fadds", "@fsubs", "@fabss", "@fnegs", "@faddhs"), ("add", DType.F32)
    ),
    **dict.fromkeys(("@fmaxs", "@fh2s", "@fs2h"), ("convert", DType.F32)),
    **dict.fromkeys(("@xp162fs", "@xp162fh"), ("integer", DType.F32)),
}
"""What an operation on vectors costs as."""


def operation_steps(costs: Costs, builtin: str, to: Window, sources: Sequence[Window]) -> float:
    """Cycles of an operation on vectors, set-up apart, whose largest operand has all elements; in
    the mean where only the run knows whether sources lie in one bank group, which is read twice in
    place of what results lose where they are written."""
    kind, dtype = _KINDS[builtin]
    windows = (to, *sources)
    size = max(window.size for window in windows)
    paces = tuple(dict.fromkeys(window.pace for window in windows))
    rows = rows_of_grids(windows)
    steps = costs.vector(kind, dtype, size, paces, rows)
    met = costs.meetings(sources, kind, rows)
    return steps + met * ((size - writes(size)) / size if builtin == "@fmacs" else 1)


def walked(descriptors: int, numbers: int = 0) -> int:
    """The set-up of an operation on so many descriptors of one dim and numbers."""
    return OPERATION + descriptors * DESCRIPTOR + numbers * NUMBER


def around_pass(passes: int, operations: int) -> int:
    """Scalar cycles around one of so many passes of a loop, each of so many ``operations`` of
    scalar code: none where the loop is written out."""
    return 0 if passes * operations <= UNROLLED else LOOP


def looped(passes: int, operations: int, moved: int) -> int:
    """Scalar cycles of a loop of so many ``passes``, each of which moves so many DSDs to its place
    for ``operations`` of scalar code. Where the loop is written out, only the DSDs are left."""
    if passes * (operations + moved * MOVED) <= UNROLLED:
        return passes * moved * OFFSET
    return BEGIN_OF_LOOP + passes * (PASS + moved * MOVED)


def setup(operands: Sequence[object]) -> int:
    """An operation before its first step: windows are brought to registers, and numbers."""
    return OPERATION + sum(
        (DESCRIPTOR if has_one_dim(one) else GRID) if isinstance(one, Window) else NUMBER
        for one in operands
    )


def rows_of_grids(operands: Sequence[object]) -> int:
    """The most rows that an operand of several dims has; 0 where all have one."""
    grids = [one for one in operands if isinstance(one, Window) and len(one.fewest) > 1]
    return max((one.size // max(1, one.fewest[-1].extent) for one in grids), default=0)


def writes(extent: int, strides: tuple[int, ...] = ()) -> int:
    """Cycles that multiply-accumulates of ``extent`` f32 lose to the write of their results; the
    first stride is that of the sums, the other that of the factors."""
    if not strides or strides[0] == 0 or strides[0] % BANKS:
        return extent // WRITE_EVERY
    return extent + extent // STAY_EVERY


def stride_lanes(stride: int, lanes: int) -> int:
    """Elements per cycle at a stride: banks repeat every eight words."""
    if stride in (0, 1) or stride % 8 in (2, 3, 5, 6):
        return lanes
    return 1 if stride % 8 == 0 else 2
