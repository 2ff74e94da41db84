"""Packed structs, and unions of all three kinds: what their fields have in common in memory."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from csl_runner import function, single

from meshc.support.diagnostics import MeshcError

HEADER = "const Header = packed struct { kind: u4, length: u12 };"
WORD = HEADER + "const Word = union { header: Header, bits: u16 };"
DEEP = (
    "const E = enum(u3) { X, Y = 5 }; const In = packed struct { a: i3, on: bool };"
    "const P = packed struct { e: E, in: In, h: f16, n: i9 };"
)


@pytest.mark.parametrize(
    ("head", "body", "expected"),
    [
        (WORD, "var w = Word{ .header = .{ .kind = 3, .length = 5 } }; out[0] = w.bits;", 83),
        (WORD, "const w = Word{ .header = .{ .kind = 3, .length = 5 } }; out[0] = w.bits;", 83),
        (WORD, "var w: Word = undefined; w.bits = 83; out[0] = w.header.length;", 5),
        (WORD + "var w = Word{ .bits = 0x1234 };", "w.header.kind = 7; out[0] = w.bits;", 0x1237),
        (WORD + "var w = Word{ .bits = 0x1234 };", "w.header.length += 1; out[0] = w.bits;",
         0x1244),
        (WORD + "var k: u4 = 9;",
         "out[0] = (Word{ .header = .{ .kind = k, .length = @as(u12, k) } }).bits;", 0x99),
        (HEADER, "var h = [2]Header{ .{ .kind = 1, .length = 2 }, .{ .kind = 3, .length = 4 } };"
         " var i: u16 = 1; h[i].kind = 8; out[0] = @bitcast(u16, h[i]);", 0x48),
        (HEADER + "var raw: u16 = 0x1234;",
         "const h = @bitcast(Header, raw); out[0] = h.length;", 0x123),
        (HEADER, "comptime { @comptime_assert(@bitcast(Header, @as(u16, 0x1234)).kind == 4); }"
         " out[0] = 1;", 1),
        (HEADER + "fn f(h: Header) u16 { return h.length * 16 + h.kind; } var k: u4 = 2;",
         "out[0] = f(.{ .kind = k, .length = 3 });", 50),
        (DEEP, "var p = P{ .e = E.Y, .in = .{ .a = -1, .on = true }, .h = -2.0, .n = -3 };"
         " out[0] = @as(u16, @bitcast(u32, p) & 0xffff);", 0b1_111_101),
        (DEEP, "var p = P{ .e = E.Y, .in = .{ .a = -1, .on = true }, .h = -2.0, .n = -3 };"
         " out[0] = @as(u16, @bitcast(u32, p) >> 16);",
         ((0x1FD << 23) | (0xC000 << 7)) >> 16),
        (DEEP, "var p: P = undefined; p.in.a = -2; p.e = E.Y; p.h = 1.5; p.n = -200;"
         " p.in.on = true; p.n += 1; const in = p.in;"
         " if (p.in.a == -2 and in.a == -2 and p.e == E.Y and p.h == 1.5 and p.n == -199 and in.on)"
         " { out[0] = 1; }", 1),
        ("const W = packed union { f: f32, bits: u32 };",
         "var w: W = undefined; w.bits = 0; w.f = 1.0; out[0] = @as(u16, w.bits >> 16);", 0x3F80),
        ("const W = extern union { f: f32, bits: u32 };",
         "var w: W = undefined; w.bits = 0; w.f = 1.0; out[0] = @as(u16, w.bits >> 16);", 0x3F80),
        ("const W = packed union { low: u4, bits: u16 };",
         "var w = W{ .bits = 0xABCD }; w.low = 1; out[0] = w.bits + w.low;", 0xABC2),
        ("const W = union { low: u4, bits: u16 };",
         "var w = W{ .bits = 0xABCD }; out[0] = w.low;", 0xD),
        ("const W = union { f: f32, half: [2]u16 }; fn upper(x: f32) u16 { var w: W = undefined;"
         " w.f = x; w.half[0] = 1; w.f *= 1.0; return w.half[1]; }",
         "out[0] = comptime upper(1.0);", 0x3F80),
        ("const In = packed struct { a: u3, b: u2 }; const U = union { in: In, bits: u16 };"
         "const Out = packed struct { in: In, rest: u11 };",
         "var u = U{ .bits = 0xFFFF }; var o = Out{ .in = .{ .a = 0, .b = 0 }, .rest = 0 };"
         " o.in = u.in; out[0] = @bitcast(u16, o);", 0x1F),
        ("const S = extern struct { a: u16, b: u32 };",
         "var s = S{ .a = 1, .b = 2 }; out[0] = @ptrcast([*]u16, &s)[2];", 2),
    ],
)  # fmt: skip
def test_fields_share_their_bits(tmp_path: Path, head: str, body: str, expected: int) -> None:
    assert function(tmp_path, body, "u16", head=head)[0] == expected


@pytest.mark.parametrize(
    ("head", "body", "words"),
    [
        ("const P = packed struct { a: [2]u8 };", "var p: P = undefined; p.a[0] = 1;",
         "cannot be packed"),
        ("const P = packed struct { a: u40, b: u40 };", "var p: P = undefined; p.a = 1;",
         "a packed type of 80 bits"),
        (HEADER, "var h: Header = undefined; const p = &h.length; p.* = 1;", "no address"),
        (WORD, "var w = Word{ .bits = 1, .header = .{ .kind = 1, .length = 2 } }; out[0] = w.bits;",
         "names one field"),
        (HEADER, "var h: Header = undefined; out[0] = @as(u16, h);", "@as from"),
        ("const S = struct { a: u16, b: u16 };",
         "var s = S{ .a = 1, .b = 2 }; out[0] = @as(u16, @bitcast(u32, s));", "@bitcast from"),
        ("const S = struct { a: u16 };", "var s = S{ .a = 1 }; var r = s; if (s == r) out[0] = 1;",
         "not defined"),
    ],
)  # fmt: skip
def test_what_packed_types_refuse(tmp_path: Path, head: str, body: str, words: str) -> None:
    with pytest.raises(MeshcError, match=words):
        function(tmp_path, body, "u16", head=head)


def packed_program(rng: random.Random, number: int) -> tuple[str, int]:
    """A packed struct whose fields are written in random order, and the bits that it has then."""
    widths, left = list[int](), rng.choice([16, 32, 64])
    while left:
        widths.append(min(left, rng.randint(1, 20)))
        left -= widths[-1]
    signs = [rng.choice("ui") for _ in widths]
    kinds = [f"{sign}{width}" for sign, width in zip(signs, widths, strict=True)]
    fields = ", ".join(f"f{i}: {kind}" for i, kind in enumerate(kinds))
    values = [rng.randrange(1 << width) for width in widths]
    total = sum(v << sum(widths[:i]) for i, v in enumerate(values))
    order = rng.sample(range(len(widths)), len(widths))
    lines = []
    for i in order:
        signed = values[i] - (1 << widths[i]) * (signs[i] == "i" and values[i] >> (widths[i] - 1))
        lines.append(f"s{number}.f{i} = {signed};")
        lines.append(f"if (s{number}.f{i} != {signed}) wrong += 1;")
    size = sum(widths)
    start = rng.randrange(1 << size)
    text = (
        f"const P{number} = packed struct {{ {fields} }};\n"
        f"var s{number} = @bitcast(P{number}, @as(u{size}, {start}));\n"
        f"fn run{number}() void {{ {' '.join(lines)}"
        f" out[{number}] = @as(u64, @bitcast(u{size}, s{number})); }}"
    )
    return text, total


def test_random_packed_structs(tmp_path: Path) -> None:
    rng = random.Random(5)
    made = [packed_program(rng, i) for i in range(24)]
    pe = (
        "\n".join(text for text, _ in made)
        + f"""
var wrong: u16 = 0;
var out = @zeros([24]u64);
var wrong_ptr: [*]u16 = &wrong;
var out_ptr: [*]u32 = @ptrcast([*]u32, &out);
fn run() void {{ {" ".join(f"run{i}();" for i in range(24))} sys.unblock_cmd_stream(); }}
comptime {{ @export_symbol(run); @export_symbol(out_ptr, "out");
           @export_symbol(wrong_ptr, "wrong"); }}
"""
    )
    program = single(tmp_path, pe, run="fn()void", out="[*]u32", wrong="[*]u16")
    program.launch("run")
    found = program.read("out", 48, "u4").astype(np.uint64)
    assert (found[::2] + (found[1::2] << np.uint64(32))).tolist() == [t for _, t in made]
    assert program.read("wrong", 1, "u2")[0] == 0
