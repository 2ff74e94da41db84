"""What operations cost, to choose between ways of writing a kernel and to predict programs.

Lanes per cycle are numbers of the device, stride classes the vendor's documented ones, set-ups,
calls and loads of registers the measured or assumed cycles that ``docs/sim.md`` lists, the same for
which the simulator is calibrated on published points. Those of scalar code are counted in the tree
that ``pe/program.py`` writes. None is fitted to cycles of whole programs;
``docs/performance.md`` says how close predictions come.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd

from meshc.analysis.csl.windows import Window, has_one_dim
from meshc.devices import Device
from meshc.ir.types import DType

START = 1  # an operation, its operands in registers
DESCRIPTOR = 2  # an operand named by a descriptor and no register
GRID = 4  # the same, of several dims
NUMBER = 1  # an operand that is a number
CALL = 1 + START + NUMBER  # one call of a mapped function, whose operation is on registers
CONSTANT = 2  # a register loaded from a constant descriptor
WRITTEN = 7  # from a register written to an operation that names it
DRAINED = 13  # from the end of an operation over registers to a new address of any of them
LENGTH = 4  # a descriptor whose length is set at run time
JOIN = 4  # a task that joins two ends, once it runs: blocked again, a signal
FABRIC = START  # set-up of an operation with a fabric operand; on WSE-3 a second cycle is hidden
RELAY = 1  # from a wavelet's arrival to the sum's departure
RESUME = 6  # the task that goes on, once it runs: blocked again, a call
UNROLLED = 150  # operations of a loop that the vendor's compiler writes out, all passes together
PASS = 6  # scalar cycles of one pass of any other loop
LOOP = PASS + 1  # scalar code around one pass of a loop
START_OF_LOOP = 3
OFFSET = 4  # a descriptor moved at run time, its distance apart
MOVED = OFFSET + 1  # the same by a multiple of a loop's variable
LOOP_OF_CASES = 7  # the same where the pass suspends, the choice of the next case apart
FRAME = 5  # between the time stamps: reading the counter, and the call of the program
WRITE_EVERY = 8  # one step of an f32 multiply-accumulate in so many loses a cycle to its result
STAY_EVERY = 32  # the same, on top of one in each, where results go to the bank of the sums
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
        """``extent`` elements, set-up apart, of a ``mac``, ``mixed``, ``mul``, ``add`` or
        ``convert``; an operand of several dims has ``rows``. Maxima of f32 count as conversions, of
        which a cycle takes one (on some devices more). A row takes a cycle, but none of f32
        multiply-accumulates."""
        lanes = self._lanes(kind, str(dtype))
        for stride in strides:
            lanes = min(lanes, stride_lanes(stride, lanes))
        if rows:
            once = 0 if (kind, dtype) == ("mac", DType.F32) else rows
            return once + -(-extent // max(1, lanes // 2))
        steps = -(-extent // lanes)
        return steps + writes(extent, strides) if (kind, dtype) == ("mac", DType.F32) else steps

    def lanes_of_codes(self, kind: str) -> int:
        """Elements per cycle of what makes numbers of codes: operations on ``words`` of 16 bits,
        a ``shift`` of them, ``integer`` to float, ``convert`` from f16 to f32 or back."""
        if kind == "words":
            return int(self.device.lanes("f16"))
        name = "integer" if kind == "integer" else "convert"
        return int(self.device.real(f"{name}_lanes_per_cycle"))

    def meetings(self, sources: Sequence[Window], kind: str = "mul", rows: int = 0) -> int:
        """Steps of an operation on f32 in which both ``sources`` lie in one bank group, so that
        they are read one after the other; none of a ``kind`` that takes several elements a cycle
        where an operand of several dims, which has ``rows``, leaves it half of them. A source that
        does not move is read once; where one lies is the run's to say, as many steps as in the mean
        over the bank groups."""
        if len(sources) < 2 or any(one.dtype != DType.F32 for one in sources):
            return 0
        first, second = (one.merged().dims[-1].stride for one in sources[:2])
        lanes = self._lanes(kind, str(DType.F32))
        halved = rows > 0 and min(stride_lanes(one, lanes) for one in (first, second)) > 1
        if not first or not second or halved:
            return 0
        count = sources[0].size
        every = BANKS // gcd(first - second, BANKS)
        begin = self.apart(*sources[:2])
        if begin is None:
            return count // BANKS
        for step in range(min(every, count)):
            if (begin + step * (first - second)) % BANKS == 0:
                return -(-(count - step) // every)
        return 0

    def apart(self, first: Window, second: Window) -> int | None:
        """Bank groups from where ``second`` begins to where ``first`` does; None where only the run
        knows."""
        way = first.start - second.start
        if any(factor % BANKS for _, factor in way.terms):
            return None
        late = (self.late.get(one.buffer.name, 0) for one in (first, second))
        return (way.constant + next(late) - next(late)) % BANKS

    def _lanes(self, kind: str, dtype: str) -> int:
        """Elements per cycle at full speed; a product takes as many as a multiply-add."""
        if kind == "convert":
            return self.lanes_of_codes("convert")
        if kind == "add":
            return int(self.device.lanes(dtype))
        return int(self.device.macs("f16" if kind == "mixed" else dtype, dtype))


def walked(descriptors: int, numbers: int = 0) -> int:
    """The set-up of an operation on so many descriptors of one dim and numbers."""
    return START + descriptors * DESCRIPTOR + numbers * NUMBER


def around_pass(passes: int, operations: int) -> int:
    """Scalar cycles around one of so many passes of a loop, each of so many ``operations`` of
    scalar code: none where the loop is written out."""
    return 0 if passes * operations <= UNROLLED else LOOP


def looped(passes: int, operations: int, moved: int) -> int:
    """Scalar cycles of a loop of so many ``passes``, each of which moves so many DSDs to its place
    for ``operations`` of scalar code. Where the loop is written out, only the DSDs are left."""
    if passes * (operations + moved * MOVED) <= UNROLLED:
        return passes * moved * OFFSET
    return START_OF_LOOP + passes * (PASS + moved * MOVED)


def setup(operands: Sequence[object]) -> int:
    """An operation before its first step: windows are brought to registers, and numbers."""
    return START + sum(
        (DESCRIPTOR if has_one_dim(one) else GRID) if isinstance(one, Window) else NUMBER
        for one in operands
    )


def rows_of_grids(operands: Sequence[object]) -> int:
    """The most rows that an operand of several dims has; 0 where all have one."""
    merged = [one.merged() for one in operands if isinstance(one, Window)]
    grids = [one for one in merged if len(one.dims) > 1]
    return max((one.size // max(1, one.dims[-1].extent) for one in grids), default=0)


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
