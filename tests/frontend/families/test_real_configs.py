"""Configurations of published checkpoints: models of as many parameters as their authors count."""

import shutil
from math import prod
from pathlib import Path

import pytest

from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.support.diagnostics import Diagnostics, MeshcError

CONFIGS = Path(__file__).parents[2] / "data" / "real_configs"
PUBLISHED = {
    "allam-7b-instruct-preview": 7_000_559_616,
    "aya-23-8b": 8_028_033_024,
    "codellama-13b": 13_016_028_160,
    "codellama-7b": 6_738_546_688,
    "deepseek-v3": 671_026_419_200,
    "exaone-4.0-32b": 32_003_216_384,
    "gemma-2-27b": 27_227_128_320,
    "gemma-2-2b": 2_614_341_888,
    "gemma-2-2b-jpn-it": 2_614_341_888,
    "gemma-2-9b": 9_241_705_984,
    "gemma-2b": 2_506_172_416,
    "gemma-3-1b-it": 999_885_952,
    "gemma-3-270m": 268_098_176,
    "gemma-3-4b-it": 3_880_263_168,
    "gemma-7b": 8_537_680_896,
    "gpt-oss-120b": 116_829_156_672,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-xl": 1_557_611_200,
    "granite-3.1-1b-a400m-instruct": 1_334_628_352,
    "granite-3.3-8b-instruct": 8_170_864_640,
    "internlm2-7b": 7_737_708_544,
    "internlm2.5-7b": 7_737_708_544,
    "llama-3.1-70b-instruct": 70_553_706_496,
    "llama-3.1-8b-instruct": 8_030_261_248,
    "llama-3.2-1b-instruct": 1_235_814_400,
    "llama-3.2-3b-instruct": 3_212_749_824,
    "mistral-7b-instruct-v0.3": 7_248_023_552,
    "mistral-7b-v0.1": 7_241_732_096,
    "olmo-1b": 1_176_764_416 + 33 * 2_048,  # its norms have no gains, and here ones
    "olmo-2-13b": 13_716_198_400,
    "olmo-2-1b": 1_484_916_736,
    "olmo-2-32b": 32_234_279_936,
    "olmo-2-7b": 7_298_617_344,
    "olmocr-2-7b-1025": 7_615_616_512,
    "phi-3-medium-4k-instruct": 13_960_238_080,
    "phi-3-mini-4k-instruct": 3_821_079_552,
    "phi-3.5-mini-instruct": 3_821_079_552,
    "phi-4": 14_659_507_200,
    "phi-4-mini-instruct": 3_836_021_760,
    "pythia-1.4b": 1_414_647_808,
    "pythia-6.9b": 6_857_302_016,
    "qwen1.5-moe-a2.7b-chat": 14_315_784_192,
    "qwen2-0.5b-instruct": 494_032_768,
    "qwen2-1.5b-instruct": 1_543_714_304,
    "qwen2-7b-instruct": 7_615_616_512,
    "qwen2.5-32b-instruct": 32_763_876_352,
    "qwen2.5-3b-instruct": 3_085_938_688,
    "qwen2.5-7b-instruct": 7_615_616_512,
    "qwen2.5-vl-7b-instruct": 7_615_616_512,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-32b": 32_762_123_264,
    "qwen3-embedding-4b": 4_021_774_336,
    "qwen3-embedding-8b": 8_188_515_328,
    "redpajama-incite-chat-3b": 2_775_864_320,
    "smollm-1.7b-instruct": 1_711_376_384,
    "smollm-135m-instruct": 134_515_008,
    "smollm-360m-instruct": 361_821_120,
    "smollm2-360m-instruct": 361_821_120,
    "smollm3-3b": 3_075_098_624,
    "stablelm-2-1_6b": 1_644_515_328,
    "stablelm-2-zephyr-1_6b": 1_644_515_328,
    "stablelm-3b-4e1t": 2_795_443_200,
    "starcoder2-3b": 3_030_371_328,
    "starcoder2-7b": 7_173_923_840,
    "tinyllama-1.1b-chat": 1_100_048_384,
    "tinyllama-1.1b-chat-v0.4": 1_100_060_672,
}
"""Parameters of their published weights, tied ones counted once; without the layer of DeepSeek-V3
that predicts a second token, which is no part of the model, and of models that see pictures the
half of texts alone. Those of the configurations that came last are as transformers counts them."""
REFUSED = {
    "baichuan2-7b": "unsupported-architecture",
    "chatglm3-6b": "unsupported-architecture",
    "deepseek-moe-16b": "unsupported-architecture",
    "devstral-small-2-24b-instruct": "unsupported-architecture",
    "falcon-7b": "unsupported-architecture",
    "gpt-j-6b": "unsupported-architecture",
    "internlm-7b": "unsupported-architecture",
    "minicpm-2b-128k": "unsupported-architecture",
    "minicpm-moe-8x2b": "unsupported-architecture",
    "ministral-3-3b-2512": "unsupported-architecture",
    "olmo-3.1-32b-instruct": "unsupported-architecture",
    "orion-14b-chat": "unsupported-architecture",
    "phi-1": "unsupported-architecture",
    "phi-1_5": "unsupported-architecture",
    "phi-2": "unsupported-architecture",
    "qwen-1.8b-chat": "unsupported-architecture",
    "santacoder": "unsupported-architecture",
}
"""Those that are not read, with the code that says so."""


def test_every_configuration_has_its_count_or_refusal():
    assert {path.stem for path in CONFIGS.iterdir()} == {*PUBLISHED, *REFUSED}


@pytest.mark.every_case
@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_as_many_as_published(name, tmp_path):
    shutil.copy(CONFIGS / f"{name}.json", tmp_path / "config.json")
    request = CompileRequest(compile_to="graph", seq=64, phase="decode")
    loaded = load_any(str(tmp_path), Diagnostics())
    (module,) = compile_loaded(loaded, request, (), Diagnostics()).modules.values()
    shapes = [p.value.type.shape(module.dims) for p in module.function.params if p.role == "weight"]
    assert sum(map(prod, shapes)) == PUBLISHED[name]


@pytest.mark.every_case
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_read_is_refused(name):
    with pytest.raises(MeshcError) as refusal:
        load_any(str(CONFIGS / f"{name}.json"), Diagnostics())
    assert [message.code for message in refusal.value.diagnostics] == [REFUSED[name]]
