"""Statements on neighbouring windows, joined or not: the interpreter computes the same."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshc
from meshc.ir.ops.tile import Compute
from meshc.passes.tile.expand.neighbours import join_neighbours

HEADER = """module @m level(tile) {
  dims Y = 2, X = 2, I = 24
  mesh y = 2, x = 2
  buffer %a : f32[24] {role = in}
  buffer %b : f32[24] {role = in}
  buffer %c : f32[24] {role = out}
  port @a in f32[Y, X, I] : %a {lanes = [i], element = [y, x, i]}
  port @b in f32[Y, X, I] : %b {lanes = [i], element = [y, x, i]}
  port @c out f32[Y, X, I] : %c {lanes = [i], element = [y, x, i]}
  program @main {
    tile.copy %c, %a
"""


def module_of(lines):
    return meshc.parse(HEADER + "".join(f"    {line}\n" for line in lines) + "  }\n}\n")


def result(module):
    inputs = np.random.default_rng(3).standard_normal((2, 2, 2, 24))
    (found,) = meshc.run(module, {"a": inputs[0], "b": inputs[1]})
    return found


def joined(lines):
    module = module_of(lines)
    before = result(module)
    join_neighbours(module.program.body)
    np.testing.assert_array_equal(result(module), before)
    return sum(isinstance(op, Compute) for op in module.walk()) - 1


WINDOWS = st.tuples(st.sampled_from("abc"), st.integers(0, 4), st.integers(0, 4))


def statement(kernel, out, left, right, count, guard):
    """One statement on windows of ``4 count`` lanes that begin at multiples of four."""

    def window(which, at, extent):
        return f"%{which}[{at} +: {extent}]"

    def shaped(which, at):
        return f"{window(which, 4 * at, 4 * count)} as [{count}, 4]"

    views = [shaped("c", out), shaped(*left)]
    if kernel == "scale":
        text, params = ", ".join(views), "factor = 0.5"
    else:
        views.append(shaped(right[0], right[1]) if right[2] else window(right[0], right[1], 4))
        text, params = ", ".join(views), ""
    inner = ", ".join(part for part in (params, guard) if part)
    return f"tile.{kernel} {text} {{{inner}}}" if inner else f"tile.{kernel} {text}"


@settings(max_examples=120, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["mul", "add", "scale"]),
            st.integers(0, 4),
            st.tuples(st.sampled_from("abc"), st.integers(0, 4)),
            st.tuples(st.sampled_from("abc"), st.integers(0, 4), st.booleans()),
            st.integers(1, 2),
            st.sampled_from(["", 'when = "x = 0"']),
        ),
        min_size=1,
        max_size=4,
    ),
    st.booleans(),
)
def test_what_is_joined_computes_the_same(draws, chained):
    """Random windows of buffers, one behind the other where ``chained``."""
    lines = []
    for number, (kernel, out, left, right, count, guard) in enumerate(draws):
        if chained:
            kernel, _, _, right, _, guard = draws[0]
            out, left, count = number, (draws[0][2][0], number), 1
            right = (right[0], right[1] % 3 + (number if right[2] else 0), right[2])
        lines.append(statement(kernel, out, left, right, count, guard))
    joined(lines)


@pytest.mark.parametrize(
    ("lines", "count"),
    [
        # scaled alike by one element beside them, as queries, keys and values are
        (
            [
                "tile.mul %c[0 +: 12] as [3, 4, 1], %c[0 +: 12] as [3, 4, 1], %c[23 +: 1]",
                "tile.mul %c[12 +: 4] as [1, 4, 1], %c[12 +: 4] as [1, 4, 1], %c[23 +: 1]",
                "tile.mul %c[16 +: 4] as [1, 4, 1], %c[16 +: 4] as [1, 4, 1], %c[23 +: 1]",
            ],
            1,
        ),
        # the second reads what the first has written
        (
            [
                "tile.add %c[4 +: 4], %c[0 +: 4], %b[0 +: 4]",
                "tile.add %c[8 +: 4], %c[4 +: 4], %b[4 +: 4]",
            ],
            2,
        ),
        # the first writes the factor of the second
        (
            [
                "tile.mul %c[0 +: 4] as [4, 1], %a[0 +: 4] as [4, 1], %c[5 +: 1]",
                "tile.mul %c[4 +: 4] as [4, 1], %a[4 +: 4] as [4, 1], %c[5 +: 1]",
            ],
            2,
        ),
        # a factor as long as what it multiplies
        (
            [
                "tile.mul %c[0 +: 4], %a[0 +: 4], %b[0 +: 4]",
                "tile.mul %c[4 +: 4], %a[4 +: 4], %b[0 +: 4]",
            ],
            2,
        ),
        # other parameters, a gap, another guard
        (
            [
                "tile.scale %c[0 +: 4], %a[0 +: 4] {factor = 2.0}",
                "tile.scale %c[4 +: 4], %a[4 +: 4] {factor = 3.0}",
            ],
            2,
        ),
        (
            [
                "tile.scale %c[0 +: 4], %a[0 +: 4] {factor = 2.0}",
                "tile.scale %c[5 +: 4], %a[5 +: 4] {factor = 2.0}",
            ],
            2,
        ),
        (
            [
                "tile.scale %c[0 +: 4], %a[0 +: 4] {factor = 2.0}",
                'tile.scale %c[4 +: 4], %a[4 +: 4] {factor = 2.0, when = "x = 0"}',
            ],
            2,
        ),
    ],
)
def test_statements_are_joined_where_nothing_changes(lines, count):
    assert joined(lines) == count
