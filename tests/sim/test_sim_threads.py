"""The C machine on several threads gives what it gives on one, to the bit and to the cycle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from relays import KINDS, relay
from twin import Twin

from meshc.sim import machines as machines_module
from meshc.sim.cgen.build import C
from meshc.sim.cgen.c_machine import CMachine
from meshc.sim.cs_python import take_options
from meshc.sim.csl_compiler import compile_program
from meshc.sim.host import host_operations
from meshc.sim.machine.run_options import Options
from meshc.sim.machines import make_machine
from meshc.sim.program import Program
from meshc.support.diagnostics import MeshcError

STENCIL = Path(__file__).parents[2] / "benchmarks" / "stencil" / "layout.csl"
NUMBERS = ("t", "busy_until", "cycles_busy", "unblocked", "current_name")
TOTALS = ("now", "last_time", "tasks_run", "events")

pytestmark = pytest.mark.skipif(C.path() is None, reason="there is no C compiler")

LAYOUT = """
const memcpy = @import_module("<memcpy/get_params>", .{ .width = 4, .height = 6 });
const data = @get_color(1);
const other = @get_color(2);
layout {
  @set_rectangle(4, 6);
  for (@range(i16, 4)) |x| {
    for (@range(i16, 6)) |y| {
      @set_tile_code(x, y, "pe.csl", .{ .memcpy_params = memcpy.get_params(x), .x = x, .y = y,
                                        .data = data, .other = other });
      ROUTES
    }
  }
  @export_name("field", [*]f32, true);
  @export_name("run", fn () void);
}
"""
PE = """
param memcpy_params: comptime_struct;
param x: i16;
param y: i16;
param data: color;
param other: color;
const sys = @import_module("<memcpy/memcpy>", memcpy_params);
const out = @get_output_queue(2);
const in = @get_input_queue(2);
var field = @zeros([8]f32);
var field_ptr: [*]f32 = &field;
const all = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{8} -> field[i] });
const to = @get_dsd(fabout_dsd, .{ .extent = 8, .fabric_color = data, .output_queue = out });
const from = @get_dsd(fabin_dsd, .{ .extent = 8, .fabric_color = data, .input_queue = in });
BODY
comptime {
  if (@is_arch("wse3")) {
    @initialize_queue(out, .{ .color = data });
    @initialize_queue(in, .{ .color = data });
  }
  @export_symbol(field_ptr, "field");
  @export_symbol(run);
}
"""
# The corner sends down its column; every PE there sends along its row.
TREE = """
if (x == 0 and y == 0) {
  @set_color_config(x, y, data, .{ .routes = .{ .rx = .{ RAMP }, .tx = .{ EAST, SOUTH } } });
} else if (x == 0) {
  @set_color_config(x, y, data, .{ .routes = .{ .rx = .{ NORTH }, .tx = if (y == 5)
      .{ RAMP, EAST } else .{ RAMP, EAST, SOUTH } } });
} else {
  @set_color_config(x, y, data, .{ .routes = .{ .rx = .{ WEST }, .tx = if (x == 3)
      .{ RAMP } else .{ RAMP, EAST } } });
}
"""
BROADCAST = """
task done() void { sys.unblock_cmd_stream(); }
fn run() void {
  if (x == 0 and y == 0) {
    for (@range(u16, 8)) |i| { field[i] = @as(f32, i) + 0.5; }
    @fmovs(to, all, .{ .async = true, .activate = done });
  } else {
    @fmovs(all, from, .{ .async = true, .activate = done });
  }
}
comptime { @bind_local_task(done, @get_local_task_id(9)); }
"""
# A fault at some PEs in one cycle: that of the lowest number is told.
FAULT = """
var index: u16 = 0;
fn run() void {
  if (y > 1) { index = 1000 * @as(u16, y); field[index] = 1.0; }
  sys.unblock_cmd_stream();
}
"""
# Operands that reach past their variable: a remark for the first PE, once.
REMARK = """
const long = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{12} -> field[i] });
var behind = @zeros([8]f32);
fn run() void {
  behind[0] = 1.0;
  @fmovs(long, 2.0);
  sys.unblock_cmd_stream();
}
"""
# Remarks of some PEs, and in the same cycle a fault of a later one, before which others have none.
BOTH = REMARK.replace(
    "behind[0] = 1.0;",
    """
  if (x == 2 and y > 2) { index = 1000 * @as(u16, y); field[index] = 1.0; }
  behind[0] = 1.0;""",
).replace("var behind", "var index: u16 = 0;\nvar behind")
# Wavelets that nobody sends: the explanation names who waits.
HANG = BROADCAST.replace("if (x == 0 and y == 0)", "if (x == 9)")


# Every PE adds one to what the host streams to it, and streams it back.
STREAMS_LAYOUT = """
const memcpy = @import_module("<memcpy/get_params>", .{ .width = 1, .height = 12,
  .MEMCPYH2D_1 = @get_color(0), .MEMCPYD2H_1 = @get_color(1) });
