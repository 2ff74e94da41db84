"""Whose requests are answered: those to an address, under its names, with a key if there is one."""

from __future__ import annotations

import hmac
import ipaddress
from dataclasses import dataclass, field

from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from meshc.serving.endpoint.refusals import Refused, refused

LOOPBACK = "127.0.0.1"
_OPEN = ("/health",)
"""What needs no key: whether the server is there."""


@dataclass(frozen=True)
class Access:
    """The address ``host`` to listen at, and the ``key`` that clients send, None where they need
    none: only programs of this machine reach the loopback address."""

    host: str = LOOPBACK
    key: str | None = field(default=None, repr=False)

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches the address."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def middleware(self) -> list[Middleware]:
        """What stands before the routes. Without a key a page in a browser must not reach the
        server under a name of its own; it cannot send a key that it does not know."""
        names = [self.host, LOOPBACK, "localhost"] if self.is_local else ["*"]
        found = [Middleware(TrustedHostMiddleware, allowed_hosts=names)]
        return found if self.key is None else [*found, Middleware(_WithKey, key=self.key)]


class _WithKey:
    """Answers 401 to requests without the key."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app, self._wanted = app, f"Bearer {key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in _OPEN:
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, self._wanted):
                error = Refused(401, "the request has no key, or another one")
                answer = await refused(Request(scope, receive), error)
                await answer(scope, receive, send)
                return
        await self._app(scope, receive, send)
