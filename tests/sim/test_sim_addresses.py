"""Addresses have 16 bits."""

from __future__ import annotations

from pathlib import Path

import pytest
from csl_runner import PE_HEAD, SINGLE, Run, exports, single

from meshc.sim.machine.run_options import Options
from meshc.support.diagnostics import MeshcError

# The operation counts strides in words of 16 bits, so that it adds to high halves of indices too.
STRIDED = """
var index = [4]u32{ 0, 1, 2, 3 };
var data = [4]f32{ 10.0, 11.0, 12.0, 13.0 };
var data_ptr: [*]f32 = &data;
const some = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{2} -> index[3 * i] });
fn run() void {
  @add16(some, some, 1);
  data[3] = data[index[1]] + 0.5;
  data[index[1]] = 1.0;
  sys.unblock_cmd_stream();
}
comptime { @export_symbol(data_ptr, "data"); @export_symbol(run); }
"""


def test_an_index_wraps(tmp_path: Path) -> None:
    program = single(tmp_path, STRIDED, data="[*]f32", run="fn()void")
    program.launch("run")
    assert program.read("data", 4, "f4").tolist() == [10.0, 1.0, 12.0, 11.5]
    remarks = program.machine.remarks
    assert [code for code, _ in remarks] == ["csl-wrap", "csl-wrap"]
    assert all("addresses have 16 bits" in words for words in remarks.values())


def test_a_strict_run_ends_there(tmp_path: Path) -> None:
    layout = SINGLE.replace("EXPORTS", exports(data="[*]f32", run="fn()void"))
    files = {"layout.csl": layout, "pe.csl": PE_HEAD + STRIDED}
    program = Run(tmp_path, files, "wse2", machine=Options(strict=True))
    with pytest.raises(MeshcError) as caught:
        program.launch("run")
    assert caught.value.diagnostics[0].code == "csl-wrap"


@pytest.mark.parametrize("index", ["14000", "-700"])
def test_what_is_no_memory_is_refused(tmp_path: Path, index: str) -> None:
    pe = f"""
var data = @zeros([4]f32);
var data_ptr: [*]f32 = &data;
var i: i16 = {index};
fn run() void {{ data[i] = 1.0; sys.unblock_cmd_stream(); }}
comptime {{ @export_symbol(data_ptr, "data"); @export_symbol(run); }}
"""
    program = single(tmp_path, pe, data="[*]f32", run="fn()void")
    with pytest.raises(MeshcError, match="outside of"):
        program.launch("run")
