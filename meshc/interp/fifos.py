"""Messages between cores: FIFOs for each channel and receiver, matched in order.

On a channel with turns a message that is sent early is held until its sender's turn comes.

A relay posts a receive and puts its message on the way at once; the message is *ready* when what
it waits for has come. A transfer may happen at any moment between its start and its wait.
``early`` reads at the send and writes as soon as both ends are there; ``late`` writes at the
receiver's wait and reads then, or at the sender's wait if that comes first. A program whose
results depend on the moment is wrong.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Literal

import numpy as np

from meshc.interp.named import Array
from meshc.interp.rounding import rounded
from meshc.interp.windows import Place
from meshc.ir.affine import CoordinateFunction, Expr, IntLike
from meshc.ir.mesh import Mesh
from meshc.ir.module import Channel
from meshc.ir.ops import tile
from meshc.support.diagnostics import fail

Timing = Literal["early", "late"]
Memory = Sequence[Array]


@dataclass(eq=False)
class Message:
    """What one send puts on a channel; fixed at the latest by the sender's wait.

    A relay's message is ``upstream``'s combined with the view. ``readers`` are the receives that
    it has been matched with.
    """

    sender: int
    memory: Memory
    place: Place
    fixed: Array | None = None
    upstream: Posted | None = None
    readers: list[Posted] = field(default_factory=list)

    @property
    def ready(self) -> bool:
        """Whether everything that the message is made of has been sent."""
        return not any(m is None for m in self._line())

    def read(self) -> None:
        """Take a copy of the view's elements now: later changes are not seen."""
        if self.fixed is None and self.upstream is None:
            self.fixed = self.place.read(self.memory).copy()

    def fix(self) -> None:
        """Settle the elements now, unless that has been done; the message must be ready."""
        if self.fixed is None:
            self.fixed = self.elements().copy()

    def elements(self) -> Array:
        """The elements in row-major order of the sender's view. Raises ``interp-shape``."""
        found: Array | None = None
        for message in reversed(self._line()):
            assert message is not None
            own = message.place.read(message.memory) if message.fixed is None else message.fixed
            if found is None or message.fixed is not None or message.upstream is None:
                found = own
            else:
                found = message.upstream.combined(found, own)
                found = rounded(found, message.place.dtype)
            found = found.reshape(-1)
        assert found is not None
        return found

    def _line(self) -> list[Message | None]:
        """This message, the one it passes on, and so on to one with elements of its own; a last
        None says that it has not come (nor ever will, in a circle)."""
        found: list[Message | None] = [self]
        seen = {id(self)}
        while (last := found[-1]) is not None and last.fixed is None and last.upstream is not None:
            before = last.upstream.message
            found.append(None if id(before) in seen else before)
            seen.add(id(before))
        return found


@dataclass(eq=False)
class Posted:
    """A receive that a core has started: the n-th one of its channel gets the n-th message.

    That of a relay writes nothing: ``onward`` is the message that it makes.
    """

    op: tile.Recv | tile.Relay
    core: int
    memory: Memory
    place: Place
    message: Message | None = None
    written: bool = False
    onward: Message | None = None

    @property
    def ended(self) -> bool:
        """Whether the elements can be had."""
        return self.message is not None and self.message.ready

    def deliver(self) -> None:
        """Combine the message into the view, once. Raises ``interp-shape``."""
        assert self.message is not None
        if self.written or self.onward is not None:
            return
        old = self.place.read(self.memory) if self.op.combine != "store" else None
        values = self.combined(self.message.elements(), old)
        self.place.write(self.memory, values)
        self.written = True

    def combined(self, elements: Array, old: Array | None) -> Array:
        """What ``elements`` and the view's ``old`` ones give, in the view's shape."""
        if elements.size != prod(self.place.shape):
            fail(
                "interp-shape",
                f"a message of {elements.size} elements on @{self.op.channel} meets a view of "
                f"{list(self.place.shape)}",
                self.op.span,
            )
        values = elements.reshape(self.place.shape)
        if old is None:
            return values
        old = old.reshape(self.place.shape)
        return np.maximum(old, values) if self.op.combine == "max" else old + values


@dataclass(frozen=True)
class Route:
    """The receivers of each sending core and the senders of each receiving one.

    With ``turns``, ``lines`` gives for each sender all senders of its line, in their order.
    """

    receivers: Mapping[int, tuple[int, ...]]
    senders: Mapping[int, tuple[int, ...]]
    lines: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    turns: int = 0


@dataclass(eq=False)
class _Mailbox:
    messages: deque[Message] = field(default_factory=deque)
    posted: deque[Posted] = field(default_factory=deque)


@dataclass(eq=False)
class _Queue:
    """Messages of a line whose senders take turns: ``number`` of them have been let through."""

    held: dict[int, deque[Message]] = field(default_factory=dict)
    number: int = 0


