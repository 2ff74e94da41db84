"""Requests that are answered with words and a status, in the form of the OpenAI API."""

from __future__ import annotations

import json
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

STOPPING = "the server is stopping"
_KINDS = {429: "rate_limit_error", 403: "permission_error"}
_HEADERS = {
    408: {"Connection": "close"},
    429: {"Retry-After": "1"},
    503: {"Retry-After": "1", "Connection": "close"},
}


UNSUPPORTED = "unsupported_value"
_CODES = {429: "rate_limit_exceeded", 401: "invalid_api_key"}


class Refused(Exception):
    """A request that is answered with the HTTP ``status`` and words; ``field`` is at fault, for the
    reason ``code``, if the OpenAI API has one."""

    def __init__(
        self, status: int, words: str, field: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(words)
        self.status, self.words, self.field = status, words, field
        self.code = code or _CODES.get(status)

    def value(self) -> dict[str, object]:
        """The error as JSON has it."""
        return _error(self.status, self.words, self.field, self.code)


class Json(Response):  # type: ignore[misc]
    """A JSON value; lone surrogates, which no encoding has, stand as JSON's escapes for them."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """The bytes of ``content`` in UTF-8."""
        text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
        return text.encode("utf-8", "backslashreplace")


async def refused(request: Request, error: Exception) -> Response:
    """The answer for a :class:`Refused`."""
    assert isinstance(error, Refused)
    return Json(error.value(), error.status, _HEADERS.get(error.status))


async def http_error(request: Request, error: Exception) -> Response:
    """The answer where no route takes a request."""
    assert isinstance(error, HTTPException)
    return Json(_error(error.status_code, error.detail, None), error.status_code, error.headers)


async def hung_up(request: Request, error: Exception) -> Response:
    """What nobody reads any more."""
    return Response(status_code=499)


def _error(
    status: int, words: str, field: str | None, code: str | None = None
) -> dict[str, object]:
    kind = "server_error" if status >= 500 else _KINDS.get(status, "invalid_request_error")
    return {"error": {"message": words, "type": kind, "param": field, "code": code}}
