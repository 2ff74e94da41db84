"""Builtins and forms of the language documentation that few programs use."""

from __future__ import annotations

from pathlib import Path

import pytest
from csl_runner import function, single

from meshc.sim.exact_numbers import cb16_bits, cb16_from_bits
from meshc.support.diagnostics import MeshcError

COMPTIME = [
    '@strlen("") == 0 and @strlen("ab\\x00c") == 4 and @strlen("h\u00e9") == 3',
    '@strcat() == "" and @strcat("a", "b", "c") == "abc"',
    '@get_array("h\u00e9")[1] == 0xc3 and @get_array("\\xff")[0] == 255',
    '@get_string_from_byte(\'A\') == "A" and @get_string_from_byte(10) == "\\n"',
    "'\\x0a' == 10 and 'a' == 97 and '\\\\' == 92",
    "@is_same_type(@type_of(@get_int(@as(i8, -3))), i8) and @get_int(@as(i8, -3)) == -3",
    "@is_same_type(@type_of(@get_int(E.b)), u32) and @get_int(E.b) == 7",
    "@is_same_type(@type_of(@get_int(@get_color(3))), u16)",
    "@is_comptime() and @is_same_type(@fp16(), f16)",
    "@range_start(@range(i32, 3, 9, 2)) == 3 and @range_step(@range(i32, 3, 9, 2)) == 2",
    "@rank([2, 3]f16) == 2 and @dimensions([2, 3]f16)[1] == 3 and @element_count([2, 3]f16) == 6",
    "@bitcast(u16, @as(cb16, 6.0)) == 0x5900 and @bitcast(u16, @as(bf16, 6.0)) == 0x40c0",
    "blk: { break :blk 1; } + 42 == 43",
    "@as(E, 7) == E.b and @as(f32, E.b) == 7.0",
    '@field(.{ .a = 4 }, "a") == 4 and !@has_field(.{ .a = 4 }, "b")',
]


@pytest.mark.parametrize("condition", COMPTIME)
def test_compile_time_conditions(tmp_path: Path, condition: str) -> None:
    head = f"const E = enum(u32) {{ a, b = 7 }};\ncomptime {{ @comptime_assert({condition}); }}"
    assert function(tmp_path, "out[0] = 1;", "u16", 1, head)[0] == 1


@pytest.mark.parametrize(
    ("kind", "body", "expected"),
    [
        ("i32", "var c: i32 = 9; const x = b: { if (c == 9) break :b 70000; break :b c; };"
         " out[0] = x;", 70000),
        ("f32", "const x = b: { if (out[0] == 0.0) { break :b @as(f32, 2.5); } break :b 1; };"
         " out[0] = x;", 2.5),
        ("u16", "b: { if (out[0] == 0) { break :b {}; } out[0] = 7; } out[0] += 1;", 1),
        ("u16", "var n: u16 = 4; var r = @range(u16, n); n = 9; for (r) |i| { out[0] += i; }", 6),
        ("u16", "out[0] = if (@is_comptime()) 1 else 2;", 2),
        ("u16", 'var s = struct { a: u16, b: u16 }{ .a = 1, .b = 2 }; @field(s, "b") = 20;'
         " out[0] = s.b;", 20),
        ("u16", "var x: u32 = 70001; var p: *anyopaque = &x; const q = @ptrcast(*u32, p);"
         " out[0] = @as(u16, q.* - 70000);", 1),
        ("u16", "@set_config(0x7f00, 3, .{ 0x7f00, 0x7f0f }); out[0] = 5;", 5),
        ("i16", "for (@range(comptime_int, 4)) |i| { out[0] += i; }", 6),
        ("i16", "inline for (@range(i16, 9)) |i| { if (out[0] > 5) break; out[0] += i; }", 6),
        ("i16", "inline for (@range(i16, 5)) |i| { if (out[0] == 1) { out[0] = 10; continue; }"
         " out[0] += i; }", 17),
        ("i16", "o: inline for (@range(i16, 4)) |i| { inline for (@range(i16, 4)) |j| {"
         " if (out[0] + i == 4) break :o; if (j == 2) continue :o; out[0] += 1; } }", 3),
        ("i16", "o: for (@range(i16, 4)) |i| { for (@range(i16, 4)) |j| {"
         " if (j == 2) continue :o; out[0] += 10 * i + j; } }", 124),
    ],
)  # fmt: skip
def test_run_time_forms(tmp_path: Path, kind: str, body: str, expected: float) -> None:
    assert function(tmp_path, body, kind)[0] == expected


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        ("asm volatile (\"nop\");", "csl-unsupported", "assembly"),
        ("other += 1;", "csl-unsupported", "another object"),
        ("var c: cb16 = 1.0; out[0] = 1;", "csl-type", "cb16"),
        ("out[0] = @as(u16, @strlen(3));", "csl-type", "expected a string"),
        ("const s = @get_string_from_byte(300);", "csl-range", "no byte"),
        ("const d = @get_dsd(fabin_dsd, .{ .input_queue = @get_input_queue(2), .extent = 1, "
         ".control_transform = true });", "csl-unsupported", "control_transform"),
        ("const d = @get_dsd(mem4d_dsd, .{ .base_address = &out, .extent = .{ 2, 2 }, "
         ".stride = .{ 1, 1, 1 } });", "csl-type", "2 dimensions with 3 strides"),
        ("var n: u16 = 2; const d = @get_dsd(mem4d_dsd, .{ .base_address = &out, "
         ".extent = .{ 2, 2 }, .stride = .{ 1, 1 } }); @fmovh(@set_dsd_length(d, n), 1.0);",
         "csl-type", "does not take a 'mem4d_dsd'"),
        ("out[0] = @get_filter_id(@get_color(1));", "csl-unsupported", "is not supported by"),
        ("const v = b: { if (out[0] == 1) break :b true; break :b 1.5; };", "csl-type", "break"),
    ],
)  # fmt: skip
def test_refused_with_words(tmp_path: Path, body: str, code: str, words: str) -> None:
    with pytest.raises(MeshcError) as caught:
        function(tmp_path, body, "u16", 1, "extern var other: u16;")
    first = caught.value.diagnostics[0]
    assert first.code == code and words in first.message and first.span is not None


