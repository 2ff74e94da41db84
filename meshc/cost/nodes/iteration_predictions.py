"""A schedule of an iteration on a node as a prediction: its kernels, those alike together."""

from __future__ import annotations

from meshc.cost.nodes.overlap import Schedule
from meshc.cost.nodes.ranks import Kernel
from meshc.cost.predictions import Part, Prediction, inputs_of
from meshc.cost.terms import NOTHING, Cost
from meshc.devices import WatchedDevice

APART = ("compute", "transfer", "overhead")
_BETWEEN = ("all_reduce", "all_reduce_norm")
"""Kernels whose time links take; others compute, or read what they compute with."""


def predicted_schedule(
    schedule: Schedule, device: WatchedDevice, behind: tuple[Kernel, ...] = ()
) -> Prediction:
    """What ``schedule`` of one stream and the kernels ``behind`` it take on ``device``, whose
    numbers were asked for."""
    times: dict[str, int] = {}
    costs: dict[str, Cost] = {}
    taken = [(span.name, span.stop - span.start) for span in schedule.spans]
    for name, seconds in [*taken, *((kernel.name, kernel.seconds) for kernel in behind)]:
        cost = Cost(transfer=seconds) if name in _BETWEEN else Cost(compute=seconds)
        times[name] = times.get(name, 0) + 1
        costs[name] = costs.get(name, NOTHING) + cost
    parts = [Part(name, times[name], costs[name]) for name in costs]
    parts.append(Part("iteration", 1, Cost(overhead=schedule.fixed_seconds)))
    inputs = inputs_of(device, device.asked)
    return Prediction("kernels", "seconds", None, tuple(parts), inputs, apart=APART)
