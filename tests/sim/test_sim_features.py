"""Features of the language that the documentation names and examples seldom use."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from csl_runner import PE_HEAD, SINGLE, Run, exports, function, single

FEATURES: dict[str, tuple[str, str, str, list[float]]] = {
    "function pointers": (
        "fn inc(x: i16) i16 { return x + 1; }\nfn dec(x: i16) i16 { return x - 1; }\n"
        "var op: *const fn(i16) i16 = &inc;",
        "out[0] = op(4); op = &dec; out[1] = op(4);",
        "i16", [5, 3],
    ),
    "local arrays": ("", "var a = [3]i16{4, 5, 6}; a[1] += 10; for (a) |v, i| { out[i] = v; }",
                     "i16", [4, 15, 6]),
    "arrays of structs": (
        "const P = struct { x: i16, y: i32 };\n"
        "var ps = [2]P{ P{ .x = 1, .y = 2 }, P{ .x = 3, .y = 4 } };",
        "ps[1].y += 5; var i: u16 = 1; out[0] = @as(i16, ps[i].y) + ps[0].x;", "i16", [10],
    ),
    "nested structs": (
        "const A = struct { v: i16 };\nconst B = struct { a: A, w: i16 };\n"
        "var b = B{ .a = A{ .v = 7 }, .w = 2 };",
        "b.a.v += b.w; out[0] = b.a.v;", "i16", [9],
    ),
    "struct results": (
        "const P = struct { x: i16, y: i16 };\n"
        "fn make(a: i16) P { return P{ .x = a, .y = a + 1 }; }",
        "const p = make(3); out[0] = p.x; out[1] = p.y;", "i16", [3, 4],
    ),
    "64-bit integers": (
        "var big: u64 = 0xFFFFFFFF;",
        "big += 2; out[0] = @as(u32, big >> 32); out[1] = @as(u32, big & 0xFFFFFFFF);",
        "u32", [1, 1],
    ),
    "bytes": ("var b = @zeros([4]u8);", "b[1] = 255; b[1] += 3; out[0] = @as(u16, b[1]);", "u16",
              [2]),
    "bool arrays": ("var f = [3]bool{true, false, true};",
                    "for (f) |v, i| { if (v) { out[0] += @as(u16, i) + 1; } }", "u16", [4]),
    "odd widths": ("var x: u12 = 4095;", "x += 2; out[0] = @as(u16, x);", "u16", [1]),
    "enums to numbers and back": (
        "const E = enum(u16) { a, b, c };\nvar e: E = .b;",
        "if (e == E.b) { e = @as(E, @as(u16, e) + 1); } out[0] = @as(u16, e);", "u16", [2],
    ),
    "comptime parameters": (
        "fn repeat(comptime n: u16, x: u16) u16 {\n"
        "  var s: u16 = 0; inline for (@range(u16, n)) |i| { s += x; } return s; }",
        "var v: u16 = 3; out[0] = repeat(4, v);", "u16", [12],
    ),
    "types as values": (
        "const T = if (@is_arch(\"wse2\")) u16 else u32;\n"
        "fn zero(comptime T: type) T { return @as(T, 0); }",
        "var x: T = zero(T); out[0] = x + 1;", "u16", [1],
    ),
    "reflection": (
        "var a = @zeros([3, 5]f16);",
        "const d = comptime @dimensions(@type_of(a)); out[0] = @as(u16, d[1]);"
        " out[1] = @rank(@type_of(a)); out[2] = @as(u16, @element_count(@type_of(a)));",
        "u16", [5, 2, 15],
    ),
    "strings": (
        'const s = @strcat("ab", "cde");', "out[0] = @strlen(s);", "u16", [5],
    ),
    "tuples": (
        "const t = .{ 4, 5, 6 };", "out[0] = t[2]; inline for (t) |v| { out[1] += v; }",
        "u16", [6, 15],
    ),
    "has_field": (
        "const s = .{ .a = 1 };",
        'out[0] = if (@has_field(s, "a") and !@has_field(s, "b")) 3 else 4;', "u16", [3],
    ),
    "arrays of descriptors": (
        "var a = [4]u16{1, 2, 3, 4};\n"
        "var ds = [2]mem1d_dsd{ @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{2} -> a[i] }),\n"
        "  @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{2} -> a[i + 2] }) };",
        "const d = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{2} -> out[i] });"
        " for (@range(u16, 2)) |k| { @add16(d, d, ds[k]); }",
        "u16", [4, 6],
    ),
    "descriptors as arguments": (
        "var a = [2]u16{8, 9};\nfn move(to: mem1d_dsd, from: mem1d_dsd) void { @mov16(to, from); }",
        "move(@get_dsd(mem1d_dsd, .{ .tensor_access = |i|{2} -> out[i] }),"
        " @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{2} -> a[i] }));",
        "u16", [8, 9],
    ),
    "pointers to two-dimensional arrays": (
        "var m = @zeros([2, 3]i16);\nfn put(p: *[2, 3]i16, i: u16, v: i16) void { p.*[i, 2] = v; }",
        "put(&m, 1, 6); out[0] = m[1, 2];", "i16", [6],
    ),
    "address of an element": (
        "var a = [4]i16{1, 2, 3, 4};\nfn twice(p: *i16) void { p.* *= 2; }",
        "var i: u16 = 2; twice(&a[i]); out[0] = a[2];", "i16", [6],
    ),
    "address of a local": (
        "fn set(p: *i16) void { p.* = 11; }", "var x: i16 = 1; set(&x); out[0] = x;", "i16", [11],
    ),
    "mathematics": (
        'const math = @import_module("<math>");',
        "var x: f32 = -2.25; out[0] = math.abs(x); out[1] = math.sqrt(out[0]);"
        " out[2] = math.max(x, 1.5); out[3] = math.ceil(x); out[4] = math.sign(x);",
        "f32", [2.25, 1.5, 1.5, -2.0, -1.0],
    ),
    "comptime blocks in functions": (
        "", "comptime { var n: u16 = 0; while (n < 4) : (n += 1) {} @comptime_assert(n == 4); }"
        " out[0] = 1;", "u16", [1],
    ),
    "while with a step and continue": (
        "", "var i: i16 = 0; while (i < 10) : (i += 1) { if (i % 3 != 0) continue; out[0] += i; }",
        "i16", [18],
    ),
    "switch over enums": (
        "const E = enum(u16) { x, y };\nvar e = E.y;",
        "switch (e) { E.x => out[0] = 1, E.y => { out[0] = 2; } }", "i16", [2],
    ),
    "bit operators": (
        "", "var a: u16 = 0xF0F0; out[0] = ~a; out[1] = a >> 4 ^ 0xF; out[2] = (a << 4) | 1;",
        "u16", [0x0F0F, 0x0F00, 0x0F01],
    ),
    "literals made at run time": (
        "fn sum(a: [2]i16) i16 { return a[0] + a[1]; }\n"
        "const P = struct { x: i16, y: i16 };\nfn diff(p: P) i16 { return p.x - p.y; }",
        "var x: i16 = 3; out[0] = sum([2]i16{ x, 4 }); out[1] = diff(P{ .x = x, .y = 1 });",
        "i16", [7, 2],
    ),
    "enum literals": (
        "const State = enum(u16) { idle, busy };\nvar state: State = .idle;",
        "var x: i16 = 3; state = if (x > 2) State.busy else State.idle;"
        " switch (state) { .busy => { out[0] = 9; }, else => { out[0] = 8; } }", "i16", [9],
    ),
    "scaled addition": (
        "var a = [3]f16{1.0, 2.0, 3.0};\n"
        "const d = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{3} -> out[i] });\n"
        "const s = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{3} -> a[i] });",
        "@fmovh(d, 1.0); @fmach(d, d, s, 2.0);", "f16", [3.0, 5.0, 7.0],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(FEATURES))
def test_feature(tmp_path: Path, name: str) -> None:
    head, body, kind, expected = FEATURES[name]
    got = function(tmp_path, body, kind, max(6, len(expected)), head)[: len(expected)]
    np.testing.assert_array_equal(got.astype(np.float64), expected)


def test_prints_and_traces(tmp_path: Path) -> None:
    pe = """
