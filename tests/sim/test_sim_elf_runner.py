"""The host of SDKs before 1.0: tensors through the edges of the rectangle."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from meshc.sim import cslc
from meshc.sim.cs_python import STAND_IN
from meshc.sim.host.elf_runner import CSELFRunner
from meshc.support.diagnostics import MeshcError

PE = """
param column: u16;
const in: color = @get_color(0); const out: color = @get_color(1); const end: color = @get_color(9);
const trace = @import_module("<debug>", .{ .key = "seen", .buffer_size = 10 });
const doubled = @import_module("<debug>", .{ .buffer_size = 10 });
const send = @get_dsd(fabout_dsd, .{ .fabric_color = out, .extent = 1 });
var sum: i16 = 0;
var offset = @zeros([1]i16);
task take(word: i16) void {
  sum += word; trace.trace_i16(word); doubled.trace_i16(2 * word);
  @mov16(send, sum + offset[0]);
}
task finish() void { @mov16(send, 1000); }
comptime {
  @bind_task(take, in); @bind_task(finish, end);
  @set_local_color_config(in, .{ .routes = .{ .rx = .{ WEST }, .tx = .{ RAMP } } });
  @set_local_color_config(out, .{ .routes = .{ .rx = .{ RAMP }, .tx = .{ EAST } } });
}
layout {
  @set_rectangle(1, 3);
  var y: i16 = 0;
  while (y < 3) { @set_tile_code(0, y, "code.csl", .{ .column = 0 }); y += 1; }
}
"""
INPUT = "{ x[p=0:2, i=0:4-1] -> [PE[-1, p] -> index[p, i]] }"
OUTPUT = "{ y[p=0:2, i=0:3] -> [PE[1, p] -> index[p, i]] }"


def runner(folder: Path, text: str = PE) -> CSELFRunner:
    """Sums of three rows of four numbers, one row for each PE."""
    (folder / "code.csl").write_text(text, encoding="utf-8")
    out = folder / "out"
    arguments = [str(folder / "code.csl"), "--fabric-dims=3,5", "--fabric-offsets=1,1", "-o"]
    assert cslc.main([*arguments, str(out)]) == 0
    return CSELFRunner([str(path) for path in sorted((out / "bin").glob("out_[0-9]*.elf"))])


def test_tensors_enter_and_leave(tmp_path: Path) -> None:
    host = runner(tmp_path)
    x = np.arange(12, dtype=np.int16).reshape(3, 4)
    host.add_input_tensor(0, INPUT, x)
    host.add_output_tensor(1, OUTPUT, np.int16)
    host.set_symbol_rect("offset", np.array([[[10], [20]]], np.int16))
    host.connect_and_run()
    offsets = np.array([[10], [20], [0]])
    assert (host.out_tensor_dict["y"] == np.cumsum(x, axis=1) + offsets).all()
    assert list(host.get_symbol(1, 2, "sum", np.int16)) == [22]
    assert host.get_symbol_rect(((1, 1), (1, 3)), "sum", np.int16).reshape(-1).tolist() == [
        6,
        22,
        38,
    ]
    assert host.read_trace(1, 3, "seen") == [8, 9, 10, 11]
    assert host.read_trace(1, 3, "doubled") == [16, 18, 20, 22]
    assert host.coordinates() == [(1, 1), (1, 2), (1, 3)]


def test_a_sentinel_starts_a_task(tmp_path: Path) -> None:
    host = runner(tmp_path)
    host.add_input_tensor(0, "{x[i=0:1] -> [PE[-1, i] -> index[i]]}", np.array([3, 4], np.int16), 9)
    host.add_output_tensor(1, "{y[p=0:1, i=0:1] -> [PE[1, p] -> index[i]]}", np.int16)
    host.connect_and_run()
    assert host.out_tensor_dict["y"].tolist() == [[3, 1000], [4, 1000]]


def test_colors_are_swapped_at_the_edge(tmp_path: Path) -> None:
    """The host sends color 3, which its partner 2 receives."""
    swap = ".tx = .{ RAMP } }, .color_swap_x = true });"
    both = PE.replace(
        "const in: color = @get_color(0);", "const in: color = @get_color(2);"
    ).replace(
        ".tx = .{ RAMP } } });",
        f"{swap} @set_local_color_config(@get_color(3),"
        f" .{{ .routes = .{{ .rx = .{{ WEST }}, {swap}",
        1,
    )
    host = runner(tmp_path, both)
    host.add_input_tensor(3, "{x[i=0:1] -> [PE[-1, 1] -> index[i]]}", np.array([3, 4], np.int16))
    host.add_output_tensor(1, "{y[i=0:1] -> [PE[1, 1] -> index[i]]}", np.int16)
    host.connect_and_run()
    assert host.out_tensor_dict["y"].tolist() == [3, 7]


def test_missing_outputs_are_explained(tmp_path: Path) -> None:
    host = runner(tmp_path)
    host.add_output_tensor(1, "{y[i=0:0] -> [PE[1, 2] -> index[i]]}", np.int16)
    with pytest.raises(MeshcError, match="waits for 1 wavelets of 'y'") as caught:
        host.connect_and_run()
    assert caught.value.diagnostics[0].code == "csl-hang"


@pytest.mark.parametrize(
    ("place", "words"), [("PE[2, 0]", "not next to the edge"), ("PE[0, -1]", None)]
)
def test_places_of_ports(tmp_path: Path, place: str, words: str | None) -> None:
    host = runner(tmp_path)
    portmap = f"{{y[i=0:0] -> [{place} -> index[i]]}}"
    if words is None:
        host.add_output_tensor(1, portmap, np.int16)
        return
    with pytest.raises(MeshcError, match=words):
        host.add_output_tensor(1, portmap, np.int16)


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    host = runner(tmp_path)
    with pytest.raises(MeshcError, match="no run yet"):
        host.get_symbol(1, 1, "sum")
    host.connect_and_run()
    with pytest.raises(MeshcError, match="no symbol 'none'"):
        host.get_symbol(1, 1, "none")
    with pytest.raises(MeshcError, match="no file"):
        CSELFRunner([])


def test_the_stand_in_has_the_modules() -> None:
    found = {str(p.relative_to(STAND_IN)) for p in (STAND_IN / "cerebras" / "elf").rglob("*.py")}
    assert "cerebras/elf/cs_elf_runner/lib/csl_utils.py" in found
    assert "cerebras/elf/cself.py" in found
