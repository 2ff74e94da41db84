"""Kernels of several features at once: a cyclic matrix product, an all-reduce over both axes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from csl_runner import PE_HEAD, Run, exports, function

SIDE, TILE = 4, 3


def ring_to(i: int) -> int:
    """The ring over a line in which neighbours are at most two places apart."""
    if i % 2 == 0:
        return i + 2 if i + 2 < SIDE else i + 1
    return i - 2 if i >= 2 else 0


RING = [ring_to(i) for i in range(SIDE)]

PRODUCT = (
    PE_HEAD
    + """
param n: u16; param steps: u16;
param a_to: color; param a_from: color; param b_to: color; param b_from: color;
const size = n * n;
var a0 = @zeros([size]f16); var a1 = @zeros([size]f16);
var b0 = @zeros([size]f16); var b1 = @zeros([size]f16);
var c = @zeros([size]f16);
var a_ptr: [*]f16 = &a0; var a_next: [*]f16 = &a1;
var b_ptr: [*]f16 = &b0; var b_next: [*]f16 = &b1;
var c_ptr: [*]f16 = &c;
var step: u16 = 0;

const a_oq = @get_output_queue(2); const b_oq = @get_output_queue(3);
const a_iq = @get_input_queue(4); const b_iq = @get_input_queue(5);
const simd = .{ .simd_64 = true };
const a_out = @get_dsd(fabout_dsd, .{ .extent = size, .fabric_color = a_to, .output_queue = a_oq,
                                      .simd_mode = simd });
const a_in = @get_dsd(fabin_dsd, .{ .extent = size, .fabric_color = a_from, .input_queue = a_iq,
                                    .simd_mode = simd });
const b_out = @get_dsd(fabout_dsd, .{ .extent = size, .fabric_color = b_to, .output_queue = b_oq,
                                      .simd_mode = simd });
const b_in = @get_dsd(fabin_dsd, .{ .extent = size, .fabric_color = b_from, .input_queue = b_iq,
                                    .simd_mode = simd });
const a_out_dsr = @get_dsr(dsr_dest, 2); const a_in_dsr = @get_dsr(dsr_src1, 2);
const b_out_dsr = @get_dsr(dsr_dest, 3); const b_in_dsr = @get_dsr(dsr_src1, 3);
const from_dsr = @get_dsr(dsr_src1, 4); const to_dsr = @get_dsr(dsr_dest, 4);
const c_dst = @get_dsr(dsr_dest, 1); const c_src = @get_dsr(dsr_src0, 1);
const a_src = @get_dsr(dsr_src1, 1);

const dummy = @zeros([1]f16);
var tile_dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{size} -> dummy[i] });
var column = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{n} -> dummy[i] });
var row = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{n} -> dummy[i] });
var c_column = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{n} -> dummy[i] });

const a_done_id = @get_local_task_id(10); const b_done_id = @get_local_task_id(11);
const both_id = @get_local_task_id(12); const next_id = @get_local_task_id(13);

