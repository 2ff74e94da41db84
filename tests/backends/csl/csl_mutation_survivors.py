"""Edits of emitted programs that nothing notices, by the reason why they change nothing."""

EQUIVALENT: dict[str, tuple[str, ...]] = {
    "All layers hold equally many tokens, and the oldest of each is in the same slot.": (
        "cyclic: const empty = kv_state_slots - @as(i16, kv_state[<2 * layer => 0> + 1]);",
        "halves: (kv_state[<2 * layer => 0>] + kv_state[2 * layer + 1]) % kv_state_slots #3",
        "requests: kv_state[<4 * layer => 0> + 2 * request] + kv_state[ #3",
    ),
    "The loop over the rows that no block of two holds has one round at most.": (
        "moved: <q_k_v_per_row_2 * row => 0> + 40 * ((len + 2) / 6), #11",
    ),
}
