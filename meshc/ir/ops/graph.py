"""Graph level: operations on whole tensors with named dims, as the user wrote them.

No op knows where data lives. Dims are matched by name; transposes are visible.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshc.ir.choices import MOST_CHOICES, choice_mistake
from meshc.ir.coded_rows import ROW_CODES
from meshc.ir.core import Op, register, tensor_type
from meshc.ir.declared import attribute
from meshc.ir.functions import Gelu as Gelu
from meshc.ir.functions import Sigmoid as Sigmoid
from meshc.ir.functions import Silu as Silu
from meshc.ir.types import DType, TensorType, Type
from meshc.ir.values import Value

DRAW_WORDS = 4
"""Settings of a draw, and words that say which number it takes."""


def matmul_dims(
    left: tuple[str, ...], right: tuple[str, ...], contract: tuple[str, ...], group: tuple[str, ...]
) -> tuple[str, ...]:
    """Dims of a matmul: the left ones, then the right ones that are new.

    With ``group = (H, G)`` each of the G right heads serves H/G left heads, so G disappears.
    """
    shared = set(left) | set(contract) | set(group[1:])
    return tuple(d for d in left if d not in contract) + tuple(d for d in right if d not in shared)


def check_product(
    op: Op, extents: Mapping[str, int], contract: tuple[str, ...], group: tuple[str, ...]
) -> None:
    """Raise ``invalid-ir`` unless both sides of every product of ``op``, whose first operand is on
    the left, have the dims ``contract``, and ``group`` is empty or two dims, one of the left and
    one of the right, neither contracted, of which the second divides the first."""
    left = tensor_type(op.operands[0])
    for right in op.operands[1:]:
        missing = [d for d in contract if d not in left.dims or d not in tensor_type(right).dims]
        if missing or not contract:
            op.reject(f"contracts {', '.join(missing) or 'nothing'}, not a dim of both sides")
    if len(group) not in (0, 2):
        op.reject(f"'group' names {len(group)} dims: it takes heads, and those that they share")
    rights = [tensor_type(right).dims for right in op.operands[1:]]
    for head, sides in zip(group, ([left.dims], rights), strict=False):
        if head in contract or not all(head in dims for dims in sides):
            op.reject(f"'group' names {head}: heads of the left side, then of the right one")
    if group and extents[group[0]] % extents[group[1]]:
        op.reject(f"{group[0]} is no multiple of {group[1]}")


def check_cache(op: Op, extents: Mapping[str, int], dim: str, rows: str) -> None:
    """Raise ``invalid-ir`` unless the caches among the operands of ``op``, which are caches and new
    entries in turn, have the dim ``dim`` and room for as many ``rows`` as come at once, and the new
    entries ``rows`` in its place."""
    for cache in op.operands[::2]:
        if dim not in tensor_type(cache).dims:
            op.reject(f"'{dim}' is no dim of the cache {cache}")
    if extents.get(rows, 1) > extents[dim]:
        op.reject(f"{extents[rows]} rows do not fit a cache of {extents[dim]}")
    for cache, new in zip(op.operands[::2], op.operands[1::2], strict=True):
        kept, entering = tensor_type(cache).dims, tensor_type(new).dims
        if set(entering) != {rows if d == dim else d for d in kept if rows or d != dim}:
            op.reject(f"{new} does not have the dims of the cache {cache}, '{rows}' for '{dim}'")


@register("graph.matmul", "left, right+ -> product+")
@dataclass(eq=False)
class Matmul(Op):
    """``left @ right`` for one or more right operands, contracting the dims in ``contract``.

    A dim that both sides have and that is not contracted is a batch dim. One result per right
    operand.
    """

    contract: tuple[str, ...] = ()
    group: tuple[str, ...] = ()

    def infer(self, extents: Mapping[str, int]) -> list[Type] | None:
        left = tensor_type(self.operands[0])
        return [
            TensorType(
                left.dtype,
                matmul_dims(left.dims, tensor_type(r).dims, self.contract, self.group),
            )
            for r in self.operands[1:]
        ]

    def verify(self, extents: Mapping[str, int]) -> None:
        check_product(self, extents, self.contract, self.group)


@register("graph.transpose", "x -> y")
@dataclass(eq=False)
class Transpose(Op):
    """The same elements with the dims in the order ``dims``."""

    dims: tuple[str, ...] = ()

    def infer(self, extents: Mapping[str, int]) -> list[Type] | None:
        return [TensorType(tensor_type(self.operands[0]).dtype, self.dims)]

    def verify(self, extents: Mapping[str, int]) -> None:
        if sorted(self.dims) != sorted(tensor_type(self.operands[0]).dims):
            self.reject("'dims' is no permutation of the operand's dims")


@dataclass(eq=False)
class _Pointwise(Op):
    """An op whose result has the type of its first operand."""

    def infer(self, extents: Mapping[str, int]) -> list[Type] | None:
        return [tensor_type(self.operands[0])]


@register("graph.add", "x, y: within x -> z: like x")
@dataclass(eq=False)
class Add(_Pointwise):
    """Sum; the second operand is repeated over dims it lacks."""


@register("graph.mul", "x, y: within x -> z: like x")
@dataclass(eq=False)
class Mul(_Pointwise):
    """Product; the second operand is repeated over dims it lacks."""


@register("graph.scale", "x -> y: like x")
@dataclass(eq=False)
class Scale(_Pointwise):
    """Product with a constant."""

    factor: float = 1.0


@register("graph.rms_norm", "x, gain: within x -> y: like x")
@dataclass(eq=False)
class RmsNorm(_Pointwise):
    """``x / sqrt(mean(x*x over dim) + eps) * gain``; operands x and gain. The mean is over the
    dims ``also`` as well, where there are such."""

    dim: str = ""
    also: tuple[str, ...] = ()
    eps: float = attribute(1e-5, least=0)

    def verify(self, extents: Mapping[str, int]) -> None:
        """``dim`` and ``also`` are dims of the operand, and all differ."""
        over = (self.dim, *self.also)
        for dim in over:
            if dim not in tensor_type(self.operands[0]).dims:
                self.reject(f"'{dim}' is no dim of the operand")
        if len({*over}) < len(over):
            self.reject(f"it names a dim twice: {', '.join(over)}")


@register("graph.centre", "x -> y: like x")
@dataclass(eq=False)
class Centre(_Pointwise):
    """``x - mean(x over dim)``: which a layer norm scales as RMSNorm does (Ba et al. 2016)."""

    dim: str = ""

    def verify(self, extents: Mapping[str, int]) -> None:
        if self.dim not in tensor_type(self.operands[0]).dims:
            self.reject(f"'{self.dim}' is no dim of the operand")


@register("graph.rope", "x -> y: like x")
@dataclass(eq=False)
class Rope(_Pointwise):
    """Rotary position embedding of the pairs of ``dim`` at the positions of ``rows``.

    Position of row ``l`` is ``pos + l``, with ``pos`` the run-time scalar (0 where there is none).
    ``style`` ``half`` pairs lane ``i`` with ``i + D/2`` (Hugging Face), ``interleaved`` pairs
    ``2i`` with ``2i+1``. With ``rotated`` only the first so many lanes turn, as if there were no
    others (0: all of them). ``scaling`` is ``none``, ``linear``, ``llama3``, ``yarn`` or
    ``longrope``; the other fields are the numbers of Llama 3.1's frequency scaling, and of YaRN's,
    where ``low_freq_factor`` is its slow beta and ``high_freq_factor`` its fast one, and
    ``truncate`` says that the pairs between which it blends are rounded outwards. LongRoPE divides
    the frequency of each pair by one of ``factors``; those of sequences that are longer than
    ``original_max_position`` are others than those of shorter ones, so that a module with a larger
    capacity has the former and is right for longer sequences alone. With ``but`` only every so
    many-th layer of the loop around it turns pairs so, the ``but``-th one first; the others turn
    them by the base ``local_theta``, unscaled (Gemma 3). With ``skip`` every so many-th layer turns
    none, the ``skip``-th one first (Cohere 2, SmolLM3).
    """

    dim: str = ""
    rows: str = ""
    theta: float = 10000.0
    style: str = attribute("half", among=("half", "interleaved"))
    rotated: int = attribute(0, least=0)
    scaling: str = attribute("none", among=("none", "linear", "llama3", "yarn", "longrope"))
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = attribute(8192, least=1)
    truncate: bool = True
    factors: tuple[float, ...] = ()
    but: int = attribute(0, least=0)
    local_theta: float = attribute(10000.0, least=0)
    skip: int = attribute(0, least=0)

    @property
    def period(self) -> int:
        """Every so many-th layer turns otherwise than those between; 0 where all turn alike."""
        return self.but or self.skip

    def lanes(self, extent: int) -> int:
        """How many lanes of a dim of ``extent`` turn, the first ones."""
        return self.rotated or extent

    def verify(self, extents: Mapping[str, int]) -> None:
        if self.dim not in tensor_type(self.operands[0]).dims or extents[self.dim] % 2:
            self.reject(f"needs an even dim to rotate; '{self.dim}' is none")
        if self.rotated % 2 or self.rotated > extents[self.dim]:
            self.reject(f"turns an even number of the {extents[self.dim]} lanes of {self.dim}")
        pairs = self.lanes(extents[self.dim]) // 2 if self.scaling == "longrope" else 0
        if len(self.factors) != pairs or not all(factor > 0 for factor in self.factors):
            self.reject(f"with scaling '{self.scaling}' it has {pairs} factors, each above 0")
        if self.but and not self.local_theta > 0:
            self.reject("the base 'local_theta' is above 0")
        if self.but and self.skip:
            self.reject("layers that turn otherwise are chosen by one of 'but' and 'skip'")
        if self.scaling == "yarn" and not self.theta > 1:
            self.reject(f"theta is {self.theta}; scaling 'yarn' needs one above 1")


@register("graph.softmax", "x, sink?: within x -> y: like x")
@dataclass(eq=False)
class Softmax(_Pointwise):
    """Softmax over ``dim``. ``mask`` is ``none`` or ``causal``: row ``l`` of ``rows`` sees the
    elements of ``dim`` up to ``pos + l``; with a ``window`` only the last so many of these, in
    every ``every``-th layer of the loop around it, the first one among them (0: no window), or,
    with ``but``, in all of its layers but every so many-th, the ``but``-th one first, or, with
    ``after``, in all of its layers but the first ``after``.

    A ``sink``, which lacks ``dim``, is the score of one more element that takes its share of the
    softmax and is left out of the result (attention sinks: Xiao et al. 2023; gpt-oss).
    """

    dim: str = ""
    mask: str = attribute("none", among=("none", "causal"))
    rows: str = ""
    window: int = attribute(0, least=0)
    every: int = attribute(1, least=1)
    but: int = attribute(0, least=0)
    after: int = attribute(0, least=0)

    def verify(self, extents: Mapping[str, int]) -> None:
        """``dim`` is a dim of the operand, and ``rows``, where it is stated, of the module."""
        super().verify(extents)
        if self.dim not in tensor_type(self.operands[0]).dims:
            self.reject(f"there is no dim '{self.dim}' of {self.operands[0]}")
        if self.rows and self.rows not in extents:
            self.reject(f"there is no dim '{self.rows}' of rows")
        if self.window and self.mask != "causal":
            self.reject("a window ends at a row's own position: it needs the mask 'causal'")
        if (self.every > 1) + (self.but > 0) + (self.after > 0) > 1:
            self.reject("layers are chosen by one of 'every', 'but' and 'after'")
        for sink in self.operands[1:]:
            shared = {self.dim, self.rows} & {*tensor_type(sink).dims}
            if shared:
                self.reject(f"the sink {sink} has {', '.join(sorted(shared))}")


@register("graph.top_k", "scores, bias?: within scores -> gates: like scores")
@dataclass(eq=False)
class TopK(_Pointwise):
    """Gates of a mixture of experts: the ``count`` chosen scores of ``dim``, and 0 for all others.

    The largest of score plus bias are chosen (the bias counts for the choice alone), of equal ones
    the first. With several ``groups``, equal runs of ``dim``, only elements of the ``kept_groups``
    best ones are chosen; a group is as good as the sum of its ``group_top`` largest (1 in
    DeepSeek-V2, 2 in DeepSeek-V3, section 2.1.2). With ``normalise`` gates are divided by their
    sum, to which 1e-20 is added.
    """

    dim: str = ""
    count: int = attribute(1, least=1)
    groups: int = attribute(1, least=1)
    kept_groups: int = attribute(1, least=1)
    group_top: int = attribute(1, least=1)
    normalise: bool = False

    def verify(self, extents: Mapping[str, int]) -> None:
        """As many are chosen as there are, of the bias there is one for each element of ``dim``."""
        super().verify(extents)
        if self.dim not in tensor_type(self.operands[0]).dims:
            self.reject(f"'{self.dim}' is no dim of the scores")
        if len(self.operands) > 1 and tensor_type(self.operands[1]).dims != (self.dim,):
            self.reject(f"the bias has a number for each {self.dim}, and no other dims")
        mistake = choice_mistake(
            extents[self.dim], self.count, self.groups, self.kept_groups, self.group_top
        )
        if mistake:
            self.reject(mistake)


@register("graph.arg_max", "x -> index: within x")
@dataclass(eq=False)
class ArgMax(Op):
    """The index in ``dim`` of the largest element, of equal ones the first, as a whole number in
    f32. Where an element is NaN there is no largest one, and the index is infinite."""

    dim: str = ""

    def infer(self, extents: Mapping[str, int]) -> list[Type] | None:
        given = tensor_type(self.operands[0])
        return [TensorType(DType.F32, tuple(d for d in given.dims if d != self.dim))]

    def verify(self, extents: Mapping[str, int]) -> None:
        """``dim`` is a dim of the operand, which has numbers, no more than f32 can count."""
        given = tensor_type(self.operands[0])
        if self.dim not in given.dims:
            self.reject(f"there is no dim '{self.dim}' of {self.operands[0]}")
        if not given.dtype.floats:
            self.reject(f"chooses among elements of type {given.dtype}, which are no numbers")
        if extents[self.dim] > MOST_CHOICES:
            self.reject(f"chooses among {extents[self.dim]}; f32 counts to {MOST_CHOICES}")


@register("graph.draw", "scores, settings, stream -> index: within scores")
@dataclass(eq=False)
class Draw(Op):
    """An index in ``dim`` that is drawn by the scores along it, as a whole number in f32; infinite
    where one of them is NaN.

    ``settings`` end in a dim of four numbers, ``stream`` in one of four words. Settings are the
    scale of the scores, in doublings of the likelihood, then top-k, top-p and min-p; where the
    scale is 0 the index is that of the largest element, as of ``arg_max``. The number of the draw
    is that of the words of ``stream``: word w mod 4 of Philox 4x64-10 at the counter w / 4 + 1, w
    being the last of them, and the first two the key's first word, low half first, the third its
    second one. :mod:`meshc.serving.sampling` says what is drawn by it.
    """

    dim: str = ""

    def infer(self, extents: Mapping[str, int]) -> list[Type] | None:
        given = tensor_type(self.operands[0])
        return [TensorType(DType.F32, tuple(d for d in given.dims if d != self.dim))]

    def verify(self, extents: Mapping[str, int]) -> None:
        """``dim`` is a dim of the scores, no larger than f32 can count; settings and words are four
        for each index that is drawn."""
        scores, settings, stream = (tensor_type(one) for one in self.operands)
        if self.dim not in scores.dims:
            self.reject(f"there is no dim '{self.dim}' of {self.operands[0]}")
        if extents[self.dim] > MOST_CHOICES:
            self.reject(f"draws among {extents[self.dim]}; f32 counts to {MOST_CHOICES}")
        for operand, kind, dtype in (
            (self.operands[1], settings, DType.F32),
            (self.operands[2], stream, DType.I32),
        ):
            if kind.dtype is not dtype or not kind.dims or extents[kind.dims[-1]] != DRAW_WORDS:
                self.reject(f"{operand} are not {DRAW_WORDS} of {dtype} for each draw")
            if not {*kind.dims[:-1]} <= {*scores.dims} - {self.dim}:
                self.reject(f"{operand} has other dims than what is drawn")


@register("graph.append", "cache, new -> grown: like cache")
@dataclass(eq=False)
class Append(_Pointwise):
    """A cache with new entries: rows ``pos .. pos + L - 1`` of ``dim`` are replaced by the second
    operand, whose dim ``rows`` stands in the place of ``dim``. Where it is ``coded`` the cache
    keeps floats of that type, and a scale for each token of each head
    (:mod:`meshc.ir.coded_rows`): what enters is rounded to the nearest numbers that these stand
    for."""

    dim: str = ""
    rows: str = ""
    coded: str = ""

    def verify(self, extents: Mapping[str, int]) -> None:
        """New entries fit the cache, and what it is coded as is a type that caches may have."""
        check_cache(self, extents, self.dim, self.rows)
        if self.coded not in ("", *ROW_CODES):
            self.reject(f"caches are not coded as '{self.coded}', but as {', '.join(ROW_CODES)}")
        if self.coded and tensor_type(self.operands[0]).dims[-1] == self.dim:
            self.reject(f"the last dim of {self.operands[0]} counts no lanes, and rows are coded")


@register("graph.embed", "ids, table, positions? -> rows")
@dataclass(eq=False)
class Embed(Op):
    """Rows of a table: operands are token ids ``[.., L]`` and the table ``[V, E]``.

    To the row of each token that of its position is added, of ``positions`` ``[P, E]`` if they are
    there: ``pos + l`` for token ``l`` of the dim ``rows``, with ``pos`` the run-time scalar.
    """

    dim: str = ""
    rows: str = ""

    def verify(self, extents: Mapping[str, int]) -> None:
        """Positions have rows of the table's width, and ids end with the dim that counts them."""
        if len(self.operands) < 3:
            return
        ids, table, learned = (tensor_type(o).dims for o in self.operands)
        if learned[1:] != tuple(d for d in table if d != self.dim):
            self.reject(f"the positions {self.operands[2]} have other dims than rows of the table")
        if not self.rows or ids[-1:] != (self.rows,):
            self.reject(f"token ids do not end with the dim '{self.rows}' of rows")

    def infer(self, extents: Mapping[str, int]) -> list[Type] | None:
        ids, table = (tensor_type(o) for o in self.operands[:2])
        if self.dim not in table.dims:
            self.reject(f"'{self.dim}' is no dim of the table")
        if ids.dtype != DType.I32:
            self.reject(f"token ids are i32, not {ids.dtype}")
        return [TensorType(table.dtype, ids.dims + tuple(d for d in table.dims if d != self.dim))]


