"""The cycle model against published measurements, and the documented rules of speed.

Rows that calibrate a constant of costs.toml say so; the others are predictions of the model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from csl_runner import PE_HEAD, Run, exports, function, single

TIMER = """
const time = @import_module("<time>");
var t0 = @zeros([3]u16); var t1 = @zeros([3]u16);
"""
REGISTERS = (
    TIMER
    + """
var a = @zeros([SIZE]f32); var b = @zeros([SIZE]f32);
const a_dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{N} -> a[i] });
const b_dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{N} -> b[i + SHIFT] });
const dst = @get_dsr(dsr_dest, 1);
const s0 = @get_dsr(dsr_src0, 1);
const s1 = @get_dsr(dsr_src1, 1);
comptime { @load_to_dsr(dst, a_dsd); @load_to_dsr(s0, a_dsd); @load_to_dsr(s1, b_dsd); }
"""
)


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


def registers(n: int, conflict: bool) -> str:
    """Two f32 arrays whose elements fall in the same bank group, or in different ones."""
    size = n + 4 - n % 4  # whole rows of the banks keep both arrays alike modulo 16 bytes
    text = REGISTERS.replace("SIZE", str(size)).replace("N}", f"{n}}}")
    return text.replace("SHIFT", "0" if conflict else "1")


@pytest.mark.parametrize(
    ("n", "conflict", "measured"),
    [
        (5124, False, 5130),  # calibrates the set-up of an operation
        (5124, True, 10254),
        (1028, False, 1034),
        (1028, True, 2062),
    ],
)
def test_multiply_over_registers(tmp_path: Path, n: int, conflict: bool, measured: int) -> None:
    assert interval(tmp_path, "@fmuls(dst, s0, s1);", registers(n, conflict)) == measured


def test_multiply_accumulate_on_one_bank_group(tmp_path: Path) -> None:
    """Measured: 2n + 4 to 2n + 7 cycles a call. A prediction."""
    n, calls = 32, 16
    body = "@fmacs(dst, s0, s1, 2.0);" * calls
    per_call = interval(tmp_path, body, registers(n, True)) / calls
    assert 0.9 * (2 * n + 4) <= per_call <= 1.1 * (2 * n + 7)


def test_multiply_accumulate_in_map(tmp_path: Path) -> None:
    """The same row for the shape of a matrix-vector product: one call per column. Calibrates
    the cost of a call by ``@map``."""
    n, calls = 32, 16
    head = (
        registers(n, True)
        + f"""
var scale = @zeros([{calls}]f32);
const scales = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{{calls}}} -> scale[i] }});
fn step(factor: f32) void {{ @fmacs(dst, s0, s1, factor); }}
"""
    )
    per_call = interval(tmp_path, "@map(step, scales);", head) / calls
    assert 0.9 * (2 * n + 4) <= per_call <= 1.1 * (2 * n + 7)


def test_loading_a_register(tmp_path: Path) -> None:
    """Measured: about 28 cycles. Calibrates ``load_dsr``."""
    empty = interval(tmp_path, "")
    got = interval(tmp_path, "@load_to_dsr(dst, a_dsd);", registers(8, True)) - empty
    assert got == pytest.approx(28, rel=0.1)


def test_a_time_stamp(tmp_path: Path) -> None:
    """Measured: time stamp and start of an operation about 6 cycles. Calibrates ``timestamp``."""
    assert interval(tmp_path, "@fmuls(dst, s0, s1);", registers(8, False)) - 8 == 6


def test_sources_of_unequal_strides_meet_every_second_time(tmp_path: Path) -> None:
    """Bank groups repeat every eight bytes: a source that stays in one meets another that does
    not in every second step. Predicted by the documented rule."""
    text = """
var x = @zeros([257]f32); var y = @zeros([130]f32); var z = @zeros([130]f32);
const a = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{N} -> x[2 * i + OFF] });
const b = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{N} -> y[i] });
const d = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{N} -> z[i] });
"""
    for offset in (0, 1):
        times = [
            interval(
                tmp_path,
                "@fmuls(d, a, b);",
                TIMER + text.replace("{N}", f"{{{n}}}").replace("OFF", str(offset)),
            )
            for n in (64, 128)
        ]
        assert (times[1] - times[0]) / 64 == 1.5


@pytest.mark.parametrize(("shift", "cycles"), [(0, 2.0), (1, 1.0)])
def test_rows_of_grids_meet_as_vectors_do(tmp_path: Path, shift: int, cycles: float) -> None:
    """The rule of bank groups holds for the innermost dim of operands with several."""
    text = """
