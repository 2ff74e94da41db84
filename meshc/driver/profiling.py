"""Cycles of a CSL program by the ops that it came from: computing, words that pass, waiting."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

from meshc.driver.perfetto import with_ops
from meshc.driver.record_files import RECORD
from meshc.ir.module import Module
from meshc.ir.parser import parse_module
from meshc.ir.phases import DECODE
from meshc.sim.profile import Split, by_place, read_trace
from meshc.support.spans import Source

_ENDS = re.compile(r"\b(\w+?)_(?:in|out)_[\d_]+\b")
_OP = re.compile(r"// (\w+) (%[\w.]+)")


@dataclass(frozen=True)
class Profile:
    """``rows``: mean cycles of a step and core of the ops up to a transfer, the transfer included,
    in the order of the program. ``predicted``: cycles of a step by op and their lower bound, as
    ``report.json`` has them. ``trace``: the file with all that happened."""

    rows: tuple[tuple[str, Split], ...]
    predicted: tuple[Mapping[str, Any], ...]
    trace: Path

    @property
    def whole(self) -> Split:
        """The cycles of all ops together."""
        return reduce(_sum, (one for _, one in self.rows))


def profile(trace: Path, folder: Path) -> Profile:
    """The profile of the run that wrote ``trace``, of the program in ``folder``; of one that holds
    both phases, of its steps of decoding. ``trace`` is written anew, under the names of ops."""
    names: dict[str, str] = {}
    texts = {file: file.read_text() for file in sorted(folder.glob("*.csl"))}
    launched = "run" if any("fn run(" in text for text in texts.values()) else DECODE
    events = read_trace(trace)
    places = by_place(events, launched)
    shown = with_ops(events, {file.name: text for file, text in texts.items()}, _module(folder))
    trace.write_text(json.dumps({"traceEvents": shown}), encoding="utf-8")
    for file, text in texts.items():
        lines = text.split("\n")
        names |= {f"{file.name}:{line}": name for line, name in _labels(lines).items()}
    found: dict[str, Split] = {}
    for place in sorted(places, key=_in_order):
        name, more = names.get(Path(place).name, "behind the last transfer"), places[place]
        found[name] = _sum(found[name], more) if name in found else more
    told = json.loads((folder / "report.json").read_text())["cycles_by_op"]
    predicted = told[DECODE] if isinstance(told, dict) else told
    return Profile(tuple(found.items()), tuple(predicted), trace)


def _module(folder: Path) -> Module | None:
    """The last module of the program in ``folder``, if its compile was recorded."""
    path = folder / RECORD
    if not path.is_file():
        return None
    phases = json.loads(path.read_text(encoding="utf-8"))["phases"]
    return parse_module(Source(RECORD, phases[-1]["modules"][-1]["text"]))


def _sum(one: Split, other: Split) -> Split:
    return Split(
        one.compute + other.compute,
        one.transfer + other.transfer,
        one.waiting + other.waiting,
    )


def _labels(lines: list[str]) -> dict[int, str]:
    """By the number of a line with a transfer: the channels of the transfers around it, and the ops
    since those before."""
    found: dict[int, str] = {}
    ops: list[str] = []
    group: list[int] = []
    channels: dict[str, None] = {}
    begun = False
    for number, line in enumerate(lines, 1):
        begun = begun or line.startswith("fn step(")
        if not begun:
            continue
        op, ends = _OP.search(line), _ENDS.findall(line.partition("//")[0])
        if op and group:
            found |= dict.fromkeys(group, _label(ops, channels))
            ops, group, channels = [], [], {}
        if op:
            ops.append(f"{op[1]} {op[2]}")
        if ends:
            group.append(number)
            channels |= dict.fromkeys(ends)
    return found | dict.fromkeys(group, _label(ops, channels))


def _label(ops: list[str], channels: dict[str, None]) -> str:
    return ", ".join(ops) + f" -> {', '.join(channels)}"


def _in_order(place: str) -> tuple[str, int]:
    """Places by their line; what follows all of them last."""
    file, _, line = place.rpartition(":")
    return (file, int(line)) if place else ("~", 0)
