"""Extents known when a program runs: each kernel, transfers, and what has no descriptor.

One compiled program runs with every number of rows; all of each core's memory is compared with the
interpreter's, so that an operation on more elements than asked for shows.
"""

import json
from dataclasses import dataclass

import numpy as np
import pytest
from csl_runs import emit, emitted, run_steps, tile_text
from reduced import crossed

from meshc.analysis.csl.operands import BY_STEPS
from meshc.interp.tile import TileMachine
from meshc.ir.ops.tile import Compute
from meshc.passes.resources.csl.select_functions import SelectCslFunctions
from meshc.passes.resources.csl.select_products import SelectCslProducts
from meshc.support.diagnostics import MeshcError
from meshc.verify import check_fact

MOST = 5
SHAPES = {"a": (MOST, 6), "b": (MOST, 6), "c": (MOST, 6), "q": (2, MOST, MOST), "s": (MOST,)}
RING = '  channel @ring_x "{ [y, x] -> [y, 1 - x] }"\n'
HEADER = f"  buffer %g : f32[6]\n  buffer %w : f32[2, {MOST}, {MOST}]\n"
HEADER += f"  buffer %v : f32[{MOST}, {MOST + 1}]\n{RING}"


def kind_of(name, dtype):
    """The type of a buffer: factors %a and %b have f16 where ``dtype`` is mixed, and sums f32."""
    return dtype if dtype != "mixed" else "f16" if name in "ab" else "f32"


def program(body, dtype="f32", low=1):
    """Two cores that run ``body``; ``pos`` counts rows. Every buffer of ``SHAPES`` is loaded and
    read back; %g and %w are scratch."""
    lines = ["module @t level(tile) holds(channels_matched) {"]
    sizes = sorted({n for shape in SHAPES.values() for n in shape} | {2})
    lines.append(f"  dims {', '.join(f'N{n} = {n}' for n in sizes)}")
    lines += [f"  scalars pos = {low}..{MOST}", "  mesh y = 1, x = 2"]
    for name, shape in SHAPES.items():
        kind = kind_of(name, dtype)
        lines.append(f"  buffer %{name} : {kind}[{', '.join(map(str, shape))}] {{role = in}}")
    lines.append(HEADER.replace("f32", kind_of("g", dtype)).rstrip())
    for name, shape in SHAPES.items():
        dims = ", ".join(f"N{n}" for n in (2, *shape))
        lanes = ", ".join("ijk"[: len(shape)])
        for port, way in ((name, "in"), (f"{name}_after", "out")):
            lines.append(
                f"  port @{port} {way} {kind_of(name, dtype)}[{dims}] : %{name} "
                f"{{lanes = [{lanes}], element = [x, {lanes}]}}"
            )
    return "\n".join([*lines, "  program @main {", body.rstrip(), "  }", "}"]) + "\n"


def check(body, folder, monkeypatch, arch, dtype="f32", near=0.0, choices=()):
    """The program with each number of rows, beside the interpreter; the files of the program."""
    module = tile_text(program(body, dtype), arch)
    machine = TileMachine(module)
    random = np.random.default_rng(0)
    inputs = {
        name: random.integers(-4, 5, (2, *shape)).astype(
            {"f32": "f4", "f16": "f2"}[kind_of(name, dtype)]
        )
        for name, shape in SHAPES.items()
    }
    inputs["s"] = np.abs(inputs["s"]) + 1
    for name, tensor in inputs.items():
        machine.load(name, tensor)
    files = emitted({"main": module}, *choices)
    counts = (MOST, 1, 2, MOST - 1)
    found = run_steps(files, {}, [(inputs, {"pos": n}) for n in counts], folder, monkeypatch)
    for count, results in zip(counts, found, strict=True):
        wanted = machine.run({"pos": count})
        for name, value in wanted.items():
            np.testing.assert_allclose(results[name], value, near, near, err_msg=f"{name} {count}")
    return files


