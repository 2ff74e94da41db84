"""A prediction: a cost by op, its unit, what it comes from, and the numbers that it rests on."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

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
    where nobody computes that. ``left_out`` says what costs something and is not counted.
    """

    model: Model
    unit: Unit
    clock_hz: int | None
    parts: tuple[Part, ...]
    inputs: tuple[Input, ...]
    bound: float | None = None
    apart: tuple[str, ...] = MECHANISMS
    left_out: tuple[str, ...] = ()

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
