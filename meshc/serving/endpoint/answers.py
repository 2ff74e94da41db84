"""The answers to one request: tokens from the loop, in pieces of text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

from meshc.serving.endpoint.asked import Asked
from meshc.serving.endpoint.refusals import STOPPING, Refused
from meshc.serving.endpoint.threads import Worker
from meshc.serving.loop import FullError, Loop, News
from meshc.serving.sampling import Sampler
from meshc.serving.texts import Flow, Tokenizer
from meshc.support.diagnostics import MeshcError

_CUT = News(None, "error", STOPPING)


@dataclass(frozen=True)
class Piece:
    """A piece of the answer at ``index``: text that is final, the token, and why it ends or
    ``""``."""

    index: int
    text: str
    token: int
    reason: str


@dataclass(eq=False)
class Answers:
    """The requests of one completion in the loop, of which an event loop hears. ``spelling`` makes
    text of their tokens."""

    loop: Loop
    tokenizer: Tokenizer | None
    spelling: Worker
    eos: Sequence[int]
    wanted: Asked
    names: dict[int, int] = field(default_factory=dict)
    count: int = 0
    news: asyncio.Queue[tuple[int, News]] = field(default_factory=asyncio.Queue)

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """Pieces of all answers as they come. Whoever stops listening cancels what is left.

        Raises :class:`Refused`, before the first piece for what cannot be served.
        """
        flows = [Flow(self.tokenizer, p, self.wanted.stops) for p in self.wanted.prompts]
        try:
            self._submit()
            while self.names:
                index, one = await self.news.get()
                if one is _CUT:
                    raise Refused(503, STOPPING)
                if index in self.names:
                    yield await self._piece(index, one, flows[index])
        finally:
            for name in self.names.values():
                self.loop.cancel(name)

    def cut(self) -> None:
        """Have the answers end where they are."""
        self.news.put_nowait((0, _CUT))

    def _submit(self) -> None:
        here = asyncio.get_running_loop()

        def listener(index: int, one: News) -> None:
            here.call_soon_threadsafe(self.news.put_nowait, (index, one))

        try:
            for index, prompt in enumerate(self.wanted.prompts):
                hears = lambda one, index=index: listener(index, one)  # noqa: E731
                choose = Sampler(self.wanted.sampling, self.wanted.seed, index)
                self.names[index] = self.loop.submit(
                    prompt, self.wanted.most, self.eos, hears, choose
                )
        except FullError as error:
            raise Refused(429, str(error)) from None
        except MeshcError as error:
            raise Refused(400, error.diagnostics[0].message, "prompt") from None

    async def _piece(self, index: int, one: News, flow: Flow) -> Piece:
        if one.token is None:
            del self.names[index]
            raise Refused(500, one.words)
        self.count += 1
        text = await self._spelled(flow, one.token, one.reason)
        reason: str = one.reason
        if flow.stopped:
            reason = "stop"
        if reason:
            name = self.names.pop(index)
            if not one.reason:
                self.loop.cancel(name)
        return Piece(index, text, one.token, reason)

    async def _spelled(self, flow: Flow, token: int, reason: str) -> str:
        """The text that is final now that ``token`` has come."""
        given = token, bool(reason), reason != "stop"
        if self.tokenizer is None:
            return flow.push(*given)
        try:
            return await self.spelling.does(flow.push, *given)
        except MeshcError as error:
            raise Refused(500, error.diagnostics[0].message) from None

    def usage(self) -> dict[str, int]:
        """Tokens read and written."""
        read = sum(len(prompt) for prompt in self.wanted.prompts)
        return {
            "prompt_tokens": read,
            "completion_tokens": self.count,
            "total_tokens": read + self.count,
        }
