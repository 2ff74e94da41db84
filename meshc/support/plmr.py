"""PLMR: the letters of what a mesh asks of a program (WaferLLM section 3), in diagnostics."""

from __future__ import annotations

import re

from meshc.support.diagnostics import Diagnostic

LETTERS = {
    "P": "cores of the device",
    "L": "latency between cores",
    "M": "memory of a core",
    "R": "routing resources of a core",
}
_NOTE = re.compile(r"violates ([PLMR]) of PLMR")


def violates(letter: str) -> str:
    """The note of a refusal that comes from the resource behind ``letter``."""
    return f"this violates {letter} of PLMR: {LETTERS[letter]}"


def letter_of(diagnostic: Diagnostic) -> str:
    """The letter that a refusal names; empty for one that does not come from a resource."""
    found = [m[1] for note in diagnostic.notes if (m := _NOTE.search(note))]
    return found[0] if found else ""
