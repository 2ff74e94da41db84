"""Named timing models, and what code has in registers."""

from __future__ import annotations

from pathlib import Path

import pytest
from csl_runner import function, single
from test_sim_time import TIMER, interval
from truth_programs import on_the_machine, one

from meshc.sim.cs_python import main, take_options
from meshc.sim.machine.cycle_model import costs_of
from meshc.sim.machine.run_options import Options
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


def test_the_model_is_that_of_the_options() -> None:
    assert timing_of(Options()) == DEFAULT
    assert timing_of(Options(timing=MACHINE)) == MACHINE
    assert take_options(["--timing", "machine", "run.py"]).timing == MACHINE


def test_an_unknown_model_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--timing", "wafer", "run.py"]) == 2
    assert "there is no timing model 'wafer'" in capsys.readouterr().err
    with pytest.raises(MeshcError, match="choose vendor-simulator or machine"):
        timing_of(Options(timing="wafer"))


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


REGISTERS = """{}
var x = @zeros([16]f32); var y = @zeros([17]f32); var n: i16 = 0; var k: i16 = 0;
const a = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{8}} -> x[i] }});
const b = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{8}} -> y[i + 1] }});
const d = @get_dsr(dsr_dest, 1); const s = @get_dsr(dsr_src1, 1);
comptime {{ @load_to_dsr(d, a); @load_to_dsr(s, b); }}
"""


def test_an_operation_waits_for_a_register_that_was_just_written(tmp_path: Path) -> None:
    head = REGISTERS.format(TIMER)
    move, base = "@fmovs(d, s);", "@set_dsr_base_addr(s, &y);"
    alone = interval(tmp_path, move, head)
    assert interval(tmp_path, base + move, head) - alone == (
        SCALAR.register_base + costs_of("wse2").rewritten
    )
    assert interval(tmp_path, move + base, head) - alone == SCALAR.register_base


def test_a_loop_of_few_passes_is_written_out(tmp_path: Path) -> None:
    """And then its counter costs nothing, nor what is made of it."""
    passes = "for (@range(i16, {})) |i| {{ {} }}"
    one = 2 * SCALAR.operation  # a load and a store
    few = code(tmp_path, passes.format(8, "v[i & 7] = a;"))
    assert few == 8 * one
    many = code(tmp_path, passes.format(100, "v[i & 7] = a;"))
    assert many > 100 * (one + SCALAR.back)
    left_early = code(tmp_path, passes.format(8, "v[i & 7] = a; if (b == 5) { break; }"))
    choice = one + 2 * SCALAR.operation + SCALAR.branch
    assert left_early > 8 * (choice + SCALAR.back)
    inner = passes.format(2, "v[i & 7] = a;")
    assert code(tmp_path, "for (@range(i16, 3)) |_| {" + inner + "}") == 6 * one
    unknown = code(tmp_path, "for (@range(i16, a, b + 7)) |i| { v[i & 7] = a; }")
    assert unknown > 8 * (one + SCALAR.back)


def test_a_loop_of_short_calls_is_written_out(tmp_path: Path) -> None:
    """A function that is written in the place of its calls is no call in a loop."""
    passes = "for (@range(i16, {})) |_| {{ other(); }}"
    one = code(tmp_path, "other();")
    assert code(tmp_path, passes.format(8)) == 8 * one
    assert code(tmp_path, passes.format(100)) > 100 * (one + SCALAR.back)
    long = "fn long() void {{ {} }}\nfn leads() void {{ long(); }}\n".format("a += 1;" * 13)
    head = VARIABLES + long + "fn inner() void { other(); }\n"
    empty = interval(tmp_path, "", head)
    few = {
        name: interval(tmp_path, f"for (@range(i16, 2)) |_| {{ {name}(); }}", head) - empty
        for name in ("long", "leads", "inner")
    }
    once = {name: interval(tmp_path, f"{name}();", head) - empty for name in few}
    assert few["inner"] == 2 * once["inner"]
    assert all(few[name] > 2 * (once[name] + SCALAR.back) for name in ("long", "leads"))


MADE = VARIABLES + "const d0 = @get_dsd(mem1d_dsd, .{ .base_address = &v, .extent = 2 });"


def test_a_descriptor_is_made_where_it_is_used(tmp_path: Path) -> None:
    made = "const d = @set_dsd_base_addr(d0, &v[i]); const e = @set_dsd_base_addr(d0, &w[i]); "
    use = "if (a == {}) {{ @mov16(d, 7); }} if (a == {}) {{ @mov16(e, 7); }}"
    ways = [interval(tmp_path, made + use.format(*way), MADE) for way in ((2, 2), (1, 2), (1, 1))]
    assert ways[1] - ways[0] == ways[2] - ways[1]
    operation = "const d = @set_dsd_base_addr(d0, &v[i]); "
    taken = interval(tmp_path, operation + "if (a == 1) { @mov16(d, 7); }", MADE)
    left = interval(tmp_path, operation + "if (a == 2) { @mov16(d, 7); }", MADE)
    moved = SCALAR.rebase + SCALAR.descriptor + SCALAR.scalar + costs_of("wse2").memory + 1
    assert taken - left == moved
    both = operation + "if (a == {}) {{ @mov16(d, 7); }} @mov16(d, 8);"
    ways = [interval(tmp_path, both.format(a), MADE) for a in (1, 2)]
    assert ways[0] - ways[1] == moved - SCALAR.rebase


def test_a_descriptor_is_made_of_what_was_there(tmp_path: Path) -> None:
    """Where it is made, not where it is used."""
    head = (
        "var v = @zeros([8]u32); var i: u16 = 1; var far = @zeros([8]u32);"
        "const d0 = @get_dsd(mem1d_dsd, .{ .base_address = &far, .extent = 2 });"
    )
    body = """
  var k: u16 = i;
  const d = @set_dsd_base_addr(d0, &v[k + i]);
  k = 5; i = 3;
  if (k == 5) { @mov32(d, 7); }
  for (@range(u16, 4)) |j| { out[j] = v[j]; }"""
    assert list(function(tmp_path, body, "u32", 4, head=head)) == [0, 0, 7, 7]


def test_an_operation_is_over_before_its_register_gets_a_new_base(tmp_path: Path) -> None:
    """Scalar code runs meanwhile."""
    head = REGISTERS.format(TIMER)
    move, base = "@fmovs(d, s);", "@set_dsr_base_addr(s, &y);"
    twice = interval(tmp_path, move + base + move, head)
    costs = costs_of("wse2")
    alone = interval(tmp_path, move, head) - interval(tmp_path, "", head)
    assert twice - interval(tmp_path, move, head) == costs.drained + costs.rewritten + alone
    assert interval(tmp_path, move + "n += 1;" + base + move, head) == twice
    late = "n += 1; n = n * n; k += n; k = k * k; n += k;" * 2
    slow = interval(tmp_path, move + late + base + move, head) - twice
    assert 0 < slow < interval(tmp_path, late, head) - interval(tmp_path, "", head)


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
