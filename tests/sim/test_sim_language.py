"""The language: syntax, types, compile-time evaluation, messages."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from csl_runner import PE_HEAD, SINGLE, Run, function, single
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshc.sim.lang import tree as t
from meshc.sim.lang.statement_parser import parse
from meshc.support.diagnostics import Diagnostics, MeshcError
from meshc.support.spans import Source

QUICK = settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def parsed(text: str) -> tuple[t.File, Diagnostics]:
    diagnostics = Diagnostics()
    return parse(Source("a.csl", text), diagnostics), diagnostics


def initialiser(text: str) -> t.Expr:
    file, diagnostics = parsed(f"const x = {text};")
    assert not diagnostics.messages
    decl = file.decls["x"]
    assert isinstance(decl, t.VarDecl) and decl.init is not None
    return decl.init


def test_masks_bind_tighter_than_comparisons() -> None:
    node = initialiser("a & 1 == 0")
    assert isinstance(node, t.Binary) and node.op == "=="


def test_shifts_bind_tighter_than_masks() -> None:
    node = initialiser("a | b << 2")
    assert isinstance(node, t.Binary) and node.op == "|"


def test_several_syntax_errors_are_reported_at_once() -> None:
    _, diagnostics = parsed("fn f() void {\n  x = ;\n  y = 1;\n  var = 3;\n}\nconst z = ];\n")
    assert [m.span.line for m in diagnostics.messages if m.span] == [2, 4, 6]


def test_deep_nesting_is_an_error_and_no_crash() -> None:
    _, diagnostics = parsed("const x = " + "(" * 5000 + "1" + ")" * 5000 + ";")
    assert diagnostics.messages


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("out[0] = 7 / 2;", 3),
        ("var a: i16 = -7; out[0] = a / 2;", -3),
        ("var a: i16 = -7; out[0] = a % 3;", -1),
        ("var a: i16 = 32767; a += 1; out[0] = a;", -32768),
        ("var a: i16 = -8; out[0] = a >> 1;", -4),
        ("var a: u16 = 65535; out[0] = @as(i16, a + 2);", 1),
        ("for (@range(i16, 5)) |i| { if (i == 3) break; out[0] += i; }", 3),
        ("for (@range(i16, 6)) |i| { if (i % 2 == 0) continue; out[0] += i; }", 9),
        ("for (@range(i16, 5, 0, -2)) |i| { out[0] = out[0] * 10 + i; }", 531),
        ("var i: i16 = 0; while (i < 4) : (i += 1) { out[0] += i; }", 6),
        ("for ([3]i16{5, 6, 8}) |v, i| { out[0] += v * @as(i16, i); }", 22),
        (
            "outer: for (@range(i16, 4)) |i| { for (@range(i16, 4)) |j| {"
            " if (i * j == 2) break :outer; out[0] += 1; } }",
            6,
        ),
        ("const b = blk: { if (out[0] == 0) { break :blk @as(i16, 4); } break :blk @as(i16, 5); };"
         " out[0] = b;", 4),
        ("var k: i16 = 2; switch (k) { 0, 1 => out[0] = 1, 2...4 => out[0] = 2, else => {} }", 2),
        ("var k: i16 = 9; out[0] = switch (k) { 9 => 3, else => 4 };", 3),
        ("inline for (@range(i16, 3)) |i| { comptime { @comptime_assert(i < 3); } out[0] += i; }",
         3),
        ("var f: f32 = -2.7; out[0] = @as(i16, f);", -2),
        ("var b: bool = true; if (b and !(out[0] == 1)) { out[0] = @as(i16, b); }", 1),
        ("var x: u32 = 0x3f800000; out[0] = @as(i16, @bitcast(f32, x));", 1),
    ],
)  # fmt: skip
def test_statements(tmp_path: Path, body: str, expected: int) -> None:
    assert function(tmp_path, body, "i16")[0] == expected


def test_unassigned_enum_members_take_the_smallest_free_numbers(tmp_path: Path) -> None:
    head = "const E = enum(u16) { a, b = 4, c, d = 1 };"
    body = "out[0] = @as(u16, E.a); out[1] = @as(u16, E.b); out[2] = @as(u16, E.c);"
    assert list(function(tmp_path, body, "u16", 3, head)) == [0, 4, 2]


@pytest.mark.parametrize("base", ["u3", "i5", "u15", "u24", "i40"])
def test_enums_of_any_width_live_in_memory(tmp_path: Path, base: str) -> None:
    head = f"const E = enum({base}) {{ a, b = 3 }};\nvar e = E.b;\nvar many = [2]E{{ E.a, E.b }};"
    body = "out[0] = @as(u16, e); e = many[0]; out[1] = @as(u16, e); out[2] = @as(u16, many[1]);"
    assert list(function(tmp_path, body, "u16", 3, head)) == [3, 0, 3]


@pytest.mark.parametrize(
    ("head", "words"),
    [
        ("const E = enum(f16) { a };\nvar e = E.a;", "an enum takes an integer type, not 'f16'"),
        ("const E = enum(u2) { a, b = 4 };\nvar e = E.b;", "member 'b' is 4, which 'u2' does not"),
        ("const E = enum(u1) { a, b, c };\nvar e = E.a;", "member 'c' is 2, which 'u1' does not"),
    ],
)
def test_enums_that_their_type_does_not_hold(tmp_path: Path, head: str, words: str) -> None:
    with pytest.raises(MeshcError, match=words):
        function(tmp_path, "out[0] = @as(u16, e);", "u16", 1, head)


def test_an_unrolled_loop_ends_with_the_first_iteration_that_has_errors(tmp_path: Path) -> None:
    for body in (
        "inline for (@range(u16, 60000)) |k| { out[k + 9] = 1; }",
        "inline for (@range(u16, 60000)) |k| { if (out[0] == 1) { break; } out[k + 9] = 1; }",
        "comptime var k: u16 = 9; inline while (k < 60000) : (k += 1) { out[k] = 1; }",
    ):
        with pytest.raises(MeshcError, match="index 9 is outside") as caught:
            function(tmp_path, body, "u16")
        assert len(caught.value.diagnostics) == 1


@pytest.mark.parametrize(
    "head",
    [
        "fn f() i16 { while (true) {} return 1; }",
        pytest.param(
            "fn g(n: u32) u32 { return 1; }\n"
            "fn f() i16 { for (@range(u32, 200000)) |i| { var k = g(i); } return 1; }",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_endless_compile_time_code_is_an_error(tmp_path: Path, head: str) -> None:
    body = "out[0] = comptime f();"
    with pytest.raises(MeshcError, match="more than 262,144 iterations and calls") as caught:
        function(tmp_path, body, "i16", 1, head)
    (found,) = caught.value.diagnostics
    assert found.code == "csl-comptime" and found.help
    assert found.span and found.span.line == len(head.splitlines()) + 4


def test_structs_live_in_memory(tmp_path: Path) -> None:
    head = """
