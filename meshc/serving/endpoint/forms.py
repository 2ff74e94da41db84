"""The forms of answers in the OpenAI API: texts behind prompts, and messages of chats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshc.serving.endpoint.answers import Piece
from meshc.serving.endpoint.likely import of_chat, of_completion


@dataclass(frozen=True)
class Form:
    """How answers to one path look: what their names start with, and their kinds of objects, whole
    and in pieces."""

    prefix: str
    whole: str
    piece: str
    is_chat: bool

    def choice(self, pieces: Sequence[Piece]) -> dict[str, object]:
        """One whole answer."""
        text = "".join(piece.text for piece in pieces)
        message = {"role": "assistant", "content": text, "refusal": None}
        return self._choice({"message": message}, text, pieces, 0)

    def part(self, piece: Piece, first: bool, start: int) -> dict[str, object]:
        """A piece of an answer, whose tokens' texts go on at character ``start``; of a chat its
        ``first`` one with the role."""
        delta = {"role": "assistant", "content": piece.text} if first else {"content": piece.text}
        return self._choice({"delta": delta}, piece.text, [piece], start)

    def _choice(
        self, said: dict[str, object], text: str, pieces: Sequence[Piece], start: int
    ) -> dict[str, object]:
        likely = [one for piece in pieces for one in piece.likely]
        logprobs = of_chat(likely) if self.is_chat else of_completion(likely, start)
        return {
            "index": pieces[0].index,
            **(said if self.is_chat else {"text": text}),
            "token_ids": [token for piece in pieces for token in piece.tokens],
            "logprobs": logprobs if likely else None,
            "finish_reason": pieces[-1].reason or None,
        }


COMPLETION = Form("cmpl", "text_completion", "text_completion", False)
CHAT = Form("chatcmpl", "chat.completion", "chat.completion.chunk", True)
