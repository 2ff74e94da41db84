"""Programs for CUDA that serve, in the executor: whatever is read and continued beside a request,
its logits are to the bit those that it has alone."""

import json
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from served import Served, wait_until
from test_not_finite import BAD, checkpoint

from meshc.backends import hosts
from meshc.backends.cuda import CACHE_PAGES, CpuMachine
from meshc.backends.cuda.executor import CXX, QUICK, WATCHED, Mode, modes
from meshc.backends.cuda.packing import kept
from meshc.backends.target import target_of
from meshc.cli import main
from meshc.driver import Backend, CompileRequest, emitted, load_any
from meshc.driver.serving import ServeRequest, opened_service
from meshc.serving.group_counts import Fixed
from meshc.serving.policies import Policy, policy
from meshc.serving.replaying import Entry, replayed
from meshc.serving.sampling import Sampler, Sampling
from meshc.serving.scoring import Chooser
from meshc.support.diagnostics import Diagnostics, MeshcError, fail

pytestmark = [
    pytest.mark.models,
    pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler"),
]

DATA = Path(__file__).parents[1] / "data"
CPU = Backend("cuda-cpu")
BATCH, SEQ = 3, 64
FEW, OF_ONE = ServeRequest(chunk=24, prefixes=True), {"page": 1, "cache_tokens": 60}


def service_of(model, how, **compiling):
    report = Diagnostics()
    asked = {"target": "cuda", "batch": BATCH, "seq": SEQ} | compiling
    loaded = load_any(str(model if isinstance(model, Path) else DATA / model), report)
    return opened_service(loaded, CompileRequest(**asked), how, report, backend=CPU)


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    """A dense model with one row of the embedding that is no numbers; few pages, of one token."""
    folder = checkpoint("tiny/llama-3h1", tmp_path_factory.mktemp("bad") / "model")
    service = service_of(folder, FEW, **OF_ONE)
    machine = service.engine.machine
    for name, buffer in service.engine.program.buffers.items():
        if buffer.role == "state":  # nobody reads what nobody wrote
            machine.write(name, np.full(buffer.shape, 0x7E00, np.uint16))
    return service


@pytest.fixture(scope="module")
def experts():
    how = ServeRequest("combined", 16, "2", prefixes=True)
    return service_of("tiny_experts/mixtral-5x2", how)


def drawn(vocab, count, random, longest=60, most=9):
    """Prompts, half of which begin like others, and numbers of tokens."""
    stem = random.integers(0, vocab, longest)
    found = {}
    for name in range(count):
        own = random.integers(6, vocab, random.integers(1, longest))
        if name % 2:
            own = np.concatenate([stem[: random.integers(16, longest)], own[:5]])
        found[name] = own.tolist(), int(random.integers(1, most))
    return {
        name: ([6 if t == BAD else t for t in prompt], n) for name, (prompt, n) in found.items()
    }


class Requests:
    """Requests given to a server, with the logits behind each of their tokens."""

    def __init__(self, server):
        self.server, self.logits, self.failed, self.put_back = server, {}, {}, 0
        self.tokens = {}

    def submit(self, name, prompt, most):
        self.logits[name], self.tokens[name] = [], []

        def choose(row):
            if not np.isfinite(row).all():
                fail("run-refused", "no numbers")
            self.logits[name].append(row.copy())
            token = (int(row.argmax()) + name) % len(row)
            self.tokens[name].append(BAD + 1 if token == BAD else token)
            return self.tokens[name][-1]

        self.server.submit(name, prompt, most, (), choose)

    def step(self):
        record = self.server.step()
        if record is not None:
            self.failed |= record.failed
            self.put_back += len(record.put_back)

    def drain(self):
        while not self.server.idle:
            self.step()
        assert self.server.free == BATCH and self.server.scheduler.held_tokens == 0
        return self

    def same(self, other, name):
        own, others = self.logits[name], other.logits[name]
        return len(own) == len(others) and all(map(np.array_equal, own, others))


def alone(service, requests, chosen=None):
    """Each of ``requests`` by itself, on pages that hold anything."""
    found = Requests(None)
    whole = Policy("chunked", 2 * SEQ, Fixed(1))
    for name, (prompt, most) in requests.items():
        found.server = service.server(chosen or whole)
        found.submit(name, prompt, most)
        found.drain()
    return found


