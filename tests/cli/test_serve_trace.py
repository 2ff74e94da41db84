"""``meshc serve-trace``: requests of a trace on tiny real models, by every policy."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshc.analysis.layout.liveness import assign_addresses
from meshc.cli import main
from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.driver.serving import ServeRequest, Service, entries_of, opened_service
from meshc.serving.group_counts import ByLength, Fixed
from meshc.serving.lengths import Trace
from meshc.serving.policies import Policy, policy, with_long_prompts
from meshc.serving.replaying import replayed
from meshc.support.diagnostics import Diagnostics, MeshcError

pytestmark = pytest.mark.models

TINY = Path(__file__).parents[1] / "data" / "tiny"
TRACE = "arrival_s,prompt_tokens,output_tokens\n0,9,4\n0,3,6\n0.02,14,3\n0.05,1,5\n"


@pytest.fixture
def serve(tmp_path, capsys):
    """Runs the command on a trace; stdout and stderr."""

    def run(*words, trace=TRACE, model="llama-9h3-tied", code=0):
        place = tmp_path / "trace.csv"
        place.write_text(trace)
        arguments = [str(TINY / model), "--mesh", "3x2", "--trace", str(place), "--batch", "3"]
        assert main(["serve-trace", *arguments, *words]) == code
        return capsys.readouterr()

    return run


@pytest.mark.parametrize(
    ("words", "policy_name"),
    [
        pytest.param(["--chunk", "6"], "chunked", marks=pytest.mark.slow),
        pytest.param(
            ["--policy", "layered", "--groups", "3", "--force"], "layered", marks=pytest.mark.slow
        ),
        (["--policy", "combined", "--chunk", "6", "--groups", "2", "--force"], "combined"),
    ],
)
def test_requests_get_what_they_get_alone(serve, words, policy_name):
    found = json.loads(serve(*words, "--compare-alone", "--json").out)
    assert (found["policy"], found["batch"]) == (policy_name, 3)
    assert [len(own["tokens"]) for own in found["requests"]] == [4, 6, 3, 5]
    assert [len(own["prompt_ids"]) for own in found["requests"]] == [9, 3, 14, 1]
    numbers = [own["number"] for own in found["iterations"]]
    assert numbers == list(range(len(numbers)))
    for own in found["requests"]:
        name = own["request"]
        got = [t for i in found["iterations"] for t in i["tokens"].get(str(name), ())]
        assert got == own["tokens"]
        assert sum(name in i["first"] for i in found["iterations"]) == 1
        assert sum(name in i["ended"] for i in found["iterations"]) == 1


EXPERTS = (
    "tiny_experts/mixtral-5x2",
    "tiny_experts/qwen2-moe-6x2",
    "tiny_experts/qwen3-moe-7x3",
    "tiny_gpt_oss/gpt-oss-5x2-yarn",
    "tiny_latent_experts/deepseek-v2-8x3",
    "tiny_latent_experts/deepseek-v2-6x2-groups-bf16",
    "tiny_latent_experts/deepseek-v3-8x3",
)
SCHEDULES = {
    "chunked": ["--chunk", "6"],
    "layered": ["--policy", "layered", "--groups", "2"],
    "combined": ["--policy", "combined", "--groups", "2", "--chunk", "6"],
}
QUICK = {(0, "layered"), (3, "layered"), (5, "combined")}


@pytest.mark.parametrize(
    ("model", "schedule"),
    [
        pytest.param(
            EXPERTS[number],
            schedule,
            marks=() if (number, schedule) in QUICK else pytest.mark.slow,
        )
        for number in range(len(EXPERTS))
        for schedule in SCHEDULES
    ],
)
def test_models_with_experts_are_served_by_every_policy(serve, model, schedule):
    words, name = SCHEDULES[schedule], f"../{model}"
    found = json.loads(serve(*words, "--compare-alone", "--json", model=name).out)
    assert [len(own["tokens"]) for own in found["requests"]] == [4, 6, 3, 5]
    layers = {tuple(own["layers"]) for own in found["iterations"] if own["layers"]}
    assert len(layers) == (1 if schedule == "chunked" else 2)
    assert min(first for first, _ in layers) == 0
    longest = max(stop - start for own in found["iterations"] for _, start, stop in own["read"])
    assert longest == (14 if schedule == "layered" else 6)


def test_iterations_and_answers_are_printed_the_same_each_time(serve):
    """Answers depend on the seed, not on the policy."""
    first = serve("--chunk", "6").out
    assert "layers 0-1 read 0[0:6]\n" in first and "decode 0 1, ended 0\n" in first
    lines = first.splitlines()
    assert [line.split("] ")[0] for line in lines[-4:]] == ["[0", "[1", "[2", "[3"]
    assert serve("--chunk", "6").out == first
    assert serve("--chunk", "6", "--seed", "1").out.splitlines()[-4:] != lines[-4:]
    layered = serve("--policy", "layered", "--groups", "2", "--force").out
    assert layered.splitlines()[-4:] == lines[-4:]


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--policy", "layered"], "dense-layered"),
        (["--policy", "combined"], "dense-layered"),
        (["--policy", "disaggregated"], "bad-argument"),
        (["--policy", "fast"], "bad-argument"),
        (["--groups", "latency:50", "--policy", "layered"], "bad-argument"),
        (["--chunk", "1"], "bad-argument"),
        (["--chunk", "6", "--long-chunk", "1"], "bad-argument"),
        (["--target", "cuda"], "bad-argument"),
        (["--requests", "0"], "bad-argument"),
        (["--iteration-ms", "0"], "bad-argument"),
        (["--seq", "12"], "request-too-large"),
    ],
)
def test_what_cannot_be_served_is_refused(serve, words, code):
    assert f"error[{code}]" in serve(*words, code=1).err


@pytest.mark.parametrize(
    "trace",
    [
        "prompt_tokens,output_tokens\n-3,4\n",
        "prompt_tokens,output_tokens\nnan,4\n",
        "prompt_tokens\n3\n",
        "prompt_tokens,output_tokens\n",
        "arrival_s,prompt_tokens,output_tokens\n1,3,4\n0.5,3,4\n",
    ],
)
def test_malformed_traces_are_refused_before_anything_is_compiled(serve, trace):
    assert "error[trace-invalid]" in serve(trace=trace, code=1).err


def test_a_model_without_a_program_of_tokens_serves_nobody(tmp_path, capsys):
    place = tmp_path / "trace.csv"
    place.write_text(TRACE)
    model = Path(__file__).parents[2] / "examples" / "tiny_llama.mesh"
    words = ["serve-trace", str(model), "--mesh", "2x2", "--trace", str(place)]
    assert main(words) == 1
    assert "error[weights-not-found]" in capsys.readouterr().err


def test_a_difference_from_what_a_request_gets_alone_is_an_error(serve, monkeypatch):
    monkeypatch.setattr(Service, "alone", lambda self, entry: [0] * entry.most)
    assert "error[not-as-alone]: request 0" in serve("--compare-alone", code=1).err


@pytest.fixture(scope="module")
def service():
    """A program by which any policy can be served."""
    loaded = load_any(str(TINY / "llama-3h1"), Diagnostics())
    asked = CompileRequest(mesh="2x3", seq=40, batch=3)
    request = ServeRequest("layered", force=True)
    return opened_service(loaded, asked, request, Diagnostics())


@pytest.mark.parametrize(
    "chosen",
    [
        policy("chunked", 6),
        with_long_prompts(policy("chunked", 6), 4),
        policy("layered", groups=Fixed(2)),
        Policy("layered", None, ByLength(7), merged=20),
        policy("combined", 9, Fixed(2)),
    ],
    ids=lambda p: f"{p.name}-{p.chunk}-{p.long_chunk}",
)
@given(
    drawn=st.lists(
        st.tuples(st.integers(1, 20), st.integers(1, 8), st.integers(0, 4)),
        min_size=1,
        max_size=6,
    ),
    seed=st.integers(0, 9),
)
@settings(max_examples=8, deadline=None)
def test_any_arrivals_on_a_real_model(service, chosen, drawn, seed):
    seconds, pairs = [], []
    for prompt, most, gap in drawn:
        seconds.append((seconds[-1] if seconds else 0.0) + gap)
        pairs.append((prompt, most))
    entries = entries_of(Trace(tuple(pairs), tuple(seconds)), service, seed, False)
    server = service.server(chosen)
    found = replayed(server, entries, 1.0)
    assert found == {entry.name: service.alone(entry) for entry in entries}
    assert server.free == 3 and server.scheduler.held_tokens == 0


@pytest.fixture(scope="module")
def short():
    """A program whose prompts are read by at most six tokens at once, of the same model."""
    loaded = load_any(str(TINY / "llama-3h1"), Diagnostics())
    asked = CompileRequest(mesh="2x3", seq=40, batch=3)
    return opened_service(loaded, asked, ServeRequest("chunked", chunk=6), Diagnostics())


def test_a_program_for_short_chunks_gives_the_same_tokens(service, short):
    assert (service.engine.most, short.engine.most) == (40, 6)
    drawn = Trace(((20, 5), (6, 3), (1, 4), (33, 6)), (0.0, 0.0, 2.0, 3.0))
    entries = entries_of(drawn, short, 3, False)
    assert replayed(short.server(), entries, 1.0) == {
        entry.name: service.alone(entry) for entry in entries
    }


def test_longer_chunks_than_a_program_has_room_for_are_refused(short):
    for chosen in (policy("chunked", 9), policy("combined", 40), policy("layered")):
        with pytest.raises(MeshcError, match="reads at most 6 tokens of a prompt at once"):
            short.server(chosen)
    with pytest.raises(MeshcError, match="a chunk of 7 tokens, but the program reads 6 at most"):
        short.engine.read(0, short.engine.embedded([1] * 7, 0), 0, range(2))


def test_a_program_for_short_chunks_takes_less_memory():
    loaded = load_any(str(TINY / "llama-3h1"), Diagnostics())
    used = []
    for chunk in (None, 6):
        asked = CompileRequest(mesh="2x3", seq=240, serving="chunks", phase="prefill", chunk=chunk)
        prefill = compile_loaded(loaded, asked).modules["prefill"]
        used.append(assign_addresses(prefill))
    assert used[1] < used[0] / 3


@pytest.mark.slow
@pytest.mark.smollm2
def test_a_real_checkpoint(capsys, tmp_path):
    place = tmp_path / "trace.csv"
    place.write_text("prompt_tokens,output_tokens\n20,3\n5,4\n")
    words = ["smollm2-135m", "--mesh", "2x2", "--trace", str(place), "--chunk", "8", "--batch", "2"]
    assert main(["serve-trace", *words, "--compare-alone", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [len(own["tokens"]) for own in found["requests"]] == [3, 4]
