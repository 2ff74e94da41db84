"""What stands for the values of a program while it is followed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from meshc.torch.exported.followed_dims import Axis, extent, settled
from meshc.torch.exported.statements import Statement


@dataclass(frozen=True)
class Known:
    """A number, a tensor or what else is computed of constants and positions alone."""

    value: Any


@dataclass(frozen=True)
class Stored:
    """A tensor that is computed of parameters alone: those called ``names``, in order of use."""

    value: Any
    names: tuple[str, ...]


@dataclass(frozen=True)
class Tokens:
    """The token ids of the input, [B, L]."""

    statement: Statement
    axes: tuple[Axis, Axis]

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of its axes."""
        return tuple(map(extent, self.axes))


@dataclass(frozen=True)
class Followed:
    """A tensor that depends on the input: a value of the model, whose dims are its ``axes``."""

    statement: Statement
    axes: tuple[Axis, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of its axes."""
        return tuple(map(extent, self.axes))

    def seen_as(self, axes: tuple[Axis, ...]) -> Followed:
        """The same value with other axes."""
        return replace(self, axes=axes)

    def is_repeated(self) -> bool:
        """Whether the tensor repeats the value along a dim that this does not have."""
        own = set(settled(self.statement.dims))
        return any(dim not in own for axis in self.axes for dim in settled(axis))


@dataclass(frozen=True)
class Product(Followed):
    """``given`` times the transpose of ``weight``, plus ``bias``: one that may still be cut."""

    given: Followed
    weight: Stored
    bias: Stored | None

    def seen_as(self, axes: tuple[Axis, ...]) -> Followed:
        """The same value with other axes, of which the last is that of features or not."""
        plain = axes == self.axes
        return self if plain else Followed(self.statement, axes)


@dataclass(frozen=True)
class Root:
    """On the way to an RMS norm of ``of``: its mean square, plus ``eps``; ``turned`` over and its
    root taken, in the end."""

    of: Followed
    what: str
    eps: float = 0.0


@dataclass(frozen=True)
class Unit:
    """An RMS norm of ``of`` without a gain."""

    of: Followed
    eps: float


@dataclass(frozen=True)
class Lanes:
    """Lanes ``first`` to ``last`` of the last axis of ``of``; ``negative`` ones."""

    of: Followed
    first: int
    last: int
    negative: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of its axes."""
        return (*self.of.shape[:-1], self.last - self.first)


@dataclass(frozen=True)
class Swapped:
    """The first ``lanes`` of ``of``, of which the upper half stands in front, negative."""

    of: Followed
    lanes: int


@dataclass(frozen=True)
class Scaled:
    """The first ``lanes`` of ``of``, or these swapped, times a table of positions and lanes."""

    of: Followed
    lanes: int
    swapped: bool
    table: Any


@dataclass(frozen=True)
class Turned:
    """The first ``lanes`` of ``of`` turned by their positions, as ``rope`` says it, times
    ``factor``."""

    of: Followed
    lanes: int
    rope: str
    factor: float


@dataclass(frozen=True)
class Several:
    """Several values."""

    values: tuple[Any, ...]
