"""Edits of emitted programs that nothing notices, by the reason why they change nothing."""

EQUIVALENT: dict[str, tuple[str, ...]] = {
    "All layers hold equally many tokens, and the oldest of each is in the same slot.": (
        "cyclic: const empty = kv_state_slots - @as(i16, kv_state[<2 * layer => 0> + 1]);",
        "halves: (kv_state[<2 * layer => 0>] + kv_state[2 * layer + 1]) % kv_state_slots #3",
        "requests: kv_state[<4 * layer => 0> + 2 * request] + kv_state[ #3",
    ),
    "The loop over the rows that no block of two holds has one round at most.": (
        "moved: <q_k_v_per_row_2 * row => 0> + 40 * ((len + 2) / 6), #11",
        "moved: <cosines_3_2_per_row_2 * row => 0> + 4 * ((len + 2) / 6), #2",
    ),
    "An absent request, at position -1, fills no slot, and nobody reads its logits.": (
        "requests: pc = if (<pos >= 0 => true>) 2 else 8;",
    ),
    "A number that all scores of a head get alike changes no softmax.": (
        "requests: @fmovs(s_2_all, <0.0 => 0.5>); // gemm %s_2, %q_k_v, %kv_cache",
        "moved: @fmovs(score_chunks_all, <0.0 => 0.5>); // fill %score_chunks",
    ),
}
