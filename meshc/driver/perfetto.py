"""The trace of a simulated program as Perfetto shows it: ops by name, a group of tracks for each
region, an arrow for each message."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from meshc.analysis.traffic.channels import crossed_axis, crossings, line_of
from meshc.analysis.traffic.turns import turns_of
from meshc.driver.ops_of_code import (
    KINDS,
    Happened,
    Span,
    ops_behind,
    ops_in_front,
    place_of,
    spans_of,
)
from meshc.ir.mesh import Mesh
from meshc.ir.module import Channel, Module

Event = dict[str, Any]
Core = tuple[int, int]
"""Column and row on the device, from the first PE of the program."""

_CATEGORIES = dict(zip(KINDS, ("compute", "transfer", "wait", "microthread"), strict=True))
_ENDS = re.compile(r"\b(\w+?)_(in|out)_\d")
_VERBS = {"in": "receive", "out": "send"}


def with_ops(
    events: Iterable[Mapping[str, Any]], files: Mapping[str, str], module: Module | None
) -> list[Event]:
    """``events`` of a run of a CSL program with these ``files``, one cycle a microsecond, under the
    names of ops. A core has a track for its code, tasks with what they spent their time on inside,
    and one for what runs beside it. Its ``module`` says which cores are a region's and which
    messages go where; without one all are of one region and no arrows are drawn."""
    words = _Words(files)
    of_core: dict[Core, list[Happened]] = defaultdict(list)
    for event in events:
        end = event["ts"] + event["dur"]
        core = event["tid"] // 2, event["pid"]
        of_core[core].append(Happened(event["ts"], end, event["cat"], event["name"]))
    mesh = None if module is None else module.the_mesh()
    regions = _regions(mesh)
    tracks = {core: _Track(core, regions) for core in sorted(of_core, key=lambda at: at[::-1])}
    found: list[Event] = []
    for region in sorted({track.region for track in tracks.values()}):
        name = f"region {region}" if len(regions) > 1 else "cores"
        found.append(_name("process_name", name, region))
    for core, track in tracks.items():
        found += track.names()
        found += _slices(sorted(of_core[core]), track, words)
    if module is not None and mesh is not None:
        happened = {core: sorted(mine) for core, mine in of_core.items()}
        found += _arrows(module, mesh, happened, tracks, words)
    return found


class _Track:
    """Where what a core does is shown."""

    def __init__(self, core: Core, regions: Mapping[int, tuple[range, range]]) -> None:
        self.core = core
        self.region = next(
            (n for n, (columns, rows) in regions.items() if core[0] in columns and core[1] in rows),
            0,
        )
        self.thread = 2 * (core[1] * 1_000 + core[0])

    def event(self, lane: int, **facts: Any) -> Event:
        """One on the track of code (0) or of what runs beside it (1)."""
        return {"pid": self.region, "tid": self.thread + lane, **facts}

    def names(self) -> list[Event]:
        """What its two tracks are called."""
        words = f"PE ({self.core[0]}, {self.core[1]})"
        return [
            _name("thread_name", f"{words} {what}", self.region, self.thread + lane)
            for lane, what in enumerate(("code", "beside code"))
        ]


class _Words:
    """Names of spans by their places."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self._ahead: dict[str, list[str]] = {}
        self._behind: dict[str, list[str]] = {}
        self._ends: dict[str, list[tuple[str, str]]] = {}
        for file, text in files.items():
            name, lines = file.rpartition("/")[2], text.split("\n")
            self._ahead |= {f"{name}:{n}": found for n, found in ops_in_front(lines).items()}
            self._behind |= {f"{name}:{n}": found for n, found in ops_behind(lines).items()}
            for number, line in enumerate(lines, 1):
                if ends := _ENDS.findall(line.partition("//")[0]):
                    self._ends[f"{name}:{number}"] = list(dict.fromkeys(ends))

    def of(self, span: Span) -> str:
        """The ops of code, or channels of an operation on words."""
        if span.kind:
            ends = self._ends.get(span.place, [])
            return ", ".join(f"{_VERBS[way]} @{name}" for name, way in ends) or span.place
        ops = self._ahead.get(span.place) or self._behind.get(span.behind)
        return ", ".join(dict.fromkeys(ops)) if ops else "code between operations on words"

    def ends(self, name: str) -> list[tuple[str, str]]:
        """Channels over which an operation called ``name`` moves words, and which way."""
        return self._ends.get(place_of(name), [])


