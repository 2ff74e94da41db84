"""Configurations of published checkpoints: models of as many parameters as their authors count."""

import shutil
from math import prod
from pathlib import Path

import pytest

from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.support.diagnostics import Diagnostics

CONFIGS = Path(__file__).parents[2] / "data" / "real_configs"
PUBLISHED = {
    "gemma-2b": 2_506_172_416,
    "gemma-7b": 8_537_680_896,
    "gemma-2-2b": 2_614_341_888,
    "gemma-2-9b": 9_241_705_984,
    "gemma-2-27b": 27_227_128_320,
    "gemma-3-270m": 268_098_176,
    "gemma-3-1b-it": 999_885_952,
    "gpt2": 124_439_808,
    "gpt2-xl": 1_557_611_200,
    "internlm2-7b": 7_737_708_544,
    "olmo-2-1b": 1_484_916_736,
    "olmo-2-7b": 7_298_617_344,
    "olmo-2-13b": 13_716_198_400,
    "phi-3-medium-4k-instruct": 13_960_238_080,
    "phi-3-mini-4k-instruct": 3_821_079_552,
    "phi-3.5-mini-instruct": 3_821_079_552,
    "phi-4": 14_659_507_200,
    "pythia-1.4b": 1_414_647_808,
    "pythia-6.9b": 6_857_302_016,
    "stablelm-2-1_6b": 1_644_515_328,
    "starcoder2-3b": 3_030_371_328,
    "starcoder2-7b": 7_173_923_840,
}
"""Parameters of their published weights."""


def test_every_configuration_has_its_count():
    assert {path.stem for path in CONFIGS.iterdir()} == set(PUBLISHED)


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_as_many_as_published(name, tmp_path):
    shutil.copy(CONFIGS / f"{name}.json", tmp_path / "config.json")
    request = CompileRequest(compile_to="graph", seq=64, phase="decode")
    loaded = load_any(str(tmp_path), Diagnostics())
    (module,) = compile_loaded(loaded, request, (), Diagnostics()).modules.values()
    shapes = [p.value.type.shape(module.dims) for p in module.function.params if p.role == "weight"]
    assert sum(map(prod, shapes)) == PUBLISHED[name]
