"""Cycles of the CSL simulator beside published measurements.

    python benchmarks/simulator_truth.py [--only WORDS] [--backend auto|python|c] [--json]

Each row is a minimal program of our own with the shape of what was measured: between two time
stamps, or from the log of its prints. A row that calibrates a constant of the cycle model says so;
all others are predictions. The error is the distance to the nearest end of what was measured.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from measuring import table

from meshc.sim.compiler import compile_program
from meshc.sim.host.runtime import OPTIONS, Runtime
from meshc.sim.machine.options import Options
from meshc.sim.storage import save_program


@dataclass(frozen=True)
class Row:
    """``simulate`` gives what ``low`` to ``high`` was measured for, in cycles unless named."""

    name: str
    low: float
    high: float
    kind: str
    simulate: Callable[[], float]


@dataclass(frozen=True)
class Result:
    name: str
    measured: str
    simulated: float
    error: float
    kind: str


LAYOUT = """
const memcpy = @import_module("<memcpy/get_params>", .{ .width = WIDTH, .height = 1 });
layout {
  @set_rectangle(WIDTH, 1);
  for (@range(i16, WIDTH)) |x| {
    const params = .{ .memcpy_params = memcpy.get_params(x), .x = x };
    @set_tile_code(x, 0, "pe.csl", params);
    ROUTES
  }
  @export_name("out", [*]u32, true); @export_name("run", fn()void);
}
"""
HEAD = """
param memcpy_params: comptime_struct; param x: i16;
const sys = @import_module("<memcpy/memcpy>", memcpy_params);
const time = @import_module("<time>");
var t0 = @zeros([3]u16); var t1 = @zeros([3]u16);
var out = @zeros([2]u32); var out_ptr: [*]u32 = &out;
comptime { @export_symbol(out_ptr, "out"); @export_symbol(run); }
"""


def launched(pe: str, arch: str = "wse2", width: int = 1, routes: str = "") -> Runtime:
    """A program on a row of PEs whose function ``run`` has been run on all of them."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        layout = LAYOUT.replace("WIDTH", str(width)).replace("ROUTES", routes)
        (folder / "layout.csl").write_text(layout, encoding="utf-8")
        (folder / "pe.csl").write_text(HEAD + pe, encoding="utf-8")
        program = compile_program(str(folder / "layout.csl"), arch, {}, {}, (0, 0), (4, 1))
        save_program(program, folder)
        runtime = Runtime(str(folder))
        runtime.load()
    runtime.launch("run", ())
    runtime._settle()
    return runtime


def interval(body: str, head: str = "", arch: str = "wse2") -> float:
    """Cycles between two time stamps around ``body``."""
    runtime = launched(
        f"""
{head}
fn run() void {{
  time.enable_tsc();
  time.get_timestamp(&t0);
  {body}
  time.get_timestamp(&t1);
  out[0] = @as(u32, t1[0]) | @as(u32, t1[1]) << 16;
  out[1] = @as(u32, t0[0]) | @as(u32, t0[1]) << 16;
  sys.unblock_cmd_stream();
}}
""",
        arch,
    )
    words = np.zeros(2, np.uint32)
    runtime.d2h(words, "out", (0, 0, 1, 1), 2, 0, 0)
    return float(words[0]) - float(words[1])


def vectors(n: int, shift: int, step: int = 1) -> str:
    """Registers over f32 arrays: ``dst`` and ``s0`` on one, ``s1`` on one ``shift`` words on."""
    size = n * step + 4 - n * step % 4
    return f"""
var a = @zeros([{size}]f32); var b = @zeros([{size}]f32);
const a_dsd = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{{n}}} -> a[{step} * i] }});
const b_dsd = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{{n}}} -> b[i + {shift}] }});
const dst = @get_dsr(dsr_dest, 1); const s0 = @get_dsr(dsr_src0, 1);
const s1 = @get_dsr(dsr_src1, 1);
comptime {{ @load_to_dsr(dst, a_dsd); @load_to_dsr(s0, a_dsd); @load_to_dsr(s1, b_dsd); }}
"""


