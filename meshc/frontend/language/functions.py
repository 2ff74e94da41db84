"""What the operators and built-in functions become: ops of the graph level."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from meshc.frontend.language.ast import Call, Constant
from meshc.frontend.language.constants import kind, numeric
from meshc.frontend.language.dims import (
    CAPACITY,
    ROWS,
    Contraction,
    HeadPair,
    contraction,
    helpful_transpose,
    outer_pair,
    rows_meet,
    show,
    spreads_over,
    transposed,
)
from meshc.frontend.language.graph_function import Emitter
from meshc.ir import functions
from meshc.ir.choices import choice_mistake
from meshc.ir.core import tensor_type
from meshc.ir.ops import graph
from meshc.ir.values import Value
from meshc.support.diagnostics import fail
from meshc.support.spans import Span


@dataclass(frozen=True)
class Applied:
    """A call of a built-in function with its arguments evaluated, by parameter name.

    Dims stand under their parameter's name as the module's names of dims.
    """

    call: Call
    values: Mapping[str, Value | Constant]
    spans: Mapping[str, Span]

    def tensor(self, name: str) -> Value:
        """The tensor given for ``name``."""
        value = self.values[name]
        if not isinstance(value, Value):
            message = f"'{name}' of {self.call.name} is a tensor, not {kind(value)}"
            fail("bad-operand", message, self.spans[name])
        return value

    def number(self, name: str) -> float:
        """The number given for ``name``."""
        return float(numeric(self.constant(name), self.spans.get(name, self.call.span)))

    def constant(self, name: str) -> Constant:
        """The constant given for ``name``."""
        value = self.values[name]
        if isinstance(value, Value):
            message = f"'{name}' of {self.call.name} is decided at compile time; this is a tensor"
            fail("bad-operand", message, self.spans[name])
        return value

    def dim(self, name: str, of: Value) -> str:
        """The dim given for ``name``, or the last of ``of``, checked to be one of its dims."""
        dims = dims_of(of)
        dim = str(self.values[name]) if name in self.values else dims[-1]
        if dim not in dims:
            message = f"'{dim}' is no dim of {show(dims)}"
            fail("bad-dim", message, self.spans.get(name, self.call.span))
        return dim


def dims_of(value: Value) -> tuple[str, ...]:
    """The names of a tensor's dims."""
    return tensor_type(value).dims


def matmul(
    emitter: Emitter,
    left: Value,
    right: Value,
    heads: Sequence[HeadPair],
    span: Span,
    right_text: str,
) -> Value:
    """``left @ right``; ``right_text`` is how the right side is called in a message."""
    found = contraction(dims_of(left), dims_of(right), heads)
    if found is None:
        _no_contraction(dims_of(left), dims_of(right), heads, span, right_text)
    _check_heads(found, dims_of(left), dims_of(right), heads, span)
    op = graph.Matmul(operands=[left, right], contract=found.contract, group=found.group)
    return emitter.emit(op, span)


def elementwise(emitter: Emitter, operator: str, left: Value, right: Value, span: Span) -> Value:
    """``+``, ``-`` or ``*`` of two tensors; the smaller is repeated over the dims it lacks."""
    if operator == "/":
        fail("bad-operand", "a tensor can be divided by a constant only", span)
    if operator == "-":
        right = scale(emitter, right, -1.0, span)
    small, large = sorted((left, right), key=lambda v: len(dims_of(v)))
    if len(dims_of(small)) == len(dims_of(large)):
        small, large = right, left
    if not spreads_over(dims_of(small), dims_of(large)):
        _dims_differ(operator, dims_of(left), dims_of(right), span)
    op_class = graph.Mul if operator == "*" else graph.Add
    return emitter.emit(op_class(operands=[large, small]), span)


def scale(emitter: Emitter, value: Value, factor: float, span: Span) -> Value:
    """``value * factor``."""
    return emitter.emit(graph.Scale(operands=[value], factor=factor), span)


