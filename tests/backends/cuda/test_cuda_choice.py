"""The kernel that chooses tokens, in the executor: NumPy's choice in every schedule, and what the
next step reads."""

from __future__ import annotations

import faulthandler
import os
from dataclasses import replace
from multiprocessing import get_context

import numpy as np
import pytest

import meshc
from meshc.backends.cuda.executor import (
    CXX,
    FIRST,
    QUICK,
    WATCHED,
    ExecutorError,
    Grid,
    Library,
    Mode,
    headers,
    modes,
)
from meshc.backends.cuda.tasks.step_text import MOST_ENDS, MOST_STEPS, StepText
from meshc.backends.cuda.tasks.storage import Storage
from meshc.devices import device
from meshc.ir.clone import clone_module
from meshc.serving.sampling import Sampler, Sampling, weights

pytestmark = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")

ENDED, NO_LARGEST = -1, -2
GRAPH = """module @choice level(graph) {{
  dims B = {batch}, L = 1, V = {words}, C = 4
  options dtype = f16
  func @decode(in %logits: f32[B, L, V], in %settings: f32[B, L, C], in %stream: i32[B, L, C])
    -> (f32[B, L]) {{
    %token = graph.draw %logits, %settings, %stream {{dim = V}} : f32[B, L]
    graph.return %token
  }}
}}
"""
PASSES = "canonicalize,eliminate-transpose,expand-tasks,place-tasks,meet,fold-scratch"


class Choice:
    """The kernel for so many requests and words, and memory of its own for each launch."""

    def __init__(self, batch: int, words: int) -> None:
        graph = meshc.parse(GRAPH.format(batch=batch, words=words))
        graph.device = device("h200")
        module = meshc.PassManager(meshc.parse_pipeline(PASSES)).run(clone_module(graph))
        written = StepText(Storage(module, graph, 16))
        self.batch, self.words, self.library = batch, words, headers()
        self.text, self.kernel, self.arguments = written.text()
        self.buffers = written.storage.buffers

    def memory(self, logits: np.ndarray, **given: object) -> dict[str, np.ndarray]:
        """What a launch is given; scratch holds nothing, and no token ends a text."""
        kinds = {"f32": np.float32, "i32": np.int32}
        found = {n: np.zeros(b.shape, kinds[b.dtype]) for n, b in self.buffers.items()}
        for name, array in found.items():
            array[...] = np.nan if array.dtype == np.float32 and name != "settings" else 0
            array[...] = ({"ends": ENDED} | given).get(name, array)
        found["logits"][...] = logits
        return found

    def run(self, memory, row=0, mode=FIRST, toolchain=QUICK, blocks=None) -> dict[str, np.ndarray]:
        library = Library(self.text, self.library, toolchain)
        kernel = replace(self.kernel, blocks=blocks or self.kernel.blocks)
        arguments = [*(memory[name] for name in self.arguments), np.int32(row)]
        library.run("choose", Grid.of(kernel), arguments, mode)
        assert memory["met"].tolist() == [0]
        return memory


def drawn(seed: int, batch: int, words: int) -> np.ndarray:
    """Logits among which the largest of a request stands at several places."""
    rng = np.random.default_rng(seed)
    logits = np.float32(rng.standard_normal((batch, words)))
    for row in logits:
        row[rng.integers(0, words, 2)] = row.max() + rng.integers(0, 2)
    return logits


@pytest.mark.parametrize(
    ("batch", "words"), [(1, 97), (3, 1048), pytest.param(16, 264, marks=pytest.mark.slow)]
)
def test_the_token_is_that_of_numpy_whoever_runs_first(batch, words):
    choice, number = Choice(batch, words), batch
    everyone = [*modes()][::3]
    for n, mode in enumerate(everyone):
        logits = drawn(number + n, batch, words)
        found = choice.run(choice.memory(logits, left=5), mode=mode, blocks=(None, 3, 1)[n % 3])
        assert (found["token"][:, 0] == logits.argmax(-1)).all()
        assert (found["chosen"][0] == logits.argmax(-1)).all()


def test_no_two_threads_race():
    choice, logits = Choice(3, 264), drawn(3, 3, 264)
    for late in (False, True):
        memory = choice.memory(logits, left=5)
        found = choice.run(memory, mode=Mode("random", late, 5), toolchain=WATCHED, blocks=5)
        assert (found["token"][:, 0] == logits.argmax(-1)).all()


