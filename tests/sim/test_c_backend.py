"""The C back end: numbers, constants, groups of classes, the cache, fallbacks, bad programs."""

from __future__ import annotations

import ctypes as ct
import gc
import math
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from csl_runner import PE_HEAD, Run, exports, single
from hypothesis import given, settings
from hypothesis import strategies as st
from reduced import crossed
from twin import Twin

from meshc.sim import machines
from meshc.sim.cgen import build
from meshc.sim.cgen import c_machine as c_machine
from meshc.sim.cgen.c_machine import CMachine
from meshc.sim.cgen.emit import emit
from meshc.sim.cgen.errors import Unsupported
from meshc.sim.cgen.library import KNOWN_OPERATIONS, library
from meshc.sim.cgen.marked_constants import (
    descriptors,
    integer,
    integer_literal,
    mark_statement,
    real,
    state,
)
from meshc.sim.cgen.merging import Written, merge
from meshc.sim.descriptors import Mem
from meshc.sim.exact_numbers import float_bits, float_div, float_from_bits, float_to_int
from meshc.sim.host import host_operations
from meshc.sim.machine.cycle_model import costs_of
from meshc.sim.machine.machine import Machine
from meshc.sim.machine.run_options import Options
from meshc.sim.scalar_costs import scalar_costs
from meshc.sim.sema.csl_types import BF16, F16, Int
from meshc.sim.stored_programs import load_program
from meshc.sim.vector_ops import OPS
from meshc.support.diagnostics import MeshcError
from meshc.support.native import BuildError, Toolchain

needs_compiler = pytest.mark.skipif(build.C.path() is None, reason="there is no C compiler")

LOOP = """
fn run() void { sys.unblock_cmd_stream(); }
comptime { @export_symbol(run); }
"""


@pytest.fixture
def machine_library() -> Iterator[Any]:
    yield library(list(costs_of("wse2").lanes))


def bits_of(value: float) -> int:
    return int(struct.unpack("<Q", struct.pack("<d", value))[0])


@needs_compiler
@settings(max_examples=400, deadline=None)
@given(st.one_of(st.floats(), st.floats(-70000, 70000), st.floats(-1e-4, 1e-4)))
def test_numbers_round_alike(value: float) -> None:
    found = library(list(costs_of("wse2").lanes))
    found.csl_h16.restype = found.csl_hb16.restype = ct.c_uint16
    for kind, function in ((F16, found.csl_h16), (BF16, found.csl_hb16)):
        function.argtypes = [ct.c_double]
        if value == value:
            assert function(value) == float_bits(kind, value)
    found.csl_f2i.restype, found.csl_f2i.argtypes = ct.c_int64, [ct.c_double, ct.c_int, ct.c_int]
    for width in (8, 16, 32):
        for signed in (False, True):
            expected = float_to_int(Int(width, signed), value)
            assert found.csl_f2i(value, width, signed) == expected


@needs_compiler
def test_all_halves_have_the_same_value(machine_library: Any) -> None:
    for kind, function in ((F16, machine_library.csl_half), (BF16, machine_library.csl_brain)):
        function.restype, function.argtypes = ct.c_double, [ct.c_uint16]
        for bits in range(0, 1 << 16, 7):
            assert bits_of(function(bits)) == bits_of(float_from_bits(kind, bits))


@needs_compiler
@pytest.mark.parametrize("pair", [(1.0, 0.0), (-1.0, 0.0), (1.0, -0.0), (0.0, 0.0),
                                  (math.nan, 0.0), (1.0, 3.0), (math.inf, -2.0)])  # fmt: skip
def test_division_follows_ieee(machine_library: Any, pair: tuple[float, float]) -> None:
    function = machine_library.csl_fdiv
    function.restype, function.argtypes = ct.c_double, [ct.c_double, ct.c_double]
    assert bits_of(function(*pair)) == bits_of(float_div(*pair))


@needs_compiler
def test_every_vector_operation_exists_in_c(machine_library: Any) -> None:
    assert set(OPS) == KNOWN_OPERATIONS


def test_constants_that_differ_come_from_a_table() -> None:
    dsd = Mem(0, 1, 2, 2)
    made = [Written(f"x = {integer(5)} + {integer(n)} * {real(f)};", [dsd])
            for n, f in ((1, 0.5), (2, 0.5))]  # fmt: skip
    assert made[0].shape == made[1].shape
    text, tables = merge([[written] for written in made])
    assert text == "x = 5 + p->k->n[0] * 0.5;"
    assert [t.integers for t in tables] == [[1], [2]] and tables[0].reals == []


