"""A request, and the memory that requests hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Request:
    """A prompt of ``prompt_tokens`` that is continued by at most ``output_tokens`` (both at least
    one). ``name`` is unique among the requests of a scheduler.

    Requests of one ``prefix`` begin with the same tokens, answers included: as many as the smaller
    of their ``prefix_tokens``.
    """

    name: int
    prompt_tokens: int
    output_tokens: int
    prefix: str = ""
    prefix_tokens: int = 0

    @property
    def tokens(self) -> int:
        """Tokens whose keys and values it may come to hold."""
        return self.prompt_tokens + self.output_tokens


class Room(Protocol):
    """What a scheduler asks of the memory for keys and values. A request is admitted with the
    tokens that are read of it at once, and is given room for others as it comes to have them."""

    @property
    def used(self) -> int:
        """Tokens for which there is no room any more."""

    @property
    def capacity(self) -> int:
        """Tokens that all requests may come to have."""

    @property
    def grows(self) -> bool:
        """Whether what a request holds grows with its tokens."""

    def suffices(self, request: Request) -> bool:
        """Whether ``request`` could have all its tokens if it were the only one."""

    def admit(self, request: Request, tokens: int) -> bool:
        """Hold room for the first ``tokens`` of ``request``, which holds none so far; False where
        it has to wait."""

    def grow(self, name: int, tokens: int) -> bool:
        """Hold room for the first ``tokens`` of request ``name``, one more than it has at the most;
        False where there is none, until another request is put back. Never where no other one holds
        any."""

    def free(self, name: int) -> None:
        """Give back what ``name`` holds; nothing if it holds none."""


class Memory:
    """Room for the keys and values of ``capacity`` tokens, held by name: all that a request may
    come to have from when it is admitted on, so none is ever put back."""

    grows = False

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.held: dict[int, int] = {}
        self.used = 0

    def known(self, request: Request) -> int:
        """Tokens that ``request`` begins with and whose keys and values are there."""
        return 0

    def fits(self, request: Request, tokens: int) -> bool:
        """Whether ``request`` of so many ``tokens`` has room."""
        return self.used + tokens <= self.capacity

    def hold(self, request: Request, tokens: int) -> None:
        """Reserve room for ``tokens`` of ``request``, which holds none so far."""
        self.held[request.name] = tokens
        self.used += tokens

    def read(self, name: int) -> None:
        """The whole prompt of ``name`` has been read."""

    def suffices(self, request: Request) -> bool:
        """See :class:`Room`."""
        return request.tokens <= self.capacity

    def admit(self, request: Request, tokens: int) -> bool:
        """See :class:`Room`."""
        fits = self.fits(request, request.tokens)
        if fits:
            self.hold(request, request.tokens)
        return fits

    def grow(self, name: int, tokens: int) -> bool:
        """See :class:`Room`."""
        return True

    def free(self, name: int) -> None:
        """Give back what ``name`` holds; nothing if it holds none."""
        self.used -= self.held.pop(name, 0)

    @property
    def evicted(self) -> int:
        """Tokens of requests that have left whose keys and values gave way to others."""
        return 0
