"""Tokenizers of the ``tokenizers`` package, from its JSON or from a GGUF vocabulary.

The only user of that package. The pre-tokenizers are the published ones of each model family:
Hugging Face's ``tokenizer.json`` files, and llama.cpp's table of regular expressions for the
GGUF name ``default``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from meshc.frontend.checkpoints.extras import fail_missing_extra
from meshc.frontend.checkpoints.gguf.vocabulary import (
    TYPE_CONTROL,
    TYPE_NORMAL,
    TYPE_UNKNOWN,
    TYPE_USER,
    GgufVocabulary,
)
from meshc.support.diagnostics import MeshcError, fail

try:
    import tokenizers
    from tokenizers import decoders, models, normalizers, pre_tokenizers

    _INSTALLED = True
except ImportError:
    _INSTALLED = False

_SPACE = "\u2581"
_WORDS_AND_NUMBERS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Names of vocabularies that are cut by the rule of another one, but are looked up as BPE says.
_CUT_AS = {"olmo": "gpt-2", "refact": "smollm", "starcoder": "smollm", "dbrx": "llama-bpe"}
_DEFAULT_STEPS = (
    r"[\p{P}\$\+<=>\^~\|]+",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
    r"\p{N}+",
    r"[0-9][0-9][0-9]",
)


def engine_from_json(text: str, label: str) -> Any:
    """The tokenizer that ``tokenizer.json`` describes. Errors: ``tokenizer-invalid``."""
    _require(label)
    engine = _guarded(partial(tokenizers.Tokenizer.from_str, text), label)
    engine.no_truncation()
    engine.no_padding()
    return engine


def engine_from_vocabulary(vocabulary: GgufVocabulary, label: str) -> Any:
    """The tokenizer of a GGUF file. Errors: ``tokenizer-invalid``, ``tokenizer-unsupported``."""
    _require(label)
    if vocabulary.kind == "gpt2":
        splitters = _splitters(vocabulary.pre, label)
        engine = _guarded(partial(_byte_level, vocabulary, splitters), label)
    else:
        engine = _guarded(partial(_sentencepiece, vocabulary), label)
    _add_tokens(engine, vocabulary)
    return engine


def _require(label: str) -> None:
    if not _INSTALLED:
        fail_missing_extra("tokenizers", f"tokenizing with '{label}'")


def _guarded(build: Callable[[], Any], label: str) -> Any:
    """What ``build`` makes; whatever the library raises becomes a diagnostic.

    A panic of its Rust code arrives as a BaseException.
    """
    try:
        return build()
    except (KeyboardInterrupt, SystemExit, MemoryError, MeshcError):
        raise
    except BaseException as error:
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        fail(
            "tokenizer-invalid",
            f"the tokenizer in '{label}' is not valid: {reason}",
            help="get the file again",
        )


def _byte_level(vocabulary: GgufVocabulary, splitters: list[Any]) -> Any:
    ids = {token: number for number, token in enumerate(vocabulary.tokens)}
    # Llama 3: a word that is a token stays whole, whatever the merges say.
    whole_words = vocabulary.pre == "llama-bpe"
    engine = tokenizers.Tokenizer(
        models.BPE(vocab=ids, merges=list(vocabulary.merges), ignore_merges=whole_words)
    )
    if vocabulary.pre == "qwen2":
        engine.normalizer = normalizers.NFC()
    engine.pre_tokenizer = pre_tokenizers.Sequence(splitters)
    engine.decoder = decoders.ByteLevel()
    return engine


def _splitters(pre: str, label: str) -> list[Any]:
    """The steps that cut a text into words, by the GGUF name ``pre``."""
    byte_level = partial(pre_tokenizers.ByteLevel, add_prefix_space=False)
    pre = _CUT_AS.get(pre, pre)
    if pre == "gpt-2":
        return [byte_level(use_regex=True)]
    if pre == "smollm":
        return [pre_tokenizers.Digits(individual_digits=True), byte_level(use_regex=True)]
    if pre in ("llama-bpe", "qwen2"):
        digits = "{1,3}" if pre == "llama-bpe" else ""
        return [_isolate(_WORDS_AND_NUMBERS % digits), byte_level(use_regex=False)]
    if pre == "default":
        return [*map(_isolate, _DEFAULT_STEPS), byte_level(use_regex=False)]
    _unsupported_pre(pre, label)


def _isolate(pattern: str) -> Any:
    return pre_tokenizers.Split(tokenizers.Regex(pattern), behavior="isolated")


def _unsupported_pre(pre: str, label: str) -> NoReturn:
    fail(
        "tokenizer-unsupported",
        f"'{label}' cuts words by the rule '{pre[:60]}', which meshc does not know",
        help=f"known: gpt-2, smollm, llama-bpe, qwen2, default, {', '.join(_CUT_AS)}; or give the "
        "prompt as token ids",
    )


def _sentencepiece(vocabulary: GgufVocabulary) -> Any:
    ids = {token: number for number, token in enumerate(vocabulary.tokens)}
    unknown = vocabulary.unknown_id
    engine = tokenizers.Tokenizer(
        models.BPE(
            vocab=ids,
            merges=merges_from_scores(vocabulary),
            unk_token=None if unknown is None else vocabulary.tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefix = [normalizers.Prepend(_SPACE)] if vocabulary.add_space_prefix else []
    engine.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", _SPACE)])
    strip = [decoders.Strip(content=" ", left=1)] if vocabulary.add_space_prefix else []
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    engine.decoder = decoders.Sequence([*steps, *strip])
    return engine


def merges_from_scores(vocabulary: GgufVocabulary) -> list[tuple[str, str]]:
    """The merges of a sentencepiece BPE vocabulary, best first.

    sentencepiece joins the neighbours whose union has the highest score. So every way to cut a
    piece into two pieces is a merge, ranked by the piece's score.
    """
    pieces = {
        token: (score, number)
        for number, (token, kind, score) in enumerate(
            zip(vocabulary.tokens, vocabulary.types, vocabulary.scores, strict=True)
        )
        if kind == TYPE_NORMAL
    }
    ranked = []
    for piece, (score, _) in pieces.items():
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in pieces and right in pieces:
                ranked.append((-score, pieces[left][1], pieces[right][1], left, right))
    ranked.sort()
    return [(left, right) for *_, left, right in ranked]


def _add_tokens(engine: Any, vocabulary: GgufVocabulary) -> None:
    """Tokens that are found in the text before it is cut: control tokens and user-defined ones."""
    # The unknown token is a control token as well, where it is not an ordinary word.
    control = vocabulary.of_type(TYPE_CONTROL, TYPE_UNKNOWN)
    added = partial(tokenizers.AddedToken, normalized=False)
    engine.add_special_tokens([added(token, special=True) for token in control])
    engine.add_tokens([added(token, special=False) for token in vocabulary.of_type(TYPE_USER)])