ROWS = "0 +: pos"
EXACT = {
    "parts of rows": f"tile.copy %b[{ROWS}, 0 +: 3], %a[{ROWS}, 3 +: 3]",
    "rows and columns": f"tile.copy %c[{ROWS}, {ROWS}], %a[{ROWS}, {ROWS}]",
    "turned": f"tile.copy %c[{ROWS}, {ROWS}], %a[{ROWS}, {ROWS}] order [1, 0]",
    "rows of heads": f"tile.copy %b[{ROWS}] as [pos, 3, 2] order [1, 0, 2], "
    f"%a[{ROWS}] as [pos, 3, 2] order [1, 0, 2]",
    "numbers": f"tile.fill %b[{ROWS}, 1 +: 2] {{value = 7.0}}",
    "sums of rows and lanes": "tile.fill %g {value = 3.0}\n"
    f"    tile.add %c[{ROWS}], %a[{ROWS}], %g",
    "products": f"tile.mul %c[{ROWS}, 0 +: 2], %a[{ROWS}, 2 +: 2], %b[{ROWS}, 4 +: 2]",
    "scaled": f"tile.scale %c[{ROWS}, 1 +: 2], %a[{ROWS}, 2 +: 2] {{factor = 2.0}}",
    "squares": f"tile.relu2 %c[{ROWS}, 1 +: 2], %a[{ROWS}, 2 +: 2]",
    "clamped": f"tile.clamp %c[{ROWS}, 1 +: 2], %a[{ROWS}, 2 +: 2] {{least = -1.5, most = 2.0}}",
    "the larger of rows and lanes": "tile.fill %g {value = 1.0}\n"
    f"    tile.larger %c[{ROWS}], %a[{ROWS}], %g",
    "sums": f"tile.row_sum %s[{ROWS}], %a[{ROWS}, {ROWS}]",
    "sums of two dims": f"tile.row_sum %s[0 +: 2], %q[:, {ROWS}, {ROWS}]",
    "maxima": f"tile.row_max %s[{ROWS}], %a[{ROWS}, 1 +: 3]",
    "sums of squares": f"tile.square_sum %s[{ROWS}], %a[{ROWS}, {ROWS}]",
    "rotated": f'tile.rotate %q[:, {ROWS}, {ROWS}] {{by = "x + 1"}}',
    "lanes": f'tile.select_lanes %c[0 +: 4, {ROWS}], %a[0 +: 4, {ROWS}] {{shift = "x"}}',
    "scores": f"tile.gemm %c[{ROWS}, {ROWS}], %a[{ROWS}], %b[{ROWS}] "
    "{accumulate = true, transposed = true}",
    "weighted": f"tile.gemm %c[{ROWS}], %a[{ROWS}, {ROWS}], %b[{ROWS}] "
    "{accumulate = false, transposed = false}",
    "columns": f"tile.gemm %c[0 +: 3, {ROWS}], %a[0 +: 3, {ROWS}], "
    f"%b[{ROWS}, {ROWS}] {{accumulate = false, transposed = false}}",
    "products of heads": f"tile.gemm %w[:, {ROWS}, {ROWS}], %q[:, {ROWS}, 0 +: 2], "
    f"%q[:, 0 +: 2, {ROWS}] {{accumulate = false, transposed = false}}\n"
    f"    tile.copy %q[:, {ROWS}, {ROWS}], %w[:, {ROWS}, {ROWS}]",
    "what a query sees": f"tile.mask_causal %q[:, {ROWS}, {ROWS}] "
    "{query = x, query_step = 2, key = 1, key_step = 3, limit = pos}",
    "a window": f"tile.mask_window %q[:, {ROWS}, {ROWS}] "
    "{window = 2, query = x, query_step = 2, key = 0, key_step = 1, limit = pos}",
    "later keys": f"tile.mask_causal %q[:, {ROWS}, 0 +: 4] "
    '{query = "pos - 2", query_step = 1, key = "2*x", key_step = 1, limit = "pos + 3"}',
}
ROUNDED = {
    "divided": f"tile.div %c[{ROWS}, {ROWS}], %a[{ROWS}, {ROWS}], %s[{ROWS}]",
    "weights": f"tile.exp_sub %c[{ROWS}, {ROWS}], %a[{ROWS}, {ROWS}], %s[{ROWS}]",
    "silu": f"tile.silu %c[{ROWS}, 0 +: 4], %a[{ROWS}, 1 +: 4]",
    "exponentials": f"tile.exp %c[{ROWS}, 0 +: 4], %a[{ROWS}, 1 +: 4]",
    "gelu": f"tile.gelu %c[{ROWS}, {ROWS}], %a[{ROWS}, {ROWS}] {{form = tanh}}",
    "normed": f"tile.fill %g {{value = 2.0}}\n    tile.rms_scale %c[{ROWS}], %a[{ROWS}], "
    f"%s[{ROWS}], %g {{count = 6, eps = 0.5}}",
    "turned lanes": "tile.fill %g {value = 0.5}\n"
    f"    tile.rope %c[{ROWS}] as [pos, 1, 6] order [1, 0, 2], "
    f"%a[{ROWS}] as [pos, 1, 6] order [1, 0, 2], %g[0 +: 3] {{position = x, step = 2}}",
}
MESSAGES = {
    "rows": (f"%a[{ROWS}]", f"%c[{ROWS}]"),
    "single lanes": (f"%a[{ROWS}, 2]", f"%c[{ROWS}, 3]"),
    "rows of a buffer and of another shape": (f"%a[{ROWS}, 0 +: 1]", f"%s[{ROWS}]"),
}
KINDS = [("wse2", "f32"), ("wse3", "f16")]
IN_TURNS = pytest.mark.parametrize(("arch", "dtype"), KINDS, ids=["wse2-f32", "wse3-f16"])


