"""What a client asks for: the JSON object of a completion or a chat, checked field by field."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from meshc.serving.endpoint.refusals import Refused
from meshc.serving.sampling import Sampling
from meshc.support.diagnostics import MeshcError

MOST_PROMPTS = 128
MOST_STOPS = 4
USUAL_TOKENS = 16

Encode = Callable[[str, int], list[int]]
"""From a text to token ids, for so many of which there is room: a text that surely has more need
not be read to its end. Raises ``MeshcError``."""
ReadChat = Callable[[object, int], list[int]]
"""The same from messages, as JSON has them."""


@dataclass(frozen=True)
class Asked:
    """Prompts as token ids, each to be continued by at most ``most`` tokens, up to one of the texts
    ``stops``, chosen by ``sampling`` and ``seed``, None for another
    text each time; answered piece by piece if ``stream``, with counts at the end if ``usage``."""

    prompts: tuple[tuple[int, ...], ...]
    most: int
    stops: tuple[str, ...]
    sampling: Sampling
    seed: int | None
    stream: bool
    usage: bool


MOST_TEMPERATURE = 2
SEEDS = 1 << 63

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "logprobs": (),
    "suffix": (),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
}
"""Settings that are not computed, with the values under which they change nothing."""

_COMMON = {
    "model",
    "max_tokens",
    "stop",
    "stream",
    "stream_options",
    "seed",
    "user",
    "temperature",
    "top_p",
}
_OF_A_PROMPT = _COMMON | {"prompt"}
_OF_A_CHAT = _COMMON | {"messages", "max_completion_tokens"}
_NEUTRAL_OF_A_CHAT: dict[str, tuple[Any, ...]] = {
    **{name: values for name, values in _NEUTRAL.items() if name.endswith("penalty")},
    "n": (1,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "tools": ([],),
    "response_format": ({"type": "text"},),
}


def asked(body: bytes, model: str, encode: Encode | None, room: int, values: int) -> Asked:
    """What ``body``, of about ``values`` values at most, asks of ``model``; ``encode`` turns a text
    into ids, None where nothing does. A request has room for ``room`` tokens.

    Raises :class:`Refused`: 400 for what is no such object, 404 for another model, 413 for more
    values.
    """
    given = _given(body, model, values, _OF_A_PROMPT, _NEUTRAL)
    prompts = _prompts(given.get("prompt"), encode, room)
    return _asked(given, prompts, _most(given, "max_tokens", USUAL_TOKENS), encode)


def asked_chat(
    body: bytes, model: str, encode: Encode | None, room: int, values: int, read: ReadChat
) -> Asked:
    """The same of a chat, whose messages ``read`` turns into ids. An answer has the room that is
    left of ``room`` tokens where nobody says how long it may be."""
    given = _given(body, model, values, _OF_A_CHAT, _NEUTRAL_OF_A_CHAT)
    names = ("max_completion_tokens", "max_tokens")
    lengths = [name for name in names if given.get(name) is not None]
    if len({json.dumps(given[name]) for name in lengths}) > 1:
        raise Refused(400, "max_tokens and max_completion_tokens differ", "max_tokens")
    try:
        prompt = tuple(read(given.get("messages"), room))
    except MeshcError as error:
        raise Refused(400, error.diagnostics[0].message, "messages") from None
    left = max(1, room + 1 - len(prompt))
    most = _most(given, lengths[0] if lengths else "max_tokens", left)
    return _asked(given, (prompt,), most, encode)


def _given(
    body: bytes,
    model: str,
    values: int,
    known: Collection[str],
    neutral: Mapping[str, tuple[Any, ...]],
) -> dict[str, Any]:
    """The object in ``body`` for ``model``, with settings that are ``known``, or have one of their
    ``neutral`` values."""
    # Before it is read: small values take many times the memory of their text.
    if sum(map(body.count, (b",", b"[", b"{"))) > values:
        raise Refused(413, f"a request has at most {values} values")
    try:
        given = json.loads(body)
    except (ValueError, RecursionError):
        raise Refused(400, "the body is no JSON") from None
    if not isinstance(given, dict):
        raise Refused(400, "the body is no JSON object")
    if given.get("model") != model:
        raise Refused(404, f"there is no model {_shown(given.get('model'))} here", "model")
    for name, value in given.items():
        if name in neutral:
            if value is not None and value not in neutral[name]:
                words = f"{name} cannot be {_shown(value)}: that is not supported"
                raise Refused(400, words, name)
        elif name not in known:
            raise Refused(400, f"there is no setting '{name[:40]}'", name[:40])
    return given


def _asked(
    given: dict[str, Any],
    prompts: tuple[tuple[int, ...], ...],
    most: int,
    encode: Encode | None,
) -> Asked:
    """What is asked, whatever the path."""
    return Asked(
        prompts,
        most,
        _stops(given.get("stop"), encode),
        Sampling(
            temperature=_number(given, "temperature", MOST_TEMPERATURE),
            top_p=_number(given, "top_p", 1),
        ),
        _seed(given.get("seed")),
        _flag(given, "stream"),
        _flag(_options(given), "include_usage"),
    )


def _prompts(given: object, encode: Encode | None, room: int) -> tuple[tuple[int, ...], ...]:
    """A text, texts, token ids, or several lists of these."""
    if isinstance(given, str) or (isinstance(given, list) and _are_ids(given)):
        given = [given]
    if not isinstance(given, list) or not 1 <= len(given) <= MOST_PROMPTS:
        raise Refused(
            400, f"prompt is no text, token ids, or 1 to {MOST_PROMPTS} of these", "prompt"
        )
    return tuple(_prompt(one, encode, room) for one in given)


def _prompt(given: object, encode: Encode | None, room: int) -> tuple[int, ...]:
    if isinstance(given, list) and _are_ids(given):
        return tuple(given)
    if not isinstance(given, str) or not given:
        raise Refused(400, "a prompt is a text or token ids, not empty", "prompt")
    if encode is None:
        raise Refused(400, "the model has no tokenizer: give token ids", "prompt")
    _check_unicode(given, "prompt")
    try:
        return tuple(encode(given, room))
    except MeshcError as error:
        raise Refused(400, error.diagnostics[0].message, "prompt") from None


def _check_unicode(text: str, field: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise Refused(400, f"the text of {field} is not valid Unicode", field) from None


def _are_ids(given: list[object]) -> bool:
    return bool(given) and all(type(token) is int for token in given)


def _most(given: dict[str, Any], name: str, usual: int) -> int:
    """The number at ``name``, ``usual`` where it is not given."""
    found = given.get(name)
    if found is None:
        return usual
    if type(found) is not int or found < 1:
        raise Refused(400, f"{name} is {_shown(found)}, not 1 or more", name)
    return found


def _number(given: dict[str, object], name: str, most: int) -> float:
    """A number from 0 to ``most``, 1 where it is not given, as the OpenAI API has it."""
    found = given.get(name)
    if found is None:
        return 1.0
    if not isinstance(found, int | float) or isinstance(found, bool) or not 0 <= found <= most:
        raise Refused(400, f"{name} is {_shown(found)}, not 0 to {most}", name)
    return float(found)


def _seed(given: object) -> int | None:
    """The seed; a negative one is as good as another."""
    if given is None:
        return None
    if type(given) is not int or not -SEEDS <= given < SEEDS:
        raise Refused(400, f"seed is {_shown(given)}, not a whole number of 64 bits", "seed")
    return given % (2 * SEEDS)


def _stops(given: object, encode: Encode | None) -> tuple[str, ...]:
    if given is None:
        return ()
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or len(texts) > MOST_STOPS:
        raise Refused(400, f"stop is no text or up to {MOST_STOPS} texts", "stop")
    if not all(isinstance(text, str) and text for text in texts):
        raise Refused(400, "a text to stop at is not empty", "stop")
    if texts and encode is None:
        raise Refused(400, "the model has no tokenizer, so no text to stop at", "stop")
    for text in texts:
        _check_unicode(text, "stop")
    return tuple(texts)


def _options(given: dict[str, object]) -> dict[str, object]:
    found = given.get("stream_options")
    if found is None:
        return {}
    if not isinstance(found, dict) or not given.get("stream"):
        raise Refused(400, "stream_options are an object, for streams", "stream_options")
    return found


def _flag(given: dict[str, object], name: str) -> bool:
    found = given.get(name)
    if found is not None and not isinstance(found, bool):
        raise Refused(400, f"{name} is {_shown(found)}, not true or false", name)
    return bool(found)


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
