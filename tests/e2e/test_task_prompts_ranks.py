"""Prompts that kernels of tasks read on several GPUs, in the executor: the logits behind them and
those of the next step are what steps alone give."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from reduced import only

from meshc.backends.cuda import CpuNode, LanguageModel, from_json
from meshc.backends.cuda.executor import CXX, QUICK, Mode
from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.frontend.checkpoints import open_checkpoint, read_config
from meshc.support.diagnostics import Diagnostics

pytestmark = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")

DATA = Path(__file__).parents[1] / "data"
CASES = [
    ("tiny_cuda/llama-4h2", 2, "peers"),
    ("tiny_cuda/llama-4h2", 4, "multimem"),
    ("tiny_families/mistral-6h2", 3, "peers"),
    ("tiny_families/gemma2-6h2-window", 2, "multimem"),
]


@pytest.mark.parametrize(("name", "gpus", "collectives"), only(CASES, CASES[0]))
def test_a_prompt_is_what_steps_make_of_it(name, gpus, collectives):
    folder = next(p for p in (DATA / name, DATA / "tiny_dense" / Path(name).name) if p.exists())
    config = read_config(folder)
    asked = CompileRequest(
        target="cuda", dtype="f16", seq=40, gpus=gpus, collectives=collectives, batch=2
    )
    result = compile_loaded(load_any(str(folder), Diagnostics()), asked, (), Diagnostics())
    program = from_json(result.files["manifest.json"])
    assert program.prefills and "prompt" in program.kernels
    # Prompts meet by counters, steps of which ranks share no logits at the start alone.
    assert program.kernels["prompt"].meetings > program.kernels["step"].meetings >= 1
    stored = open_checkpoint(folder, config)
    tensors = {tensor: stored.read(tensor) for tensor in stored.names()}
    prompt = [int(token) for token in np.random.default_rng(gpus).integers(0, 40, 23)]
    found = []
    for one in (program, replace(program, prefills=())):
        mode = Mode("shuffled", True, 3)
        machine = CpuNode(program.kernels, result.files, gpus, mode, QUICK)
        model = LanguageModel(one, machine, tensors)
        logits = model.prefill(prompt, 0, [0, 0])
        found.append([logits, model.step([3, 0], [len(prompt), 0])[0]])
    for made, wanted in zip(*found, strict=True):
        assert np.abs(made - wanted).max() <= 2.0**-8 * np.abs(wanted).max()
