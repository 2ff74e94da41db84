"""Task level: what a GPU does in one phase, as families of tasks that stream their operands.

A program is a list of phases, perhaps inside loops (``tile.for`` over layers). A phase holds
families; a family is one task for each point of its dims. Tasks of a phase run in any order and at
the same time, and behind those of the phases before. Tasks meet nowhere but in buffers: what a task
reads of a buffer that tasks write it *needs*, what nobody writes during the program it *streams*,
what it leaves it *gives*. In between it computes with the microkernels of the tile level on values
of its own.

    task.phase {name = inner} {
      task.family {name = inner, dims = [g], sizes = [1792]} {
        %columns = task.need %stream[layer, 0] : f32[1, 4096]
        %w = task.stream %w_up[layer, :, 16*g +: 16] : f16[4096, 16]
        %sum = task.local : f32[1, 16]
        tile.gemm %sum, %columns, %w {accumulate = false, transposed = false}
        task.give %features[layer, :, 16*g +: 16], %sum
      }
    }

What only some experts of a mixture do stands in ``task.routed``, behind a need of their gates.

A buffer without a role is scratch in the memory of the GPU. Each of its elements is given once:
what a loop carries has an element for each round (``%stream[layer + 1]`` of ``%stream[layer]``).

The GPUs of several ranks run one program, each with its own memory and with its number as the
run-time scalar ``rank``. Of a buffer with ``ranks`` each GPU has what all of them give.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshc.ir.affine import Expr
from meshc.ir.core import Op, register
from meshc.ir.declared import attribute
from meshc.ir.types import BufferType, Type
from meshc.ir.values import Value
from meshc.ir.views import View

MEETINGS = COUNTER, TAGS, CLUSTER, RANKS, KERNEL = ("counter", "tags", "cluster", "ranks", "kernel")
"""Kinds of meetings: by a counter of all blocks, by tags in the words that are needed, of the
blocks of each cluster, of all blocks of the GPUs of all ranks, and by the end of a kernel."""


@register("task.phase", "() -> () {body}")
@dataclass(eq=False)
class Phase(Op):
    """Families whose tasks need nothing of each other; all run behind those of earlier phases.

    With ``blocks`` so many blocks share them (``place-tasks``): tasks are numbered, family behind
    family and in each the last dim fastest, and block b of B runs those of n from n*b/B to
    n*(b + 1)/B, rounded down, in this order. Of families that do something for experts the tasks of
    chosen ones are numbered, expert by expert, and who runs one is known once they are chosen.

    With ``cluster`` so many neighbouring blocks are a cluster (``fuse-cluster``). With
    ``groups`` tasks are dealt to clusters: those of each family are so many groups, runs of its
    dim ``grouped``; of G groups cluster c of C has those from G*c/C to G*(c + 1)/C, and its blocks
    share the tasks of each group as blocks share those of a phase.
    """

    name: str = ""
    blocks: int = attribute(0, least=0)
    cluster: int = attribute(0, least=0)
    groups: int = attribute(0, least=0)

    def verify(self, extents: Mapping[str, int]) -> None:
        """Blocks are whole clusters; what is dealt to clusters falls into groups."""
        if self.cluster and (not self.blocks or self.blocks % self.cluster):
            self.reject(f"{self.blocks} blocks are no whole clusters of {self.cluster}")
        if self.groups and not self.cluster:
            self.reject(f"{self.groups} groups of tasks, but no clusters that have them")
        for family in self.regions[0].ops if self.groups else ():
            if not isinstance(family, Family):
                continue
            size = family.domain.get(family.grouped, 0)
            if not size:
                self.reject(f"@{family.name} does not say which of its dims is grouped")
            if size % self.groups:
                self.reject(f"@{family.name}: {size} of '{family.grouped}' in {self.groups} groups")


@register("task.meet", "() -> ()")
@dataclass(eq=False)
class Meet(Op):
    """All blocks wait here for each other: what was given before is there behind it (``meet``).

    At a meeting of kind ``tags``, which stands in front of a phase, nobody is counted: a task of
    that phase waits until each word that it needs of buffers with tags has the tag of its version.
    At one of kind ``cluster`` the blocks of each cluster wait for each other, at one of kind
    ``ranks`` all blocks of the GPUs of all ranks, each of which runs the same program. One of kind
    ``kernel`` ends a kernel: what is behind it is another one, launched behind the first (``cut``).
    """

    kind: str = attribute(COUNTER, among=MEETINGS)


@register("task.family", "() -> () {body}")
@dataclass(eq=False)
class Family(Op):
    """One task for each point of ``dims``, of which there are ``sizes``; the body is a task.

    ``each`` names run-time scalars of which a run is given one for every request, such as its
    position; the first dim then counts requests, and in a task they are those of its request.
    ``grouped`` is the dim that says to which group of its phase a task belongs.
    """

    name: str = ""
    dims: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    each: tuple[str, ...] = ()
    grouped: str = ""

    @property
    def domain(self) -> dict[str, int]:
        """The extent of each dim."""
        return dict(zip(self.dims, self.sizes, strict=True))

    def verify(self, extents: Mapping[str, int]) -> None:
        """As many sizes as dims, each at least 1; requests have a dim."""
        if len(self.dims) != len(self.sizes):
            self.reject(f"{len(self.dims)} dims have {len(self.sizes)} sizes")
        if len({*self.dims}) < len(self.dims):
            self.reject(f"two dims have one name among {', '.join(self.dims)}")
        if not all(size >= 1 for size in self.sizes):
            self.reject("a dim has no tasks; sizes are at least 1")
        if self.each and not self.dims:
            self.reject("it has scalars for each request, but no dim that counts requests")
        if self.grouped and self.grouped not in self.dims:
            self.reject(f"it has no dim '{self.grouped}' to be grouped")


@dataclass(eq=False)
class _Read(Op):
    """What a task has of a buffer: the operand is a view of it, the result its elements."""

    @property
    def view(self) -> View:
        """The region that is read."""
        (view,) = self.views()
        return view

    def infer(self, extents: Mapping[str, int]) -> list[Type] | None:
        shape = self.view.shape()
        if not all(extent.is_const for extent in shape):
            self.reject(f"{self.view} has an extent that depends on the run")
        return [BufferType(self.view.buffer_type.dtype, tuple(e.constant for e in shape))]


@register("task.need", "region -> value")
@dataclass(eq=False)
class Need(_Read):
    """What earlier tasks of this program gave; the task waits until they have."""


@register("task.stream", "region -> tile")
@dataclass(eq=False)
class Stream(_Read):
    """What no task of this program writes: it may be brought as early as there is room for it, in
    the order in which a task's text and loops name it.

    With ``below`` elements whose index in dim number ``dim`` of the buffer is not below it are not
    read, and are 0: those that this run writes, of a cache.
    """

    dim: int = attribute(0, least=0)
    below: Expr | None = None

    def verify(self, extents: Mapping[str, int]) -> None:
        """The limited dim is one of the buffer, and a range of the view."""
        if self.below is None:
            return
        if self.dim >= len(self.view.buffer_type.shape):
            self.reject(f"{self.view.buffer} has no dim {self.dim}")


@register("task.local", "() -> value")
@dataclass(eq=False)
class Local(Op):
    """Memory of a task, which holds nothing before a kernel has written it."""


@register("task.give", "region, view -> ()")
@dataclass(eq=False)
class Give(Op):
    """Elements of a buffer that this task alone writes, rounded to the type of the buffer."""

    @property
    def view(self) -> View:
        """The region that is written."""
        return self.views()[0]

    @property
    def source(self) -> View:
        """The value that is given."""
        return self.views()[1]

    def infer(self, extents: Mapping[str, int]) -> list[Type] | None:
        return []

    def verify(self, extents: Mapping[str, int]) -> None:
        """The value has as many elements in each dim as the region."""
        have, want = self.source.shape(), self.view.shape()
        if have != want:
            given, taken = (", ".join(map(str, shape)) for shape in (have, want))
            self.reject(f"gives [{given}] to a region of [{taken}]")


@register("task.routed", "gates -> () {body}")
@dataclass(eq=False)
class Routed(Op):
    """What a task does where any of ``gates`` is not 0: for an expert to which some row is sent,
    whose number the dim or loop ``expert`` is. Nothing of it is brought before that is known. What
    it gives is needed in the same way alone, where the gates are those of the same expert."""

    expert: str = ""

    @property
    def gates(self) -> View:
        """What decides."""
        return self.views()[0]


Access = Need | Stream | Give


def values_of(family: Family) -> list[Value]:
    """The values that a task of ``family`` has, in the order of their definitions."""
    return [value for op in family.regions[0].walk() for value in op.results]
