"""Programs for CUDA that verify drafts, in the executor: whatever is guessed, requests have the
logits that they have without, to the bit."""

import json
from dataclasses import replace

import numpy as np
import pytest
from test_cuda_serving import DATA, FEW, GPU, OF_ONE, SEQ, TRACE, Requests, drawn, service_of

from meshc.backends.cuda.executor import CXX
from meshc.cli import main
from meshc.serving.drafting import Repeats
from meshc.serving.group_counts import Fixed
from meshc.serving.policies import Policy

pytestmark = [
    pytest.mark.models,
    pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler"),
]


class Random:
    """Drafts of any tokens, now and then of none."""

    def __init__(self, vocab):
        self.vocab, self.random = vocab, np.random.default_rng(8)

    def draft(self, texts):
        return {
            name: self.random.integers(0, self.vocab, self.random.integers(0, most + 1)).tolist()
            for name, (_, most) in texts.items()
        }

    def leave(self, name):
        pass


class Known:
    """Drafts what requests get, with a wrong token after ``right`` of them."""

    def __init__(self, texts, right):
        self.texts, self.right = texts, right

    def draft(self, texts):
        found = {}
        for name, (text, most) in texts.items():
            found[name] = [*self.texts[name][len(text) :][: self.right], 0][:most]
        return found

    def leave(self, name):
        pass


@pytest.fixture(scope="module")
def verifying():
    few = OF_ONE | {"cache_tokens": 48}
    return service_of("tiny/llama-3h1", FEW, drafts=3, **few)


@pytest.mark.parametrize(
    "guesses",
    ["half", *(pytest.param(g, marks=pytest.mark.slow) for g in ("random", "right", "repeats"))],
)
def test_drafts_change_no_bit_of_any_request(verifying, guesses):
    """Shared beginnings, requests that are put back, and cancelled ones, as without drafts."""
    vocab, random = verifying.engine.vocab, np.random.default_rng(15)
    requests = {name: (p, 8) for name, (p, _) in drawn(vocab, 6, random, 32).items()}
    wanted = Requests(None)
    for name, (prompt, most) in requests.items():
        wanted.server = verifying.server(Policy("chunked", 2 * SEQ, Fixed(1)), drafts=False)
        wanted.submit(name, prompt, most)
        wanted.drain()
    texts = {n: [*prompt, *wanted.tokens[n]] for n, (prompt, _) in requests.items()}
    drafter = {
        "random": lambda: Random(vocab),
        "right": lambda: Known(texts, 3),
        "half": lambda: Known(texts, 1),
        "repeats": Repeats,
    }[guesses]
    found = Requests(replace(verifying, drafter=drafter).server())
    for name, (prompt, most) in requests.items():
        found.submit(name, prompt, most)
        for _ in range(int(random.integers(0, 3))):
            found.step()
        if name == 4:
            found.server.cancel(3)
    found.drain()
    assert found.put_back
    for name in requests.keys() - {3}:
        assert found.same(wanted, name), name
    counted = found.server.guesses
    assert counted.drafted > 0 and counted.accepted <= counted.drafted
    assert guesses != "right" or counted.accepted > counted.drafted / 2


@pytest.fixture
def served(tmp_path, capsys):
    """Runs serve-trace with words; its stdout, or with a ``code`` its stderr."""

    def run(*words, code=0):
        place = tmp_path / "trace.csv"
        place.write_text(TRACE)
        model = str(DATA / "tiny_cuda/llama-4h2")
        assert main(["serve-trace", model, "--trace", str(place), *words]) == code
        said = capsys.readouterr()
        return said.err if code else said.out

    return run


@pytest.mark.slow
def test_a_model_drafts_what_it_would_say(served):
    """A model that drafts for itself, in steps of another batch, which round otherwise."""
    words = [*GPU, "--seq", "64", "--chunk", "16", "--drafts", "3", "--json"]
    plain = json.loads(served(*words, "--compare-alone"))
    own = json.loads(served(*words, "--draft-model", str(DATA / "tiny_cuda/llama-4h2")))
    assert plain["batch"] == own["batch"] == 4
    assert [one["tokens"] for one in own["requests"]] == [o["tokens"] for o in plain["requests"]]
    assert own["drafts"]["accepted"] > 0.8 * own["drafts"]["drafted"] > 0
    assert len(own["iterations"]) < len(plain["iterations"])
    assert plain["drafts"]["accepted"] <= plain["drafts"]["drafted"]


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--drafts", "3"], "--drafts is 3, but programs for --target python do not take it"),
        ([*GPU, "--drafts", "3", "--batch", "8"], "--drafts is 3, and a step reads 16 tokens"),
        ([*GPU, "--drafts", "-1"], "--drafts is -1, and a step reads 16 tokens"),
        ([*GPU, "--drafts", "1", "--cluster", "2"], "but steps with --cluster 2 verify none"),
        ([*GPU, "--drafts", "1", "--gpus", "2"], "but steps of several GPUs verify none"),
        ([*GPU, "--draft-model", "smollm2-135m"], "--draft-model is given, but --drafts is not"),
        (
            [*GPU, "--drafts", "1", "--draft-weights", "x"],
            "--draft-weights is given, but",
        ),
        ([*GPU, "--drafts", "7", "--seq", "7"], "caches of 7 tokens have no room behind them"),
    ],
)
def test_what_verifies_no_drafts_is_refused_by_name(served, words, said):
    assert said in served(*words, code=1)
