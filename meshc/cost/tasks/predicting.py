"""A step of a program of tasks as a prediction: its phases, by what blocks spend their time on."""

from __future__ import annotations

from meshc.cost.predictions import Part, Prediction, inputs_of
from meshc.cost.tasks.steps import PhaseTime, step_time
from meshc.cost.tasks.tile_times import Links, TileTimes
from meshc.cost.tasks.work import Scalars
from meshc.cost.terms import Cost
from meshc.ir.module import Module

APART = ("compute", "transfer", "stages", "waits")


def predicted_step(module: Module, scalars: Scalars, links: Links | None = None) -> Prediction:
    """What :func:`~meshc.cost.tasks.steps.step_time` says of a module of the task level, whose
    bound is the time of its bytes; ranks meet over ``links``. Raises what that does."""
    found = step_time(module, scalars, TileTimes(module.the_device(), links=links))
    asked = {name for names in found.inputs.values() for name in names}
    inputs = inputs_of(module.the_device(), asked)
    parts = tuple(map(_part, found.phases))
    return Prediction("events", "seconds", None, parts, inputs, found.ceiling, APART)


def _part(phase: PhaseTime) -> Part:
    spent = phase.spent
    cost = Cost(
        compute=spent.computing, transfer=spent.memory, stages=spent.meeting, waits=spent.idle
    )
    return Part(phase.name, phase.times, cost)