@register("graph.repeat", "value+ -> result* {body}")
@dataclass(eq=False)
class Repeat(Op):
    """The same body ``count`` times: layers.

    Operands are ``carried`` loop values, then stacked ones whose leading dim is ``dim``; the block
    takes the carried values and one slice of each stacked one. ``yield`` gives the carried values
    and then slices that are collected into stacked results (the KV caches).

    ``rounds`` names two run-time scalars, the first layer of a run and the number of its layers;
    without them it runs all. What a run leaves out keeps its slices of the stacks that the
    collected results continue.
    """

    dim: str = ""
    carried: int = attribute(1, least=0)
    rounds: tuple[str, ...] = ()

    def continued(self, position: int) -> Value:
        """The stack that the result at ``position`` continues: its slices are those of the stack
        with what is appended to them. Raises ``invalid-ir`` where it continues none."""
        body = self.regions[0]
        makers = {result: op for op in body.ops for result in op.results}
        value = body.ops[-1].tensors()[position]
        while value in makers and makers[value].NAME.endswith(".append"):
            made = makers[value]
            caches = made.tensors()[::2]
            value = dict(zip(made.results, caches, strict=False)).get(value, caches[0])
        if value not in body.args[self.carried :]:
            self.reject(f"{self.results[position]} continues no stack, which some layers leave out")
        return self.tensors()[body.args.index(value)]


