"""The file ``main.py``: the host side of the emitted program."""

from __future__ import annotations

import json
from dataclasses import dataclass

from meshc.backends.python.names import file_stem
from meshc.backends.python.phase_file import plain
from meshc.backends.templates import render
from meshc.ir.mesh import Mesh
from meshc.ir.module import Module
from meshc.support.diagnostics import fail

_PACKAGE = "meshc.backends.python"
_RUNTIME_IMPORT = (
    "from mesh_runtime import Fabric, HostError, LanguageModel, Mesh, PortError, Weights"
)


@dataclass(frozen=True)
class HostFacts:
    """What the host knows about the model.

    ``embedding`` is the name of the weight whose rows are the tokens' embeddings, or None for a
    program without tokens; ``vocab`` its extent; ``capacity`` how many tokens fit the KV cache;
    ``eos`` the ids that end a text; ``batch`` the requests of a step. ``loops`` are those over
    layers of a prefill phase that may pass some of them: the scalars of the first layer and of
    their number, and how many layers there are. A prompt has ``least`` tokens or more. ``learned``
    is the weight whose rows are positions, which are added to embeddings, or None. Where a run
    passes some layers, embeddings are multiplied by ``row_scale`` before they pass the first.
    """

    model: str
    embedding: str | None = None
    vocab: int = 0
    capacity: int = 0
    eos: tuple[int, ...] = ()
    batch: int = 1
    loops: tuple[tuple[str, str, int], ...] = ()
    least: int = 1
    learned: str | None = None
    row_scale: float = 1.0


@dataclass(frozen=True)
class PhaseFile:
    """Where a phase is defined: module ``file`` (without ``.py``), ``function`` in it; ``role``
    is ``prefill`` or ``decode``."""

    file: str
    function: str
    role: str = ""


def language_model(facts: HostFacts, mesh: Mesh, phases: list[PhaseFile]) -> str:
    """``main.py`` of a program that maps token ids to token ids."""
    assert facts.embedding is not None
    return render(
        _PACKAGE,
        "language_model.py.jinja",
        model=plain(facts.model),
        cores=_cores(mesh),
        mesh=_mesh(mesh),
        phases=phases,
        imports=sorted([_RUNTIME_IMPORT, *(f"from {p.file} import {p.function}" for p in phases)]),
        prefills=any(phase.role == "prefill" for phase in phases),
        embedding=f'"{file_stem(facts.embedding)}"',
        vocab=facts.vocab,
        capacity=facts.capacity,
        eos=repr(tuple(facts.eos)),
        batch=facts.batch,
        least=facts.least,
        learned=f'"{file_stem(facts.learned)}"' if facts.learned else "",
        row_scale=repr(facts.row_scale) if facts.row_scale != 1 else "",
        loops=[f'("{plain(a)}", "{plain(b)}", {count})' for a, b, count in facts.loops],
    )


def tensor_program(facts: HostFacts, module: Module, phase: PhaseFile) -> str:
    """``main.py`` of a program that maps tensors to tensors."""
    if not any(p.direction == "out" for p in module.ports):
        fail("no-output", f"module '{module.name}' has no out-port, so there is nothing to print")
    return render(
        _PACKAGE,
        "tensor_program.py.jinja",
        model=plain(facts.model),
        cores=_cores(module.the_mesh()),
        mesh=_mesh(module.the_mesh()),
        phase=phase,
        inputs=inputs(module),
    )


def inputs(module: Module) -> list[str]:
    """Tensors that every run is given, in the order of the ports."""
    roles = {b.value: b.role for b in module.buffers}
    ports = [p for p in module.ports if p.direction == "in" and roles[p.buffer] == "in"]
    return [file_stem(p.name) for p in ports if p.name not in module.constants]


def _cores(mesh: Mesh) -> str:
    regions = f"{mesh.regions} regions of " if mesh.regions > 1 else ""
    return f"{regions}{mesh.columns} columns x {mesh.rows} rows of cores"


def _mesh(mesh: Mesh) -> str:
    """The arguments of the emitted program's ``Mesh``."""
    sizes = {axis.name: axis.size for axis in mesh.axes}
    factors = {a.name: {f.name: f.size for f in a.factors} for a in mesh.axes if a.factors}
    return json.dumps(sizes) + (f", factors={json.dumps(factors)}" if factors else "")
