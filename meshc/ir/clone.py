"""Deep copies of modules: new values and ops, frozen parts shared."""

from __future__ import annotations

from dataclasses import replace

from meshc.ir.core import Block, Op, Operand
from meshc.ir.module import Function, Module, Param, Port, Program
from meshc.ir.ops.tile import Compute
from meshc.ir.values import Value
from meshc.ir.views import View

ValueMap = dict[Value, Value]


def clone_module(module: Module) -> Module:
    """A module that shares nothing mutable with ``module``."""
    values: ValueMap = {}
    copy = replace(
        module,
        dims=dict(module.dims),
        scalars=dict(module.scalars),
        multiples=dict(module.multiples),
        paired=dict(module.paired),
        options=dict(module.options),
        resources={name: dict(numbers) for name, numbers in module.resources.items()},
        holds=set(module.holds),
    )
    copy.buffers = [replace(b, value=_fresh(b.value, values)) for b in module.buffers]
    copy.constants = dict(module.constants)
    copy.channels = [replace(channel) for channel in module.channels]
    copy.ports = [_port(port, values) for port in module.ports]
    copy.functions = [_function(function, values) for function in module.functions]
    copy.programs = [Program(p.name, clone_block(p.body, values)) for p in module.programs]
    return copy


def clone_block(block: Block, values: ValueMap) -> Block:
    """A copy of ``block``; ``values`` maps what is defined outside and takes what is inside."""
    copy = Block([_fresh(argument, values) for argument in block.args])
    copy.ops = [clone_op(op, values) for op in block.ops]
    return copy


def clone_op(op: Op, values: ValueMap) -> Op:
    """A copy of ``op`` whose operands are looked up in ``values`` where they are there."""
    copy = replace(
        op,
        operands=[_operand(operand, values) for operand in op.operands],
        results=[],
        regions=[],
    )
    if isinstance(copy, Compute):
        copy.params = dict(copy.params)
    copy.results = [_fresh(result, values) for result in op.results]
    copy.regions = [clone_block(region, values) for region in op.regions]
    return copy


def _function(function: Function, values: ValueMap) -> Function:
    params = [Param(_fresh(p.value, values), p.role) for p in function.params]
    body = clone_block(function.body, values)
    return Function(function.name, params, list(function.result_types), body)


def _port(port: Port, values: ValueMap) -> Port:
    return replace(port, buffer=values.get(port.buffer, port.buffer))


def _operand(operand: Operand, values: ValueMap) -> Operand:
    if isinstance(operand, Value):
        return values.get(operand, operand)
    if isinstance(operand, View):
        return replace(operand, buffer=values.get(operand.buffer, operand.buffer))
    return operand


def _fresh(value: Value, values: ValueMap) -> Value:
    copy = Value(value.name, value.type)
    values[value] = copy
    return copy
