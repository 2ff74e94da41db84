"""Edits of how ranks meet and what they give each other in steps of tasks: of emitted text and of
the library, each of one thing. A case, a file, what is there and what is put in its place."""

# Lines of kernels are as long as they are.
# ruff: noqa: E501

from dataclasses import replace

from drawn_decoders import Drawn
from task_step_cases import LLAMA

STEP, TASKS, WORDS = "step.cu", "mc_tasks.cuh", "mc_words.cuh"

SHARED = replace(LLAMA, cores=3, decoder=replace(LLAMA.decoder, words=64))
CASES: dict[str, tuple[Drawn, int, str]] = {
    "counter": (LLAMA, 2, "peers"),
    "logits": (SHARED, 2, "peers"),
    "words": (replace(SHARED, meet="tags"), 2, "peers"),
    "versions": (replace(LLAMA, meet="tags"), 2, "peers"),
    "switch": (replace(LLAMA, meet="tags"), 3, "multimem"),
    "columns": (LLAMA.with_columns(6), 2, "peers"),
}
"""Ranks that meet by counters, that share logits, and that give each other words, in one place or
in one for each layer, by an address of each GPU or by one of all; with left sides in memory."""

_SYNC = "mc::group_sync(1, WORKERS);"
_GIVEN = "mc::tag_of<2>(past * 2 + layer)"
_TAGS = f"tags[3] = {{{_GIVEN}, {_GIVEN}, "

