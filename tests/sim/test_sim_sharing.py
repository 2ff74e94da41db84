"""What flows share: links, ramps and issue slots; microthreads; wavelets that collide."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from csl_runner import PE_HEAD, Run, exports
from hypothesis import given
from hypothesis import strategies as st

from meshc.sim.machine.channel import Burst
from meshc.sim.machine.pipe import Pipe, between
from meshc.sim.machine.router import meets
from meshc.support.diagnostics import MeshcError

N = 100

FLOWS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 40), st.integers(1, 4)), min_size=1)


@given(FLOWS)
def test_a_pipe_carries_one_item_per_cycle(flows: list[tuple[int, int, int]]) -> None:
    pipe, t, ends = Pipe(), 0, []
    for wait, n, period in flows:
        t += wait
        burst = pipe.carry(Burst(np.zeros(n, np.uint32), t, period), t)
        assert burst.t0 >= t and len(burst.data) == n
        assert burst.end() >= t + (n - 1) * period + 1
        ends.append(burst.end())
    work = sum(n for _, n, _ in flows)
    assert max(ends) - flows[0][0] >= work // 2
    assert pipe.free_at <= max(ends) + work


@given(st.integers(2, 20), st.integers(1, 50))
def test_a_full_pipe_keeps_its_throughput(flows: int, n: int) -> None:
    """Flows of ``n`` items that come twice as fast as they can pass."""
    pipe, end = Pipe(), 0
    for k in range(flows):
        t = k * (n // 2)
        end = max(end, pipe.carry(Burst(np.zeros(n, np.uint32), t), t).end())
    assert flows * n - n <= end <= flows * n + n


def test_slow_flows_leave_room_for_others() -> None:
    pipe = Pipe()
    first = pipe.carry(Burst(np.zeros(N, np.uint32), 0, 2), 0)
    second = pipe.carry(Burst(np.zeros(N, np.uint32), 0, 2), 0)
    assert first.end() == second.end() - 1 or first.end() == second.end() <= 2 * N


def test_steps_in_the_gaps_of_others() -> None:
    assert between(10, 0, 100) == 10
    assert between(10, 50, 100) == 20
    assert between(80, 50, 100) == 130
    assert between(10, 100, 100) == 110


@given(*[st.integers(0, 30), st.integers(1, 5), st.integers(1, 8)] * 2)
def test_bursts_meet_in_a_cycle(t: int, p: int, n: int, u: int, q: int, m: int) -> None:
    one, two = Burst(np.zeros(n, np.uint32), t, p), Burst(np.zeros(m, np.uint32), u, q)
    common = {t + i * p for i in range(n)} & {u + j * q for j in range(m)}
    assert meets(one, two) == bool(common)


SEND = """
param a: color; param b: color; param n: u16; param to: color;
const q = @get_output_queue(2);
var data = @zeros([n]u32);
const mem = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{n} -> data[i] });
const out = @get_dsd(fabout_dsd, .{ .extent = n, .fabric_color = to, .output_queue = q });
fn run() void { @mov32(out, mem, .{ .async = true }); sys.unblock_cmd_stream(); }
comptime { @export_symbol(run); }
"""
SEND_TWO = """
param a: color; param b: color; param n: u16; param to: color;
var data = @zeros([n]u32);
const mem = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{n} -> data[i] });
const one = @get_dsd(fabout_dsd, .{ .extent = n, .fabric_color = a,
                                    .output_queue = @get_output_queue(2) });
const two = @get_dsd(fabout_dsd, .{ .extent = n, .fabric_color = b,
                                    .output_queue = @get_output_queue(3) });
fn run() void {
  @mov32(one, mem, .{ .async = true }); @mov32(two, mem, .{ .async = true });
  sys.unblock_cmd_stream();
}
comptime { @export_symbol(run); }
"""
RECEIVE_TWO = """
param a: color; param b: color; param n: u16; param to: color;
var x = @zeros([n]u32); var y = @zeros([n]u32);
var left: u16 = 2;
const x_mem = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{n} -> x[i] });
const y_mem = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{n} -> y[i] });
const one = @get_dsd(fabin_dsd, .{ .extent = n, .fabric_color = a,
                                   .input_queue = @get_input_queue(4) });
