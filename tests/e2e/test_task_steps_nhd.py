"""Steps of drawn decoders over pages in NHD layout, as NumPy writes them: [pages, tokens, heads,
lanes] of each layer, lanes in the order of the model, beside float64."""

# Lines of kernels are as long as they are.
# ruff: noqa: E501

from dataclasses import replace

import numpy as np
import pytest
from drawn_decoders import drawn_decoder
from reduced import only
from task_step_cases import LLAMA, PARTS, TAGS, WINDOWS
from task_steps import Judge, mode_of, noticed

from meshc.backends.cuda.executor import CXX, FIRST, QUICK, WATCHED, Mode
from meshc.support.diagnostics import MeshcError

pytestmark = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")

IN_CI = (3,)


@pytest.mark.parametrize("seed", only(range(120), *IN_CI))
def test_a_step_reads_pages_of_others(seed, tmp_path):
    drawn = drawn_decoder(seed)
    try:
        judge = Judge.of(drawn, seed, tmp_path, kv_layout="nhd")
    except MeshcError as refusal:
        code = refusal.diagnostics[0].code
        assert code == "does-not-fit" or (code == "cuda-shape" and drawn.decoder.lanes % 8)
        return
    decoder, program = drawn.decoder, judge.step.program
    shapes = {b.shape[-3:] for b in program.buffers.values() if b.role == "state"}
    assert shapes == {(program.page, decoder.groups, decoder.lanes)}
    judge.check(mode=mode_of(seed))


EDITS = {
    "rows of heads first": ("mc_tasks.cuh", "(size_t)page * PAGE + token % PAGE) * HEADS + head) * LANES", "(size_t)page * HEADS + head) * PAGE + token % PAGE) * LANES"),
    "rows are not turned": ("mc_tasks.cuh", "turned = Swizzle<LANES>::turns(begin + t) * CHUNK", "turned = 0"),
    "rows are turned by their number": ("mc_tasks.cuh", "turns(begin + t) * CHUNK", "turns(t + 1) * CHUNK"),
    "the end of a row is left out": ("mc_tasks.cuh", "if (turned > 0) ring.fill", "if (turned > CHUNK) ring.fill"),
    "the end of a row is its begin": ("mc_tasks.cuh", "from + (ROW - turned) / (int)sizeof(T)", "from"),
    "chunks are exchanged": ("mc_attention.cuh", "return (chunk + turns(position)) % CHUNKS;", "return chunk ^ turns(position);"),
    "queries have lanes of pairs": ("step.cu", "locals[16 * (element % 2) + element % 32 / 2 + 32 * (element / 32)]", "locals[element]"),
    "keys have lanes of pairs": ("step.cu", "locals[64 + 16 * (me % 2) + me / 2]", "locals[64 + me]"),
}  # fmt: skip
"""Edits that make what is emitted wrong: the file, what is there, and what is put there."""


@pytest.mark.slow
@pytest.mark.parametrize("name", EDITS)
def test_edits_are_noticed(name, tmp_path):
    file, old, new = EDITS[name]
    judge = Judge.of(LLAMA, 3, tmp_path, kv_layout="nhd")
    texts = dict(judge.step.texts)
    assert old in texts[file]
    texts[file] = texts[file].replace(old, new)
    assert noticed(judge, replace(judge.step, texts=texts), [(FIRST, QUICK)]) is not None


@pytest.mark.slow
@pytest.mark.parametrize("case", ["llama", "parts", "tags", "windows"])
def test_cases_of_steps_in_other_orders(case, tmp_path):
    windows = replace(WINDOWS, decoder=replace(WINDOWS.decoder, lanes=24))
    drawn = {"llama": LLAMA, "parts": PARTS, "tags": TAGS, "windows": windows}[case]
    judge = Judge.of(drawn, 5, tmp_path, kv_layout="nhd")
    wanted = judge.check()
    for mode, toolchain in ((Mode("random", True, 4), WATCHED), (Mode("reverse", True, 1), QUICK)):
        found = judge.check(mode=mode, toolchain=toolchain)
        assert all(map(np.array_equal, found, wanted))
