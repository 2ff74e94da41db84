"""The data of a page: what was recorded, and what follows from its modules."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from meshc.ir.module import Module
from meshc.ir.parser import parse_module
from meshc.support.spans import Source
from meshc.view.changes import changes
from meshc.view.channels import routes
from meshc.view.costs import clock, predicted
from meshc.view.fabrics import fabrics
from meshc.view.graph_drawing import drawn_graph
from meshc.view.layouts import layouts, mesh_facts
from meshc.view.memory import memory
from meshc.view.recorded import Recorded
from meshc.view.timelines import timelines
from meshc.view.waits import waits


def page_data(recorded: Recorded) -> dict[str, Any]:
    """All that a page shows, as JSON values. Raises what reading a module raises, for a record that
    was edited."""
    record = recorded.record
    names = list(recorded.files)
    phases = [_phase(recorded, phase, names) for phase in recorded.phases]
    return {
        "kind": record["kind"],
        "model": record["model"],
        "target": record["target"],
        "device": record["device"],
        "facts": record.get("facts", []),
        "phases": phases,
        "messages": record.get("messages", []),
        "sources": record.get("sources", []),
        "files": [
            {"name": name, "text": text}
            for name, text in recorded.files.items()
            if not name.endswith(".json")
        ],
        "timelines": timelines(recorded, phases),
        "fabrics": fabrics(recorded),
    }


def _phase(recorded: Recorded, phase: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    modules = [
        parse_module(Source(f"record: {phase['phase']}", m["text"])) for m in phase["modules"]
    ]
    levels = {module.level: module for module in modules}
    last, report = modules[-1], recorded.report(phase["phase"])
    costs = phase["costs"]
    texts = [module["text"].split("\n") for module in phase["modules"]]
    shown = [name for name in names if not name.endswith(".json")]
    return {
        "name": phase["phase"],
        "modules": [
            {"level": m["level"], "text": m["text"].rstrip("\n"), "places": m["places"]}
            for m in phase["modules"]
        ],
        "changes": [[], *(changes(a, b) for a, b in pairwise(texts))],
        "steps": phase["steps"],
        "emitted": [
            [shown.index(name), *entry]
            for name in phase["emitted"]
            for entry in phase["emitted"][name]
        ],
        "graph": _graph(phase, modules),
        "layouts": layouts(levels["mesh"]) if "mesh" in levels else None,
        "mesh": None if last.mesh is None else mesh_facts(last.mesh),
        "size": _size(last),
        "routes": routes(last) if last.level == "tile" else None,
        "memory": memory(last, report, phase.get("memory")) if last.buffers else None,
        "waits": waits(last) if last.level in ("tile", "task") else [],
        "clock": clock(report, phase["phase"], last) if report is not None else None,
        "costs": predicted(costs, levels) if costs is not None and "parts" in costs else None,
        "silent": costs.get("refused", "") if costs is not None else "",
    }


def _graph(phase: Mapping[str, Any], modules: Sequence[Module]) -> dict[str, Any] | None:
    """The graph as passes were given it, with the number of its module."""
    for number, module in enumerate(modules):
        if module.level == "graph" and module.functions:
            return {"module": number, **drawn_graph(module)}
    return None


def _size(module: Module) -> list[int]:
    """Columns and rows of the device's cores, where it is a wafer."""
    device = module.device
    if device is None or device.kind != "mesh":
        return []
    return [device.cores_x, device.cores_y]


def as_script(data: Mapping[str, Any]) -> str:
    """``data`` as JSON that may stand inside a ``script`` element: nothing in it ends one, begins a
    comment or a line of its own."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    for mark in "<>&\u2028\u2029":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return text
