"""A request, and the memory that requests hold."""

from __future__ import annotations

from dataclasses import dataclass


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


class Memory:
    """Room for the keys and values of ``capacity`` tokens, held by name."""

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

    def free(self, name: int) -> None:
        """Give back what ``name`` holds; nothing if it holds none."""
        self.used -= self.held.pop(name, 0)

    @property
    def evicted(self) -> int:
        """Tokens of requests that have left whose keys and values gave way to others."""
        return 0
