"""Edits of emitted prompts, whose tasks attend for several tokens, and of the library's attention are
noticed: by float64, by what is cached, or by the executor."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from drawn_decoders import drawn_decoder
from reduced import only
from task_prompts import PromptJudge

from meshc.backends.cuda.executor import CXX, FIRST, QUICK, WATCHED, Mode
from meshc.support.diagnostics import MeshcError

pytestmark = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")

PROMPT, GROUP = "prompt.cu", "mc_group_attention.cuh"
WINDOW, HEADS, TOKENS = 55, 29, 46
"""Drawn decoders of two layers, as what the last one attends is no part of a prompt: 16 tokens of two
heads with a window and sinks, 4 of 9 heads, in more sets than half the warps, and 16 of a head."""

# Lines of kernels are as long as they are.
# ruff: noqa: E501
EDITS = {
    # what a query sees
    "a query does not see its own token": (HEADS, PROMPT, "0, asks + 1)", "0, asks)"),
    "a query sees the token behind its own": (HEADS, PROMPT, "0, asks + 1)", "0, asks + 2)"),
    "queries see what the first one does": (TOKENS, PROMPT, "WARPS>::row();", "WARPS>::row() * 0;"),
    "queries of other tokens": (HEADS, PROMPT, "WARPS>::row() / 9;", "WARPS>::row() / 10;"),
    "tokens of another task": (HEADS, PROMPT, "asks = 4 * b + pos", "asks = pos"),
    "a window of one more": (WINDOW, PROMPT, "max(asks + 1 - 17, 0)", "max(asks - 17, 0)"),
    "the window of the first token": (WINDOW, PROMPT, "max(asks + 1 - 17, 0)", "max(pos + 1 - 17, 0)"),
    "a window that does not end": (WINDOW, PROMPT, "pos, seen, pos", "pos, 0, pos"),
    "the last new token is left out": (TOKENS, PROMPT, "pos, pos + 16, 0", "pos, pos + 15, 0"),
    "each split has the new tokens": (HEADS, PROMPT, "if (s == pos / 48) attended", "attended"),
    "no split has the new tokens": (HEADS, PROMPT, "if (s == pos / 48) attended", "if (s < 0) attended"),
    "each split has the sink": (WINDOW, PROMPT, "if (s == 0 && ", "if ("),
    "the sink of another head": (WINDOW, PROMPT, "layer + row % 2]", "layer]"),
    "scores as they are": (WINDOW, PROMPT, "return mc::tanh(", "return ("),
    # what is cached
    "rows behind the prompt are cached": (HEADS, PROMPT, "len >= element / 64 + 1 && ", ""),
    "the first task's keys alone are cached": (HEADS, PROMPT, "element / 64 >= 4 * b", "element / 64 >= 8 * b"),
    "keys at the place of the first token": (TOKENS, PROMPT, "::lane(pages, pos + element / 80, 0", "::lane(pages, pos, 0"),
    "keys in another order": (TOKENS, PROMPT, "Swizzle<80>::lane(element % 80, element / 80)", "Swizzle<80>::lane(element % 80 ^ 8, element / 80)"),
    # which warp has what
    "queries of the first set": (HEADS, GROUP, "queries(all + set() * (STEPS * 256))", "queries(all)"),
    "rows of the first set": (HEADS, GROUP, "min(set() * GROUP + (int)lane()", "min((int)lane()"),
    "fragments of the first set": (HEADS, GROUP, "query = s / STEPS * GROUP + own", "query = own"),
    "fragments of the first lanes": (HEADS, GROUP, "16 * (s % STEPS) + own_lane", "own_lane"),
    "some fragments are not made": (HEADS, GROUP, "s < SETS * STEPS; s += WARPS", "s < STEPS; s += WARPS"),
    "tokens of all warps": (HEADS, GROUP, "unit < UNITS; unit += SHARE", "unit < UNITS; unit += WARPS"),
    "warps of a set have the same tokens": (TOKENS, GROUP, "(int)warp() % SHARE", "0"),
    "sums of another set": (HEADS, GROUP, "first = own * SHARE * GROUP", "first = 0"),
    "one warp of a set is joined": (TOKENS, GROUP, "for (int w = 0; w < SHARE; w++) {", "for (int w = 0; w < 1; w++) {"),
    "sums of another query": (HEADS, GROUP, "+ i - own * (GROUP * HEAD)", "+ i % HEAD"),
    "weights of another query": (HEADS, GROUP, "statistics + first + i / HEAD - own * GROUP", "statistics + first"),
    # where records go
    "records of one token": (HEADS, PROMPT, "record + i / 576 * 4896", "record + i / 576 * 0"),
    "records of another head": (HEADS, PROMPT, "i / 64 % 9 * 68", "i / 64 % 8 * 68"),
    "records of another task": (HEADS, PROMPT, "records_1 + 19584 * b", "records_1 + 4896 * b"),
    "no meeting behind fragments": (HEADS, PROMPT, "put_queries(asked, locals);\n                mc::group_sync(1, WORKERS);", "put_queries(asked, locals);"),
    "no meeting behind sums": (TOKENS, PROMPT, "attended.put(joined, statistics);\n                mc::group_sync(1, WORKERS);", "attended.put(joined, statistics);"),
}  # fmt: skip

RUNS = (
    (47, FIRST, QUICK),
    (20, Mode("starve_warp", True, 2), QUICK),
    (37, Mode("random", False, 3), QUICK),
    (39, Mode("random", True, 5), WATCHED),
)


@cache
def judge_of(seed):
    with TemporaryDirectory() as folder:
        return PromptJudge.of(drawn_decoder(seed), seed, Path(folder))


def noticed(judge, step):
    """Whether a run notices an edit."""
    for length, mode, toolchain in RUNS:
        try:
            judge.check(min(length, judge.drawn.capacity), step, mode, toolchain)
        except (AssertionError, MeshcError):
            return True
    return False


@pytest.mark.parametrize(
    "name",
    only(EDITS, "rows behind the prompt are cached"),
)
def test_edits_are_noticed(name):
    seed, file, old, new = EDITS[name]
    judge = judge_of(seed)
    text = judge.step.texts[file]
    assert text.count(old) >= 1, f"there is no {old!r}"
    texts = {**judge.step.texts, file: text.replace(old, new, 1)}
    assert noticed(judge, replace(judge.step, texts=texts))


@pytest.mark.slow
@pytest.mark.parametrize("seed", only((WINDOW, HEADS, TOKENS), TOKENS))
def test_nothing_is_noticed_without_an_edit(seed):
    assert not noticed(judge_of(seed), judge_of(seed).step)
