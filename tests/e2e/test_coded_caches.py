"""Steps of drawn decoders whose caches keep floats of eight bits with a scale for each token of each
head, in the CPU executor, beside NumPy in float64 over such caches."""

# Lines of the library are as long as they are.
# ruff: noqa: E501

from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from drawn_decoders import drawn_decoder
from rank_steps import RankJudge
from reduced import only
from task_prompts import PromptJudge, lengths
from task_step_cases import LLAMA, PARTS, WINDOWS
from task_steps import Judge, mode_of, noticed

import meshc
from meshc.backends.cuda import from_json
from meshc.backends.cuda.executor import CXX, FIRST, QUICK, WATCHED, Mode
from meshc.backends.cuda.memory import capacity_that_fits, memory_of
from meshc.devices import device
from meshc.driver.checking import Check
from meshc.support.diagnostics import MeshcError

pytestmark = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")

IN_CI = (15, 26)


def coded_decoder(seed, page=16):
    """The ``seed``-th decoder, with pages of so many tokens at the least."""
    drawn = replace(drawn_decoder(seed), meet="tags" if seed // 2 % 2 else "counter")
    return replace(drawn, page=max(drawn.page, page))


@pytest.mark.parametrize("seed", only(range(400), *IN_CI))
def test_a_step_agrees_with_float64(seed, tmp_path):
    drawn = coded_decoder(seed)
    try:
        judge = Judge.of(drawn, seed, tmp_path, coded=True)
    except MeshcError as refusal:
        assert refusal.diagnostics[0].code == "does-not-fit", refusal
        assert drawn.batch * drawn.decoder.heads * drawn.decoder.lanes >= 4096
        return
    judge.check(mode=mode_of(seed))


@pytest.mark.parametrize("seed", only(range(120), 3))
def test_a_step_over_scales_behind_rows_agrees_with_float64(seed, tmp_path):
    """Pages of one token, or (every second decoder) those of others, whose rows have their scales
    behind them."""
    layout = "nhd" if seed % 2 else ""
    drawn = coded_decoder(seed, page=1) if layout else replace(coded_decoder(seed), page=1)
    try:
        judge = Judge.of(drawn, seed, tmp_path, coded=True, kv_layout=layout)
    except MeshcError as refusal:
        code = refusal.diagnostics[0].code
        assert code == "does-not-fit" or (code == "cuda-shape" and drawn.decoder.lanes % 16)
        return
    assert "MC_SCALES_BEHIND" in judge.step.text
    judge.check(mode=mode_of(seed))


def prompt_judge(drawn, seed, folder, long=0, layout=""):
    """The judge of prompts; None where tokens leave no room for tiles. What the last layer attends
    is no part of what is cached, so there are two layers at least."""
    drawn = replace(drawn, decoder=replace(drawn.decoder, layers=max(drawn.decoder.layers, 2)))
    try:
        return PromptJudge.of(drawn, seed, folder, long, coded=True, kv_layout=layout)
    except MeshcError as refusal:
        code = refusal.diagnostics[0].code
        assert code == "does-not-fit" or (layout and drawn.decoder.lanes % 16), refusal
        return None


@pytest.mark.parametrize("seed", only(range(200), 2))
def test_a_prompt_agrees_with_float64(seed, tmp_path):
    drawn = coded_decoder(seed)
    judge = prompt_judge(drawn, seed, tmp_path)
    for length in lengths(drawn.capacity, seed) if judge else ():
        judge.check(length, mode=mode_of(seed))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
def test_a_prompt_over_scales_behind_rows_agrees_with_float64(seed, tmp_path):
    drawn = replace(coded_decoder(seed), page=[1, 1, 1, 64][seed % 4])
    judge = prompt_judge(drawn, seed, tmp_path, layout="nhd" if seed % 2 else "")
    for length in lengths(drawn.capacity, seed) if judge else ():
        judge.check(length, mode=mode_of(seed))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(0, 40, 2))
def test_long_prompts_agree_with_float64(seed, tmp_path):
    """Of 64 tokens at once, with left sides of products in memory."""
    drawn = replace(coded_decoder(seed), capacity=150)
    judge = prompt_judge(drawn, seed, tmp_path, long=64)
    for length in (64, 130) if judge else ():
        judge.check(length, mode=mode_of(seed))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(24))
