"""Chunks of prompts in two halves on two streams: the same bits as in one piece, in every order
that events allow; a race where an event is not waited for; the order that the cost model prices."""

import itertools
import json
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from fake_driver import FakeDriver, built_driver
from hypothesis import given, settings
from hypothesis import strategies as st
from rank_programs import rank_program
from test_cuda_rank_chunks import PROMPT
from test_cuda_rank_machine import OnePeer, cubin_of
from test_cuda_ranks import TINY, decoded, graph_of, interpreted, tensors_of

from meshc.analysis.cuda.stream_turns import COMMUNICATION, COMPUTE, TURNS
from meshc.backends.cuda import CpuNode, LanguageModel
from meshc.backends.cuda.driver import gpu_machine
from meshc.backends.cuda.driver.gpu import Device
from meshc.backends.cuda.driver.launch import Kernel as LoadedKernel
from meshc.backends.cuda.driver.rank_machine import RankMachine
from meshc.backends.cuda.executor import CXX, FIRST, QUICK, Library, Mode, modes
from meshc.backends.cuda.executor.stream_races import (
    allowed_order,
    check_races,
    known_before,
    written_by,
)
from meshc.backends.cuda.gpu_shares import RankShare
from meshc.backends.cuda.launches import Launch
from meshc.backends.cuda.library import headers
from meshc.backends.cuda.overlapping import Splitting
from meshc.backends.cuda.program import from_json
from meshc.backends.cuda.queues import Cut, Queued
from meshc.backends.cuda.ranks import RankTensors
from meshc.cost.nodes.iteration_batches import prompts
from meshc.cost.nodes.overlap import overlapped
from meshc.cost.nodes.ranks import Ranks
from meshc.devices import device
from meshc.driver import CompileRequest, compile_loaded, graph_module, load_any
from meshc.driver.served_shapes import served_model
from meshc.interp.check import RandomArrays
from meshc.interp.together import rank_inputs, run_parts
from meshc.passes.manager import PassManager
from meshc.passes.registry import parse_pipeline
from meshc.pipelines import pipeline_to
from meshc.support.diagnostics import Diagnostics, MeshcError

executor = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")
MODEL, CAPACITY = "llama-4h2", 8


@cache
def whole_graph():
    return graph_of(MODEL)


@cache
def program(count, transport="multimem", at=0, budget=2):
    """With kernels of eight tokens; chunks of more than ``at``, up to 16, in two halves."""
    asked = Splitting(16, budget, (Cut(at + 1, at),)) if at else None
    return rank_program(whole_graph(), count, transport, CAPACITY, asked)


def logits(count, transport="multimem", at=0, mode=FIRST, prompt=PROMPT):
    found, texts = program(count, transport, at)
    node = CpuNode(found.kernels, {**texts, **headers()}, count, mode, QUICK)
    return decoded(LanguageModel(found, node, tensors_of(MODEL)), prompt)


# ---- What is computed


@executor
@pytest.mark.parametrize(
    ("count", "transport"), [(2, "multimem"), pytest.param(3, "peers", marks=pytest.mark.slow)]
)
def test_two_halves_give_the_bits_of_one_piece(count, transport):
    """Wherever the cut is: of 13 tokens five to eight are in the first half, so that the second
    one's attention sees keys of the first; and in orders that put either stream first."""
    tokens, wanted = logits(count, transport)
    exact = interpreted(whole_graph(), tensors_of(MODEL), tokens, PROMPT)
    assert tokens == exact.argmax(1).tolist()
    assert np.abs(wanted - exact).max() <= 2.0**-8 * np.abs(exact).max()
    for at, mode in ((5, FIRST), (8, Mode("reverse", True)), (6, Mode("random", True, 3))):
        found, rows = logits(count, transport, at, mode)
        assert found == tokens and (rows == wanted).all()