def product(nt: int, kt: int, m: int, column_steps: bool) -> float:
    """C[nt, m] += A[nt, kt] B[kt, m] by columns; the columns of C lie apart or in one piece."""
    step, ahead = (m, 1) if column_steps else (1, nt)
    head = f"""
var a = @zeros([{kt * nt}]f32); var b = @zeros([{kt * m}]f32); var c = @zeros([{m * nt}]f32);
const a_dsd = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{{nt}}} -> a[i] }});
const c_dsd = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{{nt}}} -> c[{step} * i] }});
const dst = @get_dsr(dsr_dest, 1); const s0 = @get_dsr(dsr_src0, 1);
const s1 = @get_dsr(dsr_src1, 1);
comptime {{ @load_to_dsr(dst, c_dsd); @load_to_dsr(s0, c_dsd); @load_to_dsr(s1, a_dsd); }}
"""
    body = f"""
  var j: i16 = 0;
  while (j < {m}) : (j += 1) {{
    @set_dsr_base_addr(dst, &c[{ahead} * j]);
    @set_dsr_base_addr(s0, &c[{ahead} * j]);
    var k: i16 = 0;
    while (k < {kt}) : (k += 1) {{
      @set_dsr_base_addr(s1, &a[{nt} * k]);
      @fmacs(dst, s0, s1, b[k * {m} + j]);
    }}
  }}"""
    return interval(body, head)


SPARSE = """
var value = @zeros([32]f32); var row = @zeros([32]i32); var column = @zeros([32]i32);
var pitch: i32 = 8; var total: f32 = 0.0;
var b = @zeros([512]f32); var c = @zeros([512]f32);
const b_dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{1} -> b[i] });
const c_dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{1} -> c[i] });
const dst = @get_dsr(dsr_dest, 1); const s1 = @get_dsr(dsr_src1, 1);
comptime { @load_to_dsr(dst, c_dsd); @load_to_dsr(s1, b_dsd); }
"""


def scalar_loop() -> float:
    """Per iteration of a sparse product, without its vector operation."""
    body = """
  var i: i32 = 0;
  while (i < 32) : (i += 1) {
    const from = column[@as(u16, i)] * pitch;
    const to = row[@as(u16, i)] * pitch;
    total = value[@as(u16, i)];
    @set_dsr_base_addr(s1, &b[@as(u16, from)]);
    @set_dsr_base_addr(dst, &c[@as(u16, to)]);
  }"""
    return (interval(body, SPARSE) - interval("", SPARSE)) / 32


def descriptors_per_iteration() -> float:
    """Cycles more per iteration when two descriptors are built instead of two bases written."""
    loop = "var i: i16 = 0; while (i < 32) : (i += 1) { const j = i & 1; BODY }"
    written = """@set_dsr_base_addr(dst, &a[j]); @set_dsr_base_addr(s1, &b[j]);
    @fmuls(dst, s1, 2.0);"""
    built = "@fmuls(@set_dsd_base_addr(a_dsd, &a[j]), @set_dsd_base_addr(b_dsd, &b[j]), 2.0);"
    head = vectors(64, 1)
    return (
        interval(loop.replace("BODY", built), head) - interval(loop.replace("BODY", written), head)
    ) / 32


def per_element(body: str, step: int, shift: int) -> float:
    """From the difference of two lengths, so that the set-up drops out."""
    long, short = (interval(body, vectors(n, shift, step)) for n in (256, 128))
    return (long - short) / 128


SEND = """
const c = @get_color(3); const q = @get_output_queue(2);
var data = @zeros([64]f32);
const mem = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{64} -> data[i] });
const to = @get_dsd(fabout_dsd, .{ .extent = 64, .fabric_color = c, .output_queue = q });
comptime { @set_local_color_config(c, .{ .routes = .{ .rx = .{RAMP}, .tx = .{RAMP} } }); }
"""


def send() -> float:
    """A synchronous move of 64 words to the fabric, without the time stamps."""
    return interval("@fmovs(to, mem);", SEND) - interval("", SEND)


WAVELETS = """
const c = @get_color(3);
const out_queue = @get_output_queue(2); const in_queue = @get_input_queue(3);
var data = @zeros([64]u32); var got: u16 = 0; var total: u32 = 0;
const mem = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{64} -> data[i] });
const to = @get_dsd(fabout_dsd, .{ .extent = 64, .fabric_color = c, .output_queue = out_queue });
fn run() void {
  time.enable_tsc();
  if (x == 0) { @mov32(to, mem, .{ .async = true }); sys.unblock_cmd_stream(); }
}
task take(word: u32) void {
  total += word;
  got += 1;
  if (got == 64) { sys.unblock_cmd_stream(); }
}
comptime {
  @initialize_queue(out_queue, .{ .color = c }); @initialize_queue(in_queue, .{ .color = c });
  if (x == 1) { @bind_data_task(take, @get_data_task_id(in_queue)); }
}
"""
EASTWARD = """
    const c = @get_color(3);
    if (x == 0) { @set_color_config(x, 0, c, .{ .routes = .{ .rx = .{RAMP}, .tx = .{EAST} } }); }
    else { @set_color_config(x, 0, c, .{ .routes = .{ .rx = .{WEST}, .tx = .{RAMP} } }); }
"""


