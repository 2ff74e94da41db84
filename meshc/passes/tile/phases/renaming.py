"""Other names for what a tile program declares, so that it can stand beside another one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from meshc.ir.affine import Expr
from meshc.ir.core import Op, Operand
from meshc.ir.module import Module, Port
from meshc.ir.ops.tile import Compute, For, Sweep
from meshc.ir.views import Index, Point, Range, Symbol, View


@dataclass(frozen=True)
class Names:
    """What becomes of names: ``scalars`` of runs and loop variables, ``channels`` and ``dims``."""

    scalars: Mapping[str, str] = field(default_factory=dict)
    channels: Mapping[str, str] = field(default_factory=dict)
    dims: Mapping[str, str] = field(default_factory=dict)


def free(name: str, taken: Iterable[str]) -> str:
    """``name``, or with the first number behind it that makes it none of ``taken``."""
    found, count, known = name, 0, set(taken)
    while found in known:
        count += 1
        found = f"{name}_{count}"
    return found


def rename(module: Module, names: Names) -> None:
    """Give scalars, loop variables, channels and dims of a tile-level ``module`` other names."""
    values = {old: Expr.var(new) for old, new in names.scalars.items()}
    for op in module.walk():
        _rename_op(op, names, values)
    module.ports = [_port(port, names) for port in module.ports]
    module.scalars = {names.scalars.get(n, n): span for n, span in module.scalars.items()}
    module.multiples = {names.scalars.get(n, n): step for n, step in module.multiples.items()}
    module.dims = {names.dims.get(n, n): extent for n, extent in module.dims.items()}
    for channel in module.channels:
        channel.name = names.channels.get(channel.name, channel.name)


def _rename_op(op: Op, names: Names, values: Mapping[str, Expr]) -> None:
    op.operands = [_operand(operand, names, values) for operand in op.operands]
    if op.when is not None:
        op.when = op.when.substitute(values)
    if isinstance(op, Compute):
        op.params = {
            name: value.substitute(values) if isinstance(value, Expr) else value
            for name, value in op.params.items()
        }
    elif isinstance(op, For):
        op.var = names.scalars.get(op.var, op.var)
        op.count = op.count.substitute(values)
        op.each = tuple(names.scalars.get(name, name) for name in op.each)
    elif isinstance(op, Sweep):
        op.rank = op.rank.substitute(values)


def _operand(operand: Operand, names: Names, values: Mapping[str, Expr]) -> Operand:
    if isinstance(operand, Symbol):
        return Symbol(names.channels.get(operand.name, operand.name))
    if not isinstance(operand, View):
        return operand
    return replace(
        operand,
        indices=tuple(_index(index, values) for index in operand.indices),
        reshape=tuple(extent.substitute(values) for extent in operand.reshape),
    )


def _index(index: Index, values: Mapping[str, Expr]) -> Index:
    if isinstance(index, Point):
        return Point(index.at.substitute(values))
    if isinstance(index, Range):
        return Range(index.start.substitute(values), index.extent.substitute(values), index.step)
    return index


def _port(port: Port, names: Names) -> Port:
    """What a lane holds depends on the core and the lane, so nothing else is renamed in a port."""
    dims = tuple(names.dims.get(dim, dim) for dim in port.tensor.dims)
    return replace(port, tensor=replace(port.tensor, dims=dims))