@executor
def test_two_halves_mean_what_the_pass_split_tokens_does():
    """The whole prompt as a batch of one request, dealt to ranks and cut at the same token."""
    at, tokens = 6, np.array(PROMPT)[:, None]
    loaded = load_any(str(TINY / MODEL), Diagnostics())
    module = graph_module(loaded, "decode", CompileRequest(device="ideal", seq=32))
    batch = f"canonicalize,eliminate-transpose,batch-tokens{{tokens={len(PROMPT)},requests=1}}"
    cut = f"tensor-parallel{{ranks=2}},split-tokens{{at={at}}}"
    module = PassManager(parse_pipeline(f"{batch},{cut}")).run(module)
    own = [rank_inputs(module, tensors_of(MODEL), rank) for rank in range(2)]
    scalars = {"owner": [0] * len(PROMPT), "pos": list(range(len(PROMPT)))}
    results = run_parts(module, [{**one, "tokens": tokens} for one in own], scalars, np.float64)
    wanted = results[0][0].reshape(len(PROMPT), -1)[-1]
    _, rows = logits(2, at=at)
    assert np.abs(rows[0] - wanted).max() <= 2.0**-8 * np.abs(wanted).max()


@executor
@pytest.mark.slow
@pytest.mark.parametrize("at", [1, 5, 7])
def test_every_schedule_gives_the_bits_of_one_piece(at):
    """Also prompts that are read in several pieces, in halves and whole."""
    for length in (11, 13, 21):
        prompt = [(7 * n * n + 3) % 107 for n in range(length)]
        _, wanted = logits(2, prompt=prompt)
        for mode in modes((1, 2)):
            assert (logits(2, "multimem", at, mode, prompt)[1] == wanted).all()


@given(st.integers(1, 60), st.integers(1, CAPACITY), st.integers(1, 16))
def test_every_token_of_a_prompt_is_read_once(length, at, most):
    """In pieces that the kernels have room for, and in halves that are not empty."""
    chunks = program(2, at=5)[0].prefills[0]
    chunks = replace(chunks, overlap=replace(chunks.overlap, tokens=most, cuts=(Cut(at + 1, at),)))
    read = 0
    while read < length:
        count, first = chunks.piece(length - read)
        assert 1 <= count - first <= CAPACITY and first in (0, at)
        assert first or count == min(CAPACITY, length - read)
        assert count <= max(most, CAPACITY)
        read += count
    assert read == length


def test_a_chunk_has_the_cut_of_its_length():
    overlap = program(2, at=5)[0].prefills[0].overlap
    overlap = replace(overlap, cuts=(Cut(6, 3), Cut(9, 0), Cut(12, 7)))
    assert [overlap.cut_of(n) for n in (5, 6, 8, 9, 11, 12, 99)] == [0, 3, 3, 0, 0, 7, 7]


