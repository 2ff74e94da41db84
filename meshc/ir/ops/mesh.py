"""Mesh level: every value has a layout; ops are local work, distributed algorithms, collectives.

A *local* op reads only what its core holds; its result may be a partial sum over an axis
(``<.. +x>``), which an ``all_reduce`` completes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from meshc.ir.choices import MOST_CHOICES
from meshc.ir.core import Op, register, tensor_type
from meshc.ir.declared import attribute
from meshc.ir.ops import graph
from meshc.ir.ops.fused_norm import AllReduceNorm as AllReduceNorm
from meshc.ir.ops.norms import InverseRms as InverseRms
from meshc.ir.ops.norms import RmsScale as RmsScale
from meshc.ir.ops.products import Gemm as Gemm
from meshc.ir.ops.products import GemmT as GemmT
from meshc.ir.ops.products import Gemv as Gemv
from meshc.ir.ops.products import Product as Product
from meshc.ir.ops.products import reject_repeated
from meshc.ir.ops.routing import Combine as Combine
from meshc.ir.ops.routing import Dispatch as Dispatch
from meshc.ir.ops.routing import ExpertGemv as ExpertGemv
from meshc.ir.types import DType, Layout, TensorType, Type

ALIGNMENTS = ("host", "device")
"""Who skews the operands of products that move in rings."""
RESULTS = ("roots", "everywhere")
"""Where reduced results of main end: on the first cores of the axis, or on all."""
CACHE_POLICIES = ("shift", "concat", "cyclic")
REDUCTIONS = ("sum", "max", "softmax")
"""How an all_reduce combines what cores have."""
FOLDED = ("folded", "segmented")
"""The trees that go to the middle of a line."""
COLLECTIVES = ("", "k_tree", *FOLDED, "ring")
"""How a reduction's messages travel; empty until it is chosen."""


def standing(kind: TensorType, axis: str, dim: str) -> tuple[str, Layout]:
    """How a value stands to ``axis``, and its layout apart from that.

    ``+``: a sum to be completed over it; ``@``: only its first core has the value; ``/``: ``dim``
    lies over it; nothing: every core of it has the value.
    """
    layout = kind.layout or Layout()
    split = layout.split_of(dim)
    over = split is not None and split.axis == axis
    marks = "+" * (axis in layout.partial) + "@" * (axis in layout.roots) + "/" * over
    rest = Layout(
        tuple(s for s in layout.splits if not over or s is not split),
        tuple(a for a in layout.partial if a != axis),
        tuple(a for a in layout.roots if a != axis),
    )
    return marks, rest


@dataclass(eq=False)
class AlongAxis(Op):
    """The same tensor before and after, which stands differently to ``axis``: ``STANDING`` is how
    operand and result do."""

    STANDING: ClassVar[tuple[str, str]] = ("", "")

    axis: str = ""

    @property
    def along(self) -> str:
        """The dim that lies over the axis before or after, if there is one."""
        return str(getattr(self, "dim", ""))

    def verify(self, extents: Mapping[str, int]) -> None:
        """Operand and result are one tensor in the two layouts. A split that leaves ``along`` whole
        is none."""
        for value in (*self.operands, *self.results):
            if (tensor_type(value).layout or Layout()).repeats((self.along,)):
                self.reject(f"several cores have the same part of {self.along}")
        for operand, result in zip(self.operands, self.results, strict=True):
            given, given_rest = self._standing(tensor_type(operand), extents)
            gives, gives_rest = self._standing(tensor_type(result), extents)
            dims = tensor_type(operand).dims
            if dims != tensor_type(result).dims or (self.along and self.along not in dims):
                self.reject(f"operand and result must be one tensor with dim '{self.along}'")
            if (given, gives) != self.STANDING or given_rest != gives_rest:
                before, after = (f"'{mark}'" if mark else "nothing" for mark in self.STANDING)
                self.reject(
                    f"over {self.axis} the operand must stand as {before} and the result as "
                    f"{after} (+ sum, @ first core, / split of {self.along or 'a dim'}), all else "
                    "alike"
                )
            splits = [
                (tensor_type(value).layout or Layout()).split_of(self.along)
                for value in (operand, result)
            ]
            if self.STANDING == ("/", "/") and splits[0] != splits[1]:
                self.reject(f"{self.along} of {result} does not lie as that of {operand} does")

    def _standing(self, kind: TensorType, extents: Mapping[str, int]) -> tuple[str, Layout]:
        """As :func:`standing`, without a split over another axis that leaves ``along`` whole."""
        marks, rest = standing(kind, self.axis, self.along)
        split = rest.split_of(self.along)
        if split is None or split.skew or split.block < extents[self.along]:
            return marks, rest
        return marks, Layout(
            tuple(s for s in rest.splits if s is not split), rest.partial, rest.roots
        )


