"""How vocabularies of GGUF files cut texts, by every name that is known: ids that llama.cpp (of
node-llama-cpp, 2026) gives for one vocabulary under that name, whose tokens cross all cuts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from model_files import CONTROL, bpe_pairs, diagnosed, gguf_bytes, gguf_pairs, model_config
from reduced import only

pytest.importorskip("tokenizers")

from meshc.frontend.checkpoints import load_tokenizer
from meshc.frontend.checkpoints.gguf.cuts import CUTS
from meshc.frontend.checkpoints.tokenizer import Tokenizer

FILE = Path(__file__).parents[2] / "data" / "gguf_cuts.json"
RECORD: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
MERGES = [tuple(line.split(" ")) for line in RECORD["merges"]]
OF_EACH_CUT = {number: name for name, number in RECORD["names"].items()}


def opened(folder: Path, name: str) -> Tokenizer:
    config = model_config(vocab=256 + len(MERGES) + 2)
    own = [("<s>", CONTROL), ("</s>", CONTROL)]
    pairs = bpe_pairs(MERGES, name, own, bos_token_id=("u32", config.vocab - 2))
    file = folder / "x.gguf"
    file.write_bytes(gguf_bytes([*gguf_pairs(config), *pairs]))
    return load_tokenizer(file, config)


def test_every_name_is_recorded() -> None:
    assert RECORD["names"].keys() == CUTS.keys() and len(CUTS) >= 60
    assert len(RECORD["ids"]) >= 15
    assert all(len(ids) == len(RECORD["texts"]) == 40 for ids in RECORD["ids"])


@pytest.mark.parametrize("name", only(sorted(CUTS), *sorted(OF_EACH_CUT.values())))
def test_ids_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    tokenizer = opened(tmp_path, name)
    wanted = RECORD["ids"][RECORD["names"][name]]
    for text, ids in zip(RECORD["texts"], wanted, strict=True):
        assert tokenizer.encode(text) == ids, text
        assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("name", ["kimi-k2", "superbpe", "gemma4", "jina-v1-en", "whitespace"])
def test_what_is_cut_in_other_ways_is_refused(name: str, tmp_path: Path) -> None:
    (found,) = diagnosed("tokenizer-unsupported", lambda: opened(tmp_path, name))
    assert f"'{name}'" in found.message
