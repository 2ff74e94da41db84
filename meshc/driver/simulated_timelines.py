"""The last step that a simulated wafer ran, by op: what some of its cores did when, and for how
long code ran on each.

The cores that are followed stand for their class, those with the same part in every channel. What
happens in others is only counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshc.analysis.traffic.roles import CoreClass, core_classes
from meshc.driver.ops_of_code import KINDS, Happened, Span, ops_behind, ops_in_front, spans_of
from meshc.ir.module import Module
from meshc.ir.ops.tile import Compute, Recv, Relay, Send
from meshc.ir.parser import parse_module
from meshc.ir.phases import DECODE
from meshc.ir.printer import op_lines
from meshc.sim.machine.trace import Trace
from meshc.support.spans import Source

MOST_FOLLOWED = 20
"""Cores that are followed, at the most."""
_VERBS = {Send: "send", Recv: "receive", Relay: "pass on"}

Core = tuple[int, int]
"""Column and row."""


class StepTrace(Trace):
    """Keeps what the cores that are ``followed`` did in their last step, and for each core how many
    cycles of it code ran. A step begins with the task that is called ``launched``."""

    def __init__(self, launched: str, followed: Mapping[Core, CoreClass]) -> None:
        super().__init__()
        self.launched, self.followed = launched, followed
        self.busy: dict[Core, int] = {}
        self.of_core: dict[Core, list[Happened]] = {core: [] for core in followed}

    def add(self, kind: str, name: str, x: int, y: int, start: int, end: int) -> None:
        core, begins = (x, y), kind == "task" and name == self.launched
        if kind == "task":
            self.busy[core] = (0 if begins else self.busy.get(core, 0)) + max(0, end - start)
        if core not in self.followed:
            return
        if begins:  # which is told when it has ended
            self.of_core[core] = [one for one in self.of_core[core] if one.start >= start]
        self.of_core[core].append(Happened(start, max(start, end), kind, name))


def step_trace(record: Mapping[str, Any], files: Mapping[str, str]) -> StepTrace:
    """What is to be told of a run of a CSL program that is one for its steps, with its ``record``
    and its ``files``."""
    module = _module(record)
    origins = module.the_mesh().origins or ((0, 0),)
    left, top = min(x for x, _ in origins), min(y for _, y in origins)
    followed = {
        (x - left + one.column, y - top + one.row): one
        for x, y in origins
        for one in core_classes(module, max(1, MOST_FOLLOWED // len(origins)))
    }
    launched = "run" if any("fn run(" in text for text in files.values()) else DECODE
    return StepTrace(launched, followed)


def timeline(
    record: Mapping[str, Any], files: Mapping[str, str], trace: StepTrace
) -> dict[str, Any]:
    """The step that ``trace`` was told of: a track for each core that was followed, whose spans are
    ``[track, start, cycles, number of a name, kind]``, and cycles in which code ran, by core."""
    named = _Names(record, files)
    tracks, spans = [], []
    starts = [min(one.start for one in mine) for mine in trace.of_core.values() if mine]
    begin = min(starts, default=0)
    for core, alike in sorted(trace.followed.items(), key=lambda one: (one[0][1], one[0][0])):
        happened = sorted(trace.of_core[core])
        for lane in (False, True):
            mine = [*spans_of(happened, beside=lane)]
            if lane and not mine:
                continue
            words = "beside code" if lane else f"{alike.cores} alike"
            tracks.append(f"x {core[0]}, y {core[1]}: {words}")
            spans += [
                [len(tracks) - 1, s.start - begin, s.end - s.start, named.number(s), s.kind]
                for s in mine
            ]
    last = max((one.end for mine in trace.of_core.values() for one in mine), default=begin)
    return {
        "name": "the last step on the simulator",
        "words": "Cores stand for all that have the same part in every channel. Code without an "
        "operation on words is that of the ops in front of the next one.",
        "unit": "cycles",
        "phase": record["phases"][-1]["phase"],
        "tracks": tracks,
        "kinds": [*KINDS],
        "names": named.names,
        "lines": named.lines,
        "spans": spans,
        "total": last - begin,
        "busy": _rows(trace.busy),
    }


def _rows(found: Mapping[Core, int]) -> list[list[int]]:
    """Numbers of cores, row by row."""
    columns, rows = (1 + max((core[axis] for core in found), default=0) for axis in (0, 1))
    return [[found.get((x, y), 0) for x in range(columns)] for y in range(rows)]


class _Names:
    """What spans are called, each with the lines of its ops in the last module."""

    def __init__(self, record: Mapping[str, Any], files: Mapping[str, str]) -> None:
        module = _module(record)
        ops = dict(op_lines(module))
        self.names: list[str] = []
        self.lines: list[list[int]] = []
        self._known: dict[tuple[str, str, bool], int] = {}
        self._ahead: dict[str, list[str]] = {}
        self._behind: dict[str, list[str]] = {}
        self._ops: dict[str, list[tuple[int, int]]] = {}
        self._called: dict[str, list[int]] = {}
        self._words = {line: _words(op) for line, op in ops.items()}
        for line, words in self._words.items():
            self._called.setdefault(words, []).append(line)
        for file, entries in record["phases"][-1]["emitted"].items():
            name = file.rpartition("/")[2]
            lines = files[file].split("\n")
            self._ahead |= {f"{name}:{n}": found for n, found in ops_in_front(lines).items()}
            self._behind |= {f"{name}:{n}": found for n, found in ops_behind(lines).items()}
            for line, first, last in entries:
                if isinstance(ops[line], (Send, Recv, Relay)):
                    for number in range(first, last + 1):
                        self._ops.setdefault(f"{name}:{number}", []).append((last - first, line))

    def number(self, span: Span) -> int:
        """The number of the name of a span; code is called after the ops in front of the next
        operation or, where these are in another function, after those behind the last one."""
        key = span.place, span.behind, span.kind == 0
        if key not in self._known:
            self._known[key] = len(self.names)
            name, lines = self._of_transfer(span.place) if span.kind else self._of_code(span)
            if name in self.names:
                self._known[key] = self.names.index(name)
            else:
                self.names.append(name)
                self.lines.append(lines)
        return self._known[key]

    def _of_code(self, span: Span) -> tuple[str, list[int]]:
        before = self._ahead.get(span.place) or self._behind.get(span.behind)
        if not before:
            return "code between operations on words", []
        found = [line for words in before for line in self._called.get(words, [])]
        return ", ".join(dict.fromkeys(before)), sorted(dict.fromkeys(found))

    def _of_transfer(self, place: str) -> tuple[str, list[int]]:
        found = sorted(self._ops.get(place, []))
        if not found:
            return place, []
        lines = [line for _, line in found]
        return self._words[lines[0]], sorted(dict.fromkeys(lines))


def _words(op: object) -> str:
    """A kernel and its first buffer, or a transfer."""
    if isinstance(op, Compute):
        return f"{op.kernel} %{op.views()[0].buffer.name}"
    if isinstance(op, (Send, Recv, Relay)):
        return f"{_VERBS[type(op)]} %{op.views()[0].buffer.name} @{op.channel}"
    return ""


def _module(record: Mapping[str, Any]) -> Module:
    """The last module of the phase that runs last."""
    return parse_module(Source("record", record["phases"][-1]["modules"][-1]["text"]))
