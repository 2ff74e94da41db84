"""What it costs that rows travel to the cores of their experts, by how they travel."""

from __future__ import annotations

from meshc.cost.operations import message, shifts
from meshc.cost.terms import Cost
from meshc.devices import Device

WAYS = ("multicast", "ring", "gather")


def dispatch_costs(size: int, words: float, device: Device) -> dict[str, Cost]:
    """Cycles until every one of ``size`` cores in a line has the ``words`` of each, by way.

    ``multicast``: cores send in turn, and a turn ends when its words and those before it have
    passed the furthest core. ``ring``: ``size - 1`` steps of at most two hops. ``gather``: as many
    steps to the first core, then one multicast of all.
    """
    last = size - 1
    step = Cost(overhead=device.step_cycles)
    turn = message(words, 0, device) + step
    return {
        "multicast": turn * size + message(0, last, device),
        "ring": shifts(last, words, min(2, last), device),
        "gather": shifts(last, words, min(2, last), device) + message(size * words, last, device),
    }


def natural_ring(size: int, device: Device) -> Cost:
    """What a ring pays more where ranks are positions: its step back over the whole line."""
    extra = max(0, size - 1 - min(2, size - 1))
    return Cost(transfer=extra * device.link.hop_cycles) * (size - 1)