def test_each_request_has_the_logits_that_it_has_alone(dense):
    """Shared beginnings, requests that are put back, cancelled ones, and some that fail."""
    random = np.random.default_rng(14)
    requests = drawn(dense.engine.vocab, 6, random, 32, 16)
    wanted = alone(dense, requests)
    found, cancelled = Requests(dense.server()), {3}
    for name, (prompt, most) in requests.items():
        found.submit(name, prompt, most)
        if name % 3 == 0:
            found.submit(-name - 1, [*prompt[:20], BAD], 4)
        for _ in range(int(random.integers(0, 3))):
            found.step()
        for one in cancelled & {name - 1}:
            found.server.cancel(one)
    found.drain()
    assert found.put_back
    assert found.failed.keys() == {name for name in found.logits if name < 0}
    for name in requests.keys() - cancelled:
        assert found.same(wanted, name), name


SETTINGS = (Sampling(), Sampling(1.5), Sampling(2.0, 9, 0.9), Sampling(0.7, 0, 0.8, 0.05))


def sampled(service, requests, scored=()):
    """The tokens of ``requests``, drawn by four settings, and who failed with which words; of those
    that are ``scored`` somebody asks for logits. Also how often logits were read."""
    server, machine, read = service.server(), service.engine.machine, []
    found, failed = {name: [] for name in requests}, {}
    plain, machine.read = machine.read, lambda name: read.append(name) or plain(name)
    try:
        for name, (prompt, most) in requests.items():
            choose = Sampler(SETTINGS[name % 4], 2**63 + 9, name)
            choose = Chooser(choose, (), 1 if name in scored else None).alone
            server.submit(name, prompt, most, (), choose)
        while not server.idle:
            record = server.step()
            failed |= record.failed
            for name, tokens in record.tokens.items():
                found[name] += tokens
    finally:
        del machine.read
    return found, failed, read.count("logits")


def test_a_program_chooses_what_the_host_does(dense, monkeypatch):
    """Requests that are put back, that fail, and that ask for logits beside others."""
    requests = drawn(dense.engine.vocab, 4, np.random.default_rng(5), 32, 8)
    requests[4] = ([*requests[0][0][:9], BAD], 4)
    assert dense.engine.chooses
    found, failed, read = sampled(dense, requests)
    mixed = sampled(dense, requests, {2, 3})
    monkeypatch.setattr(type(dense.engine), "chooses", False)
    wanted = sampled(dense, requests)
    assert (found, failed) == wanted[:2] == mixed[:2]
    assert failed.keys() == {4} and "no largest number that is finite" in failed[4]
    assert read == 0 < mixed[2] < wanted[2]
    assert len({token for name in (1, 2) for token in found[name]}) > 1


def test_requests_share_pages_of_floats_of_eight_bits():
    service = service_of("tiny/llama-3h1", FEW, kv_dtype="fp8_e4m3", cache_tokens=96)
    requests = drawn(service.engine.vocab, 5, np.random.default_rng(8), 32, 9)
    wanted, found = alone(service, requests), Requests(service.server())
    for name, (prompt, most) in requests.items():
        found.submit(name, prompt, most)
    found.drain()
    assert all(found.same(wanted, name) for name in requests)


