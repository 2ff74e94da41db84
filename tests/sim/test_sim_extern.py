"""Variables and functions that one file declares and another one exports."""

from __future__ import annotations

from pathlib import Path

import pytest
from csl_runner import PE_HEAD, SINGLE, Run, exports

from meshc.support.diagnostics import MeshcError

MAIN = """
const more = @import_module("more.csl", .{ .n = 4 });
const last = @import_module("last.csl");
export var shared: [4]u16;
export var count: u16 = 5;
export fn twice(a: u16) u16 { return 2 * a; }
var out: [*]u16 = &shared;
fn run() void { more.fill(); last.change(); sys.unblock_cmd_stream(); }
comptime { @export_symbol(out, "out"); @export_symbol(run); }
"""
MORE = """
param n: u16;
extern var shared: [n]u16;
extern var count: u16;
extern fn twice(a: u16) u16;
extern var kept: u16;
const all = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{3} -> shared[i + 1] });
fn fill() void { @mov16(all, twice(count)); count += 1; shared[0] = count + kept; }
"""
LAST = """
extern var shared: [4]u16;
export var kept: u16 = 100;
fn change() void { shared[3] += kept; }
"""


def run(folder: Path, main: str = MAIN, more: str = MORE, arch: str = "wse2") -> Run:
    layout = SINGLE.replace("EXPORTS", exports(out="[*]u16", run="fn()void"))
    files = {"layout.csl": layout, "pe.csl": PE_HEAD + main, "more.csl": more, "last.csl": LAST}
    return Run(folder, files, arch)


@pytest.mark.parametrize("arch", ["wse2", "wse3"])
def test_one_variable_in_several_files(tmp_path: Path, arch: str) -> None:
    """Also of a file that is imported later, and with what it begins with."""
    program = run(tmp_path, arch=arch)
    program.launch("run")
    assert program.read("out", 4, "u2").tolist() == [106, 10, 10, 110]


@pytest.mark.parametrize(
    ("old", "new", "code", "words"),
    [
        ("extern var count: u16", "extern var count: i16", "csl-type",
         "declared extern as 'i16' and exported as 'u16'"),
        ("extern var shared: [n]u16", "extern var shared: [n + 1]u16", "csl-type", "exported as"),
        ("extern fn twice(a: u16)", "extern fn twice(a: i16)", "csl-type", "exported as"),
        ("extern var kept: u16", "extern var other: u16; const kept = 2; "
         "fn unused() void {} comptime { @export_symbol(other); }", "csl-unsupported",
         "no file of the program exports 'other'"),
    ],
)  # fmt: skip
def test_what_does_not_fit(tmp_path: Path, old: str, new: str, code: str, words: str) -> None:
    assert old in MORE
    with pytest.raises(MeshcError, match=words) as caught:
        run(tmp_path, more=MORE.replace(old, new))
    first = caught.value.diagnostics[0]
    assert (
        first.code == code
        and first.span is not None
        and first.span.source.name.endswith("more.csl")
    )


def test_two_files_that_export_one_name(tmp_path: Path) -> None:
    main = MAIN.replace("export var count", "export var kept: u16 = 1; export var count")
    with pytest.raises(MeshcError, match="several files export 'kept'"):
        run(tmp_path, main)
