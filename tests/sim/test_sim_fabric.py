"""Routes, multicast, switches, filters, tasks started by wavelets, hangs explained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from csl_runner import PE_HEAD, Run, exports, single
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rows import MULTICAST, RECEIVER, SENDER, N, row, run_all

from meshc.sim.machine.fabric import pop_command
from meshc.support.diagnostics import MeshcError


@pytest.mark.parametrize("arch", ["wse2", "wse3"])
def test_multicast_reaches_all(tmp_path: Path, arch: str) -> None:
    got = run_all(row(tmp_path, MULTICAST, arch=arch), [5, 6, 7, 8])
    assert got == [[5, 6, 7, 8]] * 3


def test_a_hop_takes_one_cycle(tmp_path: Path) -> None:
    program = row(tmp_path, MULTICAST)
    program.write("data", np.arange(N, dtype=np.uint32))
    program.launch("run")
    near, far = (program.machine.pes[x, 0].busy_until for x in (1, 2))
    assert far - near == program.machine.costs.hop


@pytest.mark.parametrize(
    ("routes", "code", "words"),
    [
        (MULTICAST.replace("@set_color_config(0, 0, c", "@set_color_config(0, 0, @get_color(4)"),
         "csl-run", "no route"),
        (MULTICAST.replace(".tx = .{RAMP} }", ".tx = .{EAST} }"), "csl-hang",
         "leaves the rectangle"),
        ("\n".join(MULTICAST.strip().splitlines()[:2]), "csl-run", "no route for it"),
    ],
)  # fmt: skip
def test_broken_routes_are_named(tmp_path: Path, routes: str, code: str, words: str) -> None:
    with pytest.raises(MeshcError, match=words) as caught:
        run_all(row(tmp_path, routes), [1, 2, 3, 4])
    assert caught.value.diagnostics[0].code == code


def test_a_router_that_listens_elsewhere_is_explained(tmp_path: Path) -> None:
    routes = MULTICAST.replace(".rx = .{WEST}, .tx = .{RAMP} ", ".rx = .{NORTH}, .tx = .{RAMP} ")
    with pytest.raises(MeshcError) as caught:
        run_all(row(tmp_path, routes), [1, 2, 3, 4])
    found = caught.value.diagnostics[0]
    assert found.code == "csl-hang"
    text = " ".join(found.notes)
    assert "stuck: the router accepts NORTH" in text
    assert "recv.csl:" in text and "color 3" in text


def test_a_launch_that_never_unblocks_is_a_hang(tmp_path: Path) -> None:
    silent = RECEIVER.replace("sys.unblock_cmd_stream();", "")
    with pytest.raises(MeshcError, match="never called unblock_cmd_stream"):
        run_all(row(tmp_path, MULTICAST, **{"recv.csl": silent}), [1, 2, 3, 4])


def test_an_uninitialised_queue_is_named(tmp_path: Path) -> None:
    silent = RECEIVER.replace("@initialize_queue(q, .{ .color = c });", "")
    with pytest.raises(MeshcError, match="input queue 2 is used but never initialised"):
        run_all(row(tmp_path, MULTICAST, arch="wse3", **{"recv.csl": silent}), [1, 2, 3, 4])


def test_a_range_filter_keeps_its_indices(tmp_path: Path) -> None:
    routes = MULTICAST.replace(
        ".tx = .{RAMP} } });",
        ".tx = .{RAMP} }, .filter = .{ .kind = .{ .range = true },"
        " .min_idx = 2, .max_idx = 3 } });",
    )
    counting = RECEIVER.replace(".extent = n,", '.extent = if (@is_arch("wse2")) 4 else 4,')
    program = row(tmp_path, routes, **{"recv.csl": counting})
    words = [i << 16 | 10 + i for i in range(4)]
    program.write("data", np.asarray(words, np.uint32))
    with pytest.raises(MeshcError) as caught:
        program.launch("run")
    assert "(2 of 4 elements)" in " ".join(caught.value.diagnostics[0].notes)


SWITCHED = """
  @set_color_config(0, 0, c, .{ .routes = .{ .rx = .{RAMP}, .tx = .{EAST} } });
  @set_color_config(1, 0, c, .{ .routes = .{ .rx = .{WEST}, .tx = .{RAMP} },
    .switches = .{ .pos1 = .{ .tx = EAST }, .pop_mode = .{ .always_pop = true } } });
  @set_color_config(2, 0, c, .{ .routes = .{ .rx = .{WEST}, .tx = .{RAMP} } });
"""
SWITCH_SENDER = SENDER.replace(
    "fn run() void { @mov32(to, mem, .{ .async = true, .activate = done }); }",
    """
const control = @import_module("<control>");
const half = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{2} -> data[i] });
const word = @get_dsd(fabout_dsd, .{ .extent = 1, .fabric_color = c, .output_queue = q,
                                     .control = true });