const Pair = struct { small: u16, large: u32 };
var pair = Pair{ .small = 3, .large = 70000 };
fn bump(p: *Pair) void { p.large += 1; p.small += 2; }
"""
    body = "bump(&pair); out[0] = pair.large; out[1] = @as(u32, pair.small);"
    assert list(function(tmp_path, body, "u32", 2, head)) == [70001, 5]


def test_generic_functions_and_modules_with_their_own_variables(tmp_path: Path) -> None:
    (tmp_path / "counter.csl").write_text(
        "param step: i16;\nvar total: i16 = 0;\nfn bump() void { total += step; }\n"
    )
    head = """
const one = @import_module("counter.csl", .{ .step = 1 });
const five = @import_module("counter.csl", .{ .step = 5 });
fn twice(x: anytype) @type_of(x) { return x + x; }
"""
    body = """
  one.bump(); five.bump(); five.bump();
  out[0] = one.total; out[1] = five.total; out[2] = twice(out[1]);
"""
    assert list(function(tmp_path, body, "i16", 3, head)) == [1, 10, 20]


def test_dead_arms_are_not_checked(tmp_path: Path) -> None:
    body = 'if (@is_arch("wse9")) { @no_such_builtin(nonsense); } else { out[0] = 4; }'
    assert function(tmp_path, body, "i16")[0] == 4


def test_recursion_in_tail_position_does_not_grow_the_stack(tmp_path: Path) -> None:
    head = """
