"""A prediction: a cost by op, its unit, what it comes from, and the numbers that it rests on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Literal

import numpy as np

from meshc.cost.terms import MECHANISMS, NOTHING, Cost
from meshc.devices import Device, key_of

Unit = Literal["cycles", "seconds"]
Model = Literal["search", "clock", "events", "chunks", "kernels", "servers"]

MODELS: Mapping[Model, str] = {
    "search": "costs by which passes choose forms and algorithms, added up over ops (docs/"
    "performance.md says how near the clock they are)",
    "clock": "clocks of all cores moved through the emitted program (docs/csl.md)",
    "events": "events of the blocks of a program of tasks (docs/step-times.md)",
    "chunks": "kernels that read many tokens of a prompt at once, and events of the tasks that "
    "read what is left (docs/cuda.md)",
    "kernels": "kernels of an iteration on a node, one by one (docs/nodes.md)",
    "servers": "costs of an iteration by numbers that are fitted to published servers, or inferred "
    "from those (docs/serving.md)",
}
"""What predicts, in words."""


@dataclass(frozen=True)
class Input:
    """A number of a device that a prediction rests on; ``kind`` says how much to trust it and
    ``source`` where it is from."""

    name: str
    value: int | float | str | None
    unit: str
    kind: str
    source: str


@dataclass(frozen=True)
class Part:
    """What an op, a phase or a kernel costs, all ``times`` that a run comes to it together."""

    name: str
    times: int
    cost: Cost


@dataclass(frozen=True)
class Prediction:
    """Predicted ``parts`` of a run in ``unit``, ``cycles`` of ``clock_hz`` or ``seconds``.

    ``model`` is what predicts. It tells the mechanisms in ``apart`` from each other; what the
    others take is in those. ``bound`` is the least that any program with the same work takes, None
    where nobody computes that. ``left_out`` says what costs something and is not counted. ``bytes``
    are read of the memory of a GPU, None where nobody counts them.
    """

    model: Model
    unit: Unit
    clock_hz: int | None
    parts: tuple[Part, ...]
    inputs: tuple[Input, ...]
    bound: float | None = None
    apart: tuple[str, ...] = MECHANISMS
    left_out: tuple[str, ...] = ()
    bytes: float | None = None

    @property
    def cost(self) -> Cost:
        """All parts together."""
        return sum((part.cost for part in self.parts), NOTHING)

    @property
    def total(self) -> float:
        """All of it, in its unit."""
        return self.cost.total

    @property
    def seconds(self) -> float:
        """All of it, in seconds."""
        return self.in_seconds(self.total)

    def in_seconds(self, amount: float) -> float:
        """An amount of the unit in seconds."""
        return amount if self.clock_hz is None else amount / self.clock_hz


FOLLOWED = 5
"""Runs of many alike that are predicted, at the most."""


def in_turn(found: Sequence[Prediction]) -> Prediction:
    """What is predicted of several runs, in a unit, one behind the other: parts of the same name
    together."""
    parts: dict[str, Part] = {}
    for one in (part for run in found for part in run.parts):
        known = parts.get(one.name, Part(one.name, 0, NOTHING))
        parts[one.name] = Part(one.name, known.times + one.times, known.cost + one.cost)
    return replace(
        found[0],
        parts=tuple(parts.values()),
        inputs=tuple(dict.fromkeys(known for run in found for known in run.inputs)),
        bound=_sum(run.bound for run in found),
        bytes=_sum(run.bytes for run in found),
        apart=tuple(dict.fromkeys(name for run in found for name in run.apart)),
    )


def interpolated(count: int, predict: Callable[[int], Prediction]) -> Prediction:
    """What ``count`` runs take one behind the other that have the same parts, where ``predict``
    tells it of the one of a number from 0 on. At most :data:`FOLLOWED` are asked for, the first one
    and others at equal distances; what those in between take lies on the lines between these."""
    others = np.linspace(min(1, count - 1), count - 1, FOLLOWED - 1).round().astype(int)
    followed = np.unique([0, *others])
    weights = [
        float(np.interp(np.arange(count), followed, one).sum()) for one in np.eye(len(followed))
    ]
    runs = [predict(int(n)) for n in followed]
    parts = tuple(
        Part(
            same[0].name,
            same[0].times * count,
            sum((part.cost * w for part, w in zip(same, weights, strict=True)), NOTHING),
        )
        for same in zip(*(run.parts for run in runs), strict=True)
    )
    bound = _sum((run.bound for run in runs), weights)
    return replace(runs[0], parts=parts, bound=bound, bytes=_sum((r.bytes for r in runs), weights))


def _sum(amounts: Iterable[float | None], weights: Iterable[float] = repeat(1.0)) -> float | None:
    """All ``amounts`` together, each as often as its weight says; None where one is not known."""
    found = list(zip(amounts, weights, strict=False))
    known = [amount * weight for amount, weight in found if amount is not None]
    return sum(known) if len(known) == len(found) else None


def inputs_of(device: Device, asked: Collection[str]) -> tuple[Input, ...]:
    """The numbers of ``device`` that were ``asked`` for, with what the short names of their sources
    stand for."""
    return tuple(_inputs(device, asked))


def _inputs(device: Device, asked: Collection[str]) -> Iterator[Input]:
    for name, number in device.every_number().items():
        if name in asked:
            unit = key_of(name).unit
            yield Input(name, number.value, unit, number.kind, _spelt(number.source, device))


def _spelt(source: str, device: Device) -> str:
    """A source with its short name spelled out."""
    short, colon, rest = source.partition(":")
    known = device.sources.get(short)
    return source if known is None else f"{known}{colon}{rest}"
