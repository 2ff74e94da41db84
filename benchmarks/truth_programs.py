"""Programs on one or two PEs whose cycles were published, and how they are run."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from meshc.sim.csl_compiler import compile_program
from meshc.sim.host.host_operations import OPTIONS, Runtime
from meshc.sim.stored_programs import save_program
from meshc.sim.timing import MACHINE

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


def launched(
    pe: str, arch: str = "wse2", width: int = 1, routes: str = "", layout: str = LAYOUT
) -> Runtime:
    """A program whose function ``run`` has run on all PEs, a row of them without ``layout``."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        layout = layout.replace("WIDTH", str(width)).replace("ROUTES", routes)
        (folder / "layout.csl").write_text(layout, encoding="utf-8")
        (folder / "pe.csl").write_text(HEAD + pe, encoding="utf-8")
        program = compile_program(str(folder / "layout.csl"), arch, {}, {}, (0, 0), (4, 1))
        save_program(program, folder)
        runtime = Runtime(str(folder), replace(OPTIONS[0], strict_queues=False))
        runtime.load()
    runtime.launch("run", ())
    runtime._settle()
    return runtime


def on_the_machine(simulate: Callable[[], float]) -> float:
    """What ``simulate`` gives with the timing model of the machine."""
    before = OPTIONS[0]
    OPTIONS[0] = replace(before, timing=MACHINE)
    try:
        return simulate()
    finally:
        OPTIONS[0] = before


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


def product(nt: int, kt: int, m: int) -> float:
    """C[nt, m] += A[nt, kt] B[kt, m] by columns of C, whose elements lie ``m`` words apart."""
    head = f"""
var a = @zeros([{kt * nt}]f32); var b = @zeros([{kt * m}]f32); var c = @zeros([{m * nt}]f32);
const a_dsd = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{{nt}}} -> a[i] }});
const c_dsd = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{{nt}}} -> c[{m} * i] }});
const dst = @get_dsr(dsr_dest, 1); const s0 = @get_dsr(dsr_src0, 1);
const s1 = @get_dsr(dsr_src1, 1);
comptime {{ @load_to_dsr(dst, c_dsd); @load_to_dsr(s0, c_dsd); @load_to_dsr(s1, a_dsd); }}
"""
    body = f"""
  var j: i16 = 0;
  while (j < {m}) : (j += 1) {{
    @set_dsr_base_addr(dst, &c[j]);
    @set_dsr_base_addr(s0, &c[j]);
    var k: i16 = 0;
    while (k < {kt}) : (k += 1) {{
      @set_dsr_base_addr(s1, &a[{nt} * k]);
      @fmacs(dst, s0, s1, b[k * {m} + j]);
    }}
  }}"""
    return interval(body, head)


def bases(m: int) -> float:
    """Per base that the inner loop of a product by columns writes in ``m`` passes, its operations
    left out."""
    head = f"""
var a = @zeros([8]f32); var c = @zeros([{m}]f32);
const a_dsd = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{1}} -> a[i] }});
const c_dsd = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{1}} -> c[i] }});
const s0 = @get_dsr(dsr_src0, 1); const s1 = @get_dsr(dsr_src1, 1);
comptime {{ @load_to_dsr(s0, c_dsd); @load_to_dsr(s1, a_dsd); }}
"""
    body = f"""
  for (@range(i16, 8)) |k| {{
    @set_dsr_base_addr(s1, &a[k]);
    for (@range(i16, {m})) |j| {{ @set_dsr_base_addr(s0, &c[j]); }}
  }}"""
    return interval(body, head) / (8 * m)


SPARSE = """
const pitch: i32 = 36;
var value = @zeros([NONZEROS]f32); var row = @zeros([NONZEROS]f32);
var column = @zeros([NONZEROS]f32);
var b = @zeros([1152]f32); var c = @zeros([1152]f32);
const b_dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{36} -> b[i] });
const c_dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{36} -> c[i] });
const c_dsr = @get_dsr(dsr_src0, 1); const b_dsr = @get_dsr(dsr_src1, 0);
comptime { @load_to_dsr(c_dsr, c_dsd); @load_to_dsr(b_dsr, b_dsd); }
"""
MULTIPLIED = "@fmacs(c_dsr, c_dsr, b_dsr, factor);"


