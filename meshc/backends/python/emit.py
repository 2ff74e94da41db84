"""Tile-level modules to the files of a NumPy program."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources

from meshc.backends.python.host_file import (
    HostFacts,
    PhaseFile,
    inputs,
    language_model,
    tensor_program,
)
from meshc.backends.python.names import Names
from meshc.backends.python.phase_file import phase_file
from meshc.ir.batch import BATCH, POSITION, REQUEST
from meshc.ir.brought_functions import texts_of
from meshc.ir.module import Module
from meshc.support.diagnostics import fail

_RUNTIME = "meshc.backends.python.runtime"
_HOST_SCALARS = frozenset({POSITION, "len", REQUEST})
_KERNEL = "\n\n@_kernel()\n"
_BROUGHT = '''"""Microkernels of functions of elements that other packages brought."""

import numpy as np

from .on_views import kernel as _kernel
'''
_FILES = frozenset({"main", "mesh_runtime", "weights"})


def emit(modules: Mapping[str, Module], host: HostFacts) -> dict[str, str]:
    """Path and text of every file of the program that runs ``modules``, phases by name.

    With an embedding and a phase ``decode``, ``main.py`` maps token ids to token ids; else there
    is one phase, and it maps tensors to tensors. The files need NumPy and, in ``weights/``, the
    logical tensors that the in-ports name. Raises ``no-phase`` when neither form is possible,
    ``host-scalar``, ``host-ports``, ``mesh-differs``, ``no-output`` and what the phases raise.
    """
    names = Names(_FILES)
    files: dict[str, str] = {}
    phases = []
    for role, module in modules.items():
        function = names.of("phase", role if role not in _FILES else f"{role}_phase")
        phases.append(PhaseFile(function, function, role))
        files[f"{function}.py"] = phase_file(module, function)
    files["main.py"] = _main(modules, host, phases)
    texts: dict[str, str] = {}
    for module in modules.values():
        texts |= texts_of(module, "python", "python-kernel")
    brought = {"mesh_runtime/brought.py": _BROUGHT + _KERNEL.join(["", *texts.values()])}
    return files | _runtime() | (brought if texts else {})


def _main(modules: Mapping[str, Module], host: HostFacts, phases: list[PhaseFile]) -> str:
    found = list(modules.values())
    if host.embedding is not None and "decode" in modules:
        _check(modules, host)
        known = [phase for phase in phases if phase.role in ("decode", "prefill")]
        return language_model(host, found[0].the_mesh(), known)
    if len(found) != 1:
        fail(
            "no-phase",
            f"nothing can run the phases {', '.join(modules) or '(none)'} together",
            help="a program of tokens has a phase 'decode' and an embedding; any other has one "
            "phase",
        )
    return tensor_program(host, found[0], phases[0])


def _check(modules: Mapping[str, Module], host: HostFacts) -> None:
    """Phases of a language model share a mesh; their scalars and ports are what its host knows."""
    meshes = {_mesh_text(module): name for name, module in modules.items()}
    if len(meshes) > 1:
        notes = [f"phase '{name}' is for {mesh}" for mesh, name in meshes.items()]
        fail("mesh-differs", "the phases are compiled for different meshes", notes=notes)
    known = _HOST_SCALARS | {scalar for first, count, _ in host.loops for scalar in (first, count)}
    for name, module in modules.items():
        for scalar in module.scalars:
            if scalar not in known:
                fail("host-scalar", f"phase '{name}' wants '{scalar}', which no host knows")
        if len(inputs(module)) != 1:
            found = ", ".join(inputs(module)) or "none"
            fail("host-ports", f"phase '{name}' has the inputs {found}; a host gives embeddings")
    outputs = [p for p in modules["decode"].ports if p.direction == "out"]
    logits = next((p for p in outputs if p.name == "logits"), None)
    if logits is None:
        fail("host-ports", "phase 'decode' has no output 'logits' to choose a token from")
    if host.batch > 1 and logits.tensor.dims[:1] != (BATCH,):
        what = f"gives logits [{', '.join(logits.tensor.dims)}]"
        fail("host-ports", f"phase 'decode' {what} for {host.batch} requests, not [{BATCH}, ..]")


def _mesh_text(module: Module) -> str:
    mesh = module.the_mesh()
    return f"{mesh} in {mesh.regions} regions, {mesh.segments} segments"


def _runtime() -> dict[str, str]:
    """The run-time package, as it stands."""
    folder = resources.files(_RUNTIME)
    found = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".py"))
    return {f"mesh_runtime/{n}": (folder / n).read_text(encoding="utf-8") for n in found}