var x = @zeros([N, 8]f32); var y = @zeros([N, 9]f32); var z = @zeros([N, 8]f32);
const a = @get_dsd(mem4d_dsd, .{ .tensor_access = |i, j|{N, 8} -> x[i, j] });
const b = @get_dsd(mem4d_dsd, .{ .tensor_access = |i, j|{N, 8} -> y[i, j + SHIFT] });
const d = @get_dsd(mem4d_dsd, .{ .tensor_access = |i, j|{N, 8} -> z[i, j] });
"""
    times = [
        interval(
            tmp_path,
            "@fmuls(d, a, b);",
            TIMER + text.replace("N", str(n)).replace("SHIFT", str(shift)),
        )
        for n in (8, 16)
    ]
    assert (times[1] - times[0]) / 64 == cycles


def test_a_synchronous_send(tmp_path: Path) -> None:
    """Measured: a move of n words from memory to the fabric takes n + 2 cycles. Calibrates
    ``fabric_out``."""
    n = 64
    head = (
        TIMER
        + f"""
param c: color = @get_color(3);
const q = @get_output_queue(2);
var data = @zeros([{n}]u32);
const mem = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{{n}}} -> data[i] }});
const to = @get_dsd(fabout_dsd, .{{ .extent = {n}, .fabric_color = c, .output_queue = q }});
comptime {{ @set_local_color_config(c, .{{ .routes = .{{ .rx = .{{RAMP}}, .tx = .{{RAMP}} }} }}); }}
"""
    )
    got = interval(tmp_path, "@mov32(to, mem);", head) - interval(tmp_path, "", head)
    assert got == pytest.approx(n + 2, rel=0.1)


@pytest.mark.parametrize(
    ("mode", "wavelets"),
    [("", 64), (", .simd_mode = .{ .simd_32 = true }", 32),
     (", .simd_mode = .{ .simd_64 = true }", 32)],
)  # fmt: skip
@pytest.mark.parametrize("arch", ["wse2", "wse3"])
def test_two_values_share_a_wavelet(tmp_path: Path, mode: str, wavelets: int, arch: str) -> None:
    """64 values of f16 take as long as their wavelets, one per cycle. Predicted."""
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
    assert interval(tmp_path, "@fmovh(to, mem);", head, arch) - empty == wavelets + 2


def test_a_division(tmp_path: Path) -> None:
    """Published: about 50 cycles for an f32 division. Calibrates the cost of ``/``."""
    head = TIMER + "var x: f32 = 3.0; var y: f32 = 1.0;"
    body = "y = y / x;" * 8
    got = (interval(tmp_path, body, head) - interval(tmp_path, "", head)) / 8
    assert got == pytest.approx(50, rel=0.1)


# --- a published log: tasks that print, with the cycle of each line ---

PRINTERS = {
    "send.csl": """
const prt = @import_module("<simprint>");
param c: color; param n: u16;
const q = @get_output_queue(2);
var data = @zeros([n]u32);
const mem = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{n} -> data[i] });
const to = @get_dsd(fabout_dsd, .{ .extent = n, .fabric_color = c, .output_queue = q });
const last_id = @get_local_task_id(8);
task last() void { prt.print_string("sender ends\\n"); sys.unblock_cmd_stream(); }
fn run() void {
  prt.print_string("sender begins\\n");
  @fmovs(to, mem, .{ .async = true, .activate = last });
}
comptime { @bind_local_task(last, last_id); @export_symbol(run); }
""",
    "recv.csl": """
const prt = @import_module("<simprint>");
const place = @import_module("<layout>");
param c: color; param n: u16;
var total: u32 = 0; var seen: u16 = 0;
var kept = @zeros([n]u32);
fn where() void {
  prt.print_string("at ("); prt.print_u16_decimal(place.get_x_coord());
  prt.print_string(", "); prt.print_u16_decimal(place.get_y_coord()); prt.print_string(") ");
}
task take(word: u32) void {
  where();
  prt.print_string("word "); prt.print_u32_decimal(word);
  kept[seen] = word;
  total += 2 * word;
  prt.print_string(", total "); prt.print_u32_decimal(total); prt.print_string("\\n");
  seen += 1;
  if (seen == n) { sys.unblock_cmd_stream(); }
}
fn run() void {}
comptime { @bind_data_task(take, @get_data_task_id(c)); @export_symbol(run); }
""",
}
ROW = """
param n: u16;
const c = @get_color(3);
const memcpy = @import_module("<memcpy/get_params>", .{ .width = WIDTH, .height = 1 });
layout {
  @set_rectangle(WIDTH, 1);
  for (@range(i16, WIDTH)) |x| {
    const params = .{ .memcpy_params = memcpy.get_params(x), .c = c, .n = n };
    const last = x == WIDTH - 1;
    if (x == 0) { @set_tile_code(x, 0, "send.csl", params); }
    else if (last) { @set_tile_code(x, 0, "LAST.csl", params); }
    else { @set_tile_code(x, 0, "recv.csl", params); }
    ROUTES
  }
  EXPORTS
}
"""
BROADCAST = """
    if (x == 0) { @set_color_config(x, 0, c, .{ .routes = .{ .rx = .{RAMP}, .tx = .{EAST} } }); }
    else if (last) { @set_color_config(x, 0, c, .{ .routes = .{ .rx = .{WEST}, .tx = .{RAMP} } }); }
    else { @set_color_config(x, 0, c, .{ .routes = .{ .rx = .{WEST}, .tx = .{RAMP, EAST} } }); }
