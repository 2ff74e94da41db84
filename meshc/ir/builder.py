"""Building IR: ops at an insertion point, results with inferred types and unique names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from meshc.ir.core import Block, Op
from meshc.ir.module import Module
from meshc.ir.signatures import count_mistake, form_of
from meshc.ir.types import Type
from meshc.ir.values import Value


class Names:
    """Value names in use in one module, so that new ones are unique and still readable."""

    def __init__(self, used: Iterable[str] = ()) -> None:
        self.used = set(used)

    @staticmethod
    def of(module: Module) -> Names:
        """Every name that ``module`` defines."""
        return Names(value.name for value in defined_values(module))

    def fresh(self, wanted: str) -> str:
        """``wanted``, or ``wanted_1``, ``wanted_2``, ... where that is taken."""
        name, count = wanted, 0
        while name in self.used:
            count += 1
            name = f"{wanted}_{count}"
        self.used.add(name)
        return name


class Builder:
    """Adds ops to ``block`` at ``at`` (its end when None) and moves behind each."""

    def __init__(self, module: Module, block: Block, at: int | None = None) -> None:
        self.extents = module.dims
        self.names = Names.of(module)
        self.block = block
        self.at = len(block.ops) if at is None else at

    def add(self, op: Op, *names: str, types: Sequence[Type] | None = None) -> list[Value]:
        """Insert ``op`` with one result per name; returns the results.

        Types come from the op's ``infer`` unless given. Raises ValueError when their number is
        not that of the names, or the op does not have the operands or results that it declares.
        """
        kinds = op.infer(self.extents) if types is None else types
        if kinds is None or len(kinds) != len(names):
            raise ValueError(f"{op.NAME} does not have {len(names)} results of known type")
        op.results = [Value(self.names.fresh(n), k) for n, k in zip(names, kinds, strict=True)]
        mistake = count_mistake(op)
        if mistake is not None:
            raise ValueError(f"{form_of(op)}: {mistake}")
        self.block.ops.insert(self.at, op)
        self.at += 1
        return op.results

    def one(self, op: Op, name: str) -> Value:
        """Insert ``op``, which has a single result, and return that."""
        (result,) = self.add(op, name)
        return result


def defined_values(module: Module) -> list[Value]:
    """Every value of the module: buffers, parameters, block arguments and results, in order."""
    found = [buffer.value for buffer in module.buffers]
    for function in module.functions:
        found += [param.value for param in function.params]
    for block in module.blocks():
        found += block.args
        for op in block.walk():
            found += op.results
            for region in op.regions:
                found += region.args
    return found
