"""A lower bound of what a program can take: its messages and products at the pace of the device.

The clocks run through the same program at prices that no program on the device can beat:
multiply-adds at full lanes, elements of other arithmetic one operation each, words one per cycle
over links, hops at the pace of the fabric. Set-ups, tasks and scalar code take nothing. No price is
above that of the emitted program, so no clock is either.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from meshc.analysis.csl.strided_windows import Window, window
from meshc.backends.csl.kernels.table import Kernels
from meshc.backends.csl.timing.cases import Cases
from meshc.backends.csl.timing.prices import Fabric, Prices
from meshc.ir.affine import Cond, IntLike
from meshc.ir.functions import FUNCTIONS
from meshc.ir.ops.tile import Compute, For

_ARITHMETIC = {
    *FUNCTIONS,
    *("add", "mul", "div", "scale", "larger", "at_least", "exp_sub", "rope"),
    *("square_sum", "row_sum", "row_max", "rms_scale", "inverse_rms"),
}
"""Kernels that compute something of each element of their largest operand."""


class Bounds(Prices):
    """Prices that no program on the device can beat."""

    def __init__(self, kernels: Kernels, cases: Cases) -> None:
        super().__init__(kernels, cases)
        self._device = kernels.costs.device
        self.fabric = Fabric(hop=kernels.costs.hop)
        self.call = self.effect = self.request = 0

    def begin(self, values: Mapping[str, IntLike]) -> int:
        return 0

    def kernel(self, op: Compute, local: Collection[str]) -> tuple[int, int]:
        return min(self._work(op), super().kernel(op, local)[0]), 0

    def _work(self, op: Compute) -> int:
        """Arithmetic at full lanes; moves of elements, masks and words of state take nothing."""
        views = [window(view) for view in op.views()]
        kind = views[-1].dtype.value
        if op.kernel == "gemm":
            most = max(self._device.macs(kind), self._device.macs(kind, "f32"))
            return int(views[1].size * views[0].dims[-1].extent // most)
        if op.kernel not in _ARITHMETIC:
            return 0
        return int(max(view.size for view in views) // self._device.lanes(kind))

    def transfer(self, here: Window, combines: bool, relays: bool, local: Collection[str]) -> int:
        return 0

    def test(self, when: Cond, local: Collection[str]) -> int:
        return 0

    def round(self, op: For, rounds: int, in_cases: bool) -> int:
        return 0

    def switched(self, number: int) -> int:
        return 0
