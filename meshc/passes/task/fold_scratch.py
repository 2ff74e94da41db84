"""fold-scratch: versions of scratch that lie over each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshc.ir.module import Buffer, Module
from meshc.ir.ops import task
from meshc.passes.base import Pass
from meshc.support.diagnostics import Diagnostics, MeshcError
from meshc.verify.not_overwritten import Versions

_MOST = 3
"""More versions are not tried: a buffer that needs them keeps all."""


@dataclass(frozen=True)
class FoldScratch(Pass):
    """Keep of scratch that layers give one after the other as few versions as can be.

    Each element is given once, so what a layer gives has a place of its own; behind the last task
    that needs it the memory may be taken by a later layer. A buffer keeps so many versions, modulo
    which its first dim is taken, that this is proved.

    Before::

        buffer %x_of_layer : f32[4, 2, 4]

    After::

        buffer %x_of_layer : f32[4, 2, 4] {kept = 2}
    """

    NAME: ClassVar[str] = "fold-scratch"
    LEVELS: ClassVar[tuple[str, ...]] = ("task",)
    REQUIRES: ClassVar[frozenset[str]] = frozenset({"ordered", "one_giver"})
    ESTABLISHES: ClassVar[frozenset[str]] = frozenset({"not_overwritten"})
    INVALIDATES: ClassVar[frozenset[str]] = frozenset()

    def run(self, module: Module, report: Diagnostics) -> Module:
        for buffer in module.buffers:
            buffer.kept = None
        needed = {op.view.buffer for op in module.walk() if isinstance(op, task.Need)}
        versions = Versions(module)
        for buffer in module.buffers:
            if buffer.value in needed and len(buffer.type.shape) > 2 and buffer.type.shape[0] > 1:
                self._fold(versions, buffer)
        return module

    def _fold(self, versions: Versions, buffer: Buffer) -> None:
        for kept in range(1, min(_MOST, buffer.type.shape[0] - 1) + 1):
            buffer.kept = kept
            try:
                versions.check(buffer)
            except MeshcError:
                continue
            return
        buffer.kept = None
