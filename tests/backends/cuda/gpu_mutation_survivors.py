"""Edits of what only several GPUs have that nothing notices, by the reason why."""

EQUIVALENT: dict[str, tuple[str, ...]] = {
    "The words of a thread are at least all there are, so the next one lies behind the last, where "
    "the guard in the loop ends it.": (
        "collective.cu: for (int n = 0; n < <OWN => (OWN) + 1>; n++) {",
        "collective.cu: for (int n = 0; n < <OWN => (OWN) + 1>; n++) { #2",
        "collective.cu: for (int n = 0; n < <OWN => (OWN) + 1>; n++) { #3",
    ),
    "The next grid starts when this one ends instead, and waits for that anyway.": (
        "collective.cu: <mc::let_next_grid_start(); => ;>",
    ),
    "Every lane has the sum of its warp.": (
        "collective.cu: if (<mc::lane() == 0 => mc::lane() == 1>) sums[half * WARPS + mc::warp()] "
        "= squares;",
    ),
    "Who knows of a store knows of the loads that it knew of.": (
        "mc_gpus.cc: <cell.read = {}; => ;>",
    ),
    "Known twice is known: it is joined again at the next barrier.": (
        "mc_gpus.cc: <own = {}; => ;>",
        "mc_gpus.cc: <own = {}; => ;> #2",
    ),
    "What barriers cover is dropped later.": ("mc_gpus.cc: <join(group.met, {}); => ;>",),
}
