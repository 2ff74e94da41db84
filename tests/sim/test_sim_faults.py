"""Seeded faults: single edits to a correct program, each with its diagnosis."""

from __future__ import annotations

from pathlib import Path

import pytest
from csl_runner import PE_HEAD, Run, single

from meshc.sim.machine.run_options import Options
from meshc.support.diagnostics import MeshcError

LAYOUT = """
param n: u16 = 8;
const right = @get_color(2);
const left = @get_color(5);
const memcpy = @import_module("<memcpy/get_params>", .{ .width = 2, .height = 1 });
layout {
  @set_rectangle(2, 1);
  @set_tile_code(0, 0, "a.csl", .{ .memcpy_params = memcpy.get_params(0), .n = n,
    .to = right, .from = left });
  @set_tile_code(1, 0, "b.csl", .{ .memcpy_params = memcpy.get_params(1), .n = n,
    .to = left, .from = right });
  @set_color_config(0, 0, right, .{ .routes = .{ .rx = .{RAMP}, .tx = .{EAST} } });
  @set_color_config(1, 0, right, .{ .routes = .{ .rx = .{WEST}, .tx = .{RAMP} } });
  @set_color_config(1, 0, left, .{ .routes = .{ .rx = .{RAMP}, .tx = .{WEST} } });
  @set_color_config(0, 0, left, .{ .routes = .{ .rx = .{EAST}, .tx = .{RAMP} } });
  @export_name("data", [*]f32, true);
  @export_name("run", fn()void);
}
"""
COMMON = (
    PE_HEAD
    + """
param n: u16; param to: color; param from: color;
const oq = @get_output_queue(2);
const iq = @get_input_queue(3);
var data = @zeros([n]f32); var data_ptr: [*]f32 = &data;
const mem = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{n} -> data[i] });
const out = @get_dsd(fabout_dsd, .{ .extent = n, .fabric_color = to, .output_queue = oq });
const in = @get_dsd(fabin_dsd, .{ .extent = n, .fabric_color = from, .input_queue = iq });
const sent_id = @get_local_task_id(9);
const got_id = @get_local_task_id(10);
"""
)
BINDINGS = """
comptime {
  @bind_local_task(sent, sent_id);
  @bind_local_task(got, got_id);
  if (@is_arch("wse3")) {
    @initialize_queue(oq, .{ .color = to });
    @initialize_queue(iq, .{ .color = from });
  }
  @export_symbol(data_ptr, "data");
  @export_symbol(run);
}
"""
A = (
    COMMON
    + """
fn run() void { @fmovs(out, mem, .{ .async = true, .activate = sent }); }
task sent() void { @fadds(mem, mem, in, .{ .async = true, .activate = got }); }
task got() void { sys.unblock_cmd_stream(); }
"""
    + BINDINGS
)
B = (
    COMMON
    + """
fn run() void { @fadds(mem, mem, in, .{ .async = true, .activate = got }); }
task got() void { @fmovs(out, mem, .{ .async = true, .activate = sent }); }
task sent() void { sys.unblock_cmd_stream(); }
"""
    + BINDINGS
)

