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
_THOUGHTS = ("reasoning_content", "thinking", "reasoning")
_FORM = '{"messages": [{"role": "user", "content": "..."}, ...]}'


Message = dict[str, object]


@dataclass(frozen=True)
class Conversation:
    """Messages in their order; each has a ``role`` and, but for calls of tools, a ``content``: a
    text, or a list of parts, objects with the ``type`` text and a ``text``.

    Templates read what else a message has, such as ``tool_calls``, by the names that their models
    were trained with. As in Hugging Face transformers 5.24 nulls are left out, and what a model
    thought has all the names that templates look for.
    """

    messages: tuple[Message, ...]

    @classmethod
    def of(cls, user: str, system: str | None = None) -> Conversation:
        """What a user says first, behind what a system message says."""
        said = {"system": system, "user": user}
        return cls(tuple({"role": r, "content": c} for r, c in said.items() if c is not None))


def conversation_of(given: object) -> Conversation:
    """The conversation that a list of messages spells, as JSON has them in the OpenAI API.

    Raises ``chat-invalid`` for messages without a role, and for contents that are no texts.
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
    role, name = given.get("role"), given.get("name")
    if not isinstance(role, str) or not role:
        _invalid(f"the role of message {number} is {brief(role)}, no name such as user")
    if name is not None and not isinstance(name, str):
        _invalid(f"the name of message {number} is {brief(name)}, no text")
    calls = given.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        _invalid(f"the tool_calls of message {number} are {brief(calls)}, no list")
    if given.get("content") is not None or not calls:
        _check_content(number, given.get("content"))
    present = {key: value for key, value in given.items() if value is not None}
    thought = next((present[key] for key in _THOUGHTS if key in present), None)
    if thought is None:
        return present
    return {"thinking": thought, **present, "reasoning_content": thought}


def _check_content(number: int, given: object) -> None:
    if isinstance(given, str):
        return
    if not isinstance(given, list) or not given:
        _invalid(f"the content of message {number} is {brief(given)}, no text")
    for part in given:
        known = isinstance(part, dict) and part.get("type") == "text"
        if not known or not isinstance(part.get("text"), str):
            _invalid(f"a part of message {number} is no text, and a model of texts reads no other")


def _invalid(reason: str) -> NoReturn:
    fail("chat-invalid", reason, help=f"a conversation is {_FORM}")
