"""A trace of a run for Chrome's or Perfetto's viewer: one track per PE."""

from __future__ import annotations

import json
from typing import Any


class Trace:
    """Collects tasks and operations; one cycle is shown as one microsecond."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def add(self, kind: str, name: str, x: int, y: int, start: int, end: int) -> None:
        """Something that PE (x, y) did from ``start`` to ``end``."""
        self.events.append(
            {
                "name": name, "cat": kind, "ph": "X", "ts": start, "dur": max(0, end - start),
                "pid": y, "tid": 2 * x + (kind != "task"),
            }
        )  # fmt: skip

    def save(self, path: str, tracks: list[tuple[int, int]]) -> None:
        """Write all events, with names for the tracks of the given PEs."""
        names = [
            {
                "name": "thread_name", "ph": "M", "pid": y, "tid": 2 * x + lane,
                "args": {"name": f"PE ({x}, {y}) {('tasks', 'operations')[lane]}"},
            }
            for x, y in tracks
            for lane in (0, 1)
        ]  # fmt: skip
        with open(path, "w", encoding="utf-8") as out:
            json.dump({"traceEvents": names + self.events}, out)
