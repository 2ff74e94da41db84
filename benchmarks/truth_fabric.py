"""Programs on several PEs whose cycles were published: chains, printing tasks, a stencil."""

from __future__ import annotations

from functools import cache

import numpy as np
from truth_programs import launched

from meshc.sim.host.host_operations import Runtime

CHAIN = """
const to_odd = @get_color(3); const to_even = @get_color(4);
const from = if (x & 1 == 1) to_odd else to_even;
const onto = if (x & 1 == 1) to_even else to_odd;
const out_queue = @get_output_queue(2); const in_queue = @get_input_queue(3);
var data = @zeros([{n}]f32);
const mem = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{{n}}} -> data[i] }});
const to = @get_dsd(fabout_dsd, .{{
  .extent = {n}, .fabric_color = onto, .output_queue = out_queue }});
const in = @get_dsd(fabin_dsd, .{{
  .extent = {n}, .fabric_color = from, .input_queue = in_queue }});
const end_id = @get_local_task_id(9);
task end() void {{ sys.unblock_cmd_stream(); }}
fn run() void {{
  if (x == 0) {{ @fmovs(to, mem, .{{ .async = true }}); sys.unblock_cmd_stream(); }}
  else if (x < {last}) {{ @fadds(to, in, mem, .{{ .async = true }}); sys.unblock_cmd_stream(); }}
  else {{ @fadds(mem, in, mem, .{{ .async = true, .activate = end_id }}); }}
}}
comptime {{
  @bind_local_task(end, end_id);
  if (@is_arch("wse3")) {{
    if (x < {last}) {{ @initialize_queue(out_queue, .{{ .color = onto }}); }}
    if (x > 0) {{ @initialize_queue(in_queue, .{{ .color = from }}); }}
  }}
}}
"""
ALONG = """
    const odd = x & 1 == 1;
    const from = if (odd) @get_color(3) else @get_color(4);
    const onto = if (odd) @get_color(4) else @get_color(3);
    if (x > 0) { @set_color_config(x, 0, from, .{ .routes = .{ .rx = .{WEST}, .tx = .{RAMP} } }); }
    if (x < WIDTH - 1) {
      @set_color_config(x, 0, onto, .{ .routes = .{ .rx = .{RAMP}, .tx = .{EAST} } });
    }
"""


def chain(pes: int, n: int, arch: str) -> int:
    """Cycles until the last of ``pes`` PEs has added its ``n`` f32 to those that came by."""
    routes = ALONG.replace("WIDTH", str(pes))
    runtime = launched(CHAIN.format(n=n, last=pes - 1), arch, pes, routes)
    return int(runtime.ready.pes[pes - 1, 0].busy_until)


def relay(arch: str) -> float:
    """Cycles that one more PE adds to a pipelined chain."""
    return (chain(14, 64, arch) - chain(4, 64, arch)) / 10


def stream() -> float:
    """Cycles that one more element adds to a pipelined chain."""
    return (chain(4, 264, "wse2") - chain(4, 64, "wse2")) / 200


LOADED = """
const times = @import_module("<debug>", .{{ .key = "times", .buffer_size = 100 }});
const sum_id = @get_local_task_id(10);
var mine = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{{n}}} -> data[i] }});
var theirs = in;
const mine_dsr = @get_dsr(dsr_src0, 1); const their_dsr = @get_dsr(dsr_src1, 1);
task sum() void {{
  if (x == 0) {{ time.get_timestamp(&t0); }}
  times.trace_timestamp();
  if (x > 0) {{ @load_to_dsr(mine_dsr, mine); @load_to_dsr(their_dsr, theirs); }}
  if (x == 0) {{ @fmovs(to, mem); }}
  else if (x < {last}) {{ @fadds(to, mine_dsr, their_dsr); }}
  else {{
    @fadds(mem, mine_dsr, their_dsr);
    time.get_timestamp(&t1);
    out[0] = @as(u32, t1[0]) | @as(u32, t1[1]) << 16;
  }}
  sys.unblock_cmd_stream();
}}
fn run() void {{ time.enable_tsc(); @activate(sum_id); }}
comptime {{
  @bind_local_task(sum, sum_id);
  @initialize_queue(in_queue, .{{ .color = from }});
  if (@is_arch("wse3")) {{ @initialize_queue(out_queue, .{{ .color = onto }}); }}
}}
"""


