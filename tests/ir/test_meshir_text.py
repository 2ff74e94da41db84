"""Text of modules: exact round trips at every level, and mistakes with their places."""

import random
import time
from pathlib import Path

import pytest
from compared_modules import equal, first_difference
from hypothesis import given
from hypothesis import strategies as st

from meshc.devices import Number
from meshc.ir.clone import clone_module
from meshc.ir.core import OP_CLASSES
from meshc.ir.declared import Signature, signature
from meshc.ir.module import Module
from meshc.ir.parser import parse_module
from meshc.ir.printer import print_module
from meshc.ir.verifier import verify_module
from meshc.support.diagnostics import MeshcError
from meshc.support.spans import Source

CASES = sorted((Path(__file__).parents[1] / "passes").glob("*/*.meshir"))
TEXTS = [
    part
    for path in CASES
    for part in path.read_text().split("# ---\n")
    if part.lstrip("# ").strip() and "module @" in part
]


def parse(text):
    return parse_module(Source("t.meshir", text))


@pytest.mark.parametrize("text", TEXTS)
def test_print_and_parse_are_inverse(text):
    module = parse(text)
    printed = print_module(module)
    assert equal(parse(printed), module)
    assert print_module(parse(printed)) == printed


def test_texts_cover_all_levels_and_many_ops():
    modules = [parse(text) for text in TEXTS]
    assert {module.level for module in modules} == {"graph", "mesh", "tile", "task"}
    assert len({op.NAME for module in modules for op in module.walk()}) > 20


def test_every_op_declares_what_it_takes():
    for name, op_class in OP_CLASSES.items():
        assert str(signature(str(op_class.SIGNATURE))) == str(op_class.SIGNATURE), name
        assert Signature() != op_class.SIGNATURE or name == "task.meet", name


@pytest.mark.parametrize("text", TEXTS)
def test_clone_is_equal_and_apart(text):
    module = parse(text)
    copy = clone_module(module)
    verify_module(copy)
    assert first_difference(module, copy) is None
    mine = {id(v) for op in module.walk() for v in op.results}
    assert not mine & {id(v) for op in copy.walk() for v in op.results}
    before = print_module(module)
    for op in copy.walk():
        for result in op.results:
            result.name += "x"
    copy.dims["EXTRA"] = 3
    copy.holds.add("something")
    copy.buffers.clear()
    assert print_module(module) == before


def test_first_difference_shows_both_lines():
    left, right = parse(TEXTS[0]), parse(TEXTS[0])
    right.dims[next(iter(right.dims))] += 1
    assert first_difference(left, right).startswith("line 2:\n- ")


HEADER = """module @m level(tile) {
  dims D = 4
  scalars pos = 0..7
  options a = 1, b = -2.5, c = true, d = word, e = "with \\"quotes\\" and \\\\", f = 1e-05, g = inf
  device name = toy, kind = mesh, push = true, enforced = false
    datasheet cores_x = 4, memory_bytes = unlimited
    calibrated relay_cycles = none, route_cycles = 24.5
    assumed free_task_ids = "0-2,5"
  constant @table [1.0, 0.5]
  mesh r = 2, y = 3 interleaved, x = 4 interleaved (xh = 2, xd = 2),
    origins = [[0, 0], [4, 0]]
  buffer %a : f32[3, 4] {role = in, address = 0}
  buffer %s : i32[2]
  buffer %one : f32[]
  channel @c "{ [y, x] -> [y, x - 1] : x >= 1 }" {send_color = "x mod 2",
    recv_color = "(x + 1) mod 2", queue = 0, output_queue = 2}
  port @in in f32[D] : %a {lanes = [i, j], lets = ["k = i + j"], element = ["k"],
    where = "k <= 3", pad = -inf}
  program @decode {
    tile.for {var = i, count = 3} {
      tile.add %a[i, 1 +: 2] as [2, 1] order [1, 0], %a[0, 0 +: 2 by 2], %a[0, 0 +: 2]
        {when = "x = 0 and y >= 1"}
    }
    tile.sweep {rank = "x", count = 4} {
      %t = tile.recv @c, %a[0] {combine = max, when = "x <= 2"} : token
      tile.wait %t
    }
  }
}
"""


