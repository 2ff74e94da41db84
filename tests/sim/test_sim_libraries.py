"""Library modules of the language documentation, function by function."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from csl_runner import PE_HEAD, Run, exports, function, single

from meshc.sim import machines
from meshc.support.diagnostics import MeshcError


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registers and flushed queues are modelled by the Python machine."""
    monkeypatch.setattr(machines, "backend_of", lambda options: "python")


def test_complex_numbers(tmp_path: Path) -> None:
    head = 'const c = @import_module("<complex>");'
    body = """
  const x = c.get_complex_64(1.0, 2.0);
  const y = c.get_complex(out[0] + 3.0, 4.0);
  const product = c.multiply_complex(x, y);
  const sum = c.add_complex_64(x, y);
  const difference = c.subtract_complex(x, y);
  out[0] = product.real; out[1] = product.imag; out[2] = sum.imag; out[3] = difference.real;
"""
    assert list(function(tmp_path, body, "f32", 4, head)) == [-5, 10, 6, -2]


def test_malloc(tmp_path: Path) -> None:
    head = 'const mem = @import_module("<malloc>", .{ .buffer_num_words = 9 });'
    body = """
  const a = mem.malloc(u16, 3);
  const b = mem.malloc_f32(2);
  a[0] = 5; a[2] = 7; b[0] = 2.5; b[1] = 3.5;
  out[0] = a[0] + a[2] + @as(u16, b[0] + b[1]);
  out[1] = if (mem.has_enough_words(1)) 1 else 0;
  out[2] = if (mem.has_enough_space(f32, 1)) 1 else 0;
  mem.free();
  out[3] = if (mem.has_enough_double_words(4) and !mem.has_enough_double_words(5)) 1 else 0;
"""
    assert list(function(tmp_path, body, "u16", 4, head)) == [18, 1, 0, 1]


def test_vector_operations_by_type(tmp_path: Path) -> None:
    head = """
const ops = @import_module("<dsd_ops>");
var x = [4]f32{ 1.0, -2.0, 3.0, -4.0 };
var h = [4]f16{ 1.0, 1.0, 2.0, 2.0 };
var n = @zeros([4]i16);
const xd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> x[i] });
const hd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> h[i] });
const nd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> n[i] });
"""
    body = """
  _ = ops.abs(f32, xd, xd, .{});
  _ = ops.add(f32, f16, xd, xd, hd, .{});
  _ = ops.mul(f32, xd, xd, 2.0, .{});
  _ = ops.convert(i16, f32, nd, xd, .{});
  _ = ops.add(i16, i16, nd, nd, 1, .{});
  for (@range(i16, 4)) |i| { out[i] = n[i]; }
"""
    assert list(function(tmp_path, body, "i16", 4, head)) == [5, 7, 11, 13]


def test_a_wrong_type_for_a_vector_operation_is_refused(tmp_path: Path) -> None:
    head = """
const ops = @import_module("<dsd_ops>");
var x = @zeros([2]i16);
const xd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{2} -> x[i] });
"""
    with pytest.raises(MeshcError, match="mul takes f16 and f32"):
        function(tmp_path, "_ = ops.mul(i16, xd, xd, xd, .{});", "i16", 1, head)


def test_timers(tmp_path: Path) -> None:
    head = """
const timer = @import_module("<timer>", .{ .timerCount = 2 });
var taken = @zeros([3]u16);
"""
    body = """
  timer.start(1);
  for (@range(u16, 100)) |i| { out[1] += i; }
  timer.stop(1);
  timer.elapsed(1, &taken);
  out[0] = taken[0];
"""
    cycles = function(tmp_path, body, "u16", 2, head)[0]
    assert 200 < cycles < 5000


def test_mathematics(tmp_path: Path) -> None:
    head = 'const math = @import_module("<math>");'
    body = """
  out[0] = math.sig(out[5]);
  out[1] = math.sig_f32(2.0);
  out[2] = if (math.isSignaling(math.NaN_f32)) 1.0 else 0.0;
  out[3] = if (math.isNaN(math.sqrt(-1.0 - out[5]))) 1.0 else 0.0;
  out[4] = if (math.isFinite(out[5]) and math.signbit(-1.0 - out[5])) 1.0 else 0.0;
"""
    found = function(tmp_path, body, "f32", 6, head)
    assert np.allclose(found[:5], [0.5, 1 / (1 + np.exp(-2)), 0, 1, 1], atol=1e-6)


def test_directions(tmp_path: Path) -> None:
    head = """
const d = @import_module("<directions>");
comptime {
  @comptime_assert(d.flip_vertical(NORTH) == SOUTH and d.flip_vertical(EAST) == EAST);
  @comptime_assert(d.flip_horizontal(WEST) == EAST and d.flip_horizontal(RAMP) == RAMP);
  @comptime_assert(d.rotate_counterclockwise(NORTH) == WEST);
}
"""
    assert function(tmp_path, "out[0] = 1;", "u16", 1, head)[0] == 1


