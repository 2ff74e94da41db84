"""A relay whose wavelets go from router to router, in the ways in which they may have to."""

from __future__ import annotations

from csl_runner import PE_HEAD

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


def relay(kind: str) -> dict[str, str]:
    """The files of a program: a vector of ``n`` elements goes from the first PE to the second,
    which passes it on to the last, ``FAR`` links away."""
    words = {"SWITCHES": "", "OTHER": "", "MIDDLE": ".{EAST}", "LISTENS": "false", **KINDS[kind],
             "WIDTH": str(FAR + 2), "LAST": str(FAR + 1)}  # fmt: skip
    texts = {"layout.csl": RELAY_LAYOUT, "pe.csl": RELAY_PE}
    for word, meaning in words.items():
        texts = {name: text.replace(word, meaning) for name, text in texts.items()}
    return texts
