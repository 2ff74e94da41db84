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


@pytest.mark.parametrize("seed", only(range(120), 6, 10, 37, 39))
def test_ranks_agree_with_float64(seed, tmp_path):
    """Features, heads and what is once for groups of them are dealt to two or three GPUs. Of 37 a
    left side lies in the middle of two numbers, of 39 a key."""
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
# Of five vectors no products of codes are of whole numbers.
MANY, MANY_SUPER = (replace(one.with_columns(5), columns=False) for one in (WIDE, SUPER))
CODES, DIGITS = "mc_codes.cuh", "mc_digits.cuh"
INT4, Q8, FLOATS, LEAST, E2M1 = "int4", "q8", "floats", "least", "e2m1"
MANY_INT4, MANY_Q8, MANY_LEAST = "many int4", "many q8", "many least"
CASES = {
    # The case of a step, its type, and the format of its weights.
    INT4: (replace(WIDE, meet="tags"), "f16", "q4_0"),
    MANY_INT4: (MANY, "f16", "q4_0"),
    "int4 bf16": (MANY, "bf16", "q4_0"),
    Q8: (PARTS, "f16", "q8_0"),
    "whole q8": (WIDE, "f16", "q8_0"),
    MANY_Q8: (MANY, "f16", "q8_0"),
    "q8 bf16": (MANY, "bf16", "q8_0"),
    FLOATS: (WIDE, "f16", "e4m3_32"),
    "wide floats": (replace(WIDE, decoder=replace(WIDE.decoder, hidden=192)), "f16", "e4m3_64"),
    "floats bf16": (WIDE, "bf16", "e4m3_16"),
    LEAST: (replace(WIDE, decoder=replace(WIDE.decoder, hidden=192)), "f16", "int4_64"),
    "wide least": (SUPER, "f16", "int4_128"),
    MANY_LEAST: (replace(MANY, decoder=replace(MANY.decoder, hidden=192)), "f16", "int4_64"),
    "least bf16": (MANY, "bf16", "int4_32"),
    E2M1: (WIDE, "f16", "mxfp4"),
    "e2m1 bf16": (WIDE, "bf16", "mxfp4"),
    "fives": (WIDE, "f16", "q5_0"),
    "fives bf16": (WIDE, "bf16", "q5_1"),
    "fives with least": (WIDE, "f16", "q5_1"),
    "threes": (SUPER, "f16", "q3_k"),
    "fours in groups": (SUPER, "f16", "q4_k"),
    "many fours in groups": (MANY_SUPER, "f16", "q4_k"),
    "four": (replace(SUPER.with_columns(4), columns=False), "f16", "int4_128"),
    "sixes": (SUPER, "f16", "q6_k"),
    "sixes bf16": (SUPER, "bf16", "q6_k"),
}
EDITS = {
    "pairs of the lower row are the upper one's": (MANY_INT4, CODES, "pairs[1] = words[0] & 0x00f000f0u", "pairs[1] = words[0] & 0x000f000fu"),
    "later pairs are the first ones": (MANY_INT4, CODES, "later = words[0] >> 8", "later = words[0]"),
    "what stands for 0 is not taken off": (MANY_INT4, CODES, "return ZERO ? (0x8000u | ZERO << 4 * half) * 0x00010001u : 0;", "return 0;"),
    "what stands for 0 is taken off by the upper row's unit": (MANY_INT4, CODES, "ZERO << 4 * half", "ZERO"),
    "the last pair is of the upper row": (MANY_INT4, CODES, "pairs[3] = later & 0x00f000f0u", "pairs[3] = later & 0x000f000fu"),
    "both rows have one unit": (MANY_INT4, CODES, "half ? 1048576.0f : 16777216.0f", "16777216.0f"),
    "bits of bf16 a place too high": ("int4 bf16", CODES, "masked_or(words[0] << 3, 0x00780078u", "masked_or(words[0] << 4, 0x00780078u"),
    "a pair of bf16 is another one": ("int4 bf16", CODES, "words[0] >> (4 * i - 3)", "words[0] >> (4 * i - 2)"),
    "another offset of bf16": ("int4 bf16", CODES, "(0xbf80u | ZERO << 3)", "(0xbf80u | ZERO << 2)"),
    "the offset of least numbers is forgotten": ("least bf16", CODES, "return 16.0f + ZERO;", "return ZERO;"),
    "units of bf16": ("int4 bf16", CODES, "static MC_INLINE float units(int, bf16) { return 16.0f; }", "static MC_INLINE float units(int, bf16) { return 8.0f; }"),
    "bytes in the order of words": (MANY_Q8, CODES, "pairs[i] = words[i / 2] >> 8 * (i % 2) & 0x00ff00ffu", "pairs[i] = words[i % 2] >> 8 * (i / 2) & 0x00ff00ffu"),
    "what stands for 0 of eight bits": (MANY_Q8, CODES, "(0x8000u | ZERO) * 0x00010001u", "(0x8000u | ZERO - 1) * 0x00010001u"),
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
    "scales of the row above": (MANY_INT4, CODES, "const int row = (int)lane() / 4 + 8 * half;", "const int row = (int)lane() / 4;"),
    "scales of the block's begin": (INT4, CODES, "Scales::of(block + CODES, group, row)", "Scales::of(block, group, row)"),
    "least numbers are scales": (LEAST, CODES, "Leasts::of(block + CODES + Scales::BYTES, group, row)", "Leasts::of(block + CODES, group, row)"),
    "least numbers are left out": (MANY_LEAST, CODES, "if (LIFTED) more = fused(all.c[t][i], least, more);", ""),
    "ones that are none": (MANY_LEAST, CODES, "return 0x00010001u << 4 * half;", "return 0x00010000u << 4 * half;"),
    "ones over one unit": (MANY_LEAST, CODES, "return 0x00010001u << 4 * half;", "return 0x00010001u;"),
    "ones over another unit of bf16": ("least bf16", CODES, "return 0x3d803d80u;", "return 0x3d003d00u;"),
    "ones over another unit of fives": ("fives with least", CODES, "static MC_INLINE u32 ones(int, f16) { return 0x00010001u; }", "static MC_INLINE u32 ones(int, f16) { return 0x00020002u; }"),
    "ones over another unit of fives in bf16": ("fives bf16", CODES, "0x3f80u - (BITS << 7)", "0x3f80u - (BITS << 6)"),
    "ones are multiplied by the first fragment alone": ("fives with least", CODES, "min(column / C::COUNT, TOGETHER - 1) * C::STEP", "0"),
    "ones are multiplied by a fragment too many": ("fives with least", CODES, "min(column / C::COUNT, TOGETHER - 1)", "min(column / C::COUNT, TOGETHER)"),
    "ones are multiplied by the first column": ("fives with least", CODES, "column % C::COUNT * 16", "0"),
    "ones are multiplied again": ("fives with least", CODES, "if (LIFTED && n % TOGETHER == 0) multiply", "if (LIFTED) multiply"),
    "what lanes have of ones is not joined": ("fives with least", CODES, "more += shuffle_xor(more, mask);", ""),
    "what lanes have of ones is joined with none": ("fives with least", CODES, "for (int mask = C::COUNT / 2;", "for (int mask = C::COUNT;"),
    "what lanes have of ones is joined twice": ("fives with least", CODES, "mask < C::COUNT / 2 * Together<C>::COUNT", "mask < 4"),
    "sums are left over their units": (MANY_Q8, CODES, "* Codes::units(i / 2, T())", ""),
    "sums of lower rows are over the upper ones' unit": (MANY_INT4, CODES, "Codes::units(i / 2, T())", "Codes::units(0, T())"),
    "words of another lane": (LEAST, CODES, "lane() * AT_ONCE * 2", "(lane() ^ 1) * AT_ONCE * 2"),
    "words from elsewhere": ("wide floats", CODES, "block + first * WORDS * 128", "block + first * WORDS * 64"),
    "values of another fragment": ("wide floats", CODES, "(begin + n) * C::STEP", "(begin * 2 + n) * C::STEP"),
    "columns of another lane": (MANY_INT4, CODES, "lane() % 4 * 4, b)", "lane() % 2 * 4, b)"),
    "columns that are none": (MANY_Q8, CODES, "C::COUNT % 8 ? min(column, C::COUNT - 1) : column", "C::COUNT % 8 ? min(column, 1) : column"),
    "half of the bytes are expected": (INT4, CODES, "(u32)Coded::BYTES;", "(u32)Coded::BYTES / 2;"),
    "the tile behind": (Q8, CODES, "from + (size_t)at * Coded::BYTES", "from + (size_t)(at + 1) * Coded::BYTES"),
    "blocks of the tile before": (INT4, CODES, "tile + k * Coded::BYTES", "tile + (k ? k - 1 : 0) * Coded::BYTES"),
    "a warp takes no block": (INT4, CODES, "k <= blocks - BLOCKS;", "k < blocks - BLOCKS;"),
    "all warps take the same": (Q8, CODES, "(int)(warp() + WARPS - at / BLOCKS % WARPS) % WARPS", "0"),
    "columns of the tile": (Q8, CODES, "columns, at + k);", "columns, k);"),
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
    "fragments of the first group": ("many fours in groups", CODES, "const int begin = group * OF_GROUP + first;", "const int begin = first;"),
    "a group is left out": ("many fours in groups", CODES, "group < GROUPS; group++", "group < GROUPS - 1; group++"),
    "least numbers of groups lie elsewhere": ("fours in groups", CODES, "16 * GROUPS + 32;", "16 * GROUPS + 16;"),
    "bytes of the lower row are the upper one's": (INT4, CODES, "rows[1] = words[0] & 0xf0f0f0f0u", "rows[1] = words[0] & 0x0f0f0f0fu"),
    "both rows of bytes have one unit": (INT4, CODES, "half ? 0.0625f : 1.0f", "1.0f"),
    "bytes of eight bits in another order": ("whole q8", CODES, "permuted(words[0], words[1], 0x6240)", "permuted(words[0], words[1], 0x6420)"),
    "bytes of the other row": ("whole q8", CODES, "0x7351", "0x6240"),
    "what stands for 0 of bytes": ("whole q8", CODES, "least - Codes::WHOLE_ZERO * scale", "least"),
    "the largest value of a lane alone": (LEAST, DIGITS, "most = larger(most, shuffle_xor(most, mask));", ""),
    "the sum of a lane alone": (LEAST, DIGITS, "sum += shuffle_xor(sum, mask);", ""),
    "lanes of half a group put values together": (LEAST, DIGITS, "mask < GROUP / 8; mask *= 2", "mask < GROUP / 16; mask *= 2"),
    "a unit twice as large": (INT4, DIGITS, "float_of(exponent - 29 << 23)", "float_of(exponent - 28 << 23)"),
    "a digit too many": (INT4, DIGITS, "float_of(283 - min(exponent, 254u) << 23)", "float_of(285 - min(exponent, 254u) << 23)"),
    "digits without a sign": (INT4, DIGITS, "+ 0x00808080u) ^ 0x00808080u", "+ 0x00808080u)"),
    "the second digit of a vector is the first": (INT4, DIGITS, "to[(q + 4) * AT_ONCE] = permuted(high, later_high, 0x5410);", "to[(q + 4) * AT_ONCE] = permuted(high, later_high, 0x7632);"),
    "digits of the other pair": (INT4, DIGITS, "permuted(four[0], four[2], 0x7362)", "permuted(four[0], four[1], 0x7362)"),
    "digits of the first fragment": ("wide least", DIGITS, "fragment / AT_ONCE * COUNT", "0 * COUNT"),
    "digits of one vector": ("four", DIGITS, "b * PARTS) * 4", "0 * PARTS) * 4"),
    "a unit for all vectors": ("four", DIGITS, "4 * WORDS + 8 * b)", "4 * WORDS)"),
    "columns of digits of the first block": (INT4, DIGITS, "(const unsigned char*)columns + at * Coded::GROUPS * C::BYTES", "(const unsigned char*)columns"),
    "digits of the first group": ("fours in groups", DIGITS, "own + group * C::BYTES, group)", "own, group)"),
    "the higher digits are the lower ones": (INT4, DIGITS, "(q % 2 ? 1.0f : 65536.0f)", "65536.0f"),
    "digits of a lane are not joined": (INT4, DIGITS, "sum += shuffle_xor(sum, 1);", ""),
    "neighbouring digits are alike": (INT4, DIGITS, "high * 256", "high"),
    "digits of another vector": ("four", DIGITS, "take((int)lane() / 4 + 8 * half, vector,", "take((int)lane() / 4 + 8 * half, vector ^ 1,"),
    "units of another vector": ("four", DIGITS, ": 2 * t + q / 2;\n            of[t]", ": 2 * t;\n            of[t]"),
    "products of the first two fragments": (LEAST, DIGITS, "multiply_16x8x32(sums[side][t], a, b[t] + n);", "multiply_16x8x32(sums[side][t], a, b[t]);"),
    "what is the same for all rows is left out": (LEAST, DIGITS, "lifted[t][half] = fused(least, of[t].y, lifted[t][half]);", ""),
    "scales of digits of the row above": (INT4, DIGITS, "const int row = (int)lane() / 4 + 8 * half;", "const int row = (int)lane() / 4;"),
    "columns of digits of another lane": (INT4, DIGITS, "* 4 + q) * C::AT_ONCE * 2, b[t])", "* 4 + (q ^ 1)) * C::AT_ONCE * 2, b[t])"),
    "the last block is left out": (INT4, CODES, "if (k < blocks) sum.add_last(tile + k * Coded::BYTES, columns, at + k);", ""),
    "the last block is taken twice": (INT4, DIGITS, "if (MANY < SIDES && q / 2) return;", ""),
    "a group's sums are the other one's": (INT4, DIGITS, "side ? sums[MANY - 1][t][2 * half] :", "side ? sums[0][t][2 * half] :"),
    "digits beside themselves": (INT4, DIGITS, "place / C::COUNT * C::BYTES", "place / C::COUNT"),
    "groups side by side are of one block": (INT4, DIGITS, "block + side * Coded::BYTES", "block"),
    "groups side by side are the same": ("fours in groups", DIGITS, "group : group + side", "group : group"),
    "a group alone is added": (INT4, DIGITS, "if (SIDES == 2) sum += shuffle_xor(sum, 2), more += shuffle_xor(more, 2);", ""),
    "scales of the other group": (LEAST, DIGITS, "from = block_of(block, side);", "from = block_of(block, 0);"),
    "units of the other group": (LEAST, DIGITS, "columns + side * C::BYTES + 4", "columns + 4"),
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
    tile = 1024 if name == INT4 else 512  # which two pairs of blocks fit in
    with TemporaryDirectory() as folder:
        judge = Judge.of(replace(drawn, dtype=dtype), 7, Path(folder), keep=form, tile=tile)
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
