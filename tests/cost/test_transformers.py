"""Layers of transformers against the published measurements."""

import pytest

from meshc.cost.transformers import Layer, decode_layer, prefill_layer
from meshc.devices import device

WSE2 = device("wse2")
# hidden, heads * head dim is the same (full multi-head attention is what was timed), FFN, layers
MODELS = {
    "llama3-8b": (4096, 14336, 32),
    "llama2-13b": (5120, 13824, 40),
    "codellama-34b": (8192, 22016, 48),
    "qwen2-72b": (8192, 29568, 80),
}
# WaferLLM Table 3: prefill tokens per second per request, 4096 tokens, P x P cores.
PREFILL = {
    "llama3-8b": {480: 20320.6, 600: 25037.2, 720: 27686.5},
    "llama2-13b": {480: 13685.1, 600: 16854.2, 720: 17498.3},
    "codellama-34b": {480: 5471.4, 600: 7540.1, 720: 8526.0},
    "qwen2-72b": {480: 2785.2, 600: 3775.5, 720: 4421.6},
}
# WaferLLM Table 4: decode tokens per second per request, 4096 tokens of context.
DECODE = {
    "llama3-8b": {420: 2699.9, 540: 2501.5, 660: 2243.3},
    "llama2-13b": {420: 2039.2, 540: 1899.4, 660: 1739.8},
    "codellama-34b": {420: 1450.8, 540: 1407.7, 660: 1359.2},
    "qwen2-72b": {420: 839.7, 540: 824.3, 660: 787.1},
}


def prefill(model, p, tokens=4096):
    """Tokens per second of a prompt."""
    hidden, inner, layers = MODELS[model]
    cost = prefill_layer(Layer(hidden, inner), p, tokens, WSE2) * layers
    return tokens / WSE2.seconds(cost.total)


def decode(model, p, context=4096):
    """Tokens per second after ``context`` others."""
    hidden, inner, layers = MODELS[model]
    cost = decode_layer(Layer(hidden, inner), p, context, WSE2) * layers
    return 1 / WSE2.seconds(cost.total)


@pytest.mark.parametrize("model", MODELS)
def test_prefill_of_the_paper(model):
    for p, rate in PREFILL[model].items():
        assert prefill(model, p) == pytest.approx(rate, rel=0.025)


@pytest.mark.parametrize("model", MODELS)
def test_decode_of_the_paper(model):
    for p, rate in DECODE[model].items():
        assert decode(model, p) == pytest.approx(rate, rel=0.02)


def test_what_the_predictions_rest_on():
    """The fit of the paper's tables is all numbers that were calibrated on them, and nothing else;
    what CSL is predicted by (bytes of a statement, cycles of single operations) is no part."""
    seen = WSE2.watched()
    parts = (decode_layer(Layer(4096, 14336), 420, 4096, seen) * 32).parts()
    assert seen.inputs()["calibrated"] == ("route_cycles", "op_cycles", "combine_cycles")
    assert parts["waits"] == 0 and parts["overhead"] > parts["compute"] > 0
    prefill_layer(Layer(4096, 14336), 480, 4096, seen)
    fitted = {
        name
        for name, number in WSE2.numbers.items()
        if number.kind == "calibrated" and number.source.startswith("fit of W")
    }
    assert set(seen.inputs()["calibrated"]) == fitted
