"""Functions of elements by vector operations: how exact they are, and random programs of them."""

import json
import math
import tempfile
from pathlib import Path

import numpy as np
import pytest
from csl_runs import emitted, run_files, run_steps, tile_text
from hypothesis import given, settings
from hypothesis import strategies as st
from reduced import crossed

from meshc.interp.tile import TileMachine
from meshc.passes.resources.csl.select_functions import SelectCslFunctions
from meshc.support.diagnostics import Diagnostics

SINGLE = SelectCslFunctions(accuracy="single")
SIDE, ELEMENTS = 13, 384
"""A mesh and the elements of a core, in all more than there are numbers of f16."""


def functions(statement, source, most):
    """A tile module that computes a function of ``ELEMENTS`` elements on each core of a mesh, in
    f16, of elements of type ``source``; a row is a core's."""
    core = '{lanes = [i, j], element = ["i + y", "i + x", j]}'
    row = '{lanes = [i], element = ["i + y", "i + x"]}'
    return f"""\
module @functions level(tile) holds(channels_matched) {{
  dims R = {SIDE}, S = {SIDE}, C = {ELEMENTS}
  mesh y = {SIDE}, x = {SIDE}
  buffer %a : {source}[1, {ELEMENTS}] {{role = in}}
  buffer %most : {most}[1] {{role = in}}
  buffer %b : f16[1, {ELEMENTS}] {{role = out}}
  port @a in {source}[R, S, C] : %a {core}
  port @most in {most}[R, S] : %most {row}
  port @b out f16[R, S, C] : %b {core}
  program @main {{
    {statement}
  }}
}}
"""


def computed(statement, a, most, folder, monkeypatch, arch, accuracy="single"):
    """What cores find for the elements ``a``, in order; ``most`` is one number for each core."""
    names = {np.dtype(np.float16): "f16", np.dtype(np.float32): "f32"}
    module = tile_text(functions(statement, names[a.dtype], names[most.dtype]), arch)
    files = emitted({"main": module}, SelectCslFunctions(accuracy=accuracy))
    assert "math." not in files["main.csl"].replace("<math>", "")
    padded = np.resize(a, (SIDE, SIDE, ELEMENTS))
    tensors = {"a": padded, "most": most.reshape(SIDE, SIDE)}
    found, _ = run_files(files, tensors, folder, monkeypatch)
    return found["b"].astype(np.float64).ravel()[: a.size]


def all_of_f16():
    """Every finite number of f16."""
    bits = np.arange(1 << 16).astype(np.uint16)
    numbers = bits.view(np.float16)
    return numbers[np.isfinite(numbers)]


