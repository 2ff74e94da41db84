"""What each of several GPUs has of a program: ranks their parts of tensors, nodes their layers."""

from __future__ import annotations

from dataclasses import dataclass

from meshc.backends.cuda.launches import OF_ALL, OF_EACH

_MOST_RANKS, _MOST_PADDING = 16, 4096

TRANSPORTS = {"multimem": OF_ALL, "peers": OF_EACH}
"""What collectives are told of memory: sums by the switch, or by loads from each peer."""


@dataclass(frozen=True)
class DealtAxis:
    """A tensor's ``axis``, ``whole`` elements long, of which a rank has ``own``; teams of
    ``copies`` ranks have ``team`` elements each (:class:`meshc.ir.ranks.RankPart`)."""

    axis: int
    whole: int
    own: int
    team: int
    copies: int

    def __post_init__(self) -> None:
        sound = self.axis >= 0 and self.team >= 0 and self.copies >= 1
        if not sound or not 1 <= self.own <= self.whole + _MOST_PADDING:
            raise ValueError(f"no part of a tensor is {self}")


@dataclass(frozen=True)
class RankShare:
    """That ``count`` GPUs run the program, each with its part of the model's tensors: which axes of
    which are ``dealt``. ``transport`` is one of :data:`TRANSPORTS`."""

    count: int
    transport: str
    dealt: dict[str, tuple[DealtAxis, ...]]

    def __post_init__(self) -> None:
        if self.transport not in TRANSPORTS or not 1 <= self.count <= _MOST_RANKS:
            raise ValueError(f"no {self.count} ranks by '{self.transport}'")


@dataclass(frozen=True)
class NodeShare:
    """That the GPUs of ``count`` nodes run the program one behind the other, each its share of all
    ``layers`` in their order."""

    count: int
    layers: int

    def __post_init__(self) -> None:
        if not 1 < self.count <= self.layers:
            raise ValueError(f"no {self.layers} layers are dealt to {self.count} nodes")

    @property
    def of_each(self) -> int:
        """Layers of a node; some may have one fewer."""
        return -(-self.layers // self.count)