def _no_contraction(
    left: tuple[str, ...],
    right: tuple[str, ...],
    heads: Sequence[HeadPair],
    span: Span,
    right_text: str,
) -> NoReturn:
    notes = ["'@' contracts the dims that end its left side and begin its right side"]
    help_line = None
    swap = helpful_transpose(left, right, heads)
    pair = outer_pair(right)
    meeting = rows_meet(left, right)
    if not meeting and swap is None and pair:
        meeting = rows_meet(left, transposed(right, *pair))
    if meeting:
        notes.append(f"both sides have '{meeting}', and a result cannot have '{meeting}' twice")
        help_line = f"give one side a dim of another name in place of '{meeting}'"
        if meeting == ROWS:
            help_line = f"the value of append(cache.k, ...) has {CAPACITY} in place of {ROWS}"
    elif swap is not None:
        help_line = f"transpose the right side: transpose({', '.join([right_text, *swap])})"
    message = f"nothing to contract in {show(left)} @ {show(right)}"
    fail("no-contraction", message, span, notes, help_line)


def _check_heads(
    found: Contraction,
    left: tuple[str, ...],
    right: tuple[str, ...],
    heads: Sequence[HeadPair],
    span: Span,
) -> None:
    """Refuse the product of key/value heads with query heads in this order."""
    for many, few in heads:
        open_dims = many not in found.contract and few not in found.contract
        if open_dims and few in left and many in right and many not in left:
            fail(
                "bad-heads",
                f"heads {many} share {few}: the side with {many} stands to the left of '@'",
                span,
                [f"this is {show(left)} @ {show(right)}"],
            )


def _dims_differ(operator: str, left: tuple[str, ...], right: tuple[str, ...], span: Span) -> None:
    same = sorted(left) == sorted(right)
    fail(
        "dims-mismatch",
        f"{show(left)} {operator} {show(right)}: the dims do not agree",
        span,
        ["one side's dims must be the other's, in the same order, with some left out"],
        "transpose one side" if same else None,
    )


def _embed(emitter: Emitter, applied: Applied) -> Value:
    table = applied.tensor("table")
    if len(dims_of(table)) != 2:
        message = f"the table has dims {show(dims_of(table))}; embed needs two, [V, E]"
        fail("dims-mismatch", message, applied.spans["table"])
    tokens = emitter.token_ids(applied.tensor("tokens"), applied.spans["tokens"])
    width = dims_of(table)[1]
    if width in dims_of(tokens):
        message = f"tokens {show(dims_of(tokens))} have the table's dim '{width}' already"
        fail("dims-mismatch", message, applied.spans["tokens"])
    if "positions" not in applied.values:
        op = graph.Embed(operands=[tokens, table], dim=dims_of(table)[0])
        return emitter.emit(op, applied.call.span)
    learned = applied.tensor("positions")
    _check_positions(emitter, applied, dims_of(learned), dims_of(tokens), width)
    op = graph.Embed(operands=[tokens, table, learned], dim=dims_of(table)[0], rows=ROWS)
    return emitter.emit(op, applied.call.span)


def _check_positions(
    emitter: Emitter,
    applied: Applied,
    learned: tuple[str, ...],
    tokens: tuple[str, ...],
    width: str,
) -> None:
    """Refuse learned positions that are no rows like those of the table, or too few."""
    span = applied.spans["positions"]
    if len(learned) != 2 or learned[1] != width:
        message = f"the positions have dims {show(learned)}; two are needed, the last one {width}"
        fail("dims-mismatch", message, span)
    if tokens[-1:] != (ROWS,):
        message = f"positions are those of rows '{ROWS}', the last dim of tokens {show(tokens)}"
        fail("bad-dim", message, applied.spans["tokens"])
    count = emitter.extents[learned[0]]
    capacity = emitter.extents.get(CAPACITY, emitter.extents[ROWS])
    if capacity > count:
        fail(
            "bad-extent",
            f"sequences of up to {capacity} tokens, but there are {count} learned positions",
            span,
            help=f"compile for shorter sequences: --seq {count}",
        )


def _rms_norm(emitter: Emitter, applied: Applied) -> Value:
    value, gain = applied.tensor("x"), applied.tensor("gain")
    *also, dim = _norm_dims("rms_norm", applied, value, gain, len(dims_of(value)))
    op = graph.RmsNorm(operands=[value, gain], dim=dim, also=(*also,), eps=applied.number("eps"))
    return emitter.emit(op, applied.call.span)


