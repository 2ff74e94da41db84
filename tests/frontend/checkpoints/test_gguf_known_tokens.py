"""Tokens of GGUF files that llama.cpp knows by their texts: ends of answers, control tokens, and
white space that is swallowed. Of 250 drawn vocabularies of such tokens llama.cpp's own library gave
the same ids, ends and control tokens; these are the rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from model_files import (
    CONTROL,
    NORMAL,
    USER,
    bpe_pairs,
    diagnosed,
    gguf_bytes,
    gguf_pairs,
    gguf_tensors,
    hf_tensors,
    model_config,
)

from meshc.frontend.checkpoints import ModelConfig, Tokenizer, config_from_gguf, load_tokenizer

pytest.importorskip("tokenizers")
pytestmark = pytest.mark.models


def opened(
    folder: Path, extra: list[tuple[str, int]], name: str = "x", **given: Any
) -> tuple[ModelConfig, Tokenizer]:
    """A model whose vocabulary has ``extra`` tokens, from 256 on, and keys: ids of tokens, and what
    is ``given`` with its type."""
    size = 256 + len(extra)
    ids = {key: value for key, value in given.items() if isinstance(value, int)}
    own = {f"{key}_token_id": ("u32", number) for key, number in ids.items()}
    own |= {key: value for key, value in given.items() if key not in ids}
    _, pre = own.pop("pre", ("str", "gpt-2"))
    vocabulary = bpe_pairs([], pre, extra, **own)
    config = model_config(vocab=size, layers=1)
    keys = {key for key, *_ in vocabulary} | {"general.name"}
    pairs = [pair for pair in gguf_pairs(config) if pair[0] not in keys]
    tensors = [
        (tensor, array.shape, 0, array.astype("<f4").tobytes())
        for tensor, array in gguf_tensors(config, hf_tensors(config))
    ]
    file = folder / "x.gguf"
    file.write_bytes(gguf_bytes([*pairs, ("general.name", "str", name), *vocabulary], tensors))
    found = config_from_gguf(file)
    return found, load_tokenizer(file, found)


@pytest.mark.parametrize(
    ("extra", "ids", "ends"),
    [
        (["<a>", "<b>", "<c>"], {"eos": 256, "eot": 257, "eom": 258}, [256, 257, 258]),
        (["<a>", "<end_of_turn>"], {"eos": 256}, [256, 257]),
        (["<a>"], {"eot": 256}, [11, 256]),
        (["<a>"], {}, [11]),
        (["<|im_end|>", "<a>", "<|eot_id|>"], {"eos": 257}, [257, 256, 258]),
        (["<a>", "<|fim_pad|>", "<|file_sep|>", "<|fim_prefix|>"], {"eos": 256}, [256, 257, 258]),
        (["<a>", "<|fim_pad|>", "<b>"], {"eos": 256, "fim_pad": 258}, [256, 258]),
        (["<|return|>", "<|call|>", "<|end|>"], {"eos": 256}, [256, 257]),
        (["<|return|>", "<|end|>"], {"eos": 256}, [256, 257]),
        (["<|flush|>", "<|calls|>", "<|end|>"], {"eos": 258}, [256, 257]),
        (["</s>", "<|tool_response>"], {"eos": 256}, [257]),
    ],
)
def test_which_tokens_end_an_answer(
    tmp_path: Path, extra: list[str], ids: dict[str, int], ends: list[int]
) -> None:
    config, _ = opened(tmp_path, [(text, CONTROL) for text in extra], **ids)
    assert list(config.eos_ids) == ends


def test_control_tokens_are_such_whatever_their_type(tmp_path: Path) -> None:
    texts = ["<|im_end|>", "<|fim_prefix|>", "<a>", "<|channel|>"]
    kinds = [NORMAL, USER, NORMAL, CONTROL]
    _, tokenizer = opened(tmp_path, list(zip(texts, kinds, strict=True)), eos=256)
    assert tokenizer.encode("x<|im_end|><|fim_prefix|>y") == [ord("x"), 256, 257, ord("y")]
    assert [tokenizer.control_text(token) for token in range(256, 260)] == [*texts[:2], "", ""]
    assert tokenizer.decode([256, 257, 258, 259]) == "<a><|channel|>"


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("Phi-3 mini", [257, ord("a"), 256, 10, ord("b")]),
        ("phi3.5", [257, ord("a"), 256, 10, ord("b")]),
        ("Phi 4", [257, 10, 32, ord("a"), 256, 10, ord("b")]),
    ],
)
def test_control_tokens_of_phi3_swallow_white_space(
    tmp_path: Path, name: str, wanted: list[int]
) -> None:
    extra = [("<|endoftext|>", CONTROL), ("<|user|>", CONTROL), ("</s>", CONTROL)]
    _, tokenizer = opened(tmp_path, extra, name, eos=256)
    assert tokenizer.encode("<|user|>\n a<|endoftext|>\nb") == wanted


@pytest.mark.parametrize(
    ("pre", "wanted"),
    [("jina-v2-es", [256, 32, ord("b")]), ("gpt-2", [32, 32, 256, 32, ord("b")])],
)
def test_masks_swallow_white_space_in_front(tmp_path: Path, pre: str, wanted: list[int]) -> None:
    """Of vocabularies of these cuts, behind whose control tokens none does."""
    extra = [("<mask>", CONTROL)]
    _, tokenizer = opened(tmp_path, extra, "phi", eos=256, pre=("str", pre))
    assert tokenizer.encode("a  <mask> b") == [ord("a"), *wanted]


def test_tokens_that_are_never_chosen_are_refused(tmp_path: Path) -> None:
    extra = [("<a>", CONTROL)]
    opened(tmp_path, extra, eos=256)
    found = diagnosed(
        "config-unsupported", lambda: opened(tmp_path, extra, suppress_tokens=("[i32]", [3]))
    )
    assert ["suppress_tokens" in one.message for one in found] == [True]
