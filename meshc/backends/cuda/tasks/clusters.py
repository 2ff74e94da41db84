"""Clusters of blocks in a kernel of tasks: what lies in their shared memory, and how they meet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from meshc.backends.cuda.tasks.storage import Storage
from meshc.ir.module import Module
from meshc.ir.ops import task
from meshc.ir.values import Value

BARRIER_BYTES = 8
MEET = "meet_in_cluster(published, round, me);"
LEAVE = "mc::cluster_arrive_relaxed();", "mc::cluster_wait();  // peers may still store here"


@dataclass(frozen=True)
class Clusters:
    """Clusters of ``size`` of ``blocks``; sizes of 0 are no clusters. ``values`` lie in their
    memory, of the groups of tasks of a cluster; phases have ``groups`` of these."""

    size: int
    blocks: int
    values: tuple[Value, ...]
    groups: frozenset[int]

    @property
    def least_blocks(self) -> int:
        """With how many blocks no cluster has more groups of tasks than its memory is for."""
        if not self.values:
            return max(self.size, 1)
        most = {n: -(-n * self.size // self.blocks) for n in self.groups}
        return max(-(-n // of_cluster) for n, of_cluster in most.items()) * self.size

    def parts(self, storage: Storage) -> Iterator[tuple[str, int, str]]:
        """Parts of shared memory: name, bytes, and what they are for."""
        if self.size > 1:
            yield "PUBLISHED", 2 * BARRIER_BYTES, "where blocks of the cluster meet, in turns"
        for value in self.values:
            size = 4 * prod(storage.shape(value))
            yield part_of(storage, value), size, f"%{value.name} of the cluster"

    def advice(self, storage: Storage) -> str | None:
        """What would leave more of a block's memory to tiles; None where there are no clusters."""
        size = sum(4 * prod(storage.shape(value)) for value in self.values)
        if not size:
            return None
        return f"blocks of a cluster have {size} bytes of what it gives; smaller clusters have less"

    def arrays(self, storage: Storage) -> list[tuple[str, str]]:
        """The names of what lies there, and their parts of shared memory."""
        return [(storage.name(value), part_of(storage, value)) for value in self.values]


def part_of(storage: Storage, value: Value) -> str:
    """The part of shared memory of a buffer of the cluster."""
    return f"CLUSTER_{storage.name(value).upper()}"


def clusters_of(module: Module) -> Clusters:
    """The clusters of a placed program."""
    phases = [op for op in module.walk() if isinstance(op, task.Phase)]
    values = tuple(buffer.value for buffer in module.buffers if buffer.cluster is not None)
    size = max((phase.cluster for phase in phases), default=0)
    blocks = max(phase.blocks for phase in phases) if size else 0
    return Clusters(
        size, blocks, values, frozenset(phase.groups for phase in phases if phase.groups)
    )
