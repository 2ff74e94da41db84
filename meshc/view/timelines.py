"""Timelines by op: what ran when, on which blocks, cores or streams."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from meshc.driver.record_files import TIMELINE
from meshc.view.recorded import Recorded

_KINDS = {"compute": "compute", "transfer": "memory", "stages": "meeting", "waits": "idle"}
"""What the parts of a phase of tasks are called on the page."""


def timelines(recorded: Recorded, phases: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The timeline of each phase whose costs are those of events, and those that were recorded."""
    found = [
        _of_events(phase, phase["costs"])
        for phase in phases
        if phase["costs"] is not None and phase["costs"]["model"] == "events"
    ]
    if TIMELINE in recorded.files:
        found += json.loads(recorded.files[TIMELINE])["timelines"]
    return found


def _of_events(phase: Mapping[str, Any], costs: Mapping[str, Any]) -> dict[str, Any]:
    """The phases of a step one behind the other, those of a layer as often as there are layers: how
    long all blocks are at each, and what they spend that on, as means over blocks and layers."""
    kinds = [_KINDS[name] for name in costs["apart"]]
    rows = costs["rows"]
    order: list[Mapping[str, Any]] = []
    at = 0
    while at < len(rows):
        times, group = rows[at]["times"], [rows[at]]
        while times > 1 and at + len(group) < len(rows) and rows[at + len(group)]["times"] == times:
            group.append(rows[at + len(group)])
        order += group * times
        at += len(group)
    spans, now = [], 0.0
    names = [row["op"] for row in rows]
    for row in order:
        once = [amount / row["times"] for amount in row["parts"]]
        number, begin = names.index(row["op"]), now
        for track, amount in enumerate(once, 1):
            if amount > 0:
                spans.append([track, begin, amount, number, track - 1])
                begin += amount
        spans.append([0, now, sum(once), number, -1])
        now += sum(once)
    return {
        "name": f"{phase['name']}: phases of the event model",
        "unit": "s",
        "phase": phase["name"],
        "tracks": ["phase", *kinds],
        "kinds": kinds,
        "names": names,
        "lines": [row["lines"][:1] for row in rows],
        "spans": spans,
        "total": now,
    }