def test_ranks_agree_with_each_other_and_with_float64(seed, tmp_path):
    """Heads are dealt to two or three GPUs, each of which has the rows of its own."""
    drawn = coded_decoder(seed)
    few = replace(drawn, cores=min(drawn.cores, 6))
    try:
        one, several = (RankJudge.of(few, seed, tmp_path, n, coded=True) for n in (1, 2 + seed % 2))
    except MeshcError as refusal:
        assert refusal.diagnostics[0].code in ("does-not-fit", "rank-split", "cuda-shape"), refusal
        return
    if drawn.capacity >= 10:
        assert one.tokens() == several.tokens()
    several.check(mode=mode_of(seed), steps=min(3, drawn.capacity))


CASES = {
    "llama": replace(LLAMA, meet="tags"),
    "bf16": replace(LLAMA, dtype="bf16"),
    "wide": replace(LLAMA, decoder=replace(LLAMA.decoder, lanes=80), tokens=32, page=64),
    "parts": PARTS,
    "windows": replace(WINDOWS, page=16),
    "apart": replace(LLAMA, page=1),
    "others": LLAMA,
}
ROWS, GROUP, TASKS, STEP = "mc_coded_rows.cuh", "mc_group_attention.cuh", "mc_tasks.cuh", "step.cu"
EDITS = {
    "scales of keys are dropped": ("llama", GROUP, "two_scales(one, one, T())", "two_scales(127u, 127u, T())"),
    "keys have their neighbour's scale": ("llama", GROUP, "first + (int)lane() / 4, count - 1), true", "first + ((int)lane() / 4 ^ 1), count - 1), true"),
    "keys of both halves have the scales of one": ("llama", GROUP, "words[s % 2 + 2], of_keys[1]", "words[s % 2 + 2], of_keys[0]"),
    "keys have the scales of values": ("llama", GROUP, "count - 1), true);", "count - 1), false);"),
    "values have their neighbour's scale": ("llama", GROUP, "min(first + 2 * q, count - 1)", "min(first + 2 * q + 1, count - 1)"),
    "values of both halves have the scales of one": ("llama", GROUP, "of_values[1], a + 2", "of_values[0], a + 2"),
    "scales behind the last token": ("llama", GROUP, "min(first + 2 * q + 1, count - 1)", "first + 2 * q + 1"),
    "words of one fragment twice": ("wide", GROUP, "if (s % 2 == 0) load_matrices(words, key + Rows::chunk(min(s + part", "if (s == 0) load_matrices(words, key + Rows::chunk(min(s + part"),
    "an odd chunk that is none": ("wide", GROUP, "value + Rows::chunk(min(e + part, STEPS - 1)", "value + Rows::chunk(min(e + 1 - part, STEPS - 1)"),
    "lanes of queries in the order of 16-bit rows": ("llama", GROUP, "CODED ? lane() % 4 * 4 + 2 * i + half :", "CODED ? 8 * half + lane() % 4 * 2 + i :"),
    "lanes of sums in the order of 16-bit rows": ("llama", GROUP, "CODED ? lane() / 4 * 2 + i / 2 :", "CODED ? lane() / 4 + i / 2 * 8 :"),
    "bytes are swapped": ("llama", ROWS, "word >> 1 & 0x3f803f80u", "word << 7 & 0x3f803f80u"),
    "bytes of bf16 are swapped": ("bf16", ROWS, "word >> 4 & 0x07f007f0u", "word << 4 & 0x07f007f0u"),
    "signs of the other byte": ("llama", ROWS, "masked_or(word << 8, 0x80008000u, word << 7", "masked_or(word, 0x80008000u, word << 7"),
    "a bit of the fraction is left out": ("llama", ROWS, "word << 7 & 0x3f803f80u", "word << 7 & 0x3f003f00u"),
    "a bit of the exponent is left out": ("bf16", ROWS, "word << 4 & 0x07f007f0u", "word << 4 & 0x03f003f0u"),
    "scales of f16 are twice as much": ("llama", ROWS, "low - 104u", "low - 103u"),
    "scales of bf16 are half as much": ("bf16", ROWS, "high + 120u", "high + 119u"),
    "some lanes know no more than their own largest": ("llama", ROWS, "for (int mask = 16; mask; mask >>= 1) most", "for (int mask = 8; mask; mask >>= 1) most"),
    "floats are rounded towards zero": ("llama", ROWS, "most + 0x7ffffu + (most >> 20 & 1u)", "most"),
    "signs are not coded": ("llama", ROWS, "| (bits >> 24 & 0x80u)", ""),
    "the scale is not stored": ("llama", ROWS, "if (lane() == 0) Rows::put_scale", "if (lane() == 33) Rows::put_scale"),
    "the new row's scale is dropped": ("llama", ROWS, "of_e4m3(codes[n]) * scale_of(scale)", "of_e4m3(codes[n])"),
    "rows lie over their scales": ("windows", ROWS, "16 + token % 16 * LANES", "token % 16 * LANES"),
    "scales of eight tokens": ("windows", ROWS, "return from[token / 16 * SIXTEEN + token % 16]", "return from[token / 16 * SIXTEEN + token % 8]"),
    "elements have the first scale": ("windows", ROWS, "scale_of(scale(from, token));\n    }\n};\n#endif", "scale_of(scale(from, 0));\n    }\n};\n#endif"),
    "chunks are not exchanged": ("wide", ROWS, "16 * Swizzle<LANES / 2>::chunk(chunk, position)", "16 * (chunk ^ 1)"),
    "a chunk less is copied": ("llama", ROWS, "sixteens * 16 + count * LANES", "sixteens * 16 + count * LANES - 16"),
    "the first sixteen of a page again": ("parts", TASKS, "token % PAGE / 16 * Rows::SIXTEEN", "0"),
    "a row is stored as its neighbour": ("llama", TASKS, "position, head), position % 16, position)", "position, head), (position ^ 1) % 16, position)"),
    "pages of tokens without scales": ("parts", TASKS, "(PAGE * (LANES + 1))", "(PAGE * LANES)"),
    "the new token is not rounded": ("llama", STEP, "coded.put(row);", ""),
    "a scale is where the next row begins": ("apart", ROWS, "(from + row(token) + SCALE)", "(from + row(token) + ROW)"),
    "scales of another row": ("apart", ROWS, "(from + row(token) + SCALE)", "(from + row(token ^ 1) + SCALE)"),
    "a scale is not copied": ("apart", TASKS, "Rows::bytes(1)", "Rows::SCALE"),
    "rows of heads first": ("others", TASKS, "((size_t)page * PAGE + token % PAGE) * HEADS + head;", "((size_t)page * HEADS + head) * PAGE + token % PAGE;"),
    "rows of the first page": ("apart", TASKS, "const int page = pages.pages[(begin + t) / PAGE]", "const int page = pages.pages[begin / PAGE]"),
    "keys have lanes of pairs": ("others", STEP, "locals[64 + 16 * (me % 2) + me / 2] = key", "locals[64 + me] = key"),
    "values are keys": ("parts", STEP, "{keys, keys + 544}", "{keys, keys + 0}"),
}  # fmt: skip
"""Edits that make what is emitted wrong: the case, the file, what is there, and what is put there."""
IN_CI_OF_EDITS = ("keys have their neighbour's scale", "bytes of bf16 are swapped")


