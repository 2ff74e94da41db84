"""What a client asks for: the JSON object of a completion or a chat, checked field by field."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from meshc.serving.endpoint.refusals import UNSUPPORTED, Refused
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
    """Prompts as token ids, and the ``texts`` that they were, where they were; each is continued
    ``each`` times by at most ``most`` tokens, up to one of the texts ``stops``, one of ``stop_ids``
    or, unless ``ignore_eos``, a token that ends a text; chosen by ``sampling`` and ``seed``, None
    for another text each time. Answers are said behind their prompts if ``echo``, with how likely
    each token and the ``top`` likeliest were, unless that is None; piece by piece if ``stream``,
    with counts at the end if ``usage``. Answers are JSON of the ``schema``, unless that is None."""

    prompts: tuple[tuple[int, ...], ...]
    texts: tuple[str, ...]
    each: int
    most: int
    stops: tuple[str, ...]
    stop_ids: tuple[int, ...]
    ignore_eos: bool
    sampling: Sampling
    seed: int | None
    echo: bool
    top: int | None
    stream: bool
    usage: bool
    schema: str | None

    @property
    def answers(self) -> int:
        """How many answers there are."""
        return len(self.prompts) * self.each


MOST_TEMPERATURE = 2
MOST_LIKELY = 20
SEEDS = 1 << 63

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "logit_bias": ({},),
    **dict.fromkeys(("repeat_penalty", "typical_p"), (1,)),
    "mirostat": (0,),
    "bad_words": ([],),
    "min_tokens": (0,),
    **dict.fromkeys(("guided_json", "guided_regex", "guided_choice", "guided_grammar"), ()),
    **dict.fromkeys(("structured_outputs", "allowed_token_ids", "logits_processors"), ()),
    "return_tokens_as_token_ids": (False,),
    "return_token_ids": (False, True),
    "use_beam_search": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "include_stop_str_in_output": (False,),
    "truncate_prompt_tokens": (),
    "prompt_logprobs": (),
}
"""Settings that are not computed, with the values under which they change nothing."""
_NEUTRAL_OF_A_PROMPT = _NEUTRAL | {"suffix": (), "add_special_tokens": (True,)}
_NEUTRAL_OF_A_CHAT: dict[str, tuple[Any, ...]] = _NEUTRAL | {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "verbosity": ("medium",),
    **dict.fromkeys(("reasoning_effort", "audio", "web_search_options", "chat_template"), ()),
    "chat_template_kwargs": ({},),
    "documents": ([],),
    "echo": (False,),
    "best_of": (1,),
    "add_generation_prompt": (True,),
    "add_special_tokens": (False,),
    "continue_final_message": (False,),
}
_NEUTRAL_OF_A_STREAM = {
    "include_obfuscation": (True, False),  # a key beside the others, of which no client needs any
    "continuous_usage_stats": (False,),
}
_INERT = {
    *("user", "safety_identifier", "prompt_cache_key", "store", "metadata", "service_tier"),
    *("parallel_tool_calls", "request_id", "priority", "prompt_cache_retention", "cache_prompt"),
    "prediction",
}
"""What changes no answer here: whose request it is, what a provider keeps of it, how calls of
tools, of which there are none, come, and what the answer is likely to be."""

_COMMON = {
    *("model", "max_tokens", "n", "stop", "stop_token_ids", "ignore_eos", "seed"),
    *("temperature", "top_p", "top_k", "min_p", "logprobs", "stream", "stream_options"),
    *("response_format", *_INERT),
}
_OF_A_PROMPT = _COMMON | {"prompt", "echo", "best_of"}
_OF_A_CHAT = _COMMON | {"messages", "max_completion_tokens", "top_logprobs"}


def asked(body: bytes, model: str, encode: Encode | None, room: int, values: int) -> Asked:
    """What ``body``, of about ``values`` values at most, asks of ``model``; ``encode`` turns a text
    into ids, None where nothing does. A request has room for ``room`` tokens.

    Raises :class:`Refused`: 400 for what is no such object, 404 for another model, 413 for more
    values.
    """
    given = given_of(body, model, values, _OF_A_PROMPT, _NEUTRAL_OF_A_PROMPT)
    echo = _flag(given, "echo")
    most = _whole(given, "max_tokens", 0 if echo else 1, None, USUAL_TOKENS)
    each = _whole(given, "n", 1, MOST_PROMPTS, 1)
    if _whole(given, "best_of", 1, MOST_PROMPTS, each) != each:
        raise Refused(400, "best_of is not n: that is not supported", "best_of", UNSUPPORTED)
    top = None
    if given.get("logprobs") is not None and given["logprobs"] is not False:
        top = _whole(given, "logprobs", 0, MOST_LIKELY, 0)
    found = _prompts(given.get("prompt"), encode, room)
    if len(found) * each > MOST_PROMPTS:
        raise Refused(400, f"a request has at most {MOST_PROMPTS} answers", "n")
    return _asked(given, found, each, most, echo, top, encode)


def asked_chat(
    body: bytes, model: str, encode: Encode | None, room: int, values: int, read: ReadChat
) -> Asked:
    """The same of a chat, whose messages ``read`` turns into ids. An answer has the room that is
    left of ``room`` tokens where nobody says how long it may be."""
    given = given_of(body, model, values, _OF_A_CHAT, _NEUTRAL_OF_A_CHAT)
    names = ("max_completion_tokens", "max_tokens")
    lengths = [name for name in names if given.get(name) is not None]
    if len({json.dumps(given[name]) for name in lengths}) > 1:
        raise Refused(400, "max_tokens and max_completion_tokens differ", "max_tokens")
    prompt = message_ids(given.get("messages"), read, room)
    left = max(1, room + 1 - len(prompt))
    most = _whole(given, lengths[0] if lengths else "max_tokens", 1, None, left)
    each = _whole(given, "n", 1, MOST_PROMPTS, 1)
    likely = _whole(given, "top_logprobs", 0, MOST_LIKELY, 0)
    if likely and not _flag(given, "logprobs"):
        raise Refused(400, "top_logprobs are for answers with logprobs", "top_logprobs")
    top = likely if _flag(given, "logprobs") else None
    return _asked(given, ((prompt, ""),), each, most, False, top, encode)


def message_ids(given: object, read: ReadChat, room: int) -> tuple[int, ...]:
    """The ids of messages. Raises :class:`Refused`."""
    try:
        return tuple(read(given, room))
    except MeshcError as error:
        raise Refused(400, error.diagnostics[0].message, "messages") from None


def given_of(
    body: bytes,
    model: str,
    values: int,
    known: Collection[str],
    neutral: Mapping[str, tuple[Any, ...]],
    named: bool = True,
) -> dict[str, Any]:
    """The object in ``body`` for ``model``, which need not be ``named``, with settings that are
    ``known``, or have one of their ``neutral`` values. Raises :class:`Refused`."""
    # Before it is read: small values take many times the memory of their text.
    if sum(map(body.count, (b",", b"[", b"{"))) > values:
        raise Refused(413, f"a request has at most {values} values")
    try:
        given = json.loads(body)
    except (ValueError, RecursionError):
        raise Refused(400, "the body is no JSON") from None
    if not isinstance(given, dict):
        raise Refused(400, "the body is no JSON object")
    if given.get("model", None if named else model) != model:
        words = f"there is no model {_shown(given.get('model'))} here"
        raise Refused(404, words, "model", "model_not_found")
    _check_settings(given, known, neutral)
    return given


def _check_settings(
    given: Mapping[str, Any], known: Collection[str], neutral: Mapping[str, tuple[Any, ...]]
) -> None:
    """Refuse settings that are not ``known`` and have none of their ``neutral`` values."""
    for name, value in given.items():
        if name in neutral:
            if value is not None and value not in neutral[name]:
                words = f"{name} cannot be {_shown(value)}: that is not supported"
                raise Refused(400, words, name, UNSUPPORTED)
        elif name not in known:
            words = f"there is no setting '{name[:40]}'"
            raise Refused(400, words, name[:40], "unknown_parameter")


def _asked(
    given: dict[str, Any],
    prompts: Sequence[tuple[tuple[int, ...], str]],
    each: int,
    most: int,
    echo: bool,
    top: int | None,
    encode: Encode | None,
) -> Asked:
    """What is asked, whatever the path."""
    top_k = _whole(given, "top_k", -1, None, 0)
    return Asked(
        tuple(ids for ids, _ in prompts),
        tuple(text for _, text in prompts),
        each,
        most,
        _stops(given.get("stop"), encode),
        _stop_ids(given.get("stop_token_ids")),
        _flag(given, "ignore_eos"),
        Sampling(
            temperature=_number(given, "temperature", MOST_TEMPERATURE),
            top_k=max(top_k, 0),  # -1 leaves none out either
            top_p=_number(given, "top_p", 1),
            min_p=_number(given, "min_p", 1, 0.0),
        ),
        _seed(given.get("seed")),
        echo,
        top,
        _flag(given, "stream"),
        _flag(_options(given), "include_usage"),
        _schema(given, encode),
    )


def _prompts(
    given: object, encode: Encode | None, room: int
) -> tuple[tuple[tuple[int, ...], str], ...]:
    """The ids of a text, of texts, of token ids, or of several lists of these, and the texts."""
    if isinstance(given, str) or (isinstance(given, list) and are_ids(given)):
        given = [given]
    if not isinstance(given, list) or not 1 <= len(given) <= MOST_PROMPTS:
        raise Refused(
            400, f"prompt is no text, token ids, or 1 to {MOST_PROMPTS} of these", "prompt"
        )
    return tuple(prompt_of(one, encode, room) for one in given)


def prompt_of(given: object, encode: Encode | None, room: int) -> tuple[tuple[int, ...], str]:
    """The ids of a text, or those that are given, and the text. Raises :class:`Refused`."""
    if isinstance(given, list) and are_ids(given):
        return tuple(given), ""
    if not isinstance(given, str) or not given:
        raise Refused(400, "a prompt is a text or token ids, not empty", "prompt")
    if encode is None:
        raise Refused(400, "the model has no tokenizer: give token ids", "prompt")
    _check_unicode(given, "prompt")
    try:
        return tuple(encode(given, room)), given
    except MeshcError as error:
        raise Refused(400, error.diagnostics[0].message, "prompt") from None


def _check_unicode(text: str, field: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise Refused(400, f"the text of {field} is not valid Unicode", field) from None


def are_ids(given: list[object]) -> bool:
    """Whether these are token ids, one at least."""
    return bool(given) and all(type(token) is int for token in given)


def _whole(given: dict[str, Any], name: str, least: int, most: int | None, usual: int) -> int:
    """The whole number at ``name``, ``usual`` where it is not given."""
    found = given.get(name)
    if found is None:
        return usual
    if type(found) is not int or found < least or (most is not None and found > most):
        bounds = f"{least} or more" if most is None else f"{least} to {most}"
        raise Refused(400, f"{name} is {_shown(found)}, not {bounds}", name)
    return found


def _stop_ids(given: object) -> tuple[int, ...]:
    if given is None:
        return ()
    if not isinstance(given, list) or (given and not are_ids(given)):
        raise Refused(400, "stop_token_ids are no token ids", "stop_token_ids")
    return tuple(given)


def _number(given: dict[str, object], name: str, most: int, usual: float = 1.0) -> float:
    """A number from 0 to ``most``, ``usual`` where it is not given: 1 as the OpenAI API has it."""
    found = given.get(name)
    if found is None:
        return usual
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
    _check_settings(found, {"include_usage"}, _NEUTRAL_OF_A_STREAM)
    return found


def _schema(given: dict[str, object], encode: Encode | None) -> str | None:
    """The JSON schema that answers fit, None where any text does."""
    name = "response_format"
    found = given.get(name)
    if found is None or found == {"type": "text"}:
        return None
    kind = found.get("type") if isinstance(found, dict) else None
    if not isinstance(found, dict) or kind not in ("json_object", "json_schema"):
        words = f"{name} is {_shown(found)}, not of the type text, json_object or json_schema"
        raise Refused(400, words, name, UNSUPPORTED)
    if encode is None:
        raise Refused(400, "the model has no tokenizer, so its answers are no JSON", name)
    if given.get("ignore_eos"):
        raise Refused(400, "an answer ends where its JSON does: ignore_eos cannot be", "ignore_eos")
    own = found.get("json_schema")
    schema = own.get("schema") if isinstance(own, dict) else None
    if kind == "json_object":
        schema = {"type": "object"}
    if not isinstance(schema, dict):
        raise Refused(400, f"{name} has no object json_schema.schema", name)
    return json.dumps(schema)


def _flag(given: dict[str, object], name: str) -> bool:
    found = given.get(name)
    if found is not None and not isinstance(found, bool):
        raise Refused(400, f"{name} is {_shown(found)}, not true or false", name)
    return bool(found)


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
