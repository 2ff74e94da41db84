"""Modules in MLIR: the same behind writing and reading, and behind xDSL."""

import io
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
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
    pytest.importorskip("xdsl", reason="the extra mlir is not installed")
    text = print_module(module_of(TEXTS[name]))
    assert print_module(read(through_xdsl(mlir_of(TEXTS[name])))) == text


def through_xdsl(text):
    from xdsl.context import Context
    from xdsl.dialects.builtin import Builtin
    from xdsl.parser import Parser
    from xdsl.printer import Printer

    context = Context(allow_unregistered=True)
    context.load_dialect(Builtin)
    module = Parser(context, text, "module").parse_module()
    module.verify()
    out = io.StringIO()
    Printer(out, print_generic_format=True).print_op(module)
    return out.getvalue()


def test_bodies_may_call_values_alike():
    """Each body has its own %0, and so has what stands behind the op."""
    text = mlir_of(MLP).replace("%gate_1,", "%0,").replace("(%gate_1)", "(%0)")
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


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("meshc.graph.silu", "arith.negf", "'arith.negf' is no op of the dialect meshc"),
        ("meshc.graph.silu", "meshc.graph.sulk", "no op 'graph.sulk'"),
        ("tensor<16x160xf16", "tensor<16x161xf16", "its layout says"),
        ('"builtin.module"', '"builtin.unit"', "a file holds one builtin.module"),
        ("(%gate_1)", "(%gates)", "%gates is not defined above"),
        ("(%gate_1)", "(%gate_1", "unexpected"),
        ('meshc.level = "graph"', 'meshc.level = "cave"', "no such level"),
        ('meshc.level = "graph"', "meshc.level = 3 : i64", "'meshc.level' is no string"),
        ('dim = "E"', 'dim = "E", dim = "E"', "'dim' is given twice"),
        ('dim = "E"', "dim = @E", "no attribute of a module is a symbol"),
        ('roles = ["in", ', "roles = [", "5 parameters, but 4 roles"),
        ('meshc.names = ["gate"]', 'meshc.names = ["ga te"]', "no value can be called 'ga te'"),
        ('sym_name = "main"', 'sym_name = "ma{in"', "is no name of a symbol"),
        ("F = 160 : i64", "F = 161 : i64", "its layout says"),
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
