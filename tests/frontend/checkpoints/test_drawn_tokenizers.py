"""Drawn tokenizers, of classes and types of models that need not fit, with tokens that several
files declare: ids and texts are those of transformers, or the tokenizer is refused."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from model_files import model_config

from meshc.frontend.checkpoints import load_tokenizer
from meshc.support.diagnostics import MeshcError

pytest.importorskip("tokenizers")

DATA = Path(__file__).parents[2] / "data"
RECORD: dict[str, Any] = json.loads((DATA / "tokenizer_keys.json").read_text(encoding="utf-8"))
KINDS = [*json.loads((DATA / "config_keys.json").read_text(encoding="utf-8")), "qwen2_5_vl"]
CLASSES = (
    *("PreTrainedTokenizerFast", "TokenizersBackend", "LlamaTokenizer", "GPT2TokenizerFast"),
    *("Qwen2TokenizerFast", "GPTNeoXTokenizer", "GemmaTokenizerFast", "CohereTokenizerFast"),
    *("T5TokenizerFast", "NobodysTokenizer", None),
)
FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")
ADDED = ("<own>", "<mask>", " the ", "mesh")
CONFIG, MAP = "tokenizer_config.json", "special_tokens_map.json"


def drawn(chance: random.Random) -> dict[str, Any]:
    """The files of a tokenizer."""
    files = json.loads(json.dumps(chance.choice([*RECORD["bases"].values()])["files"]))
    own, config = files["tokenizer.json"], files[CONFIG]
    size = 1 + max(own["model"]["vocab"].values())

    def token(text: str) -> dict[str, Any]:
        return {"content": text, **{flag: chance.random() < 0.3 for flag in FLAGS}}

    def named(text: str) -> Any:
        return chance.choice((text, {**token(text), "__type": "AddedToken"}))

    files["config.json"]["model_type"] = chance.choice(KINDS)
    where = files["config.json"] if chance.random() < 0.2 else config
    del config["tokenizer_class"]
    where["tokenizer_class"] = chance.choice(CLASSES)
    added = [token(text) for text in chance.sample(ADDED, chance.randrange(3))]
    for number, one in enumerate(added):
        one["id"] = own["model"]["vocab"].get(one["content"], size + number)
    if chance.random() < 0.4:
        own["added_tokens"] += added
    if chance.random() < 0.5:
        every = {str(one.pop("id")): one for one in json.loads(json.dumps(own["added_tokens"]))}
        config["added_tokens_decoder"] = every | {
            str(one["id"]): {key: value for key, value in one.items() if key != "id"}
            for one in added
        }
    for key in ("bos_token", "eos_token", "pad_token", "image_token"):
        if chance.random() < 0.25:
            config[key] = named(chance.choice(("<s>", "<pad>", "<own>")))
    if chance.random() < 0.3:
        key = chance.choice(("additional_special_tokens", "extra_special_tokens"))
        config[key] = [named(text) for text in chance.sample(ADDED[:2], 1)]
    if chance.random() < 0.3:
        files[MAP] = {"eos_token": named("</s>"), "additional_special_tokens": ["<own>"]}
    for key in ("add_bos_token", "add_prefix_space", "legacy", "clean_up_tokenization_spaces"):
        if chance.random() < 0.3:
            config[key] = chance.random() < 0.5
    if chance.random() < 0.3:
        key = chance.choice(("extra_special_tokens", "model_specific_special_tokens"))
        config[key] = {chance.choice(("own", "own_token", "sep_token")): named(ADDED[0])}
    return files


@pytest.mark.slow
@pytest.mark.oracle
@pytest.mark.models
@pytest.mark.filterwarnings("default")
def test_drawn_tokenizers_give_what_transformers_gives(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    seen: Counter[str] = Counter()
    for seed in range(300):
        files = drawn(random.Random(seed))
        place = tmp_path / str(seed)
        place.mkdir()
        for name, value in files.items():
            (place / name).write_text(json.dumps(value), encoding="utf-8")
        try:
            ours = load_tokenizer(place, model_config(vocab=600))
        except MeshcError as refusal:
            seen[refusal.diagnostics[0].code] += 1
            continue
        theirs = transformers.AutoTokenizer.from_pretrained(place)
        for text in RECORD["texts"]:
            ids = theirs.encode(text)
            assert ours.encode(text) == ids, (seed, text)
            assert ours.encode_rendered(text) == theirs.encode(text, add_special_tokens=False)
            assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True), (seed, text)
        seen["equal"] += 1
    assert seen.keys() <= {"equal", "tokenizer-unsupported", "tokenizer-mismatch"}, seen
    assert seen["equal"] >= 200, seen
