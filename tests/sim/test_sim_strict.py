"""Queues of the documented depth: streams between host and PE."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from csl_runner import PE_HEAD, Run
from relays import FAR, KINDS, relay

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


def relayed(folder: Path, n: int, kind: str, strict: bool) -> int:
    """Cycles until a vector that is passed on once has reached its last receiver."""
    program = Run(folder, relay(kind), "wse2", params={"n": n}, strict=strict)
    program.launch("run")
    return int(program.machine.pes[FAR + 1, 0].busy_until)


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_over_many_links_is_not_slowed(tmp_path: Path, kind: str) -> None:
    """Links hold what is under way: the queues of a relay 16 links from its receiver let one
    element pass per cycle, also where the routes are not known beforehand."""
    assert relayed(tmp_path, 200, kind, strict=True) == relayed(tmp_path, 200, kind, strict=False)
