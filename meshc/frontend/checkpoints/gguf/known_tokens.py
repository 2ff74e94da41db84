"""What llama.cpp knows of a vocabulary's tokens by their texts, beyond what GGUF files say: which
ones end an answer, which ones are control tokens whatever their type, and behind which white space
is swallowed.

Source: ``llama_vocab::impl::load`` in llama.cpp's ``llama-vocab.cpp`` (2026).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

TYPE_NORMAL, TYPE_UNKNOWN, TYPE_CONTROL, TYPE_USER, TYPE_UNUSED, TYPE_BYTE = range(1, 7)

PREFIX = "tokenizer.ggml."
_USUAL = {"llama": {"bos": 1, "eos": 2}, "gpt2": {"eos": 11}}
"""Tokens that a file of this kind means where it names none, as llama.cpp has it (those of Falcon
for all vocabularies of pairs)."""
_ENDING_KEYS = ("eos", "eot", "eom")
_ENDING = (
    *("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|calls|>"),
    *("<|flush|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<end_of_utterance>"),
    *("<｜end▁of▁sentence｜>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<eos>", "</s>", "[e~["),
    *("<turn|>", "<|tool_response>"),
)
# Tokens between pieces of code, which a model that fills in a middle writes behind it.
_ENDING_CODE = {
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}
_CODE = {
    "fim_pre": (
        *("<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>"),
        *("<|code_prefix|>", "<|prefix|>"),
    ),
    "fim_suf": (
        *("<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>"),
        *("<|code_suffix|>", "<|suffix|>"),
    ),
    "fim_mid": (
        *("<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>"),
        *("<|code_middle|>", "<|middle|>"),
    ),
    **_ENDING_CODE,
}
_SHOWN = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")
# A text that ends nothing in vocabularies where all of the others do.
_NOT_BESIDE = (
    ("<|end|>", ("<|return|>", "<|call|>"), TYPE_USER),
    ("<|end|>", ("<|return|>", "<|calls|>"), TYPE_USER),
    ("<|end|>", ("<|flush|>", "<|call|>"), TYPE_USER),
    ("<|end|>", ("<|flush|>", "<|calls|>"), TYPE_USER),
    ("</s>", ("<|tool_response>",), TYPE_NORMAL),
)
_SWALLOWING_MODELS = ("phi-3", "phi3")
MASK, CUTS_OF_MASKS = "<mask>", ("jina-v2-de", "jina-v2-es")
"""A token in front of which white space is swallowed, in vocabularies with these cuts, and none
behind others."""
_NOT_SWALLOWING = ("<unk>", "<s>", "<|endoftext|>")


@dataclass(frozen=True)
class KnownTokens:
    """``types`` of all tokens, the ids in ``ends``, which end an answer, and those in
    ``swallowing``, behind which white space is no part of a text."""

    types: tuple[int, ...]
    ends: tuple[int, ...]
    swallowing: frozenset[int]


def known_tokens(
    metadata: Mapping[str, object], tokens: Sequence[str], types: Sequence[int]
) -> KnownTokens:
    """What is known of ``tokens`` of these ``types`` in a file of this ``metadata``."""
    ids = {token: number for number, token in enumerate(tokens)}
    found = list(types)
    ends = {ids[text] for text in _ENDING if text in ids}
    control = set(ends)
    for name, texts in _CODE.items():
        given = token_id(metadata, name)
        numbers = [ids[text] for text in texts if text in ids][:1] if given is None else []
        control.update(numbers)
        if name in _ENDING_CODE:
            ends.update(numbers if given is None else [given])
    for number in control:
        found[number] = TYPE_CONTROL
    for text in _SHOWN:
        if text in ids:
            found[ids[text]] = TYPE_USER
    named = (token_id(metadata, name) for name in _ENDING_KEYS)
    ends.update(number for number in named if number is not None)
    for text, others, kind in _NOT_BESIDE:
        if {ids.get(one, -1) for one in (text, *others)} <= ends:
            ends.remove(ids[text])
            found[ids[text]] = kind
    within = sorted(number for number in ends if number < len(tokens))
    return KnownTokens(tuple(found), tuple(within), _swallowing(metadata, tokens, found))


def token_id(metadata: Mapping[str, object], name: str) -> int | None:
    """The id of the token ``name``, such as eos: that of the file, or what files of its kind of
    vocabulary mean; None where there is none, or no id."""
    given = metadata.get(f"{PREFIX}{name}_token_id")
    if given is None:
        return _USUAL.get(str(metadata.get(f"{PREFIX}model")), {}).get(name)
    return given if isinstance(given, int) and not isinstance(given, bool) else None


def _swallowing(
    metadata: Mapping[str, object], tokens: Sequence[str], types: Sequence[int]
) -> frozenset[int]:
    name = str(metadata.get("general.name", "")).lower()
    of_masks = metadata.get(f"{PREFIX}pre") in CUTS_OF_MASKS
    if of_masks or not any(model in name for model in _SWALLOWING_MODELS):
        return frozenset()
    return frozenset(
        number
        for number, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind in (TYPE_UNKNOWN, TYPE_CONTROL, TYPE_USER) and token not in _NOT_SWALLOWING
    )
