"""A request, and the memory that requests hold."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Request:
    """A prompt of ``prompt_tokens`` that is continued by at most ``output_tokens`` (both at least
    one). ``name`` is unique among the requests of a scheduler."""

    name: int
    prompt_tokens: int
    output_tokens: int

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

    def fits(self, tokens: int) -> bool:
        """Whether ``tokens`` more have room."""
        return self.used + tokens <= self.capacity

    def hold(self, name: int, tokens: int) -> None:
        """Reserve room for ``tokens`` under ``name``, which holds none so far."""
        self.held[name] = tokens
        self.used += tokens

    def free(self, name: int) -> None:
        """Give back what ``name`` holds; nothing if it holds none."""
        self.used -= self.held.pop(name, 0)
