"""Definitions and uses of one module, asked for by the matchers of fuse-chunk."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import TypeVar

from meshc.ir.core import Block, Op, Operand, tensor_type
from meshc.ir.module import Module
from meshc.ir.ops import graph, ranks
from meshc.ir.origins import origins
from meshc.ir.values import Value

OpType = TypeVar("OpType", bound=Op)


class Mismatch(Exception):
    """Why ops are no part of a kernel, in words, and the op where this shows."""

    def __init__(self, words: str, op: Op) -> None:
        super().__init__(words)
        self.op = op


class Flow:
    """Who makes a value, who reads it, and which parameter it is."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.params = origins(module)
        self.makers: dict[Value, Op] = {}
        self.readers: dict[Value, list[Op]] = {}
        for op in module.walk():
            self.makers.update(dict.fromkeys(op.results, op))
            for value in dict.fromkeys(op.tensors()):
                self.readers.setdefault(value, []).append(op)

    def role(self, value: Operand) -> str:
        """``weight``, ``state``, ``in`` where ``value`` is (a slice of) a parameter, else empty."""
        param = self.params.get(value) if isinstance(value, Value) else None
        return "" if param is None else param.role

    def maker(self, value: Operand, cls: type[OpType], what: str, at: Op) -> OpType:
        """The op of class ``cls`` that makes ``value``, called ``what`` in messages."""
        found = self.makers.get(value) if isinstance(value, Value) else None
        if not isinstance(found, cls):
            given = found.NAME if found is not None else "outside"
            raise Mismatch(f"{what} {value} comes from {given}, not {cls.NAME}", found or at)
        return found

    def reader(self, value: Value, cls: type[OpType], what: str, at: Op) -> OpType:
        """The only op that reads ``value``, of class ``cls``."""
        found = self.readers.get(value, [])
        if len(found) != 1 or not isinstance(found[0], cls):
            given = ", ".join(op.NAME for op in found) or "nothing"
            raise Mismatch(f"{what} {value} is read by {given}, not one {cls.NAME}", at)
        return found[0]

    def weight(self, value: Operand, at: Op) -> Value:
        """``value``, which must be (a slice of) a weight, so that it can be packed when loaded."""
        if not isinstance(value, Value) or self.role(value) != "weight":
            raise Mismatch(f"{value} is no weight", at)
        return value

    def extent(self, dims: Iterable[str]) -> int:
        """Product of the extents of ``dims``."""
        return prod(self.module.dims[d] for d in dims)


def biased(flow: Flow, value: Operand) -> tuple[Operand, tuple[graph.Add, ...]]:
    """What ``value`` is before a bias is added to it, and the op that does, if there is one."""
    op = flow.makers.get(value) if isinstance(value, Value) else None
    if isinstance(op, graph.Add) and flow.role(op.operands[1]) == "weight":
        return op.operands[0], (op,)
    return value, ()


def unbiased(flow: Flow, value: Value) -> tuple[Value, tuple[graph.Add, ...]]:
    """``value`` with a bias added, where its only reader does that, and the op."""
    readers = flow.readers.get(value, [])
    if len(readers) == 1 and isinstance(readers[0], graph.Add):
        op = readers[0]
        if op.operands[0] is value and flow.role(op.operands[1]) == "weight":
            return op.result, (op,)
    return value, ()


def multiplied(flow: Flow, value: Value) -> tuple[Value, tuple[graph.Scale, ...]]:
    """``value`` times a constant, where its only reader is that product, and the op."""
    readers = flow.readers.get(value, [])
    if len(readers) == 1 and isinstance(readers[0], graph.Scale):
        return readers[0].result, (readers[0],)
    return value, ()


@dataclass(frozen=True)
class Entry:
    """What a block reads: ``x``, the residual, with the ``norm`` over ``dim`` in the block; or what
    is normed already where a sum over ranks was fused with residual and norm."""

    x: Operand
    dim: str
    norm: graph.RmsNorm | None

    @property
    def ops(self) -> tuple[Op, ...]:
        """The norm, if the block has it."""
        return () if self.norm is None else (self.norm,)

    @property
    def operands(self) -> dict[str, Operand]:
        """The operands by the names that kernels know."""
        if self.norm is None:
            return {"normed": self.x}
        return {"residual": self.x, "norm": self.norm.operands[1]}


def entry_of(flow: Flow, value: Operand, dim: str, at: Op) -> Entry:
    """Where the block begins that reads ``value``, which a norm over ``dim`` gives."""
    maker = flow.makers.get(value) if isinstance(value, Value) else None
    if isinstance(maker, ranks.AllReduceResidualRmsNorm) and value is maker.results[0]:
        if maker.dim != dim:
            raise Mismatch(f"{maker.NAME} {value} is over {maker.dim}, not {dim}", maker)
        flow.weight(maker.operands[2], maker)
        return Entry(value, dim, None)
    norm = norm_of(flow, value, dim, at)
    return Entry(norm.operands[0], dim, norm)


def residual(flow: Flow, value: Value, entry: Entry, at: Op) -> graph.Add | None:
    """The op that adds ``value`` to what the norm of ``entry`` has read; None where ``value`` is a
    rank's part of a sum over ranks, behind which that is added."""
    readers, x = flow.readers.get(value, []), entry.x
    if readers and all(_completes(reader, value, entry) for reader in readers):
        return None
    if entry.norm is None:
        words = "where ranks have normed together, what a block gives is a part of their next sum"
        raise Mismatch(words, readers[0] if readers else at)
    op = flow.reader(value, graph.Add, "the output", at)
    if not any(o is x for o in op.operands):
        other = next(o for o in op.operands if o is not value)
        what = "the bias" if flow.role(other) == "weight" else "what the norm does not read:"
        raise Mismatch(f"{op.NAME} {op.result} adds {what} {other}", op)
    if set(dims_of(value)) != set(dims_of(x)):
        raise Mismatch(f"{value} has other dims than {x}, to which it is added", op)
    return op


def _completes(reader: Op, value: Value, entry: Entry) -> bool:
    """Whether ``reader`` completes ``value`` over ranks or, where a loop was turned, hands it to
    the next round, which does."""
    if isinstance(reader, ranks.AllReduceResidualRmsNorm):
        return reader.operands[0] is value and reader.operands.count(value) == 1
    handed = entry.norm is None and isinstance(reader, graph.Yield)
    return handed or isinstance(reader, ranks.AllReduce)


def norm_of(flow: Flow, value: Operand, dim: str, at: Op) -> graph.RmsNorm:
    """The norm over ``dim``, with a weight as its gain, that gives ``value``."""
    norm = flow.maker(value, graph.RmsNorm, "the input", at)
    if (*norm.also, norm.dim) != (dim,):
        over = ", ".join((*norm.also, norm.dim))
        raise Mismatch(f"{norm.NAME} {norm.result} is over {over}, not {dim}", norm)
    flow.weight(norm.operands[1], norm)
    return norm


def only_dim(op: graph.Matmul) -> str:
    """The dim that a product contracts, which is one."""
    if len(op.contract) != 1:
        raise Mismatch(f"{op.NAME} {op.results[0]} contracts {', '.join(op.contract)}", op)
    return op.contract[0]


def dims_of(value: Operand) -> tuple[str, ...]:
    """Dims of the tensor ``value``."""
    return tensor_type(value).dims


def block_with(module: Module, op: Op) -> Block:
    """The block that holds ``op``."""
    pending = module.blocks()
    while pending:
        block = pending.pop()
        if any(known is op for known in block.ops):
            return block
        pending += [region for known in block.ops for region in known.regions]
    raise ValueError(f"{op.NAME} is not in the module")
