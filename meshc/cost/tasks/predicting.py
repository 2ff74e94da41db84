"""A step of a program of tasks, or a prompt that others read, as a prediction: its phases, by what
blocks spend their time on."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from meshc.cost.predictions import Part, Prediction, inputs_of
from meshc.cost.prompt_kernels import PromptKernels
from meshc.cost.tasks.steps import PhaseTime, StepTime, step_time
from meshc.cost.tasks.tile_times import Links, TileTimes
from meshc.cost.tasks.work import Scalars
from meshc.cost.terms import NOTHING, Cost
from meshc.ir.batch import LENGTH, POSITION
from meshc.ir.module import Module
from meshc.ir.printer import print_module

APART = ("compute", "transfer", "stages", "waits")
FOLLOWED = 5
"""Runs of a prompt that are predicted, at the most."""


def timed(module: Module, scalars: Scalars, links: Links | None = None) -> StepTime:
    """:func:`~meshc.cost.tasks.steps.step_time` of a module on its device, whose ranks meet over
    ``links``. What a step takes is asked for where it is chosen, in remarks, in summaries and in
    plans, and found once."""
    known = tuple(
        (name, value if isinstance(value, int) else tuple(value)) for name, value in scalars.items()
    )
    return _timed(_Printed(module), known, links)


class _Printed:
    """A module that is the same as another one that is printed so."""

    def __init__(self, module: Module) -> None:
        self.module, self._text = module, print_module(module)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Printed) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)


@lru_cache(maxsize=8)
def _timed(
    printed: _Printed, scalars: tuple[tuple[str, int | tuple[int, ...]], ...], links: Links | None
) -> StepTime:
    module = printed.module
    return step_time(module, dict(scalars), TileTimes(module.the_device(), links=links))


def predicted_step(module: Module, scalars: Scalars, links: Links | None = None) -> Prediction:
    """What :func:`~meshc.cost.tasks.steps.step_time` says of a module of the task level, whose
    bound is the time of its bytes; ranks meet over ``links``. Raises what that does."""
    found = timed(module, scalars, links)
    asked = {name for names in found.inputs.values() for name in names}
    inputs = inputs_of(module.the_device(), asked)
    parts = tuple(map(_part, found.phases))
    return Prediction("events", "seconds", None, parts, inputs, found.ceiling, APART)


def predicted_prompt(
    chunk: Module, step: Module, tokens: int, kernels: PromptKernels | None = None
) -> Prediction:
    """A prompt of so many tokens: ``kernels`` read as many of them as they do, ``step`` the last
    one of what is left, and runs of ``chunk`` those before it, as many at once as it reads, or
    steps if it is one. Of the runs at most :data:`FOLLOWED` are predicted, the first one and others
    at equal distances, the last one as if it were full; what those in between take is interpolated.
    Raises what :func:`predicted_step` and :meth:`PromptKernels.predicted` do."""
    chunks = kernels.chunks(tokens) if kernels is not None else []
    first = chunks[-1][1] if chunks else 0
    found = [kernels.predicted(chunks, first == tokens)] if kernels is not None and chunks else []
    if first < tokens:
        found += _by_tasks(chunk, step, first, tokens)
    return replace(
        found[0],
        parts=tuple(part for one in found for part in one.parts),
        inputs=tuple(dict.fromkeys(known for one in found for known in one.inputs)),
        bound=sum(one.bound or 0.0 for one in found),
        apart=tuple(dict.fromkeys(name for one in found for name in one.apart)),
    )


def _by_tasks(chunk: Module, step: Module, first: int, tokens: int) -> list[Prediction]:
    """Tokens from ``first`` on: runs of ``chunk``, then a step."""
    last = predicted_step(step, {POSITION: tokens - 1})
    whole = replace(last, parts=(Part("step of the last token", 1, last.cost),))
    most = chunk.scalars[LENGTH][1] if LENGTH in chunk.scalars else 1
    count = -(-(tokens - 1 - first) // most)
    if not count:
        return [last if not first else whole]
    others = np.linspace(min(1, count - 1), count - 1, FOLLOWED - 1).round().astype(int)
    followed = np.unique([0, *others])
    weights = [
        float(np.interp(np.arange(count), followed, one).sum()) for one in np.eye(len(followed))
    ]
    positions = [first + int(n) * most for n in followed]
    runs = [predicted_step(chunk, _scalars(chunk, at, most)) for at in positions]
    parts = tuple(
        Part(
            same[0].name,
            same[0].times * count,
            sum((part.cost * w for part, w in zip(same, weights, strict=True)), NOTHING),
        )
        for same in zip(*(run.parts for run in runs), strict=True)
    )
    bound = sum(w * (run.bound or 0.0) for w, run in zip(weights, runs, strict=True))
    return [replace(runs[0], parts=parts, bound=bound), whole]


def _scalars(chunk: Module, position: int, tokens: int) -> dict[str, int]:
    """Those of a run behind so many tokens, at the latest of the last one that the caches hold."""
    found = {POSITION: min(position, chunk.scalars[POSITION][1])}
    return found | ({LENGTH: tokens} if LENGTH in chunk.scalars else {})


def _part(phase: PhaseTime) -> Part:
    spent = phase.spent
    cost = Cost(
        compute=spent.computing, transfer=spent.memory, stages=spent.meeting, waits=spent.idle
    )
    return Part(phase.name, phase.times, cost)
