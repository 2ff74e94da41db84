"""``--overlap``: chunks of ranks in two halves, where the cost of a node says or a number does."""

import json
import re
from functools import cache

import pytest

from meshc.backends.cuda import halves
from meshc.backends.cuda.halves import splitting_of
from meshc.cost.nodes.iteration_batches import prompts
from meshc.cost.nodes.overlap import fused_only, overlapped
from meshc.cost.nodes.ranks import Ranks
from meshc.cost.nodes.splitting import boundaries, boundaries_tried, threshold_tokens
from meshc.devices import device
from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.driver.compiling import given_module
from meshc.driver.served_shapes import served_model
from meshc.support.diagnostics import Diagnostics, MeshcError

MODEL = "llama-3.3-70b"


@cache
def loaded(name=MODEL):
    return load_any(name, Diagnostics())


@cache
def step(name=MODEL):
    return given_module(loaded(name), "decode", asked(), Diagnostics())


def asked(**options):
    return CompileRequest(**{"target": "cuda", "device": "h100", "gpus": 8, "seq": 1024} | options)


def splitting(name=MODEL, **options):
    report = Diagnostics()
    found = splitting_of(asked(**options), step(name), report)
    return found, [m for m in report.messages if m.code == "overlap"]


def test_chunks_are_cut_where_the_cost_of_the_node_is_lower():
    """From the threshold of a prompt on, where no wave is paid; halves fit the kernels."""
    found, (told,) = splitting(chunk=1024, overlap="auto")
    ranks = Ranks(served_model(MODEL), device("h100x8"), 8)
    threshold, blocks = threshold_tokens(ranks), found.multiprocessors
    assert f"chunks of {threshold} tokens and more are read in two halves" in told.message
    assert found.cuts[0].tokens == threshold == 640 and found.tokens == 1024
    for cut in found.cuts:
        batch = prompts([cut.tokens])
        if cut.at:
            assert cut.at in boundaries(ranks, cut.tokens, blocks)
            assert max(cut.at, cut.tokens - cut.at) <= 512
            faster = overlapped(ranks, batch, cut.at, blocks).seconds
            assert faster < fused_only(ranks, batch).seconds


def test_each_length_has_the_cut_that_is_fastest():
    """Or none: of 832 tokens none is faster than the fused collective alone."""
    found, _ = splitting(chunk=1024, overlap="auto")
    ranks, blocks = Ranks(served_model(MODEL), device("h100x8"), 8), found.multiprocessors
    for tokens in range(64, 1025, 64):
        batch = prompts([tokens])
        places = boundaries_tried(ranks, tokens, blocks)
        seconds = {at: overlapped(ranks, batch, at, blocks).seconds for at in places}
        best = min(seconds, key=lambda at: seconds[at], default=0)
        faster = best and seconds[best] < fused_only(ranks, batch).seconds
        cut = [cut.at for cut in found.cuts if cut.tokens <= tokens][-1:]
        assert cut == ([best if faster else 0] if tokens >= 640 else [])
    assert 0 in [cut.at for cut in found.cuts]


def test_halves_that_no_kernel_has_room_for_are_none(monkeypatch):
    assert max(cut.at for cut in splitting(chunk=640, overlap="auto")[0].cuts) == 384
    monkeypatch.setattr(halves, "MOST_CHUNK", 300)
    assert splitting(chunk=640, overlap="auto")[0] is None


@pytest.mark.parametrize("chunk", [64, 512])
def test_short_chunks_stay_whole_and_a_remark_says_so(chunk):
    found, (told,) = splitting(chunk=chunk, overlap="auto")
    assert found is None
    assert f"chunks of {chunk} tokens are read in one piece" in told.message
    assert "pay from 640 tokens on" in told.message


def test_a_cut_that_is_given_is_taken():
    found, told = splitting(chunk=256, overlap="100")
    assert [(cut.tokens, cut.at) for cut in found.cuts] == [(101, 100)] and told == []
    assert splitting(chunk=256)[0] is None


def test_a_compiled_program_has_the_queue():
    """Of a model at two layers; both streams and the cuts are in its manifest."""
    request = asked(chunk=1024, overlap="512", layers=2, dtype="bf16")
    files = compile_loaded(loaded(), request, (), Diagnostics()).files
    prefill = json.loads(files["manifest.json"])["prefills"][0]
    assert prefill["tokens"] == 512 and prefill["overlap"]["tokens"] == 1024
    assert prefill["overlap"]["cuts"] == [{"tokens": 513, "at": 512}]
    (stage,) = prefill["overlap"]["stages"]
    assert {one["stream"] for one in stage["queued"]} == {"compute", "communication"}
    assert "beside_chunk_all_reduce_norm.cu" in files


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"chunk": 64, "overlap": "64"}, "--overlap is 64, not none, auto or 1 to 63 tokens"),
        ({"chunk": 1024, "overlap": "513"}, "not none, auto or 1 to 512 tokens"),
        ({"chunk": 64, "overlap": "half"}, "--overlap is half, not none, auto or 1 to 63 tokens"),
        ({"chunk": 64, "overlap": "auto", "gpus": 1}, "one GPU has no collectives to hide"),
        ({"overlap": "auto"}, "it is for --target cuda with --gpus and --chunk"),
        ({"chunk": 64, "overlap": "8", "target": "csl", "gpus": 1}, "--target csl do not take it"),
        ({"chunk": 1024}, "not a multiple of 8 up to 512; with --overlap up to 1024"),
        ({"chunk": 1032, "overlap": "auto"}, "not a multiple of 8 up to 1024"),
        (
            {"chunk": 64, "overlap": "auto", "device": "gh200"},
            "the cost of 8 GPUs gh200",
        ),
        ({"chunk": 64, "overlap": "auto", "gpus": 16}, "the cost of 16 GPUs h100 is not known"),
    ],
)
def test_what_cannot_be_cut_is_refused(options, words):
    with pytest.raises(MeshcError, match=re.escape(words)) as error:
        request = asked(**options)
        request.check()
        splitting_of(request, step(), Diagnostics())
    assert error.value.diagnostics[0].code == "bad-argument"


def test_a_model_of_latent_attention_has_no_cost():
    latent = step("deepseek-v2-lite")
    with pytest.raises(MeshcError, match="emitted programs ask the latents"):
        splitting_of(asked(chunk=64, overlap="auto"), latent, Diagnostics())
