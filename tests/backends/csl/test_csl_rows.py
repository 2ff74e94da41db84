"""Kernels that go row by row agree with NumPy on the fabric simulator."""

import math
import re

import numpy as np
import pytest
from csl_runs import emit, run_files, tile_text

from meshc.interp.tile import TileMachine

ROWS, COLUMNS = 3, 5
OUTPUTS = ("quotient", "exponential", "normed", "silu", "gelu", "relu2", "tanh")
STATEMENTS = """\
    tile.row_sum %sums, %a
    tile.row_max %most, %a
    tile.square_sum %squares, %a
    tile.div %quotient, %a, %sums
    tile.exp_sub %exponential, %a, %most
    tile.rms_scale %normed, %a, %squares, %gain {count = 5, eps = 1e-5}
    tile.silu %silu, %a
    tile.gelu %gelu, %a {form = tanh}
    tile.relu2 %relu2, %a
    tile.tanh %tanh, %a
"""


def program(dtype, statements=STATEMENTS):
    """A tile module whose core (0, 0) gives the results."""
    row, all_ = f"{dtype}[{ROWS}]", f"{dtype}[{ROWS}, {COLUMNS}]"
    lines = [
        "module @rows level(tile) holds(channels_matched) {",
        f"  dims R = {ROWS}, C = {COLUMNS}",
        "  mesh y = 2, x = 2",
        f"  buffer %a : {all_} {{role = in}}",
        f"  buffer %gain : {dtype}[{COLUMNS}] {{role = in}}",
        *(f"  buffer %{name} : {row}" for name in ("sums", "most", "squares")),
        *(f"  buffer %{name} : {all_} {{role = out}}" for name in OUTPUTS),
        f"  port @a in {dtype}[R, C] : %a {{lanes = [i, j], element = [i, j]}}",
        f"  port @gain in {dtype}[C] : %gain {{lanes = [j], element = [j]}}",
        *(
            f"  port @{name} out {dtype}[R, C] : %{name} "
            '{lanes = [i, j], element = [i, j], where = "x = 0 and y = 0"}'
            for name in OUTPUTS
        ),
        "  program @main {",
        statements.rstrip(),
        "  }",
        "}",
    ]
    return "\n".join(lines) + "\n"


def expected(a, gain):
    """The same in float64."""
    cubic = 0.7978845608 * (a + 0.044715 * a**3)
    return {
        "quotient": a / a.sum(1, keepdims=True),
        "exponential": np.exp(a - a.max(1, keepdims=True)),
        "normed": a / np.sqrt((a * a).mean(1, keepdims=True) + 1e-5) * gain,
        "silu": a / (1 + np.exp(-a)),
        "gelu": 0.5 * a * (1 + np.tanh(cubic)),
        "relu2": np.where(a > 0, a, 0) ** 2,
        "tanh": np.tanh(a),
    }


@pytest.mark.parametrize(("dtype", "arch"), [("f32", "wse2"), ("f16", "wse3")])
def test_rows(dtype, arch, tmp_path, monkeypatch):
    kind, tolerance = {"f32": (np.float32, 2e-6), "f16": (np.float16, 1e-2)}[dtype]
    rng = np.random.default_rng(1)
    a = (rng.random((ROWS, COLUMNS)) + 0.25).astype(kind)
    gain = rng.standard_normal(COLUMNS).astype(kind)
    files = emit({"main": tile_text(program(dtype), arch)})
    found, _ = run_files(files, {"a": a, "gain": gain}, tmp_path, monkeypatch)
    for name, value in expected(a.astype(np.float64), gain.astype(np.float64)).items():
        np.testing.assert_allclose(found[name], value, tolerance, tolerance, err_msg=name)


@pytest.mark.parametrize(("dtype", "arch"), [("f32", "wse2"), ("f16", "wse3")])
def test_gelu_by_the_error_function(dtype, arch, tmp_path, monkeypatch):
    kind, tolerance = {"f32": (np.float32, 5e-7), "f16": (np.float16, 1e-3)}[dtype]
    a = np.linspace(-4, 4, ROWS * COLUMNS).reshape(ROWS, COLUMNS).astype(kind)
    files = emit(
        {"main": tile_text(program(dtype, "    tile.gelu %gelu, %a {form = erf}\n"), arch)}
    )
    found, _ = run_files(files, {"a": a, "gain": np.ones(COLUMNS, kind)}, tmp_path, monkeypatch)
    exact = [[x * (1 + math.erf(x / math.sqrt(2))) / 2 for x in row] for row in a.astype(float)]
    np.testing.assert_allclose(found["gelu"], exact, tolerance, 4 * tolerance)


