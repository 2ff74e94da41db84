"""A ``tokenizer.json`` as transformers takes it where the class of its tokenizer has own steps.

Such a class takes the vocabulary, the merges and what stands around a text from the file, and cuts
texts by what its code and the ``tokenizer_config.json`` say. Source: the classes named here and
``AutoTokenizer``, which chooses them by the type of the model, of Hugging Face transformers
(release 5.24).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from meshc.frontend.checkpoints.fields import brief
from meshc.frontend.checkpoints.json_text import read_json_object
from meshc.frontend.checkpoints.tokenizing.declared_tokens import SPECIAL, DeclaredTokens, Facts
from meshc.frontend.checkpoints.tokenizing.of_files import QWEN_2
from meshc.frontend.checkpoints.tokenizing.of_files import USUAL as OF_FILES
from meshc.frontend.checkpoints.tokenizing.of_sentencepiece import GEMMA_STEPS, spaced
from meshc.frontend.checkpoints.tokenizing.of_sentencepiece import USUAL as OF_MODELS
from meshc.support.declared_values import toml_of
from meshc.support.diagnostics import fail

_LIMIT_BYTES = 64 << 20
_CLASS = "tokenizer_class"
_COHERE, _GEMMA, _GPT2, _LLAMA, _NEOX, _QWEN2 = (
    f"{name}Tokenizer" for name in ("Cohere", "Gemma", "GPT2", "Llama", "GPTNeoX", "Qwen2")
)
_DATA = toml_of("meshc.frontend.checkpoints.tokenizing", "classes.toml")
_CLASSES: Mapping[str, str] = {kind: name for name, kinds in _DATA["of"].items() for kind in kinds}
"""The class of the tokenizer of each type of model that has one with code of its own."""
_READ = (_COHERE, _GEMMA, _GPT2, _LLAMA, _NEOX, _QWEN2)
_END = "<|endoftext|>"
USUAL: Mapping[str, Mapping[str, str]] = {
    **OF_FILES,
    **OF_MODELS,
    _NEOX: {
        "unk_token": _END, "bos_token": _END, "eos_token": _END, "pad_token": "<|padding|>",
    },
    _COHERE: {
        "unk_token": "<UNK>", "bos_token": "<BOS_TOKEN>", "eos_token": "<|END_OF_TURN_TOKEN|>",
        "pad_token": "<PAD>", "cls_token": "<CLS>", "sep_token": "<SEP>",
        "mask_token": "<MASK_TOKEN>",
    },
}  # fmt: skip
"""Special tokens that classes have where files name none."""
_OPTIONS = (
    *("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk"),
    *("byte_fallback", "ignore_merges"),
)


def class_of_json(text: str, file: Path, config: Mapping[str, object]) -> str | None:
    """The class that transformers takes for the ``tokenizer.json`` ``file`` of this ``text`` and
    that has steps of its own; None where the file counts as it is. Errors:
    ``tokenizer-unsupported``, ``json-invalid``, ``checkpoint-unreadable``."""
    model = file.with_name("config.json")
    keys: Mapping[str, object] = {}
    if model.is_file():
        keys = read_json_object(model, _LIMIT_BYTES, "model config").value
    given, kind = config.get(_CLASS) or keys.get(_CLASS), keys.get("model_type")
    registered = _CLASSES.get(kind) if isinstance(kind, str) else None
    named = given.removesuffix("Fast") if isinstance(given, str) else ""
    if not named or kind in _DATA["named_wrongly"]:
        return registered
    if kind in _DATA["as_it_is"] or (named == _LLAMA and '"ByteLevel"' in text):
        return None
    if named in _DATA["others"]:
        fail(
            "tokenizer-unsupported",
            f"the tokenizer of '{file}' is of the class {brief(given)}, which cuts texts by code "
            f"of its own ({', '.join(_READ)} are read)",
            help="name the class PreTrainedTokenizerFast where the file alone is to count, or give "
            "the prompt as token ids",
        )
    return named if named in _READ else None


def as_its_class(text: str, file: Path, name: str, config: Mapping[str, object]) -> str:
    """The JSON ``text`` of the ``tokenizer.json`` ``file`` with the steps of the class ``name``.
    Errors: ``tokenizer-unsupported``."""
    known = parsed(text)
    if known is None:
        return text
    given = known.get("model")
    if not isinstance(given, dict) or given.get("type", "BPE") != "BPE":
        fail(
            "tokenizer-unsupported",
            f"the tokenizer of '{file}' is of the class {name}, and has no byte pair encoding",
            help="name the class PreTrainedTokenizerFast where the file alone is to count, or give "
            "the prompt as token ids",
        )
    options: dict[str, object] = dict.fromkeys(_OPTIONS[:4])
    options |= dict.fromkeys(_OPTIONS[4:6], name in (_LLAMA, _GEMMA))
    if name == _GEMMA:
        options["unk_token"] = _unknown(config)
    if name == _NEOX:
        known["post_processor"] = None
    own = {**known, **_steps(name, config), "model": {**given, **options, "ignore_merges": False}}
    return json.dumps({**own, "added_tokens": []} if "added_tokens_decoder" in config else own)


def _steps(name: str, config: Mapping[str, object]) -> Mapping[str, object]:
    """How the class cuts a text, and puts it together again."""
    prefix = config.get("add_prefix_space")
    if name == _GEMMA or (name == _LLAMA and prefix is False):
        plain = {"pre_tokenizer": None} if name == _LLAMA else {}
        return {**GEMMA_STEPS, **plain}
    if name == _LLAMA:
        return spaced(bool(config.get("legacy", False)))
    letters = {
        "type": "ByteLevel", "add_prefix_space": prefix is True, "trim_offsets": True,
        "use_regex": name != _QWEN2,
    }  # fmt: skip
    words = {
        "type": "Split", "pattern": {"Regex": QWEN_2}, "behavior": "Isolated", "invert": False,
    }  # fmt: skip
    first = {_QWEN2: words, _COHERE: {"type": "Digits", "individual_digits": True}}.get(name)
    return {
        "normalizer": None if name == _GPT2 else {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [first, letters]}
        if first
        else letters,
        "decoder": {**letters, "add_prefix_space": True, "use_regex": True},
    }


def tokens_of_class(
    name: str, config: Mapping[str, object], found: DeclaredTokens
) -> tuple[dict[str, Facts], list[Facts]]:
    """Special tokens by their names, with those that the class ``name`` has where files name none,
    and tokens that it gives flags of its own behind all others."""
    absent = {key: text for key, text in USUAL[name].items() if key not in config}
    usual: dict[str, Facts] = {key: {"content": t, "special": True} for key, t in absent.items()}
    named = {**usual, **found.named}
    named = {key: named[key] for key in (*SPECIAL, *named) if key in named}
    if name == _QWEN2:
        contents = [facts["content"] for facts in (*named.values(), *found.further)]
        return named, [{"content": content, "special": True} for content in contents]
    own = found.further if name == _COHERE else ()
    return named, [{**facts, "special": True} for facts in own]


def _unknown(config: Mapping[str, object]) -> str:
    """The text of the unknown token."""
    given = config.get("unk_token", "<unk>")
    found = given.get("content") if isinstance(given, dict) else given
    return found if isinstance(found, str) else "<unk>"


def parsed(text: str) -> dict[str, object] | None:
    """The object in the JSON ``text``; None where there is none, as a tokenizer will say."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