@cache
def judge_of(case):
    with TemporaryDirectory() as folder:
        layout = "nhd" if case == "others" else ""
        return Judge.of(CASES[case], 3, Path(folder), coded=True, kv_layout=layout)


@pytest.mark.parametrize("name", only(EDITS, *IN_CI_OF_EDITS))
def test_edits_are_noticed(name):
    case, file, old, new = EDITS[name]
    judge = judge_of(case)
    step = judge.step.replaced(file, old, new)
    runs = [(FIRST, QUICK), (Mode("random", True, 4), WATCHED)]
    assert noticed(judge, step, runs) is not None


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_other_orders_give_the_same_bits(case):
    judge = judge_of(case)
    wanted = judge.check()
    for mode, toolchain in ((Mode("random", True, 4), WATCHED), (Mode("reverse", False, 1), QUICK)):
        assert all(map(np.array_equal, judge.check(mode=mode, toolchain=toolchain), wanted))


# --- programs

TINY = str(Path(__file__).parents[1] / "data" / "tiny_cuda" / "llama-4h2")


def program_of(**asked):
    made = meshc.compile(TINY, **{"target": "cuda", "seq": 256, "kv_dtype": "fp8_e4m3"} | asked)
    return from_json(made.files["manifest.json"])


def test_caches_take_half_and_hold_twice_as_many_tokens():
    coded, plain = program_of(), program_of(kv_dtype="model")
    assert {b.dtype for b in coded.buffers.values() if b.role == "state"} == {"e4m3"}
    lanes = next(b.shape[-1] for b in plain.buffers.values() if b.role == "state")
    halves, wholes = memory_of(coded), memory_of(plain)
    assert halves.caches * 2 * lanes == wholes.caches * (lanes + 1)
    fitting = capacity_that_fits(coded, halves.total - halves.caches + wholes.caches)
    assert 1.5 * 256 < fitting < 2 * 256


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"cluster": 2, "dataflow": "split_head"}, "blocks of --dataflow split_head have parts"),
        ({"chunk": 512}, "kernels of --chunk 512 keep caches of 16 bits"),
        ({"gpus": 2, "chunk": 64, "overlap": "auto"}, "keep caches of 16 bits"),
        ({"kv_dtype": "fp8_e5m2"}, "--kv-dtype cannot be 'fp8_e5m2'"),
        ({"target": "python"}, "programs for --target python do not take it"),
        ({"target": "csl"}, "programs for --target csl do not take it"),
    ],
)
def test_what_cannot_keep_such_caches_is_refused_by_name(asked, words):
    with pytest.raises(MeshcError) as refusal:
        program_of(**asked)
    assert any("--kv-dtype" in str(one.message) for one in refusal.value.diagnostics)
    assert words in str(refusal.value)


