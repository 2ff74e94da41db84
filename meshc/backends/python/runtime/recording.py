"""Functions of a program, recorded: what they do to arrays is repeated at every later call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .cores import Fabric

if TYPE_CHECKING:
    from .channels import Channel
    from .memory import View

Array = NDArray[Any]
_MOST = 1024  # recordings of a function; its arguments may change from run to run


class Recording:
    """What a function did to memory: functions of arrays, and the channels that it used."""

    def __init__(self) -> None:
        self.actions: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self.channels: dict[Channel, None] = {}
        self.complete = True  # what was done depends on these arrays only

    def use(self, channel: Channel) -> None:
        """A transfer on ``channel`` begins; what was underway before is no part of this."""
        if channel not in self.channels:
            self.channels[channel] = None
            self.complete &= channel.idle

    def alone(self) -> bool:
        """Whether nothing is underway on the channels that are used."""
        return all(channel.idle for channel in self.channels)

    def retract(self, copies: Sequence[Array]) -> bool:
        """Leave ``copies`` out if nothing was done since they were taken: then what they are copies
        of has not changed and can take their place. Returns whether that is so."""
        first = len(self.actions) - len(copies)
        last = [arrays[0] for function, arrays in self.actions[first:] if function is np.copyto]
        if not self.complete or list(map(id, last)) != list(map(id, copies)):
            return False
        del self.actions[first:]
        return True

    def include(self, part: Recording | None) -> None:
        """What a function that this one calls did, as if it stood here; None if that is unknown."""
        if part is None:
            self.complete = False
        else:
            self.actions += part.actions
            self.channels |= part.channels


class Recorded:
    """A function of views, loop variables and scalars that does the same to the same arrays
    whenever its arguments are the same, and waits for all that it sends and receives.

    So the first call with some arguments goes through kernels and channels and is recorded; later
    ones repeat what was recorded, unless messages from before are underway.
    """

    def __init__(self, fabric: Fabric, body: Callable[..., None]) -> None:
        self._fabric, self._body = fabric, body
        self._recordings: dict[tuple[object, ...], Recording] = {}
        self.__name__, self.__doc__ = body.__name__, body.__doc__

    def __call__(self, *arguments: View | int) -> None:
        fabric = self._fabric
        outer, fabric.recording = fabric.recording, None
        try:
            done = self._done(arguments)
        finally:
            fabric.recording = outer
        if outer is not None:
            outer.include(done)

    def _done(self, arguments: tuple[View | int, ...]) -> Recording | None:
        """Do what the body does. Returns the recording of it, None if there is none that holds."""
        known = self._recordings.get((self._fabric.active, *arguments))
        if known is None:
            return self._recorded(arguments)
        if known.alone():
            for function, arrays in known.actions:
                function(*arrays)
            return known
        self._body(*arguments)
        return None

    def _recorded(self, arguments: tuple[View | int, ...]) -> Recording | None:
        fabric = self._fabric
        fabric.recording = recording = Recording()
        try:
            self._body(*arguments)
        finally:
            fabric.recording = None
        if not (recording.complete and recording.alone()):
            return None
        if len(self._recordings) >= _MOST:
            self._recordings.clear()
        self._recordings[fabric.active, *arguments] = recording
        return recording


def act(fabric: Fabric, function: Callable[..., object], *arguments: Any) -> None:
    """Call ``function``, which changes arrays among ``arguments`` and depends on nothing else."""
    function(*arguments)
    if fabric.recording is not None:
        fabric.recording.actions.append((function, arguments))


def copied(fabric: Fabric, array: Array) -> Array:
    """A copy of ``array``."""
    room = np.empty(array.shape, array.dtype)
    act(fabric, np.copyto, room, array)
    return room