var left: u16 = 30000;
var sum: u16 = 0;
fn ping() void { if (left != 0) { left -= 1; pong(); } }
fn pong() void { sum += 1; ping(); }
"""
    assert function(tmp_path, "ping(); out[0] = sum;", "u16", 1, head)[0] == 30000


def test_bytes_of_a_record_through_pointers(tmp_path: Path) -> None:
    head = "var words = [2]u32{ 0x44332211, 0x88776655 };"
    body = "const b = @ptrcast([*]u8, &words); out[0] = @as(u16, b[5]);"
    assert function(tmp_path, body, "u16", 1, head)[0] == 0x66


@QUICK
@given(st.integers(-32768, 32767), st.integers(-32768, 32767), st.sampled_from("+-*&|^"))
def test_i16_arithmetic_wraps_like_numpy(tmp_path: Path, a: int, b: int, op: str) -> None:
    body = f"var a: i16 = {a}; var b: i16 = {b}; out[0] = a {op} b;"
    wide = {"+": a + b, "-": a - b, "*": a * b, "&": a & b, "|": a | b, "^": a ^ b}[op]
    assert function(tmp_path, body, "i16")[0] == np.array(wide & 0xFFFF, np.uint16).view(np.int16)


@QUICK
@given(
    st.floats(-6e4, 6e4, width=16),
    st.floats(-6e4, 6e4, width=16),
    st.sampled_from("+-*/"),
    st.sampled_from(["f16", "f32"]),
)
def test_float_arithmetic_rounds_like_numpy(
    tmp_path: Path, a: float, b: float, op: str, kind: str
) -> None:
    dtype = np.float16 if kind == "f16" else np.float32
    body = f"out[0] = @as({kind}, {a!r}); out[1] = @as({kind}, {b!r}); out[2] = out[0] {op} out[1];"
    got = function(tmp_path, body, kind, 3)[2]
    x, y = dtype(a), dtype(b)
    with np.errstate(all="ignore"):
        want = {"+": x + y, "-": x - y, "*": x * y, "/": x / y}[op]
    assert got == want or (np.isnan(got) and np.isnan(want))


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("pe", "code", "line"),
    [
        ("fn run() void {\n  var a: u8 = 300;\n}", "csl-range", 5),
        ("fn run() void {\n  nothing();\n}", "csl-unknown-name", 5),
        ("var a: i32 = 1;\nfn run() void {\n  var b: i16 = a;\n}", "csl-type", 6),
        ("param q: i16;\nfn run() void { var b: i16 = q; }", "csl-unbound-param", 4),
        ("const a = b;\nconst b = a;\nfn run() void { var c: i16 = a; }", "csl-cycle", 4),
        ("fn run() void { @fadds(1, 2, 3); }", "csl-type", 4),
        ("task t() void {}\nfn run() void { t(); }", "csl-type", 5),
        ('const m = @import_module("<nowhere>");\nfn run() void {}', "csl-no-library", 4),
        ('const m = @import_module("<time>");\nfn run() void { m.sing(); }', "csl-unsupported", 5),
        ("fn run() void { while (true) }", "csl-syntax", 4),
        ("const big = @zeros([30000]f32);\nfn run() void { var i: u16 = 0; var b = big[i]; }",
         "csl-memory", 0),
    ],
)  # fmt: skip
def test_compile_errors_point_at_their_line(tmp_path: Path, pe: str, code: str, line: int) -> None:
    with pytest.raises(MeshcError) as caught:
        single(tmp_path, pe + "\ncomptime { @export_symbol(run); }", run="fn()void")
    first = caught.value.diagnostics[0]
    assert first.code == code
    assert (first.span.line if first.span else 0) == line


def test_errors_of_several_functions_are_shown_together(tmp_path: Path) -> None:
    pe = """
