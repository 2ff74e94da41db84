"""The answers to one request: tokens from the loop, in pieces of text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from meshc.serving.endpoint.asked import Asked
from meshc.serving.endpoint.likely import Likely
from meshc.serving.endpoint.refusals import STOPPING, Refused
from meshc.serving.endpoint.threads import Worker
from meshc.serving.loop import FullError, Loop, News
from meshc.serving.sampling import Choose, Sampler
from meshc.serving.scoring import Chooser, Score
from meshc.serving.texts import Flow, Tokenizer
from meshc.support.diagnostics import MeshcError

_WAKES = News(None)
"""Told to whoever waits for news, so that it looks whether the answers are cut."""


@dataclass(frozen=True)
class Piece:
    """A piece of the answer at ``index``: text that is final, its ``tokens``, and why it ends or
    ``""``. ``likely`` has how likely tokens were, where that is asked for; the text that is said
    before comes first, with its tokens."""

    index: int
    text: str
    tokens: tuple[int, ...]
    reason: str
    likely: tuple[Likely, ...] = ()


@dataclass(eq=False)
class _Answer:
    """One answer behind ``prompt``, of which ``echo`` is said before. Where the likelihoods of its
    tokens are asked for, they are read step by step, each ``given`` behind those before."""

    prompt: tuple[int, ...]
    flow: Flow
    chooser: Chooser
    given: int
    echo: str
    heard: int = 0
    """Tokens that have come, given ones among them."""
    told: int = 0
    """Scores that pieces have had."""


@dataclass(eq=False)
class Answers:
    """The requests of one completion in the loop, of which an event loop hears. ``spelling`` makes
    text of their tokens. Each prompt has as many answers as are wanted, side by side; ``fitting``
    makes of the way to choose the tokens of one that by which they fit what is wanted."""

    loop: Loop
    tokenizer: Tokenizer | None
    spelling: Worker
    eos: Sequence[int]
    wanted: Asked
    fitting: Callable[[Choose], Choose] = lambda then: then
    names: dict[int, int] = field(default_factory=dict)
    count: int = 0
    cached: dict[int, int] = field(default_factory=dict)
    news: asyncio.Queue[tuple[int, News]] = field(default_factory=asyncio.Queue)
    is_cut: bool = False

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """Pieces of all answers as they come. Whoever stops listening cancels what is left.

        Raises :class:`Refused`, before the first piece for what cannot be served.
        """
        try:
            found = [await self._begun(index) for index in range(self.wanted.answers)]
            self._submit(found)
            for index, one in enumerate(found):
                if index not in self.names:  # nothing is to be computed
                    yield await self._made(index, one, "", (), "length")
            while self.names:
                index, news = await self.news.get()
                if self.is_cut:
                    raise Refused(503, STOPPING)
                if index in self.names:
                    piece = await self._piece(index, news, found[index])
                    if piece is not None:
                        yield piece
        finally:
            for name in self.names.values():
                self.loop.cancel(name)

    def cut(self) -> None:
        """Have the answers end where they are, whatever tokens wait to be told."""
        self.is_cut = True
        self.news.put_nowait((0, _WAKES))

    async def _begun(self, index: int) -> _Answer:
        wanted, number = self.wanted, index // self.wanted.each
        prompt, echo = wanted.prompts[number], ""
        if wanted.echo:
            echo = wanted.texts[number] or await self._texts(Flow.of_prompt, self.tokenizer, prompt)
        given = prompt[1:] if wanted.echo and wanted.top is not None else ()
        then = self.fitting(Sampler(wanted.sampling, wanted.seed, index))
        flow = Flow(self.tokenizer, prompt, wanted.stops)
        return _Answer(prompt, flow, Chooser(then, given, wanted.top), len(given), echo)

    def _submit(self, answers: Sequence[_Answer]) -> None:
        here = asyncio.get_running_loop()
        stops = (*(() if self.wanted.ignore_eos else self.eos), *self.wanted.stop_ids)

        def listener(index: int, one: News) -> None:
            here.call_soon_threadsafe(self.news.put_nowait, (index, one))

        try:
            for index, one in enumerate(answers):
                self.loop.server.check(one.prompt, max(1, self.wanted.most))
                most, hears = one.given + self.wanted.most, lambda news, n=index: listener(n, news)
                if not most:
                    continue
                prompt = one.prompt[: len(one.prompt) - one.given]
                self.names[index] = self.loop.submit(
                    prompt, most, stops, hears, one.chooser.alone, one.given
                )
        except FullError as error:
            raise Refused(429, str(error)) from None
        except MeshcError as error:
            raise Refused(400, error.diagnostics[0].message, "prompt") from None

    async def _piece(self, index: int, news: News, one: _Answer) -> Piece | None:
        """What is said now, None where a token of the prompt was read."""
        if news.token is None:
            del self.names[index]
            raise Refused(500, news.words)
        one.heard += 1
        self.cached[index] = news.cached
        if one.heard <= one.given:
            if not news.reason:
                return None
            del self.names[index]
            return await self._made(index, one, "", (), news.reason)
        self.count += 1
        text = await self._spelled(one.flow, news.token, news.reason)
        reason: str = news.reason
        if one.flow.stopped:
            reason = "stop"
        if reason:
            name = self.names.pop(index)
            if not news.reason:
                self.loop.cancel(name, "stop")
        return await self._made(index, one, text, (news.token,), reason)

    async def _made(
        self, index: int, one: _Answer, text: str, tokens: tuple[int, ...], reason: str
    ) -> Piece:
        likely = await self._likely(one) if self.wanted.top is not None else ()
        echo, one.echo = one.echo, ""
        return Piece(index, echo + text, tokens, reason, likely)

    async def _likely(self, one: _Answer) -> tuple[Likely, ...]:
        """How likely the tokens were that nobody was told of, those of the prompt first."""
        scores = one.chooser.scores[one.told : one.heard]  # later ones may be there already
        first = self.wanted.echo and not one.told
        one.told += len(scores)
        ids = [*([one.prompt[0]] if first else []), *(token for s in scores for token in _ids(s))]
        texts = iter(await self._texts(self._token_texts, ids))
        found = [Likely(next(texts), None, ())] if first else []
        for each in scores:
            text = next(texts)
            found.append(Likely(text, each.logprob, tuple((next(texts), p) for _, p in each.top)))
        return tuple(found)

    def _token_texts(self, ids: Sequence[int]) -> list[str]:
        if self.tokenizer is None:
            return [f"{token} " for token in ids]
        return self.tokenizer.token_texts(ids)

    async def _spelled(self, flow: Flow, token: int, reason: str) -> str:
        """The text that is final now that ``token`` has come."""
        given = token, bool(reason), reason != "stop"
        found: str = await self._texts(flow.push, *given)
        return found

    async def _texts(self, work: Callable[..., Any], *given: object) -> Any:
        """What ``work`` gives, which may ask a tokenizer."""
        if self.tokenizer is None:
            return work(*given)
        try:
            return await self.spelling.does(work, *given)
        except MeshcError as error:
            raise Refused(500, error.diagnostics[0].message) from None

    def usage(self) -> dict[str, object]:
        """Tokens of prompts, those of them that caches held already, and tokens written; of several
        answers to a prompt the first one says what was cached."""
        read = sum(len(prompt) for prompt in self.wanted.prompts)
        first = range(0, self.wanted.answers, self.wanted.each)
        return {
            "prompt_tokens": read,
            "completion_tokens": self.count,
            "total_tokens": read + self.count,
            "prompt_tokens_details": {"cached_tokens": sum(self.cached.get(n, 0) for n in first)},
        }


def _ids(score: Score) -> list[int]:
    return [score.token, *(token for token, _ in score.top)]