"""


def row(folder: Path, files: dict[str, str], width: int, routes: str, **options: Any) -> Run:
    """A row of PEs: send.csl, then recv.csl, and at the end the file named by ``last``."""
    layout = ROW.replace("WIDTH", str(width)).replace("ROUTES", routes)
    layout = layout.replace("LAST", options.get("last", "recv"))
    layout = layout.replace("EXPORTS", exports(**{"run": "fn()void", **options.get("symbols", {})}))
    texts = {name: PE_HEAD + text for name, text in files.items()}
    params = {"n": options.get("n", 5)}
    return Run(folder, {"layout.csl": layout, **texts}, "wse2", params=params)


def test_the_log_of_printing_tasks(tmp_path: Path) -> None:
    """Published cycles: the sender's lines at 968 and 996, the receiver's at 1156, 1338, 1520.

    The distance of the receiver's lines calibrates ``print``; the other two are predictions.
    """
    program = row(tmp_path, PRINTERS, 4, BROADCAST)
    program.launch("run")
    lines = program.machine.print_log
    times = {
        who: [int(line[1:].split()[0]) for line in lines if who in line]
        for who in ("sender", "(1, 0)", "(3, 0)")
    }
    first, second = times["sender"]
    near = times["(1, 0)"]
    assert second - first == pytest.approx(996 - 968, rel=0.1)
    assert near[0] - first == pytest.approx(1156 - 968, rel=0.1)
    assert np.diff(near) == pytest.approx(1338 - 1156, rel=0.1)
    assert times["(3, 0)"][0] - near[0] == 2 * program.machine.costs.hop


# --- a pipelined reduction along a chain ---

CHAIN = {
    "send.csl": """
param c: color; param n: u16;
const q = @get_output_queue(2);
var data = @zeros([n]f32);
const mem = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{n} -> data[i] });
const to = @get_dsd(fabout_dsd, .{ .extent = n, .fabric_color = c, .output_queue = q });
fn run() void { @fmovs(to, mem, .{ .async = true }); sys.unblock_cmd_stream(); }
comptime { @export_symbol(run); }
""",
    "recv.csl": """
param c: color; param n: u16;
const other = @get_color(4);
const q = @get_output_queue(2); const iq = @get_input_queue(3);
param from: color = c; param onto: color = other;
var data = @zeros([n]f32);
const mem = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{n} -> data[i] });
const to = @get_dsd(fabout_dsd, .{ .extent = n, .fabric_color = onto, .output_queue = q });
const in = @get_dsd(fabin_dsd, .{ .extent = n, .fabric_color = from, .input_queue = iq });
fn run() void { @fadds(to, in, mem, .{ .async = true }); sys.unblock_cmd_stream(); }
comptime { @export_symbol(run); }
""",
}
CHAIN["last.csl"] = (
    CHAIN["recv.csl"]
    .replace("@fadds(to, in, mem", "@fadds(mem, in, mem")
    .replace("sys.unblock_cmd_stream(); }", "}")
    .replace("{ .async = true }", "{ .async = true, .activate = end }")
    + """
task end() void { sys.unblock_cmd_stream(); }
comptime { @bind_local_task(end, @get_local_task_id(9)); }
"""
)
ALTERNATE = """
    const other = @get_color(4);
    const to_east = .{ .routes = .{ .rx = .{RAMP}, .tx = .{EAST} } };
    const from_west = .{ .routes = .{ .rx = .{WEST}, .tx = .{RAMP} } };
    const odd = @as(u16, x) & 1 == 1;
    if (x == 0) { @set_color_config(x, 0, c, to_east); }
    else {
      @set_color_config(x, 0, if (odd) c else other, from_west);
      if (!last) { @set_color_config(x, 0, if (odd) other else c, to_east); }
    }