const two = @get_dsd(fabin_dsd, .{ .extent = n, .fabric_color = b,
                                   .input_queue = @get_input_queue(5) });
task got_one() void { left -= 1; if (left == 0) { sys.unblock_cmd_stream(); } }
task got_two() void { left -= 1; if (left == 0) { sys.unblock_cmd_stream(); } }
fn run() void {
  @mov32(x_mem, one, .{ .async = true, .activate = got_one });
  @mov32(y_mem, two, .{ .async = true, .activate = got_two });
}
comptime {
  @bind_local_task(got_one, @get_local_task_id(9));
  @bind_local_task(got_two, @get_local_task_id(10));
  @export_symbol(run);
}
"""
IDLE = """
param a: color; param b: color; param n: u16; param to: color;
fn run() void { sys.unblock_cmd_stream(); }
comptime { @export_symbol(run); }
"""


def row(
    folder: Path, tiles: list[str], routes: dict[tuple[int, str], str], symbols: str = "",
    **more: str,
) -> Run:  # fmt: skip
    """PEs in a row: ``tiles`` are files, with ``:color`` for what a sender sends on; ``routes``
    are route settings by PE and color, ``symbols`` names of exported u16 arrays."""
    names = {"run": "fn()void", **dict.fromkeys(symbols.split(), "[*]u16")}
    width = len(tiles)
    code = ""
    for x, tile in enumerate(tiles):
        name, _, to = tile.partition(":")
        code += (
            f'@set_tile_code({x}, 0, "{name}.csl", .{{ .memcpy_params = memcpy.get_params({x}),'
            f" .a = a, .b = b, .n = n, .to = {to or 'a'} }});\n"
        )
    for (x, color), text in routes.items():
        code += f"@set_color_config({x}, 0, {color}, .{{ .routes = .{{ {text} }} }});\n"
    layout = f"""
