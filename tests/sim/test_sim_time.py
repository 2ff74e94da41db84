"""Documented rules of speed beside those that ``benchmarks/simulator_truth.py`` has rows for."""

from __future__ import annotations

from pathlib import Path

import pytest
from csl_runner import function, single

from meshc.sim.machine.cycle_model import costs_of

TIMER = """
const time = @import_module("<time>");
var t0 = @zeros([3]u16); var t1 = @zeros([3]u16);
"""


def interval(folder: Path, body: str, head: str = TIMER, arch: str = "wse2") -> int:
    """Cycles that ``body`` takes between two time stamps."""
    pe = f"""
{head}
var out = @zeros([1]u32); var out_ptr: [*]u32 = &out;
fn run() void {{
  time.enable_tsc();
  time.get_timestamp(&t0);
  {body}
  time.get_timestamp(&t1);
  out[0] = @as(u32, t1[0] - t0[0]);
  sys.unblock_cmd_stream();
}}
comptime {{ @export_symbol(out_ptr, "out"); @export_symbol(run); }}
"""
    program = single(folder, pe, arch, out="[*]u32", run="fn()void")
    program.launch("run")
    return int(program.read("out", 1, "u4")[0])


@pytest.mark.parametrize(("step", "cycles"), [(2, 1.25), (3, 1.5), (4, 1.25), (5, 2.0)])
def test_sources_of_unequal_strides_meet_now_and_then(
    tmp_path: Path, step: int, cycles: float
) -> None:
    """Bank groups repeat every four words: a source that moves by one meets one that moves by
    two in every fourth step. Predicted by the documented rule."""
    text = """
var x = @zeros([644]f32); var y = @zeros([132]f32); var z = @zeros([132]f32);
const a = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{N} -> x[STEP * i + OFF] });
const b = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{N} -> y[i] });
const d = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{N} -> z[i] });
"""
    for offset in (0, 4):
        times = [
            interval(
                tmp_path,
                "@fmuls(d, a, b);",
                TIMER
                + text.replace("{N}", f"{{{n}}}")
                .replace("OFF", str(offset))
                .replace("STEP", str(step)),
            )
            for n in (64, 128)
        ]
        assert (times[1] - times[0]) / 64 == cycles


@pytest.mark.parametrize(
    ("call", "shift", "cycles"),
    [
        ("@fmuls(d, a, b);", 0, 2.125),
        ("@fmuls(d, a, b);", 1, 1.125),
        ("@fmacs(d, a, b, 2.0);", 0, 2.0),
        ("@fmacs(d, a, b, 2.0);", 1, 1.0),
        ("@fadds(d, a, b);", 0, 1.125),
        ("@fadds(d, a, b);", 1, 1.125),
    ],
)
def test_rows_of_grids_meet_as_vectors_do(
    tmp_path: Path, call: str, shift: int, cycles: float
) -> None:
    """The rule of bank groups holds for the innermost dim of operands with several, whose rows
    take a cycle each, but those of multiply-accumulates none. Sums take half of their lanes there
    and have time for both reads."""
    text = """
var x = @zeros([N, 8]f32); var y = @zeros([N, 9]f32); var z = @zeros([N, 8]f32);
const a = @get_dsd(mem4d_dsd, .{ .tensor_access = |i, j|{N, 8} -> x[i, j] });
const b = @get_dsd(mem4d_dsd, .{ .tensor_access = |i, j|{N, 8} -> y[i, j + SHIFT] });
const d = @get_dsd(mem4d_dsd, .{ .tensor_access = |i, j|{N, 8} -> z[i, j] });
"""
    times = [
        interval(
            tmp_path,
            call,
            TIMER + text.replace("N", str(n)).replace("SHIFT", str(shift)),
        )
        for n in (8, 16)
    ]
    assert (times[1] - times[0]) / 64 == cycles


@pytest.mark.parametrize(("shift", "cycles"), [(0, 3), (1, 2), (2, 2), (4, 3)])
def test_columns_take_turns_where_they_lie_in_one_bank_group(
    tmp_path: Path, shift: int, cycles: int
) -> None:
    """Results that stay in the bank they are read from take two cycles, and a third where the other
    source lies in the same group: of three columns that a stencil adds to another one is."""
    text = """
var x = @zeros([1032]f32); var y = @zeros([1032]f32);
const a = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{N} -> x[8 * i] });
const b = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{N} -> y[8 * i + SHIFT] });
"""
    times = [
        interval(
            tmp_path,
            "@fmacs(a, a, b, 2.0);",
            TIMER + text.replace("{N}", f"{{{n}}}").replace("SHIFT", str(shift)),
        )
        for n in (64, 128)
    ]
    assert (times[1] - times[0] - 2) / 64 == cycles


@pytest.mark.parametrize(
    ("mode", "wavelets"),
    [("", 64), (", .simd_mode = .{ .simd_32 = true }", 32),
     (", .simd_mode = .{ .simd_64 = true }", 32)],
)  # fmt: skip
@pytest.mark.parametrize("arch", ["wse2", "wse3"])
def test_two_values_share_a_wavelet(tmp_path: Path, mode: str, wavelets: int, arch: str) -> None:
    """64 values of f16 take as long as their wavelets, one per cycle, and the start of the
    operation and its two descriptors."""
    head = (
        TIMER
        + f"""
const c = @get_color(3);
const q = @get_output_queue(2);
var data = @zeros([64]f16);
const mem = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{64}} -> data[i] }});
const to = @get_dsd(fabout_dsd, .{{ .extent = 64, .fabric_color = c, .output_queue = q {mode} }});
comptime {{
  if (@is_arch("wse3")) {{ @initialize_queue(q, .{{ .color = c }}); }}
  @set_local_color_config(c, .{{ .routes = .{{ .rx = .{{RAMP}}, .tx = .{{RAMP}} }} }});
}}
"""
    )
    empty = interval(tmp_path, "", head, arch)
    taken = interval(tmp_path, "@fmovh(to, mem);", head, arch) - empty
    assert taken == wavelets + 4 + costs_of(arch).fabric_out


def test_time_passes_while_a_task_spins(tmp_path: Path) -> None:
    """A program may wait for the counter to reach a number."""
    body = """
  var loops: u16 = 0;
  time.enable_tsc();
  while (t0[0] < 1000) { time.get_timestamp(&t0); loops += 1; }
  out[0] = loops;
"""
    assert 20 <= int(function(tmp_path, body, "u16", 1, TIMER)[0]) <= 250
