"""What the program of a module takes of a core, whether or not a core has it."""

from __future__ import annotations

from dataclasses import dataclass

from meshc.analysis.csl.banks import buffer_bytes
from meshc.analysis.csl.joined_transfers import Transfers
from meshc.backends.csl.pe.core_memory import CoreMemory
from meshc.backends.csl.pe.pe_file import check_kernels, kernels_of, pe_file
from meshc.backends.csl.spelling.variables import bytes_of, padding
from meshc.backends.csl.timing.breakdown import Prediction, prediction
from meshc.backends.csl.timing.cases import Cases
from meshc.devices.csl import targets
from meshc.ir.module import Module
from meshc.ir.ops.tile import Compute
from meshc.support.diagnostics import Diagnostic, MeshcError


@dataclass(frozen=True)
class Needs:
    """``bytes`` of buffers and scratch and what is ``predicted`` of the run, None where there are
    several; ``refused`` says why the program is not emitted."""

    bytes: int
    predicted: Prediction | None
    refused: Diagnostic | None = None


def core_memory(module: Module, portable: bool = False) -> CoreMemory:
    """What the program of ``module`` takes of a core, whether or not it has that, without its
    cycles. Raises what :func:`check_kernels` and :func:`pe_file` do."""
    check_kernels(module)
    return pe_file(module, "main", targets(module.the_device(), portable), timed=False).memory


def needs(module: Module, refused: Diagnostic | None = None) -> Needs:
    """What a tile-level module takes on its device; ``refused`` says why its resources could not
    be assigned. Raises what kernels cannot be emitted."""
    check_kernels(module)
    if refused is None:
        try:
            pe = pe_file(module, "main", targets(module.the_device()))
            pe.memory.check()
            runs = [*pe.predicted.values()]
            return Needs(pe.memory.arrays, runs[0] if len(runs) == 1 else None)
        except MeshcError as problem:
            refused = problem.diagnostics[0]
    kernels = kernels_of(module)
    for op in module.walk():
        if isinstance(op, Compute):
            kernels.statements(op)
    cases = Cases(module, Transfers(module))
    found = prediction(module, kernels, cases)
    scratch = kernels.code.shared_variables(kernels.code.needed())
    return Needs(buffer_bytes(module) + bytes_of(scratch) + padding(scratch), found, refused)
