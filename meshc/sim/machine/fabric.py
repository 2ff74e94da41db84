"""The fabric: bursts along fixed multicast trees, or hop by hop where routes may change.

A color whose routes nothing can change is *static*; the tree of a sender is computed once. When
no other color has a route over any link of the tree, and no router in it listens to two inputs, a
burst goes to every receiver as one event. All other bursts walk from router to router, share the
links, and wait in a router's input until its present position accepts that input.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NoReturn

import numpy as np

from meshc.sim.machine.channel import Burst, Credit, Refunds
from meshc.sim.machine.parts import WholeMachine, WholePe
from meshc.sim.machine.pipe import Pipe
from meshc.sim.machine.router import Router
from meshc.sim.route_configs import (
    DIRECTION_NAMES,
    EAST,
    NORTH,
    OPPOSITE,
    RAMP,
    SOUTH,
    STEP,
    WEST,
    ColorConfig,
)
from meshc.support.diagnostics import fail

Key = tuple[int, int, int]
Link = tuple[int, int, int]
"""(x, y, direction): the link that leaves a router in a direction."""


class Fabric:
    """All routers, keyed by (x, y, color)."""

    def __init__(self, machine: WholeMachine) -> None:
        self.machine = machine
        self.routers: dict[Key, Router] = {}
        self.dynamic: set[int] = set()
        self.trees: dict[Key, list[tuple[Key, int, Router]] | None] = {}
        self.ends: dict[Key, list[int]] = {}  # of routes that nothing can change; see reach.py
        self.sinks: dict[Key, Any] = {}
        self.streams: dict[Key, Any] = {}
        self.unread: dict[Key, deque[Credit]] = {}
        self.refunds: Refunds = {}
        self.wanted: dict[Key, int] = {}
        self.links: dict[Link, Pipe] = {}
        self.users: dict[Link, set[int]] = {}
        self.link_load: dict[Link, int] = {}
        self.edges: dict[Key, list[Link]] = {}
        self.virtual: dict[Key, tuple[Key, int]] = {}
        self._changed: list[Key] = []

    def configure(self, key: Key, config: ColorConfig) -> None:
        """Set the route of a color at a PE."""
        self.routers[key] = Router(config)
        self._note_links(key)
        if not config.is_static:
            self.dynamic.add(key[2])
        if config.swap_x or config.swap_y:
            self.dynamic.add(key[2] ^ 1)

    def _note_links(self, key: Key) -> None:
        """Remember which colors have routes over the links of a router."""
        x, y, color = key
        for out in self.routers[key].outputs():
            users = self.users.setdefault((x, y, out), set())
            if color not in users:
                users.add(color)
                self.trees.clear()
                self.ends.clear()

    def inject(self, pe: WholePe, color: int, burst: Burst) -> None:
        """A PE sends a burst; ``burst.t0`` is when its first wavelet leaves the PE."""
        key = (pe.x, pe.y, color)
        if key in self.sinks:
            self._to_host(key, burst)
            return
        tree = None if burst.control else self.tree(key)
        if tree is not None:
            self._multicast(key, tree, burst)
            return
        if key not in self.routers:
            self.machine.fault(
                pe, "", f"color {color} is sent but has no route at PE ({pe.x}, {pe.y})"
            )
        for target in self._targets(key, RAMP, burst):
            arrival = burst.moved(burst.t0 + self.machine.costs.ramp)
            self._arrive_later(target, RAMP, arrival)

    def _targets(self, key: Key, port: int, burst: Burst) -> list[Key]:
        """The routers that a burst comes to at a PE, by the colors that it has there."""
        targets = [(key[0], key[1], color) for color in self.swapped(key, port)]
        for target in targets:
            if target not in self.routers:
                self.machine.fault(
                    self.machine.pes[key[0], key[1]], "",
                    f"color {target[2]} arrives at PE ({key[0]}, {key[1]}) from the "
                    f"{DIRECTION_NAMES[port]}, which has no route for it",
                )  # fmt: skip
        if burst.credit is not None:
            burst.credit.consume(-(len(targets) - 1) * len(burst.data))
        return targets

    def tree(self, key: Key) -> list[tuple[Key, int, Router]] | None:
        """Receivers of what a PE sends on a static color with their distance, else None."""
        if key[2] in self.dynamic:
            return None
        if key not in self.trees:
            self.trees[key] = self._tree(key)
        return self.trees[key]

    def _multicast(self, origin: Key, tree: list[tuple[Key, int, Router]], burst: Burst) -> None:
        machine = self.machine
        if machine.options.fabric_file:
            for link in self.edges[origin]:
                self.link_load[link] = self.link_load.get(link, 0) + len(burst.data)
        ramp = 2 * machine.costs.ramp
        for (x, y, color), hops, router in tree:
            at = burst.t0 + ramp + hops
            for part in router.filtered(burst.moved(at)):
                pe = machine.pes[x, y]
                pe.at(max(part.t0, machine.now), pe.deliver, (color, part))

    def _tree(self, key: Key) -> list[tuple[Key, int, Router]] | None:
        """Receivers of a static color with their distance.

        None when a route is broken or bursts may meet others on the way.
        """
        found: list[tuple[Key, int, Router]] = []
        edges: list[Link] = []
        self.edges[key] = edges
        work: deque[tuple[Key, int, int]] = deque([(key, RAMP, 0)])
        seen = set()
        while work:
            at, port, hops = work.popleft()
            router = self.routers.get(at)
            if router is None or router.rx() != (port,) or (at, port) in seen:
                return None
            if at in self.streams or at in self.virtual:
                return None
            seen.add((at, port))
            for out in router.tx():
                if out == RAMP:
                    found.append((at, hops, router))
                    continue
                link = (at[0], at[1], out)
                if len(self.users[link]) > 1:
                    return None
                edges.append(link)
                there = self.neighbour(at, out)
                if (there[0], there[1]) not in self.machine.pes:
                    return None
                work.append((there, OPPOSITE[out], hops + self.machine.costs.hop))
        return found

    def neighbour(self, key: Key, out: int) -> Key:
        """The same color one step in a direction."""
        dx, dy = STEP[out]
        return key[0] + dx, key[1] + dy, key[2]

    # --- ports of layouts ---

    def connect(self, source: Key, out: int, target: Key, port: int, hops: int) -> None:
        """A virtual link from an output port of one PE to an input port of another."""
        self.routers[source].exit = out
        self.routers[target].entry = port
        self.virtual[source] = (target, hops)
        self.dynamic |= {source[2], target[2]}

    def open_port(self, key: Key, direction: int, is_input: bool) -> None:
        """A port between the host and a PE."""
        router = self.routers[key]
        if is_input:
            router.entry = direction
        else:
            router.exit = direction
            self.streams[key] = []
        self.dynamic.add(key[2])

    # --- hop by hop ---

    def _arrive_later(self, key: Key, port: int, burst: Burst) -> None:
        pe = self.machine.pes[key[0], key[1]]
        pe.at(max(burst.t0, self.machine.now), self._arrive, (key, port, burst))

    def _arrive(self, now: int, arrival: tuple[Key, int, Burst]) -> None:
        key, port, burst = arrival
        router = self.routers[key]
        if len(router.rx()) > 1 and len(burst.data):
            other = router.meeting(port, burst)
            if other >= 0:
                self._collision(key, port, other)
        router.ports[port].append(burst)
        self.pump(now, key)

    def _collision(self, key: Key, port: int, other: int) -> NoReturn:
        fail(
            "csl-collision",
            f"two wavelets of color {key[2]} arrive at PE ({key[0]}, {key[1]}) in the same cycle, "
            f"from {DIRECTION_NAMES[other]} and from {DIRECTION_NAMES[port]}",
            notes=[f"cycle {self.machine.now}"],
            help="let only one neighbour send at a time, or use two colors",
        )

    def pump(self, now: int, key: Key) -> None:
        """Forward everything that the router's present position accepts."""
        router = self.routers[key]
        while not router.teardown:
            port = next((p for p in router.rx() if router.ports[p]), None)
            if port is None:
                return
            burst = router.ports[port][0]
            start = max(burst.t0, router.free_at)
            if start > now:
                self.machine.pes[key[0], key[1]].at(start, self.pump, key)
                return
            router.ports[port].popleft()
            self._forward(key, router, burst, start)

    def _forward(self, key: Key, router: Router, burst: Burst, start: int) -> None:
        if not len(burst.data):
            router.execute(1)
            return
        onward = burst
        before = router.tx()
        ignored = False
        if burst.control:
            word = int(burst.data[0])
            ignored = bool(word >> 24 & 1)
            command = word >> 22 & 3
            popped = router.execute(command)
            if command == 3 and not router.teardown:
                router.teardown = True
                self._teardown(key, start)
            if popped:
                popped_word = np.array([pop_command(word)], np.uint32)
                onward = Burst(popped_word, start, 1, True, burst.credit)
        router.free_at = burst.moved(start).end()
        if burst.credit is not None:
            burst.credit.consume(-(len(before) - 1) * len(burst.data))
        for out in before:
            if out == RAMP:
                if ignored:
                    dropped(burst, len(burst.data))
                else:
                    self._deliver(key, router, burst, start)
            else:
                router.free_at = max(router.free_at, self._hop(key, out, onward, start))

    def _deliver(self, key: Key, router: Router, burst: Burst, start: int) -> None:
        machine = self.machine
        pe = machine.pes[key[0], key[1]]
        for part in router.filtered(burst.moved(start + machine.costs.ramp)):
            pe.at(max(part.t0, machine.now), pe.deliver, (key[2], part))

    def enter(self, key: Key, burst: Burst) -> None:
        """A burst enters a router from outside, through the port that has no neighbour."""
        router = self.routers[key]
        self._arrive_later(key, router.entry, burst)

    def entering(self, key: Key) -> list[Key]:
        """Where wavelets of a port arrive: colors may be swapped as they enter."""
        x, y, _ = key
        port = self.routers[key].entry
        keys = [(x, y, color) for color in self.swapped(key, port)]
        for there in keys:
            self.routers[there].entry = port
        return keys

    def _hop(self, key: Key, out: int, burst: Burst, start: int) -> int:
        """Send a burst over the link in a direction; when its last wavelet has left."""
        hop = self.machine.costs.hop
        if self.routers[key].exit == out:
            burst = burst.moved(start + hop)
            self._leave(key, burst)
            return burst.end() - hop
        link = (key[0], key[1], out)
        pipe = self.links.get(link)
        if pipe is None:
            pipe = self.links[link] = Pipe()
        burst = pipe.carry(burst, start)
        self.link_load[link] = self.link_load.get(link, 0) + len(burst.data)
        self._cross(key, out, burst.moved(burst.t0 + hop))
        return burst.end()

    def _leave(self, key: Key, burst: Burst) -> None:
        """A burst leaves through a port: to the host or over a virtual link."""
        if key in self.virtual:
            target, hops = self.virtual[key]
            self.enter(target, burst.moved(burst.t0 + hops))
            return
        if burst.control:  # the host takes data only
            dropped(burst, 1)
        else:
            self._to_host(key, burst)

    def _to_host(self, key: Key, burst: Burst) -> None:
        """A burst lies in the queues between a PE and the host until the host asks for it."""
        stream = self.sinks[key] if key in self.sinks else self.streams[key]
        stream.append(burst)
        self.machine.note(burst.end())
        if burst.credit is not None:
            self.unread.setdefault(key, deque()).extend([burst.credit] * len(burst.data))
            self.read(key, 0)

    def read(self, key: Key, count: int) -> None:
        """The host asks for ``count`` more wavelets of a stream, which makes room for others."""
        unread = self.unread.setdefault(key, deque())
        wanted = self.wanted.get(key, 0) + count
        self.wanted[key] = max(0, wanted - len(unread))
        for _ in range(min(wanted, len(unread))):
            unread.popleft().consume(1)

    def _cross(self, key: Key, out: int, burst: Burst) -> None:
        """A burst reaches the neighbour in a direction at its ``t0``."""
        there = self.neighbour(key, out)
        pe = self.machine.pes.get((there[0], there[1]))
        if pe is None:
            self.machine.remark_edge(*key, out)
            dropped(burst, len(burst.data))
            return
        pe.at(max(burst.t0, self.machine.now), self._reach, (there, OPPOSITE[out], burst))

    def _reach(self, now: int, arrival: tuple[Key, int, Burst]) -> None:
        """A burst reaches a PE from a neighbour; its color may be swapped there."""
        there, port, burst = arrival
        for target in self._targets(there, port, burst):
            self._arrive(now, (target, port, burst.moved(burst.t0)))

    def swapped(self, key: Key, port: int) -> list[int]:
        """The colors a wavelet has after it came to a PE from a side, or from the PE itself,
        whose wavelets take part where both sides do."""
        x, y, color = key
        with_x, with_y = port not in (NORTH, SOUTH), port not in (EAST, WEST)

        def swaps(c: int) -> bool:
            router = self.routers.get((x, y, c))
            if router is None:
                return False
            config = router.config
            return (config.swap_x or not with_x) and (config.swap_y or not with_y)

        mine, other = swaps(color), swaps(color ^ 1)
        if mine and other:
            return [color ^ 1]
        if mine:
            return [color]
        return [color, color ^ 1] if other else [color]

    def _teardown(self, key: Key, time: int) -> None:
        pe = self.machine.pes[key[0], key[1]]
        if key[2] in pe.program.teardown:
            pe.at(max(time, self.machine.now), pe.activate_now, (29, key[2]))

    def advance(self, pe: WholePe, color: int) -> None:
        """Advance a switch behind all that its PE has sent: a burst without wavelets does it."""
        key = (pe.x, pe.y, color)
        if key in self.routers:
            time = pe.out_free.get(color, 0) + self.machine.costs.ramp
            self._arrive_later(key, RAMP, Burst(np.zeros(0, np.uint32), time))

    def reconfigure(self, now: int, key: Key) -> None:
        """The oldest pending change of a router takes effect."""
        router = self.routers[key]
        router.pending.popleft()(router)
        self._changed.append(key)
        self.pump(now, key)

    def settle(self) -> None:
        """What code changed in a cycle holds for the trees of all senders from the next one on."""
        for key in self._changed:
            self._note_links(key)
            if key[2] not in self.dynamic:
                self.dynamic.add(key[2])
                self.ends.clear()
        self._changed.clear()

    def settle_credits(self) -> None:
        """Make the room of a cycle that is over."""
        refunds, self.refunds = dict(self.refunds), self.refunds
        self.refunds.clear()
        for credit, count in refunds.items():
            credit.outstanding -= count
        for credit in sorted(refunds, key=lambda credit: credit.sender):
            credit.settle()

    def router(self, pe: WholePe, color: int) -> Router:
        """The router of a color at a PE, made if the color had no route."""
        key = (pe.x, pe.y, color)
        if key not in self.routers:
            self.routers[key] = Router(ColorConfig())
        if color not in self.dynamic:
            self._changed.append(key)
        return self.routers[key]

    def stuck(self) -> list[tuple[Key, int, int]]:
        """Bursts that wait in routers: (where, port, wavelets)."""
        return [
            (key, port, sum(len(b.data) for b in queue))
            for key, router in sorted(self.routers.items())
            for port, queue in enumerate(router.ports)
            if queue
        ]


def dropped(burst: Burst, count: int) -> None:
    """Wavelets that leave the fabric without being read."""
    if burst.credit is not None:
        burst.credit.consume(count)


def pop_command(word: int) -> int:
    """Drop the first command of a control wavelet; a NOP that the CE ignores comes in last."""
    commands = [word >> 22 & 7, word >> 25 & 7, (word >> 28 & 3) | (word & 1) << 2]
    commands += [word >> 3 * i + 1 & 7 for i in range(5)]
    commands = [*commands[1:], 4]
    result = word & 0x3F << 16 | (word & 0xC0000000)
    result |= commands[0] << 22 | commands[1] << 25 | (commands[2] & 3) << 28 | commands[2] >> 2
    for position, command in enumerate(commands[3:]):
        result |= command << 3 * position + 1
    return result
