"""Prompts of drawn decoders, read by kernels of tasks in the CPU executor, beside NumPy in
float64."""

from dataclasses import replace

import pytest
from drawn_decoders import drawn_decoder
from latent_decoders import drawn_latent_decoder
from reduced import only
from task_prompts import PromptJudge, lengths
from task_steps import mode_of

from meshc.backends.cuda.executor import CXX
from meshc.support.diagnostics import MeshcError

pytestmark = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")


def judge(drawn, seed, folder):
    """The judge, None where 16 tokens leave no room for tiles."""
    try:
        return PromptJudge.of(drawn, seed, folder)
    except MeshcError as refusal:
        assert refusal.diagnostics[0].code == "does-not-fit", refusal
        return None


def check(drawn, seed, folder):
    # What the last layer attends is no part of what is cached, so there are two at least.
    decoder = replace(drawn.decoder, layers=max(drawn.decoder.layers, 2))
    drawn = replace(drawn, decoder=decoder, meet="tags" if seed // 2 % 2 else "counter")
    one = judge(drawn, seed, folder)
    if one is None:
        return
    mode = mode_of(seed)
    for length in lengths(drawn.capacity, seed):
        one.check(length, mode=mode)


# Windows, sinks, batches beside which a prompt is read, norms of heads, learned positions.
@pytest.mark.parametrize("seed", only(range(200), 3, 20, 22))
def test_a_prompt_agrees_with_float64(seed, tmp_path):
    check(drawn_decoder(seed), seed, tmp_path)


@pytest.mark.parametrize("seed", only(range(40), 4))
def test_a_prompt_of_latent_attention_agrees_with_float64(seed, tmp_path):
    check(drawn_latent_decoder(seed), seed, tmp_path)