@dataclass(eq=False)
class Collective(AlongAxis):
    """Cores of ``axis`` send each other messages."""


@dataclass(eq=False)
class Reduction(Collective):
    """What the cores of ``axis`` have is combined.

    ``algo`` is empty until select-collective sets it: ``k_tree`` with the group sizes of its
    phases in ``groups`` (one group: the pipeline), ``folded``, such a tree from both ends of the
    axis to its middle, ``segmented``, one whose sum comes back by way of the first core of each
    segment, or ``ring`` (reduce-scatter, all-gather).

    ``reduce`` is ``sum``, ``max`` or ``softmax``. A softmax takes the weighted values, sums and
    maxima that each core has of its own elements, ``o = sum exp(s - m) v``, ``l = sum exp(s - m)``
    and ``m = max s``, and gives those of all: with ``M`` the largest of the maxima, ``sum o
    exp(m - M)``, ``sum l exp(m - M)`` and ``M``. It has no ring, of which a part of the values
    would lack its maximum.
    """

    reduce: str = attribute("sum", among=REDUCTIONS)
    algo: str = attribute("", among=COLLECTIVES)
    groups: tuple[int, ...] = ()

    @property
    def folded(self) -> bool:
        """Whether its tree goes to the middle of a line."""
        return self.algo in FOLDED

    def verify(self, extents: Mapping[str, int]) -> None:
        """A softmax has a sum and a maximum for each row of its values, whose dims they begin."""
        super().verify(extents)
        if self.reduce != "softmax":
            return
        dims = [tensor_type(operand).dims for operand in self.operands]
        if len(dims) != 3 or dims[1] != dims[2] or dims[0][: len(dims[1])] != dims[1]:
            self.reject(
                "of a softmax takes values, sums and maxima; the values have the dims of those, "
                "then their own"
            )


@register("mesh.part", "x -> y")
@dataclass(eq=False)
class Part(AlongAxis):
    """Each core of ``axis``, all of which have all of ``dim``, keeps its own part of it. Nothing is
    sent."""

    STANDING: ClassVar[tuple[str, str]] = ("", "/")

    dim: str = ""


@register("mesh.all_reduce", "x+ -> y+")
@dataclass(eq=False)
class AllReduce(Reduction):
    """Combine partial results over ``axis`` on every core of it. Several operands share
    messages."""

    STANDING: ClassVar[tuple[str, str]] = ("+", "")


@register("mesh.reduce", "x+ -> y+")
@dataclass(eq=False)
class Reduce(Reduction):
    """Combine partial results over ``axis`` on its first core (``<.. @axis>``); there is no
    ring."""

    STANDING: ClassVar[tuple[str, str]] = ("+", "@")


@register("mesh.broadcast", "x -> y")
@dataclass(eq=False)
class Broadcast(Collective):
    """What the first core of ``axis`` has, on every core of it."""

    STANDING: ClassVar[tuple[str, str]] = ("@", "")


@register("mesh.gather", "x -> y")
@dataclass(eq=False)
class Gather(Collective):
    """All parts of ``dim``, which lies over ``axis``, on the first core of it."""

    STANDING: ClassVar[tuple[str, str]] = ("/", "@")

    dim: str = ""


@register("mesh.scatter", "x -> y")
@dataclass(eq=False)
class Scatter(Collective):
    """``dim``, all of which the first core of ``axis`` has, in equal parts over it."""

    STANDING: ClassVar[tuple[str, str]] = ("@", "/")

    dim: str = ""


@register("mesh.all_gather", "x -> y")
@dataclass(eq=False)
class AllGather(Collective):
    """All parts of ``dim``, which lies over ``axis``, on every core of it."""

    STANDING: ClassVar[tuple[str, str]] = ("/", "")

    dim: str = ""


@register("mesh.reduce_scatter", "x -> y")
@dataclass(eq=False)
class ReduceScatter(Collective):
    """Combine partial results over ``axis``; each core keeps its part of ``dim``."""

    STANDING: ClassVar[tuple[str, str]] = ("+", "/")

    dim: str = ""
    reduce: str = attribute("sum", among=("sum", "max"))


@register("mesh.shift", "x -> y")
@dataclass(eq=False)
class Shift(Collective):
    """Part p of the result is part p + ``by`` (around the ring) of a value whose ``dim`` lies over
    ``axis``: with ``by`` 1 everything moves to the next lower rank."""

    STANDING: ClassVar[tuple[str, str]] = ("/", "/")

    dim: str = ""
    by: int = 1