def _norm_dims(
    name: str, applied: Applied, value: Value, gain: Value, most: int
) -> tuple[str, ...]:
    """The dims that the norm called ``name`` is over, which are those of its gain, at most so many
    as ``most``."""
    dims = dims_of(gain)
    if not 1 <= len(dims) <= most or not {*dims} <= {*dims_of(value)}:
        wanted = "one dim" if most == 1 else "the dims"
        fail(
            "dims-mismatch",
            f"the gain {show(dims)} does not fit {show(dims_of(value))}",
            applied.spans["gain"],
            help=f"{name} needs a gain with {wanted} of what it normalises",
        )
    if applied.number("eps") < 0:
        fail("bad-option", "eps cannot be negative", applied.spans["eps"])
    return dims


def _layer_norm(emitter: Emitter, applied: Applied) -> Value:
    """The norm of what is relative to its mean, and the bias."""
    value, gain = applied.tensor("x"), applied.tensor("gain")
    bias = applied.tensor("bias") if "bias" in applied.values else None
    if bias is not None and dims_of(bias) != dims_of(gain):
        message = f"the bias {show(dims_of(bias))} has other dims than the gain"
        fail("dims-mismatch", message, applied.spans["bias"])
    (dim,) = _norm_dims("layer_norm", applied, value, gain, most=1)
    centred = emitter.emit(graph.Centre(operands=[value], dim=dim), applied.call.span)
    eps = applied.number("eps")
    normed = emitter.emit(
        graph.RmsNorm(operands=[centred, gain], dim=dim, eps=eps), applied.call.span
    )
    if bias is None:
        return normed
    return emitter.emit(graph.Add(operands=[normed, bias]), applied.call.span)


