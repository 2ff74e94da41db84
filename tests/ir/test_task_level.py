"""Texts of the task level: what is malformed gets words at its place, what is right comes back."""

from __future__ import annotations

import pytest

import meshc
from meshc.support.diagnostics import MeshcError

GOOD = """module @m level(task) {
  scalars pos = 0..3
  buffer %x : f16[2, 8] {role = in}
  buffer %w : f16[8, 8] {role = weight}
  buffer %cache : f16[2, 4, 8] {role = state}
  buffer %mid : f32[2, 8]
  buffer %y : f32[2, 8] {role = out}
  program @decode {
    task.phase {name = first} {
      task.family {name = first, dims = [b], sizes = [2], each = [pos]} {
        %row = task.stream %x[b] : f16[8]
        %seen = task.stream %cache[b] {dim = 1, below = "pos"} : f16[4, 8]
        task.give %cache[b, pos], %row
        task.give %mid[b], %row
      }
    }
    task.phase {name = second} {
      task.family {name = second, dims = [g], sizes = [2]} {
        %all = task.need %mid : f32[2, 8]
        %tile = task.stream %w[4*g +: 4] : f16[4, 8]
        %sum = task.local : f32[2, 4]
        tile.gemm %sum, %all, %tile {accumulate = false, transposed = true}
        tile.for {var = n, count = 2} {
          tile.scale %sum[n], %sum[n] {factor = 2.0}
        }
        task.give %y[:, 4*g +: 4], %sum
      }
    }
  }
}
"""

WRONG = {
    "a mesh": ("  scalars", "  mesh y = 1, x = 1\n  scalars", "others none"),
    "a channel": (
        "  scalars",
        '  channel @c "{ [y, x] -> [y, x] }"\n  scalars',
        "have no channels",
    ),
    "a kernel in no task": (
        "    task.phase {name = second} {",
        "    tile.copy %mid, %mid\n    task.phase {name = second} {",
        "stands in no task",
    ),
    "a need in no family": (
        "      task.family {name = second",
        "      %a = task.need %mid : f32[2, 8]\n      task.family {name = second",
        "task.need stands in no family",
    ),
    "a phase in a task": (
        "        %all = task.need",
        "        task.phase {name = third} {\n        }\n        %all = task.need",
        "task.phase stands in a task",
    ),
    "two families of one name": (
        "{name = second, dims",
        "{name = first, dims",
        "two families are called 'first'",
    ),
    "a size too many": (
        "dims = [g], sizes = [2]",
        "dims = [g], sizes = [2, 2]",
        "1 dims have 2 sizes",
    ),
    "a dim twice": (
        "dims = [g], sizes = [2]",
        "dims = [g, g], sizes = [2, 2]",
        "two dims have one name",
    ),
    "no tasks": ("dims = [g], sizes = [2]", "dims = [g], sizes = [0]", "a dim has no tasks"),
    "no dim of requests": (
        "dims = [b], sizes = [2], each",
        "dims = [], sizes = [], each",
        "no dim that counts requests",
    ),
    "a dim with a dot": ("dims = [g], sizes = [2]", "dims = [g.a], sizes = [2]", "'g.a' has a dot"),
    "an unknown scalar": ('below = "pos"', 'below = "len"', "what it is below names 'len'"),
    "a scalar of requests elsewhere": (
        "task.stream %w[4*g +: 4]",
        "task.stream %w[pos +: 4]",
        "'pos'",
    ),
    "a dim that is not there": ("{dim = 1, below", "{dim = 3, below", "has no dim 3"),
    "another type": (
        "%tile = task.stream %w[4*g +: 4] : f16[4, 8]",
        "%tile = task.stream %w[4*g +: 4] : f32[4, 8]",
        "gives f16[4, 8], not f32[4, 8]",
    ),
    "a region by shape": (
        "task.need %mid :",
        "task.need %mid as [16] :",
        "a region is not reshaped",
    ),
    "a need of a weight": (
        "%tile = task.stream %w",
        "%tile = task.need %w",
        "task.need: %w is a buffer of role weight",
    ),
    "a stream of scratch": (
        "%all = task.need %mid",
        "%all = task.stream %mid",
        "task.stream: %mid is scratch",
    ),
    "a gift to an input": (
        "task.give %mid[b], %row",
        "task.give %x[b], %row",
        "task.give: %x is a buffer of role in",
    ),
    "a gift of another shape": (
        "task.give %y[:, 4*g +: 4], %sum",
        "task.give %y[:, 4*g +: 2], %sum",
        "gives [2, 4] to a region of [2, 2]",
    ),
    "a gift from a buffer": (
        "task.give %mid[b], %row",
        "task.give %mid[b], %x[b]",
        "%x is no value of the task",
    ),
    "a kernel on a buffer": (
        "tile.gemm %sum, %all, %tile",
        "tile.gemm %sum, %mid, %tile",
        "%mid is no value of the task",
    ),
    "a kernel that writes a need": (
        "tile.scale %sum[n], %sum[n]",
        "tile.scale %all[n], %all[n]",
        "tile.scale writes %all",
    ),
    "a value of another task": ("tile.scale %sum[n], %sum[n]", "tile.scale %row, %row", "%row"),
    "tags of an output": (
        "buffer %y : f32[2, 8] {role = out}",
        "buffer %y : f32[2, 8] {role = out, tags = 4}",
        "%y has tags",
    ),
    "tags of 16 bits": (
        "buffer %mid : f32[2, 8]",
        "buffer %mid : f16[2, 8] {tags = 4}",
        "%mid has tags",
    ),
    "too many tags": (
        "buffer %mid : f32[2, 8]",
        "buffer %mid : f32[2, 8] {tags = 20}",
        "tags of %mid have 20 bits",
    ),
    "tags that tell nothing apart": (
        "buffer %mid : f32[2, 8]",
        "buffer %mid : f32[2, 8] {tags = 1}",
        "tags of %mid have 1 bits",
    ),
    "a meeting of another kind": (
        "    task.phase {name = second} {",
        "    task.meet {kind = bell}\n    task.phase {name = second} {",
        "kind",
    ),
    "tags in front of nothing": (
        "        task.give %y[:, 4*g +: 4], %sum\n      }\n    }\n",
        "        task.give %y[:, 4*g +: 4], %sum\n      }\n    }\n    task.meet {kind = tags}\n",
        "stands in front of no phase",
    ),
    "an extent of the run": (
        '%seen = task.stream %cache[b] {dim = 1, below = "pos"} : f16[4, 8]',
        "%seen = task.stream %cache[b, 0 +: pos] : f16[4, 8]",
        "depends on the run",
    ),
}


