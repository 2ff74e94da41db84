"""Edits of emitted decode programs that nothing notices, by the reason why they change nothing."""

EQUIVALENT: dict[str, tuple[str, ...]] = {
    "Nothing is dropped under this policy, so the oldest token stays in slot 0 and no empty slots "
    "lie before it.": (
        "cyclic: <if (more > 0) => if (false)> {",
        "halves: <if (more > 0) => if (false)> {",
    ),
    "All layers hold equally many tokens.": (
        "shift: const first = @as(i16, (kv_state[2 * layer] + "
        "kv_state[<2 * layer => 0> + 1]) % kv_state_slots);",
    ),
    "The rows of cores take turns all the same, each token one row further.": (
        "halves: if (<my_rank_y == pos % 2) => my_rank_y == (pos + 1) % 2)> {",
    ),
    "On WSE-2 descriptors name their colors; a queue without a color is not used by another.": (
        "cyclic: <if (cast_y_receives) => if (!cast_y_receives)> "
        "{ @initialize_queue(cast_y_in_queue, .{ .color = cast_y_in }); }",
    ),
    "A number that all scores of a head get alike changes no softmax.": (
        "halves: @fmovs(s_2_all, <0.0 => 0.5>); "
        "// gemm %s_2 as [3, 3, 6], %o_1 as [3, 3, 2], %kv_cache[layer, 0]",
    ),
    "Lanes that no core has meet rows of the weights that are zero.": (
        "shift: @fmovs(h_1_all, <0.0 => 0.5>);",
    ),
}