@register("graph.fuse", "value+ -> result* {body}")
@dataclass(eq=False)
class Fuse(Op):
    """Ops that one GPU kernel computes; the meaning is that of the body.

    The block takes the operands and ``yield`` gives the results; the body reads nothing else.
    ``takes`` names the operands, each once, in their order, so that who emits ``kernel`` asks for
    ``query_bias`` and not for the sixth one: the patterns of ``fuse-chunk`` and the kernels of a
    back end agree on these names.

    A ``partial`` one gives a rank's part of a sum over ranks, to which residual and bias are added
    behind the sum (``tensor-parallel``).
    """

    kernel: str = ""
    partial: bool = False
    takes: tuple[str, ...] = ()

    def verify(self, extents: Mapping[str, int]) -> None:
        if not self.kernel:
            self.reject("no kernel is named that computes it")
        if len(self.takes) != len(self.operands):
            self.reject(f"{len(self.operands)} operands have {len(self.takes)} names (takes)")
        if len(set(self.takes)) < len(self.takes):
            self.reject(f"two operands have one name among {', '.join(self.takes)}")
        for op in self.regions[0].walk():
            if op.regions:
                self.reject(f"one kernel cannot hold {op.NAME}")


@register("graph.yield", "value* -> ()")
@dataclass(eq=False)
class Yield(Op):
    """Ends the body of a ``repeat`` or a ``fuse``."""

    def infer(self, extents: Mapping[str, int]) -> list[Type] | None:
        return []


@register("graph.return", "value* -> ()")
@dataclass(eq=False)
class Return(Op):
    """Ends a function."""

    def infer(self, extents: Mapping[str, int]) -> list[Type] | None:
        return []
