"""The catalogue of microkernels: names, signatures and cost, once for everyone.

What a kernel *means* is written independently in the interpreter, the emitted Python, CSL and
CUDA. Operands are views; shapes below are those of the views on one core. ``..`` stands for equal
leading dims. A smaller operand is repeated over trailing dims it lacks, one of `add` and `mul` over
leading ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ParamKind = Literal["affine", "int", "float", "bool", "name"]


@dataclass(frozen=True)
class Kernel:
    """Signature of a microkernel.

    ``operands`` are ``out``, ``in`` or ``inout``; ``params`` name its attributes and kinds;
    ``flops_per_element`` counts the arithmetic for each element of the first operand (for ``gemm``
    per multiply-add of the contraction).
    """

    name: str
    operands: tuple[str, ...]
    doc: str
    params: tuple[tuple[str, ParamKind], ...] = ()
    flops_per_element: int = 1


_CATALOGUE = (
    Kernel("fill", ("out",), "every element becomes `value`", (("value", "float"),), 0),
    Kernel("copy", ("out", "in"), "out = a", (), 0),
    Kernel("add", ("out", "in", "in"), "out = a + b"),
    Kernel("mul", ("out", "in", "in"), "out = a * b"),
    Kernel("div", ("out", "in", "in"), "out = a / b, b repeated over trailing dims"),
    Kernel("scale", ("out", "in"), "out = a * factor", (("factor", "float"),)),
    Kernel("silu", ("out", "in"), "out = a / (1 + exp(-a))", (), 4),
    Kernel("gelu", ("out", "in"), "out = gelu(a), `form` erf or tanh", (("form", "name"),), 8),
    Kernel(
        "gemm",
        ("out", "in", "in"),
        "out[.., m, n] = a[.., m, k] b[.., k, n], added to out if `accumulate`; "
        "b is [.., n, k] if `transposed`",
        (("accumulate", "bool"), ("transposed", "bool")),
        2,
    ),
    Kernel("square_sum", ("out", "in"), "out[..] = sum of a*a over trailing dims", (), 2),
    Kernel(
        "rms_scale",
        ("out", "in", "in", "in"),
        "out[.., e] = a[.., e] / sqrt(s[..] / count + eps) * gain[e]",
        (("count", "int"), ("eps", "float")),
        3,
    ),
    Kernel(
        "inverse_rms",
        ("out", "in"),
        "out = 1 / sqrt(s / count + eps)",
        (("count", "int"), ("eps", "float")),
        3,
    ),
    Kernel(
        "rope",
        ("out", "in", "in"),
        "out[.., r, 2i:2i+2] = a[.., r, 2i:2i+2] turned by (position + step*r) * freq[i]",
        (("position", "affine"), ("step", "int")),
        6,
    ),
    Kernel("row_max", ("out", "in"), "out[..] = largest of a over trailing dims"),
    Kernel("row_sum", ("out", "in"), "out[..] = sum of a over trailing dims"),
    Kernel(
        "exp_sub", ("out", "in", "in"), "out = exp(a - m), m repeated over trailing dims", (), 3
    ),
    Kernel("at_least", ("out", "in"), "out = the larger of a and `value`", (("value", "float"),)),
    Kernel(
        "merge_softmax",
        ("inout", "in"),
        "a[.., :] and b[.., :] are the weighted values, then the sums, then the maxima of `count` "
        "softmaxes over elements of their own: a = those over the elements of both",
        (("count", "int"),),
        4,
    ),
    Kernel(
        "mask_causal",
        ("inout",),
        "s[.., r, j] = -inf where the key's position key + key_step*j is beyond the query's "
        "query + query_step*r, or is not below limit",
        (
            ("query", "affine"),
            ("query_step", "int"),
            ("key", "affine"),
            ("key_step", "int"),
            ("limit", "affine"),
        ),
    ),
    Kernel(
        "mask_slots",
        ("inout", "in"),
        "s[.., j] = -inf where slot j of a ring buffer with state (head, count) holds nothing",
    ),
    Kernel(
        "ring_set",
        ("out",),
        "state = (0, count): a ring buffer whose first `count` slots are filled",
        (("count", "affine"),),
        0,
    ),
    Kernel(
        "ring_push",
        ("inout", "in", "in"),
        "the newest slot of ring a[.., cap, :] = b[.., :]",
        (),
        0,
    ),
    Kernel("ring_grow", ("inout",), "state count + 1", (), 0),
    Kernel(
        "ring_oldest",
        ("out", "in", "in"),
        "b[.., :] = the oldest slot of ring a[.., cap, :]",
        (),
        0,
    ),
    Kernel(
        "ring_drop",
        ("inout",),
        "state head + 1, count - 1 (`capacity` slots)",
        (("capacity", "int"),),
        0,
    ),
    Kernel(
        "rotate", ("inout",), "a[i] = a[(i + by) mod n] over the first dim", (("by", "affine"),), 0
    ),
    Kernel(
        "select_lanes",
        ("out", "in"),
        "out[i] = a[i + shift] where that lane exists, else 0",
        (("shift", "affine"),),
        0,
    ),
)

KERNELS: dict[str, Kernel] = {kernel.name: kernel for kernel in _CATALOGUE}
