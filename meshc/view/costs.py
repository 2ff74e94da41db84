"""Predicted costs by op, each with the lines of the module on which its ops stand."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from meshc.ir.module import Level, Module
from meshc.ir.ops.task import Phase
from meshc.ir.ops.tile import Compute, Recv, Relay, Send
from meshc.ir.printer import op_lines


def clock(report: Mapping[str, Any], phase: str, last: Module) -> dict[str, Any] | None:
    """The cycles of a CSL program, as its report has them; ``last`` is its module."""
    told = report.get("cycles_by_op")
    rows = told.get(phase) if isinstance(told, dict) else told
    if not rows:
        return None
    lines = _lines_by_name(last)
    return {
        "unit": "cycles",
        "total": sum(row["cycles"] for row in rows),
        "bound": sum(row["bound"] for row in rows),
        "rows": [
            {
                "op": row["op"],
                "kind": row["kind"],
                "times": row["times"],
                "cost": row["cycles"],
                "bound": row["bound"],
                "lines": sorted({n for name in row["op"].split(", ") for n in lines[name]}),
            }
            for row in rows
        ],
    }


def _lines_by_name(module: Module) -> Mapping[str, list[int]]:
    """Lines of ops by what a report calls them: a kernel and its first buffer, or a buffer over the
    channel on which it is sent or received."""
    found: dict[str, list[int]] = defaultdict(list)
    for line, op in op_lines(module):
        if isinstance(op, Compute):
            found[f"{op.kernel} %{op.views()[0].buffer.name}"].append(line)
        elif isinstance(op, (Send, Recv, Relay)):
            names = {op.channel, op.onward} if isinstance(op, Relay) else {op.channel}
            for name in names:
                found[f"%{op.views()[0].buffer.name} over @{name}"].append(line)
    return found


def predicted(costs: Mapping[str, Any], modules: Mapping[Level, Module]) -> dict[str, Any]:
    """What was recorded of a prediction, by mechanism; ``modules`` are the last ones of each level.
    Ops of the mesh level are found by their first result, phases of tasks by name."""
    lines: dict[str, list[int]] = defaultdict(list)
    level: Level = "task" if "task" in modules else "mesh"
    for line, op in op_lines(modules[level]) if level in modules else ():
        if isinstance(op, Phase):
            lines[op.name].append(line)
        elif op.results and level == "mesh":
            lines[f"%{op.results[0].name}"].append(line)
    return {
        "unit": costs["unit"],
        "clock_hz": costs["clock_hz"],
        "model": costs["model"],
        "total": costs["total"],
        "bound": costs["bound"],
        "left_out": costs["left_out"],
        "apart": costs["apart"],
        "level": level,
        "rows": [
            {
                "op": part["op"],
                "times": part["times"],
                "parts": [part[name] for name in costs["apart"]],
                "lines": _found(lines, part["op"]),
            }
            for part in costs["parts"]
        ],
    }


def _found(lines: Mapping[str, list[int]], name: str) -> list[int]:
    return lines.get(name, []) or lines.get(name.rpartition(" ")[2], [])