def loaded_chain(arch: str) -> float:
    """Cycles of a chain of 15 PEs with 128 f32, whose registers are loaded first and whose
    beginning is traced, from the last PE's start of its task to its end."""
    n, pes = 128, 15
    head, _, _ = CHAIN.format(n=n, last=pes - 1).partition("const end_id")
    text = head + LOADED.format(n=n, last=pes - 1)
    runtime = launched(text, arch, pes, ALONG.replace("WIDTH", str(pes)))
    words = np.zeros(1, np.uint32)
    runtime.d2h(words, "out", (pes - 1, 0, 1, 1), 1, 0, 0)
    started = min(int(pe.busy_until) for pe in runtime.ready.pes.values())
    return float(words[0]) - (started - int(runtime.ready.pes[0, 0].cycles_busy))


PRINTING = """
const prt = @import_module("<simprint>");
const place = @import_module("<layout>");
const c = @get_color(3);
const out_queue = @get_output_queue(2); const in_queue = @get_input_queue(3);
const last_id = @get_local_task_id(8);
var data = @zeros([5]u32); var kept = @zeros([5]u32);
var total: u32 = 0; var seen: u16 = 0;
const mem = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{5} -> data[i] });
const to = @get_dsd(fabout_dsd, .{ .extent = 5, .fabric_color = c, .output_queue = out_queue });
task last() void { prt.print_string("sender ends\\n"); sys.unblock_cmd_stream(); }
task take(word: u32) void {
  prt.print_string("at ("); prt.print_u16_decimal(place.get_x_coord());
  prt.print_string(", "); prt.print_u16_decimal(place.get_y_coord()); prt.print_string(") ");
  prt.print_string("word "); prt.print_u32_decimal(word);
  kept[seen] = word;
  total += 2 * word;
  prt.print_string(", total "); prt.print_u32_decimal(total); prt.print_string("\\n");
  seen += 1;
  if (seen == 5) { sys.unblock_cmd_stream(); }
}
fn run() void {
  if (x > 0) { return; }
  prt.print_string("sender begins\\n");
  @fmovs(to, mem, .{ .async = true, .activate = last });
}
comptime {
  @bind_local_task(last, last_id);
  if (x == 0) { @initialize_queue(out_queue, .{ .color = c }); }
  else {
    @initialize_queue(in_queue, .{ .color = c });
    @bind_data_task(take, @get_data_task_id(in_queue));
  }
}
"""
BROADCAST = """
    const c = @get_color(3);
    if (x == 0) { @set_color_config(x, 0, c, .{ .routes = .{ .rx = .{RAMP}, .tx = .{EAST} } }); }
    else {
      const to = if (x == 3) .{RAMP} else .{RAMP, EAST};
      @set_color_config(x, 0, c, .{ .routes = .{ .rx = .{WEST}, .tx = to } });
    }
"""


@cache
def printed() -> dict[str, list[int]]:
    """Cycles of the lines of a sender and of receivers, which print in data tasks."""
    runtime = launched(PRINTING, "wse3", 4, BROADCAST)
    runtime.ready.run_to_rest()
    log = runtime.ready.print_log
    return {
        who: [int(line[1:].split()[0]) for line in log if who in line]
        for who in ("sender", "(1, 0)", "(3, 0)")
    }


def farther() -> float:
    """Cycles that one PE of distance more adds to a receiver's first line."""
    return (printed()["(3, 0)"][0] - printed()["(1, 0)"][0]) / 2


def around_a_send() -> float:
    """From the line before an asynchronous send to the line of the task that its end starts."""
    first, second = printed()["sender"]
    return second - first


