"""Edits of emitted programs that nothing notices, by the reason why they change nothing."""

EQUIVALENT: dict[str, tuple[str, ...]] = {
    "Nothing is dropped under this policy, so the oldest token stays in slot 0 and no empty slots "
    "lie before it.": (
        "cyclic: <if (more > 0) => if (false)> {",
        "moved: <if (more > 0) => if (false)> {",
    ),
    "All layers hold equally many tokens, and the oldest of each is in the same slot.": (
        "cyclic: (kv_state[<2 * layer => 0>] + kv_state[2 * layer + 1]) % kv_state_slots #3",
        "cyclic: (kv_state[2 * layer] + kv_state[<2 * layer => 0> + 1]) % kv_state_slots #3",
        "shift: const empty = kv_state_slots - @as(i16, kv_state[<2 * layer => 0> + 1]);",
        "halves: const empty = kv_state_slots - @as(i16, kv_state[<2 * layer => 0> + 1]);",
        "moved: (kv_state[<2 * layer => 0>] + kv_state[2 * layer + 1]) % kv_state_slots",
    ),
    "The loop over the rows that no block of two holds has one round at most.": (
        "moved: c_at + <o_3_per_row_2 * row => 0> + 24 * ((len + 2) / 6), #3",
    ),
    "A chunk of six tokens on three rows of cores is one block of two rows.": (
        "moved: <q_k_v_prompt_per_row * row => 0>, #7",
    ),
    "A number that all scores of a head get alike changes no softmax.": (
        "moved: @fmovs(score_chunks_all, <0.0 => 0.5>); // fill %score_chunks",
    ),
}
