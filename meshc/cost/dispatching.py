"""What it costs that rows travel to the cores of their experts, by how they travel."""

from __future__ import annotations

from meshc.cost.operations import message, shifts
from meshc.cost.terms import Cost
from meshc.devices import Device

WAYS = ("multicast", "ring", "gather")


def dispatch_costs(size: int, words: float, device: Device, axis: str) -> dict[str, Cost]:
    """Cycles until every one of ``size`` cores along ``axis`` has the ``words`` of each, by way.

    ``multicast``: cores send in turn, and a turn ends when its words and those before it have
    passed the furthest core. ``ring``: ``size - 1`` steps of at most two hops, of one on a ring of
    a torus. ``gather``: as many steps to the first core, then one multicast of all.
    """
    closes, device, last = device.closes(axis, size), device.along(axis), size - 1
    hops, far = (1, size // 2) if closes else (min(2, last), last)
    step = Cost(overhead=device.step_cycles)
    turn = message(words, 0, device) + step
    return {
        "multicast": turn * size + message(0, far, device),
        "ring": shifts(last, words, hops, device),
        "gather": shifts(last, words, hops, device) + message(size * words, far, device),
    }


def natural_ring(size: int, device: Device, axis: str) -> Cost:
    """What a ring along ``axis`` pays more where ranks are positions: its step back over the whole
    line, which is a hop where the line closes."""
    extra = 0 if device.closes(axis, size) else max(0, size - 1 - min(2, size - 1))
    return Cost(transfer=extra * device.along(axis).link.hop_cycles) * (size - 1)
