"""Keys and values that requests which begin alike share, and that stay when these have left."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from meshc.serving.requests import Memory, Request


@dataclass
class _Prefix:
    """The first ``tokens`` of a prefix are in caches. Each of its ``users``, requests that have not
    left, reads so many of them."""

    tokens: int = 0
    users: dict[int, int] = field(default_factory=dict)

    @property
    def spare(self) -> int:
        """Tokens that no request reads."""
        return self.tokens - max(self.users.values(), default=0)


@dataclass
class _Guest:
    """A request that holds memory for ``tokens``; ``has_read`` says that its prompt is there."""

    request: Request
    tokens: int
    has_read: bool = False


class PrefixMemory(Memory):
    """Memory in which what requests of one prefix begin with lies once.

    A request reads what is there, but for the last token of its prompt, and gives what it reads of
    its prefix to the others: its prompt when that has been read, its answer when it leaves. What no
    request uses stays until others need the room; then it goes from its end, the prefix first that
    was used longest ago.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._prefixes: OrderedDict[str, _Prefix] = OrderedDict()
        self._guests: dict[int, _Guest] = {}
        self._spare = 0
        self._evicted = 0

    @property
    def evicted(self) -> int:
        return self._evicted

    def known(self, request: Request) -> int:
        found = self._prefixes.get(request.prefix)
        return (
            0 if found is None else min(found.tokens, _shared(request, request.prompt_tokens - 1))
        )

    def fits(self, request: Request, tokens: int) -> bool:
        """As of any memory, when all gives way that no request uses, nor this one would."""
        known, own = self.known(request), self._prefixes.get(request.prefix)
        kept = 0 if own is None else max(0, known - (own.tokens - own.spare))
        return self.used - self._spare + kept + tokens - known <= self.capacity

    def hold(self, request: Request, tokens: int) -> None:
        known = self.known(request)
        if request.prefix:
            self._uses(request.prefix, request.name, known)
        self._evict(self.used + tokens - known - self.capacity)
        self._guests[request.name] = _Guest(request, tokens)
        super().hold(request, tokens - known)

    def read(self, name: int) -> None:
        guest = self._guests.get(name)
        if guest is not None:
            guest.has_read = True
            self._give(guest, guest.request.prompt_tokens)

    def free(self, name: int) -> None:
        guest = self._guests.pop(name, None)
        if guest is None:
            return
        request = guest.request
        if guest.has_read:  # the last token of an answer is no key of another
            self._give(guest, max(request.prompt_tokens, guest.tokens - 1))
        if request.prefix:
            self._uses(request.prefix, name, None)
        super().free(name)

    def _give(self, guest: _Guest, tokens: int) -> None:
        """The first ``tokens`` of a request, as many as are of its prefix, are there for others."""
        request = guest.request
        if not request.prefix:
            return
        found, shared = self._prefixes[request.prefix], _shared(request, tokens)
        more = shared - found.tokens
        if more > 0:
            found.tokens += more
            self.held[request.name] -= more
            self._spare += more
            self._uses(request.prefix, request.name, shared)

    def _uses(self, prefix: str, name: int, tokens: int | None) -> None:
        """Request ``name`` uses so many tokens of a prefix from now on; None for no more."""
        found = self._prefixes.setdefault(prefix, _Prefix())
        self._prefixes.move_to_end(prefix)
        before = found.spare
        if tokens is None:
            found.users.pop(name, None)
        else:
            found.users[name] = tokens
        self._spare += found.spare - before
        if not found.tokens and not found.users:
            del self._prefixes[prefix]

    def _evict(self, tokens: int) -> None:
        """Make room for ``tokens``."""
        for prefix in list(self._prefixes):
            if tokens <= 0:
                return
            found = self._prefixes[prefix]
            gone = min(found.spare, tokens)
            found.tokens -= gone
            self.used -= gone
            self._spare -= gone
            self._evicted += gone
            tokens -= gone
            if not found.tokens and not found.users:
                del self._prefixes[prefix]


def _shared(request: Request, tokens: int) -> int:
    """How many of the first ``tokens`` of ``request`` are of its prefix."""
    return min(request.prefix_tokens, tokens)
