"""Modules in MLIR: the same behind writing and reading, and behind xDSL."""

import json
import math
from collections import Counter

import pytest
from drawn_modules import drawn_module
from hypothesis import given, settings
from hypothesis import strategies as st
from mlir_tools import through_mlir_opt, through_xdsl, tools
from modules import ROOT, texts

from meshc.cli import main
from meshc.ir.parser import parse_module
from meshc.ir.printer import print_module
from meshc.ir.types import DType
from meshc.mlir import print_mlir, read_mlir
from meshc.mlir.writer import ELEMENTS
from meshc.support.diagnostics import MeshcError
from meshc.support.spans import Source

TEXTS = texts()
SLOW = pytest.mark.slow
# One of every folder runs in CI, and all of examples.
FIRST = {name.rpartition("/")[0]: name for name in reversed(TEXTS)}
SEVERAL = [
    name
    if name in FIRST.values() or name.startswith("examples")
    else pytest.param(name, marks=SLOW)
    for name in TEXTS
]
COUNT = 200
DRAWN = [n if n < 10 else pytest.param(n, marks=SLOW) for n in range(COUNT)]
MLP = (ROOT / "examples" / "mlp.meshir").read_text(encoding="utf-8")


def module_of(text):
    return parse_module(Source("module", text))


def mlir_of(text):
    return print_mlir(module_of(text))


def read(text):
    return read_mlir(Source("module.mlir", text))


def test_modules_of_all_levels_are_there():
    levels = {module_of(text).level for text in TEXTS.values()}
    assert levels == {"graph", "mesh", "tile", "task"} and len(TEXTS) > 200


@pytest.mark.parametrize("name", SEVERAL)
def test_a_module_is_the_same_behind_mlir(name):
    text = print_module(module_of(TEXTS[name]))
    assert print_module(read(mlir_of(TEXTS[name]))) == text


@pytest.mark.parametrize("name", SEVERAL)
def test_xdsl_reads_it_and_what_it_prints_is_the_same_module(name):
    """It calls values otherwise, and knows none of the ops."""
    text = print_module(module_of(TEXTS[name]))
    assert print_module(read(through_xdsl(mlir_of(TEXTS[name])))) == text


@pytest.mark.parametrize("name", SEVERAL)
def test_mlir_opt_reads_it_and_what_it_prints_is_the_same_module(name):
    """Besides, it sorts attributes."""
    text = print_module(module_of(TEXTS[name]))
    assert print_module(read(through_mlir_opt(mlir_of(TEXTS[name])))) == text


@pytest.mark.parametrize("number", DRAWN)
def test_a_drawn_module_is_the_same_behind_mlir_and_both_tools(number):
    module = drawn_module(number)
    text, written = print_module(module), print_mlir(module)
    assert print_module(read(written)) == text
    for through in tools():
        assert print_module(read(through(written))) == text


@SLOW
def test_modules_of_all_levels_are_drawn():
    levels = Counter(drawn_module(number).level for number in range(COUNT))
    assert min(levels[level] for level in ("graph", "mesh", "tile", "task")) >= COUNT // 16


def test_bodies_may_call_values_alike():
    """Each body has its own %0, and so has what stands behind the op."""
    text = mlir_of(MLP).replace("%gate.1,", "%0,").replace("(%gate.1)", "(%0)")
    assert print_module(read(text)) == print_module(module_of(MLP))


def test_every_element_type_has_a_name():
    assert ELEMENTS.keys() == set(DType) and len({*ELEMENTS.values()}) == len(ELEMENTS)


