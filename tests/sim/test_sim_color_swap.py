"""Colors that are swapped as wavelets arrive, on WSE-2."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from csl_runner import Run
from rows import RECEIVER, SENDER, row, run_all

from meshc.support.diagnostics import MeshcError


def test_a_color_swap_exchanges_a_pair(tmp_path: Path) -> None:
    routes = """
  @set_color_config(0, 0, c, .{ .routes = .{ .rx = .{RAMP}, .tx = .{EAST} } });
  @set_color_config(1, 0, c, .{ .routes = .{ .rx = .{WEST}, .tx = .{EAST} },
                                .color_swap_x = true });
  @set_color_config(1, 0, @get_color(2), .{ .routes = .{ .rx = .{WEST}, .tx = .{RAMP} },
                                            .color_swap_x = true });
"""
    swapped = RECEIVER.replace("const q =", "const other = @get_color(2);\nconst q =").replace(
        ".fabric_color = c", ".fabric_color = other"
    )
    got = run_all(row(tmp_path, routes, width=2, **{"recv.csl": swapped}), [1, 2, 3, 4])
    assert got[1] == [1, 2, 3, 4]


SWAP_ALL = """
const a = @get_color(2); const b = @get_color(3);
const memcpy = @import_module("<memcpy/get_params>", .{ .width = 1, .height = 2 });
layout {
  @set_rectangle(1, 2);
  const params = .{ .memcpy_params = memcpy.get_params(0), .n = 4 };
  @set_tile_code(0, 0, "send.csl", @concat_structs(params, .{ .c = a }));
  @set_tile_code(0, 1, "recv.csl", @concat_structs(params, .{ .c = b }));
  const routes = .{ .rx = .{ RAMP, SOUTH }, .tx = .{ RAMP, SOUTH } };
  @set_color_config(0, 0, a, .{ .routes = routes, FIRST });
  @set_color_config(0, 0, b, .{ .routes = routes, SECOND });
  @set_color_config(0, 1, b, .{ .routes = .{ .rx = .{ NORTH }, .tx = .{ RAMP } } });
  EXTRA
  @export_name("data", [*]u32, true);
  @export_name("run", fn()void);
}
"""
BOTH_SIDES = ".color_swap_x = true, .color_swap_y = true"
RECEIVES_A = "@set_color_config(0, 1, a, .{ .routes = .{ .rx = .{ NORTH }, .tx = .{ SOUTH } } });"


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    ("first", "second", "extra"),
    [(BOTH_SIDES, BOTH_SIDES, ""), (".teardown = false", BOTH_SIDES, RECEIVES_A)],
)
def test_what_a_pe_sends_is_swapped_where_both_sides_are(
    tmp_path: Path, first: str, second: str, extra: str, strict: bool
) -> None:
    layout = SWAP_ALL.replace("FIRST", first).replace("SECOND", second).replace("EXTRA", extra)
    files = {"layout.csl": layout, "send.csl": SENDER, "recv.csl": RECEIVER}
    program = Run(tmp_path, files, "wse2", strict=strict)
    program.write("data", np.array([5, 6, 7, 8], np.uint32))
    program.launch("run")
    assert list(program.read("data", 4, "u4", y=1)) == [5, 6, 7, 8]


@pytest.mark.parametrize("side", ["x", "y"])
def test_what_a_pe_sends_is_not_swapped_by_one_side(tmp_path: Path, side: str) -> None:
    one = f".color_swap_{side} = true"
    layout = SWAP_ALL.replace("FIRST", one).replace("SECOND", one).replace("EXTRA", RECEIVES_A)
    files = {"layout.csl": layout, "send.csl": SENDER, "recv.csl": RECEIVER}
    program = Run(tmp_path, files, "wse2")
    with pytest.raises(MeshcError, match="csl-hang"):
        program.launch("run")
