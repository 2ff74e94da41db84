"""SmolLM2-135M, all 30 layers, in emitted CSL on a simulated wafer of 96x96 PEs, as ``make
demo-wafer`` runs it: the tokens of the interpreter of the tile level at the same element types.

The interpreter runs the decode step of the same graph, f16 with sums of f32, on 2x2 cores, where it
is done in a minute. It adds up in another order than the wafer, so the prompts are such that no
second best token of transformers comes near the best one.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from meshc.driver import (
    CompileRequest,
    RunRequest,
    compile_loaded,
    find_weights,
    load_any,
    open_weights,
    opened,
    run_emitted,
)
from meshc.interp.tile import TileMachine
from meshc.support.diagnostics import Diagnostics

MODEL = "smollm2-135m"
ORACLE = json.loads((Path(__file__).parents[1] / "data" / "smollm2_oracle.json").read_text())
FIRST_WORDS = ("The capital of", "Water boils", "<|im_start|>user\nWhat is grav", "Q: Which planet")
PROMPTS = [p for p in ORACLE if p["prompt"].startswith(FIRST_WORDS)]
COUNT = 8
CLEAR = 0.15
"""Distance of the two best logits of transformers, far beyond what f16 changes."""

pytestmark = [pytest.mark.models, pytest.mark.smollm2, pytest.mark.slow]


def compiled(**options):
    """The decode step of the model in f16 with a cache of 64 tokens."""
    loaded = load_any(MODEL, Diagnostics())
    return compile_loaded(loaded, CompileRequest(phase="decode", dtype="f16", seq=64, **options))


@pytest.fixture(scope="module")
def wafer():
    """Tokens of all prompts from emitted CSL; prints the time and the memory that they took."""
    began = time.perf_counter()

    def tell(number, token, text):
        spent = time.perf_counter() - began
        print(f"{spent:7.0f} s: prompt {number}, token {token}: {text!r}", file=sys.stderr)

    program = compiled(target="csl", mesh="96x96")
    request = RunRequest(tuple(tuple(p["prompt_ids"]) for p in PROMPTS), COUNT, ignore_eos=True)
    with opened("csl") as backend:
        answers = run_emitted(program.emitted, request, backend, Diagnostics(), on_token=tell)
    steps = sum(len(p["prompt_ids"]) + COUNT - 1 for p in PROMPTS)
    spent, most = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        f"{steps} steps in {spent:.0f} s, compiling included: {spent / steps:.1f} s each, "
        f"{answers[-1].wall_seconds_per_token:.1f} s from token to token; {most / 2**20:.1f} GiB",
        file=sys.stderr,
    )
    return [answer.tokens for answer in answers]


@pytest.fixture(scope="module")
def interpreted():
    """Tokens of all prompts from the interpreter of the tile level."""
    program = compiled(mesh="2x2", device="ideal", compile_to="tile")
    module = program.modules["decode"]
    tensors = open_weights(
        find_weights(MODEL, None, None), program.loaded.config, None, Diagnostics()
    )
    table = np.asarray(tensors["embedding"])
    taken = {b.value for b in module.buffers if b.role == "in"}
    (entry,) = {p.name for p in module.ports if p.direction == "in" and p.buffer in taken}
    found = []
    for prompt in PROMPTS:
        machine = TileMachine(module)
        for port in module.ports:
            if port.direction == "in" and port.name in tensors:
                machine.load(port.name, tensors[port.name])
        tokens = list(prompt["prompt_ids"])
        for position in range(len(tokens) + COUNT - 1):
            machine.load(entry, table[tokens[position]][None, None])
            logits = machine.run({"pos": position})["logits"].ravel()
            if position == len(tokens) - 1:
                tokens.append(int(logits.argmax()))
        found.append(tokens[len(prompt["prompt_ids"]) :])
    return found


def test_the_prompts_have_clear_answers():
    assert len(PROMPTS) == 4
    for prompt in PROMPTS:
        best, second = (np.array(prompt[f"{which}_logits"][:COUNT]) for which in ("best", "second"))
        assert (best - second > CLEAR).all(), prompt["prompt"]


def test_the_interpreter_finds_them_in_f16(interpreted):
    assert interpreted == [p["tokens"][:COUNT] for p in PROMPTS]


def test_the_wafer_finds_the_tokens_of_the_interpreter(wafer, interpreted):
    assert wafer == interpreted