@pytest.mark.parametrize("arch", ["wse2", "wse3"])
def test_operands_of_two_types(arch, tmp_path, monkeypatch):
    """What is f16 is widened, computed on in f32 and rounded once, like what the interpreter of the
    tile level gives."""
    text = program("f16").replace(
        "  buffer %squares", "  buffer %wide : f32[3, 5]\n  buffer %squares"
    )
    text = re.sub(r"f16(\[3\]\n)", r"f32\1", text)
    body = """\
    tile.copy %wide, %a
    tile.mul %quotient, %a, %wide
    tile.scale %exponential, %wide {factor = 0.3}
    tile.silu %silu, %wide
    tile.relu2 %relu2, %wide
    tile.tanh %tanh, %wide
    tile.row_max %most, %a
    tile.exp_sub %gelu, %a, %most
    tile.row_sum %sums, %gelu
    tile.div %gelu, %gelu, %sums
    tile.rms_scale %normed, %wide, %sums, %gain {count = 5, eps = 1e-5}
"""
    head = text.partition("  program @main {\n")[0]
    module = tile_text(f"{head}  program @main {{\n{body}  }}\n}}\n", arch)
    a = np.random.default_rng(4).standard_normal((ROWS, COLUMNS)).astype(np.float16)
    gain = np.linspace(0.5, 2, COLUMNS).astype(np.float16)
    found, _ = run_files(emit({"main": module}), {"a": a, "gain": gain}, tmp_path, monkeypatch)
    machine = TileMachine(module)
    machine.load("a", a)
    machine.load("gain", gain)
    for name, value in machine.run({}).items():
        np.testing.assert_allclose(found[name], value, 1.5e-3, 1e-4, err_msg=name)


@pytest.mark.parametrize(("dtype", "arch"), [("f32", "wse2"), ("f16", "wse3")])
def test_inverse_of_root_mean_squares(dtype, arch, tmp_path, monkeypatch):
    kind, tolerance = {"f32": (np.float32, 2e-6), "f16": (np.float16, 1e-2)}[dtype]
    a = (np.random.default_rng(2).random((ROWS, COLUMNS)) + 0.25).astype(kind)
    statements = """\
    tile.square_sum %squares, %a
    tile.inverse_rms %most, %squares {count = 5, eps = 1e-5}
    tile.div %quotient, %a, %most
"""
    files = emit({"main": tile_text(program(dtype, statements), arch)})
    gain = np.ones(COLUMNS, kind)
    found, _ = run_files(files, {"a": a, "gain": gain}, tmp_path, monkeypatch)
    exact = a.astype(np.float64)
    value = exact * np.sqrt((exact * exact).mean(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(found["quotient"], value, tolerance, tolerance)


@pytest.mark.parametrize(("dtype", "arch"), [("f32", "wse2"), ("f16", "wse3")])
@pytest.mark.parametrize("count", [1, 2])
def test_softmaxes_are_merged(dtype, arch, count, tmp_path, monkeypatch):
    """Two rows of weighted values, sums and maxima; one of them is of a core that sees nothing."""
    kind, tolerance = {"f32": (np.float32, 2e-6), "f16": (np.float16, 1e-2)}[dtype]
    lowest, width = float(np.finfo(kind).min), 4 * count
    rng = np.random.default_rng(3)
    a = rng.random((ROWS, 2 * width)).astype(kind)
    a[:, width - count : width] = 3 * rng.standard_normal((ROWS, count))
    a[:, -count:] = 3 * rng.standard_normal((ROWS, count))
    a[1, :width] = [0] * (3 * count) + [-np.inf] * count
    lines = [
        "module @rows level(tile) holds(channels_matched) {",
        f"  dims R = {ROWS}, C = {2 * width}, W = {width}",
        "  mesh y = 2, x = 2",
        f"  buffer %a : {dtype}[{ROWS}, {2 * width}] {{role = in}}",
        f"  buffer %b : {dtype}[{ROWS}, {width}] {{role = out}}",
        f"  port @a in {dtype}[R, C] : %a {{lanes = [i, j], element = [i, j]}}",
        f"  port @b out {dtype}[R, W] : %b "
        '{lanes = [i, j], element = [i, j], where = "x = 0 and y = 0"}',
        "  program @main {",
        f"    tile.copy %b, %a[:, 0 +: {width}]",
        f"    tile.at_least %b[:, {width - count} +: {count}], %b[:, {width - count} +: {count}] "
        f"{{value = {lowest!r}}}",
        f"    tile.merge_softmax %b, %a[:, {width} +: {width}] {{count = {count}}}",
        "  }",
        "}",
    ]
    files = emit({"main": tile_text("\n".join(lines) + "\n", arch)})
    found, _ = run_files(files, {"a": a}, tmp_path, monkeypatch)
    exact = np.split(a.astype(np.float64), 2, 1)
    exact[0] = np.where(np.isinf(exact[0]), lowest, exact[0])
    tops = [part[:, -count:] for part in exact]
    most = np.maximum(*tops)
    wide = [np.exp(top - most) for top in tops]
    values = [np.repeat(w, 2, 1) * p[:, : 2 * count] for w, p in zip(wide, exact, strict=True)]
    sums = [w * p[:, 2 * count : 3 * count] for w, p in zip(wide, exact, strict=True)]
    wanted = np.concatenate([sum(values), sum(sums), most], 1)
    np.testing.assert_allclose(found["b"], wanted, tolerance, tolerance)