def to_the_receiver() -> float:
    """From the sender's first line to the receiver's first."""
    return printed()["(1, 0)"][0] - printed()["sender"][0]


def between_lines() -> float:
    """From line to line of the receiver."""
    return float(np.diff(printed()["(1, 0)"]).mean())


# --- a five-point stencil whose halos come wavelet by wavelet ---

SIDES = {"east": (1, 0), "west": (-1, 0), "south": (0, 1), "north": (0, -1)}
EDGE = {  # first element that is sent that way, its stride
    "east": ("2 * pitch - 2", "pitch"),
    "west": ("pitch + 1", "pitch"),
    "south": ("n * pitch + 1", "1"),
    "north": ("pitch + 1", "1"),
}
PLACE = {  # of the wavelet with this number that comes from there
    "east": "(east + 1) * pitch - 1",
    "west": "west * pitch",
    "south": "(n + 1) * pitch + south",
    "north": "north",
}
STENCIL_LAYOUT = """
const memcpy = @import_module("<memcpy/get_params>", .{{ .width = 3, .height = 3 }});
layout {{
  @set_rectangle(3, 3);
  for (@range(i16, 3)) |x| {{ for (@range(i16, 3)) |y| {{
    const sides: i16 = (if (x == 1) 2 else 1) + (if (y == 1) 2 else 1);
    @set_tile_code(x, y, "pe.csl", .{{
      .memcpy_params = memcpy.get_params(x), .x = x, .y = y, .sides = sides }});
{routes}
  }} }}
  @export_name("out", [*]u32, true); @export_name("run", fn()void);
}}
"""
STENCIL = """
param y: i16; param sides: i16;
const n: i16 = {n}; const pitch: i16 = n + 2;
var grid = @zeros([{area}]f32); var next = @zeros([{area}]f32);
var old: [*]f32 = &grid; var new: [*]f32 = &next;
const weight = [5]f32 {{ 1.0, 1.0, 1.0, 1.0, -4.0 }};
var came: i16 = 0; var sent: i16 = 0;
const all_came_id = @get_local_task_id(15); const compute_id = @get_local_task_id(10);
fn one_side_came() void {{
  came += 1;
  if (came == sides) {{ @activate(all_came_id); }}
}}
task all_came() void {{
  if (sent == sides) {{ @activate(compute_id); }} else {{ @activate(all_came_id); }}
}}
{sides}
fn run() void {{
  time.enable_tsc();
  time.get_timestamp(&t0);
{sends}
}}
task compute() void {{
  var sum = @get_dsd(mem1d_dsd, .{{ .base_address = &new[pitch + 1], .extent = n }});
  var row = @get_dsd(mem1d_dsd, .{{ .base_address = &old[1], .extent = n }});
  for (@range(i16, n)) |_| {{
    @fmacs(sum, sum, row, weight[0]);
    row = @increment_dsd_offset(row, 2 * pitch, f32);
    @fmacs(sum, sum, row, weight[1]);
    row = @increment_dsd_offset(row, -pitch, f32);
    sum = @increment_dsd_offset(sum, pitch, f32);
  }}
  var down = @get_dsd(mem1d_dsd, .{{
    .base_address = &new[pitch + 1], .stride = pitch, .extent = n }});
  var line = @get_dsd(mem1d_dsd, .{{ .base_address = &old[pitch], .stride = pitch, .extent = n }});
  for (@range(i16, n)) |_| {{
    @fmacs(down, down, line, weight[2]);
    line = @increment_dsd_offset(line, 1, f32);
    @fmacs(down, down, line, weight[4]);
    line = @increment_dsd_offset(line, 1, f32);
    @fmacs(down, down, line, weight[3]);
    line = @increment_dsd_offset(line, -1, f32);
    down = @increment_dsd_offset(down, 1, f32);
  }}
  const before = old;
  old = new;
  new = before;
  time.get_timestamp(&t1);
  out[0] = @as(u32, t1[0]) | @as(u32, t1[1]) << 16;
  out[1] = @as(u32, t0[0]) | @as(u32, t0[1]) << 16;
  sys.unblock_cmd_stream();
}}
comptime {{ @bind_local_task(all_came, all_came_id); @bind_local_task(compute, compute_id); }}
"""
SIDE = """
const {way}_odd = {axis} & 1 == 1;
const to_{way} = if ({way}_odd) @get_color({color} + 1) else @get_color({color});
const from_{way} = if ({way}_odd) @get_color({other}) else @get_color({other} + 1);
const {way}_out = @get_output_queue({queue}); const {way}_in = @get_input_queue({queue});
const {way}_fabric = @get_dsd(fabout_dsd, .{{
  .extent = n, .fabric_color = to_{way}, .output_queue = {way}_out }});
var {way}: i16 = 0;
const sent_{way}_id = @get_local_task_id({task});
task sent_{way}_() void {{ sent += 1; }}
task take_{way}(value: f32) void {{
  {way} += 1;
  old[{place}] = value;
  if ({way} == n) {{ {way} = 0; one_side_came(); }}
}}
comptime {{
  @bind_local_task(sent_{way}_, sent_{way}_id);
  if ({inside}) {{
    if (@is_arch("wse3")) {{
      @initialize_queue({way}_out, .{{ .color = to_{way} }});
      @initialize_queue({way}_in, .{{ .color = from_{way} }});
      @bind_data_task(take_{way}, @get_data_task_id({way}_in));
    }} else {{ @bind_data_task(take_{way}, @get_data_task_id(from_{way})); }}
  }}
}}
"""
SENT = """
  if ({inside}) {{
    const edge = @get_dsd(mem1d_dsd, .{{
      .base_address = &old[{first}], .stride = {stride}, .extent = n }});
    @fmovs({way}_fabric, edge, .{{ .async = true, .activate = sent_{way}_id }});
  }}"""
