"""The built-in models."""

from __future__ import annotations

import pytest
from model_files import diagnosed

from meshc.frontend.checkpoints import catalogue_config, catalogue_names, parameter_count

# Published parameter counts.
PARAMETERS = {
    "codellama-34b": 33_743_970_304,
    "deepseek-v2-lite": 15_706_484_224,
    "gpt-oss-20b": 20_914_757_184,
    "llama-2-13b": 13_015_864_320,
    "llama-2-7b": 6_738_415_616,
    "llama-3-8b": 8_030_261_248,
    "llama-3.3-70b": 70_553_706_496,
    "mixtral-8x22b": 140_630_071_296,
    "mixtral-8x7b": 46_702_792_704,
    "qwen2-72b": 72_706_203_648,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-235b-a22b": 235_093_634_560,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-8b": 8_190_735_360,
    "smollm2-135m": 134_515_008,
}


def test_names() -> None:
    assert catalogue_names() == tuple(PARAMETERS)


@pytest.mark.every_case
@pytest.mark.parametrize("name", PARAMETERS)
def test_parameter_counts_are_the_published_ones(name: str) -> None:
    config = catalogue_config(name)
    assert config.name == name
    assert parameter_count(config) == PARAMETERS[name]


def test_facts_that_the_count_does_not_show() -> None:
    llama3, qwen2 = catalogue_config("llama-3-8b"), catalogue_config("qwen2-72b")
    assert (llama3.rope_theta, llama3.eps, llama3.kv_heads) == (500000.0, 1e-5, 8)
    assert (qwen2.family, qwen2.attention_bias, qwen2.rope_theta) == ("qwen2", True, 1e6)
    assert catalogue_config("smollm2-135m").tied_embeddings


@pytest.mark.parametrize(
    ("wrong", "right"), [("lama-3-8b", "llama-3-8b"), ("SmolLM2", "smollm2-135m")]
)
def test_an_unknown_name_gets_close_matches(wrong: str, right: str) -> None:
    (found,) = diagnosed("unknown-model", lambda: catalogue_config(wrong))
    assert f"did you mean {right}" in str(found.help)


@pytest.mark.parametrize("name", ["../catalogue/llama-3-8b", "", "zzzzzz", "llama-3-8b.json"])
def test_a_name_is_never_a_path(name: str) -> None:
    diagnosed("unknown-model", lambda: catalogue_config(name))
