"""What a plan says: of each phase its time, memory, routes and what would fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from meshc.cost.predictions import Prediction
from meshc.support.diagnostics import Diagnostic


@dataclass(frozen=True)
class Room:
    """Bytes of a core of a wafer, or of a GPU, by what takes them (``uses``) and by buffer.

    ``size`` is all that it has, None where memory is not limited. Of a program that does not fit
    these are the bytes that it would take, dealt to as many regions as there is room for.
    """

    size: int | None
    uses: Mapping[str, int]
    buffers: Mapping[str, int]

    @property
    def needed(self) -> int:
        """Bytes that are taken."""
        return sum(self.uses.values())

    @property
    def left(self) -> int | None:
        """Bytes that nothing takes, negative where the program is short of so many; None where
        memory is not limited."""
        return None if self.size is None else self.size - self.needed


@dataclass(frozen=True)
class Routes:
    """Colors that the busiest router knows and input queues of the busiest core, and how many
    programs may use; None where any number."""

    colors: int
    queues: int
    free_colors: int | None
    free_queues: int | None


@dataclass(frozen=True)
class Stream:
    """What cores read of the memory that they share, ``size`` bytes, because it has no room in
    their own: bytes by what takes them. Nothing is emitted for such a program."""

    size: int
    uses: Mapping[str, int]


@dataclass(frozen=True)
class PhasePlan:
    """One phase of a model on a device.

    A run of it makes, or reads, ``tokens``. ``regions`` is None but for wafers. ``refused`` says
    why there is no such program, for want of memory or of something else; then ``cures`` are flags
    with which there is one, as far as some were tried. ``room`` and ``prediction`` are None where
    nothing is known, ``silent`` says why nothing is predicted. ``violates`` has letters of PLMR,
    each with its reason. ``kv_tokens`` are the most tokens that caches hold in the place of
    ``seq``, None where memory is not limited or nothing was tried. ``joules`` are those of a token,
    None where the device does not say its power. ``stream`` is None where cores hold all.
    ``chosen`` says what compiling chose for it, where there was something to choose.
    """

    phase: str
    tokens: int
    mesh: str | None = None
    regions: int | None = None
    prediction: Prediction | None = None
    silent: str = ""
    room: Room | None = None
    routes: Routes | None = None
    refused: Diagnostic | None = None
    cures: tuple[str, ...] = ()
    violates: Mapping[str, str] = field(default_factory=dict)
    kv_tokens: int | None = None
    joules: float | None = None
    stream: Stream | None = None
    chosen: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether there is such a program."""
        return self.refused is None

    @property
    def tokens_per_second(self) -> float | None:
        """Predicted rate; None where nothing is predicted."""
        found = self.prediction
        return self.tokens / found.seconds if found is not None and found.total else None


@dataclass(frozen=True)
class Transition:
    """What passes between prefill and decode: ``amount`` in ``unit``, at least, and why."""

    amount: float
    unit: str
    why: str


@dataclass(frozen=True)
class Plan:
    """A model on a device; ``gpus`` is None for wafers, of each of the ``nodes`` that layers are
    dealt to."""

    model: str
    device: str
    dtype: str
    seq: int
    batch: int
    layers: int | None
    gpus: int | None
    phases: tuple[PhasePlan, ...]
    transition: Transition | None = None
    nodes: int = 1

    @property
    def fits(self) -> bool:
        """Whether all phases do."""
        return all(phase.fits for phase in self.phases)
