"""The text of emitted programs: readable, safe, and the same at every run."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from emitted_texts import (
    CAPACITY,
    EXTENTS,
    graph_of,
    lowered,
    model_files,
    module_of,
    ring_gemm,
    tile_module,
    tree_sum,
    write,
)

from meshc.backends.python import HostFacts, emit, load_program
from meshc.backends.python.expressions import condition, expression, spelled
from meshc.backends.python.names import Names, file_stem
from meshc.backends.templates import render
from meshc.ir.affine import parse_cond, parse_expr
from meshc.ir.parser import parse_module
from meshc.ir.printer import print_module
from meshc.support.diagnostics import MeshcError, known_codes
from meshc.support.spans import Source

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


def text_of(module):
    return emit({"main": module}, HostFacts("t"))["main_phase.py"]


def error_of(function):
    with pytest.raises(MeshcError) as caught:
        function()
    (found,) = caught.value.diagnostics
    assert found.code in known_codes()
    return f"{found.code}: {found.message}"


EXPRESSIONS = [
    "0",
    "-3",
    "a",
    "-a + b",
    "3 - 2*a",
    "a mod 4",
    "-(a mod 4)",
    "-floor(a/3)",
    "5*(a mod 4) - 2*floor((a + b)/3)",
    "floor((a - 7)/2) - (b mod 5) + 1",
    "(floor(a/2) + 3*b) mod 7",
    "4 - floor((2*a + (b mod 3))/5)",
]


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_expressions_mean_the_same_in_python(text):
    expr = parse_expr(text)
    python = compile(expression(expr, spelled({"a": "a", "b": "b"})), "x", "eval")
    for a in range(-9, 10):
        for b in range(-5, 6):
            assert eval(python, {}, {"a": a, "b": b}) == expr.evaluate({"a": a, "b": b})


CONDITIONS = [
    "a = 3",
    "a != 3",
    "a < b and a mod 2 = 1",
    "a = 0 or b >= 2 and a <= 4",
    "not (a = 0 or b >= 2) or floor(a/3) = -1",
    "3 >= a and -a >= b",
    "true",
    "false",
]


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("text", CONDITIONS)
def test_conditions_mean_the_same_in_python(text, plain):
    cond = parse_cond(text)
    python = compile(str(condition(cond, spelled({"a": "a", "b": "b"}), plain)), "x", "eval")
    for a in range(-4, 5):
        for b in range(-4, 5):
            assert eval(python, {}, {"a": a, "b": b}) == cond.evaluate({"a": a, "b": b})


def test_names_are_identifiers_of_their_own():
    names = Names(frozenset({"decode"}))
    given = ["x", "len", "for", "p.sum", "1st", "decode", "step", "gemm", "é", "", "a-b", "core"]
    found = [names.of("buffer", name) for name in given]
    assert all(name.isidentifier() for name in found)
    assert len(set(found)) == len(found)
    assert not {"len", "for", "decode", "step", "gemm", "core"} & set(found)
    assert found[:2] == ["x", "len_"] and names.of("buffer", "len") == "len_"
    assert names.of("channel", "x") != "x"


@pytest.mark.every_case
@pytest.mark.parametrize(
    "name", ["../x", "a/b", "", ".hidden", "-x", "a b", "a\nb", 'a"b', "x" * 201, "nul.", "a\\b"]
)
def test_unsafe_file_names_are_refused(name):
    assert error_of(lambda: file_stem(name)).startswith("unsafe-name")


def test_a_weight_with_a_hostile_name_reaches_no_text():
    module = tree_sum(2, 1, 2)
    module.ports[0].name = '"); import os #'
    assert error_of(lambda: text_of(module)).startswith("unsafe-name")
    module = ring_gemm(2, 2, 4, 4, 4)
    module.name = 'x"""\nimport os\n"""'
    module.programs[0].name = "y\\"
    text = text_of(module)
    assert "\nimport os" not in text
    compile(text, "main_phase.py", "exec")


def test_hostile_names_of_buffers_channels_and_tokens(tmp_path):
    text = print_module(tree_sum(3, 2, 2))
    for old, new in (("%v", "%import"), ("@near", "@class"), ("%r1_0", "%None"), ("@cast", "@x-1")):
        text = text.replace(old + " ", new + " ").replace(old + ",", new + ",")
        text = text.replace(old + "\n", new + "\n")
    module = parse_module(Source("t", text))
    compile(text_of(module), "main_phase.py", "exec")
    write(tmp_path, emit({"main": module}, HostFacts("t")))
    assert load_program(tmp_path).load({}).phase.outputs == ("sums",)


@pytest.mark.slow
def test_two_hash_seeds_give_the_same_bytes(tmp_path):
    script = (
        "import sys; sys.path[:0] = sys.argv[1:4]\n"
        "from emitted_texts import model_files\n"
        "files = model_files('4x3') | model_files('6x2', algo='ring', phases=('decode',))\n"
        "sys.stdout.write(''.join(f'{p}\\n{t}' for p, t in files.items()))"
    )
    found = [
        subprocess.run(
            [sys.executable, "-c", script, str(ROOT), str(HERE), str(ROOT / "tests")],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert found[0] == found[1] and "def decode(fabric" in found[0]
    assert str(ROOT) not in found[0]


RUFF = shutil.which("ruff") or str(Path(sys.executable).parent / "ruff")


@pytest.mark.skipif(not Path(RUFF).exists(), reason="needs ruff")
@pytest.mark.parametrize("grid", ["1x1", "4x3", "8x8"])
def test_emitted_text_is_formatted_and_free_of_lint(grid, tmp_path):
    files = {p: t for p, t in model_files(grid).items() if "/" not in p}
    files["main_phase.py"] = text_of(ring_gemm(3, 4, 5, 6, 7))
    write(tmp_path, files)
    how = ["--isolated", "--line-length", "100"]
    rules = ["--select", "E,F,W,B,UP,SIM,RUF,C4,PIE"]
    for command in (["check", *how, *rules], ["format", *how, "--diff"]):
        done = subprocess.run([RUFF, *command, str(tmp_path)], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_a_decode_step_reads_like_its_algorithm():
    """One line per statement; an all-reduce is written once and called."""
    text = model_files("4x4")["decode.py"]
    steps = text[text.index("# Parts of loops") :]
    steps = steps[: steps.index("# Constants")]
    lines = [line.strip() for line in steps.splitlines()]
    order = [
        "def q_k_v_n1_ss_of_layer(layer):",
        "all_reduce_add_y(q_k_v_n1_ss[:11])",
        "def x0_of_layer(layer):",
        "mask_slots(s, kv_state[layer])",
        "all_reduce_max_y(p_max)",
        "exp_sub(s, s, p_max)",
        "add(x0, x0, a)",
        "silu(gate_up_n2_ss[:4], gate_up_n2_ss[:4])",
        "def step(pos):",
        "for layer in range(2):",
        "q_k_v_n1_ss_of_layer(layer)",
        "ring_grow(kv_state[layer], on=ring_push_cores(pos))",
        "x0_of_layer(layer)",
        "all_reduce_add_y(logits_2_z_ss[:5])",
    ]
    places = [lines.index(line) for line in order]
    assert places == sorted(places)
    assert text.count("chain_y_1.send(") == 2  # inside all_reduce_add_y and all_reduce_max_y
    assert len(text.splitlines()) < 450


def test_tokens_left_over_are_waited_for_at_the_end_of_their_block():
    header = """buffer %v : f32[2]
      channel @ring "{ [y, x] -> [y, (x + 1) mod 3] }"
      scalars n = 0..3
      buffer %o : f32[2] {role = out}
      dims I = 2
      port @o out f32[I] : %o {lanes = [i], element = [i], where = "x = 0"}"""
    body = """
      tile.fill %v {value = 1.0}
      tile.for {var = t, count = 2} {
        %a = tile.send @ring, %v {when = "n > 1"} : token
        %b = tile.recv @ring, %v {when = "n > 1"} : token
        tile.wait %a {when = "x = 0"}
      }
      tile.copy %o, %v"""
    text = text_of(tile_module(1, 3, header, body))
    assert "            wait(a, on=x_is_0)\n            wait(a, b)\n" in text
    assert "            a = None\n            b = None\n            if n >= 2:\n" in text


@pytest.mark.parametrize(
    ("product", "rows", "columns", "extra", "expected"),
    [
        ("%o, %v, %w", 24, 16, "", True),
        ("%o, %v, %w", 48, 16, "", False),
        ("%o, %v, %w", 24, 600, "", False),
        ("%o, %v, %w transposed", 16, 24, "", False),
        ("%o as [2, 8], %v as [2, 12], %w as [12, 8]", 12, 8, "", False),
        ("%o, %v, %w", 24, 16, "tile.scale %w, %w {factor = 2.0}", False),
    ],
)
def test_matrices_with_short_columns_are_kept_by_columns(product, rows, columns, extra, expected):
    """Where nothing but vectors is multiplied by them; the numbers are the measured limits."""
    long, wide = (columns, rows) if product.endswith("transposed") else (rows, columns)
    count = 2 if "[2," in product else 1
    header = f"""dims K = {rows}, N = {columns}, F = {count * wide}
      buffer %w : f32[{rows}, {columns}] {{role = weight}}
      buffer %v : f32[1, {count * long}] {{role = state}}
      buffer %o : f32[1, {count * wide}] {{role = out}}
      port @w in f32[K, N] : %w {{lanes = [k, n], element = [k, n]}}
      port @o out f32[F] : %o {{lanes = [r_, f], element = [f], where = "x = 0"}}"""
    views, turned, _ = product.partition(" transposed")
    gemm = f"tile.gemm {views} {{accumulate = false, transposed = {str(bool(turned)).lower()}}}"
    module = tile_module(1, 2, header, f"{gemm}\n{extra}")
    assert ("by_columns=True" in text_of(module)) == expected


def test_extents_of_the_run_have_names():
    text = model_files("4x3")["prefill.py"]
    assert "    def step(len_):\n        extent = " in text
    assert text.count("(len_ + ") <= 3


@pytest.mark.parametrize(
    ("header", "body", "message"),
    [
        (
            'channel @c "{ [y, x] -> [y, x + n] }"\nbuffer %v : f32[2]\nscalars n = 0..3',
            "%t = tile.send @c, %v : token",
            "unsupported-route: the route of channel 'c' depends on 'n'",
        ),
        (
            'channel @c "{ [y, x] -> [x] }"\nbuffer %v : f32[2]',
            "%t = tile.send @c, %v : token",
            "unsupported-route: the route of channel 'c' leads to 1 coordinates",
        ),
        (
            "dims I = 2\nscalars n = 0..3\nbuffer %v : f32[2] {role = in}\n"
            'port @v in f32[I] : %v {lanes = [i], element = ["i + n"]}',
            "tile.fill %v {value = 0.0}",
            "unsupported-port: port 'v' depends on 'n'",
        ),
        (
            "dims I = 2\nbuffer %v : f32[2] {role = state}\n"
            "port @v in f32[I] : %v {lanes = [i], element = [i]}",
            "tile.fill %v {value = 0.0}",
            "unsupported-port: port 'v' loads %v, which is state",
        ),
        ("buffer %v : f32[2]", "tile.fill %v {value = 0.0}", "no-output: module 't' has no"),
    ],
)
def test_what_cannot_be_emitted_is_diagnosed(header, body, message):
    assert message in error_of(lambda: text_of(tile_module(1, 3, header, body)))


def test_nesting_beyond_python_is_diagnosed():
    body = "tile.fill %v {value = 0.0}"
    for depth in range(20):
        body = f"tile.for {{var = t{depth}, count = 1}} {{ {body} }}"
    module = tile_module(1, 1, "buffer %v : f32[2]", body)
    assert error_of(lambda: text_of(module)).startswith("python-nesting")


def test_phases_that_make_no_program_are_diagnosed():
    decode, other = lowered(graph_of(1), "2x2"), lowered(graph_of(8), "4x1")
    facts = HostFacts("t", "table", EXTENTS["V"], CAPACITY)
    assert "no-phase" in error_of(lambda: emit({"a": decode, "b": other}, HostFacts("t")))
    assert "no-phase" in error_of(lambda: emit({}, facts))
    assert "mesh-differs" in error_of(lambda: emit({"decode": decode, "prefill": other}, facts))
    assert "not-tile-level" in error_of(lambda: emit({"decode": graph_of(1)}, facts))
    decode.ports = [p for p in decode.ports if p.direction == "in"]
    assert "host-ports: phase 'decode' has no output" in error_of(
        lambda: emit({"decode": decode}, facts)
    )
    decode.ports = [p for p in decode.ports if p.name != "x0"]
    assert "host-ports: phase 'decode' has the inputs none" in error_of(
        lambda: emit({"decode": decode}, facts)
    )
    decode.scalars["heat"] = (0, 1)
    assert "host-scalar: phase 'decode' wants 'heat'" in error_of(
        lambda: emit({"decode": decode}, facts)
    )


def test_an_op_of_another_level_is_diagnosed():
    module = module_of("""module @t level(tile) {
      mesh y = 1, x = 1
      program @main { graph.return }
    }""")
    assert error_of(lambda: text_of(module)).startswith("not-a-tile-op")


def test_a_template_must_be_given_all_it_names():
    with pytest.raises(Exception, match="undefined"):
        render("meshc.backends.python", "language_model.py.jinja", model="m")


def test_a_folder_without_a_program(tmp_path):
    assert error_of(lambda: load_program(tmp_path)).startswith("no-program")
