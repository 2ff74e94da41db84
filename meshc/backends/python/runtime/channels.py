"""Channels: the only way from core to core. Messages are matched in order, core by core."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from .cores import Cores, Fabric, Lanes
from .memory import Array, View
from .percore import PerCore, grid_of

_COMBINE: dict[str, Callable[..., Any]] = {"add": np.add, "max": np.maximum}


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


@dataclass(frozen=True)
class _Batch:
    """What one send does for a set of senders: who receives, and where the payload comes from.

    ``grid`` are slices of the senders on the axes (regions, rows, columns), broadcast over the
    product of receivers; else ``rows`` says for each receiver which of the senders it hears, and
    ``lanes`` in which lane that is.
    """

    receivers: Cores
    rows: Lanes
    lanes: Lanes
    grid: tuple[slice, slice, slice] | None


class _Message:
    """Elements on their way: one payload for each receiver, in the order of their lanes."""

    __slots__ = ("cores", "on_grid", "payload", "sent_to")

    def __init__(self, cores: Cores, payload: Array, on_grid: bool) -> None:
        self.sent_to = cores
        self.cores = cores  # those that have not taken it yet
        self.payload = payload
        self.on_grid = on_grid

    def flat(self, shape: tuple[int, ...]) -> Array:
        """The payload as ``[receivers, *shape]``."""
        payload = self.payload
        if self.on_grid:
            grid = self.sent_to.grid
            assert grid is not None
            extents = tuple([len(range(s.start, s.stop, s.step or 1)) for s in grid])
            payload = np.broadcast_to(payload, extents + payload.shape[3:])
        return payload.reshape((self.sent_to.count, *shape))


class Token:
    """The end of a receive, to be waited for."""

    __slots__ = ("channel", "combine", "cores", "view")

    def __init__(self, channel: Channel, view: View, combine: str, cores: Cores) -> None:
        self.channel = channel
        self.view = view
        self.combine = combine
        self.cores: Cores | None = cores  # those that still wait for their message


SENT = None  # the token of a send: its message was copied, so there is nothing to wait for


def wait(*tokens: Token | None, on: Cores | None = None) -> None:
    """Go on when the transfers have ended on every core that started them."""
    for token in tokens:
        if token is not None and token.cores is not None:
            token.channel.finish(token, on)


class Channel:
    """A FIFO from each core to the cores that its route names; several transfers share it."""

    def __init__(self, fabric: Fabric, name: str, hops: Sequence[Hop]) -> None:
        self.fabric = fabric
        self.name = name
        self._from, self._to = _pairs(fabric, hops)
        self._reached = fabric.of_lanes(np.unique(self._to))
        self._batches: dict[Cores, tuple[_Batch, ...]] = {}
        self._messages: deque[_Message] = deque()
        self._posted: deque[Token] = deque()

    def send(self, view: View, on: Cores | None = None) -> None:
        """Send the view of every active core in ``on``; it may change once waited for."""
        cores = self.fabric.running(on)
        if cores.count:
            batches = self._batches.get(cores)
            if batches is None:
                batches = self._batches[cores] = self._planned(cores)
            for batch in batches:
                self._messages.append(_message(view, cores, batch))
        return SENT

    def recv(self, view: View, combine: str = "store", on: Cores | None = None) -> Token | None:
        """Post a receive on every active core in ``on``; ``combine`` is store, add or max."""
        cores = self.fabric.running(on)
        if not cores.count:
            return None
        if cores.minus(self._reached).count:
            raise ChannelError(f"{cores.minus(self._reached)} cannot hear '{self.name}'")
        token = Token(self, view, combine, cores)
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
            _deliver(message, first, message.cores)
            first.cores = None
        if token.cores is not None:
            late = token.cores.both(self.fabric.running(on))
            if late.count:
                raise ChannelError(f"{late} waits on '{self.name}' for a message never sent")

    def close(self) -> None:
        """Check that every message was received, and every receive satisfied."""
        for message in self._messages:
            raise ChannelError(f"a message on '{self.name}' was not received by {message.cores}")
        for token in self._posted:
            raise ChannelError(f"{token.cores} posted a receive on '{self.name}' without a message")

    def clear(self) -> None:
        """Forget everything in flight."""
        self._messages.clear()
        self._posted.clear()

    def _planned(self, senders: Cores) -> tuple[_Batch, ...]:
        """Receivers of ``senders``; a core that hears several of them does so one by one."""
        heard = np.isin(self._from, senders.lanes)
        sources, targets = self._from[heard], self._to[heard]
        mute = np.setdiff1d(senders.lanes, sources)
        if len(mute):
            raise ChannelError(f"{self.fabric.of_lanes(mute)} has no receiver on '{self.name}'")
        batches = []
        while len(targets):
            lanes, first = np.unique(targets, return_index=True)
            batches.append(_batch(self.fabric, senders, sources[first], lanes))
            rest = np.setdiff1d(np.arange(len(targets)), first)
            sources, targets = sources[rest], targets[rest]
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


def _pairs(fabric: Fabric, hops: Sequence[Hop]) -> tuple[Lanes, Lanes]:
    """Lanes of senders and of their receivers, ordered by sender."""
    mesh = fabric.mesh
    found: list[Lanes] = []
    regions = PerCore(np.arange(mesh.regions).reshape(-1, 1, 1))
    for hop in hops:
        to = hop.to if len(hop.to) == 3 else (regions, *hop.to)
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
        lanes = fabric.lane_of_core
        found.append(np.stack([lanes[source], lanes[target]], axis=1))
    pairs = np.unique(np.concatenate(found), axis=0) if found else np.empty((0, 2), np.intp)
    return pairs[:, 0], pairs[:, 1]


def _batch(fabric: Fabric, senders: Cores, sources: Lanes, targets: Lanes) -> _Batch:
    receivers = fabric.of_lanes(targets)
    grid = _broadcast(fabric, sources, receivers) if receivers.grid else None
    return _Batch(receivers, np.searchsorted(senders.lanes, sources), sources, grid)


def _broadcast(
    fabric: Fabric, sources: Lanes, receivers: Cores
) -> tuple[slice, slice, slice] | None:
    """Slices of the senders that broadcast to the product of receivers, if there are such."""
    assert receivers.grid is not None
    extents = [len(range(s.start, s.stop, s.step or 1)) for s in receivers.grid]
    places = np.stack(np.unravel_index(sources, fabric.mesh.grid)).reshape(3, *extents)
    slices = []
    for axis in range(3):
        along = np.moveaxis(places[axis], axis, 0).reshape(extents[axis], -1)
        steps = np.unique(np.diff(along[:, 0]))
        if (along != along[:, :1]).any() or len(steps) > 1:
            return None
        start, step = int(along[0, 0]), int(steps[0]) if len(steps) else 0
        if step < 0:
            return None
        slices.append(slice(start, int(along[-1, 0]) + 1, step or 1))
    return slices[0], slices[1], slices[2]


def _message(view: View, senders: Cores, batch: _Batch) -> _Message:
    """A copy of what the senders hold now."""
    if batch.grid is not None:
        whole = view.on_grid(view.fabric.everyone)
        if whole is not None:
            return _Message(batch.receivers, whole[batch.grid].copy(), True)
    memory = view.direct(view.fabric.everyone)
    if memory is not None:
        return _Message(batch.receivers, memory.take(batch.lanes, axis=0), False)
    return _Message(batch.receivers, view.read(senders)[batch.rows], False)


def _deliver(message: _Message, token: Token, cores: Cores) -> None:
    """Put the payload of ``cores`` into their views."""
    view = token.view
    if message.on_grid and cores is message.sent_to:
        target = view.on_grid(cores)
        if target is not None:
            _put(target, _fitted(message.payload, 3, view.shape), token.combine)
            if view.rounds:
                view.rounds(target)
            return
    payload = message.flat(view.shape)
    if cores is not message.sent_to:
        payload = payload[np.searchsorted(message.sent_to.lanes, cores.lanes)]
    target = view.direct(cores)
    if target is not None:
        _put(target, payload, token.combine)
        if view.rounds:
            view.rounds(target)
        return
    if token.combine != "store":
        payload = _COMBINE[token.combine](view.read(cores), payload)
    elif view.rounds:
        payload = payload.copy()
    if view.rounds:
        view.rounds(payload)
    view.store(cores, payload)


def _fitted(payload: Array, lead: int, shape: tuple[int, ...]) -> Array:
    if payload.shape[lead:] == shape:
        return payload
    if prod(payload.shape[lead:]) != prod(shape):
        raise ChannelError(f"a message of {payload.shape[lead:]} elements cannot fill {shape}")
    return payload.reshape(payload.shape[:lead] + shape)


def _put(target: Array, payload: Array, combine: str) -> None:
    if combine == "store":
        np.copyto(target, payload)
    else:
        _COMBINE[combine](target, payload, out=target)