def waiting(name: str, place: int, first: int, count: int, number: int) -> list[str]:
    """A statement after which a function may go on."""
    given = f"{name}({descriptors(first, count)}, {integer(number)})"
    return [f"    {given};", f"    at = {state(place)};", f"case {state(place)}:;"]


def framed(*statements: list[str]) -> str:
    """A function of ``statements``, each of which may have another form in other classes."""
    lines = [f"case {state(0)}:;"]
    for statement in statements:
        mark_statement(statement, 0)
        lines += statement
    return "\n".join([*lines, "end"])


MERGED = """\
case 0:;
    if (p->k->n[0] == 0) {
        add(0, p->k->n[1]);
        at = 1;
    case 1:;
    } else if (p->k->n[0] == 1) {
        move(2, 7);
        at = 2;
    case 2:;
    }
    put(3, p->k->n[2]);
    at = 3;
case 3:;
end"""


def test_statements_that_differ_are_all_written() -> None:
    a, b, c, d = (Mem(0, 1, 2, n) for n in range(4))
    classes = [
        Written(framed(waiting("add", 1, 0, 2, 5), waiting("put", 2, 2, 1, 1)), [a, b, c]),
        Written(framed(waiting("move", 1, 0, 1, 7), waiting("put", 2, 1, 1, 2)), [d, c]),
        Written(framed(waiting("add", 1, 1, 2, 6), waiting("put", 2, 0, 1, 3)), [c, a, b]),
    ]
    assert len({written.shape for written in classes}) == 1
    text, tables = merge([[written] for written in classes])
    assert text == MERGED
    assert [t.integers for t in tables] == [[0, 5, 1], [1, 0, 2], [0, 6, 3]]
    assert [t.dsds for t in tables] == [[a, b, None, c], [None, None, d, c], [a, b, None, c]]


@pytest.mark.parametrize(
    ("number", "text"),
    [(3, "3"), (-3, "(-3)"), (1 << 40, "1099511627776ll"), (-(1 << 63), "INT64_MIN"),
     ((1 << 64) - 1, "18446744073709551615u")],
)  # fmt: skip
def test_literals(number: int, text: str) -> None:
    assert integer_literal(number) == text


LAYOUT = """
const memcpy = @import_module("<memcpy/get_params>", .{ .width = 4, .height = 1 });
layout {
  @set_rectangle(4, 1);
  for (@range(i16, 4)) |x| {
    @set_tile_code(x, 0, "pe.csl", .{ .memcpy_params = memcpy.get_params(x), .me = x });
  }
  EXPORTS
}
"""
NUMBERED = """
param me: i16;
var out = @zeros([1]i16); var out_ptr: [*]i16 = &out;
fn run() void { out[0] = me * 3; sys.unblock_cmd_stream(); }
comptime { @export_symbol(out_ptr, "out"); @export_symbol(run); }
"""


def test_classes_that_differ_in_a_number_share_code(tmp_path: Path) -> None:
    layout = LAYOUT.replace("EXPORTS", exports(out="[*]i16", run="fn()void"))
    program = Run(tmp_path, {"layout.csl": layout, "pe.csl": PE_HEAD + NUMBERED}, "wse2")
    program.launch("run")
    assert [int(program.read("out", 1, "i2", x=x)[0]) for x in range(4)] == [0, 3, 6, 9]
    groups = emit(load_program(tmp_path).classes, scalar_costs("wse2"), set(OPS))
    assert [len(g.members) for g in groups] == [4]


CHOSEN = """
param me: i16;
var out = [4]f32{ 1.0, 2.0, 3.0, 4.0 }; var out_ptr: [*]f32 = &out;
const all = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> out[i] });
fn run() void {
    if (me == 1) { @fadds(all, all, 1.0); } else if (me == 2) { @fmuls(all, all, all); } else { @fmovs(all, 9.0); }
    @fadds(all, all, 0.5);
    sys.unblock_cmd_stream();
}
comptime { @export_symbol(out_ptr, "out"); @export_symbol(run); }
"""  # noqa: E501