fn exchange() void {
  @load_to_dsr(a_out_dsr, a_out, .{ .async = true, .unblock = a_done_id });
  @load_to_dsr(a_in_dsr, a_in, .{ .async = true, .activate = a_done_id });
  @load_to_dsr(b_out_dsr, b_out, .{ .async = true, .unblock = b_done_id });
  @load_to_dsr(b_in_dsr, b_in, .{ .async = true, .activate = b_done_id });
  tile_dsd = @set_dsd_base_addr(tile_dsd, a_ptr);
  @load_to_dsr(from_dsr, tile_dsd);
  @mov16(a_out_dsr, from_dsr, .{ .async = true });
  tile_dsd = @set_dsd_base_addr(tile_dsd, a_next);
  @load_to_dsr(to_dsr, tile_dsd);
  @mov16(to_dsr, a_in_dsr, .{ .async = true });
  tile_dsd = @set_dsd_base_addr(tile_dsd, b_ptr);
  @load_to_dsr(from_dsr, tile_dsd);
  @mov16(b_out_dsr, from_dsr, .{ .async = true });
  tile_dsd = @set_dsd_base_addr(tile_dsd, b_next);
  @load_to_dsr(to_dsr, tile_dsd);
  @mov16(to_dsr, b_in_dsr, .{ .async = true });
}
fn accumulate(factor: f16) void { @fmach(c_dst, c_src, a_src, factor); }
fn multiply() void {
  column = @set_dsd_base_addr(column, a_ptr);
  row = @set_dsd_base_addr(row, b_ptr);
  for (@range(u16, n)) |k| {
    c_column = @set_dsd_base_addr(c_column, c_ptr);
    @load_to_dsr(c_dst, c_column, .{ .save_address = true });
    @load_to_dsr(c_src, c_column, .{ .save_address = true });
    @load_to_dsr(a_src, column, .{ .save_address = false });
    @map(accumulate, row);
    column = @increment_dsd_offset(column, @as(i16, n), f16);
    row = @increment_dsd_offset(row, @as(i16, n), f16);
  }
}
fn advance() void {
  if (step == steps) { sys.unblock_cmd_stream(); return; }
  exchange();
  multiply();
  step += 1;
  @activate(next_id);
}
task a_done() void { @block(a_done_id); @unblock(both_id); }
task b_done() void { @block(b_done_id); @activate(both_id); }
task both() void { @block(both_id); @unblock(next_id); }
task next() void {
  @block(next_id);
  var swap: [*]f16 = a_ptr; a_ptr = a_next; a_next = swap;
  swap = b_ptr; b_ptr = b_next; b_next = swap;
  advance();
}
fn run() void { step = 0; advance(); }
comptime {
  @bind_local_task(a_done, a_done_id); @bind_local_task(b_done, b_done_id);
  @bind_local_task(both, both_id); @bind_local_task(next, next_id);
  @block(a_done_id); @block(b_done_id); @block(both_id); @block(next_id);
  @initialize_queue(a_iq, .{ .color = a_from }); @initialize_queue(b_iq, .{ .color = b_from });
  if (@is_arch("wse3")) {
    @initialize_queue(a_oq, .{ .color = a_to }); @initialize_queue(b_oq, .{ .color = b_to });
  }
  @export_symbol(a_ptr, "a"); @export_symbol(b_ptr, "b"); @export_symbol(c_ptr, "c");
  @export_symbol(run);
}
"""
)


def paths(axis: int) -> str:
    """Routes of the ring along rows (axis 0) or columns (axis 1): color 4 axis + i from place i."""
    lines = []
    ahead, back = (("EAST", "WEST"), ("SOUTH", "NORTH"))[axis]
    for i, end in enumerate(RING):
        out, entry = (ahead, back) if end > i else (back, ahead)
        step = 1 if end > i else -1
        for place in range(i, end + step, step):
            rx = "RAMP" if place == i else entry
            tx = "RAMP" if place == end else out
            at = f"{place}, k" if axis == 0 else f"k, {place}"
            lines.append(
                f"@set_color_config({at}, @get_color({4 * axis + i}),"
                f" .{{ .routes = .{{ .rx = .{{{rx}}}, .tx = .{{{tx}}} }} }});"
            )
    return f"for (@range(i16, {SIDE})) |k| {{ {' '.join(lines)} }}"


def product_layout() -> str:
    tiles = []
    for y in range(SIDE):
        for x in range(SIDE):
            colors = {
                "a_to": x,
                "a_from": RING.index(x),
                "b_to": 4 + y,
                "b_from": 4 + RING.index(y),
            }
            params = ", ".join(f".{k} = @get_color({v})" for k, v in colors.items())
            tiles.append(
                f'@set_tile_code({x}, {y}, "pe.csl", .{{ .memcpy_params = memcpy.get_params({x}),'
                f" .n = {TILE}, .steps = {SIDE}, {params} }});"
            )
    names = exports(a="[*]f16", b="[*]f16", c="[*]f16", run="fn()void")
    return f"""
