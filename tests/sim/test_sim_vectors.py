"""Vector operations, descriptors, registers and @map against NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from csl_runner import function, single
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshc.sim.machine.compute import fma16, fma32

N = 9
QUICK = settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def elementwise(folder: Path, op: str, kind: str, arrays: list[Any], dst_kind: str) -> Any:
    """``op`` on arrays of one length."""
    length = len(arrays[0])
    names = [f"s{i}" for i in range(len(arrays))]
    declare = "\n".join(
        f"var {n} = @zeros([{length}]{kind}); var {n}_ptr: [*]{kind} = &{n};\n"
        f"const {n}_dsd = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{{length}}} -> {n}[i] }});"
        for n in names
    )
    pe = f"""
{declare}
var d = @zeros([{length}]{dst_kind}); var d_ptr: [*]{dst_kind} = &d;
const d_dsd = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{{length}}} -> d[i] }});
fn run() void {{
  @{op}(d_dsd, {", ".join(n + "_dsd" for n in names)});
  sys.unblock_cmd_stream();
}}
comptime {{
  {" ".join(f'@export_symbol({n}_ptr, "{n}");' for n in names)}
  @export_symbol(d_ptr, "d"); @export_symbol(run);
}}
"""
    symbols = dict.fromkeys([*names, "d"], f"[*]{kind}")
    program = single(folder, pe, run="fn()void", **{**symbols, "d": f"[*]{dst_kind}"})
    for name, array in zip(names, arrays, strict=True):
        program.write(name, array)
    program.launch("run")
    dtypes = {"u16": "u2", "i16": "i2", "u32": "u4", "f16": "f2", "f32": "f4"}
    return program.read("d", length, dtypes[dst_kind])


def sample(kind: str, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    if kind == "u16":
        return rng.integers(0, 1 << 16, N).astype(np.uint16)
    if kind == "i16":
        return rng.integers(-300, 300, N).astype(np.int16)
    if kind == "u32":
        return rng.integers(0, 1 << 32, N).astype(np.uint32)
    return (rng.standard_normal(N) * 10).astype(np.float16 if kind == "f16" else np.float32)


CASES: dict[str, tuple[str, str, Any]] = {
    "mov16": ("u16", "u16", lambda a: a),
    "mov32": ("u32", "u32", lambda a: a),
    "add16": ("u16", "u16", lambda a, b: a + b),
    "sub16": ("u16", "u16", lambda a, b: a - b),
    "and16": ("u16", "u16", lambda a, b: a & b),
    "or16": ("u16", "u16", lambda a, b: a | b),
    "xor16": ("u16", "u16", lambda a, b: a ^ b),
    "popcnt": ("u16", "u16", lambda a: [int(v).bit_count() for v in a]),
    "clz": ("u16", "u16", lambda a: [16 - int(v).bit_length() for v in a]),
    "fadds": ("f32", "f32", np.add),
    "fsubs": ("f32", "f32", np.subtract),
    "fmuls": ("f32", "f32", np.multiply),
    "fmaxs": ("f32", "f32", np.maximum),
    "fnegs": ("f32", "f32", np.negative),
    "fabss": ("f32", "f32", np.abs),
    "faddh": ("f16", "f16", np.add),
    "fsubh": ("f16", "f16", np.subtract),
    "fmulh": ("f16", "f16", np.multiply),
    "fmaxh": ("f16", "f16", np.maximum),
    "fnegh": ("f16", "f16", np.negative),
    "fh2s": ("f16", "f32", lambda a: a.astype(np.float32)),
    "fs2h": ("f32", "f16", lambda a: a.astype(np.float16)),
    "xp162fs": ("i16", "f32", lambda a: a.astype(np.float32)),
    "fs2xp16": ("f32", "i16", lambda a: np.rint(a).astype(np.int16)),
}


@pytest.mark.parametrize("op", sorted(CASES))
def test_elementwise_operations(tmp_path: Path, op: str) -> None:
    kind, dst_kind, expected = CASES[op]
    count = expected.nin if isinstance(expected, np.ufunc) else expected.__code__.co_argcount
    arrays = [sample(kind, seed) for seed in range(count)]
    got = elementwise(tmp_path, op, kind, arrays, dst_kind)
    np.testing.assert_array_equal(got, np.asarray(expected(*arrays), got.dtype))


# Numbers that are halves, half way between two, or beside these, where the spacing changes or ends.
EDGES = np.unique([
    np.float32(1 + last / 2048 + beside / 2**21) * np.float32(2) ** exponent
    for exponent in range(-27, 18)
    for last in (0, 1, 2, 3, 1023, 1024, 2045, 2046, 2047)
    for beside in (-1, 0, 1)
]).astype(np.float32)  # fmt: skip


@pytest.mark.parametrize("sign", [1, -1])
def test_numbers_become_the_nearest_halves(tmp_path: Path, sign: int) -> None:
    numbers = np.append(EDGES, np.float32([0, np.inf])) * np.float32(sign)
    with np.errstate(over="ignore"):
        want = numbers.astype(np.float16)
    got = elementwise(tmp_path, "fs2h", "f32", [numbers], "f16")
    np.testing.assert_array_equal(got.view(np.uint16), want.view(np.uint16))


def test_halves_become_the_same_numbers(tmp_path: Path) -> None:
    halves = np.arange(0, 1 << 16, 13, dtype=np.uint16).view(np.float16)
    got = elementwise(tmp_path, "fh2s", "f16", [halves[~np.isnan(halves)]], "f32")
    np.testing.assert_array_equal(got, halves[~np.isnan(halves)].astype(np.float32))


@QUICK
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=3, max_size=3))
def test_fused_multiply_add_rounds_once(values: list[float]) -> None:
    from_fractions = np.float64(0)
    a, b, c = (np.float32(v) for v in values)
    with np.errstate(all="ignore"):
        got = fma32(np.array([a]), np.array([b]), c)[0]
        wide = np.longdouble(a) + np.longdouble(b) * np.longdouble(c)
        want = np.float32(wide)
    assert from_fractions == 0
    near = np.isfinite(want) and abs(np.longdouble(got) - wide) <= abs(np.longdouble(want) - wide)
    assert near or got == want


def test_half_precision_fma_differs_from_two_roundings() -> None:
    a, b, c = np.float16(1), np.float16(1.001), np.float16(-1.001)
    assert fma16(a, b, c) == np.float16(np.float64(a) + np.float64(b) * np.float64(c))


@QUICK
@given(st.integers(1, 6), st.integers(-3, 3), st.integers(0, 4))
def test_strides_and_offsets(tmp_path: Path, n: int, stride: int, offset: int) -> None:
    start = offset + (0 if stride >= 0 else -stride * (n - 1))
    head = "var a = @zeros([40]f32); var b = @zeros([40]f32);"
    body = f"""
  for (@range(i16, 40)) |i| {{ a[i] = @as(f32, i); }}
  var s = @get_dsd(mem1d_dsd, .{{ .base_address = &a, .extent = {n}, .stride = {stride} }});
  s = @increment_dsd_offset(s, {start}, f32);
  const d = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{{n}}} -> out[i] }});
  @fmovs(d, s);