def test_classes_that_differ_in_a_statement_share_code(tmp_path: Path) -> None:
    layout = LAYOUT.replace("EXPORTS", exports(out="[*]f32", run="fn()void"))
    program = Run(tmp_path, {"layout.csl": layout, "pe.csl": PE_HEAD + CHOSEN}, "wse2")
    program.launch("run")
    found = [[float(v) for v in program.read("out", 4, np.float32, x=x)] for x in range(4)]
    assert found[0] == found[3] == [9.5] * 4
    assert found[1:3] == [[2.5, 3.5, 4.5, 5.5], [1.5, 4.5, 9.5, 16.5]]
    (group,) = emit(load_program(tmp_path).classes, scalar_costs("wse2"), set(OPS))
    assert len(group.members) == len(load_program(tmp_path).classes) > 2


def test_text_is_deterministic(tmp_path: Path) -> None:
    single(tmp_path, LOOP, run="fn()void")
    texts = [
        emit(load_program(tmp_path).classes, scalar_costs("wse2"), set(OPS))[0].text
        for _ in range(2)
    ]
    assert texts[0] == texts[1] and str(tmp_path) not in texts[0]


# --- the choice of a back end ---


def loaded(folder: Path, options: Options) -> Any:
    single(folder, LOOP, run="fn()void")
    return machines.make_machine(load_program(folder), options)


@needs_compiler
@pytest.mark.parametrize(("few", "used"), [(0, build.CODE), (1, build.QUICK)])
def test_code_that_few_pes_run_is_optimised_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few: int, used: Toolchain
) -> None:
    toolchains: list[Toolchain] = []

    def compiled(text: str, toolchain: Toolchain) -> ct.CDLL:
        toolchains.append(toolchain)
        return build.program_library(text, toolchain)

    monkeypatch.setattr(c_machine, "program_library", compiled)
    monkeypatch.setattr(c_machine, "_FEW_PES", few)
    program = single(tmp_path, LOOP, run="fn()void")
    program.launch("run")
    assert toolchains == [used]


@needs_compiler
def test_the_options_choose(tmp_path: Path) -> None:
    for wanted, kind in (
        ("python", Machine),
        ("c", CMachine),
        ("auto", CMachine),
        (None, CMachine),
    ):
        assert isinstance(loaded(tmp_path, Options(backend=wanted)), kind)


def test_an_unknown_back_end_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MeshcError, match="no back end 'fortran'"):
        machines.backend_of(Options(backend="fortran"))


@pytest.mark.parametrize("problem", [BuildError("no C compiler was found"), Unsupported("@odd")])
def test_python_takes_over_with_a_remark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    problem: Exception,
) -> None:  # fmt: skip
    def refuse(*_: Any) -> Any:
        raise problem

    monkeypatch.setattr(machines, "CMachine", refuse)
    assert isinstance(loaded(tmp_path, Options()), Machine)
    assert f"csl-backend]: the Python back end is used instead of C: {problem}" in (
        capsys.readouterr().err
    )


@needs_compiler
def test_compiled_text_is_kept_by_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = build.C.build({"a.c": "int one(void) { return 1; }"}, {}, "test")
    stamp = first.stat().st_mtime_ns
    assert build.C.build({"a.c": "int one(void) { return 1; }"}, {}, "test") == first
    assert first.stat().st_mtime_ns == stamp and first.parent.parent == tmp_path / "meshc"
    assert build.C.build({"a.c": "int one(void) { return 2; }"}, {}, "test") != first
    assert {p.suffix for p in (tmp_path / "meshc").glob("*/*")} == {".so"}


