"""Measures of a server in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)

from meshc.serving.engine import Guesses, Server
from meshc.serving.server_watchers import Ended

CONTENT_TYPE = CONTENT_TYPE_LATEST
_TO_FIRST = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100)
_BETWEEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
_WHOLE = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000)


class Measures:
    """The measures of the requests of ``server``, which serves ``model``: a watcher of its loop."""

    def __init__(self, model: str, server: Server) -> None:
        self._registry = CollectorRegistry()
        self._model = model
        scheduler = server.scheduler
        self._now("requests_decoding", "Requests that decode.", lambda: scheduler.decoding)
        self._now("requests_waiting", "Requests that wait.", lambda: scheduler.waiting)
        self._now("held_tokens", "Tokens that caches hold.", lambda: scheduler.held_tokens)
        self._now("cache_tokens", "Tokens that caches have room for.", lambda: server.cache_tokens)
        self._read = self._counter("prompt_tokens", "Tokens of prompts of requests that ended.")
        self._written = self._counter("generated_tokens", "Tokens that requests were given.")
        self._guesses = server.guesses
        self._drafted = self._counter("drafted_tokens", "Tokens that were drafted and verified.")
        self._accepted = self._counter(
            "accepted_tokens", "Drafted tokens that requests were given."
        )
        self._told = Guesses()
        self._requests = Counter(
            "meshc_requests",
            "Requests that ended, by why.",
            ("model", "reason"),
            registry=self._registry,
        )
        for reason in ("stop", "length", "error", "cancelled"):
            self._requests.labels(model, reason)
        self._first = self._histogram(
            "time_to_first_token_seconds", "From a request to its first token.", _TO_FIRST
        )
        self._between = self._histogram(
            "time_between_tokens_seconds", "From one token of a request to the next.", _BETWEEN
        )
        self._whole = self._histogram("request_seconds", "From a request to its end.", _WHOLE)

    def token(self, seconds: float, is_first: bool) -> None:
        """A token has come."""
        (self._first if is_first else self._between).observe(seconds)
        self._written.inc()

    def ended(self, request: Ended) -> None:
        """A request has ended."""
        self._requests.labels(self._model, request.reason).inc()
        self._read.inc(request.prompt_tokens)
        self._whole.observe(request.seconds)

    def text(self) -> bytes:
        """All of them, now."""
        now = replace(self._guesses)
        self._drafted.inc(now.drafted - self._told.drafted)
        self._accepted.inc(now.accepted - self._told.accepted)
        self._told = now
        return bytes(generate_latest(self._registry))

    def _now(self, name: str, words: str, read: Callable[[], int]) -> None:
        gauge = Gauge(f"meshc_{name}", words, ("model",), registry=self._registry)
        gauge.labels(self._model).set_function(read)

    def _counter(self, name: str, words: str) -> Counter:
        made = Counter(f"meshc_{name}", words, ("model",), registry=self._registry)
        return made.labels(self._model)

    def _histogram(self, name: str, words: str, buckets: Sequence[float]) -> Histogram:
        made = Histogram(
            f"meshc_{name}", words, ("model",), registry=self._registry, buckets=buckets
        )
        return made.labels(self._model)
