"""Reading rows and attention off a graph, for who makes one: the frontend and the parser.

Nobody else looks: passes read what the header records. The verifier compares.
"""

from __future__ import annotations

from collections.abc import Iterator

from meshc.ir.core import Op, Operand
from meshc.ir.module import Module
from meshc.ir.ops import graph
from meshc.ir.rows import Attention, Rows, attention_mistakes, rows_mistakes
from meshc.ir.types import DType, TensorType
from meshc.ir.values import Value

_BATCH = "B"
_ENDS = (graph.Matmul, graph.Append, graph.Embed, graph.Repeat, graph.Fuse)


def record(module: Module) -> None:
    """Write rows and attention of a graph-level ``module`` into its header, where it has none.

    What would be no sound record is left out: the verifier says what is wrong with such a graph.
    """
    if module.rows is None:
        rows = rows_of(module)
        module.rows = None if any(rows_mistakes(rows, module.dims)) else rows
    if not module.attention:
        found = tuple(dict.fromkeys(one for one, _ in attention_of(module)))
        sound = not any(attention_mistakes(found, module.rows, module.dims))
        module.attention = found if sound else ()


def rows_of(module: Module) -> Rows | None:
    """Rows and capacity of a graph: those of its caches; without caches the first dim of the first
    input, or the last where that holds token ids. A vector has no rows but its batch, if any."""
    for op in module.walk():
        if isinstance(op, graph.Append) and op.rows and op.dim:
            return Rows(op.rows, op.dim)
    inputs = (p.value.type for f in module.functions for p in f.params if p.role == "in")
    for kind in inputs:
        if isinstance(kind, TensorType) and kind.dims:
            dim = _row_dim(kind)
            return Rows(dim, dim) if dim else None
    return None


def _row_dim(kind: TensorType) -> str:
    """The dim of an input that counts rows, or an empty text."""
    inner = [d for d in kind.dims if d != _BATCH]
    if kind.dtype is DType.I32 and inner:
        return inner[-1]
    if len(inner) > 1:
        return inner[0]
    return _BATCH if _BATCH in kind.dims else ""


def attention_of(module: Module) -> Iterator[tuple[Attention, graph.Matmul]]:
    """Every attention of a graph with the product that makes its scores, in text order.

    It is a product with what an ``append`` gives, contracting one dim that is not the cached one,
    whose result comes to a softmax over the cached dim; between these may be scales, sums,
    transposes and all else that is no product.
    """
    makers = {result: op for op in module.walk() for result in op.results}
    weighed = {
        (value, op.dim)
        for op in module.walk()
        if isinstance(op, graph.Softmax)
        for value in _sources(makers, op)
    }
    tokens = {_BATCH, *(part.dim for part in module.token_parts)}
    for op in module.walk():
        if not isinstance(op, graph.Matmul) or len(op.contract) != 1:
            continue
        for right, result in zip(op.operands[1:], op.results, strict=False):
            cache = _cache(makers, right)
            if cache is not None and (result, cache.dim) in weighed - {(result, op.contract[0])}:
                yield _attention(op, right, cache, tokens), op


def _sources(makers: dict[Value, Op], softmax: graph.Softmax) -> set[Value]:
    """Results of products that reach the operand of ``softmax``."""
    pending = list(softmax.tensors())
    seen = set(pending)
    while pending:
        op = makers.get(pending.pop())
        if op is not None and not isinstance(op, _ENDS):
            new = [value for value in op.tensors() if value not in seen]
            pending += new
            seen.update(new)
    return {value for value in seen if isinstance(makers.get(value), graph.Matmul)}


def _cache(makers: dict[Value, Op], value: Operand) -> graph.Append | None:
    """The append whose result ``value`` is, perhaps scaled, transposed or normalised."""
    op = makers.get(value) if isinstance(value, Value) else None
    while op is not None and not isinstance(op, _ENDS) and op.tensors():
        op = makers.get(op.tensors()[0])
    return op if isinstance(op, graph.Append) else None


def _attention(
    op: graph.Matmul, right: Operand, cache: graph.Append, tokens: set[str]
) -> Attention:
    """The dims of the product ``op`` of queries with the cached keys ``right``; ``tokens`` are
    dims of the batch and of its parts."""
    (lane,) = op.contract
    if len(op.group) == 2:
        return Attention(op.group[0], op.group[1], lane, cache.dim)
    apart = {cache.dim, cache.rows, lane, *tokens}
    queries = [d for d in _dims(op.operands[0]) if d not in apart]
    shared = [d for d in queries if d in _dims(right)]
    if shared:
        return Attention(shared[-1], shared[-1], lane, cache.dim)
    return Attention(queries[-1] if queries else "", "", lane, cache.dim)


def _dims(value: Operand) -> tuple[str, ...]:
    kind = value.type if isinstance(value, Value) else None
    return kind.dims if isinstance(kind, TensorType) else ()