@pytest.mark.parametrize(("name", "kind"), crossed([*EXACT], KINDS))
def test_kernels(name, kind, tmp_path, monkeypatch):
    check(f"    {EXACT[name]}\n", tmp_path, monkeypatch, *kind)


MIXED = {
    "scores": (f"%c[{ROWS}, {ROWS}], %a[{ROWS}], %b[{ROWS}]", "true"),
    "scores of one slot": (
        f"%q[x, {ROWS}, {ROWS}], %a[{ROWS}, 0 +: 4], %b[{ROWS}, 2 +: 4]",
        "true",
    ),
    "weighted": (f"%c[{ROWS}], %a[{ROWS}, {ROWS}], %b[{ROWS}]", "false"),
    "columns": (f"%c[0 +: 3, {ROWS}], %a[0 +: 3, {ROWS}], %b[{ROWS}, {ROWS}]", "false"),
}


@pytest.mark.parametrize("accumulate", ["true", "false"])
@pytest.mark.parametrize("name", MIXED)
def test_products_of_f16_into_f32(name, accumulate, tmp_path, monkeypatch):
    """Columns that are there are added up, and those behind them stay as they are."""
    views, transposed = MIXED[name]
    said = f"{{accumulate = {accumulate}, transposed = {transposed}}}"
    files = check(f"    tile.gemm {views} {said}\n", tmp_path, monkeypatch, "wse2", "mixed")
    assert name == "weighted" or any(" > 0) {" in text for text in files.values())


@dataclass(frozen=True)
class Written(SelectCslProducts):
    """Every product in one ``way``."""

    way: str = ""

    def run(self, module, report):
        for op in super().run(module, report).walk():
            if isinstance(op, Compute) and op.kernel == "gemm":
                op.way = self.way
        return module


@pytest.mark.parametrize("arch", ["wse2", "wse3"])
@pytest.mark.parametrize(("block", "depth"), [(1, 4), (2, 4), (3, 4), (6, 4), (3, 1), (6, 1)])
def test_products_of_packed_columns(block, depth, arch, tmp_path, monkeypatch):
    """Of six columns in blocks, the last of which may have more than there are."""
    inner = f"0 +: {depth}"
    body = f"    tile.gemm %c[0 +: 4, {ROWS}], %a[0 +: 4, {inner}], %b[{inner}, {ROWS}] "
    body += "{accumulate = true, transposed = false}\n"
    way = Written(way=f"packed_by_{block}")
    check(body, tmp_path, monkeypatch, arch, "mixed", choices=(way,))


