"""Which values of the mesh level are still read after an op, across the bodies of loops."""

from __future__ import annotations

from meshc.ir.core import Block, Op
from meshc.ir.values import Value


class Lifetimes:
    """Reads of all values of a function.

    A value that a loop body reads from outside is needed by every round of the loop, so it lives at
    least as long as the loop does.
    """

    def __init__(self, body: Block) -> None:
        self._outermost = body
        self._home: dict[Value, Block] = {}
        self._last: dict[Value, int] = {}
        self._place: dict[Op, tuple[Block, int]] = {}
        self._around: dict[Block, Op] = {}
        self._inside: dict[Op, set[Value]] = {}
        self._readers: dict[Value, list[Op]] = {}
        self._collect(body)

    def _collect(self, block: Block) -> set[Value]:
        """Record ``block``; the values that it reads from outside."""
        self._home.update(dict.fromkeys(block.args, block))
        found: set[Value] = set()
        for index, op in enumerate(block.ops):
            self._place[op] = block, index
            self._inside[op] = set()
            for value in op.tensors():
                self._readers.setdefault(value, []).append(op)
            for region in op.regions:
                self._around[region] = op
                self._inside[op] |= self._collect(region)
            read = self._inside[op] | set(op.tensors())
            self._last.update(dict.fromkeys(read, index))
            self._home.update(dict.fromkeys(op.results, block))
            found |= read
        return {value for value in found if self._home.get(value) is not block}

    def only_reader(self, value: Value) -> Op | None:
        """The op that reads ``value``, where there is one."""
        readers = self._readers.get(value, [])
        return readers[0] if len(readers) == 1 else None

    def read_after(self, value: Value, op: Op) -> bool:
        """Whether ``value`` is read once ``op`` is done: later, or in a later round of a loop.

        Of a loop itself, what its body reads from outside counts as read after it has begun.
        """
        home = self._home.get(value, self._outermost)
        block, index = self._place[op]
        while block is not home:
            if block is self._outermost:
                return False  # a value of a loop that is over
            op = self._around[block]
            block, index = self._place[op]
        return self._last.get(value, -1) > index or value in self._inside[op]
