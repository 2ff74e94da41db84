"""What ``meshc estimate --phases`` prints of the programs for both phases of a model."""

from __future__ import annotations

from dataclasses import asdict

from meshc.cli.printing import table
from meshc.driver import CompileRequest
from meshc.driver.phase_costs import MOST_CHANNELS, FormCost, PhaseCosts

_HEAD = ("programs", "bytes", "left", "alike", "copied", "moved", "decode", "in between")


def phases_tables(model: str, request: CompileRequest, found: PhaseCosts) -> list[str]:
    """Lines: bytes of a core and cycles of each form, which is taken and why."""
    where = f"{found.mesh} cores of {request.device_name}, {found.dtype}"
    words = found.host_words
    return [
        f"Both phases of {model} on {where}",
        *table([_HEAD, *map(_row, found.forms)]),
        "",
        f"taken: {found.taken}" + (f", since {found.why}" if found.why else ""),
        f"in between, two programs need at least {words} cycles, for as many words through one "
        f"channel of the host, or {-(-words // MOST_CHANNELS)} through {MOST_CHANNELS}; one "
        "program needs those of its moves over the fabric",
        *(f"{form.name}: {form.refused}" for form in found.forms if form.refused),
    ]


def phases_object(model: str, request: CompileRequest, found: PhaseCosts) -> dict[str, object]:
    """The same as JSON values."""
    return {
        "model": model,
        "device": request.device_name,
        "mesh": found.mesh,
        "dtype": found.dtype,
        "taken": found.taken,
        "why": found.why,
        "host_words": found.host_words,
        "forms": [asdict(form) for form in found.forms],
    }


def _row(form: FormCost) -> tuple[str, ...]:
    numbers = (form.bytes, form.left, form.alike, form.copied, form.moved, form.decode)
    between = "-" if form.between is None else f"{form.between} cycles"
    return form.name, *("-" if n is None else str(n) for n in numbers), between
