"""The host side: orders, widths, arguments, streaming, and the commands."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from csl_runner import PE_HEAD, Run, exports, single

from meshc.cli import main
from meshc.sim import cs_python, cslc
from meshc.sim.commands_folder import make_bin
from meshc.sim.host.copying import COL_MAJOR, ROW_MAJOR, order_indices
from meshc.sim.host.debug import DUMP, debug_util
from meshc.sim.host.host_classes import MemcpyOrder, SdkRuntime
from meshc.sim.host.utils import (
    calculate_cycles,
    float_to_hex,
    input_array_to_u32,
    make_u48,
    memcpy_view,
    sub_ts,
)
from meshc.sim.suite import find_commands, run_one
from meshc.support.diagnostics import MeshcError, known_codes

GRID_LAYOUT = """
const memcpy = @import_module("<memcpy/get_params>", .{ .width = 3, .height = 2 });
layout {
  @set_rectangle(3, 2);
  for (@range(i16, 3)) |x| { for (@range(i16, 2)) |y| {
    @set_tile_code(x, y, "pe.csl", .{ .memcpy_params = memcpy.get_params(x) });
  } }
  EXPORTS
}
"""
GRID_PE = (
    PE_HEAD
    + """
var data = @zeros([4]f32); var data_ptr: [*]f32 = &data;
fn scale(k: f32, n: i16) void {
  for (@range(i16, n)) |i| { data[i] *= k; }
  sys.unblock_cmd_stream();
}
comptime { @export_symbol(data_ptr, "data"); @export_symbol(scale); }
"""
)


def grid(folder: Path) -> SdkRuntime:
    layout = GRID_LAYOUT.replace("EXPORTS", exports(data="[*]f32", scale="fn(f32, i16)void"))
    Run(folder, {"layout.csl": layout, "pe.csl": GRID_PE}, "wse3")
    runtime = SdkRuntime(str(folder))
    runtime.load()
    runtime.run()
    return runtime


def test_orders_of_host_arrays() -> None:
    row, col = order_indices(3, 2, 4, ROW_MAJOR), order_indices(3, 2, 4, COL_MAJOR)
    assert row[1, 2, 3] == (1 * 3 + 2) * 4 + 3
    assert col[1, 2, 3] == (3 * 3 + 2) * 2 + 1


@pytest.mark.parametrize("order", list(MemcpyOrder))
def test_copies_and_launch_arguments(tmp_path: Path, order: MemcpyOrder) -> None:
    runtime = grid(tmp_path)
    data = runtime.get_id("data")
    assert data is not None and runtime.get_id("nothing") is None
    values = np.arange(24, dtype=np.float32)
    runtime.memcpy_h2d(data, values, 0, 0, 3, 2, 4, order=order)
    runtime.launch("scale", np.float32(2.5), np.int16(3), nonblock=True)
    back = np.zeros(24, np.float32)
    runtime.memcpy_d2h(back, data, 0, 0, 3, 2, 4, order=order)
    runtime.stop()
    where = order_indices(3, 2, 4, int(order))
    factor = np.array([2.5, 2.5, 2.5, 1.0], np.float32)
    np.testing.assert_array_equal(back[where], values[where] * factor)


def test_row_and_column_broadcasts(tmp_path: Path) -> None:
    runtime = grid(tmp_path)
    data = runtime.get_id("data")
    assert data is not None
    back = np.zeros(24, np.float32)
    rows = np.arange(8, dtype=np.float32)
    runtime.memcpy_h2d_rowbcast(data, rows, 0, 0, 3, 2, 4)
    runtime.memcpy_d2h(back, data, 0, 0, 3, 2, 4)
    np.testing.assert_array_equal(
        back.reshape(2, 3, 4), np.repeat(rows.reshape(2, 1, 4), 3, axis=1)
    )
    columns = np.arange(12, dtype=np.float32)
    runtime.memcpy_h2d_colbcast(data, columns, 0, 0, 3, 2, 4)
    runtime.memcpy_d2h(back, data, 0, 0, 3, 2, 4)
    np.testing.assert_array_equal(
        back.reshape(2, 3, 4), np.repeat(columns.reshape(1, 3, 4), 2, axis=0)
    )


@pytest.mark.parametrize(("strides", "columns", "rows"), [((2, 1), [0, 2], [0, 1]),
                                                       ((1, 2), [0, 1, 2], [0]),
                                                       ((3, 5), [0], [0])])  # fmt: skip
def test_strides_over_the_pes(
    tmp_path: Path, strides: tuple[int, int], columns: list[int], rows: list[int]
) -> None:
    runtime = grid(tmp_path)
    data = runtime.get_id("data")
    assert data is not None
    count = len(columns) * len(rows)
    values = np.arange(1, 1 + 4 * count, dtype=np.float32)
    runtime.memcpy_h2d_stride(data, values, 0, 0, 3, 2, 4, *strides, order=MemcpyOrder.ROW_MAJOR)
    back = np.zeros(24, np.float32)
    runtime.memcpy_d2h(back, data, 0, 0, 3, 2, 4, order=MemcpyOrder.ROW_MAJOR)
    wanted = np.zeros((2, 3, 4), np.float32)
    wanted[np.ix_(rows, columns)] = values.reshape(len(rows), len(columns), 4)
    np.testing.assert_array_equal(back.reshape(2, 3, 4), wanted)


def test_a_core_file_is_a_dump(tmp_path: Path) -> None:
    runtime = grid(tmp_path)
    runtime.memcpy_h2d(runtime.get_id("data"), np.full(4, 7, np.float32), 1, 1, 1, 1, 4)
    (tmp_path / "core").mkdir()
    runtime.dump_core(tmp_path / "core" / DUMP)
    runtime.stop()
    x, y = runtime.coord_logical_to_physical((1, 1))
    found = debug_util(str(tmp_path / "core")).get_symbol(x, y, "data", np.float32)
    assert list(found) == [7] * 4


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("action", "words"),
    [
        (lambda r: r.memcpy_h2d_stride(64, np.zeros(8), 0, 0, 3, 2, 4, 0, 1), "of 1 or more"),
        (lambda r: r.dump_elf_core("a"), "no ELF files"),
        (lambda r: r.receive_tofile("a", "b"), "how many words"),
        (lambda r: r.send("a", np.zeros(1, np.float32)), "no stream 'a'"),
        (lambda r: r.launch("nothing"), "no PE exports a function"),
        (lambda r: r.launch("scale", 1.0), "takes 2 arguments"),
        (lambda r: r.memcpy_h2d(99, np.zeros(4, np.float32), 0, 0, 1, 1, 4), "not the id"),
        (lambda r: r.memcpy_h2d(64, np.zeros(3, np.float32), 0, 0, 1, 1, 4), "needs 4"),
        (lambda r: r.memcpy_h2d(64, np.zeros(99, np.float32), 3, 0, 1, 1, 4), "has no code"),
    ],
)
def test_wrong_host_operations_are_refused(tmp_path: Path, action: object, words: str) -> None:
    runtime = grid(tmp_path)
    with pytest.raises(MeshcError, match=words):
        action(runtime)  # type: ignore[operator]


def test_streams_through_a_bounded_fifo(tmp_path: Path) -> None:
    layout = """