layout {
  @set_rectangle(1, 12);
  for (@range(i16, 12)) |y| {
    @set_tile_code(0, y, "pe.csl", .{ .memcpy_params = memcpy.get_params(0) });
  }
}
"""
STREAMS_PE = """
param memcpy_params: comptime_struct;
const sys = @import_module("<memcpy/memcpy>", memcpy_params);
const in = @get_dsd(fabin_dsd, .{ .extent = 20, .fabric_color = sys.MEMCPYH2D_1,
                                  .input_queue = @get_input_queue(2) });
const out = @get_dsd(fabout_dsd, .{ .extent = 20, .fabric_color = sys.MEMCPYD2H_1,
                                    .output_queue = @get_output_queue(3) });
task begin() void { @add16(out, in, @as(u16, 1), .{ .async = true }); }
comptime { @bind_local_task(begin, @get_local_task_id(8)); @activate(@get_local_task_id(8)); }
"""


def compiled(folder: Path, body: str, arch: str) -> Program:
    (folder / "layout.csl").write_text(LAYOUT.replace("ROUTES", TREE))
    (folder / "pe.csl").write_text(PE.replace("BODY", body))
    return compile_program(str(folder / "layout.csl"), arch, {}, {}, (0, 0), (4, 1))


def stencil(arch: str, width: int, height: int) -> Program:
    sizes = {"width": width, "height": height, "depth": 3}
    return compile_program(str(STENCIL), arch, sizes, {}, (0, 0), (4, 1))


def machines(program: Program, share: int = 0, strict: bool = False) -> dict[int, CMachine]:
    """Machines of 1 to 4 threads, which share all cycles that take ``share`` nanoseconds; with
    ``strict`` queues."""
    options = Options(strict_queues=strict)
    made = {n: CMachine(program, replace(options, threads=n)) for n in (1, 2, 3, 4)}
    for threads, machine in made.items():
        assert machine.threads == threads
        machine.share_cycles_of(share)
    return made


def outcome(machine: CMachine, action: Callable[[CMachine], Any]) -> Any:
    """The result of an action, or its error, and what can be read, of PEs only unless it failed."""
    result: Any = None
    pes: dict[tuple[int, int], Any] = {}
    try:
        result = action(machine)
        pes = {at: (bytes(pe.mem), *(getattr(pe, n) for n in NUMBERS))
               for at, pe in machine.pes.items()}  # fmt: skip
    except MeshcError as problem:
        result = str(problem)
    totals = [getattr(machine, name) for name in TOTALS]
    return result, totals, list(machine.remarks.items()), pes


def launched(machine: CMachine, name: str, *values: int) -> bool:
    for pe in machine.pes.values():
        machine.launch(pe, pe.program.exports[name].fn, values)
    return machine.run_until_unblocked(1)


@pytest.mark.parametrize("share", [0, 1 << 60])
@pytest.mark.parametrize("arch", ["wse2", "wse3"])
def test_a_stencil(arch: str, share: int) -> None:
    made = machines(stencil(arch, 7, 9), share)
    for machine in made.values():
        for (x, y), pe in machine.pes.items():
            start = np.frombuffer(pe.mem, np.float32, len(pe.mem) // 4)
            start[:3] = (x, y, x * y)
    found = [outcome(m, lambda m: launched(m, "run", 3)) for m in made.values()]
    assert found[0][0] is True
    assert all(f == found[0] for f in found)


@pytest.mark.parametrize("share", [0, 1 << 60])
@pytest.mark.parametrize("body", [BROADCAST, FAULT, REMARK, BOTH, HANG])
@pytest.mark.parametrize("arch", ["wse2", "wse3"])
def test_broadcasts_faults_remarks_and_hangs(
    tmp_path: Path, arch: str, body: str, share: int
) -> None:
    def action(machine: CMachine) -> Any:
        through = launched(machine, "run")
        return through or str(machine.hang("run"))

    made = machines(compiled(tmp_path, body, arch), share)
    found = [outcome(m, action) for m in made.values()]
    assert all(f == found[0] for f in found)
    if body is FAULT:
        assert "PE (0, 2)" in found[0][0]
    if body in (REMARK, BOTH):
        assert len(made[1].remarks) == 1
    if body is BOTH:
        assert "PE (2, 3)" in found[0][0]
    if body is HANG:
        assert "csl-hang" in found[0][0]


@pytest.mark.parametrize("kind", KINDS)
def test_queues_that_are_full(tmp_path: Path, kind: str) -> None:
    """Senders wait for room that PEs of other parts make; the relay is cut in up to four parts."""
    for name, text in relay(kind).items():
        (tmp_path / name).write_text(text)
    program = compile_program(str(tmp_path / "layout.csl"), "wse2", {"n": 200}, {}, (0, 0), (4, 1))

    def action(machine: CMachine) -> Any:
        return launched(machine, "run"), [machine.run_for(3) for _ in range(3)]

    found = [outcome(m, action) for m in machines(program, strict=True).values()]
    assert found[0][0][0] is True
    assert all(f == found[0] for f in found)


def test_a_host_that_waits_for_room(tmp_path: Path) -> None:
    """What the host sends and reads is accounted for where the PE is that takes or makes it."""
    (tmp_path / "layout.csl").write_text(STREAMS_LAYOUT)
    (tmp_path / "pe.csl").write_text(STREAMS_PE)
    program = compile_program(str(tmp_path / "layout.csl"), "wse2", {}, {}, (0, 0), (4, 1))
    keys = [(0, y) for y in range(12)]

    def action(machine: CMachine) -> Any:
        for x, y in keys:
            machine.inject_stream((x, y, 0), np.arange(20, dtype=np.uint32))
        stuck = machine.run_until_sent([(x, y, 0) for x, y in keys])
        missing = machine.run_until_received([(x, y, 1) for x, y in keys], 18)
        sent = machine.run_until_sent([(x, y, 0) for x, y in keys])
        return stuck and stuck[0], missing, sent and sent[0], machine.now

    found = [outcome(m, action) for m in machines(program, strict=True).values()]
    assert found[0][0][1] is None
    assert all(f == found[0] for f in found)


def test_time_passes_alike(tmp_path: Path) -> None:
    found = []
    for machine in machines(compiled(tmp_path, BROADCAST, "wse2")).values():
        for pe in machine.pes.values():
            machine.launch(pe, pe.program.exports["run"].fn, ())
        found.append([outcome(machine, lambda m: m.run_for(7)) for _ in range(9)])
    assert all(f == found[0] for f in found)


def test_what_python_sees_in_the_order_of_time_has_one_thread(tmp_path: Path) -> None:
    program = compiled(tmp_path, BROADCAST, "wse2")
    for options in (Options(strict=True), Options(trace_file=str(tmp_path / "trace"))):
        assert CMachine(program, replace(options, threads=4)).threads == 1
    assert CMachine(program, Options(threads=500)).threads == 24


def test_the_number_of_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert take_options(["--threads", "3"]).threads == 3
    for wrong in ("0", "two"):
        with pytest.raises(MeshcError, match="--threads is"):
            take_options(["--threads", wrong])
    monkeypatch.setattr(machines_module, "MOST_THREADS_BY_DEFAULT", 4)
    for cores, threads in ((1, 1), (3, 3), (64, 4)):
        monkeypatch.setattr(machines_module, "_cores", lambda cores=cores: cores)
        assert machines_module.threads_of(Options()) == threads
        assert machines_module.threads_of(Options(threads=7)) == 7


def test_a_machine_has_the_threads_of_its_options(tmp_path: Path) -> None:
    program = compiled(tmp_path, BROADCAST, "wse2")
    machine = make_machine(program, Options(backend="c", threads=2))
    assert isinstance(machine, CMachine)
    assert machine.threads == 2
    assert host_operations.make_machine is Twin
