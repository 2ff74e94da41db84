"""Descriptors as values: local variables, arrays, and what has no address."""

from __future__ import annotations

from pathlib import Path

import pytest
from csl_runner import function

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
        (f"const d = {ALL}; const p = &d; @mov16(p.*, 5);", "a descriptor has no address"),
        ("const p = &all; @mov16(p.*, 5);", "a descriptor has no address"),
        ("all = @set_dsd_length(all, 2);", "a constant cannot be assigned to"),
    ],
)
def test_descriptors_refused(tmp_path: Path, body: str, words: str) -> None:
    with pytest.raises(MeshcError, match=words):
        function(tmp_path, body, "u16", head=HEAD)