"""
    got = function(tmp_path, body, "f32", 40, head)[:n]
    np.testing.assert_array_equal(got, start + stride * np.arange(n))


def test_length_is_that_of_the_first_source(tmp_path: Path) -> None:
    head = "var a = [5]u16{1, 2, 3, 4, 5};"
    body = """
  const s = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{3} -> a[i] });
  const d = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{5} -> out[i] });
  @mov16(d, s);
"""
    assert list(function(tmp_path, body, "u16", 5, head)) == [1, 2, 3, 0, 0]


def test_a_scalar_destination_reduces(tmp_path: Path) -> None:
    head = "var a = [4]f32{1.0, -2.0, 7.5, 3.0}; var m: f32 = 0.0;"
    body = """
  const s = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> a[i] });
  @fmaxs(&m, m, s); out[0] = m;
  const acc = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> out[1] });
  @fadds(acc, acc, s);
"""
    assert list(function(tmp_path, body, "f32", 2, head)) == [7.5, 9.5]


def test_four_dimensional_access_and_its_explicit_form(tmp_path: Path) -> None:
    head = "var a = @zeros([3, 4]f32);"
    body = """
  for (@range(i16, 3)) |i| { for (@range(i16, 4)) |j| { a[i, j] = @as(f32, 10 * i + j); } }
  const t = @get_dsd(mem4d_dsd, .{ .tensor_access = |j,i|{4, 3} -> a[i, j] });
  const d = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{12} -> out[i] });
  @fmovs(d, t);
  const e = @get_dsd(mem4d_dsd, .{ .base_address = &a, .extent = .{3, 2}, .stride = .{1, 3} });
  const f = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{6} -> out[12 + i] });
  @fmovs(f, e);