const print = @import_module("<simprint>");
const trace = @import_module("<debug>", .{ .key = "steps", .buffer_size = 20 });
fn run() void {
  print.fmt("x is {d}, {X}", .{ 12, @as(u16, 255) });
  trace.trace_u16(3); trace.trace_string("end");
  sys.unblock_cmd_stream();
}
comptime { @export_symbol(run); }
"""
    program = single(tmp_path, pe, run="fn()void")
    program.launch("run")
    assert program.machine.print_log[0].endswith(": x is 12, 00FF")
    assert program.machine.pes[0, 0].traces["steps"] == [("u16", 3), ("string", "end")]


def test_pointers_are_followed_when_a_copy_runs(tmp_path: Path) -> None:
    pe = """
var a = [1]f32{1.0}; var b = [1]f32{2.0};
var now: [*]f32 = &a; var next: [*]f32 = &b;
fn swap() void { const t = now; now = next; next = t; sys.unblock_cmd_stream(); }
comptime { @export_symbol(now, "now"); @export_symbol(swap); }
"""
    program = single(tmp_path, pe, now="[*]f32", swap="fn()void")
    seen = [float(program.read("now", 1, "f4")[0])]
    program.launch("swap")
    seen.append(float(program.read("now", 1, "f4")[0]))
    assert seen == [1.0, 2.0]


def test_time_stamps_count_cycles(tmp_path: Path) -> None:
    head = 'const time = @import_module("<time>");\nvar a = @zeros([3]u16); var b = @zeros([3]u16);'
    body = (
        "time.enable_tsc(); time.get_timestamp(&a); time.get_timestamp(&b); out[0] = b[0] - a[0];"
    )
    assert 0 < function(tmp_path, body, "u16", 1, head)[0] < 20


def test_a_module_path_may_be_computed(tmp_path: Path) -> None:
    (tmp_path / "two.csl").write_text("const value: i16 = 2;\n")
    head = """
fn path(n: i16) comptime_string { if (n == 2) { return "two.csl"; } return "three.csl"; }
const chosen = @import_module(path(2));
"""
    assert function(tmp_path, "out[0] = chosen.value;", "i16", 1, head)[0] == 2


def test_integer_parameters_from_the_command_line(tmp_path: Path) -> None:
    layout = SINGLE.replace("EXPORTS", exports(out="[*]i32", run="fn()void")).replace(
        ".memcpy_params =", ".k = memcpy_unused, .memcpy_params ="
    )
    pe = (
        PE_HEAD
        + """
param k: i32;
var out = [1]i32{k * 2}; var p: [*]i32 = &out;
fn run() void { sys.unblock_cmd_stream(); }
comptime { @export_symbol(p, "out"); @export_symbol(run); }
"""
    )
    files = {"layout.csl": layout, "pe.csl": pe}
    program = Run(tmp_path, files, "wse3", params={"memcpy_unused": 21})
    assert program.read("out", 1, "i4")[0] == 42
