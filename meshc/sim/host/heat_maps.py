"""A page with heat maps over the fabric after a run: memory, busy cycles, wavelets, routes."""

from __future__ import annotations

import html
from collections.abc import Callable
from pathlib import Path
from typing import Any

from meshc.sim.route_configs import EAST, NORTH, RAMP, SOUTH, STEP, WEST

_CELL = 24
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 14px sans-serif; margin: 2em; color: #222; }}
svg {{ margin: 0 2em 1em 0; }} rect {{ stroke: #fff; }} td {{ padding: 0 1em 0 0; }}
</style></head><body>
<h1>{title}</h1>
<p>{width} by {height} PEs, {cycles} cycles, {tasks} tasks. Hover over a cell for its numbers.</p>
{maps}
<h2>Routes</h2>
{routes}
</body></html>
"""


def write_report(folder: Path, machine: Any) -> Path:
    """Write ``report.html`` to ``folder``; the page needs no other file."""
    folder.mkdir(parents=True, exist_ok=True)
    program = machine.program
    cells = dict(machine.pes)
    maps = "".join(
        _heat_map(title, cells, value)
        for title, value in (
            ("Memory used (bytes)", lambda pe: sum(s.size for s in pe.program.symbols)),
            ("Cycles busy", lambda pe: pe.cycles_busy),
            ("Wavelets over links", lambda pe: _links(machine, pe)),
        )
    )
    colors = sorted({color for _, _, color in machine.fabric.routers})
    page = _PAGE.format(
        title="Simulation report",
        width=program.width,
        height=program.height,
        cycles=machine.cycles,
        tasks=machine.tasks_run,
        maps=maps,
        routes="".join(_routes(color, machine) for color in colors) or "<p>none</p>",
    )
    path = folder / "report.html"
    path.write_text(page, encoding="utf-8")
    return path


def _links(machine: Any, pe: Any) -> int:
    load = machine.fabric.link_load
    return sum(load.get((pe.x, pe.y, d), 0) for d in (EAST, WEST, NORTH, SOUTH))


def _size(cells: dict[tuple[int, int], Any]) -> tuple[int, int]:
    width = 1 + max(x for x, _ in cells)
    height = 1 + max(y for _, y in cells)
    return width * _CELL, height * _CELL


def _heat_map(title: str, cells: dict[tuple[int, int], Any], value: Callable[[Any], int]) -> str:
    numbers = {at: value(pe) for at, pe in cells.items()}
    top = max(numbers.values()) or 1
    width, height = _size(cells)
    boxes = "".join(
        f'<rect x="{x * _CELL}" y="{y * _CELL}" width="{_CELL}" height="{_CELL}" '
        f'fill="hsl(210,70%,{95 - 60 * number // top}%)"><title>({x}, {y}): {number}</title></rect>'
        for (x, y), number in numbers.items()
    )
    return (
        f"<h2>{html.escape(title)}, at most {top}</h2>"
        f'<svg width="{width}" height="{height}">{boxes}</svg>'
    )


def _routes(color: int, machine: Any) -> str:
    """The routes of one color as lines from the middle of each PE, in their present state."""
    width, height = _size(machine.pes)
    lines = []
    for (x, y, c), router in sorted(machine.fabric.routers.items()):
        if c != color:
            continue
        middle = (x * _CELL + _CELL // 2, y * _CELL + _CELL // 2)
        if RAMP in router.tx() or RAMP in router.rx():
            fill = "#06c" if RAMP in router.rx() else "#c60"
            lines.append(f'<circle cx="{middle[0]}" cy="{middle[1]}" r="4" fill="{fill}"/>')
        for out in router.tx():
            if out != RAMP:
                dx, dy = STEP[out]
                lines.append(
                    f'<line x1="{middle[0]}" y1="{middle[1]}" x2="{middle[0] + dx * _CELL}" '
                    f'y2="{middle[1] + dy * _CELL}" stroke="#444" stroke-width="2"/>'
                )
    return (
        f"<h3>color {color}</h3><p>blue: sends, orange: receives</p>"
        f'<svg width="{width}" height="{height}">{"".join(lines)}</svg>'
    )
