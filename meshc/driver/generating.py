"""Text or token ids in, tokens out: a loaded language model, and its tokenizer if it has one."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from meshc.backends import cuda
from meshc.backends.host_protocols import SIMULATING, ChoosingHost, DraftingHost, Host
from meshc.driver.chatting import Chat, open_chat
from meshc.frontend.chat import Conversation
from meshc.frontend.checkpoints import (
    ModelConfig,
    Tokenizer,
    has_vocabulary,
    load_tokenizer,
)
from meshc.serving.drafting import Repeats
from meshc.serving.sampling import GREEDY, SEEDS, Sampler, Sampling
from meshc.serving.texts import Flow
from meshc.support.diagnostics import Diagnostics, MeshcError, fail

_MAX_NEW_TOKENS = 1 << 20
USUAL_STEPS = {"cuda": 16, "cuda-cpu": 1}
"""Steps of a launch of what runs a program: on a GPU the host's work for a token is divided by
them, in its stand-in on the CPU each step behind the end of a text takes long."""

OnToken = Callable[[int, str], None]
OnTokenOf = Callable[[int, int, str], None]
"""Called with the number of a prompt, a token behind it and the text behind it so far, as far as
that is final: whole characters, and nothing that may turn out to be a text to stop at."""


@dataclass(frozen=True)
class Continuation:
    """How prompts are continued: by at most ``count`` tokens, chosen by ``sampling`` and ``seed``,
    up to one in ``ends`` or one of the texts ``stops``. Neither is part of the text.

    Where nobody wants ``logits``, a program that can chooses tokens itself, in launches of so many
    ``steps``; by default those that :data:`USUAL_STEPS` says."""

    count: int
    ends: Collection[int] = ()
    stops: tuple[str, ...] = ()
    sampling: Sampling = GREEDY
    seed: int = 0
    logits: bool = True
    steps: int | None = None

    def check(self) -> None:
        """Raise ``bad-argument`` for what nobody can ask for."""
        if not 1 <= self.count <= _MAX_NEW_TOKENS:
            fail("bad-argument", f"--max-tokens is {self.count}, not 1 to {_MAX_NEW_TOKENS}")
        if not all(self.stops):
            fail("bad-argument", "a text to stop at is empty")
        if not 0 <= self.seed < SEEDS:
            words = "0 or more" if self.seed < 0 else "a number of 64 bits"
            fail("bad-argument", f"--seed is {self.seed}, not {words}")
        if self.steps is not None and self.steps < 1:
            fail("bad-argument", f"--steps is {self.steps}, not 1 or more")
        self.sampling.check()


@dataclass
class Answer:
    """What a run gives. ``text`` is None without a tokenizer; ``logits`` is [tokens, vocab], and
    empty where the program chooses tokens itself.

    ``seconds_per_token`` is the mean over the generated tokens, the reading of the prompt and of
    the weights left out; None where a simulator or an executor stands in for the machine, which
    takes other times. ``wall_seconds_per_token`` is that of this run, whatever ran. ``mesh`` is
    None of a program that has none.
    """

    prompt_ids: list[int]
    tokens: list[int]
    text: str | None
    seconds_per_token: float | None
    wall_seconds_per_token: float
    mesh: str | None
    backend: str
    logits: NDArray[np.float32] = field(repr=False)


@dataclass(frozen=True)
class Prompt:
    """What to continue: token ids, and the tokenizer that made them of a text or reads the answer,
    None for a model that has none."""

    ids: list[int]
    tokenizer: Tokenizer | None


Given = str | Sequence[int] | Conversation
"""A prompt: a text, token ids, or messages that the model's chat template makes a text of."""


def read_prompts(
    prompts: Sequence[Given],
    config: ModelConfig | None,
    weights: Path | None,
    name: str,
    report: Diagnostics | None = None,
) -> list[Prompt]:
    """``prompts`` for the model ``name``, whose tokenizer and chat template lie with its weights.

    Where token ids alone are given, a tokenizer that is not read is as none, of which ``report`` is
    told. Raises ``no-tokenizer`` for a text where there is none, and what :func:`load_tokenizer`,
    :func:`open_chat` and :meth:`Chat.ids` do.
    """
    texts = any(isinstance(prompt, str | Conversation) for prompt in prompts)
    tokenizer = None
    if config is not None and weights is not None and (texts or has_vocabulary(weights)):
        tokenizer = (
            load_tokenizer(weights, config) if texts else _of_answers(weights, config, report)
        )
    if texts and tokenizer is None:
        fail(
            "no-tokenizer",
            f"'{name}' has no tokenizer, so it cannot read a text",
            help="give token ids, such as 5,17,42",
        )
    chat = None
    if tokenizer is not None and weights is not None and _talks(prompts):
        chat = open_chat(weights, tokenizer, name)
    return [Prompt(_ids(prompt, tokenizer, chat, report), tokenizer) for prompt in prompts]


def _of_answers(weights: Path, config: ModelConfig, report: Diagnostics | None) -> Tokenizer | None:
    """The tokenizer that makes texts of answers to token ids, None where it is not read."""
    try:
        return load_tokenizer(weights, config)
    except MeshcError as refusal:
        (first, *others) = refusal.diagnostics
        if others or first.code != "tokenizer-unsupported":
            raise
        if report is not None:
            report.warning(first.code, f"answers are token ids: {first.message}")
        return None


