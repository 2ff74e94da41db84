"""Which dims count experts, which products every core wants whole, and what is computed for rows
that gates send to experts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from meshc.ir.batch import BATCH
from meshc.ir.core import Op, tensor_type
from meshc.ir.functions import Function
from meshc.ir.module import Module
from meshc.ir.ops import graph
from meshc.ir.values import Value


def expert_dims(module: Module) -> frozenset[str]:
    """The dims of all scores of which some are chosen."""
    return frozenset(op.dim for op in module.walk() if isinstance(op, graph.TopK))


def whole_dims(module: Module) -> frozenset[str]:
    """Dims of which every core that has a row has all: experts, among whose scores it chooses, and
    what is cached without heads, which the query heads of all cores share."""
    if not any(attention.headless for attention in module.attention):
        return expert_dims(module)
    lanes = {
        dim
        for op in module.walk()
        if isinstance(op, graph.Append)
        for dim in tensor_type(op.operands[1]).dims
    }
    heads = {attention.query for attention in module.attention}
    return expert_dims(module) | lanes - heads - {BATCH, module.row_dim}


@dataclass(frozen=True)
class Gates:
    """Gates of the experts ``dim``, of which a row goes to ``count``."""

    value: Value
    dim: str
    count: int


@dataclass(frozen=True)
class Routes:
    """What only matters where a gate is not zero: ``by`` has the gates of results of products
    [rows, experts, features] that are weighted by them before anything adds up experts or features,
    ``weighted`` are these weighted values."""

    by: Mapping[Value, Gates] = field(default_factory=dict)
    weighted: frozenset[Value] = frozenset()

    def count_of(self, dim: str) -> int:
        """How many of the experts ``dim`` a row goes to."""
        return next(gates.count for gates in self.by.values() if gates.dim == dim)


def routes_of(module: Module) -> Routes:
    """The products of ``module`` of which experts need the rows alone that they are sent."""
    users: dict[Value, list[Op]] = {}
    makers: dict[Value, Op] = {}
    for op in module.walk():
        makers |= dict.fromkeys(op.results, op)
        for value in dict.fromkeys(op.tensors()):
            users.setdefault(value, []).append(op)
    by: dict[Value, Gates] = {}
    weighted = set()
    for op in module.walk():
        if not isinstance(op, graph.Mul):
            continue
        value, weights = op.tensors()
        gates = _gates(weights, makers)
        if gates is None or not _is_contracted(op.result, gates.dim, users):
            continue
        products = _products(value, gates, op, makers, users)
        if products:
            by |= dict.fromkeys(products, gates)
            weighted.add(op.result)
    return Routes(by, frozenset(weighted))


def _gates(value: Value, makers: Mapping[Value, Op]) -> Gates | None:
    """What ``value`` is the gates of: chosen scores, perhaps times a constant."""
    maker = makers.get(value)
    while isinstance(maker, graph.Scale):
        maker = makers.get(maker.tensors()[0])
    return Gates(value, maker.dim, maker.count) if isinstance(maker, graph.TopK) else None


def _is_contracted(value: Value, dim: str, users: Mapping[Value, Sequence[Op]]) -> bool:
    """Whether the only reader of ``value`` is a product that adds up experts, each of which has a
    matrix."""
    readers = users.get(value, [])
    if len(readers) != 1 or not isinstance(readers[0], graph.Matmul):
        return False
    product = readers[0]
    rights = product.tensors()[1:]
    each = all(dim in tensor_type(right).dims for right in rights)
    return product.operands[0] is value and dim in product.contract and each


def _products(
    value: Value,
    gates: Gates,
    reader: Op,
    makers: Mapping[Value, Op],
    users: Mapping[Value, Sequence[Op]],
) -> list[Value]:
    """The results of products from which ``value`` comes, element by element, to be read by
    ``reader`` alone; nothing where something else stands between."""
    rows = [d for d in tensor_type(gates.value).dims if d != gates.dim]
    found: list[Value] = []
    ahead: list[Value] = [value]
    inside: set[Op] = {reader}
    while ahead:
        one = ahead.pop()
        maker = makers.get(one)
        if maker in inside:
            continue
        if isinstance(maker, graph.Matmul):
            if gates.dim in tensor_type(maker.operands[0]).dims:
                return []
            found += [one] if one not in found else []
            continue
        if not isinstance(maker, (Function, graph.Add, graph.Mul, graph.Scale)):
            return []
        inside.add(maker)
        ahead += [v for v in maker.tensors() if {*rows, gates.dim} <= {*tensor_type(v).dims}]
    values = [*found, *(op.result for op in inside if op is not reader)]
    return found if all(inside.issuperset(users.get(v, [])) for v in values) else []