def _rope(emitter: Emitter, applied: Applied) -> Value:
    value = applied.tensor("x")
    dim = applied.dim("dim", value)
    _need_rows("rope", value, dim, applied.call.span)
    if emitter.extents[dim] % 2:
        message = f"rope turns pairs, but '{dim}' has {emitter.extents[dim]} elements"
        fail("odd-rope", message, applied.call.span, help="the rotated dim must be even")
    theta, scaling = _positive(applied, "theta"), str(applied.constant("scaling"))
    if scaling == "yarn" and theta <= 1:
        message = f"theta of rope must be above 1 with scaling yarn, it is {theta:g}"
        fail("bad-option", message, applied.spans.get("theta", applied.call.span))
    rotated = _rotated(applied, dim, emitter.extents[dim])
    factors: tuple[float, ...] = ()
    if scaling in ("dynamic", "longrope"):
        original = int(_positive(applied, "original_max_position"))
        capacity = emitter.extents.get(CAPACITY, emitter.extents[ROWS])
        if scaling == "longrope":
            which = "long_factors" if capacity > original else "short_factors"
            factors = _factors(applied, which, (rotated or emitter.extents[dim]) // 2)
        else:
            _within_context(applied, capacity, original)
            scaling = "none"
    op = graph.Rope(
        operands=[value],
        dim=dim,
        rows=ROWS,
        rotated=rotated,
        style=str(applied.constant("style")),
        scaling=scaling,
        theta=theta,
        factor=_positive(applied, "factor"),
        low_freq_factor=_positive(applied, "low_freq_factor"),
        high_freq_factor=_positive(applied, "high_freq_factor"),
        original_max_position=int(_positive(applied, "original_max_position")),
        truncate=_truth(applied, "truncate"),
        factors=factors,
        but=_chosen(applied, "but"),
        local_theta=_positive(applied, "local_theta"),
        skip=_chosen(applied, "skip"),
    )
    return emitter.emit(op, applied.call.span)


def _chosen(applied: Applied, name: str) -> int:
    """A whole number above 0, or the 0 that stands for none."""
    return 0 if applied.number(name) == 0 else _whole(applied, name)


def _rotated(applied: Applied, dim: str, extent: int) -> int:
    """How many lanes of ``dim`` turn, where that is not all of them, and 0 where it is."""
    rotated = _chosen(applied, "rotated")
    if rotated % 2 or rotated > extent:
        message = f"rope turns pairs of the {extent} elements of '{dim}', not {rotated} of them"
        fail("odd-rope", message, applied.spans["rotated"], help="an even number can turn")
    return rotated if rotated < extent else 0


def _factors(applied: Applied, name: str, pairs: int) -> tuple[float, ...]:
    """The numbers of the text ``name``, one for each of ``pairs``."""
    span = applied.spans.get(name, applied.call.span)
    text = applied.constant(name) if name in applied.values else ""
    if not isinstance(text, str):
        fail("bad-option", f"{name} of rope is a text of numbers, not {kind(text)}", span)
    try:
        found = tuple(float(word) for word in text.split())
    except ValueError:
        found = ()
    if len(found) != pairs or not all(0 < factor < math.inf for factor in found):
        message = f"{name} of rope has not a positive number for each of the {pairs} pairs"
        help_line = 'write numbers with spaces between them: "1.0 1.05 1.1"'
        fail("bad-option", message, span, help=help_line)
    return found


def _within_context(applied: Applied, capacity: int, original: int) -> None:
    """Refuse sequences beyond the context that a model with dynamic scaling was trained on."""
    if capacity > original:
        fail(
            "rope-length",
            f"sequences of up to {capacity} tokens, but dynamic scaling is computed up to "
            f"{original}",
            applied.call.span,
            ["beyond that its frequencies change with every token, which no target computes"],
            f"compile for shorter sequences: --seq {original}",
        )


def _positive(applied: Applied, name: str) -> float:
    number = applied.number(name)
    if number <= 0:
        fail("bad-option", f"{name} of rope must be positive", applied.spans.get(name))
    return number


def _softmax(emitter: Emitter, applied: Applied) -> Value:
    value = applied.tensor("x")
    dim, mask = applied.dim("dim", value), str(applied.constant("mask"))
    if mask == "causal":
        _need_rows("a causal mask", value, dim, applied.call.span)
    rows = ROWS if mask == "causal" else ""
    window, every = _chosen(applied, "window"), _whole(applied, "every")
    but, after = _chosen(applied, "but"), _chosen(applied, "after")
    chosen = {"every": every > 1, "but": but > 0, "after": after > 0}
    if sum(chosen.values()) > 1:
        message = "layers with a window are chosen by one of 'every', 'but' and 'after'"
        fail("bad-option", message, applied.spans[[*filter(chosen.get, chosen)][-1]])
    if window and mask != "causal":
        message = "a window ends at a row's own position: it needs mask = causal"
        fail("bad-option", message, applied.spans["window"])
    if window >= emitter.extents[dim]:  # it hides nothing that there is
        window = 0
    sinks = [applied.tensor("sink")] if "sink" in applied.values else []
    for sink in sinks:
        if dim in dims_of(sink) or not {*dims_of(sink)} <= {*dims_of(value)} - {ROWS}:
            message = f"the sink {show(dims_of(sink))} does not fit {show(dims_of(value))}"
            help_line = f"a sink has dims of the scores other than '{dim}' and the rows"
            fail("dims-mismatch", message, applied.spans["sink"], help=help_line)
    op = graph.Softmax(
        operands=[value, *sinks],
        dim=dim,
        mask=mask,
        rows=rows,
        window=window,
        every=every,
        but=but,
        after=after,
    )
    return emitter.emit(op, applied.call.span)


def _top_k(emitter: Emitter, applied: Applied) -> Value:
    scores, normalise = applied.tensor("scores"), _truth(applied, "normalise")
    dim, span = applied.dim("dim", scores), applied.call.span
    names = ("count", "groups", "kept_groups", "group_top")
    count, groups, kept_groups, group_top = (_whole(applied, name) for name in names)
    extent = emitter.extents[dim]
    mistake = choice_mistake(extent, count, groups, kept_groups, group_top)
    if mistake:
        fail("bad-option", mistake, applied.spans["count"])
    bias = [applied.tensor("bias")] if "bias" in applied.values else []
    if bias and dims_of(bias[0]) != (dim,):
        message = f"the bias {show(dims_of(bias[0]))} does not fit: top_k chooses of [{dim}]"
        fail("dims-mismatch", message, applied.spans["bias"])
    op = graph.TopK(
        [scores, *bias],
        dim=dim,
        count=count,
        groups=groups,
        kept_groups=kept_groups,
        group_top=group_top,
        normalise=normalise,
    )
    return emitter.emit(op, span)


def _truth(applied: Applied, name: str) -> bool:
    given = applied.constant(name)
    if not isinstance(given, bool):
        message = f"{name} of {applied.call.name} is true or false, not {kind(given)}"
        fail("bad-option", message, applied.spans[name])
    return given


def _whole(applied: Applied, name: str) -> int:
    number = applied.number(name)
    if number < 1 or number != int(number):
        message = f"{name} of {applied.call.name} must be a positive whole number"
        fail("bad-option", message, applied.spans.get(name, applied.call.span))
    return int(number)


def _of_elements(emitter: Emitter, applied: Applied) -> Value:
    """A function of elements, with its options."""
    cls = functions.FUNCTIONS[applied.call.name]
    given: dict[str, Constant] = {
        option.name: str(applied.constant(option.name))
        if option.rule.among
        else applied.number(option.name)
        for option in functions.attributes_of(cls)
    }
    op = cls([applied.tensor("x")], **given)  # type: ignore[arg-type]
    return emitter.emit(op, applied.call.span)


def _transpose(emitter: Emitter, applied: Applied) -> Value:
    value = applied.tensor("x")
    given = [name for name in ("first", "second") if name in applied.values]
    if len(given) == 1:
        fail("wrong-arguments", "transpose takes two dims or none", applied.spans[given[0]])
    pair = outer_pair(dims_of(value))
    if given:
        pair = (applied.dim("first", value), applied.dim("second", value))
    if pair is not None and pair[0] == pair[1]:
        fail("bad-dim", f"'{pair[0]}' cannot be exchanged with itself", applied.spans["second"])
    if pair is None:
        message = f"{show(dims_of(value))} has no two dims to exchange"
        fail("bad-dim", message, applied.call.span)
    op = graph.Transpose(operands=[value], dims=transposed(dims_of(value), *pair))
    return emitter.emit(op, applied.call.span)


def _need_rows(what: str, value: Value, dim: str, span: Span) -> None:
    """Positions are those of the rows L, which must be a dim other than ``dim``."""
    if ROWS not in dims_of(value) or dim == ROWS:
        message = f"{what} needs rows '{ROWS}' besides '{dim}' in {show(dims_of(value))}"
        fail("bad-dim", message, span)


def append(emitter: Emitter, name: str, value: Value, applied: Applied) -> Value:
    """``append(cache.name, value)``: the cache with the rows of ``value`` written to it."""
    dims = dims_of(value)
    if ROWS not in dims or CAPACITY in dims:
        message = f"{show(dims)} has no rows '{ROWS}' to append"
        if CAPACITY in dims:
            message = f"{show(dims)} has the cache's dim '{CAPACITY}' already"
        fail("not-a-cache", message, applied.spans["value"])
    if name in emitter.region.caches:
        fail(
            "cache-reuse",
            f"'{name.replace('_', '.', 1)}' is appended to twice",
            applied.call.span,
            help="a block called twice keeps its caches apart with: block(..., cache = second)",
        )
    cache = emitter.cache(name, tuple(CAPACITY if d == ROWS else d for d in dims))
    op = graph.Append(operands=[cache.inner, value], dim=CAPACITY, rows=ROWS)
    cache.new = emitter.emit(op, applied.call.span)
    return cache.new


_OTHERS: dict[str, Callable[[Emitter, Applied], Value]] = {
    "embed": _embed,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "rope": _rope,
    "softmax": _softmax,
    "top_k": _top_k,
    "transpose": _transpose,
}


def applied_to(emitter: Emitter, applied: Applied) -> Value:
    """The result of a built-in function, or of a function of elements."""
    return _OTHERS.get(applied.call.name, _of_elements)(emitter, applied)
