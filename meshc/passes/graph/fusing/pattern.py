"""What a pattern of fuse-chunk is: how the ops of a kernel are found."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from meshc.ir.core import Op, Operand
from meshc.ir.values import Value
from meshc.passes.graph.flow import Flow


@dataclass(frozen=True)
class Match:
    """``ops`` of one kernel, what it takes, by the names of its operands, and what it gives: a
    ``partial`` one a rank's part of a sum over ranks. ``at`` is where messages point."""

    at: Op
    ops: tuple[Op, ...]
    operands: Mapping[str, Operand]
    outputs: tuple[Value, ...]
    partial: bool = False

    @property
    def takes(self) -> dict[str, Value]:
        """The tensors among the operands."""
        return {name: v for name, v in self.operands.items() if isinstance(v, Value)}


class Pattern(ABC):
    """The ops that one kernel computes.

    ``TITLE`` is what messages call it. ``MARKS`` are the classes of the op that it is looked for
    at, one that every kernel of this kind has.
    """

    NAME: ClassVar[str]
    TITLE: ClassVar[str]
    MARKS: ClassVar[tuple[type[Op], ...]]

    def marked(self, flow: Flow, op: Op) -> bool:
        """Whether ``op``, one of ``MARKS``, is where this kernel is looked for."""
        return True

    @abstractmethod
    def match(self, flow: Flow, op: Any) -> Match:
        """The ops around ``op`` that are this kernel. Raises :class:`Mismatch`."""
