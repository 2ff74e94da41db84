"""One router's state for one color: routes, switch position, filter, waiting bursts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from meshc.sim.machine.channel import Burst
from meshc.sim.route_configs import (
    ALWAYS_POP,
    EAST,
    NORTH,
    POP_ON_ADVANCE,
    POP_ON_ADVANCE_NOP,
    RAMP,
    SOUTH,
    WEST,
    ColorConfig,
)

_REGISTER_ORDER = (WEST, EAST, SOUTH, NORTH, RAMP)


class Router:
    """Positions are cumulative: each replaces the input or the output of the one before."""

    __slots__ = (
        "config", "counter", "entry", "exit", "free_at", "limit", "masks", "pending", "pop",
        "ports", "position", "positions", "recent", "ring", "selects", "stage", "teardown",
    )  # fmt: skip

    def __init__(self, config: ColorConfig) -> None:
        self.config = config
        self.position = config.position
        self.positions: list[Any] = [*config.switches]
        self.positions += [None] * (3 - len(self.positions))
        self.ring = config.ring
        self.pop = config.pop
        self.teardown = config.teardown
        self.ports: list[deque[Burst]] = [deque() for _ in range(5)]
        self.free_at = 0
        self.recent: list[tuple[int, Burst]] = []
        self.entry = RAMP
        self.exit = -1
        self.counter = config.filter.init_counter if config.filter else 0
        self.limit = config.filter.limit1 if config.filter else 0
        self.stage = 0
        self.pending: deque[Callable[[Router], None]] = deque()
        self.masks = (config.rx, config.tx)
        self.selects = [e is not None and e[0] is not None for e in self.positions]

    def rx(self) -> tuple[int, ...]:
        """Inputs accepted at the present position."""
        for position in range(self.position, 0, -1):
            entry = self.positions[position - 1]
            if entry is not None and entry[0] is not None:
                return entry[0] if isinstance(entry[0], tuple) else (entry[0],)
        return self.masks[0]

    def tx(self) -> tuple[int, ...]:
        """Outputs at the present position."""
        for position in range(self.position, 0, -1):
            entry = self.positions[position - 1]
            if entry is not None and entry[1] is not None:
                return entry[1] if isinstance(entry[1], tuple) else (entry[1],)
        return self.masks[1]

    def outputs(self) -> set[int]:
        """Outputs other than the RAMP at any position."""
        found = set(self.masks[1])
        for entry in self.positions:
            if entry is not None and entry[1] is not None:
                found |= set(entry[1]) if isinstance(entry[1], tuple) else {entry[1]}
        return found - {RAMP}

    def meeting(self, port: int, burst: Burst) -> int:
        """An input other than ``port`` with a wavelet in a cycle of ``burst``; -1 for none."""
        self.recent = [(p, b) for p, b in self.recent if b.end() > burst.t0]
        accepted = self.rx()
        met = -1
        if port in accepted:
            met = next((p for p, b in self.recent if p != port and p in accepted
                        and meets(b, burst)), -1)  # fmt: skip
        self.recent.append((port, burst))
        return met

    def execute(self, command: int) -> bool:
        """Run one command of a control wavelet; whether it is popped."""
        advanced = False
        if command == 1:
            following = self.position + 1
            if following <= 3 and self.positions[following - 1] is not None:
                self.position, advanced = following, True
            elif self.ring and self.position:
                self.position, advanced = 0, True
        elif command == 2:
            self.position = 0
        if self.pop == ALWAYS_POP:
            return True
        if self.pop == POP_ON_ADVANCE:
            return advanced
        return self.pop == POP_ON_ADVANCE_NOP and (advanced or command == 0)

    def filtered(self, burst: Burst) -> list[Burst]:
        """The parts of a burst that pass the filter in front of the RAMP."""
        rule = self.config.filter
        if rule is None:
            return [burst]
        if burst.control and not (rule.count_control or rule.filter_control):
            return [burst]
        if rule.kind == "range":
            high = np.asarray(burst.data) >> 16
            keep = (high >= rule.low) & (high <= rule.high)
        else:
            keep = np.array([self._count() for _ in range(len(burst.data))], bool)
        if keep.all():
            return [burst]
        if burst.credit is not None:
            burst.credit.consume(int((~keep).sum()))
        return [
            Burst(
                burst.data[i : i + 1],
                burst.t0 + int(i) * burst.period,
                1,
                burst.control,
                burst.credit,
            )
            for i in np.flatnonzero(keep)
        ]

    def _count(self) -> bool:
        """One wavelet at a counter filter; whether it passes."""
        rule = self.config.filter
        assert rule is not None
        if self.stage == 2:
            return True
        passes = self.counter <= rule.max_counter
        if self.counter >= self.limit:
            self.counter = 0
            if rule.kind == "sparse_counter":
                self.stage += 1
                self.limit = rule.limit2
        else:
            self.counter += 1
        return passes

    def set_filter(self, field: int, value: int) -> None:
        """Change the limit, the largest counter that passes, or the counter of the filter."""
        rule = self.config.filter
        if field == 0:
            self.limit = value
        elif field == 1 and rule is not None:
            self.config = replace(self.config, filter=replace(rule, max_counter=value))
        elif field == 2:
            self.counter = value

    # --- registers (WSE-2) ---

    def color_word(self) -> int:
        """The color configuration register."""
        word = 0
        for bit, direction in enumerate(_REGISTER_ORDER):
            word |= (direction in self.masks[1]) << bit
            word |= (direction in self.masks[0]) << bit + 5
        return word | self.pop << 12 | self.teardown << 14

    def set_color_word(self, word: int) -> None:
        """Write the color configuration register."""
        tx = tuple(d for bit, d in enumerate(_REGISTER_ORDER) if word >> bit & 1)
        rx = tuple(d for bit, d in enumerate(_REGISTER_ORDER) if word >> bit + 5 & 1)
        self.masks = (rx, tx)
        self.pop = word >> 12 & 3
        self.teardown = bool(word >> 14 & 1)

    def switch_word(self) -> int:
        """The switch configuration register."""
        word = self.ring << 12 | self.position << 13
        for number, entry in enumerate(self.positions):
            shift = 4 * number
            if entry is None:
                word |= (5 | self.selects[number] << 3) << shift
            elif entry[0] is not None:
                word |= _REGISTER_SWITCH.index(entry[0]) << shift | 8 << shift
            elif entry[1] is not None:
                word |= _REGISTER_SWITCH.index(entry[1]) << shift
        return word

    def set_switch_word(self, word: int) -> None:
        """Write the switch configuration register."""
        for number in range(3):
            field = word >> 4 * number & 15
            where = field & 7
            self.selects[number] = bool(field & 8)
            if where > 4:
                self.positions[number] = None
            elif field & 8:
                self.positions[number] = (_REGISTER_SWITCH[where], None)
            else:
                self.positions[number] = (None, _REGISTER_SWITCH[where])
        self.ring = bool(word >> 12 & 1)
        self.position = word >> 13 & 3


def meets(a: Burst, b: Burst) -> bool:
    """Whether wavelets of two bursts that start one after the other share a cycle."""
    first = max(a.t0, b.t0)
    while first < min(a.end(), b.end()):
        rest_a, rest_b = (first - a.t0) % a.period, (first - b.t0) % b.period
        if not rest_a and not rest_b:
            return True
        first += max((a.period - rest_a) % a.period, (b.period - rest_b) % b.period)
    return False


_REGISTER_SWITCH = (WEST, EAST, SOUTH, NORTH, RAMP)