def data_task() -> float:
    """Cycles per wavelet of a data task on WSE-3 that adds the word to a sum."""
    runtime = launched(WAVELETS, "wse3", 2, EASTWARD)
    return float(runtime.ready.pes[1, 0].cycles_busy) / 64


def to_integer() -> float:
    """A conversion of an f32 variable to i16, with its load and store."""
    head = "var f: f32 = 3.5; var i: i16 = 0;"
    return (interval("i = @as(i16, f);" * 8, head) - interval("", head)) / 8


def division() -> float:
    """An f32 division of variables."""
    head = "var d: f32 = 3.0; var y: f32 = 1.0;"
    return (interval("y = y / d;" * 8, head) - interval("", head)) / 8


def register_load() -> float:
    """One more register loaded at run time in front of a multiplication."""
    head, call = vectors(64, 1), "@fmuls(dst, s0, s1);"
    return interval("@load_to_dsr(s1, b_dsd);" + call, head) - interval(call, head)


def traced_time() -> float:
    """A time stamp written to a trace."""
    head = 'const trace = @import_module("<debug>", .{ .key = "trace", .buffer_size = 100 });'
    return interval("trace.trace_timestamp();", head) - interval("", head)


MULTIPLY, ACCUMULATE = "@fmuls(dst, s0, s1);", "@fmacs(dst, s0, s1, 2.0);"
ROWS = [
    Row("product 16x16x32 on 2x2 PEs", 9756, 9756, "predicted",
        lambda: product(8, 8, 32, True)),
    Row("product 64x64x32", 88_795, 88_795, "predicted", lambda: product(32, 32, 32, True)),
    Row("product 16x16x128", 38_844, 38_844, "predicted", lambda: product(8, 8, 128, True)),
    Row("product 64x64x128", 357_853, 357_853, "predicted", lambda: product(32, 32, 128, True)),
    Row("@fmacs, destination stays in its bank, per element", 2.03, 2.03, "calibrates",
        lambda: per_element(ACCUMULATE, 4, 1)),
    Row("@fmacs, nothing conflicts, per element", 1.1, 1.2, "calibrates",
        lambda: per_element(ACCUMULATE, 1, 1)),
    Row("@fmuls of registers apart, n = 1028", 1034, 1034, "calibrates",
        lambda: interval(MULTIPLY, vectors(1028, 1))),
    Row("@fmuls of registers apart, n = 5124", 5130, 5130, "predicted",
        lambda: interval(MULTIPLY, vectors(5124, 1))),
    Row("@fmuls in one bank group, n = 1028", 2062, 2062, "predicted",
        lambda: interval(MULTIPLY, vectors(1028, 0))),
    Row("@fmuls in one bank group, n = 5124", 10_254, 10_254, "predicted",
        lambda: interval(MULTIPLY, vectors(5124, 0))),
    Row("one more register load", 27, 28, "calibrates", register_load),
    Row("two descriptors built, not two bases written", 14, 14, "predicted",
        descriptors_per_iteration),
    Row("scalar loop of a sparse product, per iteration", 34, 34, "predicted", scalar_loop),
    Row("f32 to i16", 100, 100, "calibrates", to_integer),
    Row("time stamp of a trace", 50, 54, "calibrates", traced_time),
    Row("f32 division", 50, 50, "calibrates", division),
    Row("synchronous @fmovs of 64 words to the fabric", 66, 66, "calibrates", send),
    Row("data task on WSE-3, per wavelet (below 20)", 0, 20, "predicted", data_task),
]  # fmt: skip


def result_of(row: Row) -> Result:
    """A row with what the simulator says; an error of 0 lies within what was measured."""
    simulated = row.simulate()
    nearest = min(max(simulated, row.low), row.high)
    error = (simulated - nearest) / nearest if nearest else 0.0
    measured = f"{row.low:g}" if row.low == row.high else f"{row.low:g} to {row.high:g}"
    return Result(row.name, measured, round(simulated, 2), round(error, 4), row.kind)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", metavar="WORDS", default="", help="rows with these words")
    parser.add_argument("--backend", default="auto", choices=("auto", "python", "c"))
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    OPTIONS[0] = Options(backend=args.backend)
    results = [result_of(row) for row in ROWS if args.only in row.name]
    if args.json:
        print(json.dumps([asdict(r) for r in results], indent=1))
        return
    lines = [(r.name, r.measured, f"{r.simulated:g}", f"{r.error:+.1%}", r.kind) for r in results]
    print(table(("row", "measured", "simulated", "error", ""), lines))


if __name__ == "__main__":
    main()
