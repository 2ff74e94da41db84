"""Programs of tasks and wavelets whose cycles were published for both architectures."""

from __future__ import annotations

from functools import cache

import numpy as np
from truth_programs import launched

from meshc.sim.host.host_operations import Runtime

QUEUES = """
const word_color = @get_color(3); const back_color = @get_color(4);
const out_queue = @get_output_queue(2); const in_queue = @get_input_queue(3);
const word_id = @get_data_task_id(if (@is_arch("wse3")) in_queue else word_color);
"""
AWAY = """
    const word_color = @get_color(3); const back_color = @get_color(4);
    if (x == 0) {
      @set_color_config(x, 0, word_color, .{ .routes = .{ .rx = .{RAMP}, .tx = .{EAST} } });
    } else {
      const to = if (x == WIDTH - 1) .{RAMP} else .{RAMP, EAST};
      @set_color_config(x, 0, word_color, .{ .routes = .{ .rx = .{WEST}, .tx = to } });
    }
"""
ONWARD = """
    if (x == 1) {
      @set_color_config(x, 0, back_color, .{ .routes = .{ .rx = .{RAMP}, .tx = .{EAST} } });
    } else if (x > 1) {
      @set_color_config(x, 0, back_color, .{ .routes = .{ .rx = .{WEST}, .tx = .{RAMP} } });
    }
"""
STREAM = """
var data = @zeros([{n}]u32);
const mem = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{{n}}} -> data[i] }});
const to = @get_dsd(fabout_dsd, .{{
  .extent = {n}, .fabric_color = word_color, .output_queue = out_queue }});
"""


def _run(text: str, arch: str, width: int, routes: str, n: int) -> Runtime:
    head = QUEUES + STREAM.format(n=n)
    runtime = launched(head + text, arch, width, routes.replace("WIDTH", str(width)))
    runtime.ready.run_to_rest()
    return runtime


def _each(text: str, arch: str, width: int, routes: str, place: int) -> float:
    """Cycles that one more word costs the PE at ``place``."""
    runs = [_run(text.replace("COUNT", str(n)), arch, width, routes, n) for n in (24, 64)]
    few, many = (int(run.ready.pes[place, 0].busy_until) for run in runs)
    return (many - few) / 40


HOPS = """
const in = @get_dsd(fabin_dsd, .{ .extent = 1, .fabric_color = word_color,
  .input_queue = in_queue });
fn run() void {
  if (x == 0) { @mov32(to, mem); } else { @mov32(mem, in); }
  sys.unblock_cmd_stream();
}
comptime {
  if (@is_arch("wse3")) {
    if (x == 0) { @initialize_queue(out_queue, .{ .color = word_color }); }
    else { @initialize_queue(in_queue, .{ .color = word_color }); }
  }
}
"""


def hop(arch: str) -> float:
    """Cycles that one PE of distance more adds to the way of a word."""
    pes = _run(HOPS, arch, 8, AWAY, 1).ready.pes
    return (int(pes[7, 0].busy_until) - int(pes[2, 0].busy_until)) / 5


RELAYED = """
const onward = @get_dsd(fabout_dsd, .{ .extent = 1, .fabric_color = back_color,
  .output_queue = out_queue });
const in = @get_dsd(fabin_dsd, .{ .extent = COUNT, .fabric_color = back_color,
  .input_queue = in_queue });
var kept = @zeros([COUNT]u32);
const all = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{COUNT} -> kept[i] });
task relay(word: u32) void {
  @block(word_id);
  @mov32(onward, word, .{ .async = true, .unblock = word_id });
}
fn run() void {
  if (x == 0) { @mov32(to, mem, .{ .async = true }); }
  if (x == 2) { @mov32(all, in); }
  sys.unblock_cmd_stream();
}
comptime {
  if (x == 1) { @bind_data_task(relay, word_id); }
  if (@is_arch("wse3")) {
    if (x == 0) { @initialize_queue(out_queue, .{ .color = word_color }); }
    if (x == 1) {
      @initialize_queue(out_queue, .{ .color = back_color });
      @initialize_queue(in_queue, .{ .color = word_color });
    }
    if (x == 2) { @initialize_queue(in_queue, .{ .color = back_color }); }
  }
}
"""


