"""What the code of a PE program takes of a core, estimated from the statements that are emitted.

The vendor publishes no sizes of instructions, so bytes per statement are a number of the device,
``statement_bytes``, calibrated on a program whose size is known in part. ``runtime_bytes`` are
those of the host's copies and launches, which every program carries. What an estimate may be off
by is added as ``code_margin``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from meshc.backends.csl.tree import syntax_tree as csl
from meshc.devices import Device


@dataclass(frozen=True)
class CodeSize:
    """An estimate in bytes: ``runtime`` for the host's transfers and launches, ``own`` for the
    ``statements`` of the program, and ``margin`` for what both may be off by."""

    statements: int
    runtime: int
    own: int
    margin: int

    @property
    def bytes(self) -> int:
        """All of it."""
        return self.runtime + self.own + self.margin


def code_size(code: Iterable[csl.Statement], device: Device) -> CodeSize:
    """The size of functions and tasks."""
    statements = sum(map(_counted, csl.walk(code)))
    runtime = device.whole("runtime_bytes")
    own = math.ceil(statements * device.real("statement_bytes"))
    return CodeSize(
        statements, runtime, own, math.ceil((runtime + own) * device.real("code_margin"))
    )


def _counted(node: csl.Node) -> int:
    """What stands for a statement: one that does something, a test, the head of a loop or a switch,
    a descriptor that is moved at run time."""
    if isinstance(node, csl.If):
        return sum(test is not None for test, _ in node.arms)
    if isinstance(node, csl.Call):
        return node.function == "@increment_dsd_offset"
    return isinstance(
        node,
        (csl.Do, csl.Assign, csl.Declare, csl.Return, csl.For, csl.While, csl.Switch, csl.Either),
    )