@pytest.mark.serve
@pytest.mark.parametrize(
    ("drafts", "count"), [pytest.param(n, 50, marks=pytest.mark.slow) for n in (0, 3)]
)
def test_clients_get_what_they_get_alone(drafts, count):
    """Fifty completions at once before the public client, every seventh of which hangs up. They
    come in the order of their names, all before the first iteration."""
    few = OF_ONE | {"cache_tokens": 44, "drafts": drafts}
    service, random = service_of("tiny/llama-3h1", FEW, **few), np.random.default_rng(5)
    prompts = [prompt for prompt, _ in drawn(service.engine.vocab, 9, random, 24).values()]

    def entry(name):
        return Entry(name, 0.0, tuple(prompts[name % 9]), 1 + 2 * (name // 9))

    def asked(name):
        client, own = served.client(), entry(name)
        more = {"model": "tiny", "temperature": 0, "extra_body": {"ignore_eos": True}}
        how = {"prompt": list(own.prompt), "max_tokens": own.most, **more}
        wait_until(lambda: len(received) == name)
        if name % 7:
            return client.completions.create(**how).choices[0].token_ids
        with client.completions.create(stream=True, **how | {"max_tokens": 17}) as stream:
            for event in stream:
                return event.choices[0].token_ids
        return []

    def step():
        wait_until(lambda: len(received) == count)
        records.append(inner())
        return records[-1]

    server, received, records = service.server(), [], []
    inner, server.step = server.step, step
    with Served(None, server=server, model="tiny", eos=()) as served:
        submit = served.loop.submit
        served.loop.submit = lambda *asked: received.append(submit(*asked)) or received[-1]
        with ThreadPoolExecutor(count) as pool:
            found = list(pool.map(asked, range(count)))
        wait_until(served.empty)
    done = [record for record in records if record is not None]
    assert any(record.put_back for record in done)
    read = sum(stop - start for record in done for _, start, stop in record.segments)
    assert read < sum(len(entry(name).prompt) for name in range(count))
    longest = {n: service.alone(replace(entry(n), most=11)) for n in range(9)}
    for name, tokens in enumerate(found):
        count = entry(name).most if name % 7 else 1
        assert tokens[:count] == longest[name % 9][:count]


def test_heirs_of_pages_are_not_spoilt(dense):
    requests = {0: ([BAD] * 40, 3), 1: ([7] * 20, 3), 2: (list(range(6, 50)), 3)}
    wanted = alone(dense, {name: requests[name] for name in (1, 2)})
    found = Requests(dense.server())
    for name in (0, 2, 1):
        found.submit(name, *requests[name])
        found.drain()
    assert found.failed.keys() == {0}
    assert found.same(wanted, 1) and found.same(wanted, 2)


def test_pages_of_a_beginning_are_read_once(dense):
    prompt = list(range(6, 56))
    server, read = dense.server(), []
    inner = dense.engine.read

    def reads(request, rows, position, layers):
        read.append((position, len(rows)))
        return inner(request, rows, position, layers)

    dense.engine.read = reads
    try:
        for name in range(2):
            server.submit(name, [*prompt, name + 7], 2)
            while not server.idle:
                server.step()
    finally:
        dense.engine.read = inner
    assert sum(count for _, count in read) == 50 + 2 and read[-1] == (48, 2)


@pytest.fixture(scope="module")
def of_experts(experts):
    """Requests to a model of experts, and what they have alone."""
    requests = drawn(experts.engine.vocab, 5, np.random.default_rng(3), 50, 6)
    return requests, alone(experts, requests)


@pytest.mark.parametrize(
    "chosen",
    [
        policy("chunked", 24),
        policy("layered", groups=Fixed(2)),
        policy("combined", 16, Fixed(2)),
    ],
    ids=lambda chosen: chosen.name,
)
def test_a_model_of_experts_is_served_by_every_policy(experts, of_experts, chosen):
    requests, wanted = of_experts
    found = Requests(experts.server(chosen))
    for name, (prompt, most) in requests.items():
        found.submit(name, prompt, most)
        found.step()
    found.drain()
    assert all(found.same(wanted, name) for name in requests)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "name", "page"),
    [
        ("tiny_experts/granitemoe-6h2-5x2", "layered", 16),
        ("tiny_experts/qwen2-moe-6x2", "combined", 64),
        ("tiny_experts/qwen3-moe-7x3", "layered", 1),
        ("tiny_experts/mixtral-3x1-bf16", "chunked", 64),
        ("tiny_gpt_oss/gpt-oss-5x2-yarn", "combined", 1),
        ("tiny_latent_experts/deepseek-v2-8x3", "layered", 16),
        ("tiny_latent_experts/deepseek-v3-8x3", "combined", 64),
        ("tiny_families/gemma2-6h2-window", "combined", 16),
        ("tiny_families/gpt2-5h-tied", "layered", 16),
        ("tiny_scaled/granite-6h2-biased", "combined", 1),
        ("tiny_families/phi3-5h1-window", "layered", 64),
    ],
)
def test_families_are_served_by_every_policy(model, name, page):
    chunk = 16 if name != "layered" else None
    groups = "2" if name != "chunked" else ""
    how = ServeRequest(name, chunk, groups, force=True, prefixes=True)
    seq, longest, most = (24, 17, 3) if "gpt2" in model else (SEQ, 40, 6)
    service = service_of(model, how, seq=seq, page=page, cache_tokens=128)
    requests = drawn(service.engine.vocab, 5, np.random.default_rng(4), longest, most)
    wanted, found = alone(service, requests), Requests(service.server())
    for request, (prompt, most) in requests.items():
        found.submit(request, prompt, most)
        found.step()
    found.drain()
    assert all(found.same(wanted, request) for request in requests)