class Fabric:
    """All channels of one run. ``wake`` is told of each receive whose elements come."""

    def __init__(
        self, routes: Mapping[str, Route], timing: Timing, wake: Callable[[Posted], None]
    ) -> None:
        self.routes = routes
        self._early = timing == "early"
        self._wake = wake
        self._boxes: dict[tuple[str, int], _Mailbox] = {}
        self._queues: dict[tuple[str, tuple[int, ...]], _Queue] = {}

    def send(self, channel: str, message: Message) -> None:
        """Put ``message`` on its way to every receiver of its core: in the order of the sends,
        or when its sender's turn has come."""
        if self._early:
            message.read()
        route = self.routes[channel]
        if not route.turns:
            self._give(channel, message)
            return
        line = route.lines[message.sender]
        queue = self._queues.setdefault((channel, line), _Queue())
        queue.held.setdefault(message.sender, deque()).append(message)
        while held := queue.held.get(line[queue.number // route.turns % len(line)]):
            queue.number += 1
            self._give(channel, held.popleft())

    def _give(self, channel: str, message: Message) -> None:
        for core in self.routes[channel].receivers[message.sender]:
            box = self._box(channel, core)
            box.messages.append(message)
            self._match(box)

    def post(self, posted: Posted) -> None:
        """Start receiving."""
        box = self._box(posted.op.channel, posted.core)
        box.posted.append(posted)
        self._match(box)

    def unconsumed(self) -> list[tuple[str, int, int]]:
        """Channel, core and number of messages that nobody has received: the receiver, or the
        sender of messages whose turn has not come."""
        left = [(key, len(box.messages)) for key, box in self._boxes.items()]
        left += [
            ((name, core), len(messages))
            for (name, _), queue in self._queues.items()
            for core, messages in queue.held.items()
        ]
        return [(name, core, count) for (name, core), count in left if count]

    def _box(self, channel: str, core: int) -> _Mailbox:
        return self._boxes.setdefault((channel, core), _Mailbox())

    def _match(self, box: _Mailbox) -> None:
        while box.messages and box.posted:
            posted = box.posted.popleft()
            posted.message = message = box.messages.popleft()
            message.readers.append(posted)
            if message.ready:
                self._arrive(posted)

    def _arrive(self, first: Posted) -> None:
        """The elements for ``first`` have come, and so for all to whom they are passed on."""
        arrived = [first]
        while arrived:
            posted = arrived.pop()
            if posted.onward is None and self._early:
                posted.deliver()
            elif posted.onward is not None:
                if self._early:
                    posted.onward.fix()
                arrived += posted.onward.readers
            self._wake(posted)


def route_of(
    channel: Channel,
    mesh: Mesh,
    scalars: Mapping[str, IntLike],
    functions: Mapping[str, CoordinateFunction],
) -> Route:
    """The pairs of cores that ``channel`` joins; pairs that leave the mesh do not exist."""
    width = len(channel.route.inputs)
    shape = (mesh.regions, mesh.rows, mesh.columns)[3 - width :] if width in (2, 3) else ()
    if not shape or channel.route.arity not in (0, width):
        fail("interp-route", f"the route of @{channel.name} does not map [y, x] or [r, y, x]")
    source, target = channel.route.pairs(shape, scalars, functions)
    inside = ((target >= 0) & (target < np.array(shape))).all(1) if len(target) else slice(0)
    pairs = [
        (int(np.ravel_multi_index(tuple(a), shape)), int(np.ravel_multi_index(tuple(b), shape)))
        for a, b in zip(source[inside], target[inside], strict=True)
    ]
    if width == 2:
        plane = mesh.rows * mesh.columns
        pairs = [(a + r * plane, b + r * plane) for r in range(mesh.regions) for a, b in pairs]
    receivers = _grouped(pairs)
    lines = _lines(channel, mesh, receivers) if channel.turns else {}
    return Route(receivers, _grouped([(b, a) for a, b in pairs]), lines, channel.turns)


def _lines(
    channel: Channel, mesh: Mesh, receivers: Mapping[int, tuple[int, ...]]
) -> dict[int, tuple[int, ...]]:
    """The senders of each sender's line in the order of their positions."""
    down = all(p.outputs[-1] == Expr.var(mesh.across) for p in channel.route.pieces)
    lines: dict[tuple[int, int], list[int]] = {}
    names: dict[int, tuple[int, int]] = {}
    for core in sorted(receivers):
        r, y, x = np.unravel_index(core, (mesh.regions, mesh.rows, mesh.columns))
        names[core] = (int(r), int(x if down else y))
        lines.setdefault(names[core], []).append(core)
    return {core: tuple(lines[name]) for core, name in names.items()}


def _grouped(pairs: list[tuple[int, int]]) -> dict[int, tuple[int, ...]]:
    found: dict[int, list[int]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return {key: tuple(values) for key, values in found.items()}
