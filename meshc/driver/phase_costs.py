"""What the ways to hold both phases of a model take: bytes of a core, and cycles in between.

Two programs need the host in between: it copies the caches to itself and back and loads the weights
that decode has, each element as a word of 32 bits. A copy moves at most a word a cycle through each
channel of the host, so these words are the least cycles with one channel, which emitted commands
ask for; how fast the host itself is does not count.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from meshc.backends.csl.one_program import COPIED, MOVED, TWO, form_of
from meshc.backends.request import CompileRequest
from meshc.driver.compiling import compile_loaded
from meshc.driver.models import LoadedModel
from meshc.ir.module import Module
from meshc.passes.tile.phases.joining import weights_of_both
from meshc.support.diagnostics import MeshcError, fail

MOST_CHANNELS = 16
"""Channels of the host that commands may ask for (SDK, option ``--channels``)."""


@dataclass(frozen=True)
class FormCost:
    """A way to hold both phases. ``bytes`` of a core, of the larger program where there are two,
    and what is ``left``, negative where it does not fit; bytes of weights that the phases have
    ``alike``, ``copied`` for each, and ``moved``. ``between`` are the predicted cycles over the
    fabric between the phases, or the words that the host copies; ``decode`` those of a step. None
    is what is not known. ``refused`` says why there is no such program."""

    name: str
    bytes: int | None
    left: int | None
    alike: int | None
    copied: int | None
    moved: int | None
    between: int | None
    decode: int | None
    refused: str


@dataclass(frozen=True)
class PhaseCosts:
    """The ways to hold both phases of a model on a mesh, which of them is ``taken``, and the words
    that the host copies between two programs."""

    mesh: str
    dtype: str
    forms: tuple[FormCost, ...]
    taken: str
    host_words: int

    @property
    def why(self) -> str:
        """Why the form is taken."""
        found = {form.name: form for form in self.forms}
        if self.taken == COPIED:
            return "a core has room for both placements of weights, so nothing moves in between"
        reasons = [f"{n}: {found[n].refused}" for n in (COPIED, MOVED) if found[n].refused]
        return "; ".join(reasons)


def phase_costs(loaded: LoadedModel, request: CompileRequest) -> PhaseCosts:
    """What each way takes of a core of the device and mesh of ``request``. Raises ``one-program``
    where there are no two phases, and what compiling them raises."""
    compiled = compile_loaded(loaded, request.changed(target="csl", phases=TWO))
    modules = compiled.modules
    if {*modules} != {"prefill", "decode"}:
        said = [m.message for m in compiled.remarks if m.code == "prompt-by-steps"]
        fail(
            "one-program",
            f"'{loaded.name}' has no programs for a prompt and for a step here",
            notes=said,
        )
    reports = {phase: json.loads(compiled.files[f"{phase}/report.json"]) for phase in modules}
    words = host_words(modules["decode"])
    forms = [_two(reports, words)]
    weights = weights_of_both(modules["prefill"], modules["decode"])
    chosen = request.changed(target="csl", phases="auto")
    for name in (COPIED, MOVED):
        known: dict[str, dict[str, Any]] = {}
        refused = ""
        try:
            form_of(name, chosen, modules, weights, None, known)
        except MeshcError as refusal:
            refused = refusal.diagnostics[0].message
        forms.append(_one(name, known.get(name, {}), refused))
    taken = next((f.name for f in forms[1:] if not f.refused), TWO)
    decode = modules["decode"]
    return PhaseCosts(str(decode.the_mesh()), str(decode.dtype()), tuple(forms), taken, words)


def _two(reports: Mapping[str, Any], words: int) -> FormCost:
    """A program for each phase."""
    left = min(report["memory"]["left"] for report in reports.values())
    most = max(_bytes(report["memory"]) for report in reports.values())
    decode = reports["decode"]["predicted_cycles"]
    return FormCost(TWO, most, left, None, None, None, words, decode, "")


def _bytes(memory: Mapping[str, Any]) -> int:
    return int(memory["data"] + memory["padding"] + memory["code"]["bytes"])


def _one(name: str, told: Mapping[str, Any], refused: str) -> FormCost:
    """One program, of which so much is ``told``."""
    cycles = told.get("cycles") or {}
    return FormCost(
        name,
        told.get("bytes"),
        told.get("left"),
        told.get("alike_bytes"),
        told.get("copied_bytes"),
        told.get("moved_bytes"),
        0 if name == COPIED else cycles.get("transition"),
        cycles.get("decode"),
        refused,
    )


def host_words(decode: Module) -> int:
    """Words that the host copies between two programs: caches to itself and back, and weights."""
    times = {"state": 2, "weight": 1}
    elements = sum(times.get(b.role, 0) * prod(b.type.shape) for b in decode.buffers)
    return elements * decode.the_mesh().cores
