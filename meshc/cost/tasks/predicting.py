"""A step of a program of tasks, or a prompt that others read, as a prediction: its phases, by what
blocks spend their time on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

from meshc.cost.predictions import Part, Prediction, in_turn, inputs_of, interpolated
from meshc.cost.prompt_kernels import PromptKernels
from meshc.cost.tasks.phase_times import PhaseTime, StepTime, step_time
from meshc.cost.tasks.tile_times import Links, TileTimes
from meshc.cost.tasks.work import Scalars
from meshc.cost.terms import Cost
from meshc.ir.batch import LENGTH, POSITION
from meshc.ir.module import Module
from meshc.ir.printer import print_module
from meshc.ir.ranks import RANK

APART = ("compute", "transfer", "stages", "waits")


def timed(module: Module, scalars: Scalars, links: Links | None = None) -> StepTime:
    """:func:`~meshc.cost.tasks.phase_times.step_time` of a module on its device, whose ranks meet
    over ``links``. What a step takes is asked for where it is chosen, in remarks, in summaries and
    in plans, and found once."""
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
    """What :func:`~meshc.cost.tasks.phase_times.step_time` says of a module of the task level,
    whose bound is the time of its bytes; ranks meet over ``links``. Raises what that does."""
    found = timed(module, scalars, links)
    asked = {name for names in found.inputs.values() for name in names}
    inputs = inputs_of(module.the_device(), asked)
    parts = tuple(map(_part, found.phases))
    read = float(found.bytes)
    return Prediction("events", "seconds", None, parts, inputs, found.ceiling, APART, bytes=read)


def predicted_prompt(
    readers: Sequence[Module],
    step: Module,
    tokens: int,
    kernels: PromptKernels | None = None,
    links: Links | None = None,
) -> Prediction:
    """A prompt of so many tokens: ``kernels`` read as many of them as they do, ``step`` the last
    one of what is left, and runs of ``readers`` those before it, or steps where there are none. Of
    the readers, those of more tokens first, each reads as many as it can while more are left than
    the next one reads. The runs of each are interpolated, the last one as if it were full. Ranks
    meet over ``links``. Raises what :func:`predicted_step` and :meth:`PromptKernels.predicted` do.
    """
    chunks = kernels.chunks(tokens) if kernels is not None else []
    first = chunks[-1][1] if chunks else 0
    found = [kernels.predicted(chunks, first == tokens)] if kernels is not None and chunks else []
    if first < tokens:
        last = predicted_step(step, _scalars(step, tokens - 1), links)
        runs = _runs(readers or [step], first, tokens - 1)
        found += [_together(reader, positions, links) for reader, positions in runs]
        named = (Part("step of the last token", 1, last.cost),)
        found.append(replace(last, parts=named) if found else last)
    return in_turn(found)


def _runs(
    readers: Sequence[Module], first: int, stop: int
) -> Iterator[tuple[Module, Sequence[int]]]:
    """Those of ``readers`` that have any, and how many tokens are cached before each, which read a
    prompt from its token ``first`` to that in front of ``stop``."""
    sizes = [_most(reader) for reader in readers]
    for reader, most, less in zip(readers, sizes, [*sizes[1:], 0], strict=True):
        count = (stop - first) // most
        count += stop - first - count * most > less
        if count:
            yield reader, range(first, first + count * most, most)
            first = min(first + count * most, stop)


def _together(reader: Module, positions: Sequence[int], links: Links | None) -> Prediction:
    """What runs of ``reader`` behind so many tokens take together."""
    return interpolated(
        len(positions), lambda n: predicted_step(reader, _scalars(reader, positions[n]), links)
    )


def _most(reader: Module) -> int:
    """Tokens that ``reader`` reads at once."""
    return reader.scalars[LENGTH][1] if LENGTH in reader.scalars else 1


def _scalars(reader: Module, position: int) -> dict[str, int]:
    """Those of a full run behind so many tokens, at the latest of the last one that the caches
    hold; ranks do alike, so that the first stands for all."""
    found = {POSITION: min(position, reader.scalars[POSITION][1])}
    found |= {LENGTH: _most(reader)} if LENGTH in reader.scalars else {}
    return found | ({} if reader.ranks is None else {RANK: 0})


def _part(phase: PhaseTime) -> Part:
    spent = phase.spent
    cost = Cost(
        compute=spent.computing, transfer=spent.memory, stages=spent.meeting, waits=spent.idle
    )
    return Part(phase.name, phase.times, cost)