def test_the_next_step_reads_what_was_chosen_until_a_text_ends():
    """Of a request that goes on, one with its last token, one that a token ends, and one that has
    ended before; other rows of what was chosen stay as they are."""
    choice, logits = Choice(4, 97), drawn(7, 4, 97)
    best = logits.argmax(-1)
    ends = np.full(MOST_ENDS, -1)
    ends[[0, -1]] = 3 if 3 not in best else 4, best[2]
    memory = choice.memory(
        logits, tokens=[5, 6, 7, 8], cached=[1, 20, 3, 4], left=[9, 1, 9, 0], ends=ends, chosen=77
    )
    found = choice.run(memory, row=MOST_STEPS - 1)
    assert found["chosen"][-1].tolist() == [best[0], best[1], best[2], ENDED]
    assert (found["chosen"][:-1] == 77).all()
    assert found["tokens"].tolist() == [best[0], 6, 7, 8]
    assert found["cached"].tolist() == [2, 20, 3, 4]
    assert found["left"].tolist() == [8, 0, 0, 0]


@pytest.mark.parametrize("worst", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("draws", [False, True])
def test_logits_without_a_largest_number_choose_no_token(worst, draws):
    """One NaN, in any place; one that is infinite; and nothing else."""
    how = Sampling(1.0, 5, 1e-9) if draws else Sampling()  # of which the first is drawn alone
    choice, logits = Choice(3, 264), drawn(1, 3, 264)
    logits[1, 100 if worst != -np.inf else slice(None)] = worst
    logits[2, 263 if worst != -np.inf else slice(None)] = worst
    found = choice.run(choice.memory(logits, left=5, tokens=9, settings=how.numbers()))
    assert found["chosen"][0].tolist() == [logits[0].argmax(), NO_LARGEST, NO_LARGEST]
    assert found["tokens"].tolist() == [logits[0].argmax(), 9, 9]
    assert found["left"].tolist() == [4, 0, 0]


def test_logits_below_all_others_are_compared_too():
    choice, logits = Choice(1, 97), np.full((1, 97), np.float32(-3e38))
    logits[0, 41] = -2e38
    assert choice.run(choice.memory(logits, left=5))["chosen"][0].tolist() == [41]


EACH = [
    Sampling(1.0), Sampling(0.3), Sampling(5.0), Sampling(1.0, top_k=1), Sampling(1.0, top_k=5),
    Sampling(2.0, top_p=0.0), Sampling(2.0, top_p=0.5), Sampling(2.0, 7, 0.9), Sampling(0.0),
    Sampling(3.0, min_p=0.2), Sampling(3.0, 9, 0.95, 0.1), Sampling(1e-30), Sampling(1e30, 0, 0.3),
    Sampling(4.0, top_p=0.999), Sampling(1e3, top_k=990), Sampling(0.7, 40, 0.9, 0.05),
]  # fmt: skip


def given(samplers: list[Sampler], place: int) -> dict[str, np.ndarray]:
    """Settings, and the words of the number that each text takes at ``place``."""
    words = [(s.key[0] % (1 << 32), s.key[0] >> 32, s.key[1], place) for s in samplers]
    stream = np.array(words, np.uint32).view(np.int32)
    return {"settings": [s.sampling.numbers() for s in samplers], "stream": stream}


@pytest.mark.parametrize(
    ("words", "mode"),
    [(1000, FIRST), pytest.param(1048, Mode("random", True, 3), marks=pytest.mark.slow)],
)
def test_draws_are_those_of_the_host(words: int, mode: Mode) -> None:
    """Of all settings at once, token by token, with logits of which many are equal."""
    choice, rng = Choice(16, words), np.random.default_rng(words)
    samplers = [Sampler(one, int(rng.integers(1 << 63)) * 2 + n, n) for n, one in enumerate(EACH)]
    memory = choice.memory(np.zeros((16, words)), left=99, **given(samplers, 0))
    for place in range(4):
        logits = drawn(place, 16, words)
        if place % 2:
            logits = np.round(logits * 2) / 2
        memory["logits"][...] = logits
        found = choice.run(memory, row=place, mode=mode)
        wanted = [draw(row) for draw, row in zip(samplers, logits, strict=True)]
        assert found["chosen"][place].tolist() == wanted
        assert found["stream"][:, -1].tolist() == [place + 1] * 16


def test_weights_of_a_text_add_up_as_on_the_host() -> None:
    """To the last bit: scores in all distances from the largest, of all temperatures."""
    choice, rng = Choice(4, 4096), np.random.default_rng(4)
    samplings = [Sampling(t) for t in (1.0, 0.37, 2.9, 1e4)]
    logits = np.float32(rng.standard_normal((4, 4096)) * 30)
    memory = choice.memory(logits, left=1, **given([Sampler(s, 1) for s in samplings], 0))
    choice.run(memory)
    for row, sampling, found in zip(logits, samplings, memory["weight_of_parts"], strict=True):
        wanted = weights(row, sampling.numbers()[0])
        assert (found.view(np.uint32) == wanted.view(np.uint32)).all()
        exact = np.exp((row.astype(float) - row.max()) / np.float32(sampling.temperature))
        assert np.abs(found - exact).max() <= 2.0**-22 and found.max() == 1


def test_no_two_threads_race_that_draw() -> None:
    samplers = [Sampler(EACH[number], 5) for number in (7, 10, 15)]
    logits, choice = drawn(3, 3, 264), Choice(3, 264)
    memory = choice.memory(logits, left=5, **given(samplers, 0))
    choice.run(memory, mode=Mode("random", True, 5), toolchain=WATCHED, blocks=5)
    assert memory["chosen"][0].tolist() == [
        draw(row) for draw, row in zip(samplers, logits, strict=True)
    ]


SYNC = "    group_sync(id, WORKERS);\n"
EDITS = [
    (f"{SYNC}    for (int n = 0; n < N && me % RUN", "    for (int n = 0; n < N && me % RUN"),
    (f"run[0] += run[i];\n    }}\n{SYNC}", "run[0] += run[i];\n    }\n"),
    (f"work[n * WORKERS + i];\n    }}\n{SYNC}", "work[n * WORKERS + i];\n    }\n"),
    ("sum += work[i];\n    group_sync(id, WORKERS);", "sum += work[i];"),
    ("of[0] += own > bound", "of[0] += own >= bound"),
    ("rank++ >= ties", "rank++ > ties"),
    ("weight(i) < least ?", "weight(i) > least ?"),
    ("wanted - of[0] + each - 1", "wanted - of[0]"),
    ("own >= (found |", "own > (found |"),
    ("most < (float)COUNT", "most < 0.0f"),
    ("if (share < 1.0f)", "if (share < 0.0f)"),
    ("bits >> 31 ? ~bits", "bits >> 31 ? bits"),
    ("place / 4 + 1ull", "place / 4 + 0ull"),
    ("round < 10", "round < 9"),
    ("c[2] = high ^ c[3] ^ other", "c[2] = high ^ c[3] ^ key"),
    ("0.0001984126984126984,", "0.000198,"),
    ("if ((double)n > exponent) n -= 1;", ""),
    ("left[0] == 1", "left[0] == 0"),
    ("ends[i] == found", "false"),
    ("stream[3] += 1;", ""),
    ("cached[0] += 1;", ""),
    ("logit > -infinity()", "true"),
]  # fmt: skip


def all_is_well(library: dict[str, str]) -> bool:
    """Whether a library draws what the host does, and leaves what the next step reads."""
    choice, watched = Choice(16, 1000), Choice(3, 264)
    choice.library = watched.library = library
    samplers = [Sampler(one, 77 + n, n) for n, one in enumerate(EACH)]
    ends = np.full(MOST_ENDS, ENDED)
    memory = choice.memory(np.zeros((16, 1000)), left=[3] * 15 + [9], **given(samplers, 0))
    going, cached = np.ones(16, bool), np.zeros(16)
    for place in range(4):
        logits = drawn(place, 16, 1000)
        logits = np.round(logits * 2) / 2 if place % 2 else logits
        wanted = np.array([draw(row) for draw, row in zip(samplers, logits, strict=True)])
        ends[0] = wanted[4] if place == 1 else ENDED
        memory["logits"][...], memory["ends"][...] = logits, ends
        found = choice.run(memory, row=place)
        if (found["chosen"][place] != np.where(going, wanted, ENDED)).any():
            return False
        going &= (wanted != ends[0]) & (np.arange(16) > (14 if place == 2 else -1))
        cached += going
        for row, sampler, weight in zip(logits, samplers, found["weight_of_parts"], strict=True):
            scale = sampler.sampling.numbers()[0]
            if scale and (weight.view(np.uint32) != weights(row, scale).view(np.uint32)).any():
                return False
        if ((found["left"] > 0) != going).any() or (found["cached"] != cached).any():
            return False
    logits = np.full((3, 264), -np.inf, np.float32)
    found = watched.run(watched.memory(logits, left=2, settings=[0, 0, 1, 0]))
    if found["chosen"][0].tolist() != [NO_LARGEST] * 3:
        return False
    samplers = [Sampler(EACH[number], 5) for number in (7, 10, 15)]
    memory = watched.memory(drawn(3, 3, 264), left=5, **given(samplers, 0))
    watched.run(memory, mode=Mode("random", True, 5), toolchain=WATCHED, blocks=5)
    return True


def left_well(library: dict[str, str]) -> None:
    """End this process, with 0 where all is well; an edit may divide by 0."""
    faulthandler.disable()
    try:
        os._exit(not all_is_well(library))
    except ExecutorError:
        os._exit(1)


@pytest.mark.slow
def test_edits_of_the_library_are_noticed() -> None:
    """By tokens, by what the next step reads, or as races."""
    assert all_is_well(headers())
    text, missed = headers()["mc_choice.cuh"], []
    for old, new in EDITS:
        assert text.count(old) == 1, old
        edited = headers() | {"mc_choice.cuh": text.replace(old, new)}
        judge = get_context("fork").Process(target=left_well, args=(edited,))
        judge.start()
        judge.join()
        if judge.exitcode == 0:
            missed.append(old)
    assert missed == []
