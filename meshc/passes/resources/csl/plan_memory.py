"""plan-csl-memory: addresses of buffers and sizes of scratch in the memory of a core."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshc.analysis.csl.banks import buffer_bytes, shifts
from meshc.analysis.csl.memory import scratch_of
from meshc.analysis.csl.shared_buffers import place, worth_sharing
from meshc.analysis.layout.liveness import align
from meshc.ir.module import Module
from meshc.passes.base import Pass
from meshc.support.diagnostics import Diagnostics


@dataclass(frozen=True)
class PlanCslMemory(Pass):
    """Give buffers memory, and kernels the scratch that they share.

    A CSL program declares its buffers one by one, so what ``plan-memory`` says of addresses is
    replaced. Each buffer has memory of its own, unless those that may share it take more than a
    quarter of a core's: then buffers of one type that are never needed together are parts of one
    array. ``share`` says ``always`` or ``never`` instead of ``large``. Sums of products in f32
    begin an element later than a multiple of sixteen bytes, in other banks than the factors.
    Addresses are those of the declarations in their order; the vendor's compiler places them anew.

    Before::

        mesh y = 1, x = 1
        buffer %x : f16[1, 8] {role = in}

    After::

        mesh y = 1, x = 1
        scratch f32 = 128
        buffer %x : f16[1, 8] {role = in, address = 0}
    """

    NAME: ClassVar[str] = "plan-csl-memory"
    LEVELS: ClassVar[tuple[str, ...]] = ("tile",)
    REQUIRES: ClassVar[frozenset[str]] = frozenset({"csl_products"})
    ESTABLISHES: ClassVar[frozenset[str]] = frozenset({"csl_memory"})
    INVALIDATES: ClassVar[frozenset[str]] = frozenset({"memory_planned"})

    share: str = "large"

    def run(self, module: Module, report: Diagnostics) -> Module:
        if self.share == "always" or (self.share == "large" and worth_sharing(module)):
            addresses, taken = place(module)
            for buffer in module.buffers:
                buffer.address = addresses[buffer.value]
            report.remark("buffers", f"{buffer_bytes(module) - taken} bytes of buffers are shared")
            module.resources["scratch"] = scratch_of(module)
            return module
        moved = shifts(module)
        top = 0
        for buffer in module.buffers:
            buffer.address = top + moved.get(buffer.value.name, 0) * buffer.type.dtype.bytes
            top = align(buffer.address + buffer.type.bytes)
        module.resources["scratch"] = scratch_of(module)
        return module
