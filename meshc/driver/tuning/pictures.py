"""Tunings as a picture: what was tried and the front, a panel for each phase. Imports matplotlib
(extra `plots`).

The same values give the same bytes.
"""

from __future__ import annotations

from io import BytesIO

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from meshc.driver.tuning.configurations import Outcome
from meshc.driver.tuning.fronts import taken
from meshc.driver.tuning.tuner import PhaseTuning, Tuning

_STYLE = {"font.size": 9}


def tuning_picture(tuning: Tuning, across: str) -> bytes:
    """A PNG: milliseconds of a run over what is taken, which ``across`` says with its unit; those
    that do not fit are hollow."""
    with matplotlib.rc_context(_STYLE):
        size = 6 * len(tuning.phases), 4.2
        figure = Figure(figsize=size, layout="constrained")
        panels = figure.subplots(1, len(tuning.phases), squeeze=False)[0]
        for axes, phase in zip(panels, tuning.phases, strict=True):
            _panel(axes, phase, tuning.measure)
            axes.set_xlabel(across)
            axes.set_ylabel(f"{phase.phase}: predicted ms of a run")
        figure.suptitle(f"{tuning.model} on {tuning.device}")
        buffer = BytesIO()
        figure.savefig(buffer, format="png", metadata={"Software": None})
        return buffer.getvalue()


def _panel(axes: Axes, phase: PhaseTuning, measure: str) -> None:
    timed = [one for one in phase.tried if one.seconds is not None]
    for fits, name, fill in ((True, "fits", "C0"), (False, "does not fit", "none")):
        shown = [one for one in timed if one.fits == fits]
        if shown:
            places = ([taken(one, measure) for one in shown], [_ms(one) for one in shown])
            axes.scatter(*places, s=14, facecolors=fill, edgecolors="C0", label=name)
    line = sorted(phase.front, key=lambda one: taken(one, measure))
    if line:
        across, up = [taken(one, measure) for one in line], [_ms(one) for one in line]
        axes.plot(across, up, color="C3", marker="o", markersize=4, label="front")
        axes.set_yscale("log")
        axes.legend(frameon=False)
    for own in line:
        place = own.configuration.mesh or f"{own.configuration.gpus} x {own.configuration.batch}"
        axes.annotate(
            place, (taken(own, measure), _ms(own)), textcoords="offset points", xytext=(4, 4)
        )
    axes.grid(alpha=0.3)


def _ms(outcome: Outcome) -> float:
    assert outcome.seconds is not None
    return 1e3 * outcome.seconds