fn run() void {
  @mov32(to, half);
  @mov32(word, comptime control.encode_payload(2,
    [2]control.opcode{ control.opcode.NOP, control.opcode.SWITCH_ADV },
    [2]bool{true, true}, true, {}));
  @mov32(to, half, .{ .async = true, .activate = done });
}
""",
)  # fmt: skip


def test_a_control_wavelet_advances_a_switch(tmp_path: Path) -> None:
    short = RECEIVER.replace(".extent = n", ".extent = 2").replace("|i|{n}", "|i|{2}")
    files = {"recv.csl": short, "send.csl": SWITCH_SENDER}
    routes = SWITCHED.replace(
        ".tx = .{EAST} } });",
        ".tx = .{EAST} }, .switches = .{ .pop_mode = .{ .always_pop = true } } });", 1
    )  # fmt: skip
    got = run_all(row(tmp_path, routes, **files), [8, 9, 0, 0])
    assert got[1][:2] == [8, 9] and got[2][:2] == [8, 9]


def test_popping_shifts_the_commands() -> None:
    assert pop_command(0x9DF9249) == 0x91F9249


TASKS = (
    PE_HEAD
    + """
param c: color; param n: u16;
const control = @import_module("<control>");
var data = @zeros([16]u32); var data_ptr: [*]u32 = &data;
const iq = @get_input_queue(3);
const oq = @get_output_queue(3);
const to = @get_dsd(fabout_dsd, .{ .extent = 1, .fabric_color = c, .output_queue = oq });
const word = @get_dsd(fabout_dsd, .{ .extent = 1, .fabric_color = c, .output_queue = oq,
                                     .control = true });
const data_id = if (@is_arch("wse2")) @get_data_task_id(c) else @get_data_task_id(iq);
const end_id = @get_control_task_id(40);
task take(low: u16, high: u16) void { data[0] += @as(u32, low); data[1] += @as(u32, high); }
task end(x: u16) void { data[2] = data[0]; sys.unblock_cmd_stream(); }
fn run() void {
  @mov32(to, @as(u32, 0x00020005)); @mov32(to, @as(u32, 0x00030006));
  @mov32(word, comptime control.encode_control_task_payload(end_id));
}
comptime {
  @bind_data_task(take, data_id);
  @bind_control_task(end, end_id);
  if (@is_arch("wse3")) {
    @initialize_queue(iq, .{ .color = c }); @initialize_queue(oq, .{ .color = c });
  }
  @export_symbol(data_ptr, "data"); @export_symbol(run);
}
"""
)


@pytest.mark.parametrize("arch", ["wse2", "wse3"])
def test_data_and_control_tasks_run_in_the_order_of_the_wavelets(tmp_path: Path, arch: str) -> None:
    routes = "@set_color_config(0, 0, c, .{ .routes = .{ .rx = .{RAMP}, .tx = .{RAMP} } });"
    program = row(tmp_path, routes, width=1, arch=arch, **{"send.csl": TASKS})
    program.launch("run")
    assert list(program.read("data", 3, "u4")) == [11, 5, 11]


IDLE = TASKS.replace("@initialize_queue(iq, .{ .color = c }); ", "").replace(
    "fn run() void {", 'const tile = @import_module("<tile_config>");\nfn run() void { BEFORE'
)


def test_a_data_task_without_a_color_never_runs(tmp_path: Path) -> None:
    """WSE-3 starts it from its input queue, which nothing reaches."""
    routes = "@set_color_config(0, 0, c, .{ .routes = .{ .rx = .{RAMP}, .tx = .{RAMP} } });"
    idle = IDLE.replace("BEFORE", "@block(iq); @unblock(data_id); sys.unblock_cmd_stream();")
    idle = idle.replace("comptime {", "comptime { @block(data_id);", 1)
    program = row(tmp_path, routes, width=1, arch="wse3", **{"send.csl": idle})
    program.launch("run")
    assert list(program.read("data", 3, "u4")) == [0, 0, 0]


@pytest.mark.parametrize("gate", ["", "@block(iq); @unblock(iq);"])
def test_a_data_task_may_get_its_color_later(tmp_path: Path, gate: str) -> None:
    routes = "@set_color_config(0, 0, c, .{ .routes = .{ .rx = .{RAMP}, .tx = .{RAMP} } });"
    late = IDLE.replace(
        "BEFORE", f"{gate} tile.input_queue_config.encode_input_queue(iq, @get_int(c), false);"
    )
    program = row(tmp_path, routes, width=1, arch="wse3", **{"send.csl": late})
    program.launch("run")
    assert list(program.read("data", 3, "u4")) == [11, 5, 11]


ACTIVATION = (
    PE_HEAD
    + """