def test_every_construct_survives():
    module = parse(HEADER)
    assert print_module(parse(print_module(module))) == print_module(module)
    assert module.options["e"] == 'with "quotes" and \\'
    assert module.options["g"] == float("inf")
    assert module.device.limit("memory_bytes") is None and module.device.link.push
    assert module.device.number("route_cycles") == Number(24.5, "calibrated")
    assert module.mesh.origins == ((0, 0), (4, 0))
    assert module.ports[0].pad == float("-inf")


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("text", "words", "line"),
    [
        ("", "expected 'module'", 1),
        ("module @m level(graph) {\n  dims L = 1\n", "expected a name, found the end", 3),
        ("module @m level(wafer) {\n}", "no such level", 1),
        ("module @m level(graph) {\n  dims L = x\n}", "expected an integer", 2),
        ("module @m level(graph) {\n  nonsense\n}", "no section 'nonsense'", 2),
        ("module @m level(graph) {\n}\nmore", "expected the end of the text", 3),
        ("module @m level(graph) {\n  ?\n}", "unexpected character '?'", 2),
        ("module @m level(tile) {\n  buffer %a : f32[L]\n}", "whole numbers", 2),
        ("module @m level(tile) {\n  buffer %a : f64[2]\n}", "no element type 'f64'", 2),
        ("module @m level(tile) {\n  buffer %a : f32[2] {role = owner}\n}", "no role", 2),
        ("module @m level(tile) {\n  buffer %a : f32[2] {rule = in}\n}", "no attribute 'rule'", 2),
        (
            'module @m level(tile) {\n  channel @c "{ [y, x] -> [y, _x] }" {multicast = 1}\n}',
            "expected true or false",
            2,
        ),
        ("module @m level(mesh) {\n  mesh y = 0, x = 2\n}", "at least one part", 2),
        ("module @m level(mesh) {\n  mesh x = 2\n}", "a plane of two axes", 2),
        ("module @m level(mesh) {\n  mesh x = 2, x = 2\n}", "two axes are called 'x'", 2),
        (
            "module @m level(mesh) {\n  mesh y = 5000, x = 5000\n}",
            "25000000 cores",
            2,
        ),
        ("module @m level(mesh) {\n  mesh y = 2, x = 6 (xh = 2, xd = 2)\n}", "make up the 6", 2),
        ("module @m level(mesh) {\n  mesh y = 2 (yh = 1, yd = 2), x = 6\n}", "only the last", 2),
        ("module @m level(mesh) {\n  mesh rows = 3, columns = 2\n}", "'rows' is no name of an", 2),
        ("module @m level(mesh) {\n  mesh y = 3, lambda = 2\n}", "'lambda' is no name", 2),
        ("module @m level(mesh) {\n  device kind = mesh\n}", "the device has no name", 2),
        ("module @m level(mesh) {\n  device name = m, color = 1\n}", "has no 'color'", 2),
        (
            "module @m level(mesh) {\n  device name = m\n    assumed colours = 1\n}",
            "has no 'colours'",
            2,
        ),
        (
            "module @m level(mesh) {\n  device name = m\n    assumed colors = 1\n"
            "    datasheet colors = 1\n}",
            "'colors' of the device is given twice",
            2,
        ),
        (
            "module @m level(mesh) {\n  device name = m, cores_x = 4\n}",
            "'cores_x' of the device does not say where it comes from",
            2,
        ),
        (
            "module @m level(graph) {\n func @f(in %x: f32[L]) -> (f32[L]) {\n"
            "  %y = graph.sillu %x : f32[L]\n }\n}",
            "no op 'graph.sillu'",
            3,
        ),
        (
            "module @m level(graph) {\n func @f(in %x: f32[L]) -> (f32[L]) {\n"
            "  %y = graph.silu %z : f32[L]\n }\n}",
            "%z is not defined above",
            3,
        ),
        (
            "module @m level(graph) {\n func @f(in %x: f32[L]) -> (f32[L]) {\n"
            "  %x = graph.silu %x : f32[L]\n }\n}",
            "%x is defined twice",
            3,
        ),
        ("module @m level(mesh) {\n func @f(in %x: f32[L]<what>) -> () {\n }\n}", "no part", 2),
        (
            "module @m level(mesh) {\n func @f(in %x: f32[L]<L_y:"
            + "9" * 5000
            + ">) -> () {\n }\n}",
            "no part of a layout",
            2,
        ),
    ],
)
def test_mistakes_have_words_and_a_place(text, words, line):
    with pytest.raises(MeshcError) as error:
        parse(text)
    (found,) = error.value.diagnostics
    assert found.code == "bad-meshir"
    assert words in found.message
    assert found.span.line == line


def test_deep_nesting_is_refused_quickly():
    start = time.perf_counter()
    for text in ("{" * 100_000, "[" * 100_000, "tile.for {var = i, count = 1} {" * 50_000):
        with pytest.raises(MeshcError):
            parse(f"module @m level(tile) {{ program @p {{ {text}")
        with pytest.raises(MeshcError):
            parse(f"module @m level(tile) {{ options a = {text}")
    assert time.perf_counter() - start < 5


@given(st.integers(0, 2**32), st.sampled_from([HEADER, *TEXTS]))
def test_damaged_text_is_refused_or_sound(seed, text):
    """Whatever is cut, doubled or swapped: a module, or diagnosed errors; nothing else."""
    chance = random.Random(seed)
    for _ in range(chance.randint(1, 4)):
        at, length = chance.randrange(len(text)), chance.randint(1, 12)
        piece = text[chance.randrange(len(text)) :][:length]
        text = text[:at] + chance.choice([piece, "", "-1", "}", '"', "%x"]) + text[at + length :]
    try:
        module = parse(text)
        verify_module(module)
    except MeshcError as error:
        assert error.diagnostics
    else:
        assert isinstance(module, Module)
        assert print_module(parse(print_module(module))) == print_module(module)
