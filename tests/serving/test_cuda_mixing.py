"""Programs for CUDA whose steps read tokens of prompts beside those of requests that go on, in the
executor: whatever is read beside a request, its logits are to the bit those that it has alone."""

import numpy as np
import pytest
from test_cuda_drafts import served  # noqa: F401
from test_cuda_serving import CPU, DATA, FEW, OF_ONE, Requests, alone, drawn, sampled, service_of

from meshc.backends.cuda.executor import CXX
from meshc.driver import CompileRequest, load_any
from meshc.driver.serving import ServeRequest, opened_service
from meshc.support.diagnostics import Diagnostics

pytestmark = [
    pytest.mark.models,
    pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler"),
]
GPU = ("--target", "cuda", "--backend", "cuda-cpu")


@pytest.fixture(scope="module")
def mixing():
    few = OF_ONE | {"cache_tokens": 48}
    return service_of("tiny/llama-3h1", FEW, batch_tokens=7, **few)


def check(service, requests, random):
    """Requests that come while others are read and continued have what they have alone."""
    wanted, found = alone(service, requests), Requests(service.server())
    launches, machine = [], service.engine.machine
    plain, machine.run = machine.run, lambda given: launches.append(0) or plain(given)
    iterations = 0
    try:
        for name, (prompt, most) in requests.items():
            found.submit(name, prompt, most)
            for _ in range(int(random.integers(0, 3))):
                found.step()
                iterations += 1
            if name == 4:
                found.server.cancel(3)
        while not found.server.idle:
            found.step()
            iterations += 1
    finally:
        machine.run = plain
    for name in requests.keys() - {3}:
        assert found.same(wanted, name), name
    return found, len(launches), iterations


def test_requests_have_what_they_have_alone(mixing):
    """Shared beginnings, requests that are put back, and cancelled ones."""
    random = np.random.default_rng(15)
    requests = {name: (p, 8) for name, (p, _) in drawn(mixing.engine.vocab, 5, random, 24).items()}
    found, _, _ = check(mixing, requests, random)
    assert found.put_back
    turn = {9: ([*requests[4][0], *found.tokens[4], 7, 8], 4)}
    found.submit(9, *turn[9])
    record = found.server.step()
    ((_, start, _),) = record.segments
    assert start == len(turn[9][0]) - 3  # the last token of an answer has not been read
    found.drain()
    assert found.same(alone(mixing, turn), 9)


def test_a_program_chooses_what_the_host_does(mixing, monkeypatch):
    requests = drawn(mixing.engine.vocab, 4, np.random.default_rng(5), 24, 8)
    found, failed, read = sampled(mixing, requests)
    monkeypatch.setattr(type(mixing.engine), "chooses", False)
    wanted = sampled(mixing, requests)
    assert (found, failed) == wanted[:2] and not failed
    assert read == 0 < wanted[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "tokens", "how"),
    [
        ("tiny_experts/mixtral-5x2", 16, {}),
        ("tiny_experts/qwen3-moe-7x3", 9, {"page": 1}),
        ("tiny_gpt_oss/gpt-oss-5x2-yarn", 12, {"page": 64}),
        ("tiny_latent_experts/deepseek-v2-8x3", 8, {}),
        ("tiny_families/gemma2-6h2-window", 33, {"kv_dtype": "fp8_e4m3"}),
        ("tiny_families/gpt2-5h-tied", 11, {"seq": 24}),
        ("tiny_scaled/granite-6h2-biased", 40, {}),
        ("tiny_cuda/llama-4h2", 19, {"kv_layout": "nhd"}),
        ("tiny_families/phi3-5h1-window", 64, {}),
    ],
)
def test_families_read_prompts_beside_others(model, tokens, how):
    report = Diagnostics()
    asked = {"target": "cuda", "batch": 3, "seq": 64, "batch_tokens": tokens} | how
    loaded = load_any(str(DATA / model), report)
    usual = ServeRequest(prefixes=True)
    service = opened_service(loaded, CompileRequest(**asked), usual, report, backend=CPU)
    assert service.policy.chunk == tokens
    random = np.random.default_rng(4)
    longest = 17 if "gpt2" in model else 40
    requests = {n: (p, 4) for n, (p, _) in drawn(service.engine.vocab, 5, random, longest).items()}
    _, launches, iterations = check(service, requests, random)
    assert launches <= iterations


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--batch-tokens", "8"], "--batch-tokens is 8, but programs for --target python do not"),
        ([*GPU, "--batch-tokens", "3", "--batch", "4"], "step of 4 requests reads 4 to 128 tokens"),
        ([*GPU, "--batch-tokens", "129"], "step of 8 requests reads 8 to 128 tokens"),
        ([*GPU, "--batch-tokens", "16", "--drafts", "1"], "steps with --drafts 1 mix no tokens"),
        ([*GPU, "--batch-tokens", "16", "--cluster", "2"], "steps with --cluster 2 mix no tokens"),
        (
            [*GPU, "--batch-tokens", "16", "--policy", "layered", "--force"],
            "prompts of --serving layers! pass some layers at a time",
        ),
    ],
)
def test_what_mixes_no_tokens_is_refused(served, words, said):  # noqa: F811
    assert said in served(*words, code=1)