param c: color; param n: u16;
var data = @zeros([16]u32); var data_ptr: [*]u32 = &data;
const a_id = @get_local_task_id(9);
const b_id = @get_local_task_id(10);
task a() void { data[0] += 1; @unblock(b_id); }
task b() void { data[1] = data[0]; sys.unblock_cmd_stream(); }
fn run() void { @activate(b_id); @activate(a_id); @activate(a_id); }
comptime {
  @bind_local_task(a, a_id); @bind_local_task(b, b_id); @block(b_id);
  @export_symbol(data_ptr, "data"); @export_symbol(run);
}
"""
)


def test_activation_is_one_bit_and_blocking_holds_a_task(tmp_path: Path) -> None:
    program = row(tmp_path, "", width=1, **{"send.csl": ACTIVATION})
    program.launch("run")
    assert list(program.read("data", 2, "u4")) == [1, 1]


def test_a_blocked_task_is_explained(tmp_path: Path) -> None:
    stuck = ACTIVATION.replace("@unblock(b_id);", "")
    program = row(tmp_path, "", width=1, **{"send.csl": stuck})
    with pytest.raises(MeshcError) as caught:
        program.launch("run")
    assert "task 'b' (id 10) is activated but blocked" in " ".join(
        caught.value.diagnostics[0].notes
    )


GRID = 4
STEPS = {"EAST": (1, 0), "WEST": (-1, 0), "NORTH": (0, -1), "SOUTH": (0, 1)}
BACK = {"EAST": "WEST", "WEST": "EAST", "NORTH": "SOUTH", "SOUTH": "NORTH"}


def random_tree(draw: Any) -> dict[tuple[int, int], tuple[str, list[str], int]]:
    """A tree over a grid from (0, 0): input, outputs and depth of each PE in it."""
    tree: dict[tuple[int, int], tuple[str, list[str], int]] = {(0, 0): ("RAMP", [], 0)}
    for _ in range(draw(st.integers(1, 12))):
        at = draw(st.sampled_from(sorted(tree)))
        out = draw(st.sampled_from(sorted(STEPS)))
        there = (at[0] + STEPS[out][0], at[1] + STEPS[out][1])
        if there not in tree and 0 <= there[0] < GRID and 0 <= there[1] < GRID:
            tree[at][1].append(out)
            tree[there] = (BACK[out], [], tree[at][2] + 1)
    return tree


@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data(), st.booleans())
def test_random_trees_deliver_everything_in_time(tmp_path: Path, data: Any, dynamic: bool) -> None:
    tree = random_tree(data.draw)
    lines = []
    for (x, y), (entry, outs, depth) in tree.items():
        tx = ", ".join([*outs, "RAMP"] if depth else outs or ["RAMP"])
        switches = ", .switches = .{ .ring_mode = true }" if dynamic and depth == 1 else ""
        lines.append(
            f"@set_color_config({x}, {y}, c, .{{ .routes = .{{ .rx = .{{{entry}}},"
            f" .tx = .{{{tx}}} }}{switches} }});"
        )
    layout = f"""
param n: u16;
const c = @get_color(3);
const memcpy = @import_module("<memcpy/get_params>", .{{ .width = {GRID}, .height = {GRID} }});
layout {{
  @set_rectangle({GRID}, {GRID});
  for (@range(i16, {GRID})) |x| {{ for (@range(i16, {GRID})) |y| {{
    const params = .{{ .memcpy_params = memcpy.get_params(x), .c = c, .n = n }};
    if (x == 0 and y == 0) {{ @set_tile_code(x, y, "send.csl", params); }}
    else {{ @set_tile_code(x, y, "recv.csl", params); }}
  }} }}
  {" ".join(lines)}
  {exports(data="[*]u32", run="fn()void")}
}}
"""
    files = {"layout.csl": layout, "send.csl": SENDER, "recv.csl": RECEIVER}
    program = Run(tmp_path, files, "wse2", params={"n": N})
    program.write("data", np.arange(N, dtype=np.uint32) + 5)
    program.runtime.launch("run", ())
    program.machine.run_to_rest()
    ends = {}
    for at, (_, _, depth) in tree.items():
        if depth:
            pe = program.machine.pes[at]
            assert bytes(pe.mem).find(np.arange(5, 5 + N, dtype=np.uint32).tobytes()) >= 0
            ends[at] = pe.busy_until - depth
    assert len(set(ends.values())) <= 1
    idle = [pe for at, pe in program.machine.pes.items() if at not in tree]
    assert all(pe.unblocked == 0 for pe in idle)


def test_a_blocked_queue_is_not_the_task_of_its_colors_number(tmp_path: Path) -> None:
    pe = """
