"""Memory for keys and values in pages: requests hold those of the tokens that they have, and share
the pages of what their prompts begin with alike.

What is shared are *units* of a prompt: whole pages, filled by whole pieces in which the program
reads prompts, from the first token on; of an answer too, where one program reads both. Of such
tokens the program leaves the same bits whoever reads them, so nobody can tell whose unit it has.
Units are the nodes of a tree; one that nobody holds any more stays until its pages are needed,
those that were not used for longest going first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from meshc.serving.requests import Request


@dataclass(eq=False)
class _Unit:
    """Pages of so many tokens of a prompt, behind those of ``parent``, and who goes on from there;
    ``holders`` counts the requests that have it."""

    parent: _Unit | None
    tokens: tuple[int, ...]
    pages: tuple[int, ...]
    holders: int = 0
    children: dict[tuple[int, ...], _Unit] = field(default_factory=dict)


@dataclass
class _Held:
    """What a request has: units of its prompt from the first token on, and all ``pages`` in the
    order of its tokens, those of units first."""

    units: list[_Unit]
    pages: list[int]


class Pages:
    """A :class:`~meshc.serving.requests.Room` of ``count`` pages, number 0 to ``count`` - 1, of
    ``page`` tokens each. With a ``unit``, a multiple of ``page`` tokens, prompts share units."""

    grows = True

    def __init__(self, count: int, page: int, unit: int = 0) -> None:
        self.count, self.page, self.unit = count, page, unit
        self._root = _Unit(None, (), ())
        self._free = list(range(count))
        self._idle: dict[_Unit, None] = {}  # that nobody holds, children in front of their parents
        self._held: dict[int, _Held] = {}
        self._found: tuple[int, list[_Unit]] = (-1, [])  # of the last request that asked

    @property
    def used(self) -> int:
        """See :class:`~meshc.serving.requests.Room`."""
        return (self.count - self._available) * self.page

    @property
    def capacity(self) -> int:
        """See :class:`~meshc.serving.requests.Room`."""
        return self.count * self.page

    def suffices(self, request: Request) -> bool:
        """See :class:`~meshc.serving.requests.Room`; nothing is kept of a request's last token."""
        return self._pages_of(request.tokens - 1) <= self.count

    def find(self, name: int, prompt: Sequence[int]) -> int:
        """How many tokens of ``prompt``, that of request ``name``, are there already, the last one
        never among them. They are what it begins with if it is admitted next."""
        path, unit = self._root, self.unit
        found: list[_Unit] = []
        for first in range(0, len(prompt) - unit, unit) if unit else ():
            child = path.children.get(tuple(prompt[first : first + unit]))
            if child is None:
                break
            found.append(child)
            path = child
        self._found = name, found
        return len(found) * unit

    def admit(self, request: Request, tokens: int) -> bool:
        """See :class:`~meshc.serving.requests.Room`. A page for each request that is there is left
        free, so that the next tokens of these put nobody back at once."""
        name, units = self._found
        units = units if name == request.name else []
        need = self._pages_of(tokens) - len(units) * self._of_unit
        idle = sum(self._of_unit for one in units if not one.holders)
        if need + len(self._held) > self._available - idle:
            return False
        for one in units:
            self._hold(one)
        shared = (page for one in units for page in one.pages)
        self._held[request.name] = _Held(units, [*shared, *self._taken(need)])
        return True

    def grow(self, name: int, tokens: int) -> bool:
        """See :class:`~meshc.serving.requests.Room`."""
        held = self._held[name]
        need = self._pages_of(tokens) - len(held.pages)
        if need > self._available:
            return False
        held.pages += self._taken(max(need, 0))
        return True

    def stretch(self, name: int, tokens: int) -> int:
        """How many tokens request ``name`` has room for, up to ``tokens``, in its pages and in free
        ones of which the others need none soon: a page for each request is left to them."""
        held = self._held[name]
        spare = len(self._free) - len(self._held)
        more = min(self._pages_of(tokens) - len(held.pages), spare)
        held.pages += self._taken(max(more, 0))
        return min(tokens, len(held.pages) * self.page)

    def free(self, name: int) -> None:
        """See :class:`~meshc.serving.requests.Room`; units of its prompt stay for others."""
        held = self._held.pop(name, None)
        if held is None:
            return
        self._free += held.pages[len(held.units) * self._of_unit :]
        for one in reversed(held.units):
            one.holders -= 1
            if not one.holders:
                self._idle[one] = None

    def table(self, name: int) -> list[int]:
        """The pages of request ``name``, in the order of its tokens; none if it holds none."""
        held = self._held.get(name)
        return [] if held is None else list(held.pages)

    def share(self, name: int, prompt: Sequence[int], read: int) -> None:
        """The first ``read`` tokens of ``prompt`` have been read by request ``name``, and others
        may have whole units of them. One that is there already takes the place of its own."""
        held, unit = self._held[name], self.unit
        while unit and (len(held.units) + 1) * unit <= read:
            number, parent = len(held.units), held.units[-1] if held.units else self._root
            tokens = tuple(prompt[number * unit : (number + 1) * unit])
            place = slice(number * self._of_unit, (number + 1) * self._of_unit)
            own, child = held.pages[place], parent.children.get(tokens)
            if child is None:
                child = parent.children[tokens] = _Unit(parent, tokens, tuple(own))
            else:
                self._free += own
                held.pages[place] = child.pages
            self._hold(child)
            held.units.append(child)

    def forget(self) -> None:
        """What units hold is no longer known; nobody may hold any."""
        self._evict(len(self._idle))

    @property
    def _of_unit(self) -> int:
        return self.unit // self.page

    @property
    def _available(self) -> int:
        return len(self._free) + len(self._idle) * self._of_unit

    def _pages_of(self, tokens: int) -> int:
        return -(-tokens // self.page)

    def _hold(self, unit: _Unit) -> None:
        unit.holders += 1
        self._idle.pop(unit, None)

    def _taken(self, count: int) -> list[int]:
        """So many pages, which are there."""
        while len(self._free) < count:
            self._evict(1)
        found, self._free = self._free[:count], self._free[count:]
        return found

    def _evict(self, count: int) -> None:
        """Give up so many units that nobody holds."""
        for _ in range(count):
            one = next(iter(self._idle))
            del self._idle[one]
            assert one.parent is not None
            del one.parent.children[one.tokens]
            self._free += one.pages