"""
COLORS_OF_A_RELAY = ".n = n };"
BY_PARITY = """.n = n };
    const relay = @concat_structs(params, .{
      .from = if (@as(u16, x) & 1 == 1) c else @get_color(4),
      .onto = if (@as(u16, x) & 1 == 1) @get_color(4) else c });"""


def chain_cycles(folder: Path, pes: int, n: int) -> int:
    """Cycles of a sum of vectors of ``n`` elements along ``pes`` PEs."""
    layout = ROW.replace(COLORS_OF_A_RELAY, BY_PARITY)
    layout = layout.replace('"LAST.csl", params', '"last.csl", relay')
    layout = layout.replace('"recv.csl", params', '"recv.csl", relay')
    layout = layout.replace("WIDTH", str(pes)).replace("ROUTES", ALTERNATE)
    layout = layout.replace("EXPORTS", exports(run="fn()void"))
    texts = {name: PE_HEAD + text for name, text in CHAIN.items()}
    program = Run(folder, {"layout.csl": layout, **texts}, "wse2", params={"n": n})
    program.launch("run")
    return int(program.machine.pes[pes - 1, 0].busy_until)


def test_a_relay_of_a_pipelined_chain_costs_six_cycles(tmp_path: Path) -> None:
    """Measured: 6 cycles per PE (calibrates ``ramp`` and ``relay``), one element per cycle."""
    short, long = chain_cycles(tmp_path, 4, 64), chain_cycles(tmp_path, 14, 64)
    assert (long - short) / 10 == pytest.approx(6, rel=0.1)
    assert chain_cycles(tmp_path, 4, 264) - short == pytest.approx(200, rel=0.1)


# --- the documented table of lanes and strides ---

LANES = [
    ("@mov16(d, a)", "u16", 4, 8),
    ("@mov32(d, a)", "u32", 2, 4),
    ("@add16(d, a, b)", "u16", 4, 8),
    ("@addc16(d, a, b)", "u16", 1, 8),
    ("@sll16(d, a, b)", "u16", 1, 4),
    ("@faddh(d, a, b)", "f16", 4, 8),
    ("@fmulh(d, a, b)", "f16", 4, 8),
    ("@fmach(d, a, b, 2.0)", "f16", 4, 8),
    ("@fmaxh(d, a, b)", "f16", 1, 8),
    ("@fadds(d, a, b)", "f32", 2, 4),
    ("@fsubs(d, a, b)", "f32", 2, 4),
    ("@fnegs(d, a)", "f32", 2, 4),
    ("@fmaxs(d, a, b)", "f32", 1, 4),
]  # fmt: skip
VECTORS = (
    TIMER
    + """
var x = @zeros([SIZE]KIND); var y = @zeros([SIZE]KIND); var z = @zeros([SIZE]KIND);
const a = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{N} -> x[STEP * i] });
const b = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{N} -> y[STEP * i + 1] });
const d = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{N} -> z[STEP * i] });
"""
)


def cycles_per_element(folder: Path, call: str, kind: str, step: int, arch: str) -> float:
    """From the difference of two lengths, so that the set-up drops out."""
    times = []
    for n in (64, 128):
        head = VECTORS.replace("SIZE", str(128 * step + 2)).replace("KIND", kind)
        head = head.replace("N}", f"{n}}}").replace("STEP", str(step))
        times.append(interval(folder, call + ";", head, arch))
    return (times[1] - times[0]) / 64


@pytest.mark.parametrize(("call", "kind", "wse2", "wse3"), LANES)
@pytest.mark.parametrize("arch", ["wse2", "wse3"])
def test_lanes(
    tmp_path: Path, call: str, kind: str, wse2: int, wse3: int, arch: str
) -> None:  # fmt: skip
    lanes = wse2 if arch == "wse2" else wse3
    assert cycles_per_element(tmp_path, call, kind, 1, arch) == pytest.approx(1 / lanes)


@pytest.mark.parametrize(("step", "lanes"), [(1, 4), (2, 4), (3, 4), (5, 4), (7, 2), (9, 2),
                                             (4, 2), (8, 1)])  # fmt: skip
def test_stride_classes(tmp_path: Path, step: int, lanes: int) -> None:
    """Documented: full speed at 0, 1 and 2, 3, 5, 6 modulo 8; two at 1, 7 and 4; one at 8."""
    assert cycles_per_element(tmp_path, "@mov16(d, a)", "u16", step, "wse2") == pytest.approx(
        1 / lanes
    )


def test_time_passes_while_a_task_spins(tmp_path: Path) -> None:
    """A program may wait for the counter to reach a number."""
    body = """
  var loops: u16 = 0;
  time.enable_tsc();
  while (t0[0] < 1000) { time.get_timestamp(&t0); loops += 1; }
  out[0] = loops;
"""
    assert 20 <= int(function(tmp_path, body, "u16", 1, TIMER)[0]) <= 250
