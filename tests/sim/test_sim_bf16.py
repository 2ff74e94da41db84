"""Programs compiled with ``--fp16-format=bf16``: storage, vector operations and scalar code against
numbers worked out in float64, on the Python and the C machine."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from csl_runner import PE_HEAD, SINGLE, Run, exports

from meshc.sim.exact_numbers import float_bits, float_from_bits
from meshc.sim.sema.csl_types import BF16
from meshc.support.diagnostics import MeshcError

N = 24
PATTERNS = [0x0000, 0x8000, 0x7F80, 0xFF80, 0x7FC0, 0x0001, 0x7F7F, 0xFF7F, 0x3F80, 0xBF80]
"""Zeros, infinities, no number, the least and the largest numbers, ones."""


def numbers(patterns: Any) -> list[float]:
    return [float_from_bits(BF16, int(p)) for p in patterns]


def nearest(value: float) -> int:
    """The pattern of the bf16 number nearest to a float64, ties to even, by exact fractions."""
    if math.isnan(value) or math.isinf(value):
        return float_bits(BF16, value)
    sign, size = (0x8000 if math.copysign(1, value) < 0 else 0), abs(Fraction(value))
    below = max((p for p in (0, *_POSITIVE) if Fraction(numbers([p])[0]) <= size), default=0)
    if below == 0x7F7F:
        above = Fraction(2) ** 128
    else:
        above = Fraction(numbers([below + 1])[0])
    middle = (Fraction(numbers([below])[0]) + above) / 2
    up = size > middle or (size == middle and below % 2)
    return sign | (below + bool(up))


_POSITIVE = range(1, 0x7F80)


def rounded(values: Any) -> list[int]:
    return [float_bits(BF16, float(np.float32(v))) for v in values]


def program(folder: Path, body: str, head: str = "", **arrays: str) -> Run:
    declared = "\n".join(
        f"var {n} = @zeros([{N}]{kind}); var {n}_ptr: [*]{kind} = &{n};\n"
        f"const {n}_dsd = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{{N}}} -> {n}[i] }});"
        for n, kind in arrays.items()
    )
    names = " ".join(f'@export_symbol({n}_ptr, "{n}");' for n in arrays)
    pe = f"""{PE_HEAD}{declared}
{head}
fn run() void {{ {body} sys.unblock_cmd_stream(); }}
comptime {{ {names} @export_symbol(run); }}
"""
    symbols = {n: f"[*]{kind}" for n, kind in arrays.items()}
    layout = SINGLE.replace("EXPORTS", exports(**symbols, run="fn()void"))
    return Run(folder, {"layout.csl": layout, "pe.csl": pe}, "wse3", half=BF16)


def drawn(seed: int) -> np.ndarray:
    more = np.random.default_rng(seed).integers(0x3D00, 0x4200, N - len(PATTERNS))
    signs = np.random.default_rng(seed + 1).integers(0, 2, more.size) << 15
    return np.concatenate([np.roll(PATTERNS, seed), more | signs]).astype(np.uint16)


def same(found: Any, wanted: Any) -> None:
    """Equal bit for bit; one no number is as good as another."""
    nan = [(int(p) & 0x7FFF) > 0x7F80 for p in wanted]
    assert [(int(p) & 0x7FFF) > 0x7F80 for p in found] == nan
    assert [int(f) for f, n in zip(found, nan, strict=True) if not n] == [
        int(w) for w, n in zip(wanted, nan, strict=True) if not n
    ]


def test_vector_operations(tmp_path: Path) -> None:
    """Each on every combination of special numbers that the draw has, in one program."""
    a, b = drawn(0), drawn(3)
    x, y = np.array(numbers(a)), np.array(numbers(b))
    with np.errstate(all="ignore"):
        product = np.array(numbers(rounded(x * y)))
        wanted = {
            "faddh": rounded(x + y), "fsubh": rounded(x - y), "fmulh": rounded(x * y),
            "fmach": rounded(x + product), "fnegh": [int(p) ^ 0x8000 for p in a],
            "fabsh": [int(p) & 0x7FFF for p in a], "fmovh": a,
        }  # fmt: skip
        wide = {"fh2s": x.astype("f4"), "faddhs": np.float32(1.5) + x.astype("f4"),
                "fmachs": np.float32(1.5) + x.astype("f4") * y.astype("f4")}  # fmt: skip
    count = {"faddh": 2, "fsubh": 2, "fmulh": 2, "fnegh": 1, "fabsh": 1, "fmovh": 1}
    lines = [f"@{op}({op}_dsd, {', '.join(['a_dsd', 'b_dsd'][:n])});" for op, n in count.items()]
    lines += [
        "@fmovh(fmach_dsd, a_dsd); const two = @as(bf16, 1.0);",
        "@fmulh(scaled_dsd, a_dsd, 2.5); @fs2h(narrow_dsd, f_dsd); @fh2s(fh2s_dsd, a_dsd);",
        "@fmovs(faddhs_dsd, 1.5); @faddhs(faddhs_dsd, faddhs_dsd, a_dsd);",
        "@fmovs(fmachs_dsd, 1.5); @map(step, b_dsd);",
        "@fmovh(set_dsd, 0.1); @fmach(fmach_dsd, fmach_dsd, b_dsd, two);",
        "for (@range(u16, 24)) |i| { cast[i] = @as(bf16, f[i]); back[i] = @as(f32, a[i]); }",
    ]
    head = (
        "var at: u16 = 0;\nfn step(factor: bf16) void { fmachs[at] += @as(f32, factor); at += 1; }"
    )
    kinds = {**dict.fromkeys(["a", "b", *wanted, "scaled", "narrow", "set", "cast"], "bf16"),
             **dict.fromkeys([*wide, "f", "back"], "f32")}  # fmt: skip
    run = program(tmp_path, "\n".join(lines), head, **kinds)
    halves = np.random.default_rng(5).integers(0, 1 << 32, N, np.uint64).astype(np.uint32)
    halves[:6] = [0x3F808000, 0x3F818000, 0x3F808001, 0x7F7F8000, 0x7F800001, 0x00008000]
    run.write("a", a)
    run.write("b", b)
    run.write("f", halves.view(np.float32))
    run.launch("run")
    with np.errstate(all="ignore"):
        wanted["fmach"] = rounded(x + y)  # the product is with one
        wide["fmachs"] = np.float32(1.5) + y.astype("f4")
        scaled = rounded(x * 2.5)
    for op, patterns in wanted.items():
        same(run.read(op, N, np.uint16), patterns)
    for op, values in wide.items():
        np.testing.assert_array_equal(run.read(op, N, np.float32), values, op)
    same(run.read("scaled", N, np.uint16), scaled)
    same(run.read("set", N, np.uint16), [0x3DCD] * N)
    exact = [nearest(float(v)) for v in halves.view(np.float32)]
    same(run.read("narrow", N, np.uint16), exact)
    same(run.read("cast", N, np.uint16), exact)
    np.testing.assert_array_equal(run.read("back", N, np.float32), x.astype("f4"))


def test_products_into_f32_and_multiply_accumulates(tmp_path: Path) -> None:
    """Products of @fmachs are not rounded to bf16; those of @fmach are, by themselves."""
    a, b = drawn(2), drawn(4)
    x, y = np.array(numbers(a)), np.array(numbers(b))
    body = (
        "@fmovs(s_dsd, 1.5); @fmachs(s_dsd, s_dsd, a_dsd, 0.3); @fmach(b_dsd, b_dsd, a_dsd, 0.3);"
    )
    run = program(tmp_path, body, a="bf16", b="bf16", s="f32")
    run.write("a", a)
    run.write("b", b)
    run.launch("run")
    third = numbers([nearest(0.3)])[0]
    with np.errstate(all="ignore"):
        wide = np.float32(1.5) + x.astype("f4") * np.float32(third)
        narrow = rounded(y + np.array(numbers(rounded(x * third))))
    np.testing.assert_array_equal(run.read("s", N, np.float32), wide)
    same(run.read("b", N, np.uint16), narrow)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("var x: f16 = 1.0; a[0] = 1.0;", "'x' of type 'f16' must be known at compile time"),
        ("@fmulh(a_dsd, a_dsd, @as(f16, a[0]));", "of type 'f16' must be known"),
    ],
)
def test_the_other_formats_are_known_at_compile_time(tmp_path: Path, body: str, words: str) -> None:
    with pytest.raises(MeshcError, match=words):
        program(tmp_path, body, a="bf16")


def test_one_format_of_a_program(tmp_path: Path) -> None:
    body = "if (@is_same_type(@fp16(), bf16)) { a[0] = @bitcast(bf16, @as(u16, 0x40c0)); }"
    run = program(tmp_path, body + " f[0] = @as(f32, a[0]);", a="bf16", f="f32")
    run.launch("run")
    assert run.read("f", 1, np.float32)[0] == 6.0
