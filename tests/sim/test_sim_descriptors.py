"""Descriptors as values: local variables, arrays, and what has no address."""

from __future__ import annotations

from pathlib import Path

import pytest
from csl_runner import function, single

from meshc.support.diagnostics import MeshcError

ALL = "@get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> data[i] })"
HALF = "@get_dsd(mem1d_dsd, .{ .tensor_access = |i|{2} -> data[i] })"
HEAD = f"""
var data = @zeros([4]u16);
var x: u16 = 7;
const all = {ALL};
fn fill(d: mem1d_dsd, v: u16) void {{ @mov16(d, v); }}
"""


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        # a local descriptor with the name of a variable whose address is taken
        (f"{{ const p = &x; p.* = 9; }} {{ var x = {ALL}; @mov16(x, 5); }} out[0] = x + data[3];",
         14),
        (f"var d = [2]mem1d_dsd{{ {ALL}, {HALF} }}; @mov16(d[0], 5); @mov16(d[x - 6], 6);"
         " out[0] = data[1] + data[3];", 11),
        (f"const d = [2]mem1d_dsd{{ {ALL}, {HALF} }}; @mov16(d[x - 6], 6); out[0] = data[1];", 6),
        (f"var d = {ALL}; const e = [1]mem1d_dsd{{ @set_dsd_length(d, x - 4) }}; @mov16(e[0], 5);"
         " out[0] = data[2] + data[3];", 5),
        (f"var d = [2]mem1d_dsd{{ {ALL}, {HALF} }}; var e = d; e[0] = d[1]; @mov16(e[0], 6); e = d;"
         " fill(e[0], data[0] + 1); out[0] = data[3];", 7),
    ],
)  # fmt: skip
def test_local_descriptors(tmp_path: Path, body: str, expected: int) -> None:
    assert function(tmp_path, body, "u16", head=HEAD)[0] == expected


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (f"var d = {ALL}; const p = &d; @mov16(p.*, 5);", "a descriptor has no address"),
        (
            "@mov16(@get_dsd(mem1d_dsd, .{ .tensor_access = -|i|{4} -> data[i] }), 5);",
            "an access to a tensor is no value",
        ),
        (f"const d = {ALL}; const p = &d; @mov16(p.*, 5);", "a descriptor has no address"),
        ("const p = &all; @mov16(p.*, 5);", "a descriptor has no address"),
        ("all = @set_dsd_length(all, 2);", "a constant cannot be assigned to"),
    ],
)
def test_descriptors_refused(tmp_path: Path, body: str, words: str) -> None:
    with pytest.raises(MeshcError, match=words):
        function(tmp_path, body, "u16", head=HEAD)


NEVER_SET = """
var one: u16 = 1;
var unset: mem1d_dsd = undefined; var out: fabout_dsd;
const register = @get_dsr(dsr_dest, 1);
fn add(x: u16) u16 { return x + 1; }
fn run() void { BODY sys.unblock_cmd_stream(); }
comptime { @export_symbol(run); }
"""
USES = {
    "vector": "@add16(unset, unset, one);",
    "sum": "@add16(&one, unset, one);",
    "local": "var local: mem1d_dsd = undefined; @add16(local, local, one);",
    "copy": "var local = unset; @add16(local, local, one);",
    "fabric": "@mov16(out, one, .{ .async = true });",
    "edit": "unset = @set_dsd_length(unset, 3);",
    "register": "@load_to_dsr(register, unset);",
    "map": "@map(add, unset, unset);",
}


@pytest.mark.parametrize("use", USES)
def test_a_descriptor_that_was_never_set(tmp_path: Path, use: str) -> None:
    program = single(tmp_path, NEVER_SET.replace("BODY", USES[use]), run="fn()void")
    with pytest.raises(MeshcError) as caught:
        program.launch("run")
    found = caught.value.diagnostics[0]
    assert (found.code, found.message) == ("csl-run", "a descriptor is used that was never set")
    assert found.notes[-1].endswith("pe.csl:9")