const memcpy = @import_module("<memcpy/get_params>", .{{ .width = {SIDE}, .height = {SIDE} }});
layout {{
  @set_rectangle({SIDE}, {SIDE});
  {" ".join(tiles)}
  {paths(0)}
  {paths(1)}
  {names}
}}
"""


@pytest.mark.parametrize("arch", ["wse2", "wse3"])
def test_a_cyclic_matrix_product(tmp_path: Path, arch: str) -> None:
    """Tiles go around rings with both neighbours at most two hops away, double buffered."""
    order = [0]
    while len(order) < SIDE:
        order.append(RING[order[-1]])
    rank = {place: k for k, place in enumerate(order)}
    random = np.random.default_rng(3)
    a, b = (random.random((SIDE * TILE, SIDE * TILE)).astype(np.float16) for _ in range(2))

    def tile(m: Any, row: int, column: int) -> Any:
        return m[row * TILE : (row + 1) * TILE, column * TILE : (column + 1) * TILE]

    program = Run(tmp_path, {"layout.csl": product_layout(), "pe.csl": PRODUCT}, arch)
    for y in range(SIDE):
        for x in range(SIDE):
            k = (rank[x] + rank[y]) % SIDE
            program.write("a", tile(a, y, k).T.copy(), x, y)
            program.write("b", tile(b, k, x).copy(), x, y)
    program.launch("run")
    for y in range(SIDE):
        for x in range(SIDE):
            expected = np.zeros((TILE, TILE), np.float16)
            for step in range(SIDE):
                k = (rank[x] + rank[y] - step) % SIDE
                left, right = tile(a, y, k), tile(b, k, x)
                for i in range(TILE):
                    expected = expected + left[:, i, None] * right[i]
            got = program.read("c", TILE * TILE, "f2", x, y).reshape(TILE, TILE).T
            assert (got == expected).all()


# --- an all-reduce whose colors are turned from rows to columns at run time ---

REDUCE = (
    PE_HEAD
    + """
param n: u16; param px: u16; param py: u16;
param rows: comptime_struct; param columns: comptime_struct;
const tile = @import_module("<tile_config>");
const low = @get_color(5); const high = @get_color(6); const back = @get_color(7);
var v = @zeros([n]f16); var v_ptr: [*]f16 = &v;
const v_dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{n} -> v[i] });
const v_dsr = @get_dsr(dsr_src1, 1);
const simd = .{ .simd_64 = true };
// On WSE-2 older programs name no queue.
fn sender(c: color, q: u16) fabout_dsd {
  if (@is_arch("wse2")) {
    return @get_dsd(fabout_dsd, .{ .extent = n, .fabric_color = c, .simd_mode = simd });
  } else {
    return @get_dsd(fabout_dsd, .{ .extent = n, .fabric_color = c, .simd_mode = simd,
                                   .output_queue = @get_output_queue(q) });
  }
}
fn receiver(c: color, q: u16) fabin_dsd {
  if (@is_arch("wse2")) {
    return @get_dsd(fabin_dsd, .{ .extent = n, .fabric_color = c, .simd_mode = simd });
  } else {
    return @get_dsd(fabin_dsd, .{ .extent = n, .fabric_color = c, .simd_mode = simd,
                                  .input_queue = @get_input_queue(q) });
  }
}
const low_out = sender(low, 3); const low_in = receiver(low, 3);
const high_out = sender(high, 4); const high_in = receiver(high, 4);
const back_out = sender(back, 5); const back_in = receiver(back, 5);

fn turn(comptime routes: comptime_struct) void {
  tile.color_config.reset_routes(low, routes.low);
  tile.color_config.reset_routes(high, routes.high);
  tile.color_config.reset_routes(back, routes.back);
}
// A line of three: both ends send to the middle, which adds and sends the sum back.
fn reduce(me: u16) void {
  @load_to_dsr(v_dsr, v_dsd);
  if (me == 1) {
    @faddh(v_dsd, low_in, v_dsr);
    @faddh(v_dsd, high_in, v_dsr);
    @fmovh(back_out, v_dsr);
  } else {
    if (me == 0) { @fmovh(low_out, v_dsr); } else { @fmovh(high_out, v_dsr); }
    @fmovh(v_dsd, back_in);
  }
}
fn run() void {
  turn(rows); reduce(px);
  turn(columns); reduce(py);
  sys.unblock_cmd_stream();
}
comptime {
  if (@is_arch("wse3")) {
    @initialize_queue(@get_input_queue(3), .{ .color = low });
    @initialize_queue(@get_output_queue(3), .{ .color = low });
    @initialize_queue(@get_input_queue(4), .{ .color = high });
    @initialize_queue(@get_output_queue(4), .{ .color = high });
    @initialize_queue(@get_input_queue(5), .{ .color = back });
    @initialize_queue(@get_output_queue(5), .{ .color = back });
  } else {
    @rpc(@get_data_task_id(sys.LAUNCH));
  }
  @export_symbol(v_ptr, "v"); @export_symbol(run);
}
"""
)


def turned(place: int, behind: str, ahead: str) -> str:
    """The routes of one PE of a line of three, by its place in the line."""
    here = "RAMP"
    routes = {
        "low": ((here, ahead), (behind, here), (here, here))[place],
        "high": ((here, here), (ahead, here), (here, behind))[place],
        "back": ((ahead, here), (here, f"{behind}, {ahead}"), (behind, here))[place],
    }
    fields = ", ".join(
        f".{name} = .{{ .rx = .{{ {rx} }}, .tx = .{{ {tx} }} }}"
        for name, (rx, tx) in routes.items()
    )
    return f".{{ {fields} }}"


@pytest.mark.parametrize("arch", ["wse2", "wse3"])
def test_an_all_reduce_that_turns_its_routes(tmp_path: Path, arch: str) -> None:
    n = 5  # odd: the last wavelet carries one value
    tiles = " ".join(
        f'@set_tile_code({x}, {y}, "pe.csl", .{{ .memcpy_params = memcpy.get_params({x}),'
        f" .n = {n}, .px = {x}, .py = {y}, .rows = {turned(x, 'WEST', 'EAST')},"
        f" .columns = {turned(y, 'NORTH', 'SOUTH')} }});"
        for y in range(3)
        for x in range(3)
    )
    layout = f"""
