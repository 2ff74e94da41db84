"""Batches of tokens of any requests: whatever is read beside it, and wherever its text is cut, a
token has the logits, to the bit, that it has in a step that reads it alone."""

# Lines of kernels are as long as they are.
# ruff: noqa: E501

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import test_task_drafts
from quantised_checkpoints import MIXTURE, fp8_mixture, save
from task_steps import Step, step_of
from test_task_drafts import FAMILIES, NO_TOKEN, Steps

import meshc
from meshc.backends.cuda.executor import CXX, FIRST, QUICK, WATCHED, Mode, modes
from meshc.backends.cuda.executor.cpu_kernels import Library
from meshc.backends.cuda.tasks import streamed_products
from meshc.devices import device
from meshc.passes.task.expand import split_token
from meshc.support.diagnostics import MeshcError

pytestmark = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")

DATA = Path(__file__).parents[1] / "data"
TOKENS, REQUESTS = 8, 3
"""Of a batch, and those whose tokens it may have; one more is nobody."""
POSITIONS, NEW = (0, 13, 30), (7, 6, 5)
"""Of each request what is cached, and what is read: tokens of the next pages and runs as well."""


class Batches(Steps):
    """A program of batches of tokens on the executor; see :class:`Steps`."""

    def logits(self, tokens, positions):
        """Those behind ``tokens`` of each request, of which the first stands at a position."""
        count = self.program.tokens
        read = [*tokens, [NO_TOKEN] * (count - sum(map(len, tokens)))]
        owners = np.repeat(np.arange(len(read)), [*map(len, read)])
        ahead = np.concatenate([np.arange(len(own)) for own in read])
        places = np.array([*positions, 0])[owners] + ahead
        given = {
            "tokens": np.concatenate(read), "cached": places, "owners": owners, "ahead_of": ahead,
        }  # fmt: skip
        for name, array in given.items():
            self.machine.write(name, array.astype(np.int32))
        self.machine.run(self.program.launches())
        found, at = self.machine.read("logits"), np.cumsum([0, *map(len, tokens)])
        return [
            found[first : first + len(own)].copy() for first, own in zip(at, tokens, strict=False)
        ]


class Case:
    """A model, and what its tokens have that are read one by one, in a program of as many requests
    as batches have tokens, or ``alone`` in such batches."""

    def __init__(self, model, size=TOKENS, alone=False, **how):
        self.model, self.positions = DATA / model, (*POSITIONS, 0)
        how = {"capacity": 48, "tokens": 16, "meet": "tags"} | how
        self.step = step_of(self.model, batch=size, requests=REQUESTS + 1, **how)
        vocabulary = self.step.program.vocabulary
        random = np.random.default_rng(5)
        self.texts = [random.integers(0, vocabulary, count).tolist() for count in NEW]
        self.read = self.run([[1 if r == n else 0 for r in range(3)] for n in range(3)] * 7)
        if not alone:
            plain = Steps(self.model, self._plain(size), step_of(self.model, batch=size, **how))
            for one, other in zip(self.read[0], self._one_by_one(plain, size)[0], strict=True):
                np.testing.assert_allclose(one, other, atol=2e-3 * np.abs(other).max())

    def _plain(self, size):
        return (*self.positions, *[0] * (size - len(self.positions)))

    def _one_by_one(self, steps, size):
        """Logits and what is cached of a program each of whose requests reads a token at a time."""
        found = [[] for _ in NEW]
        for number in range(max(NEW)):
            given = [own[number : number + 1] for own in self.texts]
            given += [[]] * (size - len(given))
            done = [min(number, count) for count in NEW] + [0] * (size - len(NEW))
            places = [p + n for p, n in zip(self._plain(size), done, strict=True)]
            for request, logits in enumerate(steps.logits(given, places)[: len(NEW)]):
                found[request] += [*logits]
        return found, self._rows(steps)

    def _rows(self, steps):
        where = [(r, POSITIONS[r] + n) for r, count in enumerate(NEW) for n in range(count)]
        return [rows[row].copy() for name in steps.states for row, rows in
                (steps.row(steps.machine.read(name), *place) for place in where)]  # fmt: skip

    def run(self, plan, step=None, mode=FIRST, toolchain=QUICK):
        """The same, of launches each of which has as many tokens of each request as ``plan`` says,
        if there are so many left."""
        steps = Batches(self.model, self.positions, step or self.step, mode, toolchain)
        done, found = [0] * len(NEW), [[] for _ in NEW]
        for counts in plan:
            given = [own[at : at + n] for own, at, n in zip(self.texts, done, counts, strict=True)]
            places = [p + at for p, at in zip(self.positions, done, strict=False)]
            for request, logits in enumerate(steps.logits(given, places)):
                found[request] += [*logits]
                done[request] += len(given[request])
        assert done == [*NEW]
        if "met" in steps.program.buffers:
            assert steps.machine.read("met").tolist() == [0]
        return found, self._rows(steps)

    def check(self, plan, step=None, mode=FIRST, toolchain=QUICK):
        """Batches by ``plan`` give and keep the same."""
        (logits, rows), (wanted, kept) = self.run(plan, step, mode, toolchain), self.read
        for one, other in zip(logits, wanted, strict=True):
            assert np.array_equal(one, other)
        assert all(map(np.array_equal, rows, kept))


