"""Editing IR in place: insert, replace, erase and rename, with uses kept in order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from meshc.ir.builder import Builder, Names
from meshc.ir.core import Block, Op, Operand
from meshc.ir.module import Module
from meshc.ir.values import Value
from meshc.ir.views import View


class Rewriter:
    """Edits one module. Positions are found anew at each edit: bodies are short."""

    def __init__(self, module: Module) -> None:
        self.module = module

    def blocks(self) -> Iterator[Block]:
        """Every block, outer before inner."""
        pending = self.module.blocks()
        while pending:
            block = pending.pop(0)
            yield block
            pending += [region for op in block.ops for region in op.regions]

    def block_of(self, op: Op) -> Block:
        """The block that holds ``op``; ValueError when it is not in the module."""
        for block in self.blocks():
            if any(known is op for known in block.ops):
                return block
        raise ValueError(f"{op.NAME} is not in module '{self.module.name}'")

    def users(self, value: Value) -> list[Op]:
        """Ops with ``value``, or a view of it, among their operands, in text order."""
        return [op for op in self.module.walk() if any(_uses(o, value) for o in op.operands)]

    def before(self, op: Op) -> Builder:
        """A builder that inserts in front of ``op``."""
        block = self.block_of(op)
        return Builder(self.module, block, _position(block, op))

    def after(self, op: Op) -> Builder:
        """A builder that inserts behind ``op``."""
        block = self.block_of(op)
        return Builder(self.module, block, _position(block, op) + 1)

    def replace_uses(self, changes: Mapping[Value, Value]) -> None:
        """Use the new values wherever the old ones were used; chains of changes are followed."""
        for op in self.module.walk():
            op.operands = [_changed(operand, changes) for operand in op.operands]

    def replace_op(self, op: Op, values: Sequence[Value]) -> None:
        """Erase ``op``; what used its results uses ``values`` instead."""
        self.replace_uses(dict(zip(op.results, values, strict=True)))
        self.erase(op)

    def erase(self, op: Op) -> None:
        """Remove ``op``. Raises ValueError when a result is still used."""
        for result in op.results:
            if self.users(result):
                raise ValueError(f"{result} is still used")
        block = self.block_of(op)
        del block.ops[_position(block, op)]

    def rename(self, value: Value, wanted: str) -> None:
        """Give ``value`` a unique name like ``wanted``; a buffer's ports and views follow."""
        if value.name != wanted:
            value.name = Names.of(self.module).fresh(wanted)


def _position(block: Block, op: Op) -> int:
    return next(i for i, known in enumerate(block.ops) if known is op)


def _uses(operand: Operand, value: Value) -> bool:
    return operand is value or (isinstance(operand, View) and operand.buffer is value)


def _changed(operand: Operand, changes: Mapping[Value, Value]) -> Operand:
    if isinstance(operand, View):
        new = _final(operand.buffer, changes)
        return operand if new is operand.buffer else replace(operand, buffer=new)
    return _final(operand, changes) if isinstance(operand, Value) else operand


def _final(value: Value, changes: Mapping[Value, Value]) -> Value:
    while value in changes:
        value = changes[value]
    return value