def per_nonzero(call: str) -> float:
    """Per nonzero of a sparse product by coordinates, with rows of 36, and ``call`` for each:
    ``MULTIPLIED`` or nothing. From the difference of two lengths."""
    body = f"""
  for (@range(i16, NONZEROS)) |k| {{
    const from = @bitcast(i32, column[k]);
    const to = @bitcast(i32, row[k]);
    const factor = value[k];
    @set_dsr_base_addr(b_dsr, &b[pitch * from]);
    @set_dsr_base_addr(c_dsr, &c[pitch * to]);
    {call}
  }}"""
    long, short = (_sparse(body, nonzeros) for nonzeros in (1025, 65))
    return (long - short) / 960


def by_columns(call: str, n: int) -> float:
    """A sparse product with a list of nonzeros for each of ``n`` columns, ``n`` in each."""
    starts = ", ".join(str(n * column) for column in range(n + 1))
    body = f"""
  for (@range(i32, {n})) |j| {{
    const first = starts[j];
    for (@range(i32, starts[j + 1] - first)) |k| {{
      const to = @bitcast(i32, row[first + k]);
      const factor = value[first + k];
      @set_dsr_base_addr(b_dsr, &b[pitch * j]);
      @set_dsr_base_addr(c_dsr, &c[pitch * to]);
      {call}
    }}
  }}"""
    return _sparse(body, n * n, f"var starts = [{n + 1}]i32{{ {starts} }};")


def by_rows(call: str, n: int) -> float:
    """A sparse product with ``n`` nonzeros in each of ``n`` rows."""
    body = f"""
  for (@range(i32, {n})) |j| {{
    const first = j * {n};
    for (@range(i32, {n})) |k| {{
      const from = @bitcast(i32, column[first + k]);
      const factor = value[first + k];
      @set_dsr_base_addr(b_dsr, &b[pitch * from]);
      @set_dsr_base_addr(c_dsr, &c[pitch * j]);
      {call}
    }}
  }}"""
    return _sparse(body, n * n)


def _sparse(body: str, nonzeros: int, head: str = "") -> float:
    text, count = SPARSE + head, str(nonzeros)
    return interval(body.replace("NONZEROS", count), text.replace("NONZEROS", count))


def one(call: str, kind: str, n: int) -> float:
    """Cycles between two stamps around an operation on descriptors without registers."""
    head = LANES.replace("SIZE", str(n + 8)).replace("KIND", kind)
    return interval(call + ";", head.replace("N}", f"{n}}}").replace("STEP", "1"))


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
    body = "".join(f"i = @as(i16, f + {n}.0);" for n in range(8))
    return (interval(body, head) - interval("", head)) / 8 - 1  # the sum


def division() -> float:
    """An f32 division of variables."""
    head = "var d: f32 = 3.0; var y: f32 = 1.0;"
    return (interval("y = y / d;" * 8, head) - interval("", head)) / 8


def register_load() -> float:
    """One more register loaded from a descriptor variable in front of a multiplication."""
    head, call = vectors(64, 1) + "var b_now = b_dsd;", "@fmuls(dst, s0, s1);"
    return interval("@load_to_dsr(s1, b_now);" + call, head) - interval(call, head)


def traced_time() -> float:
    """A time stamp written to a trace."""
    head = 'const trace = @import_module("<debug>", .{ .key = "trace", .buffer_size = 100 });'
    return interval("trace.trace_timestamp();", head) - interval("", head)


LANES = """
var x = @zeros([SIZE]KIND); var y = @zeros([SIZE]KIND); var z = @zeros([SIZE]KIND);
const a = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{N} -> x[STEP * i] });
const b = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{N} -> y[STEP * i + 1] });
const d = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{N} -> z[STEP * i] });
"""


def lanes(call: str, kind: str, step: int, arch: str) -> float:
    """Elements per cycle, from the difference of two lengths."""
    times = []
    for n in (64, 128):
        head = LANES.replace("SIZE", str(128 * step + 8)).replace("KIND", kind)
        head = head.replace("N}", f"{n}}}").replace("STEP", str(step))
        times.append(interval(call + ";", head, arch))
    return 64 / (times[1] - times[0])
