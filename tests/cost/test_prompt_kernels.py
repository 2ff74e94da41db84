"""Time of kernels that read many tokens of a prompt at once."""

from dataclasses import replace

import pytest

from meshc.backends.cuda.program import KERNELS, Prefill
from meshc.cost.prompt_kernels import PromptKernels
from meshc.cost.served_attention import GroupedAttention
from meshc.devices import device
from meshc.driver.served_shapes import served_model

LLAMA = served_model("llama-3-8b")


H200 = device("h200")
# As H200, but without warpgroups that multiply.
OF_WARPS = replace(H200, facts={**H200.facts, "cuda_arch": "sm_90"})


def kernels(tokens=512, model=LLAMA, least=64, gpu=H200):
    return PromptKernels(gpu, model, tokens, least)


@pytest.mark.parametrize(
    ("tokens", "behind", "us"),
    [(128, 0, 19747), (128, 3968, 24074), (512, 0, 36231), (512, 3584, 43877)],
)
def test_the_four_chunks_that_its_numbers_are_fitted_to(tokens, behind, us):
    """Measured on an H200, without logits, when warps multiplied (docs/performance.md)."""
    found = kernels(tokens, gpu=OF_WARPS).predicted([(behind, behind + tokens)], False)
    assert found.seconds * 1e6 == pytest.approx(us, rel=0.015)


@pytest.mark.parametrize("tokens", [1, 63, 64, 65, 512, 513, 575, 576, 1100])
@pytest.mark.parametrize("least", [1, 64])
def test_chunks_are_those_that_a_program_reads(tokens, least):
    one = Prefill(KERNELS, 512, least, (), (), ())
    wanted, at = [], 0
    while tokens - at >= least and at < tokens:
        count, _ = one.piece(tokens - at)
        wanted.append((at, at + count))
        at += count
    assert kernels(least=least).chunks(tokens) == wanted


def test_a_layer_is_a_loop_over_steps_and_tokens_by_hand():
    """One layer of one head of 64 lanes, 128 rows of weights in all: each product has one block."""
    layer = replace(LLAMA.layers[0], dense_width=64, gated=False)
    small = replace(
        LLAMA, hidden=64, attention=GroupedAttention(1, 1, 64), layers=(layer,), vocabulary=64
    )
    step, token, seen = (H200.real(f"chunk_{name}_ns") for name in ("step", "token", "seen"))
    found = kernels(16, small).predicted([(100, 116)], False)
    products = {part.name: part.cost.total for part in found.parts}
    assert products["attention"] == pytest.approx(116 * 0.5 * seen * 1e-9)
    for name in ("projections", "output projection", "inner products", "outer product"):
        assert products[name] == pytest.approx(4 * (step + 16 * token) * 1e-9)


def test_products_of_warpgroups_take_what_limits_them_by_hand():
    """2,048 tokens of Llama-3-8B: 224 x 8 blocks of inner products in 14 turns of 256 steps, whose
    bytes L2 gives: weights for each tile of tokens, values for each pair of blocks of rows."""
    found = kernels(2048).predicted([(0, 2048)], False)
    parts = {part.name: part.cost for part in found.parts}
    rate, l2 = H200.real("tensor_flops_per_second"), H200.real("l2_bytes_per_second")
    inner, step = parts["inner products"], 128 * 256 * 16 * 2 * 132 / rate
    assert inner.compute == pytest.approx(32 * 14 * 256 * step)
    copied = 28672 * 4096 * 2 * 8 + 112 * 4096 * 2048 * 2
    stored = 28672 * 2048 * 4 / H200.real("stream_bytes_per_second")
    assert inner.compute + inner.transfer == pytest.approx(32 * (copied / l2 + stored))
    rows = 6144 + 4096 + 28672 + 14336
    assert rows * 4096 * 2048 * 2 * 32 / found.seconds > 500e12


def test_short_prompts_take_no_longer_in_kernels_of_more_tokens():
    short, long = (kernels(n).predicted([(0, 100)], False).seconds for n in (128, 2048))
    assert short == long


def test_a_window_leaves_out_what_no_query_sees():
    near = replace(LLAMA, layers=tuple(replace(one, window=64) for one in LLAMA.layers))
    far, close = (
        next(
            p
            for p in kernels(128, m).predicted([(4000, 4128)], False).parts
            if p.name == "attention"
        )
        for m in (LLAMA, near)
    )
    assert close.cost.total * 40 < far.cost.total


def test_no_prompt_is_faster_than_its_bound():
    for gpu, names in (
        (OF_WARPS, {"chunk_step_ns", "chunk_token_ns", "chunk_seen_ns"}),
        (H200, {"tensor_flops_per_second", "l2_bytes_per_second", "chunk_seen_ns"}),
    ):
        found = kernels(gpu=gpu).predicted([(0, 512), (512, 1024)], True)
        assert 0 < found.bound < found.seconds
        assert {one.name for one in found.inputs} >= names
