"""Channels: the only way from core to core. Messages are matched in order, core by core."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from math import prod

import numpy as np

from .cores import Cores, Fabric, act, copied
from .memory import Array, Memory, View
from .routes import Batch, GridKey, Hop, Route


def _store(own: Array, payload: Array, target: Array) -> None:
    np.copyto(target, payload)


def _max(own: Array, payload: Array, target: Array) -> None:
    np.maximum(own, payload, out=target)


# (what a core has, what it receives, where the result goes)
_PUT: dict[str, Callable[[Array, Array, Array], object]] = {
    "store": _store,
    "add": np.add,
    "max": _max,
}


class ChannelError(Exception):
    """A message without a receive, a receive without a message, or a route that does not exist."""


class _Message:
    """Elements on their way to ``cores`` (those that have not taken it yet).

    Until it is delivered or the send is waited for, a message stays where it comes from; then it
    is kept as ``held``: a piece for each part of the batch, or one for all receivers.
    """

    __slots__ = ("batch", "cores", "held", "view")

    def __init__(self, view: View, batch: Batch) -> None:
        self.view = view
        self.batch = batch
        self.cores = batch.receivers
        self.held: list[Array] | None = None

    def hold(self) -> list[Array]:
        """Copy what the senders hold now."""
        if self.held is None:
            grid, parts = self.view.on_grid, self.batch.parts
            if parts is not None and grid is not None:
                self.held = [copied(self.view.fabric, grid[senders]) for _, senders in parts]
            else:
                room = np.empty(
                    (self.batch.receivers.count, *self.view.shape), self.view.memory.array.dtype
                )
                act(self.view.fabric, _fill, room, partial(self.view.load, self.batch.origins))
                self.held = [room]
        return self.held

    def move(self, token: Token, cores: Cores) -> bool:
        """Deliver to ``cores`` part by part, where memory and message have that form."""
        batch, target = self.batch, token.view
        if cores is not batch.receivers:
            if self.held is not None or not batch.apart:
                return False
            batch = batch.within(cores)
        grid, own = target.on_grid, token.own.on_grid
        if batch.parts is None or grid is None or own is None or self.view.shape != target.shape:
            return False
        recording = target.fabric.recording
        if self.held is not None and recording is not None and recording.retract(self.held):
            self.held = None
        pieces = self.held
        if pieces is None:
            source = self.view.on_grid
            if source is None:
                return False
            pieces = [source[senders] for _, senders in batch.parts]
            if len(pieces) > 1 and not batch.apart and not self.view.apart(target):
                pieces = [copied(target.fabric, piece) for piece in pieces]
        put = _PUT[token.combine]
        for (receivers, _), piece in zip(batch.parts, pieces, strict=True):
            act(target.fabric, put, own[receivers], piece, grid[receivers])
            if target.rounds is not None:
                act(target.fabric, target.rounds, grid[receivers])
        return True

    def payload(self, cores: Cores) -> Callable[[], Array]:
        """A function that gives what ``cores`` are sent, ``[cores, *shape]``."""
        receivers, parts = self.batch.receivers, self.batch.parts
        if self.held is None and cores is receivers:
            return partial(self.view.load, self.batch.origins)
        pieces = self.hold()
        if parts is None or self.view.on_grid is None:
            return partial(pieces[0].take, receivers.numbers(cores), 0)
        return partial(_assembled, pieces, [places for places, _ in parts], cores)


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
        self._route = Route(fabric, hops)
        self._batches: dict[Cores, tuple[Batch, ...]] = {}
        self._messages: deque[_Message] = deque()
        self._posted: deque[Token] = deque()
        self._passing: dict[tuple[str, tuple[int, ...]], View] = {}

    def send(self, view: View, on: Cores | None = None) -> Sent | None:
        """Send the view of every active core in ``on``; it may change once waited for."""
        cores = self._taking_part(on)
        if not cores.count:
            return None
        batches = self._batches.get(cores)
        if batches is None:
            batches = self._batches[cores] = self._planned(cores)
        messages = [_Message(view, batch) for batch in batches]
        self._messages.extend(messages)
        return Sent(messages)

    def recv(self, view: View, combine: str = "store", on: Cores | None = None) -> Token | None:
        """Post a receive on every active core in ``on``; ``combine`` is store, add or max."""
        cores = self._taking_part(on)
        return self._post(view, combine, cores, view) if cores.count else None

    def relay(
        self, view: View, to: Channel | None = None, combine: str = "add", on: Cores | None = None
    ) -> None:
        """Pass what arrives on to channel ``to`` (this one), combined with the view, which stays
        as it is. Lockstep cores do so at once: the message must have been sent."""
        cores = self._taking_part(on)
        if cores.count:
            onward = self if to is None else to
            passed = onward.passing(view, cores)
            self.finish(self._post(passed, combine, cores, view), None)
            onward.send(passed, cores)

    def passing(self, view: View, cores: Cores) -> View:
        """Room for messages like ``view`` that ``cores`` pass on along this channel."""
        key = (view.memory.dtype, view.shape)
        found = self._passing.get(key)
        if found is None:
            memory = Memory(self.fabric, self.name, *key)
            memory.allocate()
            found = self._passing[key] = View(memory)
        for message in self._messages:
            if message.view is found and message.batch.senders.both(cores).count:
                message.hold()
        return found

    def _post(self, view: View, combine: str, cores: Cores, own: View) -> Token:
        lost = cores.minus(self._route.reached)
        if lost.count:
            raise ChannelError(f"'{self.name}' does not lead to {lost}")
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
            _deliver(message, first, message.cores)
            first.cores = None
            message.cores = self.fabric.nobody
        if token.cores is not None:
            late = token.cores.both(self.fabric.running(on))
            if late.count:
                raise ChannelError(
                    f"no message on '{self.name}' was sent to {late} before the wait"
                )

    @property
    def idle(self) -> bool:
        """Whether nothing is underway."""
        return not self._messages and not self._posted

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

    def _taking_part(self, on: Cores | None) -> Cores:
        """The active cores in ``on``, which start a transfer."""
        if self.fabric.recording is not None:
            self.fabric.recording.use(self)
        return self.fabric.running(on)

    def _planned(self, senders: Cores) -> tuple[Batch, ...]:
        mute = self._route.mute(senders)
        if mute.count:
            raise ChannelError(f"'{self.name}' leads nowhere from {mute}")
        return self._route.batches(senders)

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


def _deliver(message: _Message, token: Token, cores: Cores) -> None:
    """Put the payload of ``cores`` into their views."""
    if message.move(token, cores):
        return
    sent, view = message.view.shape, token.view
    if prod(sent) != prod(view.shape):
        raise ChannelError(f"a message of {sent} elements cannot fill {view.shape}")
    act(cores.fabric, _take, cores, message.payload(cores), token.combine, token.own, view)


def _take(cores: Cores, payload: Callable[[], Array], combine: str, own: View, view: View) -> None:
    """Combine what ``cores`` are sent with ``own`` and store it to ``view``."""
    message = payload().reshape((cores.count, *view.shape))
    target = view.direct(cores)
    result = np.empty(message.shape, view.memory.array.dtype) if target is None else target
    has = result if combine == "store" else own.read(cores)
    _PUT[combine](has, message, result)
    if view.rounds is not None:
        view.rounds(result)
    if target is None:
        view.store(cores, result)


def _fill(room: Array, elements: Callable[[], Array]) -> None:
    np.copyto(room, elements())


def _assembled(pieces: Sequence[Array], places: Sequence[GridKey], cores: Cores) -> Array:
    """What ``cores`` are sent, from pieces that lie at ``places`` on the axes of cores."""
    whole = np.empty(cores.fabric.mesh.grid + pieces[0].shape[3:], pieces[0].dtype)
    for place, piece in zip(places, pieces, strict=True):
        whole[place] = piece
    found: Array = whole.reshape((-1, *whole.shape[3:]))[cores.lanes]
    return found
