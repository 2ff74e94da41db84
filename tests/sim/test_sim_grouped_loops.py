"""Loops of a layout give the same program, or the same message, in groups and one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshc.sim.csl_compiler import compile_program
from meshc.sim.sema.grouped_loops import GroupedLoops
from meshc.sim.sema.iteration_lanes import Lanes, Points, Split, Ungroupable, lanes
from meshc.sim.sema.rectangle import LayoutInfo
from meshc.sim.stored_programs import dumps
from meshc.support.diagnostics import MeshcError

PE = """
param a: i32 = 0; param b: i32 = 0; param c: bool = false; param d: comptime_struct = .{};
comptime { @comptime_assert(c or !c); @comptime_assert(a - a == b - b); }
"""
HEAD = """
param w: i16; param h: i16;
const math = @import_module("<math>");
const one = @get_color(1); const two = @get_color(2);
const colors = [2]color{ one, two };
const lengths = [5]i16{ 3, 1, 4, 1, 5 };
fn turned(d: direction) direction { return switch (d) { EAST => WEST, WEST => EAST, else => d }; }
fn least(x: i16, y: i16) i16 { if (x < y) { return x; } return y; }
fn wires(x: i16, y: i16, c: color, d: direction) void {
  @set_color_config(x, y, c, .{ .routes = .{ .rx = .{ RAMP }, .tx = .{ d } } });
}
fn sum_to(n: i16) i16 {
  var sum: i16 = 0;
  for (@range(i16, n)) |i| { sum += i; }
  return sum;
}
"""


def compiled(folder: Path, body: str, w: int = 7, h: int = 6, head: str = HEAD) -> str:
    """The whole program as text, or the message."""
    (folder / "pe.csl").write_text(PE, encoding="utf-8")
    text = f"{head}\nlayout {{\n  @set_rectangle(w, h);\n{body}\n}}\n"
    (folder / "layout.csl").write_text(text, encoding="utf-8")
    try:
        program = compile_program(
            str(folder / "layout.csl"), "wse2", {"w": w, "h": h}, {}, (0, 0), (0, 0)
        )
    except MeshcError as problem:
        return str(problem)
    places = sorted((key, config.place) for key, config in program.routes.items())
    return dumps(program) + repr(places)


def both(folder: Path, body: str, groups: bool | None = True, **options: Any) -> str:
    """The result, after comparing it with that of single iterations.

    ``groups`` says whether the outermost loop must have been evaluated in groups, or must not.
    """
    commits = []
    with pytest.MonkeyPatch.context() as patch:
        commit = LayoutInfo.commit
        patch.setattr(LayoutInfo, "commit", lambda info: commits.append(commit(info)))
        together = compiled(folder, body, **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GroupedLoops, "_in_groups", lambda *args: False)
        singly = compiled(folder, body, **options)
    assert together == singly
    assert groups is None or bool(commits) == groups
    return together


PLACE = '@set_tile_code(x, y, "pe.csl", .{ .a = x, .b = y });'
LOOPS = "for (@range(i16, w)) |x| { for (@range(i16, h)) |y| { BODY } }"


@pytest.mark.parametrize(
    "body",
    [
        PLACE,
        '@set_tile_code(x, y, "pe.csl", .{ .c = x == 0 or y == h - 1 });',
        '@set_tile_code(x, y, "pe.csl", if (x % 2 == 0) .{ .a = 1 } else .{ .b = y / 2 });',
        '@set_tile_code(x, y, "pe.csl", .{ .a = (x - 3) / 2, .b = (y - 9) % 4 });',
        '@set_tile_code(x, y, "pe.csl", .{ .a = lengths[x % 5], .d = .{ .e = .{ x, y } } });',
        '@set_tile_code(x, y, "pe.csl", .{ .a = least(x, y), .b = sum_to(x) });',
        '@set_tile_code(x, y, "pe.csl", .{ .a = @as(i32, x) << 3, .b = (x ^ y) & 5 });',
        "if (x != 2) { " + PLACE + " wires(x, y, colors[y % 2], if (x > y) EAST else NORTH); }",
        PLACE + "wires(x, y, one, EAST); if (y > 1 and x < 3) wires(x, y, two, turned(WEST));",
        f"switch (x) {{ 0 => {PLACE[:-1]}, 1...3 => if (y < 2) {PLACE[:-1]}, else => {{}} }}",
        "if (y == 2) continue; " + PLACE,
        "const last = x == w - 1; var k: i16 = x; k += y; "
        '@set_tile_code(x, y, "pe.csl", .{ .a = k, .c = last });',
        '@set_tile_code(x, y, "pe.csl", .{ .a = @as(i32, @as(f32, x) * 1.5), .c = !(x > 2) });',
        'const q = @as(i16, math.floor_f16(@as(f16, x) / @as(f16, h))); const r = x - q * 2; '
        '@set_tile_code(x, y, "pe.csl", .{ .a = q, .b = r, .c = @as(f32, y) * 0.5 > -1.5 });',
        'const z = -@as(f32, x) * 0.0; '  # z / z is NaN, 1.0 / z an infinity
        '@set_tile_code(x, y, "pe.csl", .{ .b = if (1.0 / z < 0.0 or z / z == z) 1 else 2, '
        ".d = .{ .e = z, .f = z / z } });",
        '@set_tile_code(x, y, @strcat("p", "e.csl"), .{ .b = -x, .a = ~@as(i16, y) });',
        'const s = .{ .u = x, .v = .{ .z = y } }; @set_tile_code(x, y, "pe.csl", .{ .a = s.v.z });',
        "for (@range(i16, x)) |z| { if (z == y) { " + PLACE + " } }",
        "var at: [3]i16 = .{ x, y, 0 }; at[2] = at[0] + at[1]; "
        '@set_tile_code(x, y, "pe.csl", .{ .a = at[2] });',
        '@set_tile_code(x, y, "pe.csl", .{ .a = x * 32000 });',
    ],
)  # fmt: skip
def test_bodies(tmp_path: Path, body: str) -> None:
    assert both(tmp_path, LOOPS.replace("BODY", body)).startswith("{")


@pytest.mark.parametrize(
    "loops",
    [
        "var x: i16 = 0; while (x < w) : (x += 1) { var y: i16 = 0; while (y < h) : (y += 2) "
        "{ BODY } }",
        "var x: i16 = 0; var y: i16 = 0; while (x < w) : (x += 1) { y = 0; while (y < h) "
        ": (y += 1) { BODY } } wires(x - 1, y - 1, two, WEST);",
        "var x: i16 = w; while (x > 0) : (x -= 1) { const y = h - 1; { const x0 = x - 1; "
        '@set_tile_code(x0, y, "pe.csl", .{ .a = x0 }); } }',
        "for (@range(i16, 1, w, 2)) |x, n| { for (@range(i16, h - 1, -1, -1)) |y, m| "
        '{ @set_tile_code(x, y, "pe.csl", .{ .a = n, .b = m }); } }',
        "var edge: bool = true; var x0: i16 = -1; for (@range(i16, w)) |x| { edge = x == w - 1; "
        "x0 = x; for (@range(i16, h)) |y| { if (edge) { BODY } } } wires(x0, 0, one, EAST); "
        "if (edge) wires(0, 0, two, EAST);",
        "for (@range(i16, w)) |x| { for (@range(i16, x, h)) |y| { BODY } }",
        "for (@range(i16, w)) |z| { for (@range(i16, z, -1, -2)) |x, n| { const y = n; "
        "if (z == w - 1) { BODY } } }",
        "for (@range(i16, h)) |y| { for (@range(i16, y, y + 3)) |x, n| { if (n < 2) { BODY } } }",
        "var k: i16 = 0; for (@range(i16, w)) |x| { for (@range(i16, h)) |y| { k = x + y; BODY } }"
        " wires(k - 6, 0, one, EAST);",
        "var z: f16 = 0.0; for (@range(i16, w)) |x| { z = @as(f16, x) / 4.0; for (@range(i16, h)) "
        "|y| { if (z < 0.7) { BODY } } } wires(@as(i16, z), 0, one, EAST);",
    ],
)
def test_kinds_of_loops(tmp_path: Path, loops: str) -> None:
    assert both(tmp_path, loops.replace("BODY", PLACE)).startswith("{")


@pytest.mark.parametrize(
    "text",
    [
        # what one iteration leaves for another, also where it is not left always
        "var n: i16 = 0; for (@range(i16, w)) |x| { n += 1; "
        '@set_tile_code(x, 0, "pe.csl", .{ .a = n }); }',
        "var n: i16 = 0; for (@range(i16, w)) |x| { if (x % 3 == 0) { n = x; } "
        '@set_tile_code(x, 0, "pe.csl", .{ .a = n }); }',
        "var seen: [7]i16 = @zeros([7]i16); for (@range(i16, w)) |x| { seen[x] = x; } "
        "for (@range(i16, w)) |x| { "
        "for (@range(i16, w)) |y| { if (y == x) { seen[0] += seen[x]; } } "
        '@set_tile_code(x, 0, "pe.csl", .{ .a = seen[0] }); }',
        "var x: i16 = 0; while (x < w) { @set_tile_code(x, 0, \"pe.csl\", .{ .a = x }); x += 2; }",
        "var x: i16 = 0; while (x < w) : (x += 1) "
        '{ @set_tile_code(x, 0, "pe.csl", .{ .a = x }); if (x == 2) { x += 1; } }',
        # a way out
        'for (@range(i16, w)) |x| { if (x == 4) break; @set_tile_code(x, 0, "pe.csl", .{}); }',
        'all: for (@range(i16, w)) |x| { for (@range(i16, h)) |y| { if (x * y == 6) break :all; '
        '@set_tile_code(x, y, "pe.csl", .{}); } }',
    ],
)  # fmt: skip
def test_loops_that_are_evaluated_singly(tmp_path: Path, text: str) -> None:
    assert both(tmp_path, text, groups=None).startswith("{")


def test_an_inner_loop_alone_is_grouped(tmp_path: Path) -> None:
    body = """
  var n: i16 = 0;
  for (@range(i16, w)) |x| {
    n += x;
    for (@range(i16, h)) |y| { @set_tile_code(x, y, "pe.csl", .{ .a = n, .b = y }); }
  }"""
    assert both(tmp_path, body).startswith("{")


def test_pointers_to_variables(tmp_path: Path) -> None:
    head = HEAD + "fn bump(p: *i16) i16 { p.* += 1; return p.*; }"
    body = """
  var n: i16 = 0;
  for (@range(i16, w)) |x| { @set_tile_code(x, 0, "pe.csl", .{ .a = bump(&n) }); }"""
    assert both(tmp_path, body, groups=False, head=head).startswith("{")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("if (x == 3 and y == 2) @set_tile_code(9, y, \"pe.csl\", .{});", "PE (9, 2) is outside"),
        ("@set_tile_code(x + 1, y, \"pe.csl\", .{});", "PE (7, 0) is outside"),
        ("@set_tile_code(x, y / 2, \"pe.csl\", .{});", "PE (0, 0) has its code already"),
        ("if (x > 1) wires(x, y, one, EAST); if (x == 5) wires(x - y, 0, one, WEST);",
         "color 1 of PE (5, 0) is configured twice"),
        ("const z = 12 / (x - 4);", "division by zero"),
        ("const z: u16 = @as(u16, 3) - @as(u16, lengths[x]);", "index 5 is outside"),
        ("@comptime_assert(x + y != 9);", "it does not hold"),
        ("const z: i8 = x * 25;", "150 does not fit type 'i8'"),
        ("if (y == 4) { nothing(); }", "'nothing' is not declared"),
        ("@set_tile_code(x, y, \"pe.csl\", .{ .c = x });", "expected a value of type 'bool'"),
        ("@set_tile_code(x, y, if (x == 6) \"no.csl\" else \"pe.csl\", .{});", "no file 'no.csl'"),
        ("wires(x, y, @get_color(x + 20), EAST);", "24 is no color of the fabric"),
    ],
)  # fmt: skip
def test_messages(tmp_path: Path, body: str, words: str) -> None:
    assert words in both(tmp_path, LOOPS.replace("BODY", body), groups=None)


def test_prints_come_once_and_in_order(tmp_path: Path, capsys: Any) -> None:
    compiled(tmp_path, LOOPS.replace("BODY", PLACE + " @comptime_print(x);"), 4, 1)
    assert [line[-1] for line in capsys.readouterr().out.splitlines()] == list("0123")


def test_the_size_of_a_rectangle_does_not_matter(tmp_path: Path) -> None:
    """As many statements are evaluated for 60 by 50 PEs as for 300 by 200, and as many programs."""

    def statements(w: int, h: int) -> tuple[int, int]:
        count = 0
        run = GroupedLoops.exec

        def counted(analyzer: Any, stmt: Any, frame: Any) -> None:
            nonlocal count
            count += 1
            run(analyzer, stmt, frame)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(GroupedLoops, "exec", counted)
            text = compiled(
                tmp_path,
                LOOPS.replace(
                    "BODY",
                    '@set_tile_code(x, y, "pe.csl", .{ .a = x % 3, .c = x == 0 or y == h - 1 }); '
                    "wires(x, y, colors[x % 2], if (y > 0) NORTH else EAST);",
                ),
                w, h,
            )  # fmt: skip
        return count, text.count('"pe.csl"')

    small = statements(60, 50)
    assert small == statements(300, 200)
    assert small[0] < 200 and small[1] == 6


def test_parameters_that_a_program_does_not_read_make_no_class(tmp_path: Path) -> None:
    body = '@set_tile_code(x, y, "pe.csl", .{ .a = x % 2, .unread = x * y, .d = .{ .e = y } });'
    text = both(tmp_path, LOOPS.replace("BODY", body))
    assert text.count('"pe.csl"') == 2


def test_a_rectangle_that_no_machine_holds(tmp_path: Path) -> None:
    assert "the simulator takes up to" in compiled(tmp_path, PLACE, 30_000, 30_000)


# --- random layouts ---

NUMBERS = st.recursive(
    st.sampled_from(["x", "y", "w", "h", "k", "x", "y"]) | st.integers(-3, 9).map(str),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("+-*&|^"), inner).map(lambda p: f"({' '.join(p)})"),
        st.tuples(inner, st.sampled_from("/%"), st.sampled_from(["2", "3", "-3", "(x - 4)"])).map(
            lambda p: f"({' '.join(p)})"
        ),
        st.tuples(inner, inner).map(lambda p: f"least({p[0]}, {p[1]})"),
        inner.map(lambda n: f"lengths[{n} & 3]"),
        inner.map(lambda n: f"@as(i16, @as(u8, {n} & 255))"),
        st.tuples(inner, st.sampled_from("+-*/"), inner).map(
            lambda p: f"@as(i16, math.floor_f16(@as(f16, {p[0]}) {p[1]} -@as(f16, {p[2]})))"
        ),
        inner.map(lambda n: f"(if ({n} > 2) y else -x)"),
    ),
    max_leaves=4,
)
TESTS = st.tuples(NUMBERS, st.sampled_from(["==", "!=", "<", ">="]), NUMBERS).map(" ".join)
COLORS = st.sampled_from(["one", "two", "colors[x % 2]"])
STATEMENTS = st.recursive(
    st.one_of(
        COLORS.map(lambda c: f"wires(x, y, {c}, if (x < y) EAST else SOUTH);"),
        st.tuples(NUMBERS, COLORS).map(lambda p: f"wires({p[0]}, y, {p[1]}, NORTH);"),
        NUMBERS.map(lambda n: f"k = {n};"),
        NUMBERS.map(lambda n: f"k = {n};"),
        NUMBERS.map(lambda n: f"k += {n};"),
        TESTS.map(lambda n: f"if ({n}) continue;"),
        TESTS.map(lambda n: f"if ({n}) break;"),
    ),
    lambda inner: st.one_of(
        st.tuples(TESTS, inner, inner).map(lambda p: f"if ({p[0]}) {{ {p[1]} }} else {{ {p[2]} }}"),
        st.tuples(inner, inner).map(" ".join),
        st.tuples(NUMBERS, inner).map(lambda p: f"{{ const k = {p[0]}; {p[1]} }}"),
    ),
    max_leaves=4,
)
BODIES = st.tuples(STATEMENTS, NUMBERS, NUMBERS).map(
    lambda p: f'{p[0]} @set_tile_code(x, y, "pe.csl", .{{ .a = {p[1]}, .b = {p[2]} }});'
)
NESTS = st.sampled_from([
    "var k: i16 = 1; " + LOOPS,
    "for (@range(i16, w)) |x| { var k: i16 = x; for (@range(i16, h)) |y| { BODY } }",
    "var k: i16 = 0; var x: i16 = 0; while (x < w) : (x += 1) { k = 0; "
    "for (@range(i16, h)) |y| { BODY } } if (k > 1) { const y = k; wires(k, y, two, EAST); }",
    "for (@range(i16, w)) |x| { for (@range(i16, h)) |y| { var k: i16 = y; BODY } }",
    "for (@range(i16, h)) |k| { for (@range(i16, k, k + 2)) |x| { for (@range(i16, k, x - 3, -1)) "
    "|y| { BODY } } }",
])  # fmt: skip


LAYOUTS = given(NESTS, BODIES, st.integers(1, 6), st.integers(1, 5))
IN_ONE_FOLDER = {"suppress_health_check": [HealthCheck.function_scoped_fixture], "deadline": None}


@settings(max_examples=30, **IN_ONE_FOLDER)
@LAYOUTS
def test_random_layouts(tmp_path: Path, nest: str, body: str, w: int, h: int) -> None:
    both(tmp_path, nest.replace("BODY", body), groups=None, w=w, h=h)


@pytest.mark.slow
@settings(max_examples=400, **IN_ONE_FOLDER)
@LAYOUTS
def test_many_random_layouts(tmp_path: Path, nest: str, body: str, w: int, h: int) -> None:
    both(tmp_path, nest.replace("BODY", body), groups=None, w=w, h=h)


# --- numbers ---

SMALL = st.integers(-40, 40)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(SMALL, SMALL), min_size=2, max_size=5),
    st.sampled_from(["+", "-", "*", "//", "%", "&", "|", "^", "<<", ">>", "<", "==", ">=", "!="]),
    st.sampled_from(["both", "left", "right"]),
)
def test_arithmetic(pairs: list[tuple[int, int]], op: str, which: str) -> None:
    """An operation on lanes is that operation on each number, or none at all."""
    points = Points(None, np.zeros(len(pairs), np.int64))
    left = lanes(points, np.array([a for a, _ in pairs]))
    right = lanes(points, np.array([b for _, b in pairs]))
    if which != "both":
        left, right = (left, pairs[0][1]) if which == "left" else (pairs[0][0], right)
    try:
        result = eval(f"left {op} right", {"left": left, "right": right})
    except (Ungroupable, ZeroDivisionError, ValueError):
        return
    for position, (a, b) in enumerate(pairs):
        a, b = (a if which != "right" else pairs[0][0]), (b if which != "left" else pairs[0][1])
        one = result.values[position].item() if type(result) is Lanes else result
        assert one == eval(f"a {op} b", {"a": a, "b": b})
        assert type(one) is type(eval(f"a {op} b", {"a": a, "b": b}))


def test_numbers_too_large_for_64_bits_are_not_grouped(tmp_path: Path) -> None:
    body = "const z = (x + 1) * 0x7fffffffffffffff; if (z > 0x7fffffffffffffff) { " + PLACE + " }"
    assert both(tmp_path, LOOPS.replace("BODY", body.replace("(x +", "(@as(u64, x) +")),
                groups=None).startswith("{")  # fmt: skip


def test_whatever_needs_one_number_splits() -> None:
    points = Points(None, np.zeros(3, np.int64))
    some = lanes(points, np.array([4, 5, 4]))
    for use in (bool, int, float, str, hash, range, "{}".format, [1, 2, 3, 4, 5, 6].__getitem__):
        if use is bool:
            assert bool(some)  # none of them is 0
            continue
        with pytest.raises(Split) as caught:
            use(some)
        assert [group.tolist() for group in caught.value.groups()] == [[0, 2], [1]]
    with pytest.raises(Split) as caught:
        bool(some == 5)
    assert [group.tolist() for group in caught.value.groups()] == [[1], [0, 2]]
