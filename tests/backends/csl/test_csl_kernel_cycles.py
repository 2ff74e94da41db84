"""Predicted cycles of kernels that go row by row or element by element, one kernel at a time, are
within 2 %."""

import json

import numpy as np
import pytest
from csl_runs import emit, run_files, tile_text
from reduced import crossed

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


def program(kernel, kind, rows):
    sizes = {"a": ("R", "C"), "b": ("R", "C"), "g": ("R",), "s": ("R",), "gain": ("C",)}
    extents = {"R": rows, "C": LANES}
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
