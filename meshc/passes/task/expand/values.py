"""What is known of each value of the graph: where its elements are, or how a task computes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from meshc.ir.core import Op
from meshc.ir.types import BufferType, TensorType
from meshc.ir.values import Value
from meshc.ir.views import Index
from meshc.passes.task.expand.program import OpenTask


@dataclass(frozen=True)
class Stored:
    """A buffer ``[.., tokens, lanes]`` that has a value; ``lead`` says where in it. It is given
    in the phase of number ``phase``, or is there from the beginning (0)."""

    buffer: Value
    lead: tuple[Index, ...]
    phase: int

    @property
    def extents(self) -> tuple[int, ...]:
        """The extents behind ``lead``."""
        kind = self.buffer.type
        assert isinstance(kind, BufferType)
        return kind.shape[len(self.lead) :]


@dataclass(eq=False)
class Known:
    """A value of the graph.

    A *weight* is a parameter or, if ``stacked``, its slice of the present layer. Anything else is
    *stored* in a buffer, is *here*, in a family that is still being written, as the lanes that each
    of its tasks owns, or is computed *later*, by each task that needs it, from ``operands``. It
    may be several of these. A *cached* value is a cache with what a run appends to it, ``grown``,
    perhaps ``coded`` as floats of eight bits;
    *scores* are those of attention, on their way to a softmax. What was attended is *merged* from
    records by who needs it, or stored; it has lanes of so many ``key_heads``. Of a *routed* value
    only lanes of experts that some row is sent to are there, by these gates; of one that is 0 for
    experts that a row is not sent to, ``sent`` is the dim of the experts.
    """

    name: str
    kind: TensorType
    weight: Value | None = None
    stacked: bool = False
    stored: Stored | None = None
    task: OpenTask | None = None
    here: Value | None = None
    later: Op | None = None
    operands: tuple[Known, ...] = ()
    grown: Known | None = None
    coded: str = ""
    scores: Scores | None = None
    merged: Stored | None = None
    key_heads: int = 0
    routed: Known | None = None
    sent: str = ""

    @property
    def phase(self) -> int:
        """The phase in which the last of what it depends on is given; -1 for what comes from
        outside."""
        if self.stored is not None:
            return self.stored.phase
        if self.merged is not None:
            return self.merged.phase
        if self.task is not None:
            return self.task.phase
        return max((o.phase for o in self.operands), default=-1)


@dataclass(eq=False)
class Scores:
    """Sums of products of queries with cached keys, and what is done to them: ``steps`` write a
    change of scores ``[heads, 1, keys]`` into a task."""

    products: list[tuple[Known, Known]]
    steps: list[Callable[[OpenTask, Value], None]] = field(default_factory=list)
    softmax: Op | None = None
    sink: Known | None = None
