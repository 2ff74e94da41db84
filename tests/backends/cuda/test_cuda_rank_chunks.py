"""Chunks of prompts on the GPUs of ranks in the executor: the collective of a chunk beside float64,
and programs that read prompts many tokens at once beside the graph of the whole model."""

from functools import cache

import numpy as np
import pytest
from kernel_reference import from_kind, rows_of, to_kind
from rank_programs import rank_program
from test_cuda_ranks import decoded, graph_of, interpreted, tensors_of

from meshc.backends.cuda import CpuNode, LanguageModel
from meshc.backends.cuda.executor import (
    CXX,
    FIRST,
    QUICK,
    WATCHED,
    Grid,
    Library,
    Mode,
    modes,
    symmetric_memory,
)
from meshc.backends.cuda.kernels.chunk_tiles import DoesNotFit
from meshc.backends.cuda.kernels.collective.kernel import Collective, link_bytes, plan, text
from meshc.backends.cuda.library import headers

pytestmark = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")

HIDDEN, TOKENS, EPSILON = 40, 11, 1e-5
UNIT = {"f16": 2.0**-11, "bf16": 2.0**-8}
SHAPES = {
    f"{layout}_{transport}": Collective(
        "all_reduce_norm", HIDDEN, kind, transport, EPSILON, chunk=TOKENS, layout=layout
    )
    for layout, transport, kind in (
        ("columns", "multimem", "bf16"),
        ("columns", "peers", "f16"),
        ("f32", "multimem", "f16"),
        ("f32", "peers", "bf16"),
    )
}
PLANS = {name: plan(shape, 2) for name, shape in SHAPES.items()}


@cache
def library(toolchain=QUICK):
    return Library("".join(text(p, name) for name, p in PLANS.items()), toolchain=toolchain)


