"""Steps of drawn decoders whose weights stay quantised: the CPU executor and the interpreter of
tasks, beside NumPy in float64 on the numbers that codes stand for."""

import random
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from drawn_decoders import drawn_decoder
from kept_weights import drawn_codes
from reduced import each, only
from task_step_cases import LLAMA, PARTS
from task_steps import Judge, noticed

from meshc.backends.cuda.executor import CXX, FIRST, QUICK, SCHEDULES, WATCHED, Mode
from meshc.backends.cuda.packing.codes import code_bytes
from meshc.ir.codes import CODE_FORMATS
from meshc.support.diagnostics import MeshcError

pytestmark = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")

FORMATS = sorted(CODE_FORMATS)
# All formats in both types, batches of 1 to 16, tied heads, products in parts.
IN_CI = (0, 3, 7, 11, 14, 18, 26, 35, 41)


def quantised_decoder(seed):
    """The ``seed``-th decoder with widths of whole groups, and the format of its weights."""
    rng, form = random.Random(seed), FORMATS[seed % len(FORMATS)]
    group = CODE_FORMATS[form].group
    drawn = drawn_decoder(seed)
    hidden = group * rng.choice([1, 2, 3] if group < 128 else [1, 2])
    features = group * rng.choice([1, 2, 3, 5] if group < 128 else [1, 2])
    parts = rng.choice([1, 1, 2]) if hidden // group % 2 == features // group % 2 == 0 else 1
    return replace(
        drawn,
        dtype=["f16", "bf16"][seed // len(FORMATS) % 2],
        parts=parts,
        decoder=replace(drawn.decoder, hidden=hidden, features=features),
        meet=rng.choice(["counter", "tags"]),
    ), form


@pytest.mark.parametrize("seed", only(range(200), *IN_CI))
def test_a_step_agrees_with_float64(seed, tmp_path):
    drawn, form = quantised_decoder(seed)
    try:
        judge = Judge.of(drawn, seed, tmp_path, keep=form)
    except MeshcError as refusal:
        assert refusal.diagnostics[0].code == "does-not-fit", refusal
        assert drawn.batch * drawn.decoder.heads * drawn.decoder.lanes >= 4096
        return
    assert form in {weight.codes for weight in judge.step.program.weights.values()}
    judge.check(mode=Mode(SCHEDULES[seed % 6], bool(seed // 6 % 2), seed))


@pytest.mark.parametrize("form", FORMATS)
def test_every_code_is_packed_as_a_byte_of_its_own(form):
    kind = CODE_FORMATS[form]
    rng = np.random.default_rng(1)
    values = np.unique(drawn_codes(rng, form, (1 << 14,)))
    found = code_bytes(values.astype(np.float32), kind)
    assert len(values) == (253 if form.startswith("e4m3") else 1 << kind.codes.bits)
    assert len(np.unique(found)) == len(values)
    for wrong in (0.3, 1e6, np.nan):
        with pytest.raises(MeshcError, match="has no code for"):
            code_bytes(np.array([wrong], np.float32), kind)


# --- edits

# Lines of the library are as long as they are.
# ruff: noqa: E501

WIDE = replace(LLAMA, decoder=replace(LLAMA.decoder, hidden=160, features=192))
CODES = "mc_codes.cuh"
INT4, Q8, FLOATS, LEAST = "int4", "q8", "floats", "least"
CASES = {
    # The case of a step, its type, and the format of its weights.
    INT4: (replace(WIDE, meet="tags"), "f16", "q4_0"),
    "int4 bf16": (WIDE, "bf16", "q4_0"),
    Q8: (PARTS, "f16", "q8_0"),
    "q8 bf16": (WIDE, "bf16", "q8_0"),
    FLOATS: (WIDE, "f16", "e4m3_32"),
    "wide floats": (replace(WIDE, decoder=replace(WIDE.decoder, hidden=192)), "f16", "e4m3_64"),
    "floats bf16": (WIDE, "bf16", "e4m3_16"),
    LEAST: (replace(WIDE, decoder=replace(WIDE.decoder, hidden=192)), "f16", "int4_64"),
    "least bf16": (WIDE, "bf16", "int4_32"),
}
EDITS = {
    "pairs of the lower row are the upper one's": (INT4, CODES, "pairs[1] = words[0] & 0x00f000f0u", "pairs[1] = words[0] & 0x000f000fu"),
    "later pairs are the first ones": (INT4, CODES, "later = words[0] >> 8", "later = words[0]"),
    "what stands for 0 is not taken off": (INT4, CODES, "return ZERO ? (0x8000u | ZERO << 4 * half) * 0x00010001u : 0;", "return 0;"),
    "what stands for 0 is taken off by the upper row's unit": (INT4, CODES, "ZERO << 4 * half", "ZERO"),
    "both rows have one unit": (INT4, CODES, "half ? 1048576.0f : 16777216.0f", "16777216.0f"),
    "bits of bf16 a place too high": ("int4 bf16", CODES, "words[0] << 3", "words[0] << 4"),
    "a pair of bf16 is another one": ("int4 bf16", CODES, "words[0] >> 9", "words[0] >> 5"),
    "another offset of bf16": ("int4 bf16", CODES, "(0xbf80u | ZERO << 3)", "(0xbf80u | ZERO << 2)"),
    "the offset of least numbers is forgotten": ("least bf16", CODES, "return 16.0f + ZERO;", "return ZERO;"),
    "units of bf16": ("int4 bf16", CODES, "static MC_INLINE float units(int, bf16) { return 16.0f; }", "static MC_INLINE float units(int, bf16) { return 8.0f; }"),
    "bytes in the order of words": (Q8, CODES, "pairs[i] = words[i / 2] >> 8 * (i % 2) & 0x00ff00ffu", "pairs[i] = words[i % 2] >> 8 * (i / 2) & 0x00ff00ffu"),
    "what stands for 0 of eight bits": (Q8, CODES, "(0x8000u | ZERO) * 0x00010001u", "(0x8000u | ZERO - 1) * 0x00010001u"),
    "low bytes of bf16 twice": ("q8 bf16", CODES, "masked_or(two >> 16, 0xffu, 0x4b000000u)", "masked_or(two, 0xffu, 0x4b000000u)"),
    "an offset of bf16 one too small": ("q8 bf16", CODES, "const float low = float_of(masked_or(two, 0xffu, 0x4b000000u)) - (8388608.0f + ZERO)", "const float low = float_of(masked_or(two, 0xffu, 0x4b000000u)) - (8388607.0f + ZERO)"),
    "signs are left out": (FLOATS, CODES, "words[h] & 0xbf80bf80u", "words[h] & 0x3f803f80u"),
    "signs of the other pair": (FLOATS, CODES, "words[h] << 1, 0x80008000u, words[h] << 7", "words[h], 0x80008000u, words[h] << 7"),
    "a bit of the fraction is left out": (FLOATS, CODES, "words[h] << 7 & 0x3f803f80u", "words[h] << 7 & 0x3f003f00u"),
    "another unit of floats": (FLOATS, CODES, "return 256.0f;", "return 128.0f;"),
    "floats of bf16 are not brought back": ("floats bf16", CODES, "pairs[2 * h] = multiply_two(first, 0x7b807b80u, bf16());", "pairs[2 * h] = first;"),
    "fractions of bf16 a place too low": ("floats bf16", CODES, "words[h] >> 3 & 0x07f007f0u", "words[h] >> 4 & 0x07f007f0u"),
    "scales of the row above": (INT4, CODES, "const int row = (int)lane() / 4 + 8 * half;", "const int row = (int)lane() / 4;"),
    "scales of the block's begin": (INT4, CODES, "Scales::of(block + CODES, row)", "Scales::of(block, row)"),
    "least numbers are scales": (LEAST, CODES, "Leasts::of(block + CODES + Scales::BYTES, row)", "Leasts::of(block + CODES, row)"),
    "least numbers are left out": (LEAST, CODES, "if (Leasts::THERE) sums.c[t][i] = fused(all.c[t][i], least, sums.c[t][i]);", ""),
    "ones that are none": (LEAST, CODES, "return 0x3c003c00u;", "return 0x3c000000u;"),
    "words of another lane": (LEAST, CODES, "lane() * AT_ONCE * 2", "(lane() ^ 1) * AT_ONCE * 2"),
    "words from elsewhere": ("wide floats", CODES, "block + first * 128", "block + first * 64"),
    "values of another fragment": ("wide floats", CODES, "(first / WORDS + n) * C::STEP", "(first + n) * C::STEP"),
    "columns of another lane": (INT4, CODES, "lane() % 4 * 4, b)", "lane() % 2 * 4, b)"),
    "columns that are none": (Q8, CODES, "C::COUNT % 8 ? min(column, C::COUNT - 1) : column", "C::COUNT % 8 ? min(column, 1) : column"),
    "half of the bytes are expected": (INT4, CODES, "(u32)Coded::BYTES;", "(u32)Coded::BYTES / 2;"),
    "the tile behind": (Q8, CODES, "from + (size_t)at * Coded::BYTES", "from + (size_t)(at + 1) * Coded::BYTES"),
    "blocks of the tile before": (INT4, CODES, "tile + k * Coded::BYTES", "tile + (k ? k - 1 : 0) * Coded::BYTES"),
    "a warp takes no block": (INT4, CODES, "k < blocks; k += WARPS", "k < blocks - 1; k += WARPS"),
    "all warps take the same": (Q8, CODES, "(int)(warp() + WARPS - at % WARPS) % WARPS", "0"),
    "columns of the tile": (Q8, CODES, "columns + (at + k) * Coded::FRAGMENTS", "columns + k * Coded::FRAGMENTS"),
    "sums in the same half": (INT4, CODES, "parts + turn++ % 2 * (WARPS * Joined::COUNT)", "parts"),
    "sums are not waited for": (INT4, CODES, "    group_sync(1, 32 * WARPS);  // the next group's sums go to the other half\n", ""),
    "the place is not given back": (INT4, CODES, "        ring.release(item);\n", ""),
    "tiles are not waited for": (INT4, CODES, "ring.ready(item)", "ring.place(item)"),
    "more tiles than there is room for": (INT4, CODES, "        ring.acquire(item, bytes);\n", ""),
}  # fmt: skip
EQUIVALENT: dict[str, str] = {}


RUNS = (
    (FIRST, QUICK),
    (Mode("starve_warp", True, 2), QUICK),
    (Mode("random", False, 3), QUICK),
    (Mode("random", True, 5), WATCHED),
)


@cache
def judge_of(name):
    drawn, dtype, form = CASES[name]
    with TemporaryDirectory() as folder:
        judge = Judge.of(replace(drawn, dtype=dtype), 7, Path(folder), keep=form, tile=512)
    judge.check()
    return judge


@pytest.mark.parametrize("name", each(EDITS, 4))
def test_an_edit_is_noticed(name):
    case, file, old, new = EDITS[name]
    judge = judge_of(case)
    text = judge.step.texts[file]
    assert old in text
    step = replace(judge.step, texts={**judge.step.texts, file: text.replace(old, new)})
    assert bool(noticed(judge, step, RUNS)) != (name in EQUIVALENT)
