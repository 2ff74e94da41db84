"""SmolLM2-135M decoded by emitted CUDA in the CPU executor: the recorded tokens of transformers.

The whole model takes 7 s of a core for each token: that is for the slow runs. The others decode
with the first layers alone, by the library and by the command.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from reduced import each

from meshc.backends.cuda import CpuMachine, Draw, LanguageModel, from_json
from meshc.backends.cuda.executor import CXX
from meshc.cli import main
from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.frontend.checkpoints import catalogue_config, find_packaged_weights, open_checkpoint
from meshc.interp.check import Session
from meshc.serving.sampling import GREEDY, Sampler, Sampling
from meshc.support.diagnostics import Diagnostics

ROOT = Path(__file__).parents[2]
MODEL = "smollm2-135m"
(PARIS,) = (
    record
    for record in json.loads((ROOT / "tests" / "data" / "smollm2_oracle.json").read_text())
    if record["prompt"] == "The capital of France is"
)
PROMPT, TOKENS = PARIS["prompt_ids"], PARIS["tokens"][:5]


pytestmark = [
    pytest.mark.models,
    pytest.mark.smollm2,
    pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler"),
]

STEPS = (1, 4, 16)


@cache
def tensors(layers: int | None) -> Mapping[str, np.ndarray]:
    """The weights of the first ``layers``, or of all."""
    checkpoint = open_checkpoint(find_packaged_weights(MODEL), catalogue_config(MODEL))
    found = {}
    for name in checkpoint.names():
        if layers is None or not checkpoint.is_per_layer(name):
            found[name] = checkpoint.read(name)
        else:
            found[name] = np.stack([checkpoint.read_layer(name, n) for n in range(layers)])
    return found


def decoded(layers: int | None, chunks: bool) -> tuple[list[int], np.ndarray]:
    """Five tokens behind the prompt, and the logits of each."""
    request = CompileRequest(target="cuda", seq=32, layers=layers)
    result = compile_loaded(load_any(MODEL, Diagnostics()), request)
    program = from_json(result.files["manifest.json"])
    assert program.prefills
    if not chunks:
        program = replace(program, prefills=())
    model = LanguageModel(program, CpuMachine(program.kernels, result.files), tensors(layers))
    logits: list[np.ndarray] = []
    tokens = list(model.generate(PROMPT, len(TOKENS), lambda _, row: logits.append(row)))
    return tokens, np.array(logits)


@cache
def interpreted(layers: int | None, tokens: tuple[int, ...]) -> np.ndarray:
    """Logits of the graph interpreter behind the prompt and behind all but the last of
    ``tokens``."""
    module = load_any(MODEL, Diagnostics()).graph("decode", 32, layers)
    session = Session(module, tensors(layers))
    rows = []
    for position, token in enumerate([*PROMPT, *tokens[:-1]]):
        (logits,) = session.step({"tokens": np.array([[token]])}, {"pos": position})
        rows.append(logits.reshape(-1))
    return np.array(rows[len(PROMPT) - 1 :])


def check(layers: int | None, chunks: bool) -> list[int]:
    """The tokens, which are the interpreter's; logits as near as weights of 16 bits are."""
    tokens, logits = decoded(layers, chunks)
    wanted = interpreted(layers, tuple(tokens))
    assert tokens == wanted.argmax(1).tolist()
    assert np.abs(logits - wanted).max() <= 2.0**-9 * np.abs(wanted).max()
    return tokens


def said(capsys: pytest.CaptureFixture[str], count: int, *more: str) -> str:
    """What `meshc run` says behind the prompt."""
    command = ["run", MODEL, "--target", "cuda", "--backend", "cuda-cpu", *more]
    command += ["--prompt", PARIS["prompt"], "--max-tokens", str(count)]
    assert main(command) == 0
    return capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("chunks", [True, False], ids=["chunks", "single tokens"])
def test_the_first_layers_give_the_tokens_of_the_interpreter(chunks):
    check(3, chunks)


@pytest.mark.parametrize("layers", each([1, 3], 2))
def test_the_command_generates_the_tokens_of_the_interpreter(layers, capsys):
    found = json.loads(said(capsys, 2, "--layers", str(layers), "--json"))["tokens"]
    assert len(found) == 2 and found == interpreted(layers, tuple(found)).argmax(1).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("chunks", [True, False], ids=["chunks", "single tokens"])
def test_all_layers_give_the_recorded_tokens(chunks):
    assert check(None, chunks) == TOKENS


@pytest.mark.slow
@pytest.mark.parametrize("layers", [1, pytest.param(None, marks=pytest.mark.slow)])
def test_the_program_chooses_and_draws_the_tokens_of_the_host(layers):
    """In launches of several steps, among 49152 words, up to a token that ends a text."""
    result = compile_loaded(
        load_any(MODEL, Diagnostics()), CompileRequest(target="cuda", seq=32, layers=layers)
    )
    program = from_json(result.files["manifest.json"])
    model = LanguageModel(program, CpuMachine(program.kernels, result.files), tensors(layers))
    for sampling in (GREEDY, Sampling(1.2, 40, 0.95)):
        host, count = Sampler(sampling, 11), len(TOKENS)
        wanted = model.generate_all(
            [PROMPT], count, lambda *_: False, (), lambda _, row, own=host: own(row)
        )
        assert layers or sampling != GREEDY or wanted == [TOKENS]
        own = Sampler(sampling, 11)
        draw = Draw(sampling.numbers().tolist(), [own.key], lambda _, row, of=own: of(row))
        for steps in STEPS:
            assert (
                model.generate_chosen([PROMPT], count, lambda *_: False, (), steps, draw) == wanted
            )
        first = wanted[0].index(wanted[0][3])
        for steps in STEPS:
            found = model.generate_chosen(
                [PROMPT], count, lambda *_: False, {wanted[0][3]}, steps, draw
            )
            assert found == [wanted[0][: first + 1]]


@pytest.mark.slow
def test_the_command_says_eight_tokens(capsys):
    assert said(capsys, 8) == " Paris.\n\nThe answer is:\n"
