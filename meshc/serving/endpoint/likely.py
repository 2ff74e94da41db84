"""How likely tokens of an answer were, in the two forms of the OpenAI API."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Likely:
    """A token as a text, the logarithm of its probability, None for the first of a prompt, and the
    likeliest ones in its place with theirs."""

    text: str
    logprob: float | None
    top: tuple[tuple[str, float], ...]


def of_completion(tokens: Sequence[Likely], start: int) -> dict[str, object]:
    """``logprobs`` of a completion whose text goes on at character ``start``. The likeliest tokens
    are by their texts, of which of equal ones the likeliest counts, and the chosen one is there."""
    offsets = [start + sum(len(one.text) for one in tokens[:n]) for n in range(len(tokens))]
    return {
        "tokens": [one.text for one in tokens],
        "token_logprobs": [one.logprob for one in tokens],
        "top_logprobs": [_by_text(one) for one in tokens],
        "text_offset": offsets,
    }


def _by_text(one: Likely) -> dict[str, float] | None:
    if one.logprob is None:
        return None
    found: dict[str, float] = {}
    for text, logprob in (*one.top, (one.text, one.logprob)):
        found.setdefault(text, logprob)
    return found


def of_chat(tokens: Sequence[Likely]) -> dict[str, object]:
    """``logprobs`` of a message."""
    content = [
        {
            **_spelled(one.text, one.logprob),
            "top_logprobs": [_spelled(text, logprob) for text, logprob in one.top],
        }
        for one in tokens
    ]
    return {"content": content, "refusal": None}


def _spelled(text: str, logprob: float | None) -> dict[str, object]:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode("utf-8", "replace"))}