param n: u16;
const a = @get_color(3); const b = @get_color(4);
const memcpy = @import_module("<memcpy/get_params>", .{{ .width = {width}, .height = 1 }});
layout {{
  @set_rectangle({width}, 1);
  {code}
  {exports(**names)}
}}
"""
    files = {"send": SEND, "send_two": SEND_TWO, "receive_two": RECEIVE_TWO, "idle": IDLE, **more}
    texts = {f"{name}.csl": PE_HEAD + text for name, text in files.items()}
    return Run(folder, {"layout.csl": layout, **texts}, "wse2", params={"n": N})


def cycles(program: Run, x: int) -> int:
    """When the PE at ``x`` was through."""
    program.launch("run")
    return int(program.machine.pes[x, 0].busy_until)


EAST, PASS = ".rx = .{RAMP}, .tx = .{EAST}", ".rx = .{WEST}, .tx = .{EAST}"
FROM_WEST, FROM_EAST = ".rx = .{WEST}, .tx = .{RAMP}", ".rx = .{EAST}, .tx = .{RAMP}"
WEST = ".rx = .{RAMP}, .tx = .{WEST}"


def test_two_colors_share_a_link(tmp_path: Path) -> None:
    routes = {(0, "a"): EAST, (1, "a"): PASS, (2, "a"): FROM_WEST,
              (1, "b"): EAST, (2, "b"): FROM_WEST}  # fmt: skip
    program = row(tmp_path, ["send:a", "send:b", "receive_two"], routes)
    assert 2 * N <= cycles(program, 2) <= 2 * N + 50
    assert program.machine.fabric.link_load == {(0, 0, 1): N, (1, 0, 1): 2 * N}


def test_two_neighbours_share_the_ramp_of_a_receiver(tmp_path: Path) -> None:
    routes = {(0, "a"): EAST, (1, "a"): FROM_WEST, (2, "b"): WEST, (1, "b"): FROM_EAST}
    program = row(tmp_path, ["send:a", "receive_two", "send:b"], routes)
    assert 2 * N <= cycles(program, 1) <= 2 * N + 50


def test_two_sends_share_the_ramp_of_a_sender(tmp_path: Path) -> None:
    routes = {(1, "a"): WEST, (1, "b"): EAST, (0, "a"): FROM_EAST, (2, "b"): FROM_WEST}
    receiver = RECEIVE_TWO.replace("var left: u16 = 2;", "var left: u16 = 1;")
    tiles = ["receive_one", "send_two", "receive_one"]
    program = row(tmp_path, tiles, routes, receive_one=receiver)
    program.launch("run")
    ends = [program.machine.pes[x, 0].busy_until for x in (0, 2)]
    assert N <= min(ends) <= N + 50
    assert 2 * N <= max(ends) <= 2 * N + 50


MERGE = {(0, "a"): EAST, (1, "a"): ".rx = .{WEST, EAST}, .tx = .{RAMP}", (2, "a"): WEST,
         (1, "b"): FROM_WEST}  # fmt: skip


def test_wavelets_that_collide_are_reported(tmp_path: Path) -> None:
    program = row(tmp_path, ["send:a", "receive_two", "send:a"], MERGE)
    with pytest.raises(MeshcError, match="in the same cycle, from WEST and from EAST") as caught:
        program.launch("run")
    assert caught.value.diagnostics[0].code == "csl-collision"


def test_wavelets_that_take_turns_do_not_collide(tmp_path: Path) -> None:
    later = SEND.replace(
        "fn run() void {", "fn run() void { for (@range(u16, 200)) |i| { x += i; }"
    )
    later = later.replace("var data", "var x: u16 = 0; var data")
    receiver = RECEIVE_TWO.replace("two, .{ .async", "one, .{ .async")
    tiles = ["send:a", "receive_one", "later:a"]
    program = row(tmp_path, tiles, MERGE, later=later, receive_one=receiver)
    assert cycles(program, 1) > 2 * N


# --- issue slots ---

BUSY = """
param a: color; param b: color; param n: u16; param to: color;
const size = 1024;
var x = @zeros([size]u16); var y = @zeros([n]u32);
var done: u16 = 0;
const all = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{size} -> x[i] });
const y_mem = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{n} -> y[i] });
const one = @get_dsd(fabin_dsd, .{ .extent = n, .fabric_color = a,
                                   .input_queue = @get_input_queue(4) });
task received() void { done += 1; if (done == 2) { sys.unblock_cmd_stream(); } }
task compute() void {
  for (@range(u16, 4)) |_| { @add16(all, all, all); }
  done += 1; if (done == 2) { sys.unblock_cmd_stream(); }
}
fn run() void {
  @mov32(y_mem, one, .{ .async = true, .activate = received PRIORITY });
  @activate(compute_id);
}
const compute_id = @get_local_task_id(10);
comptime {
  @bind_local_task(received, @get_local_task_id(9));
  @bind_local_task(compute, compute_id);
  @export_symbol(run);
}
"""
TO_THE_EAST = {(0, "a"): EAST, (1, "a"): FROM_WEST}


def both(folder: Path, priority: str) -> tuple[int, int]:
    """When the microthread has received, and when everything is done, on a PE that computes."""
    program = row(folder, ["send:a", "busy"], TO_THE_EAST, busy=BUSY.replace("PRIORITY", priority))
    end = cycles(program, 1)
    return int(program.machine.pes[1, 0].threads[4].t), end


def test_a_microthread_uses_what_the_task_leaves(tmp_path: Path) -> None:
    """Four operations of 256 steps; the receiver's 100 steps come after them."""
    received, end = both(tmp_path, "")
    assert received > 4 * 256
    assert end >= 4 * 256 + N


