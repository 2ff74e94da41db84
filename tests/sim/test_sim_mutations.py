"""Broken programs: tokens deleted, doubled and swapped give messages, never a traceback or a hang.

``MUTATIONS`` sets how many are tried, ``MUTATION_SEED`` where to start.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest
from csl_runner import PE_HEAD, SINGLE, exports

from meshc.sim.csl_compiler import compile_program
from meshc.sim.lang.lexer import LineMap, tokenize
from meshc.support.diagnostics import Diagnostics, MeshcError
from meshc.support.spans import Source

COUNT = int(os.environ.get("MUTATIONS", "150"))
SEED = int(os.environ.get("MUTATION_SEED", "1"))
SECONDS = 10.0

LAYOUT = SINGLE.replace("EXPORTS", exports(out="[*]f32", run="fn(i16)void"))

PE = (
    PE_HEAD
    + """
param size: u16 = 4;
const math = @import_module("<math>");
const control = @import_module("<control>");
const tile = @import_module("<tile_config>");
const Mode = enum(u16) { idle, send = 4, receive };
const Pair = struct { low: u16, high: f32 };
const first = @get_color(3);
const iq = @get_input_queue(2);
const oq = @get_output_queue(2);
const done_id = @get_local_task_id(9);
var out = @zeros([size]f32);
var out_ptr: [*]f32 = &out;
var grid = @zeros([2, size]f16);
var buffer: [8]u32 align(16) = @zeros([8]u32);
const fifo = @allocate_fifo(buffer);
var pair = Pair{ .low = 3, .high = 0.5 };
var mode: Mode = Mode.idle;
const vec = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{size} -> out[i] });
const all = @get_dsd(mem4d_dsd, .{ .tensor_access = |i, j|{2, size} -> grid[i, j] });
const to = @get_dsd(fabout_dsd, .{ .extent = size, .fabric_color = first, .output_queue = oq });
const from = @get_dsd(fabin_dsd, .{ .extent = size, .fabric_color = first, .input_queue = iq });
const reg = @get_dsr(dsr_dest, 2);

fn scaled(x: anytype, comptime T: type) T { return @as(T, x) * 2; }
inline fn twice(x: i16) i16 { return x + x; }
fn sum(p: *[size]f32) f32 {
  var total: f32 = 0.0;
  for (p.*) |value, index| {
    if (index == 3) { continue; }
    total += value;
  }
  return total;
}
fn pick(m: Mode) u16 {
  return switch (m) { Mode.idle => 1, Mode.send, Mode.receive => 2 };
}
fn run(n: i16) void {
  const chosen = found: {
    if (n > 3) { break :found @as(i16, 7); }
    break :found twice(n);
  };
  var step: u16 = 0;
  outer: while (step < size) : (step += 1) {
    inline for (@range(u16, 2)) |k| {
      if (k + step == 9) { break :outer; }
      grid[k, step] = @as(f16, chosen) + 0.25;
    }
  }
  pair.high = math.sqrt(scaled(chosen, f32)) + sum(&out);
  mode = if (pick(mode) == 1) Mode.send else Mode.idle;
  @fmovs(vec, pair.high);
  @load_to_dsr(reg, vec, .{ .save_address = true });
  @fadds(reg, vec, 1.5);
  @mov32(to, vec, .{ .async = true });
  @mov32(vec, from, .{ .async = true, .activate = done_id });
}
task done() void {
  tile.color_config.reset_routes(first, .{ .rx = RAMP, .tx = .{ RAMP } });
  sys.unblock_cmd_stream();
}
comptime {
  @comptime_assert(size > 0 and @element_count([2, 3]f16) == 6, "sizes");
  @bind_local_task(done, done_id);
  @set_local_color_config(first, .{
    .routes = .{ .rx = RAMP, .tx = RAMP },
    .switches = .{ .pos1 = .{ .tx = RAMP }, .ring_mode = true, .pop_mode = .{ .no_pop = true } },
  });
  if (@is_arch("wse3")) {
    @initialize_queue(oq, .{ .color = first });
  }
  @initialize_queue(iq, .{ .color = first });
  @export_symbol(out_ptr, "out");
  @export_symbol(run);
}
"""
)


def tokens_of(text: str) -> list[str]:
    """The words of a program, each with the space before it."""
    source = Source("a.csl", text)
    tokens = tokenize(source, LineMap(source), Diagnostics())
    starts = [0] + [t.offset + len(t.text) for t in tokens[:-1]]
    return [text[a:b] for a, b in zip(starts, [*starts[1:], len(text)], strict=True)]


def mutated(text: str, random_: random.Random) -> str:
    """One to three random edits."""
    words = tokens_of(text)
    for _ in range(random_.choice([1, 1, 1, 2, 3])):
        at, other = (random_.randrange(len(words) - 1) for _ in range(2))
        match random_.randrange(5):
            case 0:
                del words[at]
            case 1:
                words.insert(at, words[at])
            case 2:
                words[at], words[other] = words[other], words[at]
            case 3:
                words[at] = words[other]
            case 4:
                words[at] = random_.choice([" 0", " -1", " 70000", " .{}", " f32", ' "x"', " {"])
    return "".join(words)


def test_the_program_itself_is_right(tmp_path: Path) -> None:
    compiled(tmp_path, LAYOUT, PE, "wse2")
    compiled(tmp_path, LAYOUT, PE, "wse3")


def compiled(folder: Path, layout: str, pe: str, arch: str) -> None:
    (folder / "layout.csl").write_text(layout)
    (folder / "pe.csl").write_text(pe)
    compile_program(str(folder / "layout.csl"), arch, {}, {}, (0, 0), (4, 1))


@pytest.mark.parametrize("part", range(4))
def test_mutations_give_messages(tmp_path: Path, part: int) -> None:
    for number in range(SEED + part, SEED + COUNT, 4):
        random_ = random.Random(number)
        layout, pe = LAYOUT, PE
        if random_.random() < 0.15:
            layout = mutated(layout, random_)
        else:
            pe = mutated(pe, random_)
        start = time.process_time()
        try:
            compiled(tmp_path, layout, pe, random_.choice(["wse2", "wse3"]))
        except MeshcError as problem:
            assert problem.diagnostics and all(d.message for d in problem.diagnostics)
        except Exception as problem:
            raise AssertionError(f"mutation {number} ends in {problem!r}") from problem
        assert time.process_time() - start < SECONDS, f"mutation {number} takes too long"