# file, text to find (first occurrence), replacement, code, words of the message or its notes
FAULTS: list[tuple[str, str, str, str, str]] = [
    ("layout.csl", ".to = right", ".to = left", "csl-hang", "accepts EAST"),
    ("layout.csl", ".tx = .{EAST}", ".tx = .{NORTH}", "csl-hang", "leaves the rectangle"),
    ("layout.csl", ".tx = .{EAST}", ".tx = .{WEST}", "csl-hang", "leaves the rectangle"),
    ("layout.csl", ".rx = .{WEST}, .tx = .{RAMP}", ".rx = .{EAST}, .tx = .{RAMP}", "csl-hang",
     "accepts EAST"),
    ("layout.csl", ".rx = .{WEST}, .tx = .{RAMP}", ".rx = .{WEST}, .tx = .{EAST}", "csl-hang",
     "leaves the rectangle"),
    ("layout.csl", "@set_color_config(1, 0, right", "@set_color_config(1, 0, @get_color(7)",
     "csl-run", "no route"),
    ("layout.csl", "@set_color_config(1, 0, left", "@set_color_config(1, 0, right", "csl-layout",
     "configured twice"),
    ("layout.csl", "@set_tile_code(1, 0", "@set_tile_code(2, 0", "csl-layout", "outside"),
    ("layout.csl", "@set_tile_code(1, 0", "@set_tile_code(0, 0", "csl-layout", "has its code"),
    ("layout.csl", '"b.csl"', '"c.csl"', "csl-no-file", "no file"),
    ("layout.csl", "@set_rectangle(2, 1);", "", "csl-layout", "before @set_rectangle"),
    ("layout.csl", '@export_name("run", fn()void);', "", "csl-layout", "no @export_name"),
    ("layout.csl", "RAMP}, .tx", "RAMP, tx", "csl-unknown-name|csl-syntax", "tx|expected"),
    ("layout.csl", ".routes", ".route", "csl-unknown-name", "has no field '.route'"),
    ("layout.csl", "@get_color(2)", "@get_color(40)", "csl-range", "no color"),
    ("layout.csl", "param n: u16 = 8", "param n: u16", "csl-unbound-param", "'n'"),
    ("layout.csl", "param n: u16 = 8", "param n: u16 = 14000", "csl-memory", "more than"),
    ("layout.csl", "param n: u16 = 8", "param n: u16 = 70000", "csl-range", "does not fit"),
    ("layout.csl", "[*]f32, true", "[8]f32, true", "csl-type", "export a pointer"),
    ("a.csl", "sys.unblock_cmd_stream();", "", "csl-hang", "never called"),
    ("b.csl", "sys.unblock_cmd_stream();", "", "csl-hang", "never called"),
    ("a.csl", ".activate = got", ".activate = sent", "csl-hang", "waits|stuck|unread|never"),
    ("b.csl", ".activate = got", ".activate = sent", "csl-hang", "for color 5"),
    ("a.csl", ", .activate = sent }", " }", "csl-hang", "never called|for color"),
    ("a.csl", ".extent = n, .fabric_color = to", ".extent = n, .fabric_color = from", "csl-hang",
     "accepts EAST"),
    ("b.csl", ".fabric_color = from", ".fabric_color = to", "csl-hang", "for color 5"),
    ("b.csl", "|i|{n} -> data[i]", "|i|{n - 1} -> data[i]", "csl-hang", "7 of 8|unread"),
    ("a.csl", "@fmovs(out, mem,", "@fmovs(mem, out,", "csl-dsd", "cannot be a source"),
    ("a.csl", "@fadds(mem, mem, in", "@fadds(in, mem, mem", "csl-dsd", "cannot be a destination"),
    ("a.csl", "@bind_local_task(got, got_id);", "", "csl-task", "never bound"),
    ("a.csl", "@bind_local_task(got, got_id);", "@bind_local_task(got, sent_id);", "csl-task",
     "bound twice"),
    ("a.csl", "task got()", "task got(x: u16)", "csl-task", "no parameters"),
    ("a.csl", "@get_local_task_id(9)", "@get_local_task_id(99)", "csl-range", "local_task_id"),
    ("a.csl", "@get_output_queue(2)", "@get_output_queue(6)", "csl-range", "output queues 0 to 5"),
    ("a.csl", "@get_input_queue(3)", "@get_input_queue(9)", "csl-range", "input_queue"),
    ("a.csl", "@zeros([n]f32)", "@zeros([n]i16)", "csl-type", "expected a value"),
    ("a.csl", "data[i] }", "data[i * i] }", "csl-type", "affine"),
    ("a.csl", ".async = true, .activate = got", ".asynch = true, .activate = got",
     "csl-unknown-name", "asynch"),
    ("a.csl", "task got() void {", "task got() void { @block(sent_id); @activate(sent_id); ",
     "ok", ""),
    ("a.csl", "fn run() void {", "fn run() void { @assert(n == 7);", "csl-assert|csl-run",
     "assertion"),
    ("a.csl", "fn run() void {", "fn run() void { var z: u16 = 0; data[n / z] = 1.0;", "csl-run",
     "division by zero"),
    ("a.csl", "fn run() void {", "fn run() void { while (true) {}", "csl-run", "too many cycles"),
    ("a.csl", "fn run() void {", "fn run() void { data_ptr[40000] = 1.0;", "csl-run", "outside"),
    ("a.csl", "@export_symbol(run);", "", "csl-host", "does not export"),
    ("a.csl", "@export_symbol(run);", "@export_symbol(sent);", "csl-type", "cannot be exported"),
    ("a.csl", "const sent_id", "const got_id", "csl-redeclared", "declared twice"),
    ("a.csl", "sys.unblock_cmd_stream()", "sys.unblock()", "csl-unsupported", "no 'unblock'"),
    ("a.csl", "task got() void { ", "task got() void { run(1); ", "csl-type", "takes 0 arguments"),
    ("a.csl", "task got() void { ", "task got() void { sent(); ", "csl-type", "cannot be called"),
    ("a.csl", "var data_ptr: [*]f32", "const data_ptr: *u32", "csl-type", "expected a value"),
]  # fmt: skip