def _name(what: str, words: str, region: int, thread: int = 0) -> Event:
    return {"name": what, "ph": "M", "pid": region, "tid": thread, "args": {"name": words}}


def _slices(happened: Sequence[Happened], track: _Track, words: _Words) -> Iterator[Event]:
    column, row = track.core
    place = {"column": column, "row": row}
    for one in happened:
        if one.kind == "task":
            length = one.end - one.start
            yield track.event(
                0, name=one.name, cat="task", ph="X", ts=one.start, dur=length, args=place
            )
    for lane in (False, True):
        for span in spans_of(happened, beside=lane):
            yield track.event(
                int(lane),
                name=words.of(span),
                cat=_CATEGORIES[KINDS[span.kind]],
                ph="X",
                ts=span.start,
                dur=span.end - span.start,
                args={**place, "source": span.place},
            )


def _regions(mesh: Mesh | None) -> dict[int, tuple[range, range]]:
    """Columns and rows of each region."""
    if mesh is None:
        return {}
    return {
        number: (range(column, column + mesh.columns), range(row, row + mesh.rows))
        for number, (column, row) in enumerate(_origins(mesh))
    }


def _origins(mesh: Mesh) -> list[Core]:
    """The first core of each region, on the rectangle of all."""
    origins = mesh.origins or ((0, 0),)
    left, top = min(column for column, _ in origins), min(row for _, row in origins)
    return [(column - left, row - top) for column, row in origins]


def _arrows(
    module: Module,
    mesh: Mesh,
    happened: Mapping[Core, Sequence[Happened]],
    tracks: Mapping[Core, _Track],
    words: _Words,
) -> Iterator[Event]:
    """The beginning and the end of each message between two cores that send and receive equally
    often over a channel on which the one hears no other."""
    moved: dict[tuple[str, str, Core], list[Happened]] = defaultdict(list)
    for core, mine in happened.items():
        for one in mine:
            if one.kind in ("transfer", "microthread"):
                for name, way in words.ends(one.name):
                    moved[name, way, core].append(one)
    number = 0
    for channel in module.channels:
        heard: dict[Core, set[Core]] = defaultdict(set)
        for sender, receiver in _pairs(channel, mesh):
            heard[receiver].add(sender)
        for receiver, senders in sorted(heard.items()):
            if len(senders) != 1:
                continue
            (sender,) = senders
            sent = moved.get((channel.name, "out", sender), [])
            got = moved.get((channel.name, "in", receiver), [])
            if len(sent) != len(got) or any(
                b.end < a.start for a, b in zip(sent, got, strict=True)
            ):
                continue
            for a, b in zip(sent, got, strict=True):
                number += 1
                facts = {"name": f"@{channel.name}", "cat": "message", "id": number}
                lane = int(a.kind == "microthread")
                yield tracks[sender].event(lane, ph="s", ts=a.start, **facts)
                lane = int(b.kind == "microthread")
                yield tracks[receiver].event(
                    lane, ph="f", bp="e", ts=max(b.start, b.end - 1), **facts
                )


def _pairs(channel: Channel, mesh: Mesh) -> Iterator[tuple[Core, Core]]:
    """Cores between which messages of ``channel`` go; none where cores take turns on it."""
    origins = _origins(mesh)
    sizes = [mesh.size(axis) for axis in mesh.plane]
    if len(channel.route.inputs) > 2:
        crossed = crossed_axis(channel, mesh)
        free = [range(1) if axis == crossed else range(mesh.size(axis)) for axis in mesh.plane]
        for one, other in zip(*(ends.tolist() for ends in crossings(channel, mesh)), strict=True):
            for row, column in product(*free):
                yield (
                    (origins[one[0]][0] + one[2] + column, origins[one[0]][1] + one[1] + row),
                    (
                        origins[other[0]][0] + other[2] + column,
                        origins[other[0]][1] + other[1] + row,
                    ),
                )
        return
    if turns_of(channel, mesh) is not None:
        return
    line = line_of(channel, mesh)
    down = line.axis == mesh.plane[0]
    for left, top in origins:
        for along in range(sizes[1] if down else sizes[0]):
            for one, other in line.pairs:
                if down:
                    yield (left + along, top + one), (left + along, top + other)
                else:
                    yield (left + one, top + along), (left + other, top + along)


def _core(origins: Sequence[Core], place: Sequence[int], more: Sequence[int]) -> Core:
    """The core at ``place`` (region, row, column), ``more`` rows and columns away."""
    left, top = origins[place[0]]
    return left + place[2] + more[1], top + place[1] + more[0]