HEADS = (
    f"%c[{ROWS}] as [pos, 3, 2] order [1, 0, 2], %a[{ROWS}] as [pos, 3, 2] order [1, 0, 2], "
    "%b[0, 0 +: 4] as [1, 2, 2]"
)
JOINED = {
    "mapped_rebased_joined": "mapped_rebased",
    "looped_joined": "looped",
    "packed_by_2_rebased_joined": "packed_by_2_rebased",
    "packed_by_15_rebased_transposed_joined": "looped_transposed",
    "packed_by_3_transposed_joined": "looped_transposed",
}


@pytest.mark.parametrize(("way", "dtype"), crossed([*JOINED], ["mixed", "f32"], times=2))
def test_heads_that_share_a_factor_are_rows_of_one_product(way, dtype, tmp_path, monkeypatch):
    """Joined to rows, and with a loop over heads."""
    body = f"    tile.gemm {HEADS} {{accumulate = true, transposed = false}}\n"
    for place, said in (("joined", way), ("apart", JOINED[way])):
        (tmp_path / place).mkdir()
        choices = (Written(way=said),)
        files = check(body, tmp_path / place, monkeypatch, "wse2", dtype, choices=choices)
        assert any("|h0|" in text for text in files.values()) == (place == "apart")


@pytest.mark.parametrize(("kernel", "arch"), [("row_sum", "wse2"), ("row_max", "wse3")])
def test_rows_of_f16_are_copied_one_at_a_time(kernel, arch, tmp_path, monkeypatch):
    body = f"    tile.{kernel} %s[{ROWS}], %a[{ROWS}, {ROWS}]\n"
    files = check(body, tmp_path, monkeypatch, arch, "mixed")
    assert "var widened: [6]f32" in files["main.csl"]


@pytest.mark.parametrize("choice", ["rebased", "joined"])
def test_each_way_of_a_product_is_taken_for_its_cycles(choice):
    body = f"    tile.gemm {HEADS} {{accumulate = true, transposed = false}}\n"
    told = []
    for without in ({}, {choice: False}):
        module = tile_text(program(body, "mixed"), "wse2")
        files = emitted({"main": module}, SelectCslProducts(**without))
        (op,) = (one for one in module.walk() if isinstance(one, Compute))
        told.append((f"_{choice}" in op.way, json.loads(files["report.json"])["predicted_cycles"]))
    (taken, cycles), (left, more) = told
    assert taken and not left and cycles < more


@pytest.mark.parametrize("name", ROUNDED)
def test_functions(name, tmp_path, monkeypatch):
    check(f"    {ROUNDED[name]}\n", tmp_path, monkeypatch, "wse3", near=3e-6)


OVER = {
    "silu": f"tile.silu %v[{ROWS}, 0 +: 4], %a[{ROWS}, 1 +: 4]",
    "weights": f"tile.exp_sub %v[{ROWS}, 0 +: 4], %a[{ROWS}, 1 +: 4], %s[{ROWS}]",
}
READ = {"as much": f"%v[{ROWS}, 0 +: 4]", "more": "%v[0 +: 5, 0 +: 4]"}


def over(name, read):
    """A function whose result, %v, is copied to %c."""
    rows = read.partition(",")[0].removeprefix("%v[")
    return f"    {OVER[name]}\n    tile.copy %c[{rows}, 0 +: 4], {read}\n"


def way_of_function(module):
    """The way that the only function of ``module`` says."""
    return next(op.way for op in module.walk() if isinstance(op, Compute) and op.kernel in BY_STEPS)


