"""Edits of what is emitted for a step of tasks, each of which makes it wrong: the case, the file, what
is there, what is put in its place, and which of several places (-1: all)."""

# Lines of kernels are as long as they are.
# ruff: noqa: E501

SYNC = "mc::group_sync(1, WORKERS);"
STEP, TASKS, GROUP, WORDS = "step.cu", "mc_tasks.cuh", "mc_group_attention.cuh", "mc_words.cuh"

EDITS = {
    # meetings and what is behind them
    "arrive without a barrier": ("llama", STEP, f"    {SYNC}  // all of this block's is written\n", "", 0),
    "wait without a barrier": ("llama", STEP, f"mc::grid_wait(met, target);\n    {SYNC}", "mc::grid_wait(met, target);", 0),
    "nobody waits": ("llama", STEP, "    if (me == 0) mc::grid_wait(met, target);\n", "", 0),
    "a target too low": ("llama", STEP, "target += mc::blocks();", "target += mc::blocks() - 1;", 0),
    "the counter is not left at 0": ("llama", STEP, "    if (me == 0) mc::grid_leave(met, target + mc::blocks());\n", "", 0),
    "the counter is left too early": ("llama", STEP, "grid_leave(met, target + mc::blocks())", "grid_leave(met, target)", 0),
    **{
        f"meeting {n} of llama": ("llama", STEP, "wait(met, target, me);", SYNC, n)
        for n in range(6)
    },
    **{
        f"meeting {n} of parts": ("parts", STEP, "wait(met, target, me);", SYNC, n)
        for n in range(3, 8)
    },
    # words with tags
    "a value without its tag": ("tags", WORDS, ": nearest) | tag;", ": nearest);", 0),
    "the tag of the value behind": ("tags", WORDS, "return 1 + before", "return 2 + before", 0),
    "a tag that fresh memory has": ("tags", WORDS, "return 1 + before %", "return before %", 0),
    "nobody waits for tags": ("tags", WORDS, "return tag == 0 || (word", "return true || (word", 0),
    "one word of eight is waited for": ("tags", WORDS, "for (int i = 0; i < 8; i++) found", "for (int i = 0; i < 1; i++) found", 0),
    "seven words of eight are waited for": ("tags", WORDS, "for (int i = 0; i < 8; i++) found", "for (int i = 0; i < 7; i++) found", 0),
    "words that are not there are taken": ("tags", WORDS, "            if (!missing) break;\n            wait_for(missing, left);", "            break;", 0),
    "records that are not there are taken": ("tags", WORDS, "            if (!missing) break;\n            wait_for(missing, left);", "            break;", 1),
    "weights of records are not waited for": ("merged tags", WORDS, " || !there(bits_of(two[n].x)) || !there(bits_of(two[n].y))", "", 0),
    "the first record alone is waited for": ("tags", WORDS, "                if (!all(v[n]) ||", "                if (n == 0) continue;\n                if (!all(v[n]) ||", 0),
    "single words are not waited for": ("tags", WORDS, "        if (missing) wait_for_words(left);", "        missing = 0;", 0),
    "steps have the same tags": ("merged tags", STEP, "const mc::u32 past = runs[0];", "const mc::u32 past = 0;", 0),
    "steps are not counted": ("merged tags", STEP, "runs[0] = (past + 1) % 3;", "runs[0] = past;", 0),
    "layers have the same tags": ("tags", STEP, "mc::tag_of<2>(past * 3 + layer + 1)", "mc::tag_of<2>(past * 3)", 0),
    "the tag of the layer before": ("tags", STEP, "64, mc::Tagged<2>(mc::tag_of<2>(past * 3 + layer))", "64, mc::Tagged<2>(mc::tag_of<2>(past * 3 + layer + 2))", 0),
    "a need that does not wait": ("tags", STEP, "64, mc::Tagged<2>(mc::tag_of<2>(past * 3 + layer))", "64, mc::Tagged<2>(0)", 0),
    "columns that are still read": ("tags", STEP, f"gains(attn_gain + (size_t)layer * 64, me);\n            {SYNC}\n", "gains(attn_gain + (size_t)layer * 64, me);\n", 0),
    "words of another thread": ("tags", STEP, "(me < 64 ? 4u : 0u)", "(me < 48 ? 4u : 0u)", 0),
    "the value in place of the key": ("tags", STEP, "mc::narrow<T>(came[0])", "mc::narrow<T>(came[1])", 0),
    "eight lanes without their tags": ("merged tags", WORDS, "tagged<BITS>(v[i + 2], tag)", "bits_of(v[i + 2])", 0),
    # the ring
    "too few bytes are expected": ("llama", STEP, "ring.acquire(item, count * 128)", "ring.acquire(item, count * 64)", 0),
    "too many bytes are expected": ("llama", TASKS, "256 * (u32)sizeof(T);", "512 * (u32)sizeof(T);", 0),
    "a tile is not released": ("llama", STEP, "ring.release(item++);", "item++;", 0),
    "a tile is released before it is read": ("llama", STEP, "const T* const keys = (const T*)ring.ready(item);", "const T* const keys = (const T*)ring.ready(item); ring.release(item);", 0),
    "items of lanes differ": ("llama", STEP, "item = mc::shuffle(item, 0);", "", 2),
    "a tile is not acquired": ("llama", TASKS, "        ring.acquire(item, bytes);\n", "", 0),
    "mbarriers are not ready": ("llama", STEP, "    mc::block_sync();  // this block's mbarriers are ready\n", "", 0),
    # where things are
    "another layer's weights": ("llama", STEP, "8 * g + 32 * layer) * 256", "8 * g) * 256", 0),
    "another group of rows": ("llama", STEP, "wk + (size_t)(4 * g + 16", "wk + (size_t)(4 * (3 - g) + 16", 0),
    "another part of the width": ("parts", STEP, "24 * layer + 3 * part", "24 * layer", 0),
    "one block too few": ("llama", STEP, "6 * g + 24 * layer) * 256, 6, TILE", "6 * g + 24 * layer) * 256, 5, TILE", 0),
    "another layer's gain": ("llama", STEP, "attn_gain + (size_t)layer * 64", "attn_gain", 0),
    "another lane's bias": ("windows", STEP, "mc::widen(bo[16 * g + i", "mc::widen(bo[i", 0),
    "the key of another position": ("llama", STEP, "::lane(pages, pos, g, me)] = new_key", "::lane(pages, pos ? pos - 1 : 0, g, me)] = new_key", 0),
    "the value of another head": ("llama", STEP, "::lane(pages, pos, g, me)] = new_value", "::lane(pages, pos, 0, me)] = new_value", 0),
    "pages of another request": ("parts", STEP, "from(pages + 4 * b,", "from(pages,", 0),
    "the page of another tile": ("llama", STEP, "from.ahead(", "from.ahead(16 + ", 0),
    "a page is looked up too late": ("llama", STEP, "                        from.ahead(48", "                        if (n) from.ahead(48", 0),
    "keys in place of values": ("llama", STEP, "keys, keys + 512,", "keys, keys,", 0),
    "queries of another head": ("llama", STEP, "q_1_1[element + 64 * g]", "q_1_1[element]", 0),
    "another request's position": ("parts", STEP, "const int pos = lengths[b];", "const int pos = lengths[0];", 1),
    "records of another split": ("llama", STEP, "+ 72 * s;", "+ 72 * (s ? s - 1 : 0);", 0),
    "logits of words that there are not": ("llama", STEP, "if (16 * g + i < 50) ", "", 0),
    "a half group of features too many": ("llama", STEP, "me < 16 * BATCH && i < 8", "me < 16 * BATCH", 0),
    "an old version of the residual": ("windows", STEP, "((layer + 1) % 2)", "(layer % 2)", 0),
    # arithmetic
    "another factor of queries": ("llama", STEP, "* 0.25503486164919736f", "* 0.25f", 0),
    "another epsilon": ("llama", STEP, "gains, 1e-05f", "gains, 1e-02f", 0),
    "a pair turned the other way": ("llama", STEP, "i % 2 == 0 ? -(", "i % 2 != 0 ? -(", 0),
    "the other one of another pair": ("llama", STEP, "mc::shuffle_xor(q, 1)", "mc::shuffle_xor(q, 2)", 0),
    "gates and features exchanged": ("llama", STEP, "16 + 2 * i + 1)", "16 + 2 * i)", 0),
    "the wrong angle": ("llama", STEP, "8 * (g % 2) + i / 2", "i / 2", 0),
    "angles of another layer": ("parts", STEP, "* 24 + 8 * layer", "* 24", 0),
    "a sum without its second part": ("parts", STEP, "+ o_parts[64 * b + 16 * g + i + 320]", "+ 0.0f", 0),
    "no residual": ("llama", STEP, "(x_2_3 + y)", "y", 0),
    "a cap of less": ("parts", STEP, "mc::tanh(score) * 8.0f", "mc::tanh(score) * 7.9f", 1),
    "the new token without a cap": ("parts", STEP, "locals + 176, [](float score) { return mc::tanh(score) * 8.0f * mc::LOG2E; })", "locals + 176, [](float score) { return score * 8.0f * mc::LOG2E; })", 0),
    # who has what
    "each split has the new token": ("llama", STEP, "if (s == pos / 16 % 3 && mc::warp() == 0)", "if (mc::warp() == 0)", 0),
    "no split has the new token": ("llama", STEP, "if (s == pos / 16 % 3 && mc::warp() == 0)", "if (false)", 0),
    "each warp has the new token": ("llama", STEP, " && mc::warp() == 0) attended", ") attended", 0),
    "each split has the sink": ("parts", STEP, "if (s == 0 && mc::warp() == WARPS - 1) attended.", "if (mc::warp() == WARPS - 1) attended.", 0),
    "sinks of another head": ("parts", STEP, "sinks[h + 16 * layer + 5]", "sinks[h + 16 * layer]", 0),
    "a window of one more": ("parts", STEP, "max(pos + 1 - 40, 0)", "max(pos - 40, 0)", 0),
    "a window of one less": ("parts", STEP, "max(pos + 1 - 40, 0)", "max(pos + 2 - 40, 0)", 0),
    "a window in other layers": ("parts", STEP, "const int seen = (layer % 2 == 0", "const int seen = (layer % 2 == 1", 0),
    "a window by statements of one more": ("windows", STEP, "- 20) scores", "- 21) scores", 0),
    "one tile too few": ("llama", STEP, "const int tiles = (pos + ", "const int tiles = (pos - 16 + ", -1),
    "tokens behind the end": ("llama", STEP, ", 0, pos);", ", 0, pos + 1);", 0),
    "no barrier before records": ("llama", STEP, f"attended.put(joined, statistics);\n                {SYNC}\n", "attended.put(joined, statistics);\n", 0),
    "no barrier behind queries": ("llama", STEP, f"                {SYNC}\n                mc::GroupAttention<T, 2, 32, WARPS> attended", "                mc::GroupAttention<T, 2, 32, WARPS> attended", 0),
    "no barrier behind records": ("llama", STEP, f"                }});\n                {SYNC}", "                });", 0),
    # the library
    "runs that leave tasks out": ("llama", TASKS, "(block() + 1) / blocks()", "(block() + 1) / (blocks() + 1)", 0),
    "runs that overlap": ("llama", TASKS, "return max(begin, from);", "return max(begin - 1, from);", 0),
    "sums in one half of the parts": ("llama", TASKS, "turn++ % 2", "0", 0),
    "no barrier behind sums": ("llama", TASKS, "    group_sync(1, 32 * WARPS);  // the next group's", "    // the next group's", 0),
    "no barrier behind columns": ("llama", TASKS, "    group_sync(1, WORKERS);\n}\n\n// Whatever", "}\n\n// Whatever", 0),
    "splits that are not rescaled": ("splits", TASKS, "for (int n = 0; n < 8; n++) v[n] *= kept;", "", 0),
    "weights that are not rescaled": ("splits", TASKS, "        total *= kept;\n", "", 0),
    "splits behind the last one": ("splits", TASKS, "first + j < SPLITS ? power_of_two(of[j].y - top) : 0.0f", "power_of_two(of[j].y - top)", 0),
    "another head's record": ("llama", TASKS, "head % GROUP) * RECORD", "0) * RECORD", 0),
    "rows that are not swizzled": ("llama", TASKS, "Swizzle<LANES>::lane(lane, token)", "lane", 0),
    "what rounding left is left out": ("llama", GROUP, "v[4 * half + 2 + i] = rounding_left<T>(value);", "v[4 * half + 2 + i] = 0.0f;", 0),
    "a tile in front of the window": ("parts", GROUP, "position >= first && position < end ? power", "position < end ? power", 0),
    "the last row of a tile again": ("llama", GROUP, "lane() % 8, count - 1)", "lane() % 8, count)", 0),
    "weights that are not rescaled in a tile": ("llama", GROUP, "weight = fused(weight, keep,", "weight = fused(weight, 1.0f,", 0),
    "warps that all take the first tokens": ("llama", GROUP, "- turn * UNITS % WARPS) % WARPS", ") % WARPS", 0),
    "scores of one half of a query": ("llama", GROUP, "c[i / 2][i % 2] + c[i / 2][i % 2 + 2]", "c[i / 2][i % 2]", 0),
}  # fmt: skip

# Edits that change nothing that a run can tell, and why.
EQUIVALENT = {
    "warps that all take the first tokens": "one warp does the work of all, slowly",
    "splits behind the last one": "their weights are 0 and their highest scores the least",
    "a tile in front of the window": "its scores are the least there are, so their powers are 0",
}
