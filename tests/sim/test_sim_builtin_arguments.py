"""What builtins are given: the right types and ranges, else an error with a place."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from csl_runner import PE_HEAD, SINGLE, exports

from meshc.sim.csl_compiler import compile_program
from meshc.sim.sema.registry import BUILTINS
from meshc.sim.stored_programs import dumps
from meshc.support.diagnostics import MeshcError

HEAD = """
const col = @get_color(5); const iq = @get_input_queue(2); const oq = @get_output_queue(3);
const lt = @get_local_task_id(9); const ct = @get_control_task_id(40);
const dt = @get_data_task_id(if (@is_arch("wse2")) @get_color(6) else @get_input_queue(4));
const dd = @get_dsr(dsr_dest, 3); const d0 = @get_dsr(dsr_src0, 3); 
const d1 = @get_dsr(dsr_src1, 4);
var arr = @zeros([8]u16); var farr = @zeros([8]f32); var wide = @zeros([2, 3]u32);
const m = @get_dsd(mem1d_dsd, .{ .base_address = &arr, .extent = 4 });
const m4 = @get_dsd(mem4d_dsd, .{ .tensor_access = |i, j|{2, 3} -> wide[i, j] });
const fin = @get_dsd(fabin_dsd, .{ .extent = 4, .fabric_color = col, .input_queue = iq });
const fo = @get_dsd(fabout_dsd, .{ .extent = 4, .fabric_color = col, .output_queue = oq });
var md = m; var buf = @zeros([4]u32); const ff = @allocate_fifo(buf);
var k: u16 = 3; var g: f32 = 1.5; var bb: bool = true; var sp: [*]u16 = &arr;
const E = enum(u16) { A, B }; var e: E = E.A;
const S = struct { a: u16, b: u32 }; var s = S{ .a = 1, .b = 2 };
fn fun() void {} fn fun1(x: u16) u16 { return x; } task tsk() void {} task tsk1(x: u32) void {}
const mod = @import_module("<math>"); const fp: *const fn (u16) u16 = &fun1;
"""
VALUE_TEXT = """
col iq oq lt ct dt dd d0 d1 arr farr wide m m4 fin fo md ff k g bb sp E e S s fun fun1 tsk tsk1 mod
fp 0 1 7 8 30 31 99 -1 65536 1.5 true "a" "" .A .{} .{1,2} .{.color=col} .{.color=1} .{.async=true}
.{.activate=tsk} .{.activate=lt} .{.unblock=iq} u16 f32 color [4]u16 *u16 void comptime_struct {}
mem1d_dsd dsr_dest undefined &arr &k &arr[k] &fun EAST RAMP .{EAST,RAMP} fun1(3) @range(u16,3)
@as(u16,3) @as(i8,-3) k+1 g*2.0 -k !bb mod.PI sys
"""
VALUES = VALUE_TEXT.split()
FIELDS = {
    "initialize_queue": "color priority ctrl_table_id",
    "get_dsd": "extent stride offset base_address fabric_color input_queue output_queue simd_mode"
    " control advance_switch zero wavelet_index_offset priority",
    "set_local_color_config": "routes switches filter teardown color_swap_x",
    "load_to_dsr": "async activate unblock save_address single_step ut_id priority",
    "mov16": "async activate unblock index ut_id priority on_control",
    "allocate_fifo": "activate_push activate_pop",
}
FIRST = {
    "initialize_queue": ["iq", "oq"],
    "get_dsd": ["mem1d_dsd", "mem4d_dsd", "fabin_dsd", "fabout_dsd"],
    "set_local_color_config": ["col"],
    "load_to_dsr": ["dd, m", "d0, md", "d1, fin", "dd, fo"],
    "mov16": ["fo, m", "m, fin", "dd, k", "ff, m"],
    "allocate_fifo": ["buf"],
}
MORE = "rx tx kind min_idx pos1 ring_mode pop_mode current_switch_pos limit1 terminate high range"


def compiled(folder: Path, code: str, place: str, arch: str) -> None:
    """Compile a program in which ``code`` is run, or evaluated at compile time."""
    texts = dict.fromkeys(("run", "comptime", "layout", "const"), "")
    texts[place] = f"const thing = {code}; comptime {{ const q = thing; }}"
    if place != "const":
        texts[place] = f"{code};"
    pe = f"""{texts["const"]}
