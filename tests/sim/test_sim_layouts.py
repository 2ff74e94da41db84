"""The layout API: regions, parameters, painted routes, ports, connections, streams."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshc.sim.host import host_operations as host_runtime
from meshc.sim.host.host_classes import SdkRuntime
from meshc.sim.host.platforms import (
    FP16TYPE,
    SdkTarget,
    SimfabConfig,
    get_platform,
    get_simulator,
    get_system,
)
from meshc.sim.host.sdk_layout import (
    CodeRegion,
    Color,
    Edge,
    IntRectangle,
    IntVector,
    Route,
    RoutingPosition,
    SdkLayout,
    get_edge_routing,
)
from meshc.sim.machine.run_options import Options
from meshc.support.diagnostics import MeshcError

SIZE = 12
ADD = """
param size: u16; param rx1: color; param rx2: color; param tx: color;
const q1 = @get_input_queue(0); const q2 = @get_input_queue(1); const out_q = @get_output_queue(0);
const one = @get_dsd(fabin_dsd, .{ .extent = size, .fabric_color = rx1, .input_queue = q1 });
const two = @get_dsd(fabin_dsd, .{ .extent = size, .fabric_color = rx2, .input_queue = q2 });
const out = @get_dsd(fabout_dsd, .{ .extent = size, .fabric_color = tx, .output_queue = out_q });
var room = @zeros([size]u32);
const fifo = @allocate_fifo(room);
task main() void {
  @mov32(fifo, two, .{ .async = true });
  @fadds(out, one, fifo, .{ .async = true });
}
comptime {
  @bind_local_task(main, @get_local_task_id(8)); @activate(@get_local_task_id(8));
  @initialize_queue(q1, .{ .color = rx1 }); @initialize_queue(q2, .{ .color = rx2 });
  if (@is_arch("wse3")) { @initialize_queue(out_q, .{ .color = tx }); }
}
"""
DOUBLE = """
param size: u16; param rx: color; param tx: color;
const q = @get_input_queue(2); const out_q = @get_output_queue(2);
const in = @get_dsd(fabin_dsd, .{ .extent = size, .fabric_color = rx, .input_queue = q });
const out = @get_dsd(fabout_dsd, .{ .extent = size, .fabric_color = tx, .output_queue = out_q });
task main() void { @fmuls(out, in, 2.0, .{ .async = true }); }
comptime {
  @bind_local_task(main, @get_local_task_id(8)); @activate(@get_local_task_id(8));
  @initialize_queue(q, .{ .color = rx });
  if (@is_arch("wse3")) { @initialize_queue(out_q, .{ .color = tx }); }
}
"""
OUT = [RoutingPosition().set_input([Route.RAMP])]
IN = [RoutingPosition().set_output([Route.RAMP])]


def layout(target: SdkTarget = SdkTarget.WSE3) -> tuple[SdkLayout, Any]:
    platform = get_platform(None, SimfabConfig(dump_core=True), target)
    return SdkLayout(platform), platform


def run(made: SdkLayout, platform: Any, folder: Path) -> SdkRuntime:
    runtime = SdkRuntime(made.compile(out_prefix=str(folder / "out")), platform,
                         memcpy_required=False)  # fmt: skip
    runtime.load()
    runtime.run()
    return runtime


def region(made: SdkLayout, folder: Path, text: str, colors: str, *size: int) -> CodeRegion:
    name = f"code{len(made.regions)}"
    (folder / f"{name}.csl").write_text(text, encoding="utf-8")
    found = made.create_code_region(str(folder / f"{name}.csl"), name, *(size or (1, 1)))
    for color in colors.split():
        found.set_param_all(found.color(color))
    return found


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("target", list(SdkTarget))
def test_streams_through_connected_regions(
    tmp_path: Path, target: SdkTarget, strict: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two streams are added, doubled in another region, and come back."""
    monkeypatch.setattr(host_runtime, "OPTIONS", [Options(strict_queues=strict)])
    made, platform = layout(target)
    add = region(made, tmp_path, ADD, "rx1 rx2 tx")
    double = region(made, tmp_path, DOUBLE, "rx tx")
    for one in (add, double):
        one.set_param_all("size", SIZE)
    add.place(2, 3)
    double.place(7, 1)
    ports = [add.create_input_port(add.color(c), Edge.RIGHT, IN, SIZE) for c in ("rx1", "rx2")]
    names = [made.create_input_stream(port) for port in ports]
    made.connect(add.create_output_port(add.color("tx"), Edge.LEFT, OUT, SIZE),
                 double.create_input_port(double.color("rx"), Edge.TOP, IN, SIZE))  # fmt: skip
    result = made.create_output_stream(
        double.create_output_port(double.color("tx"), Edge.BOTTOM, OUT, SIZE)
    )
    runtime = run(made, platform, tmp_path)
    a, b = np.arange(SIZE, dtype=np.float32), np.ones(SIZE, np.float32)
    got = np.zeros(SIZE, np.float32)
    runtime.send(names[0], a, nonblock=True)
    runtime.send(names[1], b, nonblock=True)
    runtime.receive(result, got, SIZE, nonblock=True)
    runtime.stop()
    assert list(got) == list(2 * (a + b))


SPREAD = """
param c: color; param me: u16; param tag: u16;
export var seen = @zeros([3]u32);
export var given = @zeros([2]u16);
const out = @get_dsd(fabout_dsd, .{ .extent = 1, .fabric_color = c,
                                    .output_queue = @get_output_queue(2) });
const in = @get_dsd(fabin_dsd, .{ .extent = 1, .fabric_color = c,
                                  .input_queue = @get_input_queue(2) });
task main() void {
  seen[1] = tag; seen[2] = given[1];
  if (me == 0) { @mov32(out, @as(u32, 77)); }
  else { @mov32(@get_dsd(mem1d_dsd, .{ .tensor_access = |i|{1} -> seen[i] }), in); }
}
comptime { @bind_local_task(main, @get_local_task_id(8)); @activate(@get_local_task_id(8)); }
"""