def collected(name, gpus, first, most, count, mode=FIRST, toolchain=QUICK):
    """Rows given to all and the residual of each GPU, beside what float64 says of both."""
    shape, rng = SHAPES[name], np.random.default_rng(gpus)
    begin = count - 1 if first < 0 else first
    kind, rows = shape.dtype, range(begin, min(begin + most, count))
    wide = shape.layout == "f32"
    parts = to_kind(rng.standard_normal((gpus, TOKENS, HIDDEN)), kind)
    gain = to_kind(rng.standard_normal(HIDDEN), kind)
    stream = rng.standard_normal((TOKENS, HIDDEN)).astype(np.float32)
    sums = symmetric_memory(0, gpus, (TOKENS, HIDDEN), np.uint16)
    size = (most, HIDDEN) if wide else (-(-HIDDEN // 16), TOKENS, 16)
    given = symmetric_memory(1, gpus, size, np.float32 if wide else np.uint16)
    words = symmetric_memory(2, gpus, (PLANS[name].signals(gpus),), np.uint32, signals=True)
    for part, values in zip(sums.parts, parts, strict=True):
        part[...] = values
    streams = [stream.copy() for _ in range(gpus)]

    def reached(memory):
        return np.uint64(memory.multicast) if shape.transport == "multimem" else memory.addresses

    arguments = [
        [
            reached(sums), streams[rank], gain, reached(given), words.addresses,
            np.array([count], np.int32), np.int32(first), np.int32(most), np.int32(rank),
            np.int32(gpus),
        ]
        for rank in range(gpus)
    ]  # fmt: skip
    chosen = PLANS[name]
    grid = Grid(chosen.blocks, chosen.threads, 1, chosen.arena.bytes)
    moved = library(toolchain).run_on_gpus(name, grid, arguments, [sums, given, words], mode)
    assert moved == link_bytes(shape, len(rows), gpus)
    total = to_kind(from_kind(parts, kind).sum(0), kind)
    wanted = stream.astype(np.float64)
    for row in rows:
        wanted[row] += from_kind(total, kind)[row]
        for rank, held in enumerate(streams):
            own = row % gpus == rank
            assert np.abs(held[row] - (wanted if own else stream)[row]).max() <= 2.0**-20
    normed = wanted / np.sqrt((wanted**2).mean(1, keepdims=True) + EPSILON) * from_kind(gain, kind)
    found = []
    for part in given.parts:
        if wide:
            found.append(part[: len(rows)])
            continue
        all_rows = rows_of(part, TOKENS, 16 * len(part))
        assert not np.delete(all_rows, rows, 0).any() and not all_rows[:, HIDDEN:].any()
        found.append(from_kind(all_rows[rows.start : rows.stop, :HIDDEN], kind))
    unit, normed = 2.0**-18 if wide else UNIT[kind], normed[rows.start : rows.stop]
    for part in found:
        assert (np.abs(part - normed) <= unit * np.abs(normed) + 2.0**-18).all()
    return b"".join(part.tobytes() for part in (*given.parts, *streams))


@pytest.mark.parametrize("name", PLANS)
def test_any_rows_of_a_chunk_are_completed(name):
    """All of them, some behind others, fewer than GPUs, those that there are, none, the last."""
    for gpus, first, most, count in (
        (1, 0, TOKENS, TOKENS), (2, 0, TOKENS, 9), (3, 4, 3, TOKENS), (4, 10, 1, TOKENS),
        (3, 5, 6, 7), (2, 0, TOKENS, 0), (5, 8, 3, 8),
        (3, -1, 1, 7), (2, -1, 1, TOKENS), (4, -1, 1, 1),
    ):  # fmt: skip
        collected(name, gpus, first, most, count)


@pytest.mark.parametrize("name", PLANS)
def test_all_modes_give_the_same_bits(name):
    assert len({collected(name, 3, 2, 8, 9, mode) for mode in modes()}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANS)
def test_nothing_races(name):
    for mode in (FIRST, Mode("random", True, 3)):
        collected(name, 2, 1, 9, 8, mode, WATCHED)


@pytest.mark.parametrize(
    "changed",
    [{"dtype": "f32"}, {"hidden": 36}, {"layout": "rows"}, {"chunk": 0}, {"form": "all_reduce"}],
)
def test_other_collectives_of_chunks_are_refused(changed):
    shape = {"form": "all_reduce_norm", "hidden": HIDDEN, "dtype": "f16", "chunk": 8}
    with pytest.raises(DoesNotFit):
        plan(Collective(**{**shape, "layout": "columns", **changed}))


PROMPT = [5, 17, 3, 40, 11, 7, 9, 22, 31, 2, 6, 44, 15]


def check(model, count, transport, chunk, mode=FIRST, tools=QUICK):
    """The prompt in chunks of up to ``chunk`` tokens, then tokens behind it, on ``count`` ranks."""
    whole = graph_of(model)
    program, texts = rank_program(whole, count, transport, chunk)
    node = CpuNode(program.kernels, {**texts, **headers()}, count, mode, tools)
    tensors = tensors_of(model)
    tokens, logits = decoded(LanguageModel(program, node, tensors), PROMPT)
    wanted = interpreted(whole, tensors, tokens, PROMPT)
    assert tokens == wanted.argmax(1).tolist()
    assert np.abs(logits - wanted).max() <= 2.0**-8 * np.abs(wanted).max()
    return logits.tobytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "transport", "chunk"), [(2, "multimem", 16), (3, "peers", 8), (3, "multimem", 8)]
)
def test_ranks_read_a_prompt_in_chunks(count, transport, chunk):
    """In a part of one chunk; in a whole one and a part. Of three ranks one has padding. The tests
    of two halves do the same for two ranks, each time."""
    check("llama-4h2", count, transport, chunk)


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["multimem", "peers"])
def test_all_schedules_give_the_same_logits(transport):
    found = {check("llama-4h2", 3, transport, 8, mode) for mode in modes()}
    assert len(found) == 1
