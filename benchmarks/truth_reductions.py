"""An all-reduce of one f32 over a rectangle, in turns: the shape of a library whose calls were
published.

One color serves three phases: rows to their last PE, the last column to its last PE, and the sum
back to all. In a row or column the PEs send one after the other, and a control wavelet behind each
word turns the switches on to the next. A teardown ends a phase, and its handler begins the next,
for which each PE changes its routes and switches.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from truth_programs import launched

LAYOUT = """
const memcpy = @import_module("<memcpy/get_params>", .{ .width = WIDTH, .height = HEIGHT });
layout {
  @set_rectangle(WIDTH, HEIGHT);
  for (@range(i16, WIDTH)) |x| {
    for (@range(i16, HEIGHT)) |y| {
      @set_tile_code(x, y, "pe.csl", .{ .memcpy_params = memcpy.get_params(x),
        .x = x, .y = y, .width = WIDTH, .height = HEIGHT });
    }
  }
  @export_name("out", [*]u32, true); @export_name("run", fn()void);
}
"""
PE = """
param y: i16; param width: i16; param height: i16;
const tile = @import_module("<tile_config>");
const commands = @import_module("<memcpy/memcpy_switches>");
const shared = @get_color(8);
const in_queue = @get_input_queue(1); const out_queue = @get_output_queue(1);
const begin_id = @get_local_task_id(17); const word_id = @get_local_task_id(18);
const turn_id = @get_local_task_id(19); const end_id = @get_local_task_id(20);
const to = @get_dsr(dsr_dest, 1);
const first = @get_dsr(dsr_src0, 1); const second = @get_dsr(dsr_src1, 1);

var value = @zeros([1]f32);
var turn = [1]u32{ commands.ctrl(commands.switch_cmd_11()) };
const teardown = [1]u32{ commands.ctrl(commands.teardown_cmd_1()) };
var mine = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{1} -> value[i] });
var turning = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{1} -> turn[i] });
const ending = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{1} -> teardown[i] });
var onto = @get_dsd(fabout_dsd, .{
  .extent = 1, .fabric_color = shared, .output_queue = out_queue });
var from = @get_dsd(fabin_dsd, .{ .extent = 1, .fabric_color = shared, .input_queue = in_queue });
const control = @get_dsd(fabout_dsd, .{
  .extent = 1, .control = true, .fabric_color = shared, .output_queue = out_queue });

const right = x == width - 1; const bottom = y == height - 1;
var phases = @zeros([4]i16);
var at: i16 = 0; var phase: i16 = 0; var coming: i16 = 0;
var words: u16 = 0; var held: [*]f32;
var moved: i16 = 0; var others: i16 = 0;
var sends_first: bool = false; var gathers: bool = false;
var calls: u16 = 0;

fn aim(comptime routes: anytype, comptime turns: bool) void {
  tile.color_config.reset_routes(tile.color_config.get_color_config_addr(shared), routes);
  tile.switch_config.clear_current_position(shared);
  tile.switch_config.set_invalid_for_all_switch_positions(shared);
  if (turns) { tile.switch_config.set_rx_switch_pos1(shared, RAMP); }
  tile.teardown.exit(shared);
}

fn aim_along(comptime place: i16, comptime most: i16, comptime behind: direction,
             comptime ahead: direction) void {
  if (place == 0) { aim(.{ .tx = ahead, .rx = RAMP }, true); }
  else if (place == most) { aim(.{ .tx = RAMP, .rx = behind }, false); }
  else { aim(.{ .tx = ahead, .rx = behind }, true); }
}

fn aim_back() void {
  if (right) {
    if (bottom) { aim(.{ .tx = [2]direction{ WEST, NORTH }, .rx = RAMP }, false); }
    else if (y == 0) { aim(.{ .tx = [2]direction{ WEST, RAMP }, .rx = SOUTH }, false); }
    else { aim(.{ .tx = [3]direction{ WEST, RAMP, NORTH }, .rx = SOUTH }, false); }
  } else {
    if (x == 0) { aim(.{ .tx = RAMP, .rx = EAST }, false); }
    else { aim(.{ .tx = [2]direction{ WEST, RAMP }, .rx = EAST }, false); }
  }
}

fn measure() void {
  mine = @set_dsd_base_addr(mine, held);
  mine = @set_dsd_length(mine, words);
  from = @set_dsd_length(from, words);
  onto = @set_dsd_length(onto, words);
}

