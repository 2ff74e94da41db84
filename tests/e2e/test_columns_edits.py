"""Edits of products whose left sides come through the ring, in the library and in emitted kernels,
are noticed: by float64, or by the executor."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import pytest
from drawn_decoders import drawn_decoder, quantised_decoder
from reduced import only
from task_step_cases import PIECEWISE
from task_steps import Judge, noticed

from meshc.backends.cuda.executor import CXX, FIRST, QUICK, WATCHED, Mode
from meshc.backends.cuda.tasks import streamed_products

pytestmark = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")

STEP, LIBRARY = "step.cu", "mc_streamed.cuh"
TASKS, FRAGMENTS = "mc_tasks.cuh", "mc_fragments.cuh"
GROUPS, ROWS, COPIED, CODED = (18, 11, False), (20, 13, False), (20, 13, True), (3, 8, False)
COPIED_CODES, PIECES, PIECES_OF_CODES = (3, 8, True), (0, 16, True), (1, 16, True)
"""Drawn decoders and how many requests a step has: three blocks with many row groups each, of widths
that are no whole blocks; rows that are no whole fragments, of widths of 100; and codes (e4m3_64). Left
sides that a block copies, in one piece and in several, for rows of numbers and of codes."""

# Lines of kernels are as long as they are.
# ruff: noqa: E501
EDITS = {
    # how many row groups at once, and which
    "a row group too many at once": (GROUPS, LIBRARY, "return (left + rounds - 1) / rounds;", "return (left + rounds) / rounds;"),
    "one round for all row groups": (GROUPS, LIBRARY, "const int rounds = (left + MOST - 1) / MOST;", "const int rounds = 1;"),
    "the first row group alone": (GROUPS, STEP, "const int task = first + number;", "const int task = first;"),
    "rounds begin one task later": (GROUPS, STEP, "first += groups) {", "first += groups + 1) {"),
    # what comes
    "rows of the first row group": (GROUPS, LIBRARY, "(const unsigned char*)from(n)", "(const unsigned char*)from(0)"),
    "rows of the first tile": (GROUPS, LIBRARY, "from(n) + (size_t)at * BLOCK", "from(n)"),
    "rows at the first place": (GROUPS, LIBRARY, "ring.fill(item, n * rows,", "ring.fill(item, 0 * rows,"),
    "vectors of the first tile": (GROUPS, LIBRARY, "vectors + (size_t)at * VALUES", "vectors"),
    "vectors of another width": (ROWS, LIBRARY, "vectors + (size_t)at * VALUES", "vectors + (size_t)at * BLOCK"),
    "bytes of rows alone are announced": (GROUPS, LIBRARY, "groups * rows + columns);", "groups * rows);"),
    "vectors of the next request": (GROUPS, STEP, "x_1_columns_1, 4", "x_1_columns_1 + 16, 4"),
    # what is multiplied
    "warps have the same row group": (GROUPS, LIBRARY, "group = warp() % groups,", "group = 0 * groups,"),
    "row groups of fewer warps": (GROUPS, LIBRARY, "all + group * there", "all + group / 2 * there"),
    "warps share no blocks": (GROUPS, LIBRARY, "k += shares)", "k++)"),
    "the last tile is whole": (GROUPS, LIBRARY, "share < shares ? there : 0", "share < shares ? most : 0"),
    "vectors where those of a whole tile are": (GROUPS, LIBRARY, "all + groups * there * BLOCK", "all + groups * most * BLOCK"),
    "more blocks than an item has place for": (GROUPS, LIBRARY, "return PLACE / (groups * BLOCK + VECTORS);", "return PLACE / (groups * BLOCK);"),
    "columns of other lanes": (GROUPS, FRAGMENTS, "columns + column * 16 + lane() % 4 * 4, b)", "columns + column * 16 + lane() / 4 % 4 * 4, b)"),
    "the first block of vectors": (GROUPS, LIBRARY, "columns + k * VALUES)", "columns)"),
    "the same block of rows": (GROUPS, LIBRARY, "rows + k * BLOCK,", "rows,"),
    "a ring that nobody empties": (GROUPS, LIBRARY, "            ring.release(item);\n", ""),
    # where sums go
    "sums of another vector": (GROUPS, LIBRARY, "sums + vector * STRIDE", "sums + (vector ^ 1) * STRIDE"),
    "sums of another row": (GROUPS, LIBRARY, "group * 16 + row;", "group * 16 + (row ^ 8);"),
    "sums of the first row group": (GROUPS, LIBRARY, "STRIDE + group * 16 + row;", "STRIDE + row;"),
    "no meeting before sums": (GROUPS, LIBRARY, "group_sync(1, 32 * WARPS);  // nobody", "// nobody"),
    "no meeting behind sums": (GROUPS, LIBRARY, "            }\n            group_sync(1, 32 * WARPS);\n", "            }\n"),
    "sums of the last share alone": (GROUPS, LIBRARY, "turn ? *sum + more : more", "more"),
    "sums beside what was there": (GROUPS, LIBRARY, "turn ? *sum + more : more", "*sum + more"),
    "a sum of another vector is taken": (GROUPS, STEP, "parts[b * mc::Streamed", "parts[b / 2 * 2 * mc::Streamed"),
    "an element of another request": (ROWS, STEP, "/ groups, BATCH - 1)", "/ groups, BATCH - 2)"),
    # copies
    "the first piece again": (PIECES, TASKS, "from + (size_t)at * BLOCK, bytes", "from, bytes"),
    "pieces to the first place": (PIECES, TASKS, "copy_in(columns + at * BLOCK,", "copy_in(columns,"),
    "the last piece is whole": (COPIED, TASKS, "min(PIECE, COUNT - at) * BLOCK", "PIECE * BLOCK"),
    "a piece is not asked for": (PIECES, TASKS, "for (int at = 0; at < COUNT; at += PIECE) {", "for (int at = 0; at < COUNT; at += 2 * PIECE) {"),
    "pieces have the first one's barrier": (PIECES, TASKS, "expect(came + at / PIECE, bytes);", "expect(came, bytes);"),
    "only the first piece is waited for": (PIECES, TASKS, "piece++) wait(came", "piece++) if (piece == 0) wait(came"),
    "products do not wait": (COPIED, FRAGMENTS, "coming.until(at, count, tile_blocks)", "count"),
    "products go on behind what is there": (PIECES, TASKS, "there >= count * columns ? count :", "true ? count :"),
    "products go on a tile too far": (PIECES, TASKS, "(there / columns - at) / tile * tile", "((there / columns - at) / tile + 1) * tile"),
    "products of codes do not wait": (COPIED_CODES, "mc_codes.cuh", "coming.until(at, count, tile_blocks, Coded::FRAGMENTS)", "count"),
    "blocks of codes wait for one fragment": (PIECES_OF_CODES, "mc_codes.cuh", "tile_blocks, Coded::FRAGMENTS)", "tile_blocks)"),
    "what was there before": (PIECES, TASKS, "parities ^= (1u << PIECES) - 1, there = piece = 0;", "parities ^= (1u << PIECES) - 1;"),
    "parities of the time before": (PIECES, TASKS, "parities ^= (1u << PIECES) - 1, there = piece = 0;", "there = piece = 0;"),
    "all pieces turn": (PIECES, TASKS, "parities ^= (1u << PIECES) - 1,", "parities ^= ~0u,"),
    "each worker asks": (PIECES, TASKS, "if (me != 0) return;\n        copy_fence", "copy_fence"),
    "no fence between what attends and copies": (COPIED, TASKS, "copy_fence(), global_copy_fence();", "global_copy_fence();"),
    "copied vectors were not fenced by who gave them": (COPIED, STEP, "    mc::global_copy_fence();\n", ""),
    "copied vectors were not fenced by who copies": (COPIED, TASKS, "copy_fence(), global_copy_fence();", "copy_fence();"),
    "copies of other vectors": (COPIED, STEP, "(columns, h_columns_1,", "(columns, h_columns_1 + 16,"),
    # codes
    "vectors of the first of a block's fragments": (CODED, LIBRARY, "VALUES = Rows::FRAGMENTS * BATCH * 16", "VALUES = BATCH * 16"),
    "the first block of codes": (CODED, LIBRARY, "rows + k * BLOCK,", "rows,"),
    "codes of another row group": (CODED, STEP, "const int task = first + number;", "const int task = first;"),
    "codes where blocks of half their bytes are": (CODED, STEP, "* 1088;", "* 544;"),
    # when
    "vectors come before they are given": (GROUPS, LIBRARY, "if (some) wait(ready, filled++ & 1), global_copy_fence();", ""),
    "vectors were not fenced by who gave them": (GROUPS, STEP, "    mc::global_copy_fence();\n", ""),
    "vectors were not fenced by who brings them": (GROUPS, LIBRARY, "filled++ & 1), global_copy_fence();", "filled++ & 1);"),
    "vectors come in the other half": (GROUPS, LIBRARY, "filled++ & 1", "filled++ + 1 & 1"),
    "some threads of the warp hear later": (GROUPS, LIBRARY, "    warp_sync();\n}", "}"),
    "nobody tells": (GROUPS, STEP, "if (me == 0 && mine.begin < mine.end) mc::arrive(ready);", ""),
}  # fmt: skip

RUNS = (
    (FIRST, QUICK),
    (Mode("starve_warp", True, 2), QUICK),
    (Mode("starve_warp", False, 8), QUICK),  # the warp that brings
    (Mode("random", False, 3), QUICK),
    (Mode("random", True, 5), WATCHED),
)


@cache
def judge_of(case):
    seed, batch, copied = case
    with (
        TemporaryDirectory() as folder,
        patch.object(streamed_products, "columns_are_copied", lambda *given: copied),
    ):
        if case in (CODED, COPIED_CODES):
            drawn, form = quantised_decoder(seed)
        elif case == PIECES_OF_CODES:
            whole = replace(PIECEWISE.decoder, hidden=1088, features=640)
            drawn, form = replace(PIECEWISE, decoder=whole), "e4m3_64"
        else:
            drawn, form = (PIECEWISE if case == PIECES else drawn_decoder(seed)), ""
        return Judge.of(drawn.with_columns(batch), seed, Path(folder), keep=form)


@pytest.mark.parametrize(
    "name", only(EDITS, "warps have the same row group", "some threads of the warp hear later")
)
def test_edits_are_noticed(name):
    case, file, old, new = EDITS[name]
    judge = judge_of(case)
    text = judge.step.texts[file]
    assert text.count(old) >= 1, f"there is no {old!r}"
    assert noticed(judge, judge.step.replaced(file, old, new), RUNS), "nobody noticed"


@pytest.mark.slow
@pytest.mark.parametrize("case", [GROUPS, ROWS, CODED])
def test_nothing_is_noticed_without_an_edit(case):
    assert noticed(judge_of(case), judge_of(case).step, RUNS) is None
