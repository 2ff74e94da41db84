"""Ops of ATen, before decomposition, on followed tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isclose, sqrt
from typing import Any, NoReturn

from meshc.support.diagnostics import fail
from meshc.torch.exported.followed_dims import (
    HEADS,
    KEYS,
    LANES,
    REPEATED,
    WIDTH,
    WORDS,
    Apart,
    Axis,
    Dim,
    call,
    extent,
    settled,
    unite,
)
from meshc.torch.exported.positions import rope_of, window_of
from meshc.torch.exported.reading import (
    Other,
    followed,
    hint,
    mapped,
    normed,
    number,
    numbers,
    product,
    values_in,
    whole,
)
from meshc.torch.exported.shapes import SHAPES
from meshc.torch.exported.statements import Param, Statement
from meshc.torch.exported.values import (
    Followed,
    Known,
    Lanes,
    Root,
    Scaled,
    Stored,
    Swapped,
    Tokens,
    Turned,
    Unit,
)

CODE = "export-unsupported"


def refuse(words: str, help: str | None = None) -> NoReturn:
    """Raise ``export-unsupported``."""
    fail(CODE, words, help=help)


class Operators:
    """What ops make of followed tensors, over ``rows`` tokens; a method for each op, found by
    :meth:`apply`. Params that several statements name are made once, in :attr:`tables`."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.tables: dict[int, Param] = {}

    def apply(self, name: str, arguments: Sequence[Any]) -> Any:
        """The value of the op ``name`` of ATen with all ``arguments`` of its schema, of which some
        are followed. Raises ``export-unsupported`` with the name."""
        method, shape = _METHODS.get(name), SHAPES.get(name)
        try:
            if shape is not None:
                return shape(*arguments)
            if method is not None:
                return method(self, *arguments)
        except (Other, Apart) as found:
            words = str(found) or "its tensors have dims that do not go together"
            refuse(f"'aten.{name}' is not read as it is used here: {words}")
        refuse(
            f"'aten.{name}' is not read: nothing in the language is known to mean it",
            help="docs/own-program.md says which ops are; write other models in the language",
        )

    # --- products and embeddings

    def linear(self, input: Any, weight: Any, bias: Any = None) -> Any:
        """A product with a param ``[out, in]``, and its bias."""
        given = whole(input)
        if not isinstance(weight, Stored) or weight.value.ndim != 2:
            raise Other("its weight is no param")
        if bias is not None and not isinstance(bias, Stored):
            raise Other("its bias is no param")
        return product(given, weight, bias, self.tables.get(id(weight.value)))

    def embedding(self, weight: Any, indices: Any, *options: Any) -> Any:
        """Rows of a param ``[words, width]`` by tokens."""
        if not isinstance(indices, Tokens) or not isinstance(weight, Stored):
            raise Other("it looks up other things than tokens")
        words, width = Dim(weight.value.shape[0], WORDS), Dim(weight.value.shape[1], WIDTH)
        table = Param(hint(weight), (words, width), numbers(weight))
        self.tables[id(weight.value)] = table
        dims = (*indices.statement.dims, width)
        found = Statement("embed({}, {})", (indices.statement, table), dims, "s")
        return Followed(found, (*indices.axes, (width,)))

    def attention(
        self,
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        """Attention of ``[batch, heads, rows, lanes]``, causal or by a mask that positions alone
        make, with keys of each head or of groups of them."""
        q, k, v = (followed(one) for one in (query, key, value))
        if any(len(one.axes) != 4 for one in (q, k, v)) or dropout_p:
            raise Other("it attends otherwise than heads of [batch, heads, rows, lanes] do")
        window = self._window(attn_mask, is_causal)
        (batch, heads, rows, lanes), (_, keys, _, _) = q.axes, k.axes
        for one in (k, v):
            for ours, theirs in zip((batch, keys, rows, lanes), one.axes, strict=True):
                unite(ours, theirs)
            unite(batch, one.axes[0])
        unite(rows, k.axes[2])
        held, repeated = _grouped(settled(keys))
        if q.is_repeated() or extent(heads) % extent(held) or len(settled(heads)) != 1:
            raise Other("its heads are not those of a product")
        if not enable_gqa and extent(heads) != extent(held) * repeated:
            raise Other("it has fewer keys than queries")
        call(heads, HEADS)
        call(held, KEYS)
        call(lanes, LANES)
        width = extent(lanes)
        options = f", window = {window}" if window else ""
        factor = 1.0 if scale is None else float(scale) * sqrt(width)
        if not isclose(factor, 1, rel_tol=1e-9):
            options += f", scale = {factor!r}"
        order = (*settled(batch), *settled(rows), *settled(heads), *settled(lanes))
        found = Statement(
            f"gqa_attention({{}}, {{}}, {{}}{options})",
            tuple(one.statement for one in (q, k, v)),
            order,
            "o",
            attends=True,
        )
        return Followed(found, q.axes)

    def _window(self, mask: Any, is_causal: bool) -> int:
        if mask is None:
            if not is_causal:
                raise Other("it shows each row all others, and no mask hides those that follow")
            return 0
        if not isinstance(mask, Known):
            raise Other("its mask is not made of positions alone")
        found = window_of(mask.value, self.rows)
        if found is None:
            raise Other("its mask hides other tokens than those that follow or are far behind")
        return found

    # --- functions of elements

    def silu(self, input: Any) -> Any:
        """Elements times their sigmoid."""
        return mapped("silu({})", whole(input), "a")

    def sigmoid(self, input: Any) -> Any:
        """The logistic function of elements."""
        return mapped("sigmoid({})", whole(input), "a")

    def tanh(self, input: Any) -> Any:
        """The hyperbolic tangent of elements."""
        return mapped("tanh({})", whole(input), "a")

    def gelu(self, input: Any, approximate: str = "none") -> Any:
        """The function of its name, exact or by tanh."""
        form = {"none": "erf", "tanh": "tanh"}[approximate]
        return mapped(f"gelu({{}}, form = {form})", whole(input), "a")

    def neg(self, input: Any) -> Any:
        """Elements with the other sign; of lanes a half of what RoPE swaps."""
        if isinstance(input, Lanes):
            return Lanes(input.of, input.first, input.last, not input.negative)
        return mapped("-{}", whole(input), "t")

    def mul(self, input: Any, other: Any) -> Any:
        """A product of elements: with a number, with tables of RoPE, with a gain, or of a tensor
        and one over its root of a mean square, which together are a norm."""
        if isinstance(other, Unit | Followed | Swapped | Lanes) and not isinstance(input, Followed):
            input, other = other, input
        if isinstance(other, Root):
            input, other = other, input
        if isinstance(input, Root) and isinstance(other, Followed):
            if input.what != "turned" or input.of.statement is not other.statement:
                raise Other("it is no norm")
            return Unit(other, input.eps)
        if isinstance(input, Unit) and isinstance(other, Stored) and other.value.ndim == 1:
            return normed(input, other)
        factor = number(other)
        if factor is not None:
            return mapped(f"{{}} * {factor!r}", whole(input), "t")
        if isinstance(other, Known):
            return _scaled(input, other.value)
        return self._joined("*", input, other)

    def div(self, input: Any, other: Any) -> Any:
        """Elements over a number."""
        factor = number(other)
        if factor is None:
            raise Other("it divides by a tensor")
        return mapped(f"{{}} / {factor!r}", whole(input), "t")

    def add(self, input: Any, other: Any, alpha: Any = 1) -> Any:
        """A sum of elements, an ``eps`` within a norm, or the two products of RoPE."""
        if alpha != 1:
            raise Other("it adds a multiple")
        if isinstance(other, Root):
            input, other = other, input
        factor = number(other)
        if isinstance(input, Root) and input.what == "mean" and factor is not None:
            return Root(input.of, "mean", input.eps + factor)
        if isinstance(input, Scaled) and isinstance(other, Scaled):
            return self._turned(*sorted((input, other), key=lambda one: one.swapped))
        return self._joined("+", input, other)

    def sub(self, input: Any, other: Any, alpha: Any = 1) -> Any:
        """A difference of elements."""
        if alpha != 1:
            raise Other("it takes a multiple away")
        return self._joined("-", input, other)

    def _joined(self, sign: str, left: Any, right: Any) -> Any:
        """Two tensors of the same axes, or one and a param of the last axis."""
        if isinstance(left, Stored) and sign == "-":
            raise Other("it takes a tensor away from a param")
        if isinstance(left, Stored):
            left, right = right, left
        one = whole(left)
        if isinstance(right, Stored):
            if right.value.ndim != 1 or right.value.shape[0] != one.shape[-1]:
                raise Other("its param is not of the last axis")
            param = Param(hint(right), one.axes[-1], numbers(right))
            operands: tuple[Any, ...] = (one.statement, param)
            return Followed(
                Statement(f"{{}} {sign} {{}}", operands, one.statement.dims, "t"), one.axes
            )
        other = whole(right)
        if len(one.axes) != len(other.axes):
            raise Other("its tensors have different numbers of axes")
        for ours, theirs in zip(one.axes, other.axes, strict=True):
            unite(ours, theirs)
        operands = (one.statement, other.statement)
        stem = "s" if sign == "+" else "t"
        return Followed(
            Statement(f"{{}} {sign} {{}}", operands, one.statement.dims, stem), one.axes
        )

    # --- norms

    def pow(self, input: Any, exponent: Any) -> Any:
        """Squares, as the beginning of a norm."""
        if not isinstance(input, Followed) or number(exponent) != 2:
            raise Other("only squares that become a norm are")
        return Root(whole(input), "square")

    def mean(self, input: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
        """The mean of squares over the last axis, as a part of a norm."""
        last = isinstance(input, Root) and list(dim or ()) in ([-1], [len(input.of.axes) - 1])
        if not last or input.what != "square" or not keepdim:
            raise Other("only means of squares over the last axis are")
        return Root(input.of, "mean")

    def rsqrt(self, input: Any) -> Any:
        """One over the root of a mean square, as a part of a norm."""
        if not isinstance(input, Root) or input.what != "mean":
            raise Other("only that of a mean square is")
        return Root(input.of, "turned", input.eps)

    def rms_norm(
        self, input: Any, normalized_shape: Any, weight: Any = None, eps: Any = None
    ) -> Any:
        """A norm over the last axis by the root of the mean square, with a gain or without."""
        given = whole(input)
        if list(normalized_shape) != [given.shape[-1]] or eps is None:
            raise Other("its norm is not over the last axis, or has no eps")
        unit = Unit(given, float(eps))
        return unit if weight is None else normed(unit, weight)

    def layer_norm(
        self,
        input: Any,
        normalized_shape: Any,
        weight: Any = None,
        bias: Any = None,
        eps: float = 1e-5,
        cudnn_enable: bool = True,
    ) -> Any:
        """A norm over the last axis by mean and variance, with a gain and perhaps a bias."""
        given = whole(input)
        if list(normalized_shape) != [given.shape[-1]] or not isinstance(weight, Stored):
            raise Other("its norm is not over the last axis, or has no gain")
        last = given.axes[-1]
        params = [Param(hint(one), last, numbers(one)) for one in (weight, bias) if one is not None]
        holes = ", {}" * len(params)
        text = f"layer_norm({{}}{holes}, eps = {eps!r})"
        found = Statement(text, (given.statement, *params), given.statement.dims, "h")
        return Followed(found, given.axes)

    # --- RoPE

    def _turned(self, plain: Scaled, swapped: Scaled) -> Any:
        alike = plain.of.statement is swapped.of.statement and plain.lanes == swapped.lanes
        if not alike or plain.swapped or not swapped.swapped:
            raise Other("its tables are not those of RoPE")
        rope = rope_of(plain.table, swapped.table, self.rows, plain.lanes)
        if rope is None:
            raise Other("its angles are not those of positions from 0 on")
        return _roped(Turned(plain.of, plain.lanes, *rope))

    def cat(self, tensors: Any, dim: int = 0) -> Any:
        """Lanes side by side along the last axis: swapped halves of RoPE, or turned lanes in front
        of those that are left as they are."""
        parts = [one for one in values_in(tensors) if not _is_empty(one)]
        if any(not isinstance(one, Lanes | Turned | Followed) for one in parts):
            raise Other("its tensors are not lanes of one")
        axes = len(parts[0].axes if isinstance(parts[0], Followed) else parts[0].of.axes)
        if dim not in (-1, axes - 1):
            raise Other("it is not along the last axis")
        if len(parts) == 1:
            return parts[0]
        first, second, *rest = parts
        if not rest and isinstance(second, Lanes):
            if isinstance(first, Turned) and _ends(second, first.of, first.lanes):
                return _roped(first, whole=True)
            if isinstance(first, Lanes) and first.negative and not second.negative:
                half = second.last
                same = first.of.statement is second.of.statement and second.first == 0
                if same and (first.first, first.last) == (half, 2 * half):
                    return Swapped(second.of, 2 * half)
        raise Other("its parts are not those of RoPE")


def _grouped(keys: Axis) -> tuple[Axis, int]:
    """The heads of keys, and how many queries in a row each is repeated for."""
    held = keys[:-1] if keys[-1].role == REPEATED else keys
    if len(held) != 1 or held[0].role == REPEATED:
        raise Other("its heads are not those of a product, each repeated for its queries")
    return held, keys[-1].extent if held is not keys else 1


def _scaled(value: Any, table: Any) -> Scaled:
    if isinstance(value, Swapped):
        return Scaled(value.of, value.lanes, True, table)
    if isinstance(value, Lanes) and value.first == 0 and not value.negative:
        return Scaled(value.of, value.last, False, table)
    given = whole(value)
    return Scaled(given, given.shape[-1], False, table)


def _roped(turned: Turned, whole: bool = False) -> Any:
    """The statement, once all lanes are known: those behind stay."""
    lanes = turned.of.shape[-1]
    if turned.lanes != lanes and not whole:
        return turned
    some = f", rotated = {turned.lanes}" if turned.lanes != lanes else ""
    found = mapped(f"rope({{}}, {turned.rope}{some})", turned.of, "turned")
    if turned.factor == 1:
        return found
    if some:
        raise Other("it scales the lanes that it turns, and not the others")
    return mapped(f"{{}} * {turned.factor!r}", found, "t")


def _ends(rest: Lanes, of: Followed, first: int) -> bool:
    """Whether ``rest`` is all lanes of ``of`` from ``first`` on."""
    same = rest.of.statement is of.statement and not rest.negative
    return same and (rest.first, rest.last) == (first, of.shape[-1])


def _is_empty(value: Any) -> bool:
    return isinstance(value, Lanes) and value.first == value.last


_METHODS: dict[str, Callable[..., Any]] = {
    "linear": Operators.linear,
    "embedding": Operators.embedding,
    "scaled_dot_product_attention": Operators.attention,
    "silu": Operators.silu,
    "sigmoid": Operators.sigmoid,
    "tanh": Operators.tanh,
    "gelu": Operators.gelu,
    "neg": Operators.neg,
    "mul": Operators.mul,
    "div": Operators.div,
    "add": Operators.add,
    "sub": Operators.sub,
    "pow": Operators.pow,
    "mean": Operators.mean,
    "rsqrt": Operators.rsqrt,
    "rms_norm": Operators.rms_norm,
    "layer_norm": Operators.layer_norm,
    "cat": Operators.cat,
}
