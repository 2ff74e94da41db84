"""Prompts in chunks: what the host asks of a machine, which NumPy plays here."""

import numpy as np
import pytest

from meshc.backends.cuda import LanguageModel, StepProgram, from_json
from meshc.backends.cuda.launches import Launch, Stage, part_of
from meshc.backends.cuda.program import KERNELS, Buffer, Prefill, Target

H200 = Target("h200", "sm_90a", 132, 232448)
WORDS, LAYERS, CHUNK, CAPACITY = 23, 2, 4, 64
TABLE = np.random.default_rng(0).integers(-50, 50, (LAYERS, WORDS, WORDS))


def program(page=16, chunks=True):
    """A model whose logits are sums over all tokens so far, each weighed by its position."""
    pages = CAPACITY // page
    buffers = {
        "tokens": Buffer("i32", (1,), "input"),
        "cached": Buffer("i32", (1,), "input"),
        "pages": Buffer("i32", (1, pages), "input"),
        "cosines": Buffer("f32", (CAPACITY, 1), "constant"),
        "sines": Buffer("f32", (CAPACITY, 1), "constant"),
        "keys": Buffer("f32", (LAYERS, pages, page), "state"),
        "logits": Buffer("f32", (1, WORDS), "output"),
        "chunk_tokens": Buffer("i32", (CHUNK,), "input"),
        "chunk_cached": Buffer("i32", (CHUNK,), "input"),
        "chunk_pages": Buffer("i32", (1, pages), "input"),
        "chunk_count": Buffer("i32", (1,), "input"),
        "chunk_logits": Buffer("f32", (1, WORDS), "output"),
    }
    given = "chunk_tokens", "chunk_cached", "chunk_count", "chunk_pages"
    prefill = Prefill(
        KERNELS,
        CHUNK,
        1,
        (Launch("clear", ("chunk_logits",)), Launch("columns", ("chunk_tokens",))),
        (Stage(LAYERS, (Launch("chunk", (*given, "keys[]")),)),),
        (Launch("last", ("chunk_cached", "chunk_count", "chunk_pages", "keys", "chunk_logits")),),
    )
    return StepProgram(
        "sums", H200, 1, CAPACITY, WORDS, page, ((1.0,),), {}, buffers, {},
        (Launch("clear", ("logits",)),),
        (Stage(LAYERS, (Launch("one", ("tokens", "cached", "pages", "keys[]")),)),),
        (Launch("head", ("cached", "pages", "keys", "logits")),),
        (prefill,) if chunks else (),
    )  # fmt: skip


def store(keys, pages, position, token):
    page = keys.shape[1]
    keys[pages[0, position // page], position % page] = token


class NumPyMachine:
    """Kernels are methods; ``ran`` has their names in order."""

    def __init__(self):
        self.arrays, self.ran = {}, []

    def store(self, name, array):
        self.arrays[name] = np.array(array)

    def write(self, name, array):
        assert self.arrays[name].shape == array.shape
        self.arrays[name][...] = array

    def read(self, name):
        return self.arrays[name].copy()

    def run(self, launches):
        for launch, layer in launches:
            self.ran.append(launch.kernel)
            getattr(self, launch.kernel)(*(self.argument(a, layer) for a in launch.arguments))

    def argument(self, argument, layer):
        name, part = part_of(argument, layer)
        found = self.arrays[name]
        return found if part is None else found[part : part + 1] if found.ndim == 1 else found[part]

    def clear(self, logits):
        logits[...] = np.nan

    def one(self, tokens, cached, pages, keys):
        store(keys, pages, cached[0], tokens[0])

    def columns(self, tokens):
        count = int((tokens >= 0).sum())
        assert (tokens[:count] >= 0).all()

    def chunk(self, tokens, cached, count, pages, keys):
        for n in range(count[0]):
            store(keys, pages, cached[n], tokens[n])

    def last(self, cached, count, pages, keys, logits):
        self.head(cached[count[0] - 1 :], pages, keys, logits)

    def head(self, cached, pages, keys, logits):
        length = cached[0] + 1
        page = keys.shape[2]
        where = np.arange(length)
        tokens = keys[:, pages[0, where // page], where % page].astype(int)
        weights = 1 + where[:, None] % 7
        logits[0] = sum((TABLE[n][tokens[n]] * weights).sum(0) for n in range(LAYERS))


def answer(chunks, page, prompt):
    machine = NumPyMachine()
    model, steps = LanguageModel(program(page, chunks), machine, {}), []
    tokens = list(model.generate(prompt, 5, lambda token, logits: steps.append(logits)))
    return tokens, np.array(steps), machine


@pytest.mark.parametrize("page", [1, 16, 64])
@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 8, 18, 59])
def test_chunks_give_what_single_tokens_give(page, length):
    prompt = [n * n % WORDS for n in range(length)]
    tokens, logits, machine = answer(True, page, prompt)
    same, others, single = answer(False, page, prompt)
    assert tokens == same and (logits == others).all()
    assert (machine.arrays["keys"] == single.arrays["keys"]).all()
    assert single.ran.count("columns") == 0


def test_chunks_are_as_few_as_can_be_and_only_the_last_gives_logits():
    for length, chunks, singles in ((1, 0, 1), (4, 1, 0), (9, 2, 1), (10, 3, 0), (12, 3, 0)):
        *_, machine = answer(True, 16, [3] * length)
        assert machine.ran.count("columns") == chunks
        assert machine.ran.count("chunk") == chunks * LAYERS
        assert machine.ran.count("one") == (singles + 4) * LAYERS
        assert machine.ran.count("last") == (singles == 0)
        assert machine.ran.count("head") == singles + 4, "one for each token but one"


def test_only_the_last_chunk_has_launches_that_give_logits():
    launches = program().prefills[0].launches(True)
    assert launches[-1][0].kernel == "last"
    assert program().prefills[0].launches(False) == launches[:-1]


def test_a_manifest_holds_both_lists():
    both, decode = program(), program(chunks=False)
    assert from_json(both.to_json()) == both != decode
    assert from_json(decode.to_json()) == decode
