"""A log of requests: a line of JSON for each one that has ended."""

from __future__ import annotations

import json
import time
from io import BytesIO, FileIO

from meshc.serving.server_watchers import Ended


class RequestLog:
    """Writes to ``stream``, which keeps nothing back. One that takes nothing more ends the log,
    never the server."""

    def __init__(self, stream: FileIO | BytesIO) -> None:
        self._stream: FileIO | BytesIO | None = stream

    def token(self, seconds: float, is_first: bool) -> None:
        """Tokens by themselves are not logged."""

    def ended(self, request: Ended) -> None:
        """Write when it ended, in seconds since 1970, and what is known of it."""
        if self._stream is None:
            return
        first = request.first_token_s
        line = {
            "time": round(time.time(), 3),
            "request": request.name,
            "prompt_tokens": request.prompt_tokens,
            "tokens": request.tokens,
            "reason": request.reason,
            "seconds": round(request.seconds, 6),
            "first_token_s": None if first is None else round(first, 6),
            **({"error": request.words} if request.words else {}),
        }
        try:
            self._stream.write(json.dumps(line).encode() + b"\n")
        except (OSError, ValueError):
            self._stream = None
