"""What operations cost, to choose between ways of writing a kernel and to predict programs.

Lanes per cycle are numbers of the device, stride classes the vendor's documented ones, set-ups,
calls and loads of registers the measured or assumed cycles that ``docs/sim.md`` lists, the same for
which the simulator is calibrated on published points. Those of scalar code are counted in the text
that ``pe/program.py`` writes. None is fitted to cycles of whole programs;
``docs/performance.md`` says how close predictions come.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshc.devices import Device
from meshc.ir.types import DType

CALL = 6  # one call of a mapped function and the set-up of its operation
SETUP = 5  # an operation on memory
LOAD = 28  # a register loaded at run time
DESCRIPTOR = 1  # an operand whose descriptor was made at run time
LENGTH = 4 + DESCRIPTOR  # a descriptor whose length is set at run time
JOIN = 10  # a task that joins two ends: started, blocked again, a signal
FABRIC = 2  # set-up of an operation with a fabric operand
RAMP = 2  # between a PE and its router
HOP = 1  # from router to router
RELAY = 1  # from a wavelet's arrival to the sum's departure
RESUME = 12  # the task that goes on: started, blocked again, a call
LOOP = 5  # scalar code around one pass of a loop
LOOP_OF_CASES = 7  # the same where the pass suspends, the choice of the next case apart
FRAME = 5  # between the time stamps: reading the counter, and the call of the program
WRITE_EVERY = 8  # one step of an f32 multiply-accumulate in so many loses a cycle to its result
STAY_EVERY = 32  # the same, on top of one in each, where results go to the bank of the sums
BANKS = 4  # f32 words from one bank group to the same again


@dataclass(frozen=True)
class Costs:
    """Cycles of operations on ``device``."""

    device: Device

    def vector(self, kind: str, dtype: DType, extent: int, strides: tuple[int, ...]) -> int:
        """``extent`` elements, set-up apart, of a ``mac``, ``mixed``, ``mul``, ``add`` or
        ``convert``. Maxima of f32 count as conversions, of which a cycle takes one (on some devices
        more)."""
        lanes = self._lanes(kind, str(dtype))
        for stride in strides:
            lanes = min(lanes, stride_lanes(stride, lanes))
        steps = -(-extent // lanes)
        return steps + writes(extent, strides) if (kind, dtype) == ("mac", DType.F32) else steps

    def _lanes(self, kind: str, dtype: str) -> int:
        """Elements per cycle at full speed; a product takes as many as a multiply-add."""
        if kind == "convert":
            return 1
        if kind == "add":
            return int(self.device.lanes(dtype))
        return int(self.device.macs("f16" if kind == "mixed" else dtype, dtype))


def writes(extent: int, strides: tuple[int, ...] = ()) -> int:
    """Cycles that multiply-accumulates of ``extent`` f32 lose to the write of their results; the
    first stride is that of the sums, the other that of the factors."""
    if not strides or strides[0] == 0 or strides[0] % BANKS:
        return extent // WRITE_EVERY
    turns = len(strides) > 1 and all(s and s % (2 * BANKS) == 0 for s in strides)
    return extent + extent // STAY_EVERY + (extent if turns else 0)


def stride_lanes(stride: int, lanes: int) -> int:
    """Elements per cycle at a stride: banks repeat every eight words."""
    if stride in (0, 1) or stride % 8 in (2, 3, 5, 6):
        return lanes
    return 1 if stride % 8 == 0 else 2
