"""What a compile or a run left in a directory for :mod:`meshc.view` to show."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshc.driver.record_files import FABRIC, FORMAT, RECORD, TIMELINE
from meshc.support.diagnostics import fail
from meshc.support.files import read_text
from meshc.support.output import read_manifest

_LIMIT_BYTES = 256 << 20


@dataclass(frozen=True)
class Recorded:
    """A ``record`` (``docs/view.md`` has its schema) in a ``folder``, the ``facts`` of the manifest
    beside it, and the text of the ``files`` that it speaks of, by path."""

    folder: Path
    facts: Mapping[str, Any]
    record: Mapping[str, Any]
    files: Mapping[str, str]

    @property
    def phases(self) -> list[dict[str, Any]]:
        """What is recorded of each phase; none of a schedule, of which nothing was compiled."""
        found: list[dict[str, Any]] = self.record["phases"]
        return found

    def report(self, phase: str) -> dict[str, Any] | None:
        """What a CSL program of ``phase`` takes of a core, as its ``report.json`` has it."""
        for name in (f"{phase}/report.json", "report.json"):
            if name in self.files:
                found: dict[str, Any] = json.loads(self.files[name])
                return found
        return None


def read_recorded(folder: Path) -> Recorded:
    """What ``folder`` holds. Fails with ``no-record`` where nothing was recorded, and with
    ``record-invalid`` where a file that is shown is not as meshc wrote it."""
    facts = read_manifest(folder) or {}
    hashes = facts.get("sha256")
    if not isinstance(hashes, dict) or RECORD not in hashes or not (folder / RECORD).is_file():
        fail(
            "no-record",
            f"'{folder}' holds no {RECORD} that meshc wrote there",
            help=f"write one: meshc compile MODEL -o {folder} --record",
        )

    def read(name: str) -> str:
        text = read_text(folder / name, _LIMIT_BYTES).text
        if hashlib.sha256(text.encode()).hexdigest() != hashes.get(name):
            fail("record-invalid", f"'{folder / name}' was edited since it was recorded")
        return text

    record = json.loads(read(RECORD))
    if record.get("format") != FORMAT:
        found = record.get("format")
        fail("record-invalid", f"'{folder / RECORD}' has format {found!r}, not {FORMAT}")
    phases = record["phases"]
    names = [name for phase in phases for name in phase["emitted"]]
    names += [f"{phase['phase']}/report.json" for phase in phases]
    names += ["report.json", TIMELINE, FABRIC]
    return Recorded(folder, facts, record, {name: read(name) for name in names if name in hashes})


def read_listed(recorded: Recorded, name: str) -> list[str] | None:
    """The lines of a file that the manifest lists; None where there is none, or it is no text."""
    path = recorded.folder / name
    if name not in recorded.facts["sha256"] or not path.is_file():
        return None
    try:
        return path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError:
        return None
