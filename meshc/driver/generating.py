"""Text or token ids in, tokens out: a loaded language model, and its tokenizer if it has one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from meshc.driver.hosts import Host
from meshc.frontend.checkpoints import ModelConfig, Tokenizer, load_tokenizer
from meshc.support.diagnostics import fail

_MAX_NEW_TOKENS = 1 << 20

OnToken = Callable[[int, str], None]
OnTokenOf = Callable[[int, int, str], None]
"""Called with the number of a prompt, a token behind it and the text behind it so far."""


@dataclass
class Answer:
    """What a run gives. ``text`` is None without a tokenizer; ``logits`` is [tokens, vocab], and
    empty where the program chooses tokens itself.

    ``seconds_per_token`` is the mean over the generated tokens, the reading of the prompt and of
    the weights left out.
    """

    prompt_ids: list[int]
    tokens: list[int]
    text: str | None
    seconds_per_token: float
    mesh: str
    backend: str
    logits: NDArray[np.float32] = field(repr=False)


def most_tokens(count: int) -> None:
    """Raise ``bad-argument`` unless ``count`` tokens can be asked for."""
    if not 1 <= count <= _MAX_NEW_TOKENS:
        fail("bad-argument", f"--max-tokens is {count}, not 1 to {_MAX_NEW_TOKENS}")


@dataclass(frozen=True)
class Prompt:
    """What to continue: token ids, and the tokenizer that made them of a text or reads the answer,
    None for a model that has none."""

    ids: list[int]
    tokenizer: Tokenizer | None


Given = str | Sequence[int]
"""A prompt: a text or token ids."""


def read_prompts(
    prompts: Sequence[Given], config: ModelConfig | None, weights: Path | None, name: str
) -> list[Prompt]:
    """``prompts`` for the model ``name``, whose tokenizer lies with its weights.

    Raises ``no-tokenizer`` for a text where there is none, and what :func:`load_tokenizer` does.
    """
    texts = any(isinstance(prompt, str) for prompt in prompts)
    if config is None or weights is None:
        if texts:
            fail(
                "no-tokenizer",
                f"'{name}' has no tokenizer, so it cannot read a text",
                help="give token ids, such as 5,17,42",
            )
        return [Prompt(_ids(prompt, None), None) for prompt in prompts]
    needed = texts or _has_tokenizer(weights)
    tokenizer = load_tokenizer(weights, config) if needed else None
    return [Prompt(_ids(prompt, tokenizer), tokenizer) for prompt in prompts]


def _ids(prompt: Given, tokenizer: Tokenizer | None) -> list[int]:
    """Token ids of ``prompt``."""
    if isinstance(prompt, str):
        assert tokenizer is not None
        return tokenizer.encode(prompt)
    return [int(token) for token in prompt]


def _has_tokenizer(place: Path) -> bool:
    folder = place if os.path.isdir(place) else place.parent
    return place.suffix == ".gguf" or os.path.isfile(folder / "tokenizer.json")


def generated(
    host: Host,
    prompt: Prompt,
    count: int,
    stop: Collection[int],
    mesh: str,
    backend: str,
    on_token: OnToken | None = None,
) -> Answer:
    """Continue ``prompt`` by up to ``count`` tokens, each the one with the largest logit; a token
    in ``stop`` is the last.

    Raises ``run-refused``.
    """
    steps = _Steps(prompt.ids, prompt.tokenizer, on_token)
    tokens = list(host.generate(prompt.ids, count, steps, stop))
    text = prompt.tokenizer.continuation(prompt.ids, tokens) if prompt.tokenizer else None
    seconds = steps.seconds_per_token()
    return Answer(prompt.ids, tokens, text, seconds, mesh, backend, steps.stacked())


def generated_all(
    host: Host,
    prompts: Sequence[Prompt],
    count: int,
    stop: Collection[int],
    mesh: str,
    backend: str,
    on_token: OnTokenOf | None = None,
) -> list[Answer]:
    """Continue several prompts at once, each as :func:`generated` does. Raises ``run-refused``."""

    def telling(request: int) -> OnToken | None:
        return None if on_token is None else partial(on_token, request)

    steps = [_Steps(p.ids, p.tokenizer, telling(n)) for n, p in enumerate(prompts)]

    def tell(request: int, token: int, logits: NDArray[np.float32] | None) -> None:
        steps[request](token, logits)

    found = host.generate_all([p.ids for p in prompts], count, tell, stop)
    return [
        Answer(
            prompt.ids,
            tokens,
            prompt.tokenizer.continuation(prompt.ids, tokens) if prompt.tokenizer else None,
            own.seconds_per_token(),
            mesh,
            backend,
            own.stacked(),
        )
        for prompt, tokens, own in zip(prompts, found, steps, strict=True)
    ]


class _Steps:
    """Collects logits and times of the tokens, and hands new text on as it comes."""

    def __init__(self, ids: list[int], tokenizer: Tokenizer | None, on_token: OnToken | None):
        self.ids = ids
        self.tokenizer = tokenizer
        self.on_token = on_token
        self.tokens: list[int] = []
        self.logits: list[NDArray[np.float32]] = []
        self.times: list[float] = []

    def __call__(self, token: int, logits: NDArray[np.float32] | None) -> None:
        self.times.append(time.perf_counter())
        self.tokens.append(token)
        if logits is not None:
            self.logits.append(np.array(logits, np.float32))
        if self.on_token is not None:
            text = self.tokenizer.continuation(self.ids, self.tokens) if self.tokenizer else ""
            self.on_token(token, text)

    def seconds_per_token(self) -> float:
        """Mean time from one token to the next; 0 when there was only one."""
        gaps = len(self.times) - 1
        return (self.times[-1] - self.times[0]) / gaps if gaps > 0 else 0.0

    def stacked(self) -> NDArray[np.float32]:
        return np.stack(self.logits) if self.logits else np.zeros((0, 0), np.float32)