const memcpy = @import_module("<memcpy/get_params>", .{{ .width = 3, .height = 3,
  .LAUNCH = @get_color(0) }});
layout {{
  @set_rectangle(3, 3);
  {tiles}
  {exports(v="[*]f16", run="fn()void")}
}}
"""
    program = Run(tmp_path, {"layout.csl": layout, "pe.csl": REDUCE}, arch)
    values = np.random.default_rng(5).random((3, 3, n)).astype(np.float16)
    for y in range(3):
        for x in range(3):
            program.write("v", values[y, x], x, y)
    program.launch("run")
    rows = values[:, 1] + values[:, 0] + values[:, 2]
    total = rows[1] + rows[0] + rows[2]
    for y in range(3):
        for x in range(3):
            assert (program.read("v", n, "f2", x, y) == total).all()


@pytest.mark.parametrize("arch", ["wse2", "wse3"])
def test_offsets_are_dropped_with_a_new_base(tmp_path: Path, arch: str) -> None:
    """``@set_dsd_base_addr`` resets base and offset: both views start at the first element."""
    head = """
var x = @zeros([8]u16); var y = @zeros([8]u16);
var even = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> x[2 * i] });
var odd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> x[2 * i + 1] });
var moved = @get_dsd(mem1d_dsd, .{ .base_address = &x, .extent = 4, .stride = 2, .offset = 1 });
"""
    body = """
  @mov16(odd, 5);
  out[0] = x[1] + x[3] + x[5] + x[7];
  odd = @set_dsd_base_addr(odd, &y);
  even = @set_dsd_base_addr(even, &y);
  moved = @set_dsd_base_addr(moved, &y);
  @mov16(odd, 1); @add16(even, even, 1); @add16(moved, moved, 1);
  out[1] = y[0]; out[2] = y[1]; out[3] = y[6];
"""
    assert list(function(tmp_path, body, "u16", 4, head)) == [20, 3, 0, 3]


def test_a_running_sum_through_a_register_that_moves_on(tmp_path: Path) -> None:
    head = """
var x = [6]f16{ 1.0, 2.0, 3.0, 4.0, 5.0, 6.0 };
const three = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{3} -> x[i] });
const src = @get_dsr(dsr_src1, 1);
var sum: f16 = 0.0; var most: f16 = 0.0;
const sum_ptr = &sum; const most_ptr = &most;
"""
    body = """
  @load_to_dsr(src, three, .{ .save_address = true });
  sum = 0.0; @faddh(sum_ptr, sum, src); out[0] = sum;
  most = 0.0; @fmaxh(most_ptr, most, src); out[1] = most;
"""
    assert list(function(tmp_path, body, "f16", 2, head)) == [6.0, 6.0]


def test_registers_of_a_mixed_operation_move_by_their_own_elements(tmp_path: Path) -> None:
    head = """
var x = [6]f16{ 1.0, 2.0, 3.0, 4.0, 5.0, 6.0 };
var total = @zeros([2]f32);
const two = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{2} -> x[i] });
const both = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{2} -> total[i] });
const rows = @get_dsr(dsr_src1, 1);
"""
    body = """
  @load_to_dsr(rows, two, .{ .save_address = true });
  @fmachs(both, both, rows, @as(f16, 1.0));
  @fmachs(both, both, rows, @as(f16, 10.0));
  @fmachs(both, both, rows, @as(f16, 100.0));
  out[0] = total[0]; out[1] = total[1];
"""
    assert list(function(tmp_path, body, "f32", 2, head)) == [531.0, 642.0]
