"""Caches in NHD layout shared with torch: what transformers computed is read, and what a program
writes is what transformers would have cached."""

from __future__ import annotations

import pytest

WORD = "the extra is not installed: pip install 'meshc[torch]'"
torch = pytest.importorskip("torch", reason=WORD)
transformers = pytest.importorskip("transformers", reason=WORD)

from test_torch_models import BATCH, SEQ, compiled, network, prompts  # noqa: E402

import meshc.torch  # noqa: E402

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("default")]

PAGE, LENGTHS = 16, (21, 18)
NEAR = 2e-2
"""By how much numbers of f16 differ that were computed in f32."""


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def pair(request):
    model = network(request.param)
    return model, compiled(model, kv_layout="nhd")


def slots(row, count):
    """Page and place in it of each of ``count`` tokens of a row."""
    at = torch.arange(count)
    return row * (SEQ // PAGE) + at // PAGE, at % PAGE


def answered(model, ids):
    with torch.no_grad():
        return model(ids, use_cache=True)


def cached_by(model, ids):
    """Keys and values of one text, [layers, tokens, heads, lanes]."""
    layers = answered(model, ids[None]).past_key_values.layers
    return [
        torch.stack([getattr(layer, name)[0].transpose(0, 1) for layer in layers])
        for name in ("keys", "values")
    ]


def test_a_program_reads_what_transformers_has_cached(pair):
    """Blocks as vLLM allocates them, [2, .., blocks, tokens, heads, lanes], filled slot by slot."""
    original, model = pair
    config = original.config
    heads = config.num_key_value_heads, config.head_dim
    blocks = torch.zeros(2, config.num_hidden_layers, BATCH * SEQ // PAGE, PAGE, *heads)
    blocks = blocks.half()
    texts = [prompts(n, seed=n)["input_ids"][0] for n in LENGTHS]
    for row, text in enumerate(texts):
        page, place = slots(row, len(text))
        for half, rows in zip(blocks, cached_by(original, text), strict=True):
            half[:, page, place] = rows.half()
    fresh = torch.tensor([[31], [47]])
    logits = meshc.torch.step(fresh, torch.tensor(LENGTHS), [*blocks], model.program_key, 1)
    for row, text in enumerate(texts):
        longer = torch.cat([text, fresh[row]])
        wanted = answered(original, longer[None]).logits[0, -1]
        assert (logits[row, 0] - wanted).abs().max() < NEAR * wanted.abs().max()
        page, place = (int(one[-1]) for one in slots(row, len(longer)))
        for half, rows in zip(blocks, cached_by(original, longer), strict=True):
            assert torch.allclose(half[:, page, place].float(), rows[:, -1], atol=NEAR, rtol=NEAR)


def test_what_a_program_caches_is_what_transformers_does(pair):
    original, model = pair
    cache, text = model.new_cache(), prompts(37)["input_ids"]
    model(text.repeat(2, 1), past_key_values=cache)
    for tensor, rows in zip(cache.tensors, cached_by(original, text[0]), strict=True):
        assert tensor.shape[1:] == (BATCH * SEQ // PAGE, PAGE, *rows.shape[2:])
        for row in range(2):
            page, place = slots(row, 37)
            assert torch.allclose(tensor[:, page, place].float(), rows, atol=NEAR, rtol=NEAR)


def test_generate_is_that_of_transformers(pair):
    original, model = pair
    asked = prompts(20, 20) | {"max_new_tokens": 6, "do_sample": False}
    assert torch.equal(model.generate(**asked), original.generate(**asked))
