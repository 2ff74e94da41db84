"""fuse-cluster: which blocks are a cluster, and which heads and scratch are theirs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import ClassVar

from meshc.analysis.cuda.blocks import block_memory, coresident
from meshc.analysis.tasks.accesses import Access, accesses, families_of
from meshc.analysis.tasks.order import leaves_cluster
from meshc.analysis.tasks.tiles import tile_bytes
from meshc.devices import Device
from meshc.ir.module import Buffer, Module
from meshc.ir.ops import task, tile
from meshc.ir.views import Point, Range
from meshc.passes.base import Pass
from meshc.support.diagnostics import Diagnostics, MeshcError, fail
from meshc.verify import check_fact


@dataclass(frozen=True)
class FuseCluster(Pass):
    """Make clusters of blocks, and give each whole key heads: their queries, keys and values, their
    attention, their part of the output projection (ClusterFusion, section 3.2).

    ``cluster`` neighbouring blocks are one; so many blocks are used as the device can have in such
    clusters at once. Tasks of a phase that attends are dealt to clusters by key heads, and so are
    those of a phase before or behind it where no task then needs what another cluster has. In a
    cluster rows of the projections are dealt to blocks, then runs of cached tokens, then output
    columns (SplitToken). What the blocks of a cluster give each other lies in their shared memory,
    of which each has all that its cluster gives (ClusterGather, and what a ClusterReduce reduces).
    It has to fit a block beside left sides of products and a tile more than are on their way; what
    does not stays in the memory of the GPU (``missed[fuse-cluster]``).

    Before::

        task.phase {name = attend, blocks = 5} {
          task.family {name = attend, ...each = [pos]} {

    After::

        task.phase {name = attend, blocks = 4, cluster = 2, groups = 1} {
          task.family {name = attend, ...each = [pos], grouped = g} {
    """

    NAME: ClassVar[str] = "fuse-cluster"
    LEVELS: ClassVar[tuple[str, ...]] = ("task",)
    REQUIRES: ClassVar[frozenset[str]] = frozenset({"given_before"})
    ESTABLISHES: ClassVar[frozenset[str]] = frozenset({"in_cluster"})
    INVALIDATES: ClassVar[frozenset[str]] = frozenset({"ordered", "not_overwritten"})

    cluster: int = 1

    def run(self, module: Module, report: Diagnostics) -> Module:
        phases = [op for op in module.walk() if isinstance(op, task.Phase)]
        blocks = {phase.blocks for phase in phases}
        if len(blocks) != 1 or 0 in blocks:
            fail(
                "tasks-not-placed",
                "tasks are not placed, or phases have different blocks",
                help="run place-tasks first",
            )
        clusters = self._clusters(module.the_device(), blocks.pop())
        for phase in phases:
            phase.blocks, phase.cluster, phase.groups = clusters * self.cluster, self.cluster, 0
        for buffer in module.buffers:
            buffer.cluster = None
        every = [*accesses(module)]
        for phase in phases:
            group = next((one for f in families_of(phase) if (one := _key_heads(f))), None)
            if group is not None and len(families_of(phase)) == 1:
                self._deal(module, every, phase, group, clusters, report)
        _Memory(module, every, clusters, report).place()
        return module

    def _clusters(self, device: Device, blocks: int) -> int:
        """How many clusters there are of ``blocks``."""
        sizes = device.clusters.sizes if device.clusters else ()
        if self.cluster not in sizes:
            known = f"has {', '.join(map(str, sizes))}" if sizes else "is no GPU with clusters"
            fail(
                "bad-pass-option",
                f"fuse-cluster: clusters of {self.cluster} blocks: {device.name} {known}",
            )
        found = min(blocks // self.cluster, coresident(device, self.cluster, 1))
        if not found:
            fail(
                "bad-pass-option",
                f"fuse-cluster: {blocks} blocks of {device.name} are no cluster of {self.cluster}",
            )
        return found

    def _deal(
        self,
        module: Module,
        every: Sequence[Access],
        phase: task.Phase,
        group: str,
        clusters: int,
        report: Diagnostics,
    ) -> None:
        """Deal the tasks of ``phase``, which attends, and of those beside it to clusters."""
        (family,) = families_of(phase)
        phase.groups, family.grouped = family.domain[group], group
        beside = [phase.name]
        own = {access.buffer for access in every if access.family is family}
        for other in dict.fromkeys(a.phase for a in every if a.buffer in own):
            if other is phase or other.groups or not _edges(every, phase, other):
                continue
            if _grouped(module, every, phase, other):
                beside.append(other.name)
            else:
                report.missed(
                    "fuse-cluster",
                    f"tasks of the phase {other.name} need, or give, what several clusters have",
                    other.span,
                )
        report.remark(
            "clusters",
            f"{clusters} clusters of {self.cluster} blocks have {phase.groups} groups of tasks of "
            f"{', '.join(beside)}",
        )


def _key_heads(family: task.Family) -> str | None:
    """The dim of key heads of a family that attends; None for another one."""
    attends = any(
        isinstance(inner, task.Stream) and inner.below is not None
        for op in family.regions[0].ops
        if isinstance(op, tile.For)
        for inner in op.regions[0].ops
    )
    return family.dims[1] if attends and len(family.dims) == 3 else None


Edge = tuple[Access, Access]
"""A need, and the give of some of it."""


def _edges(every: Sequence[Access], one: task.Phase, other: task.Phase) -> list[Edge]:
    """What tasks of two phases give each other."""
    return [
        (need, give)
        for need in every
        for give in every
        if isinstance(need.op, task.Need)
        and isinstance(give.op, task.Give)
        and need.buffer is give.buffer
        and {id(need.phase), id(give.phase)} == {id(one), id(other)}
    ]


def _grouped(module: Module, every: Sequence[Access], phase: task.Phase, other: task.Phase) -> bool:
    """Deal ``other`` to clusters as ``phase`` is, by dims with which nothing leaves a cluster, if
    there are such."""
    families = families_of(other)
    choices = [
        [dim for dim, size in family.domain.items() if size % phase.groups == 0]
        for family in families
    ]
    other.groups = phase.groups
    edges = _edges(every, phase, other)
    for chosen in product(*choices):
        for family, dim in zip(families, chosen, strict=True):
            family.grouped = dim
        if all(leaves_cluster(module, *edge) is None for edge in edges):
            return True
    other.groups = 0
    for family in families:
        family.grouped = ""
    return False


@dataclass
class _Memory:
    """Puts scratch into the memory of clusters."""

    module: Module
    every: Sequence[Access]
    clusters: int
    report: Diagnostics

    def place(self) -> None:
        """All scratch that only tasks of clusters give and need, as far as there is room."""
        device = self.module.the_device()
        ring = (1 + -(-device.bytes_in_flight // tile_bytes(device))) * tile_bytes(device)
        left = block_memory(device) - ring - _columns_bytes(self.module)
        for buffer in self.module.buffers:
            found = next(self._places(buffer), None) if not buffer.role else None
            if found is None:
                continue
            buffer.cluster = found
            try:
                check_fact(self.module, "in_cluster")
            except MeshcError:
                buffer.cluster = None
                continue
            size = cluster_bytes(buffer)
            if size > left:
                buffer.cluster = None
                self.report.missed(
                    "fuse-cluster",
                    f"{buffer.value} stays in the memory of the GPU: it takes {size} bytes of a "
                    f"block, which has {max(left, 0)} beside the shortest ring",
                )
            else:
                left -= size

    def _places(self, buffer: Buffer) -> Iterator[tuple[int, int]]:
        """The dim of ``buffer`` by which groups of tasks have their own, and how much of it a
        cluster has."""
        own = [access for access in self.every if access.buffer is buffer.value]
        if not own or not all(access.phase.groups for access in own):
            return
        for access in own:
            groups, shape = access.phase.groups, buffer.type.shape
            for dim, index in enumerate(access.op.view.indices):
                at = index.at if isinstance(index, Point) else None
                at = index.start if isinstance(index, Range) else at
                if at is not None and access.family.grouped in at.free_vars:
                    if shape[dim] % groups == 0:
                        most = -(-groups // self.clusters)
                        yield dim, shape[dim] // groups * most
                    return


def _columns_bytes(module: Module) -> int:
    """Bytes of the widest left side of a product with weights, as columns of 16 bits: two for each
    of up to four requests."""
    requests = module.dims.get("B", 1)
    streams = {op.result for op in module.walk() if isinstance(op, task.Stream)}
    widths = [
        op.views()[1].shape()[-1].constant
        for op in module.walk()
        if isinstance(op, tile.Compute) and op.kernel == "gemm" and op.views()[2].buffer in streams
    ]
    return 2 * requests * (2 if requests <= 4 else 1) * max(widths, default=0)


def cluster_bytes(buffer: Buffer) -> int:
    """Bytes that a block has of scratch in the memory of its cluster."""
    shape = list(buffer.type.shape)
    if buffer.cluster is not None:
        dim, extent = buffer.cluster
        shape[dim] = extent
    if len(shape) > 2:
        shape[0] = buffer.kept or 1
    return prod(shape) * buffer.type.dtype.bytes