LLAMA_70B = {
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 448,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "num_hidden_layers": 2,
    "vocab_size": 160,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "max_position_embeddings": 64,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
"""The heads and the ratio of widths of Llama-3.3-70B, at two layers and a 64th of its width."""


@executor
@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_model_like_llama_70b_on_eight_gpus(seed, tmp_path):
    """Prompts of three requests are read in chunks, between steps in which those that there are
    decode, in drawn order: logits are those of each request alone, and with chunks in two halves
    the bits of those without."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_70B))
    loaded, draw = load_any(str(tmp_path), Diagnostics()), np.random.default_rng(seed)
    asked = CompileRequest(target="cuda", dtype="f16", seq=48, page=16, device="h100")
    whole = graph_module(loaded, "decode", replace(asked, batch=1))
    whole = PassManager(pipeline_to("graph")).run(whole)
    tensors = {
        name: array.astype(np.float16).astype(np.float64)
        for name, array in RandomArrays(whole, 5, None, ("weight",)).items()
    }
    texts = [draw.integers(0, 160, draw.integers(12, 25)).tolist() for _ in range(3)]
    found = []
    for overlap, chunk in (("none", 24), (str(int(draw.integers(1, 12))), 24)):
        request = replace(asked, gpus=8, batch=3, chunk=chunk, overlap=overlap)
        files = compile_loaded(loaded, request, (), Diagnostics()).files
        made = from_json(files["manifest.json"])
        node = CpuNode(made.kernels, files, 8, Mode("random", True, seed), QUICK)
        found.append(mixed(LanguageModel(made, node, tensors), texts, seed))
    (tokens, rows), (others, split_rows) = found
    assert tokens == others
    assert np.array_equal(np.concatenate(rows), np.concatenate(split_rows))
    for text, behind, logits in zip(texts, tokens, rows, strict=True):
        wanted = interpreted(whole, tensors, behind, text)
        assert np.abs(np.array(logits) - wanted).max() <= 2.0**-8 * np.abs(wanted).max()


def mixed(model, texts, seed):
    """Tokens and logits of each of three requests: every few steps the next prompt is read."""
    draw = np.random.default_rng(seed)
    tokens, rows, cached = [[] for _ in texts], [[] for _ in texts], [0] * 3
    for request in draw.permutation(3):
        rows[request].append(model.prefill(texts[request], request, cached))
        cached[request] = len(texts[request])
        for _ in range(draw.integers(1, 4)):
            for there in (n for n in range(3) if cached[n]):
                tokens[there].append(int(rows[there][-1].argmax()))
            last = [found[-1] if found else 0 for found in tokens]
            logits = model.step(last, cached)
            for there in (n for n in range(3) if cached[n]):
                rows[there].append(logits[there])
                cached[there] += 1
    for there in range(3):
        tokens[there].append(int(rows[there][-1].argmax()))
    return tokens, rows


# ---- Streams and events


def queue_of(logits=True):
    return program(2, at=5)[0].prefills[0].overlap.queue(logits)


def written():
    found, texts = program(2, at=5)
    return {name: written_by(texts[kernel.file], name) for name, kernel in found.kernels.items()}


def refusal(queue):
    with pytest.raises(MeshcError) as caught:
        check_races(queue, known_before(queue), written())
    (told,) = caught.value.diagnostics
    assert told.code == "cuda-executor"
    return told.message


def changed(queue, place, **fields):
    one, layer = queue[place]
    return [*queue[:place], (replace(one, **fields), layer), *queue[place + 1 :]]


def test_nothing_races_in_what_is_emitted():
    for logits in (True, False):
        queue = queue_of(logits)
        check_races(queue, known_before(queue), written())


def test_each_missing_wait_is_a_race():
    """There are four for each block of a layer and two of the logits; none is there for nothing."""
    queue = queue_of()
    waiting = [n for n, (one, _) in enumerate(queue) if one.waits]
    layers, blocks = 2, 2
    assert len(waiting) == 4 * layers * blocks + 2
    for place in waiting:
        assert "a race between streams" in refusal(changed(queue, place, waits=""))
    words = refusal(changed(queue, waiting[0], waits=""))
    assert "beside_chunk_all_reduce_norm of layer 0 on the stream of communication" in words
    assert "chunk_embed of layer 0 on the stream of compute" in words


def test_each_missing_record_is_told():
    """The event is then one of the block in front, or none at all. Nothing waits for the first half
    of the last layer, nor for the logits."""
    queue = queue_of()
    recording = [n for n, (one, _) in enumerate(queue) if one.records]
    needed = [
        place
        for place in recording
        if any(one.waits == queue[place][0].records for one, _ in queue[place + 1 :])
    ]
    assert len(recording) == len(needed) + 2
    for place in needed:
        words = refusal(changed(queue, place, records=""))
        assert "a race between streams" in words or "nothing in front of it records" in words


def test_a_wait_for_the_other_half_is_a_race():
    """But where the other half's event is the later one: collectives of layers would wait for the
    kernels of both halves, of which the other's were queued last."""
    queue, more = queue_of(), []
    known = known_before(queue)
    for place, (one, _) in enumerate(queue):
        if not one.waits:
            continue
        other = changed(queue, place, waits=one.waits[:-1] + str(1 - int(one.waits[-1])))
        try:
            found = known_before(other)
            check_races(other, found, written())
        except MeshcError:
            continue
        assert found[place] & known[place] == known[place] != found[place]
        more.append((one.stream, one.waits))
    assert more == [(COMMUNICATION, "computed_0"), (COMMUNICATION, "computed_1")] * 4


def test_a_write_behind_a_read_is_a_race():
    """Of the same memory, on another stream; not of another layer's part."""
    written = {"reader": (False,), "writer": (True,)}
    reads = Queued(Launch("reader", ("keys[]",)), COMPUTE), 3
    for layer, told in ((3, True), (2, False)):
        queue = [reads, (Queued(Launch("writer", ("keys[]",)), COMMUNICATION), layer)]
        known = known_before(queue)
        if told:
            with pytest.raises(MeshcError, match=r"writer of layer 3 .* writes keys, which reader"):
                check_races(queue, known, written)
        else:
            check_races(queue, known, written)


def test_halves_that_share_a_buffer_race():
    """Were the second half's sums those of the first."""
    queue = [
        (
            replace(
                one,
                launch=replace(
                    one.launch,
                    arguments=tuple(
                        str(a).replace("second_sums", "chunk_sums") if isinstance(a, str) else a
                        for a in one.launch.arguments
                    ),
                ),
            ),
            layer,
        )
        for one, layer in queue_of()
    ]
    assert "chunk_sums" in refusal(queue)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(list(modes((1, 2, 3)))))
