"""Steps that verify drafts: whatever is drafted, a token has the logits, to the bit, that it has in
a step of so many requests that reads it alone."""

# Lines of kernels are as long as they are.
# ruff: noqa: E501

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from coded_caches import NONE, coded
from step_caches import NAN
from task_steps import Step, machine_of, step_of

from meshc.backends.cuda.executor import CXX, FIRST, QUICK, WATCHED, Mode, modes
from meshc.backends.cuda.host import prepare
from meshc.backends.cuda.tasks import streamed_products
from meshc.driver.models import load_any
from meshc.driver.weights import open_weights
from meshc.support.diagnostics import Diagnostics, MeshcError

pytestmark = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")

DATA = Path(__file__).parents[1] / "data"
NO_TOKEN = -1
POSITIONS = 13, 30
"""Of two requests: drafts go on to the next page, and to the next run of cached tokens."""


class Steps:
    """A step of a model on the executor, whose requests have random numbers cached in front of
    their positions, and no numbers behind them."""

    def __init__(self, model, positions, step, mode=FIRST, toolchain=QUICK):
        self.program, self.positions = step.program, positions
        self.machine = machine_of(step, mode, toolchain)
        loaded, report = load_any(str(model), Diagnostics()), Diagnostics()
        prepare(self.program, self.machine, open_weights(model, loaded.config, None, report), None)
        shape = self.program.buffers["pages"].shape
        pages = np.random.default_rng(2).permutation(np.prod(shape)).reshape(shape)
        self.machine.write("pages", pages.astype(np.int32))
        self.pages, random = pages, np.random.default_rng(3)
        self.states = sorted(n for n, b in self.program.buffers.items() if b.role == "state")
        for name in self.states:
            kind = self.program.buffers[name]
            coded = kind.dtype == "e4m3"
            empty, word = (NONE, np.uint8) if coded else (NAN[kind.dtype], np.uint16)
            pool = np.full(kind.shape, empty, word)
            for request, count in enumerate(positions):
                for at in range(count):
                    row, rows = self.row(pool, request, at)
                    drawn = random.standard_normal(rows[row].shape)
                    rows[row] = coded_words(drawn[..., 1:]) if coded else words(drawn, kind.dtype)
            self.machine.write(name, pool)

    def row(self, pool, request, at):
        """Where what is cached of a token lies, and in what; of coded rows with the scale first."""
        page = self.program.page
        here = ..., self.pages[request, at // page], slice(None)
        if pool.dtype != np.uint8:
            return (*here, at % page, slice(None)), pool
        lanes = pool.shape[-1] - 1
        own = np.append(at % 16, 16 + at % 16 * lanes + np.arange(lanes))
        sixteens = pool.reshape(*pool.shape[:-2], page // 16, -1)
        return (..., own), sixteens[(*here, at % page // 16, slice(None))]

    def logits(self, tokens, positions):
        """Those behind ``tokens`` of each request, of which the first stands at a position."""
        columns = self.program.columns
        ids = np.full((self.program.batch, columns), NO_TOKEN, np.int32)
        cached = np.zeros((self.program.batch, 1), np.int32)
        for request, (own, at) in enumerate(zip(tokens, positions, strict=True)):
            ids[request, : len(own)], cached[request] = own, at
        self.machine.write("tokens", ids.ravel())
        places = (cached + np.arange(columns)).astype(np.int32)
        self.machine.write("cached", places.ravel())
        self.machine.run(self.program.launches())
        found = self.machine.read("logits").reshape(*ids.shape, -1)
        return [found[request, : len(own)].copy() for request, own in enumerate(tokens)]

    def new_rows(self, count):
        """What caches hold of ``count`` tokens behind the positions."""
        pools = [self.machine.read(name) for name in self.states]
        where = [(r, p + n) for r, p in enumerate(self.positions) for n in range(count)]
        found = [self.row(pool, *place) for pool in pools for place in where]
        return [rows[row] for row, rows in found]


def words(values, dtype):
    """Numbers as words of a 16-bit type, rounded towards zero in bf16."""
    if dtype == "f16":
        return values.astype(np.float16).view(np.uint16)
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def coded_words(values):
    """The byte of the scale and those of the floats of rows, as they are coded."""
    codes, scales = coded(values)
    return np.concatenate([scales[..., None], codes], -1)


class Case:
    """A model whose steps verify ``drafts`` of a few requests, and what its tokens have in those of
    another program, or ``alone`` in these."""

    def __init__(self, model, drafts, positions=POSITIONS, alone=False, **how):
        self.model, self.drafts, self.positions = DATA / model, drafts, positions
        how = {"capacity": 48, "tokens": 16, "meet": "tags"} | how
        count = len(positions)
        self.step = step_of(self.model, batch=count, drafts=drafts, **how)
        other = self.step if alone else step_of(self.model, batch=count * (1 + drafts), **how)
        plain = Steps(self.model, positions, other)
        vocabulary = self.step.program.vocabulary
        self.tokens = np.random.default_rng(5).integers(0, vocabulary, (count, 1 + drafts))
        self.vocabulary = vocabulary
        self.wanted = np.stack(
            [
                np.concatenate(plain.logits([[t] for t in own], [p + n for p in positions]))
                for n, own in enumerate(self.tokens.T)
            ],
            axis=1,
        )
        self.rows = plain.new_rows(1 + drafts)

    def check(self, plan, step=None, mode=FIRST, toolchain=QUICK):
        """Let launches have as many right drafts as ``plan`` says of each request, and wrong ones
        or none behind them."""
        steps = Steps(self.model, self.positions, step or self.step, mode, toolchain)
        done = [0] * len(self.positions)
        found = [[] for _ in done]
        for number, rights in enumerate(plan):
            tokens = []
            for own, at, right in zip(self.tokens, done, rights, strict=True):
                known = own[at : at + 1 + right].tolist()
                left = 1 + self.drafts - len(known)
                wrong = [(int(t) + 1) % self.vocabulary for t in own[at + 1 + right :]][:left]
                tokens.append(known + (wrong if number % 2 == 0 and known else []))
            places = [p + at for p, at in zip(self.positions, done, strict=True)]
            for request, logits in enumerate(steps.logits(tokens, places)):
                count = min(1 + rights[request], 1 + self.drafts - done[request])
                found[request] += [*logits[:count]]
                done[request] += count
        assert done == [1 + self.drafts] * len(done)
        assert (np.array(found) == self.wanted).all()
        assert all(map(np.array_equal, steps.new_rows(1 + self.drafts), self.rows))
        assert steps.machine.read("met").tolist() == [0]


PLANS = [
    [(3, 3)],
    [(0, 1), (0, 1), (1, 0)],
    [(1, 0), (0, 0), (0, 0), (0, 0)],
]
"""Of three drafts: all right, or some."""


@pytest.fixture(scope="module")
def llama():
    return Case("tiny_cuda/llama-4h2", 3)


@pytest.mark.parametrize(
    "plan",
    [pytest.param(plan, marks=[pytest.mark.slow] * (plan is not PLANS[1])) for plan in PLANS],
    ids=["all", "some", "few"],
)
def test_drafts_change_no_bit(llama, plan):
    llama.check(plan)


FAMILIES = [
    ("tiny_cuda/qwen2-2h1-bf16", {"dtype": "bf16", "page": 1}),
    ("tiny_cuda/llama-4h2", {"page": 64, "tokens": 48}),
    ("tiny_cuda/llama-4h2", {"merge": True, "meet": "counter", "tokens": 32}),
    ("tiny_cuda/deepseek-4h", {}),
    ("tiny_families/gemma2-6h2-window", {}),
    ("tiny_families/gemma3-6h2-window", {}),
    ("tiny_families/gpt2-3h-untied-f16", {"capacity": 24}),
    ("tiny_families/cohere-6h2", {}),
    ("tiny_families/phi3-4h2-parts", {}),
    ("tiny_gpt_oss/gpt-oss-5x2-yarn", {}),
    ("tiny_experts/mixtral-5x2", {}),
    ("tiny_experts/qwen3-moe-7x3", {"page": 64}),
    ("tiny_latent_experts/deepseek-v2-8x3", {}),
    ("tiny_scaled/granite-6h2-biased", {}),
    ("tiny_cuda/llama-4h2", {"coded": True}),
    ("tiny_families/gemma2-6h2-window", {"coded": True, "page": 64}),
]
"""Models of all families, and how steps of them are made."""


@pytest.mark.slow
@pytest.mark.parametrize(("model", "how"), FAMILIES)
def test_families_verify_drafts(model, how):
    positions = (3, 16) if "gpt2" in model else POSITIONS
    case = Case(model, 3, positions, **how)
    for plan in PLANS:
        case.check(plan)


@pytest.mark.slow
@pytest.mark.parametrize(("drafts", "positions"), [(1, POSITIONS), (7, (20, 5)), (15, (9,))])
def test_few_and_many_drafts(drafts, positions):
    case = Case("tiny_cuda/llama-4h2", drafts, positions)
    case.check([(drafts,) * len(positions)])
    case.check([(0,) * len(positions)] * (1 + drafts))


@pytest.mark.slow
@pytest.mark.parametrize("copied", [True, False])
@pytest.mark.parametrize("model", ["tiny_cuda/llama-4h2", "tiny_families/gemma2-6h2-window"])
def test_left_sides_in_memory_verify_drafts(model, copied, monkeypatch):
    """Of a batch of five or more that is predicted to be faster so, whether blocks copy them or
    have no room for that."""
    monkeypatch.setattr(streamed_products, "columns_are_copied", lambda *given: copied)
    how = {"alone": True, "columns": True, "merge": True, "meet": "counter"}
    case = Case(model, 2, (13, 30, 5, 20, 9), **how)
    assert ("mc::Copied" if copied else "mc::Streamed") in case.step.text
    case.check([(2,) * 5])
    case.check([(0, 1, 2, 1, 0), (1, 0, 0, 1, 0), (0, 1, 0, 0, 1)])


@pytest.mark.slow
@pytest.mark.parametrize("toolchain", [QUICK, WATCHED], ids=["quick", "watched"])
def test_all_schedules_of_a_gpu_give_the_same_bits(llama, toolchain):
    chosen = [Mode("random", True, 5), Mode("random", False, 6)]
    for mode in chosen if toolchain is WATCHED else modes():
        llama.check(PLANS[1], None, mode, toolchain)


STEP, ROWS = "step.cu", "mc_attention.cuh"
EDITS = {
    "drafts are masked": (STEP, "pos + b % 4, 0, pos + b % 4", "pos, 0, pos"),
    "a draft sees itself twice": (STEP, "pos + b % 4, 0, pos + b % 4", "pos + b % 4 + 1, 0, pos + b % 4 + 1"),
    "drafts begin one too early": (ROWS, "values + (position - since)", "values + (position + 1 - since)"),
    "keys of the token behind": (ROWS, "keys + (position - since)", "keys + (position + 1 - since)"),
    "the first draft is read from a cache": (ROWS, "position < since ? row : keys", "position <= since ? row : keys"),
    "values of drafts are read from a cache": (ROWS, "position < since ? row : values", "position <= since ? row : values"),
    "lanes lie by number": (STEP, "lane(element % 64, pos + element / 64)] = lane;\n                    if (s == (pos + b % 4) / 16 && b % 4 == element / 64) cache_k", "lane(element % 64, element / 64)] = lane;\n                    if (s == (pos + b % 4) / 16 && b % 4 == element / 64) cache_k"),
    "the key of another draft": (STEP, "fresh + (b % 4) * 64", "fresh + (3 - b % 4) * 64"),
    "each has its own position": (STEP, "cached[me / 4 * 4]", "cached[me]"),
    "all are turned as the first": (STEP, "cosines[(size_t)(pos + b % 4) * 32", "cosines[(size_t)pos * 32"),
    "pages of another request": (STEP, "from(pages + 3 * (b / 4)", "from(pages + 3 * (b % 2)"),
    "tiles of no cached token have less than none": (STEP, "max(min(16, pos - begin), 0)", "min(16, pos - begin)"),
    "tiles of new tokens are left out": (STEP, "const int tiles = (pos + b % 4 +", "const int tiles = (pos +"),
    "the value of the key": (STEP, "mc::widen(own[256])", "mc::widen(own[0])"),
    "keys of another request": (STEP, "element % 64 + 512 * (b / 4)", "element % 64"),
}  # fmt: skip
"""Edits of what is emitted, each of which makes it wrong: the file, what is there in one place or
more, and what is put there."""
IN_CI = ("drafts begin one too early",)


@pytest.mark.parametrize(
    "name",
    [name if name in IN_CI else pytest.param(name, marks=pytest.mark.slow) for name in EDITS],
)
def test_edits_are_noticed(llama, name):
    file, old, new = EDITS[name]
    texts = dict(llama.step.texts)
    assert old in texts[file]
    texts[file] = texts[file].replace(old, new)
    with pytest.raises((AssertionError, MeshcError)):
        llama.check(PLANS[1], Step(llama.step.program, texts))
        llama.check(PLANS[0], replace(llama.step, texts=texts), Mode("random", True, 3))