def test_latents_are_refused_in_words():
    with pytest.raises(MeshcError, match="no tasks for latents that caches keep as e4m3"):
        meshc.compile(TINY.replace("llama-4h2", "deepseek-4h"), target="cuda", kv_dtype="fp8_e4m3")


@pytest.mark.parametrize("level", ["mesh", "tile"])
def test_cores_of_a_mesh_refuse_graphs_of_such_caches(level, tmp_path):
    """A dump of the graph says what its caches are; kernels of many tokens leave it to tasks."""
    graph = meshc.compile(
        TINY, compile_to="graph", phase="decode", target="cuda", seq=32, kv_dtype="fp8_e4m3"
    )
    (text,) = graph.files.values()
    assert text.count("coded = e4m3") == 2
    (tmp_path / "dumped.meshir").write_text(text)
    with pytest.raises(MeshcError, match="cores keep caches in the type of the model"):
        meshc.compile(str(tmp_path / "dumped.meshir"), compile_to=level, device="h200")


def test_prompts_are_read_by_tasks():
    made = meshc.compile(TINY, target="cuda", seq=256, kv_dtype="fp8_e4m3")
    told = [said.message for said in made.report.messages]
    assert "tasks read prompts: kernels of many tokens keep caches of 16 bits" in told
    assert "long_prompt.cu" in made.files and not any(f.startswith("chunk") for f in made.files)
    asked = meshc.compile(TINY, target="cuda", seq=256, kv_dtype="fp8_e4m3", chunk=64)
    assert [one.tokens for one in from_json(asked.files["manifest.json"]).prefills] == [64]


def test_passes_behind_the_one_that_rounds_are_checked():
    """`--check` holds what tasks compute against the graph whose caches are coded."""
    folder = Path(__file__).parents[1] / "passes" / "expand_tasks"
    graph = (folder / "coded_caches.meshir").read_text().split("# ---\n")[0]
    plain = meshc.parse(graph.replace(", coded = e4m3", ""), "layers")
    plain.device = device("h200")
    check = Check()
    passes = meshc.parse_pipeline("code-caches,expand-tasks{rows=2,tokens=4}")
    made = meshc.PassManager(passes, [check]).run(plain)
    assert check.compared == 1 and sum(b.coded is not None for b in made.buffers) == 2
