"""merge-csl-buffers: one buffer for what like statements of a CSL program compute in turn."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import ClassVar

from meshc.analysis.layout.liveness import Range, assign_addresses, live_ranges
from meshc.ir.clone import clone_module
from meshc.ir.module import Module
from meshc.ir.ops.tile import Compute
from meshc.ir.values import Value
from meshc.ir.views import View
from meshc.passes.base import Pass
from meshc.support.diagnostics import Diagnostics


@dataclass(frozen=True)
class MergeCslBuffers(Pass):
    """Let scratch buffers that are never needed together be one, if they have one type and the same
    kinds of statements use them in the same places.

    The statements that use them then say the same, so that a PE program has their code once, and
    the data once. Others stay apart: a buffer that is a sum here and a factor there would have to
    lie in other banks than itself.

    Before::

        tile.square_sum %h.ss, %x as [1, 4]
        tile.square_sum %h_1.ss, %x as [1, 4]

    After::

        tile.square_sum %h.ss, %x as [1, 4]
        tile.square_sum %h.ss, %x as [1, 4]
    """

    NAME: ClassVar[str] = "merge-csl-buffers"
    LEVELS: ClassVar[tuple[str, ...]] = ("tile",)
    REQUIRES: ClassVar[frozenset[str]] = frozenset()
    ESTABLISHES: ClassVar[frozenset[str]] = frozenset()
    INVALIDATES: ClassVar[frozenset[str]] = frozenset(
        {"csl_functions", "csl_memory", "csl_registers"}
    )

    def run(self, module: Module, report: Diagnostics) -> Module:
        instead = _merged(module)
        if not instead:
            return module
        given = clone_module(module)
        for op in module.walk():
            op.operands = [
                replace(v, buffer=instead.get(v.buffer, v.buffer)) if isinstance(v, View) else v
                for v in op.operands
            ]
        module.buffers = [b for b in module.buffers if b.value not in instead]
        room = module.the_device().room_bytes
        if assign_addresses(module) > (room if room is not None else math.inf):
            return given
        report.remark("buffers", f"{len(instead)} buffers are merged with others like them")
        return module


def _merged(module: Module) -> dict[Value, Value]:
    """What each buffer that is given up is merged with."""
    ranges, uses = live_ranges(module), _uses(module)
    kept: dict[Hashable, list[tuple[Value, list[Range]]]] = {}
    instead: dict[Value, Value] = {}
    for buffer in module.buffers:
        live = ranges.get(buffer.value)
        if live is None:
            continue
        like = kept.setdefault((buffer.type, uses[buffer.value]), [])
        for other, theirs in like:
            if all(live.last < r.first or r.last < live.first for r in theirs):
                instead[buffer.value] = other
                theirs.append(live)
                break
        else:
            like.append((buffer.value, [live]))
    return instead


def _uses(module: Module) -> dict[Value, frozenset[tuple[str, int]]]:
    """The kinds of statements that use each buffer, and as which operand."""
    found: dict[Value, set[tuple[str, int]]] = {}
    for op in module.walk():
        kind = op.kernel if isinstance(op, Compute) else op.NAME
        for number, view in enumerate(op.views()):
            found.setdefault(view.buffer, set()).add((kind, number))
    return {value: frozenset(kinds) for value, kinds in found.items()}
