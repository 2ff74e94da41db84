"""Cycles on the meshes of the WaferLLM paper with all choices of how programs are written, and
without each.

    python benchmarks/wafer_choices.py [--phase PHASE] [--json]

Nothing runs: cycles are those of the clock of emitted CSL for Llama-3-8B on WSE-2 in f16, of a
decode step of two layers and the head behind 4,096 tokens on 420x420, and of one layer of a prompt
of 4,096 tokens on 480x480. A choice is a setting of a pass; without it a program may need more
memory than a core has.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from unittest.mock import patch

from measuring import table
from paper_meshes import report

from meshc import pipelines
from meshc.passes.base import Pass
from meshc.support.diagnostics import MeshcError

POINTS = {"decode": (420, 2), "prefill": (480, 1)}
"""Side of the mesh and layers that are counted."""
NO_ROOM = {"does-not-fit", "csl-memory-full"}
CHOICES = (
    "select-collective{fold=false}",
    "select-collective{segmented=false}",
    "select-collective{both-ways=false}",
    "select-csl-products{blocks=false}",
    "select-csl-products{rebased=false}",
    "select-csl-products{joined=false}",
    "select-csl-products{fresh=false}",
    "select-csl-functions{accuracy=single}",
    "select-csl-functions{functions=false}",
    "select-csl-functions{angles=false}",
    "select-csl-functions{turns=false}",
    "select-csl-functions{narrow=false}",
    "select-csl-functions{kept=false}",
    "select-csl-functions{blocks=false}",
    "select-csl-functions{whole=false}",
    "select-csl-functions{newton=false}",
    "select-csl-functions{across=false}",
    "assign-csl-registers{functions=false}",
)


def cycles(phase: str, choice: str) -> int | None:
    """Predicted cycles with the pass of ``choice`` as it says; None where that does not fit."""
    side, layers = POINTS[phase]
    name, _, setting = choice.rstrip("}").partition("{")
    option, _, value = setting.replace("-", "_").partition("=")
    changed = {option: False if value == "false" else value}
    inner = pipelines.own_pipeline

    def chosen(text: str) -> list[Pass]:
        return [replace(one, **changed) if name == one.NAME else one for one in inner(text)]

    with patch.object(pipelines, "own_pipeline", chosen):
        try:
            return int(report("llama-3-8b", phase, side, layers)["predicted_cycles"])
        except MeshcError as refusal:
            if not NO_ROOM & {one.code for one in refusal.diagnostics}:
                raise
            return None


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--phase", choices=POINTS, action="append")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    phases = options.phase or [*POINTS]
    found = {
        choice: {phase: cycles(phase, choice) for phase in phases} for choice in ("", *CHOICES)
    }
    if options.json:
        print(json.dumps(found))
        return
    rows = [
        [choice or "all as they are", *(_shown(taken, found[""][p]) for p, taken in each.items())]
        for choice, each in found.items()
    ]
    print(table(["choice", *(f"{p} {POINTS[p][0]}x{POINTS[p][0]}" for p in phases)], rows))


def _shown(taken: int | None, usual: int | None) -> str:
    if taken is None or usual is None:
        return "does not fit"
    return f"{taken:,} ({taken / usual:.3f})"


if __name__ == "__main__":
    main()