const h2d = @get_color(21); const d2h = @get_color(22);
const memcpy = @import_module("<memcpy/get_params>", .{ .width = 1, .height = 1,
  .MEMCPYH2D_1 = h2d, .MEMCPYD2H_1 = d2h });
layout {
  @set_rectangle(1, 1);
  @set_tile_code(0, 0, "pe.csl", .{ .memcpy_params = memcpy.get_params(0) });
}
"""
    pe = (
        PE_HEAD
        + """
const in = @get_dsd(fabin_dsd, .{ .extent = 40, .fabric_color = sys.MEMCPYH2D_1,
                                  .input_queue = @get_input_queue(2) });
const out = @get_dsd(fabout_dsd, .{ .extent = 40, .fabric_color = sys.MEMCPYD2H_1,
                                    .output_queue = @get_output_queue(3) });
var room = @zeros([7]u32);
const fifo = @allocate_fifo(room);
const start = @get_local_task_id(8);
task main() void {
  @mov32(fifo, in, .{ .async = true });
  @mov32(out, fifo, .{ .async = true });
}
comptime { @bind_local_task(main, start); @activate(start); }
"""
    )
    runtime = Run(tmp_path, {"layout.csl": layout, "pe.csl": pe}, "wse2").runtime
    values = np.arange(40, dtype=np.uint32) * 3
    runtime.stream_in(21, values, (0, 0, 1, 1), 40, ROW_MAJOR)
    back = np.zeros(40, np.uint32)
    runtime.stream_out(back, 22, (0, 0, 1, 1), 40, ROW_MAJOR)
    np.testing.assert_array_equal(back, values)
    with pytest.raises(MeshcError, match="the host waits for 1 wavelets"):
        runtime.stream_out(back, 22, (0, 0, 1, 1), 1, ROW_MAJOR)


def test_array_helpers() -> None:
    words = input_array_to_u32(np_arr=np.array([1, -1], np.int16), sentinel=0, fast_dim_sz=2)
    assert [hex(w) for w in words] == ["0x1", "0x1ffff"]
    np.testing.assert_array_equal(memcpy_view(words, np.int16), [1, -1])
    assert calculate_cycles(np.array([5, 0, 0, 9, 1, 0], np.uint16)) == 65540


def test_collectives_move_data(tmp_path: Path) -> None:
    layout = """
