"""Compiled programs as files: round trip, damaged files, names that would be code."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from csl_runner import function, single
from hypothesis import given, settings
from hypothesis import strategies as st

from meshc.sim import ir
from meshc.sim.descriptors import FabIn, FabOut, Fifo, Mem
from meshc.sim.host.debug import DUMP, debug_util, save_dump
from meshc.sim.program import PeProgram, PeSymbol, Program
from meshc.sim.route_configs import ColorConfig, Filter
from meshc.sim.sema import csl_types as ty
from meshc.sim.sema.unit import Export
from meshc.sim.stored_programs import (
    FILE_NAME,
    Damaged,
    dumps,
    load_program,
    loads,
    named_functions,
    save_program,
)
from meshc.support.diagnostics import MeshcError

NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,6}", fullmatch=True)
INTS = st.integers(-(1 << 40), 1 << 40)
WORDS = st.integers(0, 0xFFFF)
TYPES = st.recursive(
    st.sampled_from([ty.U16, ty.I32, ty.F16, ty.F32, ty.BOOL, ty.COLOR, ty.MEM1D]),
    lambda inner: st.one_of(
        st.builds(ty.Pointer, st.booleans(), st.booleans(), inner),
        st.builds(ty.Array, st.lists(st.integers(1, 9), min_size=1).map(tuple), inner),
        st.builds(ty.Fn, st.lists(inner, max_size=3).map(tuple), inner),
        st.builds(ty.Struct, NAMES, st.lists(st.tuples(NAMES, inner), max_size=3).map(tuple)),
    ),
    max_leaves=4,
)
DSDS = st.one_of(
    st.builds(Mem, WORDS, WORDS, INTS, st.sampled_from([1, 2, 4])),
    st.builds(FabIn, st.integers(-1, 23), WORDS, st.integers(-1, 7)),
    st.builds(FabOut, st.integers(-1, 23), WORDS, st.integers(-1, 7), st.booleans()),
    st.builds(Fifo, WORDS, WORDS, WORDS, st.sampled_from([2, 4])),
)
VALUES = st.one_of(INTS, st.booleans(), st.floats(allow_nan=False), DSDS)
VARS = st.builds(ir.Var, NAMES, TYPES)
EXPRS: Any = st.recursive(
    st.one_of(
        st.builds(ir.Const, TYPES, VALUES),
        st.builds(lambda v: ir.Local(v.type, v), VARS),
        st.builds(ir.FnAddr, TYPES, NAMES),
    ),
    lambda inner: st.one_of(
        st.builds(ir.Bin, TYPES, st.sampled_from(["+", "<<", "and", "!="]), inner, inner),
        st.builds(ir.Load, TYPES, inner),
        st.builds(ir.Cast, TYPES, inner),
        st.builds(ir.Select, TYPES, inner, inner, inner),
        st.builds(ir.Runtime, TYPES, NAMES, st.lists(inner, max_size=3)),
    ),
    max_leaves=8,
)
PLACES = st.text(max_size=12)
OPTIONS = st.builds(
    ir.OpOptions, st.booleans(), st.none() | EXPRS, st.none() | st.tuples(NAMES, EXPRS)
)
STATEMENTS: Any = st.recursive(
    st.one_of(
        st.builds(ir.SetLocal, PLACES, VARS, EXPRS),
        st.builds(ir.Store, PLACES, TYPES, EXPRS, EXPRS),
        st.builds(ir.Effect, PLACES, st.none() | VARS, NAMES, st.lists(EXPRS, max_size=2)),
        st.builds(
            ir.VectorOp, PLACES, st.none() | VARS, NAMES, st.lists(EXPRS, max_size=2), OPTIONS
        ),
        st.builds(ir.Break, PLACES, INTS),
    ),
    lambda inner: st.one_of(
        st.builds(ir.If, PLACES, EXPRS, st.lists(inner, max_size=2), st.lists(inner, max_size=2)),
        st.builds(
            ir.Loop,
            PLACES,
            INTS,
            st.just([]),
            EXPRS,
            st.lists(inner, max_size=2),
            st.lists(inner, max_size=2),
        ),
    ),
    max_leaves=6,
)
FUNCTIONS = st.builds(
    ir.Function, NAMES, st.lists(VARS, max_size=2), TYPES, st.lists(STATEMENTS, max_size=4)
)
DIRECTIONS = st.lists(st.integers(0, 4), max_size=3).map(tuple)
CONFIGS = st.builds(
    ColorConfig, DIRECTIONS, DIRECTIONS,
    st.lists(st.none() | st.tuples(st.none() | DIRECTIONS, st.none()), max_size=3).map(tuple),
    filter=st.none() | st.builds(Filter, NAMES, INTS, INTS),
)  # fmt: skip


def pe_program(functions: list[ir.Function], data: bytes, slots: list[Any]) -> PeProgram:
    found = PeProgram(
        "pe.csl", "wse2", 64, [PeSymbol("b", 8, 4), PeSymbol("a", 0, 8)], [(0, data)], slots,
        functions, {1: "f"}, {}, {}, {}, {}, {2: 3}, {}, [("local", 4)], [], [],
        {"x": Export("x", "data", ty.U16, 8)}, [], {5: ColorConfig()}, [], 1, ["text"], {}, {},
    )  # fmt: skip
    missing = named_functions(found, {}) - {f.name for f in functions}
    found.functions += [ir.Function(name, [], ty.VOID) for name in sorted(missing)]
    return found


PROGRAMS = st.builds(
    lambda functions, data, slots, config, at: Program(
        "wse3", 2, 1, (9, 3), (4, 1), [pe_program(functions, data, slots)], {at: 0},
        {(*at, 3): config}, ["x"], {"n": "4"},
    ),
    st.lists(FUNCTIONS, max_size=2), st.binary(max_size=16), st.lists(st.none() | DSDS, max_size=3),
    CONFIGS, st.tuples(st.integers(0, 1), st.just(0)),
)  # fmt: skip


DAMAGES = st.lists(
    st.tuples(
        st.floats(0, 1),
        st.integers(0, 20),
        st.sampled_from(["", "]", '"', "null", "-1", '["ref",9999]', "{}", "é"]),
    ),
    min_size=3,
    max_size=3,
)
"""Where characters are cut out, how many at most, and what is put there."""


@settings(max_examples=20, deadline=None)
@given(PROGRAMS, DAMAGES)
def test_round_trip_and_damage(compiled: Program, damages: list[tuple[float, int, str]]) -> None:
    """Text gives the same program; whatever is cut out or put in: a program, or an error in
    words."""
    text = dumps(compiled)
    again = loads(text)
    assert dumps(again) == text
    assert again.routes == compiled.routes and again.tiles == compiled.tiles
    assert again.classes[0].slots == compiled.classes[0].slots
    assert again.classes[0].image == compiled.classes[0].image
    assert again.classes[0].order == [1, 0]
    for place, length, inserted in damages:
        start = int(place * len(text))
        try:
            damaged = text[:start] + inserted + text[start + length :]
            assert isinstance(loads(damaged), Program)
        except Damaged as problem:
            assert problem.args[0]


def test_equal_functions_of_classes_are_written_once() -> None:
    def made(result: int) -> ir.Function:
        var = ir.Var("v", ty.I16)
        assign = ir.SetLocal("", var, ir.Const(ty.I16, result))
        body: list[ir.Stmt] = [assign, ir.Return("", ir.Local(ty.I16, var))]
        return ir.Function("f", [], ty.I16, body)

    classes = [pe_program([made(number)], b"", []) for number in (7, 7, 8)]
    compiled = Program(
        "wse3", 3, 1, (10, 3), (4, 1), classes, {(x, 0): x for x in range(3)}, {}, [], {}
    )
    first, second, third = (pe.functions[0] for pe in loads(dumps(compiled)).classes)
    assert first is second and third is not first
    assert third.body[0].value.value == 8  # type: ignore[attr-defined]


def test_special_numbers_survive() -> None:
    values = [float("inf"), -0.0, 2.0**-149, 1 << 63]
    functions = [ir.Function("f", [], ty.VOID, [ir.Return("", ir.Const(ty.F32, v))])
                 for v in values]  # fmt: skip
    again = loads(dumps(Program("wse2", 1, 1, (8, 3), (4, 1), [pe_program(functions, b"", [])], {},
                                {}, [], {})))  # fmt: skip
    got = [f.body[0].value.value for f in again.classes[0].functions]  # type: ignore[attr-defined]
    assert [repr(v) for v in got] == [repr(v) for v in values]


@pytest.mark.parametrize("name", ["f(); import os", "__class__", "a.b", "x\ny", "ü"])
def test_names_that_would_be_code_are_refused(name: str) -> None:
    compiled = Program("wse2", 1, 1, (8, 3), (4, 1), [
        pe_program([ir.Function("f", [], ty.VOID, [ir.Effect("", None, name, [])])], b"", [])
    ], {}, {}, [], {})  # fmt: skip
    with pytest.raises(Damaged, match="the name"):
        loads(dumps(compiled))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": "x"}, "another format"),
        ({"version": 0}, "another version"),
        ({"fields": {}}, "another version"),
        ({"program": ["tuple"]}, "something else than a program"),
        ({"program": ["Popen", "ls"]}, "unknown tag"),
        ({"table": [["Mem", 1]]}, "a Mem of 1 fields"),
        ({"table": [["Filter", 7, 0, 0, 0, 0, 0, 0, False, False, False]]}, "whose kind is 7"),
    ],
)
def test_what_is_wrong_is_said(change: dict[str, Any], words: str) -> None:
    compiled = Program("wse2", 1, 1, (8, 3), (4, 1), [], {}, {}, [], {})
    document = json.loads(dumps(compiled)) | change
    with pytest.raises(Damaged, match=words):
        loads(json.dumps(document))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"arch": "wse9"}, "an architecture that is not known"),
        ({"width": 1 << 40}, "a rectangle of"),
        ({"tiles": {(1, 0): 0}}, "PE [(]1, 0[)]"),
        ({"tiles": {(0, 0): 7}}, "the program 7"),
        ({"classes": [pe_program([], bytes(70_000), [])]}, "memory of 'pe.csl'"),
        ({"classes": [replace(pe_program([], b"", []), fifos=1 << 62)]}, "FIFOs of 'pe.csl'"),
        ({"classes": [replace(pe_program([], b"", []), fifos=-1)]}, "-1 FIFOs"),
    ],
)
def test_numbers_that_no_compiler_writes(changes: dict[str, Any], words: str) -> None:
    usual = {"arch": "wse2", "width": 1, "height": 1, "classes": [], "tiles": {}}
    fields: dict[str, Any] = usual | changes
    compiled = Program(
        fields["arch"], fields["width"], fields["height"], (8, 3), (4, 1), fields["classes"],
        fields["tiles"], {}, [], {},
    )  # fmt: skip
    with pytest.raises(Damaged, match=words):
        loads(dumps(compiled))


def test_code_names_functions_that_are_there() -> None:
    pe = pe_program([], b"", [])
    pe.functions.clear()
    compiled = Program("wse2", 1, 1, (8, 3), (4, 1), [pe], {}, {}, [], {})
    with pytest.raises(Damaged, match=r"a function 'f' that 'pe\.csl' lacks"):
        loads(dumps(compiled))


@pytest.mark.parametrize("content", [b"", b"{}", b"\x80\x04\x95", b"[1, 2"])
def test_files_that_are_no_programs(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    with pytest.raises(MeshcError) as caught:
        load_program(tmp_path)
    assert caught.value.diagnostics[0].code == "csl-damaged-program"


def test_a_program_that_was_changed_is_not_run(tmp_path: Path) -> None:
    """A single digit is another program, if a sound one: only its hash shows it."""
    save_program(Program("wse2", 1, 1, (8, 3), (4, 1), [], {}, {}, [], {}), tmp_path)
    assert load_program(tmp_path).arch == "wse2"
    path = tmp_path / FILE_NAME
    path.write_text(path.read_text(encoding="utf-8").replace("wse2", "wse3"), encoding="utf-8")
    with pytest.raises(MeshcError, match="was changed") as caught:
        load_program(tmp_path)
    assert caught.value.diagnostics[0].code == "csl-damaged-program"


def test_a_program_runs_after_the_round_trip(tmp_path: Path) -> None:
    """All programs of these tests are written and read; this one uses most kinds of values."""
    body = "for (@range(u16, 3)) |i| { out[i] = if (i > 1) 7 else i << 2; }"
    assert list(function(tmp_path, body, "u16", 3)) == [0, 4, 7]


def test_a_dump_is_read_again(tmp_path: Path) -> None:
    pe = """
const trace = @import_module("<debug>", .{ .key = "k", .buffer_size = 10 });
var a = @zeros([3]u16);
fn run() void { a[1] = 5; trace.trace_u16(9); trace.trace_string("s"); sys.unblock_cmd_stream(); }
comptime { @export_symbol(run); }
"""
    program = single(tmp_path, pe, run="fn()void")
    program.launch("run")
    save_dump(tmp_path / DUMP, program.machine)
    found = debug_util(str(tmp_path))
    assert list(found.get_symbol(4, 1, "a", np.uint16)) == [0, 5, 0]
    assert found.get_symbol_rect(((4, 1), (1, 1)), "a", np.uint16).shape == (1, 1, 3)
    assert found.read_trace(4, 1, "k") == [9, "s"]
    with pytest.raises(ValueError, match="no PE"):
        found.get_symbol(0, 0, "a")
    (tmp_path / DUMP).write_bytes(b"damaged")
    with pytest.raises(MeshcError, match="no readable dump") as caught:
        debug_util(str(tmp_path))
    assert caught.value.diagnostics[0].code == "csl-no-dump"
