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
}
