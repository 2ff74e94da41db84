"""A program that holds one tokenizer: JSON objects on lines of stdin, an answer to each on stdout.

Tokenizers come with models, so they are strangers' programs: a normalizer may multiply a text, a
regular expression may take for ever, and faults of the library end in panics or aborts. So this
program limits its own memory, and its processor time for each question, and whoever starts it sees
it end. It is the only user of the ``tokenizers`` package, imports nothing of meshc and runs by its
path.
"""

from __future__ import annotations

import json
import math
import resource
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Tokenizer


class Held:
    """The tokenizer, once it is opened."""

    engine: Any

    def open(self, asked: Mapping[str, Any]) -> dict[str, object]:
        """Make the tokenizer of ``json``, with tokens that other files declare. Answers the largest
        id of the vocabulary without added tokens, the id of each declared token, and the texts of
        special tokens by their ids."""
        engine = Tokenizer.from_str(asked["json"])
        engine.no_truncation()
        engine.no_padding()
        declared = {int(number): AddedToken(**facts) for number, facts in asked["declared"]}
        named, further = (
            [AddedToken(**facts) for facts in asked[key]] for key in ("named", "further")
        )
        contents = [token.content for token in (*declared.values(), *named, *further)]
        if asked["own_first"]:
            declared |= engine.get_added_tokens_decoder()
        self._add(engine, declared, named, further)
        engine.add_tokens([AddedToken(**facts) for facts in asked["last"]])
        self.engine = engine
        added = engine.get_added_tokens_decoder()
        return {
            "largest": max(engine.get_vocab(with_added_tokens=False).values(), default=-1),
            "ids": {content: engine.token_to_id(content) for content in contents},
            "special": {number: token.content for number, token in added.items() if token.special},
        }

    @staticmethod
    def _add(
        engine: Any, declared: Mapping[int, Any], named: Sequence[Any], further: Sequence[Any]
    ) -> None:
        own = engine.get_added_tokens_decoder().values()
        spelled, special = {repr(token) for token in own}, {token.content for token in named}
        for token in declared.values():
            token.special = token.special or token.content in special
        new = [token for _, token in sorted(declared.items()) if repr(token) not in spelled]
        known = {token.content for token in (*own, *new)}
        engine.add_tokens(
            [*new, *(token for token in (*named, *further) if token.content not in known)]
        )

    def encode(self, asked: Mapping[str, Any]) -> dict[str, object]:
        """The ids of ``text``, with what the tokenizer puts around a text if ``around``."""
        ids = list(self.engine.encode(asked["text"], add_special_tokens=asked["around"]).ids)
        return {"ids": ids} if len(ids) <= asked["most"] else {"fault": "tokens"}

    def decode(self, asked: Mapping[str, Any]) -> dict[str, object]:
        """The texts of lists of ids without special tokens."""
        texts = [self.engine.decode(ids, skip_special_tokens=True) for ids in asked["lists"]]
        long = max(map(len, texts), default=0) > asked["most"]
        return {"fault": "characters"} if long else {"texts": texts}

    def describe(self, asked: Mapping[str, Any]) -> dict[str, object]:
        """The tokenizer as it is now, in the JSON of its library."""
        return {"json": self.engine.to_str()}


def answer(held: Held, asked: Mapping[str, Any]) -> dict[str, object]:
    """The answer to one question, or a ``fault`` with ``words``."""
    try:
        found: dict[str, object] = getattr(held, asked["do"])(asked)
        return found
    except MemoryError:
        return {"fault": "memory"}
    except BaseException as error:
        # A panic of the library's Rust code is no Exception.
        words = str(error).strip().splitlines()
        return {"fault": "failed", "words": words[0][:200] if words else type(error).__name__}


def _limit_time(seconds: int) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    most = math.ceil(used.ru_utime + used.ru_stime) + seconds
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(resource.RLIMIT_CPU, (most, hard))


def main() -> None:
    """Answer questions until there are no more; the first one opens a tokenizer."""
    held = Held()
    for line in sys.stdin.buffer:
        asked = json.loads(line)
        if asked["do"] == "open":
            resource.setrlimit(resource.RLIMIT_AS, (asked["bytes"], asked["bytes"]))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        _limit_time(asked["seconds"])
        sys.stdout.write(json.dumps(answer(held, asked)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