ROUTE = """
    if ({inside}) {{
      const odd = {axis} & 1 == 1;
      @set_color_config(x, y, if (odd) @get_color({color} + 1) else @get_color({color}), .{{
        .routes = .{{ .rx = .{{RAMP}}, .tx = .{{{WAY}}} }} }});
      @set_color_config(x, y, if (odd) @get_color({other}) else @get_color({other} + 1), .{{
        .routes = .{{ .rx = .{{{WAY}}}, .tx = .{{RAMP}} }} }});
    }}"""


def _side(way: str) -> dict[str, object]:
    """What the texts of one direction are filled with; senders alternate between two colors."""
    dx, dy = SIDES[way]
    number = list(SIDES).index(way)
    back = next(w for w, step in SIDES.items() if step == (-dx, -dy))
    axis = "x" if dx else "y"
    first, stride = EDGE[way]
    return {
        "way": way, "WAY": way.upper(), "axis": axis, "queue": number + 2, "task": number + 11,
        "color": 2 * number + 1, "other": 2 * list(SIDES).index(back) + 1,
        "inside": f"{axis} < 2" if dx + dy > 0 else f"{axis} > 0",
        "place": PLACE[way], "first": first, "stride": stride,
    }  # fmt: skip


@cache
def _stencil(n: int, arch: str) -> Runtime:
    sides = [_side(way) for way in SIDES]
    text = STENCIL.format(
        n=n,
        area=(n + 2) ** 2,
        sides="".join(SIDE.format(**side) for side in sides),
        sends="".join(SENT.format(**side) for side in sides),
    )
    layout = STENCIL_LAYOUT.format(routes="".join(ROUTE.format(**side) for side in sides))
    return launched(text, arch, layout=layout)


def stencil(n: int, arch: str, x: int) -> float:
    """Cycles of the corner (``x`` = 0) or the inner PE (1) of 3 x 3 with tiles of n x n f32: halos
    by a data task for each wavelet, two `@fmacs` for each row, three for each column."""
    words = np.zeros(2, np.uint32)
    _stencil(n, arch).d2h(words, "out", (x, x, 1, 1), 2, 0, 0)
    return float(words[0]) - float(words[1])