PLANS = [
    [(5, 1, 2), (2, 5, 1), (0, 0, 2)],
    [(1, 1, 1), (0, 4, 1), (6, 1, 1), (0, 0, 2)],
    [(7, 0, 0), (0, 6, 0), (0, 0, 5)],
]
"""Parts of prompts beside single tokens, and prompts alone."""


@pytest.fixture(scope="module")
def llama():
    return Case("tiny_cuda/llama-4h2")


@pytest.fixture(scope="module")
def latents():
    return Case("tiny_cuda/deepseek-4h")


@pytest.fixture(scope="module")
def neighbours():
    """Latents that blocks attend to for up to eight tokens at once, in three tasks each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(split_token, "WORTH_SPLITTING", 0)
        return Case("tiny_cuda/deepseek-4h", device=h200(12))


def h200(cores):
    return device("h200").with_numbers(cores=cores)


@pytest.mark.parametrize(
    "plan",
    [pytest.param(plan, marks=[pytest.mark.slow] * (plan is not PLANS[0])) for plan in PLANS],
    ids=["mixed", "other", "alone"],
)
def test_batches_change_no_bit(llama, plan):
    llama.check(plan)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "how"),
    [
        *(one for one in FAMILIES if "gpt2" not in one[0]),
        ("tiny_cuda/llama-4h2", {"meet": "kernel", "alone": True}),
    ],
)
def test_families_read_batches(model, how):
    case = Case(model, **how)
    for plan in PLANS:
        case.check(plan)


TWO = """use blocks

