"""The endpoint: completions, chats, models and health, in the words of the OpenAI API."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from functools import partial
from importlib import import_module
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from meshc.serving.endpoint.access import Access
from meshc.serving.endpoint.answers import Answers, Piece
from meshc.serving.endpoint.asked import Asked, ReadChat, asked, asked_chat
from meshc.serving.endpoint.bodies import Bodies, check_sender
from meshc.serving.endpoint.counted_tokens import ids_of, text_of
from meshc.serving.endpoint.forms import CHAT, COMPLETION, Form
from meshc.serving.endpoint.limits import Limits
from meshc.serving.endpoint.measures import CONTENT_TYPE, Measures
from meshc.serving.endpoint.refusals import (
    UNSUPPORTED,
    Json,
    Refused,
    http_error,
    hung_up,
    refused,
)
from meshc.serving.endpoint.threads import Worker, in_thread
from meshc.serving.loop import FullError, Loop
from meshc.serving.sampling import Choose
from meshc.serving.texts import Tokenizer

T = TypeVar("T")


class Endpoint:
    """Answers for ``model`` from ``loop``; a token in ``eos`` ends a text. ``access`` says whose
    requests are answered.

    ``tokenizer`` and ``read_chat`` make token ids of texts and messages, ``speller`` (by default
    the former) text of tokens. They are called in other threads, which may wait for them; the
    event loop never does."""

    def __init__(
        self,
        model: str,
        loop: Loop,
        tokenizer: Tokenizer | None,
        eos: Sequence[int],
        read_chat: ReadChat,
        speller: Tokenizer | None = None,
        limits: Limits | None = None,
        access: Access | None = None,
    ) -> None:
        self.model, self.loop, self.eos = model, loop, eos
        self.limits, self.access = limits or Limits(), access or Access()
        self._tokenizer, self._speller = tokenizer, speller or tokenizer
        self._read_chat, self._bodies = read_chat, Bodies(self.limits)
        self._spelling = Worker()
        self._reading = asyncio.Semaphore(self.limits.at_once)
        self._answers: set[Answers] = set()
        self.created = int(time.time())
        self._measures = Measures(model, loop.server)
        loop.watchers.append(self._measures)
        self._answered = 0
        self._schemas: Any = None

    def app(self) -> Starlette:
        """The ASGI application."""
        return Starlette(
            routes=[
                Route("/health", self.health),
                Route("/metrics", self.metrics),
                Route("/v1/models", self.models),
                Route("/v1/models/{name:path}", self.one_model),
                Route("/v1/completions", self.completions, methods=["POST"]),
                Route("/v1/chat/completions", self.chats, methods=["POST"]),
                Route("/tokenize", self.tokenize, methods=["POST"]),
                Route("/detokenize", self.detokenize, methods=["POST"]),
            ],
            middleware=self.access.middleware(),
            exception_handlers={
                Refused: refused,
                HTTPException: http_error,
                ClientDisconnect: hung_up,
            },
        )

    def close(self) -> None:
        """Take no more requests; those that are there whole are answered."""
        self._bodies.close()

    def cut(self) -> None:
        """Let the requests end where they are, with words."""
        self._bodies.cut.set()
        for answers in self._answers:
            answers.cut()

    async def health(self, request: Request) -> Response:
        """How many requests there are."""
        scheduler = self.loop.server.scheduler
        return Json(
            {
                "status": "ok",
                "decoding": scheduler.decoding,
                "waiting": scheduler.waiting,
                "held_tokens": scheduler.held_tokens,
            }
        )

    async def metrics(self, request: Request) -> Response:
        """Counts and times of requests, as Prometheus reads them."""
        return Response(self._measures.text(), media_type=CONTENT_TYPE)

    async def models(self, request: Request) -> Response:
        """The one model."""
        return Json({"object": "list", "data": [self._model()]})

    async def one_model(self, request: Request) -> Response:
        """The model by its name."""
        if request.path_params["name"] != self.model:
            raise Refused(404, "there is no such model here", "model")
        return Json(self._model())

    def _model(self) -> dict[str, object]:
        return {"id": self.model, "object": "model", "created": self.created, "owned_by": "meshc"}

    async def completions(self, request: Request) -> Response:
        """Texts behind prompts, at once or piece by piece."""
        return await self._served(request, asked, COMPLETION)

    async def chats(self, request: Request) -> Response:
        """The next message of a conversation, at once or piece by piece."""
        return await self._served(request, partial(asked_chat, read=self._read_chat), CHAT)

    async def tokenize(self, request: Request) -> Response:
        """The token ids of a text, or of messages as the model reads them."""
        ids = await self._read(request, partial(ids_of, read=self._read_chat))
        room = self.loop.server.engine.capacity
        return Json({"count": len(ids), "max_model_len": room, "tokens": ids})

    async def detokenize(self, request: Request) -> Response:
        """The text of token ids."""
        return Json({"prompt": await self._read(request, partial(text_of, speller=self._speller))})

    async def _served(self, request: Request, read: Callable[..., Asked], form: Form) -> Response:
        if self.loop.full:
            raise Refused(429, str(FullError()))
        wanted = await self._read(request, read)
        given = self.loop, self._speller, self._spelling, self.eos, wanted
        if wanted.schema is None:
            answers = Answers(*given)
        else:
            answers = Answers(*given, await self._fitting(wanted.schema))
        self._answered += 1
        head: dict[str, object] = {
            "id": f"{form.prefix}-{self._answered}",
            "object": form.piece if wanted.stream else form.whole,
            "created": int(time.time()),
            "model": self.model,
        }
        pieces = self._listed(answers)
        if not wanted.stream:
            async with aclosing(pieces):
                return await self._bodies.while_there(request, _whole(pieces, answers, head, form))
        # What cannot be served has a status of its own.
        first = await self._bodies.while_there(request, anext(pieces))
        return _Stream(_events(first, pieces, answers, head, form))

    async def _read(self, request: Request, read: Callable[..., T]) -> T:
        """What ``read`` makes of the body of ``request``, a few at a time."""
        check_sender(request)
        encode = self._tokenizer.encode if self._tokenizer else None
        room = self.loop.server.engine.capacity

        async def reading(body: bytes) -> T:
            async with self._reading:
                return await in_thread(read, body, self.model, encode, room, self.limits.values)

        async with self._bodies.of(request) as body:
            return await self._bodies.while_there(request, reading(body))

    async def _fitting(self, schema: str) -> Callable[[Choose], Choose]:
        """What has tokens chosen that fit ``schema``. Raises :class:`Refused`."""
        async with self._reading:
            if self._schemas is None:
                self._schemas = await in_thread(self._opened_schemas)
            fitting: Callable[[Choose], Choose] = await in_thread(self._schemas.fitting, schema)
        return fitting

    def _opened_schemas(self) -> Any:
        """What knows schemas, for the tokens of the model."""
        try:
            library = import_module("meshc.serving.endpoint.schemas")
        except ImportError as error:
            words = f"JSON needs the Python package '{error.name}' (pip install 'meshc[schemas]')"
            raise Refused(400, words, "response_format", UNSUPPORTED) from None
        if not self.eos or self._tokenizer is None:
            raise Refused(400, "no token of the model ends a text", "response_format", UNSUPPORTED)
        vocab = self.loop.server.engine.vocab
        return library.Schemas(self._tokenizer.described, vocab, self.eos)

    async def _listed(self, answers: Answers) -> AsyncGenerator[Piece, None]:
        """The pieces of ``answers``, of which :meth:`cut` knows as long as they come."""
        self._answers.add(answers)
        try:
            async with aclosing(answers.pieces()) as pieces:
                async for piece in pieces:
                    yield piece
        finally:
            self._answers.discard(answers)


class _Stream(StreamingResponse):  # type: ignore[misc]
    """Server-sent events. They end with the connection, wherever they are."""

    media_type = "text/event-stream"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self.body_iterator.aclose()


async def prepare() -> None:
    """Have an event loop load what the first stream needs, which takes a third of a second."""

    async def stays() -> dict[str, object]:
        await asyncio.Event().wait()
        raise AssertionError

    async def passes(message: object) -> None: ...

    async def nothing() -> AsyncGenerator[bytes, None]:
        yield b""

    await _Stream(nothing())({"type": "http"}, stays, passes)


async def _whole(
    pieces: AsyncGenerator[Piece, None], answers: Answers, head: dict[str, object], form: Form
) -> Response:
    """All texts in one object."""
    found: list[list[Piece]] = [[] for _ in range(answers.wanted.answers)]
    async for piece in pieces:
        found[piece.index].append(piece)
    choices = [form.choice(own) for own in found]
    return Json({**head, "choices": choices, "usage": answers.usage()})


async def _events(
    first: Piece,
    pieces: AsyncGenerator[Piece, None],
    answers: Answers,
    head: dict[str, object],
    form: Form,
) -> AsyncGenerator[bytes, None]:
    """Server-sent events: one for each piece, counts if they are wanted, and the end."""
    places: dict[int, int] = {}  # in the text of each answer that has begun
    try:
        yield _event(first, head, form, places)
        async for piece in pieces:
            yield _event(piece, head, form, places)
        if answers.wanted.usage:
            yield _line({**head, "choices": [], "usage": answers.usage()})
        yield b"data: [DONE]\n\n"
    except Refused as reason:
        yield _line(reason.value())
    finally:
        await pieces.aclose()


def _event(piece: Piece, head: dict[str, object], form: Form, places: dict[int, int]) -> bytes:
    start = places.get(piece.index)
    choice = form.part(piece, start is None, start or 0)
    places[piece.index] = (start or 0) + sum(len(one.text) for one in piece.likely)
    return _line({**head, "choices": [choice]})


def _line(value: object) -> bytes:
    text = json.dumps(value, ensure_ascii=False)
    return f"data: {text}\n\n".encode("utf-8", "backslashreplace")