def test_inline_functions_of_known_values_are_known(tmp_path: Path) -> None:
    head = """
var scale: u16 = 3;
inline fn twice(x: u16) u16 { return x + x; }
inline fn scaled(x: u16) u16 { return x * scale; }
"""
    body = "if (twice(4) != 8) { @comptime_assert(false); } out[0] = scaled(5);"
    assert function(tmp_path, body, "u16", 1, head)[0] == 15


SHAPE = """
const memcpy = @import_module("<memcpy/get_params>", .{ .width = 2, .height = 1 });
layout {
  @set_rectangle(2, 1);
  @set_tile_code(0, 0, "left.csl", .{ .memcpy_params = memcpy.get_params(0) });
  @set_tile_code(1, 0, "right.csl", .{ .memcpy_params = memcpy.get_params(1) });
  EXPORTS
}
"""

COMMON = (
    PE_HEAD
    + """
const tile = @import_module("<tile_config>");
const first = @get_color(4);
const second = @get_color(5);
const oq = @get_output_queue(2);
const iq = @get_input_queue(2);
var data = [3]u32{ 7, 8, 9 };
var data_ptr: [*]u32 = &data;
const d = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{3} -> data[i] });
const out = @get_dsd(fabout_dsd, .{ .extent = 3, .fabric_color = first, .output_queue = oq });
const in = @get_dsd(fabin_dsd, .{ .extent = 3, .fabric_color = first, .input_queue = iq });
task exit() void { sys.unblock_cmd_stream(); }
var spent: u16 = 0;
fn settle() void { for (@range(u16, 20)) |i| { spent += i; } }
comptime {
  @bind_local_task(exit, @get_local_task_id(12));
  @export_symbol(data_ptr, "data");
  @export_symbol(run);
}
"""
)


def pair(folder: Path, left: str, right: str, arch: str) -> Run:
    layout = SHAPE.replace("EXPORTS", exports(data="[*]u32", run="fn()void"))
    files = {"layout.csl": layout, "left.csl": COMMON + left, "right.csl": COMMON + right}
    return Run(folder, files, arch)


def test_a_flushed_output_queue_takes_another_color(tmp_path: Path) -> None:
    left = """
fn run() void { @mov32(out, d, .{ .async = true, .activate = sent }); }
task sent() void { @queue_flush(oq); }
fn empty() void {
  tile.output_queue_config.encode_output_queue(2, @get_int(second));
  tile.queue_flush.exit(oq);
  @mov32(out, d, .{ .async = true, .activate = exit });
}
comptime {
  @bind_local_task(sent, @get_local_task_id(13));
  @initialize_queue(oq, .{ .color = first });
  @initialize_queue(iq, .{ .color = @get_color(6) });
  @set_empty_queue_handler(empty, oq);
  @set_local_color_config(first, .{ .routes = .{ .rx = RAMP, .tx = EAST } });
  @set_local_color_config(second, .{ .routes = .{ .rx = RAMP, .tx = EAST } });
}
"""
    right = """
fn run() void { @mov32(d, in, .{ .async = true, .activate = got }); }
task got() void {
  tile.input_queue_config.encode_input_queue(2, @get_int(second), false);
  @add16(small, small, 1);
  @mov32(d, in, .{ .async = true, .activate = exit });
}
var one = @zeros([1]u16);
const small = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{1} -> one[i] });
comptime {
  @bind_local_task(got, @get_local_task_id(13));
  @initialize_queue(iq, .{ .color = first });
  @initialize_queue(oq, .{ .color = @get_color(7) });
  @set_local_color_config(first, .{ .routes = .{ .rx = WEST, .tx = RAMP } });
  @set_local_color_config(second, .{ .routes = .{ .rx = WEST, .tx = RAMP } });
}
"""
    program = pair(tmp_path, left, right, "wse3")
    program.launch("run")
    assert list(program.read("data", 3, "u4", 1)) == [7, 8, 9]


ROUTES = """
fn run() void {
  const c = tile.color_config;
  c.set_io_direction(first, c.fabric_io.RX_NORTH);
  c.clear_io_direction(first, c.fabric_io.TX_RAMP);
  c.toggle_io_direction(c.get_color_config_addr(first), c.fabric_io.TX_EAST);
  settle();
  @mov32(out, d, .{ .async = true, .activate = exit });
}
comptime {
  @set_local_color_config(first, .{ .routes = .{ .rx = RAMP, .tx = RAMP } });
  INIT
}
"""

POINTERS = """
fn run() void {
  const addr = @as(u16, tile.target.addresses.COLOR_CONFIG) + @get_int(first) * tile.word_size;
  const register = @bitcast(*u16, addr);
  register.* = (register.* & 0xffe0) | 2;
  settle();
  @mov32(out, d, .{ .async = true, .activate = exit });
}
comptime {
  @set_local_color_config(first, .{ .routes = .{ .rx = RAMP, .tx = RAMP } });
  INIT
}
"""

