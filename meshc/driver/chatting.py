"""Conversations to token ids, by the chat template and the tokenizer of a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from meshc.frontend.chat import (
    ChatTemplate,
    Conversation,
    find_chat_template,
    render_conversation,
    said_now,
)
from meshc.frontend.checkpoints import Tokenizer
from meshc.support.diagnostics import Diagnostics


@dataclass(frozen=True)
class Chat:
    """How a model reads conversations."""

    template: ChatTemplate
    tokenizer: Tokenizer

    def ids(
        self,
        conversation: Conversation,
        report: Diagnostics | None = None,
        room: int | None = None,
    ) -> list[int]:
        """The tokens of ``conversation`` up to where the answer begins. The template says where the
        text starts, so no token is put in front; texts of control tokens become these tokens, also
        inside messages, as in Hugging Face transformers.

        ``report`` is told where the date is part of the text. Raises what
        :func:`render_conversation` and, with ``room``, :meth:`Tokenizer.encode_rendered` do.
        """
        now = said_now()
        rendered = render_conversation(self.template, conversation, now)
        if rendered.dated and report is not None:
            words = f"the chat template was told that it is {now:%Y-%m-%d}"
            report.remark("chat-date", f"{words}; SOURCE_DATE_EPOCH sets another date")
        return self.tokenizer.encode_rendered(rendered.text, room)


def open_chat(weights: Path, tokenizer: Tokenizer, name: str) -> Chat:
    """How the model ``name``, whose files are at ``weights``, reads conversations.

    Raises what :func:`find_chat_template` does.
    """
    return Chat(find_chat_template(weights, name), tokenizer)
