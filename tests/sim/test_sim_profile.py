"""Where the cycles of a run went, read off its trace."""

import json
import subprocess
from pathlib import Path

import pytest

from meshc.sim.commands_folder import make_bin
from meshc.sim.profile import Split, by_place, read_trace, split


def event(category, name, start, length, x=0):
    track = 2 * x + (category != "task")
    return {"ph": "X", "cat": category, "name": name, "ts": start, "dur": length, "pid": 0,
            "tid": track}  # fmt: skip


def test_each_cycle_of_a_task_is_one_of_three():
    events = [
        event("task", "run", 100, 50),
        event("wait", "@faddh", 110, 7),
        event("transfer", "@faddh", 117, 4),
        event("compute", "@fmulh", 130, 9),
    ]
    assert split(events, "run") == Split(39, 4, 7)
    assert split(events, "run").total == 50


def test_between_tasks_microthreads_move_words_or_nothing_happens():
    events = [
        event("task", "init", 0, 50),
        event("task", "run", 100, 10),
        event("microthread", "@fmovh", 105, 25),
        event("task", "resume", 150, 10),
    ]
    assert split(events, "run") == Split(20, 20, 20)


def test_the_mean_over_the_cores_that_ran():
    events = [
        event("task", "run", 0, 10),
        event("task", "run", 0, 30, x=1),
        event("task", "other", 0, 99, x=2),
    ]
    assert split(events, "run") == Split(20, 0, 0)
    with pytest.raises(ValueError, match="no PE ran walk"):
        split(events, "walk")


# The first PE works for a while and then sends sixteen words, for which the second one waits.
SENDER = """\
param memcpy_params: comptime_struct;
param k: i16;
param first: bool;
param line: color;
const sys = @import_module("<memcpy/memcpy>", memcpy_params);
const out_queue = @get_output_queue(2);
const in_queue = @get_input_queue(3);
var words = @zeros([16]f32);
var out = @zeros([1]i16);
var out_ptr: [*]i16 = &out;
const all = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{16} -> words[i] });
const sent = @get_dsd(fabout_dsd, .{
    .extent = 16, .fabric_color = line, .output_queue = out_queue,
});
const got = @get_dsd(fabin_dsd, .{ .extent = 16, .fabric_color = line, .input_queue = in_queue });

fn run() void {
    if (first) {
        for (@range(i16, 100)) |i| { out[0] += k; }
        @fmovs(sent, all);
    } else {
        @fmovs(all, got);
    }
    sys.unblock_cmd_stream();
}

comptime {
    if (!first) { @initialize_queue(in_queue, .{ .color = line }); }
    @export_symbol(out_ptr, "out");
    @export_symbol(run);
}
"""
LAYOUT = """\
param k: i16;
const line: color = @get_color(0);
const memcpy = @import_module("<memcpy/get_params>", .{ .width = 2, .height = 1 });
layout {
    @set_rectangle(2, 1);
    for (@range(i16, 2)) |x| {
        @set_tile_code(x, 0, "pe.csl", .{
            .memcpy_params = memcpy.get_params(x), .k = k, .first = x == 0, .line = line,
        });
    }
    @set_color_config(0, 0, line, .{ .routes = .{ .rx = .{RAMP}, .tx = .{EAST} } });
    @set_color_config(1, 0, line, .{ .routes = .{ .rx = .{WEST}, .tx = .{RAMP} } });
    @export_name("out", [*]i16, true);
    @export_name("run", fn()void);
}
"""
HOST = """\
from cerebras.sdk.runtime.sdkruntimepybind import SdkRuntime
runner = SdkRuntime("out")
runner.load()
runner.run()
runner.launch("run", nonblock=False)
runner.stop()
"""


def test_a_core_waits_for_one_that_works_on_both_back_ends(tmp_path: Path):
    for name, text in (("layout.csl", LAYOUT), ("pe.csl", SENDER), ("run.py", HOST)):
        (tmp_path / name).write_text(text)
    found = []
    for backend in ("python", "c"):
        trace = tmp_path / f"{backend}.json"
        facts = tmp_path / f"{backend}-facts.json"
        options = ["--backend", backend, "--trace", str(trace), "--fabric", str(facts)]
        folder = make_bin(tmp_path / backend, options)
        for words in (
            ["cslc", "layout.csl", "--arch=wse2", "--fabric-dims=9,3", "--fabric-offsets=4,1",
             "--params=k:7", "-o", "out", "--memcpy", "--channels", "1"],
            ["cs_python", "run.py"],
        ):  # fmt: skip
            done = subprocess.run(
                [str(folder / words[0]), *words[1:]], cwd=tmp_path, capture_output=True, text=True,
                check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stdout + done.stderr
        events = read_trace(trace)
        found.append([split([e for e in events if e["tid"] // 2 == x], "run") for x in (0, 1)])
        told = json.loads(facts.read_text())
        assert told["busy"] == [[_ran(events, x) for x in (0, 1)]]
        assert told["words"] == [[16, 0]] and told["memory"] == [[68, 68]]
        from_core, from_west, to_core, to_east = 1, 4, 1 << 5, 2 << 5
        assert told["routes"] == [
            {"color": 0, "rows": [[from_core + to_east, from_west + to_core]]}
        ]
    assert found[0] == found[1]
    sender, receiver = found[0]
    assert sender.waiting == 0 and sender.transfer == 16 and sender.compute > 100
    assert receiver.transfer == 16 and receiver.compute < 20
    assert receiver.waiting > 0.8 * sender.compute


def _ran(events, x):
    """The cycles in which code of a PE did not stand still."""
    mine = [e for e in events if e["tid"] // 2 == x]
    spent = {kind: sum(e["dur"] for e in mine if e["cat"] == kind) for kind in ("task", "wait")}
    return spent["task"] - spent["wait"]


def test_stretches_belong_to_the_transfer_that_ends_them():
    events = [
        event("task", "run", 0, 60),
        event("wait", "@faddh pe.csl:3", 10, 5),
        event("transfer", "@faddh pe.csl:3", 15, 4),
        event("microthread", "@fmovh pe.csl:7", 30, 40),
        event("task", "resume", 80, 20),
    ]
    assert by_place(events, "run") == {
        "pe.csl:3": Split(10, 4, 5),
        "pe.csl:7": Split(11, 10, 10),
        "": Split(50, 0, 0),
    }
    assert split(events, "run") == Split(71, 14, 15)


def test_what_lies_between_two_runs_counts_for_neither():
    events = [event("task", "run", 0, 10), event("task", "run", 500, 30)]
    assert split(events, "run") == Split(20, 0, 0)
