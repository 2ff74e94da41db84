"""Types after an edit: inferred anew from the operands, in order, through loops."""

from __future__ import annotations

from meshc.ir.core import Block, Op, tensor_type
from meshc.ir.module import Module
from meshc.ir.ops import graph
from meshc.ir.types import TensorType, Type
from meshc.ir.values import Value

_SPREADING = (graph.Add, graph.Mul)


def retype(module: Module) -> list[str]:
    """Set every result type to what its op infers; returns what no longer fits, as words.

    Only the order of dims can have changed. It fits where both sides of a pointwise op run alike,
    and where a loop, the cache and the function's results keep the order they have declared.
    """
    problems = _block(module, module.function.body)
    last = module.function.body.ops[-1]
    for value, wanted in zip(last.tensors(), module.function.result_types, strict=True):
        if value.type != wanted:
            problems.append(f"the function returns {wanted}, not {value.type}")
    return problems


def _block(module: Module, block: Block) -> list[str]:
    problems: list[str] = []
    for op in block.ops:
        if isinstance(op, graph.Repeat):
            problems += _repeat(module, op)
            continue
        if isinstance(op, graph.Fuse):
            problems += _fuse(module, op)
            continue
        kinds = op.infer(module.dims) or []
        for result, kind in zip(op.results, kinds, strict=True):
            result.type = kind
        problems += _fits(op)
    return problems


def _repeat(module: Module, op: graph.Repeat) -> list[str]:
    """The types of a loop are fixed: those of its operands outside must be those inside."""
    body = op.regions[0]
    problems = []
    for position, (outer, inner) in enumerate(zip(op.tensors(), body.args, strict=True)):
        if _slice(op, position, outer) != inner.type:
            problems.append(f"the loop takes {inner.type}, not a slice of {outer.type}")
    problems += _block(module, body)
    for position, (given, outer) in enumerate(zip(body.ops[-1].tensors(), op.results, strict=True)):
        if _slice(op, position, outer) != given.type:
            problems.append(f"the loop gives {given.type}, not a slice of {outer.type}")
    return problems


def _fuse(module: Module, op: graph.Fuse) -> list[str]:
    """What goes into a kernel is what its body takes; what comes out is what the body gives."""
    body = op.regions[0]
    pairs = zip(op.tensors(), body.args, strict=True)
    problems = [f"the kernel takes {b.type}, not {a.type}" for a, b in pairs if a.type != b.type]
    problems += _block(module, body)
    for given, result in zip(body.ops[-1].tensors(), op.results, strict=True):
        result.type = given.type
    return problems


def _slice(op: graph.Repeat, position: int, outer: Value) -> Type:
    kind = tensor_type(outer)
    return kind if position < op.carried else TensorType(kind.dtype, kind.dims[1:])


def _fits(op: Op) -> list[str]:
    if isinstance(op, _SPREADING):
        left, right = (tensor_type(o).dims for o in op.operands)
        if right != tuple(d for d in left if d in right):
            return [f"{op.NAME} meets {list(left)} with {list(right)}"]
    if isinstance(op, graph.Append):
        cache, new = (tensor_type(o).dims for o in op.operands)
        if new != tuple(op.rows if d == op.dim else d for d in cache):
            return [f"the cache {list(cache)} takes no rows {list(new)}"]
    return []
