"""Everything is computed once and from left to right: random programs against a judge."""

from __future__ import annotations

from pathlib import Path

import pytest
from csl_runner import function, single
from evaluation_judge import Judge, TooLong
from evaluation_programs import Maker, Writer

from meshc.support.diagnostics import MeshcError

COUNTER = "var z: u32 = 5; fn bump() u32 { z += 1; return z; }"
PAIR = "const S = struct { a: u32, b: u32 }; var s = S{ .a = 1, .b = 2 };"


@pytest.mark.parametrize(
    ("head", "body", "expected"),
    [
        ("var z: u32 = 5; fn f(s: anytype) u32 { z += 1; return s.a; }",
         "out[0] = f(.{ .a = z });", 5),
        ("fn f(s: anytype) u32 { return s.a; }", "var k: u32 = 4; out[0] = f(.{ .a = k });", 4),
        (COUNTER + "fn f(a: u32, b: u32) u32 { return a * 100 + b; }",
         "out[0] = f(z, bump());", 506),
        (COUNTER, "out[0] = z * 100 + bump();", 506),
        (COUNTER, "z += bump(); out[0] = z;", 11),
        (COUNTER, "const s = .{ .in = .{ .a = z } }; z += 1; out[0] = s.in.a;", 5),
        (COUNTER, "var s = .{ .a = z }; z += 1; out[0] = s.a;", 5),
        (COUNTER + "fn f(s: anytype) u32 { return s[0] * 100 + s[1].q * 10 + s[2]; }",
         "out[0] = f(.{ z, .{ .q = bump() }, z - 4 });", 562),
        (COUNTER + "fn f(r: anytype) u32 { z += 3; var t: u32 = 0; for (r) |i| { t += i; }"
         " return t; }", "out[0] = f(@range(u32, z));", 10),
        (COUNTER, "const T = @type_of(bump()); const q: T = 3; out[0] = z + q;", 8),
        (COUNTER, "out[0] = [2]u32{ z, bump() }[0];", 5),
        (PAIR + "fn f(p: S) u32 { s.a = 9; return p.a; }", "out[0] = f(s);", 1),
        (PAIR + "fn f(p: S) u32 { s.a = 9; return p.a; } var p: *const fn (S) u32 = &f;",
         "out[0] = p(s);", 1),
        (PAIR, "s = S{ .a = s.b, .b = s.a }; out[0] = s.a * 10 + s.b;", 21),
        (COUNTER + "var a = @zeros([8, 9]u32);",
         "a[bump(), bump()] = 3; out[0] = a[6, 7] * 10 + z;", 37),
        (COUNTER + PAIR + "var a: [9]S = undefined;",
         "a[bump()].b = 7; out[0] = a[6].b * 10 + z;", 76),
        ("var a = [3]u32{ 1, 2, 3 };", "for (a) |v, i| { a[i] = 0; out[0] += v; }", 6),
        ("fn f(s: anytype) u32 { return s.g(s.x); } fn twice(x: u32) u32 { return 2 * x; }"
         " var z: u32 = 4;", "out[0] = f(.{ .g = twice, .x = z });", 8),
        (COUNTER + "var m = [3]u32{ 1, 2, 3 };"
         "var d = @get_dsd(mem1d_dsd, .{ .base_address = &m, .extent = 3 });"
         "fn shorter() u32 { d = @set_dsd_length(d, 1); return 7; }",
         "@mov32(d, shorter()); out[0] = m[0] + m[1] + m[2];", 21),
    ],
)  # fmt: skip
def test_values_are_those_of_their_time(
    tmp_path: Path, head: str, body: str, expected: int
) -> None:
    assert function(tmp_path, body, "u32", head=head)[0] == expected


@pytest.mark.parametrize("index", ["i / 2", "i >> 2", "i % 3", "i & 3"])
def test_a_tensor_access_is_affine_at_its_ends_too(tmp_path: Path, index: str) -> None:
    with pytest.raises(MeshcError, match="must be affine"):
        function(tmp_path, "", "u32", 16, f"""
const d = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{16}} -> out[{index}] }});
comptime {{ @comptime_assert(@type_of(d) == mem1d_dsd); }}
""")  # fmt: skip


def wanted(seed: int) -> tuple[str, list[int]] | None:
    """A program about ``seed`` and its results; None when it takes too long."""
    made = Maker(seed)
    try:
        results = Judge(made).results
    except TooLong:
        return None
    return Writer(made, f"n{seed}_").text(), results


def check(folder: Path, seeds: range) -> int:
    """Run the programs of ``seeds`` as one; how many there were."""
    cases = {seed: case for seed in seeds if (case := wanted(seed)) is not None}
    exported = "".join(
        f"var n{seed}_ptr: [*]u32 = &n{seed}_out; "
        f'comptime {{ @export_symbol(n{seed}_ptr, "out{seed}"); }}\n'
        for seed in cases
    )
    calls = " ".join(f"n{seed}_run();" for seed in cases)
    pe = (
        "\n".join(text for text, _ in cases.values())
        + f"""
{exported}
fn run() void {{ {calls} sys.unblock_cmd_stream(); }}
comptime {{ @export_symbol(run); }}
"""
    )
    names = {f"out{seed}": "[*]u32" for seed in cases}
    program = single(folder, pe, run="fn()void", **names)
    program.launch("run")
    found = {seed: program.read(f"out{seed}", 3, "u4").tolist() for seed in cases}
    assert found == {seed: results for seed, (_, results) in cases.items()}
    return len(cases)


def test_random_programs(tmp_path: Path) -> None:
    assert check(tmp_path, range(40)) > 30


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 5400, 100))
def test_many_random_programs(tmp_path: Path, first: int) -> None:
    total = 0
    for start in range(first + 1000, first + 1100, 20):
        folder = tmp_path / str(start)
        folder.mkdir()
        total += check(folder, range(start, start + 20))
    assert total > 80