const c2d = @import_module("<collectives_2d/params>");
const memcpy = @import_module("<memcpy/get_params>", .{ .width = 3, .height = 1 });
layout {
  @set_rectangle(3, 1);
  for (@range(u16, 3)) |x| {
    const p = c2d.get_params(x, 0, .{
      .x_colors = .{ @get_color(0), @get_color(1) },
      .x_entrypoints = .{ @get_local_task_id(10), @get_local_task_id(11) } });
    @set_tile_code(x, 0, "pe.csl", .{ .memcpy_params = memcpy.get_params(0), .p = p });
  }
  EXPORTS
}
""".replace("EXPORTS", exports(data="[*]f32", sum="[*]f32", run="fn()void"))
    pe = (
        PE_HEAD
        + """
param p: comptime_struct;
const mpi = @import_module("<collectives_2d/pe>", .{ .dim_params = p.x });
var data = @zeros([2]f32); var data_ptr: [*]f32 = &data;
var sum = @zeros([2]f32); var sum_ptr: [*]f32 = &sum;
const next = @get_local_task_id(12);
task done() void { sys.unblock_cmd_stream(); }
fn run() void { mpi.init(); mpi.reduce_fadds(1, data_ptr, sum_ptr, 2, next); }
comptime {
  @bind_local_task(done, next);
  @export_symbol(data_ptr, "data"); @export_symbol(sum_ptr, "sum"); @export_symbol(run);
}
"""
    )
    program = Run(tmp_path, {"layout.csl": layout, "pe.csl": pe}, "wse2")
    for x in range(3):
        program.write("data", np.array([x + 1, 10 * x], np.float32), x=x)
    program.launch("run")
    assert list(program.read("sum", 2, "f4", x=1)) == [6.0, 30.0]


FFT_LAYOUT = """
const memcpy = @import_module("<memcpy/get_params>", .{ .width = 2, .height = 2 });
const fft = @import_module("<kernels/fft/fft3d_layout>", .{ .width = 2, .memcpy = memcpy });
layout { @set_rectangle(2, 2); fft.FFT_kernel(2, 4, f32); }
"""


def test_the_fft_kernel_agrees_with_numpy(tmp_path: Path) -> None:
    program = Run(tmp_path, {"layout.csl": FFT_LAYOUT}, "wse3")
    grid = np.random.default_rng(1).standard_normal((4, 4, 4)).astype(np.complex64)
    for y in range(2):
        for x in range(2):
            block = grid[2 * y : 2 * y + 2, 2 * x : 2 * x + 2].transpose(2, 0, 1)
            program.write("X", np.ascontiguousarray(block).view(np.float32).reshape(-1), x, y)
    program.launch("csfftExecC2C", np.int16(0), np.int16(0))
    want = np.fft.fftn(grid)
    for y in range(2):
        for x in range(2):
            got = program.read("X", 32, "f4", x, y).view(np.complex64).reshape(4, 2, 2)
            block = want[2 * y : 2 * y + 2, 2 * x : 2 * x + 2].transpose(2, 0, 1)
            np.testing.assert_allclose(got, block, rtol=1e-4, atol=1e-4)


RUN_PY = """
import json, sys
import numpy as np
from cerebras.sdk.runtime.sdkruntimepybind import SdkRuntime, MemcpyDataType, MemcpyOrder
params = json.load(open("out/out.json"))["params"]
runner = SdkRuntime("out")
runner.load(); runner.run()
runner.launch("run", nonblock=False)
out = np.zeros(1, np.uint32)
runner.memcpy_d2h(out, runner.get_id("out"), 0, 0, 1, 1, 1, streaming=False,
  order=MemcpyOrder.ROW_MAJOR, data_type=MemcpyDataType.MEMCPY_16BIT, nonblock=False)
runner.stop()
sys.exit(0 if out[0] == int(params["k"]) + WRONG else 3)
"""
SUITE_LAYOUT = """
param k: u16;
const memcpy = @import_module("<memcpy/get_params>", .{ .width = 1, .height = 1 });
layout {
  @set_rectangle(1, 1);
  @set_tile_code(0, 0, "pe.csl", .{ .memcpy_params = memcpy.get_params(0), .k = k });
  @export_name("out", [*]u16, true); @export_name("run", fn()void);
}
"""
SUITE_PE = (
    PE_HEAD
    + """
