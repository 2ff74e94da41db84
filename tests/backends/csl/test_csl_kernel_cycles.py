"""Predicted cycles of kernels that go row by row or element by element, one kernel at a time, are
within 2 %."""

import json

import numpy as np
import pytest
from csl_runs import emit, run_files, tile_text
from reduced import crossed

from meshc.analysis.csl.instruction_costs import Costs
from meshc.analysis.csl.operands import one_by_one
from meshc.analysis.csl.strided_windows import window
from meshc.analysis.csl.vector_ways import vector_cycles
from meshc.backends.csl.pe.pe_file import kernels_of
from meshc.ir.ops.tile import Compute

LANES = 12
KERNELS = {
    "row_sum": "%s, %a",
    "row_max": "%s, %a",
    "square_sum": "%s, %a",
    "div": "%b, %a, %g",
    "exp_sub": "%b, %a, %g",
    "rms_scale": "%b, %a, %g, %gain {count = 5, eps = 1e-5}",
    "silu": "%b, %a",
    "gelu": "%b, %a {form = tanh}",
    "tanh": "%b, %a",
    "sigmoid": "%b, %a",
    "quick_gelu": "%b, %a",
    "exp": "%b, %a",
}
PLACES = [("f32", 1, "wse2"), ("f32", 5, "wse3"), ("f16", 1, "wse3"), ("f16", 5, "wse2")]


def program(kernel, kind, rows, lanes=LANES):
    sizes = {"a": ("R", "C"), "b": ("R", "C"), "g": ("R",), "s": ("R",), "gain": ("C",)}
    extents = {"R": rows, "C": lanes}
    lines = [
        "module @one level(tile) holds(channels_matched) {",
        f"  dims R = {rows}, C = {LANES}",
        "  mesh y = 1, x = 1",
    ]
    for name, dims in sizes.items():
        role = "out" if name in ("b", "s") else "in"
        shape = ", ".join(str(extents[dim]) for dim in dims)
        lanes = ", ".join("ij"[: len(dims)])
        lines += [
            f"  buffer %{name} : {kind}[{shape}] {{role = {role}}}",
            f"  port @{name} {role} {kind}[{', '.join(dims)}] : %{name} "
            f"{{lanes = [{lanes}], element = [{lanes}]}}",
        ]
    statement = f"    tile.{kernel} {KERNELS[kernel]}"
    return "\n".join([*lines, "  program @main {", statement, "  }", "}"]) + "\n"


@pytest.mark.parametrize(("kernel", "place"), crossed([*KERNELS], PLACES))
def test_predicted_cycles(kernel, place, tmp_path, monkeypatch):
    kind, rows, arch = place
    files = emit({"main": tile_text(program(kernel, kind, rows), arch)})
    report = json.loads(files["report.json"])
    rng = np.random.default_rng(1)
    tensors = {
        name: (0.5 + rng.random(shape)).astype(np.float32)
        for name, shape in report["inputs"].items()
    }
    _, cycles = run_files(files, tensors, tmp_path, monkeypatch)
    assert report["predicted_cycles"] == pytest.approx(cycles, rel=0.02, abs=2)


OF_THE_RUN = """module @one level(tile) holds(channels_matched) {
  dims R = 8
  scalars pos = 1..8
  mesh y = 1, x = 1
  buffer %a : f16[8, 8] {role = in}
  buffer %b : f16[8, 8] {role = in}
  buffer %c : f16[8, 8] {role = out}
  port @a in f16[R, R] : %a {lanes = [i, j], element = [i, j]}
  port @b in f16[R, R] : %b {lanes = [i, j], element = [i, j]}
  port @c out f16[R, R] : %c {lanes = [i, j], element = [i, j]}
  program @main {
    tile.gemm %c[0 +: pos, 0 +: pos], %a[0 +: pos], %b[0 +: pos] """
OF_THE_RUN += "{accumulate = true, transposed = true}\n  }\n}\n"


def test_a_product_in_blocks_has_no_rows_left_where_all_are_full(tmp_path, monkeypatch):
    """Rows and columns that no block holds count as often as there are some at full length."""
    files = emit({"main": tile_text(OF_THE_RUN, "wse3")})
    report = json.loads(files["report.json"])
    assert "(@range(i16, pos % 8)) |column|" in files["main.csl"]
    tensors = {name: np.ones(shape, np.float32) for name, shape in report["inputs"].items()}
    options = ["--pos", "8"]
    _, cycles = run_files(files, tensors, tmp_path, monkeypatch, options=options)
    assert report["predicted_cycles"] == pytest.approx(cycles, rel=0.1)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.every_case
def test_a_choice_counts_what_statements_take(kernel):
    """Ways of writing a kernel are chosen before there are statements, by cycles that are within
    3 % of what is read off these, or one cycle."""
    compared = 0
    for kind, rows, arch in PLACES:
        for lanes in (4, 12, 64):
            module = tile_text(program(kernel, kind, rows, lanes), arch)
            (op,) = (op for op in module.walk() if isinstance(op, Compute))
            windows = [window(view) for view in op.views()]
            if not any(one_by_one(op, windows)):  # else copies are made that are counted apart
                read, _ = kernels_of(module).work(op)
                costs = Costs(module.the_device())
                assert vector_cycles(op, windows, costs) == pytest.approx(read, rel=0.03, abs=1)
                compared += 1
    assert compared
