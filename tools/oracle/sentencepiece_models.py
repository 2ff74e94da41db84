"""What transformers makes of models of SentencePiece that have no ``tokenizer.json``.

Usage: python tools/oracle/sentencepiece_models.py [tests/data/sentencepiece_models.json]

Small models are trained on a few sentences, and texts are encoded by the tokenizer that
transformers takes for them, and by SentencePiece itself where a text has no control tokens.
"""

from __future__ import annotations

import base64
import io
import json
import sys
import tempfile
from pathlib import Path
from random import Random
from typing import Any

import sentencepiece
import transformers

ROOT = Path(__file__).resolve().parents[2]
SENTENCES = """
the mesh compiles a model onto many cores and each core has its own small memory then messages go
from core to core along rows and columns of the wafer über Straße naïve 数学 привет мир don't can't
12 345 6.78 [x, y] {z} a_b == != <tag> tab end.
"""
TEXTS = (
    "", " ", "  ", "The mesh", " the mesh", "the  mesh\n\nand cores", "\tone\ttwo", "über Straße",
    "数学 is привет", "emoji 🎉 and \u0000 nul", "don't can't won't", "12345.678", "a <s> b </s> c",
    "<s>", "</s>the", "the <pad>mesh", "▁the ▁ mesh", " <s> the", "<unk>", "<0x41>", "<own>",
    "x<own> y",
    "trailing   ", "\n", "e\u0301te\u0301 été", "ﬁ ligature ½", "a\u00a0b\u2003c",
)  # fmt: skip
LLAMA = {"unk_piece": "<unk>", "bos_piece": "<s>", "eos_piece": "</s>", "pad_id": -1}
GEMMA = {
    "pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3, "pad_piece": "<pad>", "eos_piece": "<eos>",
    "bos_piece": "<bos>", "unk_piece": "<unk>", "add_dummy_prefix": False,
    "user_defined_symbols": ["<mask>", "\n", "\n\n", "▁▁"],
}  # fmt: skip
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "llama": (LLAMA, {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True}, "llama"),
    "llama, legacy": (
        LLAMA, {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "legacy": True},
        "llama",
    ),
    "mistral, legacy": (
        {**LLAMA, "control_symbols": ["<pad>"]},
        {
            "tokenizer_class": "LlamaTokenizerFast", "legacy": True, "bos_token": "<s>",
            "add_bos_token": True,
        },
        "mistral",
    ),
    "end": (
        {**LLAMA, "user_defined_symbols": ["<own>"]},
        {"tokenizer_class": "LlamaTokenizer", "add_bos_token": False, "add_eos_token": True},
        "llama",
    ),
    "declared": (
        LLAMA,
        {
            "tokenizer_class": "LlamaTokenizer",
            "added_tokens_decoder": {
                "0": {"content": "<unk>", "special": True, "normalized": False},
                "1": {"content": "<s>", "special": True, "normalized": False},
                "2": {"content": "</s>", "special": True, "normalized": False},
                "396": {"content": "<own>", "special": False, "normalized": False, "lstrip": True},
            },
            "add_bos_token": True,
        },
        "llama",
    ),
    "mixtral": (
        {**LLAMA, "user_defined_symbols": ["<own>", "me", "<own>x"]},
        {"tokenizer_class": "LlamaTokenizer", "legacy": False, "add_bos_token": True},
        "mixtral",
    ),
    "internlm2": (
        {**LLAMA, "user_defined_symbols": ["[UNUSED]"]},
        {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "add_eos_token": False},
        "internlm2",
    ),
    "phi3": (
        LLAMA,
        {
            "tokenizer_class": "LlamaTokenizer",
            "legacy": False,
            "add_bos_token": False,
            "added_tokens_decoder": {
                "0": {"content": "<unk>", "special": True, "normalized": False},
                "1": {"content": "<s>", "special": True, "normalized": False},
                "2": {"content": "</s>", "special": False, "normalized": False, "rstrip": True},
                "396": {"content": "<own>", "special": True, "normalized": False, "rstrip": True},
            },
        },
        "phi3",
    ),
    "gemma": (GEMMA, {"tokenizer_class": "GemmaTokenizer", "add_bos_token": True}, "gemma2"),
    "gemma, its tokens": (
        GEMMA,
        {
            "tokenizer_class": "GemmaTokenizerFast", "add_bos_token": True, "unk_token": "<unk>",
            "bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>",
        },
        "gemma3_text",
    ),
}  # fmt: skip


def trained(settings: dict[str, Any]) -> bytes:
    """A model of byte pair encoding, as language models have them."""
    dice, out, words = Random(7), io.BytesIO(), SENTENCES.split()
    lines = [" ".join(dice.choices(words, k=dice.randint(3, 12))) for _ in range(300)]
    usual = {"add_dummy_prefix": True, "vocab_size": 396} | settings
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=out,
        model_type="bpe",
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        num_threads=1,
        minloglevel=2,
        **usual,
    )
    return out.getvalue()


def record(settings: dict[str, Any], config: dict[str, Any], kind: str) -> dict[str, Any]:
    """A model, the files beside it, and the ids and texts of `TEXTS`."""
    model = trained(settings)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "tokenizer.model").write_bytes(model)
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        (folder / "config.json").write_text(json.dumps({"model_type": kind}))
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    own = sentencepiece.SentencePieceProcessor(model_proto=model)
    found = []
    for text in TEXTS:
        ids = tokenizer.encode(text)
        back = tokenizer.decode(ids, skip_special_tokens=True)
        found.append({"text": text, "ids": ids, "decoded": back, "plain": own.encode(text)})
    return {
        "model": base64.b64encode(model).decode(),
        "tokenizer_config": config,
        "model_type": kind,
        "texts": found,
    }


def main(arguments: list[str]) -> None:
    """Write the record to the file in ``arguments``, or where the tests read it."""
    place = ROOT / "tests" / "data" / "sentencepiece_models.json"
    file = Path(arguments[0]) if arguments else place
    found = {name: record(*case) for name, case in CASES.items()}
    file.write_text(json.dumps(found, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