fn gather() void {
  @block(end_id);
  moved = 0;
  turning = @set_dsd_base_addr(turning, turn);
  measure();
  @activate(word_id);
}

fn follow() void {
  at += 1;
  coming = phases[at];
}

task begin() void {
  if (phase == 0) {
    aim_along(x, width - 1, WEST, EAST);
    others = width - 1; sends_first = x == 0; gathers = right;
    gather();
    follow();
  } else if (phase == 1) {
    aim_along(y, height - 1, NORTH, SOUTH);
    others = height - 1; sends_first = y == 0; gathers = bottom;
    gather();
    follow();
  } else if (phase == 2) {
    aim_back();
    @block(end_id);
    measure();
    if (right and bottom) {
      @load_to_dsr(to, onto, .{ .async = true, .activate = turned });
      @load_to_dsr(second, mine);
    } else {
      @load_to_dsr(to, mine);
      @load_to_dsr(second, from, .{ .async = true, .unblock = end_id });
    }
    @mov32(to, second, .{ .async = true });
    follow();
  } else {
    called();
  }
}

task word() void {
  if (gathers) {
    if (moved < others) {
      @load_to_dsr(second, from, .{ .async = true, .activate = word });
      @load_to_dsr(first, mine);
      @load_to_dsr(to, mine);
      @fadds(to, first, second, .{ .async = true });
      moved += 1;
    } else { @unblock(end_id); }
  } else {
    if (moved < 1) {
      @load_to_dsr(to, onto, .{ .async = true, .activate = turned });
      @load_to_dsr(second, mine);
      @mov32(to, second, .{ .async = true });
      moved += 1;
    } else {
      @unblock(end_id);
      if (sends_first) { tear_down(); }
    }
  }
}

fn tear_down() void {
  @load_to_dsr(to, control, .{ .async = true });
  @load_to_dsr(second, ending);
  @mov32(to, second, .{ .async = true });
}

task turned() void {
  if (phase == 2) {
    @unblock(end_id);
    tear_down();
  } else {
    @load_to_dsr(to, control, .{ .async = true, .activate = word });
    @load_to_dsr(second, turning);
    @mov32(to, second, .{ .async = true });
  }
}

task end() void {
  phase = coming;
  @activate(begin_id);
}

fn torn_down() void { @activate(end_id); }

fn reduce(n: u16, numbers: [*]f32) void {
  held = numbers;
  words = n;
  phases[0] = 0; phases[1] = 1; phases[2] = 2; phases[3] = 3;
  at = 0;
  phase = phases[0];
  @activate(begin_id);
}

fn called() void {
  calls += 1;
  time.get_timestamp(&t1);
  out[0] = (@as(u32, t1[0]) | @as(u32, t1[1]) << 16) - (@as(u32, t0[0]) | @as(u32, t0[1]) << 16);
  out[1] = @bitcast(u32, value[0]);
  if (calls < 2) {
    value[0] = 1.0;
    time.get_timestamp(&t0);
    reduce(1, &value);
  } else { sys.unblock_cmd_stream(); }
}

fn run() void {
  time.enable_tsc();
  reduce(1, &value);
}

comptime {
  @bind_local_task(begin, begin_id); @bind_local_task(word, word_id);
  @bind_local_task(turned, turn_id); @bind_local_task(end, end_id);
  @set_teardown_handler(torn_down, shared);
  @set_local_color_config(shared, .{
    .routes = .{ .rx = .{ WEST }, .tx = .{ EAST } }, .teardown = true,
    .switches = .{ .pos1 = .{ .rx = RAMP }, .ring_mode = true,
                   .pop_mode = .{ .pop_on_advance = true } } });
  @initialize_queue(in_queue, .{ .color = shared });
  if (@is_arch("wse3")) { @initialize_queue(out_queue, .{ .color = shared }); }
}
"""


@cache
def all_reduce(width: int, height: int, arch: str = "wse3") -> float:
    """Cycles of a call behind the first one."""
    layout = LAYOUT.replace("HEIGHT", str(height))
    runtime = launched(PE, arch, width, layout=layout)
    words = np.zeros(2 * width * height, np.uint32)
    runtime.d2h(words, "out", (0, 0, width, height), 2, 0, 0)
    cycles, sums = words.reshape(-1, 2).T
    assert (np.ascontiguousarray(sums).view(np.float32) == width * height).all()
    return float(cycles.max())
