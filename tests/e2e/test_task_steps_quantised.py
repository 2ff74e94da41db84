"""Steps of drawn decoders whose weights stay quantised: the CPU executor and the interpreter of
tasks, beside NumPy in float64 on the numbers that codes stand for."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from drawn_decoders import FORMATS, quantised_decoder
from kept_weights import drawn_codes
from rank_steps import RankJudge
from reduced import each, only
from task_step_cases import LLAMA, PARTS
from task_steps import Judge, mode_of, noticed

import meshc
from meshc.backends.cuda.executor import CXX, FIRST, QUICK, WATCHED, Mode
from meshc.backends.cuda.packing.codes import code_bytes
from meshc.ir.codes import CODE_FORMATS
from meshc.support.diagnostics import MeshcError

pytestmark = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")

DISTINCT = {"e4m3": 253, "mxfp": 15}
"""Codes of floats that differ: of e4m3 there are two zeros and two that are none, of e2m1 two
zeros."""
# Codes of each kind of plane, floats, scales that are codes, both types, batches of 1 to 16, left
# sides that are larger than what attention works in (29).
IN_CI = (3, 5, 7, 13, 23, 26, 28, 29, 30, 34, 36)


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
    judge.check(mode=mode_of(seed))


@pytest.mark.parametrize("seed", only(range(120), 6, 10, 15))
def test_ranks_agree_with_float64(seed, tmp_path):
    """Features, heads and what is once for groups of them are dealt to two or three GPUs."""
    drawn, form = quantised_decoder(seed)
    few = replace(drawn, cores=min(drawn.cores, 6))
    try:
        judge = RankJudge.of(
            few, seed, tmp_path, 2 + seed % 2, ["peers", "multimem"][seed // 2 % 2], keep=form
        )
    except MeshcError as refusal:
        assert refusal.diagnostics[0].code == "does-not-fit", refusal
        assert drawn.batch * drawn.decoder.heads * drawn.decoder.lanes >= 4096
        return
    assert form in {weight.codes for weight in judge.step.program.weights.values()}
    judge.check(mode=mode_of(seed), steps=min(3, drawn.capacity))


def test_groups_that_ranks_would_cut_are_decoded(tmp_path):
    """Two heads of 32 lanes have a group of 64 together, and the ranks would have one each; the
    second group of 96 features is none."""
    drawn = replace(LLAMA, decoder=replace(LLAMA.decoder, heads=2, groups=2, lanes=32, hidden=64))
    (tmp_path / "drawn.mesh").write_text(drawn.decoder.text())
    asked = {"phase": "decode", "seq": 64, "device": "h200", "target": "cuda"}
    compiled = meshc.compile(
        str(tmp_path / "drawn.mesh"), keep_quantised=("all=int4_64",), gpus=2, **asked
    )
    told = [said.message for said in compiled.report.messages]
    assert "'wo' is decoded: its rows are 32 wide, which cuts groups of 64" in told
    assert "'w2' is decoded: its 96 F do not fill groups of 64" in told
    with pytest.raises(MeshcError, match="'wo' cannot stay quantised: "):
        meshc.compile(str(tmp_path / "drawn.mesh"), keep_quantised=("wo=int4_64",), gpus=2, **asked)


@pytest.mark.parametrize("form", FORMATS)
def test_every_code_is_packed_as_a_byte_of_its_own(form):
    kind = CODE_FORMATS[form]
    rng = np.random.default_rng(1)
    values = np.unique(drawn_codes(rng, form, (1 << 14,)))
    found = code_bytes(values.astype(np.float32), kind)
    assert len(values) == DISTINCT.get(form[:4], 1 << kind.codes.bits)
    assert len(np.unique(found)) == len(values)
    for wrong in (0.3, 1e6, np.nan):
        with pytest.raises(MeshcError, match="has no code for"):
            code_bytes(np.array([wrong], np.float32), kind)


# --- edits

# Lines of the library are as long as they are.
# ruff: noqa: E501

WIDE = replace(LLAMA, decoder=replace(LLAMA.decoder, hidden=160, features=192))
SUPER = replace(LLAMA, decoder=replace(LLAMA.decoder, hidden=256, features=256, heads=4, lanes=64))
CODES = "mc_codes.cuh"
INT4, Q8, FLOATS, LEAST, E2M1 = "int4", "q8", "floats", "least", "e2m1"
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
    E2M1: (WIDE, "f16", "mxfp4"),
    "e2m1 bf16": (WIDE, "bf16", "mxfp4"),
    "fives": (WIDE, "f16", "q5_0"),
    "fives bf16": (WIDE, "bf16", "q5_1"),
    "fives with least": (WIDE, "f16", "q5_1"),
    "threes": (SUPER, "f16", "q3_k"),
    "fours in groups": (SUPER, "f16", "q4_k"),
    "sixes": (SUPER, "f16", "q6_k"),
    "sixes bf16": (SUPER, "bf16", "q6_k"),
}
EDITS = {
    "pairs of the lower row are the upper one's": (INT4, CODES, "pairs[1] = words[0] & 0x07800780u", "pairs[1] = words[0] & 0x00780078u"),
    "later pairs are the first ones": (INT4, CODES, "later = turned(words[0], 8)", "later = words[0]"),
    "what stands for 0 is not taken off": (INT4, CODES, "return ZERO ? (0x8000u | ZERO << (3 + 4 * half)) * 0x00010001u : 0;", "return 0;"),
    "what stands for 0 is taken off by the upper row's unit": (INT4, CODES, "ZERO << (3 + 4 * half)", "ZERO << 3"),
    "codes around the end of a word are left out": (INT4, CODES, "turned(words[0], 8)", "words[0] >> 8"),
    "both rows have one unit": (INT4, CODES, "half ? 131072.0f : 2097152.0f", "2097152.0f"),
    "bits of bf16 a place too high": ("int4 bf16", CODES, "masked_or(words[0], 0x00780078u", "masked_or(words[0] << 1, 0x00780078u"),
    "a pair of bf16 is another one": ("int4 bf16", CODES, "turned(words[0], 12)", "turned(words[0], 8)"),
    "another offset of bf16": ("int4 bf16", CODES, "(0xbf80u | ZERO << 3)", "(0xbf80u | ZERO << 2)"),
    "the offset of least numbers is forgotten": ("least bf16", CODES, "return 16.0f + ZERO;", "return ZERO;"),
    "units of bf16": ("int4 bf16", CODES, "static MC_INLINE float units(int, bf16) { return 16.0f; }", "static MC_INLINE float units(int, bf16) { return 8.0f; }"),
    "bytes in the order of words": (Q8, CODES, "pairs[i] = words[i / 2] >> 8 * (i % 2) & 0x00ff00ffu", "pairs[i] = words[i % 2] >> 8 * (i / 2) & 0x00ff00ffu"),
    "what stands for 0 of eight bits": (Q8, CODES, "(0x8000u | ZERO) * 0x00010001u", "(0x8000u | ZERO - 1) * 0x00010001u"),
    "bytes of bf16 in the order of words": ("q8 bf16", CODES, "two = words[i / 2] >> 8 * (i % 2)", "two = words[i % 2] >> 8 * (i / 2)"),
    "the last seven bits of bf16 are six": ("q8 bf16", CODES, "two, 0x007f007fu", "two, 0x003f003fu"),
    "codes of bf16 are all above 0": ("q8 bf16", CODES, "masked_xor(two, 0x00800080u, 0xc380c380u)", "0xc300c300u"),
    "signs are left out": (FLOATS, CODES, "words[h] & 0xbf80bf80u", "words[h] & 0x3f803f80u"),
    "what a shift brings of the other pair is left": (FLOATS, CODES, "words[h] << 8 ^ words[h] << 1", "words[h] << 8 | words[h] << 1"),
    "signs of the other pair": (FLOATS, CODES, "words[h] << 8 ^ words[h] << 1", "words[h] << 8 ^ words[h]"),
    "a bit of the fraction is left out": (FLOATS, CODES, "words[h] << 1) & 0xbf80bf80u", "words[h] << 1) & 0xbf00bf00u"),
    "another unit of floats": (FLOATS, CODES, "return 256.0f;", "return 128.0f;"),
    "floats of bf16 are not brought back": ("floats bf16", CODES, "multiply_two(words[h] & 0x87f087f0u, 0x7b807b80u, bf16())", "words[h] & 0x87f087f0u"),
    "exponents of bf16 are left out": ("floats bf16", CODES, "words[h] << 4 ^ words[h] >> 4", "words[h] << 4"),
    "fractions of bf16 a place too low": ("floats bf16", CODES, "words[h] << 4 ^ words[h] >> 4", "words[h] << 3 ^ words[h] >> 4"),
    "scales of the row above": (INT4, CODES, "const int row = (int)lane() / 4 + 8 * half;", "const int row = (int)lane() / 4;"),
    "scales of the block's begin": (INT4, CODES, "Scales::of(block + CODES, group, row)", "Scales::of(block, group, row)"),
    "least numbers are scales": (LEAST, CODES, "Leasts::of(block + CODES + Scales::BYTES, group, row)", "Leasts::of(block + CODES, group, row)"),
    "least numbers are left out": (LEAST, CODES, "if (LIFTED) more = fused(all.c[t][i], least, more);", ""),
    "ones that are none": (LEAST, CODES, "return 0x00080008u << 4 * half;", "return 0x00080000u << 4 * half;"),
    "ones over one unit": (LEAST, CODES, "return 0x00080008u << 4 * half;", "return 0x00080008u;"),
    "ones over another unit of bf16": ("least bf16", CODES, "return 0x3d803d80u;", "return 0x3d003d00u;"),
    "ones over another unit of fives": ("fives with least", CODES, "static MC_INLINE u32 ones(int, f16) { return 0x00010001u; }", "static MC_INLINE u32 ones(int, f16) { return 0x00020002u; }"),
    "ones over another unit of fives in bf16": ("fives bf16", CODES, "0x3f80u - (BITS << 7)", "0x3f80u - (BITS << 6)"),
    "ones are multiplied by the first fragment alone": (LEAST, CODES, "min(column / C::COUNT, TOGETHER - 1) * C::STEP", "0"),
    "ones are multiplied by a fragment too many": ("fives with least", CODES, "min(column / C::COUNT, TOGETHER - 1)", "min(column / C::COUNT, TOGETHER)"),
    "ones are multiplied by the first column": (LEAST, CODES, "column % C::COUNT * 16", "0"),
    "ones are multiplied again": (LEAST, CODES, "if (LIFTED && n % TOGETHER == 0) multiply", "if (LIFTED) multiply"),
    "what lanes have of ones is not joined": (LEAST, CODES, "more += shuffle_xor(more, mask);", ""),
    "what lanes have of ones is joined by halves": (LEAST, CODES, "mask *= 2) {", "mask *= 4) {"),
    "what lanes have of ones is joined twice": ("fives with least", CODES, "mask < C::COUNT / 2 * Together<C>::COUNT", "mask < 4"),
    "sums are left over their units": (Q8, CODES, "* Codes::units(i / 2, T())", ""),
    "sums of lower rows are over the upper ones' unit": (INT4, CODES, "Codes::units(i / 2, T())", "Codes::units(0, T())"),
    "words of another lane": (LEAST, CODES, "lane() * AT_ONCE * 2", "(lane() ^ 1) * AT_ONCE * 2"),
    "words from elsewhere": ("wide floats", CODES, "block + begin * WORDS * 128", "block + begin * WORDS * 64"),
    "values of another fragment": ("wide floats", CODES, "(begin + n) * C::STEP", "(begin * 2 + n) * C::STEP"),
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
    "the sign of e2m1 is left out": (E2M1, CODES, "words[0] & 0x8e008e00u", "words[0] & 0x0e000e00u"),
    "a bit of the exponent of e2m1": (E2M1, CODES, "words[0] << 3 & 0x8e008e00u", "words[0] << 3 & 0x8a008a00u"),
    "a pair of e2m1 is another one": (E2M1, CODES, "pairs[1] = words[0] << 3 &", "pairs[1] = words[0] &"),
    "what a shift brings of other pairs of e2m1 is left": (E2M1, CODES, "words[0] << 2 ^ words[0] << 9", "words[0] << 2 | words[0] << 9"),
    "another unit of e2m1": (E2M1, CODES, "return 16384.0f;", "return 8192.0f;"),
    "e2m1 of bf16 a place too low": ("e2m1 bf16", CODES, "words[0] << 4 ^ words[0] >> 6", "words[0] << 4 ^ words[0] >> 7"),
    "e2m1 of bf16 is not brought back": ("e2m1 bf16", CODES, "pairs[i] = multiply_two(pairs[i], 0x7e807e80u, bf16());", "pairs[i] += 0;"),
    "the fifth bit of another pair": ("fives", CODES, "AT + FOUR + TWO - i)", "AT + FOUR + TWO)"),
    "the fifth bit of later codes": ("fives", CODES, "(bits & 0xf0u) << 12", "(bits & 0xf0u) << 11"),
    "planes of another fragment": ("fives", CODES, "fragment * 32 + (int)lane()", "(int)lane()"),
    "fives of bf16 a place too high": ("fives bf16", CODES, "pair<7 - BITS>", "pair<8 - BITS>"),
    "fives of bf16 without 1": ("fives bf16", CODES, "words, planes, i) | 0x3f803f80u", "words, planes, i)"),
    "two bits of another pair": ("threes", CODES, "AT + FOUR - 2 * i)", "AT + FOUR - i)"),
    "one bit lies where two do": ("threes", CODES, "two + fragments * 32 * TWO", "two"),
    "codes of scales about another 0": ("threes", CODES, "numbers[16 * group + row] - ZERO)", "numbers[16 * group + row] - ZERO - 1)"),
    "two bits lie where four do": ("sixes", CODES, "block + fragments * WORDS * 128", "block"),
    "two bits of later codes": ("sixes", CODES, "(bits & 0xff00u) << 8", "(bits & 0xff00u) << 7"),
    "a group's scale is the next one's": ("sixes", CODES, "numbers[16 * group + row]", "numbers[16 * (group ^ 1) + row]"),
    "units are codes": ("sixes", CODES, "numbers + 16 * GROUPS", "numbers + 16 * (GROUPS - 2)"),
    "what stands for 0 of sixes in bf16": ("sixes bf16", CODES, "ZERO << (7 - BITS)", "ZERO << (6 - BITS)"),
    "units of sixes in bf16": ("sixes bf16", CODES, "return 1 << BITS; }", "return 2 << BITS; }"),
    "fragments of the first group": ("fours in groups", CODES, "const int begin = group * OF_GROUP + first;", "const int begin = first;"),
    "a group is left out": ("fours in groups", CODES, "group < SPAN / GROUP; group++", "group < SPAN / GROUP - 1; group++"),
    "least numbers of groups lie elsewhere": ("fours in groups", CODES, "16 * GROUPS + 32;", "16 * GROUPS + 16;"),
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
