"""Functions as values: pointers to them, in structs and arrays, and what they are not."""

from __future__ import annotations

from pathlib import Path

import pytest
from csl_runner import function

from meshc.support.diagnostics import MeshcError

HEAD = """
fn square(x: u16) u16 { return x * x; }
fn twice(x: u16) u16 { return 2 * x; }
const F = *const fn (u16) u16;
const S = struct { f: F, k: u16 };
const U = union { f: F, k: u16 };
fn call(s: S) u16 { return s.f(s.k); }
fn apply(f: F, x: u16) u16 { return f.*(x); }
fn pass(s: anytype) u16 { return s.f.*(s.x); }
var k: u16 = 3;
"""


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("const f: F = &square; out[0] = f.*(3);", 9),
        ("var f: F = &square; out[0] = f.*(3);", 9),
        ("var f = &square; var p = &f; out[0] = p.*.*(4);", 16),
        ("var f: F = &square; if (f == &square and f != &twice) out[0] = 1;", 1),
        ("const s = S{ .f = &square, .k = 3 }; out[0] = s.f.*(s.k);", 9),
        ("var s = S{ .f = &square, .k = 3 }; s.f = &twice; out[0] = s.f(s.k);", 6),
        ("var t = [2]S{ S{ .f = &square, .k = 3 }, S{ .f = &twice, .k = k } };"
         " var i: u16 = 1; out[0] = t[i].f(t[i].k);", 6),
        ("const t = [2]F{ &square, &twice }; var i: u16 = 1; out[0] = t[i](5);", 10),
        ("var t = .{ .f = square, .g = .{ twice } }; out[0] = t.f(3) + t.g[0](1);", 11),
        ("var f = if (k == 3) &square else &twice; out[0] = f(3);", 9),
        ("out[0] = apply(&square, 3) + apply(&twice, 1);", 11),
        ("out[0] = pass(.{ .f = &square, .x = k });", 9),
        ("out[0] = call(.{ .f = &square, .k = k });", 9),
        ("var u = U{ .f = &square }; out[0] = u.f(3);", 9),
    ],
)  # fmt: skip
def test_functions_are_called(tmp_path: Path, body: str, expected: int) -> None:
    assert function(tmp_path, body, "u16", head=HEAD)[0] == expected


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("var f: F = &square; f.* = twice;", "cannot be assigned to"),
        ("out[0] = @bitcast(u16, &square);", "no addresses"),
        ("const p = @ptrcast(*u16, &square); out[0] = p.*;", "no addresses"),
        ("var f: F = &square; out[0] = @as(u16, f);", "no addresses"),
        ("const u = U{ .f = &square }; out[0] = u.k;", "not known at compile time"),
        ("@assert(square);", "expected a bool"),
        ("switch (square) { else => {} }", "cannot be switched on"),
    ],
)
def test_mistakes_with_functions_have_a_place(tmp_path: Path, body: str, words: str) -> None:
    with pytest.raises(MeshcError, match=words) as caught:
        function(tmp_path, body, "u16", head=HEAD)
    assert all(d.span is not None for d in caught.value.diagnostics)