def test_places_without_a_request_are_sent_to_no_experts(experts):
    engine = experts.engine
    engine.lay(1, [2])
    engine.step({1: (7, 0)})
    *_, gates = (n for n in engine.program.buffers if n.startswith("gates_") and n.count("_") == 1)
    of_places = engine.machine.read(gates)[..., : experts.config.own["X"]]
    chosen = np.count_nonzero(np.abs(of_places) > 1e-6, axis=-1)
    assert (chosen == [0, experts.config.own["K"], 0]).all()


def caches_of(engine, ids, groups):
    """What pages hold of ``ids``, which pass one of ``groups`` after the other."""
    states = [n for n, b in engine.program.buffers.items() if b.role == "state"]
    for state in states:
        engine.machine.write(state, np.zeros(engine.program.buffers[state].shape, np.uint16))
    engine.lay(0, [5, 1, 3])
    rows = engine.embedded(ids, 0)
    for group in groups:
        rows = engine.read(0, rows, 0, group)
    return [engine.machine.read(state) for state in states]


def each_layer(service):
    return [range(layer, layer + 1) for layer in range(len(service.layer_costs))]


IDS = range(1, 38)
"""Tokens of two full pieces and one that is not."""


def test_layers_pass_all_at_once_or_one_by_one(experts):
    whole = caches_of(experts.engine, IDS, [range(len(experts.layer_costs))])
    assert all(map(np.array_equal, whole, caches_of(experts.engine, IDS, each_layer(experts))))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("", ""),
        ("if (from_layer == 0) {", "if (true) {"),
        ("if (from_layer == 0) {", "if (false) {"),
        ("min(to_layer, 2)", "2"),
        ("min(to_layer, 2)", "min(to_layer + 1, 2)"),
        ("layer = from_layer;", "layer = 0;"),
    ],
)
def test_edits_of_the_layers_that_a_run_passes_are_noticed(experts, monkeypatch, text, other):
    inner = hosts._machine

    def edited(program, texts, device):
        assert text in texts["prompt.cu"]
        return inner(
            program, texts | {"prompt.cu": texts["prompt.cu"].replace(text, other)}, device
        )

    monkeypatch.setattr(hosts, "_machine", edited)
    service = service_of("tiny_experts/mixtral-5x2", ServeRequest("combined", 16, "2"))
    wanted = caches_of(experts.engine, IDS, [range(len(experts.layer_costs))])
    found = caches_of(service.engine, IDS, each_layer(service))
    assert all(map(np.array_equal, wanted, found)) == (text == other)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "toolchain"),
    [
        (Mode("random", True, 5), WATCHED),
        (Mode("random", False, 6), WATCHED),
        *((mode, QUICK) for mode in modes()),
    ],
    ids=lambda one: (
        f"{one.schedule}-{one.late_copies}" if isinstance(one, Mode) else str(one is WATCHED)
    ),
)
def test_all_schedules_of_a_gpu_give_the_same_bits(experts, mode, toolchain):
    """A run of one layer behind another, and a step with places without a request."""
    engine = experts.engine
    machine = CpuMachine(engine.machine.kernels, engine.machine._texts, mode, toolchain)
    other = replace(experts, engine=copy(engine))
    other.engine.machine, other.engine._written = machine, {}
    for name, array in engine.machine.arrays.items():
        machine.store(name, array)
    found = [caches_of(one.engine, IDS, each_layer(one)) for one in (experts, other)]
    assert all(map(np.array_equal, *found))
    logits = [one.engine.step({0: (4, 37)})[0] for one in (experts, other)]
    assert np.isfinite(logits[0]).all() and np.array_equal(*logits)


SPLIT = {"dataflow": "split_head", "cluster": 2}
"""Blocks of a cluster share the lanes of heads, which no kernel of prompts does."""


@pytest.mark.slow
def test_a_program_without_a_kernel_of_prompts_reads_them_by_steps():
    model = "tiny_cuda/llama-4h2"
    service = service_of(model, ServeRequest(chunk=16, prefixes=True), page=1, **SPLIT)
    assert not service.engine.program.prefills
    facts = json.loads((DATA / model / "expected.json").read_text())
    prompt, count = tuple(facts["prompt_ids"]), len(facts["tokens"])
    entries = [Entry(0, 0.0, prompt, count), Entry(1, 0.0, (5, 6, 7), 3), Entry(2, 3.0, prompt, 2)]
    found = replayed(service.server(), entries, 1.0)
    assert found[0] == facts["tokens"] and found[2] == facts["tokens"][:2]
    assert found[1] == service.alone(entries[1])


