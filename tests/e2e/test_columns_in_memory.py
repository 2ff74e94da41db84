"""Left sides of products in memory, which come through the ring beside the weights: steps of
batches and prompts of many tokens, in the CPU executor, beside NumPy in float64."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path

import pytest
from drawn_decoders import drawn_decoder, quantised_decoder
from latent_decoders import drawn_latent_decoder
from reduced import only
from task_prompts import PromptJudge
from task_step_cases import PIECEWISE
from task_steps import Judge, mode_of

import meshc
from meshc.backends.cuda.executor import CXX, Mode, modes
from meshc.backends.cuda.tasks import streamed_products
from meshc.support.diagnostics import MeshcError

pytestmark = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")


def judged(make):
    """What ``make`` gives; None where a block has no room for tiles."""
    try:
        return make()
    except MeshcError as refusal:
        assert refusal.diagnostics[0].code == "does-not-fit", refusal
        return None


@pytest.fixture(autouse=True)
def streamed(request, monkeypatch):
    """Of every second seed no left side is copied, though a block has room for it."""
    seed = getattr(request.node, "callspec", None) and request.node.callspec.params.get("seed")
    if seed and seed % 2:
        monkeypatch.setattr(streamed_products, "columns_are_copied", lambda *given: False)


def judge_of(drawn, seed, folder, keep):
    """The judge of a step whose tasks have whole left sides where parts of them cut blocks."""
    try:
        return Judge.of(drawn, seed, folder, keep=keep)
    except MeshcError as refusal:
        if refusal.diagnostics[0].code != "cuda-shape" or drawn.parts == 1:
            raise
        return Judge.of(replace(drawn, parts=1), seed, folder, keep=keep)


def check_step(drawn, seed, folder, keep=""):
    """A step is as near to float64 as bounds say or, where left sides that round the other way move
    logits by more than that, nearly as one whose blocks make left sides for themselves."""
    drawn = drawn.with_columns(5 + seed % 12)
    judge = judged(lambda: judge_of(drawn, seed, folder, keep))
    if judge is None:
        return
    assert keep in {weight.codes for weight in judge.step.program.weights.values()}
    assert ("mc::Streamed" if seed % 2 else "mc::Copied") in judge.step.text
    try:
        judge.check(mode=mode_of(seed))
    except AssertionError:
        other = Judge.of(replace(drawn, columns=False), seed, folder, keep=keep)
        with pytest.raises(AssertionError, match="from those of float64"):
            other.check(mode=mode_of(seed))
        if judge.worst > 2 * other.worst:
            raise


@pytest.mark.parametrize("seed", only(range(200), 15, 24))
def test_a_step_agrees_with_float64(seed, tmp_path):
    check_step(drawn_decoder(seed), seed, tmp_path)


@pytest.mark.parametrize("seed", only(range(40), 2))
def test_a_step_of_latent_attention_agrees_with_float64(seed, tmp_path):
    check_step(drawn_latent_decoder(seed), seed, tmp_path)


@pytest.mark.parametrize("seed", only(range(200), 3, 8))
def test_a_step_whose_weights_stay_quantised_agrees_with_float64(seed, tmp_path):
    drawn, form = quantised_decoder(seed)
    check_step(drawn, seed, tmp_path, form)


@pytest.mark.parametrize("mode", only(modes(), Mode("random", True)))
def test_left_sides_come_in_pieces_in_every_order(mode, tmp_path):
    """Of steps one behind the other, with as many pieces in each phase as its width has."""
    judge = Judge.of(PIECEWISE, 1, tmp_path)
    assert {int(n) for n in re.findall(r"coming.ask<(\d+)>", judge.step.text)} == {8, 39, 69}
    judge.check(mode=mode)


@pytest.mark.parametrize("tokens", [2, 4])
def test_vectors_of_so_few_tokens_have_two_values_each_and_come_through_the_ring(tokens, tmp_path):
    """A block that copied them would take half of the second values from nowhere."""
    decoder = replace(drawn_decoder(20).decoder, layers=2)
    drawn = replace(drawn_decoder(20), decoder=decoder, capacity=tokens)
    judge = PromptJudge.of(drawn, 20, tmp_path, tokens)
    text = judge.step.texts["prompt.cu"]
    assert "mc::Copied" not in text and "mc::Streamed" in text
    for length in range(2, tokens + 1):
        judge.check(length)


def check_prompt(drawn, seed, folder, keep=""):
    """As of a step: tasks of 16 tokens make left sides for themselves."""
    # What the last layer attends is no part of what is cached, so there are two at least.
    rng = random.Random(seed)
    tokens = rng.choice([17, 20, 24, 24, 32, 33, 40, 48, 64, 96])
    decoder = replace(drawn.decoder, layers=max(drawn.decoder.layers, 2))
    drawn = replace(drawn, decoder=decoder, capacity=max(drawn.capacity, tokens + 9))
    judge = judged(lambda: PromptJudge.of(drawn, seed, folder, tokens, keep=keep))
    if judge is None:
        return
    assert "mc::Streamed" in judge.step.texts["prompt.cu"]
    for length in {rng.choice([2, tokens - 1]), tokens + rng.choice([0, 1, 2, 8])}:
        try:
            judge.check(length, mode=mode_of(seed))
        except AssertionError as problem:
            other = judged(lambda: PromptJudge.of(drawn, seed, folder, keep=keep))
            assert other is not None
            with pytest.raises(AssertionError, match="from float64"):
                other.check(length, mode=mode_of(seed))
            if "from float64" not in str(problem) or judge.worst > 2 * other.worst:
                raise


@pytest.mark.parametrize("seed", only(range(200), 12, 23))
def test_a_prompt_agrees_with_float64(seed, tmp_path):
    check_prompt(drawn_decoder(seed), seed, tmp_path)


@pytest.mark.parametrize("seed", only(range(200), 4))
def test_a_prompt_of_weights_that_stay_quantised_agrees_with_float64(seed, tmp_path):
    drawn, form = quantised_decoder(seed)
    check_prompt(drawn, seed, tmp_path, form)


@pytest.mark.parametrize("seed", only(range(40), 3))
def test_a_prompt_of_latent_attention_agrees_with_float64(seed, tmp_path):
    check_prompt(drawn_latent_decoder(seed), seed, tmp_path)


DATA = Path(__file__).parents[1] / "data"


def test_batches_have_them_where_that_is_predicted_to_be_faster():
    given = {"target": "cuda", "device": "h200", "seq": 4096, "layers": 2, "phase": "decode"}
    for batch, in_memory in ((4, False), (16, True)):
        made = meshc.compile("llama-3-8b", batch=batch, **given)
        assert any(m.code == "columns-in-memory" for m in made.report.messages) is in_memory
        assert ("mc::Copied" in made.files["step.cu"]) is in_memory


def test_batches_have_them_where_blocks_have_no_room_for_them():
    model = DATA / "real_configs" / "gemma-2-27b.json"
    asked = {"target": "cuda", "device": "h200", "phase": "decode", "layers": 1, "seq": 4096}
    compiled = meshc.compile(str(model), batch=16, **asked)
    (told,) = [m.message for m in compiled.report.messages if m.code == "columns-in-memory"]
    assert told == "left sides of products lie in memory: blocks have no room for them"
    assert "mc::Streamed" in compiled.files["step.cu"]


@pytest.mark.parametrize(
    ("model", "gpus"),
    [
        pytest.param(model, gpus, marks=[] if "gemma2" in model and gpus == 1 else pytest.mark.slow)
        for model in ("tiny_families/gemma2-6h2-window", "tiny_families/olmo2-6h2")
        for gpus in (1, 2)
    ],
)
def test_a_long_prompt_is_read_by_default_and_has_the_tokens_of_python(model, gpus):
    """By 64 tokens, then 15 by tasks of 16; such models have no kernels of many."""
    prompt = [*range(1, 41), *range(1, 40)]
    made = meshc.compile(str(DATA / model), target="cuda", dtype="f16", seq=160, gpus=gpus)
    assert "long_prompt.cu" in made.files
    with made.load(backend="cuda-cpu") as program:
        found = program.generate(prompt, 4, ignore_eos=True).tokens
    with meshc.compile(str(DATA / model), mesh="2x2", dtype="f32", seq=160).load() as program:
        assert found == program.generate(prompt, 4, ignore_eos=True).tokens