fn a() void { var x: u8 = 999; }
fn run() void { a(); missing(); }
comptime { @export_symbol(run); }
"""
    with pytest.raises(MeshcError) as caught:
        single(tmp_path, pe, run="fn()void")
    assert {d.code for d in caught.value.diagnostics} == {"csl-range", "csl-unknown-name"}


@pytest.mark.parametrize("text", ["028", "017", "0x_", "0b_", "0x1.8p99999", "9" * 5000])
def test_literals_that_are_no_numbers(text: str) -> None:
    _, diagnostics = parsed(f"const x = {text};")
    (error,) = diagnostics.errors
    assert error.code == "csl-syntax" and error.span is not None and error.span.column == 11


@pytest.mark.parametrize(
    ("head", "body", "result"),
    [
        ("var s: [2]*const fn(i16)i16 = .{ &f, &g };", "out[0] = s[1](3);", 4),
        (
            "const S = struct { at: *const fn(i16)i16 }; var s = S{ .at = &g };",
            "out[0] = s.at(3);",
            4,
        ),
        ("", "const s: [2]*const fn(i16)i16 = .{ &f, &g }; var i: u16 = 1; out[0] = s[i](3);", 4),
        ("", "var s = .{ .at = g }; out[0] = s.at(3);", 4),
    ],
)
def test_functions_in_memory(tmp_path: Path, head: str, body: str, result: int) -> None:
    functions = "fn f(x: i16) i16 { return x; } fn g(x: i16) i16 { return x + 1; }\n"
    assert function(tmp_path, body, "i16", head=functions + head) == [result]


@pytest.mark.parametrize("name", ["u" + "9" * 5000, "i65", "i0", "u\u00b2"])
def test_names_that_are_no_types(tmp_path: Path, name: str) -> None:
    with pytest.raises(MeshcError):
        function(tmp_path, f"var a: {name} = 1;", "f32")


@pytest.mark.parametrize("offset", ["1.5", "@as(f16, 1)", "true"])
def test_an_offset_is_an_integer(tmp_path: Path, offset: str) -> None:
    vec = "const vec = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{2} -> out[i] });"
    with pytest.raises(MeshcError, match="offset must be an integer"):
        function(tmp_path, f"{vec} @fmovs(@increment_dsd_offset(vec, {offset}, f32), 1.0);", "f32")


def test_a_function_has_no_bits(tmp_path: Path) -> None:
    with pytest.raises(MeshcError, match="@bitcast from"):
        function(tmp_path, "out[0] = @bitcast(i16, f);", "i16", head="fn f() void {}")


def test_numbers_beyond_every_float(tmp_path: Path) -> None:
    huge = "9" * 400
    assert function(tmp_path, f"out[0] = @as(f32, {huge});", "f32") == [np.inf]
    assert function(tmp_path, f"out[0] = @as(f16, -{huge});", "f16") == [-np.inf]
    assert function(tmp_path, f"out[0] = @as(f32, {huge} + 1.0);", "f32") == [np.inf]
    with pytest.raises(MeshcError, match="inf is no integer"):
        function(tmp_path, "const a = @as(comptime_int, 1e300 * 1e300);", "f32")


BRANCHED = "a variable of code that runs at compile time is changed"


@pytest.mark.parametrize(
    "body",
    [
        "comptime var i: u16 = 0; if (out[0] == 0) { i = 1; } out[0] = i;",
        "comptime var i: u16 = 0; while (out[0] < 3) { i += 1; out[0] += 1; }",
        "var s = .{ .a = @as(u16, 1) }; if (out[0] == 0) { s.a = 2; } out[0] = s.a;",
        "comptime var i: u16 = 0; if (out[0] == 0) { comptime { i += 4; } } out[0] = i;",
        "comptime var i: u16 = 0; const b = out[0] == 0 and blk: { i = 1; break :blk true; };"
        " if (b) out[0] = i;",
    ],
)
def test_mistakes_with_comptime_variables_in_branches(tmp_path: Path, body: str) -> None:
    with pytest.raises(MeshcError, match=BRANCHED):
        function(tmp_path, body, "u16")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("comptime var i: u16 = 0; inline for (@range(u16, 3)) |k| { i += k; } out[0] = i;", 3),
        ("comptime var i: u16 = 0; if (true) { i += 4; } out[0] = i;", 4),
        ("if (out[0] == 0) { comptime var i: u16 = 0; i += 4; out[0] = i; }", 4),
        ("for (@range(u16, 2)) |k| { comptime var i: u16 = 1; i += 1; out[0] += i; }", 4),
    ],
)
def test_comptime_variables_of_a_branch_are_its_own(
    tmp_path: Path, body: str, expected: int
) -> None:
    assert function(tmp_path, body, "u16")[0] == expected


def test_a_function_may_ask_not_to_be_inlined(tmp_path: Path) -> None:
    head = "noinline fn more(x: u16) u16 { return x + 1; }"
    assert function(tmp_path, "out[0] = more(3);", "u16", head=head)[0] == 4


@pytest.mark.parametrize(
    ("head", "words"),
    [
        ('const m = @import_module("<message_passing>");', "coordinates"),
        ("var d: f64 = 1.5;", "routines"),
        ("const d = @get_dsr(dsr_fifo_dest, 1);", "state of a FIFO"),
        ("const c = @get_dsd(circbuf_dsd, .{ .extent = 1 });", "pass its end"),
    ],
)
def test_refused_parts_say_what_they_would_take(tmp_path: Path, head: str, words: str) -> None:
    with pytest.raises(MeshcError, match=words) as caught:
        function(
            tmp_path,
            "",
            "u16",
            head=head + " comptime { _ = X; }".replace("X", head.split()[1].rstrip(":")),
        )
    assert caught.value.diagnostics[0].code == "csl-unsupported"


def test_parameters_of_a_module_may_come_in_a_named_struct(tmp_path: Path) -> None:
    (tmp_path / "inner.csl").write_text(
        "param a: u16; param b: u16; fn sum() u16 { return a + b; }"
    )
    head = """