def test_json_values(tmp_path: Path) -> None:
    (tmp_path / "table.json").write_text("[1, 2, 3, 40]")
    (tmp_path / "shape.json").write_text(
        '{"rows:u16": 3, "names:[2]i16": [5, -6], "on:bool": true}'
    )
    head = """
const table = @import_comptime_value([4]u16, "table.json");
const shape = @import_comptime_value(comptime_struct, "shape.json");
"""
    body = (
        "out[0] = table[3] + shape.rows; out[1] = if (shape.on) 1 else 0; out[2] = shape.names[1];"
    )
    assert list(function(tmp_path, body, "i16", 3, head.replace("u16", "i16"))) == [43, 1, -6]


@pytest.mark.parametrize("text", ["[1, null]", "{", '{"rows": 3}', "[[1], 2]"])
def test_json_without_a_value(tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.json").write_text(text)
    kind = "comptime_struct" if "rows" in text else "[2]u16"
    with pytest.raises(MeshcError) as caught:
        single(tmp_path, f'const x = @import_comptime_value({kind}, "bad.json");\n'
               "comptime { @comptime_print(x); }")  # fmt: skip
    assert caught.value.diagnostics[0].code == "csl-json"


def test_cb16_rounds_and_keeps_every_pattern() -> None:
    patterns = [*range(0, 0x7E01, 53), *range(0x8000, 0xFE01, 61)]
    assert all(cb16_bits(cb16_from_bits(p)) == p for p in patterns)
    assert cb16_from_bits(cb16_bits(1e30)) == float("inf")
    assert cb16_from_bits(cb16_bits(1 + 2**-10)) == 1.0


RECURSION = """
fn walk(n: i16, up: *i16) i16 {
  var mine: i16 = n * 10;
  if (n > 0) {
    const below = walk(n - 1, &mine);
    up.* += mine;
    return below + n;
  }
  up.* += 100;
  return 0;
}
fn even(n: i16) bool {
  var left = [1]i16{ n };
  const p = &left;
  if (n == 0) return true;
  const found = odd(n - 1);
  return if (p.*[0] == n) found else !found;
}
fn odd(n: i16) bool { if (n == 0) return false; return even(n - 1); }
"""


def test_variables_of_recursive_functions_are_their_own(tmp_path: Path) -> None:
    body = """
  out[0] = 0;
  out[1] = walk(3, &out[0]);
  out[2] = if (even(20) and !even(7)) 1 else 0;
"""
    # mine is 10, 20, 30 on the way up; each adds the sum of those below it
    assert list(function(tmp_path, body, "i16", 3, RECURSION)) == [30 + 20 + 10 + 100, 6, 1]


def test_recursion_without_end_is_reported(tmp_path: Path) -> None:
    head = """
fn deep(n: i16) i16 { var mine = [8]i16{ n, n, n, n, n, n, n, n }; return deep(n) + mine[3]; }
"""
    with pytest.raises(MeshcError) as caught:
        function(tmp_path, "out[0] = deep(1);", "i16", 1, head)
    assert any("stack is full" in n for d in caught.value.diagnostics for n in d.notes)


def test_results_in_memory_do_not_overwrite_each_other(tmp_path: Path) -> None:
    head = """
const Pair = struct { a: i16, b: i16 };
fn pair(x: i16) Pair { return Pair{ .a = x, .b = 2 * x }; }
fn both(x: Pair, y: Pair) i16 { return 1000 * x.a + 100 * x.b + 10 * y.a + y.b; }
"""
    assert function(tmp_path, "out[0] = both(pair(1), pair(3));", "i16", 1, head)[0] == 1236


OLD = """
const c = @get_color(3);
const start = @get_color(40);
const go = @get_color(9);
var data = @zeros([2]u32);
var data_ptr: [*]u32 = &data;
const control = @get_dsd(fabout_dsd, .{ .extent = 1, .fabric_color = c, .control = true });
fn run() void { @activate(go); }
task send() void {
  @mov32(control, @as(u32, @get_color_id(start)) << 16);
  @mov32(control, (@as(u32, @get_color_id(c)) << 16) | 7);
}
task first() void { data[0] = 1; }
task second(word: u16) void { data[1] = @as(u32, word); sys.unblock_cmd_stream(); }
comptime {
  @bind_task(send, go);
  @bind_task(first, start);
  @bind_task(second, c);
  @set_local_color_config(c, .{ .routes = .{ .rx = RAMP, .tx = RAMP } });
  @export_symbol(run);
  @export_symbol(data_ptr, "data");
}
"""


def test_one_table_of_tasks_for_colors_and_control_wavelets_in_old_programs(tmp_path: Path) -> None:
    program = single(tmp_path, OLD, run="fn()void", data="[*]u32")
    program.launch("run")
    assert list(program.read("data", 2, "u4")) == [1, 7]


def test_a_void_parameter_stands_for_none_given(tmp_path: Path) -> None:
    (tmp_path / "part.csl").write_text("param c: color = @get_color(32);\n")
    head = 'const part = @import_module("part.csl", .{ .c = {} });'
    assert function(tmp_path, "out[0] = @get_int(part.c);", "u16", 1, head)[0] == 32
