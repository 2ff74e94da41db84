"""Tokenizers from GGUF vocabularies and from tokenizer.json."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_files import (
    BPE_VOCABULARY,
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER,
    bpe_pairs,
    diagnosed,
    gguf_bytes,
    gguf_model_bytes,
    hf_tensors,
    model_config,
)

from meshc.driver import read_prompts
from meshc.frontend.checkpoints import Tokenizer, find_packaged_weights, load_tokenizer
from meshc.support.diagnostics import Diagnostics, MeshcError

tokenizers = pytest.importorskip("tokenizers")
NO_BOS = {"add_bos_token": ("bool", False)}
pytestmark = pytest.mark.models


def _load(folder: Path, pairs: list[tuple[str, str, Any]], vocab: int = 2000) -> Tokenizer:
    file = folder / "x.gguf"
    file.write_bytes(gguf_bytes(pairs))
    return load_tokenizer(file, model_config(vocab=vocab, eos_ids=(2,)))


MERGES = [("1", "2"), ("12", "3"), ("123", "4"), ("Ġ", "t"), ("a", "b"), ("ab", "c"), ("b", "c")]


def _words(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.decode([token]) for token in tokenizer.encode(text)]


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("gpt-2", ["1234", " t", "abc"]),
        ("smollm", ["1", "2", "3", "4", " t", "abc"]),
        ("qwen2", ["1", "2", "3", "4", " t", "abc"]),
        ("llama-bpe", ["123", "4", " t", "abc"]),
        ("olmo", ["1234", " t", "abc"]),
        ("refact", ["1", "2", "3", "4", " t", "abc"]),
        ("starcoder", ["1", "2", "3", "4", " t", "abc"]),
        ("dbrx", ["123", "4", " t", "abc"]),
        ("default", ["123", "4", " t", "abc"]),
    ],
)
def test_how_digits_are_cut(tmp_path: Path, pre: str, pieces: list[str]) -> None:
    merges = [*MERGES, ("Ġt", "abc")]
    tokenizer = _load(tmp_path, bpe_pairs(MERGES, pre, [], **NO_BOS))
    assert _words(tokenizer, "1234 tabc") == pieces
    longer = _load(tmp_path, bpe_pairs(merges, pre, [], **NO_BOS))
    assert _words(longer, "1234 tabc") == [*pieces[:-2], " tabc"]


def test_merges_apply_in_their_order(tmp_path: Path) -> None:
    first = _load(tmp_path, bpe_pairs([("a", "b"), ("b", "c")], "gpt-2", []))
    assert _words(first, "abc") == ["ab", "c"]
    second = _load(tmp_path, bpe_pairs([("b", "c"), ("a", "b")], "gpt-2", []))
    assert _words(second, "abc") == ["a", "bc"]


def test_llama3_takes_whole_words_before_merges(tmp_path: Path) -> None:
    merges = [("b", "c"), ("a", "b"), ("ab", "c")]
    assert _words(_load(tmp_path, bpe_pairs(merges, "gpt-2", [])), "abc") == ["a", "bc"]
    assert _words(_load(tmp_path, bpe_pairs(merges, "llama-bpe", [], **NO_BOS)), "abc") == ["abc"]
    assert _words(_load(tmp_path, bpe_pairs(merges, "dbrx", [])), "abc") == ["a", "bc"]


def test_text_of_a_gguf_file_is_not_normalised(tmp_path: Path) -> None:
    """As llama.cpp takes it, which composes no letter with its accent; the bytes are the ids."""
    tokenizer = _load(tmp_path, bpe_pairs([], "qwen2", []))
    for text in ("e\u0301", "\u00e9"):
        assert tokenizer.encode(text) == list(text.encode())


def test_control_and_user_tokens(tmp_path: Path) -> None:
    extra = [("<|end|>", CONTROL), ("<b>", USER)]
    tokenizer = _load(tmp_path, bpe_pairs([], "gpt-2", extra))
    ids = tokenizer.encode("a<|end|><b>c")
    assert ids == [ord("a"), 256, 257, ord("c")]
    assert tokenizer.decode(ids) == "a<b>c"


@pytest.mark.parametrize(
    ("pre", "changes", "starts"),
    [
        ("gpt-2", {}, False),
        ("gpt-2", {"add_bos_token": ("bool", True)}, True),
        ("llama-bpe", {}, True),
        ("llama-bpe", {"add_bos_token": ("bool", False)}, False),
    ],
)
def test_bos(tmp_path: Path, pre: str, changes: dict[str, Any], starts: bool) -> None:
    pairs = bpe_pairs([], pre, [("<s>", CONTROL)], bos_token_id=("u32", 256), **changes)
    tokenizer = _load(tmp_path, pairs)
    assert tokenizer.encode("a") == ([256, 97] if starts else [97])
    assert tokenizer.decode(tokenizer.encode("a")) == "a"
    assert tokenizer.eos_ids == (2,)


@pytest.fixture(scope="module", params=["gpt-2", "smollm", "llama-bpe", "default"])
def byte_level(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Tokenizer:
    """A tokenizer of bytes, for each way to cut words."""
    return _load(tmp_path_factory.mktemp("bytes"), bpe_pairs(MERGES, request.param, [], **NO_BOS))


@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=40))
def test_bytes_survive_a_round_trip(byte_level: Tokenizer, text: str) -> None:
    ids = byte_level.encode(text)
    assert byte_level.decode(ids) == text
    assert byte_level.continuation(ids[:1], ids[1:]) or len(ids) < 2


def _spm_pairs(pieces: list[tuple[str, float, int]], **changes: Any) -> list[tuple[str, str, Any]]:
    facts = {
        "model": ("str", "llama"),
        "tokens": ("[str]", [piece for piece, _, _ in pieces]),
        "scores": ("[f32]", [score for _, score, _ in pieces]),
        "token_type": ("[i32]", [kind for _, _, kind in pieces]),
        "unknown_token_id": ("u32", 0),
        "bos_token_id": ("u32", 1),
        "eos_token_id": ("u32", 2),
        **changes,
    }
    return [(f"tokenizer.ggml.{key}", *value) for key, value in facts.items() if value]


SPM_WORDS = [
    *("\u2581t", "he", "\u2581the", "er", "in", "\u2581a", "on", "\u2581in", "ther", "\u2581other"),
    *("ot", "oth", "other", "\u2581o", "th", "her", "nt", "int", "\u2581int", "\u2581\u2581"),
]
SPM_PIECES = [
    ("<unk>", 0.0, UNKNOWN),
    ("<s>", 0.0, CONTROL),
    ("</s>", 0.0, CONTROL),
    *((f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)),
    *((word, -float(rank), NORMAL) for rank, word in enumerate(SPM_WORDS)),
    *((letter, -1000.0 - ord(letter), NORMAL) for letter in "\u2581thernioa"),
]


def _spm_by_hand(text: str) -> list[int]:
    """sentencepiece BPE: join the neighbours whose union scores best, leftmost first."""
    ids = {piece: number for number, (piece, _, _) in enumerate(SPM_PIECES)}
    scores = {piece: score for piece, score, kind in SPM_PIECES if kind == NORMAL}
    parts = list("\u2581" + text.replace(" ", "\u2581")) if text else []
    while True:
        joined = [
            (scores[a + b], -place)
            for place, (a, b) in enumerate(pairwise(parts))
            if a + b in scores
        ]
        if not joined:
            break
        place = -max(joined)[1]
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
    found = [1]
    for part in parts:
        raw = [ids[f"<0x{byte:02X}>"] for byte in part.encode()]
        found += [ids[part]] if part in scores else raw
    return found


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """A tokenizer of sentencepiece."""
    return _load(tmp_path_factory.mktemp("pieces"), _spm_pairs(SPM_PIECES))


@settings(max_examples=200, deadline=None)
@given(text=st.text(alphabet="there inoa\u00e9\u4f60x", max_size=30))
def test_sentencepiece_equals_its_definition(pieces: Tokenizer, text: str) -> None:
    ids = pieces.encode(text)
    assert ids == _spm_by_hand(text)
    assert pieces.decode(ids) == text


@pytest.mark.parametrize("kind", [NORMAL, USER, UNUSED, CONTROL])
def test_tokens_of_all_types_are_joined(kind: int, tmp_path: Path) -> None:
    """As llama.cpp does: "<s>" and the like are found in a text before, this one is not."""
    pieces = [*SPM_PIECES, ("\u2581then", 5.0, kind)]
    tokenizer = _load(tmp_path, _spm_pairs(pieces))
    assert tokenizer.encode("then") == [1, len(SPM_PIECES)]


def test_sentencepiece_continuation_keeps_its_space(tmp_path: Path) -> None:
    tokenizer = _load(tmp_path, _spm_pairs(SPM_PIECES))
    prompt, more = tokenizer.encode("in"), tokenizer.encode("the")[1:]
    assert tokenizer.decode(more) == "the"
    assert tokenizer.continuation(prompt, more) == " the"


def test_sentencepiece_without_a_space_in_front(tmp_path: Path) -> None:
    pairs = _spm_pairs(SPM_PIECES, add_space_prefix=("bool", False))
    tokenizer = _load(tmp_path, pairs)
    assert tokenizer.decode(tokenizer.encode(" in the")) == " in the"


def _changed(**changes: Any) -> list[tuple[str, str, Any]]:
    """`BPE_VOCABULARY` with other (kind, value) pairs, or None to remove a key."""
    facts = {
        key.removeprefix("tokenizer.ggml."): (kind, value) for key, kind, value in BPE_VOCABULARY
    }
    merged = {**facts, **changes}
    return [(f"tokenizer.ggml.{key}", *value) for key, value in merged.items() if value]


@pytest.mark.parametrize(
    ("code", "pairs"),
    [
        ("tokenizer-not-found", []),
        ("tokenizer-not-found", _changed(model=("str", "none"))),
        ("tokenizer-not-found", _changed(model=("str", "no_vocab"))),
        ("tokenizer-unsupported", _changed(model=("str", "bert"))),
        ("tokenizer-unsupported", _changed(model=("u32", 3))),
        ("tokenizer-unsupported", _changed(pre=("str", "no-cut-of-words"))),
        ("tokenizer-unsupported", _changed(add_eos_token=("bool", True))),
        ("tokenizer-unsupported", _spm_pairs([*SPM_PIECES, ("ther\u2581", -5.0, NORMAL)])),
        ("tokenizer-unsupported", _spm_pairs([*SPM_PIECES, ("\u2581x", -0.5, NORMAL)])),
        ("tokenizer-invalid", _changed(pre=("str", "llama-bpe"))),
        ("tokenizer-invalid", _changed(pre=("u32", 3))),
        ("tokenizer-invalid", _changed(tokens=None)),
        ("tokenizer-invalid", _changed(tokens=("[u32]", [1, 2]))),
        ("tokenizer-invalid", _changed(tokens=("[str]", []))),
        ("tokenizer-invalid", _changed(tokens=("[str]", ["a", "a"]))),
        ("tokenizer-invalid", _changed(token_type=("[i32]", [1]))),
        ("tokenizer-invalid", _changed(token_type=("[i32]", [9] * 257))),
        ("tokenizer-invalid", _changed(token_type=("[f32]", [1.0] * 257))),
        ("tokenizer-invalid", _changed(merges=None)),
        ("tokenizer-invalid", _changed(merges=("[str]", ["a zz"]))),
        ("tokenizer-invalid", _changed(merges=("[str]", ["ab"]))),
        ("tokenizer-invalid", _changed(merges=("[str]", ["a c"]))),
        ("tokenizer-invalid", _changed(bos_token_id=("u32", 257))),
        ("tokenizer-invalid", _changed(bos_token_id=("i32", -1))),
        ("tokenizer-invalid", _changed(add_bos_token=("u32", 1))),
        ("tokenizer-invalid", _spm_pairs(SPM_PIECES, scores=None)),
        ("tokenizer-invalid", _spm_pairs(SPM_PIECES, scores=("[f32]", [1.0]))),
        (
            "tokenizer-invalid",
            _spm_pairs(SPM_PIECES, scores=("[f32]", [float("nan")] * len(SPM_PIECES))),
        ),
        ("tokenizer-invalid", _spm_pairs([*SPM_PIECES, ("x" * 500, 0.0, NORMAL)])),
    ],
)
def test_broken_vocabularies(tmp_path: Path, code: str, pairs: list[tuple[str, str, Any]]) -> None:
    diagnosed(code, lambda: _load(tmp_path, pairs))


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        (_changed(pre=("str", "no-cut-of-words")), ["tokenizer-unsupported"]),
        (_changed(model=("str", "none")), []),
    ],
)
def test_token_ids_need_no_tokenizer_that_is_read(
    tmp_path: Path, pairs: list[tuple[str, str, Any]], said: list[str]
) -> None:
    file, report = tmp_path / "x.gguf", Diagnostics()
    file.write_bytes(gguf_bytes(pairs))
    (found,) = read_prompts([(5, 7)], model_config(), file, "x", report)
    assert (found.ids, found.tokenizer) == ([5, 7], None)
    assert [message.code for message in report.messages] == said
    with pytest.raises(MeshcError):
        read_prompts(["a", (5, 7)], model_config(), file, "x", report)


def test_a_tokenizer_larger_than_the_model(tmp_path: Path) -> None:
    """A prompt with a token that the model does not have is refused, and so is a tokenizer with
    many of them."""
    assert _load(tmp_path, BPE_VOCABULARY, vocab=257).encode("ab") == [256]
    larger = _load(tmp_path, BPE_VOCABULARY, vocab=256)
    assert len(larger.encode("ba")) == 2
    (found,) = diagnosed("tokenizer-mismatch", lambda: larger.encode("ab"))
    assert "token 256 of the prompt" in found.message
    _load(tmp_path, BPE_VOCABULARY, vocab=1)
    more = bpe_pairs([("a", "b")], "gpt-2", [(f"<{number}>", CONTROL) for number in range(2)])
    _load(tmp_path, more, vocab=258)
    diagnosed("tokenizer-mismatch", lambda: _load(tmp_path, more, vocab=1))


def test_a_prompt_that_is_not_text(tmp_path: Path) -> None:
    tokenizer = _load(tmp_path, BPE_VOCABULARY)
    diagnosed("prompt-not-text", lambda: tokenizer.encode("ab\udcff"))


def _json_tokenizer(folder: Path) -> Any:
    """A tokenizer.json with bos by its post-processor, truncation and padding switched on."""
    engine = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]))
    engine.add_special_tokens(["<s>"])
    engine.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 3)]
    )
    engine.enable_truncation(2)
    engine.enable_padding(length=9)
    engine.save(str(folder / "tokenizer.json"))


def test_tokenizer_json(tmp_path: Path) -> None:
    _json_tokenizer(tmp_path)
    config = model_config(bos_id=3)
    (tmp_path / "model.safetensors").write_bytes(b"")
    for path in (tmp_path, tmp_path / "tokenizer.json", tmp_path / "model.safetensors"):
        tokenizer = load_tokenizer(path, config)
        assert tokenizer.encode("abba") == [3, 2, 1, 0]
        assert tokenizer.bos_id == 3
    diagnosed("tokenizer-mismatch", lambda: load_tokenizer(tmp_path, model_config(vocab=3)))


def test_a_directory_with_one_gguf_file(tmp_path: Path) -> None:
    _load(tmp_path, BPE_VOCABULARY)
    assert load_tokenizer(tmp_path, model_config(vocab=300)).encode("ab") == [256]


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{}",
        b"\xff",
        b"[" * 100_000,
        b'{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}}',
        b'{"model": {"type": "WordSalad"}}',
        b'{"model": {"type": "Unigram", "vocab": [], "unk_id": 7}}',
        b'{"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}',
        b'{"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(("}, "behavior": "Isolated",'
        b' "invert": false}, "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}',
    ],
)
def test_broken_tokenizer_json(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(raw)
    diagnosed("tokenizer-invalid", lambda: load_tokenizer(tmp_path, model_config()))


def test_no_tokenizer(tmp_path: Path) -> None:
    config = model_config()
    diagnosed("tokenizer-not-found", lambda: load_tokenizer(tmp_path, config))
    diagnosed("tokenizer-not-found", lambda: load_tokenizer(tmp_path / "no" / "x", config))
    (tmp_path / "x.gguf").write_bytes(gguf_model_bytes(config, hf_tensors(config)))
    diagnosed("tokenizer-not-found", lambda: load_tokenizer(tmp_path / "x.gguf", config))


SMOLLM2_IDS = {
    "The capital of France is": [504, 3575, 282, 4649, 314],
    "<|im_start|>user\nhi<|im_end|>": [1, 4093, 198, 6004, 2],
    " 2024": [216, 34, 32, 34, 36],
    "": [],
}


@pytest.mark.smollm2
def test_the_real_vocabulary() -> None:
    tokenizer = load_tokenizer(
        find_packaged_weights("smollm2-135m"), model_config(vocab=49152, eos_ids=(2,))
    )
    for text, ids in SMOLLM2_IDS.items():
        assert tokenizer.encode(text) == ids
    for text in ("na\u00efve \u65e5\u672c \U0001f389", "a  b\n\n\tc", "1a2b"):
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.smollm2
def test_recorded_prompts_keep_their_ids() -> None:
    tokenizer = load_tokenizer(find_packaged_weights("smollm2-135m"), model_config(vocab=49152))
    records = Path(__file__).resolve().parents[2] / "data" / "smollm2_oracle.json"
    for entry in json.loads(records.read_text(encoding="utf-8")):
        assert tokenizer.encode(entry["prompt"]) == entry["prompt_ids"]
        assert tokenizer.continuation(entry["prompt_ids"], entry["tokens"]) == entry["text"]