param k: u16;
var out = @zeros([1]u16); var out_ptr: [*]u16 = &out;
fn run() void { out[0] = k; sys.unblock_cmd_stream(); }
comptime { @export_symbol(out_ptr, "out"); @export_symbol(run); }
"""
)


def example(folder: Path, wrong: int) -> None:
    folder.mkdir()
    (folder / "layout.csl").write_text(SUITE_LAYOUT)
    (folder / "pe.csl").write_text(SUITE_PE)
    (folder / "run.py").write_text(RUN_PY.replace("WRONG", str(wrong)))
    (folder / "commands_wse2.sh").write_text(
        "set -e\ncslc ./layout.csl --arch=wse2 --fabric-dims=8,3 --fabric-offsets=4,1 "
        "--params=k:7 -o out --memcpy --channels 1\ncs_python run.py\n"
    )


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_the_suite_runs_scripts_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example(tmp_path / "good", 0)
    example(tmp_path / "bad", 1)
    assert len(find_commands(tmp_path, None)) == 2
    assert main(["sim", "suite", str(tmp_path), "--json"]) == 1
    results = {r["program"]: r for r in json.loads(capsys.readouterr().out)}
    assert results["good"]["passed"] and results["good"]["cycles"] > 0
    assert results["good"]["arch"] == "wse2"
    assert not results["bad"]["passed"]
    assert not (tmp_path / "good" / "out").exists()


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_a_script_that_never_ends_is_stopped(tmp_path: Path) -> None:
    example(tmp_path / "slow", 0)
    (tmp_path / "slow" / "commands_wse2.sh").write_text("sleep 60\n")
    result = run_one(tmp_path, [tmp_path / "slow" / "commands_wse2.sh"], 1)
    assert result.arch == "-"
    assert not result.passed and "stopped after 1 seconds" in result.detail


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_the_suite_finds_scripts_of_other_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example(tmp_path / "two", 0)
    lines = (tmp_path / "two" / "commands_wse2.sh").read_text().replace("wse2", "wse3")
    (tmp_path / "two" / "commands_wse2.sh").unlink()
    first, _, last = lines.rpartition("cs_python")
    (tmp_path / "two" / "compile.sh").write_text(first)
    (tmp_path / "two" / "execute.sh").write_text("cs_python" + last)
    (tmp_path / "two" / "run_twice.sh").write_text("exit 3\n")
    assert main(["sim", "suite", str(tmp_path), "--json"]) == 1
    good, bad = json.loads(capsys.readouterr().out)
    assert good["passed"] and good["arch"] == "wse3" and good["cycles"] > 0
    assert not bad["passed"] and bad["cycles"] == 0


def test_the_suite_says_when_there_is_nothing_to_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sim", "suite", str(tmp_path)]) == 1
    assert "error: no commands*.sh, compile*.sh" in capsys.readouterr().err
    example(tmp_path / "good", 0)
    assert main(["sim", "suite", str(tmp_path), "--only", "other"]) == 1
    assert "with 'other' in its path below" in capsys.readouterr().err


def test_the_compiler_command_prints_messages_and_no_traceback(tmp_path: Path) -> None:
    example(tmp_path / "broken", 0)
    (tmp_path / "broken" / "pe.csl").write_text(SUITE_PE.replace("out[0] = k;", "out[0] = kk;"))
    folder = make_bin(tmp_path / "bin")
    done = subprocess.run(
        [str(folder / "cslc"), "layout.csl", "--params=k:7"],
        cwd=tmp_path / "broken", capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "error[csl-unknown-name]: 'kk' is not declared" in done.stderr
    assert "pe.csl:" in done.stderr and "Traceback" not in done.stderr


def test_traces_and_what_is_left_on_the_fabric(tmp_path: Path) -> None:
    example(tmp_path / "good", 0)
    folder = make_bin(
        tmp_path / "bin",
        ["--trace", str(tmp_path / "trace.json"), "--fabric", str(tmp_path / "fabric.json")],
    )
    for command in (["cslc", "layout.csl", "--params=k:7"], ["cs_python", "run.py"]):
        done = subprocess.run(
            [str(folder / command[0]), *command[1:]], cwd=tmp_path / "good",
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert any(e["name"] == "run" and e["dur"] > 0 for e in events)
    (line,) = (tmp_path / "fabric.json").read_text().splitlines()
    facts = json.loads(line)
    assert facts["cycles"] > 0 and len(facts["busy"]) == facts["rows"]


def test_every_code_is_explained(tmp_path: Path) -> None:
    known = known_codes()
    source = Path(single.__code__.co_filename).parents[2] / "meshc" / "sim"
    used = set()
    for path in source.rglob("*.py"):
        for word in path.read_text().split('"'):
            if word.startswith("csl-") and word.replace("-", "").isalpha():
                used.add(word)
    used -= {"csl-suite-", "csl-launcher-"}
    assert used and used <= set(known)


def test_missing_python_modules_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "run.py"
    script.write_text("import no_such_module\n")
    assert cs_python.main([str(script)]) == 1
    found = capsys.readouterr().err
    assert "[csl-host-module]" in found and "needs the Python module 'no_such_module'" in found
    script.write_text("import cerebras.modelzoo\n")
    assert cs_python.main([str(script)]) == 1
    assert "no host module 'cerebras.modelzoo'" in capsys.readouterr().err
    script.write_text("from cerebras.sdk.runtime.sdkruntimepybind import SdkRuntime, Nothing\n")
    assert cs_python.main([str(script)]) == 1
    found = capsys.readouterr().err
    assert "[csl-host-module]" in found and "Traceback" not in found
    assert "cannot import name 'Nothing' from 'cerebras.sdk.runtime.sdkruntimepybind'" in found
    assert cs_python.main([str(tmp_path / "missing.py")]) == 2


def test_helpers_of_host_scripts_know_counters_and_patterns() -> None:
    start, end = 0x0001_FFFF_FFF0, 0x0004_0000_0010
    words = [(value >> shift) & 0xFFFF for value in (start, end) for shift in (0, 16, 32)]
    assert make_u48(words) == start and sub_ts(words) == end - start
    assert float_to_hex(-1.5) == "0xbfc00000"


def test_the_compiler_finds_modules_along_import_paths(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "part.csl").write_text("const z: i16 = 3;\n")
    (tmp_path / "pe.csl").write_text(
        'const part = @import_module("part.csl");\ncomptime { @comptime_assert(part.z == 3); }\n'
    )
    (tmp_path / "layout.csl").write_text(
        'layout { @set_rectangle(1, 1); @set_tile_code(0, 0, "pe.csl"); }\n'
    )
    layout, out = str(tmp_path / "layout.csl"), f"-o={tmp_path / 'out'}"
    assert cslc.main([layout, out, "--import-path", str(tmp_path / "parts")]) == 0
    assert (tmp_path / "out" / "out.json").is_file()
    assert cslc.main([layout, out]) == 1
    assert cslc.main([layout, out, "--fp16-format=bf16"]) == 1


def test_transfers_of_old_scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runtime = grid(tmp_path)
    data, sent, got = runtime.get_id("data"), np.arange(24, dtype=np.float32), np.zeros(24, "f4")
    assert data is not None
    runtime.memcpy_h2d(data, sent, False, 0, 0, 3, 2, 4, 0, False)
    runtime.memcpy_d2h(got, data, False, 0, 0, 3, 2, 4, 0, False)
    assert got.tolist() == sent.tolist()
    for call, words in [
        (lambda: runtime.memcpy_launch(4, np.zeros(2, np.uint32), False), "memcpy_launch names"),
        (lambda: runtime.memcpy_h2d(data, sent, 0, 0, 3, 2, 4, 0, 0), "takes 5 arguments"),
        (lambda: runtime.memcpy_h2d(data, sent, 0, 0, 3, 2), "lacks the argument 'elem_per_pe'"),
        (lambda: runtime.memcpy_h2d(data, sent, 0, 0, 3, 2, 4, fast=True), "no argument 'fast'"),
    ]:
        with pytest.raises(MeshcError, match=words):
            call()
    runtime.stop()
    assert (tmp_path / "simfab_traces").is_dir()


def test_shifts_that_numpy_changed_are_remarked_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "stamps.py").write_text(
        "import numpy as np\n"
        "def join(w: np.uint16):\n"
        "    return w[0] + (w[1] << 16) + (w[2] << 32)\n"
    )
    script = tmp_path / "run.py"
    script.write_text("import stamps\nx = [int(a) << 16 for a in range(3)]\n")
    assert cs_python.main([str(script)]) == 0
    found = capsys.readouterr().err
    if np.__version__.startswith("1."):
        assert found == ""
    else:
        assert found.count("remark[csl-numpy]") == 1 and "stamps.py:3" in found
    (tmp_path / "stamps.py").write_text("x = 1 << 16\n")
    assert cs_python.main([str(script)]) == 0
    assert capsys.readouterr().err == ""
