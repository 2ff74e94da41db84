"""What transformers makes of each key of the files of a tokenizer: ids and texts that come of it.

Usage: python tools/oracle/tokenizer_keys.py [tests/data/tokenizer_keys.json]

Small tokenizers of the classes that language models have are written, and each key of
``tokenizer_config.json``, ``special_tokens_map.json`` and ``tokenizer.json`` takes other values in
turn. Texts are encoded and decoded; a row says which of the answers these are, of which each is
there once, or that transformers ``fails``.
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import tokenizers
import transformers

ROOT = Path(__file__).resolve().parents[2]
TEXTS = (
    "the mesh , and cores .", " a  b\n\n<s> the</s>x", "THE Café 'll n't ?", "<own>  y <pad> z",
    "x<s>y", "", "the <unk> 数 <mask>",
)  # fmt: skip
SENTENCES = (
    "the mesh compiles a model onto many cores and each core has its own memory then messages go",
    "from core to core along rows and columns of the wafer, don't they? CORES THE cafe x y z .",
)
SPECIAL = ("<unk>", "<s>", "</s>", "<pad>")


def byte_level(template: bool) -> dict[str, Any]:
    """A tokenizer of bytes, with what stands around a text if ``template``."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    letters = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=330, special_tokens=[*SPECIAL], initial_alphabet=letters, show_progress=False
    )
    made.train_from_iterator(SENTENCES * 9, trainer)
    if template:
        made.post_processor = tokenizers.processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
        )
    found: dict[str, Any] = json.loads(made.to_str())
    return found


