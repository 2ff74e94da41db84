"""Functions of a program, recorded: what they do to arrays is repeated at every later call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Line(Protocol):
    """A channel: whether something is underway on it."""

    @property
    def idle(self) -> bool:
        """Whether nothing is underway."""


class Recording:
    """What a function did to memory: functions of arrays, and the channels that it used."""

    def __init__(self) -> None:
        self.actions: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self.channels: dict[Line, None] = {}
        self.complete = True  # what was done depends on these arrays only

    def use(self, channel: Line) -> None:
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
