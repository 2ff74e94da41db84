"""From texts to token ids and back, for clients that count tokens."""

from __future__ import annotations

from typing import Any

from meshc.serving.endpoint.asked import Encode, ReadChat, are_ids, given_of, message_ids, prompt_of
from meshc.serving.endpoint.refusals import Refused
from meshc.serving.texts import Tokenizer
from meshc.support.diagnostics import MeshcError

_MOST_IDS = 1 << 20
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "add_special_tokens": (True,),
    "add_generation_prompt": (True,),
    "return_token_strs": (False,),
}


def ids_of(
    body: bytes, model: str, encode: Encode | None, room: int, values: int, read: ReadChat
) -> list[int]:
    """The ids of the ``prompt``, or of the ``messages``, in ``body``. Raises :class:`Refused`."""
    given = given_of(body, model, values, {"model", "prompt", "messages"}, _NEUTRAL, False)
    if ("prompt" in given) == ("messages" in given):
        raise Refused(400, "a prompt or messages are wanted", "prompt")
    most = max(room, _MOST_IDS)  # longer ones than the model reads are counted as well
    if "messages" in given:
        return list(message_ids(given["messages"], read, most))
    return list(prompt_of(given["prompt"], encode, most)[0])


def text_of(
    body: bytes,
    model: str,
    encode: Encode | None,
    room: int,
    values: int,
    speller: Tokenizer | None,
) -> str:
    """The text of the ``tokens`` in ``body``. Raises :class:`Refused`."""
    given = given_of(body, model, values, {"model", "tokens"}, {}, False)
    ids = given.get("tokens")
    if not isinstance(ids, list) or (ids and not are_ids(ids)):
        raise Refused(400, "tokens are no token ids", "tokens")
    if speller is None:
        raise Refused(400, "the model has no tokenizer", "tokens")
    for token in ids:
        if not 0 <= token < 1 << 31:
            raise Refused(400, f"{token} is no token id", "tokens")
    try:
        return speller.continuation((), ids)
    except MeshcError as error:
        raise Refused(400, error.diagnostics[0].message, "tokens") from None
