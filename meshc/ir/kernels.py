"""The catalogue of microkernels: what each takes and computes, once for everyone.

What a kernel *means* is written independently in the interpreter, the emitted Python and CSL
(``docs/tile-level.md`` shows who knows which). Operands are views of a core's buffers; how they
are declared is told in :mod:`meshc.ir.declared`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from meshc.ir.affine import Expr
from meshc.ir.choices import MOST_CHOICES, choice_mistake
from meshc.ir.declared import Attribute, Operand, attributes, operands
from meshc.ir.functions import DOCS, FUNCTIONS, attributes_of

Extents = Sequence[tuple[Expr, ...]]
Params = Mapping[str, object]


@dataclass(frozen=True)
class Kernel:
    """Declaration of a microkernel.

    ``doc`` says what it computes. Where the attribute ``variant[0]`` is true, the operands are
    those of ``variant[1]``. ``extra`` says what else is wrong with the shapes of a call that fits
    otherwise.
    """

    name: str
    operands: tuple[Operand, ...]
    doc: str
    attributes: tuple[Attribute, ...] = ()
    variant: tuple[str, tuple[Operand, ...]] | None = None
    extra: Callable[[Extents, Params], str | None] | None = field(default=None, compare=False)

    def operands_of(self, params: Params) -> tuple[Operand, ...]:
        """The operands of a call with ``params``."""
        if self.variant is not None and params.get(self.variant[0]):
            return self.variant[1]
        return self.operands

    def form(self, params: Params) -> str:
        """What a call with ``params`` takes, as declared."""
        takes = f"tile.{self.name} {', '.join(map(str, self.operands_of(params)))}"
        given = ", ".join(map(str, self.attributes))
        return f"{takes} {{{given}}}" if given else takes

    def __str__(self) -> str:
        return self.form({})


def _kernel(
    name: str,
    takes: str,
    doc: str,
    given: str = "",
    variant: tuple[str, str] | None = None,
    extra: Callable[[Extents, Params], str | None] | None = None,
) -> Kernel:
    other = (variant[0], operands(variant[1])) if variant else None
    return Kernel(name, operands(takes), doc, attributes(given), other, extra)


def _softmaxes(shapes: Extents, params: Params) -> str | None:
    """Each softmax has some values, a sum and a maximum."""
    last, count = shapes[0][-1], params["count"]
    assert isinstance(count, int)
    if last.is_const and last.constant >= 3 * count and last.constant % count == 0:
        return None
    return f"{last} lanes are not the values, sums and maxima of {count} softmaxes"


def _groups(shapes: Extents, params: Params) -> str | None:
    """Each group of rows has a scale."""
    codes, scales, group = shapes[1], shapes[2], params["group"]
    assert isinstance(group, int)
    if codes[-2] == scales[-2] * group:
        return None
    return f"{codes[-2]} rows are not {scales[-2]} groups of {group}"


def _countable(shapes: Extents, params: Params) -> str | None:
    """Indices are exact in f32."""
    for name in ("block", "limit"):
        if int(str(params[name])) > MOST_CHOICES:
            return f"{name} is {params[name]}; f32 counts to {MOST_CHOICES}"
    return None


def _choice(shapes: Extents, params: Params) -> str | None:
    """As many are chosen as there are, of groups of equal size."""
    last = shapes[0][-1]
    names = ("count", "groups", "kept_groups", "group_top")
    count, groups, kept, top = (int(str(params[name])) for name in names)
    if not last.is_const:
        return f"chooses among {last}, of which the run says how many they are"
    return choice_mistake(last.constant, count, groups, kept, top)


_ONE = "out b[*dims], a[*dims]"
_TRAILING = "out c[*rows, *lanes], a[*rows, *lanes], b[*rows]"
_LEADING = "out c[*rows, *lanes], a[*rows, *lanes], b[*lanes]"
_BY_ROWS = "out b[*rows], a[*rows, n, *lanes]"


def kernel_of_function(name: str) -> Kernel:
    """The microkernel of a function of elements, with the fields of its class as attributes."""
    return Kernel(name, operands(_ONE), DOCS[name], attributes_of(FUNCTIONS[name]))


_CATALOGUE = (
    _kernel("fill", "out a[*dims]", "every element becomes `value`", "value: float"),
    _kernel("copy", _ONE, "out = a"),
    _kernel("add", _LEADING, "out = a + b"),
    _kernel("mul", _LEADING, "out = a * b"),
    _kernel("div", _TRAILING, "out = a / b, b repeated over trailing dims"),
    _kernel("scale", _ONE, "out = a * factor", "factor: float"),
    *map(kernel_of_function, FUNCTIONS),
    _kernel(
        "gemm",
        "out c[*batch|1, m, n], a[*batch, m, k], b[*batch|1, k, n]",
        "out[.., m, n] = a[.., m, k] b[.., k, n], added to out if `accumulate`; "
        "b is [.., n, k] if `transposed`; products of a leading dim that out has once are added up",
        "accumulate: bool, transposed: bool",
        ("transposed", "out c[*batch|1, m, n], a[*batch, m, k], b[*batch|1, n, k]"),
    ),
    _kernel(
        "dequantise",
        "out b[*dims, k, n], codes[*dims, k, n]: code, scales[*dims, groups, n]",
        "out[.., k, n] = (codes[.., k, n] - zero) * scales[.., k / group, n], and "
        "+ least[.., k / group, n] if `lifted`: the numbers that the codes of quantised weights "
        "stand for, of which `group` rows have a scale",
        "group: int >= 1, zero: int >= 0, lifted: bool",
        (
            "lifted",
            "out b[*dims, k, n], codes[*dims, k, n]: code, scales[*dims, groups, n], "
            "least[*dims, groups, n]",
        ),
        extra=_groups,
    ),
    _kernel(
        "e4m3_rows",
        "out b[*rows, lanes], a[*rows, lanes]",
        "out[.., :] = a[.., :] rounded to floats e4m3 times the scale of the row, as caches that "
        "are coded keep it",
    ),
    _kernel("square_sum", _BY_ROWS, "out[..] = sum of a*a over trailing dims"),
    _kernel(
        "rms_scale",
        "out b[*rows, *lanes], a[*rows, *lanes], squares[*rows], gain[*lanes]",
        "out[.., e] = a[.., e] / sqrt(s[..] / count + eps) * gain[e]",
        "count: int >= 1, eps: float >= 0",
    ),
    _kernel(
        "inverse_rms",
        "out b[*rows], squares[*rows]",
        "out = 1 / sqrt(s / count + eps)",
        "count: int >= 1, eps: float >= 0",
    ),
    _kernel(
        "rope",
        "out b[*heads, rows, 2*pairs], a[*heads, rows, 2*pairs], frequency[pairs]",
        "out[.., r, 2i:2i+2] = a[.., r, 2i:2i+2] turned by (position + step*r) * freq[i]",
        "position: affine, step: int",
    ),
    _kernel("row_max", _BY_ROWS, "out[..] = largest of a over trailing dims"),
    _kernel(
        "first_at",
        "out b[*rows]: f32, a[*rows, n], top[*rows]",
        "out[..] = -(first + j) for the first j with a[.., j] = top[..] and first + j < limit, "
        "where first = rank*block; -inf if there is none",
        "rank: affine, block: int >= 0, limit: int >= 1",
        extra=_countable,
    ),
    _kernel(
        "likelihood",
        "out b[*rows, n], a[*rows, n], top[*rows], settings[*rows, 4]: f32",
        "out[.., i] = 2^((a[.., i] - top[..]) * settings[.., 0]), as graph.draw has it",
    ),
    _kernel(
        "draw",
        "out index[*rows]: f32, first[*rows], scores[*rows, n], weights[*rows, n], "
        "settings[*rows, 4]: f32, stream[*rows, 4]: i32",
        "out[..] = first[..] where that is infinite or settings[.., 0] is 0, else an index that is "
        "drawn by weights of scores, settings and the words of stream, as graph.draw has it",
    ),
    _kernel("row_sum", _BY_ROWS, "out[..] = sum of a over trailing dims"),
    _kernel("exp_sub", _TRAILING, "out = exp(a - m), m repeated over trailing dims"),
    _kernel("larger", _LEADING, "out = the larger of a and b"),
    _kernel("at_least", _ONE, "out = the larger of a and `value`", "value: float"),
    _kernel(
        "top_k",
        "out gates[*rows, n], scores[*rows, n]",
        "gates[.., i] = scores[.., i] for the `count` largest of scores (+ bias[i] if `biased`), "
        "of equal ones the first, else 0; of `groups` runs only from the `kept_groups` with the "
        "largest sums of their best `group_top`; divided by their sum + 1e-20 if `normalise`",
        "count: int >= 1, groups: int >= 1, kept_groups: int >= 1, group_top: int >= 1, "
        "normalise: bool, biased: bool",
        ("biased", "out gates[*rows, n], scores[*rows, n], bias[n]"),
        extra=_choice,
    ),
    _kernel(
        "dispatch",
        "out sent[*rows, experts, lanes], a[*rows, lanes], gates[*rows, experts]",
        "sent[.., x, :] = a[.., :] where gates[.., x] is not 0, else 0",
    ),
    _kernel(
        "expert_gemm",
        "out c[*rows, experts, n], a[*rows, experts, k], b[k, experts, n], gates[*rows, experts]",
        "out[.., x, n] = a[.., x, k] b[k, x, n] where gates[.., x] is not 0, else 0; nothing is "
        "computed for an expert without rows",
    ),
    _kernel(
        "combine",
        "out b[*rows, lanes], a[*rows, experts, lanes], gates[*rows, experts]",
        "out[.., :] = sum of gates[.., x] * a[.., x, :] over the x whose gate is not 0",
    ),
    _kernel(
        "merge_softmax",
        "inout a[*rows, lanes], b[*rows, lanes]",
        "a[.., :] and b[.., :] are the weighted values, then the sums, then the maxima of `count` "
        "softmaxes over elements of their own: a = those over the elements of both",
        "count: int >= 1",
        extra=_softmaxes,
    ),
    _kernel(
        "mask_causal",
        "inout scores[*heads, rows, keys]",
        "s[.., r, j] = -inf where the key's position key + key_step*j is beyond the query's "
        "query + query_step*r, or is not below limit",
        "query: affine, query_step: int, key: affine, key_step: int, limit: affine",
    ),
    _kernel(
        "mask_window",
        "inout scores[*heads, rows, keys]",
        "s[.., r, j] = -inf where the key's position key + key_step*j is `window` or more before "
        "the query's, query + query_step*r or limit - 1, whichever is less",
        "window: int >= 1, query: affine, query_step: int, key: affine, key_step: int, "
        "limit: affine",
    ),
    _kernel(
        "mask_slots",
        "inout scores[*rows, slots], state[2]: i32",
        "s[.., j] = -inf where slot j of a ring buffer with state (head, count) holds nothing",
    ),
    _kernel(
        "ring_set",
        "out state[2]: i32",
        "state = (0, count): a ring buffer whose first `count` slots are filled",
        "count: affine",
    ),
    _kernel(
        "ring_push",
        "inout ring[*heads, slots, lanes], entry[*heads, lanes], state[2]: i32",
        "the newest slot of ring a[.., cap, :] = b[.., :]",
    ),
    _kernel("ring_grow", "inout state[2]: i32", "state count + 1"),
    _kernel(
        "ring_oldest",
        "out entry[*heads, lanes], ring[*heads, slots, lanes], state[2]: i32",
        "b[.., :] = the oldest slot of ring a[.., cap, :]",
    ),
    _kernel(
        "ring_drop",
        "inout state[2]: i32",
        "state head + 1, count - 1 (`capacity` slots)",
        "capacity: int >= 1",
    ),
    _kernel(
        "rotate",
        "inout a[n, *rest]",
        "a[i] = a[(i + by) mod n] over the first dim",
        "by: affine",
    ),
    _kernel(
        "select_lanes",
        "out b[n, *rest], a[m, *rest]",
        "out[i] = a[i + shift] where that lane exists, else 0",
        "shift: affine",
    ),
)

KERNELS: dict[str, Kernel] = {kernel.name: kernel for kernel in _CATALOGUE}
