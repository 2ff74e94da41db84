"""graph.fuse: text, copies, rules, meaning, and what it leaves visible of parameters."""

import numpy as np
import pytest

import meshc
from meshc.interp.graph import run_graph
from meshc.ir.clone import clone_module
from meshc.ir.core import tensor_type
from meshc.ir.ops import graph
from meshc.ir.origins import origins, readers
from meshc.passes.registry import parse_pipeline

MODULE = """module @m level(graph) {
  dims L = 2, E = 4
  rows dim = L, capacity = L
  func @main(in %x: f32[L, E], weight %w: f32[E]) -> (f32[L, E]) {
    %z = graph.fuse %x, %w {kernel = head, partial = true, takes = [x, gain]} : f32[L, E] (%a: f32[L, E], %b: f32[E]) {
      %c = graph.mul %a, %b : f32[L, E]
      %d = graph.silu %c : f32[L, E]
      graph.yield %d
    }
    graph.return %z
  }
}
"""  # noqa: E501


def test_text_and_copies():
    module = meshc.parse(MODULE)
    assert meshc.print_module(module) == MODULE
    copy = clone_module(module)
    assert meshc.print_module(copy) == MODULE
    (fuse, *_) = copy.function.body.ops
    assert (fuse.kernel, fuse.partial, fuse.takes) == ("head", True, ("x", "gain"))
    assert fuse.regions[0].args[0] is not module.function.body.ops[0].regions[0].args[0]


def test_meaning_is_that_of_the_body():
    x = np.arange(8.0).reshape(2, 4)
    w = np.array([1.0, -1.0, 0.5, 2.0])
    (got,) = run_graph(meshc.parse(MODULE), {"x": x, "w": w})
    np.testing.assert_array_equal(got, x * w / (1 + np.exp(-x * w)))


def test_parameters_are_known_inside():
    module = meshc.parse(MODULE)
    (fuse, _) = module.function.body.ops
    assert origins(module)[fuse.regions[0].args[1]].role == "weight"
    (_, weight) = module.function.params
    assert [(op.NAME, str(value)) for op, value in readers(module, weight)] == [("graph.mul", "%b")]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("kernel = head, ", "", "no kernel is named that computes it"),
        (", takes = [x, gain]", "", "2 operands have 0 names (takes)"),
        ("takes = [x, gain]", "takes = [x]", "2 operands have 1 names (takes)"),
        ("takes = [x, gain]", "takes = [x, x]", "two operands have one name among x, x"),
        ("%b: f32[E]", "%b: f32[L]", "the block does not take f32[L, E], f32[E]"),
        ("graph.yield %d", "graph.yield %b", "the results are not what yield gives"),
        ("graph.yield %d", "%e = graph.silu %d : f32[L, E]", "the body does not end in a yield"),
        ("graph.mul %a, %b", "graph.mul %a, %w", "graph.mul: %w is not defined in this block"),
        (
            "%d = graph.silu %c : f32[L, E]",
            "%d = graph.fuse %c {kernel = head, takes = [x]} : f32[L, E] (%e: f32[L, E]) {\n"
            "graph.yield %e\n}",
            "one kernel cannot hold graph.fuse",
        ),
    ],
)
def test_rules(old, new, message):
    with pytest.raises(meshc.MeshcError) as caught:
        meshc.parse(MODULE.replace(old, new))
    assert message in str(caught.value)


def test_other_passes_keep_it():
    """Passes of the graph level leave a fused module as it is, whole or inside."""
    module = meshc.parse(MODULE)
    after = meshc.PassManager(parse_pipeline("eliminate-transpose,canonicalize")).run(module)
    (fuse, _) = after.function.body.ops
    assert isinstance(fuse, graph.Fuse)
    assert tensor_type(fuse.result).dims == ("L", "E")
    assert meshc.print_module(after) == MODULE.replace(
        "level(graph)", "level(graph) holds(transpose_free)"
    )


def test_partition_says_that_it_cannot_lower_it():
    module = meshc.parse(MODULE)
    with pytest.raises(meshc.MeshcError, match=r"graph\.fuse cannot be partitioned"):
        meshc.PassManager(parse_pipeline("eliminate-transpose,partition{grid=1x1}")).run(module)


def test_transposes_inside_are_eliminated():
    text = MODULE.replace(
        "%d = graph.silu %c : f32[L, E]",
        "%t = graph.transpose %c {dims = [E, L]} : f32[E, L]\n"
        "%d = graph.transpose %t {dims = [L, E]} : f32[L, E]",
    )
    after = meshc.PassManager(parse_pipeline("eliminate-transpose")).run(meshc.parse(text))
    assert not [op for op in after.walk() if isinstance(op, graph.Transpose)]