def many_of_f32():
    """Numbers of all sizes, and most of them where functions bend."""
    rng = np.random.default_rng(7)
    count = SIDE * SIDE * ELEMENTS
    sizes = 2.0 ** rng.uniform(-149, 127.9, count // 4) * rng.choice((-1, 1), count // 4)
    near = np.linspace(-25, 15, count - len(sizes) - 4)
    return np.array([0.0, -0.0, 3.4e38, -3.4e38, *sizes, *near], np.float32)


NUMBERS = {"f16": all_of_f16, "f32": many_of_f32}
KINDS = {"f16": np.float16, "f32": np.float32}
ERF = np.vectorize(math.erf)


def exact_silu(x):
    with np.errstate(over="ignore"):
        return x / (1 + np.exp(-x))


def exact_gelu(x):
    return (
        np.where(x < -1, x * np.vectorize(math.erfc)(-x / np.sqrt(2)), x * (1 + ERF(x / 2**0.5)))
        / 2
    )


def exact_gelu_by_tanh(x):
    with np.errstate(over="ignore"):
        return x / (1 + np.exp(-2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def misses(found, exact):
    """The largest distance from exact results in units of what f16 resolves there: half of one is
    rounding. A result beyond the numbers of f16 must be an infinity."""
    with np.errstate(over="ignore"):
        rounded = np.abs(exact).astype(np.float16)
    beyond, inside = np.abs(exact) > 1.001 * 65520, np.abs(exact) < 0.999 * 65520
    assert np.array_equal(found[beyond], np.copysign(np.inf, exact[beyond]))
    apart = np.abs(found[inside] - exact[inside])
    return np.max(apart / np.spacing(rounded[inside]).astype(np.float64))


# Both compute the same numbers, by other descriptors.
ARCHS = ["wse2", pytest.param("wse3", marks=pytest.mark.slow)]


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("kind", ["f16", "f32"])
@pytest.mark.parametrize(
    ("statement", "function", "bound"),
    [
        ("tile.silu %b, %a", exact_silu, 0.75),
        ("tile.gelu %b, %a {form = erf}", exact_gelu, 0.55),
        ("tile.gelu %b, %a {form = tanh}", exact_gelu_by_tanh, 0.75),
    ],
    ids=["silu", "gelu", "gelu_tanh"],
)
def test_functions_with_f16_results_miss_less_than_what_f16_resolves(
    statement, function, bound, kind, arch, tmp_path, monkeypatch
):
    a = NUMBERS[kind]()
    zeros = np.zeros(SIDE * SIDE, np.float16)
    found = computed(statement, a, zeros, tmp_path, monkeypatch, arch)
    assert misses(found, function(a.astype(np.float64))) <= bound


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("kinds", [("f16", "f16"), ("f16", "f32"), ("f32", "f16"), ("f32", "f32")])
def test_exponentials_with_f16_results_miss_less_than_what_f16_resolves(
    kinds, arch, tmp_path, monkeypatch
):
    """Also of elements above the one of their row: a program may subtract something else than the
    largest."""
    source, row = kinds
    a = NUMBERS[source]()
    most = np.random.default_rng(2).uniform(-10, 10, SIDE * SIDE).astype(KINDS[row])
    found = computed("tile.exp_sub %b, %a, %most", a, most, tmp_path, monkeypatch, arch)
    above = np.repeat(most, ELEMENTS)[: a.size].astype(np.float64)
    with np.errstate(over="ignore"):
        exact = np.exp(a.astype(np.float64) - above)
    assert misses(found, exact) <= 0.55


@pytest.mark.parametrize("kind", ["f16", "f32"])
def test_infinite_elements_have_the_exponential_of_infinities(kind, tmp_path, monkeypatch):
    """Slots that nothing fills yet are minus infinity, and have no weight."""
    a = np.array([0, -np.inf, np.inf], KINDS[kind])
    zeros = np.zeros(SIDE * SIDE, np.float32)
    found = computed("tile.exp_sub %b, %a, %most", a, zeros, tmp_path, monkeypatch, "wse2")
    assert np.array_equal(found, [1, 0, np.inf])


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("row", ["f16", "f32"])
def test_exponentials_in_half_miss_a_few_units(row, arch, tmp_path, monkeypatch):
    """At most three, and 0.6 in the mean; infinite elements, and those beyond f16, as by
    the operations in f32."""
    a = np.concatenate([all_of_f16(), np.array([np.inf, -np.inf], np.float16)])
    for number, above in enumerate((0, 8.5, -6.25)):
        most = np.full(SIDE * SIDE, above, KINDS[row])
        folder = tmp_path / str(number)
        folder.mkdir()
        found = computed("tile.exp_sub %b, %a, %most", a, most, folder, monkeypatch, arch, "half")
        assert found[-2] == np.inf and found[-1] == 0
        inside = a[:-2] - np.float16(above)  # rounded: that is not the function's doing
        with np.errstate(over="ignore"):
            exact = np.exp(inside.astype(np.float64))
        assert misses(found[:-2], exact) <= 3
        with np.errstate(over="ignore"):
            unit = np.spacing(np.minimum(exact, 6e4).astype(np.float16)).astype(np.float64)
        near = exact < 6e4
        assert np.mean(np.abs(found[:-2][near] - exact[near]) / unit[near]) <= 0.6


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("kind", ["f16", "f32"])
def test_silu_in_half_misses_a_few_units(kind, arch, tmp_path, monkeypatch):
    """At most five, of elements rounded to f16, or a millionth."""
    a = NUMBERS[kind]()
    a = a[np.abs(a) < 6e4]
    zeros = np.zeros(SIDE * SIDE, np.float16)
    found = computed("tile.silu %b, %a", a, zeros, tmp_path, monkeypatch, arch, "half")
    exact = exact_silu(a.astype(np.float16).astype(np.float64))
    unit = np.spacing(np.abs(exact).astype(np.float16)).astype(np.float64)
    off = np.abs(found - exact) / np.maximum(unit, 0.2e-6)
    assert off.max() <= 5, a[off.argmax()]


KERNELS = {
    "silu": "tile.silu {to}, {a}",
    "gelu": "tile.gelu {to}, {a} {{form = erf}}",
    "gelu_tanh": "tile.gelu {to}, {a} {{form = tanh}}",
    "exp_sub": "tile.exp_sub {to}, {a}, {most}",
}


def one_function(kernel, source, row, most, width=0, before=0, of_run=(), in_place=False):
    """A tile module of one function of a part of a buffer [rows, lanes], of the extents ``most``;
    of those that are ``of_run`` only the run knows how many there are."""
    rows, lanes = most["rows"], most["lanes"]
    width = width or before + lanes
    n, m = (name if name in of_run else most[name] for name in ("rows", "lanes"))
    part, found = f"%a[0 +: {n}, {before} +: {m}]", f"%b[0 +: {n}, 0 +: {m}]"
    to = part if in_place else found
    scalars = ", ".join(f"{name} = 1..{most[name]}" for name in sorted(of_run))
    lines = [
        "module @function level(tile) holds(channels_matched) {",
        f"  dims R = {rows}, W = {width}, L = {lanes}",
        *([f"  scalars {scalars}"] if of_run else []),
        "  mesh y = 1, x = 1",
        f"  buffer %a : {source}[{rows}, {width}] {{role = in}}",
        f"  buffer %most : {row}[{rows}] {{role = in}}",
        f"  buffer %b : f16[{rows}, {lanes}] {{role = out}}",
        f"  port @a in {source}[R, W] : %a {{lanes = [i, j], element = [i, j]}}",
        f"  port @most in {row}[R] : %most {{lanes = [i], element = [i]}}",
        "  port @b out f16[R, L] : %b {lanes = [i, j], element = [i, j]}",
        "  program @main {",
        "    tile.fill %b {value = 0.0}",
        f"    {KERNELS[kernel].format(to=to, a=part, most=f'%most[0 +: {n}]')}",
        *([f"    tile.copy {found}, {part}"] if in_place else []),
        "  }",
        "}",
    ]
    return "\n".join(lines) + "\n"


def numbers(source, row, rows, width, seed):
    """The tensors that such a module takes."""
    rng = np.random.default_rng(seed)
    return {
        "a": (8 * rng.standard_normal((rows, width))).astype(KINDS[source]),
        "most": (4 * rng.standard_normal(rows)).astype(KINDS[row]),
    }


@st.composite
def random_functions(draw):
    """A module of one function, in place or not, the tensors that it takes, and the numbers of rows
    and lanes that only the run knows."""
    most = {"rows": draw(st.integers(1, 12)), "lanes": draw(st.integers(1, 40))}
    before, behind = draw(st.integers(0, 3)), draw(st.integers(0, 3))
    source, row = (draw(st.sampled_from(["f16", "f32"])) for _ in range(2))
    of_run = draw(st.sets(st.sampled_from(["rows", "lanes"])))
    in_place = source == "f16" and draw(st.booleans())
    kernel = draw(st.sampled_from(sorted(KERNELS)))
    width = before + most["lanes"] + behind
    text = one_function(kernel, source, row, most, width, before, of_run, in_place)
    tensors = numbers(source, row, most["rows"], width, draw(st.integers(0, 99)))
    return text, tensors, {name: draw(st.integers(1, most[name])) for name in sorted(of_run)}


def agree(text, tensors, counts, arch):
    """The simulator finds what the interpreter does, to the last bit of f16, or 5e-7."""
    module = tile_text(text, arch)
    options = [word for name, count in counts.items() for word in (f"--{name}", str(count))]
    files = emitted({"main": module}, SINGLE)
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as monkeypatch:
        found, _ = run_files(files, tensors, Path(name), monkeypatch, options=options)
    compare(found["b"], module, tensors, counts)


def compare(found, module, tensors, counts):
    machine = TileMachine(module)
    for name, tensor in tensors.items():
        machine.load(name, tensor)
    expected = machine.run(counts)["b"].astype(np.float64)
    np.testing.assert_allclose(found, expected, 2.0**-10, 5e-7, err_msg=f"{module}\n{counts}")


@pytest.mark.parametrize(
    ("kernel", "kinds"),
    crossed(sorted(KERNELS), [("f32", "f16"), ("f32", "f32"), ("f16", "f16")]),
)
def test_functions_in_blocks_of_what_only_the_run_knows(kernel, kinds, tmp_path, monkeypatch):
    """Whole blocks go by vector operations, what they leave one by one, in either type."""
    most = {"rows": 11, "lanes": 14}
    module = tile_text(one_function(kernel, *kinds, most, of_run=most), "wse2")
    files = emitted({"main": module}, SINGLE)
    (op,) = (op for op in module.walk() if getattr(op, "kernel", "fill") != "fill")
    assert "_by_" in op.way and not op.way.endswith("_by_1")
    tensors = numbers(*kinds, most["rows"], most["lanes"], 3)
    counts = [{"rows": n, "lanes": m} for n, m in ((11, 14), (1, 1), (8, 3), (3, 8), (9, 13))]
    steps = run_steps(files, {}, [(tensors, one) for one in counts], tmp_path, monkeypatch)
    for one, found in zip(counts, steps, strict=True):
        compare(found["b"], module, tensors, one)


def crowded(text, left):
    """The module with a buffer that leaves so many bytes of a core besides its reserve."""
    taken = 49152 - 11264 - left
    return text.replace("  program @main {", f"  buffer %taken : f32[{taken // 4}] {{role = in}}\n"
        f"  port @taken in f32[T] : %taken {{lanes = [i], element = [i]}}\n  program @main {{"
    ).replace("  dims ", f"  dims T = {taken // 4}, ", 1)  # fmt: skip


@pytest.mark.parametrize(
    ("kernel", "shape", "way"),
    [
        ("exp_sub", (11, 14), "vector_by_2"),
        ("exp_sub", (1, 77), "vector_by_26"),
        ("silu", (1, 35), "vector_by_7"),
        ("gelu", (3, 20), "vector_by_5"),
    ],
)
def test_functions_go_in_pieces_where_a_core_is_full(kernel, shape, way, tmp_path, monkeypatch):
    """With 256 bytes of scratch: the numbers of all elements at once, and fewer cycles than one by
    one; predicted cycles are within a tenth. A remark says what memory would save."""
    most = dict(zip(("rows", "lanes"), shape, strict=True))
    text = crowded(one_function(kernel, "f16", "f16", most), 900)
    tensors = numbers("f16", "f16", *shape, 5)
    tensors["taken"] = np.zeros((49152 - 11264 - 900) // 4, np.float32)
    found = {}
    for name, choice in (
        ("pieces", SINGLE),
        ("one", SelectCslFunctions(blocks=False, accuracy="single")),
    ):
        module, report = tile_text(text, "wse2"), Diagnostics()
        choice.run(module, report)
        (op,) = (op for op in module.walk() if getattr(op, "kernel", "fill") != "fill")
        assert op.way == (way if name == "pieces" else "")
        assert any(line.code == "scratch" and kernel in line.message for line in report.messages)
        files = emitted({"main": module}, choice)
        (tmp_path / name).mkdir()
        found[name] = run_files(files, tensors, tmp_path / name, monkeypatch)
        predicted = json.loads(files["report.json"])["predicted_cycles"]
        assert predicted == pytest.approx(found[name][1], rel=0.1)
        compare(found[name][0]["b"], module, tensors, {})
    assert found["pieces"][1] < found["one"][1]


ANY = {"case": random_functions(), "arch": st.sampled_from(["wse2", "wse3"])}


@settings(max_examples=15, deadline=None, derandomize=True)
@given(**ANY)
def test_random_functions(case, arch):
    agree(*case, arch)


@pytest.mark.slow
@settings(max_examples=600, deadline=None)
@given(**ANY)
def test_many_random_functions(case, arch):
    agree(*case, arch)


def by_rows(rows, statement, kind):
    """A module of one core that computes ``statement`` of %a [rows, 7] and %s [rows], in f16."""
    return f"""\
module @rows level(tile) holds(channels_matched) {{
  dims R = {rows}, C = 7
  mesh y = 1, x = 1
  buffer %a : {kind}[{rows}, 7] {{role = in}}
  buffer %s : f32[{rows}] {{role = in}}
  buffer %gain : f16[7] {{role = in}}
  buffer %b : f16[{rows}, 7] {{role = out}}
  port @a in {kind}[R, C] : %a {{lanes = [i, j], element = [i, j]}}
  port @s in f32[R] : %s {{lanes = [i], element = [i]}}
  port @gain in f16[C] : %gain {{lanes = [i], element = [i]}}
  port @b out f16[R, C] : %b {{lanes = [i, j], element = [i, j]}}
  program @main {{
    {statement}
  }}
}}
"""


NEWTON = {
    "div": ("tile.div %b, %a, %s", lambda a, s, gain: a / s[:, None]),
    "rms_scale": (
        "tile.rms_scale %b, %a, %s, %gain {count = 6, eps = 1e-5}",
        lambda a, s, gain: a / np.sqrt(s / 6 + 1e-5)[:, None] * gain,
    ),
}


@pytest.mark.parametrize("kernel", [*NEWTON])
@pytest.mark.parametrize(("arch", "rows"), [("wse2", 1), ("wse2", 24), ("wse3", 24)])
def test_reciprocals_and_roots_by_newton(kernel, arch, rows, tmp_path, monkeypatch):
    """Right to what f16 resolves over the range of f32, in fewer cycles, which are predicted."""
    statement, wanted = NEWTON[kernel]
    rng = np.random.default_rng(1)
    size = np.exp2(rng.uniform(-30, 30, rows)).astype(np.float32)
    scale = size if kernel == "div" else np.sqrt(size / 6 + 1e-5)
    kind = "f32" if kernel == "div" else "f16"
    if kind == "f16":
        size = np.exp2(rng.uniform(-12, 12, rows)).astype(np.float32)
        scale = np.ones(rows)
    a = (rng.uniform(0.5, 2, (rows, 7)) * scale[:, None]).astype({"f32": "f4", "f16": "f2"}[kind])
    gain = rng.uniform(0.5, 2, 7).astype(np.float16)
    cycles = {}
    for newton in (True, False):
        module = tile_text(by_rows(rows, statement, kind), arch)
        files = emitted({"main": module}, SelectCslFunctions(newton=newton))
        assert ("reciprocal(" in files["main.csl"]) == (newton and kernel == "div")
        assert ("inverse_root(" in files["main.csl"]) == (newton and kernel == "rms_scale")
        folder = tmp_path / str(newton)
        folder.mkdir()
        given = {"a": a, "s": size, "gain": gain}
        given = {name: given[name] for name in json.loads(files["report.json"])["inputs"]}
        found, cycles[newton] = run_files(files, given, folder, monkeypatch)
        predicted = json.loads(files["report.json"])["predicted_cycles"]
        assert predicted == pytest.approx(cycles[newton], rel=0.1, abs=4)
        exact = wanted(a.astype(float), size.astype(float), gain.astype(float))
        units = np.abs(found["b"] - exact) / np.exp2(np.floor(np.log2(np.abs(exact))) - 10)
        # one rounding of a quotient of f32; of a norm those of scale, product and gain
        assert units.max() < (0.6 if kernel == "div" else 1.9)
    assert cycles[True] < cycles[False]