EDITS = {
    # meetings by a counter
    "nobody waits for other ranks": ("counter", STEP, "    if (me == 0) mc::gpu_wait(told, heard);\n", ""),
    "one block waits for other ranks": ("counter", STEP, "if (me == 0) mc::gpu_wait(told", "if (me == 0 && !mc::block()) mc::gpu_wait(told"),
    "one GPU is not told": ("counter", STEP, "mc::gpus_arrive<RANKS>(met", "mc::gpus_arrive<RANKS - 1>(met"),
    "a GPU waits for one too few": ("counter", STEP, "heard += RANKS;", "heard += RANKS - 1;"),
    "a GPU waits for one too many": ("counter", STEP, "heard += RANKS;", "heard += RANKS + 1;"),
    "blocks arrive without a barrier": ("counter", STEP, f"target += mc::blocks(), heard += RANKS;\n    {_SYNC}", "target += mc::blocks(), heard += RANKS;\n    "),
    "blocks of a meeting are not counted": ("counter", STEP, "target += mc::blocks(), heard += RANKS;", "heard += RANKS;"),
    "workers do not wait for theirs": ("counter", STEP, f"mc::gpu_wait(told, heard);\n    {_SYNC}", "mc::gpu_wait(told, heard);"),
    "steps begin to count again": ("counter", STEP, "told_before[0] = heard;", "told_before[0] = 0;"),
    "a step has heard of nobody": ("counter", STEP, "mc::u32 heard = told_before[0];", "mc::u32 heard = 0;"),
    "ranks meet as blocks do": ("counter", STEP, "arrive_ranks(met, target, told_of, heard, me);\n            wait_ranks(told, heard, me);", "arrive(met, target, me);\n            wait(met, target, me);"),
    "what other ranks give is left out": ("counter", STEP, "+ o_of_ranks[", "+ 0.0f * o_of_ranks["),
    "what a rank gives is another's": ("counter", STEP, "64 * rank", "64 * (1 - rank)"),
    "one GPU is given nothing": ("counter", TASKS, "gpu < GPUS; gpu++) store_to_gpu", "gpu < GPUS - 1; gpu++) store_to_gpu"),
    "one GPU is given all": ("counter", TASKS, "store_to_gpu(each[gpu] + at, v)", "store_to_gpu(each[0] + at, v)"),
    "ranks tell before their blocks have come": ("counter", TASKS, "if (!grid_arrive_last(met, target)) return;", "if (grid_arrive_last(met, target), block()) return;"),
    "each block tells": ("counter", TASKS, "if (!grid_arrive_last(met, target)) return;", "grid_arrive_last(met, target);"),
    "GPUs are told twice": ("counter", TASKS, "gpu_arrive(told[gpu]);", "gpu_arrive(told[gpu]), gpu_arrive(told[gpu]);"),
    "what is copied was not fenced by blocks that gave it": ("columns", STEP, "target += mc::blocks();\n    mc::global_copy_fence();", "target += mc::blocks();"),
    "what is copied was not fenced by ranks that gave it": ("columns", STEP, "heard += RANKS;\n    mc::global_copy_fence();", "heard += RANKS;"),
    "what is copied was not fenced by who copies": ("columns", TASKS, "copy_fence(), global_copy_fence();", "copy_fence();"),
    # logits
    "each rank has the first share": ("logits", STEP, "8 * rank) * 256", "0 * rank) * 256"),
    "a share in the place of another": ("logits", STEP, "16 * g + i + 32 * rank", "16 * g + i + 32 * (1 - rank)"),
    "nobody waits for the shares of others": ("logits", STEP, "wait_ranks(told, heard, me);\n        const mc::Run mine(4);", "const mc::Run mine(4);"),
    "one share twice": ("logits", STEP, "logits_of_ranks[16 * g + i]", "logits_of_ranks[16 * (g % 2) + i]"),
    # words
    "words of ranks are read as those of a GPU": ("words", STEP, "mc::need<2, mc::OF_GPUS>(from", "mc::need<2>(from"),
    "the tag of the layer behind": ("words", STEP, f"o, {_GIVEN}", "o, mc::tag_of<2>(past * 2 + layer + 1)"),
    "no tag": ("words", STEP, f"y, {_GIVEN}", "y, 0"),
    "no word is waited for": ("words", STEP, _TAGS, "tags[3] = {0u, 0u, "),
    "its own word alone is waited for": ("words", STEP, _TAGS, f"tags[3] = {{rank ? 0u : {_GIVEN}, rank ? {_GIVEN} : 0u, "),
    "the word of the layer in front": ("words", STEP, _TAGS, "tags[3] = {mc::tag_of<2>(past * 2 + layer + 2), mc::tag_of<2>(past * 2 + layer + 2), "),
    "one part is not asked for": ("words", STEP, "tags, 1u | 2u | 4u", "tags, 1u | 4u"),
    "a part is left out": ("words", STEP, "(o_sum + came[1])", "(o_sum + 0.0f * came[1])"),
    "a part twice": ("words", STEP, "y_of_ranks + 16 * g + i + 64", "y_of_ranks + 16 * g + i"),
    "the lanes of another task": ("words", STEP, "o_of_ranks + 16 * g + i + 64", "o_of_ranks + i + 64"),
    "words of a rank in the place of another's": ("words", STEP, "64 * rank", "64 * (1 - rank)"),
    "all ranks give in one place": ("words", STEP, "64 * rank", "0 * rank"),
    "half of a task's words": ("words", STEP, "if (me < 16 * BATCH) {\n                        mc::gpus_give", "if (me < 8 * BATCH) {\n                        mc::gpus_give"),
    "words of all layers in one place": ("versions", STEP, "128 * layer", "0 * layer"),
    "steps of words are not counted": ("versions", STEP, "runs[0] = (past + 1) % 3;", "runs[0] = past;"),
    "steps of words are alike": ("versions", STEP, "const mc::u32 past = runs[0];", "const mc::u32 past = 0;"),
    "ranks do not meet at the start": ("versions", STEP, "wait_ranks(told, heard, me);", ""),
    "one GPU is given no words": ("words", WORDS, "gpu < GPUS; gpu++) store_word_to_gpu", "gpu < GPUS - 1; gpu++) store_word_to_gpu"),
    "the first GPU is given no words": ("words", WORDS, "int gpu = 0; gpu < GPUS; gpu++) store_word_to_gpu", "int gpu = 1; gpu < GPUS; gpu++) store_word_to_gpu"),
    "one GPU is given all words": ("words", WORDS, "(u32*)each[gpu] + at", "(u32*)each[0] + at"),
    "words without their tags": ("words", WORDS, "const u32 word = tagged<BITS>(v, tag);", "const u32 word = bits_of(v);"),
    "tags without their values": ("words", WORDS, "const u32 word = tagged<BITS>(v, tag);", "const u32 word = tag;"),
    "nobody asks again": ("words", WORDS, "        if (missing) wait_for_words(left);", "        missing = 0;"),
    "any tag will do": ("words", WORDS, "return tag == 0 || (word &", "return true || (word &"),
    "all tags are alike": ("words", WORDS, "before % ((1u << BITS) - 1)", "before % 1"),
    "loads that reach a GPU": ("words", WORDS, "if constexpr (GPUS) return load_word_of_gpus", "if constexpr (false) return load_word_of_gpus"),
    "words to all without their tags": ("switch", WORDS, "store_word_to_gpus((u32*)all + at, tagged<BITS>(v, tag))", "store_word_to_gpus((u32*)all + at, bits_of(v))"),
    "words to all in another place": ("switch", WORDS, "store_word_to_gpus((u32*)all + at,", "store_word_to_gpus((u32*)all + at / 2,"),
    "one of three parts is left out": ("switch", STEP, "for (int s = 0; s < 2; s++)", "for (int s = 0; s < 1; s++)"),
    # numbers, by little
    "what another rank gives is rounded": ("words", STEP, "(o_sum + came[1])", "(o_sum + mc::widen(mc::narrow<T>(came[1])))"),
    "what another rank gives is a little more": ("words", STEP, "(y_sum + came[1])", "(y_sum + 1.0001220703125f * came[1])"),
    "what another rank gives of many requests is a little more": ("columns", STEP, "(o_sum + o_of_ranks[", "(o_sum + 1.0001220703125f * o_of_ranks["),
    "keys are a quarter of a place less": ("words", STEP, "mc::narrow<T>(came[0])", "mc::narrow<T>(0.999755859375f * came[0])"),
    "values are a quarter of a place less": ("words", STEP, "mc::narrow<T>(came[1])", "mc::narrow<T>(0.999755859375f * came[1])"),
}  # fmt: skip

# Edits that change nothing that a run can tell, and why.
EQUIVALENT = {
    "what a rank gives is another's": "the parts of a sum are the same, in another order",
    "words of a rank in the place of another's": "the parts of a sum are the same, in another order",
    "what is copied was not fenced by ranks that gave it": "in front of a meeting of ranks blocks give parts of sums, which nobody copies",
    "ranks do not meet at the start": "who gives words has waited for words that all have given behind those of the run before",
}