@pytest.mark.parametrize(
    "value", [0.0, -0.0, 1e-5, 1e300, 1.5, -math.inf, math.inf, 0.1, 123456789.125]
)
def test_numbers_keep_their_bits(value):
    text = f"""module @m level(tile) {{
  mesh y = 1, x = 1
  constant @c [{value!r}]
}}
"""
    (found,) = read(mlir_of(text)).constants["c"]
    assert math.copysign(1, found) == math.copysign(1, value) and found == value


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("meshc.graph.silu", "arith.negf", "'arith.negf' is no op of the dialect meshc"),
        ("meshc.graph.silu", "meshc.graph.sulk", "no op 'graph.sulk'"),
        ("tensor<16x160xf16", "tensor<16x161xf16", "its layout says"),
        ('"builtin.module"', '"builtin.unit"', "a file holds one builtin.module"),
        ("(%gate.1)", "(%gates)", "%gates is not defined above"),
        ("(%gate.1)", "(%gate.1", "unexpected"),
        ("%gate = ", "%h = ", "%h is defined twice"),
        ("%w_up : ", "%w_gate : ", "%w_gate is defined twice"),
        ('meshc.level = "graph"', 'meshc.level = "cave"', "no such level"),
        ('meshc.level = "graph"', "meshc.level = 3 : i64", "'meshc.level' is no string"),
        ('dim = "E"', 'dim = "E", dim = "E"', "'dim' is given twice"),
        ('dim = "E"', "dim = @E", "no attribute of a module is a symbol"),
        ('roles = ["in", ', "roles = [", "5 parameters, but 4 roles"),
        ('meshc.names = ["gate"]', 'meshc.names = ["ga te"]', "no value can be called 'ga te'"),
        ('sym_name = "main"', 'sym_name = "ma{in"', "is no name of a symbol"),
        ("[16 : i64, 64 : i64, 160 : i64]", "[16 : i64, 64 : i64, 161 : i64]", "its layout says"),
        ("[16 : i64, 64 : i64, 160 : i64]", "[16 : i64, 64 : i64]", "one extent for each name"),
        ('["L", "E", "F"]', '["L", "E", "L"]', "one extent for each name"),
    ],
)
def test_what_is_no_module_is_refused_at_its_place(old, new, words):
    text = mlir_of(MLP)
    assert old in text
    with pytest.raises(MeshcError) as refused:
        read(text.replace(old, new))
    first = refused.value.diagnostics[0]
    assert words in first.message and first.span is not None
    assert first.span.source.name == "module.mlir"


@pytest.mark.parametrize("head", ["module", "// printed\n  builtin.module"])
def test_the_short_form_is_refused_with_what_prints_the_other(head):
    with pytest.raises(MeshcError) as refused:
        read(f"{head} @m attributes {{}} {{\n}}\n")
    (found,) = refused.value.diagnostics
    assert "short form" in found.message and "--mlir-print-op-generic" in found.help
    assert found.span.line == head.count("\n") + 1
    assert found.span.source.text.split("\n")[found.span.line - 1][
        found.span.column - 1 :
    ].startswith(head.split()[-1])


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_changed_texts_end_in_words(data):
    text = mlir_of(MLP)
    at = data.draw(st.integers(0, len(text) - 1))
    length = data.draw(st.sampled_from([0, 1, 2, 7, 40]))
    more = data.draw(
        st.sampled_from(["", '"', "{", ")", "%x", "\\", "\n", "é", "<", "meshc.", "9"])
    )
    try:
        read(text[:at] + more + text[at + length :])
    except MeshcError as refused:
        assert refused.diagnostics[0].message


def test_opt_reads_and_writes_it(tmp_path, capsys):
    given_file = tmp_path / "mlp.mlir"
    given_file.write_text(mlir_of(MLP))
    assert main(["opt", str(given_file)]) == 0
    assert capsys.readouterr().out == print_module(module_of(MLP))
    assert main(["opt", str(ROOT / "examples" / "mlp.meshir"), "--emit", "mlir"]) == 0
    assert capsys.readouterr().out == mlir_of(MLP)
    given_file.write_text(mlir_of(MLP).replace("160", "161", 1))
    assert main(["opt", str(given_file)]) == 1
    assert "error[bad-mlir]" in capsys.readouterr().err


def test_compile_writes_it(tmp_path, capsys):
    model = str(ROOT / "examples" / "tiny_llama.mesh")
    stop = ["compile", model, "--compile-to", "tile", "--mesh", "2x2", "--emit", "mlir"]
    assert main([*stop, "-o", str(tmp_path / "out"), "--json"]) == 0
    assert "prefill.mlir" in json.loads(capsys.readouterr().out)["files"]
    for phase in ("prefill", "decode"):
        found = (tmp_path / "out" / f"{phase}.mlir").read_text()
        assert read(found).level == "tile"
    assert main(["compile", model, "--emit", "mlir"]) == 1
    assert "--compile-to names the level" in capsys.readouterr().err