def test_text_comes_back():
    module = meshc.parse(GOOD)
    assert meshc.print_module(module) == GOOD
    assert meshc.print_module(meshc.parse(meshc.print_module(module))) == GOOD


def test_tags_come_back():
    second = "    task.phase {name = second} {"
    text = GOOD.replace(second, "    task.meet {kind = tags}\n" + second)
    text = text.replace("buffer %mid : f32[2, 8]", "buffer %mid : f32[2, 8] {tags = 4}")
    assert meshc.print_module(meshc.parse(text)) == text


def test_tags_are_for_tasks():
    text = "module @m level(tile) {\n  buffer %x : f32[2] {tags = 4}\n  program @p {\n  }\n}\n"
    with pytest.raises(MeshcError, match="%x has tags"):
        meshc.parse(text)


@pytest.mark.every_case
@pytest.mark.parametrize("name", WRONG)
def test_what_is_malformed(name):
    before, after, words = WRONG[name]
    assert GOOD.count(before) == 1
    with pytest.raises(MeshcError) as caught:
        meshc.parse(GOOD.replace(before, after))
    assert words in str(caught.value), str(caught.value)
    assert all(d.code in ("invalid-ir", "bad-meshir") for d in caught.value.diagnostics)
    assert any(d.span is not None for d in caught.value.diagnostics)


def test_a_phase_in_a_graph():
    lines = "module @m level(graph) {", "func @f() -> () {", "task.phase {name = a} {", "}"
    text = "\n".join([*lines, "graph.return", "}", "}"])
    with pytest.raises(MeshcError, match=r"task.phase in a module of the graph level"):
        meshc.parse(text)