fn run() void {{ {texts["run"]} sys.unblock_cmd_stream(); }}
comptime {{ {texts["comptime"]} @export_symbol(run); }}
"""
    layout = SINGLE.replace("EXPORTS", texts["layout"] + exports(run="fn()void"))
    (folder / "pe.csl").write_text(PE_HEAD + HEAD + pe)
    (folder / "layout.csl").write_text("const col = @get_color(5);" + layout)
    dumps(compile_program(str(folder / "layout.csl"), arch, {}, {}, (0, 0), (4, 1)))


@pytest.mark.every_case
@pytest.mark.parametrize("color", ["fun", "&fun", ".{ .a = 1 }", "sys", "true", "1.5", '"a"', "99",
                                   "-1", "iq", "E", "k", "@get_color(24)"])  # fmt: skip
def test_mistakes_in_the_color_of_a_queue(tmp_path: Path, color: str) -> None:
    with pytest.raises(MeshcError) as caught:
        compiled(tmp_path, f"@initialize_queue(iq, .{{ .color = {color} }})", "comptime", "wse3")
    assert all(d.span is not None for d in caught.value.diagnostics)


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("code", "place", "words"),
    [
        ("@activate(iq)", "run", "needs a local task"),
        ("@activate(fun)", "run", "needs a task"),
        ("@block(@get_ut_id(3))", "run", "does not stop and resume microthreads"),
        ("@bind_data_task(tsk1, 99)", "comptime", "99 is no data_task_id"),
        ("@unblock(31)", "layout", "belongs to the code of a PE"),
        ("@random16()", "comptime", "cannot be run at compile time"),
        ("@mov16(fo, m, .{ .async = 1 })", "run", "true or false"),
        ("@mov16(fo, m, .{ .ut_id = 99 })", "run", "99 is no ut_id"),
        ("@mov16(fo, m, .{ .priority = .{ .highest = true } })", "run", "unknown priority"),
        ("@mov16(m, fin, .{ .on_control = 3 })", "run", "expected a struct"),
        ("@map(fun1, m, md, .{ .async = true })", "run", "'@map' has no field"),
        ("@get_dsd(fabin_dsd, .{ .extent = 4, .fabric_color = iq })", "const", "must be a 'color'"),
        ("@get_dsd(fabout_dsd, .{ .extent = 4, .control = 1 })", "const", "true or false"),
        ("@set_dsd_stride(ff, 2)", "run", "does not take a 'fifo'"),
        ("@set_local_color_config(col, .{ .switches = .{ .current_switch_pos = true } })",
         "comptime", "must be an integer"),
        ("@set_local_color_config(col, .{ .filter = .{ .kind = .{ .range = true }, .low = 1 } })",
         "comptime", "no field '.low'"),
        ("@allocate_fifo(buf, .{ .empty_action = .terminate })", "const", "'.empty_action'"),
        ("@allocate_fifo(buf, .{ .xdsr = 1, .src = 1, .full_action = 1, .dest = 1 })", "const",
         "'.xdsr' of a FIFO"),
        ("@bind_rotating_tasks(.{ tsk, tsk }, lt)", "comptime", "another one after each run"),
        ("@dfilt(m, fin, 3)", "run", "drop wavelets by their payload"),
        ("@get_input_queue(col)", "const", "needs an integer"),
        ("@get_int(g)", "run", "@get_int of 'f32'"),
        ("@import_module(\"<math>\", 5)", "const", "expected a struct"),
        ("@export_name(\"x\", fn()void, 3)", "layout", "true or false"),
    ],
)  # fmt: skip
def test_mistakes_in_arguments(tmp_path: Path, code: str, place: str, words: str) -> None:
    with pytest.raises(MeshcError, match=words) as caught:
        compiled(tmp_path, code, place, "wse3")
    assert all(d.span is not None for d in caught.value.diagnostics)


def random_value(rng: random.Random, depth: int = 0) -> str:
    """A value of any kind, or a struct of such."""
    if rng.random() < 0.25 and depth < 3:
        names = rng.sample(" ".join([*FIELDS.values(), MORE]).split(), rng.randint(1, 3))
        return f".{{ {', '.join(f'.{n} = {random_value(rng, depth + 1)}' for n in names)} }}"
    return rng.choice(VALUES)


def random_call(rng: random.Random) -> str:
    """A builtin with arguments that it takes in number, but hardly in kind."""
    if rng.random() < 0.4:
        name = rng.choice(sorted(FIELDS))
        names = FIELDS[name].split()
        chosen = rng.sample(names, min(len(names), rng.randint(1, 3)))
        fields = ", ".join(f".{n} = {random_value(rng, 1)}" for n in chosen)
        return f"@{name}({rng.choice(FIRST[name])}, .{{ {fields} }})"
    name = rng.choice(sorted(n for n in BUILTINS if not n.startswith("sim_")))
    _, least, most = BUILTINS[name]
    count = rng.randint(least, max(least, min(most, 4)))
    return f"@{name}({', '.join(random_value(rng) for _ in range(count))})"


def check_random_calls(folder: Path, seeds: range) -> None:
    """Each compiles, or is refused."""
    for seed in seeds:
        rng = random.Random(seed)
        code, place = random_call(rng), rng.choice(["run", "comptime", "const", "layout"])
        try:
            compiled(folder, code, place, rng.choice(["wse2", "wse3"]))
        except MeshcError:
            continue
        except Exception as problem:
            raise AssertionError(f"seed {seed}: {place}: {code}") from problem


def test_random_arguments(tmp_path: Path) -> None:
    check_random_calls(tmp_path, range(120))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 21_000, 1000))
def test_many_random_arguments(tmp_path: Path, first: int) -> None:
    check_random_calls(tmp_path, range(first, first + 1000))
