"""Named timing models, and what code has in registers."""

from __future__ import annotations

from pathlib import Path

import pytest
from csl_runner import single
from test_sim_time import TIMER, interval
from truth_programs import on_the_machine, one

from meshc.sim.cs_python import main, take_options
from meshc.sim.machine.costs import costs_of
from meshc.sim.machine.options import Options
from meshc.sim.machines import timing_of
from meshc.sim.scalar_costs import scalar_costs
from meshc.sim.timing import DEFAULT, KINDS, MACHINE, MODELS, entries
from meshc.support.diagnostics import MeshcError

COPY = ("@fmovh(d, a)", "f16", 64)


@pytest.mark.parametrize("model", MODELS)
def test_each_constant_says_how_far_to_rely_on_it(model: str) -> None:
    for table in entries(model).values():
        for name, entry in table.items():
            assert entry["kind"] in KINDS, name
            assert entry["source"], name
            assert ("value" in entry) != ({"wse2", "wse3"} <= entry.keys()), name


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("arch", ["wse2", "wse3"])
def test_models_are_whole(model: str, arch: str) -> None:
    """Every constant that either clock asks for is there, and nothing else."""
    tables = entries(model)
    assert costs_of(arch, model).lanes.keys() == tables["lanes"].keys()
    assert scalar_costs(arch, model).call == tables["scalar"]["call"]["value"]


def test_a_model_changes_the_cycles_of_its_entries_only() -> None:
    fast, slow = one(*COPY), on_the_machine(lambda: one(*COPY))
    assert slow - fast == 64 // 4 // entries(MACHINE)["write_every"]["mov16"]["value"]
    call = ("@faddh(d, a, b)", "f16", 64)
    assert one(*call) == on_the_machine(lambda: one(*call))


def test_the_model_is_that_of_the_options_else_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert timing_of(Options()) == DEFAULT
    monkeypatch.setenv("MESHC_SIM_TIMING", MACHINE)
    assert timing_of(Options()) == MACHINE
    assert timing_of(Options(timing=DEFAULT)) == DEFAULT
    assert take_options(["--timing", "machine", "run.py"]).timing == MACHINE


def test_an_unknown_model_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--timing", "wafer", "run.py"]) == 2
    assert "there is no timing model 'wafer'" in capsys.readouterr().err
    monkeypatch.setenv("MESHC_SIM_TIMING", "wafer")
    with pytest.raises(MeshcError, match="choose vendor-simulator or machine"):
        timing_of(Options())


VARIABLES = (
    TIMER
    + "var a: i16 = 1; var b: i16 = 2; var c: i16 = 0; var i: u16 = 1;\n"
    + ("var v = @zeros([8]i16); var w = @zeros([8]i16);\nfn other() void { a += 1; v[i] = a; }\n")
)
SCALAR = scalar_costs("wse2")


def code(folder: Path, body: str) -> int:
    """Cycles of scalar code."""
    return interval(folder, body, VARIABLES) - interval(folder, "", VARIABLES)


@pytest.mark.parametrize(
    ("body", "operations"),
    [
        ("c = a;", 2),
        ("c = a; b = a;", 3),  # it is still in a register
        ("a += 1; c = a;", 4),  # and so is what was stored
        ("c = a; a = b; b = a;", 5),
        ("c = a + b; a = 3; c = a + b;", 4 + 1 + 2),  # a changed, b did not
        ("v[i] = a; b = a;", 3 + 1),  # an array is no variable beside it
        ("c = v[0]; v[i] = a; b = v[0];", 2 + 3 + 2),
        ("c = v[0]; w[i] = a; b = v[0];", 2 + 3 + 1),
    ],
)
def test_a_value_is_worked_out_once(tmp_path: Path, body: str, operations: int) -> None:
    assert code(tmp_path, body) == operations * SCALAR.operation


def test_what_ways_know_is_known_where_they_meet(tmp_path: Path) -> None:
    choice = "if (c == 0) { b = a; } else { b = 1; }"
    both = code(tmp_path, f"{choice} c = a;") - code(tmp_path, choice)
    assert both == 2 * SCALAR.operation
    left = "if (c == 5) { return; } else { b = a; }"
    one_way = code(tmp_path, f"{left} c = a;") - code(tmp_path, left)
    assert one_way == SCALAR.operation


def test_a_call_may_change_all_variables(tmp_path: Path) -> None:
    called = code(tmp_path, "c = a; other(); c = a;") - code(tmp_path, "c = a; other();")
    assert called == 2 * SCALAR.operation


def test_an_operation_waits_for_a_register_that_was_just_written(tmp_path: Path) -> None:
    head = (
        TIMER
        + """
var x = @zeros([16]f32); var y = @zeros([17]f32);
const a = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{8} -> x[i] });
const b = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{8} -> y[i + 1] });
const d = @get_dsr(dsr_dest, 1); const s = @get_dsr(dsr_src1, 1);
comptime { @load_to_dsr(d, a); @load_to_dsr(s, b); }
"""
    )
    move, base = "@fmovs(d, s);", "@set_dsr_base_addr(s, &y);"
    alone = interval(tmp_path, move, head)
    assert interval(tmp_path, base + move, head) - alone == (
        SCALAR.register_base + costs_of("wse2").rewritten
    )
    assert interval(tmp_path, move + base, head) - alone == SCALAR.register_base


def test_an_asynchronous_register_says_what_follows(tmp_path: Path) -> None:
    """What an operation says itself is for information only (documented)."""
    text = """
const c = @get_color(3); const q = @get_output_queue(2); const iq = @get_input_queue(3);
var x = @zeros([4]f32); var y = @zeros([4]f32);
var count: u32 = 0; var out = @zeros([1]u32); var out_ptr: [*]u32 = &out;
const mem = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> x[i] });
const into = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> y[i] });
const to = @get_dsd(fabout_dsd, .{ .extent = 4, .fabric_color = c, .output_queue = q });
const from = @get_dsd(fabin_dsd, .{ .extent = 4, .fabric_color = c, .input_queue = iq });
const silent = @get_dsr(dsr_dest, 1); const told = @get_dsr(dsr_src1, 2);
task first() void { count += 1; }
task second() void { count += 16; out[0] = count; sys.unblock_cmd_stream(); }
const first_id = @get_local_task_id(9); const second_id = @get_local_task_id(10);
fn run() void {
  @fmovs(silent, mem, .{ .async = true, .activate = first_id });
  @fmovs(into, told, .{ .async = true, .activate = first_id });
}
comptime {
  @bind_local_task(first, first_id); @bind_local_task(second, second_id);
  @load_to_dsr(silent, to, .{ .async = true });
  @load_to_dsr(told, from, .{ .async = true, .activate = second_id });
  @initialize_queue(q, .{ .color = c }); @initialize_queue(iq, .{ .color = c });
  @set_local_color_config(c, .{ .routes = .{ .rx = .{RAMP}, .tx = .{RAMP} } });
  @export_symbol(out_ptr, "out"); @export_symbol(run);
}
"""
    program = single(tmp_path, text, "wse3", out="[*]u32", run="fn()void")
    program.launch("run")
    assert int(program.read("out", 1, "u4")[0]) == 16
