"""A row of PEs, of which the first sends words that the others receive."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from csl_runner import PE_HEAD, Run, exports

N = 4


SENDER = (
    PE_HEAD
    + """
param c: color; param n: u16;
var data = @zeros([16]u32); var data_ptr: [*]u32 = &data;
const q = @get_output_queue(2);
const mem = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{n} -> data[i] });
const to = @get_dsd(fabout_dsd, .{ .extent = n, .fabric_color = c, .output_queue = q });
const done_id = @get_local_task_id(9);
task done() void { sys.unblock_cmd_stream(); }
fn run() void { @mov32(to, mem, .{ .async = true, .activate = done }); }
comptime {
  @bind_local_task(done, done_id);
  if (@is_arch("wse3")) { @initialize_queue(q, .{ .color = c }); }
  @export_symbol(data_ptr, "data"); @export_symbol(run);
}
"""
)
RECEIVER = (
    PE_HEAD
    + """
param c: color; param n: u16;
var data = @zeros([16]u32); var data_ptr: [*]u32 = &data;
const q = @get_input_queue(2);
const mem = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{n} -> data[i] });
const from = @get_dsd(fabin_dsd, .{ .extent = n, .fabric_color = c, .input_queue = q });
const done_id = @get_local_task_id(9);
task done() void { sys.unblock_cmd_stream(); }
fn run() void { @mov32(mem, from, .{ .async = true, .activate = done }); }
comptime {
  @bind_local_task(done, done_id);
  if (@is_arch("wse3")) { @initialize_queue(q, .{ .color = c }); }
  @export_symbol(data_ptr, "data"); @export_symbol(run);
}
"""
)


def row(folder: Path, routes: str, width: int = 3, arch: str = "wse2", **files: str) -> Run:
    """PE 0 sends n words, the others receive; ``routes`` is layout code."""
    layout = f"""
param n: u16;
const c = @get_color(3);
const memcpy = @import_module("<memcpy/get_params>", .{{ .width = {width}, .height = 1 }});
layout {{
  @set_rectangle({width}, 1);
  for (@range(i16, {width})) |x| {{
    const params = .{{ .memcpy_params = memcpy.get_params(x), .c = c, .n = n }};
    if (x == 0) {{ @set_tile_code(x, 0, "send.csl", params); }}
    else {{ @set_tile_code(x, 0, "recv.csl", params); }}
  }}
  {routes}
  {exports(data="[*]u32", run="fn()void")}
}}
"""
    texts = {"layout.csl": layout, "send.csl": SENDER, "recv.csl": RECEIVER, **files}
    return Run(folder, texts, arch, params={"n": N})


MULTICAST = """
  @set_color_config(0, 0, c, .{ .routes = .{ .rx = .{RAMP}, .tx = .{EAST} } });
  @set_color_config(1, 0, c, .{ .routes = .{ .rx = .{WEST}, .tx = .{RAMP, EAST} } });
  @set_color_config(2, 0, c, .{ .routes = .{ .rx = .{WEST}, .tx = .{RAMP} } });
"""


def run_all(program: Run, values: Any) -> list[list[int]]:
    """What each PE holds after a launch."""
    program.write("data", np.asarray(values, np.uint32))
    program.launch("run")
    return [list(program.read("data", N, "u4", x=x)) for x in range(program.machine.program.width)]
