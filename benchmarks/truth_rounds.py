"""A star stencil of one number per PE, whose cycles per round were published for both
architectures: six operations over registers, most of them with the fabric."""

from __future__ import annotations

from functools import cache

from truth_programs import launched

LAYOUT = """
const memcpy = @import_module("<memcpy/get_params>", .{ .width = WIDTH, .height = WIDTH });
const last: i16 = WIDTH - 1;
// Neighbours differ by 1 along a row and by 2 along a column, modulo 5.
fn color_at(x: i16, y: i16) color { return @get_color(1 + (x + 2 * y + 5) % 5); }
fn receive(x: i16, y: i16, c: color, from: direction) void {
  @set_color_config(x, y, c, .{ .routes = .{ .rx = .{ from }, .tx = .{ RAMP } } });
}
layout {
  @set_rectangle(WIDTH, WIDTH);
  for (@range(i16, WIDTH)) |x| { for (@range(i16, WIDTH)) |y| {
    const mine = color_at(x, y);
    const east = color_at(x + 1, y); const west = color_at(x - 1, y);
    const south = color_at(x, y + 1); const north = color_at(x, y - 1);
    const row = y > 0 and y < last; const column = x > 0 and x < last;
    @set_tile_code(x, y, "pe.csl", .{
      .memcpy_params = memcpy.get_params(x), .x = x, .inside = row and column,
      .at_edge = row != column, .mine = mine, .east = east, .west = west, .south = south,
      .north = north, .facing = if (x == 0) east else if (x == last) west
                                else if (y == 0) south else north });
    const tx = if (row and column) .{ EAST, WEST, NORTH, SOUTH } else if (x == 0) .{ EAST }
               else if (x == last) .{ WEST } else if (y == 0) .{ SOUTH } else .{ NORTH };
    @set_color_config(x, y, mine, .{ .routes = .{ .rx = .{ RAMP }, .tx = tx } });
    if (x < last) { receive(x, y, east, EAST); }
    if (x > 0) { receive(x, y, west, WEST); }
    if (y < last) { receive(x, y, south, SOUTH); }
    if (y > 0) { receive(x, y, north, NORTH); }
  } }
  @export_name("out", [*]u32, true); @export_name("run", fn()void);
}
"""
PE = """
param inside: bool; param at_edge: bool;
param mine: color; param east: color; param west: color; param south: color; param north: color;
param facing: color;
const rounds: i16 = ROUNDS;
const to_queue = @get_output_queue(1);
const east_queue = @get_input_queue(2); const west_queue = @get_input_queue(3);
const south_queue = @get_input_queue(4); const north_queue = @get_input_queue(5);
const facing_queue = if (facing == east) east_queue else if (facing == west) west_queue
                     else if (facing == south) south_queue else north_queue;
const end_id = @get_local_task_id(9);

var keep: f32 = 0.5; var share: f32 = 0.125;
var number = @zeros([1]f32); var level = @zeros([1]f32); var upright = @zeros([1]f32);
var unused = @zeros([1]f32);
const mem = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{1} -> number[i] });
const level_mem = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{1} -> level[i] });
const upright_mem = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{1} -> upright[i] });
const unused_mem = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{1} -> unused[i] });
const onto = @get_dsd(fabout_dsd, .{ .extent = 1, .fabric_color = mine, .output_queue = to_queue });
const edge = @get_dsd(fabin_dsd, .{ .extent = 1, .fabric_color = facing,
                                    .input_queue = facing_queue });

const value = @get_dsr(dsr_src0, 1); const stored = @get_dsr(dsr_src1, 2);
const to = @get_dsr(dsr_dest, 1);
const from_east = if (@is_arch("wse2")) @get_dsr(dsr_src0, 2) else @get_dsr(dsr_src1, 3);
const from_west = @get_dsr(dsr_src1, 4);
const from_north = if (@is_arch("wse2")) @get_dsr(dsr_src0, 3) else @get_dsr(dsr_src1, 5);
const from_south = @get_dsr(dsr_src1, 6);
const to_level = @get_dsr(dsr_dest, 2); const to_upright = @get_dsr(dsr_dest, 3);
const level_sum = @get_dsr(dsr_src1, 7); const upright_sum = @get_dsr(dsr_src1, 8);

fn send() void {
  if (inside) { @fmuls(to, value, share); } else { @fmovs(to, stored); }
}

fn step() void {
  for (@range(i16, rounds)) |_| {
    send();
    if (at_edge) { @fmovs(unused_mem, edge); }
    else {
      @fmuls(value, value, keep);
      if (@is_arch("wse2")) {
        @fadds(to_level, from_east, from_west);
        @fadds(to_upright, from_north, from_south);
        @fadds(value, value, level_sum);
        @fadds(value, value, upright_sum);
      } else {
        @fadds(value, value, from_east);
        @fadds(value, value, from_west);
        @fadds(value, value, from_north);
        @fadds(value, value, from_south);
      }
    }
  }
  @activate(end_id);
}

fn run() void {
  if (at_edge) { send(); }
  if (inside or at_edge) { step(); } else { @activate(end_id); }
}

task end() void { sys.unblock_cmd_stream(); }

fn load(comptime register: anytype, comptime c: color, comptime queue: input_queue) void {
  @initialize_queue(queue, .{ .color = c });
  @load_to_dsr(register, @get_dsd(fabin_dsd, .{ .extent = 1, .fabric_color = c,
                                                .input_queue = queue }));
}

comptime {
  @bind_local_task(end, end_id);
  @load_to_dsr(value, mem); @load_to_dsr(stored, mem); @load_to_dsr(to, onto);
  @load_to_dsr(to_level, level_mem); @load_to_dsr(level_sum, level_mem);
  @load_to_dsr(to_upright, upright_mem); @load_to_dsr(upright_sum, upright_mem);
  load(from_east, east, east_queue); load(from_west, west, west_queue);
  load(from_north, north, north_queue); load(from_south, south, south_queue);
  if (@is_arch("wse3")) { @initialize_queue(to_queue, .{ .color = mine }); }
}
"""


def _ends(rounds: int, width: int, arch: str) -> int:
    """When the PE at (1, 1) of ``width`` x ``width`` has done so many rounds."""
    runtime = launched(PE.replace("ROUNDS", str(rounds)), arch, width, layout=LAYOUT)
    return int(runtime.ready.pes[1, 1].busy_until)


@cache
def rounds(width: int, arch: str) -> float:
    """Cycles of a round of the PE at (1, 1), that of 3 x 3 being the only one that computes."""
    return (_ends(8, width, arch) - _ends(4, width, arch)) / 4