"""
    got = function(tmp_path, body, "f32", 18, head)
    grid = 10 * np.arange(3)[:, None] + np.arange(4)
    np.testing.assert_array_equal(got[:12], grid.T.reshape(-1))
    np.testing.assert_array_equal(got[12:], grid[:, :2].reshape(-1))


def test_registers_keep_their_address_when_asked(tmp_path: Path) -> None:
    head = """
var a = [6]f32{1.0, 2.0, 3.0, 4.0, 5.0, 6.0};
const dst = @get_dsr(dsr_dest, 1);
const src = @get_dsr(dsr_src1, 1);
"""
    body = """
  @load_to_dsr(dst, @get_dsd(mem1d_dsd, .{ .base_address = &out, .extent = 2 }),
               .{ .save_address = true });
  @load_to_dsr(src, @get_dsd(mem1d_dsd, .{ .base_address = &a, .extent = 2 }));
  @fmovs(dst, src); @fmovs(dst, src);
"""
    assert list(function(tmp_path, body, "f32", 4, head)) == [1, 2, 1, 2]


def test_map_with_scalars_pointers_and_results(tmp_path: Path) -> None:
    head = """
var a = [4]i16{1, 2, 3, 4};
fn scale(x: i16, k: i16) i16 { return x * k; }
fn total(x: i16, so_far: *i16) i16 { return so_far.* + x; }
const s = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> a[i] });
const d = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> out[i] });
"""
    body = "@map(scale, s, 3, d); @map(total, s, &out[4], &out[4]);"
    assert list(function(tmp_path, body, "i16", 5, head)) == [3, 6, 9, 12, 10]


def test_an_overrun_is_remarked(tmp_path: Path) -> None:
    pe = """
var a = @zeros([8]u16); var small = @zeros([4]u16); var after = @zeros([8]u16);
fn run() void {
  const s = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{8} -> a[i] });
  const d = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> small[i] });
  @mov16(d, s); after[0] = 1;
  sys.unblock_cmd_stream();
}
comptime { @export_symbol(run); }
"""
    program = single(tmp_path, pe, run="fn()void")
    program.launch("run")
    assert list(program.machine.remarks) == [("csl-bounds", "pe.csl small")]


TIMED = """
const time = @import_module("<time>");
var t0 = @zeros([3]u16); var t1 = @zeros([3]u16);
var pad = @zeros([1]f32);
var a = @zeros([256]f32); var b = @zeros([257]f32); var c = @zeros([256]f32);
const ad = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{256} -> a[i] });
const bd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{256} -> b[i + SHIFT] });
const cd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{256} -> c[i] });
const dst = @get_dsr(dsr_dest, 1);
const s0 = @get_dsr(dsr_src0, 1);
const s1 = @get_dsr(dsr_src1, 1);
comptime { @load_to_dsr(dst, cd); @load_to_dsr(s0, ad); @load_to_dsr(s1, bd); }
"""


@pytest.mark.parametrize(("same_banks", "cycles"), [(False, 256 + 6), (True, 2 * 256 + 6)])
def test_multiply_takes_the_measured_time(tmp_path: Path, same_banks: bool, cycles: int) -> None:
    body = """
  a[0] = 1.0; b[0] = 1.0;
  time.get_timestamp(&t0); @fmuls(dst, s0, s1); time.get_timestamp(&t1);
  out[0] = t1[0] - t0[0];
"""
    for shift in ("0", "1"):
        got = int(function(tmp_path, body, "u16", 1, TIMED.replace("SHIFT", shift))[0])
        if abs(got - cycles) <= 0.1 * cycles:
            return
    pytest.fail(f"no placement takes about {cycles} cycles (last: {got})")