@pytest.mark.parametrize("arch", ["wse2", pytest.param("wse3", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", OVER)
def test_blocks_go_over_the_end_where_nobody_reads_what_lies_behind(
    name, arch, tmp_path, monkeypatch
):
    """A single block of all five rows that there may be, for every number of rows."""
    body = over(name, READ["as much"])
    check(body, tmp_path, monkeypatch, arch, "f16", near=8e-3)
    module = tile_text(program(body, "f16"), arch)
    files = emitted({"main": module})
    assert way_of_function(module) == "half_whole_by_5"
    left = emitted({"main": module}, SelectCslFunctions(whole=False))
    assert "whole" not in way_of_function(module)
    cycles = [json.loads(each["report.json"])["predicted_cycles"] for each in (files, left)]
    assert cycles[0] < cycles[1]


@pytest.mark.parametrize("name", OVER)
def test_blocks_end_where_what_lies_behind_is_read(name):
    module = tile_text(program(over(name, READ["more"]), "f16"), "wse2")
    emitted({"main": module})
    assert "whole" not in way_of_function(module)
    (op,) = (o for o in module.walk() if isinstance(o, Compute) and o.kernel in BY_STEPS)
    op.way = "half_whole_by_5"
    with pytest.raises(MeshcError) as caught:
        check_fact(module, "csl_functions")
    assert caught.value.diagnostics[0].code == "csl-functions-wrong"


def test_blocks_end_in_what_the_host_sees():
    body = f"    {OVER['silu'].replace('%v', '%c')}\n"
    module = tile_text(program(body, "f16"), "wse2")
    emitted({"main": module})
    assert "whole" not in way_of_function(module)


def exchanged(sent, got, combine="store"):
    """Each core sends to the other one."""
    return (
        f"    %t = tile.send @ring_x, {sent} : token\n"
        f"    %r = tile.recv @ring_x, {got} {{combine = {combine}}} : token\n"
        "    tile.wait %t, %r\n"
    )


@pytest.mark.parametrize(
    ("name", "combine", "kind"), crossed([*MESSAGES], ["store", "add", "max"], KINDS, times=2)
)
def test_messages(name, combine, kind, tmp_path, monkeypatch):
    body = exchanged(*MESSAGES[name], combine)
    check(body, tmp_path, monkeypatch, *kind)


WHOLE = f"%w[0, {ROWS}, {ROWS}]"
TO_W = f"    tile.copy {WHOLE}, %q[0, {ROWS}, {ROWS}]\n"


@IN_TURNS
def test_messages_of_which_two_extents_are_not_constant(arch, dtype, tmp_path, monkeypatch):
    """Columns travel whole; what is behind the last of them in the other slot stays unread."""
    other = WHOLE.replace("0,", "1,", 1)
    body = TO_W + exchanged(WHOLE, other) + f"    tile.copy %q[1, {ROWS}, {ROWS}], {other}\n"
    check(body, tmp_path, monkeypatch, arch, dtype)


REFUSED = {
    "seen by the host": (exchanged(f"%q[0, {ROWS}, {ROWS}]", f"%q[1, {ROWS}, {ROWS}]"), "the host"),
    "read by somebody": (
        TO_W + exchanged(WHOLE, f"%w[1, {ROWS}, {ROWS}]") + "    tile.copy %q[1], %w[1]\n",
        "may be read by '%w[1]'",
    ),
    "accumulated": (
        TO_W
        + exchanged(WHOLE, f"%w[1, {ROWS}, {ROWS}]")
        + f"    tile.gemm %w[1, {ROWS}], %q[0, {ROWS}], %q[1] "
        + "{accumulate = true, transposed = false}\n",
        "may be read by",
    ),
    "unlike ends": (TO_W + exchanged(WHOLE, f"%v[{ROWS}, {ROWS}]"), "differ in what they carry"),
    "not from the first": (
        exchanged("%w[0, 0 +: pos, 1 +: pos - 1 + 1]", "%w[1, 0 +: pos, 1 +: pos]"),
        "not the beginning of a dim",
    ),
    "a reshaped view": (
        exchanged(f"%w[0, {ROWS}, {ROWS}] order [1, 0]", f"%w[1, {ROWS}, {ROWS}]"),
        "not the beginning of a dim",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_messages_that_are_refused(name):
    body, words = REFUSED[name]
    module = tile_text(program(body), "wse3")
    with pytest.raises(MeshcError) as caught:
        emit({"main": module})
    (found,) = caught.value.diagnostics
    assert found.code == "csl-extent" and words in found.message, found
