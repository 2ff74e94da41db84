"""Listening on the loopback address until a signal asks to stop, and then finishing what runs."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from socket import socket
from types import FrameType

import uvicorn

from meshc.serving.endpoint.app import LOOPBACK, Endpoint
from meshc.support.diagnostics import fail

_STOPPING = (signal.SIGINT, signal.SIGTERM)


class _Server(uvicorn.Server):  # type: ignore[misc]
    """Says where it listens; signals let it finish what runs."""

    should_exit: bool
    force_exit: bool

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[str], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            self._on_ready(f"http://{host}:{port}/v1")

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
        self.force_exit = self.should_exit
        self.should_exit = True


def run_endpoint(
    endpoint: Endpoint, port: int, finish_s: int, on_ready: Callable[[str], None]
) -> bool:
    """Serve until SIGINT or SIGTERM; then requests that run are finished, for at most ``finish_s``
    seconds, and new ones are not let in. Whether that was enough.

    ``port`` 0 is any that is free; ``on_ready`` is called with the address. Errors:
    ``bad-argument`` where the port cannot be had.
    """
    try:
        with socket() as probe:
            probe.bind((LOOPBACK[0], port))
    except OSError as error:
        fail("bad-argument", f"port {port} cannot be had: {error.strerror}")
    config = uvicorn.Config(
        endpoint.app(),
        host=LOOPBACK[0],
        port=port,
        log_level="error",
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=finish_s,
    )
    endpoint.loop.start()
    server = _Server(config, on_ready)
    server.run()
    return endpoint.loop.close(finish_s) and not server.force_exit