def test_painted_routes_parameters_and_symbols(tmp_path: Path) -> None:
    made, platform = layout(SdkTarget.WSE2)
    row = region(made, tmp_path, SPREAD, "", 4, 1)
    color = Color("c")
    row.set_param_all(color)
    row.set_param_range(IntRectangle(IntVector(1, 0), IntVector(4, 1)), "me", 1)
    row.set_param(IntVector(0, 0), "me", 0)
    row.set_param_all("tag", 5)
    through = [RoutingPosition().set_input([Route.WEST]).set_output([Route.EAST, Route.RAMP])]
    first = [RoutingPosition().set_input([Route.RAMP]).set_output([Route.EAST])]
    last = [RoutingPosition().set_input([Route.WEST]).set_output([Route.RAMP])]
    ends = [get_edge_routing(Edge.LEFT, first), get_edge_routing(Edge.RIGHT, last)]
    row.paint_all(color, through, ends)
    row.set_symbol_all("given", np.arange(8, dtype=np.uint16), 2, 1)
    row.place(3, 2)
    runtime = run(made, platform, tmp_path)
    runtime.stop()
    values = [list(runtime.read_symbol(3 + x, 2, "seen", np.uint32)) for x in range(4)]
    assert values == [[0, 5, 1], [77, 5, 3], [77, 5, 5], [77, 5, 7]]


def test_a_stream_that_never_comes_is_a_hang(tmp_path: Path) -> None:
    made, platform = layout()
    double = region(made, tmp_path, DOUBLE, "rx tx")
    double.set_param_all("size", SIZE)
    double.place(1, 1)
    made.create_input_stream(double.create_input_port(double.color("rx"), Edge.TOP, IN, SIZE))
    result = made.create_output_stream(
        double.create_output_port(double.color("tx"), Edge.BOTTOM, OUT, SIZE)
    )
    runtime = run(made, platform, tmp_path)
    with pytest.raises(MeshcError, match=f"the host waits for {SIZE} wavelets"):
        runtime.receive(result, np.zeros(SIZE, np.float32), SIZE)


def test_regions_in_a_row_with_streams_at_their_places(tmp_path: Path) -> None:
    """Without ports: the routes of the regions say over which side a stream goes."""
    made = SdkLayout(SdkTarget.WSE2)
    parts = [region(made, tmp_path, DOUBLE, "", 1, 1) for _ in range(2)]
    rx, between, tx = (Color(name) for name in ("rx", "between", "tx"))
    for part, (source, target) in zip(parts, ((rx, between), (between, tx)), strict=True):
        part.set_param_all("size", SIZE)
        part.set_param_all("rx", source)
        part.set_param_all("tx", target)
        part.paint_all(source, [RoutingPosition().add_input(Route.WEST).add_output(Route.RAMP)])
        part.paint_all(target, [RoutingPosition().add_input(Route.RAMP).add_output(Route.EAST)])
    assert made.hstack(parts, IntVector(2, 1)) == 2 and [p.at for p in parts] == [(2, 1), (3, 1)]
    assert made.vstack(parts) == 2 and parts[1].at == (2, 2)
    assert made.hstack(parts) == 2
    assert RoutingPosition().add_input(Route.WEST).get_input() == [Route.WEST]
    assert (between.get_local_param_name(), between.get_value()) == ("between", None)
    name = made.create_input_stream_from_loc(IntVector(2, 1), rx)
    result = made.create_output_stream_from_loc(IntVector(3, 1), tx, "sums")
    runtime = run(made, get_simulator(), tmp_path)
    got, given = np.zeros(SIZE, np.float32), np.arange(2 * SIZE, dtype=np.float32)
    port = runtime.get_port_id(result)
    assert port is not None and runtime.get_port_id("nothing") is None
    runtime.send(name, given, SIZE)
    runtime.receive(port, got, SIZE)
    runtime.report_port_infos()
    runtime.stop()
    assert list(got) == list(4 * given[:SIZE])


@pytest.mark.parametrize("asked", [get_system, get_platform])
def test_a_system_at_an_address_is_refused(asked: Any) -> None:
    with pytest.raises(MeshcError, match="cannot reach a system"):
        asked("localhost:9000")


def test_a_stream_needs_one_side(tmp_path: Path) -> None:
    made, _ = layout()
    double = region(made, tmp_path, DOUBLE, "rx tx")
    double.set_param_all("size", SIZE)
    made.create_input_stream_from_loc(IntVector(0, 0), Color("rx"))
    with pytest.raises(MeshcError, match="over one side"):
        made.compile(out_prefix=str(tmp_path / "out"))


def test_the_format_of_short_floats_is_that_of_the_layout(tmp_path: Path) -> None:
    made, platform = layout()
    text = """
export var bits = @zeros([1]u16);
task main() void { var x: @fp16() = 1.5; x += 0.0; bits[0] = @bitcast(u16, x); }
comptime { @bind_local_task(main, @get_local_task_id(8)); @activate(@get_local_task_id(8)); }
"""
    region(made, tmp_path, text, "")
    folder = made.compile(out_prefix=str(tmp_path / "out"), f16_type=FP16TYPE.BF16)
    runtime = SdkRuntime(folder, platform, memcpy_required=False)
    runtime.load()
    runtime.run()
    runtime.stop()
    assert runtime.read_symbol(0, 0, "bits", np.uint16)[0] == 0x3FC0
    assert Path("out.core").exists()  # the platform of these tests asks for it
