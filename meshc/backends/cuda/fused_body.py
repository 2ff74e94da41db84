"""Reading the body of a fused op."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from meshc.ir.core import Op, Operand, tensor_type
from meshc.ir.ops import graph
from meshc.ir.values import Value
from meshc.support.diagnostics import fail

OpType = TypeVar("OpType", bound=Op)


class Body:
    """The ops of a fused op, and which tensor outside each of its values is."""

    def __init__(self, op: graph.Fuse, outer: Mapping[Value, str]) -> None:
        self.op = op
        (self.block,) = op.regions
        self.names: dict[Value, str] = {}
        for argument, operand in zip(self.block.args, op.operands, strict=True):
            if isinstance(operand, Value):
                self.names[argument] = outer.get(operand, "")

    def all(self, kind: type[OpType]) -> list[OpType]:
        """Ops of a kind, in order."""
        return [op for op in self.block.ops if isinstance(op, kind)]

    def one(self, kind: type[OpType]) -> OpType:
        """The one op of a kind."""
        (found,) = self.all(kind)
        return found

    def name(self, op: Op, place: int) -> str:
        """The tensor outside that is an operand of ``op``."""
        value = op.operands[place]
        return self.names[value] if isinstance(value, Value) else ""

    def operand(self, op: Op, place: int) -> Operand:
        """What outside is an operand of ``op`` inside."""
        return self.op.operands[self.block.args.index(value_of(op, place))]

    def inputs(self, first: int, end: int | None = None) -> list[str]:
        """Tensors outside in these places among the operands, whose order :class:`graph.Fuse`
        says."""
        return [self.names[argument] for argument in self.block.args[first:end]]

    def users(self, value: Value, kind: type[OpType]) -> list[OpType]:
        """Ops of a kind that take ``value``."""
        return [op for op in self.all(kind) if value in op.operands]


def value_of(op: Op, place: int = 0) -> Value:
    """The value in this place among the operands."""
    found = op.operands[place]
    assert isinstance(found, Value)
    return found


def check_dims(op: graph.Fuse, place: int, dims: tuple[str, ...], ranks: set[int]) -> None:
    """A weight is packed by the order of its dims, which are as many as one of ``ranks``."""
    given = tensor_type(op.operands[place]).dims
    if given != dims or len(dims) not in ranks:
        fail(
            "cuda-shape",
            f"weight {op.operands[place]} of the {op.kernel} is over {list(given)}, in whose order "
            "it is not packed",
            op.span,
            help="hidden before heads before lanes, as in the library's models",
        )
