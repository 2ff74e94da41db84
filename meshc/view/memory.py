"""What takes the memory of a core or of a GPU, and when each buffer is alive."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshc.analysis.layout.liveness import live_ranges
from meshc.ir.module import Module
from meshc.ir.printer import op_lines

_USES = {"weight": "weights", "state": "caches"}
OTHERS = "other buffers"


def memory(
    module: Module, report: Mapping[str, Any] | None, recorded: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Bytes by use, what is left where memory has a limit, buffers, and for each of a tile-level
    ``module`` with addresses where it lies and between which lines it must keep its content.

    The bytes are those of the ``report`` of a CSL program where there is one, else those that were
    ``recorded``, else those of the module's buffers.
    """
    buffers = {b.value.name: b.type.bytes for b in module.buffers}
    roles = {b.value.name: b.role or "scratch" for b in module.buffers}
    left: int | None = None
    if report is not None:
        uses, left = _of_report(report["memory"], roles)
        buffers = dict(report["memory"]["buffers"])
    elif recorded is not None:
        uses = dict(recorded["uses"])
        left = None if recorded["room"] is None else recorded["room"] - sum(uses.values())
    else:
        uses, left = _of_module(module, roles)
    return {
        "of": "GPU" if module.level == "task" else "core",
        "uses": uses,
        "left": left,
        "buffers": [
            {"name": name, "bytes": size, "role": roles.get(name, "scratch")}
            for name, size in sorted(buffers.items(), key=lambda one: (-one[1], one[0]))
        ],
        "lives": _lives(module) if module.level == "tile" else [],
        "lines": max((line for line, _ in op_lines(module)), default=0),
    }


def _of_report(found: Mapping[str, Any], roles: Mapping[str, str]) -> tuple[dict[str, int], int]:
    """Uses that add up to ``data``, ``padding`` and ``code``; buffers may lie over each other."""
    known = dict.fromkeys(_USES.values(), 0)
    for name, size in found["buffers"].items():
        if (use := _USES.get(roles.get(name, ""))) is not None:
            known[use] += size
    apart = {name: found[name] for name in ("scratch", "tables", "variables")}
    others = found["data"] - sum(known.values()) - sum(apart.values())
    uses = known | {OTHERS: others} | apart | {"padding": found["padding"]}
    return uses | {"code (estimated)": found["code"]["bytes"]}, found["left"]


def _of_module(module: Module, roles: Mapping[str, str]) -> tuple[dict[str, int], int | None]:
    uses = dict.fromkeys((*_USES.values(), OTHERS), 0)
    for buffer in module.buffers:
        if buffer.role in _USES:
            uses[_USES[buffer.role]] += buffer.type.bytes
    placed = [(b.address or 0) + b.type.bytes for b in module.buffers]
    sizes = sum(b.type.bytes for b in module.buffers)
    top = max(placed, default=0) if module.level == "tile" else sizes
    uses[OTHERS] = max(0, top - sum(uses.values()))
    room = None if module.device is None or module.level != "tile" else module.device.room_bytes
    return uses, None if room is None else room - top


def _lives(module: Module) -> list[dict[str, Any]]:
    """Where buffers with an address lie, and from which line to which they are alive."""
    lines = [line for line, _ in op_lines(module)]
    ranges = live_ranges(module)
    found = []
    for buffer in module.buffers:
        if buffer.address is None or not lines:
            continue
        alive = ranges.get(buffer.value)
        first, last = (1, len(lines)) if alive is None else (max(alive.first, 1), alive.last)
        found.append(
            {
                "name": buffer.value.name,
                "role": buffer.role or "scratch",
                "address": buffer.address,
                "bytes": buffer.type.bytes,
                "first": lines[min(first, len(lines)) - 1],
                "last": lines[min(last, len(lines)) - 1],
            }
        )
    return found
