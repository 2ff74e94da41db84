"""Whether a program fits the cores of a mesh, and what takes their memory: the plans that the
compiler makes, without the files."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from meshc.analysis.csl.memory import late
from meshc.backends import csl
from meshc.backends.request import USUAL_TARGET, CompileRequest
from meshc.backends.target import target_for
from meshc.backends.target_options import CslOptions
from meshc.driver.compiling import tile_program
from meshc.driver.models import LoadedModel
from meshc.ir.module import Buffer, Module
from meshc.passes.manager import PassManager
from meshc.pipelines import resource_passes
from meshc.support.diagnostics import Diagnostics

_GROUPS = {"weight": "weights", "state": "caches"}


@dataclass(frozen=True)
class Fit:
    """A program that fits its cores, which all have the same memory.

    ``uses`` are the bytes of a core by what takes them, in all its memory where that is limited;
    ``buffers`` those of each buffer. ``spare`` bytes more of buffers would still be no reason to
    refuse it.
    """

    module: Module
    uses: dict[str, int]
    buffers: dict[str, int]
    spare: int


def planned(loaded: LoadedModel, phase: str, request: CompileRequest) -> Fit:
    """The program of ``phase`` for the device of ``request``, whose memory is limited: emitted CSL
    where the device has that, else by the plan of the tile level. It is not verified.

    Raises what the passes and the back end do, of ``NO_ROOM`` where it does not fit.
    """
    device = request.the_device()
    target = USUAL_TARGET if device.csl_arch is None else target_for(device)
    module = tile_program(loaded, phase, request.changed(target=target), Diagnostics())
    return fit_of(module, request.options_of(CslOptions).portable, verified=False)


def fit_of(
    module: Module, portable: bool = False, short: bool = False, verified: bool = True
) -> Fit:
    """The same of a tile-level ``module`` whose memory is planned, on its device, whose memory may
    have no limit; ``short`` lets code and scratch of CSL take more than is left, ``verified`` is
    that of the pass manager. Raises what passes do that assign resources, and
    ``csl-memory-full``."""
    numbers = module.the_device()
    room, size = numbers.data_bytes, numbers.memory_bytes
    top = max((b.address or 0) + b.type.bytes for b in module.buffers)
    if numbers.csl_arch is None or room is None or size is None:
        buffers = {b.value.name: b.type.bytes for b in module.buffers}
        uses = _by_role(module, buffers)
        uses["other buffers"] = top - uses["weights"] - uses["caches"]
        if room is None or size is None:
            return Fit(module, uses, buffers, sys.maxsize)
        uses |= {numbers.reserved_for: size - room, "left": room - top}
        return Fit(module, uses, buffers, room - top)
    module = PassManager(resource_passes(portable), verified=verified).run(module)
    memory = csl.core_memory(module, portable)
    if not short:
        memory.check()
    buffers = {b.value.name: _bytes(b) for b in module.buffers}
    uses = _by_role(module, buffers)
    uses["other buffers"] = memory.of("buffer") - uses["weights"] - uses["caches"]  # may be shared
    uses |= {
        "scratch": memory.of("scratch"),
        "tables": memory.of("table"),
        "variables": memory.of("variable"),
        "padding": memory.padding,
        "code (estimated)": memory.code.bytes,
        "left": memory.left,
    }
    return Fit(module, uses, buffers, min(room - top, memory.left))


def _bytes(buffer: Buffer) -> int:
    """Bytes of a buffer in CSL, with what lies unused before it."""
    return buffer.type.bytes + late(buffer) * buffer.type.dtype.bytes


def _by_role(module: Module, sizes: dict[str, int]) -> dict[str, int]:
    """Bytes of weights, of what is kept from run to run, and of all other buffers."""
    found = dict.fromkeys((*_GROUPS.values(), "other buffers"), 0)
    for buffer in module.buffers:
        found[_GROUPS.get(buffer.role, "other buffers")] += sizes[buffer.value.name]
    return found