def relayed(arch: str) -> float:
    """Cycles per word of a data task that blocks itself, sends the word on and is unblocked."""
    routes = AWAY.replace("WIDTH - 1", "1") + ONWARD
    return _each(RELAYED, arch, 3, routes, 2)


TAKEN = """
var seen: u16 = 0; var total: u32 = 0; var most: u32 = 0; var least: u32 = 0;
var place: u16 = 0; var changes: u32 = 0;
const end_id = @get_local_task_id(9);
task end() void { place += 1; }
task take(word: u32) void { BODY }
fn run() void {
  if (x == 0) { @mov32(to, mem, .{ .async = true }); }
  sys.unblock_cmd_stream();
}
comptime {
  @bind_local_task(end, end_id);
  if (x > 0) { @bind_data_task(take, word_id); }
  if (@is_arch("wse3")) {
    if (x == 0) { @initialize_queue(out_queue, .{ .color = word_color }); }
    else { @initialize_queue(in_queue, .{ .color = word_color }); }
  }
}
"""
COLUMNS = """
const rows: i16 = 16;
var matrix = @zeros([16 * 64]f32); var result = @zeros([16]f32);
var column = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{16} -> matrix[i] });
const sums = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{16} -> result[i] });
"""


def taken(arch: str) -> float:
    """Cycles per word of a data task that keeps it and counts."""
    body = """
  data[seen] = word;
  total += 2 * word;
  if (word > most) { most = word; place = seen; }
  if (word < least) { least = word; place = seen; }
  changes = changes ^ word;
  seen += 1;
  if (seen == COUNT) { seen = 0; @activate(end_id); }"""
    return _each(TAKEN.replace("BODY", body), arch, 2, AWAY, 1)


def multiplied(arch: str) -> float:
    """Cycles per word of a vector that is broadcast to PEs, each of which adds the product of the
    word and a column to its result."""
    body = """
  @fmacs(sums, sums, column, @bitcast(f32, word));
  column = @increment_dsd_offset(column, rows, f32);
  seen += 1;
  if (seen == COUNT) { seen = 0; }"""
    return _each(COLUMNS + TAKEN.replace("BODY", body), arch, 4, AWAY, 1)


NEIGHBOUR = """
var stamp = @zeros([3]u16);
task take(word: u32) void { time.get_timestamp(&stamp); keep(); }
fn keep() void {
  out[0] = @as(u32, stamp[0]) | @as(u32, stamp[1]) << 16;
  sys.unblock_cmd_stream();
}
task start() void {
  time.get_timestamp(&stamp);
  @mov32(to, mem, .{ .async = true });
  keep();
}
const start_id = @get_local_task_id(9);
fn run() void {
  time.enable_tsc();
  if (x == 0) { @activate(start_id); }
}
comptime {
  @bind_local_task(start, start_id);
  if (x == 1) { @bind_data_task(take, word_id); }
  if (@is_arch("wse3")) {
    if (x == 0) { @initialize_queue(out_queue, .{ .color = word_color }); }
    else { @initialize_queue(in_queue, .{ .color = word_color }); }
  }
}
"""


@cache
def to_the_neighbour(arch: str) -> float:
    """From the beginning of a task that sends a word to that of the task that it starts at the
    neighbour."""
    runtime = _run(NEIGHBOUR, arch, 2, AWAY, 1)
    words = np.zeros(4, np.uint32)
    runtime.d2h(words, "out", (0, 0, 2, 1), 2, 0, 0)
    return float(words[2]) - float(words[0])
