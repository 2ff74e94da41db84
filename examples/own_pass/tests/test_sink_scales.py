"""The pass computes what it was given, moves what it should, and leaves the rest."""

from pathlib import Path

import numpy as np
import pytest

import meshc

TEXT = """\
module @scores level(graph) {
  dims L = 4, E = 16, N = 8
  func @main(in %x: f32[L, E], weight %w: f32[E, N]) -> (f32[L, N]) {
    %s = graph.scale %x {factor = 0.5} : f32[L, E]
    %y = graph.matmul %s, %w {contract = [E]} : f32[L, N]
    graph.return %y
  }
}
"""


def after(text, spec="sink-scales"):
    report = meshc.Diagnostics()
    module = meshc.PassManager(meshc.parse_pipeline(spec)).run(meshc.parse(text), report)
    return module, [message.code for message in report.messages]


def test_a_scale_moves_behind_a_product_that_gives_less():
    module, remarks = after(TEXT)
    assert [op.NAME for op in module.walk()] == ["graph.matmul", "graph.scale", "graph.return"]
    assert remarks == ["scale-sunk"]
    x = {"x": np.arange(64.0).reshape(4, 16), "w": np.ones((16, 8))}
    for found, wanted in zip(meshc.run(module, x), meshc.run(meshc.parse(TEXT), x), strict=True):
        assert np.allclose(found, wanted)
    assert meshc.print_module(meshc.parse(meshc.print_module(module))) == meshc.print_module(module)


@pytest.mark.parametrize(
    "text",
    [
        TEXT.replace("N = 8", "N = 32"),
        TEXT.replace("-> (f32[L, N])", "-> (f32[L, N], f32[L, E])").replace(
            "return %y", "return %y, %s"
        ),
    ],
)
def test_other_scales_stay(text):
    module, remarks = after(text)
    assert meshc.print_module(module) == meshc.print_module(meshc.parse(text)) and not remarks


def test_the_option_moves_all():
    assert after(TEXT.replace("N = 8", "N = 32"), "sink-scales{always=true}")[1] == ["scale-sunk"]


def test_the_text_and_the_meaning_of_what_comes_out(check_pass):
    check_pass(Path(__file__).with_name("factors.meshir"))
