"""Tiny random checkpoints of Hugging Face transformers through emitted CUDA in the CPU executor:
grouped queries, latent attention, RoPE scaled by YaRN, both 16-bit types."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from reduced import each, only

from meshc.backends.cuda import CpuMachine, LanguageModel, from_json
from meshc.backends.cuda.executor import CXX, QUICK
from meshc.cli import main
from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.frontend.checkpoints import open_checkpoint, read_config
from meshc.support.diagnostics import Diagnostics

pytestmark = [
    pytest.mark.models,
    pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler"),
]

TINY = Path(__file__).parents[1] / "data" / "tiny_cuda"
FIXTURES = {
    "llama-4h2": {"cluster": 4, "page": 64},
    "qwen2-2h1-bf16": {"batch": 3, "dataflow": "split_head", "cluster": 2},
    "deepseek-4h": {"page": 1},
    "deepseek-2h-yarn-bf16": {"batch": 2},
    "deepseek-4h-low-rank": {"page": 16},
}
# Eight roundings to the model's type, which keys, values and the inputs of chunks are rounded to.
BOUND = {"f16": 2.0**-8, "bf16": 2.0**-5}


def command(name: str, *more: str) -> list[str]:
    """`meshc run`, so that the kernels are those of the other tests of this fixture."""
    options = (w for option, value in FIXTURES[name].items() for w in (f"--{option}", str(value)))
    words = ["run", str(TINY / name), "--target", "cuda", "--backend", "cuda-cpu", "--seq", "40"]
    return [*words, *options, *more]


def recorded(name: str) -> dict:
    """What transformers answers in float32."""
    return json.loads((TINY / name / "expected.json").read_text())


@pytest.mark.parametrize("name", each(["deepseek-4h", "llama-4h2"], 2))
def test_the_command_says_the_tokens_of_transformers(name: str, capsys) -> None:
    want = recorded(name)
    ids = ",".join(map(str, want["prompt_ids"]))
    words = command(name, "--prompt-ids", ids, "--max-tokens", str(len(want["tokens"])))
    assert main(words) == 0
    assert capsys.readouterr().out == ",".join(map(str, want["tokens"])) + "\n"


@pytest.mark.slow
def test_the_command_continues_several_prompts_at_once(capsys) -> None:
    """One of transformers' prompts among others, longer and shorter than a chunk."""
    want = recorded("llama-4h2")
    words = command("llama-4h2", "--max-tokens", "2", "--ignore-eos")
    prompts = ["7", ",".join(map(str, want["prompt_ids"])), ",".join(["3"] * 19)]
    alone = []
    for prompt in prompts:
        assert main([*words, "--prompt-ids", prompt]) == 0
        alone.append(capsys.readouterr().out)
    assert alone[1] == ",".join(map(str, want["tokens"][:2])) + "\n"
    assert main([*words, *(w for p in prompts for w in ("--prompt-ids", p))]) == 0
    assert capsys.readouterr().out == "".join(f"[{n}] {t}" for n, t in enumerate(alone, 1))
    assert main([*words, *(w for p in prompts for w in ("--prompt-ids", p)), "--batch", "2"]) == 1
    assert "3 prompts do not go into --batch 2" in capsys.readouterr().err


@pytest.mark.parametrize("name", only(FIXTURES, "deepseek-4h", "deepseek-4h-low-rank"))
def test_tokens_and_logits_equal_those_of_transformers(name: str) -> None:
    """With the prompt in chunks, if tasks read it so, and token by token."""
    config = read_config(TINY / name)
    report = Diagnostics()
    request = CompileRequest(target="cuda", seq=40, dtype=config.dtype, **FIXTURES[name])
    result = compile_loaded(load_any(str(TINY / name), report), request, (), report)
    program = from_json(result.files["manifest.json"])
    assert (not program.prefills) == ("dataflow" in FIXTURES[name])  # lanes lie apart
    checkpoint = open_checkpoint(TINY / name, config)
    tensors = {tensor: checkpoint.read(tensor) for tensor in checkpoint.names()}
    alone = replace(program, prefills=())
    for one in (alone,) if not program.prefills else (program, alone):
        model = LanguageModel(
            one, CpuMachine(program.kernels, result.files, toolchain=QUICK), tensors
        )
        check(model, recorded(name), BOUND[config.dtype], one is alone)


def check(model: LanguageModel, want: dict, bound: float, alone: bool) -> None:
    """Tokens, logits behind the prompt, and the best logit of each step; where tokens were not read
    ``alone`` inputs of products are rounded as well, which keys and values of steps then have."""
    logits: list[np.ndarray] = []
    count = len(want["tokens"])
    tokens = list(model.generate(want["prompt_ids"], count, lambda _, row: logits.append(row)))
    assert tokens == want["tokens"]
    close = bound * np.abs(want["prompt_logits"]).max()
    assert np.abs(logits[0] - want["prompt_logits"]).max() <= close
    off = np.abs(np.max(logits, 1) - want["best_logits"]).max()
    assert off <= (close if alone else 2 * close)
