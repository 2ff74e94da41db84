"""Channels: the only way from core to core. Messages are matched in order, core by core."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from .cores import Cores, Fabric, Lanes
from .memory import Array, Memory, View
from .percore import PerCore, grid_of


def _store(target: Array, payload: Array, own: Array) -> None:
    np.copyto(target, payload)


def _add(target: Array, payload: Array, own: Array) -> None:
    np.add(own, payload, out=target)


def _max(target: Array, payload: Array, own: Array) -> None:
    np.maximum(own, payload, out=target)


_PUT: dict[str, Callable[[Array, Array, Array], None]] = {
    "store": _store,
    "add": _add,
    "max": _max,
}


class ChannelError(Exception):
    """A message without a receive, a receive without a message, or a route that does not exist."""


@dataclass(frozen=True)
class Hop:
    """Part of a route: cores where ``where`` holds send to the core at ``to``.

    ``to`` is (row, column) in the same region, or (region, row, column). A coordinate with a
    further axis (``core.every(n)``) sends to several cores at once. What leaves the mesh is void.
    """

    to: tuple[PerCore | int, ...]
    where: PerCore | bool = True


GridKey = tuple[slice, slice, slice]


@dataclass(frozen=True)
class _Batch:
    """What one send does for a set of senders: who receives, and from whom.

    ``lanes`` has the sender of each receiver, ``rows`` its number among the senders. ``parts`` are
    the same as (receivers, senders) on the axes (regions, rows, columns), the latter broadcast
    to the former; None where the route has no such form.
    """

    receivers: Cores
    lanes: Lanes
    rows: Lanes
    parts: tuple[tuple[GridKey, GridKey], ...] | None


class _Message:
    """Elements on their way to ``cores`` (those that have not taken it yet).

    Until it is delivered or the send is waited for, a message stays where it comes from; then it
    is kept as ``held``: a piece for each part of the batch, or one for all receivers.
    """

    __slots__ = ("batch", "cores", "held", "senders", "view")

    def __init__(self, view: View, senders: Cores, batch: _Batch) -> None:
        self.view = view
        self.senders = senders
        self.batch = batch
        self.cores = batch.receivers
        self.held: list[Array] | None = None

    def hold(self) -> list[Array]:
        """Copy what the senders hold now."""
        if self.held is None:
            grid, parts = self.view.on_grid, self.batch.parts
            if parts is not None and grid is not None:
                self.held = [grid[senders].copy() for _, senders in parts]
            else:
                self.held = [self._gathered()]
        return self.held

    def _gathered(self) -> Array:
        """A payload for each receiver, ``[receivers, *shape]``."""
        memory = self.view.direct(self.view.fabric.everyone)
        if memory is None:
            return self.view.read(self.senders)[self.batch.rows]
        if memory.flags.c_contiguous:
            return memory.take(self.batch.lanes, axis=0)
        found: Array = memory[self.batch.lanes]
        return found

    def move(self, token: Token) -> bool:
        """Deliver to all receivers part by part, where their memory has that form."""
        parts, target = self.batch.parts, token.view
        grid, own = target.on_grid, token.own.on_grid
        if parts is None or grid is None or own is None or self.view.shape != target.shape:
            return False
        if self.held is None:
            source = self.view.on_grid
            if source is None:
                return False
            if len(parts) == 1 or self.view.apart(target):
                pieces = [source[senders] for _, senders in parts]
            else:
                pieces = self.hold()
        else:
            pieces = self.held
        put = _PUT[token.combine]
        for (receivers, _), piece in zip(parts, pieces, strict=True):
            put(grid[receivers], piece, own[receivers])
            if target.rounds is not None:
                target.rounds(grid[receivers])
        return True

    def payload(self, cores: Cores) -> Array:
        """What ``cores`` are sent, ``[cores, *shape]``."""
        pieces, receivers = self.hold(), self.batch.receivers
        if self.batch.parts is None or self.view.on_grid is None:
            (every,) = pieces
            return every if cores is receivers else every[receivers.numbers(cores)]
        fabric = cores.fabric
        whole = np.empty(fabric.mesh.grid + pieces[0].shape[3:], pieces[0].dtype)
        for (places, _), piece in zip(self.batch.parts, pieces, strict=True):
            whole[places] = piece
        found: Array = whole.reshape((-1, *whole.shape[3:]))[cores.lanes]
        return found


class Sent:
    """The end of a send: from then on its buffer may change."""

    __slots__ = ("messages",)

    def __init__(self, messages: list[_Message]) -> None:
        self.messages = messages

    def end(self, on: Cores | None) -> None:
        """Make the messages that are still underway independent of the buffer."""
        for message in self.messages:
            if message.held is None and message.cores.count:
                message.hold()


class Token:
    """The end of a receive, to be waited for on ``cores``.

    What arrives is combined with ``own`` and stored to ``view``.
    """

    __slots__ = ("channel", "combine", "cores", "own", "view")

    def __init__(self, channel: Channel, view: View, combine: str, cores: Cores, own: View) -> None:
        self.channel = channel
        self.view = view
        self.own = own
        self.combine = combine
        self.cores: Cores | None = cores  # those that still wait for their message

    def end(self, on: Cores | None) -> None:
        """Take the message."""
        if self.cores is not None:
            self.channel.finish(self, on)


def wait(*tokens: Token | Sent | None, on: Cores | None = None) -> None:
    """Go on when the transfers have ended on every core that started them."""
    for token in tokens:
        if token is not None:
            token.end(on)


class Channel:
    """A FIFO from each core to the cores that its route names; several transfers share it."""

    def __init__(self, fabric: Fabric, name: str, hops: Sequence[Hop]) -> None:
        self.fabric = fabric
        self.name = name
        routes = [_pairs(fabric, hop) for hop in hops]
        self._from, self._to, self._hop = _joined(routes)
        self._reached = fabric.of_lanes(np.unique(self._to))
        self._batches: dict[Cores, tuple[_Batch, ...]] = {}
        self._messages: deque[_Message] = deque()
        self._posted: deque[Token] = deque()
        self._passing: dict[tuple[str, tuple[int, ...]], View] = {}

    def send(self, view: View, on: Cores | None = None) -> Sent | None:
        """Send the view of every active core in ``on``; it may change once waited for."""
        cores = self.fabric.running(on)
        if not cores.count:
            return None
        batches = self._batches.get(cores)
        if batches is None:
            batches = self._batches[cores] = self._planned(cores)
        messages = [_Message(view, cores, batch) for batch in batches]
        self._messages.extend(messages)
        return Sent(messages)

    def recv(self, view: View, combine: str = "store", on: Cores | None = None) -> Token | None:
        """Post a receive on every active core in ``on``; ``combine`` is store, add or max."""
        cores = self.fabric.running(on)
        return self._post(view, combine, cores, view) if cores.count else None

    def relay(
        self, view: View, to: Channel | None = None, combine: str = "add", on: Cores | None = None
    ) -> None:
        """Pass what arrives on to channel ``to`` (this one), combined with the view, which stays
        as it is. Lockstep cores do so at once: the message must have been sent."""
        cores = self.fabric.running(on)
        if cores.count:
            onward = self if to is None else to
            passed = onward.passing(view)
            self.finish(self._post(passed, combine, cores, view), None)
            onward.send(passed, cores)

    def passing(self, view: View) -> View:
        """Room for messages like ``view`` that are passed on along this channel."""
        key = (view.memory.dtype, view.shape)
        found = self._passing.get(key)
        if found is None:
            memory = Memory(self.fabric, self.name, *key)
            memory.allocate()
            found = self._passing[key] = View(memory)
        for message in self._messages:
            if message.view is found:
                message.hold()
        return found

    def _post(self, view: View, combine: str, cores: Cores, own: View) -> Token:
        if cores.minus(self._reached).count:
            raise ChannelError(f"'{self.name}' does not lead to {cores.minus(self._reached)}")
        token = Token(self, view, combine, cores, own)
        self._posted.append(token)
        return token

    def finish(self, token: Token, on: Cores | None) -> None:
        """Deliver what has arrived, until ``token`` has ended on the cores that wait for it."""
        messages, posted = self._messages, self._posted
        while token.cores is not None and messages and posted:
            message, first = messages[0], posted[0]
            if message.cores is not first.cores:
                self._deliver_partly()
                break
            messages.popleft()
            posted.popleft()
            if message.cores is not message.batch.receivers or not message.move(first):
                _deliver(message, first, message.cores)
            first.cores = None
            message.cores = self.fabric.nobody
        if token.cores is not None:
            late = token.cores.both(self.fabric.running(on))
            if late.count:
                raise ChannelError(
                    f"no message on '{self.name}' was sent to {late} before the wait"
                )

    def close(self) -> None:
        """Check that every message was received, and every receive satisfied."""
        for message in self._messages:
            raise ChannelError(f"a message on '{self.name}' was not received by {message.cores}")
        for token in self._posted:
            raise ChannelError(f"a receive on '{self.name}' got no message on {token.cores}")

    def clear(self) -> None:
        """Forget everything in flight."""
        self._messages.clear()
        self._posted.clear()

    def _planned(self, senders: Cores) -> tuple[_Batch, ...]:
        """Receivers of ``senders``; a core that hears several of them does so one by one."""
        heard = np.isin(self._from, senders.lanes)
        sources, targets, hops = self._from[heard], self._to[heard], self._hop[heard]
        mute = np.setdiff1d(senders.lanes, sources)
        if len(mute):
            raise ChannelError(f"'{self.name}' leads nowhere from {self.fabric.of_lanes(mute)}")
        batches = []
        while len(targets):
            lanes, first = np.unique(targets, return_index=True)
            parts = _parts(self.fabric, sources[first], lanes, hops[first])
            rows = np.searchsorted(senders.lanes, sources[first])
            batches.append(_Batch(self.fabric.of_lanes(lanes), sources[first], rows, parts))
            rest = np.setdiff1d(np.arange(len(targets)), first)
            sources, targets, hops = sources[rest], targets[rest], hops[rest]
        return tuple(batches)

    def _deliver_partly(self) -> None:
        """Receives in the order they were posted; on each core the oldest message comes first."""
        for token in list(self._posted):
            for message in list(self._messages):
                if token.cores is None:
                    break
                common = token.cores.both(message.cores)
                if common.count:
                    _deliver(message, token, common)
                    message.cores = message.cores.minus(common)
                    left = token.cores.minus(common)
                    token.cores = left if left.count else None
            self._messages = deque(m for m in self._messages if m.cores.count)
        self._posted = deque(t for t in self._posted if t.cores is not None)


def _pairs(fabric: Fabric, hop: Hop) -> tuple[Lanes, Lanes]:
    """Lanes of the senders and receivers of one hop."""
    mesh = fabric.mesh
    outer = PerCore(np.arange(mesh.grid[0]).reshape(-1, 1, 1))
    to = hop.to if len(hop.to) == 3 else (outer, *hop.to)
    grids = [grid_of(part) for part in (hop.where, *to)]
    rank = max(grid.ndim for grid in grids)
    grids = [grid.reshape(grid.shape + (1,) * (rank - grid.ndim)) for grid in grids]
    extents = np.broadcast_shapes(mesh.grid + (1,) * (rank - 3), *[g.shape for g in grids])
    held, *places = (np.broadcast_to(grid, extents) for grid in grids)
    for place, size in zip(places, mesh.grid, strict=True):
        held = held & (place >= 0) & (place < size)
    where = np.nonzero(held)
    source = np.ravel_multi_index(where[:3], mesh.grid)
    target = np.ravel_multi_index([place[where] for place in places], mesh.grid)
    return fabric.lane_of_core[source], fabric.lane_of_core[target]


def _joined(routes: Sequence[tuple[Lanes, Lanes]]) -> tuple[Lanes, Lanes, Lanes]:
    """Distinct pairs of sender and receiver, by sender, and the first hop that has them."""
    rows = [np.stack([*pair, np.full(len(pair[0]), n)], 1) for n, pair in enumerate(routes)]
    every = np.concatenate(rows) if rows else np.empty((0, 3), np.intp)
    _, first = np.unique(every[:, :2], axis=0, return_index=True)
    found = every[first]
    return found[:, 0], found[:, 1], found[:, 2]


def _parts(
    fabric: Fabric, sources: Lanes, targets: Lanes, hops: Lanes
) -> tuple[tuple[GridKey, GridKey], ...] | None:
    """The pairs of each hop as slices of the core axes, if all of them have that form."""
    found = []
    for hop in np.unique(hops):
        receivers = fabric.grid_key(targets[hops == hop])
        senders = _broadcast(fabric, sources[hops == hop], receivers) if receivers else None
        if receivers is None or senders is None:
            return None
        found.append((receivers, senders))
    return tuple(found)


def _broadcast(fabric: Fabric, sources: Lanes, receivers: GridKey) -> GridKey | None:
    """Slices of the senders that broadcast to the product of receivers, if there are such."""
    extents = [len(range(s.start, s.stop, s.step or 1)) for s in receivers]
    places = np.stack(np.unravel_index(sources, fabric.mesh.grid)).reshape(3, *extents)
    slices = []
    for axis in range(3):
        along = np.moveaxis(places[axis], axis, 0).reshape(extents[axis], -1)
        steps = np.unique(np.diff(along[:, 0]))
        if (along != along[:, :1]).any() or len(steps) > 1 or (steps < 0).any():
            return None
        step = int(steps[0]) if len(steps) else 0
        slices.append(slice(int(along[0, 0]), int(along[-1, 0]) + 1, step or 1))
    return slices[0], slices[1], slices[2]


def _deliver(message: _Message, token: Token, cores: Cores) -> None:
    """Put the payload of ``cores`` into their views."""
    view, payload = token.view, message.payload(cores)
    if prod(payload.shape[1:]) != prod(view.shape):
        raise ChannelError(f"a message of {payload.shape[1:]} elements cannot fill {view.shape}")
    payload = payload.reshape((cores.count, *view.shape))
    target = view.direct(cores)
    result = view.read(cores).copy() if target is None else target
    own = result if token.own is view else token.own.read(cores)
    _PUT[token.combine](result, payload, own)
    if view.rounds is not None:
        view.rounds(result)
    if target is None:
        view.store(cores, result)
