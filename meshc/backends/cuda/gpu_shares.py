"""What each of several GPUs has of a program: ranks their parts of tensors, nodes their layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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


@dataclass(frozen=True)
class RankShare:
    """That ``count`` GPUs run the program, each with its part of the model's tensors: which axes of
    which are ``dealt``. ``transport`` is one of :data:`TRANSPORTS`."""

    count: int
    transport: str
    dealt: dict[str, tuple[DealtAxis, ...]]


@dataclass(frozen=True)
class NodeShare:
    """That the GPUs of ``count`` nodes run the program one behind the other, each its share of all
    ``layers`` in their order."""

    count: int
    layers: int

    @property
    def of_each(self) -> int:
        """Layers of a node; some may have one fewer."""
        return -(-self.layers // self.count)


def rank_share(found: Mapping[str, Any]) -> RankShare:
    """What a manifest says of ranks. Raises ValueError for none, KeyError and TypeError."""
    count = int(found["count"])
    if found["transport"] not in TRANSPORTS or not 1 <= count <= _MOST_RANKS:
        raise ValueError(f"no {found['count']} ranks by '{found['transport']}'")
    dealt = {name: tuple(map(_dealt, axes)) for name, axes in found["dealt"].items()}
    return RankShare(count, found["transport"], dealt)


def node_share(found: Mapping[str, Any]) -> NodeShare:
    """What a manifest says of nodes. Raises ValueError for none, and TypeError."""
    made = NodeShare(**found)
    sound = type(made.count) is int and type(made.layers) is int and 1 < made.count <= made.layers
    if not sound:
        raise ValueError(f"no layers are dealt to nodes as {found}")
    return made


def _dealt(found: Mapping[str, Any]) -> DealtAxis:
    made = DealtAxis(**{key: int(value) for key, value in found.items()})
    sound = made.axis >= 0 and made.team >= 0 and made.copies >= 1
    if not sound or not 1 <= made.own <= made.whole + _MOST_PADDING:
        raise ValueError(f"no part of a tensor is {found}")
    return made
