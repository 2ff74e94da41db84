"""Drawn vocabularies of GGUF files: ids are those of llama.cpp's own library, or the vocabulary is
refused."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from model_files import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER,
    bpe_pairs,
    gguf_bytes,
    gguf_pairs,
    model_config,
)

pytest.importorskip("tokenizers")
pytest.importorskip(
    "llama_cpp", reason="llama.cpp's library is not there: pip install llama-cpp-python"
)

import llama_cpp_library as library

from meshc.frontend.checkpoints import load_tokenizer
from meshc.frontend.checkpoints.gguf.cuts import CUTS
from meshc.support.diagnostics import MeshcError

pytestmark = [pytest.mark.models, pytest.mark.slow]

RECORD: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "data" / "gguf_cuts.json").read_text(encoding="utf-8")
)
MERGES = [tuple(line.split(" ")) for line in RECORD["merges"]]
TEXTS = (
    "the mesh , and cores .", " a  b\n\n<s> the</s>x", "", "<|x|> a<|x|>b  <mask>", "  they lead  ",
    "don't they'RE é🙂 数 <0x41>", "▁the ▁ a", "<|end|>  a <|end|>\n b", "<own> the<own> mesh 12",
)  # fmt: skip
WORDS = "the mesh and cores they don't lead trail a b x y".split()  # noqa: SIM905
FURTHER = ("<|x|>", "<own>", "<mask>", "<|end|>", "mesh", "themesh")

Pairs = list[tuple[str, str, Any]]


def of_pairs(chance: random.Random, facts: dict[str, Any]) -> Pairs:
    """A vocabulary of bytes, cut by a rule that is drawn."""
    further = [("<s>", CONTROL), ("</s>", CONTROL)]
    further += [(text, chance.choice((CONTROL, USER, UNUSED))) for text in sample(chance)]
    return bpe_pairs(MERGES, chance.choice([*CUTS, "jina-v2-de"]), further, **facts)


def of_scores(chance: random.Random, facts: dict[str, Any]) -> Pairs:
    """A vocabulary of pieces with scores, some of types that are seldom pieces of words."""
    rows = [("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL)]
    rows += [(f"<0x{byte:02X}>", BYTE) for byte in range(256)]
    parts = {f"▁{w}"[i:j] for w in WORDS for i in range(len(w)) for j in range(i + 1, len(w) + 2)}
    parts |= {*"".join(WORDS)}
    kept = [part for part in sorted(parts) if len(part) == 1 or chance.random() < 0.6]
    kinds = (NORMAL,) * 20 + (UNUSED,)
    rows += [(part, chance.choice(kinds)) for part in kept if part not in FURTHER]
    rows += [(text, chance.choice((CONTROL, USER, NORMAL))) for text in sample(chance)]
    facts = {
        "model": ("str", "llama"),
        "tokens": ("[str]", [text for text, _ in rows]),
        "token_type": ("[i32]", [kind for _, kind in rows]),
        "scores": ("[f32]", [-chance.random() * 20 for _ in rows]),
        **facts,
    }
    return [(f"tokenizer.ggml.{key}", *value) for key, value in facts.items()]


def sample(chance: random.Random) -> list[str]:
    return chance.sample(FURTHER, chance.randrange(5))


def test_ids_of_drawn_vocabularies_are_those_of_llama_cpp(tmp_path: Path) -> None:
    seen: Counter[str] = Counter()
    for seed in range(300):
        chance = random.Random(seed)
        facts = {f"{key}_token_id": ("u32", chance.randrange(1, 3)) for key in ("bos", "eos")}
        for flag in ("add_bos_token", "add_space_prefix", "remove_extra_whitespaces"):
            if chance.random() < 0.4:
                facts[flag] = ("bool", chance.random() < 0.5)
        vocabulary = chance.choice((of_pairs, of_scores))(chance, facts)
        (tokens,) = (value for key, _, value in vocabulary if key.endswith(".tokens"))
        config = model_config(vocab=len(tokens))
        named = [("general.name", "str", chance.choice(("x", "x", "Phi-3")))]
        file = tmp_path / "m.gguf"
        pairs = [pair for pair in gguf_pairs(config) if pair[0] != "general.name"]
        file.write_bytes(gguf_bytes([*pairs, *named, *vocabulary]))
        try:
            tokenizer = load_tokenizer(file, config)
        except MeshcError as refusal:
            seen[refusal.diagnostics[0].code] += 1
            continue
        theirs = library.tokenised(file, TEXTS)
        if theirs is None:
            seen["theirs"] += 1
            continue
        for text, wanted in zip(TEXTS, theirs, strict=True):
            found = tokenizer.encode(text)
            assert [tokens[n] for n in found] == [tokens[n] for n in wanted], (seed, text)
            assert found == wanted
        seen["equal"] += 1
    assert seen["equal"] >= 200, seen
