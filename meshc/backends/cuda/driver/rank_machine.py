"""The GPU of one rank, whose kernels reach symmetric memory of the others.

Each rank is a process of its own with a GPU of its own, and runs the whole host program. All ranks
compute the same logits to the bit, since each row is summed and normalised on one GPU, which gives
it to all; so all choose the same tokens and none needs to be told.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from meshc.backends.cuda.driver.device_memory import Buffer
from meshc.backends.cuda.driver.gpu import Device
from meshc.backends.cuda.driver.gpu_machine import GpuMachine
from meshc.backends.cuda.gpu_shares import RankShare
from meshc.backends.cuda.launches import OF_ALL, OF_EACH, RANK, RANKS
from meshc.backends.cuda.program import Kernel, Target
from meshc.backends.cuda.toolchain.toolkit import CompilerName
from meshc.support.diagnostics import fail

Array = NDArray[Any]


@dataclass(frozen=True)
class Reached:
    """Symmetric memory as this GPU reaches it: ``addresses`` by rank, and the ``multicast`` address
    of all, 0 where the GPUs have none."""

    addresses: tuple[int, ...]
    multicast: int


class Peers(Protocol):
    """Who makes symmetric memory: this process is ``rank`` of ``count``."""

    @property
    def rank(self) -> int:
        """Which of the ranks this process is."""

    @property
    def count(self) -> int:
        """How many there are."""

    def allocate(self, nbytes: int) -> Reached:
        """``nbytes`` of zeros on each GPU, kept as long as this object. All ranks ask in the same
        order, and none gets an answer before all have."""


class RankMachine(GpuMachine):
    """A :class:`GpuMachine` that is one of several."""

    def __init__(
        self,
        device: Device,
        target: Target,
        kernels: Mapping[str, Kernel],
        texts: Mapping[str, str],
        share: RankShare,
        peers: Peers,
        compiler: CompilerName | None = None,
        checked: bool = False,
    ) -> None:
        """Raises what :class:`GpuMachine` does, and ``cuda-device`` for another number of processes
        than the program has ranks."""
        if peers.count != share.count:
            fail(
                "cuda-device",
                f"the program is of {share.count} GPUs, and {peers.count} processes run it",
                help=f"torchrun --nproc-per-node {share.count} starts as many",
            )
        super().__init__(device, target, kernels, texts, compiler, checked)
        self._peers = peers
        self._multicast = share.transport == "multimem"
        self._reached: dict[str, tuple[Reached, Buffer, int]] = {}

    @property
    def here(self) -> tuple[int, ...]:
        """The rank of this process."""
        return (self._peers.rank,)

    def store_of(self, rank: int, name: str, array: Array) -> None:
        """Memory called ``name``, of the rank of this process."""
        assert rank == self._peers.rank
        self.store(name, array)

    def store_symmetric(self, name: str, array: Array, role: str) -> None:
        """Memory called ``name`` that all ranks reach, zeros of the shape of ``array``. Raises
        ``cuda-device`` where the GPUs have no multicast addresses that the kernels need."""
        reached = self._peers.allocate(array.nbytes)
        if self._multicast and role in ("symmetric", "words") and not reached.multicast:
            fail(
                "cuda-device",
                "these GPUs have no multicast addresses, by which the program's kernels add up",
                help="compile it with --collectives peers",
            )
        places = self.device.upload(np.array(reached.addresses, np.uint64))
        row_bytes = array.nbytes // len(array)
        self._reached[name] = reached, places, row_bytes

    def _argument(self, argument: str | int, layer: int) -> np.generic:
        if isinstance(argument, int):
            return np.int32(argument)
        if argument in (RANK, RANKS):
            return np.int32(self._peers.rank if argument == RANK else self._peers.count)
        name, at, way = argument.partition("@")
        row = 0
        if name.endswith("]"):
            name, _, part = name[:-1].partition("[")
            row = int(part) if part.isdigit() else layer
        if name not in self._reached:
            return super()._argument(argument, layer)
        reached, places, row_bytes = self._reached[name]
        if at + way == OF_ALL:
            return np.uint64(reached.multicast)
        if at + way == OF_EACH:
            return places.address()
        return np.uint64(reached.addresses[self._peers.rank] + row * row_bytes)