def execute(folder: Path, file: str, old: str, new: str) -> None:
    files = {"layout.csl": LAYOUT, "a.csl": A, "b.csl": B}
    assert old in files[file] or not old
    files[file] = files[file].replace(old, new, 1)
    program = Run(folder, files, "wse2")
    program.machine.task_limit = 200_000
    program.launch("run")


def test_there_are_enough_faults() -> None:
    assert len(FAULTS) >= 40


@pytest.mark.parametrize("arch", ["wse2", "wse3"])
def test_the_program_without_faults(tmp_path: Path, arch: str) -> None:
    program = Run(tmp_path, {"layout.csl": LAYOUT, "a.csl": A, "b.csl": B}, arch)
    program.launch("run")


@pytest.mark.parametrize("number", range(len(FAULTS)))
def test_fault(tmp_path: Path, number: int) -> None:
    file, old, new, codes, words = FAULTS[number]
    if codes == "ok":
        execute(tmp_path, file, old, new)
        return
    with pytest.raises(MeshcError) as caught:
        execute(tmp_path, file, old, new)
    found = caught.value.diagnostics[0]
    text = " ".join((found.message, *found.notes))
    assert found.code in codes.split("|"), found.render()
    assert any(word in text for word in words.split("|")), found.render()


EXCHANGE = (
    COMMON
    + """
fn run() void { @fmovs(out, mem); @fadds(mem, mem, in); sys.unblock_cmd_stream(); }
task sent() void {}
task got() void {}
"""
    + BINDINGS
)


@pytest.mark.parametrize(("n", "strict", "hangs"), [(200, False, False), (4, True, False),
                                                   (200, True, True)])  # fmt: skip
def test_strict_queues_catch_a_send_that_needs_room(
    tmp_path: Path, n: int, strict: bool, hangs: bool
) -> None:
    layout = LAYOUT.replace("param n: u16 = 8", f"param n: u16 = {n}")
    files = {"layout.csl": layout, "a.csl": EXCHANGE, "b.csl": EXCHANGE}
    program = Run(tmp_path, files, "wse2", strict=strict)
    if not hangs:
        program.launch("run")
        return
    with pytest.raises(MeshcError) as caught:
        program.launch("run")
    assert caught.value.diagnostics[0].code == "csl-hang"
    assert "for room in the queues" in " ".join(caught.value.diagnostics[0].notes)


def test_wavelets_that_leave_the_rectangle_are_lost(tmp_path: Path) -> None:
    """A multicast whose last PE passes it on: published programs do it, and run."""
    layout = LAYOUT.replace(".rx = .{WEST}, .tx = .{RAMP}", ".rx = .{WEST}, .tx = .{RAMP, EAST}")
    files = {"layout.csl": layout, "a.csl": A, "b.csl": B}
    program = Run(tmp_path, files, "wse2")
    program.launch("run")
    words = "color 2 leaves the rectangle to the EAST of PE (1, 0): its wavelets are lost there"
    assert program.machine.remarks == {("csl-edge", "1 0 2 1"): words}
    strict = Run(tmp_path, files, "wse2", machine=Options(strict=True))
    with pytest.raises(MeshcError) as caught:
        strict.launch("run")
    assert caught.value.diagnostics[0].code == "csl-edge"


NEVER = """
const first_id = @get_local_task_id(9); const last_id = @get_local_task_id(10);
const mark_id = @get_control_task_id(3); const data_id = @get_data_task_id(@get_color(4));
fn run() void { @activate(first_id); }
task first() void {} task last() void { sys.unblock_cmd_stream(); }
task mark() void {} task got(word: u32) void {}
comptime {
  @bind_local_task(first, first_id); @bind_local_task(last, last_id);
  @bind_control_task(mark, mark_id); @bind_data_task(got, data_id);
  @export_symbol(run);
}
"""


def test_a_hang_names_tasks_that_never_ran(tmp_path: Path) -> None:
    program = single(tmp_path, NEVER, run="fn()void")
    with pytest.raises(MeshcError) as caught:
        program.launch("run")
    assert caught.value.diagnostics[0].notes == (
        "no task is ready and no operation waits",
        "PE (0, 0): task 'last' (local id 10) was never activated",
        "PE (0, 0): task 'mark' (control id 3) received no control wavelet",
        "PE (0, 0): task 'got' received nothing on color 4",
    )