def test_an_order_keeps_streams_and_events(mode):
    queue = queue_of()
    known = known_before(queue)
    places = {id(one): place for place, one in enumerate(queue)}
    found = [places[id(one)] for one in allowed_order(queue, known, mode)]
    assert sorted(found) == list(range(len(queue)))
    for place, behind in enumerate(found):
        done = set(found[:place])
        assert all(n in done for n in range(len(queue)) if known[behind] >> n & 1)


def test_orders_differ():
    queue = queue_of()
    known = known_before(queue)
    drawn = {
        tuple(id(one) for one in allowed_order(queue, known, mode))
        for mode in (FIRST, Mode("reverse"), Mode("random"))
    }
    assert len(drawn) == 3


def turns_in(queue):
    """Streams and halves in order, kernels of a turn together."""
    found = []
    for one, _ in queue:
        half = int(any(str(a).startswith("second_") for a in one.launch.arguments))
        found.append((one.stream, half))
    return [turn for turn, _ in itertools.groupby(found)]


def test_the_queue_is_in_the_order_that_is_priced():
    """Of as many layers, behind the look-up; what is priced has no collective in front of it and
    one behind the last layer."""
    queue = queue_of(logits=False)
    first = turns_in(queue)
    assert first[:2] == [(COMPUTE, 0), (COMPUTE, 1)]
    ranks = Ranks(served_model("llama-3.3-70b"), device("h100x8"), 8)
    spans = overlapped(ranks, prompts([1024]), 512, 4, ranks.model.layers[:2]).spans
    priced = [turn for turn, _ in itertools.groupby((s.stream, s.half) for s in spans)]
    in_order = [(turn.stream, turn.half) for turn in TURNS]
    assert first[2:] == in_order * 4
    ahead, behind = ([(stream, half) for half in (0, 1)] for stream in (COMPUTE, COMMUNICATION))
    assert priced == [*ahead, *(in_order * 3), *behind]


@pytest.mark.parametrize("budget", [3, 16])
def test_collectives_beside_kernels_have_their_multiprocessors(budget):
    found, _ = program(2, at=5, budget=budget)
    kernels = {
        one.launch.kernel
        for one, _ in found.prefills[0].overlap.queue(False)
        if one.stream != COMPUTE
    }
    assert {found.kernels[name].blocks for name in kernels} == {budget}
    assert all(found.kernels[name].meets for name in kernels)
    assert found.buffers["chunk_signals"].shape == (2 * max(CAPACITY, budget),)


# ---- The manifest


def test_a_manifest_holds_the_queue():
    found, _ = program(2, at=5)
    assert from_json(found.to_json()) == found


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"stream": "communication"', '"stream": "third"'),
        ('"at": 5', '"at": 6'),
        ('"cuts"', '"cut"'),
    ],
)
def test_another_queue_is_refused(old, new):
    text = program(2, at=5)[0].to_json()
    assert old in text
    with pytest.raises(MeshcError, match="no-program"):
        from_json(text.replace(old, new))


# ---- A GPU


def of_one_rank():
    """The first of two ranks as if it were alone; on such a node sums are its own parts."""
    found, texts = program(2, at=5)
    tensors = dict(RankTensors(found.ranks, tensors_of(MODEL), 0))
    return replace(found, ranks=RankShare(1, "multimem", {})), {**texts, **headers()}, tensors


