"""Which caches of an engine a request has: whole ones, or pages that a table names."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from meshc.serving.engines import Array, PagedEngine, WholeEngine
from meshc.serving.pages import Pages
from meshc.serving.requests import Room
from meshc.serving.sampling import Choose, Sampler


@dataclass
class Job:
    """A request being served, whose first ``given`` tokens end nothing. ``place`` is its number in
    the engine, whose caches hold the first ``known`` tokens of its prompt when it has ``begun``;
    ``rows`` are what the last group of layers gave for the part of its prompt that is being read.
    It has taken ``steps`` behind its prompt since then, fewer than it has ``tokens`` if it begins
    again."""

    name: int
    prompt: tuple[int, ...]
    most: int
    stop: Collection[int] = ()
    choose: Choose = field(default_factory=Sampler)
    given: int = 0
    tokens: list[int] = field(default_factory=list)
    place: int | None = None
    known: int = 0
    begun: bool = False
    rows: Array | None = None
    steps: int = 0


class Caches(Protocol):
    """Who has which caches, as a server is told of requests that come and go."""

    @property
    def room(self) -> Room | None:
        """The memory that the scheduler asks, None for one that it reserves itself."""

    @property
    def free(self) -> int:
        """How many more requests have a place."""

    def known(self, job: Job, multiple: int) -> int:
        """How many tokens of the prompt of ``job``, which may come next, are there already, a
        multiple of ``multiple``."""

    def begin(self, job: Job) -> None:
        """``job`` is read from now on and has a place, if it had none."""

    def ready(self, job: Job) -> None:
        """``job`` is read or continued next."""

    def stretch(self, job: Job, tokens: int) -> int:
        """For how many tokens ``job`` has room, up to ``tokens``, without taking it from others."""

    def read(self, job: Job, tokens: int) -> None:
        """All layers have read the first ``tokens`` of ``job``, of its prompt and of what it got
        behind that."""

    def leave(self, job: Job, sound: bool) -> None:
        """``job`` leaves its place; its caches hold what they should if it was ``sound``."""

    def forget(self) -> None:
        """What caches hold is not known any more; nobody has a place."""


class WholeCaches:
    """Each request has the caches of its place, from the first token to the last that fits. With
    ``prefixes`` one takes those of a request that has left and shares the longest beginning."""

    room = None

    def __init__(self, engine: WholeEngine, prefixes: bool) -> None:
        self._engine, self._prefixes = engine, prefixes
        self._free = list(range(engine.requests))
        self._left: dict[int, tuple[int, ...]] = {}  # tokens in caches of those that have left

    @property
    def free(self) -> int:
        """See :class:`Caches`."""
        return len(self._free)

    def known(self, job: Job, multiple: int) -> int:
        """See :class:`Caches`. Of the free caches those that hold most of the prompt are its own
        from now on; none where no caches are free. At least the last two tokens of a prompt are
        read, of which the step behind it takes one."""
        if self._prefixes and job.place is None and self._free:
            shared = {place: _shared(self._left.get(place, ()), job.prompt) for place in self._free}
            job.place = max(self._free, key=lambda place: shared[place])
            self._free.remove(job.place)
            most = min(shared[job.place], len(job.prompt) - 2)
            job.known = max(0, most) // multiple * multiple
        return job.known

    def begin(self, job: Job) -> None:
        """See :class:`Caches`."""
        if job.place is None:
            job.place = self._free.pop(0)
        self._left.pop(job.place, None)
        self._engine.begin(job.place, job.known)

    def ready(self, job: Job) -> None:
        """See :class:`Caches`."""

    def stretch(self, job: Job, tokens: int) -> int:
        """See :class:`Caches`."""
        return min(tokens, self._engine.capacity)

    def read(self, job: Job, tokens: int) -> None:
        """See :class:`Caches`."""

    def leave(self, job: Job, sound: bool) -> None:
        """See :class:`Caches`. One that has got tokens leaves all of them but the last."""
        if job.place is None:
            return
        self._free.append(job.place)
        if self._prefixes and job.tokens and sound:
            self._left[job.place] = (*job.prompt, *job.tokens[:-1])

    def forget(self) -> None:
        """See :class:`Caches`."""
        self._left.clear()


class PagedCaches:
    """A request has pages for the tokens that it has. With ``prefixes`` it shares those of whole
    pieces of a prompt that others, which may still be there, have read before it."""

    def __init__(self, engine: PagedEngine, prefixes: bool) -> None:
        self._engine = engine
        unit = max(engine.page, engine.multiple)
        self.room = Pages(engine.pages, engine.page, unit if prefixes else 0)
        self._free = list(range(engine.requests))
        self._laid: dict[int, list[int]] = {}

    @property
    def free(self) -> int:
        """See :class:`Caches`."""
        return len(self._free)

    def known(self, job: Job, multiple: int) -> int:
        """See :class:`Caches`."""
        job.known = self.room.find(job.name, job.prompt)
        return job.known

    def begin(self, job: Job) -> None:
        """See :class:`Caches`."""
        job.place = self._free.pop(0)

    def ready(self, job: Job) -> None:
        """See :class:`Caches`."""
        assert job.place is not None
        table = self.room.table(job.name)
        if self._laid.get(job.place) != table:
            self._laid[job.place] = table
            self._engine.lay(job.place, table)

    def stretch(self, job: Job, tokens: int) -> int:
        """See :class:`Caches`."""
        return self.room.stretch(job.name, tokens)

    def read(self, job: Job, tokens: int) -> None:
        """See :class:`Caches`."""
        whole = tokens <= len(job.prompt)
        text = job.prompt if whole else (*job.prompt, *job.tokens)
        self.room.share(job.name, text, tokens)

    def leave(self, job: Job, sound: bool) -> None:
        """See :class:`Caches`. Pages are the scheduler's to give back."""
        if job.place is not None:
            self._free.append(job.place)

    def forget(self) -> None:
        """See :class:`Caches`."""
        self.room.forget()


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))
