"""Connections to clients: none stays for ever that asks for nothing or takes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol, h11

from meshc.serving.endpoint.limits import Limits


def protocol_of(limits: Limits) -> Callable[..., asyncio.Protocol]:
    """What Uvicorn makes a connection with."""
    return partial(_Connection, limits)


class _Connection(H11Protocol):  # type: ignore[misc]
    """Uvicorn's connection, which is dropped where the head of a request is not there in time, or
    where the client takes nothing more of an answer."""

    def __init__(self, limits: Limits, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._limits = limits
        self._head: asyncio.TimerHandle | None = None
        self._write: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        if len(self.connections) > self._limits.connections:
            transport.abort()
        else:
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        _stop(self._head)
        _stop(self._write)
        super().connection_lost(exc)

    def handle_events(self) -> None:
        before = self.cycle
        super().handle_events()
        if self.cycle is not before and not self.cycle.response_complete:
            _stop(self._head)

    def on_response_complete(self) -> None:
        self._await_head()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Say that what came is no HTTP, if an answer may begin, and end the connection. Whoever
        answers the request whose body it is need not know: the client is gone for it."""
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write = self.loop.call_later(self._limits.write_s, self.transport.abort)

    def resume_writing(self) -> None:
        _stop(self._write)
        super().resume_writing()

    def _await_head(self) -> None:
        """Wait for another request: it, or the end of the connection, comes in time."""
        _stop(self._head)
        self._head = self.loop.call_later(self._limits.head_s, self.transport.abort)


def _stop(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
