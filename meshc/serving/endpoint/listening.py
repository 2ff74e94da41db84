"""Listening on the loopback address until a signal asks to stop, and then finishing what runs."""

from __future__ import annotations

import asyncio
import resource
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType

import uvicorn

from meshc.serving.endpoint.access import LOOPBACK
from meshc.serving.endpoint.app import Endpoint, prepare
from meshc.serving.endpoint.connections import protocol_of
from meshc.serving.endpoint.limits import Limits
from meshc.serving.endpoint.memory import settle
from meshc.support.diagnostics import fail

_STOPPING = (signal.SIGINT, signal.SIGTERM)
_LOOK_S = 0.1
_GRACE_S = 1.0
"""Time for the words of requests that are cut to reach their clients."""
_OTHER_FILES = 64
"""Files of a process that are no connections."""
_ENDING_S = 5


class _Server(uvicorn.Server):  # type: ignore[misc]
    """Says where it listens; signals let it finish what runs, and ``cut`` says how many requests
    it did not."""

    should_exit: bool

    def __init__(
        self,
        config: uvicorn.Config,
        endpoint: Endpoint,
        finish_s: int,
        on_ready: Callable[[str], None],
    ) -> None:
        super().__init__(config)
        self._endpoint, self._finish_s, self._on_ready = endpoint, finish_s, on_ready
        self._hurried = False
        self.cut = 0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await prepare()
        await super().startup(sockets)
        if self.started:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            shown = f"[{host}]" if ":" in host else host
            self._on_ready(f"http://{shown}:{port}/v1")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._endpoint.close()
        limit = asyncio.ensure_future(self._cut_in_time())
        await super().shutdown(sockets)
        limit.cancel()

    async def _cut_in_time(self) -> None:
        """End what still runs when its time is over, or at the second signal."""
        end = time.monotonic() + self._finish_s
        while time.monotonic() < end and not self._hurried:
            await asyncio.sleep(_LOOK_S)
        self.cut = sum(not task.done() for task in self.server_state.tasks)
        self._endpoint.cut()
        await asyncio.sleep(_GRACE_S)
        for connection in tuple(self.server_state.connections):
            connection.transport.abort()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The first signal ends the server in order, the second at once."""
        before = {number: signal.signal(number, self._stop) for number in _STOPPING}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._hurried = self.should_exit
        self.should_exit = True


def bound(port: int, host: str = LOOPBACK) -> socket.socket:
    """A socket at ``port`` of the address ``host``, 0 for any that is free, which does not listen
    yet. Connections of a server before, which linger, are not in its way.

    Errors: ``bad-argument`` where the port cannot be had.
    """
    try:
        with _bound(port, host) as probe:
            probe.listen()
        return _bound(port, host)
    except OSError as error:
        fail("bad-argument", f"port {port} of {host} cannot be had: {error.strerror}")


def _bound(port: int, host: str) -> socket.socket:
    found = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
    except OSError:
        found.close()
        raise
    return found


def run_endpoint(
    endpoint: Endpoint, listener: socket.socket, finish_s: int, on_ready: Callable[[str], None]
) -> int:
    """Serve at ``listener`` until SIGINT or SIGTERM; then requests that are there are finished, for
    at most ``finish_s`` seconds, and new ones are not let in. How many were cut.

    ``on_ready`` is called with the address. Errors: ``bad-argument`` where somebody else has begun
    to listen at the port.
    """
    config = uvicorn.Config(
        endpoint.app(),
        http=protocol_of(_affordable(endpoint.limits)),
        ws="none",
        log_level="error",
        access_log=False,
        lifespan="off",
    )
    settle()
    endpoint.loop.start()
    server = _Server(config, endpoint, finish_s, on_ready)
    with listener:
        try:
            server.run([listener])
        except OSError as error:
            if server.started:
                raise
            fail("bad-argument", f"the port cannot be had: {error.strerror}")
    endpoint.loop.close(_ENDING_S)
    return server.cut


def _affordable(limits: Limits) -> Limits:
    """``limits`` with no more connections than the process may have files."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return limits
    return replace(limits, connections=max(1, min(limits.connections, files - _OTHER_FILES)))
