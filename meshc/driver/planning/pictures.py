"""Plans as a picture: time by mechanism and memory by use, side by side. Imports matplotlib (extra
`plots`).

The same values give the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from meshc.cost.terms import MECHANISMS
from meshc.driver.planning.plan_answers import PhasePlan, Plan, Room

_STYLE = {"font.size": 9}
_COLORS = dict(zip(MECHANISMS, ("C0", "C1", "C2", "C7", "C3"), strict=True))
_OTHERS = "scratch, code and others"
_USES = {"weights": "C0", "caches": "C1", "other buffers": "C2", _OTHERS: "0.7"}


def plans_picture(plans: Sequence[Plan]) -> bytes:
    """A PNG: for each phase a bar of milliseconds for every plan that has them, by mechanism, and
    the share of a core's or GPU's memory that it takes, by use."""
    phases = list(dict.fromkeys(phase.phase for plan in plans for phase in plan.phases))
    with matplotlib.rc_context(_STYLE):
        size = (13, 1.2 + (0.6 + 0.45 * len(plans)) * len(phases))
        figure = Figure(figsize=size, layout="constrained")
        rows = figure.subplots(len(phases), 2, squeeze=False)
        for phase, (times, memory) in zip(phases, rows, strict=True):
            named = [(_name(p, one), one) for p in plans for one in p.phases if one.phase == phase]
            _times(times, phase, named)
            _memory(memory, named)
        buffer = BytesIO()
        figure.savefig(buffer, format="png", metadata={"Software": None})
        return buffer.getvalue()


def _name(plan: Plan, phase: PhasePlan) -> str:
    """What a bar is called: the model and where it is, and that it does not fit."""
    place = phase.mesh or f"on {plan.gpus}"
    return f"{plan.model}\n{plan.device} {place}{'' if phase.fits else ' (does not fit)'}"


def _times(axes: Axes, phase: str, named: Sequence[tuple[str, PhasePlan]]) -> None:
    left = [0.0] * len(named)
    for mechanism in MECHANISMS:
        widths = [_milliseconds(one, mechanism) for _, one in named]
        if any(widths):
            color = _COLORS[mechanism]
            axes.barh(range(len(named)), widths, left=left, label=mechanism, color=color)
        left = [before + width for before, width in zip(left, widths, strict=True)]
    for place, (_, one) in enumerate(named):
        rate = one.tokens_per_second
        words = "not predicted" if rate is None else f"{rate:,.0f} tokens/s"
        axes.annotate(words, (left[place], place), textcoords="offset points", xytext=(4, -3))
    _named(axes, named)
    axes.set_xlabel(f"{phase}: predicted ms")
    axes.set_xlim(0, 1.35 * max(left) or 1)


def _milliseconds(phase: PhasePlan, mechanism: str) -> float:
    found = phase.prediction
    return 0.0 if found is None else 1e3 * found.in_seconds(found.cost.parts()[mechanism])


def _memory(axes: Axes, named: Sequence[tuple[str, PhasePlan]]) -> None:
    left = [0.0] * len(named)
    for use, color in _USES.items():
        widths = [_share(phase.room, use) for _, phase in named]
        axes.barh(range(len(named)), widths, left=left, label=use, color=color)
        left = [before + width for before, width in zip(left, widths, strict=True)]
    axes.axvline(100, color="black", linewidth=1)
    _named(axes, named)
    axes.set_yticklabels([])
    axes.set_xlabel("memory taken (%)")


def _share(room: Room | None, use: str) -> float:
    """Per cent of all memory that a use takes; 0 where memory is not known or not limited."""
    if room is None or not room.size:
        return 0.0
    others = sum(taken for name, taken in room.uses.items() if name not in _USES)
    return 100 * (others if use == _OTHERS else room.uses.get(use, 0)) / room.size


def _named(axes: Axes, named: Sequence[tuple[str, PhasePlan]]) -> None:
    axes.set_yticks(range(len(named)), [name for name, _ in named])
    axes.invert_yaxis()
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
