"""Replaying a trace on a server: requests enter as time passes, iteration by iteration.

Time is that of the trace, and every iteration takes as much of it, so that what happens does not
depend on how fast this machine is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from meshc.serving.engine import Record, Server
from meshc.support.diagnostics import fail


@dataclass(frozen=True)
class Entry:
    """Request ``name`` comes at ``seconds``; ``prompt`` is continued by at most ``most`` tokens."""

    name: int
    seconds: float
    prompt: tuple[int, ...]
    most: int
    stop: tuple[int, ...] = ()


def replayed(
    server: Server,
    entries: Sequence[Entry],
    iteration_s: float,
    on_record: Callable[[Record, float], None] | None = None,
) -> dict[int, list[int]]:
    """The tokens of every request of ``entries``, which stand in the order in which they come.

    An iteration takes ``iteration_s``; who comes meanwhile is seen by the next one, and where there
    is nothing to do, time goes on to the next arrival. ``on_record`` is called with each iteration
    and the time of its end. Errors: those of :meth:`Server.submit`, before anything runs for it,
    and ``run-refused`` for a request whose logits give no token.
    """
    found: dict[int, list[int]] = {entry.name: [] for entry in entries}
    coming, now = 0, 0.0
    while coming < len(entries) or not server.idle:
        if server.idle:
            now = max(now, entries[coming].seconds)
        while coming < len(entries) and entries[coming].seconds <= now:
            entry = entries[coming]
            server.submit(entry.name, entry.prompt, entry.most, entry.stop)
            coming += 1
        record = server.step()
        now += iteration_s
        if record is not None:
            for name, words in record.failed.items():
                fail("run-refused", f"request {name}: {words}")
            for name, tokens in record.tokens.items():
                found[name] += tokens
            if on_record is not None:
                on_record(record, now)
    return found