def spaced(prefix: str) -> dict[str, Any]:
    """A tokenizer as converted ones of SentencePiece are, with ``prefix`` in front of a text."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE(byte_fallback=True, unk_token="<unk>"))
    front = [tokenizers.normalizers.Prepend(prefix)] if prefix else []
    spaces = tokenizers.normalizers.Replace(" ", "▁")
    made.normalizer = tokenizers.normalizers.Sequence([*front, spaces]) if prefix else spaces
    if not prefix:
        made.pre_tokenizer = tokenizers.pre_tokenizers.Split(" ", "merged_with_previous")
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=200,
        special_tokens=[*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256))],
        show_progress=False,
    )
    made.train_from_iterator(SENTENCES * 9, trainer)
    known = tokenizers.decoders
    back = [known.Replace("▁", " "), known.ByteFallback(), known.Fuse()]
    made.decoder = known.Sequence([*back, *([known.Strip(" ", 1, 0)] if prefix else [])])
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    found: dict[str, Any] = json.loads(made.to_str())
    return found


NAMED = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
BASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "bytes": (
        "llama", byte_level(True), {"tokenizer_class": "PreTrainedTokenizerFast", **NAMED},
    ),
    "gpt2": ("gpt2", byte_level(False), {"tokenizer_class": "GPT2Tokenizer", **NAMED}),
    "qwen2": ("qwen2", byte_level(False), {"tokenizer_class": "Qwen2Tokenizer", **NAMED}),
    "neox": ("gpt_neox", byte_level(False), {"tokenizer_class": "GPTNeoXTokenizer", **NAMED}),
    "cohere": ("cohere", byte_level(False), {"tokenizer_class": "CohereTokenizer", **NAMED}),
    "named": ("llama", byte_level(False), {"tokenizer_class": "GPT2Tokenizer", **NAMED}),
    "llama": ("llama", spaced("▁"), {"tokenizer_class": "LlamaTokenizer", **NAMED}),
    "spaced": ("mistral", spaced("▁"), {"tokenizer_class": "LlamaTokenizerFast", **NAMED}),
    "gemma": ("gemma2", spaced(""), {"tokenizer_class": "GemmaTokenizer", **NAMED}),
}  # fmt: skip


def token(text: str, **flags: bool) -> dict[str, Any]:
    """A token as ``added_tokens_decoder`` has it."""
    usual = dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized", "special"), False)
    return {"content": text, **usual, **flags}


def of_config(size: int) -> dict[str, list[Any]]:
    """Values of the keys of ``tokenizer_config.json``; the vocabulary has ``size`` tokens."""
    own = str(size)
    return {
        "add_bos_token": [True, False],
        "add_eos_token": [True, False],
        "add_prefix_space": [True, False],
        "added_tokens_decoder": [
            {own: token("<own>")},
            {own: token("<own>", special=True, lstrip=True)},
            {own: token("<own>", rstrip=True, normalized=True)},
            {own: token("the", single_word=True)},
            {"1": token("<s>", special=True, rstrip=True)},
        ],
        "additional_special_tokens": [["<own>"], ["</s>"]],
        "extra_special_tokens": [["<own>"], {"own_token": "<own>"}, {"own": "<own>"}],
        "model_specific_special_tokens": [
            {"own": "<own>"},
            {"own_token": {"__type": "AddedToken", **token("<own>", rstrip=True)}},
        ],
        "bos_token": ["</s>", "<own>", None],
        "eos_token": ["<s>", "<own>", None],
        "unk_token": ["<pad>", None],
        "pad_token": ["<pad>", "<own>"],
        "sep_token": ["<own>"],
        "cls_token": ["<own>"],
        "mask_token": ["<mask>"],
        "clean_up_tokenization_spaces": [True, False],
        "split_special_tokens": [True, False],
        "spaces_between_special_tokens": [True],
        "legacy": [True, False],
        "from_slow": [True],
        "use_default_system_prompt": [True],
        "sp_model_kwargs": [{"enable_sampling": True}],
        "errors": ["strict", "ignore"],
        "do_lower_case": [True],
        "strip_accents": [True],
        "trim_offsets": [False],
        "model_max_length": [3, 1e30],
        "padding_side": ["left"],
        "truncation_side": ["left"],
        "return_token_type_ids": [True],
        "model_input_names": [["input_ids"]],
        "add_bos": [True],
        "remove_space": [True],
        "keep_accents": [True],
        "backend": ["tokenizers"],
        "max_length": [2],
        "truncation": [True],
        "stride": [1],
        "tokenizer_class": ["PreTrainedTokenizerFast", "TokenizersBackend"],
    }


def of_map() -> dict[str, list[Any]]:
    """Values of the keys of ``special_tokens_map.json``."""
    return {
        "bos_token": ["<own>", token("<s>", rstrip=True)],
        "eos_token": ["<own>", token("</s>", lstrip=True)],
        "pad_token": ["<pad>", "<own>"],
        "unk_token": ["<pad>"],
        "additional_special_tokens": [["<own>"], ["the"]],
    }


def of_json() -> dict[str, list[Any]]:
    """Values of keys of ``tokenizer.json``."""
    own = {"content": "<own>", "id": 0, "special": True}
    flags = dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized"), False)
    split = {"type": "Split", "pattern": {"String": " "}, "behavior": "Isolated", "invert": False}
    letters = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}
    words = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    strip = {"type": "Strip", "strip_left": True, "strip_right": True}
    pads = {"direction": "Right", "pad_to_multiple_of": None, "pad_id": 3, "pad_type_id": 0}
    short = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    named = ("NFC", "NFKD", "Lowercase", "StripAccents")
    return {
        "normalizer": [
            *(None, *({"type": name} for name in named), strip),
            {"type": "Replace", "pattern": {"String": "a"}, "content": "e"},
            {"type": "Prepend", "prepend": "▁"},
        ],
        "pre_tokenizer": [
            *(None, {"type": "Whitespace"}, {"type": "Digits", "individual_digits": True}, split),
            {"type": "Punctuation", "behavior": "Isolated"},
            *({**letters, "use_regex": False}, words),
        ],
        "decoder": [
            *(None, {**letters, "use_regex": True}, {"type": "Fuse"}, words),
            {"type": "WordPiece", "prefix": "##", "cleanup": True},
        ],
        "post_processor": [None, {**letters, "use_regex": True}],
        "truncation": [short],
        "padding": [{"strategy": {"Fixed": 9}, "pad_token": "<pad>", **pads}],
        "added_tokens": [[], [own | flags], [own | flags | {"content": "mesh", "lstrip": True}]],
        "model.dropout": [1.0],
        "model.unk_token": ["<unk>", None],
        "model.fuse_unk": [True, False],
        "model.byte_fallback": [True, False],
        "model.ignore_merges": [True],
        "model.continuing_subword_prefix": [None, ""],
        "model.end_of_word_suffix": [None, "</w>"],
        "model.merges": [[]],
        "version": ["1.0"],
    }


def answer(files: dict[str, Any]) -> object:
    """Ids and texts of `TEXTS` by the tokenizer in ``files``, or ``fails``."""
    with tempfile.TemporaryDirectory() as place:
        for name, value in files.items():
            (Path(place) / name).write_text(json.dumps(value), encoding="utf-8")
        try:
            made = transformers.AutoTokenizer.from_pretrained(place)
            found = [made.encode(text) for text in TEXTS]
            return [[ids, made.decode(ids, skip_special_tokens=True)] for ids in found]
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            return "fails"


def changed(files: dict[str, Any], name: str, key: str, value: object) -> dict[str, Any]:
    """``files`` with another value of the ``key`` of one of them, ``model.`` being inside that."""
    outer, _, inner = key.partition(".")
    given = files.get(name, {})
    return {**files, name: {**given, outer: {**given[outer], inner: value} if inner else value}}


def record(kind: str, made: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """The answers to each key and value of a base."""
    size = 1 + max(made["model"]["vocab"].values())
    files = {
        "config.json": {"model_type": kind, "vocab_size": size},
        "tokenizer.json": made,
        "tokenizer_config.json": config,
    }
    base, found = answer(files), []
    tables = (
        ("tokenizer_config.json", of_config(size)),
        ("special_tokens_map.json", of_map()),
        ("tokenizer.json", of_json()),
    )
    for name, table in tables:
        for key, values in table.items():
            for value in values:
                found.append([name, key, value, answer(changed(files, name, key, value))])
    several = [base]
    for row in found:
        if row[3] not in several:
            several.append(row[3])
        row[3] = several.index(row[3])
    return {"files": files, "answers": several, "rows": found}


def main(arguments: list[str]) -> None:
    """Write the record to the file in ``arguments``, or where the tests read it."""
    warnings.simplefilter("ignore")
    transformers.utils.logging.set_verbosity_error()
    file = Path(arguments[0] if arguments else ROOT / "tests" / "data" / "tokenizer_keys.json")
    found = {}
    for name, base in BASES.items():
        found[name] = record(*base)
        print(name, len(found[name]["rows"]), len(found[name]["answers"]), flush=True)
    parts = [f"{json.dumps(name)}: {json.dumps(one)}" for name, one in found.items()]
    whole = f'{{"texts": {json.dumps(TEXTS)},\n"bases": {{\n' + ",\n".join(parts) + "\n}}\n"
    file.write_text(whole, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