@register("mesh.relayout", "x -> y")
@dataclass(eq=False)
class Relayout(Op):
    """Move a vector from one axis to the other: cores where both meet contribute their lanes.

    The result is partial over the old axis, so an ``all_reduce`` follows. This is what a
    transpose costs on a mesh; remarks name it.
    """

    def verify(self, extents: Mapping[str, int]) -> None:
        given, moved = tensor_type(self.operands[0]), tensor_type(self.result)
        if moved.dims != given.dims:
            self.reject(f"what moves keeps its dims, {', '.join(given.dims)}")


@register("mesh.append", "cache, new, values?, new_values? -> grown+")
@dataclass(eq=False)
class Append(Op):
    """New rows enter a KV cache that is spread over the rows of the mesh.

    ``policy`` is one of ``CACHE_POLICIES``: ``shift`` (WaferLLM section 4.3), ``concat`` (the last
    row keeps everything new) or ``cyclic`` (row ``pos mod rows`` stores, nothing moves).
    Operands are the key cache, new keys, value cache and new values, or one such pair.
    """

    dim: str = ""
    rows: str = ""
    policy: str = attribute("shift", among=CACHE_POLICIES)

    def infer(self, extents: Mapping[str, int]) -> list[Type] | None:
        return [tensor_type(cache) for cache in self.operands[::2]]

    def verify(self, extents: Mapping[str, int]) -> None:
        graph.check_cache(self, extents, self.dim, self.rows)
        for cache, new in zip(self.operands[::2], self.operands[1::2], strict=True):
            kept, entering = (
                tensor_type(cache).layout or Layout(),
                tensor_type(new).layout or Layout(),
            )
            if {s for s in kept.splits if s.dim != self.dim} != {
                s for s in entering.splits if s.dim != self.rows
            }:
                self.reject(f"the new entries {new} do not lie where the cache {cache} has them")


@dataclass(eq=False)
class RowReduction(Op):
    """One number for the elements of ``dim`` that a core holds."""

    dim: str = ""

    def over(self) -> tuple[str, ...]:
        """The dims that the result has no more."""
        return (self.dim,)

    def verify(self, extents: Mapping[str, int]) -> None:
        """The result has all dims of the operand but those that the op is over."""
        if len(self.over()) == 1:
            reject_repeated(self, self.over())
        given, gives = (tensor_type(v).dims for v in (self.operands[0], self.result))
        left = tuple(d for d in given if d not in self.over())
        if len(given) != len(left) + len(self.over()) or gives != left:
            before, after = ", ".join(given), ", ".join(gives)
            self.reject(f"does not take [{before}] by '{', '.join(self.over())}' to [{after}]")


@register("mesh.row_max", "x -> y: within x")
@dataclass(eq=False)
class RowMax(RowReduction):
    """Largest of the elements of ``dim`` that a core holds and the mask lets through."""


@register("mesh.first_at", "x, top: within x -> y: within x")
@dataclass(eq=False)
class FirstAt(RowReduction):
    """Minus the index in ``dim`` of the first element that a core holds and that is equal to
    ``top``, and minus infinity where there is none: the largest over all cores is that of the first
    element of all. Indices are whole numbers in f32."""

    def verify(self, extents: Mapping[str, int]) -> None:
        """There is a ``top`` for each result, and ``dim`` lies in blocks, as far as it is split."""
        super().verify(extents)
        x, top = (tensor_type(operand) for operand in self.operands)
        if top.dims != tensor_type(self.result).dims:
            self.reject(f"the largest elements do not have the dims of {self.result}")
        if (top.layout or Layout()).partial:
            self.reject(f"{self.operands[1]} is the largest of a core's own elements, not of all")
        if extents[self.dim] > MOST_CHOICES:
            self.reject(f"chooses among {extents[self.dim]}; f32 counts to {MOST_CHOICES}")
        if tensor_type(self.result).dtype != DType.F32:
            self.reject(f"indices are whole numbers in f32, not {tensor_type(self.result).dtype}")
        split = (x.layout or Layout()).split_of(self.dim)
        if split is not None and (split.kind != "block" or split.skew or split.copies > 1):
            self.reject(f"'{self.dim}' lies as {split}, and not in a block for each core")


@register("mesh.at_least", "x -> y: like x")
@dataclass(eq=False)
class AtLeast(Op):
    """The larger of an element and ``value``: what stands in for the maximum of a core that sees no
    element, so that ``exp(-inf - m)`` is 0 and not NaN."""

    value: float = 0.0


@register("mesh.larger", "x, y: within x -> z: like x")
@dataclass(eq=False)
class Larger(Op):
    """The larger of two elements; the second operand is repeated over dims it lacks."""


