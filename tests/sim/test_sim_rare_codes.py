"""Codes of the simulator that the seeded faults do not reach."""

from __future__ import annotations

from pathlib import Path

import pytest
from csl_runner import single

from meshc.support.diagnostics import MeshcError


@pytest.mark.parametrize(
    ("code", "body", "block"),
    [
        ("csl-assert", "", '@comptime_assert(1 == 2, "never");'),
        ("csl-comptime", "@comptime_assert(given == 3);", ""),
        (
            "csl-queue",
            "",
            "@initialize_queue(@get_input_queue(3), .{ .color = @get_color(2) });"
            "@initialize_queue(@get_input_queue(3), .{ .color = @get_color(4) });",
        ),
    ],
)
def test_a_mistake_has_its_code(tmp_path: Path, code: str, body: str, block: str) -> None:
    pe = (
        "var given: u16 = 3;\n"
        f"fn run() void {{ {body} sys.unblock_cmd_stream(); }}\n"
        f"comptime {{ {block} @export_symbol(run); }}\n"
    )
    with pytest.raises(MeshcError) as error:
        single(tmp_path, pe, "wse3", run="fn()void")
    assert [d.code for d in error.value.diagnostics] == [code]


def test_an_overrun_is_printed_at_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pe = """
var a = @zeros([8]u16); var small = @zeros([4]u16); var after = @zeros([8]u16);
fn run() void {
  const s = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{8} -> a[i] });
  const d = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> small[i] });
  @mov16(d, s); after[0] = 1;
  sys.unblock_cmd_stream();
}
comptime { @export_symbol(run); }
"""
    program = single(tmp_path, pe, run="fn()void")
    program.launch("run")
    program.runtime.stop()
    assert "remark[csl-bounds]" in capsys.readouterr().err
