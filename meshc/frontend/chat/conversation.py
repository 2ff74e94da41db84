"""Conversations: messages, each with a role, from flags, a file or a request over HTTP."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from meshc.frontend.checkpoints.fields import brief
from meshc.frontend.checkpoints.json_text import read_json_object
from meshc.support.diagnostics import fail

FILE_LIMIT_BYTES = 8 << 20
_MOST_MESSAGES = 4096
_KEYS = ("role", "content", "name")
_FORM = '{"messages": [{"role": "user", "content": "..."}, ...]}'


Message = dict[str, str | list[dict[str, str]]]


@dataclass(frozen=True)
class Conversation:
    """Messages in their order; each has the keys ``role`` and ``content`` and perhaps ``name``.

    A content is a text, or a list of parts, objects with the ``type`` text and a ``text``.
    """

    messages: tuple[Message, ...]

    @classmethod
    def of(cls, user: str, system: str | None = None) -> Conversation:
        """What a user says first, behind what a system message says."""
        said = {"system": system, "user": user}
        return cls(tuple({"role": r, "content": c} for r, c in said.items() if c is not None))


def conversation_of(given: object) -> Conversation:
    """The conversation that a list of messages spells, as JSON has them in the OpenAI API.

    Raises ``chat-invalid`` for messages with anything else than texts: nothing of a message is
    passed over.
    """
    if not isinstance(given, list) or not 1 <= len(given) <= _MOST_MESSAGES:
        _invalid(f"there are no messages, a list of 1 to {_MOST_MESSAGES} objects")
    return Conversation(tuple(_message(number, one) for number, one in enumerate(given, 1)))


def read_conversation(path: Path) -> Conversation:
    """The conversation in a JSON file: an object with one key, ``messages``.

    Errors: ``checkpoint-unreadable``, ``json-invalid``, ``chat-invalid``.
    """
    text = read_json_object(path, FILE_LIMIT_BYTES, "conversation")
    surplus = [key for key in text.value if key != "messages"]
    if surplus:
        fail(
            "chat-invalid",
            f"'{surplus[0][:40]}' is no part of a conversation",
            text.span(surplus[0]),
            help=f"a conversation is {_FORM}",
        )
    return conversation_of(text.value.get("messages"))


def _message(number: int, given: object) -> Message:
    if not isinstance(given, dict):
        _invalid(f"message {number} is {brief(given)}, no object")
    present = {key: value for key, value in given.items() if value is not None}
    surplus = [key for key in present if key not in _KEYS]
    if surplus:
        _invalid(f"message {number} has '{str(surplus[0])[:40]}', which meshc does not read")
    role, name = present.get("role"), present.get("name")
    if not isinstance(role, str) or not role:
        _invalid(f"the role of message {number} is {brief(role)}, no name such as user")
    if name is not None and not isinstance(name, str):
        _invalid(f"the name of message {number} is {brief(name)}, no text")
    found: Message = {"role": role, "content": _content(number, present.get("content"))}
    return found if name is None else found | {"name": name}


def _content(number: int, given: object) -> str | list[dict[str, str]]:
    if isinstance(given, str):
        return given
    if not isinstance(given, list) or not given:
        _invalid(f"the content of message {number} is {brief(given)}, no text")
    return [_part(number, part) for part in given]


def _part(number: int, given: object) -> dict[str, str]:
    text = given.get("text") if isinstance(given, dict) and given.keys() == {"type", "text"} else 0
    if not isinstance(text, str) or not isinstance(given, dict) or given["type"] != "text":
        _invalid(f"a part of message {number} is no text, and a model of texts reads no other")
    return {"type": "text", "text": text}


def _invalid(reason: str) -> NoReturn:
    fail("chat-invalid", reason, help=f"a conversation is {_FORM}")
