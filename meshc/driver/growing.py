"""How what an algorithm takes of a core grows with the mesh, from its own programs.

The algorithm is compiled for one large product on several square meshes of P cores a side, its
programs are counted, and a law is fitted to the counts. Sizes divide by every P, so tiles are even;
trees of K phases are taken at P = g^K, where their groups are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import lcm

from meshc.analysis.proofs.growth import growth, latency
from meshc.cost.programs import Profile, profile
from meshc.devices import device
from meshc.driver.questions import Question, tile_module

_SIDES = (16, 64, 256)
_SIDES_OF_TREES = {3: (27, 64, 125), 4: (81, 256, 625)}


@dataclass(frozen=True)
class Laws:
    """Laws of growth in P: routing paths, hops and stages of a step and of the whole program, and
    bytes of a product of fixed size."""

    paths: str
    step_hops: str
    step_stages: str
    path_hops: str
    path_stages: str
    bytes: str

    @property
    def step(self) -> str:
        """The law of growth of the latency of one step."""
        return latency(self.step_hops, self.step_stages)

    @property
    def path(self) -> str:
        """The law of growth of the latency of the whole program."""
        return latency(self.path_hops, self.path_stages)


@cache
def laws(kind: str, algo: str, device_name: str) -> Laws:
    """The laws of an algorithm of ``gemm`` or ``gemv`` on a device."""
    phases = algo.rpartition(":")[2]
    sides = _SIDES_OF_TREES.get(int(phases), _SIDES) if phases.isdecimal() else _SIDES
    extent = lcm(*sides) * max(sides)
    found = {
        side: profile(tile_module(_square(kind, extent, side, device_name), kind, algo), numbers)
        for numbers in [device(device_name)]
        for side in sides
    }

    def law(count: Callable[[Profile], int]) -> str:
        return growth({side: count(one) for side, one in found.items()})

    return Laws(
        law(lambda p: p.paths),
        law(lambda p: p.step.hops),
        law(lambda p: p.step.stages),
        law(lambda p: p.total.hops),
        law(lambda p: p.total.stages),
        law(lambda p: p.bytes),
    )


def _square(kind: str, extent: int, side: int, device_name: str) -> Question:
    rows = extent if kind == "gemm" else 1
    return Question(rows, extent, extent, f"{side}x{side}", device_name)