@needs_compiler
@pytest.mark.parametrize("harm", ["cut", "empty", "one bit"])
def test_a_damaged_library_is_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    text = {"a.c": '__attribute__((visibility("default"))) int one(void) { return 1; }'}
    first = build.C.build(text, {}, "test")
    data = bytearray(first.read_bytes())
    data[len(data) // 2] ^= 1
    first.write_bytes({"cut": data[: len(data) // 2], "empty": b"", "one bit": data}[harm])
    healed = build.C.build(text, {}, "test")
    assert ct.CDLL(str(healed)).one() == 1
    stamp = healed.stat().st_mtime_ns
    assert build.C.build(text, {}, "test") == healed and healed.stat().st_mtime_ns == stamp


@needs_compiler
def test_text_that_does_not_compile_is_a_build_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(BuildError, match="error"):
        build.C.build({"a.c": "this is no C"}, {}, "test")


@needs_compiler
def test_a_cache_that_cannot_be_written_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert Path(build.C.build({"a.c": "int x;"}, {}, "test")).exists()
    assert "remark[cache]" in capsys.readouterr().err


def test_without_a_compiler_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.devnull)
    monkeypatch.delenv("CC", raising=False)
    assert build.C.path() is None


# --- bad programs end in the same message on both machines (see twin.py), never in a crash ---

BAD = {
    "wild pointer": (
        "var p: [*]u16 = @bitcast([*]u16, n + 60000); p[2] = 7;", "outside of"),
    "wild read": ("var p: [*]f32 = @bitcast([*]f32, n + 52000); f = p[0];", "outside of"),
    "index": ("a[n + 30000] = 1;", "outside of the variables"),
    "division": ("a[0] = 5 / (n - 9);", "division by zero"),
    "remainder": ("a[0] = 5 % (n - 9);", "division by zero"),
    "endless loop": ("while (true) { n += 1; }", "does its loop end"),
    "endless loop with continue": (
        "while (true) { n += 1; if (n > 3) { continue; } a[0] = n; }", "does its loop end"),
    "no function": ("hook();", "never set"),
    "extent": (
        "const big = @get_dsd(mem1d_dsd, .{ .base_address = &a, .extent = 30000 });"
        " @mov16(big, 1);", "outside of"),
    "negative stride": (
        "const back = @get_dsd(mem1d_dsd, .{ .base_address = &a, .extent = 2000, .stride = -9 });"
        " @mov16(back, 1);", "outside of"),
}  # fmt: skip


@pytest.mark.parametrize("name", list(BAD))
def test_bad_programs_are_explained(tmp_path: Path, name: str) -> None:
    body, words = BAD[name]
    pe = f"""
var n: u16 = 9;
var f: f32 = 0.0;
var a = @zeros([8]u16);
var hook: *const fn()void = undefined;
fn run() void {{
  {body}
  sys.unblock_cmd_stream();
}}
comptime {{ @export_symbol(run); }}
"""
    program = single(tmp_path, pe, run="fn()void")
    program.machine.task_limit = 100_000
    with pytest.raises(MeshcError, match=words):
        program.launch("run")


@needs_compiler
def test_programs_really_ran_on_both_machines(tmp_path: Path) -> None:
    before = Twin.supported
    program = single(tmp_path, LOOP, run="fn()void")
    program.launch("run")
    assert Twin.supported == before + 1
    assert isinstance(host_operations.OPTIONS[0], Options)


@needs_compiler
def test_a_machine_gives_its_memory_back(tmp_path: Path) -> None:
    machine = loaded(tmp_path, Options(backend="c"))
    machine.run_to_rest()
    end = machine._end
    memory = machine.pes[0, 0].mem
    del machine
    gc.collect()
    assert not end.alive and memory[0] == 0


UNROLLED = """
var out = @zeros([4]u16);
const ptr: [*]u16 = &out;
const one = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{1} -> out[i] });
const loop = @get_dsd(fabout_dsd, .{ .extent = 1, .fabric_color = @get_color(3),
                                     .output_queue = @get_output_queue(2) });
fn run() void {
  inline for (@range(u16, TIMES)) |i| { BODY }
  sys.unblock_cmd_stream();
}
comptime { @export_symbol(run); @export_symbol(ptr, "out"); }
"""
STORES = {
    "plain": "out[i & 3] += 1;",
    "waiting": "out[i & 3] += 1; if (out[3] == 9999) { @mov16(loop, one); }",
}


@needs_compiler
@pytest.mark.parametrize(("kind", "times"), crossed([*STORES], [1200, 12]))
def test_functions_too_long_to_optimise(tmp_path: Path, kind: str, times: int) -> None:
    text = UNROLLED.replace("TIMES", str(times)).replace("BODY", STORES[kind])
    program = single(tmp_path, text, out="[*]u16", run="fn()void")
    program.launch("run")
    assert list(program.read("out", 4, np.uint16)) == [times // 4] * 4
    (group,) = emit(load_program(tmp_path).classes, scalar_costs("wse2"), set(OPS))
    assert group.text.count("LONG ") == (times > 1000)


@pytest.mark.parametrize(
    "body", ["out[0] = 1;", "inline for (@range(u16, 60000)) |j| { out[0] = j; }"]
)
def test_code_that_cannot_fit_a_pe(tmp_path: Path, body: str) -> None:
    text = UNROLLED.replace("TIMES", "60000").replace("BODY", body)
    text += "fn other() void { out[1] = 1; } comptime { @export_symbol(other); }"
    with pytest.raises(
        MeshcError, match="more than 24576 statements here; by an estimate"
    ) as caught:
        single(tmp_path, text, out="[*]u16", run="fn()void", other="fn()void")
    (found,) = caught.value.diagnostics
    assert (found.code, found.span and found.span.line) == ("csl-memory", 11)
