"""The data of a page as one picture, for papers and terminals. Imports matplotlib (extra `plots`).

The same data give the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from io import BytesIO
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

_STYLE = {"font.size": 9, "svg.hashsalt": "meshc"}
_COLORS = (
    "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#8c8c8c",
)  # fmt: skip
"""Okabe and Ito's, as on the page."""
_FREE = "#e4e7eb"
_MOST_OPS = 14
_MOST_NAME = 34
_MOST_TRACKS = 32
"""A timeline with more tracks is drawn by every second, third or further one."""
_ROLES = {"S": "#0072b2", "R": "#e69f00", "B": "#009e73", "P": "#9aa3ad"}

Drawing = tuple[float, Callable[[Axes], None]]
"""Inches of height, and what draws."""


def picture(data: Mapping[str, Any]) -> bytes:
    """A PNG: of each phase its memory, its costs by op and the colors of its routes, then the
    timelines, then the maps of fabrics; of those what there is."""
    drawings = [one for phase in data["phases"] for one in _of_phase(phase)]
    drawings += [_timeline(one) for one in data["timelines"]]
    drawings += [_map(one["name"], found) for one in data["fabrics"] for found in one["maps"]]
    if not drawings:
        drawings = [(1.0, lambda axes: axes.set_axis_off())]
    with matplotlib.rc_context(_STYLE):
        heights = [height for height, _ in drawings]
        figure = Figure(figsize=(9, sum(heights) + 0.6), layout="constrained")
        figure.suptitle(f"{data['model']} on {data['device']}, {data['target']}", fontsize=11)
        every = figure.subplots(len(drawings), 1, squeeze=False, height_ratios=heights)
        for axes, (_, draw) in zip(every[:, 0], drawings, strict=True):
            draw(axes)
        buffer = BytesIO()
        figure.savefig(buffer, format="png", dpi=150, metadata={"Software": None})
        return buffer.getvalue()


def _of_phase(phase: Mapping[str, Any]) -> list[Drawing]:
    found: list[Drawing] = []
    if phase["memory"] is not None:
        found.append((1.3, lambda axes: _memory(axes, phase)))
    rows, unit = _costs(phase)
    if rows:
        found.append((0.7 + 0.19 * len(rows), lambda axes: _bars(axes, phase["name"], rows, unit)))
    colors = {} if phase["routes"] is None else phase["routes"]["colors"]
    found += [
        (0.7 + 0.14 * len(of), partial(_routes, axis=axis, colors=of))
        for axis, of in colors.items()
        if of
    ]
    return found


def _memory(axes: Axes, phase: Mapping[str, Any]) -> None:
    found, left = phase["memory"], 0
    uses = [(name, size) for name, size in found["uses"].items() if size]
    for (name, size), color in zip(uses, _COLORS, strict=False):
        axes.barh([0], [size], left=[left], color=color, label=f"{name} {size:,}")
        left += size
    if (found["left"] or 0) > 0:
        axes.barh([0], [found["left"]], left=[left], color=_FREE, label=f"left {found['left']:,}")
    axes.set_yticks([])
    axes.set_xlabel(f"{phase['name']}: bytes of a {found['of']}")
    axes.legend(fontsize=7, ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1), frameon=False)


def _costs(phase: Mapping[str, Any]) -> tuple[list[tuple[str, float]], str]:
    """The dearest ops, and the unit."""
    if phase["clock"] is not None:
        rows, unit = [(row["op"], row["cost"]) for row in phase["clock"]["rows"]], "cycles"
    elif phase["costs"] is not None:
        rows = [(row["op"], sum(row["parts"])) for row in phase["costs"]["rows"]]
        unit = phase["costs"]["unit"]
    else:
        return [], ""
    return sorted(rows, key=lambda row: -row[1])[:_MOST_OPS], unit


def _bars(axes: Axes, name: str, rows: list[tuple[str, float]], unit: str) -> None:
    axes.barh(range(len(rows)), [cost for _, cost in rows], color=_COLORS[0], height=0.7)
    axes.set_yticks(range(len(rows)), [op[:_MOST_NAME] for op, _ in rows], fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel(f"{name}: predicted {unit}, the dearest ops")


def _routes(axes: Axes, axis: str, colors: list[Mapping[str, Any]]) -> None:
    for row, one in enumerate(colors):
        for role, paint in _ROLES.items():
            places = [(n, 1) for n, letter in enumerate(one["roles"]) if letter == role]
            axes.broken_barh(places, (row - 0.4, 0.8), facecolors=paint)
    axes.set_yticks(range(len(colors)), [str(one["color"]) for one in colors], fontsize=7)
    axes.invert_yaxis()
    axes.set_xlim(0, len(colors[0]["roles"]))
    axes.set_xlabel(
        f"colors along {axis}: sending blue, receiving orange, both green, passing grey"
    )


def _timeline(one: Mapping[str, Any]) -> Drawing:
    apart = max(1, -(-len(one["tracks"]) // _MOST_TRACKS))
    shown = one["tracks"][::apart]

    def draw(axes: Axes) -> None:
        groups: dict[tuple[int, int], list[tuple[float, float]]] = {}
        for track, start, length, name, kind in one["spans"]:
            if track % apart:
                continue
            color = kind if kind >= 0 else name
            groups.setdefault((track // apart, color % len(_COLORS)), []).append((start, length))
        for (track, color), spans in groups.items():
            axes.broken_barh(spans, (track - 0.4, 0.8), facecolors=_COLORS[color])
        axes.set_yticks(range(len(shown)), shown, fontsize=7)
        axes.invert_yaxis()
        axes.set_xlim(0, one["total"] or 1)
        axes.set_xlabel(f"{one['name']} ({one['unit']})")
        for color, kind in zip(_COLORS, one["kinds"], strict=False):
            axes.barh([0], [0], color=color, label=kind)
        legend = {"loc": "lower center", "bbox_to_anchor": (0.5, 1), "ncols": 4}
        axes.legend(fontsize=7, frameon=False, **legend)

    return 1.0 + 0.2 * len(shown), draw


def _map(name: str, found: Mapping[str, Any]) -> Drawing:
    rows = np.array(found["rows"], np.float64)  # None is not a number, and is not painted

    def draw(axes: Axes) -> None:
        image = axes.imshow(rows, vmin=0, interpolation="nearest")
        axes.set_aspect("equal", adjustable="datalim")
        axes.set_axis_off()
        axes.set_title(f"{name}: {found['name']}, core by core", fontsize=8)
        axes.figure.colorbar(image, ax=axes, label=found["unit"])

    return min(4.0, 1.6 + 0.1 * len(rows)), draw
