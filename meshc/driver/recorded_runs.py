"""Runs of which nothing was compiled here, kept for ``meshc view``: an iteration on a node of GPUs,
a server that was simulated, a trace that was served, and programs of a script on the simulator of
wafers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from meshc.analysis.cuda.stream_turns import COMMUNICATION, COMPUTE
from meshc.cost.nodes.overlap import Schedule
from meshc.driver.record_files import FABRIC, FORMAT, RECORD, TIMELINE
from meshc.serving.engine import Record
from meshc.serving.replaying import Entry
from meshc.serving.simulator import Run
from meshc.support.diagnostics import Diagnostics
from meshc.support.output import write_directory

_STREAMS = (COMPUTE, COMMUNICATION)
_SERVED = ("reading", "decoding", "waiting")


def write_run(
    folder: Path,
    kind: str,
    model: str,
    device: str,
    facts: Mapping[str, object],
    timelines: Sequence[Mapping[str, Any]],
    report: Diagnostics,
    fabrics: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Write a ``record.json`` of this ``kind``, its ``timelines`` and what its runs left on
    ``fabrics``; ``facts`` are shown beside it. Raises what writing a directory raises."""
    record = {
        "format": FORMAT,
        "kind": kind,
        "model": model,
        "target": kind,
        "device": device,
        "facts": [[name, str(value)] for name, value in facts.items()],
        "phases": [],
        "messages": [],
        "sources": [],
    }
    files = {
        RECORD: json.dumps(record, ensure_ascii=False) + "\n",
        TIMELINE: json.dumps({"format": FORMAT, "timelines": [*timelines]}, ensure_ascii=False)
        + "\n",
    }
    if fabrics:
        files[FABRIC] = json.dumps({"format": FORMAT, "fabrics": [*fabrics]}) + "\n"
    write_directory(folder, files, {"model": model, "target": kind}, report=report)


def node_timeline(schedule: Schedule) -> dict[str, Any]:
    """An iteration on a node: kernels on the two streams of a GPU, in seconds."""
    names = list(dict.fromkeys(span.name for span in schedule.spans))
    halves = ["all tokens"] if schedule.split is None else ["first half", "second half"]
    return {
        "name": f"an iteration of {schedule.tokens} tokens, on each GPU",
        "words": "Kernels that run beside each other share the multiprocessors.",
        "unit": "s",
        "phase": "",
        "tracks": list(_STREAMS),
        "kinds": halves,
        "names": names,
        "lines": [[] for _ in names],
        "spans": [
            [
                _STREAMS.index(span.stream),
                span.start,
                span.stop - span.start,
                names.index(span.name),
                span.half,
            ]
            for span in schedule.spans
        ],
        "total": max((span.stop for span in schedule.spans), default=0.0),
    }


def simulated_timeline(run: Run, title: str) -> dict[str, Any]:
    """A simulated server, in seconds: its decode iterations, and for each request the time to its
    first token and from there to its last."""
    names = ["decodes", "until the first token", "until the last token"]
    spans: list[list[float]] = [
        [0, end - seconds, seconds, 0, 0]
        for end, seconds in zip(run.step_ends, run.step_seconds, strict=True)
    ]
    for track, trip in enumerate(run.trips, 1):
        spans.append([track, trip.arrived, trip.first - trip.arrived, 1, 1])
        if trip.last > trip.first:
            spans.append([track, trip.first, trip.last - trip.first, 2, 2])
    return {
        "name": title,
        "words": "The first seed. Iterations that only read prompts are not drawn.",
        "unit": "s",
        "phase": "",
        "tracks": ["iterations", *(f"request {n}" for n in range(len(run.trips)))],
        "kinds": ["decoding", "waiting and reading", "answering"],
        "names": names,
        "lines": [[] for _ in names],
        "spans": spans,
        "total": run.seconds,
    }


def served_timeline(
    entries: Sequence[Entry], records: Sequence[tuple[Record, float]]
) -> dict[str, Any]:
    """A served trace, in seconds: what each iteration had, and for each request when it was read,
    decoded, or waited between its arrival and its last token."""
    reading, decoding, waiting = range(len(_SERVED))
    tracks = ["iterations", *(f"request {entry.name}" for entry in entries)]
    track_of = {entry.name: number for number, entry in enumerate(entries, 1)}
    free = {entry.name: entry.seconds for entry in entries}
    names: dict[str, int] = {}
    spans: list[list[float]] = []
    before = 0.0

    def add(track: int, start: float, stop: float, name: str, kind: int) -> None:
        if stop > start:
            spans.append([track, start, stop - start, names.setdefault(name, len(names)), kind])

    for record, ends in records:
        read = {name for name, _, _ in record.segments}
        start = max(before, min((free[name] for name in read), default=before))
        add(0, start, ends, f"{len(read)} read, {len(record.decode)} decode", -1)
        for name in dict.fromkeys((*read, *record.decode)):
            add(track_of[name], free[name], start, _SERVED[waiting], waiting)
            kind = reading if name in read else decoding
            add(track_of[name], start, ends, _SERVED[kind], kind)
            free[name] = ends
        before = ends
    return {
        "name": "the served trace",
        "words": "An iteration lasts as long as --iteration-ms says.",
        "unit": "s",
        "phase": "",
        "tracks": tracks,
        "kinds": list(_SERVED),
        "names": list(names),
        "lines": [[] for _ in names],
        "spans": spans,
        "total": before,
    }
