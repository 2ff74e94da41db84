"""What an endpoint lends to its clients, so that none of them takes it from the others."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """``body_bytes`` of one request and ``bodies_bytes`` of all that are being read; ``values``,
    about how many a JSON body may have; ``at_once`` are requests that are read side by side.

    Seconds that a client may take: ``head_s`` from connecting to the end of a request's head,
    ``body_s`` for the body behind it, ``write_s`` until it takes more of an answer. Connections
    beyond ``connections`` are closed at once.
    """

    body_bytes: int = 8 << 20
    bodies_bytes: int = 64 << 20
    values: int = 1 << 20
    at_once: int = 2
    head_s: float = 30.0
    body_s: float = 60.0
    write_s: float = 60.0
    connections: int = 4096