model two(E=64, H=4, G=2, D=16, I=4, J=1, K=128, F=64, V=61, layers=2, eps=1e-5, theta=10000.0) {
  weights f16  accumulate f32

  param embedding[V, E], final_norm[E], lm_head[E, V]

  main(tokens[B, L]) -> [B, L, V] {
    x = embed(tokens, embedding)
    repeat layers {
      param attn_norm[E], wq[E, H, D], wk[E, G, D], wv[E, G, D], wo[H, D, E]
      param other_norm[E], uq[E, I, K], uk[E, J, K], uv[E, J, K], uo[I, K, E]
      param ffn_norm[E], w_gate[E, F], w_up[E, F], w_down[F, E]
      x = llama_attention(x, attn_norm, wq, wk, wv, wo, eps, theta)
      x = llama_attention(x, other_norm, uq, uk, uv, uo, eps, theta, cache = second)
      x = llama_mlp(x, ffn_norm, w_gate, w_up, w_down, eps)
    }
    return x when prefill
    return rms_norm(x, final_norm, eps) @ lm_head
  }
}
"""
"""A model whose blocks would have room for eight neighbours in one attention, four in the other."""


@pytest.mark.slow
def test_attentions_of_several_kinds(tmp_path, monkeypatch):
    """Runs of neighbours are those of the first one."""
    path, random = tmp_path / "two.mesh", np.random.default_rng(4)
    path.write_text(TWO)
    how = {"compile_to": "graph", "phase": "decode", "seq": 48, "batch": 1, "dtype": "f16"}
    graph = meshc.compile(path, **how).modules["decode"]
    shapes = {p.value.name: p.value.type.dims for p in graph.function.params if p.role == "weight"}
    tensors = {
        name: random.standard_normal([graph.dims[d] for d in dims]).astype(np.float16) / 4
        for name, dims in shapes.items()
    }
    monkeypatch.setattr(test_task_drafts, "open_weights", lambda *given: tensors)
    case = Case(path)
    assert case.step.text.count("mc::Neighbours<8> neighbours") == 1
    for plan in PLANS:
        case.check(plan)


@pytest.mark.slow
@pytest.mark.parametrize("size", [18, 32, 64])
@pytest.mark.parametrize("copied", [True, False])
def test_large_batches_have_left_sides_in_memory(size, copied, monkeypatch):
    """Whether blocks copy these or have no room for that."""
    if not copied:
        monkeypatch.setattr(streamed_products, "columns_are_copied", lambda *given: False)
    how = {"columns": True, "merge": True, "meet": "counter"}
    case = Case("tiny_cuda/llama-4h2", size, True, **how)
    for plan in ([(7, 6, 5)], PLANS[0], PLANS[1]):
        case.check(plan)


@pytest.mark.slow
@pytest.mark.parametrize(("size", "copied"), [(20, True), (12, True), (12, False)])
def test_experts_whose_left_sides_lie_in_memory(size, copied, tmp_path, monkeypatch):
    """What a token has does not depend on which experts others are sent to."""
    if not copied:
        monkeypatch.setattr(streamed_products, "columns_are_copied", lambda *given: False)
    tensors = fp8_mixture(np.random.default_rng(1))
    folder = save(tmp_path, tensors, {"quant_method": "fp8"}, MIXTURE)
    case = Case(folder, size, True, columns=True, merge=True, meet="counter")
    for plan in PLANS:
        case.check(plan)
    small, _ = Case(folder).read
    for one, other in zip(case.read[0], small, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-3 * np.abs(other).max())


@pytest.mark.slow
@pytest.mark.parametrize("toolchain", [QUICK, WATCHED], ids=["quick", "watched"])
def test_all_schedules_of_a_gpu_give_the_same_bits(llama, toolchain):
    chosen = [Mode("random", True, 5), Mode("random", False, 6)]
    for mode in chosen if toolchain is WATCHED else modes():
        llama.check(PLANS[0], None, mode, toolchain)


STEP = "step.cu"
EDITS = {
    "each has its own position": (STEP, "cached[me] - ahead_of[me]", "cached[me]"),
    "pages of another request": (STEP, "from(pages + 3 * owner", "from(pages + 3 * (owner / 2)"),
    "a row is read too few": (STEP, "element < 64 * (ahead + 1)", "element < 64 * ahead"),
    "rows of the tokens behind": (STEP, "(element / 64) - 128 * ahead)", "(element / 64))"),
    "keys are kept at the first": (STEP, "3 * owner, pos + element / 64, g", "3 * owner, pos, g"),
    "keys are kept elsewhere": (STEP, "lane(pages + 3 * owner", "lane(pages + 3 * (owner / 2)"),
    "the row of the first is not kept": (STEP, "element / 64 >= before && ", "element / 64 > before && "),
    "all are turned as the first": (STEP, "(min(ahead + pos, 47)) * 32", "(min(pos, 47)) * 32"),
    "tiles of new tokens are left out": (STEP, "const int tiles = (ahead + pos", "const int tiles = (pos"),
    "new tokens are masked": (STEP, "0, asks, mc", "0, pos, mc"),
    "a token sees itself twice": (STEP, "there - 1, 0, asks, mc", "there, 0, asks + 1, mc"),
    "the key of the first": (STEP, "fresh + (ahead) * 64", "fresh"),
    "new rows begin one too late": (STEP, "fresh + 512, pos}", "fresh + 512, pos + 1}"),
    "every split has the new token": (STEP, " && s == (ahead + nth + pos) / 16 % 3; }", "; }"),
    "tiles of no cached token have less than none": (STEP, "max(min(16, pos - begin), 0)", "min(16, pos - begin)"),
    "neighbours of any request": ("mc_tasks.cuh", "ahead[row] % MOST", "row % MOST"),
    "the last neighbour is left out": (STEP, "nth <= rest", "nth < rest"),
    "the last run is left out": (STEP, "6 * neighbours.count()", "6 * neighbours.count() - 6"),
    "queries of the first neighbour": (STEP, "const int b = front + nth, ahead", "const int b = front, ahead"),
    "keys of the first neighbour": (STEP, "ahead = before + nth", "ahead = before"),
    "tiles of the first neighbour": (STEP, "b = neighbours.last(", "b = neighbours.first("),
    "rows of the last neighbour are kept": (STEP, "element / 64 >= before && ", "element / 64 >= ahead && "),
    "all ask as the first": (STEP, "asks = ahead + pos + mc::GroupAttention<T, 8, 64, WARPS>::row(2 * there) / 2", "asks = ahead + pos"),
    "fragments of the first pass": (STEP, "attended[2] = {", "attended[2] = {mc::GroupAttention<T, 8, 64, WARPS>(asked), mc::GroupAttention<T, 8, 64, WARPS>(asked)}, others[2] = {"),
    "values of the first neighbour": ("mc_group_attention.cuh", "own + 2 * HEAD * of + HEAD", "own + HEAD"),
    "keys of the first in scores": ("mc_group_attention.cuh", "start(from, own + 2 * HEAD * token,", "start(from, own,"),
    "sums of the first neighbour": (STEP, "statistics, 2 * nth, 2)", "statistics, 0, 2)"),
    "records of the first neighbour": (STEP, "b = front + ahead - before + nth", "b = front + ahead - before"),
    "sums are joined where queries are read": (STEP, "                mc::group_sync(1, WORKERS);\n                #pragma unroll\n                for (int pass = 0; pass < 2; pass++) {\n                    if (4 * pass <= rest) {\n                        const int there = min(4, rest + 1 - 4 * pass);\n                        const int ahead = before + 4 * pass;\n                        #pragma", "                #pragma unroll\n                for (int pass = 0; pass < 2; pass++) {\n                    if (4 * pass <= rest) {\n                        const int there = min(4, rest + 1 - 4 * pass);\n                        const int ahead = before + 4 * pass;\n                        #pragma"),
}  # fmt: skip
"""Edits of what is emitted, each of which makes it wrong: the file, what is there in one place or
more, and what is put there."""


def check_edit(judge, file, old, new):
    """The judge notices ``new`` in place of all that ``file`` has of ``old``."""
    texts = dict(judge.step.texts)
    assert old in texts[file]
    texts[file] = texts[file].replace(old, new)
    with pytest.raises((AssertionError, MeshcError)):
        judge.check(PLANS[0], Step(judge.step.program, texts))
        judge.check(PLANS[1], replace(judge.step, texts=texts), Mode("random", True, 3))


@pytest.mark.parametrize(
    "name",
    [
        name if name == "a row is read too few" else pytest.param(name, marks=pytest.mark.slow)
        for name in EDITS
    ],
)
def test_edits_are_noticed(llama, name):
    check_edit(llama, *EDITS[name])


TILES = "mc_attention.cuh"
LATENT_EDITS = {
    "a row is read too few": (STEP, "i < 32 * (ahead + 1)", "i < 32 * ahead"),
    "the norm of the first row": (STEP, "latent_squares[i / 32]", "latent_squares[0]"),
    "lanes lie by number": (STEP, "lane(i % 32, pos + i / 32)", "lane(i % 32, i / 32)"),
    "turned lanes in place of others": (STEP, "lane(i % 16 + 32, pos", "lane(i % 16 + 16, pos"),
    "each row is cached as the token's": (STEP, "if (ahead == i / 32 && 47", "if (47"),
    "every split has the new token": (STEP, "if (47 >= ahead + pos && s == (ahead + pos) / 16 % 3) attended", "if (47 >= ahead + pos) attended"),
    "the row of the first": (STEP, "add(fresh + 48 * ahead, fresh + 48 * ahead,", "add(fresh, fresh,"),
    "new tokens are masked": (STEP, "min(16, ahead + pos - begin)", "min(16, pos - begin)"),
    "a token sees itself twice": (STEP, "min(16, ahead + pos - begin)", "min(16, ahead + pos + 1 - begin)"),
    "new rows begin one too late": (STEP, "{fresh, fresh, pos}", "{fresh, fresh, pos + 1}"),
    "rows of the next token": (STEP, "{fresh, fresh, pos}", "{fresh + 48, fresh, pos}"),
    "scores of what is cached": (TILES, "rows.key(keys + token * KEY_LANES, position[e])", "keys + token * KEY_LANES"),
    "sums of what is cached": (TILES, "rows.value(values + token * VALUE_ROW, begin + token)", "values + token * VALUE_ROW"),
    "tiles of new tokens are left out": (STEP, "const int tiles = (ahead + pos", "const int tiles = (pos"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", LATENT_EDITS)
def test_edits_of_latents_are_noticed(latents, name):
    check_edit(latents, *LATENT_EDITS[name])


@pytest.mark.parametrize(
    "plan",
    [pytest.param(plan, marks=[pytest.mark.slow] * (plan is not PLANS[0])) for plan in PLANS],
    ids=["mixed", "other", "alone"],
)
def test_neighbours_attend_to_latents_at_once(neighbours, plan):
    assert "mc::Neighbours<8> neighbours" in neighbours.step.texts[STEP]
    neighbours.check(plan)


def test_neighbours_bring_what_is_cached_once(neighbours, monkeypatch):
    """As many bytes as one token of each request, which has 0, 13 and 30 cached."""
    copied = []
    run = Library.run
    monkeypatch.setattr(Library, "run", lambda *a, **k: copied.append(run(*a, **k)))
    steps = Batches(neighbours.model, neighbours.positions, neighbours.step)
    sizes = []
    for counts in ((1, 1, 1), (5, 1, 2), (0, 0, 1)):
        copied.clear()
        texts = [own[:count] for own, count in zip(neighbours.texts, counts, strict=True)]
        steps.logits(texts, POSITIONS)
        sizes.append(sum(one.copied_bytes for one in copied))
    one, several, last = sizes
    assert several == one
    assert one - last == 2 * 13 * 2 * (32 + 16)


@pytest.mark.slow
@pytest.mark.parametrize("toolchain", [QUICK, WATCHED], ids=["quick", "watched"])
def test_all_schedules_of_neighbours_give_the_same_bits(neighbours, toolchain):
    chosen = [Mode("random", True, 5), Mode("random", False, 6)]
    for mode in chosen if toolchain is WATCHED else modes():
        neighbours.check(PLANS[0], None, mode, toolchain)


@pytest.mark.slow
@pytest.mark.parametrize(
    "model", ["tiny_cuda/deepseek-2h-yarn-bf16", "tiny_cuda/deepseek-4h-low-rank"]
)
def test_neighbours_of_other_latents(model):
    case = Case(model, device=h200(3))
    assert "neighbours.count()" in case.step.texts[STEP]
    for plan in PLANS:
        case.check(plan)


NEIGHBOUR_EDITS = {
    "the last run is left out": (STEP, "3 * neighbours.count()", "3 * neighbours.count() - 3"),
    "tiles of the first neighbour": (STEP, "b = neighbours.last(", "b = neighbours.first("),
    "queries of the first neighbour": (STEP, "(past)), 8 * nth);", "(past)), 0);"),
    "queries of those that are not there": (STEP, "put_none(asked, 8 * (rest + 1), me)", "put_none(asked, 8 * rest, me)"),
    "rows of the last neighbour are kept": (STEP, "i / 32 >= before && ", "i / 32 >= ahead && "),
    "every neighbour has the first's row": (STEP, "add(fresh + 48 * ahead, fresh + 48 * ahead,", "add(fresh + 48 * before, fresh + 48 * before,"),
    "own rows are all neighbours'": (STEP, "return query / 8 == nth;", "return true;"),
    "every split has the new token": (STEP, "if (47 >= ahead + pos && s == (ahead + pos) / 16 % 3) attended", "if (47 >= ahead + pos) attended"),
    "all see what the last one does": (STEP, "return nth <= rest && position < ahead + pos;", "return nth <= rest;"),
    "a token sees itself twice": (STEP, "position < ahead + pos;", "position <= ahead + pos;"),
    "all see what the first one does": (STEP, "const int nth = query / 8, ahead = before + nth;", "const int nth = query / 8, ahead = before;"),
    "new rows begin one too late": (STEP, "{fresh, fresh, pos}", "{fresh, fresh, pos + 1}"),
    "records of the first neighbour": (STEP, "sums[256 * nth + i]", "sums[i]"),
    "weights of the first neighbour": (STEP, "statistics[64 + 8 * nth + me]", "statistics[64 + me]"),
    "highest scores of the first": (STEP, "statistics[8 * nth + me]", "statistics[me]"),
    "one record for all": (STEP, "nth <= rest; nth++) {\n                    const int b = front + nth;\n                    float* const record", "nth < 1; nth++) {\n                    const int b = front + nth;\n                    float* const record"),
    "eights of the first token": (TILES, "begin / 8 + i / 8 / (LANES / 8)", "i / 8 / (LANES / 8)"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", NEIGHBOUR_EDITS)
def test_edits_of_neighbours_are_noticed(neighbours, name):
    check_edit(neighbours, *NEIGHBOUR_EDITS[name])