def cubins_of(found):
    """What the driver is told of each kernel, by the launches of steps, chunks and halves."""
    queue = [(one.launch, layer) for one, layer in found.prefills[0].overlap.queue(True)]
    all_launches = [*found.launches(), *found.prefills[0].launches(True), *queue]
    told = replace(found, before=tuple(launch for launch, _ in all_launches), stages=(), after=())
    return {name: cubin_of(told, name) for name in found.kernels}


@executor
@pytest.mark.parametrize("checked", [False, True])
def test_a_gpu_captures_both_streams_and_computes_what_the_cpu_does(checked, monkeypatch):
    # As if no two of their blocks found room on a multiprocessor.
    monkeypatch.setattr(LoadedKernel, "may_start_early", lambda kernel, grid: True)
    found, texts, tensors = of_one_rank()
    node = CpuNode(found.kernels, texts, 1, toolchain=QUICK)
    wanted = LanguageModel(found, node, tensors).prefill(PROMPT)
    fake, peer, made = FakeDriver(built_driver()), OnePeer(), cubins_of(found)
    by_text = {texts[kernel.file]: made[name] for name, kernel in found.kernels.items()}
    monkeypatch.setattr(gpu_machine, "compile_cubin", lambda text, *_: by_text[text])
    libraries = {}
    for kernel in found.kernels.values():
        at = libraries[kernel.file] = Library(texts[kernel.file], toolchain=QUICK)._library
        fake.know(by_text[texts[kernel.file]], lambda name, at=at: getattr(at, f"run_{name}"))
    with Device(library=fake.path) as opened:
        machine = RankMachine(
            opened, found.device, found.kernels, texts, found.ranks, peer, checked=checked
        )
        model = LanguageModel(found, machine, tensors)
        kept = [peer.tell(libraries[k.file]) for k in found.kernels.values() if k.meets]
        assert (model.prefill(PROMPT) == wanted).all()
        assert (model.prefill(PROMPT) == wanted).all()
        del kept
    assert "priority=-5" in fake.calls("cuStreamCreateWithPriority")[0]
    assert len(fake.calls("cuStreamBeginCapture_v2")) == (0 if checked else 1)
    assert len(fake.calls("cuGraphLaunch")) == (0 if checked else 2)
    queue = found.prefills[0].overlap.queue(True)
    told = fake.calls("cuLaunchKernelEx", "cuEventRecord", "cuStreamWaitEvent")
    assert followed(told) == list(expected(queue, 2 if checked else 1))
    early = ["programmatic" in line for line in fake.calls("cuLaunchKernelEx")]
    if not checked:
        # Kernels of a turn overlap; the first of each is behind whatever it waits for.
        follows = [n > 0 and not one.waits and not queue[n - 1][0].records
                   for n, (one, _) in enumerate(queue)]  # fmt: skip
        assert early == follows and sum(follows) == 2 * 2 * (3 + 1)
    assert fake.live == 0


def followed(lines):
    """What the driver was told, each as what it is, its stream, and of an event its number."""
    first, found = None, []
    for line in lines:
        call, what, *_ = line.split(" ")
        if call == "cuLaunchKernelEx":
            found.append((what, line.endswith(" ahead"), 0))
            continue
        first = int(what) if first is None else first
        found.append((call, line.endswith(" ahead"), int(what) - first))
    return found


def expected(queue, runs):
    """The same of a queue: that of communication begins and ends within that of compute."""
    count = 0
    for _ in range(runs):
        yield "cuEventRecord", False, count
        yield "cuStreamWaitEvent", True, count
        events = {}
        for one, _ in queue:
            ahead = one.stream == COMMUNICATION
            if one.waits:
                yield "cuStreamWaitEvent", ahead, events[one.waits]
            yield one.launch.kernel, ahead, 0
            if one.records:
                count += 1
                events[one.records] = count
                yield "cuEventRecord", ahead, count
        yield "cuEventRecord", True, count + 1
        yield "cuStreamWaitEvent", False, count + 1
        count += 2