@register("mesh.mask", "x -> y: like x")
@dataclass(eq=False)
class Mask(Op):
    """Scores with minus infinity where row ``l`` must not see: beyond ``pos + l`` if causal, before
    the last ``window`` elements up to there in every ``every``-th layer, or all but every
    ``but``-th, or all but the first ``after`` (0: no window), and lanes of ``dim`` that hold no
    element."""

    dim: str = ""
    rows: str = ""
    kind: str = attribute("causal", among=("none", "causal"))
    window: int = attribute(0, least=0)
    every: int = attribute(1, least=1)
    but: int = attribute(0, least=0)
    after: int = attribute(0, least=0)

    def verify(self, extents: Mapping[str, int]) -> None:
        """``dim`` is a dim of the scores, and ``rows``, where it is stated, of the module."""
        if self.dim not in tensor_type(self.operands[0]).dims:
            self.reject(f"'{self.dim}' is no dim of the scores")
        if self.rows and self.rows not in extents:
            self.reject(f"there is no dim '{self.rows}' of rows")


@register("mesh.top_k", "scores, bias?: within scores -> gates: like scores")
@dataclass(eq=False)
class TopK(graph.TopK):
    """As ``graph.top_k``, of scores all of which each core has."""

    def infer(self, extents: Mapping[str, int]) -> list[Type] | None:
        return None

    def verify(self, extents: Mapping[str, int]) -> None:
        """No core has scores of some elements of ``dim`` only."""
        super().verify(extents)
        if (tensor_type(self.operands[0]).layout or Layout()).split_of(self.dim) is not None:
            self.reject(f"chooses of all {self.dim}, of which a core has some only")


@register("mesh.exp_sub", "x, m: within x -> y: like x")
@dataclass(eq=False)
class ExpSub(Op):
    """``exp(x - m)``, the second operand repeated over dims it lacks."""


@register("mesh.row_sum", "x -> y: within x")
@dataclass(eq=False)
class RowSum(RowReduction):
    """Sum of the elements of ``dim`` that a core holds."""


@register("mesh.square_sum", "x -> y: within x")
@dataclass(eq=False)
class SquareSum(RowReduction):
    """Sum of squares of the elements of ``dim`` that a core holds. Over dims ``also`` too, several
    cores may hold the same elements, of which each gives an equal share: the sum over all cores
    counts every element once."""

    also: tuple[str, ...] = ()

    def over(self) -> tuple[str, ...]:
        """``dim`` and ``also``."""
        return (self.dim, *self.also)

    def sharing(self) -> int:
        """How many cores hold the same elements."""
        layout = tensor_type(self.operands[0]).layout or Layout()
        return prod(split.copies for split in layout.splits if split.dim in self.over())


@register("mesh.keep_lanes", "x -> y: like x")
@dataclass(eq=False)
class KeepLanes(Op):
    """``x``, and zero in the lanes of ``dim`` that hold no element."""

    dim: str = ""

    def verify(self, extents: Mapping[str, int]) -> None:
        """``dim`` is dealt to an axis in blocks, of which the last ones may have such lanes."""
        split = (tensor_type(self.operands[0]).layout or Layout()).split_of(self.dim)
        if split is None or split.kind != "block" or split.copies > 1:
            self.reject(f"'{self.dim}' of the operand does not lie in blocks over an axis")


@register("mesh.rope", "x -> y: like x")
@dataclass(eq=False)
class Rope(graph.Rope):
    """As ``graph.rope`` with interleaved pairs, each pair on one core."""

    def infer(self, extents: Mapping[str, int]) -> list[Type] | None:
        return None


@register("mesh.add", "x, y: within x -> z: like x")
@dataclass(eq=False)
class Add(Op):
    """Sum of values laid out alike; the second is repeated over dims it lacks."""


@register("mesh.mul", "x, y: within x -> z: like x")
@dataclass(eq=False)
class Mul(Op):
    """Product of values laid out alike; the second is repeated over dims it lacks."""


@register("mesh.div", "x, y: within x -> z: like x")
@dataclass(eq=False)
class Div(Op):
    """Quotient of values laid out alike; the second is repeated over dims it lacks."""


@register("mesh.scale", "x -> y: like x")
@dataclass(eq=False)
class Scale(Op):
    """Product with a constant."""

    factor: float = 1.0


@register("mesh.repeat", "value+ -> result* {body}")
@dataclass(eq=False)
class Repeat(graph.Repeat):
    """As ``graph.repeat``. Over several regions each region runs its own share of the layers and
    hands the carried values to the next."""


@register("mesh.yield", "value* -> ()")
@dataclass(eq=False)
class Yield(Op):
    """Ends a ``repeat`` body."""


@register("mesh.return", "value* -> ()")
@dataclass(eq=False)
class Return(Op):
    """Ends a function."""
