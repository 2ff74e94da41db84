"""A trace of a run for Chrome's or Perfetto's viewer: one track per PE."""

from __future__ import annotations

import json
from typing import Any


class Trace:
    """Collects tasks and operations; one cycle is shown as one microsecond.

    The category of an event is ``task``; for an operation that code waits for ``compute`` or, over
    the fabric, ``transfer``, and ``wait`` for the time before it in which code stands still until a
    word comes or may leave; ``microthread`` for an operation beside the code. The C machine leaves
    out operations on memory alone.
    """

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

    def operation(
        self, name: str, x: int, y: int, moves: bool, times: tuple[int, int, int]
    ) -> None:
        """A vector operation of PE (x, y), over the fabric if it ``moves``. ``times``: since when
        the code of the PE waited for it, -1 for an operation beside it, its start and its end."""
        waited, start, end = times
        if waited < 0:
            self.add("microthread", name, x, y, start, end)
            return
        if waited < start:
            self.add("wait", name, x, y, waited, start)
        self.add("transfer" if moves else "compute", name, x, y, start, end)

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