def test_a_microthread_of_high_priority_goes_first(tmp_path: Path) -> None:
    received, end = both(tmp_path, ", .priority = .{ .high = true }")
    assert received < 2 * N
    assert end >= 4 * 256


def test_code_of_high_priority_comes_before_any_microthread(tmp_path: Path) -> None:
    """Code may be placed above the microthreads of medium and high priority."""
    tile = 'const tile = @import_module("<tile_config>");\nconst size'
    lifted = BUSY.replace("const size", tile).replace(
        "fn run() void {",
        "fn run() void {\n  const thread = tile.main_thread_priority;\n"
        "  thread.update_main_thread_priority(thread.level.HIGH);",
    )
    busy = lifted.replace("PRIORITY", ", .priority = .{ .high = true }")
    wait = "for (@range(u16, 20)) |i| { x += i; } @mov32"
    later = SEND.replace("@mov32", wait).replace("var data", "var x: u16 = 0; var data")
    program = row(tmp_path, ["later:a", "busy"], TO_THE_EAST, busy=busy, later=later)
    cycles(program, 1)
    assert program.machine.pes[1, 0].threads[4].t > 4 * 256


TASKS = """
param a: color; param b: color; param n: u16; param to: color;
const tile = @import_module("<tile_config>");
const send = @get_dsd(fabout_dsd, .{ .fabric_color = a, .extent = 1,
                                     .output_queue = @get_output_queue(2) });
var order = @zeros([3]u16); var order_ptr: [*]u16 = &order;
var next: u16 = 0;
var spun: u16 = 0;
fn note(who: u16) void {
  order[next] = who; next += 1;
  if (next == 3) { sys.unblock_cmd_stream(); }
}
task first() void { note(1); }
task second() void { note(2); }
task arrived(word: u16) void { note(3); }
const first_id = @get_local_task_id(9); const second_id = @get_local_task_id(10);
const data_id = @get_data_task_id(a);
fn run() void {
  PRIORITIES
  @mov16(send, 7);
  @activate(first_id); @activate(second_id);
  for (@range(u16, 50)) |i| { spun += i; }
}
comptime {
  @bind_local_task(first, first_id); @bind_local_task(second, second_id);
  @bind_data_task(arrived, data_id);
  INITIAL
  @export_symbol(run); @export_symbol(order_ptr, "order");
}
"""


@pytest.mark.parametrize(
    ("priorities", "order"),
    [
        ("", [1, 2, 3]),
        ("tile.task_priority.set_task_priority(second_id);", [2, 1, 3]),
        ("tile.task_priority.update_task_priority(data_id, tile.task_priority.level.HIGH);",
         [3, 1, 2]),
        ("tile.task_priority.set_task_priority(second_id);"
         " tile.task_priority.clear_task_priority(second_id);", [1, 2, 3]),
    ],
)  # fmt: skip
def test_tasks_of_high_priority_run_first(
    tmp_path: Path, priorities: str, order: list[int]
) -> None:
    routes = {(0, "a"): ".rx = .{RAMP}, .tx = .{RAMP}"}
    for place in ("PRIORITIES", "INITIAL"):
        tasks = TASKS.replace(place, priorities).replace("PRIORITIES", "").replace("INITIAL", "")
        program = row(tmp_path, ["tasks"], routes, symbols="order", tasks=tasks)
        program.launch("run")
        assert list(program.read("order", 3, "u2")) == order


def test_a_microthread_that_is_used_twice_is_remarked(tmp_path: Path) -> None:
    twice = RECEIVE_TWO.replace("@get_input_queue(5)", "@get_input_queue(4)")
    routes = {(0, "a"): EAST, (1, "a"): FROM_WEST, (2, "b"): WEST, (1, "b"): FROM_EAST}
    program = row(tmp_path, ["send:a", "twice", "send:b"], routes, twice=twice)
    program.launch("run")
    (code, _), words = next(iter(program.machine.remarks.items()))
    assert code == "csl-microthread"
    assert "microthread 4" in words and "twice.csl" in words