const P = struct { a: u16, b: u16 };
const given = P{ .a = 3, .b = 4 };
const inner = @import_module("inner.csl", given);
"""
    assert function(tmp_path, "out[0] = inner.sum();", "u16", head=head)[0] == 7


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("comptime { return; }", "runs on a PE cannot return"),
        ("switch (out[0]) { 0 => { comptime { return; } }, else => {} }", "cannot return"),
        ("out[0] = early();", "cannot return"),
        ("while (out[0] < 3) { comptime { break; } }", "no loop to leave"),
        ("a: while (out[0] < 3) { comptime { continue :a; } }", "no loop to leave"),
        ("comptime { a: { break :b; } }", "no loop to leave"),
        ("a: { continue :a; }", "no loop to leave"),
        ("comptime { a: { continue :a; } }", "no loop to leave"),
        ("inline for (@range(u16, 3)) |k| { comptime { if (k == 1) break; } }", "no loop to leave"),
        ("out[0] = value;", "no function to return from"),
    ],
)
def test_nothing_leaves_what_runs_at_compile_time(tmp_path: Path, body: str, words: str) -> None:
    head = "fn early() u16 { comptime { return 3; } } const value: u16 = a: { return 3; };"
    with pytest.raises(MeshcError, match=words) as caught:
        function(tmp_path, body, "u16", head=head)
    assert all(d.span is not None for d in caught.value.diagnostics)


@pytest.mark.parametrize("word", ["return", "break", "continue"])
def test_nothing_leaves_a_layout_or_a_file(tmp_path: Path, word: str) -> None:
    for layout, pe in ((f"layout {{ {word}; }}", ""), (SINGLE, f"comptime {{ {word}; }}")):
        files = {"layout.csl": layout.replace("EXPORTS", ""), "pe.csl": PE_HEAD + pe}
        with pytest.raises(MeshcError, match=r"there is no (loop|function)"):
            Run(tmp_path, files, "wse3")


def test_blocks_and_loops_of_compile_time_are_left(tmp_path: Path) -> None:
    body = """
  comptime { a: { break :a; } }
  out[0] = comptime a: { break :a 3; };
  comptime var sum: u16 = 0;
  comptime { a: for (@range(u16, 9)) |k| { for (@range(u16, 9)) |j| {
    if (j == 2) continue :a; if (k == 4) break :a; sum += k; } } }
  out[1] = sum;
"""
    assert function(tmp_path, body, "u16", count=2).tolist() == [3, 12]