def test_steps_pass_no_groups_of_layers():
    with pytest.raises(MeshcError, match="those of 'llama-4h2' pass all layers at once"):
        service_of("tiny_cuda/llama-4h2", ServeRequest("combined", force=True), **SPLIT)


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("llama-4h2", ServeRequest("combined", 16, "2", force=True)),
        ("deepseek-4h", ServeRequest(chunk=16)),
    ],
)
def test_tokens_are_those_of_transformers(name, how):
    facts = json.loads((DATA / "tiny_cuda" / name / "expected.json").read_text())
    service = service_of(f"tiny_cuda/{name}", how)
    entry = Entry(0, 0.0, tuple(facts["prompt_ids"]), len(facts["tokens"]))
    assert replayed(service.server(), [entry], 1.0) == {0: facts["tokens"]}


TRACE = "arrival_s,prompt_tokens,output_tokens\n0,9,4\n0,3,6\n0.02,44,3\n0.05,1,5\n"


@pytest.fixture
def serve(tmp_path, capsys):
    """Runs the command on a trace; stdout and stderr."""

    def run(*words, model="tiny_cuda/llama-4h2", code=0, trace=TRACE):
        place = tmp_path / "trace.csv"
        place.write_text(trace)
        arguments = [str(DATA / model), "--trace", str(place), "--batch", "3"]
        assert main(["serve-trace", *arguments, *words]) == code
        return capsys.readouterr()

    return run


GPU = ("--target", "cuda", "--backend", "cuda-cpu")


@pytest.mark.slow
def test_the_command_serves_by_what_it_has_packed_before(serve, tmp_path, monkeypatch):
    monkeypatch.setattr(kept, "LEAST_BYTES", 1)
    monkeypatch.setattr(emitted, "PACKED_FOLDER", tmp_path / "packed")
    packed, inner = [], kept.write_packed
    monkeypatch.setattr(
        kept, "write_packed", lambda *given: (packed.append(given[0]), inner(*given))
    )
    words = [*GPU, "--chunk", "16", "--seq", "64", "--cache-tokens", "64"]
    found = json.loads(serve(*words, "--compare-alone", "--json").out)
    assert [len(own["tokens"]) for own in found["requests"]] == [4, 6, 3, 5]
    assert found["compared_alone"] and len(packed) == 1
    assert json.loads(serve(*words, "--json").out)["requests"] == found["requests"]
    assert len(packed) == 1
    serve(*words, "--no-cache", trace=f"{TRACE.splitlines()[0]}\n0,1,1\n")
    assert len(packed) == 1


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--target", "csl"], "programs for --target csl do not serve yet"),
        ([*GPU, "--gpus", "2"], "--gpus is 2, but programs of several GPUs do not serve yet"),
        ([*GPU, "--mesh", "2x2"], "--mesh is 2x2, but programs for --target cuda do not take it"),
        ([*GPU, "--kv", "shift"], "--kv is shift, but programs for --target cuda do not take it"),
        ([*GPU, "--policy", "layered"], "dense-layered"),
        ([*GPU, "--policy", "disaggregated"], "one program serves here"),
        ([*GPU, "--chunk", "8"], "prompts are cut at multiples of 16 tokens"),
        ([*GPU, "--cache-tokens", "0"], "--cache-tokens is 0"),
        ([*GPU, "--cache-tokens", "32", "--seq", "64"], "do not fit caches of 32 tokens"),
        (["--cache-tokens", "64"], "--cache-tokens is 64, but programs for --target python"),
        (["--backend", "cuda-cpu"], "a program for python does not run with --backend cuda-cpu"),
        (["--target", "cuda", "--backend", "python"], "does not run with --backend python"),
    ],
)
def test_what_is_not_obeyed_is_refused_by_name(serve, words, said):
    assert said in serve(*words, code=1).err


def test_pages_of_requests_are_for_programs_that_serve():
    asked = CompileRequest(target="cuda", cache_tokens=64)
    with pytest.raises(MeshcError, match="a program that does not serve"):
        asked.check()
    serves = replace(asked, serving="chunks", batch=2, page=64)

    def options(request):
        return target_of(request).graph_options(request, 100)

    assert options(serves) == {CACHE_PAGES: 1 + 1}
    assert options(replace(serves, cache_tokens=None)) == {CACHE_PAGES: 1 + 2 * 2}
    assert options(replace(serves, target="python")) == {}
