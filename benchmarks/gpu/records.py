"""What is found, as lines of JSON that are written as they come.

A process that is ended in the middle leaves all that it had found; a line that it left half is
passed over.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

NAME = "results.jsonl"


class Records:
    """The file of results of a folder, to which several processes add."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME

    def add(self, kind: str, **facts: Any) -> None:
        """Write a line, as a whole and at once. Raises OSError."""
        line = json.dumps({"kind": kind, **facts}) + "\n"
        # A line in front of it that was left half must not take this one with it.
        handle = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            size = os.fstat(handle).st_size
            whole = not size or os.pread(handle, 1, size - 1) == b"\n"
            os.write(handle, (line if whole else f"\n{line}").encode())
            os.fsync(handle)
        finally:
            os.close(handle)

    def read(self) -> list[dict[str, Any]]:
        """All lines that are whole, in order."""
        if not self.path.is_file():
            return []
        found = []
        for line in self.path.read_text(encoding="utf-8").splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict) and "kind" in record:
                found.append(record)
        return found