def _talks(prompts: Sequence[Given]) -> bool:
    """Whether one of ``prompts`` is a conversation."""
    return any(isinstance(prompt, Conversation) for prompt in prompts)


def _ids(
    prompt: Given, tokenizer: Tokenizer | None, chat: Chat | None, report: Diagnostics | None
) -> list[int]:
    """Token ids of ``prompt``."""
    if isinstance(prompt, Conversation):
        assert chat is not None
        return chat.ids(prompt, report)
    if isinstance(prompt, str):
        assert tokenizer is not None
        return tokenizer.encode(prompt)
    return [int(token) for token in prompt]


def generated(
    host: Host,
    prompts: Sequence[Prompt],
    how: Continuation,
    mesh: str | None,
    backend: str,
    on_token: OnTokenOf | None = None,
) -> list[Answer]:
    """Continue ``prompts``, all at once. Raises ``run-refused``, and ``no-tokenizer`` for texts to
    stop at where tokens have no text."""
    if how.stops and any(prompt.tokenizer is None for prompt in prompts):
        fail("no-tokenizer", "there is no tokenizer, so there is no text to stop at")
    texts = [_Steps(number, prompt, how, on_token) for number, prompt in enumerate(prompts)]

    def tell(request: int, token: int, logits: NDArray[np.float32] | None) -> bool:
        return texts[request].take(token, logits)

    def tell_chosen(request: int, token: int) -> bool:
        return texts[request].take(token, None, drawn=True)

    def choose(request: int, logits: NDArray[np.float32]) -> int:
        return texts[request].sampler(logits)

    ids, steps = [p.ids for p in prompts], _steps_of_a_launch(host, how, backend)
    if isinstance(host, ChoosingHost) and steps:
        draw = None
        if how.sampling != GREEDY:
            keys = [text.sampler.key for text in texts]
            draw = cuda.Draw(how.sampling.numbers().tolist(), keys, choose)
        found = host.generate_chosen(ids, how.count, tell_chosen, how.ends, steps, draw)
    elif isinstance(host, DraftingHost):
        found = host.generate_drafted(ids, how.count, tell, how.ends, choose, Repeats())
    else:
        found = host.generate_all(ids, how.count, tell, how.ends, choose)
    return [
        Answer(
            text.prompt.ids,
            tokens,
            text.flow.text if text.prompt.tokenizer else None,
            None if backend in SIMULATING else text.seconds_per_token(),
            text.seconds_per_token(),
            mesh,
            backend,
            text.stacked(),
        )
        for tokens, text in zip(found, texts, strict=True)
    ]


def _steps_of_a_launch(host: Host, how: Continuation, backend: str) -> int:
    """Steps of each launch of a program that chooses tokens itself; 0 where the host does. Raises
    ``bad-argument`` where steps are asked for of a host that does."""
    most = host.most_steps if isinstance(host, ChoosingHost) else 0
    if most and not how.logits:
        steps = USUAL_STEPS.get(backend, 1) if how.steps is None else how.steps
        if steps <= most:
            return steps
        words = f"a launch of this program has {most} at the most"
    elif not most:
        words = "this program leaves the choice of tokens to the host"
    else:
        words = "the host is given logits, of which it chooses each token"
    if how.steps is not None:
        fail("bad-argument", f"--steps is {how.steps}, but {words}")
    return 0


class _Steps:
    """What comes behind one prompt: collects logits and times, and hands new text on."""

    def __init__(self, number: int, prompt: Prompt, how: Continuation, on_token: OnTokenOf | None):
        self.number, self.prompt, self.how, self.on_token = number, prompt, how, on_token
        self.sampler = Sampler(how.sampling, how.seed, number)
        self.flow = Flow(prompt.tokenizer, prompt.ids, how.stops)
        self.logits: list[NDArray[np.float32]] = []
        self.times: list[float] = []

    def take(self, token: int, logits: NDArray[np.float32] | None, drawn: bool = False) -> bool:
        """Take the next token; whether it is the last because the text has come to a stop. Without
        ``logits`` the program chose it. Raises ``bad-argument`` where it was to be ``drawn`` and is
        not."""
        self.times.append(time.perf_counter())
        if logits is not None:
            self.logits.append(np.array(logits, np.float32))
        elif self.how.sampling != GREEDY and not drawn:
            fail("bad-argument", "the cores choose the likeliest token, so that none is drawn")
        ends = token in self.how.ends
        self.flow.push(token, ends or len(self.times) == self.how.count, shown=not ends)
        if self.on_token is not None:
            self.on_token(self.number, token, self.flow.text if self.prompt.tokenizer else "")
        return self.flow.stopped

    def seconds_per_token(self) -> float:
        """Mean time from one token to the next; 0 when there was only one."""
        gaps = len(self.times) - 1
        return (self.times[-1] - self.times[0]) / gaps if gaps > 0 else 0.0

    def stacked(self) -> NDArray[np.float32]:
        return np.stack(self.logits) if self.logits else np.zeros((0, 0), np.float32)
