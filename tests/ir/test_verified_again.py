"""A module that was verified is verified again behind each pass: whatever was edited is looked at,
also where the same op, value or module stays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from meshc.ir.affine import Cond, Expr
from meshc.ir.core import Op
from meshc.ir.module import Module
from meshc.ir.ops.tile import Compute, Send
from meshc.ir.parser import parse_module
from meshc.ir.types import BufferType, DType
from meshc.ir.verifier import verify_module
from meshc.ir.views import Symbol, View
from meshc.support.diagnostics import MeshcError
from meshc.support.spans import Source

TILE = """module @again level(tile) {
  dims N = 4
  scalars pos = 0..7
  mesh y = 1, x = 2
  buffer %a : f32[4]
  buffer %b : f32[4]
  buffer %c : f32[8]
  channel @right "{ [y, x] -> [y, x + 1] : x <= 0 }"
  program @main {
    tile.scale %b, %a {factor = 2.0, when = "x = 0"}
    %s = tile.send @right, %b {when = "x = 0"} : token
    %r = tile.recv @right, %a {when = "x = 1"} : token
    tile.wait %s, %r
    tile.add %c[0 +: 4], %a, %b
  }
}
"""
GRAPH = """module @again level(graph) {
  dims N = 4, M = 3
  options dtype = f32, accumulate = f32
  func @main(in %x: f32[N], in %y: f32[N]) -> (f32[N]) {
    %z = graph.add %x, %y : f32[N]
    graph.return %z
  }
}
"""


def verified(text: str) -> Module:
    module = parse_module(Source("again.meshir", text))
    verify_module(module)
    verify_module(module)
    return module


def op_of(module: Module, name: str) -> Op:
    return next(op for op in module.walk() if getattr(op, "kernel", op.NAME) == name)


def another_kernel(module: Module) -> None:
    found = op_of(module, "scale")
    assert isinstance(found, Compute)
    found.kernel = "add"


def another_parameter(module: Module) -> None:
    """A dict that is edited in place."""
    found = op_of(module, "scale")
    assert isinstance(found, Compute)
    found.params["factor"] = Expr.var("nobody")


def another_guard(module: Module) -> None:
    op_of(module, "add").when = Cond.eq(Expr.var("nobody"), 0)


def another_view(module: Module) -> None:
    found = op_of(module, "add")
    view = found.operands[0]
    assert isinstance(view, View)
    index = view.indices[0]
    found.operands[0] = replace(view, indices=(replace(index, start=Expr.const(6)),))


def another_buffer(module: Module) -> None:
    """The statements stay; what they read is shorter."""
    module.buffers[0].value.type = BufferType(DType.F32, (3,))


def no_buffer(module: Module) -> None:
    del module.buffers[0]


def no_channel(module: Module) -> None:
    module.channels.clear()


def another_channel(module: Module) -> None:
    found = next(op for op in module.walk() if isinstance(op, Send))
    found.operands[0] = Symbol("left")


def no_coordinate(module: Module) -> None:
    """A statement that a scalar guards, of which the header then knows nothing."""
    op_of(module, "add").when = Cond.eq(Expr.var("pos"), 0)
    verify_module(module)
    module.scalars.clear()


def fewer_results(module: Module) -> None:
    next(op for op in module.walk() if isinstance(op, Send)).results.clear()


def other_order(module: Module) -> None:
    """An op comes in front of what it reads."""
    body = module.programs[0].body
    body.ops.insert(1, body.ops.pop(3))


@pytest.mark.parametrize(
    "edit",
    [
        another_kernel, another_parameter,  another_guard, another_view,
        another_buffer, no_buffer, no_channel, another_channel, no_coordinate, fewer_results,
        other_order,
    ],
    ids=lambda edit: edit.__name__,
)  # fmt: skip
def test_an_edit_of_a_verified_program_is_seen(edit: Callable[[Module], None]) -> None:
    module = verified(TILE)
    edit(module)
    for _ in range(2):
        with pytest.raises(MeshcError) as caught:
            verify_module(module)
        assert {found.code for found in caught.value.diagnostics} <= {"invalid-ir", "kernel-views"}


def other_type(module: Module) -> None:
    """Of a value that an op reads."""
    value = module.function.params[0].value
    value.type = replace(value.type, dims=("M",))


def other_result(module: Module) -> None:
    value = op_of(module, "graph.add").results[0]
    value.type = replace(value.type, dims=("M",))


def other_operand(module: Module) -> None:
    """A value of another module."""
    op_of(module, "graph.add").operands[0] = verified(GRAPH).function.params[0].value


@pytest.mark.parametrize(
    "edit", [other_type, other_result, other_operand], ids=lambda edit: edit.__name__
)
def test_an_edit_of_a_verified_function_is_seen(edit: Callable[[Module], None]) -> None:
    module = verified(GRAPH)
    edit(module)
    with pytest.raises(MeshcError):
        verify_module(module)


def test_other_extents_are_seen() -> None:
    """The rule of an op is about an extent of the header."""
    text = GRAPH.replace("%y : f32[N]", "%y : f32[M, N]").replace("f32[N]", "f32[M, N]")
    text = text.replace("graph.add %x, %y : f32[M, N]", "graph.arg_max %x {dim = N} : f32[M]")
    module = verified(text.replace("-> (f32[M, N])", "-> (f32[M])"))
    module.dims["N"] = 2**25
    with pytest.raises(MeshcError, match="f32 counts to"):
        verify_module(module)


def test_what_is_mended_is_right_again() -> None:
    module = verified(TILE)
    found = op_of(module, "scale")
    guard = found.when
    found.when = Cond.eq(Expr.var("nobody"), 0)
    with pytest.raises(MeshcError):
        verify_module(module)
    found.when = guard
    verify_module(module)
