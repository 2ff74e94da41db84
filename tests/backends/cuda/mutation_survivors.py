"""Mutations that nothing notices, by the reason why they change nothing that may be observed."""

EQUIVALENT: dict[str, tuple[str, ...]] = {
    "A fresh mbarrier counts as having ended the phase in front of its first, so waiting for "
    "parity 1, which (0 - 1) & 1 is, returns at once: the guard only saves the instruction.": (
        "mc_collectives.cuh: if (<item >= STAGES => true>) wait(empty + item % STAGES, "
        "(item / STAGES - 1) & 1);",
    ),
    "Producer and consumers find a tile by the same function, so all move to the next place.": (
        "mc_collectives.cuh: MC_INLINE unsigned char* place(int item) const { return tiles + "
        "<item % STAGES => (item + 1) % STAGES> * tile_bytes; }",
    ),
    "Known when compiling: where the workers divide the chunks no thread has one behind the last, "
    "so the other part never holds.": (
        "mc_fragments.cuh: if (<F::CHUNKS % WORKERS => true> && k >= F::CHUNKS * 8) break;",
    ),
    "OWN * WORKERS chunks are all, so each thread's next lies behind ``end``, where it goes on.": (
        "mc_fragments.cuh: for (int n = 0; n < <F::OWN => (F::OWN) + 1>; n++) { #2",
    ),
    "Only blocks that have nothing to do differ: what they have is counted below zero instead of "
    "zero, and every loop over it ends as early.": (
        "rows_product.cu: const int first = <min(rank * OWN_BLOCKS, BLOCKS) => (rank * OWN_BLOCKS)>"
        ", own = min(OWN_BLOCKS, BLOCKS - first);",
        "rows_product.cu: const int from = <min(rank * share, done + 1) => (rank * share)>, "
        "to = min(from + share, done + 1);",
    ),
}
