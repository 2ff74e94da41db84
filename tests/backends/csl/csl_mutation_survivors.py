"""Edits of emitted programs that nothing notices, by the reason why they change nothing."""

EQUIVALENT: dict[str, tuple[str, ...]] = {
    "All layers hold equally many tokens, and the oldest of each is in the same slot.": (
        "halves: (kv_state[<2 * layer => 0>] + kv_state[2 * layer + 1]) % kv_state_slots",
        "requests: kv_state[<4 * layer => 0> + 2 * request] + kv_state[ #4",
        "moved: kv_state[<2 * layer => 0>] + kv_state[2 * layer + 1] #2",
    ),
    "The first token that a core drops is its only one, so the next may come into any slot; from "
    "then on the oldest of the second layer is one slot ahead of that of the first.": (
        "shift: kv_state[2 * layer] = (kv_state[<2 * layer => 0>] + 1) % kv_state_slots;",
    ),
    "Nine tokens fill three of the four slots of a core: the end of a layer's cache is nobody's.": (
        "cyclic: const kv_cache_per_layer = <32 => 32 - 1>;",
    ),
    "Where a buffer begins that one descriptor alone reaches tells its banks alone.": (
        "cyclic: const o_all = @get_dsd(mem1d_dsd, "
        ".{ .tensor_access = |i|{8} -> o<[i + 1] => [i + 1 - 1]> });",
    ),
    "The loops over the rows of a core have one round at most, as a chunk has six tokens.": (
        "moved: @increment_dsd_offset(q_k_v_2_2_from_13, <q_k_v_per_row * row => 0>, f32),",
        "moved: <sines_3_2_per_row_2 * row => 0> + 4 * ((len + 2) / 6),",
    ),
    "Sines and cosines of a row are as many.": (
        "moved: <sines_3_2_per_row_2 => cosines_3_2_per_row_2> * row + 4 * ((len + 2) / 6), #4",
    ),
    "The core that relays parts of scores has no lanes of its own: two cores have all eight.": (
        "moved: <@fadds(chain_x_1_out_9, chain_x_1_in_9, s_2_all) => "
        "@fmovs(chain_x_1_out_9, chain_x_1_in_9)>;",
    ),
}
