"""The tokenizer of a GGUF vocabulary, spelled as the ``tokenizers`` package has it in JSON.

Texts are taken as llama.cpp takes them, which normalizes none of byte-level BPE.
"""

from __future__ import annotations

import json
from typing import NoReturn

from meshc.frontend.checkpoints.fields import brief
from meshc.frontend.checkpoints.gguf.cuts import CUTS, Cut
from meshc.frontend.checkpoints.gguf.known_tokens import (
    CUTS_OF_MASKS,
    MASK,
    TYPE_CONTROL,
    TYPE_NORMAL,
    TYPE_UNKNOWN,
    TYPE_USER,
)
from meshc.frontend.checkpoints.gguf.vocabulary import GgufVocabulary
from meshc.support.diagnostics import fail

Json = dict[str, object]

_SPACE = "\u2581"
_BYTES: Json = {
    "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False,
}  # fmt: skip


def json_of_vocabulary(vocabulary: GgufVocabulary, label: str) -> str:
    """The JSON of the tokenizer of a GGUF file. Errors: ``tokenizer-unsupported``."""
    if vocabulary.kind == "gpt2":
        form = _byte_level(vocabulary, _cut(vocabulary.pre, label))
    else:
        form = _sentencepiece(vocabulary, label)
    return json.dumps({"version": "1.0", **form, "added_tokens": _added_tokens(vocabulary)})


def _byte_level(vocabulary: GgufVocabulary, cut: Cut) -> Json:
    steps = [*map(_isolate, cut.steps), _BYTES]
    return {
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "decoder": _BYTES,
        "model": {**_bpe(vocabulary, vocabulary.merges), "ignore_merges": cut.whole_words},
    }


def _bpe(vocabulary: GgufVocabulary, merges: object) -> Json:
    ids = {token: number for number, token in enumerate(vocabulary.tokens)}
    return {"type": "BPE", "vocab": ids, "merges": merges}


def _isolate(pattern: str) -> Json:
    return {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }


def _cut(pre: str, label: str) -> Cut:
    """How words are cut by the GGUF name ``pre``."""
    if pre in CUTS:
        return CUTS[pre]
    fail(
        "tokenizer-unsupported",
        f"'{label}' cuts words by the rule '{pre[:60]}', which meshc does not know",
        help=f"known: {', '.join(CUTS)}; or give the prompt as token ids",
    )


def _sentencepiece(vocabulary: GgufVocabulary, label: str) -> Json:
    unknown = vocabulary.unknown_id
    prefix = [{"type": "Prepend", "prepend": _SPACE}] if vocabulary.add_space_prefix else []
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}]
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    words = {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}
    decoders = [words, {"type": "ByteFallback"}, {"type": "Fuse"}]
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*prefix, spaces]},
        "decoder": {
            "type": "Sequence",
            "decoders": [*decoders, *(strip if vocabulary.add_space_prefix else [])],
        },
        "model": {
            **_bpe(vocabulary, _merges(vocabulary, label)),
            "unk_token": None if unknown is None else vocabulary.tokens[unknown],
            "fuse_unk": True,
            "byte_fallback": True,
        },
    }


def _merges(vocabulary: GgufVocabulary, label: str) -> list[tuple[str, str]]:
    """The merges by scores. Refuses what they cannot say: ordinary pieces of the same score, of
    which llama.cpp joins the first one in a text, and pieces that it joins of a character that is
    none. Errors: ``tokenizer-unsupported``."""
    found = merges_from_scores(vocabulary)
    joined, pieces = {left + right for left, right in found}, frozenset(vocabulary.tokens)
    scores: dict[float, str] = {}
    facts = zip(vocabulary.tokens, vocabulary.types, vocabulary.scores, strict=True)
    for token, kind, score in facts:
        if kind == TYPE_NORMAL and token in joined and scores.setdefault(score, token) != token:
            _unsupported(label, f"the pieces {brief(scores[score])} and {brief(token)} one score")
        ends = (token[:1], token[1:]), (token[-1:], token[:-1])
        # Texts have no spaces by then.
        if (
            len(token) > 1
            and " " not in token
            and any(one not in pieces and (len(rest) == 1 or rest in pieces) for one, rest in ends)
        ):
            _unsupported(label, f"{brief(token)} a score, and not each of its characters")
    return found


def _unsupported(label: str, what: str) -> NoReturn:
    fail(
        "tokenizer-unsupported",
        f"'{label}' gives {what}: how it cuts a text is no list of pairs in an order",
        help="give the prompt as token ids, or convert the model from its tokenizer.model",
    )


def merges_from_scores(vocabulary: GgufVocabulary) -> list[tuple[str, str]]:
    """The merges of a sentencepiece BPE vocabulary, best first.

    sentencepiece joins the neighbours whose union has the highest score, and llama.cpp those whose
    union is a token of any type. So every way to cut a piece into two pieces is a merge, ranked by
    the piece's score.
    """
    pieces = {
        token: (score, number)
        for number, (token, score) in enumerate(
            zip(vocabulary.tokens, vocabulary.scores, strict=True)
        )
    }
    ranked = []
    for piece, (score, _) in pieces.items():
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in pieces and right in pieces:
                ranked.append((-score, pieces[left][1], pieces[right][1], left, right))
    ranked.sort()
    return [(left, right) for *_, left, right in ranked]


def _added_tokens(vocabulary: GgufVocabulary) -> list[Json]:
    """Tokens that are found in the text before it is cut: control tokens and user-defined ones."""
    # The unknown token is a control token as well, where it is not an ordinary word.
    kinds = zip(vocabulary.tokens, vocabulary.types, strict=True)
    return [
        {
            "id": number,
            "content": token,
            "single_word": False,
            "lstrip": token == MASK and vocabulary.pre in CUTS_OF_MASKS,
            "rstrip": number in vocabulary.swallowing,
            "normalized": False,
            "special": kind != TYPE_USER,
        }
        for number, (token, kind) in enumerate(kinds)
        if kind in (TYPE_CONTROL, TYPE_UNKNOWN, TYPE_USER)
    ]