RECEIVER = """
fn run() void { data[0] = 0; @mov32(d, in, .{ .async = true, .activate = exit }); }
comptime {
  @set_local_color_config(first, .{ .routes = .{ .rx = WEST, .tx = RAMP } });
  @initialize_queue(iq, .{ .color = first });
}
"""


@pytest.mark.parametrize("sender", [ROUTES, POINTERS])
@pytest.mark.parametrize("arch", ["wse2", "wse3"])
def test_routes_change_through_registers(tmp_path: Path, sender: str, arch: str) -> None:
    queue = "@initialize_queue(oq, .{ .color = first });" if arch == "wse3" else ""
    program = pair(tmp_path, sender.replace("INIT", queue), RECEIVER, arch)
    program.launch("run")
    assert list(program.read("data", 3, "u4", 1)) == [7, 8, 9]


def test_status_of_queues_and_priorities(tmp_path: Path) -> None:
    head = """
const tile = @import_module("<tile_config>");
const status = tile.input_queue_status;
comptime {
  tile.task_priority.set_task_priority(@get_local_task_id(9));
  tile.main_thread_priority.update_main_thread_priority(tile.main_thread_priority.level.HIGH);
}
"""
    body = """
  const s = status.get();
  out[0] = if (status.all_empty(s) and status.none_full(s)) 1 else 0;
  out[1] = if (status.is_empty(s, @get_input_queue(3))) 1 else 0;
  out[2] = tile.get_fabric_coord(tile.fabric_coord.X) + tile.word_size;
  out[3] = @as(u16, tile.teardown.get_pending());
  tile.exceptions.set_exception_mask(tile.exceptions.FP_OVERFLOW & tile.exceptions.FP_INVALID);
"""
    assert list(function(tmp_path, body, "u16", 4, head)) == [1, 1, 2, 0]


def test_a_register_without_a_model_keeps_its_value(tmp_path: Path) -> None:
    head = """
comptime { @set_config(0x7e00, 42); @comptime_assert(@get_config(0x7e00) == 42); }
"""
    body = "out[0] = @get_config(0x7e00); @set_config(0x7e00, 7); out[1] = @get_config(0x7e00);"
    assert list(function(tmp_path, body, "u16", 2, head)) == [42, 7]


def test_what_a_library_gives_for_known_arguments_costs_nothing(tmp_path: Path) -> None:
    head = """
const control = @import_module("<control>"); const math = @import_module("<math>");
var k: u16 = 5;
fn word(n: u16) u32 { return control.encode_control_task_payload(@get_control_task_id(n)); }
"""
    known = """
  const op = [2]control.opcode{ control.opcode.NOP, control.opcode.SWITCH_ADV };
  out[0] = control.encode_payload(2, op, [2]bool{ true, false }, true, {});
  out[1] = @as(u32, math.max(@as(u16, 3), 4));
"""
    runs = []
    for number, body in enumerate(
        (known, "out[0] = 0x9350000 + 1; out[1] = 4;", "out[0] = word(k);")
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        pe = f"""
{head}
var out = @zeros([2]u32);
var out_ptr: [*]u32 = &out;
fn run() void {{ {body} sys.unblock_cmd_stream(); }}
comptime {{ @export_symbol(out_ptr, "out"); @export_symbol(run); }}
"""
        runs.append(single(folder, pe, out="[*]u32", run="fn()void"))
        runs[-1].launch("run")
    payload = 4 << 22 | 1 << 25 | 0x1F << 16 | sum(4 << 3 * i - 8 for i in range(3, 8))
    payload |= (4 >> 2) | (4 & 3) << 28
    assert list(runs[0].read("out", 2, "u4")) == [payload, 4]
    assert runs[0].machine.pes[0, 0].t == runs[1].machine.pes[0, 0].t
    assert runs[2].read("out", 2, "u4")[0] == 5 << 16


@pytest.mark.parametrize(
    "call",
    ["log(0.0)", "log(-1.0)", "exp(1000.0)", "floor(A)", "ceil(A)", "pow(0.0, -1.0)", "inv(0.0)",
     "pow(-1.0e30, 3.0)", "fscale(-1.0, 5000)", "sqrt(-1.0)", "sin(A)", "invsqrt(0.0)",
     "tanh(0.7)", "cos(1.25)"],
)  # fmt: skip
def test_functions_are_the_same_at_compile_time(tmp_path: Path, call: str) -> None:
    """At the limits too: of the first number a constant, of the second a variable."""
    head = """
const math = @import_module("<math>");
var v: f32 = 0.0; var w: f32 = 0.0;
"""
    name, _, args = call.rstrip(")").partition("(")
    first, _, rest = args.partition(", ")
    first = first.replace("A", "math.POSITIVE_INF(f32)")
    more = f", @as({'i16' if name == 'fscale' else 'f32'}, {rest})" if rest else ""
    body = f"""
  out[0] = comptime math.{name}(@as(f32, {first}){more});
  v = {first}; out[1] = math.{name}(v{more});
"""
    known, computed = function(tmp_path, body, "f32", 2, head)
    np.testing.assert_equal(known, computed)
