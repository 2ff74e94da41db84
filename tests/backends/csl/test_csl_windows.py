"""Views as DSDs: the elements that an emitted ``tensor_access`` walks through are the view's."""

import itertools
import re

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from meshc.analysis.csl.strided_windows import window
from meshc.backends.csl.spelling.expressions import as_named
from meshc.backends.csl.spelling.memory_dsds import Descriptors
from meshc.backends.csl.spelling.names import Names
from meshc.backends.csl.tree.printed import spelled
from meshc.ir.affine import Expr
from meshc.ir.types import BufferType, DType
from meshc.ir.values import Value
from meshc.ir.views import Point, Range, View, Whole
from meshc.support.diagnostics import MeshcError

ACCESS = re.compile(r"\|([a-z, ]+)\|\{([0-9, ]+)\} -> b\[(.*)\]")
OFFSET = re.compile(r"@increment_dsd_offset\((\w+), (.*), f32\)\Z")


def walked(text, constants, core):
    """Places in the buffer, in order, by reading the text of a DSD."""
    offset = 0
    moved = OFFSET.match(text)
    if moved:
        text, offset = moved[1], eval(moved[2], {}, core)
    variables, extents, index = ACCESS.search(constants[text]).groups()
    ranges = [range(int(extent)) for extent in extents.split(",")]
    names = variables.split(", ")
    return [
        offset + eval(index, {}, dict(zip(names, place, strict=True)))
        for place in itertools.product(*ranges)
    ]


@st.composite
def views(draw):
    """A view of a buffer and the same window of an array, for a core with x = 1."""
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)))
    array = np.arange(np.prod(shape)).reshape(shape)
    indices, slices = [], []
    for extent in shape[: draw(st.integers(0, len(shape)))]:
        kind = draw(st.sampled_from(["point", "range", "whole"]))
        by_core = draw(st.booleans()) and extent > 1
        least = 1 if by_core else 0
        first = draw(st.integers(least, extent - 1))
        start = Expr.var("x") + (first - 1) if by_core else Expr.const(first)
        if kind == "point":
            indices.append(Point(start))
            slices.append(first)
        elif kind == "range":
            step = draw(st.integers(1, 3))
            count = draw(st.integers(1, (extent - 1 - first) // step + 1))
            indices.append(Range(start, Expr.const(count), step))
            slices.append(slice(first, first + (count - 1) * step + 1, step))
        else:
            indices.append(Whole())
            slices.append(slice(None))
    found = array[tuple(slices)]
    reshape = ()
    if found.ndim and draw(st.booleans()):
        reshape = draw(st.sampled_from(factors(found.size)))
        found = found.reshape(reshape)
    order = ()
    if found.ndim > 1 and draw(st.booleans()):
        order = tuple(draw(st.permutations(range(found.ndim))))
        found = found.transpose(order)
    buffer = Value("b", BufferType(DType.F32, shape))
    return View(buffer, tuple(indices), tuple(map(Expr.const, reshape)), order), found.ravel()


def factors(size):
    """Shapes of up to three dims with ``size`` elements."""
    pairs = [(n, size // n) for n in range(1, size + 1) if size % n == 0]
    triples = [(a, *rest) for a, b in pairs for rest in pairs if b == rest[0] * rest[1]]
    return [(size,), *pairs, *triples]


@settings(max_examples=300, deadline=None)
@given(views())
def test_descriptors_walk_through_the_view(case):
    view, expected = case
    descriptors = Descriptors(Names(), as_named(), {})
    try:
        text = spelled(descriptors.memory(window(view)))
    except MeshcError as error:
        assert [d.code for d in error.diagnostics] == ["csl-view"]
        assert uneven(view)
        return
    constants = {one.name: spelled(one.value) for one in descriptors.constants}
    strides = {name: int(text) for name, text in constants.items() if text.isdigit()}
    assert walked(text, constants, {**strides, "x": 1}) == expected.tolist()


def uneven(view):
    """Whether a reshape joins dims that do not lie one in the other."""
    plain = View(view.buffer, view.indices)
    return bool(view.reshape) and len(window(plain).merged().dims) > 1
