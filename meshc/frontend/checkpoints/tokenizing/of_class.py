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

from meshc.frontend.checkpoints.json_text import read_json_object
from meshc.frontend.checkpoints.tokenizing.of_files import QWEN_2
from meshc.frontend.checkpoints.tokenizing.of_files import USUAL as OF_FILES
from meshc.frontend.checkpoints.tokenizing.of_sentencepiece import GEMMA_STEPS, spaced
from meshc.frontend.checkpoints.tokenizing.of_sentencepiece import USUAL as OF_MODELS
from meshc.support.diagnostics import fail

_LIMIT_BYTES = 64 << 20
_CLASSES = {
    "llama": "LlamaTokenizer",
    "gpt2": "GPT2Tokenizer",
    **dict.fromkeys(("gpt_neox", "olmo"), "GPTNeoXTokenizer"),
    **dict.fromkeys(("qwen2", "qwen2_moe", "qwen3", "qwen3_moe"), "Qwen2Tokenizer"),
    **dict.fromkeys(("gemma", "gemma2", "gemma3", "gemma3_text"), "GemmaTokenizer"),
}
_FLAGS = ("lstrip", "rstrip", "single_word", "normalized")
USUAL: Mapping[str, Mapping[str, str]] = {**OF_FILES, **OF_MODELS}
"""Special tokens that classes have where files name none."""
_OPTIONS = (
    *("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk"),
    *("byte_fallback", "ignore_merges"),
)


def as_its_class(text: str, file: Path, config: Mapping[str, object]) -> str | None:
    """The JSON ``text`` of the ``tokenizer.json`` ``file`` with the steps of its class; None where
    the file counts as it is. Errors: ``json-invalid``, ``checkpoint-unreadable``."""
    named, model = config.get("tokenizer_class"), file.with_name("config.json")
    known = parsed(text)
    if not isinstance(named, str) or not model.is_file() or known is None:
        return None
    kind = read_json_object(model, _LIMIT_BYTES, "model config").value.get("model_type")
    name = _CLASSES.get(kind, "") if isinstance(kind, str) else ""
    given, steps = known.get("model"), {k: v for k, v in known.items() if k != "model"}
    if named.removesuffix("Fast") != name or not isinstance(given, dict):
        return None
    if given.get("type") != "BPE" or (
        name == "LlamaTokenizer" and '"ByteLevel"' in json.dumps(steps)
    ):
        return None
    _check_flags(name, file, config)
    options: dict[str, object] = dict.fromkeys(_OPTIONS[:4])
    options |= dict.fromkeys(_OPTIONS[4:6], name in ("LlamaTokenizer", "GemmaTokenizer"))
    if name == "GemmaTokenizer":
        options["unk_token"] = _unknown(config)
    own = {**known, **_steps(name, config), "model": {**given, **options, "ignore_merges": False}}
    return json.dumps({**own, "added_tokens": []} if "added_tokens_decoder" in config else own)


def _steps(name: str, config: Mapping[str, object]) -> Mapping[str, object]:
    """How the class cuts a text, and puts it together again."""
    prefix = config.get("add_prefix_space")
    if name == "GemmaTokenizer" or (name == "LlamaTokenizer" and prefix is False):
        plain = {"pre_tokenizer": None} if name == "LlamaTokenizer" else {}
        return {**GEMMA_STEPS, **plain}
    if name == "LlamaTokenizer":
        return spaced(bool(config.get("legacy", False)))
    letters = {
        "type": "ByteLevel", "add_prefix_space": prefix is True, "trim_offsets": True,
        "use_regex": name != "Qwen2Tokenizer",
    }  # fmt: skip
    words = {
        "type": "Split", "pattern": {"Regex": QWEN_2}, "behavior": "Isolated", "invert": False,
    }  # fmt: skip
    cut = {"type": "Sequence", "pretokenizers": [words, letters]}
    return {
        "normalizer": None if name == "GPT2Tokenizer" else {"type": "NFC"},
        "pre_tokenizer": cut if name == "Qwen2Tokenizer" else letters,
        "decoder": {**letters, "add_prefix_space": True, "use_regex": True},
    }


def _check_flags(name: str, file: Path, config: Mapping[str, object]) -> None:
    """Refuse flags of special tokens that ``Qwen2Tokenizer`` gives flags of its own. Errors:
    ``tokenizer-unsupported``."""
    declared = config.get("added_tokens_decoder")
    if name != "Qwen2Tokenizer" or not isinstance(declared, dict):
        return
    named = [config.get(f"{key}_token") for key in ("bos", "eos", "unk", "pad")]
    for token in declared.values():
        flags = token if isinstance(token, dict) else {}
        if flags.get("content") in named and any(flags.get(key) for key in _FLAGS):
            fail(
                "tokenizer-unsupported",
                f"the files of '{file}' give a special token flags that its class passes over",
                help=f"leave {', '.join(_FLAGS)} of named tokens false",
            )


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
