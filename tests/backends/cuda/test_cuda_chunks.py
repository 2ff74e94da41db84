"""Kernels of all tokens of a chunk of a prompt: against float64, and the bytes that they bring."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_reference import columns, from_kind, rotated, rows_of, swizzled_pool, to_kind
from reduced import only

from meshc.analysis.cuda.blocks import THREADS
from meshc.backends.cuda.executor import CXX, QUICK, WATCHED, Grid, Library, Mode, modes
from meshc.backends.cuda.kernels.chunk_attention import kernel as attention
from meshc.backends.cuda.kernels.chunk_attention.kernel import Attention
from meshc.backends.cuda.kernels.chunk_product import kernel as chunk
from meshc.backends.cuda.kernels.chunk_product.kernel import ChunkProduct
from meshc.backends.cuda.kernels.chunk_tiles import DoesNotFit
from meshc.backends.cuda.packing import in_fragments
from meshc.backends.cuda.toolchain.toolkit import compile_cubin
from meshc.cost.prompts import ProductTile, attention_bytes, product_tile, weight_bytes
from meshc.devices import device

H200 = device("h200")


pytestmark = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")
UNIT = {"f16": 2.0**-11, "bf16": 2.0**-8}


@cache
def product(shape):
    return Library(chunk.text(chunk.plan(shape, H200), "product"), toolchain=QUICK)


PRODUCTS = {
    "gated": ChunkProduct(40, 200, 150, "f16", "gated", bias=True),
    "added": ChunkProduct(136, 96, 33, "bf16", "added", bias=True, factor=0.22),
    "gated by warpgroups": ChunkProduct(128, 200, 150, "f16", "gated", bias=True),
    "added by warpgroups": ChunkProduct(192, 1056, 133, "bf16", "added", bias=True, factor=0.22),
    "stored by warpgroups": ChunkProduct(256, 96, 24, "f16"),
}


ACTIVATIONS = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu_tanh": lambda x: x / (1 + np.exp(-2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
}


def run_product(shape, count, mode, library=None, seed=0, written=None):
    """The output [count, rows], what it should be, and bytes that were copied. A watched library
    takes the places of arguments that the grid in front wrote."""
    rng = np.random.default_rng(seed)
    kind, plan = shape.dtype, chunk.plan(shape, H200)
    x = to_kind(rng.standard_normal((count, shape.width)), kind)
    w = to_kind(rng.standard_normal((shape.rows, shape.width)) * shape.width**-0.5, kind)
    bias = to_kind(rng.standard_normal(shape.rows), kind)
    before = rng.standard_normal((shape.tokens, shape.rows)).astype(np.float32)
    matrix = in_fragments(w)
    features = shape.rows // (2 if shape.output == "gated" else 1)
    output = np.full((shape.tokens, shape.rows), np.nan, np.float32)
    if shape.output == "part":
        output = np.full((shape.tokens, shape.rows), 0x7FFF, np.uint16)
    elif shape.output in ("gated", "activated"):
        output = np.zeros((-(-features // 16), shape.tokens, 16), np.uint16)
    given_arrays = [columns(x, shape.tokens), matrix, *([bias] if shape.bias else [])]
    given_arrays += [np.array([count], np.int32), *([before] if shape.output == "added" else [])]
    grid = Grid(plan.blocks, THREADS, plan.tile.cluster, plan.arena.bytes)
    found = library or product(shape)
    counts = found.run("product", grid, [*given_arrays, output], mode, written=written)
    assert counts.early_blocks == plan.blocks
    y = from_kind(x, kind) @ from_kind(w, kind).T
    y = shape.factor * (y + from_kind(bias, kind) if shape.bias else y)
    if output.ndim == 3:
        activated = ACTIVATIONS[shape.activation]
        gated = shape.output == "gated"
        want = activated(y[:, 0::2]) * y[:, 1::2] if gated else activated(y)
        return from_kind(rows_of(output, count, features), kind), want, counts.copied_bytes
    if shape.output == "part":
        output = from_kind(output, kind)
    assert np.isnan(output[count:]).all()
    return output[:count], y + before[:count] * (shape.output == "added"), counts.copied_bytes


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_read_each_weight_once_in_all_modes(name):
    shape = PRODUCTS[name]
    for count in (shape.tokens, 9):
        results = set()
        for mode in modes():
            found, want, copied = run_product(shape, count, mode)
            assert np.abs(found - want).max() <= UNIT[shape.dtype] * np.abs(want).max()
            assert copied == chunk.plan(shape, H200).copied_bytes(count)
            results.add(found.tobytes())
        assert len(results) == 1


def drawn(seed):
    """A product of any shape by warpgroups, and tokens of a chunk that are there."""
    rng = np.random.default_rng(seed)
    output = str(rng.choice(["stored", "added", "part", "gated", "activated"]))
    rows = int(rng.integers(1, 40 if seed % 3 else 300))
    shape = ChunkProduct(
        int(rng.choice([64, 128, 192, 256, 320, 512])), int(rng.integers(1, 700)),
        2 * rows if output == "gated" else rows, str(rng.choice(["f16", "bf16"])), output,
        str(rng.choice(sorted(ACTIVATIONS))), bool(rng.integers(2)),
        float(rng.choice([1.0, 0.22])) if output in ("stored", "added") else 1.0,
    )  # fmt: skip
    return shape, int(rng.integers(1, shape.tokens + 1))


@pytest.mark.parametrize("seed", only(range(200), 3, 8))
def test_drawn_products_of_warpgroups_are_those_of_float64(seed):
    shape, count = drawn(seed)
    plan, mode = chunk.plan(shape, H200), list(modes((seed,)))[seed % 12]
    assert plan.tile.warpgroups
    found, want, copied = run_product(shape, count, mode, seed=seed)
    assert np.abs(found - want).max() <= UNIT[shape.dtype] * np.abs(want).max()
    assert copied == plan.copied_bytes(count)
    if seed % 8 == 0:
        watched = Library(chunk.text(plan, "product"), toolchain=WATCHED)
        again, _, _ = run_product(shape, count, Mode("random", True, seed), watched, seed, (0,))
        assert np.array_equal(found, again)


def attend(plan, library, count, before, mode, seed=0):
    """What a chunk attends, what it should, and bytes that were copied."""
    rng, shape = np.random.default_rng(seed), plan.shape
    kind, g, d = shape.dtype, shape.kv_heads, shape.head
    pages = -(-(before + count) // shape.page)
    pool = [to_kind(rng.standard_normal((pages + 1, g, shape.page, d)), kind) for _ in range(2)]
    table = rng.permutation(pages + 1)[:pages].astype(np.int32)
    queries = to_kind(rng.standard_normal((plan.tokens, g, shape.group, d)) * 2, kind)
    output = np.zeros((g * shape.group * d // 16, plan.tokens, 16), np.uint16)
    held = [swizzled_pool(p, [table]) for p in pool]
    cached = np.arange(before, before + plan.tokens, dtype=np.int32)
    grid = Grid(plan.blocks, THREADS, 1, plan.arena.bytes)
    counts = library.run(
        "attention", grid, [queries, *held, table, np.array([count], np.int32), cached, output],
        mode,
    )  # fmt: skip
    at = np.arange(before + count)
    keys, values = (from_kind(p[table[at // shape.page], :, at % shape.page], kind) for p in pool)
    asked = from_kind(queries[:count], kind)
    scores = np.einsum("qghd,kgd->qghk", asked, keys) * shape.scale
    seen = at[None, :] <= cached[:count, None]
    if shape.window:
        seen &= at[None, :] > cached[:count, None] - shape.window
    scores = np.where(seen[:, None, None, :], scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    want = np.einsum("qghk,kgd->qghd", weights, values).reshape(count, -1)
    found = rows_of(output, count, want.shape[1])
    assert not rows_of(output, plan.tokens, want.shape[1])[count:].any()
    return from_kind(found, kind), want, counts.copied_bytes


SHAPES = {
    "three heads of a key head": (Attention(64, 6, 2, 64, "f16", 16, 1e-5, 0.125), 40),
    "heads in turns": (Attention(64, 16, 1, 64, "bf16", 64, 1e-5, 0.1), 24),
    "one head, pages of one": (Attention(64, 2, 2, 128, "f16", 1, 1e-5, 0.1), 136),
    "long heads": (Attention(64, 2, 1, 256, "f16", 16, 1e-5, 0.06), 40),
    "window": (Attention(64, 6, 2, 64, "f16", 16, 1e-5, 0.125, window=37), 40),
    "window of one": (Attention(64, 4, 2, 96, "bf16", 1, 1e-5, 0.1, window=1), 72),
    "long heads, window": (Attention(64, 16, 1, 256, "f16", 16, 1e-5, 0.06, window=90), 40),
}
IN_CI = {"three heads of a key head", "window"}


def planned(name):
    shape, tokens = SHAPES[name]
    return attention.plan(shape, H200, tokens)


@cache
def attending(name):
    plan = planned(name)
    return plan, Library(attention.text(plan, "attention"), toolchain=QUICK)


@pytest.mark.parametrize(
    "name",
    [n if n in IN_CI else pytest.param(n, marks=pytest.mark.slow) for n in SHAPES],
)
def test_any_chunk_behind_any_tokens_is_attended(name):
    plan, library = attending(name)

    @settings(max_examples=12, deadline=None, derandomize=True)
    @given(
        st.integers(1, plan.tokens), st.integers(0, 200), st.sampled_from(list(modes())),
        st.integers(0, 99),
    )  # fmt: skip
    def check(count, before, mode, seed):
        found, want, copied = attend(plan, library, count, before, mode, seed)
        assert np.abs(found - want).max() <= 3 * UNIT[plan.shape.dtype] * np.abs(want).max()
        assert copied == plan.copied_bytes(before, count)

    check()


def test_the_formulas_by_hand():
    """A matrix of 33 x 20 is 3 x 2 blocks of 512 bytes; 9 tokens are 16 columns of 32 values."""
    assert weight_bytes(33, 20) == 3 * 2 * 512
    assert ProductTile(4, 24).copied_bytes(33, 20, 9) == weight_bytes(33, 20) + 16 * 32 * 2
    # Three blocks of 128 rows with each of two tiles of 64 tokens; of four, pairs share columns.
    tile = ProductTile(8, 64, 1, True)
    assert product_tile(H200, 257, 192) == tile
    assert [ProductTile(8, 256, 1, True).multiplied(n) for n in (9, 129, 300)] == [64, 256, 320]
    assert tile.copied_bytes(257, 20, 65) == 2 * weight_bytes(257, 20) + 3 * 128 * 32 * 2
    assert product_tile(H200, 512, 192) == replace(tile, cluster=2)
    assert replace(tile, cluster=2).copied_bytes(512, 16, 64) == 512 * 32 + 2 * 64 * 16 * 2
    # Tiles of 16 and 4 positions behind 5 tokens see 21 and 25; keys and values of 64 lanes.
    assert attention_bytes(3, 64, 16, 5, 20) == 3 * (21 + 25) * 2 * 64 * 2
    # With a window of 9 the second tile begins at token 13, in the second eight.
    assert attention_bytes(3, 64, 16, 5, 20, 9, 8) == 3 * (21 + 25 - 8) * 2 * 64 * 2


EDITS = {
    "one token more": ("own_position - WINDOW", "own_position - WINDOW - 1"),
    "one token less": ("own_position - WINDOW", "own_position - WINDOW + 1"),
    "a tile too many left out": (
        "+ 1 - WINDOW, 0) / TILE_TOKENS",
        "+ 64 - WINDOW, 0) / TILE_TOKENS",
    ),
    "no tile left out": ("+ 1 - WINDOW, 0) / TILE_TOKENS", "+ 1 - WINDOW, 0) / 1000"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", EDITS)
def test_an_edit_of_the_window_is_noticed(name):
    plan, _ = attending("window")
    text = attention.text(plan, "attention")
    assert EDITS[name][0] in text
    library = Library(text.replace(*EDITS[name]), toolchain=QUICK)
    seen = []
    for before in (0, 100, 151):
        found, want, copied = attend(plan, library, 40, before, Mode())
        close = np.abs(found - want).max() <= 3 * UNIT["f16"] * np.abs(want).max()
        seen.append(close and copied == plan.copied_bytes(before, 40))
    assert not all(seen)


@pytest.mark.parametrize("head_norms", [False, True])
def test_heads_are_normed_rotated_and_cached(head_norms):
    epsilons = (1e-5, 1e-6) if head_norms else None
    shape = Attention(64, 6, 2, 96, "f16", 16, 1e-5, 0.125, head_epsilons=epsilons)
    plan = attention.plan(shape, H200, 24)
    rng, count, before = np.random.default_rng(3), 21, 7
    given_rows = rng.standard_normal((24, 2, 5, 96)).astype(np.float32)
    gains = [to_kind(rng.standard_normal(96), "f16") for _ in range(2)] if head_norms else []
    queries = np.zeros((24, 6, 96), np.uint16)
    pools = [np.zeros((3, 2, 16, 96), np.uint16) for _ in range(2)]
    pages, cached = np.array([2, 0], np.int32), np.arange(before, before + 24, dtype=np.int32)
    angles = rng.standard_normal((40, 48))
    tables = [np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)]
    library = Library(attention.heads_text(plan, "heads"), toolchain=QUICK)
    counted = np.array([count], np.int32)
    arguments = [given_rows, *gains, counted, queries, *pools, pages, cached, *tables]
    library.run("heads", Grid(24, 256, 1, 0), arguments, Mode("random", seed=2))
    held = [swizzled_pool(p, [pages]) for p in pools]
    for t in range(count):
        at = before + t
        for g in range(2):
            rows = given_rows[t, g].astype(np.float64)
            parts = [rows[:3], rows[3:4]]
            if head_norms:
                parts = [
                    x / np.sqrt((x**2).mean(1, keepdims=True) + e) * from_kind(gain, "f16")
                    for x, e, gain in zip(parts, epsilons, gains, strict=True)
                ]
            asked, key = (rotated(x, tables[0][at], tables[1][at]) for x in parts)
            new = [from_kind(p[pages[at // 16], g, at % 16], "f16") for p in held]
            for found, want in (
                (from_kind(queries[t, 3 * g : 3 * g + 3], "f16"), asked),
                (new[0], key[0]), (new[1], rows[4]),
            ):  # fmt: skip
                assert np.abs(found - want).max() <= UNIT["f16"] * np.abs(want).max()
    assert not queries[count:].any() and not pools[0][1].any()


@pytest.mark.parametrize(
    ("change", "words"),
    [({"page": 3}, "page"), ({"head": 32}, "32 lanes")],
)
def test_what_has_no_kernel_is_said_in_words(change, words):
    shape = replace(Attention(64, 6, 2, 64, "f16", 16, 1e-5, 0.125), **change)
    with pytest.raises(DoesNotFit, match=words):
        attention.plan(shape, H200, 64)


LLAMA = Attention(4096, 32, 32, 128, "f16", 16, 1e-5, 128**-0.5)
PROJECTIONS = {
    "projections": ChunkProduct(512, 4096, 12288, "f16"),
    "output": ChunkProduct(512, 4096, 4096, "f16", "added"),
    "inner": ChunkProduct(512, 4096, 22016, "f16", "gated"),
    "outer": ChunkProduct(512, 11008, 4096, "f16", "added"),
}


@pytest.mark.cuda_compiler
@pytest.mark.slow
@pytest.mark.parametrize("dtype", UNIT)
def test_kernels_of_llama_neither_spill_nor_use_a_stack(dtype):
    texts = [
        chunk.text(chunk.plan(replace(shape, dtype=dtype, tokens=tokens), H200), "kernel")
        for shape in PROJECTIONS.values()
        for tokens in (64, 128, 504, 2048)
    ]
    shapes = [replace(LLAMA, dtype=dtype, kv_heads=n) for n in (32, 8, 1)]
    plans = [attention.plan(shape, H200, 512) for shape in shapes]
    texts += [attention.text(plan, "kernel") for plan in plans]
    texts += [attention.heads_text(plans[0], "kernel")]
    texts += [chunk.norm_text("kernel", 512, 4096, dtype, 1e-5)]
    for text in texts:
        needs = compile_cubin(text).kernels["kernel"]
        assert needs.spill_bytes == needs.stack_bytes == 0 and needs.registers <= 168


@pytest.mark.slow
@pytest.mark.parametrize("name", PROJECTIONS)
def test_each_weight_of_a_layer_of_llama_is_read_once_for_256_tokens(name, capsys):
    """512 tokens of Llama-2-7B: products of a layer, one after the other."""
    shape = PROJECTIONS[name]
    plan = chunk.plan(shape, H200)
    library = Library(chunk.text(plan, "product"), toolchain=CXX)
    found, want, copied = run_product(shape, 512, Mode(), library)
    assert np.abs(found - want).max() <= UNIT["f16"] * np.abs(want).max()
    weights, blocks = weight_bytes(shape.rows, shape.width), shape.rows // 256
    assert copied == plan.copied_bytes(512)
    assert copied - 2 * weights == blocks * shape.width * 512 * 2
    with capsys.disabled():
        print(f"\n{name}: {copied} bytes, {weights} of weights")


@pytest.mark.slow
def test_a_layer_of_llama_is_attended_in_tiles(capsys):
    plan = attention.plan(LLAMA, H200, 512)
    library = Library(attention.text(plan, "attention"), toolchain=CXX)
    found, want, copied = attend(plan, library, 512, 100, Mode())
    assert np.abs(found - want).max() <= 3 * UNIT["f16"] * np.abs(want).max()
    assert copied == attention_bytes(32, 128, 64, 100, 512)
    with capsys.disabled():
        print(f"\nattention: {copied} bytes")