const iq = @get_input_queue(2);
const id = @get_local_task_id(9);
fn run() void { @activate(id); }
task work() void { sys.unblock_cmd_stream(); }
comptime {
  @initialize_queue(iq, .{ .color = @get_color(9) });
  @block(iq);
  @bind_local_task(work, id);
  @export_symbol(run);
}
"""
    program = single(tmp_path, pe, "wse3", run="fn()void")
    program.launch("run")
    assert program.machine.now >= 0


def test_an_operation_takes_control_wavelets_as_data_unless_told_otherwise(tmp_path: Path) -> None:
    pe = """
const c = @get_color(3);
const oq = @get_output_queue(2);
const iq = @get_input_queue(2);
var data = @zeros([2]u32);
var data_ptr: [*]u32 = &data;
const d = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{2} -> data[i] });
const plain = @get_dsd(fabout_dsd, .{ .extent = 1, .fabric_color = c, .output_queue = oq });
const control = @get_dsd(fabout_dsd,
  .{ .extent = 1, .fabric_color = c, .output_queue = oq, .control = true });
const in = @get_dsd(fabin_dsd, .{ .extent = 2, .fabric_color = c, .input_queue = iq });
fn run() void {
  @mov32(plain, 5);
  @mov32(control, 0x1f0006);
  @mov32(d, in, .{ .async = true, .activate = done });
}
task done() void { sys.unblock_cmd_stream(); }
comptime {
  @bind_local_task(done, @get_local_task_id(9));
  @set_local_color_config(c, .{ .routes = .{ .rx = RAMP, .tx = RAMP } });
  @export_symbol(run);
  @export_symbol(data_ptr, "data");
}
"""
    program = single(tmp_path, pe, "wse2", run="fn()void", data="[*]u32")
    program.launch("run")
    assert list(program.read("data", 2, "u4")) == [5, 0x1F0006]


def test_a_control_wavelet_that_ends_an_operation_stays_in_the_queue(tmp_path: Path) -> None:
    pe = """
const c = @get_color(3);
const oq = @get_output_queue(2);
const iq = @get_input_queue(2);
var data = @zeros([4]u32);
var data_ptr: [*]u32 = &data;
const d = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{3} -> data[i] });
const rest = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{1} -> data[i + 3] });
const plain = @get_dsd(fabout_dsd, .{ .extent = 1, .fabric_color = c, .output_queue = oq });
const control = @get_dsd(fabout_dsd,
  .{ .extent = 1, .fabric_color = c, .output_queue = oq, .control = true });
const in = @get_dsd(fabin_dsd, .{ .extent = 3, .fabric_color = c, .input_queue = iq });
const one = @get_dsd(fabin_dsd, .{ .extent = 1, .fabric_color = c, .input_queue = iq });
fn run() void {
  @mov32(plain, 5);
  @mov32(control, 0x1f0006);
  @mov32(d, in, .{ .async = true, .on_control = .{ .activate = ended } });
}
task ended() void { @mov32(rest, one); sys.unblock_cmd_stream(); }
comptime {
  @bind_local_task(ended, @get_local_task_id(9));
  @set_local_color_config(c, .{ .routes = .{ .rx = RAMP, .tx = RAMP } });
  @export_symbol(run);
  @export_symbol(data_ptr, "data");
}
"""
    program = single(tmp_path, pe, "wse2", run="fn()void", data="[*]u32")
    program.launch("run")
    assert list(program.read("data", 4, "u4")) == [5, 0, 0, 0x1F0006]


def test_advance_switch_comes_behind_the_data(tmp_path: Path) -> None:
    pe = """
const c = @get_color(3);
const oq = @get_output_queue(2);
const iq = @get_input_queue(2);
var data = [8]u32{ 1, 2, 3, 4, 5, 6, 7, 8 };
var got = @zeros([8]u32);
var got_ptr: [*]u32 = &got;
const d = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{8} -> data[i] });
const g = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{8} -> got[i] });
const to = @get_dsd(fabout_dsd,
  .{ .extent = 8, .fabric_color = c, .output_queue = oq, .advance_switch = true });
const from = @get_dsd(fabin_dsd, .{ .extent = 8, .fabric_color = c, .input_queue = iq });
fn run() void {
  @mov32(to, d);
  @mov32(g, from, .{ .async = true, .activate = done });
}
task done() void { sys.unblock_cmd_stream(); }
comptime {
  @bind_local_task(done, @get_local_task_id(9));
  @set_local_color_config(c, .{
    .routes = .{ .rx = RAMP, .tx = RAMP },
    .switches = .{ .pos1 = .{ .rx = EAST } },
  });
  @export_symbol(run);
  @export_symbol(got_ptr, "got");
}
"""
    program = single(tmp_path, pe, "wse2", run="fn()void", got="[*]u32")
    program.launch("run")
    assert list(program.read("got", 8, "u4")) == list(range(1, 9))
    with pytest.raises(MeshcError, match="accepts EAST"):
        program.launch("run")
