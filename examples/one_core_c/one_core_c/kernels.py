"""Microkernels as loops of C."""

from __future__ import annotations

from collections.abc import Mapping

from meshc.ir.ops.tile import Compute
from meshc.ir.values import Value
from meshc.ir.views import Point, Range, View
from meshc.support.diagnostics import fail
from one_core_c.expressions import number

Names = Mapping[Value, str]

ELEMENTS = {
    "copy": "{0}",
    "add": "{0} + {1}",
    "mul": "{0} * {1}",
    "scale": "{0} * {factor!r}",
    "silu": "{0} / (1 + exp(-{0}))",
}
"""Kernels of elements: the operands behind the one that is written, and attributes."""


def kernel(op: Compute, names: Names) -> list[str]:
    """The lines of a kernel. Raises ``one-core-c`` for one that has no C here."""
    out, *given = op.views()
    shape = [number(extent) for extent in out.shape()]
    lanes = [f"i{n}" for n in range(len(shape))]
    target = _element(out, names, lanes)
    if op.kernel == "fill":
        return [*_loops(lanes, shape), f"{target} = {op.params['value']!r};"]
    if op.kernel in ELEMENTS:
        read = [_element(view, names, lanes[len(lanes) - len(view.shape()) :]) for view in given]
        value = ELEMENTS[op.kernel].format(*read, **op.params)
        return [*_loops(lanes, shape), f"{target} = {value};"]
    if op.kernel == "square_sum":
        (a,) = given
        inner = [f"k{n}" for n in range(len(a.shape()) - len(shape))]
        extents = [number(extent) for extent in a.shape()[len(shape) :]]
        value = _element(a, names, [*lanes, *inner])
        return [*_loops(lanes, shape), "{", "double sum = 0;", *_loops(inner, extents),
                f"sum += (double){value} * {value};", f"{target} = sum;", "}"]  # fmt: skip
    if op.kernel == "rms_scale":
        a, squares, gain = given
        rows = len(squares.shape())
        value = _element(a, names, lanes)
        mean = f"{_element(squares, names, lanes[:rows])} / {op.params['count']}"
        factor = _element(gain, names, lanes[rows:])
        root = f"sqrt({mean} + {op.params['eps']!r})"
        return [*_loops(lanes, shape), f"{target} = {value} / {root} * {factor};"]
    if op.kernel == "gemm" and len(shape) == 2:
        a, b = given
        left = _element(a, names, ["i0", "k"])
        right = _element(b, names, ["i1", "k"] if op.params["transposed"] else ["k", "i1"])
        start = target if op.params["accumulate"] else "0"
        return [*_loops(lanes, shape), "{", f"double sum = {start};",
                *_loops(["k"], [number(a.shape()[1])]),
                f"sum += (double){left} * {right};", f"{target} = sum;", "}"]  # fmt: skip
    fail("one-core-c", f"no C is written for tile.{op.kernel} of {len(shape)} dims", op.span)


def _loops(lanes: list[str], extents: list[str]) -> list[str]:
    return [
        f"for (long {lane} = 0; {lane} < {extent}; {lane}++)"
        for lane, extent in zip(lanes, extents, strict=True)
    ]


def _element(view: View, names: Names, lanes: list[str]) -> str:
    """The element of a view at ``lanes``. Raises ``one-core-c`` for one that is reshaped."""
    if view.reshape or view.order:
        fail("one-core-c", f"no C is written for the view {view}", view.span)
    left, place = list(lanes), ""
    for position, extent in enumerate(view.buffer_type.shape):
        index = view.indices[position] if position < len(view.indices) else None
        if isinstance(index, Point):
            at = number(index.at)
        elif isinstance(index, Range):
            at = f"{number(index.start)} + {index.step} * {left.pop(0)}"
        else:
            at = left.pop(0)
        place = f"({place}) * {extent} + {at}" if place else at
    return f"{names[view.buffer]}[{place or '0'}]"
