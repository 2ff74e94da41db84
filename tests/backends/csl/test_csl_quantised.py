"""Weights that stay quantised in emitted CSL: numbers that the simulator decodes are those of
NumPy, to the bit, and what no core can decode is refused."""

import json

import numpy as np
import pytest
from csl_runs import compiled, emit, run_files
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshc.ir.codes import CODE_FORMATS

KINDS = {"f16": np.float16, "f32": np.float32}
MOST = 1 << 16


def program(form, groups, layers, columns, first, count, dtype):
    """A module that decodes ``count`` columns from ``first`` on of each layer's matrix; every core
    of two has rows of its own."""
    rows = groups * form.group
    least = form.least is not None
    kept = {"scales": "f16", **({"least": str(form.least)} if least else {})}
    buffers = [
        f"  buffer %w.{n} : {k}[{layers}, {groups}, {columns}] {{role = weight}}"
        for n, k in kept.items()
    ]

    def lanes(rows):
        return f'{{lanes = [n, k, f], element = [n, "k + {rows}*y", f]}}'

    ports = [f"  port @{n} in {k}[N, G, F] : %w.{n} {lanes(groups)}" for n, k in kept.items()]
    views = [f"%w.{n}[n, :, {first} +: {count}]" for n in ("codes", *kept)]
    zero = f"{{group = {form.group}, zero = {form.zero}, lifted = {str(least).lower()}}}"
    return "\n".join([
        "module @m level(tile) {",
        f"  dims N = {layers}, K = {2 * rows}, F = {columns}, G = {2 * groups}, C = {count}",
        "  mesh y = 2, x = 1",
        f"  buffer %w.codes : {form.codes}[{layers}, {rows}, {columns}] {{role = weight}}",
        *buffers,
        f"  buffer %y : {dtype}[{layers}, {rows}, {count}] {{role = out}}",
        f"  port @codes in {form.codes}[N, K, F] : %w.codes {lanes(rows)}",
        *ports,
        f"  port @y out {dtype}[N, K, C] : %y {lanes(rows)}",
        "  program @main {",
        f"    tile.for {{var = n, count = {layers}}} {{",
        f"      tile.dequantise %y[n], {', '.join(views)} {zero}",
        "    }",
        "  }",
        "}",
        "",
    ])  # fmt: skip


def tensors(form, groups, layers, columns, seed):
    """Random codes of two cores, all of them and the numbers of their groups, of all sizes."""
    random = np.random.default_rng(seed)
    rows = 2 * groups * form.group
    found = {
        "codes": random.integers(0, 1 << form.codes.bits, (layers, rows, columns)).astype(np.uint8)
    }

    def numbers(kind):
        sizes = 2.0 ** random.integers(-24, 9, (layers, 2 * groups, columns))
        return (random.standard_normal(sizes.shape) * sizes).astype(kind)

    found["scales"] = numbers(np.float16)
    if form.least is not None:
        found["least"] = numbers(KINDS[str(form.least)])
    return found


def decoded(form, given, first, count, dtype):
    """The numbers, element by element from the definition of the format, rounded once from f32."""
    codes = given["codes"][:, :, first : first + count].astype(np.float32)

    def of_rows(name):
        return (
            given[name][:, :, first : first + count].astype(np.float32).repeat(form.group, axis=1)
        )

    found = (codes - np.float32(form.zero)) * of_rows("scales")
    if form.least is not None:
        found = found + of_rows("least")
    with np.errstate(over="ignore"):
        return found.astype(KINDS[dtype])


def check(form, sizes, dtype, arch, seed, folder, monkeypatch):
    groups, layers, columns, first, count = sizes
    text = program(form, groups, layers, columns, first, count, dtype)
    given = tensors(form, groups, layers, columns, seed)
    files = emit(compiled(text, folder, "codes.meshir", device=arch))
    found, cycles = run_files(files, given, folder, monkeypatch)
    np.testing.assert_array_equal(
        found["y"].view(np.uint8), decoded(form, given, first, count, dtype).view(np.uint8)
    )
    return json.loads(files["report.json"])["predicted_cycles"], cycles


CASES = [
    ("q4_0", (1, 2, 5, 1, 3), "f16", "wse2"),
    ("q4_1", (3, 1, 8, 0, 8), "f16", "wse3"),
    ("q8_0", (2, 2, 6, 2, 4), "f32", "wse3"),
    ("int4_64", (1, 1, 7, 0, 7), "f32", "wse2"),
]


@pytest.mark.parametrize(("name", "sizes", "dtype", "arch"), CASES)
def test_numbers_are_those_of_numpy(name, sizes, dtype, arch, tmp_path, monkeypatch):
    check(CODE_FORMATS[name], sizes, dtype, arch, 1, tmp_path, monkeypatch)


@st.composite
def matrices(draw):
    columns = draw(st.integers(1, 12))
    first = draw(st.integers(0, columns - 1))
    count = draw(st.integers(1, columns - first))
    return draw(st.integers(1, 3)), draw(st.integers(1, 3)), columns, first, count


@pytest.mark.slow
@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from(sorted(CODE_FORMATS)),
    matrices(),
    st.sampled_from(["f16", "f32"]),
    st.sampled_from(["wse2", "wse3"]),
    st.integers(0, MOST),
)
def test_drawn_matrices(tmp_path_factory, name, sizes, dtype, arch, seed):
    folder = tmp_path_factory.mktemp("quantised")
    with pytest.MonkeyPatch.context() as patch:
        check(CODE_FORMATS[name], sizes, dtype, arch, seed, folder, patch)
