"""Queues of the documented depth: streams between host and PE."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from csl_runner import PE_HEAD, Run

from meshc.support.diagnostics import MeshcError

LAYOUT = """
param n: u16;
const memcpy = @import_module("<memcpy/get_params>", .{
  .width = 1, .height = 1,
  .MEMCPYH2D_1 = @get_color(0), .MEMCPYD2H_1 = @get_color(1) });
layout {
  @set_rectangle(1, 1);
  @set_tile_code(0, 0, "pe.csl", .{ .memcpy_params = memcpy.get_params(0), .n = n });
}
"""
ADDER = (
    PE_HEAD
    + """
param n: u16;
const in = @get_dsd(fabin_dsd, .{ .extent = n, .fabric_color = sys.MEMCPYH2D_1,
                                  .input_queue = @get_input_queue(2) });
const out = @get_dsd(fabout_dsd, .{ .extent = n, .fabric_color = sys.MEMCPYD2H_1,
                                    .output_queue = @get_output_queue(3) });
task begin() void { @add16(out, in, @as(u16, 1), .{ .async = true }); }
comptime { @bind_local_task(begin, @get_local_task_id(8)); @activate(@get_local_task_id(8)); }
"""
)
ALL = (0, 0, 1, 1)


def adder(folder: Path, n: int, strict: bool) -> Run:
    files = {"layout.csl": LAYOUT, "pe.csl": ADDER}
    return Run(folder, files, "wse2", params={"n": n}, strict=strict)


@pytest.mark.parametrize(("n", "strict"), [(14, True), (15, False)])
def test_a_stream_that_fits_the_queues(tmp_path: Path, n: int, strict: bool) -> None:
    program = adder(tmp_path, n, strict)
    program.runtime.stream_in(0, np.arange(n, dtype=np.uint32), ALL, n, 0)
    got = np.zeros(n, np.uint32)
    program.runtime.stream_out(got, 1, ALL, n, 0)
    assert list(got) == list(range(1, n + 1))


def test_a_stream_that_fills_the_queues(tmp_path: Path) -> None:
    """Published: such a program stalls above 14 words, as nothing reads before all are sent."""
    program = adder(tmp_path, 15, True)
    with pytest.raises(MeshcError, match="the host streams color 0") as caught:
        program.runtime.stream_in(0, np.arange(15, dtype=np.uint32), ALL, 15, 0)
    found = caught.value.diagnostics[0]
    assert found.code == "csl-hang"
    assert "for room in the queues behind it (9 wavelets under way, 9 fit)" in found.notes[0]


def test_a_host_that_reads_makes_room(tmp_path: Path) -> None:
    """Two commands of seven words each pass; so do two more."""
    program = adder(tmp_path, 28, True)
    for start in range(0, 28, 7):
        words = np.arange(start, start + 7, dtype=np.uint32)
        program.runtime.stream_in(0, words, ALL, 7, 0)
        got = np.zeros(7, np.uint32)
        program.runtime.stream_out(got, 1, ALL, 7, 0)
        assert list(got) == list(words + 1)


# --- a relay whose wavelets go from router to router ---

FAR = 16
RELAY_LAYOUT = """
param n: u16;
const near = @get_color(3); const far = @get_color(4); const other = @get_color(5);
const memcpy = @import_module("<memcpy/get_params>", .{ .width = WIDTH, .height = 1 });
layout {
  @set_rectangle(WIDTH, 1);
  for (@range(i16, WIDTH)) |x| {
    const params = .{ .memcpy_params = memcpy.get_params(x), .n = n, .x = x, .last = LAST };
    @set_tile_code(x, 0, "pe.csl", params);
    const onward = .{ .rx = .{WEST}, .tx = MIDDLE };
    if (x == 0) { @set_color_config(x, 0, near, .{ .routes = .{ .rx = .{RAMP}, .tx = .{EAST} } }); }
    if (x == 1) {
      @set_color_config(x, 0, near, .{ .routes = .{ .rx = .{WEST}, .tx = .{RAMP} } });
      @set_color_config(x, 0, far, .{ .routes = .{ .rx = .{RAMP}, .tx = .{EAST} } SWITCHES });
    }
    if (x > 1 and x < LAST) { @set_color_config(x, 0, far, .{ .routes = onward }); }
    const end = .{ .rx = .{WEST}, .tx = .{RAMP} };
    if (x == LAST) { @set_color_config(x, 0, far, .{ .routes = end }); }
    OTHER
  }
  @export_name("run", fn()void);
}
"""
RELAY_PE = (
    PE_HEAD
    + """
param n: u16; param x: i16; param last: i16;
const near = @get_color(3); const far = @get_color(4);
var data = @zeros([n]f32);
const mem = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{n} -> data[i] });
fn out(c: color) fabout_dsd {
  return @get_dsd(fabout_dsd, .{ .extent = n, .fabric_color = c,
                                 .output_queue = @get_output_queue(2) });
}
fn in(c: color) fabin_dsd {
  return @get_dsd(fabin_dsd, .{ .extent = n, .fabric_color = c,
                                .input_queue = @get_input_queue(3) });
}
fn run() void {
  if (x == 0) { @fmovs(out(near), mem, .{ .async = true }); }
  if (x == 1) { @fadds(out(far), in(near), mem, .{ .async = true }); }
  if (x == last or (x > 1 and LISTENS)) {
    @fadds(mem, in(far), mem, .{ .async = true, .activate = end });
  } else { sys.unblock_cmd_stream(); }
}
task end() void { sys.unblock_cmd_stream(); }
comptime { @bind_local_task(end, @get_local_task_id(9)); @export_symbol(run); }
"""
)
SHARED = """
    const out = .{ .rx = .{RAMP}, .tx = .{EAST} };
    if (x == 1) { @set_color_config(x, 0, other, .{ .routes = out }); }
"""
KINDS = {
    "a switch": {"SWITCHES": ", .switches = .{ .pos1 = .{ .tx = WEST } }"},
    "a shared link": {"OTHER": SHARED},
    "several receivers": {"OTHER": SHARED, "MIDDLE": ".{RAMP, EAST}", "LISTENS": "true"},
}


def relayed(folder: Path, n: int, kind: str, strict: bool) -> int:
    """Cycles until a vector that is passed on once has reached its last receiver."""
    words = {"SWITCHES": "", "OTHER": "", "MIDDLE": ".{EAST}", "LISTENS": "false", **KINDS[kind],
             "WIDTH": str(FAR + 2), "LAST": str(FAR + 1)}  # fmt: skip
    texts = {"layout.csl": RELAY_LAYOUT, "pe.csl": RELAY_PE}
    for word, meaning in words.items():
        texts = {name: text.replace(word, meaning) for name, text in texts.items()}
    program = Run(folder, texts, "wse2", params={"n": n}, strict=strict)
    program.launch("run")
    return int(program.machine.pes[FAR + 1, 0].busy_until)


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_over_many_links_is_not_slowed(tmp_path: Path, kind: str) -> None:
    """Links hold what is under way: the queues of a relay 16 links from its receiver let one
    element pass per cycle, also where the routes are not known beforehand."""
    assert relayed(tmp_path, 200, kind, strict=True) == relayed(tmp_path, 200, kind, strict=False)
