"""Exchanges between cores, recorded: the same arrays are copied and added at every call."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .cores import Fabric

if TYPE_CHECKING:
    from .channels import Channel
    from .memory import View

Array = NDArray[Any]
_MOST = 1024  # recordings of an exchange; its arguments may change from run to run


class Recording:
    """What an exchange did to memory: functions of arrays, and the channels that it used."""

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


class Exchange:
    """A function of a view (and of loop variables and scalars) that sends and receives, and waits
    for all of it.

    Which elements move between which arrays follows from its arguments and the active cores. So
    the first call goes through the channels and is recorded; later ones repeat what was recorded.
    """

    def __init__(self, fabric: Fabric, body: Callable[..., None]) -> None:
        self._fabric, self._body = fabric, body
        self._recordings: dict[tuple[object, ...], Recording] = {}
        self.__name__, self.__doc__ = body.__name__, body.__doc__

    def __call__(self, view: View, *variables: int) -> None:
        key = (view, self._fabric.active, *variables)
        known = self._recordings.get(key)
        if known is None:
            self._record(key, view, *variables)
        elif known.alone():
            for function, arguments in known.actions:
                function(*arguments)
        else:
            self._body(view, *variables)

    def _record(self, key: tuple[object, ...], view: View, *variables: int) -> None:
        fabric = self._fabric
        if fabric.recording is not None:  # part of what another exchange does
            self._body(view, *variables)
            return
        fabric.recording = recording = Recording()
        try:
            self._body(view, *variables)
        finally:
            fabric.recording = None
        if recording.complete and recording.alone():
            if len(self._recordings) >= _MOST:
                self._recordings.clear()
            self._recordings[key] = recording


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
