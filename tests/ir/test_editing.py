"""Builder and rewriter: edits keep names unique and uses in order."""

import pytest

from meshc.ir.builder import Builder, Names
from meshc.ir.ops import graph
from meshc.ir.parser import parse_module
from meshc.ir.printer import print_module
from meshc.ir.rewriter import Rewriter
from meshc.ir.types import DType, TensorType
from meshc.ir.verifier import verify_module
from meshc.support.spans import Source

TEXT = """module @m level(graph) {
  dims L = 2, E = 4, F = 3
  func @f(in %x: f32[L, E], weight %w: f32[E, F]) -> (f32[L, F]) {
    %a = graph.silu %x : f32[L, E]
    %b = graph.scale %a {factor = 2.0} : f32[L, E]
    %y = graph.matmul %b, %w {contract = [E]} : f32[L, F]
    graph.return %y
  }
}
"""


@pytest.fixture
def module():
    return parse_module(Source("t.meshir", TEXT))


def lines(module):
    return [line.strip() for line in print_module(module).splitlines()]


def test_names_are_unique_and_readable():
    names = Names(["a", "a_1"])
    assert [names.fresh("a"), names.fresh("a"), names.fresh("b")] == ["a_2", "a_3", "b"]


def test_builder_infers_types_and_names(module):
    block = module.function.body
    builder = Builder(module, block, 1)
    x = module.function.params[0].value
    made = builder.one(graph.Gelu([x]), "a")
    again = builder.one(graph.Silu([made]), "a")
    assert (made.name, again.name) == ("a_1", "a_2")
    assert made.type == TensorType(DType.F32, ("L", "E"))
    verify_module(module)
    assert "%a_2 = graph.silu %a_1 : f32[L, E]" in lines(module)
    assert lines(module)[5].startswith("%a_1")


def test_builder_refuses_a_wrong_number_of_results(module):
    x = module.function.params[0].value
    builder = Builder(module, module.function.body)
    with pytest.raises(ValueError, match="2 results"):
        builder.add(graph.Silu([x]), "a", "b")


def test_replace_erases_and_redirects(module):
    scale = module.function.body.ops[1]
    Rewriter(module).replace_op(scale, scale.tensors())
    verify_module(module)
    assert "%y = graph.matmul %a, %w {contract = [E]} : f32[L, F]" in lines(module)


def test_chains_of_changes_are_followed(module):
    x, a, b = (module.function.params[0].value, *(o.result for o in module.function.body.ops[:2]))
    Rewriter(module).replace_uses({b: a, a: x})
    assert module.function.body.ops[2].operands[0] is x


def test_erase_refuses_what_is_used(module):
    with pytest.raises(ValueError, match="%a is still used"):
        Rewriter(module).erase(module.function.body.ops[0])


def test_insert_around_an_op(module):
    rewriter = Rewriter(module)
    product = module.function.body.ops[2]
    before = rewriter.before(product).one(graph.Silu([product.operands[0]]), "early")
    rewriter.after(product).one(graph.Silu([product.result]), "late")
    product.operands[0] = before
    verify_module(module)
    names = [r.name for op in module.walk() for r in op.results]
    assert names == ["a", "b", "early", "y", "late"]


def test_rename_keeps_names_unique(module):
    rewriter = Rewriter(module)
    rewriter.rename(module.function.body.ops[1].result, "a")
    verify_module(module)
    assert "%a_1 = graph.scale %a {factor = 2.0} : f32[L, E]" in lines(module)


def test_users_see_views():
    text = """module @m level(tile) {
  mesh y = 1, x = 1
  buffer %a : f32[4]
  buffer %b : f32[4]
  program @p {
    tile.for {var = i, count = 2} {
      tile.silu %b[i], %a[i]
    }
  }
}
"""
    module = parse_module(Source("t.meshir", text))
    rewriter = Rewriter(module)
    a, b = (buffer.value for buffer in module.buffers)
    (kernel,) = rewriter.users(a)
    assert rewriter.block_of(kernel) is module.program.body.ops[0].regions[0]
    rewriter.replace_uses({a: b})
    assert rewriter.users(a) == []
    assert "tile.silu %b[i], %b[i]" in lines(module)
