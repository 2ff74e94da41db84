"""What a pattern of fuse-cluster is: how the ops of a kernel are found, and what it is told."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from meshc.devices import Device
from meshc.ir.core import Op, Operand
from meshc.ir.ops import graph
from meshc.ir.values import Value
from meshc.passes.graph.flow import Flow

Sizes = TypeVar("Sizes")


@dataclass(frozen=True)
class Match(Generic[Sizes]):
    """``ops`` of one kernel, what it takes, by the names of its operands, and what it gives.

    ``at`` is where messages point; ``sizes`` are the extents by which the pattern chooses.
    """

    at: Op
    ops: tuple[Op, ...]
    operands: Mapping[str, Operand]
    outputs: tuple[Value, ...]
    sizes: Sizes

    @property
    def takes(self) -> dict[str, Value]:
        """The tensors among the operands."""
        return {name: v for name, v in self.operands.items() if isinstance(v, Value)}


@dataclass(frozen=True)
class Choice:
    """The op that the ops of a match become, without operands and body, and what is told of it."""

    fuse: graph.Fuse
    remark: str


class DoesNotFit(Exception):
    """Why no kernel of these sizes fits the device, in words."""


class Pattern(ABC, Generic[Sizes]):
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
    def match(self, flow: Flow, op: Any) -> Match[Sizes]:
        """The ops around ``op`` that are this kernel. Raises :class:`Mismatch`."""

    @abstractmethod
    def choose(self, device: Device, match: Match[Sizes], asked: Mapping[str, Any]) -> Choice:
        """How clusters of ``device`` compute it, ``asked`` (``cluster``, ``dataflow``,
        ``resident``, ``heads``) held to. Raises :class:`DoesNotFit`."""
