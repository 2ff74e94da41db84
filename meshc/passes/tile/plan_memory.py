"""plan-memory: an address for every buffer, within the memory of a core."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshc.analysis.layout.liveness import assign_addresses, largest_buffers
from meshc.ir.module import Module
from meshc.passes.base import Pass
from meshc.support.diagnostics import Diagnostics, fail
from meshc.support.plmr import violates


@dataclass(frozen=True)
class PlanMemory(Pass):
    """Place buffers so that those alive at once do not overlap (M of PLMR).

    Weights, caches, inputs and outputs keep their place through the whole phase; scratch shares
    room as its live ranges allow. The device's reserve for code and stack is left free.

    Before::

        buffer %x : f32[4] {role = in}
        buffer %y : f32[3] {role = out}

    After::

        buffer %x : f32[4] {role = in, address = 0}
        buffer %y : f32[3] {role = out, address = 16}
    """

    NAME: ClassVar[str] = "plan-memory"
    LEVELS: ClassVar[tuple[str, ...]] = ("tile",)
    REQUIRES: ClassVar[frozenset[str]] = frozenset()
    ESTABLISHES: ClassVar[frozenset[str]] = frozenset({"memory_planned"})
    INVALIDATES: ClassVar[frozenset[str]] = frozenset({"csl_memory"})

    def run(self, module: Module, report: Diagnostics) -> Module:
        used = assign_addresses(module)
        room = module.the_device().room_bytes
        if room is not None and used > room:
            explain_shortfall(module, used, room)
        limit = f" of {room}" if room is not None else ""
        report.remark("memory", f"{used}{limit} bytes of each core's memory are used")
        return module


def explain_shortfall(module: Module, used: int, room: int) -> None:
    """Refuse with the numbers: the core, its buffers, the bytes short."""
    mesh = module.the_mesh()
    notes = [
        f"buffer '{b.value.name}' : {b.type} takes {b.type.bytes} bytes"
        for b in largest_buffers(module)
    ]
    device = module.the_device()
    notes.append(f"{device.reserved_bytes} bytes are kept for {device.reserved_for}")
    notes.append(violates("M"))
    fail(
        "does-not-fit",
        f"every core of the {mesh} mesh needs {used} bytes for buffers but has {room}: "
        f"{used - room} bytes short",
        notes=notes,
        help="use a larger mesh, fewer layers (--layers), a shorter sequence (--seq) or f16",
    )
