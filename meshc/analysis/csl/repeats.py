"""Runs of statements that stand in several places of a program and mean the same in each.

A run may become a function that is called in all of its places: it waits by synchronous operations
alone, and names no loop variable. Of all such runs those are taken that save most statements.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from meshc.analysis.csl.joined_transfers import Transfers
from meshc.ir.affine import Expr
from meshc.ir.core import Block, Op
from meshc.ir.module import Module
from meshc.ir.ops.tile import Compute, Recv, Relay, Send, Sweep, Wait, channel_in, channel_out
from meshc.ir.views import Point
from meshc.ir.views import Range as Window

_LEAST_SAVED = 4


@dataclass(frozen=True)
class Run:
    """``ops`` of one of its places, and the number of ``places``."""

    ops: tuple[Op, ...]
    places: int


@dataclass(frozen=True)
class _Site:
    """A statement in its block, what it says (None if it cannot be shared), and how many
    statements of emitted code it stands for, about."""

    block: int
    op: Op
    said: Hashable | None
    weight: int


def repeated_runs(module: Module, transfers: Transfers) -> dict[Op, Run]:
    """The runs to share, by the first statement of each of their places."""
    sites = _Sites(module, transfers).found
    taken = [False] * len(sites)
    found: dict[Op, Run] = {}
    while (best := _best(sites, taken)) is not None:
        starts, length = best
        run = Run(tuple(site.op for site in sites[starts[0] : starts[0] + length]), len(starts))
        for start in starts:
            found[sites[start].op] = run
            taken[start : start + length] = [True] * length
    return found


class _Sites:
    """Every statement of a program, block by block."""

    def __init__(self, module: Module, transfers: Transfers) -> None:
        self.module = module
        self.transfers = transfers
        self.known = {*module.the_mesh().coordinates, *module.scalars}
        self.found: list[_Site] = []
        self.blocks = 0
        self._collect(module.program.body)

    def _collect(self, block: Block) -> None:
        number = self.blocks
        self.blocks += 1
        for op in block.ops:
            said = self._said(op)
            self.found.append(_Site(number, op, said, _weight(op)))
            if said is None:
                for region in op.regions:
                    self._collect(region)

    def _said(self, op: Op) -> Hashable | None:
        """What the code of ``op`` depends on."""
        if isinstance(op, Wait):
            group = self.transfers.of_wait.get(op)
            return "wait" if group is None or group.at_once else None
        if not _names(op) <= self.known:
            return None
        if isinstance(op, Compute):
            return (
                "compute",
                op.kernel,
                tuple(op.views()),
                tuple(sorted(op.params.items())),
                (op.way, op.dsr),
                op.when,
            )
        if isinstance(op, (Send, Recv, Relay)):
            channels = channel_in(op), channel_out(op)
            turned = any(name and self.module.channel(name).turns for name in channels)
            if turned or not self.transfers.of_token[op.result].at_once:
                return None
            return channels, tuple(op.views()), getattr(op, "combine", ""), op.when
        if isinstance(op, Sweep) and not self.transfers.suspends_in(op.regions[0]):
            inner = tuple(map(self._said, op.regions[0].ops))
            return None if None in inner else ("sweep", inner, op.when)
        return None


def _names(op: Op) -> frozenset[str]:
    """Names that the code of ``op`` itself depends on."""
    found = op.when.free_vars if op.when is not None else frozenset[str]()
    for value in op.params.values() if isinstance(op, Compute) else ():
        found |= value.free_vars if isinstance(value, Expr) else frozenset()
    for view in op.views():
        for index in view.indices:
            if isinstance(index, Point):
                found |= index.at.free_vars
            elif isinstance(index, Window):
                found |= index.start.free_vars | index.extent.free_vars
    return found


def _weight(op: Op) -> int:
    inner = sum(_weight(each) for region in op.regions for each in region.ops)
    return inner if isinstance(op, (Sweep, Wait)) else 2


def _best(sites: Sequence[_Site], taken: Sequence[bool]) -> tuple[list[int], int] | None:
    """The places of the run that saves most, and its length; None where none saves enough."""
    best, most = None, _LEAST_SAVED - 1
    for start in range(len(sites)):
        lengths = _lengths(sites, taken, start)
        for length in sorted(set(lengths.values())):
            places = _apart([start, *(p for p, n in lengths.items() if n >= length)], length)
            weight = sum(site.weight for site in sites[start : start + length])
            saved = (len(places) - 1) * weight - len(places)
            if len(places) > 1 and saved > most:
                best, most = (places, length), saved
    return best


def _lengths(sites: Sequence[_Site], taken: Sequence[bool], start: int) -> dict[int, int]:
    """How many statements from each later place say the same as those from ``start``."""
    found: dict[int, int] = {}
    for place in range(start + 1, len(sites)):
        length = 0
        while place + length < len(sites) and start + length < place:
            one, other = sites[start + length], sites[place + length]
            inside = one.block == sites[start].block and other.block == sites[place].block
            free = not taken[start + length] and not taken[place + length]
            if not inside or not free or one.said is None or one.said != other.said:
                break
            length += 1
        if length:
            found[place] = length
    return found


def _apart(places: Sequence[int], length: int) -> list[int]:
    """Those of ``places`` that do not overlap the one before."""
    kept = [places[0]]
    for place in places[1:]:
        if place >= kept[-1] + length:
            kept.append(place)
    return kept
