"""Reading requests: whom they come from, how large they are, and how long they may take."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

from meshc.serving.endpoint.limits import Limits
from meshc.serving.endpoint.memory import give_back
from meshc.serving.endpoint.refusals import STOPPING, Refused

T = TypeVar("T")

_LARGE_BYTES, _MOMENT_S = 1 << 20, 0.5


def check_sender(request: Request) -> None:
    """Refuse what a page of another origin can have a browser send: with 403 another origin than
    the endpoint's own, with 415 content that says it is no JSON."""
    origin, host = request.headers.get("origin"), request.headers.get("host", "")
    if origin is not None and origin.lower() != f"{request.url.scheme}://{host}".lower():
        raise Refused(403, "requests of pages of another origin are not answered")
    content = request.headers.get("content-type")
    if content is not None and content.partition(";")[0].strip().lower() != "application/json":
        raise Refused(415, "the body of a request is JSON: Content-Type: application/json")


class Bodies:
    """The bodies of requests that are being read. ``close`` sends those away that are not there
    whole; ``cut`` is set where nothing goes on any more."""

    def __init__(self, limits: Limits) -> None:
        self._limits, self._held, self._tidying = limits, 0, False
        self._closed, self.cut = asyncio.Event(), asyncio.Event()

    def close(self) -> None:
        """Take no more."""
        self._closed.set()

    @asynccontextmanager
    async def of(self, request: Request) -> AsyncIterator[bytes]:
        """The body of ``request``, which is held within.

        Raises :class:`Refused`: 408 for one that takes long, 413 for a large one, 429 where others
        are being read, 503 at the end; ``ClientDisconnect``.
        """
        size = 0
        parts: list[bytes] = []

        async def read() -> None:
            nonlocal size
            async for part in request.stream():
                size += len(part)
                self._held += len(part)
                parts.append(part)
                self._check(size)

        try:
            await self._in_time(read())
            body = b"".join(parts)
            parts.clear()
            yield body
        finally:
            self._held -= size
            if size >= _LARGE_BYTES and not self._tidying:
                self._tidying = True
                asyncio.get_running_loop().call_later(_MOMENT_S, self._tidy)

    def _tidy(self) -> None:
        """Give back what large bodies took, when nobody needs them any more."""
        self._tidying = False
        give_back()

    def _check(self, size: int) -> None:
        if size > self._limits.body_bytes:
            raise Refused(413, f"a request has at most {self._limits.body_bytes} bytes")
        if self._held > max(self._limits.bodies_bytes, self._limits.body_bytes):
            raise Refused(429, "other requests are being read")

    async def _in_time(self, reading: Awaitable[None]) -> None:
        limit = self._limits.body_s
        try:
            async with asyncio.timeout(limit):
                await unless(self._closed, reading)
        except TimeoutError:
            words = f"the body of a request is sent within {limit:g} seconds"
            raise Refused(408, words) from None

    async def while_there(self, request: Request, work: Awaitable[T]) -> T:
        """What ``work`` gives. It is cancelled where the client hangs up (``ClientDisconnect``) or
        nothing goes on any more (:class:`Refused`)."""

        async def listened() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass

        listening = asyncio.ensure_future(listened())
        try:
            return await unless(self.cut, work, listening)
        finally:
            listening.cancel()


async def unless(
    event: asyncio.Event, work: Awaitable[T], gone: asyncio.Future[None] | None = None
) -> T:
    """What ``work`` gives; it is cancelled with :class:`Refused` where ``event`` comes first, with
    ``ClientDisconnect`` where ``gone`` does."""
    working, waiting = asyncio.ensure_future(work), asyncio.ensure_future(event.wait())
    racing: set[asyncio.Future[Any]] = {working, waiting} | ({gone} if gone else set())
    try:
        done, _ = await asyncio.wait(racing, return_when=asyncio.FIRST_COMPLETED)
        if working in done:
            return working.result()
        raise ClientDisconnect if gone in done else Refused(503, STOPPING)
    finally:
        working.cancel()
        waiting.cancel()
        await asyncio.gather(working, waiting, return_exceptions=True)
